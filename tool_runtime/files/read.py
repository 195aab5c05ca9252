"""Reading one file (TR 4.1), and windows of lines. Blocking: callers run these in a thread, or at once for a small and
near file. Links that change after the check of a path are refused, and only regular files are ever opened."""

from __future__ import annotations

import codecs
import hashlib
import locale
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from tool_runtime.files import Scope, open_file
from tool_runtime.files.images import MAX_BYTES, ImageFile, check_image, header_of
from tool_runtime.output import HeadTail, candidates, is_encoding, looks_binary, strip_bom
from tool_runtime.output.terminal import Reducer, strip_controls
from tool_runtime.platform.directories import is_local
from tool_runtime.tool import FaultKind, NeedsThread, ToolFault, os_faults

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from io import FileIO

    from policy.patterns import Pattern
    from tool_runtime.tool import Abandoned

_CHUNK_BYTES: Final = 256 * 1024
_MAX_COUNTED_BYTES: Final = 64 * 1024 * 1024  # a larger file is not read to its end only to count its lines
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
    """`text` is None for a binary file. `past_end`: the file has fewer lines than `offset`. `seen` is the stamp of the
    file. `is_pdf`: it begins like one, and no text of it was read. `rest` describes the omitted lines and how to read
    them."""

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
                window = LineWindow(params.offset, params.limit, params.max_output_bytes)
                try:
                    size = window.read(_chunks(file, status, head, skip, params, abandoned), candidate)
                except UnicodeDecodeError:
                    continue
                text, rest = window.text(), _rest(window, file, params, abandoned)
                return ReadOutcome(text, max(skip + size, status.st_size), seen, window.past_end, rest=rest)
    raise ToolFault(FaultKind.INVALID_ARGUMENT, f"the file is not {encoding or marked}: {params.path}")


def _rest(window: LineWindow, file: FileIO, params: ReadParams, abandoned: Abandoned) -> str:
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
    """The lines of an open file; None if it is too large, or if bytes do not determine line ends."""
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
    """The number of bytes to read first: a smaller file is read to its end, and one more byte shows that it ended. Some
    files of the system report a size of 0 and have content."""
    return min(status.st_size + 1, _CHUNK_BYTES) if status.st_size else _CHUNK_BYTES


def _image(file: FileIO, head: bytes, params: ReadParams, abandoned: Abandoned) -> ImageFile | None:
    """The picture in an open file, of which `head` has been read; None for another kind of file. Reads no more than
    shows that it is too large."""
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


class FileStamp(NamedTuple):
    """A file as a call saw it. `stamp` is its size, time of change and number on the disk; `sha256` that of its
    content, empty where not all of it was read."""

    stamp: str
    sha256: str = ""

    @classmethod
    def make(cls, status: os.stat_result, content: bytes | None = None) -> FileStamp:
        """A file with this status; `content` is its whole content, if known."""
        stamp = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
        return cls(stamp, "" if content is None else hashlib.sha256(content).hexdigest())

    @classmethod
    def parse(cls, text: str) -> FileStamp:
        """The inverse of `str()`."""
        stamp, _, digest = text.partition(" ")
        return cls(stamp, digest)

    def __str__(self) -> str:
        return f"{self.stamp} {self.sha256}" if self.sha256 else self.stamp


MAX_LINE_CHARS: Final = 2_000  # longer lines are cut to this length


