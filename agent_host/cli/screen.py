"""A terminal as a place to draw on: whether standard error is one, and a block of lines that is redrawn in place."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from agent_host.cli.streams import put
from agent_host.terminal import DIFF_COLOURS, DIM, MIN_COLUMNS, PLAIN, cells, cut, is_in_ci, wants_style

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

# Smaller terminals show too little of a line, or scroll the block's first line out of reach.
_MIN_ROWS = 10
_MAX_COLUMNS = 100
# Without wrapping a line takes one row, also where the terminal has another opinion on the width of a character.
_NO_WRAP = "\x1b[?7l"
_WRAP = "\x1b[?7h"
_ERASE_BELOW = "\x1b[J"


def renders(stream: TextIO) -> bool:
    """True if Markdown on `stream` is to be rendered: a person reads it at a terminal that has styles."""
    return stream.isatty() and wants_style() and not is_in_ci()


def columns_of(stream: TextIO) -> int:
    """The columns to fill: those of the terminal, within what can be read."""
    return min(max(_size(stream)[0], MIN_COLUMNS), _MAX_COLUMNS)


def colour_diff(text: str) -> str:
    """The lines of a patch in the colours that diffs have, where the user wants some."""
    if not wants_style():
        return text
    return "".join(
        f"{DIFF_COLOURS[line[0]]}{line}{PLAIN}\n" if line[:1] in DIFF_COLOURS else f"{line}\n"
        for line in text.splitlines()
    )


def can_draw(stream: TextIO) -> bool:
    """True if lines on `stream` can be drawn again in place."""
    if sys.platform == "win32" or is_in_ci() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty() and _large_enough(*_size(stream))


class ScreenBlock:
    """Lines below everything else on the terminal `stream`. `clear` before anything else is printed there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._widths: list[int] = []

    def draw(self, title: str, state: str, lines: Sequence[str]) -> None:
        """Show `title` with `state` behind it and, dim, `lines`, in place of what the block showed; each printable.
        What is too long is cut, but for the state, and a terminal that has become too small shows nothing."""
        columns, rows = _size(self._stream)
        erase = self._erasing(columns)
        shown = []
        if _large_enough(columns, rows):
            shown = [cut(title, columns - 1 - cells(state)) + state, *(cut(line, columns - 1) for line in lines)]
        self._widths = [cells(line) for line in shown]
        begin, end = (DIM, PLAIN) if wants_style() else ("", "")
        body = "".join(f"{line}\n" if at == 0 else f"{begin}{line}{end}\n" for at, line in enumerate(shown))
        if erase or body:
            put(self._stream, f"{erase}{_NO_WRAP}{body}{_WRAP}")

    def clear(self) -> None:
        """Take the block off the terminal."""
        if self._widths:
            put(self._stream, self._erasing(_size(self._stream)[0]))
            self._widths = []

    def _erasing(self, columns: int) -> str:
        """The sequence that takes the cursor to the block's first row and erases from there. A terminal that has become
        narrower since has wrapped the lines."""
        rows = sum(max(1, -(-width // max(columns, 1))) for width in self._widths)
        return f"\x1b[{rows}A\r{_ERASE_BELOW}" if rows else ""


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows; zeros where nobody knows."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0
    return size.columns, size.lines


def _large_enough(columns: int, rows: int) -> bool:
    return columns >= MIN_COLUMNS and rows >= _MIN_ROWS
