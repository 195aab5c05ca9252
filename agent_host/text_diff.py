"""Unified diffs of bytes and detection of renamed files, with bounded cost. Pure; used by the runtime's artifacts and
the session's patch."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

_CONTEXT: Final = 3
_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+")
_SLICE_BYTES: Final = 1024 * 1024  # read at once to count the lines of a large text
MAX_COMPARED_BYTES: Final = 1024 * 1024
"""Maximum size of a file that is compared by lines; equal files are found at any size."""
_MAX_PAIRS: Final = 2000
_MIN_SIMILARITY: Final = 0.5
"""Minimum common part of two files, relative to the larger one, as in git."""


class TextDiff(NamedTuple):
    """The hunks that turn one text into another, and the numbers of lines that they insert and delete."""

    hunks: bytes
    additions: int
    deletions: int


def compare(before: bytes, after: bytes) -> TextDiff:
    """Return the difference of two texts, without the two header lines; (b"", 0, 0) if they are equal.

    Lines end only with a line feed, because git and patch treat other Unicode line breaks as content.
    """
    start, end = _equal_ends(before, len(after), lambda at, size: after[at : at + size])
    # Equal lines at both ends are left out, except for the context of a change.
    shown_from, shown_after = _lines_back(before, start), _lines_on(before, len(before) - end)
    old, new = (_LINE.findall(text[shown_from : len(text) - len(before) + shown_after]) for text in (before, after))
    found = changes(old, new)
    hunks = b"".join(_hunks(old, new, found, before.count(b"\n", 0, shown_from)))
    return TextDiff(hunks, sum(j2 - j1 for _, _, j1, j2 in found), sum(i2 - i1 for i1, i2, _, _ in found))


def hunks(before: bytes, after: bytes) -> bytes:
    """Only the hunks of `compare`."""
    return compare(before, after).hunks


def _equal_ends(before: bytes, size: int, read: Callable[[int, int], bytes]) -> tuple[int, int]:
    """Return the number of bytes in equal complete lines at the start, and then at the end, of two texts. The new one
    has `size` bytes; `read(offset, count)` returns at most `count` of them."""
    shorter = min(len(before), size)
    start = before.rfind(b"\n", 0, _common_start(before, shorter, read)) + 1
    end = _common_end(before, size, shorter - start, read)
    at_old, at_new = len(before) - end, size - end
    if (at_old == 0 or before[at_old - 1 : at_old] == b"\n") and (at_new == 0 or read(at_new - 1, 1) == b"\n"):
        return start, end
    line = before.find(b"\n", at_old)  # the common end starts in the middle of a line on one of the sides
    return start, 0 if line < 0 else len(before) - line - 1


def _lines_back(text: bytes, at: int) -> int:
    """The start of the context lines before the line at `at`."""
    for _ in range(_CONTEXT):
        at = text.rfind(b"\n", 0, max(at - 1, 0)) + 1
    return at


def _lines_on(text: bytes, at: int) -> int:
    """The end of the context lines from `at` on."""
    for _ in range(_CONTEXT):
        at = text.find(b"\n", at) + 1 or len(text)
    return at


def _hunks(old: Sequence[bytes], new: Sequence[bytes], found: Sequence[Change], above: int) -> Iterator[bytes]:
    """The hunks of two texts that are preceded by `above` equal lines."""
    for group in _group(found):
        before = min(_CONTEXT, group[0].i1)
        after = min(_CONTEXT, len(old) - group[-1].i2)
        i, i_end = group[0].i1 - before, group[-1].i2 + after
        j, j_end = group[0].j1 - before, group[-1].j2 + after
        yield b"@@ -%s +%s @@\n" % (_range(above + i, above + i_end), _range(above + j, above + j_end))
        for i1, i2, j1, j2 in group:
            yield from _mark(b" ", old[i:i1])
            yield from _mark(b"-", old[i1:i2])
            yield from _mark(b"+", new[j1:j2])
            i = i2
        yield from _mark(b" ", old[i:i_end])


def _group(found: Sequence[Change]) -> Iterator[list[Change]]:
    """Group changes whose contexts would touch."""
    group: list[Change] = []
    for change in found:
        if group and change.i1 - group[-1].i2 > 2 * _CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _mark(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)  # an empty range is numbered by the line before it


# Texts too large for a diff


def count_replaced(before: bytes, size: int, read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    """Count the (inserted, deleted) lines if everything between the common first and last lines is replaced; None if a
    text is not UTF-8. For the new text see `_equal_ends`. Raises what `read` raises."""
    lines = _count(size, read)
    if lines is None:
        return None
    start, end = _equal_ends(before, size, read)
    common = before.count(b"\n", 0, start) + _lines_in(before[len(before) - end :])
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


def _common_start(before: bytes, shorter: int, read: Callable[[int, int], bytes]) -> int:
    for at in range(0, shorter, _SLICE_BYTES):
        length = min(_SLICE_BYTES, shorter - at)
        old, new = before[at : at + length], read(at, length)
        if old != new:
            return at + _equal_bytes(old, new)
    return shorter


def _common_end(before: bytes, size: int, shorter: int, read: Callable[[int, int], bytes]) -> int:
    for offset in range(0, shorter, _SLICE_BYTES):
        length = min(_SLICE_BYTES, shorter - offset)
        at = len(before) - offset - length
        old, new = before[at : at + length], read(size - offset - length, length)
        if old != new:
            return offset + _equal_last_bytes(old, new)
    return max(shorter, 0)


def _equal_bytes(old: bytes, new: bytes) -> int:
    return _longest(min(len(old), len(new)), lambda low, high: old[low:high] == new[low:high])


def _equal_last_bytes(old: bytes, new: bytes) -> int:
    m, n = len(old), len(new)
    return _longest(min(m, n), lambda low, high: old[m - high : m - low] == new[n - high : n - low])


def _longest(most: int, same: Callable[[int, int], bool]) -> int:
    """The largest number up to `most` for which everything before it is the `same`. It compares whole slices, which is
    a hundred times as fast as bytes."""
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


# Equal lines of two texts, for a diff: the shortest diff if that is cheap, else a good one.
#
# Myers' greedy search gives the shortest diff in time that grows with the square of its length, so it has a limit.
# Beyond it, lines that occur once on each side are matched first, as in a patience diff, and the search continues
# between them. A total budget bounds the time: parts that are left when it is spent count as replaced.

_MAX_EDITS: Final = 160
"""Maximum lines that one search may remove and insert."""
_MAX_STEPS: Final = 1_500_000
"""The budget of all searches of one comparison: about half a second."""
_MAX_DEPTH: Final = 6
"""Maximum depth of division at unique lines: each division costs as much as sorting the part."""

_REST: Final = _MAX_DEPTH + 1
"""The depth of parts left by a search that continued without such lines: comparing all of a part each time would be
quadratic."""


class Change(NamedTuple):
    """`old[i1:i2]` is replaced by `new[j1:j2]`."""

    i1: int
    i2: int
    j1: int
    j2: int


class _OpenPart(NamedTuple):
    """A part that is not compared yet: `old[i1:i2]` and `new[j1:j2]`, after this number of divisions."""

    i1: int
    i2: int
    j1: int
    j2: int
    depth: int = 0


def changes(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Change]:
    """Return the changes that turn `old` into `new`, in order, with at least one equal line between each two."""
    numbers: dict[Hashable, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    found: list[Change] = []
    for change in _Comparison(a, b).run():
        if found and (found[-1].i2, found[-1].j2) == (change.i1, change.j1):
            found[-1] = found[-1]._replace(i2=change.i2, j2=change.j2)
        else:
            found.append(change)
    return found


class _Comparison:
    """One comparison of lines, represented by numbers that are equal for equal lines."""

    def __init__(self, a: list[int], b: list[int]) -> None:
        self._a = a
        self._b = b
        self._budget = _MAX_STEPS
        self._found: list[Change] = []

    def run(self) -> list[Change]:
        waiting = [_OpenPart(0, len(self._a), 0, len(self._b))]
        while waiting:
            part = self._trim(waiting.pop())
            waiting += reversed(self._divide(part))
        return self._found

    def _trim(self, part: _OpenPart) -> _OpenPart:
        a, b = self._a, self._b
        i1, i2, j1, j2, depth = part
        while i1 < i2 and j1 < j2 and a[i1] == b[j1]:
            i1, j1 = i1 + 1, j1 + 1
        while i1 < i2 and j1 < j2 and a[i2 - 1] == b[j2 - 1]:
            i2, j2 = i2 - 1, j2 - 1
        return _OpenPart(i1, i2, j1, j2, depth)

    def _divide(self, part: _OpenPart) -> list[_OpenPart]:
        """Divide `part` into smaller parts; none if it is done, and its changes are then recorded."""
        i1, i2, j1, j2, depth = part
        if i1 == i2 or j1 == j2 or (depth < _REST and set(self._a[i1:i2]).isdisjoint(self._b[j1:j2])):
            self._found += _gaps([], part)
            return []
        matches, (x, y) = self._search(part)
        if (x, y) != (i2, j2) and depth < _MAX_DEPTH:
            anchors = _anchors(self._a, self._b, part)
            if anchors:
                return _parts_between(anchors, part)
        if (x, y) == (i1, j1):  # the budget is spent
            self._found += _gaps([], part)
            return []
        self._found += _gaps(matches, _OpenPart(i1, x, j1, y))
        return [] if (x, y) == (i2, j2) else [_OpenPart(x, i2, y, j2, _REST)]

    def _search(self, part: _OpenPart) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
        """Myers' search from the part's start. Returns the runs of equal lines (i, j, length) on its path, and the
        position reached: the part's end or, at the limit, the position after the most lines."""
        a, b = self._a, self._b
        i1, i2, j1, j2, _ = part
        n, m = i2 - i1, j2 - j1
        most = min(_MAX_EDITS, n + m)
        middle = most + 1
        reached = [0] * (2 * middle + 1)  # by diagonal: the position reached in `a`
        rounds: list[list[int]] = []
        steps = 0
        for edits in range(most + 1):
            if self._budget < steps:
                break
            rounds.append(reached[middle - edits - 1 : middle + edits + 2])
            for k in _diagonals(edits, n, m):
                x = _step(reached, middle + k, first=k == -edits, last=k == edits)
                y = x - k
                start = x
                while x < n and y < m and a[i1 + x] == b[j1 + y]:
                    x, y = x + 1, y + 1
                reached[middle + k] = x
                steps += x - start + 2
                if x == n and y == m:
                    self._budget -= steps
                    return _walk_back(rounds, k, x, i1, j1), (i2, j2)
        self._budget -= steps
        ends = [(reached[middle + k], k) for k in _diagonals(len(rounds) - 1, n, m)]
        # Paths that left the part are included; they are never the shortest, so they are not stopped.
        inside = [(2 * x - k, x, k) for x, k in ends if x <= n and x - k <= m]
        if not inside:
            return [], (i1, j1)
        _, x, k = max(inside)
        return _walk_back(rounds, k, x, i1, j1), (i1 + x, j1 + x - k)


