"""Unified diffs on bytes, with a bound on their cost. Pure; the runtime's artifacts and the session's patch use it."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.line_matching import changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent_host.line_matching import Change

_CONTEXT: Final = 3
_SLICE_BYTES: Final = 1024 * 1024  # of a large text that is read for its lines


class TextDiff(NamedTuple):
    """The hunks that turn one text into another, and how many lines they put in and take out."""

    hunks: bytes
    additions: int
    deletions: int


def compare(before: bytes, after: bytes) -> TextDiff:
    """The difference of two texts, without the two header lines; (b"", 0, 0) when they are the same.

    Lines end with a line feed and with nothing else: what other breaks Unicode knows is content to git and patch.
    """
    start, end = _equal_ends(before, after)
    # What is alike at both ends is left out, but for the lines that are shown around a change.
    shown_from, shown_behind = _lines_back(before, start), _lines_on(before, len(before) - end)
    old, new = (_lines(text[shown_from : len(text) - len(before) + shown_behind]) for text in (before, after))
    found = changes(old, new)
    hunks = b"".join(_hunks(old, new, found, before.count(b"\n", 0, shown_from)))
    return TextDiff(hunks, sum(j2 - j1 for _, _, j1, j2 in found), sum(i2 - i1 for i1, i2, _, _ in found))


def hunks(before: bytes, after: bytes) -> bytes:
    """The hunks of `compare` alone."""
    return compare(before, after).hunks


def _equal_ends(before: bytes, after: bytes) -> tuple[int, int]:
    """How many bytes of whole lines are the same at the start, and then at the end."""
    start = before.rfind(b"\n", 0, _equal_bytes(before, after)) + 1
    end = _equal_last_bytes(before[start:], after[start:])
    at_old, at_new = len(before) - end, len(after) - end
    if _begins_line(at_old, lambda at: before[at : at + 1]) and _begins_line(at_new, lambda at: after[at : at + 1]):
        return start, end
    line = before.find(b"\n", at_old)
    return start, 0 if line < 0 else len(before) - line - 1


def _lines_back(text: bytes, at: int) -> int:
    """Where the lines of context before the line at `at` begin."""
    for _ in range(_CONTEXT):
        at = text.rfind(b"\n", 0, max(at - 1, 0)) + 1
    return at


def _lines_on(text: bytes, at: int) -> int:
    """Where the lines of context from `at` on end."""
    for _ in range(_CONTEXT):
        at = text.find(b"\n", at) + 1 or len(text)
    return at


def _lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _hunks(old: Sequence[bytes], new: Sequence[bytes], found: Sequence[Change], above: int) -> Iterator[bytes]:
    """The hunks of texts that have `above` more lines before these, the same ones."""
    for group in _grouped(found):
        before = min(_CONTEXT, group[0].i1)
        after = min(_CONTEXT, len(old) - group[-1].i2)
        i, i_end = group[0].i1 - before, group[-1].i2 + after
        j, j_end = group[0].j1 - before, group[-1].j2 + after
        yield b"@@ -%s +%s @@\n" % (_range(above + i, above + i_end), _range(above + j, above + j_end))
        for i1, i2, j1, j2 in group:
            yield from _marked(b" ", old[i:i1])
            yield from _marked(b"-", old[i1:i2])
            yield from _marked(b"+", new[j1:j2])
            i = i2
        yield from _marked(b" ", old[i:i_end])


def _grouped(found: Sequence[Change]) -> Iterator[list[Change]]:
    """Changes whose context would touch, together."""
    group: list[Change] = []
    for change in found:
        if group and change.i1 - group[-1].i2 > 2 * _CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _marked(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)  # an empty range names the line before it


# Texts that are too large for a diff


def replaced_lines(before: bytes, size: int, read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    """(put in, taken out) when all between the common first and last lines is replaced; None for what is no UTF-8 text.

    The new text has `size` bytes; `read` gives at most so many of them (the second number) from an offset on. Raises
    what `read` raises.
    """
    lines = _count(size, read)
    if lines is None:
        return None
    shorter = min(len(before), size)
    start = before.rfind(b"\n", 0, _common_start(before, shorter, read)) + 1
    end = _common_end(before, size, shorter - start, read)
    behind = before[len(before) - end :]
    # The common end begins with a line, unless it is in the middle of one on either side.
    at_old, at_new = len(before) - end, size - end
    if not (_begins_line(at_old, lambda at: before[at : at + 1]) and _begins_line(at_new, lambda at: read(at, 1))):
        behind = behind.partition(b"\n")[2]
    common = before.count(b"\n", 0, start) + _lines_in(behind)
    return lines - common, _lines_in(before) - common


def _count(size: int, read: Callable[[int, int], bytes]) -> int | None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines, last = 0, b"\n"
    for at in range(0, size, _SLICE_BYTES):
        part = read(at, _SLICE_BYTES)
        try:
            decoder.decode(part, final=at + _SLICE_BYTES >= size)
        except UnicodeDecodeError:
            return None
        if b"\0" in part:
            return None
        lines += part.count(b"\n")
        last = part[-1:] or last
    return lines + (last != b"\n")


def _lines_in(data: bytes) -> int:
    return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


def _begins_line(at: int, byte: Callable[[int], bytes]) -> bool:
    return at == 0 or byte(at - 1) == b"\n"


def _common_start(before: bytes, shorter: int, read: Callable[[int, int], bytes]) -> int:
    for at in range(0, shorter, _SLICE_BYTES):
        length = min(_SLICE_BYTES, shorter - at)
        old, new = before[at : at + length], read(at, length)
        if old != new:
            return at + _equal_bytes(old, new)
    return shorter


def _common_end(before: bytes, size: int, shorter: int, read: Callable[[int, int], bytes]) -> int:
    for behind in range(0, shorter, _SLICE_BYTES):
        length = min(_SLICE_BYTES, shorter - behind)
        at = len(before) - behind - length
        old, new = before[at : at + length], read(size - behind - length, length)
        if old != new:
            return behind + _equal_last_bytes(old, new)
    return max(shorter, 0)


def _equal_bytes(old: bytes, new: bytes) -> int:
    """How many bytes are the same at the start."""
    return _longest(min(len(old), len(new)), lambda low, high: old[low:high] == new[low:high])


def _equal_last_bytes(old: bytes, new: bytes) -> int:
    """How many bytes are the same at the end."""
    m, n = len(old), len(new)
    return _longest(min(m, n), lambda low, high: old[m - high : m - low] == new[n - high : n - low])


def _longest(most: int, same: Callable[[int, int], bool]) -> int:
    """The largest number up to `most` for which everything from 0 on is the `same`. Whole slices are compared, a
    hundred times as fast as bytes."""
    if same(0, most):
        return most
    low, high = 0, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low
