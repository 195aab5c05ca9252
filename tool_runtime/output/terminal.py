"""What a terminal would show of a program's output at the end: without colours, and of a line that was drawn again and
again the last form. A model would pay for every one of them.

Only the line that is being drawn is kept, so a picture of several lines that is drawn again stays as often as it came.
"""

from __future__ import annotations

import re
from typing import Final

_MAX_LINE_BYTES: Final = 64 * 1024
"""A longer line is given out as it is; what goes back to its start then begins a new one."""
_MAX_SEQUENCE_BYTES: Final = 4096
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_CSI: Final = re.compile(rb"\x1b\[([0-?]*)[ -/]*([@-~])")
_OTHER_SEQUENCE: Final = re.compile(
    rb"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"
)
_UNFINISHED: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?")


def has_control(data: bytes) -> bool:
    """Whether there is anything in it that a terminal acts on, but for tabs and line feeds."""
    return _CONTROL.search(data) is not None


class Reducer:
    """One stream, in chunks: how it is cut makes no difference. `end` gives what is left of its last line."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._column = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The lines that are whole by now."""
        data = self._rest + chunk
        self._rest = b""
        out = bytearray()
        at = 0
        while at < len(data):
            found = _CONTROL.search(data, at)
            plain = data[at : len(data) if found is None else found.start()]
            self._write(plain, out)
            if found is None:
                break
            at = self._act(data, found.start(), out)
            if at < 0:  # a sequence that is not whole yet
                break
        return bytes(out)

    def end(self) -> bytes:
        """The line that no line feed has ended."""
        line, self._line, self._column, self._rest = bytes(self._line), bytearray(), 0, b""
        return line

    def _write(self, plain: bytes, out: bytearray) -> None:
        """Text at the cursor; each line feed gives its line out."""
        *lines, last = plain.split(b"\n")
        for line in lines:
            self._put(line)
            out += self._line + b"\n"
            self._line.clear()
            self._column = 0
        self._put(last)
        if len(self._line) > _MAX_LINE_BYTES:
            out += self._line
            self._line.clear()
            self._column = 0

    def _put(self, text: bytes) -> None:
        end = self._column + len(text)
        self._line[self._column : end] = text
        self._column = end

    def _act(self, data: bytes, at: int, out: bytearray) -> int:
        """Act on the control character at `at`; where to go on, -1 where more has to come first."""
        char = data[at]
        if char == 0x0D:
            if at + 1 == len(data):
                self._rest = data[at:]
                return -1
            if data[at + 1] != 0x0A:  # the end of a line on other systems stays as it is
                self._column = 0
            else:
                self._line += b"\r"
                self._column = len(self._line)
        elif char == 0x08:
            self._column = max(0, self._column - 1)
        elif char == 0x1B:
            return self._sequence(data, at)
        del out
        return at + 1

    def _sequence(self, data: bytes, at: int) -> int:
        found = _CSI.match(data, at)
        if found is not None:
            self._erase(found[1], found[2])
            return found.end()
        other = _OTHER_SEQUENCE.match(data, at)
        if other is not None:
            return other.end()
        cut = _UNFINISHED.match(data, at)
        if cut is not None and cut.end() == len(data) and len(data) - at <= _MAX_SEQUENCE_BYTES:
            self._rest = data[at:]
            return -1
        return at + 1  # no sequence: the escape alone goes

    def _erase(self, parameters: bytes, final: bytes) -> None:
        """What a sequence does to the line: K erases in it, G and the arrows move in it. Colours do nothing."""
        number = int(parameters) if parameters.isdigit() and len(parameters) < 6 else None
        if final == b"K":
            if number == 2:
                self._line.clear()
                self._line += b" " * self._column
            elif number == 1:
                self._line[: self._column] = b" " * min(self._column, len(self._line))
            else:
                del self._line[self._column :]
        elif final == b"G":
            self._column = min(max(0, (number or 1) - 1), len(self._line))
        elif final == b"D":
            self._column = max(0, self._column - (number or 1))
        elif final == b"C":
            self._column = min(len(self._line), self._column + (number or 1))


def reduced(data: bytes) -> bytes:
    """All of a stream at once."""
    if not has_control(data):
        return data
    reducer = Reducer()
    return reducer.feed(data) + reducer.end()
