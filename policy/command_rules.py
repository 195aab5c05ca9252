"""Shell.Exec: blocked, then allowed, for every command of the line; argument rules; redirections as file access."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy import patterns
from policy.case import PROCESS_RULE, approval_needed, denied, where
from policy.commands import ParsedCommand, Redirection, SimpleCommand, parse, real_path_of
from policy.facts import CommandFacts, PathFacts, ShellName
from policy.names import CapabilityName as Name
from policy.names import without_g
from policy.paths import is_absolute, process_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.bundle import ArgumentRule, CommandPolicy
    from policy.case import Case
    from policy.decision import Decision

_MAX_TOLD = 5
_MAX_JUDGED_ARGUMENT = 4_096
_WINDOWS_SHELLS = frozenset({"cmd", "powershell"})


def command_rules(case: Case) -> Decision | str | None:
    """A denial, an approval that a redirection needs, the entry that admits, or None (AH 8.2, 8.4)."""
    entry, facts = case.entry, case.facts
    assert isinstance(facts, CommandFacts)  # noqa: S101  the table of rules is keyed by this type
    if not facts.command.strip() or "\0" in facts.command:
        return denied(entry.name, where(entry), "the command is empty or has NUL characters")
    if not is_absolute(facts.cwd, case.os):
        return denied(entry.name, where(entry), "the working directory is not absolute")
    parsed = parse(facts.command, facts.shell)
    if parsed.unread:
        return denied(entry.name, where(entry), _undecidable(parsed.dynamic))
    for rule in (_blocked, _undecided, _allowed, _argument_rules):
        verdict = rule(case, parsed, facts.shell)
        if verdict is not None:
            return verdict
    access = _redirections(case, facts, parsed)
    if access is not None:
        return access
    if entry.allowed_commands is None or not parsed.commands:
        return None
    names = ", ".join(dict.fromkeys(str(one.program) for one in parsed.commands))
    return where(entry, "allowedCommands", names)


def _blocked(case: Case, parsed: ParsedCommand, shell: ShellName) -> Decision | None:
    entry = case.entry
    if not entry.blocked_commands:
        return None
    table = _name_table(case, "blocked", shell)
    for one in parsed.commands:
        hit = table.get(wide_name(one.program, shell)) if one.program is not None else None
        if hit is not None:
            return denied(entry.name, where(entry, "blockedCommands", hit), f"command is blocked: {one.program}")
    return None


def _undecided(case: Case, parsed: ParsedCommand, shell: ShellName) -> Decision | None:
    """What can't be decided is denied where a list has to be decided. What a program starts without the line showing it
    can't be, unless a commandPolicies entry of that very program says `startsPrograms`; a block list can't see into it
    all the same."""
    entry = case.entry
    opaque, advice = parsed.opaque, ""
    if entry.blocked_commands:
        rule = "blockedCommands"
    elif entry.allowed_commands is not None or entry.command_policies:
        rule = "commandPolicies" if entry.allowed_commands is None else "allowedCommands"
        starters = _starters(case, shell) if opaque else frozenset()
        opaque = tuple(one for one in opaque if _narrow_name(one.program, shell) not in starters)
        advice = "; startsPrograms in its commandPolicies entry would permit that" if opaque else ""
    else:
        return None
    reasons = [*parsed.dynamic, *map(str, opaque)]
    if not reasons:
        return None
    return denied(entry.name, where(entry, rule), _undecidable(reasons) + advice)


def _undecidable(reasons: Sequence[str]) -> str:
    return "the command cannot be decided: " + "; ".join(reasons[:_MAX_TOLD])


def _starters(case: Case, shell: ShellName) -> frozenset[str]:
    """The programs that may start what the line does not show, by comparison name."""
    memo_key = (case.entry.name, "starters", shell)
    names: frozenset[str] | None = case.bundle.memo.get(memo_key)
    if names is None:
        policies = (one for one in case.entry.command_policies or () if one.starts_programs)
        names = case.bundle.memo[memo_key] = frozenset(_narrow_name(one.command, shell) for one in policies)
    return names


def _allowed(case: Case, parsed: ParsedCommand, shell: ShellName) -> Decision | None:
    entry = case.entry
    if entry.allowed_commands is None:
        return None
    table = _name_table(case, "allowed", shell)
    for one in parsed.commands:
        if one.program is None or _narrow_name(one.program, shell) not in table:
            reason = f"command not in allowed commands: {one.program}"
            return denied(entry.name, where(entry, "allowedCommands"), reason)
    if not table:
        return denied(entry.name, where(entry, "allowedCommands"), "the list of allowed commands is empty")
    return None


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
        return without_g(program.rsplit("/", 1)[-1].casefold())
    from policy.shell.windows import ALIASES, CMD_ALIASES, base_name

    name = base_name(program)
    return (ALIASES if shell == "powershell" else CMD_ALIASES).get(name, name)


# Argument rules


def _argument_rules(case: Case, parsed: ParsedCommand, shell: ShellName) -> Decision | None:
    """Every entry of a program has to pass: one that configuration adds only narrows (NT)."""
    if not case.entry.command_policies:
        return None
    table = _policy_table(case, shell)
    for one in parsed.commands:
        for policy in table.get(wide_name(one.program, shell), ()) if one.program is not None else ():
            problem = _argument_problem(policy, one)
            if problem is not None:
                rule = where(case.entry, "commandPolicies", policy.command)
                return denied(case.entry.name, rule, f"{one.program}: {problem}")
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


def _argument_problem(policy: CommandPolicy, one: SimpleCommand) -> str | None:
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
    pattern = patterns.compiled(rule.pattern)
    return pattern is not None and len(argument) <= _MAX_JUDGED_ARGUMENT and patterns.fits(pattern, argument)


# Redirections


def _redirections(case: Case, facts: CommandFacts, parsed: ParsedCommand) -> Decision | None:
    """A write redirection is a File.Write to its target, a read redirection a File.Read. A denial of one of them denies
    the line; an approval that one of them needs is needed for the line."""
    approval: Decision | None = None
    anywhere = [Redirection(None, "write"), Redirection(None, "read")] if parsed.unparsed else []
    for one in (*parsed.redirections, *anywhere):
        answer = _redirection(case, facts, one)
        if answer is not None and answer.decision == "DENIED":
            return answer
        approval = approval or answer
    return approval


def _redirection(case: Case, facts: CommandFacts, one: Redirection) -> Decision | None:
    capability = (Name.FILE_WRITE if one.mode == "write" else Name.FILE_READ).value
    if one.path is None:
        return None if case.entry.requires_approval else _somewhere(case, capability)
    spellings = one.spellings(facts.cwd, facts.home)
    if not spellings:
        return denied(
            case.entry.name, where(case.entry), f"a redirection to {one.path}, and no home directory is known"
        )
    approval: Decision | None = None
    for spelling in spellings:
        real = real_path_of(facts, spelling)
        if real is None:
            reason = f"a redirection to {spelling}, and where that leads was not looked up"
            return denied(case.entry.name, where(case.entry), reason)
        place = process_place(spelling, case.os) or process_place(real, case.os)
        if place is not None:
            reason = f"redirection ({capability}): {spelling} is in {place}, where each process finds other files"
            return denied(case.entry.name, f"{PROCESS_RULE}: {place}", reason)
        answer = case.judge(capability, PathFacts(requested=one.path, absolute=spelling, real_path=real))
        told = answer._replace(capability=case.entry.name, reason=f"redirection ({capability}): {answer.reason}")
        if answer.decision == "DENIED":
            return told
        approval = approval or (None if answer.allowed else told)
    return approval


def _somewhere(case: Case, capability: str) -> Decision | None:
    """A redirection whose target nobody knows, or one that a line may have which cannot be read: no path list can be
    decided for it. Without one it is what the capability is for any file."""
    entry = case.bundle.capability(capability)
    if entry is None:
        reason = f"redirection ({capability}): capability not granted"
        return denied(case.entry.name, "capabilities", reason)
    for name, paths in (("blockedPaths", entry.blocked_paths), ("allowedPaths", entry.allowed_paths)):
        if paths or (name == "allowedPaths" and paths is not None):
            reason = f"redirection ({capability}): its target is only known when it runs"
            return denied(case.entry.name, where(entry, name), reason)
    if not entry.requires_approval:
        return None
    asked = approval_needed(entry, "high", (f"{capability} of a file that is only known when it runs",))
    return asked._replace(capability=case.entry.name)
