"""Summary of permissions that a bundle's lists imply without naming them, in lines for its author or user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy import CapabilityName as Name
from policy import words
from policy.programs import what_it_starts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.bundle import PolicyBundle

_WRITERS = words("chgrp chmod chown cp dd install ln mkdir mv tee touch truncate")
_REMOVERS = words("mv rm rmdir unlink")
"""Programs whose operands are files that they change: `policy.shell.file_effects` reads them."""
_STARS = ("/*", "/**", "\\*", "\\**")
_OWN_PROGRAMS = "programs that it wrote itself"
_MAX_SHOWN = 2


def starters(bundle: PolicyBundle) -> dict[str, str]:
    """Programs of allowedCommands that start others, in order, with the started programs, unless startsPrograms is
    false."""
    entry = bundle.capability(Name.SHELL_EXEC)
    if entry is None:
        return {}
    exempt = {one.command for one in entry.command_policies or () if one.starts_programs is False}
    found: dict[str, str] = {}
    for program in entry.allowed_commands or ():
        what = _OWN_PROGRAMS if program.endswith(_STARS) else what_it_starts(program)
        if what is not None and program not in exempt:
            found[program] = what
    return found


def ends_commits(bundle: PolicyBundle) -> list[str]:
    """A line if a bundle blocks a `.git` by its name, and not as @steering does: in a sandbox that prevents commits."""
    entries = (bundle.capability(name) for name in (Name.FILE_WRITE, Name.FILE_DELETE))
    paths = [path for entry in entries if entry is not None for path in entry.blocked_paths or ()]
    names = {path: path.replace("\\", "/").rstrip("/").rpartition("/")[2] for path in paths}
    named = [path for path, name in names.items() if name == ".git" and path not in bundle.by_groups]
    return [
        f"{path} is blocked by its name: where a sandbox holds commands, no command commits there; @steering keeps "
        "commands from hooks and configuration alone"
        for path in named
    ]


def summarize(bundle: PolicyBundle) -> list[str]:
    """One line for each kind of thing that listed programs start, and one for listed programs that change files without
    a capability that names these."""
    groups: dict[str, list[str]] = {}
    for program, what in starters(bundle).items():
        groups.setdefault(what, []).append(program)
    lines = [
        f"{', '.join(names)} {'lets' if len(names) == 1 else 'let'} the model run anything in the workspace: {what}"
        for what, names in groups.items()
    ]
    lines += _list_unjudged(bundle, Name.FILE_WRITE, _WRITERS, "write")
    lines += _list_unjudged(bundle, Name.FILE_DELETE, _REMOVERS, "remove")
    return lines


def summarize_in_line(bundle: PolicyBundle) -> str | None:
    """The same for the start of a session; None if no listed program starts others."""
    names = list(starters(bundle))
    if not names:
        return None
    shown = ", ".join([*names[:_MAX_SHOWN], *(["…"] if len(names) > _MAX_SHOWN else [])])
    count = "1 program" if len(names) == 1 else f"{len(names)} programs"
    return f"policy: {count} may start others ({shown}); see agent-host policy validate"


def _list_unjudged(bundle: PolicyBundle, capability: Name, programs: Iterable[str], verb: str) -> list[str]:
    entry = bundle.capability(Name.SHELL_EXEC)
    if entry is None or bundle.capability(capability) is not None:
        return []
    names = [name for name in entry.allowed_commands or () if name in programs]
    if not names:
        return []
    verb = f"{verb}s" if len(names) == 1 else verb
    return [f"there is no {capability} entry, so what {', '.join(names)} {verb} is not judged"]
