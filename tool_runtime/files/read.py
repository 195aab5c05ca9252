"""Reading one file (TR 4.1). Blocking: callers run these in a thread, or at once what is small and near.

Parameters and outcomes are frozen; what goes wrong is a ToolFault. Paths go through `paths`, so links that move after
the check are refused and only regular files are ever touched.
"""

from __future__ import annotations

import codecs
import hashlib
import locale
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.files.images import MAX_BYTES, ImageFile, check_image, header_of
from tool_runtime.files.lines import LineWindow, WantedLines
from tool_runtime.files.paths import Scope, open_file
from tool_runtime.output import candidates, is_encoding, looks_binary, strip_bom
from tool_runtime.platform.directories import is_local
from tool_runtime.tool import FaultKind, NeedsThread, ToolFault, os_faults

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from io import FileIO

    from tool_runtime.tool import Abandoned

_CHUNK_BYTES: Final = 256 * 1024
_MAX_COUNTED_BYTES: Final = 64 * 1024 * 1024
"""A larger file is not read to its end only to count its lines."""
AT_ONCE_BYTES: Final = 64 * 1024
"""The size of a file, or of a directory's own list, up to which it is read on the event loop."""
_PDF: Final = b"%PDF-"


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
    """`text` is None for a binary file. `past_end` says that the file has fewer lines than `offset`. `seen` is the file
    as it was. `is_pdf`: it begins like one, and no text of it was read. `rest` says what of the lines is not in the
    text, and how it is read; "" where nothing was left out."""

    text: str | None
    size_bytes: int
    seen: FileStamp
    past_end: bool = False
    image: ImageFile | None = None
    is_pdf: bool = False
    rest: str = ""


def read_file(params: ReadParams, abandoned: Abandoned, *, near_only: bool = False) -> ReadOutcome:
    """The file's text, or a window of its lines, in bounded memory; line ends stay as they are. Raises ToolFault; with
    `near_only` NeedsThread for a file that is large or on a disk of another machine."""
    encoding = params.encoding
    if encoding is not None and not is_encoding(encoding):
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"unknown encoding: {encoding}")
    with os_faults(params.path):
        _, fd, status = open_file(params.path, params.scope)
        with open(fd, "rb", buffering=0) as file:
            if near_only and not is_near(status):
                raise NeedsThread
            refuse_size(status.st_size, params.max_file_size_bytes, params.path)
            head = file.read(_head_bytes(status))
            seen = FileStamp.make(status, head if len(head) == status.st_size else None)
            if encoding is None and head.startswith(_PDF):
                return ReadOutcome(None, status.st_size, seen, is_pdf=True)
            skip, marked = strip_bom(head)
            if marked is None and encoding is None and looks_binary(head):
                image = _image(file, head, params, abandoned)
                size = len(image.data) if image is not None and image.data is not None else status.st_size
                return ReadOutcome(None, size, seen, image=image)
            for candidate in (marked,) if marked else candidates(encoding, locale.getpreferredencoding(False)):
                window = LineWindow(WantedLines(params.offset, params.limit), params.max_output_bytes)
                try:
                    size = window.read(_chunks(file, status, head, skip, params, abandoned), candidate)
                except UnicodeDecodeError:
                    continue
                text, rest = window.text(), _rest(window, file, params, abandoned)
                return ReadOutcome(text, max(skip + size, status.st_size), seen, window.past_end, rest=rest)
    raise ToolFault(FaultKind.INVALID_ARGUMENT, f"the file is not {encoding or marked}: {params.path}")


def _rest(window: LineWindow, file: FileIO, params: ReadParams, abandoned: Abandoned) -> str:
    """Describe what the window leaves out and the next step, in lines for the model."""
    notes = []
    if window.cut_line is not None:
        line = window.cut_line
        notes.append(f"[the middle is left out from line {line} on: offset {line} with a limit reads it]")
    if params.limit is not None and window.done:
        last = params.offset + params.limit - 1
        is_wide = (params.encoding or "").lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32"))
        lines = None if is_wide else _count_lines(file, abandoned)
        if lines is None or lines > last:
            of = "" if lines is None else f" of {lines}"
            notes.append(f"[lines {params.offset} to {last}{of}: offset {last + 1} reads on]")
    return "\n".join(notes)


