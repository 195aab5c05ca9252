"""The tools that a session may use: the bundle's grants, and all that takes away from them (SK 3.1, AH 5.2).

The user's configuration, the workspace's, a skill's `allowed-tools`, a mode: each is a `ToolLimit`, and what may be
used is what none of them withholds. Limits are put together as a set, so neither their order nor how often one is given
matters, and each tool that is withheld can say by whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy.decision import RISK_LEVELS, Decision, RiskLevel
from policy.names import FILE_CAPABILITIES
from policy.names import CapabilityName as Name
from policy.paths import covering, is_absolute, is_under, normalize, roots
from policy.rules import AS_THE_BUNDLE_SAYS, NO_LIMITS, Limits, TaskOptions, ToolLimit, where
from policy.rules.named_tools import entry_for_tool, lists
from policy.urls import covers, domain_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from policy.bundle import Capability, PolicyBundle
    from policy.facts import OsFamily
    from policy.rules import ApprovalMode, Case


_EMPTY = "{}.{} of the bundle is empty"
_UNREADABLE = "an entry of {}.{} of the bundle cannot be read, so that all is refused"
_BLOCKED = "every {} that {} of the bundle allows is blocked"

DEFAULT_RISK: dict[str, RiskLevel] = {
    Name.FILE_READ: "low",
    Name.FILE_WRITE: "medium",
    Name.FILE_DELETE: "high",
    Name.SHELL_EXEC: "medium",
    Name.NETWORK_HTTP: "medium",
    Name.WORKSPACE_UPLOAD: "low",
    Name.BACKEND_TOOL_INVOKE: "medium",
    Name.MCP_INVOKE: "medium",
    Name.TOOL_INVOKE: "medium",
    Name.LLM_CALL: "low",
}
"""The risk of a call where nothing about it says more, by capability."""


def merge(limits: Iterable[Limits]) -> Limits:
    """All of them together: commutative, associative, idempotent."""
    return NO_LIMITS.union(*limits)


def only_enabled(names: Iterable[str]) -> ToolLimit:
    """The guarded tools that the user's configuration does not name, taken away (SK 3.2)."""
    return ToolLimit(f"{SETTING} in the configuration", withheld=frozenset(GUARDED_TOOLS).difference(names))


def withheld_by(limits: Limits, tool_name: str, capability: str, least: RiskLevel | None = None) -> str | None:
    """Name the limit that takes the tool away, None if none does. Of several the first in order of their names. `least`
    is the lowest risk of any call, where that is not the capability's default."""
    usual = least or DEFAULT_RISK.get(capability, "high")
    risk = max(usual, risk_of_guarded(tool_name, capability) or usual, key=RISK_LEVELS.index)
    for limit in sorted(limits, key=order):
        if tool_name in limit.withheld:
            return limit.source
        if limit.allowed is not None and tool_name not in limit.allowed:
            return f"{limit.source} does not list it"
        if limit.risk_ceiling is not None and exceeds(risk, limit.risk_ceiling):
            return over(limit, risk)
    return None


def why_not_offered(
    bundle: PolicyBundle,
    tool_name: str,
    capability: str,
    *,
    limits: Limits = NO_LIMITS,
    options: TaskOptions = AS_THE_BUNDLE_SAYS,
    session_mode: ApprovalMode | None = None,
    workspace: str | None = None,
    os: OsFamily = "posix",
    elsewhere: bool = False,
) -> str | None:
    """Why no call of the tool could be allowed, so that the model need not see it; None when one could (SK 3.1).
    `workspace` is the project directory: what is written outside of it has a high risk. `elsewhere`: calls go over the
    network.

    An approval that nobody is there to give now may be given later, so it keeps no tool from being shown.
    """
    entry = bundle.capability(capability)
    if entry is None:
        return f"the bundle does not grant {capability}"
    nothing = _allows_nothing(entry, tool_name, os)
    if nothing is not None:
        return nothing
    if not elsewhere and capability in delegated_capabilities(bundle):
        return reason_for(capability)
    is_asked_for = (
        entry_for_tool(entry, tool_name).requires_approval or risk_of_guarded(tool_name, capability) is not None
    )
    if "never" in (options.approval_mode, session_mode) and is_asked_for:
        return "it needs an approval, and the task is to ask nobody for one"
    if options.allow_network is False and (elsewhere or capability == Name.NETWORK_HTTP):
        return "the network is taken away from the task"
    misses = capability == Name.FILE_WRITE and workspace is not None and _misses(entry, workspace, os)
    return withheld_by(limits, tool_name, capability, "high" if misses else None)


def _allows_nothing(entry: Capability, tool_name: str, os: OsFamily) -> str | None:
    """Why the grant can admit no call: one of its lists is empty, or all that it allows is blocked. A list of commands
    that are all blocked still admits a line without any."""
    if entry.name in FILE_CAPABILITIES:
        return _no_path(entry, os)
    if entry.name == Name.SHELL_EXEC:
        return _EMPTY.format(entry.name, "allowedCommands") if entry.allowed_commands == () else None
    if entry.name == Name.NETWORK_HTTP:
        return _no_domain(entry)
    if not lists(entry, tool_name):
        return f"{entry.name}.allowedToolNames of the bundle does not list it"
    return None


