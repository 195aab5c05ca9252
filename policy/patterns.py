"""Regular expressions of a bundle: RE2's syntax, in time linear in the text for any expression.

RE2 is the engine of Go's regexp, so a rule written for that (NT) means the same here. It works on bytes: a text is
matched as UTF-8, and offsets are in bytes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CHARACTERS = 4_096
_MAX_MEMORY_BYTES = 2 * 1024 * 1024
_MAX_SHIPPED_MEMORY_BYTES = 64 * 1024 * 1024
# The time for one character grows with the program, whose size depends on counted repetitions.
_MAX_PROGRAM = 20_000
_ONE_BYTE = r"(?<!\\)(?:\\\\)*\\C"
HINT = "RE2's syntax: no look-around, no back-references, at most 1000 repetitions by number, and \\z for \\Z"


Match = re.Match[bytes]
Pattern = re.Pattern[bytes]
"""The used part of RE2's classes, which have no types. A pattern takes bytes only: text may contain characters without
UTF-8, see `fits`; an empty match may be inside a character."""


class _Compiled(NamedTuple):
    pattern: Pattern | None
    problem: str | None


def compile_pattern(pattern: str) -> Pattern | None:
    """The pattern ready for use, the same object for the same text; None for one that is not usable."""
    return _compile(pattern).pattern


def problem_of(pattern: str) -> str | None:
    """Why a pattern is not usable, in RE2's words; None for one that is."""
    return _compile(pattern).problem


def fits(pattern: Pattern, text: str) -> bool:
    """True if the pattern matches the whole text. Never raises; half a surrogate pair fits no pattern."""
    try:
        return pattern.fullmatch(text.encode()) is not None
    except UnicodeEncodeError:
        return False


def _engine() -> Any:
    """RE2, imported with the first pattern: most bundles have none."""
    import re2

    return re2


@lru_cache(maxsize=64)
def compile_shipped(pattern: str) -> Pattern:
    """A pattern of our own, over bytes of any encoding."""
    made: Pattern = _engine().compile(pattern.encode(), _over_bytes(case_sensitive=True))
    return made


class LiteralSets:
    """Sets of ASCII literals, found in a text in any letter case in one pass."""

    def __init__(self, sets: Iterable[Iterable[str]]) -> None:
        self._set = _engine().Set.SearchSet(_over_bytes(case_sensitive=False))
        for literals in sets:
            self._set.Add("|".join(map(re.escape, literals)).encode())
        self._set.Compile()

    def found(self, text: bytes) -> list[int]:
        """The places of the sets, in ascending order."""
        return sorted(self._set.Match(text) or ())


def _over_bytes(*, case_sensitive: bool) -> Any:
    re2 = _engine()
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = case_sensitive
    options.log_errors = False
    options.max_mem = _MAX_SHIPPED_MEMORY_BYTES
    return options


@lru_cache(maxsize=256)
def _compile(pattern: str) -> _Compiled:
    re2 = _engine()
    if len(pattern) > MAX_CHARACTERS:
        return _Compiled(None, f"it is longer than {MAX_CHARACTERS} characters")
    if re.search(_ONE_BYTE, pattern):
        return _Compiled(None, r"\C would cut characters in pieces")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        made = re2.compile(pattern, options)
    except re2.error as fault:
        (message,) = fault.args
        return _Compiled(None, message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message))
    except UnicodeEncodeError:
        return _Compiled(None, "it has characters that are not Unicode text")
    if made.programsize > _MAX_PROGRAM:
        return _Compiled(None, "it is too large: fewer repetitions by number make it smaller")
    return _Compiled(made, None)


class UnusablePattern(ValueError):
    """An unusable regular expression; the message is the reason."""


def rule_pattern(pattern: str) -> Pattern:
    """The compiled expression of a bundle's rule. Raises UnusablePattern, also for one that fits the empty text."""
    made = compile_pattern(pattern)
    if made is None:
        raise UnusablePattern(problem_of(pattern))
    if made.fullmatch(b"") is not None:
        raise UnusablePattern("it fits the empty text, so it would be found everywhere")
    return made
