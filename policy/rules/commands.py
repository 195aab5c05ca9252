"""Shell.Exec: blocked, then allowed, for every command of the line; argument rules; then the files that it names."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from policy import CapabilityName as Name
from policy import patterns, strip_g, words
from policy.facts import CommandFacts, OsFamily, PathFacts, ShellName
from policy.paths import (
    ANY_DEPTH,
    covering,
    is_absolute,
    is_under,
    key,
    may_meet,
    normalize,
    process_place,
    reaches,
    roots,
    split_nested,
)
from policy.programs import is_known, program_named, what_it_starts
from policy.rules import PROCESS_RULE, REPOSITORY_RULE, approval_needed, deny, where
from policy.rules.protected_paths import repositories_by_shape, session_samples
from policy.shell import is_link, parse_line
from policy.shell.findings import FileUse, ParsedCommand
from policy.shell.tables import HARMLESS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy import Decision
    from policy.bundle import ArgumentRule, Capability, CommandPolicy, PolicyBundle
    from policy.rules import Case
    from policy.shell.findings import SimpleCommand

_MAX_JUDGED_ARGUMENT = 4_096
_RUNS_TEXT = words("eval trap")
"""Builtins that run text of the line, which is read."""
_STARS = ("/*", "/**")
_WINDOWS_SHELLS = frozenset({"cmd", "powershell"})
_CAPABILITY = {"read": Name.FILE_READ.value, "write": Name.FILE_WRITE.value, "delete": Name.FILE_DELETE.value}
_WRITE_IT_OUT = "write the path out, one command for each file if need be, or use a file tool"


def command_rules(case: Case, facts: CommandFacts) -> Decision | str | None:
    """A denial, an approval that a redirection needs, the entry that admits, or None (AH 8.2, 8.4)."""
    entry = case.entry
    if not facts.command.strip() or "\0" in facts.command:
        return deny(entry.name, where(entry), "the command is empty or has NUL characters")
    if not is_absolute(facts.cwd, case.os):
        return deny(entry.name, where(entry), "the working directory is not absolute")
    parsed = parse_line(facts)
    if parsed.unread:
        return deny(entry.name, where(entry), undecidable(parsed.dynamic))
    for rule in _RULES:
        verdict = rule(case, parsed, facts)
        if verdict is not None:
            return verdict
    if entry.allowed_commands is None or not parsed.commands:
        return None
    names = ", ".join(dict.fromkeys(str(one.program) for one in parsed.commands))
    return where(entry, "allowedCommands", names)


def _check_blocked(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    entry, shell = case.entry, facts.shell
    if not entry.blocked_commands:
        return None
    table = _name_table(case, "blocked", shell)
    for one in parsed.commands:
        hit = table.get(wide_name(one.program, shell)) if one.program is not None else None
        if hit is not None:
            return deny(entry.name, where(entry, "blockedCommands", hit), f"command is blocked: {one.program}")
    return None


def _check_undecidable(case: Case, parsed: ParsedCommand, _facts: CommandFacts) -> Decision | None:
    """Deny a line whose programs are undecidable if a list has to be decided (AH 8.4)."""
    entry = case.entry
    if not parsed.dynamic:
        return None
    if entry.blocked_commands:
        rule = "blockedCommands"
    elif entry.allowed_commands is not None or entry.command_policies:
        rule = "commandPolicies" if entry.allowed_commands is None else "allowedCommands"
    else:
        return None
    return deny(entry.name, where(entry, rule), undecidable(parsed.dynamic))


def _evaluating(case: Case, parsed: ParsedCommand, _facts: CommandFacts) -> Decision | None:
    """Deny code that is evaluated by a list that names no interpreter: naming one consents to any code."""
    if not parsed.evaluates or case.entry.allowed_commands is None or _lists_interpreter(case):
        return None
    return deny(case.entry.name, where(case.entry, "allowedCommands"), undecidable(parsed.evaluates))


def _lists_interpreter(case: Case) -> bool:
    names = [one for one in case.entry.allowed_commands or () if one not in _RUNS_TEXT]
    return case.bundle.remember(
        (case.entry.name, "interpreter"),
        lambda: any(one.endswith(_STARS) or bool(is_known(one) and what_it_starts(one)) for one in names),
    )


def _check_opted_out(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    """Deny programs started by a listed program whose entry of commandPolicies has `startsPrograms: false`."""
    if not case.entry.command_policies:
        return None
    strict = (one.command for one in case.entry.command_policies if one.starts_programs is False)
    table: dict[str, str] = case.bundle.remember(
        (case.entry.name, "strict", facts.shell), lambda: {wide_name(name, facts.shell): name for name in strict}
    )
    for command in parsed.commands if table else ():
        name = None if command.program is None else wide_name(command.program, facts.shell)
        if name in table and program_named(name) is None:
            rule = where(case.entry, "commandPolicies", f"{table[name]}, startsPrograms: false")
            return deny(case.entry.name, rule, f"{command.program} is not known, so it may start anything")
    for one in parsed.opaque:
        hit = table.get(wide_name(one.program, facts.shell))
        if hit is not None:
            rule = where(case.entry, "commandPolicies", f"{hit}, startsPrograms: false")
            return deny(case.entry.name, rule, f"{one}; that is not permitted for {hit}")
    return None


def _check_allowed(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    entry = case.entry
    if entry.allowed_commands is None:
        return None
    if not entry.allowed_commands:
        return deny(entry.name, where(entry, "allowedCommands"), "the list of allowed commands is empty")
    table = _name_table(case, "allowed", facts.shell)
    links = tuple(place.path for place in _places_made(parsed, facts, case.os) if place.itself)
    for one in parsed.commands:
        if one.program is None or _narrow_name(one.program, facts.shell) not in table:
            if one.program is not None and _is_in_allowed_place(case, one, facts, links):
                continue
            reason = f"command not in allowed commands: {one.program}; {suggest(entry, one.name)}"
            return deny(entry.name, where(entry, "allowedCommands"), reason)
    return None


def _variables(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    """Judge the variables that a line sets for a program: a list must admit them if no listed program starts anything
    by itself; elsewhere only variables that steer programs are denied, and the reading of the line has done that."""
    entry = case.entry
    if not parsed.variables or facts.shell in _WINDOWS_SHELLS or not starts_nothing(entry, case.bundle):
        return None
    admitted = entry.allowed_variables or ()
    for name in parsed.variables:
        if name not in admitted and not HARMLESS_VARIABLE.fullmatch(name):
            reason = f"the line sets {name} for a program; add it to allowedVariables if that is meant"
            return deny(entry.name, where(entry, "allowedVariables"), reason)
    return None


def starts_nothing(entry: Capability, bundle: PolicyBundle) -> bool:
    """True for a list of programs of which none starts others, or runs code, by itself."""
    listed = entry.allowed_commands
    return listed is not None and bundle.remember(
        (entry.name, "starts nothing"), lambda: not any(one.endswith(_STARS) or what_it_starts(one) for one in listed)
    )


def _is_in_allowed_place(case: Case, one: SimpleCommand, facts: CommandFacts, links: tuple[str, ...]) -> bool:
    """True if an entry that ends in `/*` or `/**` admits a path, by the real path of its directory."""
    patterns = [entry for entry in case.entry.allowed_commands or () if entry.endswith(_STARS)]
    if not patterns or facts.shell in _WINDOWS_SHELLS:
        return False
    places = one.places(facts.cwd, facts.home)
    real_places = [facts.real_paths.get(place) for place in places]
    name = one.name
    if not places or name in {"", ".", ".."} or None in real_places:
        return False
    if any(is_under(f"{place}/{name}", link, case.os, "wide") for place in places for link in links):
        return False
    return all(any(_admits(entry, place or "", case.os) for entry in patterns) for place in real_places)


def _admits(entry: str, directory: str, os: OsFamily) -> bool:
    root, _, stars = entry.rpartition("/")
    if stars == "**":
        return is_under(directory, root, os)
    return normalize(directory, os) == normalize(root, os)


def _name_table(case: Case, which: str, shell: ShellName) -> dict[str, str]:
    entries = case.entry.allowed_commands if which == "allowed" else case.entry.blocked_commands
    name = _narrow_name if which == "allowed" else wide_name
    return case.bundle.remember(
        (case.entry.name, which, shell), lambda: {name(entry, shell): entry for entry in entries or ()}
    )


def _narrow_name(program: str, shell: ShellName) -> str:
    """To permit: as written. A bare name does not stand for a file of that name somewhere."""
    if shell not in _WINDOWS_SHELLS:
        return program
    return re.sub(r"\.exe$", "", program.lower())


def wide_name(program: str, shell: ShellName) -> str:
    """To refuse: without directory, letter case, alias, and the `g` in front of a GNU program's name."""
    if shell not in _WINDOWS_SHELLS:
        return strip_g(program.rsplit("/", 1)[-1].casefold())
    from policy.shell import undecidable

    name = undecidable.base_name(program)
    return (undecidable.ALIASES if shell == "powershell" else undecidable.CMD_ALIASES).get(name, name)


