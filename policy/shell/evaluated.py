"""What a line has evaluated: as arithmetic, in which a subscript runs substitutions, or as the list of an array.

It is harmless where what is evaluated can only be a number, and where nothing in the line could be, or be made to, a
substitution that is not yet run. A line and the texts that it hands to shells are looked at together.
"""

from __future__ import annotations

import re
from functools import cache

from policy.names import words
from policy.shell.tables import STEERING_VARIABLE

_DATA = words("string_content raw_string ansi_c_string heredoc_body")
_CODE = re.compile(rb"`|\\[x0-9uU]")
"""Backquotes, and escapes that a program may make any character of."""
_PLAIN_DOLLAR = re.compile(rb"\\\$|\$(?![\w({@*#?$!-])")
"""A dollar that a shell takes for itself."""
_ESCAPED_BACKQUOTE = b"\\`"


EVERYWHERE = 1 << 62
"""A place behind all text."""
_AT_ONCE = re.compile(rb"(?<![&>|<])&(?![&>0-9-])|[<>]\(|\bcoproc\b")
"""What runs beside what follows it."""


@cache
def _sets_steering() -> re.Pattern[bytes]:
    """A steering variable in front of what assigns, in whatever quotes: text that arithmetic may be given."""
    names = STEERING_VARIABLE.pattern
    between = r"(?:['\"\s)]|\$\{?\w++\}?)*+"
    assigns = r"(?:[-+*/%&|^<>]{0,2}=(?!=)|\+\+|--|\[)"
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{names}){between}{assigns}|(?:\+\+|--)(?:{names})\b".encode())


class Evaluated:
    """True if anything that is evaluated may be code, and the text that quotes keep from being expanded."""

    def __init__(self) -> None:
        self.has_arrays = False
        self._until = self._lists_until = -1
        self._sources: list[bytes] = []
        self._data: list[tuple[int, bytes]] = []

    def note_source(self, source: bytes) -> None:
        """Notes the text of a line, of the outermost one first."""
        self._sources.append(source)

    def note_data(self, source: bytes, begin: int, end: int, kind: str) -> None:
        """Notes the text of a node that is not expanded."""
        if kind in _DATA:
            self._data.append((begin if len(self._sources) == 1 else -1, source[begin:end]))

    def note_text(self, until: int) -> None:
        """Notes arithmetic on what is not known to be a number; nothing behind byte `until` of the outermost line can
        have made it. Of a line in a line that is EVERYWHERE."""
        self._until = max(self._until, until if len(self._sources) == 1 else EVERYWHERE)

    def note_list(self) -> None:
        """Notes that a builtin assigns what is not known, which it evaluates if the variable is an array."""
        self._lists_until = EVERYWHERE

    def may_run_code(self) -> bool:
        """True if what is evaluated may hold a substitution."""
        until = max(self._until, self._lists_until if self.has_arrays else -1)
        if until >= 0 and _AT_ONCE.search(self._sources[0]):
            until = EVERYWHERE
        return until >= 0 and self._has_code(until)

    def _has_code(self, until: int) -> bool:
        data = b"\n".join(text for begin, text in self._data if begin < until)
        sources = [self._sources[0][:until], *self._sources[1:]]
        if any(map(_sets_steering().search, sources)):
            return True
        if _CODE.search(data) or any(_ESCAPED_BACKQUOTE in source for source in sources):
            return True
        # However a dollar and a bracket come together: there are too many ways to follow.
        has_dollar = b"$" in data or any(map(_PLAIN_DOLLAR.search, sources))
        return has_dollar and (b"(" in data or any(b"\\(" in source for source in sources))
