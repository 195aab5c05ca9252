"""What `tool_runtime.output.terminal` has to come to, one character at a time: slow, and easy to read."""

from __future__ import annotations

import re

from tool_runtime.output.terminal import MAX_PADDED, MAX_ROW_CHARS, MAX_ROWS

_SEQUENCES = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[PX^_][^\x1b]{0,4096}\x1b\\"
    rb"|[ -/]{1,4}[0-~]|[0-OQ-WYZ\\`-~])"
)
_CUT_AT_THE_END = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,4}|\][^\x07\x1b]{0,4096}\x1b?|[PX^_][^\x1b]{0,4096}\x1b?|[ -/]{0,4})"
)
_CONTROLS = re.compile(rb"\x1b\[[0-9;]*[A-GJK]")


def _without_colours(printed: bytes) -> bytes:
    """What is text or moves something."""
    left, at = b"", 0
    while at < len(printed):
        found = _SEQUENCES.match(printed, at)
        if found is not None:
            left += found[0] if _CONTROLS.fullmatch(found[0]) else b""
            at = found.end()
        elif _CUT_AT_THE_END.fullmatch(printed, at):
            break
        else:
            left += printed[at : at + 1].strip(b"\x1b")
            at += 1
    return left


class ReferenceScreen:
    """Shows `printed`, a whole stream: `text` is what is left of it, `rewritten` how many characters went."""

    def __init__(self, printed: bytes) -> None:
        self.rewritten = 0
        self._gone = ""
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._returned = False
        for part in re.findall(
            r"(?s)\x1b\[[0-9;]*[A-GJK]|.", _without_colours(printed).decode("utf-8", "surrogateescape")
        ):
            self._act(part)
            self._returned = part == "\r"

    @property
    def text(self) -> bytes:
        """All lines, from the first on."""
        return (self._gone + "\n".join("".join(row) for row in self._rows)).encode("utf-8", "surrogateescape")

    def _act(self, part: str) -> None:
        if len(part) > 1:
            parameters = part[2:-1]
            self._control(part[-1], int(parameters) if parameters.isdigit() and len(parameters) < 6 else None)
        elif part == "\n":
            row = self._rows[self._row]
            if self._returned and row[-1:] != ["\r"]:
                self._column = len(row)
                self._put("\r")
            self._feed()
        elif part == "\r":
            self._column = 0
        elif part == "\b":
            self._column = max(0, self._column - 1)
        else:
            self._put(part)

    def _put(self, char: str) -> None:
        row = self._rows[self._row]
        if self._column > len(row):
            self._column = min(self._column, max(len(row), MAX_PADDED))
            row += " " * (self._column - len(row))
        if self._column == MAX_ROW_CHARS:
            for gone in self._rows[: self._row]:
                self._gone += "".join(gone) + "\n"
            self._gone += "".join(row)
            self._rows[: self._row + 1] = [[]]
            self._row = self._column = 0
            row = self._rows[0]
        if self._column < len(row):
            self.rewritten += 1
        row[self._column : self._column + 1] = [char]
        self._column += 1

    def _feed(self) -> None:
        self._row += 1
        self._column = 0
        if self._row == len(self._rows):
            self._rows.append([])
        if len(self._rows) > MAX_ROWS:
            self._gone += "".join(self._rows.pop(0)) + "\n"
            self._row -= 1

    def _control(self, final: str, number: int | None) -> None:
        some = number or 1
        if final in "AF":
            self._row = max(0, self._row - some)
        elif final in "BE":
            self._row = min(len(self._rows) - 1, self._row + some)
        elif final == "C":
            self._column = min(self._column + some, MAX_ROW_CHARS)
        elif final == "D":
            self._column = max(0, self._column - some)
        elif final == "G":
            self._column = min(some - 1, MAX_ROW_CHARS)
        elif final == "J":
            self._erase_below(number or 0)
        else:
            self._erase_in_row(number or 0)
        if final in "EF":
            self._column = 0

    def _erase_below(self, what: int) -> None:
        if what == 0:
            self._erase(self._rows[self._row], self._column)
            for below in self._rows[self._row + 1 :]:
                self._erase(below, 0)
            del self._rows[self._row + 1 :]

    def _erase_in_row(self, what: int) -> None:
        row = self._rows[self._row]
        if what == 0:
            self._erase(row, self._column)
        elif what == 1:
            for place in range(min(self._column, len(row))):
                row[place] = " "
                self.rewritten += 1
        elif what == 2:
            self._erase(row, 0)

    def _erase(self, row: list[str], first: int) -> None:
        self.rewritten += len(row[first:])
        del row[first:]
