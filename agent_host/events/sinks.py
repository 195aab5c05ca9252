"""Where events go on this machine: the run log, and a stream for programs."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import orjson

from agent_host.events.kinds import LIVE_ONLY
from agent_host.regular_files import open_regular

if TYPE_CHECKING:
    from typing import BinaryIO

    from agent_host.events.emitter import Event

_MAX_PENDING_BYTES = 64 * 1024


# Pieces of a stream take numbers and are not kept, so the last number kept may not be the last one given out.
_GAP_AFTER_RESUME = 100_000
_TAIL_BYTES = 64 * 1024


def next_event_id(path: str) -> int:
    """The first event number for a process that goes on with the run log at `path`: 1, or well above the last one."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            length = _TAIL_BYTES
            while True:  # further back until a whole line is found
                handle.seek(max(0, size - length))
                for line in reversed(handle.read().splitlines()):
                    number = _event_id(line)
                    if number is not None:
                        return number + _GAP_AFTER_RESUME
                if length >= size:
                    return 1
                length *= 4
    except OSError:
        return 1


def _event_id(line: bytes) -> int | None:
    """The number in one line; None for a line that is cut off."""
    try:
        return int(orjson.loads(line)["eventId"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


class RunLog:
    """`events.jsonl` of a session: one event a line, appended, kept after the session's end.

    Lines wait in memory until the step ends or 64 KiB are together, and go out in one write. A disk that does not take
    them costs the lines, not the session: `lost` counts them.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.lost = 0

    def take(self, event: Event) -> None:
        """Keep the event, unless it is a piece of a stream."""
        if event.event_type in LIVE_ONLY:
            return
        line = event.line()
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= _MAX_PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Append what is waiting to the file."""
        if not self._pending:
            return
        lines, self._pending, self._pending_bytes = self._pending, [], 0
        written = 0
        try:
            if self._fd < 0:
                self._fd = _open_log(self._path)
            data = b"".join(lines)
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except OSError:
            self._count_lost(lines, written)

    def _count_lost(self, lines: list[bytes], written: int) -> None:
        """The lines behind the first `written` bytes are gone; one that was cut is ended later."""
        for line in lines:
            if written >= len(line):
                written -= len(line)
                continue
            self.lost += 1
            written = 0
        self._let_go()  # opening it anew ends a line that is cut

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._let_go()

    def _let_go(self) -> None:
        """Close the file. What the disk did not take cannot be told from a failed close, and nobody waits for it."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)


def _open_log(path: str) -> int:
    """The log, ready for a new line: one that a crash left unfinished is ended first."""
    fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    size = os.fstat(fd).st_size
    if size:
        os.lseek(fd, size - 1, os.SEEK_SET)
        if os.read(fd, 1) != b"\n":
            os.write(fd, b"\n")
    return fd


class JsonLines:
    """Every event as it happens, one line each, on a binary stream (`--output jsonl`). `refused` is why the stream
    takes no more, None as long as it does."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.refused: Exception | None = None

    def take(self, event: Event) -> None:
        """Write the event. A reader that went away or a full disk ends the output, not the session."""
        if self.refused is not None:
            return
        try:
            self._stream.write(event.line())
            self._stream.flush()
        except (OSError, ValueError) as error:
            self.refused = error

    def flush(self) -> None:
        """Nothing waits here."""
