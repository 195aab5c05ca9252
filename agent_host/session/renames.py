"""Which of the files that are new are files that are gone, under another name. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_COMPARED_BYTES: Final = 1024 * 1024
"""Of each file that is compared with others by its lines; equal files are found at any size."""
_MAX_PAIRS: Final = 2000
_LEAST_ALIKE: Final = 0.5
"""The part of the larger file that two have in common: what git asks for as well."""


def renamed(gone: Mapping[str, bytes], new: Mapping[str, bytes]) -> dict[str, tuple[str, int]]:
    """For each new file that is a renamed one: what it was called, and how much of it is the same, in percent.

    Equal files come first, then those that have most in common; each file is in one pair at most. Where there are more
    than 2000 pairs to compare only equal ones are found. Empty files are no renamed ones.
    """
    found: dict[str, tuple[str, int]] = {}
    by_content: dict[bytes, list[str]] = {}
    for path, content in sorted(gone.items(), reverse=True):
        if content:
            by_content.setdefault(content, []).append(path)
    for path, content in sorted(new.items()):
        if by_content.get(content):
            found[path] = by_content[content].pop(), 100
    taken = {old for old, _ in found.values()}
    left = {path: content for path, content in gone.items() if path not in taken and _is_compared(content)}
    others = {path: content for path, content in new.items() if path not in found and _is_compared(content)}
    if len(left) * len(others) <= _MAX_PAIRS:
        found |= _alike(left, others)
    return found


def _is_compared(content: bytes) -> bool:
    return 0 < len(content) <= MAX_COMPARED_BYTES and b"\0" not in content


def _alike(gone: Mapping[str, bytes], new: Mapping[str, bytes]) -> dict[str, tuple[str, int]]:
    lines = {content: Counter(content.splitlines(keepends=True)) for content in {*gone.values(), *new.values()}}
    pairs: list[tuple[float, str, str]] = []
    for old, before in gone.items():
        for path, after in new.items():
            larger = max(len(before), len(after))
            if min(len(before), len(after)) >= larger * _LEAST_ALIKE:
                shared = lines[before] & lines[after]
                alike = sum(len(line) * count for line, count in shared.items()) / larger
                if alike >= _LEAST_ALIKE:
                    pairs.append((-alike, path, old))
    found: dict[str, tuple[str, int]] = {}
    taken: set[str] = set()
    for alike, path, old in sorted(pairs):
        if path not in found and old not in taken:
            found[path] = old, min(99, int(-100 * alike))
            taken.add(old)
    return found
