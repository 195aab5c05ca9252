"""Shell.Exec: blocked, then allowed, for every command of the line; argument rules; then the files that it names."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from policy import patterns
from policy.facts import CommandFacts, OsFamily, ShellName
from policy.names import strip_g, words
from policy.paths import is_absolute, is_under, normalize
from policy.programs.table import is_known, program_named, what_it_starts
from policy.rules.case import deny, where
from policy.rules.line_files import is_behind_link, line_files, links_made
from policy.shell.commands import parse_line
from policy.shell.tables import HARMLESS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.bundle.model import ArgumentRule, Capability, CommandPolicy, PolicyBundle
    from policy.decision import Decision
    from policy.rules.case import Case
    from policy.shell.findings import ParsedCommand, SimpleCommand

_MAX_JUDGED_ARGUMENT = 4_096
_RUNS_TEXT = words("eval trap")
"""Builtins that run what the line shows them, which is read."""
_WINDOWS_SHELLS = frozenset({"cmd", "powershell"})


def command_rules(case: Case) -> Decision | str | None:
    """A denial, an approval that a redirection needs, the entry that admits, or None (AH 8.2, 8.4)."""
    entry, facts = case.entry, case.facts
    assert isinstance(facts, CommandFacts)  # noqa: S101  the table of rules is keyed by this type
    if not facts.command.strip() or "\0" in facts.command:
        return deny(entry.name, where(entry), "the command is empty or has NUL characters")
    if not is_absolute(facts.cwd, case.os):
        return deny(entry.name, where(entry), "the working directory is not absolute")
    parsed = parse_line(facts)
    if parsed.unread:
        return deny(entry.name, where(entry), undecidable(parsed.dynamic))
    for rule in (
        _check_blocked,
        _check_undecidable,
        _evaluating,
        _check_opted_out,
        _check_allowed,
        _variables,
        _argument_rules,
    ):
        verdict = rule(case, parsed, facts)
        if verdict is not None:
            return verdict
    access = line_files(case, facts, parsed)
    if access is not None:
        return access
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
    """A line of which it cannot be said what it starts is denied where a list has to be decided (AH 8.4)."""
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
    """A value that may be code is evaluated: that is denied by a list that names no interpreter, since naming one
    consents to any code."""
    if not parsed.evaluates or case.entry.allowed_commands is None or _lists_interpreter(case):
        return None
    return deny(case.entry.name, where(case.entry, "allowedCommands"), undecidable(parsed.evaluates))


def _lists_interpreter(case: Case) -> bool:
    """True if one of the listed programs is known to run code that no line shows."""
    memo_key = (case.entry.name, "interpreter")
    found: bool | None = case.bundle.memo.get(memo_key)
    if found is None:
        names = [one for one in case.entry.allowed_commands or () if one not in _RUNS_TEXT]
        found = any(one.endswith(("/*", "/**")) or (is_known(one) and what_it_starts(one)) for one in names)
        case.bundle.memo[memo_key] = found
    return found


def _check_opted_out(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    """Deny what a listed program starts if an entry of commandPolicies says `startsPrograms: false` of it: allowing a
    program otherwise also allows what it starts."""
    if not case.entry.command_policies:
        return None
    table = _strict_table(case, facts.shell)
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


def _strict_table(case: Case, shell: ShellName) -> dict[str, str]:
    """The programs that may not start what the line does not show, by comparison name."""
    memo_key = (case.entry.name, "strict", shell)
    table: dict[str, str] | None = case.bundle.memo.get(memo_key)
    if table is None:
        named = (one.command for one in case.entry.command_policies or () if one.starts_programs is False)
        table = case.bundle.memo[memo_key] = {wide_name(name, shell): name for name in named}
    return table


def _check_allowed(case: Case, parsed: ParsedCommand, facts: CommandFacts) -> Decision | None:
    entry = case.entry
    if entry.allowed_commands is None:
        return None
    if not entry.allowed_commands:
        return deny(entry.name, where(entry, "allowedCommands"), "the list of allowed commands is empty")
    table = _name_table(case, "allowed", facts.shell)
    links = links_made(parsed, facts, case.os)
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
    memo_key = (entry.name, "starts nothing")
    known: bool | None = bundle.memo.get(memo_key)
    if known is None:
        listed = entry.allowed_commands
        known = listed is not None and not any(one.endswith(("/*", "/**")) or what_it_starts(one) for one in listed)
        bundle.memo[memo_key] = known
    return known


def _is_in_allowed_place(case: Case, one: SimpleCommand, facts: CommandFacts, links: tuple[str, ...]) -> bool:
    """True if an entry that ends in `/*` or `/**` admits a program that is a path: by where its directory really is,
    from wherever the line may start it."""
    patterns = [entry for entry in case.entry.allowed_commands or () if entry.endswith(("/*", "/**"))]
    if not patterns or facts.shell in _WINDOWS_SHELLS:
        return False
    places = one.places(facts.cwd, facts.home)
    real_places = [facts.real_paths.get(place) for place in places]
    name = one.name
    if not places or name in {"", ".", ".."} or None in real_places:
        return False
    if any(is_behind_link(f"{place}/{name}", links, case.os) for place in places):
        return False
    return all(any(_admits(entry, place or "", case.os) for entry in patterns) for place in real_places)


def _admits(entry: str, directory: str, os: OsFamily) -> bool:
    root, _, stars = entry.rpartition("/")
    if stars == "**":
        return is_under(directory, root, os)
    return normalize(directory, os) == normalize(root, os)


def _name_table(case: Case, which: str, shell: ShellName) -> dict[str, str]:
    """Comparison name → entry as written, made once per bundle."""
    memo_key = (case.entry.name, which, shell)
    table: dict[str, str] | None = case.bundle.memo.get(memo_key)
    if table is None:
        entries = case.entry.allowed_commands if which == "allowed" else case.entry.blocked_commands
        name = _narrow_name if which == "allowed" else wide_name
        table = case.bundle.memo[memo_key] = {name(entry, shell): entry for entry in entries or ()}
    return table


def _narrow_name(program: str, shell: ShellName) -> str:
    """To permit: as written. A bare name does not stand for a file of that name somewhere."""
    if shell not in _WINDOWS_SHELLS:
        return program
    return re.sub(r"\.exe$", "", program.lower())


def wide_name(program: str, shell: ShellName) -> str:
    """To refuse: without directory, letter case, alias, and the `g` in front of a GNU program's name."""
    if shell not in _WINDOWS_SHELLS:
        return strip_g(program.rsplit("/", 1)[-1].casefold())
    from policy.shell import other_shells

    name = other_shells.base_name(program)
    return (other_shells.ALIASES if shell == "powershell" else other_shells.CMD_ALIASES).get(name, name)


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
    """Comparison name → the entries that rule the arguments of that program, in the bundle's order."""
    memo_key = (case.entry.name, "policies", shell)
    table: dict[str, tuple[CommandPolicy, ...]] | None = case.bundle.memo.get(memo_key)
    if table is None:
        table = case.bundle.memo[memo_key] = {}
        for policy in case.entry.command_policies or ():
            if _rules_arguments(policy):
                name = wide_name(policy.command, shell)
                table[name] = (*table.get(name, ()), policy)
    return table


def _rules_arguments(policy: CommandPolicy) -> bool:
    narrows = policy.max_arguments is not None or policy.subcommands is not None or not policy.additional_arguments
    return narrows or bool(policy.arguments)


def argument_problem(policy: CommandPolicy, one: SimpleCommand) -> str | None:
    """Why an entry does not permit the arguments of a command; None where it does."""
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
