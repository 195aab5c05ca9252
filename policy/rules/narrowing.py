"""Rules of `policy.decide` that only take away: guarded tools, a task's options, ceilings of risk; and the risk of an
action with its reasons, for the person who approves it (AH 8.5)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy import RISK_LEVELS, words
from policy import CapabilityName as Name
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, OsFamily, PathFacts, UrlFacts
from policy.paths import is_under
from policy.programs import program_named
from policy.rules import AS_THE_BUNDLE_SAYS
from policy.rules.commands import wide_name
from policy.rules.toolset import DEFAULT_RISK, RULE, exceeds, order, over, risk_of_guarded
from policy.shell import parse_line
from policy.urls import UrlProblem, domain_rules, matching_rule, target_of

if TYPE_CHECKING:
    from policy import Decision, RiskLevel
    from policy.bundle import Capability
    from policy.facts import ShellName
    from policy.rules import Case
    from policy.shell.findings import SimpleCommand

_MODE_RULE = "{}Options.approvalMode: {}"
_NETWORK_RULE = "taskOptions.allowNetwork: false"

_TAKES_A_VALUE = words("-C -c --prefix --directory")
_TAKES_NONE = words("-q -v -y -s -P --quiet --verbose --yes --silent --no-pager --no-optional-locks")
_PYTHON_VALUED = re.compile(r"-[^-cmWX]*([cmWX])(.*)", re.DOTALL)
"""A cluster of Python's short options up to the one that takes the rest, or the next word, for its value."""
_NETWORK_FILES = ("/dev/tcp/", "/dev/udp/")
_KNOWN_PROGRAMS = words(
    "[ basename cat cd cmp column cut date diff dirname du echo env false file find git grep head id jq ls make "
    "node npm printf ps pwd pytest python python3 rg sed sleep sort stat tail test tr tree true uname uniq uv wc "
    "which whoami"
)
_KNOWN_DOMAINS = ("pypi.org", "*.pythonhosted.org", "github.com", "*.github.com", "registry.npmjs.org", "crates.io")


def apply_task_options(case: Case, decision: Decision) -> Decision:
    """Apply the task's options to the decision, which can only go from ALLOWED to APPROVAL_REQUIRED to DENIED.

    A denial because the task must not ask has `no_approver` set and keeps the rule and the risk of the approval that it
    replaces.
    """
    options, session_mode = case.terms.options or AS_THE_BUNDLE_SAYS, case.terms.session_mode
    if options == AS_THE_BUNDLE_SAYS and session_mode is None:
        return decision
    if options.allow_network is False:
        reason = _network_use(case.facts)
        if reason is not None:
            return decision._replace(decision="DENIED", reason=reason, rule=_NETWORK_RULE, rule_id=None)
    for whose, mode in (("task", options.approval_mode), ("session", session_mode)):
        if decision.decision == "ALLOWED" and mode in ("always", "on_risky_actions"):
            decision = _ask(case, decision, mode, whose)
    for whose, mode in (("task", options.approval_mode), ("session", session_mode)):
        if decision.decision == "APPROVAL_REQUIRED" and mode == "never":
            reason = f"it needs an approval, and this {whose} must not ask for one"
            rule = _MODE_RULE.format(whose, mode)
            decision = decision._replace(decision="DENIED", reason=reason, rule=rule, no_approver=True)
    return decision


def require_guarded_approval(case: Case, decision: Decision) -> Decision:
    """A guarded tool needs an approval that names it, and has its risk at least (SK 2.2, 2.3, 3.2)."""
    least = risk_of_guarded(case.terms.tool_name, case.capability)
    if least is None:
        return decision
    level, risks = decision.risk_level, decision.risks
    if level is None:
        level, risks = assess(case.entry, case.facts, workspace=case.workspace, os=case.os)
    level = max(level, least, key=RISK_LEVELS.index)
    decision = decision._replace(risk_level=level, risks=risks, by_name=True)
    if decision.decision == "APPROVAL_REQUIRED":
        return decision
    return decision._replace(
        decision="APPROVAL_REQUIRED",
        reason=f"{case.terms.tool_name} needs an approval, whatever the policy grants",
        rule=RULE,
        rule_id=case.entry.approval_rule_id,
    )


def apply_risk_ceiling(case: Case, decision: Decision) -> Decision:
    """The decision, denied if the call's risk is above a ceiling (SK 3.1)."""
    ceilings = sorted((limit for limit in case.terms.limits if limit.risk_ceiling is not None), key=order)
    if not ceilings:
        return decision
    level, risks = assess(case.entry, case.facts, workspace=case.workspace, os=case.os)
    level = max(level, decision.risk_level or "low", key=RISK_LEVELS.index)
    for limit in ceilings:
        if limit.risk_ceiling is not None and exceeds(level, limit.risk_ceiling):
            why = "; ".join((over(limit, level), *risks))
            return decision._replace(
                decision="DENIED", reason=why, rule=limit.source, rule_id=None, risk_level=level, risks=risks
            )
    return decision


def _ask(case: Case, decision: Decision, mode: str, whose: str) -> Decision:
    level, risks = assess(case.entry, case.facts, workspace=case.workspace, os=case.os)
    if mode == "always":
        needed, reason = case.terms.has_side_effects, f"the {whose} wants an approval for everything that has effects"
    else:
        needed, reason = level == "high", f"the {whose} requires approval for risky calls"
    if not needed:
        return decision
    return decision._replace(
        decision="APPROVAL_REQUIRED",
        reason=reason,
        rule=_MODE_RULE.format(whose, mode),
        rule_id=case.entry.approval_rule_id,
        risk_level=level,
        risks=risks,
    )


