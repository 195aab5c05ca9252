"""A window of lines out of text that comes in pieces, in bounded memory: what ReadFile and ReadOutput show (TR 4.1)."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from tool_runtime.output.terminal import Reducer, strip_controls
from tool_runtime.output.truncate import HeadTail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from policy.patterns import Pattern
    from tool_runtime.tool import Abandoned

MAX_LINE_CHARS: Final = 2_000
"""Longer lines are cut to this length."""


class WantedLines(NamedTuple):
    """`offset` is the number of the first line, from 1, `limit` a number of lines, None for all. A line that is asked
    for alone is shown without the bound on lines."""

    offset: int = 1
    limit: int | None = None


class LineWindow:
    """Picks the wanted lines; only their head and tail of `max_output_bytes` are kept. Line ends stay as they are."""

    def __init__(self, wanted: WantedLines, max_output_bytes: int) -> None:
        self.done = False
        self._kept = HeadTail(max_output_bytes)
        self._limit = max_output_bytes
        self._wanted = wanted
        self._skip = wanted.offset - 1
        self._take = wanted.limit
        self._shortened = None if wanted.limit == 1 else _Shortened(wanted.offset)

    @property
    def past_end(self) -> bool:
        """True if the text had fewer lines than go before the window."""
        return self._skip > 0

    @property
    def cut_line(self) -> int | None:
        """The number of the line from which on the middle of the window is left out; None where it is whole, and for a
        line that was asked for alone."""
        before = self._kept.lines_before_cut
        return None if before is None or self._wanted.limit == 1 else self._wanted.offset + before

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
        """The lines that are shown. Nothing may be added behind it."""
        if self._shortened is not None:
            self._keep(self._shortened.end())
            self._shortened = None
        return self._kept.render(self._limit).decode("utf-8")

    def _keep(self, text: str) -> None:
        self._kept.add(text.encode("utf-8", "replace"))


class _Shortened:
    """Cuts long lines, and says behind each how much is missing and how it is read."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._chars = 0  # of the line that is under way

    def add(self, text: str) -> str:
        first, *others = text.split("\n")
        if not others:
            return self._part(first)
        *whole, last = others
        if self._chars + len(first) <= MAX_LINE_CHARS and max(map(len, others)) <= MAX_LINE_CHARS:
            self._number += len(others)
            self._chars = len(last)
            return text
        shown = [self._part(first) + self.end()]
        shown += [self._part(line) + self.end() for line in whole]
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
    """Index behind `lines` line ends from `start`, None when there are fewer."""
    if lines > 0 and text.count("\n", start) < lines:
        return None
    for _ in range(lines):
        start = text.index("\n", start) + 1
    return start


# A part of what an earlier call left: lines by number, or those that match. Blocking: callers run it in a thread.

_CHUNK_BYTES: Final = 256 * 1024
_MAX_LINE_BYTES: Final = 1024 * 1024
"""A longer line is read in parts, which count as lines."""


class StoredParams(NamedTuple):
    """`offset` is a line number from 1, or with a `pattern` counts matches from 1. `limit` is a number of lines."""

    offset: int = 1
    limit: int = 200
    pattern: Pattern | None = None


class StoredPart(NamedTuple):
    """`lines` with their numbers. `more`: there are further ones; `seen` lines were read."""

    lines: list[tuple[int, str]]
    more: bool
    seen: int


def read_stored(file: BinaryIO, params: StoredParams, max_bytes: int, abandoned: Abandoned) -> StoredPart:
    """The lines, at most some `max_bytes` of them; in bounded memory. Lines are as a terminal would show them in the
    end. Raises OSError, and ToolFault for a call that has been given up."""
    found: list[tuple[int, str]] = []
    number = matched = size = 0
    for line in _lines(file, abandoned):
        number += 1
        if params.pattern is not None and params.pattern.search(line) is None:
            continue
        matched += 1
        if matched < params.offset:
            continue
        if len(found) == params.limit or size > max_bytes:
            return StoredPart(found, True, number)
        text = _cut(line.decode("utf-8", "replace"))
        size += len(text)
        found.append((number, text))
    return StoredPart(found, False, number)


def _lines(file: BinaryIO, abandoned: Abandoned) -> Iterator[bytes]:
    """The lines without their ends, as they are shown in the thread."""
    reducer, begun = Reducer(), b""
    while chunk := file.read(_CHUNK_BYTES):
        abandoned.refuse()
        *lines, begun = (begun + reducer.feed(chunk)).split(b"\n")
        yield from map(_plain, lines)
        if len(begun) > _MAX_LINE_BYTES:
            yield _plain(begun)
            begun = b""
    *lines, begun = (begun + reducer.end()).split(b"\n")
    yield from map(_plain, [*lines, begun] if begun else lines)


def _plain(line: bytes) -> bytes:
    return strip_controls(line).rstrip(b"\r")


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… [{len(line)} characters]"
