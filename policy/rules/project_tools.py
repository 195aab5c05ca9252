"""A project's own tools: programs of the workspace, which may change under the host (NT). A bundle lists them by their
names, and then a person approves each as it is; or by `name@sha256:HASH`, and then only as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.decision import Decision
from policy.rules.case import denied, where

if TYPE_CHECKING:
    from policy.bundle.model import Capability
    from policy.facts import NamedToolFacts

_PINNED = "{}@sha256:"


def lists(entry: Capability, tool_name: str) -> bool:
    """Whether the grant names the tool at all, as it is or as it was."""
    names = entry.allowed_tool_names
    return names is None or tool_name in names or any(name.startswith(_PINNED.format(tool_name)) for name in names)


def of_project(entry: Capability, facts: NamedToolFacts, identity: str) -> Decision | str | None:
    """What the grant says to a tool that consists of what has this SHA-256, in hex."""
    names, name = entry.allowed_tool_names, facts.tool_name
    pinned = f"{_PINNED.format(name)}{identity}"
    if names is not None and pinned in names:
        return where(entry, "allowedToolNames", pinned)
    if names is not None and name not in names:
        was = next((one for one in names if one.startswith(_PINNED.format(name))), None)
        changed = f"; its files have changed since {was}" if was else ""
        return denied(entry.name, where(entry, "allowedToolNames"), f"tool not allowed: {pinned}{changed}")
    if facts.is_approved:
        return where(entry, "allowedToolNames", name) if names is not None else None
    reason = f"nobody has approved this tool of the workspace as it is now: {pinned}"
    return Decision("APPROVAL_REQUIRED", reason, entry.name, where(entry), entry.approval_rule_id)