def _network_use(facts: ActionFacts) -> str | None:
    """The reason why the call would use the network, or could do so unseen by policy; None if there is no sign of
    it."""
    if isinstance(facts, UrlFacts):
        return f"{Name.NETWORK_HTTP} is taken away from this task"
    if isinstance(facts, NamedToolFacts) and facts.elsewhere:
        return f"{facts.tool_name} uses the network, which is taken away from this task"
    if not isinstance(facts, CommandFacts):
        return None
    parsed = parse_line(facts)
    for one in parsed.commands:
        used = _network_program(one, facts.shell)
        if used is not None:
            return f"{used} uses the network, which is taken away from this task"
    if any(one.path is not None and one.path.startswith(_NETWORK_FILES) for one in parsed.redirections):
        return "a redirection opens a network connection, and the network is taken away from this task"
    if parsed.dynamic:  # as for a block list
        reasons = "; ".join(parsed.dynamic[:5])
        return f"the network is taken away from this task, and the command cannot be decided: {reasons}"
    return None


def _network_program(one: SimpleCommand, shell: ShellName) -> str | None:
    """The network program or subcommand of `one`, None if it is no known one."""
    if one.program is None:
        return None
    name, rest = wide_name(one.program, shell), one.arguments
    if name.startswith("py"):
        name, rest = _module(name, rest)
    row = program_named(name)
    if row is None or row.network:
        return None if row is None else name
    known = {one.replace("_", " ") for one in row.online.split()}
    if not known:
        return None
    seen, may_be_value = "", False
    arguments = iter(rest)
    for argument in arguments:
        if argument is None:
            return f"{name} with a subcommand that is only known when it runs"
        if argument in _TAKES_A_VALUE:
            next(arguments, None)
        elif argument.startswith(("-", "+")):  # `+` is the toolchain of cargo
            may_be_value = argument.startswith("-") and "=" not in argument and argument not in _TAKES_NONE
        else:
            longer = f"{seen} {argument}".strip()
            if longer in known:
                return f"{name} {longer}"
            if any(one.startswith(longer + " ") for one in known):
                seen = longer
            elif not may_be_value:
                return None
            may_be_value = False
    return None


def _module(name: str, rest: tuple[str | None, ...]) -> tuple[str, tuple[str | None, ...]]:
    """The module that Python runs by `-m`, and its arguments, in place of Python's own."""
    arguments = iter(rest)
    for argument in arguments:
        if argument is None or not argument.startswith("-"):
            break
        valued = _PYTHON_VALUED.fullmatch(argument)
        if valued is None:
            if argument == "--check-hash-based-pycs":
                next(arguments, None)
            continue
        value = valued[2] or next(arguments, None)
        if valued[1] == "m":
            return value or name, tuple(arguments)
        if valued[1] == "c":
            break
    return name, rest


def assess(
    capability: Capability, facts: ActionFacts, *, workspace: str | None = None, os: OsFamily = "posix"
) -> tuple[RiskLevel, tuple[str, ...]]:
    """The level and the reasons for it. Without a `workspace` the capability's allowed paths stand for it."""
    match facts:
        case PathFacts():
            reasons = _path_reasons(capability, facts, workspace, os)
        case CommandFacts():
            reasons = _command_reasons(capability, facts, workspace, os)
        case UrlFacts():
            reasons = _url_reasons(capability, facts)
        case _:
            reasons = []
    return ("high", tuple(reasons)) if reasons else (DEFAULT_RISK.get(capability.name, "high"), ())


def _path_reasons(entry: Capability, facts: PathFacts, workspace: str | None, os: OsFamily) -> list[str]:
    project = (workspace,) if workspace is not None else entry.allowed_paths
    if entry.name != Name.FILE_WRITE or project is None:
        return []
    inside = any(is_under(facts.real_path, root, os) for root in project)
    return [] if inside else [f"writes outside the project directory: {facts.real_path}"]


def _command_reasons(entry: Capability, facts: CommandFacts, workspace: str | None, os: OsFamily) -> list[str]:
    parsed = parse_line(facts)
    known = _KNOWN_PROGRAMS if entry.allowed_commands is None else frozenset(entry.allowed_commands)
    unknown = dict.fromkeys(one.program for one in parsed.commands if one.program and one.program not in known)
    if facts.script is not None:  # a script of a skill has one risk, whatever program runs it (SK 2.3)
        unknown = {}
    reasons = [f"unknown command: {program}" for program in unknown]
    reasons += [f"cannot be decided: {reason}" for reason in parsed.dynamic]
    reasons += [f"runs {one}" for one in parsed.opaque if one.in_line]
    for target in parsed.files:
        for spelling in target.spellings(facts.cwd, facts.home) if target.mode != "read" and workspace else ():
            place = facts.real_paths.get(spelling)
            if place is None or not is_under(place, workspace or "", os):
                reasons.append(f"writes outside the project directory: {spelling}")
    return reasons


def _url_reasons(entry: Capability, facts: UrlFacts) -> list[str]:
    known = _KNOWN_DOMAINS if entry.allowed_domains is None else entry.allowed_domains
    try:
        host, port = target_of(facts.url)
    except UrlProblem as problem:
        return [str(problem)]
    return [] if matching_rule(host, domain_rules(known), port) else [f"domain is not a recognised one: {host}"]
