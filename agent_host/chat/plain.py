"""The plain face: lines only, for screen readers, dumb terminals and people who want that. Nothing is drawn over.

The terminal edits the line itself. A line that was typed after a question was shown answers it; any other is a prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from agent_host.chat.face import FrameWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.chat.conversation import Conversation
    from agent_host.chat.face import Choice

if sys.platform != "win32":
    import termios

_ROOM_CHARS: Final = 256 * 1024
_READ_BYTES: Final = 64 * 1024
_LEAVES_WITHIN_S: Final = 2.0
_ACTS: Final = "."


class PlainConsole:
    """See the module; a `Face`. `fd_in` and `fd` are the terminal's two ends."""

    def __init__(self, *, fd_in: int = 0, fd: int = 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd_in = fd_in
        self._fd = fd
        self._chat: Conversation | None = None
        self._pending: deque[str] = deque()
        self._pending_chars = 0
        self._room = asyncio.Event()
        self._room.set()
        self._over = asyncio.Event()
        self._line: asyncio.Future[str | None] | None = None
        self._shown_at = float("inf")
        self._interrupted_at = 0.0
        self._writer = FrameWriter(fd, self._loop, self._write)

    # Face

    def print(self, text: str) -> None:
        """See Face."""
        self._pending.append(text)
        self._pending_chars += len(text)
        if self._pending_chars > _ROOM_CHARS:
            self._room.clear()
        self._write()

    def refresh(self) -> None:
        """See Face."""

    async def room(self) -> None:
        """See Face."""
        if not self._room.is_set() and not self._writer.has_failed:
            await self._room.wait()

    async def key(self, prompt: str, keys: str) -> str:
        """See Face: the first letter of a line."""
        while True:
            text = await self._ask(f"{prompt}: ")
            key = (text or "").strip().lower()
            if key and (key in keys or key in ("yes", "no")) and len(key) in (1, 2, 3):
                return key[0]
            if key:
                self.print(f"give one of {', '.join(keys)}\n")

    async def line(self, prompt: str, initial: str = "", *, lines: bool = False) -> str | None:
        """See Face: of several lines the last is one full stop."""
        if not lines:
            return await self._ask(f"{prompt} ")
        self.print(f"{initial}\n{prompt} write it anew; a line with one full stop ends it\n")
        rows: list[str] = []
        while (row := await self._ask("")) is not None and row != _ACTS:
            rows.append(row)
        return "\n".join(rows) if rows else None

    async def pick(self, title: str, choices: Sequence[Choice]) -> str | None:
        """See Face: by a number."""
        shown = choices[:50]
        self.print("".join(f"{number} {one.line}\n" for number, one in enumerate(shown, 1)))
        text = (await self._ask(f"{title} A number, or nothing for none: ") or "").strip()
        return shown[int(text) - 1].value if text.isdecimal() and 1 <= int(text) <= len(shown) else None

    def call_attention(self, title: str) -> None:
        """See Face."""
        if title:
            self.print("\a")

    def leave(self) -> None:
        """See Face."""
        self._over.set()

    # The program's side

    def attach(self, chat: Conversation) -> None:
        """Have a conversation, which gets what is typed."""
        self._chat = chat

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._fd).columns or 80
        return 80

    async def run(self) -> None:
        """Take lines until the person leaves, or the input ends."""
        threading.Thread(target=self._read, name="lines", daemon=True).start()
        await self._over.wait()

    def interrupt(self) -> None:
        """Act on Ctrl-C."""
        if self._chat is None or self._chat.interrupt():
            return
        now = time.monotonic()
        if now - self._interrupted_at < _LEAVES_WITHIN_S:
            self.leave()
        else:
            self._interrupted_at = now
            self._chat.note("Ctrl-C again leaves")

    def close(self) -> None:
        """Print what waits."""
        self._room.set()
        self._writer.write("".join(self._pending))
        self._pending.clear()
        self._writer.close()

    async def _ask(self, prompt: str) -> str | None:
        """A line that is typed after the prompt was shown."""
        answer: asyncio.Future[str | None] = self._loop.create_future()
        self._line = answer
        self._shown_at = float("inf")
        self.print(prompt)
        try:
            return await answer
        finally:
            if self._line is answer:
                self._line = None

    def _write(self) -> None:
        if self._writer.has_failed:
            self._room.set()
            self.leave()
        elif self._writer.is_idle and self._pending:
            self._writer.write("".join(self._pending))
            self._pending.clear()
            self._pending_chars = 0
            self._room.set()
        elif self._writer.is_idle and self._line is not None and self._shown_at == float("inf"):
            if sys.platform != "win32":
                with contextlib.suppress(termios.error):
                    termios.tcflush(self._fd_in, termios.TCIFLUSH)
            self._shown_at = time.monotonic()

    def _take(self, text: str | None, begun_at: float) -> None:
        if text is None:
            if self._line is not None and not self._line.done():
                self._line.set_result(None)
            self.leave()
        elif self._line is not None and not self._line.done():
            if begun_at >= self._shown_at:  # what was typed before the question is no answer
                self._line.set_result(text)
        elif self._chat is not None and text.strip():
            self._chat.submit(text)

    def _read(self) -> None:
        """Hand over each line with the moment at which its first character was there."""
        waiting, begun_at = b"", 0.0
        while True:
            try:
                data = os.read(self._fd_in, _READ_BYTES)
            except OSError:
                data = b""
            now = time.monotonic()
            begun_at = begun_at if waiting else now
            *lines, waiting = (waiting + data).split(b"\n")
            with contextlib.suppress(RuntimeError):  # the loop is closed
                for line in lines:
                    self._loop.call_soon_threadsafe(self._take, line.decode("utf-8", "replace"), begun_at)
                    begun_at = now
                if not data:
                    self._loop.call_soon_threadsafe(self._take, None, now)
            if not data:
                return
