"""Decisions on their way to the Approval Service (AH 10.4): put together from the events that tell of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.events.kinds import EventType
from agent_host.services.approval import ApprovalDecision
from agent_host.stamps import rfc3339

if TYPE_CHECKING:
    from agent_host.events.emitter import Event
    from agent_host.services.approval import ApprovalReporter
    from state.checkpoint import SessionIdentity


class ApprovalReports:
    """A sink that hands every decision to `reporter`. Nobody waits for the service."""

    def __init__(self, reporter: ApprovalReporter, identity: SessionIdentity) -> None:
        self._reporter = reporter
        self._identity = identity
        self._asked: dict[str, dict[str, Any]] = {}

    def take(self, event: Event) -> None:
        """Remember what was asked, and report what was answered."""
        payload = event.payload
        if event.event_type is EventType.APPROVAL_REQUESTED:
            self._asked[payload["approvalId"]] = payload
        elif event.event_type is EventType.APPROVAL_RESOLVED:
            asked = self._asked.pop(payload["approvalId"], {})
            who = self._identity
            self._reporter.take(
                ApprovalDecision(
                    approval_id=payload["approvalId"],
                    session_id=who.session_id,
                    task_id=event.task_id or "",
                    step_id=event.step_id,
                    user_id=who.user_id,
                    tenant_id=who.tenant_id,
                    workspace_id=who.workspace_id,
                    decision=payload["decision"],
                    reason=payload.get("reason"),
                    action_summary=asked.get("actionSummary", ""),
                    risk_level=asked.get("riskLevel"),
                    client_timestamp=rfc3339(event.at),
                )
            )

    def flush(self) -> None:
        """Nothing waits here."""
