"""The terminal's interface for a conversation: printing, questions to the person, and the only writer.

All output is part of a frame, which a thread writes so that a slow terminal blocks nothing else. While one frame is
being written no other is made: output of that time goes into the next. So there is never more than one frame in memory,
however slow the terminal is, and the event loop never waits for it.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.terminal import read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent_host.chat.conversation import Conversation

if sys.platform != "win32":
    import termios

LEAVES_WITHIN_S: Final = 2.0
_ROOM_CHARS: Final = 256 * 1024
_PIECE_BYTES: Final = 4096
_ACTS: Final = "."


class Choice(NamedTuple):
    """A row to choose: its value, and its line on the screen."""

    value: str
    line: str


class Face(abc.ABC):
    """See the module. `Console` is a live one, `PlainConsole` one that only appends; `fd` is their output."""

    chat: Conversation
    """Set before `run`."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._pending: list[str] = []
        self._pending_chars = 0
        self._room = asyncio.Event()
        self._room.set()
        self._interrupted_at = 0.0
        self._writer = FrameWriter(fd, self._loop, self._on_idle)

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return self._terminal_size().columns

    def _terminal_size(self) -> os.terminal_size:
        found = os.terminal_size((0, 0))
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._fd)
        return os.terminal_size((found.columns or 80, found.lines or 24))

    def print(self, text: str) -> None:
        """Print complete lines, already escaped, above the live lines."""
        if text:  # an empty frame is never written, so its end would never be reported
            self._pending.append(text)
        self._pending_chars += len(text)
        if self._pending_chars > _ROOM_CHARS:
            self._room.clear()
        self.refresh()

    async def room(self) -> None:
        """Wait while the terminal is far behind."""
        if not self._room.is_set() and not self._writer.has_failed:
            await self._room.wait()

    def stop_or_leave(self) -> None:
        """Act on Ctrl-C: stop the running task; if nothing runs, the second one leaves."""
        if self.chat.interrupt():
            return
        now = time.monotonic()
        if now - self._interrupted_at < LEAVES_WITHIN_S:
            self.leave()
        else:
            self._interrupted_at = now
            self.chat.note("Ctrl-C again leaves")

    @abc.abstractmethod
    def _on_idle(self) -> None:
        """Act on the end of a frame."""

    @abc.abstractmethod
    def refresh(self) -> None:
        """Redraw the live lines soon."""

    @abc.abstractmethod
    async def key(self, prompt: str, keys: str) -> str:
        """Return the key of `keys` that is typed after the prompt was shown."""

    @abc.abstractmethod
    async def line(self, prompt: str, initial: str = "", *, lines: bool = False) -> str | None:
        """Return the typed text, None if the person cancels; `lines` for text of several lines."""

    @abc.abstractmethod
    async def pick(self, title: str, choices: Sequence[Choice]) -> str | None:
        """Return the value of the chosen row, None if none is chosen."""

    @abc.abstractmethod
    def call_attention(self, title: str) -> None:
        """Ring the bell, and set the terminal's title to `title`; an empty one restores the usual title."""

    @abc.abstractmethod
    async def run(self) -> None:
        """Read input until the person leaves, or the terminal is gone."""

    @abc.abstractmethod
    def leave(self) -> None:
        """End the conversation."""

    @abc.abstractmethod
    def close(self) -> None:
        """Print pending output, and restore the terminal."""


class Frame:
    """The standard output for prompt_toolkit: its output becomes part of the next frame."""

    encoding = "utf-8"

    def __init__(self, fd: int, done: Callable[[str], None]) -> None:
        self._fd = fd
        self._done = done
        self._parts: list[str] = []
        self.is_open = False

    def fileno(self) -> int:
        """The descriptor of the terminal."""
        return self._fd

    def write(self, text: str) -> int:
        """Add to the frame."""
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        """Pass the frame to the writer, unless more of it follows."""
        if not self.is_open:
            text, self._parts = "".join(self._parts), []
            self._done(text)


class FrameWriter:
    """Writes to the descriptor `fd`; `on_idle` is called on the event loop after each frame."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop, on_idle: Callable[[], None]) -> None:
        self._fd = fd
        self._loop = loop
        self._on_idle = on_idle
        self._frame: bytes | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self.has_failed = False
        """True if the terminal is gone."""
        self.last_frame_s = 0.0
        """Duration of the last frame."""
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """True if no frame is being written."""
        return self._frame is None

    def write(self, frame: str) -> None:
        """Start to write a frame; the previous one must be finished."""
        data = frame.encode("utf-8", "replace")
        with self._changed:
            if not data or self._is_closed:
                return
            self._frame = data if self._frame is None else self._frame + data
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until the frame is written; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._frame is None, timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the rest, and end."""
        self.drain(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frame is not None or self._is_closed)
                data = self._frame
            if data is None:
                return
            started = time.monotonic()
            view = memoryview(data)
            while view and not self.has_failed and not self._is_closed:
                try:
                    view = view[os.write(self._fd, view[:_PIECE_BYTES]) :]
                except BlockingIOError:
                    select.select((), (self._fd,), (), 1.0)
                except OSError:
                    self.has_failed = True
            with self._changed:
                self.last_frame_s = time.monotonic() - started
                added = (self._frame or b"")[len(data) :]
                self._frame = added or None
                self._changed.notify_all()
            if self._frame is None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._on_idle)


class PlainConsole(Face):
    """The plain face: lines only, for screen readers, dumb terminals and people who prefer it. Nothing is redrawn.

    The terminal edits the line itself. A line that was typed after a question was shown answers it; any other is a
    prompt.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._over = asyncio.Event()
        self._line: asyncio.Future[str | None] | None = None
        self._shown_at = float("inf")

    async def key(self, prompt: str, keys: str) -> str:
        """See Face: the first letter of a line."""
        while True:
            key = (await self._ask(f"{prompt}: ") or "").strip().lower()
            if key and (key in keys or key in ("yes", "no")) and len(key) in (1, 2, 3):
                return key[0]
            if key:
                self.print(f"give one of {', '.join(keys)}\n")

    async def line(self, prompt: str, initial: str = "", *, lines: bool = False) -> str | None:
        """See Face: text of several lines ends with a line of one full stop."""
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

    async def run(self) -> None:
        """See Face."""

        def hand_over(text: str | None, started_at: float) -> None:
            self._loop.call_soon_threadsafe(self._take, text, started_at)

        threading.Thread(target=read_lines, args=(0, hand_over), name="lines", daemon=True).start()
        await self._over.wait()

    def close(self) -> None:
        """See Face."""
        self._room.set()
        self._writer.write("".join(self._pending))
        self._pending.clear()
        self._writer.close()

    def refresh(self) -> None:
        """See Face."""
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
                    termios.tcflush(0, termios.TCIFLUSH)
            self._shown_at = time.monotonic()

    _on_idle = refresh

    async def _ask(self, prompt: str) -> str | None:
        answer: asyncio.Future[str | None] = self._loop.create_future()
        self._line = answer
        self._shown_at = float("inf")
        self.print(prompt)
        try:
            return await answer
        finally:
            if self._line is answer:
                self._line = None

    def _take(self, text: str | None, started_at: float) -> None:
        is_asked = self._line is not None and not self._line.done()
        if text is None:
            if self._line is not None and is_asked:
                self._line.set_result(None)
            self.leave()
        elif self._line is not None and is_asked:
            if started_at >= self._shown_at:  # input typed before the question does not answer it
                self._line.set_result(text)
        elif text.strip():
            self.chat.submit(text)
