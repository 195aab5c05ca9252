"""The last state of a terminal for a program's output (TR 7): without colours, with the last form of a redrawn line,
and the last one of a redrawn block of lines. A model would pay for each of them.

Characters are counted, not cells of a screen. The last lines can be redrawn; lines before them are final and returned,
so memory is bounded, and plain output takes a few operations per chunk. `tests/support/screen.py` implements the same
rules one character at a time.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tool_runtime.output import HeadTail, whole_end, whole_start

MAX_ROWS: Final = 64  # lines that can be drawn over, the one that is being drawn among them
MAX_ROW_CHARS: Final = 4096
"""This much of a longer line is returned unchanged; a return to its start then goes to the place after it."""
MAX_PADDED: Final = 200
"""Up to this column a gap after the end of a line is filled with spaces. Without a bound a few bytes would cause
thousands."""

_MANY_FORMS: Final = 4
_MAX_BODY: Final = 4096  # of a title or a link; a longer one is text
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_DROPPED: Final = bytes({*range(0x20), 0x7F} - {0x09, 0x0A, 0x0D})
_LAST_BYTES: Final = 8 * 1024
_FORM: Final = rb"[0-?]{0,64}[ -/]{0,4}"
# An escape that moves nothing, with the rest of its sequence.
_IGNORED: Final = re.compile(
    rb"\x1b(?:\[[0-9;]{0,64}m|(?!\[[0-9;]{0,64}[A-GJK])(?:\[%s[@-~]|\][^\x07\x1b]{0,%d}(?:\x07|\x1b\\)|[PX^_][^\x1b]{0,%d}\x1b\\"
    rb"|[ -/]{1,4}[0-~]|[0-OQ-WYZ\\`-~])?)" % (_FORM, _MAX_BODY, _MAX_BODY)
)
_UNFINISHED: Final = re.compile(
    rb"\x1b(?:\[%s|\][^\x07\x1b]{0,%d}\x1b?|[PX^_][^\x1b]{0,%d}\x1b?|[ -/]{0,4})" % (_FORM, _MAX_BODY, _MAX_BODY)
)
_COLOUR: Final = re.compile(rb"\x1b\[[0-9;:]{0,64}m")
_TOKENS: Final = re.compile("([\r\b]|\x1b\\[[0-9;]{0,64}[A-GJK])")


def has_control(data: bytes) -> bool:
    """True if there is anything in it that a terminal acts on, but for tabs and line feeds."""
    return _CONTROL.search(data) is not None


def strip_controls(data: bytes) -> bytes:
    """`data` without the control characters that a terminal does not show, such as NUL; a `Reducer` leaves them."""
    return data.translate(None, _DROPPED)


def reduce(data: bytes) -> bytes:
    """All of a stream at once, without controls."""
    if not has_control(data):
        return data
    reducer = Reducer()
    return strip_controls(reducer.feed(data) + reducer.end())


def keep_colours(data: bytes) -> bytes | None:
    """Return a whole stream with its colours (SGR) and nothing else that a terminal acts on: without them it is what
    `reduce` gives. None if it has none, or if it draws over itself, because its colours then belong to no last form."""
    if _COLOUR.search(data) is None:
        return None
    kept = _IGNORED.sub(lambda found: found[0] if _COLOUR.fullmatch(found[0]) else b"", drop_unfinished(data))
    # At the end of the output there is nothing to erase.
    kept = kept.replace(b"\x1b[K", b"").replace(b"\x1b[0K", b"")
    if not _is_plain(_COLOUR.sub(b"", kept)):
        return None
    return kept.translate(None, _DROPPED.replace(b"\x1b", b""))


def drop_unfinished(data: bytes) -> bytes:
    """`data` without an incomplete control sequence at its end, which may continue."""
    return _split_incomplete(data)[0]


class Reducer:
    """One stream, in chunks of any length. `end` returns the lines that could still be redrawn; `rewritten` is the
    number of redrawn or erased characters so far."""

    def __init__(self) -> None:
        self.rewritten = 0
        self._rows = [""]
        self._row = 0
        self._column = 0
        self._returned = False  # the last character was a return: with a line feed it ends a line
        self._later = b""  # text after the rows, processed when something changes it
        self._rest = b""  # what waits for what follows it
        self._cut_char = b""
        self._out: list[str | bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Return lines that can no longer be redrawn."""
        data = self._rest + chunk if self._rest else chunk
        is_escaped = b"\x1b" in data
        if is_escaped or data.endswith(b"\r") or self._rest:
            data, self._rest = _split_incomplete(data)
        if is_escaped:
            data = _IGNORED.sub(b"", data)
        if self._cut_char or data[-1:] >= b"\x80":
            data = self._cut_char + data
            end = max(0, len(data) - 4) + len(whole_end(data[-4:]))
            data, self._cut_char = data[:end], data[end:]
        if _is_plain(data):
            self._append(data)
        else:
            self._draw(data.decode("utf-8", "surrogateescape"))
        return self._emit()

    def end(self) -> bytes:
        """The last lines."""
        self._append(self._cut_char)
        self._look()
        self._out.append("\n".join(self._rows))
        self._rows, self._row, self._column, self._rest, self._cut_char = [""], 0, 0, b"", b""
        return self._emit()

    def _emit(self) -> bytes:
        out, self._out = self._out, []
        return b"".join([part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape") for part in out])

    def _append(self, data: bytes) -> None:
        if self._is_at_the_end() and data.count(b"\n", -_LAST_BYTES) >= MAX_ROWS:
            self._out.append(self._later or "\n".join(self._rows))
            self._rows, self._row, self._column = [""], 0, 0
            self._later = data  # its lines alone can be drawn over, and mostly none is
        else:
            self._look()
            self._append_rows(data)

    def _look(self) -> None:
        if self._later:
            data, self._later = self._later, b""
            self._append_rows(data)

    def _is_at_the_end(self) -> bool:
        at_the_end = self._row == len(self._rows) - 1 and self._column == len(self._rows[-1])
        return bool(self._later) or (at_the_end and not self._returned)

    def _append_rows(self, data: bytes) -> None:
        while data and not self._is_at_the_end():
            line, feed, data = data.partition(b"\n")
            self._draw((line + feed).decode("utf-8", "surrogateescape"))
        if not data:
            return
        cut = _last_rows(data)
        if cut:
            self._out += ("\n".join(self._rows), data[:cut])
            lines = self._rows = data[cut:].decode("utf-8", "surrogateescape").split("\n")
        else:
            lines = data.decode("utf-8", "surrogateescape").split("\n")
            self._rows[-1] += lines[0]
            self._rows += lines[1:]
        if len(max(lines, key=len)) + len(self._rows[-len(lines)]) > MAX_ROW_CHARS:
            self._cut_long_rows()
        if len(self._rows) > MAX_ROWS:
            self._emit_rows(len(self._rows) - MAX_ROWS)
        self._row = len(self._rows) - 1
        self._column = len(self._rows[-1])

    def _cut_long_rows(self) -> None:
        long = [place for place, row in enumerate(self._rows) if len(row) > MAX_ROW_CHARS]
        if long:
            self._emit_rows(long[-1])
            last = self._rows[0]
            cut = (len(last) - 1) // MAX_ROW_CHARS * MAX_ROW_CHARS
            self._out.append(last[:cut])
            self._rows[0] = last[cut:]

    def _emit_rows(self, rows: int) -> None:
        if rows:
            self._out.append("\n".join(self._rows[:rows]) + "\n")
            del self._rows[:rows]

    def _draw(self, text: str) -> None:
        self._look()
        *lines, last = text.split("\n")
        for line in lines:
            if line.endswith("\r"):
                self._draw_line(line[:-1], "\r\n")
            else:
                self._draw_line(line, "\n")
        self._draw_line(last, "")

    def _draw_line(self, line: str, feed: str) -> None:
        if "\r" in line:
            head, _, tail = line.rpartition("\r")
            if self._draw_again(head):
                line = tail
        if "\r" in line or "\x1b" in line or "\b" in line:
            is_text = True
            for part in _TOKENS.split(line):
                if not is_text:
                    self._act(part)
                elif part:
                    self._put(part)
                is_text = not is_text
        elif line:
            self._put(line)
        if feed:
            self._feed(with_return=feed != "\n" or self._returned)

    def _draw_again(self, line: str) -> bool:
        """Process a line that returns to its start many times, and once more after it: only its last forms matter.
        False, without effect, if it has other control sequences."""
        row, column, forms = self._rows[self._row], self._column, line.split("\r")
        if len(forms) < _MANY_FORMS:
            return False
        first, longest = forms[0], max(map(len, forms))
        if column > len(row) or column + longest > MAX_ROW_CHARS:
            return False
        written = _count_text(line, len(forms) - 1)
        if written is None:
            return False
        shown, longest = "", max(longest, len(row), column + len(first))
        for form in reversed(forms[1:]):
            if form.endswith("\x1b[2K"):
                break
            bare = form.replace("\x1b[2K", "").replace("\x1b[K", "").replace("\x1b[0K", "")
            shown += bare[len(shown) :]
            if len(bare) < len(form) or len(shown) == longest:
                break
        else:
            if first:
                self._draw_line(first, "")
            written -= len(_TOKENS.sub("", first))
            row = self._rows[self._row]
            shown += row[len(shown) :]
        self.rewritten += len(row) + written - len(shown)
        self._rows[self._row] = shown
        self._column = 0
        self._returned = True
        return True

    def _put(self, text: str) -> None:
        self._returned = False
        row, column = self._rows[self._row], self._column
        if column == len(row) and column + len(text) <= MAX_ROW_CHARS:
            self._rows[self._row] = row + text
            self._column = column + len(text)
            return
        while text:
            row, column = self._rows[self._row], self._column
            if column > len(row):
                column = min(column, max(len(row), MAX_PADDED))
                row += " " * (column - len(row))
            if column == MAX_ROW_CHARS:
                self._rows[self._row] = row
                self._emit_rows(self._row)
                self._out.append(self._rows[0])
                self._rows[0], self._row, self._column = "", 0, 0
                continue
            part, text = text[: MAX_ROW_CHARS - column], text[MAX_ROW_CHARS - column :]
            end = column + len(part)
            if column == len(row):
                self._rows[self._row] = row + part
            else:
                self._rows[self._row] = row[:column] + part + row[end:]
                self.rewritten += min(len(row), end) - column
            self._column = end

    def _feed(self, *, with_return: bool) -> None:
        """The end of a line; one with a return stays as it is."""
        if with_return and not self._rows[self._row].endswith("\r"):
            self._column = len(self._rows[self._row])
            self._put("\r")
        self._returned = False
        self._row += 1
        self._column = 0
        if self._row == len(self._rows):
            self._rows.append("")
            if len(self._rows) > MAX_ROWS:
                self._emit_rows(1)
                self._row -= 1

    def _act(self, sequence: str) -> None:
        self._returned = sequence == "\r"
        if sequence == "\r":
            self._column = 0
        elif sequence == "\b":
            self._column = max(0, self._column - 1)
        else:
            self._move(*_parse(sequence))

    def _move(self, final: str, number: int | None) -> None:
        """J and K erase, the others move the cursor."""
        if final == "K":
            self._erase_in_row(number or 0)
        elif final == "J":
            if not number:  # the whole screen stays: there was something to be read on it
                self._erase_in_row(0)
                self.rewritten += sum(map(len, self._rows[self._row + 1 :]))
                del self._rows[self._row + 1 :]
        elif final == "G":
            self._column = min(max(1, number or 1) - 1, MAX_ROW_CHARS)
        elif final == "D":
            self._column = max(0, self._column - (number or 1))
        elif final == "C":
            self._column = min(self._column + (number or 1), MAX_ROW_CHARS)
        else:
            rows = number or 1
            self._row = max(0, self._row - rows) if final in "AF" else min(len(self._rows) - 1, self._row + rows)
            if final in "EF":
                self._column = 0

    def _erase_in_row(self, what: int) -> None:
        """0: from the cursor on, 1: up to it, 2: all of it."""
        row, column = self._rows[self._row], self._column
        if what == 0:
            kept = row[:column]
        elif what == 1:
            kept = " " * min(column, len(row)) + row[column:]
            self.rewritten += min(column, len(row))
        elif what == 2:
            kept = ""
        else:
            return
        self.rewritten += len(row) - len(kept)
        self._rows[self._row] = kept


@lru_cache(maxsize=256)
def _parse(sequence: str) -> tuple[str, int | None]:
    parameters = sequence[2:-1]
    return sequence[-1], int(parameters) if parameters.isdigit() and len(parameters) < 6 else None


def _is_plain(data: bytes) -> bool:
    if b"\x1b" in data or b"\b" in data:
        return False
    return b"\r" not in data or data.count(b"\r") == data.count(b"\r\n")


def _last_rows(data: bytes) -> int:
    """The start of its last MAX_ROWS lines, 0 if there are no more."""
    place = len(data)
    for _ in range(MAX_ROWS):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return 0
    return place + 1


def _split_incomplete(data: bytes) -> tuple[bytes, bytes]:
    """`data`, and an incomplete end: the beginning of a sequence, or a return before a line feed."""
    if data.rfind(b"\x1b", -_MAX_BODY - 8) >= 0:
        last = data.rfind(b"\x1b")
        before = data.rfind(b"\x1b", 0, last)  # the last may be in the end of a title
        for start in (before, last):
            if start >= 0 and _UNFINISHED.fullmatch(data, start) is not None:
                return data[:start], data[start:]
    return (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")


def _count_text(line: str, returns: int) -> int | None:
    """The number of text characters in a line that otherwise has only this many returns and sequences that erase from
    the cursor on, or the whole line directly before or after a return; None if there is anything else."""
    escapes = line.count("\x1b")
    if "\b" in line:
        return None
    if not escapes:
        return len(line) - returns
    short = line.count("\x1b[K")
    if short == escapes:
        return len(line) - returns - 3 * short
    long, all_of_it = line.count("\x1b[0K"), line.count("\x1b[2K")
    if escapes != short + long + all_of_it:
        return None
    if all_of_it and all_of_it not in (line.count("\r\x1b[2K"), f"{line}\r".count("\x1b[2K\r")):
        return None
    return len(line) - returns - 3 * short - 4 * (long + all_of_it)


# Drawing output takes some seconds per gigabyte, and minutes if blocks are redrawn line by line. Of a long stream only
# the ends are drawn (TR 7.1): the middle is counted.

FIRST_BYTES: Final = 16 * 1024 * 1024  # maximum part of a stream that is rendered as it comes
LAST_BYTES: Final = 1024 * 1024  # size of the rendered end of a longer stream


class ShownEnds:
    """Takes a stream in chunks. Its first `first_bytes` are drawn as they come, and of what follows the last
    `last_bytes` in the end; nothing is left out of a stream that is not longer than both together."""

    def __init__(self, limit: int, first_bytes: int, last_bytes: int = LAST_BYTES) -> None:
        self.is_whole = True
        self._ends = HeadTail(limit)
        self._room = first_bytes
        self._last_bytes = last_bytes
        self._reducer = Reducer()
        self._last: _Last | None = None
        self._rewritten = 0

    @property
    def rewritten(self) -> int:
        """The number of characters that were drawn over or erased: they are not shown."""
        return self._rewritten + self._reducer.rewritten

    def add(self, chunk: bytes) -> None:
        """The next bytes of the stream."""
        if self._last is None and len(chunk) > self._room:
            self._draw(chunk[: self._room])
            chunk, self._last = chunk[self._room :], _Last(self._last_bytes)
        if self._last is None:
            self._room -= len(chunk)
            self._draw(chunk)
        else:
            self._last.add(chunk)

    def end(self) -> HeadTail:
        """Return the shown text after the end of the stream; `is_whole` is True if all of it was processed."""
        if self._last is not None:
            last, total = self._last.content(), self._last.total
            self._last, self._room = None, 0
            if len(last) < total:
                last = last[_line_start(last) :]
                self._skip(total - len(last))
            self._draw(last)
        self._ends.add(self._reducer.end())
        return self._ends

    def _draw(self, data: bytes) -> None:
        self._ends.add(self._reducer.feed(data))

    def _skip(self, count: int) -> None:
        """Skip what follows, because it is drawn on a screen of its own."""
        self.is_whole = False
        self._ends.add(self._reducer.end())
        self._ends.skip(count)
        self._rewritten, self._reducer = self.rewritten, Reducer()


class _Last:
    """The last `size` bytes of a stream of `total` bytes."""

    def __init__(self, size: int) -> None:
        self.total = 0
        self._size = size
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        self._kept += chunk
        if len(self._kept) > 2 * self._size:  # trimmed at twice the size: a byte is moved once
            del self._kept[: len(self._kept) - self._size]

    def content(self) -> bytes:
        return bytes(self._kept[max(0, len(self._kept) - self._size) :])


def _line_start(data: bytes) -> int:
    """The first byte of the first line that is not cut at its start. If none is near, the start of a form of a redrawn
    line, or else of a character."""
    for end in (b"\n", b"\r"):
        found = data.find(end, 0, len(data) // 2) + 1
        if found:
            return found
    return len(data) - len(whole_start(data))
