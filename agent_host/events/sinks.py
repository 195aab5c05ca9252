"""Sinks for events on this machine: the run log, and a stream for programs."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import stat
import threading
from collections import deque
from typing import TYPE_CHECKING, Literal

import orjson

from agent_host.events import LIVE_ONLY
from agent_host.events.emitter import Event
from agent_host.safe_open import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

# Lines for a reader that may be slow or stalled: the loop's thread never waits for it (invariant 5).
#
# Lines are written directly, without a thread, as long as the stream accepts them. A thread, started on first use,
# writes the rest: bytes for a full pipe, and everything for a terminal or a socket, which do not report how much they
# accept.

PATIENCE_S = 30.0
"""Maximum wait for a stalled reader when the program ends."""

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
        self._has_backlog = False  # there is something that only the thread may write
        self._thread: threading.Thread | None = None
        self._moved = 0
        self._given_up = False
        self.refused: Exception | None = None
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Write the line, or have it written."""
        if self.refused is not None or self._given_up:
            return
        rest = line if self._has_backlog or self._way == "thread" else self._write_now(line)
        if not rest:
            return
        with self._changed:
            if self._queued_bytes + len(rest) > self._max_bytes and rest is line:
                self.dropped += 1
                return
            self._queue.append(rest)
            self._queued_bytes += len(rest)
            self._has_backlog = True
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_queue, name="slow reader", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until everything is written, or until nothing was written for `patience_s`: the rest counts as dropped.
        The interpreter's exit does the same; after this call `refused` and `dropped` are final."""
        with self._changed:
            try:
                while self._has_backlog and self.refused is None:
                    before = self._moved
                    if not self._changed.wait(patience_s) and self._moved == before:
                        break
            except KeyboardInterrupt:  # the user has seen enough
                pass
            self._given_up = self._has_backlog
            self.dropped += len(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
        atexit.unregister(self.close)

    def _write_now(self, line: bytes) -> bytes:
        """Write what the stream accepts without waiting; returns the rest."""
        try:
            if self._poll is None:
                self._stream.write(line)
                self._stream.flush()
                return b""
            while line and self._poll.poll(0):
                line = line[os.write(self._fd, line[:_AT_ONCE]) :]
        except BlockingIOError:  # another process has filled the shared pipe
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
                    self._has_backlog = False
                    self._changed.notify_all()
                    self._changed.wait()
                line = self._queue.popleft()
                self._queued_bytes -= len(line)
            try:
                while line:
                    try:
                        line = line[os.write(self._fd, line[:_AT_ONCE]) :]
                    except BlockingIOError:  # another process made it non-blocking
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
    except (OSError, ValueError):  # no descriptor, or closed: writing reports it
        return -1, "direct"
    if stat.S_ISFIFO(mode) and hasattr(select, "poll"):
        return fd, "pipe"
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
    return fd, "thread" if waits else "direct"


def _poll_of(fd: int) -> select.poll:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return poll


KEPT_RUN_LOGS = 3
_MAX_PENDING = 64  # events, of which none shows more than some 16 KiB
# Pieces of a stream take numbers and are not kept, so the last number kept may not be the last one given out.
_GAP_AFTER_RESUME = 100_000
_TAIL_BYTES = 64 * 1024


def next_event_id(path: str) -> int:
    """The first event number of a process that continues the run log at `path`: 1, or well above the last one. A
    process may have died between rotating a full log and writing the first line of the next."""
    found = (_last_event_id(log) for log in (path, f"{path}.1"))
    return next((last + _GAP_AFTER_RESUME for last in found if last is not None), 1)


def _last_event_id(path: str) -> int | None:
    """The number in the last whole line; None without one."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            length = _TAIL_BYTES
            while True:  # further back until a whole line is found
                handle.seek(max(0, size - length))
                for line in reversed(handle.read().splitlines()):
                    with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, ValueError):  # it is cut off
                        return int(orjson.loads(line)["eventId"])
                if length >= size:
                    return None
                length *= 4
    except OSError:
        return None


class RunLog:
    """`events.jsonl` of a session: one event a line, appended, kept after the session's end.

    The first line is written at once, because the process that resumes after a crash continues its numbering. The other
    events are buffered until a flush or until there are 64, and are encoded then: the loop flushes while it waits for
    the model, and before a slow call. A disk failure loses lines, not the session: `dropped` counts them. A log of
    `max_bytes` is rotated to `events.jsonl.1`, and `keep` rotated logs stay. `are_clean` returns True if several lines
    certainly contain no secret; without it each is searched.
    """

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        keep: int = KEPT_RUN_LOGS,
        are_clean: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._are_clean = are_clean
        self._fd = -1
        self._size = 0
        self._pending: list[Event] = []
        self._started = False
        self.dropped = 0

    def take(self, event: Event) -> None:
        """Keep the event, unless it is a piece of a stream."""
        if event.event_type in LIVE_ONLY:
            return
        self._pending.append(event)
        if len(self._pending) >= _MAX_PENDING or not self._started:
            self._started = True
            self.flush()

    def flush(self) -> None:
        """Append the buffered events to the file."""
        if not self._pending:
            return
        lines, self._pending = Event.lines(self._pending, self._are_clean), []
        written = 0
        try:
            if self._fd < 0:
                self._fd, self._size = _open_log(self._path)
            data = b"".join(lines)
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except OSError:
            self._count_lost(lines, written)
            return
        self._size += written
        if self._size >= self._max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        """Rotate the logs. Every move is a rename to a free name, except that the oldest log is replaced. So a process
        that dies on the way loses nothing, and the next one continues at the free name."""
        self._close_file()
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._keep + 1))]
        free = next((at for at, name in enumerate(names) if at and not os.path.lexists(name)), self._keep)
        # It cannot be reported, and the log only stays larger than it should be: the next write finds it so.
        with contextlib.suppress(OSError):
            for at in range(free, 0, -1):
                os.replace(names[at - 1], names[at])

    def _count_lost(self, lines: list[bytes], written: int) -> None:
        """Count the lines after the first `written` bytes as dropped; a cut line is terminated later."""
        for line in lines:
            if written >= len(line):
                written -= len(line)
                continue
            self.dropped += 1
            written = 0
        self._close_file()  # opening it again ends a line that is cut

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._close_file()

    async def aclose(self, timeout_s: float) -> None:  # noqa: ARG002  local files take what time they take
        """The same, for `Emitter.aclose`."""
        self.close()

    def _close_file(self) -> None:
        """Close the file. A failed close does not tell what the disk lost, so it is ignored."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)


def run_logs(path: str) -> list[str]:
    """The run logs of `path`, rotated ones first, oldest to newest; they need not exist."""
    return [*(f"{path}.{number}" for number in range(KEPT_RUN_LOGS, 0, -1)), path]


def _open_log(path: str) -> tuple[int, int]:
    """The log and its size, ready for a new line: one that a crash left unfinished is ended first."""
    fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    size = os.fstat(fd).st_size
    if size:
        os.lseek(fd, size - 1, os.SEEK_SET)
        if os.read(fd, 1) != b"\n":
            size += os.write(fd, b"\n")
    return fd, size


class JsonLines(PatientWriter):
    """Every event as it happens, one line each, on a binary stream (`--output jsonl`).

    A slow reader does not delay the session: unread lines are buffered, up to `max_bytes`, and written in order as it
    reads, even after the session's end. Without room, whole lines are dropped and counted. `clean` prepares each line
    for display. A closed reader or a full disk ends the output, not the session.
    """

    def __init__(
        self, stream: BinaryIO, *, max_bytes: int = 64 * 1024 * 1024, clean: Callable[[bytes], bytes] | None = None
    ) -> None:
        super().__init__(stream, max_bytes)
        self._clean = clean

    def take(self, event: Event) -> None:
        """Write the event."""
        line = event.line()
        self.write(line if self._clean is None else self._clean(line))

    def flush(self) -> None:
        """Do nothing: lines are written as they come."""