def _diagonals(edits: int, n: int, m: int) -> range:
    """The diagonals that this number of edits can reach, without those that have left a part of n by m lines for
    good."""
    return range(-edits + 2 * max(0, edits - m), edits - 2 * max(0, edits - n) + 1, 2)


def _step(reached: Sequence[int], at: int, *, first: bool, last: bool) -> int:
    """The position that one more edit reaches on the diagonal `at`: an inserted line, from the diagonal above, or a
    deleted one."""
    if first or (not last and reached[at - 1] < reached[at + 1]):
        return reached[at + 1]
    return reached[at - 1] + 1


def _walk_back(rounds: list[list[int]], k: int, x: int, i1: int, j1: int) -> list[tuple[int, int, int]]:
    """The runs of equal lines on the path to `x` on the diagonal `k`, first to last."""
    runs: list[tuple[int, int, int]] = []
    for edits in range(len(rounds) - 1, -1, -1):
        reached, at = rounds[edits], k + edits + 1
        start = _step(reached, at, first=k == -edits, last=k == edits) if edits else 0
        if x > start:
            runs.append((i1 + start, j1 + start - k, x - start))
        if edits:
            down = k == -edits or (k != edits and reached[at - 1] < reached[at + 1])
            k, x = (k + 1, start) if down else (k - 1, start - 1)
    return runs[::-1]


