"""Artifacts (TR 7.2): output that is too long for the conversation, for the host to store.

The whole stream is kept: in memory if it is short, otherwise in a file. The file has no name, is readable only by its
owner (0600), and disappears when it is closed or the process ends.
"""

from __future__ import annotations

import threading
from io import BytesIO
from typing import IO, TYPE_CHECKING, Final

from agent_host.contracts import Artifact, ToolRequest
from agent_host.text_diff import hunks
from tool_runtime.output import HeadTail, join_ends, looks_binary, mark_tail, whole_end
from tool_runtime.platform import current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.contracts import Spooled

PLAIN: Final = "text/plain; charset=utf-8"
DIFF: Final = "text/x-diff; charset=utf-8"
BUFFER_BYTES: Final = 256 * 1024  # memory limit for a stream, unless the settings say otherwise
PIECE_BYTES: Final = 1024 * 1024  # bytes of a file per read
_LONGEST_CHARACTER: Final = 4


class SpillRoom:
    """The number of bytes that may still be kept, for all streams of a call together."""

    def __init__(self, left: int) -> None:
        self.left = left


class Spill:
    """Keeps the first bytes of a stream, as many as `room` allows. `kept_bytes` counts them. Up to `buffer_bytes` they
    are in memory, otherwise in a file in `directory`, None for the host's default directory for temporary files.
    `problem` is the reason if that file could not be written; the bytes until then are kept."""

    def __init__(self, room: SpillRoom, buffer_bytes: int, directory: str | None) -> None:
        self.problem: str | None = None
        self._room = room
        self._buffer_bytes = buffer_bytes
        self._directory = directory
        self.kept_bytes = 0
        self._buffer = BytesIO()
        self._file: IO[bytes] | None = None

    def add(self, chunk: bytes) -> None:
        """Add the next bytes of the stream, as many as fit. A file is written immediately, on the event loop, because a
        chunk is short and a write without a sync is as fast as memory."""
        room = self._room
        if room.left <= 0 or self.problem is not None:
            return
        piece = chunk[: room.left]
        room.left -= len(piece)
        if self._file is None and self.kept_bytes + len(piece) <= self._buffer_bytes:
            self._buffer.write(piece)
            self.kept_bytes += len(piece)
            return
        try:
            file = self._file or self._spool()
            for written in _write(file, piece):
                self.kept_bytes += written
        except OSError as error:
            self.problem = error.strerror or str(error)

    def read(self, start: int, size: int) -> bytes:
        """Return up to `size` of the kept bytes, from byte `start` on. Raises OSError."""
        size = min(size, self.kept_bytes - start)
        if size <= 0:
            return b""
        if self._file is None:
            with self._buffer.getbuffer() as view:
                return view[start : start + size].tobytes()
        self._file.seek(start)
        data = self._file.read(size)
        self._file.seek(self.kept_bytes)  # `add` continues there
        if len(data) < size:
            raise OSError("the file is shorter than the written data")
        return data

    def content(self, ends: HeadTail) -> bytes | Spooled:
        """Return the whole stream, or the kept bytes, a marker and the tail of `ends`. The caller must close a returned
        file."""
        missing = ends.total - self.kept_bytes
        if self._file is None:
            kept = self._buffer.getvalue()
            return join_ends(kept, ends.tail(missing), ends.total) if missing > 0 else kept
        file, self._file = self._file, None
        if missing <= 0:
            return SpooledFile(file, self.kept_bytes)
        length = self.kept_bytes - _cut_at_end(file, self.kept_bytes)
        return SpooledFile(file, length, mark_tail(length, ends.tail(missing), ends.total))

    def close(self) -> None:
        """Close the file, unless `content` has returned it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spool(self) -> IO[bytes]:
        """Move the buffer's bytes to a new file. Raises OSError and then leaves the buffer unchanged."""
        from tempfile import TemporaryFile  # its import is a tenth of the startup time, and most commands print little

        current.give_back_large_memory()  # its caller has all of it in memory

        file: IO[bytes] = TemporaryFile(buffering=0, dir=self._directory)  # noqa: SIM115  its owner closes it
        try:
            for _ in _write(file, self._buffer.getvalue()):
                pass
        except OSError:
            file.close()
            raise
        self._file, self._buffer = file, BytesIO()
        return file


class SpooledFile:
    """A Spooled: the first `size` bytes of a file, followed by `ending`. It owns the file."""

    def __init__(self, file: IO[bytes], size: int, ending: bytes = b"") -> None:
        self._file = file
        self._bytes = size
        self.size = size + len(ending)
        self._ending = ending
        # A reader in a thread may continue after its cancelled caller has closed this; by then the descriptor may
        # belong to another file.
        self._guard = threading.Lock()

    def pieces(self) -> Iterator[bytes]:
        """See Spooled."""
        at = 0
        while at < self._bytes:
            with self._guard:
                if self._file.closed:
                    raise OSError("the file was closed")
                self._file.seek(at)
                piece = self._file.read(min(PIECE_BYTES, self._bytes - at))
            if not piece:
                raise OSError("the file is shorter than the written data")
            at += len(piece)
            yield piece
        if self._ending:
            yield self._ending

    def close(self) -> None:
        """See Spooled."""
        with self._guard:
            self._file.close()

    def __del__(self) -> None:
        self._file.close()  # a cancellation may lose a result on its way to the caller that would close it


def _write(file: IO[bytes], data: bytes) -> Iterator[int]:
    rest = memoryview(data)
    while rest:
        count = file.write(rest)
        yield count
        rest = rest[count:]


def _cut_at_end(file: IO[bytes], size: int) -> int:
    """Count the bytes of an incomplete character at the end of the first `size` bytes."""
    try:
        file.seek(max(0, size - _LONGEST_CHARACTER))
        last = file.read(min(size, _LONGEST_CHARACTER))
    except OSError:  # reading all of it reports that
        return 0
    return len(last) - len(whole_end(last))


def tool_output(request: ToolRequest, content: bytes | Spooled, *, part: str, content_type: str = PLAIN) -> Artifact:
    """Make the artifact of a call's full output; `part` names the output, for example `stdout` or `body`."""
    name = f"{request.tool_name}-{request.tool_call_id}-{part}.txt"
    return Artifact("tool_output", name, content_type, content, part=part)


def file_diff(request: ToolRequest, data: bytes) -> Artifact:
    """Make the artifact of a write's unified diff."""
    return Artifact("file_diff", f"{request.tool_name}-{request.tool_call_id}.diff", DIFF, data)


def make_diff(before: bytes | None, after: bytes, path: str) -> bytes:
    """Return the diff from `before` (None: no file) to `after`; empty if they are equal."""
    if before == after:
        return b""
    name = path.encode("utf-8", "replace")
    header = b"--- %s\n+++ %s\n" % (b"/dev/null" if before is None else name, name)
    if looks_binary(before or b"") or looks_binary(after):
        return header + b"Binary files differ: %d and %d bytes\n" % (len(before or b""), len(after))
    return header + hunks(before or b"", after)


def size_note(before_bytes: int, after_bytes: int, path: str) -> bytes:
    """Return the text that replaces a diff if the earlier content was too large to keep."""
    name = path.encode("utf-8", "replace")
    return b"--- %s\n+++ %s\nReplaced %d bytes by %d bytes\n" % (name, name, before_bytes, after_bytes)