def _count_lines(file: FileIO, abandoned: Abandoned) -> int | None:
    """The lines of an open file; None for one too large to be read for it, and where bytes do not say where a line
    ends."""
    file.seek(0)
    count = size = 0
    ends = b"\n"
    while chunk := file.read(_CHUNK_BYTES):
        abandoned.refuse()
        if size == 0 and chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return None
        size += len(chunk)
        if size > _MAX_COUNTED_BYTES:
            return None
        count += chunk.count(b"\n")
        ends = chunk[-1:]
    return count + (ends != b"\n")


def _head_bytes(status: os.stat_result) -> int:
    """The number of bytes to read first: a file that is smaller is read to its end, and one byte more shows that it is.
    Some files of the system say that they are empty and are not."""
    return min(status.st_size + 1, _CHUNK_BYTES) if status.st_size else _CHUNK_BYTES


def _image(file: FileIO, head: bytes, params: ReadParams, abandoned: Abandoned) -> ImageFile | None:
    """The picture in an open file, of which `head` has been read; None for another kind of file. Of one that is too
    large no more is read than shows that."""
    if header_of(head) is None:
        return None
    data = bytearray(head)
    while len(data) <= MAX_BYTES and (chunk := file.read(_CHUNK_BYTES)):
        data += chunk
        refuse_size(len(data), params.max_file_size_bytes, params.path)
        abandoned.refuse()
    return check_image(bytes(data))


class WholeFile(NamedTuple):
    """All that is in a file, which is really at `real`, and the file as it was then."""

    data: bytes
    real: str
    status: os.stat_result

    @property
    def stamp(self) -> FileStamp:
        """The stamp that a later call compares."""
        return FileStamp.make(self.status, self.data if len(self.data) == self.status.st_size else None)


def whole_file(
    path: str, scope: Scope, max_bytes: int | None, abandoned: Abandoned, *, near_only: bool = False
) -> WholeFile:
    """The whole file as it is; `near_only` as in `read_file`. Raises ToolFault: TOO_LARGE for one that has, or grows
    to, more than `max_bytes`."""
    with os_faults(path):
        real, fd, status = open_file(path, scope)
        with open(fd, "rb", buffering=0) as file:
            if near_only and not is_near(status):
                raise NeedsThread
            refuse_size(status.st_size, max_bytes, path)
            data = bytearray()
            while chunk := file.read(_head_bytes(status) if not data else _CHUNK_BYTES):
                data += chunk
                refuse_size(len(data), max_bytes, path)
                abandoned.refuse()
    return WholeFile(bytes(data), real, status)


def is_near(status: os.stat_result) -> bool:
    """True if it is small, and on a disk of this machine: it is read in less time than a thread takes to begin."""
    return status.st_size <= AT_ONCE_BYTES and is_local(status.st_dev)


def refuse_size(size: int, limit: int | None, path: str) -> None:
    """Raises ToolFault(TOO_LARGE) for a size in bytes above the limit."""
    if limit is not None and size > limit:
        raise ToolFault(FaultKind.TOO_LARGE, f"{size} bytes exceed the limit of {limit} bytes: {path}")


def _chunks(
    file: FileIO, status: os.stat_result, head: bytes, skip: int, params: ReadParams, abandoned: Abandoned
) -> Iterator[bytes]:
    """The content of an open file that begins with `head`, without the first `skip` bytes."""
    yield head[skip:]
    size = len(head)
    if size < _head_bytes(status):
        return
    file.seek(size)
    while chunk := file.read(_CHUNK_BYTES):
        size += len(chunk)
        refuse_size(size, params.max_file_size_bytes, params.path)
        abandoned.refuse()
        yield chunk


# What a call saw of a file, so that a later call can tell whether the file has changed since.


class FileStamp(NamedTuple):
    """A file as it was seen. `stamp` is its size, time of change and number on the disk; `sha256` that of its content,
    empty where not all of it was read."""

    stamp: str
    sha256: str = ""

    @classmethod
    def make(cls, status: os.stat_result, content: bytes | None = None) -> FileStamp:
        """A file with this status; `content` is all that it holds, where that is known."""
        stamp = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
        return cls(stamp, "" if content is None else hashlib.sha256(content).hexdigest())

    @classmethod
    def parse(cls, text: str) -> FileStamp:
        """The inverse of `str()`."""
        stamp, _, digest = text.partition(" ")
        return cls(stamp, digest)

    def __str__(self) -> str:
        return f"{self.stamp} {self.sha256}" if self.sha256 else self.stamp
