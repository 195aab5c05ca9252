"""Patterns of file names, as models write them, as expressions of RE2."""

from __future__ import annotations

import re
from typing import Final

_MAX_ALTERNATIVES: Final = 1000
_CLASS: Final = re.compile(r"\[(!|\^)?(\]?[^\]]*)\]")


class BadGlob(ValueError):
    """A pattern that means nothing; the message says why."""


def expression(pattern: str) -> str:
    """What matches a whole relative path with slashes. `*` and `?` stay within a name, `**` goes across directories,
    `[...]` is one character, `{a,b}` is either. A pattern without a slash means a name at any depth. Raises BadGlob."""
    anywhere = "/" not in pattern.strip("/")
    inside = pattern.removeprefix("./").strip("/")
    if not inside:
        raise BadGlob("the pattern names nothing")
    written = _written(inside)
    return f"(?s)^(?:.*/)?{written}$" if anywhere else f"(?s)^{written}$"


def _written(pattern: str) -> str:
    out: list[str] = []
    depth = alternatives = at = 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            out.append("(?:.*/)?")
            at += 3
            continue
        if pattern.startswith("**", at):
            out.append(".*")
            at += 2
            continue
        if char == "[" and (found := _CLASS.match(pattern, at)) is not None:
            out.append(_class(found[1], found[2]))
            at = found.end()
            continue
        if char == "\\" and at + 1 < len(pattern):
            out.append(re.escape(pattern[at + 1]))
            at += 2
            continue
        if char == "{" and "}" in pattern[at:]:
            depth += 1
            out.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            out.append(")")
        elif char == "," and depth:
            alternatives += 1
            out.append("|")
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)))
        at += 1
    if depth:
        raise BadGlob("a brace is not closed")
    if alternatives > _MAX_ALTERNATIVES:
        raise BadGlob(f"it has more than {_MAX_ALTERNATIVES} alternatives")
    return "".join(out)


def _class(negated: str | None, members: str) -> str:
    inner = "".join(char if char == "-" else re.escape(char) for char in members)
    return f"[^/{inner}]" if negated else f"[{inner}]"
