"""Advice for the model after a line was denied, in words that it can act on."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.bundle.model import Capability

_MAX_LISTED = 5
_MAX_ADVICE = 2
_MAX_NAMED = 25
_MAX_COMPARED = 64
_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"name is an expansion|expansion where a program|not named plainly"),
     "write the program's name out"),
    (re.compile(r"runs text|arithmetic on|may hold a substitution|list in quotes|script that may|program that"),
     "write it to a file, such as script.sh or script.py, and run that"),
    (re.compile(r"steers programs"), "leave the variable out, or write the path of the program out"),
    (re.compile(r"change of directory|redirection"), "write the path of the file out, without cd"),
    (re.compile(r"option|is not followed|runs or writes|runs other programs"),
     "run the other program in a command of its own"),
    (re.compile(r"cannot be parsed|longer than|more than|too many steps|here-document"),
     "write it to a file and run that, or split it into several commands"),
)  # fmt: skip
_ELSE = "use plain commands, one a call, or write a script to a file and run that"


def undecidable(reasons: Iterable[str]) -> str:
    """Why a line cannot be decided, and what to write in its place."""
    listed = list(reasons)[:_MAX_LISTED]
    advice = [next((text for pattern, text in _ADVICE if pattern.search(reason)), _ELSE) for reason in listed]
    instead = "; or ".join(list(dict.fromkeys(advice))[:_MAX_ADVICE])
    return f"the command cannot be decided: {'; '.join(listed)}. Instead: {instead}"


def suggest(entry: Capability, wanted: str | None) -> str:
    """Name programs of a list that come nearest to the denied one, or the first ones."""
    listed = entry.allowed_commands or ()
    is_short = wanted is not None and len(wanted) <= _MAX_COMPARED and len(listed) > _MAX_NAMED
    near = get_close_matches(wanted or "", listed, n=3, cutoff=0.75) if is_short else []
    if near:
        return f"nearest in the list: {', '.join(near)}"
    rest = len(listed) - _MAX_NAMED
    return f"allowed are {', '.join(listed[:_MAX_NAMED])}" + (f" and {rest} more" if rest > 0 else "")