def _gaps(runs: list[tuple[int, int, int]], part: _OpenPart) -> list[Change]:
    found = []
    i, j = part.i1, part.j1
    for at_i, at_j, length in [*runs, (part.i2, part.j2, 0)]:
        if i < at_i or j < at_j:
            found.append(Change(i, at_i, j, at_j))
        i, j = at_i + length, at_j + length
    return found


def _anchors(a: list[int], b: list[int], part: _OpenPart) -> list[tuple[int, int]]:
    """The longest sequence of pairs (i, j), increasing in both, of lines that occur once on each side of the part."""
    in_a, in_b = Counter(a[part.i1 : part.i2]), Counter(b[part.j1 : part.j2])
    place = {b[j]: j for j in range(part.j1, part.j2) if in_b[b[j]] == 1}
    pairs = [(i, place[a[i]]) for i in range(part.i1, part.i2) if in_a[a[i]] == 1 and a[i] in place]
    tails: list[int] = []  # the lowest j that ends a sequence of each length
    ends: list[int] = []  # and the index of its pair
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(tails, j)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1] = [j]
        ends[length : length + 1] = [number]
    row: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        row.append(pairs[at])
        at = before[at]
    return row[::-1]


def _parts_between(anchors: list[tuple[int, int]], part: _OpenPart) -> list[_OpenPart]:
    """The parts that start at the part's start and after each anchor; an anchor is an equal line and needs no part."""
    parts = []
    i, j = part.i1, part.j1
    for at_i, at_j in [*anchors, (part.i2, part.j2)]:
        if i < at_i or j < at_j:
            parts.append(_OpenPart(i, at_i, j, at_j, part.depth + 1))
        i, j = at_i + 1, at_j + 1
    return parts


