"""The terminal as a conversation sees it: a place to print on, a person who answers, and the one writer.

Whatever is to be on the terminal is part of a frame, written by a thread so that a slow terminal waits alone. While one
is being written no other is made: what comes meanwhile is in the next. So there is never more than one frame in memory,
whatever the terminal's pace, and the event loop never waits for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence


class Choice(NamedTuple):
    """A row to choose: its value, and the line that is shown."""

    value: str
    line: str


class Face(Protocol):
    """See the module. `console` is a live one, `plain` one that only appends."""

    def print(self, text: str) -> None:
        """Print whole lines, safe as they are, above what is live."""

    def refresh(self) -> None:
        """Show what has changed of what is live, soon."""

    async def room(self) -> None:
        """Wait while the terminal is far behind."""

    async def key(self, prompt: str, keys: str) -> str:
        """Return the one of `keys` that is typed after the prompt was shown."""

    async def line(self, prompt: str, initial: str = "", *, lines: bool = False) -> str | None:
        """Return what a person types, None if they take it back; `lines` for text of several."""

    async def pick(self, title: str, choices: Sequence[Choice]) -> str | None:
        """Return the value of the row that a person chooses, None for none."""

    def call_attention(self, title: str) -> None:
        """Ring the bell, and put `title` into the terminal's own; an empty one puts the usual one back."""

    def leave(self) -> None:
        """End the conversation."""


_PIECE_BYTES: Final = 4096


class Frame:
    """Standard output as prompt_toolkit sees it: what it writes is part of the next frame."""

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
        """Hand the frame over, unless more of it comes."""
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
        self.took_s = 0.0
        """Duration of the last frame."""
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """True if no frame is being written."""
        return self._frame is None

    def write(self, frame: str) -> None:
        """Have a frame written; the one before has to be done."""
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
        """Write what is left, and end."""
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
            began = time.monotonic()
            self._put(data)
            with self._changed:
                self.took_s = time.monotonic() - began
                added = (self._frame or b"")[len(data) :]
                self._frame = added or None
                self._changed.notify_all()
            if self._frame is None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._on_idle)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.has_failed and not self._is_closed:
            try:
                view = view[os.write(self._fd, view[:_PIECE_BYTES]) :]
            except BlockingIOError:
                select.select((), (self._fd,), (), 1.0)
            except OSError:
                self.has_failed = True
