"""The tasks of a session: begun, and gone on with, one at a time on one thread."""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.errors import (
    CheckpointWriteFailed,
    GatewayRejected,
    GatewayUnavailable,
    PolicyExpired,
    TaskAlreadyRunning,
    UsageError,
)
from agent_host.events import EventType
from agent_host.faults.crash import NO_FAULTS, Faults
from agent_host.faults.disk import EXTREMES, SimulatedDisk
from agent_host.states import TaskEnd, TaskPhase
from policy.rules import TaskOptions
from state.records import record_of
from tests.support.loop import Loop, sessions_on
from tests.support.loop_crashes import died
from tests.support.loop_parts import NOW, Tools, bundle, calls, says, shell
from tests.support.task_runner import ended, start, work_on
from tests.unit.state.helpers import unnumbered

if TYPE_CHECKING:
    from pathlib import Path


ALWAYS = TaskOptions(approval_mode="always", allow_network=False)


# Begun


async def test_a_task_is_on_record_and_under_way_at_once(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("Done."), secrets=("s3cret-value",))
    work = work_on(loop)
    assert (work.busy, work.count, work.is_suspended, work.end_on_record()) == (False, 0, False, None)
    start(work, prompt="Use s3cret-value \ud800.", options=ALWAYS)
    assert (work.busy, work.count, work.is_suspended, work.last_end) == (True, 1, False, None)
    task = loop.kept().task
    assert task is not None
    assert (task.task_id, task.prompt, task.max_steps, task.options) == (
        "t", "Use [redacted] ?.", 5, {"approval_mode": "always", "allow_network": False},
    )  # fmt: skip
    assert orjson.loads(loop.kept().thread[-1])["taskId"] == "t"
    assert loop.told(EventType.TASK_STARTED) == [{"maxSteps": 5}]
    assert loop.ctx.judge.options == ALWAYS
    end = await ended(work)
    assert (end.status, end.text, work.last_end, work.end_on_record()) == ("completed", "Done.", end, end)
    assert (work.busy, loop.ctx.phase.state) == (False, TaskPhase.IDLE)
    how = {"verdict": "completed", "endedBy": "model", "retryable": False}
    assert loop.told(EventType.TASK_COMPLETED) == [{"stepCount": 1, "totalTokens": 110, **how}]
    assert loop.kinds()[-2:] == [EventType.TASK_COMPLETED, EventType.ARTIFACT_UPLOADED]
    assert loop.watcher.flushes > 0


async def test_one_task_follows_the_other(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("One."), says("Two."))
    work = work_on(loop)
    start(work)
    with pytest.raises(TaskAlreadyRunning):
        start(work, "second")
    await ended(work)
    with pytest.raises(UsageError, match="has been used"):
        start(work, "t")
    start(work, "second", "Again.")
    assert (await ended(work)).text == "Two."
    assert work.count == 2
    assert [m["content"][0]["text"] for m in loop.model.requests[1]] == ["Do it.", "One.", "Again."]


async def test_a_task_that_waits_for_a_resume_is_in_the_way(tmp_path: Path) -> None:
    work = work_on(Loop(tmp_path, GatewayUnavailable("down")))
    start(work)
    await ended(work)
    assert work.is_suspended
    with pytest.raises(TaskAlreadyRunning, match="resume the session"):
        start(work, "second")


async def test_a_task_that_failed_in_a_way_that_can_be_mended_makes_room(tmp_path: Path) -> None:
    loop = Loop(tmp_path, GatewayRejected("no"), says("Two."))
    work = work_on(loop)
    start(work)
    assert (await ended(work)).resumable
    start(work, "second")
    (earlier,) = loop.kept().earlier_tasks
    assert (earlier.task_id, earlier.status, earlier.reason) == ("t", "failed", "LLM_GATEWAY_ERROR")
    assert (await ended(work)).text == "Two."


async def test_nothing_begins_under_an_expired_policy(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.now = NOW + timedelta(days=1)
    work = work_on(loop)
    with pytest.raises(PolicyExpired):
        start(work)
    assert (loop.kept().task, work.busy) == (None, False)


@pytest.mark.parametrize("persistently", [True, False])
@pytest.mark.parametrize("written", [0.0, 0.5, 1.0])
async def test_a_disk_that_refuses_the_prompt_leaves_no_task_behind(
    tmp_path: Path, written: float, *, persistently: bool
) -> None:
    disk = SimulatedDisk()
    loop = Loop(tmp_path, says("One."), says("Two."), disk=disk)
    work = work_on(loop)
    start(work, "first")
    await ended(work)
    before, events = unnumbered(loop.ctx.state), loop.kinds()
    plan = Faults(fail_call=disk.calls.count + 1, persistently=persistently, code=errno.ENOSPC, written=written)
    disk.calls.faults = plan
    for _ in range(1 + persistently):
        with pytest.raises(CheckpointWriteFailed):
            start(work, options=ALWAYS)
    assert (work.busy, work.is_suspended, work.count, loop.ctx.judge.options) == (False, False, 1, TaskOptions())
    assert (unnumbered(loop.ctx.state), loop.kinds()) == (before, events)
    disk.calls.faults = NO_FAULTS
    start(work, prompt="Again.")
    assert (await ended(work)).text == "Two."
    assert [m["content"][0]["text"] for m in loop.model.requests[1]] == ["Do it.", "One.", "Again."]
    assert [task.task_id for task in loop.kept().earlier_tasks] == ["first"]


async def test_a_resume_finds_no_task_that_was_refused(tmp_path: Path) -> None:
    """Killed with the disk still full, or with the power lost."""
    disk = SimulatedDisk()
    loop = Loop(tmp_path, disk=disk)
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)
    with pytest.raises(CheckpointWriteFailed):
        start(work_on(loop))
    for following in (disk.kill(), *map(disk.crash, EXTREMES.values())):
        again = loop.again(says("Done."), sessions=sessions_on(following))
        work = work_on(again)
        assert (again.ctx.state.task, work.is_suspended) == (None, False)
        start(work)
        assert (await ended(work)).text == "Done."


