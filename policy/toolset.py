"""Which tools a session may use: what the bundle grants, and all that takes away from it (SK 3.1, AH 5.2).

The user's configuration, the workspace's, a skill's `allowed-tools`, a mode: each is a `ToolLimit`, and what may be
used is what none of them withholds. Limits are put together as a set, so neither their order nor how often one is given
matters, and each tool that is withheld can say by whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_args

from policy.decision import RiskLevel
from policy.names import FILE_CAPABILITIES
from policy.names import CapabilityName as Name
from policy.options import AS_THE_BUNDLE_SAYS
from policy.risk import DEFAULT_RISK, assess

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.bundle import Capability, PolicyBundle
    from policy.decision import Decision
    from policy.facts import ActionFacts, OsFamily
    from policy.options import TaskOptions

RISK_LEVELS: tuple[RiskLevel, ...] = get_args(RiskLevel)
"""From the lowest to the highest."""


class ToolLimit(NamedTuple):
    """What one `source` takes away, named as people know it. `allowed` are the only tools that it leaves, None for all;
    `withheld` those that it takes; `risk_ceiling` the highest risk that a call may have."""

    source: str
    allowed: frozenset[str] | None = None
    withheld: frozenset[str] = frozenset()
    risk_ceiling: RiskLevel | None = None


Limits = frozenset[ToolLimit]
NO_LIMITS: Limits = frozenset()


def merged(limits: Iterable[Limits]) -> Limits:
    """All of them together: commutative, associative, idempotent."""
    return NO_LIMITS.union(*limits)


def withheld_by(limits: Limits, tool_name: str, capability: str) -> str | None:
    """Who takes the tool away and how, None when nobody does. Of several the first in order of their names."""
    for limit in sorted(limits, key=lambda one: one.source):
        if tool_name in limit.withheld:
            return limit.source
        if limit.allowed is not None and tool_name not in limit.allowed:
            return f"{limit.source} does not list it"
        if limit.risk_ceiling is not None and _exceeds(DEFAULT_RISK.get(capability, "high"), limit.risk_ceiling):
            return _over(limit, DEFAULT_RISK.get(capability, "high"))
    return None


def why_not_offered(
    bundle: PolicyBundle,
    tool_name: str,
    capability: str,
    *,
    limits: Limits = NO_LIMITS,
    options: TaskOptions = AS_THE_BUNDLE_SAYS,
) -> str | None:
    """Why no call of the tool could be allowed, so that the model need not see it; None when one could (SK 3.1).

    An approval that nobody is there to give now may be given later, so it keeps no tool from being shown.
    """
    entry = bundle.capability(capability)
    if entry is None:
        return f"the bundle does not grant {capability}"
    nothing = _allows_nothing(entry, tool_name)
    if nothing is not None:
        return nothing
    if options.approval_mode == "never" and entry.requires_approval:
        return "it needs an approval, and the task is to ask nobody for one"
    if options.allow_network is False and capability == Name.NETWORK_HTTP:
        return "the network is taken away from the task"
    return withheld_by(limits, tool_name, capability)


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
    ceilings = sorted((one for one in limits if one.risk_ceiling is not None), key=lambda one: one.source)
    entry = bundle.capability(decision.capability)
    if decision.decision == "DENIED" or not ceilings or entry is None:
        return decision
    level, risks = assess(entry, facts, workspace=workspace, os=os)
    for limit in ceilings:
        if limit.risk_ceiling is not None and _exceeds(level, limit.risk_ceiling):
            why = "; ".join((_over(limit, level), *risks))
            return decision._replace(
                decision="DENIED", reason=why, rule=limit.source, rule_id=None, risk_level=level, risks=risks
            )
    return decision


def _allows_nothing(entry: Capability, tool_name: str) -> str | None:
    """Why the grant can admit no call: one of its lists is empty."""
    lists: dict[str, tuple[str, ...] | None] = {}
    if entry.name in FILE_CAPABILITIES:
        lists["allowedPaths"] = entry.allowed_paths
    elif entry.name == Name.SHELL_EXEC:
        lists["allowedCommands"] = entry.allowed_commands
    elif entry.name == Name.NETWORK_HTTP:
        lists["allowedDomains"] = entry.allowed_domains
    for name, values in lists.items():
        if values == ():
            return f"{entry.name}.{name} of the bundle is empty"
    if entry.allowed_tool_names is not None and tool_name not in entry.allowed_tool_names and not lists:
        return f"{entry.name}.allowedToolNames of the bundle does not list it"
    return None


def _exceeds(level: RiskLevel, ceiling: RiskLevel) -> bool:
    return RISK_LEVELS.index(level) > RISK_LEVELS.index(ceiling)


def _over(limit: ToolLimit, level: RiskLevel) -> str:
    return f"its risk is {level}, and {limit.source} admits {limit.risk_ceiling} at most"
