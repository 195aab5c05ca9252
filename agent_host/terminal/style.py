"""Styles of a terminal, and the width of text there."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import TYPE_CHECKING, Final

from agent_host.display_text import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_COLUMNS: Final = 40
PLAIN: Final = "\x1b[0m"
BOLD: Final = "\x1b[1m"
DIM: Final = "\x1b[2m"
RED: Final = "\x1b[31m"
GREEN: Final = "\x1b[32m"
YELLOW: Final = "\x1b[33m"
CYAN: Final = "\x1b[36m"
DIFF_COLOURS: Final = {"+": GREEN, "-": RED, "@": CYAN}
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]{0,32}m")
_ERASE: Final = re.compile(r"\x1b\[[0-2]?K")
_WORDS: Final = re.compile(r"\s+|\S+")


def is_in_ci() -> bool:
    """True if CI runs this, where a terminal is only a log."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def wants_style() -> bool:
    """True if the user and the terminal want colours and other styles."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def cells(line: str) -> int:
    """The columns that `line` takes, about."""
    return len(line) if line.isascii() else sum(map(width, line))


def width(char: str) -> int:
    """Columns of one character, at least as many as a terminal takes for it, so that no text begins a row that is not
    its own. A character that combines counts too, so that a line of them ends."""
    return 2 if char >= "\u2e80" or unicodedata.east_asian_width(char) in "WF" else 1


def cut(line: str, columns: int) -> str:
    """As much of `line` as fits into `columns`; `…` at its end where there is more."""
    if cells(line) <= columns:
        return line
    used = 0
    for at, char in enumerate(line):
        used += width(char)
        if used >= columns:
            return line[:at] + "…"
    return line


def wrap(text: str, columns: int, hang: int | None = None) -> list[str]:
    """`text` in lines of at most `columns`, at words where that goes. Nothing is left out but blanks at an end. What is
    wrapped continues `hang` columns in, by default where its line begins."""
    return [part for line in text.split("\n") for part in _wrap_line(line.expandtabs(), max(columns, 4), hang)]


def _wrap_line(line: str, columns: int, hang: int | None) -> Iterator[str]:
    if cells(line) <= columns or line.isspace():
        yield line if cells(line) <= columns else ""
        return
    begins = len(line) - len(line.lstrip()) if hang is None else hang
    indent = " " * min(begins, columns // 2)
    row = ""
    for word in _WORDS.findall(line):
        wide = cells(word)
        if cells(row) + wide <= columns:
            row += word
            continue
        if wide <= columns - len(indent) and row.strip():
            yield row.rstrip()
            row = indent
        if word.isspace():
            continue
        rest = word
        while cells(row) + cells(rest) > columns:
            part = split_cells(rest, columns - cells(row))[0] if cells(row) + width(rest[0]) <= columns else ""
            yield row + part
            row, rest = indent, rest[len(part) :]
        row += rest
    if row.strip():
        yield row


def split_cells(text: str, columns: int) -> list[str]:
    """`text` in pieces of at most `columns`, at least one."""
    pieces: list[str] = []
    row: list[str] = []
    used = 0
    for char in text:
        wide = width(char)
        if used + wide > max(columns, 1) and row:
            pieces.append("".join(row))
            row, used = [], 0
        row.append(char)
        used += wide
    return [*pieces, "".join(row)]


def wrap_coloured(line: str, columns: int) -> list[str]:
    """One line of a program's output in rows of at most `columns`. Its colours stay, each row begins and ends without
    one, and everything else that would steer a terminal is shown as its escape."""
    rows, colours, row, used = [], "", "", 0
    at = 0
    for mark in [*_COLOUR.finditer(line), None]:
        text = line[at : len(line) if mark is None else mark.start()]
        for char in escape(text, keep=""):
            wide = width(char)
            if used + wide > columns:
                rows.append(row + (PLAIN if colours else ""))
                row, used = colours, 0
            row += char
            used += wide
        if mark is not None:
            at = mark.end()
            colours = (colours + mark[0])[-256:] if mark[0] not in ("\x1b[m", PLAIN) else ""
            row += mark[0] if colours else PLAIN
    return [*rows, row + (PLAIN if colours else "")]


def without_colours(text: str) -> str:
    """`text` without its colours."""
    return _COLOUR.sub("", text)


def last_state(line: str) -> str:
    """The last state of a line that was written over with carriage returns; what erases the end of a line goes."""
    return _ERASE.sub("", line).rstrip("\r").rpartition("\r")[2].expandtabs()
