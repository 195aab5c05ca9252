"""What the options of a task and the limits of a configuration take away from a decision. Nothing here can add."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from policy.decision import RISK_LEVELS
from policy.facts import ActionFacts, CommandFacts, NamedToolFacts, OsFamily, UrlFacts
from policy.names import CapabilityName, words
from policy.programs.table import program_named
from policy.rules.commands import wide_name
from policy.rules.risk import assess
from policy.rules.toolset import AS_THE_BUNDLE_SAYS, RULE, exceeds, guarded_risk, order, over
from policy.shell.commands import parsed_line

if TYPE_CHECKING:
    from policy.bundle.model import PolicyBundle
    from policy.decision import Decision
    from policy.facts import ShellName
    from policy.rules.toolset import Limits, TaskOptions
    from policy.shell.commands import SimpleCommand

_MODE_RULE = "taskOptions.approvalMode"
_NETWORK_RULE = "taskOptions.allowNetwork: false"

_TAKES_A_VALUE = words("-C -c --prefix --directory")
_TAKES_NONE = words("-q -v -y -s -P --quiet --verbose --yes --silent --no-pager --no-optional-locks")
_PYTHON_VALUED = re.compile(r"-[^-cmWX]*([cmWX])(.*)", re.DOTALL)
"""A cluster of Python's short options up to the one that takes the rest, or the next word, for its value."""
_NETWORK_FILES = ("/dev/tcp/", "/dev/udp/")


def narrowed(
    decision: Decision,
    options: TaskOptions,
    bundle: PolicyBundle,
    facts: ActionFacts,
    *,
    side_effects: bool,
    workspace: str | None = None,
    os: OsFamily = "posix",
) -> Decision:
    """The bundle's `decision` on one call, with what the task's `options` take away from it.

    It only ever goes from ALLOWED to APPROVAL_REQUIRED to DENIED. A denial for the want of somebody to ask has
    `unasked` set and keeps the rule and the risk of the approval that it stands for.
    """
    if decision.decision == "DENIED" or options == AS_THE_BUNDLE_SAYS:
        return decision
    if options.allow_network is False:
        reason = _network_use(facts)
        if reason is not None:
            return decision._replace(decision="DENIED", reason=reason, rule=_NETWORK_RULE, rule_id=None)
    if decision.decision == "ALLOWED" and options.approval_mode in ("always", "on_risky_actions"):
        return _with_approval(decision, options, bundle, facts, side_effects=side_effects, workspace=workspace, os=os)
    if decision.decision == "APPROVAL_REQUIRED" and options.approval_mode == "never":
        reason = "it needs an approval, and this task is to ask nobody for one"
        return decision._replace(decision="DENIED", reason=reason, rule=f"{_MODE_RULE}: never", unasked=True)
    return decision


def asked_by_name(
    decision: Decision,
    tool_name: str,
    bundle: PolicyBundle,
    facts: ActionFacts,
    *,
    workspace: str | None = None,
    os: OsFamily = "posix",
) -> Decision:
    """The bundle's `decision` on one call: of a guarded tool it needs an approval that names the tool, and has the
    risk of the tool at least (SK 2.2, 2.3, 3.2)."""
    least = guarded_risk(tool_name, decision.capability)
    entry = bundle.capability(decision.capability)
    if least is None or entry is None or decision.decision == "DENIED":
        return decision
    level, risks = decision.risk_level, decision.risks
    if level is None:
        level, risks = assess(entry, facts, workspace=workspace, os=os)
    level = max(level, least, key=RISK_LEVELS.index)
    decision = decision._replace(risk_level=level, risks=risks, by_name=True)
    if decision.decision == "APPROVAL_REQUIRED":
        return decision
    return decision._replace(
        decision="APPROVAL_REQUIRED",
        reason=f"{tool_name} needs an approval, whatever the policy grants",
        rule=RULE,
        rule_id=entry.approval_rule_id,
    )


def under_ceiling(
    decision: Decision,
    limits: Limits,
    bundle: PolicyBundle,
    facts: ActionFacts,
    *,
    workspace: str | None = None,
    os: OsFamily = "posix",
) -> Decision:
    """The decision, denied where the call's risk is above a ceiling (SK 3.1). Denials stay as they are."""
    ceilings = sorted((limit for limit in limits if limit.risk_ceiling is not None), key=order)
    entry = bundle.capability(decision.capability)
    if decision.decision == "DENIED" or not ceilings or entry is None:
        return decision
    level, risks = assess(entry, facts, workspace=workspace, os=os)
    level = max(level, decision.risk_level or "low", key=RISK_LEVELS.index)
    for limit in ceilings:
        if limit.risk_ceiling is not None and exceeds(level, limit.risk_ceiling):
            why = "; ".join((over(limit, level), *risks))
            return decision._replace(
                decision="DENIED", reason=why, rule=limit.source, rule_id=None, risk_level=level, risks=risks
            )
    return decision


def _with_approval(
    decision: Decision,
    options: TaskOptions,
    bundle: PolicyBundle,
    facts: ActionFacts,
    *,
    side_effects: bool,
    workspace: str | None,
    os: OsFamily,
) -> Decision:
    entry = bundle.capability(decision.capability)
    if entry is None:  # no decision of a bundle allows what it does not grant
        return decision._replace(decision="DENIED", reason="capability not granted", rule="capabilities")
    level, risks = assess(entry, facts, workspace=workspace, os=os)
    if options.approval_mode == "always":
        needed, reason = side_effects, "the task wants an approval for everything that has effects"
    else:
        needed, reason = level == "high", "the task wants an approval for what is risky"
    if not needed:
        return decision
    return decision._replace(
        decision="APPROVAL_REQUIRED",
        reason=reason,
        rule=f"{_MODE_RULE}: {options.approval_mode}",
        rule_id=entry.approval_rule_id,
        risk_level=level,
        risks=risks,
    )


def _network_use(facts: ActionFacts) -> str | None:
    """Why the call would use the network, or could without policy seeing it; None where it shows no sign of it."""
    if isinstance(facts, UrlFacts):
        return f"{CapabilityName.NETWORK_HTTP} is taken away from this task"
    if isinstance(facts, NamedToolFacts) and facts.elsewhere:
        return f"{facts.tool_name} uses the network, which is taken away from this task"
    if not isinstance(facts, CommandFacts):
        return None
    parsed = parsed_line(facts)
    for one in parsed.commands:
        used = _network_program(one, facts.shell)
        if used is not None:
            return f"{used} uses the network, which is taken away from this task"
    if any(one.path is not None and one.path.startswith(_NETWORK_FILES) for one in parsed.redirections):
        return "a redirection opens a network connection, and the network is taken away from this task"
    if parsed.dynamic:  # as where a block list has to be decided
        reasons = "; ".join(parsed.dynamic[:5])
        return f"the network is taken away from this task, and the command cannot be decided: {reasons}"
    return None


def _network_program(one: SimpleCommand, shell: ShellName) -> str | None:
    """The network program or subcommand that `one` is, None when it is none that is known."""
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
