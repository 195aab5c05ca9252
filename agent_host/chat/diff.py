"""A unified diff for a terminal: in two columns where they have room, else line under line. Nothing is cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent_host.display_text import escape
from agent_host.terminal.style import CYAN, DIFF_COLOURS, DIM, GREEN, PLAIN, RED, cells, split_cells, wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE_BY_SIDE_COLUMNS: Final = 110
_HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_DIVIDER: Final = " │ "
_MOST_PAIRED: Final = 2000


def diff_lines(diff: str, columns: int, *, styled: bool, plain: bool = False) -> Iterator[str]:
    """The rows of a diff, each at most `columns` wide."""
    lines = [escape(line, keep="").expandtabs(4) for line in diff.replace("\t", "    ").splitlines()]
    marks = {line[:1] for line in lines if not line.startswith(("+++", "---"))}
    if plain or columns < SIDE_BY_SIDE_COLUMNS or len(lines) > _MOST_PAIRED or not marks >= {"+", "-"}:
        for line in lines:
            yield from _unified(line, columns, styled=styled)
        return
    yield from _columns(lines, columns, styled=styled)


def _paint(colour: str, text: str, *, styled: bool) -> str:
    return f"{colour}{text}{PLAIN}" if styled and colour and text else text


def _unified(line: str, columns: int, *, styled: bool) -> Iterator[str]:
    colour = DIM if line.startswith(("+++", "---")) else DIFF_COLOURS.get(line[:1], "")
    first = split_cells(line, columns)[0]
    yield _paint(colour, first, styled=styled)
    for part in split_cells(line[len(first) :], columns - 2) if len(first) < len(line) else ():
        yield _paint(colour, f"↪ {part}", styled=styled)


def _columns(lines: list[str], columns: int, *, styled: bool) -> Iterator[str]:
    half = (columns - len(_DIVIDER)) // 2
    old: list[tuple[int, str]] = []
    new: list[tuple[int, str]] = []
    at_old = at_new = 0
    in_hunk = False

    def flush() -> Iterator[str]:
        for place in range(max(len(old), len(new))):
            left = old[place] if place < len(old) else None
            right = new[place] if place < len(new) else None
            yield from _pair(left, right, half, (RED, GREEN), styled=styled)
        old.clear()
        new.clear()

    for line in lines:
        hunk = _HUNK.match(line)
        if hunk is not None:
            yield from flush()
            at_old, at_new, in_hunk = int(hunk[1]), int(hunk[2]), True
            yield _paint(CYAN, wrap(line, columns)[0], styled=styled)
        elif in_hunk and line.startswith("-"):
            if new:
                yield from flush()
            old.append((at_old, line[1:]))
            at_old += 1
        elif in_hunk and line.startswith("+"):
            new.append((at_new, line[1:]))
            at_new += 1
        elif in_hunk and line.startswith(" "):
            yield from flush()
            yield from _pair((at_old, line[1:]), (at_new, line[1:]), half, ("", ""), styled=styled)
            at_old, at_new = at_old + 1, at_new + 1
        else:
            yield from flush()
            in_hunk = in_hunk and line.startswith("\\")
            for row in wrap(line, columns):
                yield _paint(DIM, row, styled=styled)
    yield from flush()


def _pair(
    left: tuple[int, str] | None, right: tuple[int, str] | None, half: int, colours: tuple[str, str], *, styled: bool
) -> Iterator[str]:
    sides = [_numbered(left, half), _numbered(right, half)]
    for place in range(max(map(len, sides))):
        parts = [side[place] if place < len(side) else "" for side in sides]
        pad = " " * max(0, half - cells(parts[0]))
        first, second = (_paint(one, text, styled=styled) for one, text in zip(colours, parts, strict=True))
        yield f"{first}{pad}{_DIVIDER}{second}".rstrip()


def _numbered(line: tuple[int, str] | None, half: int) -> list[str]:
    if line is None:
        return [""]
    first, *rest = split_cells(line[1], half - 6)
    return [f"{line[0]:>4}  {first}", *(f"{'':>4}  {part}" for part in rest)]
