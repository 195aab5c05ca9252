"""Lines for somebody who may read slowly, or not at all: the loop's thread never waits for them (invariant 5).

What a stream takes at once is written at once, without a thread. Only what would have to wait goes to a thread, which
starts with the first of it: bytes for a pipe that is full, and all that goes to a terminal or a socket, which do not
say how much they take.
"""

from __future__ import annotations

import atexit
import os
import select
import stat
import threading
from collections import deque
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from typing import BinaryIO

PATIENCE_S = 30.0
"""How long a reader may take nothing before the end of the program is more important."""

# A pipe that is ready takes this much without making the writer wait (POSIX).
_AT_ONCE = getattr(select, "PIPE_BUF", 512)


class PatientWriter:
    """Writes lines to `stream`, in order. `refused` is why it takes no more; `dropped` counts lines that found no room
    among the `max_bytes` that may wait. Used from one thread."""

    def __init__(self, stream: BinaryIO, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._fd, self._way = _way_of(stream)
        self._poll = _poll_of(self._fd) if self._way == "pipe" else None
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._behind = False  # there is something that only the thread may write
        self._thread: threading.Thread | None = None
        self._moved = 0
        self._given_up = False
        self.refused: Exception | None = None
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Write the line, or have it written."""
        if self.refused is not None or self._given_up:
            return
        rest = line if self._behind or self._way == "thread" else self._write_now(line)
        if not rest:
            return
        with self._changed:
            if self._queued_bytes + len(rest) > self._max_bytes and rest is line:
                self.dropped += 1
                return
            self._queue.append(rest)
            self._queued_bytes += len(rest)
            self._behind = True
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_queue, name="slow reader", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until all is written, unless nothing moves for `patience_s`: what is left then counts as dropped."""
        with self._changed:
            try:
                while self._behind and self.refused is None:
                    before = self._moved
                    if not self._changed.wait(patience_s) and self._moved == before:
                        break
            except KeyboardInterrupt:  # the user has seen enough
                pass
            self._given_up = self._behind
            self.dropped += len(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
        atexit.unregister(self.close)

    def _write_now(self, line: bytes) -> bytes:
        """Write what the stream takes without a wait; returns what is left."""
        try:
            if self._poll is None:
                self._stream.write(line)
                self._stream.flush()
                return b""
            while line and self._poll.poll(0):
                line = line[os.write(self._fd, line[:_AT_ONCE]) :]
        except BlockingIOError:  # somebody else has the pipe too, and filled it meanwhile
            return line
        except (OSError, ValueError) as error:
            self.refused = error
            return b""
        return line

    def _write_queue(self) -> None:
        """The thread: small pieces, so that it shows when a reader moves."""
        while True:
            with self._changed:
                while not self._queue:
                    self._behind = False
                    self._changed.notify_all()
                    self._changed.wait()
                line = self._queue.popleft()
                self._queued_bytes -= len(line)
            try:
                while line:
                    try:
                        line = line[os.write(self._fd, line[:_AT_ONCE]) :]
                    except BlockingIOError:  # somebody else who has it made it non-blocking
                        _poll_of(self._fd).poll()
                        continue
                    with self._changed:
                        self._moved += 1
                        self._changed.notify_all()
            except OSError as error:
                with self._changed:
                    self.refused = error
                    self._queue.clear()
                    self._changed.notify_all()
                return


def _way_of(stream: BinaryIO) -> tuple[int, Literal["direct", "pipe", "thread"]]:
    """The stream's descriptor, and how to write to it without waiting. A file, a null device or memory never waits."""
    try:
        stream.flush()
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):  # no descriptor behind it, or closed: writing says so
        return -1, "direct"
    if stat.S_ISFIFO(mode) and hasattr(select, "poll"):
        return fd, "pipe"
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
    return fd, "thread" if waits else "direct"


def _poll_of(fd: int) -> select.poll:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return poll
