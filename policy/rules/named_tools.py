"""Tools that are judged by their names: those of MCP servers and of backend services, a project's own, Python tools.

A bundle lists them by name. In Mcp.Invoke and BackendTool.Invoke an entry may be a pattern (`server/*`), since these
names come from elsewhere. What stands behind a name may change: a program of the workspace, a definition that a server
gives. A tool that has an identity (the SHA-256 of what it consists of) runs only as a person has approved it, or as an
entry `name@sha256:HASH` of the bundle says (NT, TR 9.3).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from policy.decision import Decision
from policy.names import CapabilityName as Name
from policy.rules import deny, where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from policy.bundle import Capability, PolicyBundle, ToolPolicy
    from policy.facts import NamedToolFacts

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
    """The entry of allowedToolNames that the tool's name fits, the name itself first; None where none does."""
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
    """Judge a tool by the grant and its identity, the SHA-256 of what it consists of, in hex."""
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
    reason = f"nobody has approved this tool of {of} as it is now: {pinned}"
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
    """The JSON path of what has calls of the tool wait for an approval."""
    asked = _deciding(entry.tool_policies or (), tool_name, "requires_approval", strict=True)
    place = "requiresApproval" if asked is None else f"toolPolicies[{asked.tool}].requiresApproval"
    return where(entry, place, "true")


def is_repeatable(bundle: PolicyBundle, capability_name: str, tool_name: str) -> bool:
    """True if a call of the tool that a crash cut off may be sent again: nothing but a bundle says so."""
    entry = bundle.capability(capability_name)
    said = None if entry is None else _deciding(entry.tool_policies or (), tool_name, "repeatable", strict=False)
    return said is not None and said.repeatable is True


def _deciding(policies: Iterable[ToolPolicy], tool_name: str, field: str, *, strict: bool) -> ToolPolicy | None:
    """Of the policies that fit the tool and say something of `field` the one that names it, else the first that says
    `strict`, else the first."""
    fitting = [one for one in policies if getattr(one, field) is not None and fits(one.tool, tool_name)]
    exact = [one for one in fitting if one.tool == tool_name]
    strictest = [one for one in exact or fitting if getattr(one, field) is strict]
    return next(iter(strictest or exact or fitting), None)
