"""A window of lines out of text that comes in pieces, in bounded memory: what ReadFile and ReadOutput show (TR 4.1)."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.output.truncate import HeadTail

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LINE_CHARS: Final = 2_000
"""What is shown of a longer line."""


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

    def read(self, pieces: Iterable[bytes], encoding: str, errors: str = "strict") -> int:
        """Decode `pieces` up to the window's end; gives the bytes read. Raises UnicodeDecodeError where `errors` says
        so."""
        decoder = codecs.getincrementaldecoder(encoding)(errors)
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
        shown = [self._part(first) + self._end()]
        shown += [self._part(line) + self._end() for line in whole]
        return "\n".join((*shown, self._part(last)))

    def end(self) -> str:
        return self._end()

    def _part(self, text: str) -> str:
        room = max(0, MAX_LINE_CHARS - self._chars)
        self._chars += len(text)
        return text[:room]

    def _end(self) -> str:
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