class LineWindow:
    """Picks `limit` lines, None for all, from the line `offset` on, which counts from 1; only their head and tail of
    `max_output_bytes` are kept. Line ends stay. A line that is asked for alone is shown without the bound on lines."""

    def __init__(self, offset: int, limit: int | None, max_output_bytes: int) -> None:
        self.done = False
        self._kept = HeadTail(max_output_bytes)
        self._max_bytes = max_output_bytes
        self._offset = offset
        self._limit = limit
        self._skip = offset - 1
        self._take = limit
        self._shortened = None if limit == 1 else _Shortened(offset)

    @property
    def past_end(self) -> bool:
        """True if the text had fewer lines than go before the window."""
        return self._skip > 0

    @property
    def cut_line(self) -> int | None:
        """The number of the first omitted line; None if nothing is omitted, and for a single line."""
        before = self._kept.lines_before_cut
        return None if before is None or self._limit == 1 else self._offset + before

    def read(self, pieces: Iterable[bytes], encoding: str) -> int:
        """Decode `pieces` up to the window's end; gives the bytes read. Raises UnicodeDecodeError."""
        decoder = codecs.getincrementaldecoder(encoding)()
        size = 0
        for piece in pieces:
            size += len(piece)
            self.add(decoder.decode(piece))
            if self.done:
                return size
        self.add(decoder.decode(b"", final=True))
        return size

    def add(self, text: str) -> None:
        """Take the next piece of the text."""
        start = _skip_lines(text, 0, self._skip)
        if start is None:
            self._skip -= text.count("\n")
            return
        self._skip = 0
        if self._take is None:
            end = len(text)
        else:
            cut = _skip_lines(text, start, self._take)
            end = len(text) if cut is None else cut
            self._take -= text.count("\n", start, end)
            self.done = self._take == 0
        shown = text[start:end]
        self._keep(shown if self._shortened is None else self._shortened.add(shown))

    def text(self) -> str:
        """The shown lines. Nothing may be added afterwards."""
        if self._shortened is not None:
            self._keep(self._shortened.end())
            self._shortened = None
        return self._kept.render(self._max_bytes).decode("utf-8")

    def _keep(self, text: str) -> None:
        self._kept.add(text.encode("utf-8", "replace"))


class _Shortened:
    def __init__(self, number: int) -> None:
        self._number = number
        self._chars = 0  # of the line that is under way

    def add(self, text: str) -> str:
        first, *others = text.split("\n")
        if not others:
            return self._part(first)
        *complete, last = others
        if self._chars + len(first) <= MAX_LINE_CHARS and max(map(len, others)) <= MAX_LINE_CHARS:
            self._number += len(others)
            self._chars = len(last)
            return text
        shown = [self._part(first) + self.end()]
        shown += [self._part(line) + self.end() for line in complete]
        return "\n".join((*shown, self._part(last)))

    def _part(self, text: str) -> str:
        room = max(0, MAX_LINE_CHARS - self._chars)
        self._chars += len(text)
        return text[:room]

    def end(self) -> str:
        missing, number = self._chars - MAX_LINE_CHARS, self._number
        self._chars = 0
        self._number += 1
        if missing <= 0:
            return ""
        return f" [... {missing} more characters of line {number}: offset {number} with limit 1 shows it]"


def _skip_lines(text: str, start: int, lines: int) -> int | None:
    if lines > 0 and text.count("\n", start) < lines:
        return None
    for _ in range(lines):
        start = text.index("\n", start) + 1
    return start


_MAX_LINE_BYTES: Final = 1024 * 1024  # a longer line is read in parts, which count as lines


def read_stored(
    file: BinaryIO, offset: int, limit: int, pattern: Pattern | None, max_bytes: int, abandoned: Abandoned
) -> tuple[list[tuple[int, str]], bool, int]:
    """`limit` lines with their numbers, at most some `max_bytes` of them, from the line `offset` on, or those that
    match, from the match `offset` on; True if there are more; the number of lines read. Lines are as a terminal would
    show them in the end. Raises OSError, and ToolFault for a call that has been given up."""
    found: list[tuple[int, str]] = []
    number = matched = size = 0
    for line in _lines(file, abandoned):
        number += 1
        if pattern is not None and pattern.search(line) is None:
            continue
        matched += 1
        if matched < offset:
            continue
        if len(found) == limit or size > max_bytes:
            return found, True, number
        text = line.decode("utf-8", "replace")
        if len(text) > MAX_LINE_CHARS:
            text = f"{text[:MAX_LINE_CHARS]}… [{len(text)} characters]"
        size += len(text)
        found.append((number, text))
    return found, False, number


def _lines(file: BinaryIO, abandoned: Abandoned) -> Iterator[bytes]:
    reducer, partial = Reducer(), b""
    while chunk := file.read(_CHUNK_BYTES):
        abandoned.refuse()
        *lines, partial = (partial + reducer.feed(chunk)).split(b"\n")
        yield from map(_plain, lines)
        if len(partial) > _MAX_LINE_BYTES:
            yield _plain(partial)
            partial = b""
    *lines, partial = (partial + reducer.end()).split(b"\n")
    yield from map(_plain, [*lines, partial] if partial else lines)


def _plain(line: bytes) -> bytes:
    return strip_controls(line).rstrip(b"\r")
