"""What the rules of the check share: one question as a value, and the words of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple
from policy.decision import Decision

if TYPE_CHECKING:
    from datetime import datetime

    from policy.bundle.model import Capability, PolicyBundle
    from policy.facts import ActionFacts, OsFamily

PROCESS_RULE = "builtin.processPlaces"
REPOSITORY_RULE = "builtin.repositoryPlaces"
SESSION_RULE = "builtin.sessionPlaces"


class Case(NamedTuple):
    """One question: may `entry` be used for `facts`? `judge` answers what another capability says to other facts, under
    the same bundle and at the same time."""

    bundle: PolicyBundle
    entry: Capability
    facts: ActionFacts
    os: OsFamily
    judge: Callable[[str, ActionFacts], Decision]


Rule = Callable[[Case], Decision | str | None]
"""A denial; a decision of another capability that asks for approval; the entry that admits; or nothing to say."""


def denied(capability: str, rule: str, reason: str) -> Decision:
    """A denial by the entry `rule`."""
    return Decision("DENIED", reason, capability, rule)


def where(entry: Capability, list_name: str | None = None, value: object = None) -> str:
    """The JSON path of a capability, of one of its fields, or of one value in that."""
    path = f"capabilities[{entry.name}]" + (f".{list_name}" if list_name else "")
    return path if value is None else f"{path}: {value}"


def approval_needed(entry: Capability, level: str, risks: tuple[str, ...]) -> Decision:
    """The question that an entry wants asked."""
    return Decision(
        "APPROVAL_REQUIRED",
        "the capability requires approval",
        entry.name,
        where(entry, "requiresApproval", "true"),
        entry.approval_rule_id,
        level,  # type: ignore[arg-type]
        risks,
    )


def expired_or_not_granted(bundle: PolicyBundle, name: str, now: datetime) -> Decision:
    """The denial by a bundle that does not grant the capability `name`, or is expired at `now`."""
    if now >= bundle.expires_at:
        rule = f"expiresAt: {bundle.expires_at.isoformat()}"
        return denied(name, rule, "the policy bundle has expired")._replace(expired=True)
    return denied(name, "capabilities", f"capability not granted: {name}")
