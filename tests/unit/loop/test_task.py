"""How a task goes on and ends: what each fault does to it, and what is on record then (AH 4.6)."""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.errors import (
    AgentHostError,
    CheckpointWriteFailed,
    GatewayRejected,
    GatewayUnavailable,
    GuardrailBlocked,
    UsageError,
)
from agent_host.events import EventType
from agent_host.faults.crash import NO_FAULTS, Faults
from agent_host.faults.disk import SimulatedDisk
from agent_host.loop import ResumeNote
from agent_host.states import TaskPhase
from tests.support.loop import Loop
from tests.support.loop_parts import NOW, Tools, bundle, calls, do, says, shell

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult

PAUSED, FAILED = ("paused", True), ("failed", True)
OVER = ("failed", False)


def last_text(loop: Loop) -> str:
    """The last text block of the last request."""
    return str(loop.model.requests[-1][-1]["content"][-1]["text"])


def fail(disk: SimulatedDisk) -> None:
    """The disk is full from here on."""
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)


# Faults of the infrastructure


@pytest.mark.parametrize(
    ("error", "how", "reason"),
    [
        (GatewayUnavailable("down"), PAUSED, "LLM_GATEWAY_ERROR"),
        (CheckpointWriteFailed("full"), PAUSED, "CHECKPOINT_WRITE_FAILED"),
        (GatewayRejected("no such model"), FAILED, "LLM_GATEWAY_ERROR"),
        (GatewayRejected("denied", code="UNAUTHORIZED"), FAILED, "UNAUTHORIZED"),
        (UsageError("no token"), FAILED, "INVALID_REQUEST"),
        (GuardrailBlocked("not that"), OVER, "LLM_GUARDRAIL_BLOCKED"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AgentHostError) else None,
)
async def test_what_a_model_call_that_fails_does_to_the_task(
    tmp_path: Path, error: AgentHostError, how: tuple[str, bool], reason: str
) -> None:
    loop = Loop(tmp_path, calls(shell("make")), error)
    records = loop.watch_records()
    end = await loop.run()
    kind, fields = records[-1]
    assert (kind, fields["reason"]) == ("session_status" if end.resumable else "task_ended", reason)
    assert ((end.status, end.resumable), end.reason, end.message) == (how, reason, str(error))
    assert loop.ctx.task.step_count == 1
    assert loop.ctx.phase.state is (TaskPhase.IDLE if how == PAUSED else TaskPhase.FAILED)
    session = "SESSION_PAUSED" if how == PAUSED else "SESSION_RUNNING"
    assert loop.on_record() == ("running" if end.resumable else "failed", session)
    if not end.resumable:
        assert loop.kept().task == loop.ctx.task
        assert loop.ctx.task.reason == reason
        return
    resumed = loop.again(says("Done."))
    assert (await resumed.run()).text == "Done."
    assert resumed.tools.ran == []


async def test_an_expired_policy_pauses_before_the_model_is_asked(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says())
    loop.now = NOW + timedelta(days=2)
    end = await loop.run()
    assert (end.status, end.resumable, end.reason) == ("paused", True, "POLICY_EXPIRED")
    assert loop.model.requests == []
    assert loop.kinds().count(EventType.POLICY_EXPIRED) == 1
    assert loop.on_record() == ("running", "SESSION_PAUSED")


async def test_a_policy_that_expires_in_the_middle_of_a_step_lets_the_step_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one"), shell("two")), says())

    def expire() -> None:
        loop.now = NOW + timedelta(days=2)

    loop.model.at_request = expire
    end = await loop.run()
    assert (end.status, end.reason) == ("paused", "POLICY_EXPIRED")
    assert [answer.code for answer in loop.answers()] == ["POLICY_EXPIRED"] * 2
    assert loop.finished() == [("RunCommand", "denied", "POLICY_EXPIRED")] * 2
    assert (loop.tools.ran, len(loop.model.requests)) == ([], 1)
    assert loop.ctx.state.open_step is None
    assert loop.told(EventType.POLICY_EXPIRED) == [{"toolCallId": answer.call_id} for answer in loop.answers()]
    resumed = loop.again(says("Done."))
    assert (await resumed.run()).status == "completed"


async def test_a_model_that_policy_does_not_allow_ends_the_task(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says(), policy=bundle(tmp_path, without=["LLM.Call"]))
    end = await loop.run()
    assert (end.status, end.resumable, end.reason) == ("failed", False, "CAPABILITY_DENIED")
    assert loop.on_record() == ("failed", "SESSION_RUNNING")


async def test_tokens_that_are_used_up_end_the_task(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), says(), policy=bundle(tmp_path, max_session=150))
    end = await loop.run()
    assert (end.status, end.resumable, end.reason) == ("failed", False, "LLM_BUDGET_EXCEEDED")
    assert len(loop.model.requests) == 1
    assert loop.on_record() == ("failed", "SESSION_RUNNING")


