"""The files that a shell line opens, or hands to a program that changes files, judged as File.Read, Write and Delete.

A redirection is a file access like any other, so it needs the capability. An operand of `rm`, `cp` and their like is
judged where the bundle has an entry for it; without one the listed program suffices (AH 8.2, 8.4). Where a sandbox
holds the command, what only the run knows is left to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from policy.facts import CommandFacts, PathFacts
from policy.globs import ANY_DEPTH, may_meet, reaches
from policy.names import CapabilityName as Name
from policy.paths import covering, is_absolute, is_under, key, normalize, process_place, roots, split_nested
from policy.rules.case import PROCESS_RULE, REPOSITORY_RULE, approval_needed, deny, where
from policy.rules.protected_paths import repositories_by_shape, session_samples
from policy.shell.commands import is_link, real_path_of
from policy.shell.findings import Operand, ParsedCommand, Redirection

if TYPE_CHECKING:
    from policy.bundle.model import Capability
    from policy.decision import Decision
    from policy.facts import OsFamily
    from policy.rules.case import Case

_CAPABILITY = {"read": Name.FILE_READ.value, "write": Name.FILE_WRITE.value, "delete": Name.FILE_DELETE.value}
_WRITE_IT_OUT = "write the path out, one command for each file if need be, or use a file tool"


def line_files(case: Case, facts: CommandFacts, parsed: ParsedCommand) -> Decision | None:
    """A denial of one of them denies the line; an approval that one of them needs is needed for the line."""
    approval: Decision | None = None
    made = () if case.bundle.held else _places_made(parsed, facts, case.os)
    anywhere = [Redirection(None, "write"), Redirection(None, "read")] if parsed.unparsed else []
    files: tuple[Redirection | Operand, ...] = (*parsed.redirections, *anywhere, *parsed.operands)
    laid_out = set() if case.bundle.held else _repositories_made(files, facts, case.os)
    for one in files:
        if one.mode == "make":
            continue
        if laid_out and one.mode == "write" and _steers_one(case, facts, one, laid_out):
            reason = f"{one.path} would be what git runs: the line lays out a repository around it"
            return deny(case.entry.name, REPOSITORY_RULE, reason)
        if made and _goes_through(case, facts, one, made):
            reason = f"{one.path} is behind a link that the line makes, or may make; do that in a command of its own"
            return deny(case.entry.name, where(case.entry), reason)
        answer = _operand(case, facts, one) if isinstance(one, Operand) else _redirection(case, facts, one)
        if answer is not None and answer.decision == "DENIED":
            return answer
        approval = approval or answer
    return approval if case.bundle.lines_ask else None


def _repositories_made(files: tuple[Redirection | Operand, ...], facts: CommandFacts, os: OsFamily) -> set[str]:
    """The directories that the line makes look like repositories: by a HEAD, or by objects and refs."""
    written = {
        normalize(path, os) for one in files if one.mode == "write" for path in one.spellings(facts.cwd, facts.home)
    }
    made = {path.removesuffix("/HEAD") for path in written if path.endswith("/HEAD")}
    return made | {path.removesuffix("/objects") for path in written if path.endswith("/objects")}


def _steers_one(case: Case, facts: CommandFacts, one: Redirection | Operand, laid_out: set[str]) -> bool:
    """True for a file that would say what git runs in one of these directories."""
    paths = (normalize(path, case.os) for path in one.spellings(facts.cwd, facts.home))
    return any(directory in laid_out for path in paths for directory, _ in repositories_by_shape(path, case.os))


def _redirection(case: Case, facts: CommandFacts, one: Redirection) -> Decision | None:
    capability = _CAPABILITY[one.mode]
    if one.path is None:
        return None if case.entry.requires_approval or case.bundle.held else _somewhere(case, capability)
    what = f"redirection ({capability})"
    answer = _judge(case, facts, one, capability, what)
    entry = case.bundle.capability(capability)
    if entry is None or one.pattern is None or (answer is not None and answer.decision == "DENIED"):
        return answer
    found = Operand("", one.path, one.mode, one.directories, pattern=one.pattern)
    behind = None if case.bundle.held else _check_links(case, facts, one, capability, what)
    return behind or _check_content(case, facts, found, entry, what) or answer


def _judge(case: Case, facts: CommandFacts, one: Redirection | Operand, capability: str, what: str) -> Decision | None:
    spellings = one.spellings(facts.cwd, facts.home)
    if not spellings:
        return deny(case.entry.name, where(case.entry), f"{what}: {one.path}, and no home directory is known")
    approval: Decision | None = None
    for spelling in spellings:
        real = real_path_of(facts, spelling)
        if real is None:
            reason = f"{what}: {spelling}, and where that leads was not looked up"
            return deny(case.entry.name, where(case.entry), reason)
        place = process_place(spelling, case.os) or process_place(real, case.os)
        if place is not None:
            reason = f"{what}: {spelling} is in {place}, where each process finds other files"
            return deny(case.entry.name, f"{PROCESS_RULE}: {place}", reason)
        answer = case.judge(capability, PathFacts(requested=one.path or "", absolute=spelling, real_path=real))
        if answer.decision == "DENIED" and _is_asked_for(case, facts, real, answer):
            continue
        named = answer._replace(capability=case.entry.name, reason=f"{what}: {answer.reason}")
        if answer.decision == "DENIED":
            return named
        approval = approval or (None if answer.allowed else named)
    return approval


def _is_asked_for(case: Case, facts: CommandFacts, real: str, denial: Decision) -> bool:
    """True if a place that is denied for being in no allowed path is one that the call asks for: a person decides."""
    if facts.widening is None or not denial.rule.endswith(".allowedPaths"):
        return False
    return any(is_under(real, one, case.os) for one in facts.widening.write)


def _somewhere(case: Case, capability: str) -> Decision | None:
    """A redirection whose target nobody knows, or one that a line may have which cannot be read: no path list can be
    decided for it. Without one it is what the capability is for any file."""
    entry = case.bundle.capability(capability)
    if entry is None:
        reason = f"redirection ({capability}): capability not granted"
        return deny(case.entry.name, "capabilities", reason)
    for name, paths in (("blockedPaths", entry.blocked_paths), ("allowedPaths", entry.allowed_paths)):
        if paths or (name == "allowedPaths" and paths is not None):
            reason = f"redirection ({capability}): its target is only known when it runs; {_WRITE_IT_OUT}"
            return deny(case.entry.name, where(entry, name), reason)
    if not entry.requires_approval:
        return None
    asked = approval_needed(entry, "high", (f"{capability} of a file that is only known when it runs",))
    return asked._replace(capability=case.entry.name)


# Operands


def _operand(case: Case, facts: CommandFacts, one: Operand) -> Decision | None:
    capability = _CAPABILITY[one.mode]
    entry = case.bundle.capability(capability)
    if entry is None:
        return None
    what = f"{one.program} ({capability})"
    if one.path is None:
        if entry.allowed_paths is None or case.entry.requires_approval or case.bundle.held:
            return None
        reason = f"{what}: which file it is given is only known when it runs; {_WRITE_IT_OUT}"
        return deny(case.entry.name, where(entry, "allowedPaths"), reason)
    answer = _judge(case, facts, one, capability, what)
    if answer is None or answer.decision != "DENIED":
        answer = _check_links(case, facts, one, capability, what) or answer
    if answer is not None and answer.decision == "DENIED":
        return answer
    if one.mode == "read" and (one.tree or one.pattern) and not case.bundle.held:
        return _check_copy(case, facts, one, what) or answer
    return _check_content(case, facts, one, entry, what) or answer


def _check_links(
    case: Case, facts: CommandFacts, one: Redirection | Operand, capability: str, what: str
) -> Decision | None:
    """A denial of what a glob finds by way of a link."""
    for spelling in one.spellings(facts.cwd, facts.home) if one.pattern is not None else ():
        real = real_path_of(facts, spelling) or spelling
        for found in facts.through.get((real, one.pattern or ""), ()):
            answer = case.judge(capability, PathFacts(requested=found, absolute=found, real_path=found))
            if answer.decision == "DENIED":
                return answer._replace(capability=case.entry.name, reason=f"{what}: a link leads to {found}")
    return None


def _check_copy(case: Case, facts: CommandFacts, one: Operand, what: str) -> Decision | None:
    """Denies a tree whose copy would have a name that is blocked for writing at any depth."""
    entry = case.bundle.capability(Name.FILE_WRITE)
    if entry is None:
        return None
    for spelling in one.spellings(facts.cwd, facts.home):
        real = real_path_of(facts, spelling) or spelling
        blocked = _find_nested(case, facts, one, entry, real)
        if blocked is not None:
            reason = f"{what}: {one.path} holds {blocked}, which may not be written; name what is meant instead"
            return deny(case.entry.name, where(entry, "blockedPaths", blocked), reason)
    return None


def _check_content(case: Case, facts: CommandFacts, one: Operand, entry: Capability, what: str) -> Decision | None:
    """Denies a directory that holds a blocked place, and a glob that may find one."""
    held = _place_held(case, facts, one, entry)
    if held is None:
        return None
    reason = f"{what}: {one.path} holds {held}, which is blocked; name what is meant instead"
    return deny(case.entry.name, where(entry, "blockedPaths", held), reason)


def _place_held(case: Case, facts: CommandFacts, one: Operand, entry: Capability) -> str | None:
    """The blocked place that goes with a directory, or that a glob may find; None where there is none."""
    if not (one.tree or one.pattern is not None) or one.mode == "read":
        return None
    others = session_samples(entry.allowed_paths, case.os) if entry.allowed_paths is not None else []
    for spelling in one.spellings(facts.cwd, facts.home):
        real = real_path_of(facts, spelling) or spelling
        for place in dict.fromkeys((spelling, real)):
            root = key(normalize(place, case.os), case.os, "wide").rstrip("/")
            for blocked in (*(entry.blocked_paths or ()), *others):
                if not is_absolute(blocked, case.os) or "*" in blocked:
                    continue
                found = key(normalize(blocked, case.os), case.os, "wide")
                if found.startswith(root + "/") and _finds(one, found[len(root) + 1 :]):
                    return blocked
        nested = None if case.bundle.held else _find_nested(case, facts, one, entry, real)
        if nested is not None:
            return nested
    return None


def _find_nested(case: Case, facts: CommandFacts, one: Operand, entry: Capability, real: str) -> str | None:
    """The entry for a name at any depth that a glob may find by how it is spelled, or that is really there."""
    entries = [(blocked, split_nested(normalize(blocked, case.os), case.os)) for blocked in entry.blocked_paths or ()]
    for blocked, parts in entries:
        if parts is None or not (
            is_under(real, parts[0], case.os, "wide") or is_under(parts[0], real, case.os, "wide")
        ):
            continue
        name = key(parts[1], case.os, "wide")
        if one.pattern is not None and _may_be_named(one.pattern, name):
            return blocked
    below = facts.below.get(real, ())
    if below is None:
        return "more than can be looked through"
    table = roots((blocked for blocked, parts in entries if parts is not None), case.os, "wide")
    for found in below:
        if _finds(one, key(found, case.os, "wide")):
            hit = covering(normalize(f"{real}/{found}", case.os), table, case.os, "wide")
            if hit is not None:
                return hit
    return None


def _may_be_named(pattern: str, name: str) -> bool:
    """True if a component of a pattern may be a name; behind `**` it is found where it is hidden, too."""
    parts = pattern.split("/")
    deep = parts.index(ANY_DEPTH) if ANY_DEPTH in parts else len(parts)
    return any(may_meet(part, name, hidden=place > deep) for place, part in enumerate(parts))


def _finds(one: Operand, rest: str) -> bool:
    """True if an operand reaches a place `rest` below its path."""
    if one.pattern is None:
        return one.tree
    return reaches(one.pattern, rest, tree=one.tree, writes=one.mode == "write")


# Links


class _MadePlace(NamedTuple):
    """A link that the line makes (`itself`), or a tree below which nobody knows what is a link, from a step on."""

    path: str
    itself: bool
    step: int


def _places_made(parsed: ParsedCommand, facts: CommandFacts, os: OsFamily) -> tuple[_MadePlace, ...]:
    """The paths that the line makes, absolute: nobody could look up where they lead."""
    return tuple(
        _MadePlace(
            normalize(path, os),
            one.made == "link" or any(is_link(facts, source) for source in one.sources(facts.cwd, facts.home)),
            one.step if one.made == "tree" else 0,
        )
        for one in parsed.operands
        if one.made
        for path in one.spellings(facts.cwd, facts.home)
    )


def _goes_through(case: Case, facts: CommandFacts, one: Redirection | Operand, made: tuple[_MadePlace, ...]) -> bool:
    """True for a file behind what the line makes. A link itself may be made and deleted."""
    is_of_link = isinstance(one, Operand) and (
        one.made == "link" or (one.mode == "delete" and not (one.path or "").endswith("/"))
    )
    links = {place.path for place in made if place.itself}
    for path in one.spellings(facts.cwd, facts.home):
        plain = normalize(path, case.os)
        if is_of_link and plain in links:
            continue
        for place in made:
            if not place.itself and (plain == place.path or not _comes_after(one.step, place.step)):
                continue
            if is_under(plain, place.path, case.os, "wide"):
                return True
    return False


def _comes_after(step: int, made: int) -> bool:
    """True if what is used at a step may meet what another makes: in a loop, or beside it, anything comes after it."""
    if made == 0 or step == 0:
        return True
    return abs(step) != abs(made) and (made < 0 or step < 0 or step > made)


def links_made(parsed: ParsedCommand, facts: CommandFacts, os: OsFamily) -> tuple[str, ...]:
    """The symbolic links that the line makes, as absolute paths. A list that admits the programs of a tree admits its
    links, too."""
    return tuple(place.path for place in _places_made(parsed, facts, os) if place.itself)


def is_behind_link(path: str, links: tuple[str, ...], os: OsFamily) -> bool:
    """True if an absolute path is one of these links, or goes through one."""
    return any(is_under(path, link, os, "wide") for link in links)
