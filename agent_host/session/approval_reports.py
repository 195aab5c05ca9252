"""Decisions on their way to the Approval Service (AH 10.4): put together from the events about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.display_text import one_line
from agent_host.events import RUN_ENDS, EventType
from agent_host.ids import rfc3339
from agent_host.services.approval import ApprovalDecision

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.events.emitter import Event
    from agent_host.judging.environment import Registry
    from agent_host.services.approval import ApprovalReporter
    from state.checkpoint import Checkpoint, OpenCall, SessionIdentity


# The task that asked has stopped; what is asked again by a resume is asked with all of it.


class ApprovalReports:
    """A sink that hands every decision to `reporter`, each once. Nobody waits for the service. `scrub` takes secrets
    out of a text; `tools` are those that a call on record may be of."""

    def __init__(
        self,
        reporter: ApprovalReporter,
        identity: SessionIdentity,
        scrub: Callable[[str], str],
        tools: Registry,
        time: Callable[[], float],
    ) -> None:
        self._time = time
        self._tools = tools
        self._reporter = reporter
        self._identity = identity
        self._scrub = scrub
        self._asked: dict[str, dict[str, Any]] = {}
        self._again: set[str] = set()

    def again(self, state: Checkpoint) -> None:
        """Report the answers of the step that a former process left open: it may have died before the service knew. A
        service that knew has the same decision under the same key."""
        step, task = state.open_step, state.task
        if step is None or task is None:
            return
        for call in step.calls:
            if call.answer is not None and call.approval_id is not None:
                self._again.add(call.approval_id)
                self._report(
                    call.approval_id,
                    task_id=task.task_id,
                    step_id=step.step_id,
                    approved=call.answer.approved,
                    reason=call.answer.reason,
                    summary=self._summary(call),
                    at=self._time(),
                    again=True,
                )

    def take(self, event: Event) -> None:
        """Remember what was asked, and report what was answered."""
        payload = event.payload
        if event.event_type in RUN_ENDS:
            self._asked.clear()  # what was cancelled while it waited is never answered
        elif event.event_type is EventType.APPROVAL_REQUESTED:
            self._asked[payload["approvalId"]] = payload
        elif event.event_type is EventType.APPROVAL_RESOLVED and payload["approvalId"] not in self._again:
            asked = self._asked.pop(payload["approvalId"], {})
            self._report(
                payload["approvalId"],
                task_id=event.task_id or "",
                step_id=event.step_id,
                approved=payload["decision"] == "approved",
                reason=payload.get("reason"),
                summary=asked.get("actionSummary", ""),
                risk=asked.get("riskLevel"),
                at=event.at,
            )

    def flush(self) -> None:
        """Nothing waits here."""

    def _report(
        self,
        approval_id: str,
        *,
        task_id: str,
        step_id: str | None,
        approved: bool,
        reason: str | None,
        summary: str,
        at: float,
        risk: str | None = None,
        again: bool = False,
    ) -> None:
        who = self._identity
        self._reporter.take(
            ApprovalDecision(
                approval_id=approval_id,
                session_id=who.session_id,
                task_id=task_id,
                step_id=step_id,
                user_id=who.user_id,
                tenant_id=who.tenant_id,
                workspace_id=who.workspace_id,
                decision="approved" if approved else "denied",
                reason=None if reason is None else self._scrub(reason),
                action_summary=summary,
                risk_level=risk,
                client_timestamp=rfc3339(at),
                told_again=again,
            )
        )

    def _summary(self, call: OpenCall) -> str:
        """The call in one line; what the person was shown of it is not on record."""
        spec = self._tools.get(call.tool_name)
        subject = "" if spec is None else f": {spec.summary(call.arguments)}"
        return one_line(self._scrub(f"{call.tool_name}{subject}"))