def find_renames(removed: Mapping[str, bytes], new: Mapping[str, bytes]) -> dict[str, tuple[str, int]]:
    """Map the name of each renamed file to its old name and its similarity in percent.

    Equal files are matched first, then those that have most in common; each file is in at most one pair. With more than
    2000 pairs to compare, only equal files are found. Empty files never count as renamed.
    """
    found: dict[str, tuple[str, int]] = {}
    by_content: dict[bytes, list[str]] = {}
    for path, content in sorted(removed.items(), reverse=True):
        if content:
            by_content.setdefault(content, []).append(path)
    for path, content in sorted(new.items()):
        if by_content.get(content):
            found[path] = by_content[content].pop(), 100
    taken = {old for old, _ in found.values()}
    left = {path: content for path, content in removed.items() if path not in taken and _is_compared(content)}
    others = {path: content for path, content in new.items() if path not in found and _is_compared(content)}
    if len(left) * len(others) <= _MAX_PAIRS:
        found |= _similar(left, others)
    return found


def _is_compared(content: bytes) -> bool:
    return 0 < len(content) <= MAX_COMPARED_BYTES and b"\0" not in content


def _similar(removed: Mapping[str, bytes], new: Mapping[str, bytes]) -> dict[str, tuple[str, int]]:
    lines = {content: Counter(content.splitlines(keepends=True)) for content in {*removed.values(), *new.values()}}
    pairs: list[tuple[float, str, str]] = []
    for old, before in removed.items():
        for path, after in new.items():
            larger = max(len(before), len(after))
            if min(len(before), len(after)) >= larger * _MIN_SIMILARITY:
                shared = lines[before] & lines[after]
                similarity = sum(len(line) * count for line, count in shared.items()) / larger
                if similarity >= _MIN_SIMILARITY:
                    pairs.append((-similarity, path, old))
    found: dict[str, tuple[str, int]] = {}
    taken: set[str] = set()
    for similarity, path, old in sorted(pairs):
        if path not in found and old not in taken:
            found[path] = old, min(99, int(-100 * similarity))
            taken.add(old)
    return found
