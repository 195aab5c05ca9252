"""Calls that a crash left open with a question or an answer: asked as before, and not twice."""

from __future__ import annotations

import asyncio
import errno
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.faults.crash import Faults
from agent_host.faults.disk import SimulatedDisk
from tests.support.loop import Loop
from tests.support.loop_crashes import died, killed_before, open_calls, resumed
from tests.support.loop_parts import NO, NOW, Person, Tools, bundle, calls, read, says, says_yes, shell

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.approval import ApprovalRequest
    from agent_host.thread.messages import ToolCall
    from policy.bundle import PolicyBundle

UNKNOWN = "TOOL_INTERRUPTED: the process ended; whether it took effect is unknown: inspect before you try again"


def asks(folder: Path, **more: Any) -> PolicyBundle:
    return bundle(folder, asks=["Shell.Exec"], **more)


async def answered(folder: Path, gate: Person | None, *turn: ToolCall, **more: Any) -> Loop:
    """What follows on a process that died after the answer was on record and before anything came of it."""
    disk = SimulatedDisk()
    loop = Loop(folder, calls(*turn), gate=gate, policy=asks(folder), disk=disk)
    sessions = await killed_before(loop, disk, "call_started", "call_finished")
    return Loop(folder, says(), sessions=sessions, **{"policy": asks(folder), **more})


async def test_what_was_approved_is_not_asked_again(tmp_path: Path) -> None:
    gate = Person(lambda _: NO)
    following = await answered(tmp_path, says_yes(), shell("make"))
    following = await resumed(following, gate=gate)
    assert (gate.asked, following.tools.ran) == ([], ["make"])
    (told,) = following.told(EventType.APPROVAL_RESOLVED)
    assert (told["decision"], told["latencyMs"]) == ("approved", 0)
    assert following.told(EventType.TOOL_REQUESTED)[0]["decision"] == "APPROVAL_REQUIRED"


async def test_what_was_denied_is_not_run_even_where_policy_allows_it_by_now(tmp_path: Path) -> None:
    loop = await answered(tmp_path, Person(lambda _: NO), shell("make"))
    following = await resumed(loop, gate=says_yes(), policy=bundle(tmp_path))
    assert (following.tools.ran, following.texts()) == ([], ["APPROVAL_DENIED: not today"])


@pytest.mark.parametrize("asks_still", [True, False])
async def test_that_nobody_was_there_counts_as_long_as_policy_asks(tmp_path: Path, *, asks_still: bool) -> None:
    loop = await answered(tmp_path, None, shell("make"))
    gate = says_yes()
    following = await resumed(loop, gate=gate, policy=asks(tmp_path) if asks_still else bundle(tmp_path))
    assert gate.asked == []
    assert following.tools.ran == ([] if asks_still else ["make"])
    assert [answer.code for answer in following.answers()] == ["APPROVAL_REQUIRED" if asks_still else "ok"]
    assert len(following.ctx.task.denied) == asks_still


async def test_what_was_approved_with_other_arguments_runs_with_those(tmp_path: Path) -> None:
    first = Person(lambda _: {"approved": True, "arguments": {"command": "make -n"}})
    gate = Person(lambda _: NO)
    following = await resumed(await answered(tmp_path, first, shell("make")), gate=gate)
    assert (following.tools.ran, gate.asked) == (["make -n"], [])
    assert following.texts()[0].endswith('with: {"command":"make -n"}]\nok')
    (told,) = following.told(EventType.TOOL_REQUESTED)
    assert (told["edited"], told["summary"]) == (True, "make -n")


async def test_what_becomes_of_an_edited_call_that_was_cut_off_is_told_with_its_arguments(tmp_path: Path) -> None:
    gate = Person(lambda _: {"approved": True, "arguments": {"command": "make -n"}})
    following = await resumed(await died(tmp_path, shell("make"), gate=gate, policy=asks(tmp_path)))
    assert following.texts()[0].endswith(f'with: {{"command":"make -n"}}]\n{UNKNOWN}')
    assert following.tools.leftovers[0].arguments == {"command": "make -n"}


async def test_an_approval_under_another_policy_is_asked_for_again_under_an_id_of_its_own(tmp_path: Path) -> None:
    loop = await answered(tmp_path, says_yes(), shell("ls"))
    former = open_calls(loop)[0].approval_id
    gate = says_yes()
    changed = asks(tmp_path, ShellExec={"blocked_commands": ("rm",)})
    following = await resumed(loop, gate=gate, policy=changed)
    (question,) = gate.asked
    assert question.approval_id != former
    assert following.tools.ran == ["ls"]


async def test_a_question_that_was_open_is_asked_again_under_its_id(tmp_path: Path) -> None:
    first = Person(lambda _: None)
    loop = Loop(tmp_path, calls(shell("make")), gate=first, policy=asks(tmp_path))
    running = asyncio.ensure_future(loop.run())
    while not first.asked:  # noqa: ASYNC110  every round lets the loop go on
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate = says_yes()
    following = await resumed(loop, gate=gate)
    assert [question.approval_id for question in gate.asked] == [first.asked[0].approval_id]
    assert following.tools.ran == ["make"]


async def test_what_policy_asks_only_now_has_its_id_on_record_before_anybody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    loop = await died(tmp_path, read(tmp_path / "a"))
    kept: list[Any] = []

    def say(request: ApprovalRequest) -> dict[str, Any]:
        step = following.kept().open_step
        kept.extend([request.approval_id] if step is None else [request.approval_id, step.calls[0].approval_id])
        return {"approved": True}

    following = loop.again(says(), gate=Person(say), policy=bundle(tmp_path, asks=["File.Read"]), tools=Tools())
    assert (await following.run()).status == "completed"
    assert kept[0] == kept[1]
    assert following.texts() == ["text"]


async def test_a_disk_that_cannot_take_a_new_question_pauses_the_task(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    (tmp_path / "a").write_text("text")
    loop = await died(tmp_path, read(tmp_path / "a"), disk=disk)
    gate = says_yes()
    following = loop.again(gate=gate, policy=bundle(tmp_path, asks=["File.Read"]), tools=Tools())
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)
    end = await following.run()
    assert (end.status, end.reason, gate.asked) == ("paused", "CHECKPOINT_WRITE_FAILED", [])


async def test_an_expired_policy_answers_what_is_left_and_pauses(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    loop = await died(tmp_path, read(tmp_path / "a"))
    following = loop.again(tools=Tools())
    following.now = NOW + timedelta(days=2)
    end = await following.run()
    assert (end.status, end.reason) == ("paused", "POLICY_EXPIRED")
    assert [answer.code for answer in following.answers()] == ["POLICY_EXPIRED"]
