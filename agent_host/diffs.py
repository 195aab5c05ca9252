"""Unified diffs on bytes, with a bound on their cost. Pure; the runtime's artifacts and the session's patch use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CONTEXT: Final = 3
_MAX_PAIRS: Final = 4_000_000
"""difflib may compare every changed line with every other; beyond this many pairs the changed part is one hunk."""

_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


def hunks(before: bytes, after: bytes) -> bytes:
    """The hunks that turn `before` into `after`, without the two header lines; b"" when they are the same.

    Lines end with a line feed and with nothing else: what other breaks Unicode knows is content to git and patch.
    """
    return b"".join(_hunks(_lines(before), _lines(after)))


def _lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    from difflib import SequenceMatcher

    grouper = SequenceMatcher[bytes](None, (), ())
    grouper.opcodes = _opcodes(old, new)  # type: ignore[attr-defined]  # missing in typeshed
    for group in grouper.get_grouped_opcodes(_CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (_range(i1, i2), _range(j1, j2))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from _marked(b" ", old[i1:i2])
            else:
                yield from _marked(b"-", old[i1:i2])
                yield from _marked(b"+", new[j1:j2])


def _opcodes(old: list[bytes], new: list[bytes]) -> list[_Opcode]:
    """difflib's opcodes, compared only between the common start and the common end."""
    from difflib import SequenceMatcher

    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    room = shorter - start
    end = next((i for i in range(room) if old[-1 - i] != new[-1 - i]), room)
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    middle: Iterable[_Opcode] = [("replace", 0, len(a), 0, len(b))]
    if len(a) * len(b) <= _MAX_PAIRS:
        middle = SequenceMatcher(None, a, b).get_opcodes()
    codes: list[_Opcode] = [("equal", 0, start, 0, start)] if start else []
    codes += [(tag, i1 + start, i2 + start, j1 + start, j2 + start) for tag, i1, i2, j1, j2 in middle]
    if end:
        codes.append(("equal", len(old) - end, len(old), len(new) - end, len(new)))
    return codes


def _marked(mark: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)  # an empty range names the line before it
