"""The task at work, stopped: for now, for good, by force, by a fault of the program."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent_host.errors import (
    NoActiveTask,
)
from agent_host.events import EventType
from agent_host.session.task_runner import TaskRunner
from agent_host.states import session_machine
from tests.support.loop import Loop
from tests.support.loop_crashes import died
from tests.support.loop_parts import Person, Tools, bundle, calls, says, settled, shell, succeeded
from tests.support.task_runner import ended, start, work_on

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult


class Never(Tools):
    """Tools that do not end by themselves."""

    def __init__(self) -> None:
        super().__init__(self.hang)
        self.let_go = asyncio.Event()

    async def hang(self, request: ToolRequest) -> ToolResult:
        await self.let_go.wait()
        return succeeded(request)


@pytest.mark.parametrize("task_id", ["t", "other"])
async def test_only_the_task_at_work_can_be_cancelled(tmp_path: Path, task_id: str) -> None:
    loop = Loop(tmp_path, says())
    work = work_on(loop)
    with pytest.raises(NoActiveTask):
        work.cancel(task_id, force=False, grace_s=0)
    start(work)
    if task_id == "t":
        await ended(work)
    with pytest.raises(NoActiveTask):
        work.cancel(task_id, force=False, grace_s=0)
    assert (await ended(work)).status == "completed"


@pytest.mark.parametrize("force", [True, False])
async def test_a_cancelled_task_is_over_and_the_next_is_not_cancelled(tmp_path: Path, *, force: bool) -> None:
    tools = Never()
    loop = Loop(tmp_path, calls(shell("one")), says("Two."), tools=tools)
    work = work_on(loop)
    start(work)
    await settled()
    work.cancel("t", force=force, grace_s=0)
    await settled()
    assert work.busy != force, "only force ends a tool"
    tools.let_go.set()
    end = await ended(work)
    assert (end.status, end.resumable) == ("cancelled", False)
    assert loop.answers()[0].is_error == force
    assert loop.told(EventType.TASK_CANCELLED)[0]["reason"] == "cancelled"
    start(work, "second")
    assert (await ended(work)).text == "Two."


async def test_a_task_that_waits_for_a_resume_can_be_cancelled(tmp_path: Path) -> None:
    loop = (await died(tmp_path, shell("one"), shell("two"))).again(tools=Tools())
    work = work_on(loop)
    work.cancel("t", force=False, grace_s=0)
    end = await ended(work)
    assert (end.status, end.resumable, loop.on_record()[0]) == ("cancelled", False, "cancelled")
    assert [answer.code for answer in loop.answers()] == ["TOOL_INTERRUPTED"] * 2
    assert loop.tools.ran == []


async def test_a_client_that_leaves_pauses_the_session_and_not_the_task(tmp_path: Path) -> None:
    loop = Loop(
        tmp_path, calls(shell("one")), gate=Person(lambda _: None), policy=bundle(tmp_path, asks=["Shell.Exec"])
    )
    work = work_on(loop)
    start(work)
    await settled()
    work.leaving = True
    work.stop(resumable=True)
    assert (await ended(work)).resumable
    (paused,) = loop.told(EventType.SESSION_PAUSED)
    assert paused["reason"] == "interrupted"
    assert loop.told(EventType.TASK_CANCELLED) == []
    assert work.is_suspended


async def test_a_task_can_be_given_up_like_in_a_crash(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), tools=Never())
    work = work_on(loop)
    await work.give_up()
    start(work)
    assert not await work.idle(0)
    await work.give_up()
    assert not work.busy
    assert (await work.idle(), work.last_end, loop.on_record()[0]) == (True, None, "running")


async def test_a_fault_of_the_program_is_told(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ZeroDivisionError("oops"))
    told: list[BaseException] = []
    life = session_machine()
    life.fire("open")
    work = TaskRunner(loop.ctx, life, told.append)
    start(work)
    with pytest.raises(ZeroDivisionError):
        await ended(work)
    await settled()
    assert [type(error) for error in told] == [ZeroDivisionError]
    assert work.last_end is None


def test_without_a_task_there_is_no_end_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        asyncio.run(work_on(Loop(tmp_path)).await_end())