# Argument rules


def _argument_rules(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    """Every entry of a program has to pass: one that configuration adds only narrows (NT)."""
    if not case.entry.command_policies:
        return None
    table = _policy_table(case, facts.shell)
    for one in parsed.commands:
        for policy in table.get(wide_name(one.program, facts.shell), ()) if one.program is not None else ():
            problem = argument_problem(policy, one)
            if problem is not None:
                rule = where(case.entry, "commandPolicies", policy.command)
                return deny(case.entry.name, rule, f"{one.program}: {problem}")
    return None


def _policy_table(case: Case, shell: ShellName) -> dict[str, tuple[CommandPolicy, ...]]:

    def make() -> dict[str, tuple[CommandPolicy, ...]]:
        table: dict[str, tuple[CommandPolicy, ...]] = {}
        for policy in case.entry.command_policies or ():
            narrows = policy.max_arguments is not None or policy.subcommands is not None or policy.arguments
            if narrows or not policy.additional_arguments:  # else it has no rule for arguments
                name = wide_name(policy.command, shell)
                table[name] = (*table.get(name, ()), policy)
        return table

    return case.bundle.remember((case.entry.name, "policies", shell), make)


def argument_problem(policy: CommandPolicy, one: SimpleCommand) -> str | None:
    """The reason why an entry does not permit the arguments of a command; None if it does."""
    if policy.max_arguments is not None and len(one.arguments) > policy.max_arguments:
        return f"more than {policy.max_arguments} arguments"
    if None in one.arguments:
        return "an argument is only known when it runs"
    if policy.subcommands is not None and (not one.arguments or one.arguments[0] not in policy.subcommands):
        return "its first argument is not a permitted subcommand"
    for rule in policy.arguments:
        if rule.index >= len(one.arguments):
            if not rule.optional:
                return f"argument {rule.index} is missing"
        elif not _fits(rule, one.arguments[rule.index] or ""):
            return f"argument {rule.index} is not permitted: {one.arguments[rule.index]}"
    if policy.additional_arguments:
        return None
    ruled = {rule.index for rule in policy.arguments} | ({0} if policy.subcommands is not None else set())
    extra = next((place for place in range(len(one.arguments)) if place not in ruled), None)
    return None if extra is None else f"argument {extra} is not permitted"


def _fits(rule: ArgumentRule, argument: str) -> bool:
    if rule.enum is not None and argument not in rule.enum:
        return False
    if rule.pattern is None:
        return True
    if argument.startswith("~") and "~" not in rule.pattern:
        return False  # the shell may make an absolute path of it
    pattern = patterns.compile_pattern(rule.pattern)
    return pattern is not None and len(argument) <= _MAX_JUDGED_ARGUMENT and patterns.fits(pattern, argument)


# Advice for the model after a line was denied, in words that it can act on.

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


# The files that a line opens, or passes to a program that changes files, judged as File.Read, Write and Delete.
#
# A redirection is a file access like any other, so it needs the capability. An operand of `rm`, `cp` and the like is
# judged if the bundle has an entry for it; without one the listed program suffices (AH 8.2, 8.4). A sandbox, if any,
# enforces what is known only at run time.


def _check_files(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    """A denial of one of them denies the line; an approval that one of them needs is needed for the line."""
    approval: Decision | None = None
    made = () if case.bundle.sandboxed else _places_made(parsed, facts, case.os)
    anywhere = [FileUse("write", None), FileUse("read", None)] if parsed.unparsed else []
    files: tuple[FileUse, ...] = (*parsed.redirections, *anywhere, *parsed.operands)
    laid_out = set() if case.bundle.sandboxed else _repositories_made(files, facts, case.os)
    for one in files:
        if one.mode == "make":
            continue
        paths = (normalize(path, case.os) for path in one.spellings(facts.cwd, facts.home))
        steered = (place for path in paths for place, _ in repositories_by_shape(path, case.os))
        if laid_out and one.mode == "write" and not laid_out.isdisjoint(steered):
            reason = f"{one.path} would be what git runs: the line lays out a repository around it"
            return deny(case.entry.name, REPOSITORY_RULE, reason)
        if made and _goes_through(case, facts, one, made):
            reason = f"{one.path} is below a link that the line creates, or may create; do that in a command of its own"
            return deny(case.entry.name, where(case.entry), reason)
        answer = _redirection(case, facts, one) if one.program is None else _operand(case, facts, one)
        if answer is not None and answer.decision == "DENIED":
            return answer
        approval = approval or answer
    return approval if case.bundle.lines_ask else None


def _repositories_made(files: tuple[FileUse, ...], facts: CommandFacts, os: OsFamily) -> set[str]:
    """The directories that the line makes look like repositories: by a HEAD, or by objects and refs."""
    spelled = (path for one in files if one.mode == "write" for path in one.spellings(facts.cwd, facts.home))
    written = {normalize(path, os) for path in spelled}
    return {path.removesuffix(end) for path in written for end in ("/HEAD", "/objects") if path.endswith(end)}


def _redirection(case: Case, facts: CommandFacts, one: FileUse) -> Decision | None:
    capability = _CAPABILITY[one.mode]
    if one.path is None:
        return None if case.entry.requires_approval or case.bundle.sandboxed else _somewhere(case, capability)
    what = f"redirection ({capability})"
    answer = _judge(case, facts, one, capability, what)
    entry = case.bundle.capability(capability)
    if entry is None or one.pattern is None or (answer is not None and answer.decision == "DENIED"):
        return answer
    denial = None if case.bundle.sandboxed else _check_links(case, facts, one, capability, what)
    return denial or _check_content(case, facts, one, entry, what) or answer


def _judge(case: Case, facts: CommandFacts, one: FileUse, capability: str, what: str) -> Decision | None:
    spellings = one.spellings(facts.cwd, facts.home)
    if not spellings:
        return deny(case.entry.name, where(case.entry), f"{what}: {one.path}, and no home directory is known")
    approval: Decision | None = None
    for spelling in spellings:
        real = facts.real_paths.get(spelling)
        if real is None:
            reason = f"{what}: {spelling}, and where that leads was not looked up"
            return deny(case.entry.name, where(case.entry), reason)
        place = process_place(spelling, case.os) or process_place(real, case.os)
        if place is not None:
            reason = f"{what}: {spelling} is in {place}, where each process finds other files"
            return deny(case.entry.name, f"{PROCESS_RULE}: {place}", reason)
        answer = case.judge(capability, PathFacts(requested=one.path or "", absolute=spelling, real_path=real))
        asked_for = () if facts.widening is None else facts.widening.write
        is_elsewhere = answer.decision == "DENIED" and answer.rule.endswith(".allowedPaths")
        if is_elsewhere and any(is_under(real, place, case.os) for place in asked_for):
            continue  # a person decides about a place that the call asks for
        named = answer._replace(capability=case.entry.name, reason=f"{what}: {answer.reason}")
        if answer.decision == "DENIED":
            return named
        approval = approval or (None if answer.allowed else named)
    return approval


def _somewhere(case: Case, capability: str) -> Decision | None:
    """A redirection with an unknown target, or a possible one in an unreadable line: no path list can be decided for
    it. Without a path list the capability's decision for any file applies."""
    entry = case.bundle.capability(capability)
    if entry is None:
        return deny(case.entry.name, "capabilities", f"redirection ({capability}): capability not granted")
    if entry.blocked_paths or entry.allowed_paths is not None:
        name = "blockedPaths" if entry.blocked_paths else "allowedPaths"
        reason = f"redirection ({capability}): its target is only known when it runs; {_WRITE_IT_OUT}"
        return deny(case.entry.name, where(entry, name), reason)
    if not entry.requires_approval:
        return None
    asked = approval_needed(entry, "high", (f"{capability} of a file that is only known when it runs",))
    return asked._replace(capability=case.entry.name)


# Operands


def _operand(case: Case, facts: CommandFacts, one: FileUse) -> Decision | None:
    capability = _CAPABILITY[one.mode]
    entry = case.bundle.capability(capability)
    if entry is None:
        return None
    what = f"{one.program} ({capability})"
    if one.path is None:
        if entry.allowed_paths is None or case.entry.requires_approval or case.bundle.sandboxed:
            return None
        reason = f"{what}: which file it is given is only known when it runs; {_WRITE_IT_OUT}"
        return deny(case.entry.name, where(entry, "allowedPaths"), reason)
    answer = _judge(case, facts, one, capability, what)
    if answer is None or answer.decision != "DENIED":
        answer = _check_links(case, facts, one, capability, what) or answer
    if answer is not None and answer.decision == "DENIED":
        return answer
    if one.mode == "read" and (one.tree or one.pattern) and not case.bundle.sandboxed:
        return _check_copy(case, facts, one, what) or answer
    return _check_content(case, facts, one, entry, what) or answer


def _check_links(case: Case, facts: CommandFacts, one: FileUse, capability: str, what: str) -> Decision | None:
    for spelling in one.spellings(facts.cwd, facts.home) if one.pattern is not None else ():
        real = facts.real_paths.get(spelling) or spelling
        for found in facts.through.get((real, one.pattern or ""), ()):
            answer = case.judge(capability, PathFacts(requested=found, absolute=found, real_path=found))
            if answer.decision == "DENIED":
                return answer._replace(capability=case.entry.name, reason=f"{what}: a link leads to {found}")
    return None


def _check_copy(case: Case, facts: CommandFacts, one: FileUse, what: str) -> Decision | None:
    """Denies a tree whose copy would have a name that is blocked for writing at any depth."""
    entry = case.bundle.capability(Name.FILE_WRITE)
    if entry is None:
        return None
    for spelling in one.spellings(facts.cwd, facts.home):
        real = facts.real_paths.get(spelling) or spelling
        blocked = _find_nested(case, facts, one, entry, real)
        if blocked is not None:
            reason = f"{what}: {one.path} holds {blocked}, which may not be written; name what is meant instead"
            return deny(case.entry.name, where(entry, "blockedPaths", blocked), reason)
    return None


def _check_content(case: Case, facts: CommandFacts, one: FileUse, entry: Capability, what: str) -> Decision | None:
    place = _find_blocked_place(case, facts, one, entry)
    if place is None:
        return None
    reason = f"{what}: {one.path} holds {place}, which is blocked; name what is meant instead"
    return deny(case.entry.name, where(entry, "blockedPaths", place), reason)


def _find_blocked_place(case: Case, facts: CommandFacts, one: FileUse, entry: Capability) -> str | None:
    """The blocked place inside a directory, or one that a glob may find; None if there is none."""
    if not (one.tree or one.pattern is not None) or one.mode == "read":
        return None
    others = session_samples(entry.allowed_paths, case.os) if entry.allowed_paths is not None else []
    for spelling in one.spellings(facts.cwd, facts.home):
        real = facts.real_paths.get(spelling) or spelling
        for place in dict.fromkeys((spelling, real)):
            root = key(normalize(place, case.os), case.os, "wide").rstrip("/")
            for blocked in (*(entry.blocked_paths or ()), *others):
                if not is_absolute(blocked, case.os) or "*" in blocked:
                    continue
                found = key(normalize(blocked, case.os), case.os, "wide")
                if found.startswith(root + "/") and _finds(one, found[len(root) + 1 :]):
                    return blocked
        nested = None if case.bundle.sandboxed else _find_nested(case, facts, one, entry, real)
        if nested is not None:
            return nested
    return None


def _find_nested(case: Case, facts: CommandFacts, one: FileUse, entry: Capability, real: str) -> str | None:
    """The entry for a name at any depth that a glob may find by how it is spelled, or that is really there."""
    os = case.os
    split = ((blocked, split_nested(normalize(blocked, os), os)) for blocked in entry.blocked_paths or ())
    entries = [(blocked, *parts) for blocked, parts in split if parts is not None]
    for blocked, root, name in entries if one.pattern is not None else ():
        is_near = is_under(real, root, os, "wide") or is_under(root, real, os, "wide")
        if is_near and _may_be_named(one.pattern or "", key(name, os, "wide")):
            return blocked
    below = facts.below.get(real, ())
    if below is None:
        return "more than can be looked through"
    table = roots((blocked for blocked, _, _ in entries), os, "wide")
    reached = (normalize(f"{real}/{found}", os) for found in below if _finds(one, key(found, os, "wide")))
    return next(filter(None, (covering(path, table, os, "wide") for path in reached)), None)


def _may_be_named(pattern: str, name: str) -> bool:
    """True if a component of a pattern may match a name; after `**` it also matches hidden names."""
    parts = pattern.split("/")
    deep = parts.index(ANY_DEPTH) if ANY_DEPTH in parts else len(parts)
    return any(may_meet(part, name, hidden=place > deep) for place, part in enumerate(parts))


def _finds(one: FileUse, rest: str) -> bool:
    if one.pattern is None:
        return one.tree
    return reaches(one.pattern, rest, tree=one.tree, writes=one.mode == "write")


# Links


class _MadePlace(NamedTuple):
    """A link that the line creates (`itself`), or a tree with unknown links, from a step on."""

    path: str
    itself: bool
    step: int


def _places_made(parsed: ParsedCommand, facts: CommandFacts, os: OsFamily) -> tuple[_MadePlace, ...]:
    """The absolute paths that the line creates, whose real paths could not be looked up."""
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


def _goes_through(case: Case, facts: CommandFacts, one: FileUse, made: tuple[_MadePlace, ...]) -> bool:
    """True for a file below a path that the line creates. A link itself may be created and deleted."""
    is_of_link = one.made == "link" or (one.mode == "delete" and not (one.path or "").endswith("/"))
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
    """True if a use at one step may follow a creation at another: in a loop, or concurrently, anything may."""
    if made == 0 or step == 0:
        return True
    return abs(step) != abs(made) and (made < 0 or step < 0 or step > made)


_RULES = (
    _check_blocked,
    _check_undecidable,
    _evaluating,
    _check_opted_out,
    _check_allowed,
    _variables,
    _argument_rules,
    _check_files,
)
