"""Patterns of file names and the blocked places that they may reach: in doubt a pattern reaches one."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

ANY_DEPTH = "**"
ELSEWHERE = "?*"
"""Stands for a name that a loop has found in another directory."""
_UNCLEAR = ("[:", "[=", "[.", "\\")
"""Syntax that a shell reads differently from `fnmatch`."""
_EXTENSION = re.compile(r".*\.[a-z0-9_]+")
_STEERS_GIT = "config.worktree"


def reaches(pattern: str, place: str, *, tree: bool, writes: bool) -> bool:
    """True if what a pattern finds is a place below its directory, or in it, or holds it where a `tree` goes along.
    `place` is relative and in the spelling that block lists are compared in.

    Behind `**` only the last name of a pattern counts. What is deleted by its name inside of a blocked place is not
    seen; what is written there is, unless its name has an extension, which nothing has that git is steered by.
    """
    patterns, names = pattern.strip("/").casefold().split("/"), place.split("/")
    head = patterns[: patterns.index(ANY_DEPTH)] if ANY_DEPTH in patterns else patterns
    if not all(map(_fits, names, head)):
        return False
    if head is patterns:
        return len(head) >= len(names) or tree
    wanted = patterns[-1]
    below = names[len(head) :]
    if wanted in {ANY_DEPTH, "*"} or not below:
        return True
    if writes and (not _EXTENSION.fullmatch(wanted) or _is_called(_STEERS_GIT, wanted)):
        return True
    return any(_is_called(name, wanted) for name in below)


def is_pattern(text: str) -> bool:
    """True for text that stands for several names."""
    return any(mark in text for mark in "*?[{")


def finds_name(name: str, pattern: str) -> bool:
    """True if the shell may find a name by one component of a pattern; in doubt it does."""
    return _fits(name.casefold(), pattern.casefold())


def _fits(name: str, pattern: str) -> bool:
    """As the shell finds names: a dot in front has to be spelled."""
    return _is_called(name, pattern) and (
        not name.startswith(".") or pattern.startswith((".", "[")) or _unclear(pattern)
    )


def _is_called(name: str, pattern: str) -> bool:
    """As `find` compares names."""
    return _unclear(pattern) or fnmatchcase(name, pattern.replace("[^", "[!"))


def _unclear(pattern: str) -> bool:
    return any(mark in pattern for mark in _UNCLEAR)


def may_meet(pattern: str, name: str, *, hidden: bool = False) -> bool:
    """True if a component of a pattern may find the name of a blocked entry, which may begin with a star. As the shell
    finds names, a dot in front has to be spelled, unless what is `hidden` is found too. What a bare star finds only the
    disk says, and so it is with a star at the end and a name that begins with one, unless they share some text."""
    pattern = pattern.casefold()
    if not pattern.strip("*"):
        return False
    if len(pattern) > _LONGEST_NAME:  # no file has such a name, and stars may make one of it
        return True
    if _unclear(pattern) or "[" in pattern:
        pattern = _SET.sub("?", pattern)
    if name.startswith(".") and not (hidden or pattern.startswith((".", "?"))):
        return False
    if name.startswith("*") and pattern.endswith("*") and ELSEWHERE not in pattern:
        return any(piece in name for piece in _LITERAL.findall(pattern))
    return _overlap(pattern, name)


_LONGEST_NAME = 255
_SET = re.compile(r"\[[^\]]*\]|\\.")
_LITERAL = re.compile(r"[^*?]{2,}")


def _overlap(one: str, other: str) -> bool:
    """True if some text fits both of two patterns of `*`, `?` and characters."""
    reached = {(0, 0)}
    pending = [(0, 0)]
    while pending:
        at, place = pending.pop()
        if at == len(one) and place == len(other):
            return True
        steps = []
        if one[at : at + 1] == "*":
            steps += [(at + 1, place), (at, place + 1)]
        if other[place : place + 1] == "*":
            steps += [(at, place + 1), (at + 1, place)]
        if at < len(one) and place < len(other) and (one[at] == other[place] or "?" in (one[at], other[place])):
            steps.append((at + 1, place + 1))
        for step in steps:
            if step[0] <= len(one) and step[1] <= len(other) and step not in reached:
                reached.add(step)
                pending.append(step)
    return False
