"""Reading, writing and deleting one file (TR 4.1 to 4.3). Blocking: callers run these in a thread.

Parameters and outcomes are frozen; what goes wrong is a ToolFault. Paths go through `paths`, so links that move after
the check are refused and only regular files are ever touched.
"""

from __future__ import annotations

import codecs
import hashlib
import locale
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.core.paths import Scope, open_parent, open_regular, refuse_irregular, resolve
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.output.text import candidates, known_encoding, looks_binary, strip_bom
from tool_runtime.output.truncate import HeadTail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from tool_runtime.tool import Abandoned

_CHUNK_BYTES: Final = 256 * 1024
BEFORE_MAX_BYTES: Final = 4 * 1024 * 1024
"""Earlier contents up to this size are kept for the diff."""


class ReadParams(NamedTuple):
    """`offset` is a line number from 1, `limit` a number of lines; `encoding` None means the fallback chain."""

    path: str
    scope: Scope
    max_output_bytes: int
    max_file_size_bytes: int | None = None
    offset: int = 1
    limit: int | None = None
    encoding: str | None = None


class ReadOutcome(NamedTuple):
    """`text` is None for a binary file. `past_end` says that the file has fewer lines than `offset`."""

    text: str | None
    size_bytes: int
    past_end: bool = False


class WriteParams(NamedTuple):
    """`data` replaces the whole file. `mark` is unique to the call, and the same for a process that asks after a crash
    what is left of it."""

    path: str
    scope: Scope
    data: bytes
    mark: str
    max_file_size_bytes: int | None = None
    create_directories: bool = True


class WriteOutcome(NamedTuple):
    """`before` is the earlier content, None when there was no file or it was over BEFORE_MAX_BYTES."""

    existed: bool
    before: bytes | None
    before_bytes: int


def read_file(params: ReadParams, abandoned: Abandoned) -> ReadOutcome:
    """The file's text, or a window of its lines, in bounded memory; line ends stay as they are."""
    encoding = params.encoding
    if encoding is not None and not known_encoding(encoding):
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"unknown encoding: {encoding}")
    real = resolve(params.path, params.scope)
    with os_faults(params.path):
        with open_parent(real) as (directory, name):
            fd, status = open_regular(directory, name, os.O_RDONLY)
        with open(fd, "rb", buffering=0) as file:
            _refuse_size(status.st_size, params.max_file_size_bytes, params.path)
            head = file.read(_CHUNK_BYTES)
            skip, marked = strip_bom(head)
            if marked is None and encoding is None and looks_binary(head):
                return ReadOutcome(None, status.st_size)
            for candidate in (marked,) if marked else candidates(encoding, locale.getpreferredencoding(False)):
                window = _Window(params)
                try:
                    size = window.read(_Source(file, head, skip, params, abandoned), candidate)
                except UnicodeDecodeError:
                    continue
                return ReadOutcome(window.text(), max(size, status.st_size), window.past_end)
    raise ToolFault(FaultKind.INVALID_ARGUMENT, f"the file is not {encoding or marked}: {params.path}")


def read_bytes(path: str, scope: Scope, max_bytes: int, abandoned: Abandoned) -> bytes:
    """The whole file as it is. One that has, or grows to, more than `max_bytes` is TOO_LARGE."""
    real = resolve(path, scope)
    with os_faults(path):
        with open_parent(real) as (directory, name):
            fd, status = open_regular(directory, name, os.O_RDONLY)
        with open(fd, "rb", buffering=0) as file:
            _refuse_size(status.st_size, max_bytes, path)
            data = bytearray()
            while chunk := file.read(_CHUNK_BYTES):
                data += chunk
                _refuse_size(len(data), max_bytes, path)
                _refuse_abandoned(abandoned)
    return bytes(data)


