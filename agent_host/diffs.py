"""Unified diffs on bytes, with a bound on their cost. Pure; the runtime's artifacts and the session's patch use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.line_matching import changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent_host.line_matching import Change

_CONTEXT: Final = 3


class TextDiff(NamedTuple):
    """The hunks that turn one text into another, and how many lines they put in and take out."""

    hunks: bytes
    additions: int
    deletions: int


def compare(before: bytes, after: bytes) -> TextDiff:
    """The difference of two texts, without the two header lines; (b"", 0, 0) when they are the same.

    Lines end with a line feed and with nothing else: what other breaks Unicode knows is content to git and patch.
    """
    old, new = _lines(before), _lines(after)
    found = changes(old, new)
    hunks = b"".join(_hunks(old, new, found))
    return TextDiff(hunks, sum(j2 - j1 for _, _, j1, j2 in found), sum(i2 - i1 for i1, i2, _, _ in found))


def hunks(before: bytes, after: bytes) -> bytes:
    """The hunks of `compare` alone."""
    return compare(before, after).hunks


def _lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _hunks(old: Sequence[bytes], new: Sequence[bytes], found: Sequence[Change]) -> Iterator[bytes]:
    for group in _grouped(found):
        before = min(_CONTEXT, group[0].i1)
        after = min(_CONTEXT, len(old) - group[-1].i2)
        i, i_end = group[0].i1 - before, group[-1].i2 + after
        yield b"@@ -%s +%s @@\n" % (_range(i, i_end), _range(group[0].j1 - before, group[-1].j2 + after))
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
