"""What is remembered of questions on their way to the Approval Service, and what leaves of the answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_host.events import EventType
from agent_host.events.emitter import Emitter
from agent_host.host.environment import BUILT_IN
from agent_host.ids import MACHINE
from agent_host.redaction import Scrubber
from agent_host.services.session import ApprovalDecision, ApprovalReporter
from agent_host.session.reports import ApprovalReports
from state.checkpoint import SessionIdentity

SECRET = "token-0123456789"


class KeptRecords:
    """An Approval Service in memory."""

    def __init__(self) -> None:
        self.decisions: list[ApprovalDecision] = []

    async def record(self, decision: ApprovalDecision) -> None:
        """See ApprovalService."""
        self.decisions.append(decision)


async def decisions(*events: tuple[EventType, dict[str, Any]]) -> list[ApprovalDecision]:
    """What the service is told of `events`."""
    kept = KeptRecords()
    reporter = ApprovalReporter(kept)
    emitter = Emitter(time=MACHINE.time, session_id="s", workspace_id="w", tenant_id="acme", user_id="jo")
    identity = SessionIdentity("s", "w", "acme", "jo", {})
    emitter.attach([ApprovalReports(reporter, identity, Scrubber([SECRET]).text, BUILT_IN, MACHINE.time)])
    for kind, payload in events:
        emitter.emit(kind, payload, task_id="t", step_id="step")
    async with asyncio.timeout(10):
        await reporter.aclose(5)
    return kept.decisions


def asked(number: int) -> tuple[EventType, dict[str, Any]]:
    payload = {"approvalId": f"a{number}", "actionSummary": "Run: make", "riskLevel": "medium"}
    return EventType.APPROVAL_REQUESTED, payload


def answered(number: int, reason: str = "yes") -> tuple[EventType, dict[str, Any]]:
    payload = {"approvalId": f"a{number}", "toolCallId": "c", "decision": "approved", "scope": "once", "reason": reason}
    return EventType.APPROVAL_RESOLVED, payload


async def test_an_answer_carries_what_was_asked() -> None:
    (told,) = await decisions(asked(1), answered(1))
    assert (told.approval_id, told.action_summary, told.risk_level) == ("a1", "Run: make", "medium")
    assert (told.session_id, told.workspace_id, told.task_id, told.step_id) == ("s", "w", "t", "step")


@pytest.mark.parametrize(
    "end", [EventType.TASK_CANCELLED, EventType.TASK_FAILED, EventType.SESSION_PAUSED, EventType.TASK_COMPLETED]
)
async def test_a_question_goes_with_the_task_that_asked_it(end: EventType) -> None:
    """It may hold a whole diff, and one that was cancelled is never answered."""
    (told,) = await decisions(asked(1), (end, {}), answered(1))
    assert told.action_summary == ""


async def test_secrets_in_a_reason_stay_here() -> None:
    (told,) = await decisions(asked(1), answered(1, f"use {SECRET}"))
    assert told.reason == "use [redacted]"
