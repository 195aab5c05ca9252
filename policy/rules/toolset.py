"""The tools that a session may use: the bundle's grants, and all limits of them (SK 3.1, AH 5.2).

The user's configuration, the workspace's, a skill's `allowed-tools`, a mode: each is a `ToolLimit`, and a tool may be
used if none of them withholds it. Limits are combined as a set, so neither order nor repetition matters, and each
withheld tool has a known source.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from policy import FILE_CAPABILITIES, RISK_LEVELS, Decision, RiskLevel
from policy import CapabilityName as Name
from policy.paths import covering, is_absolute, is_under, normalize, roots
from policy.rules import AS_THE_BUNDLE_SAYS, NO_LIMITS, Limits, TaskOptions, ToolLimit, deny, where
from policy.urls import covers, domain_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from policy.bundle import Capability, PolicyBundle, ToolPolicy
    from policy.facts import NamedToolFacts, OsFamily
    from policy.rules import ApprovalMode, Case


_EMPTY = "{}.{} of the bundle is empty"
_UNREADABLE = "an entry of {}.{} of the bundle cannot be read, so that all is refused"
_BLOCKED = "every {} that {} of the bundle allows is blocked"

DEFAULT_RISK: dict[str, RiskLevel] = {
    **dict.fromkeys(Name, "medium"),
    **dict.fromkeys((Name.FILE_READ, Name.WORKSPACE_UPLOAD, Name.LLM_CALL), "low"),
    Name.FILE_DELETE: "high",
}


def merge(limits: Iterable[Limits]) -> Limits:
    """All of them together: commutative, associative, idempotent."""
    return NO_LIMITS.union(*limits)


def only_enabled(names: Iterable[str]) -> ToolLimit:
    """The guarded tools that the user's configuration does not name, taken away (SK 3.2)."""
    return ToolLimit(f"{SETTING} in the configuration", withheld=frozenset(GUARDED_TOOLS).difference(names))


def withheld_by(limits: Limits, tool_name: str, capability: str, least: RiskLevel | None = None) -> str | None:
    """Return the name of the limit that withholds the tool, None if none does; of several the first by name. `least` is
    the lowest risk of any call, if it differs from the capability's default."""
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
    """Return why no call of the tool could be allowed, so that it is not offered to the model; None if one could (SK
    3.1). `workspace` is the project directory: writes outside of it have a high risk. `elsewhere`: calls go over the
    network.

    A missing approver hides no tool, because one may be present later.
    """
    entry = bundle.capability(capability)
    if entry is None:
        return f"the bundle does not grant {capability}"
    nothing = _allows_nothing(entry, tool_name, os)
    if nothing is not None:
        return nothing
    if not elsewhere and capability in delegated_capabilities(bundle):
        return reason_for(capability)
    asks = entry_for_tool(entry, tool_name).requires_approval or risk_of_guarded(tool_name, capability) is not None
    if "never" in (options.approval_mode, session_mode) and asks:
        return "it needs an approval, and the task must not ask for one"
    if options.allow_network is False and (elsewhere or capability == Name.NETWORK_HTTP):
        return "the network is taken away from the task"
    misses = capability == Name.FILE_WRITE and workspace is not None and _misses(entry, workspace, os)
    return withheld_by(limits, tool_name, capability, "high" if misses else None)


def _allows_nothing(entry: Capability, tool_name: str, os: OsFamily) -> str | None:
    """Why the grant can admit no call: an empty list, or all of it is blocked (commands aside)."""
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
    places = (normalize(path, os) for path in allowed if is_absolute(path, os))
    is_free = any(covering(place, blocked, os, "wide") is None for place in places)
    return _BLOCKED.format("path", entry.name) if allowed and not is_free else None


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
    """The reason for a denial by a limit's ceiling."""
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


def delegated_capabilities(bundle: PolicyBundle) -> frozenset[str]:
    """The capabilities whose tools run in the Backend Tool Service only."""
    entry = bundle.capability(Name.BACKEND_TOOL_INVOKE)
    return frozenset(() if entry is None else entry.instead_of or ())


def apply_delegation(case: Case, decision: Decision) -> Decision:
    """Deny a call on this machine if the bundle has such tools run in the Backend Tool Service."""
    entry = case.bundle.capability(Name.BACKEND_TOOL_INVOKE)
    if entry is None or not case.terms.runs_here or case.capability not in delegated_capabilities(case.bundle):
        return decision
    reason = reason_for(case.capability)
    return Decision("DENIED", reason, case.capability, where(entry, "insteadOf", case.capability))


def reason_for(capability: str) -> str:
    """Why a tool of this capability does not run here."""
    return f"the policy has tools of {capability} run in the Backend Tool Service, which has none of this name"


# Tools that are judged by their names: those of MCP servers and backend services, a project's tools, Python tools.
#
# In Mcp.Invoke and BackendTool.Invoke an entry may be a pattern (`server/*`), because these names come from remote
# lists. The tool of a name may change: a program of the workspace, a server's definition. A tool with an identity (the
# SHA-256 of its parts) runs only in the version that a person has approved, or that an entry `name@sha256:HASH` of the
# bundle names (NT, TR 9.3).


