"""A task that is asked to stop, in each of its phases: for now, and for good (AH 4.5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent_host.loop.progress import TaskCancelled
from agent_host.states import TaskPhase
from tests.support.loop import Loop
from tests.support.loop_parts import Person, Tools, bundle, calls, do, read, says, settled, shell, succeeded

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult


@pytest.mark.parametrize("resumable", [True, False])
class TestCancelled:
    """A stop in each phase: for now, and for good."""

    async def check(self, loop: Loop, *, resumable: bool) -> None:
        end = await loop.run()
        assert (end.status, end.reason, end.resumable) == ("cancelled", "cancelled", resumable)
        assert loop.on_record() == ("running" if resumable else "cancelled", "SESSION_RUNNING")
        assert loop.ctx.phase.state is (TaskPhase.IDLE if resumable else TaskPhase.CANCELLED)

    async def test_before_the_model_is_asked(self, tmp_path: Path, *, resumable: bool) -> None:
        loop = Loop(tmp_path, says())
        loop.ctx.cancellation.request(resumable=resumable)
        records = loop.watch_records()
        await self.check(loop, resumable=resumable)
        assert (loop.model.requests, loop.kinds()) == ([], [])
        status = "SESSION_RUNNING" if resumable else "cancelled"
        assert records[1:] == [
            ("session_status" if resumable else "task_ended", {"status": status, "reason": "cancelled"})
        ]

    async def test_while_the_model_speaks(self, tmp_path: Path, *, resumable: bool) -> None:
        loop = Loop(tmp_path, says())

        async def never() -> None:
            asyncio.get_running_loop().call_soon(lambda: loop.ctx.cancellation.request(resumable=resumable))
            await asyncio.Event().wait()

        loop.model.at_request = never
        await self.check(loop, resumable=resumable)
        assert loop.ctx.task.step_count == 0

    async def test_while_tools_run(self, tmp_path: Path, *, resumable: bool) -> None:
        def stop(request: ToolRequest) -> ToolResult:
            loop.ctx.cancellation.request(resumable=resumable)
            return do(request)

        loop = Loop(tmp_path, calls(shell("one")), says(), tools=Tools(stop))
        await self.check(loop, resumable=resumable)
        assert loop.finished() == [("RunCommand", "succeeded", None)]
        assert (loop.ctx.task.step_count, len(loop.model.requests)) == (1, 1)


async def test_a_stop_while_somebody_is_asked_answers_the_call(tmp_path: Path) -> None:
    person = Person(lambda _: None)
    policy = bundle(tmp_path, asks=["Shell.Exec"])
    loop = Loop(tmp_path, calls(shell("one")), gate=person, policy=policy)
    running = asyncio.ensure_future(loop.run())
    await settled()
    assert loop.ctx.phase.state is TaskPhase.WAITING_FOR_APPROVAL
    loop.ctx.cancellation.request(resumable=False)
    end = await running
    assert (end.status, end.resumable) == ("cancelled", False)
    (answer,) = loop.answers()
    assert answer.text == "TOOL_INTERRUPTED: not started: the task was cancelled before anybody approved it"
    assert loop.tools.ran == []


async def test_a_call_that_a_stop_for_now_left_open_keeps_the_task_open_whatever_follows(tmp_path: Path) -> None:
    """It has no result yet, so only another run of the loop can end the task, and the thread with it."""
    go_on = asyncio.Event()

    async def wait(request: ToolRequest) -> ToolResult:
        await go_on.wait()
        return succeeded(request)

    turn = calls(shell("asked"), read(tmp_path / "a"))
    policy = bundle(tmp_path, asks=["Shell.Exec"])
    loop = Loop(tmp_path, turn, gate=Person(lambda _: None), policy=policy, tools=Tools(wait))
    running = asyncio.ensure_future(loop.run())
    await settled()
    loop.ctx.cancellation.request(resumable=True)
    await settled()
    loop.ctx.cancellation.request(resumable=False)
    go_on.set()
    end = await running
    assert (end.status, end.resumable) == ("cancelled", True)
    assert loop.ctx.state.open_step is not None
    assert (await loop.run()).resumable is False  # the stop for good still holds
    assert [(answer.call_id, answer.is_error) for answer in loop.answers()] == [
        (turn.tool_calls[0].call_id, True),
        (turn.tool_calls[1].call_id, False),
    ]


async def test_cancelled_twice_it_is_over_for_good(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says())
    loop.ctx.cancellation.request(resumable=True)
    loop.ctx.cancellation.request(resumable=False)
    assert (await loop.run()).resumable is False
    with pytest.raises(TaskCancelled):
        loop.ctx.cancellation.check()
