"""Reading one file (TR 4.1). Blocking: callers run these in a thread.

Parameters and outcomes are frozen; what goes wrong is a ToolFault. Paths go through `paths`, so links that move after
the check are refused and only regular files are ever touched.
"""

from __future__ import annotations

import locale
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.core.images import MAX_BYTES, ImageFile, header_of, judged
from tool_runtime.core.lines import Wanted, Window
from tool_runtime.core.paths import Scope, open_parent, open_regular, resolve
from tool_runtime.core.seen import Seen
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.output.text import candidates, known_encoding, looks_binary, strip_bom

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from tool_runtime.tool import Abandoned

_CHUNK_BYTES: Final = 256 * 1024


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
    as it was."""

    text: str | None
    size_bytes: int
    seen: Seen
    past_end: bool = False
    image: ImageFile | None = None


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
            refuse_size(status.st_size, params.max_file_size_bytes, params.path)
            head = file.read(_CHUNK_BYTES)
            seen = Seen.of(status, head if len(head) == status.st_size else None)
            skip, marked = strip_bom(head)
            if marked is None and encoding is None and looks_binary(head):
                image = _image(file, head, params, abandoned)
                size = len(image.data) if image is not None and image.data is not None else status.st_size
                return ReadOutcome(None, size, seen, image=image)
            for candidate in (marked,) if marked else candidates(encoding, locale.getpreferredencoding(False)):
                window = Window(Wanted(params.offset, params.limit), params.max_output_bytes)
                try:
                    size = window.read(_Source(file, head, skip, params, abandoned).chunks(), candidate)
                except UnicodeDecodeError:
                    continue
                return ReadOutcome(window.text(), max(skip + size, status.st_size), seen, window.past_end)
    raise ToolFault(FaultKind.INVALID_ARGUMENT, f"the file is not {encoding or marked}: {params.path}")


def _image(file: FileIO, head: bytes, params: ReadParams, abandoned: Abandoned) -> ImageFile | None:
    """The picture in an open file, of which `head` has been read; None for another kind of file. Of one that is too
    large no more is read than shows that."""
    if header_of(head) is None:
        return None
    data = bytearray(head)
    while len(data) <= MAX_BYTES and (chunk := file.read(_CHUNK_BYTES)):
        data += chunk
        refuse_size(len(data), params.max_file_size_bytes, params.path)
        refuse_abandoned(abandoned)
    return judged(bytes(data))


def read_bytes(path: str, scope: Scope, max_bytes: int, abandoned: Abandoned) -> bytes:
    """The whole file as it is. One that has, or grows to, more than `max_bytes` is TOO_LARGE."""
    real = resolve(path, scope)
    with os_faults(path):
        with open_parent(real) as (directory, name):
            fd, status = open_regular(directory, name, os.O_RDONLY)
        with open(fd, "rb", buffering=0) as file:
            refuse_size(status.st_size, max_bytes, path)
            data = bytearray()
            while chunk := file.read(_CHUNK_BYTES):
                data += chunk
                refuse_size(len(data), max_bytes, path)
                refuse_abandoned(abandoned)
    return bytes(data)


def refuse_size(size: int, limit: int | None, path: str) -> None:
    """Raises ToolFault(TOO_LARGE) for a size in bytes above the limit."""
    if limit is not None and size > limit:
        raise ToolFault(FaultKind.TOO_LARGE, f"{size} bytes exceed the limit of {limit} bytes: {path}")


def refuse_abandoned(abandoned: Abandoned) -> None:
    """Raises ToolFault(TIMED_OUT) for a call that has been given up."""
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
            refuse_size(size, self.params.max_file_size_bytes, self.params.path)
            refuse_abandoned(self.abandoned)
            yield chunk