_PINNED = "{}@sha256:"
_STAR = "*"
_BY_PATTERN: frozenset[str] = frozenset({Name.MCP_INVOKE, Name.BACKEND_TOOL_INVOKE})


def fits(pattern: str, tool_name: str) -> bool:
    """True if a name is one of those that a pattern stands for: `*` is any run of characters, all else is itself."""
    return pattern == tool_name or (_STAR in pattern and _compile(pattern).fullmatch(tool_name) is not None)


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    # Each run between stars is found once and never looked for again, so that no name takes more than its length times
    # that of the pattern.
    first, *others = (re.escape(part) for part in re.split(r"\*+", pattern))
    if not others:
        return re.compile(first)
    *middle, last = others
    lazily = "".join(f"(?>.*?{part})" for part in middle)
    return re.compile(f"{first}{lazily}.*{last}", re.DOTALL)


def lists(entry: Capability, tool_name: str) -> bool:
    """True if the grant names the tool at all, as it is or as it was."""
    names = entry.allowed_tool_names
    pinned = _PINNED.format(tool_name)
    return names is None or find_entry(entry, tool_name) is not None or any(one.startswith(pinned) for one in names)


def names_it(entry: Capability, tool_name: str) -> bool:
    """True if an entry of allowedToolNames is for the tool; an absent list names none."""
    return entry.allowed_tool_names is not None and lists(entry, tool_name)


def find_entry(entry: Capability, tool_name: str) -> str | None:
    """The entry of allowedToolNames that matches the tool's name, the name itself first; None if none does."""
    names = entry.allowed_tool_names or ()
    if tool_name in names:
        return tool_name
    if entry.name not in _BY_PATTERN:
        return None
    return next((one for one in names if _STAR in one and fits(one, tool_name)), None)


def judge_name(entry: Capability, tool_name: str) -> Decision | str | None:
    """Judge a tool that has no identity by the grant."""
    if entry.allowed_tool_names is None:
        return None
    listed = find_entry(entry, tool_name)
    if listed is None:
        return deny(entry.name, where(entry, "allowedToolNames"), f"tool not allowed: {tool_name}")
    return where(entry, "allowedToolNames", listed)


def judge_identity(entry: Capability, facts: NamedToolFacts, identity: str) -> Decision | str | None:
    """Judge a tool by the grant and its identity, the SHA-256 of its parts in hex."""
    names, name = entry.allowed_tool_names, facts.tool_name
    pinned = f"{_PINNED.format(name)}{identity}"
    if names is not None and pinned in names:
        return where(entry, "allowedToolNames", pinned)
    listed = find_entry(entry, name)
    if names is not None and listed is None:
        was = next((one for one in names if one.startswith(_PINNED.format(name))), None)
        changed = f"; it has changed since {was}" if was else ""
        return deny(entry.name, where(entry, "allowedToolNames"), f"tool not allowed: {pinned}{changed}")
    if facts.is_approved:
        return where(entry, "allowedToolNames", listed) if listed is not None else None
    of = "the workspace" if entry.name == Name.TOOL_INVOKE else "another program"
    reason = f"the present version of this tool of {of} is not approved: {pinned}"
    return Decision("APPROVAL_REQUIRED", reason, entry.name, where(entry), entry.approval_rule_id)


def entry_for_tool(entry: Capability, tool_name: str) -> Capability:
    """The grant as its toolPolicies have it for one tool: whether it needs an approval, and under which rule."""
    asked = _deciding(entry.tool_policies or (), tool_name, "requires_approval", strict=True)
    if asked is None:
        return entry
    return entry._replace(
        requires_approval=bool(asked.requires_approval),
        approval_rule_id=asked.approval_rule_id or entry.approval_rule_id,
    )


def asking_rule(entry: Capability, tool_name: str) -> str:
    """The JSON path of the entry that requires approval for calls of the tool."""
    asked = _deciding(entry.tool_policies or (), tool_name, "requires_approval", strict=True)
    place = "requiresApproval" if asked is None else f"toolPolicies[{asked.tool}].requiresApproval"
    return where(entry, place, "true")


def is_repeatable(bundle: PolicyBundle, capability_name: str, tool_name: str) -> bool:
    """True if a call of the tool interrupted by a crash may be sent again, which only a bundle can allow."""
    entry = bundle.capability(capability_name)
    policy = None if entry is None else _deciding(entry.tool_policies or (), tool_name, "repeatable", strict=False)
    return policy is not None and policy.repeatable is True


def _deciding(policies: Iterable[ToolPolicy], tool_name: str, field: str, *, strict: bool) -> ToolPolicy | None:
    """Of the matching policies that set `field` the one that names the tool, else the first with `strict`."""
    fitting = [one for one in policies if getattr(one, field) is not None and fits(one.tool, tool_name)]
    exact = [one for one in fitting if one.tool == tool_name]
    strictest = [one for one in exact or fitting if getattr(one, field) is strict]
    return next(iter(strictest or exact or fitting), None)