async def test_a_disk_that_refuses_the_turn_pauses_before_anything_runs(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    loop = Loop(tmp_path, calls(shell("make")), disk=disk)
    loop.model.at_request = lambda: fail(disk)
    end = await loop.run()
    assert (end.status, end.resumable, end.reason) == ("paused", True, "CHECKPOINT_WRITE_FAILED")
    assert loop.tools.ran == []
    assert loop.ctx.phase.state is TaskPhase.IDLE
    disk.calls.faults = NO_FAULTS
    resumed = loop.again(says("Done."))
    assert (await resumed.run()).status == "completed"
    assert (loop.tools.ran + resumed.tools.ran).count("make") <= 1


async def test_a_blocked_prompt_is_told_to_the_model_when_it_is_asked_again(tmp_path: Path) -> None:
    loop = Loop(tmp_path, GuardrailBlocked("no such words"), says())
    await loop.run()
    loop.ctx.phase.fire("settle")
    loop.begin("second", "Again.")
    await loop.run()
    said = [block["text"] for message in loop.model.requests[-1] for block in message["content"]]
    assert said == ["Do it.", "[The previous request was blocked by the gateway: no such words]", "Again."]


async def test_a_secret_that_the_gateway_quotes_is_not_told(tmp_path: Path) -> None:
    error = GatewayRejected("bad key s3cret-value", code="s3cret-value")
    loop = Loop(tmp_path, error, secrets=("s3cret-value",))
    end = await loop.run()
    assert (end.message, end.reason) == ("bad key [redacted]", "[redacted]")


async def test_a_fault_of_the_program_leaves_the_task_open_on_record(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make")), ZeroDivisionError("oops"))
    with pytest.raises(ZeroDivisionError):
        await loop.run()
    assert loop.on_record() == ("running", "SESSION_RUNNING")
    assert (await loop.again(says("Done.")).run()).status == "completed"


async def test_only_what_passes_is_tried_again(tmp_path: Path) -> None:
    loop = Loop(tmp_path, GatewayUnavailable("down", retry_after_s=0.0), says("Done."))
    loop.ctx.conversation.retry = loop.ctx.conversation.retry._replace(retries=1)
    assert (await loop.run()).text == "Done."
    (told,) = loop.told(EventType.LLM_RETRY)
    assert told == {"attempt": 1, "waitMs": 0, "message": "down"}
    rejected = loop.again(GatewayRejected("no"), says("Done."))
    rejected.begin("second")
    rejected.ctx.conversation.retry = loop.ctx.conversation.retry
    assert (await rejected.run()).status == "failed"


# Steps


@pytest.mark.parametrize("steps", [1, 3])
async def test_a_task_ends_when_its_steps_are_used_up(tmp_path: Path, steps: int) -> None:
    loop = Loop(tmp_path, *[calls(shell(f"step {number}")) for number in range(5)])
    end = await loop.run(max_steps=steps)
    assert (end.status, end.reason, end.resumable) == ("failed", "max_steps_exceeded", False)
    assert f"after {steps} step{'s' if steps > 1 else ''} (" in str(end.message)
    assert "resume" in str(end.message)
    assert (len(loop.tools.ran), len(loop.answers())) == (steps, steps)
    assert loop.ctx.task.reason == "max_steps_exceeded"
    warned = [{"stepCount": 2, "maxSteps": 3}] if steps == 3 else []
    assert loop.told(EventType.STEP_LIMIT_APPROACHING) == warned
    assert loop.ctx.phase.state is TaskPhase.FAILED


async def test_a_task_that_is_done_with_its_last_step_is_complete(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), says("Done."))
    end = await loop.run(max_steps=2)
    assert (end.status, end.text, end.reason, end.resumable) == ("completed", "Done.", None, False)
    assert loop.on_record() == ("completed", "SESSION_RUNNING")
    assert loop.ctx.phase.state is TaskPhase.COMPLETED


async def test_a_refusal_ends_the_task_and_none_of_its_calls_run(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make"), text="No.", stop="refusal"))
    end = await loop.run()
    assert (end.status, end.reason, end.resumable) == ("failed", "LLM_GUARDRAIL_BLOCKED", False)
    assert (loop.tools.ran, loop.ctx.task.status, loop.ctx.task.reason) == ([], "failed", "LLM_GUARDRAIL_BLOCKED")
    assert loop.ctx.state.open_step is None


async def test_news_are_told_once_and_before_the_next_turn(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), says())
    await loop.run(resume_note=ResumeNote("[It moved.]"))
    texts = [[block.get("text") for block in message["content"]] for message in loop.model.requests[-1]]
    assert texts == [["Do it."], ["[It moved.]"], [None], [None]]


async def test_news_wait_until_the_open_step_is_over(tmp_path: Path) -> None:
    def crash(request: ToolRequest) -> ToolResult:
        raise ZeroDivisionError

    loop = Loop(tmp_path, calls(shell("one")), tools=Tools(crash))
    with pytest.raises(ZeroDivisionError):
        await loop.run()
    resumed = loop.again(says("Done."), tools=Tools(do))
    await resumed.run(resume_note=ResumeNote("[It moved.]"))
    assert last_text(resumed) == "[It moved.]"
    assert [answer.code for answer in resumed.answers()] == ["TOOL_INTERRUPTED"]


async def test_the_model_is_told_that_the_record_was_damaged(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says())
    loop.ctx.state.salvaged = "the tail was torn"
    await loop.run(resume_note=ResumeNote("[It moved.]"))
    told = [message["content"][0]["text"] for message in loop.model.requests[0]]
    assert "was damaged on disk" in told[1]
    assert told[2] == "[It moved.]"
    assert loop.kept().salvaged is None


async def test_the_end_of_a_task_is_on_record_with_its_last_step(tmp_path: Path) -> None:
    """A crash between the two would have the model asked again."""
    disk = SimulatedDisk()
    loop = Loop(tmp_path, says("Done."), disk=disk)
    seen: list[str] = []
    write = disk.write

    def watched(fd: int, data: bytes) -> None:
        write(fd, data)
        task = loop.kept().task
        assert task is not None
        seen.append(f"{task.status} after {task.step_count}")

    disk.write = watched  # type: ignore[method-assign]  # looks at each state that a crash could leave
    await loop.run()
    assert list(dict.fromkeys(seen)) == ["running after 0", "completed after 1"]


async def test_where_a_task_stands_while_it_is_at_work(tmp_path: Path) -> None:
    stands: list[TaskPhase] = []

    def look(request: ToolRequest) -> ToolResult:
        stands.append(loop.ctx.phase.state)
        return do(request)

    loop = Loop(tmp_path, calls(shell("one")), says("Do", stop="max_tokens"), says("ne."), tools=Tools(look))
    loop.model.at_request = lambda: stands.append(loop.ctx.phase.state)
    await loop.run()
    asked, works = TaskPhase.WAITING_FOR_LLM, TaskPhase.EXECUTING_TOOLS
    assert stands == [asked, works, asked, asked]
    assert loop.ctx.phase.state is TaskPhase.COMPLETED


async def test_what_is_kept_of_a_step_says_which_it_is_of(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), says("Do", stop="max_tokens"), says("ne."))
    await loop.run()
    first, second, third = (payload["stepId"] for payload in loop.told(EventType.STEP_STARTED))
    kept = [orjson.loads(data) for data in loop.kept().thread[1:]]
    assert [message.get("stepId") for message in kept] == [None, first, first, second, None, third]
    assert {(message["sessionId"], message["taskId"]) for message in kept} == {("s", "t")}
