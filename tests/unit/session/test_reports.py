"""What is told of a session to those who ask: its state, and the result of a task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent_host.session.reports import result_object, session_state
from agent_host.states import SessionStatus, TaskEnd
from state.checkpoint import TokenUsage
from state.records import record_of
from tests.support.loop import Loop
from tests.support.loop_parts import Person, bundle, call, calls, says, settled, shell

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.states import EndStatus


def test_a_session_without_a_task(tmp_path: Path) -> None:
    loop = Loop(tmp_path, policy=bundle(tmp_path, max_session=500))
    assert session_state(loop.ctx, SessionStatus.RUNNING, []) == {
        "sessionId": "s",
        "sessionStatus": "SESSION_RUNNING",
        "verdict": "running",
        "tokenUsage": {
            "inputTokens": 0, "outputTokens": 0, "totalTokens": 0, "remaining": 500, "maxSessionTokens": 500,
        },
        "pendingApprovals": [],
    }  # fmt: skip


async def test_a_task_that_waits_for_somebody(tmp_path: Path) -> None:
    person = Person(lambda _: None)
    policy = bundle(tmp_path, asks=["Shell.Exec"], max_session=500)
    loop = Loop(tmp_path, calls(shell("make")), says(), gate=person, policy=policy)
    running = asyncio.ensure_future(loop.run())
    await settled()
    told = session_state(loop.ctx, SessionStatus.RUNNING, person.pending_approvals.rows())
    assert told["task"] == {"taskId": "t", "status": "WAITING_FOR_APPROVAL", "stepCount": 0, "maxSteps": 10}
    assert told["pendingApprovals"] == person.pending_approvals.rows()
    assert told["tokenUsage"] == {
        "inputTokens": 100, "outputTokens": 10, "totalTokens": 110, "remaining": 390, "maxSessionTokens": 500,
    }  # fmt: skip
    person.pending_approvals.decide(person.asked[0].approval_id, approved=False)
    await running


async def test_used_up_is_not_less_than_nothing(tmp_path: Path) -> None:
    loop = Loop(tmp_path, policy=bundle(tmp_path, max_session=5))
    loop.ctx.state.usage = TokenUsage(7)
    assert session_state(loop.ctx, SessionStatus.RUNNING, [])["tokenUsage"]["remaining"] == 0


@pytest.mark.parametrize(
    ("on_record", "told"),
    [
        ("running", "TASK_RUNNING"),
        ("completed", "TASK_COMPLETED"),
        ("failed", "TASK_FAILED"),
        ("cancelled", "TASK_CANCELLED"),
    ],
)
def test_a_task_that_is_not_at_work_is_as_it_is_on_record(tmp_path: Path, on_record: str, told: str) -> None:
    loop = Loop(tmp_path)
    loop.begin()
    loop.ctx.journal.record(record_of("task_ended", {"status": on_record}))
    loop.ctx.phase.fire("suspend")
    assert session_state(loop.ctx, SessionStatus.PAUSED, [])["task"]["status"] == told


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("completed", "TASK_COMPLETED"),
        ("failed", "TASK_FAILED"),
        ("cancelled", "TASK_CANCELLED"),
        ("paused", "SESSION_PAUSED"),
    ],
)
async def test_the_result_of_a_task(tmp_path: Path, status: EndStatus, told: str) -> None:
    verdict = "denied" if status == "completed" else status  # a call could not be approved
    turn = calls(shell("make"), call("Teleport"))
    loop = Loop(tmp_path, turn, calls(call("HttpRequest", url="https://example.com/")), says("Done."),
                policy=bundle(tmp_path, asks=["Shell.Exec"]))  # fmt: skip
    await loop.run()
    result = result_object(loop.ctx, TaskEnd(status, "why", text="Done."), resumed_from_step=2, duration_ms=7)
    (denied,) = result.pop("deniedApprovals")
    ran_ms = result["tools"]["HttpRequest"]["durationMs"]
    assert loop.ctx.task.tool_ms == {"HttpRequest": ran_ms}
    assert (denied["toolName"], denied["replay"]["request"]["arguments"]) == ("RunCommand", {"command": "make"})
    assert result == {
        "sessionId": "s",
        "taskId": "t",
        "status": told,
        "reason": "why",
        "text": "Done.",
        "stepCount": 3,
        "usage": {"inputTokens": 300, "outputTokens": 30, "cachedInputTokens": 0},
        "toolCalls": [
            {"toolName": "RunCommand", "status": "denied", "code": "APPROVAL_REQUIRED"},
            {"toolName": "Teleport", "status": "failed", "code": "TOOL_NOT_FOUND"},
            {"toolName": "HttpRequest", "status": "succeeded"},
        ],
        "tools": {
            "RunCommand": {"calls": 1, "failed": 0, "denied": 1, "durationMs": 0},
            "Teleport": {"calls": 1, "failed": 1, "denied": 0, "durationMs": 0},
            "HttpRequest": {"calls": 1, "failed": 0, "denied": 0, "durationMs": ran_ms},
        },
        "resumedFromStep": 2,
        "durationMs": 7,
        "message": None,
        "verdict": verdict,
        "endedBy": "policy" if status == "completed" else "infrastructure",
        "retryable": False,
        "model": "m",
        "filesChanged": [],
    }
