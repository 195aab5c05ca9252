"""Near matches of a text that was not found in a file, or its places there, in words for the model."""

from __future__ import annotations

import difflib
from typing import Final

_MAX_LINES: Final = 20_000
_MAX_LINE_CHARS: Final = 200
_MAX_SHOWN: Final = 5
_MAX_COMPARED: Final = 400
_LIKENESS: Final = 0.5


def nearest_lines(text: str, old: str) -> str:
    """Lines of `text` that are most like the first line of `old` which says something, with their numbers; a sentence.
    Looks at the first 20,000 lines."""
    lines = text.splitlines()[:_MAX_LINES]
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    if not wanted or not lines:
        return "the file is empty" if not text.strip() else "no line of it is like the old text"
    same = [number for number, line in enumerate(lines, 1) if line.strip() == wanted]
    if same:
        said = "is there with other spaces or followed by other lines"
        return f"its first line {said}: {_render(lines, same)}"
    like = _alike(lines, wanted)
    return f"the nearest lines are: {_render(lines, like)}" if like else "no line of it is like the old text"


def places(text: str, old: str) -> str:
    """In which lines of `text` the text `old` begins."""
    found: dict[int, None] = {}
    start = text.find(old)
    if start < 0:  # found with other line ends
        old = old.replace("\r\n", "\n").replace("\n", "\r\n")
        start = text.find(old)
    while start >= 0 and len(found) <= _MAX_SHOWN:
        found[text.count("\n", 0, start) + 1] = None
        start = text.find(old, start + len(old))
    shown = ", ".join(map(str, list(found)[:_MAX_SHOWN]))
    return f"it begins in line{'s' if len(found) > 1 else ''} {shown}{' and more' if len(found) > _MAX_SHOWN else ''}"


def _alike(lines: list[str], wanted: str) -> list[int]:
    """Numbers of the lines that are most like `wanted`, the most alike first."""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[:_MAX_LINE_CHARS])
    pieces = _pieces(wanted)
    # Comparing is slow, so only lines that share most with the wanted one are compared.
    ranked = sorted(
        ((len(pieces & _pieces(line)), number) for number, line in enumerate(lines, 1)),
        key=lambda one: (-one[0], one[1]),
    )[:_MAX_COMPARED]
    likeness: list[tuple[float, int]] = []
    for shared, number in ranked:
        if not shared:
            break
        matcher.set_seq1(lines[number - 1].strip()[:_MAX_LINE_CHARS])
        ratio = matcher.ratio()
        if ratio >= _LIKENESS:
            likeness.append((-ratio, number))
    return [number for _, number in sorted(likeness)[:_MAX_SHOWN]]


def _pieces(line: str) -> set[str]:
    line = line.strip()[:_MAX_LINE_CHARS]
    return {line[place : place + 3] for place in range(max(1, len(line) - 2))}


def _render(lines: list[str], numbers: list[int]) -> str:
    shown = [f"{number}: {_cut(lines[number - 1])}" for number in numbers[:_MAX_SHOWN]]
    return " | ".join(shown)


def _cut(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"
