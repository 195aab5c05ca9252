"""Decisions of policy (AH 8.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.scope import CommandScope

RiskLevel = Literal["low", "medium", "high"]
Verdict = Literal["ALLOWED", "DENIED", "APPROVAL_REQUIRED"]
RISK_LEVELS: Final[tuple[RiskLevel, ...]] = get_args(RiskLevel)
_STRICTNESS: Final[dict[Verdict, int]] = {"ALLOWED": 0, "APPROVAL_REQUIRED": 1, "DENIED": 2}


class Decision(NamedTuple):
    """One verdict and why.

    `rule` names the entry of the bundle that decided, as a JSON path with its value where it has one
    (`capabilities[Shell.Exec].blockedCommands: rm`). `expired` marks a denial that pauses the session (AH 8.6).
    `risks` are the reasons behind `risk_level`, in words for the person who approves. `unasked` marks the denial of a
    call that needs an approval in a task that asks nobody (see `policy.rules.toolset`). `by_name`: what approves it in
    advance has to name the tool (see `policy.rules.toolset`). `command_scope` is what the process of a command may
    do, where a sandbox is to hold it.
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
    by_name: bool = False
    command_scope: CommandScope | None = None

    @property
    def allowed(self) -> bool:
        """True for ALLOWED only."""
        return self.decision == "ALLOWED"


def strictest(decisions: Sequence[Decision]) -> Decision:
    """One decision for a call that needs several capabilities: the first of those that are strictest, with the highest
    risk and all risks of those that are as strict. `decisions` are in the order of the capabilities, at least one."""
    first = max(decisions, key=lambda one: _STRICTNESS[one.decision])
    alike = [one for one in decisions if one.decision == first.decision]
    levels = [one.risk_level for one in alike if one.risk_level is not None]
    if first.decision == "DENIED" or not levels:
        return first
    risks = tuple(dict.fromkeys(risk for one in alike for risk in one.risks))
    return first._replace(risk_level=max(levels, key=RISK_LEVELS.index), risks=risks)


def is_of_place(decision: Decision) -> bool:
    """True if a denial is for where the call would act, and not for what it would start."""
    return decision.decision == "DENIED" and any(word in decision.rule for word in ("Paths", "Places", "roots"))