async def test_a_task_that_waits_for_a_resume_stays_when_the_next_is_refused(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    loop = Loop(tmp_path, GatewayRejected("no"), says("One."), disk=disk)
    work = work_on(loop)
    start(work)
    assert (await ended(work)).resumable
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)
    with pytest.raises(CheckpointWriteFailed):
        start(work, "second")
    disk.calls.faults = NO_FAULTS
    work.continue_task()
    assert (await ended(work)).text == "One."
    assert loop.kept().earlier_tasks == []


# Gone on with


async def test_a_task_goes_on_where_it_stopped(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), GatewayUnavailable("down"))
    work = work_on(loop)
    start(work, options=TaskOptions(allow_network=False))
    await ended(work)
    (paused,) = loop.told(EventType.SESSION_PAUSED)
    assert (paused["reason"], paused["message"]) == ("LLM_GATEWAY_ERROR", "down")
    following = loop.again(says("Done."), policy=bundle(tmp_path, version="v2"))
    work = work_on(following)
    assert (work.is_suspended, work.count, work.end_on_record()) == (True, 1, TaskEnd("cancelled"))
    work.continue_task(max_steps=7)
    assert following.ctx.judge.options == TaskOptions(allow_network=False)
    state = following.kept()
    assert state.task is not None
    assert (state.session_status, state.policy_bundle_version, state.task.max_steps) == ("SESSION_RUNNING", "v2", 7)
    end = await ended(work)
    assert end.text == "Done."
    assert following.told(EventType.SESSION_RESUMED) == [{"resumedFromStep": 1}]
    result = work.result(end)
    assert (result["resumedFromStep"], result["stepCount"], result["text"]) == (1, 2, "Done.")
    assert work.result(TaskEnd("failed")) is result, "the same whenever it is asked for"


async def test_without_a_task_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no task"):
        work_on(Loop(tmp_path)).continue_task()


@pytest.mark.parametrize(("turn", "status"), [(says("Done."), "completed"), (says("No.", stop="refusal"), "failed")])
async def test_the_end_of_a_task_that_is_over_is_told_again(tmp_path: Path, turn: object, status: str) -> None:
    loop = Loop(tmp_path, turn)  # type: ignore[arg-type]  # a turn
    work = work_on(loop)
    start(work)
    first = await ended(work)
    following = loop.again()
    work = work_on(following)
    work.continue_task()
    end = await ended(work)
    assert (end.status, end.text, end.reason) == (status, first.text, first.reason)
    assert (following.model.requests, following.kinds()[-1]) == ([], loop.kinds()[-1])
    assert following.told(EventType.SESSION_RESUMED) == []


async def test_the_model_is_told_that_the_session_has_moved(tmp_path: Path) -> None:
    loop = await died(tmp_path, shell("one"))
    loop.ctx.state.identity.options["workspace"] = "/elsewhere"
    loop.ctx.journal.store.compact()
    following = loop.again(says("Done."), tools=Tools())
    work = work_on(following)
    work.continue_task()
    await ended(work)
    assert following.model.requests[0][-1]["content"][0]["text"].splitlines()[1] == str(tmp_path)


async def test_a_task_that_ends_with_an_answer_is_not_asked_like_that(tmp_path: Path) -> None:
    """A crash may leave a task that was opened again for a denied call, and no more."""
    loop = Loop(tmp_path, says("Done."))
    work = work_on(loop)
    start(work)
    await ended(work)
    loop.ctx.journal.record(record_of("task_reopened", {"maxSteps": 5}))
    following = loop.again(says("Still done."))
    following.ctx.state.identity.options["workspace"] = following.folder
    work = work_on(following)
    work.continue_task()
    assert (await ended(work)).text == "Still done."
    assert "Nothing was done since your last answer" in following.model.requests[0][-1]["content"][0]["text"]


async def test_a_denied_call_opens_its_task_again(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("make")), says("Could not."), policy=bundle(tmp_path, asks=["Shell.Exec"]))
    work = work_on(loop)
    start(work)
    end = await ended(work)
    (denied,) = work.result(end)["deniedApprovals"]
    following = loop.again(says("Done now."))
    work = work_on(following)
    with pytest.raises(UsageError, match="no denied call"):
        work.continue_task(replay_ids=["replay_0"], more_steps=3)
    work.continue_task(replay_ids=[denied["replay"]["id"]], more_steps=3)
    assert following.ctx.task.max_steps == 2 + 3
    end = await ended(work)
    assert (end.text, following.tools.ran, work.result(end)["deniedApprovals"]) == ("Done now.", ["make"], [])
