"""Denied calls that a person approved afterwards: one more step, which the host speaks for the model (SK 4.3)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.events import EventType
from agent_host.faults.crash import Faults
from agent_host.faults.disk import SimulatedDisk
from agent_host.loop import Replay
from policy.rules import TaskOptions
from state.records import record_of
from tests.support.loop import Loop
from tests.support.loop_crashes import killed_before, resumed
from tests.support.loop_parts import NO, Person, Tools, bundle, calls, do, says, shell, write
from tests.support.records import answered

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.thread.messages import ToolCall

NEVER = TaskOptions(approval_mode="never")


async def denied(folder: Path, *turn: ToolCall, **more: Any) -> Loop:
    """A process after a task whose calls were denied since nobody was there; the task is open again."""
    policy = bundle(folder, asks=["Shell.Exec", "File.Write"])
    loop = Loop(folder, calls(*turn), says("Could not."), policy=policy, **more)
    await loop.run()
    assert len(loop.ctx.task.denied) == len(turn)
    following = loop.again(says("Done now."), gate=Person(lambda _: NO), **more)
    following.ctx.journal.record(record_of("task_reopened", {"maxSteps": 5}))
    return following


def replay(call: ToolCall, *others: ToolCall) -> Replay:
    return Replay("replay_1", call, (call.call_id, *(other.call_id for other in others)))


async def test_the_call_runs_without_a_question_and_the_task_goes_on(tmp_path: Path) -> None:
    wanted = shell("make")
    loop = await denied(tmp_path, wanted, shell("ls"))
    end = await loop.run(replays=[replay(wanted)])
    assert (end.status, end.text, loop.tools.ran) == ("completed", "Done now.", ["make"])
    assert [row["replay"]["callId"] for row in loop.ctx.task.denied] != [wanted.call_id]
    assert len(loop.ctx.task.denied) == 1
    assert (loop.told(EventType.APPROVAL_REQUESTED), loop.ctx.task.step_count) == ([], 4)
    (resolved,) = loop.told(EventType.APPROVAL_RESOLVED)
    assert (resolved["decision"], resolved["reason"]) == ("approved", "approved by --approve replay_1")
    assert [event["stepCount"] for event in loop.told(EventType.STEP_STARTED)] == [3, 4]
    (answer,) = [one for one in loop.answers() if one.text == "ok"]
    assert answer.call_id != wanted.call_id
    *_, note, turn, results = loop.model.requests[0]
    assert "The user has approved them now" in note["content"][0]["text"]
    assert [block.get("text") or block["input"] for block in turn["content"]] == [
        "(approved by the user)", {"command": "make"},
    ]  # fmt: skip
    assert results["content"][0]["content"] == "ok"


async def test_one_run_makes_good_for_all_calls_that_were_the_same(tmp_path: Path) -> None:
    first, second = shell("make"), shell("make")
    loop = await denied(tmp_path, first, second)
    await loop.run(replays=[replay(first, second)])
    assert (loop.tools.ran, loop.ctx.task.denied) == (["make"], [])


async def test_turn_and_approvals_are_on_record_before_the_first_call_starts(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(request: ToolRequest) -> ToolResult:
        step, task = loop.kept().open_step, loop.kept().task
        assert step is not None
        assert task is not None
        seen.append([((answered(call) or {})["approved"], call.gated) for call in step.calls])
        seen.append((len(task.denied), task.usage.input_tokens))
        return do(request)

    first, second = shell("make"), shell("ls")
    loop = await denied(tmp_path, first, second)
    used = loop.ctx.task.usage.input_tokens
    loop.tools.run = look
    await loop.run(replays=[replay(first), replay(second)])
    assert seen[:2] == [[(True, True)] * 2, (0, used)]


async def test_a_write_keeps_the_first_version(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    wanted = write(path, "new")
    loop = await denied(tmp_path, wanted)
    await loop.run(replays=[replay(wanted)])
    assert path.read_text() == "new"
    (name,) = loop.ctx.task.baselines.values()
    assert loop.ctx.journal.store.kept(str(name)) == b"old"


async def test_policy_has_the_last_word(tmp_path: Path) -> None:
    wanted = shell("ls")
    loop = await denied(tmp_path, wanted)
    loop.ctx.judge.bundle = bundle(tmp_path, asks=["Shell.Exec"], ShellExec={"blocked_commands": ("ls",)})
    await loop.run(replays=[replay(wanted)])
    assert (loop.tools.ran, loop.answers()[-1].code) == ([], "CAPABILITY_DENIED")


async def test_what_policy_allows_by_now_runs_with_no_approval_told(tmp_path: Path) -> None:
    wanted = write(tmp_path / "a", "new")
    loop = await denied(tmp_path, wanted)
    loop.ctx.judge.bundle = bundle(tmp_path)
    await loop.run(replays=[replay(wanted)])
    assert (tmp_path / "a").read_text() == "new"
    assert loop.told(EventType.APPROVAL_RESOLVED) == []
    assert loop.ctx.task.baselines == {str(tmp_path / "a"): None}


async def test_a_task_that_asks_nobody_may_have_its_calls_approved_all_the_same(tmp_path: Path) -> None:
    wanted = shell("make")
    loop = await denied(tmp_path, wanted, options=NEVER)
    await loop.run(replays=[replay(wanted)])
    assert loop.tools.ran == ["make"]


async def test_a_crash_before_the_call_starts_runs_it_once_and_asks_nobody(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    wanted = shell("make")
    loop = await denied(tmp_path, wanted, disk=disk)
    run = loop.run

    async def with_replay(**_: Any) -> Any:
        return await run(replays=[replay(wanted)])

    loop.run = with_replay  # type: ignore[method-assign]  # what is to be killed
    sessions = await killed_before(loop, disk, "call_started")
    gate = Person(lambda _: NO)
    left = Loop(tmp_path, sessions=sessions, policy=loop.ctx.judge.bundle)
    following = await resumed(left, gate=gate)
    assert (following.tools.ran, gate.asked, following.ctx.task.denied) == (["make"], [], [])


async def test_a_disk_that_refuses_the_turn_pauses_before_the_call(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    wanted = shell("make")
    loop = await denied(tmp_path, wanted, disk=disk)
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)
    end = await loop.run(replays=[replay(wanted)])
    assert (end.status, end.reason, loop.tools.ran) == ("paused", "CHECKPOINT_WRITE_FAILED", [])


async def test_what_the_host_says_counts_for_the_window_and_not_for_the_budget(tmp_path: Path) -> None:
    wanted = shell("make")
    loop = await denied(tmp_path, wanted)
    before = loop.ctx.state.usage.total, loop.ctx.conversation.thread.tokens
    loop.model.turns = [says("Done now.")]
    await loop.run(replays=[replay(wanted)])
    assert loop.ctx.state.usage.total == before[0] + 110
    said = [orjson.loads(data) for data in loop.ctx.state.thread if b"(approved by the user)" in data]
    assert said[0]["tokenCount"] > 12
    assert loop.ctx.conversation.thread.tokens > before[1] + said[0]["tokenCount"]


async def test_tools_that_are_used_again_do_not_share_ids(tmp_path: Path) -> None:
    wanted = shell("make", "same")
    loop = await denied(tmp_path, wanted, tools=Tools())
    await loop.run(replays=[replay(wanted)])
    ids = [answer.call_id for answer in loop.answers()]
    assert len(set(ids)) == len(ids) == 2
