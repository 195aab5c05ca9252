"""What is wrong with the forms that only a bundle given by file may have: `${workspace}`, `@credentials`, `src`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.bundle.entry_meaning import CONTROL, ENTRY_CHECKS, command_entry
from policy.bundle.placeholders import GROUP_NAMES, PLACEHOLDERS, PROGRAMS_BELOW, STARS
from policy.bundle.problems import nearest
from policy.paths import is_absolute

if TYPE_CHECKING:
    from policy.bundle.entry_meaning import EntryChecks
    from policy.bundle.placeholders import Places

_SHELL_PLACES = re.compile(r"~|\$|%")
"""How a shell begins what is no path yet: `~/x`, `$HOME/x`, `%USERPROFILE%`."""
_NEITHER = re.compile(r"\\|[A-Za-z]:")
"""How a path begins that Windows reads as neither relative nor absolute: `\\x`, `C:x`."""

_NESTED = re.compile(r"(?:[^*]*/)?\*\*/\*?[^*/\\]+")
"""A blocked path that stands for whatever has a name, at any depth."""


def file_checks(places: Places) -> EntryChecks:
    """The checks of a list's entries for a bundle given by file."""

    def allowed(value: str) -> tuple[str, str] | None:
        if value.startswith("@"):
            return f"{value!r} is a group of places to block", "name the paths themselves, or use it in blockedPaths"
        name = value[2:].partition("}")[0]
        # Not `${stepFiles}`: a bundle for CI is written and checked on other machines, too.
        missing = value.startswith("${") and name in PLACEHOLDERS and places.of(name) is None and name != "stepFiles"
        return (f"{value!r} has no value on this machine", "name the path") if missing else _path("allowedPaths", value)

    return {**ENTRY_CHECKS, "allowedPaths": allowed, "blockedPaths": _blocked, "allowedCommands": program_problem}


def _blocked(value: str) -> tuple[str, str] | None:
    if not value.startswith("@"):
        return _path("blockedPaths", value)
    if value[1:] in GROUP_NAMES:
        return None
    return f"{value!r} is not a group of places", nearest(value, tuple(f"@{name}" for name in GROUP_NAMES)) or ""


def _path(field: str, value: str) -> tuple[str, str] | None:
    if CONTROL.search(value) or is_absolute(value, "posix") or is_absolute(value, "windows"):
        return ENTRY_CHECKS[field](value) or _placeholder_inside(value)
    if not value:
        return "is empty", "the workspace is ${workspace}"
    if value.startswith("${"):
        problem = _placeholder(value)
    elif _SHELL_PLACES.match(value) or _NEITHER.match(value):
        problem = f"{value!r} is not absolute", "no shell reads it: the home directory is ${home}"
    else:
        problem = _placeholder_inside(value)
    if problem is None and "*" in value and not (field == "blockedPaths" and _NESTED.fullmatch(value)):
        return f"{value!r} is a pattern", "an entry covers everything below it: leave the stars out"
    return problem


def _placeholder(value: str) -> tuple[str, str] | None:
    name, closed, rest = value[2:].partition("}")
    if not closed or (rest and not rest.startswith("/")):
        return f"{value!r} cannot be read", "a placeholder is closed, and a / follows, as in ${workspace}/src"
    if name not in PLACEHOLDERS:
        known = tuple(f"${{{one}}}" for one in PLACEHOLDERS)
        return f"${{{name}}} is not a placeholder", nearest(f"${{{name}}}", known) or ""
    return _placeholder_inside(rest)


def _placeholder_inside(value: str) -> tuple[str, str] | None:
    if "${" in value:
        return f"{value!r} has a placeholder inside", "a placeholder stands at the beginning of a path"
    return None


def program_problem(value: str) -> tuple[str, str] | None:
    """What is wrong with an entry of allowedCommands, and what may help."""
    if not value.startswith("${"):
        return command_entry(value)
    if CONTROL.search(value):
        return f"{value!r} has control characters", "no program is named with them"
    stars = next((one for one in STARS if value.endswith(one)), None)
    if stars is None or not value.startswith(PROGRAMS_BELOW):
        hint = (
            f"programs of the workspace are {PROGRAMS_BELOW}DIRECTORY{STARS[0]} or {PROGRAMS_BELOW}DIRECTORY{STARS[1]}"
        )
        return f"{value!r} is not a program name", hint
    folder = value[len(PROGRAMS_BELOW) : -len(stars)]
    if any(character in folder for character in "*?$\\") or ".." in folder.split("/"):
        return f"{value!r} is not a directory of the workspace", "stars stand at the end only, and .. nowhere"
    return None