def write_file(params: WriteParams, abandoned: Abandoned) -> WriteOutcome:
    """Replace or create the file in one step: readers see the old content or the new, never a part."""
    _refuse_size(len(params.data), params.max_file_size_bytes, params.path)
    real = resolve(params.path, params.scope, to_change=True)
    with os_faults(params.path), open_parent(real, create=params.create_directories) as (directory, name):
        outcome, status = _before(directory, name)
        temp = _temporary(directory, real, params.mark)
        try:
            _write_new(directory, temp, params.data, status)
            _refuse_abandoned(abandoned)
            os.replace(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
            _sync_names(directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(temp, dir_fd=directory)
            raise
    return outcome


def remove_leftover(path: str, scope: Scope, mark: str) -> bool:
    """Take away the temporary file of a write whose process died in the middle; says whether there was one."""
    real = resolve(path, scope)
    with os_faults(path), open_parent(real) as (directory, _):
        try:
            os.unlink(_temporary(directory, real, mark), dir_fd=directory)
        except FileNotFoundError:
            return False
    return True


def delete_file(path: str, scope: Scope, abandoned: Abandoned) -> None:
    """Delete one regular file. A link is resolved first (TR 8.1): what goes is the file that policy judged."""
    real = resolve(path, scope, to_change=True)
    with os_faults(path), open_parent(real) as (directory, name):
        refuse_irregular(os.stat(name, dir_fd=directory, follow_symlinks=False), path)
        _refuse_abandoned(abandoned)
        os.unlink(name, dir_fd=directory)
        _sync_names(directory)


def _temporary(directory: int | None, real: str, mark: str) -> str:
    """The name, next to `real`, of what a write prepares there. It follows from the call, so that another process finds
    it; what is random in `mark` keeps anybody from being there first."""
    digest = hashlib.sha256(mark.encode("utf-8", "surrogatepass") + b"\0" + os.fsencode(real)).hexdigest()
    name = f".agent-host-{digest[:32]}.tmp"
    return name if directory is not None else os.path.join(os.path.dirname(real), name)


def _sync_names(directory: int | None) -> None:
    """An effect that is reported should not be undone by a power loss. Windows gives no descriptor for it, and a
    directory that may not be read none either: the effect has happened all the same."""
    if directory is None:
        return
    with suppress(OSError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


def _before(directory: int | None, name: str) -> tuple[WriteOutcome, os.stat_result | None]:
    try:
        fd, status = open_regular(directory, name, os.O_RDONLY)
    except FileNotFoundError:
        return WriteOutcome(existed=False, before=None, before_bytes=0), None
    with open(fd, "rb", buffering=0) as file:
        if not os.access(name, os.W_OK, dir_fd=directory):
            raise ToolFault(FaultKind.ACCESS_DENIED, f"the file is read-only: {name}")
        before = file.readall() if status.st_size <= BEFORE_MAX_BYTES else None
    return WriteOutcome(existed=True, before=before, before_bytes=status.st_size), status


def _write_new(directory: int | None, name: str, data: bytes, like: os.stat_result | None) -> None:
    """Create `name` with `data`, on the disk when this returns, with the owner and mode of `like`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_BINARY", 0)
    mode = 0o666 if like is None else 0o600
    try:
        fd = os.open(name, flags, mode, dir_fd=directory)
    except FileExistsError:  # of a dead process that ran the same call
        os.unlink(name, dir_fd=directory)
        fd = os.open(name, flags, mode, dir_fd=directory)
    with open(fd, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        if like is not None and hasattr(os, "fchmod"):
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(fd, like.st_uid, like.st_gid)
            os.fchmod(fd, like.st_mode & 0o7777)
        os.fsync(fd)


def _refuse_size(size: int, limit: int | None, path: str) -> None:
    if limit is not None and size > limit:
        raise ToolFault(FaultKind.TOO_LARGE, f"{size} bytes exceed the limit of {limit} bytes: {path}")


def _refuse_abandoned(abandoned: Abandoned) -> None:
    if abandoned.flag:
        raise ToolFault(FaultKind.TIMED_OUT, "nobody waits for this call any more")


class _Source(NamedTuple):
    """The bytes of an open file from its start, of which `head` has been read and `skip` are a byte order mark."""

    file: FileIO
    head: bytes
    skip: int
    params: ReadParams
    abandoned: Abandoned

    def chunks(self) -> Iterator[bytes]:
        size = len(self.head)
        yield self.head[self.skip :]
        if size < _CHUNK_BYTES:
            return
        self.file.seek(size)
        while chunk := self.file.read(_CHUNK_BYTES):
            size += len(chunk)
            _refuse_size(size, self.params.max_file_size_bytes, self.params.path)
            _refuse_abandoned(self.abandoned)
            yield chunk


class _Window:
    """Picks the wanted lines out of text that comes in chunks; only their head and tail are kept."""

    def __init__(self, params: ReadParams) -> None:
        self._kept = HeadTail(params.max_output_bytes)
        self._limit = params.max_output_bytes
        self._skip = params.offset - 1
        self._take = params.limit
        self._done = False

    @property
    def past_end(self) -> bool:
        return self._skip > 0

    def read(self, source: _Source, encoding: str) -> int:
        """Decode `source` up to the window's end; gives the bytes read. Raises UnicodeDecodeError."""
        decoder = codecs.getincrementaldecoder(encoding)("strict")
        size = source.skip
        for chunk in source.chunks():
            size += len(chunk)
            self._feed(decoder.decode(chunk))
            if self._done:
                return size
        self._feed(decoder.decode(b"", final=True))
        return size

    def text(self) -> str:
        return self._kept.render(self._limit).decode("utf-8")

    def _feed(self, text: str) -> None:
        start = self._after_lines(text, 0, self._skip)
        if start is None:
            self._skip -= text.count("\n")
            return
        self._skip = 0
        if self._take is None:
            end = len(text)
        else:
            cut = self._after_lines(text, start, self._take)
            end = len(text) if cut is None else cut
            self._take -= text.count("\n", start, end)
            self._done = self._take == 0
        self._kept.add(text[start:end].encode("utf-8"))

    @staticmethod
    def _after_lines(text: str, start: int, lines: int) -> int | None:
        """Index behind `lines` line ends from `start`, None when there are fewer."""
        if lines > 0 and text.count("\n", start) < lines:
            return None
        for _ in range(lines):
            start = text.index("\n", start) + 1
        return start
