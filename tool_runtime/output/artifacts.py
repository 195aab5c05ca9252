"""Artifacts (TR 7.2): what is too long for the thread, for the host to store.

The whole of a stream is kept for one: a little of it in memory, and all of it in a file when it is longer. The file has
no name, is readable by nobody else (0600), and goes when it is closed and with the process.
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
    """The bytes that may still be kept of all streams of a call together."""

    def __init__(self, left: int) -> None:
        self.left = left


class Spill:
    """The first bytes of a stream, as far as there is `room` for them, and, when there was more, the end of it.
    `kept_bytes` are kept, of which `buffer_bytes` are held in memory; what is longer lies in a file in `directory`,
    None for the host's own place for temporary files. `problem` says why that file could not be written: what there was
    until then is kept."""

    def __init__(self, room: SpillRoom, buffer_bytes: int, directory: str | None) -> None:
        self.problem: str | None = None
        self._room = room
        self._buffer_bytes = buffer_bytes
        self._directory = directory
        self.kept_bytes = 0
        self._buffer = BytesIO()
        self._file: IO[bytes] | None = None

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream, as far as they fit. A file is written at once, on the event loop: a chunk
        is short, and a file that nobody syncs takes it as fast as memory does."""
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
        """Up to `size` of the bytes that are kept, from byte `start` on. Raises OSError."""
        size = min(size, self.kept_bytes - start)
        if size <= 0:
            return b""
        if self._file is None:
            with self._buffer.getbuffer() as held:
                return held[start : start + size].tobytes()
        self._file.seek(start)
        data = self._file.read(size)
        self._file.seek(self.kept_bytes)  # `add` goes on there
        if len(data) < size:
            raise OSError("the file is shorter than the written data")
        return data

    def content(self, ends: HeadTail) -> bytes | Spooled:
        """Everything, or what was kept, a marker and the tail of `ends`. A file is its owner's to close from here
        on."""
        missing = ends.total - self.kept_bytes
        if self._file is None:
            kept = self._buffer.getvalue()
            return join_ends(kept, ends.tail(missing), ends.total) if missing > 0 else kept
        file, self._file = self._file, None
        if missing <= 0:
            return SpooledFile(file, self.kept_bytes)
        whole = self.kept_bytes - _cut_at_end(file, self.kept_bytes)
        return SpooledFile(file, whole, mark_tail(whole, ends.tail(missing), ends.total))

    def close(self) -> None:
        """Let go of what nobody asked for."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spool(self) -> IO[bytes]:
        """A file with what the buffer held. Raises OSError; then the buffer is as it was."""
        from tempfile import TemporaryFile  # a tenth of a start, and most commands print little

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
    """See Spooled: the first `size` bytes of a file, and an `ending` behind them. It owns the file."""

    def __init__(self, file: IO[bytes], size: int, ending: bytes = b"") -> None:
        self._file = file
        self._bytes = size
        self.size = size + len(ending)
        self._ending = ending
        # A reader in a thread may go on after its caller was cancelled and has closed this: its number may be another
        # file's by then.
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
    """The number of the first `size` bytes that are the beginning of a character whose end is not among them."""
    try:
        file.seek(max(0, size - _LONGEST_CHARACTER))
        last = file.read(min(size, _LONGEST_CHARACTER))
    except OSError:  # reading all of it reports that
        return 0
    return len(last) - len(whole_end(last))


def tool_output(request: ToolRequest, content: bytes | Spooled, *, part: str, content_type: str = PLAIN) -> Artifact:
    """The full output of a call; `part` says which output, as `stdout` or `body`."""
    name = f"{request.tool_name}-{request.tool_call_id}-{part}.txt"
    return Artifact("tool_output", name, content_type, content, part=part)


def file_diff(request: ToolRequest, data: bytes) -> Artifact:
    """The unified diff that a write made."""
    return Artifact("file_diff", f"{request.tool_name}-{request.tool_call_id}.diff", DIFF, data)


def make_diff(before: bytes | None, after: bytes, path: str) -> bytes:
    """The diff that turns `before` (None: no file) into `after`; empty when they are the same."""
    if before == after:
        return b""
    name = path.encode("utf-8", "replace")
    header = b"--- %s\n+++ %s\n" % (b"/dev/null" if before is None else name, name)
    if looks_binary(before or b"") or looks_binary(after):
        return header + b"Binary files differ: %d and %d bytes\n" % (len(before or b""), len(after))
    return header + hunks(before or b"", after)


def size_note(before_bytes: int, after_bytes: int, path: str) -> bytes:
    """The text in place of a diff when the earlier content was too large to keep."""
    name = path.encode("utf-8", "replace")
    return b"--- %s\n+++ %s\nReplaced %d bytes by %d bytes\n" % (name, name, before_bytes, after_bytes)
