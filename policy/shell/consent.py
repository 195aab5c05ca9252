"""What naming a program in a list of commands consents to: the code and the programs that it starts by itself."""

from __future__ import annotations

from policy.shell.arguments import base_name, family_of
from policy.shell.code import interpreter_of
from policy.shell.starters import STARTERS
from policy.shell.tables import OWN_LANGUAGES, SHELLS, SINGLE_RUNNERS

_CODE = "any code"
_LINES = "any command line"
_PROGRAMS = "any program"


def what_it_starts(program: str) -> str | None:
    """What an interpreter, a build tool, a package manager or another starter runs, in words; None for a program that
    starts nothing of the kind, or whose line names what it starts (`env`, `xargs`)."""
    base = base_name(program)
    family = family_of(base)
    if family in SHELLS or base in ("eval", "source", "."):
        return _LINES
    if interpreter_of(family) is not None:
        return _CODE
    if family in STARTERS:
        return STARTERS[family]
    if base in OWN_LANGUAGES or base in SINGLE_RUNNERS:
        return _PROGRAMS
    return None