def _no_path(entry: Capability, os: OsFamily) -> str | None:
    blocked = roots(entry.blocked_paths or (), os, "wide")
    if any(not is_absolute(path, os) for path in entry.blocked_paths or ()):
        return _UNREADABLE.format(entry.name, "blockedPaths")
    if entry.allowed_paths == ():
        return _EMPTY.format(entry.name, "allowedPaths")
    # Windows has as many roots as drives and shares.
    allowed = entry.allowed_paths or (("/",) if os == "posix" else ())
    free = [
        path for path in allowed if is_absolute(path, os) and covering(normalize(path, os), blocked, os, "wide") is None
    ]
    return _BLOCKED.format("path", entry.name) if allowed and not free else None


def _misses(entry: Capability, workspace: str, os: OsFamily) -> bool:
    """True if no file of the project directory is one that the grant allows."""
    blocked = roots(entry.blocked_paths or (), os, "wide")
    places = [workspace]
    if entry.allowed_paths is not None and not any(is_under(workspace, path, os) for path in entry.allowed_paths):
        places = [path for path in entry.allowed_paths if is_under(path, workspace, os)]
    return all(covering(normalize(place, os), blocked, os, "wide") is not None for place in places)


def _no_domain(entry: Capability) -> str | None:
    if entry.allowed_domains == ():
        return _EMPTY.format(entry.name, "allowedDomains")
    if not entry.blocked_domains:
        return None
    blocked, allowed = domain_rules(entry.blocked_domains), domain_rules(entry.allowed_domains or ())
    if "" in blocked:
        return _UNREADABLE.format(entry.name, "blockedDomains")
    free = [one for one in allowed if one and not covers(one, blocked)]
    return _BLOCKED.format("domain", entry.name) if allowed and not free else None


def order(limit: ToolLimit) -> tuple[str, str, bool, list[str], list[str]]:
    """One order for any set of limits, several of one source included."""
    allowed = sorted(limit.allowed or ())
    return limit.source, limit.risk_ceiling or "", limit.allowed is not None, allowed, sorted(limit.withheld)


def exceeds(level: RiskLevel, ceiling: RiskLevel) -> bool:
    """True if a risk is above a ceiling."""
    return RISK_LEVELS.index(level) > RISK_LEVELS.index(ceiling)


def over(limit: ToolLimit, level: RiskLevel) -> str:
    """The reason for what a limit's ceiling takes away."""
    return f"its risk is {level}, and {limit.source} admits {limit.risk_ceiling} at most"


# Tools that are off until the user's configuration names them, and that a person is asked about whenever they are
# called (SK 2.2, 3.2): whatever a bundle grants, and however much was approved in advance without their name. Pure.

SETTING: Final = "skills.enabled_tools"
RULE: Final = "builtin.guardedTools"
_GUARDED: Final[Mapping[tuple[str, str], RiskLevel]] = {
    ("run_script", Name.SHELL_EXEC): "medium",
    ("write_file", Name.FILE_WRITE): "high",
    ("delete_file", Name.FILE_DELETE): "high",
    ("network_request", Name.NETWORK_HTTP): "high",
}
"""By name and capability, since a tool of an embedding program may have such a name; with the risk of every call
(SK 2.3)."""
GUARDED_TOOLS: Final = tuple(name for name, _ in _GUARDED)


def risk_of_guarded(tool_name: str, capability: str) -> RiskLevel | None:
    """The least risk of a call of a guarded tool; None for any other tool."""
    return _GUARDED.get((tool_name, capability))


# Kinds of tools that a tenant has run in the Backend Tool Service and not on this machine (BT, "When to Use Remote
# Tools"): `insteadOf` of BackendTool.Invoke. It only takes away: a call is then judged by both capabilities. Pure.

_NONE: Final[frozenset[str]] = frozenset()


def delegated_capabilities(bundle: PolicyBundle) -> frozenset[str]:
    """The capabilities whose tools run in the Backend Tool Service only."""
    entry = bundle.capability(Name.BACKEND_TOOL_INVOKE)
    return _NONE if entry is None or entry.instead_of is None else frozenset(entry.instead_of)


def apply_delegation(case: Case, decision: Decision) -> Decision:
    """The decision, denied for a call that would run on this machine although the bundle has such tools run in the
    Backend Tool Service."""
    entry = case.bundle.capability(Name.BACKEND_TOOL_INVOKE)
    if entry is None or not case.terms.runs_here or case.capability not in delegated_capabilities(case.bundle):
        return decision
    reason = reason_for(case.capability)
    return Decision("DENIED", reason, case.capability, where(entry, "insteadOf", case.capability))


def reason_for(capability: str) -> str:
    """Why a tool of this capability does not run here."""
    return f"the policy has tools of {capability} run in the Backend Tool Service, which has none of this name"
