"""What policy answers (AH 8.2)."""

from __future__ import annotations

from typing import Literal, NamedTuple

RiskLevel = Literal["low", "medium", "high"]
Verdict = Literal["ALLOWED", "DENIED", "APPROVAL_REQUIRED"]


class Decision(NamedTuple):
    """One verdict and why.

    `rule` names the entry of the bundle that decided, as a JSON path with its value where it has one
    (`capabilities[Shell.Exec].blockedCommands: rm`). `expired` marks a denial that pauses the session (AH 8.6).
    `risks` are the reasons behind `risk_level`, in words for the person who approves. `unasked` marks the denial of a
    call that needs an approval in a task that asks nobody (see `policy.rules.options`).
    """

    decision: Verdict
    reason: str
    capability: str
    rule: str
    rule_id: str | None = None
    risk_level: RiskLevel | None = None
    risks: tuple[str, ...] = ()
    expired: bool = False
    unasked: bool = False

    @property
    def allowed(self) -> bool:
        """True for ALLOWED only."""
        return self.decision == "ALLOWED"
