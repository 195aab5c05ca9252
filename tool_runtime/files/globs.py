"""Patterns of file names, as models write them, as expressions of RE2."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from policy.patterns import MAX_CHARACTERS, compile_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policy.patterns import Pattern

_MAX_ALTERNATIVES: Final = 1000
_CLASS: Final = re.compile(r"\[(!|\^)?(\]?[^\]/]*)\]")
_RANGE: Final = re.compile(r"(?s)(.)-(.)")
_MEMBER: Final = re.compile(r"(?s)(.)(?:-(.))?")
_TOKEN: Final = re.compile(rf"(?s)\\.|{_CLASS.pattern}")


class BadGlob(ValueError):
    """A pattern that means nothing; the message says why."""


def expression(pattern: str) -> str:
    """Return the expression that matches a whole relative path with slashes. `*` and `?` stay within a name, `**` goes
    across directories, `[...]` is one character, `{a,b}` is either. A pattern without a slash means a name at any
    depth. A part between slashes matches the name that is equal to it as well, such as a directory `[locale]`. Raises
    BadGlob."""
    anywhere = "/" not in pattern.strip("/")
    inside = pattern.removeprefix("./").strip("/")
    if not inside:
        raise BadGlob("the pattern names nothing")
    *above, last = _parts(inside)
    written = "".join("(?:.*/)?" if part == "**" else f"{_either(part)}/" for part in above) + _either(last)
    if written.count("|") > _MAX_ALTERNATIVES:
        raise BadGlob(f"it has more than {_MAX_ALTERNATIVES} alternatives")
    return f"(?s)^(?:.*/)?{written}$" if anywhere else f"(?s)^{written}$"


def _parts(pattern: str) -> list[str]:
    """The parts between slashes; a slash in braces parts nothing."""
    parts, depth, at = [""], 0, 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        text = pattern[at] if token is None else token[0]
        if text == "{" and "}" in pattern[at:]:
            depth += 1
        elif text == "}" and depth:
            depth -= 1
        if text == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += text
        at += len(text)
    return parts


def _either(part: str) -> str:
    """The expression that matches the part as a pattern, or as the name that it is."""
    written = _write(part)
    return f"(?:{written}|{re.escape(part)})" if any(mark in part for mark in "[{\\") else written


def _write(pattern: str) -> str:
    out: list[str] = []
    depth = at = 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at) and at and pattern[at - 1] == "/":  # in braces
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
            out.append("|")
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)))
        at += 1
    if depth:
        raise BadGlob("a brace is not closed")
    return "".join(out)


def _class(negated: str | None, members: str) -> str:
    if any(low > high for low, high in _RANGE.findall(members)):  # no class then, as in [user-id]
        return re.escape(f"[{negated or ''}{members}]")
    inner = _MEMBER.sub(lambda found: "-".join(map(re.escape, filter(None, found.groups()))), members)
    return f"[^/{inner}]" if negated else f"[{inner}]"


# Names that listings and searches pass over, since what has such a name tends to hold secrets (SK 5.2).


class HiddenNames:
    """Globs of paths from where a walk begins; one without a slash means a name at any depth. The case of letters does
    not count. Raises BadGlob for one that means nothing."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._patterns = tuple(_compile(globs))

    def hides(self, path: str) -> bool:
        """True if the entry at a relative path is passed over, with all that is below it."""
        name = path.encode("utf-8", "surrogateescape")
        return any(pattern.search(name) is not None for pattern in self._patterns)


@functools.lru_cache(maxsize=4)
def hidden_names(globs: tuple[str, ...]) -> HiddenNames:
    """The same for the same globs. Raises BadGlob."""
    return HiddenNames(globs)


def _compile(globs: Sequence[str]) -> Iterator[Pattern]:
    """Few patterns for many globs: each entry of a walk is held against all of them."""
    together: list[str] = []
    for glob in globs:
        written = f"(?:{expression(glob)})"
        if together and sum(map(len, together)) + len(together) + len(written) > MAX_CHARACTERS - 10:
            yield _pattern(together)
            together = []
        together.append(written)
    if together:
        yield _pattern(together)


def _pattern(alternatives: list[str]) -> Pattern:
    found = compile_pattern(f"(?i)(?:{'|'.join(alternatives)})")
    if found is None:
        raise BadGlob(f"cannot be used: {alternatives[0][:200]}")
    return found
