"""One step: the model's turn on record before anything follows from it, and its end (AH 4.4)."""

from __future__ import annotations

import errno
import math
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.events import EventType
from agent_host.faults.crash import NO_FAULTS, Faults
from agent_host.faults.disk import NOTHING_SURVIVES, SimulatedDisk
from agent_host.loop.task import add_note, commit, reopen, report_news, take_turn
from agent_host.states import TaskPhase
from agent_host.thread.messages import CONTINUE_NOTE, decode, message_tokens
from state.checkpoint import TokenUsage
from state.disk import boot_id
from tests.support.loop import Loop, sessions_on
from tests.support.loop_crashes import died
from tests.support.loop_parts import MODEL, SESSION, Person, Tools, bundle, call, calls, do, read, says, shell, write

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult
    from state.checkpoint import OpenStep
    from state.file_session import FileSession


def open_step(store: FileSession) -> OpenStep:
    step = store.state.open_step
    assert step is not None
    return step


def begun(folder: Path, *turns: Any, **more: Any) -> Loop:
    loop = Loop(folder, *turns, **more)
    loop.begin()
    return loop


# A turn


async def test_a_turn_with_calls_is_on_record_before_anything_follows(tmp_path: Path) -> None:
    made = shell("make"), read(tmp_path / "a"), write(tmp_path / "b", "x")
    loop = begun(tmp_path, calls(*made, text="Now."))
    step = await take_turn(loop.ctx)
    assert (step.meaning, step.assistant.content, step.assistant.tool_calls) == ("continue", "Now.", made)
    assert step.assistant.tokens > 10, "a gateway that counts too low makes no request longer than it says"
    assert step.calls is not None
    recorded = open_step(loop.ctx.journal.store)
    assert (recorded.step_id, recorded.stop_reason, recorded.boot) == (loop.ctx.step_id, "tool_use", boot_id())
    assert [(one.call_id, one.side_effects) for one in recorded.calls] == [
        (made[0].call_id, True), (made[1].call_id, False), (made[2].call_id, True),
    ]  # fmt: skip
    assert decode(loop.kept().thread[-1]) == step.assistant
    assert loop.kept().baselines == {str(tmp_path / "b"): None}
    assert loop.ctx.state.usage.to_wire() == {"inputTokens": 100, "outputTokens": 10, "cachedInputTokens": 0}
    assert loop.ctx.phase.state is TaskPhase.CHECKING_POLICY
    assert loop.tools.ran == []


async def test_messages_on_record_are_a_tree(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    loop = begun(tmp_path, calls(read(tmp_path / "a"), read(tmp_path / "a")), says("Done."))
    add_note(loop.ctx, "A note.")
    await loop.run()
    wires = [orjson.loads(data) for data in loop.kept().thread]
    assert {wire["branch"] for wire in wires} == {"main"}
    assert ["parentId" in wire for wire in wires[:2]] == [False, False], "the system prompt is no part of the tree"
    ids = [wire["messageId"] for wire in wires]
    note, turn, one, other, last = (wire["parentId"] for wire in wires[2:])
    assert (note, turn) == (ids[1], ids[2])
    assert (one, other) == (ids[3], ids[3]), "results follow their turn"
    assert last == ids[5], "a turn follows the last result"


async def test_what_is_told_of_a_turn(tmp_path: Path) -> None:
    loop = begun(tmp_path, says("Done."))
    await take_turn(loop.ctx)
    started, requested, chunk, completed = loop.watcher.events
    assert (started.event_type, started.payload) == (
        EventType.STEP_STARTED, {"stepId": loop.ctx.step_id, "stepCount": 1},
    )  # fmt: skip
    assert (requested.event_type, requested.payload["model"]) == (EventType.LLM_REQUEST_STARTED, MODEL)
    assert requested.payload["estimatedInputTokens"] == math.ceil(1.25 * loop.ctx.conversation.tokens)
    assert (chunk.event_type, chunk.payload) == (EventType.TEXT_CHUNK, {"text": "Done.", "attempt": 1})
    assert completed.payload == {
        "model": MODEL, "inputTokens": 100, "outputTokens": 10, "cachedInputTokens": 0, "stopReason": "end_turn",
        "latencyMs": completed.payload["latencyMs"],
    }  # fmt: skip
    assert {event.step_id for event in loop.watcher.events} == {loop.ctx.step_id}
    assert loop.ctx.phase.state is TaskPhase.PROCESSING_RESPONSE


@pytest.mark.parametrize(
    ("stop", "with_call", "meaning"),
    [
        ("end_turn", False, "empty"),
        ("tool_use", False, "empty"),
        ("of_next_year", False, "unknown"),
        ("max_tokens", False, "cut"),
        ("model_context_window_exceeded", False, "window"),
        ("compaction", False, "continue"),
        ("refusal", False, "blocked"),
        ("end_turn", True, "continue"),
        ("max_tokens", True, "continue"),
        ("model_context_window_exceeded", True, "continue"),
        ("of_next_year", True, "continue"),
        ("refusal", True, "blocked"),
    ],
)
async def test_what_a_turn_means(tmp_path: Path, stop: str, *, with_call: bool, meaning: str) -> None:
    made = (shell("make"),) if with_call else ()
    loop = begun(tmp_path, calls(*made, stop=stop))
    step = await take_turn(loop.ctx)
    assert step.meaning == meaning
    assert len(step.calls or ()) == (with_call and meaning != "blocked")


@pytest.mark.parametrize(
    ("usage", "counted"),
    [((0, 0, 0), (True, True)), ((0, 7, 3), (True, False)), ((5, 0, 0), (False, True)), ((5, 7, 1), (False, False))],
)
async def test_a_gateway_that_counts_nothing_is_counted_for(
    tmp_path: Path, usage: tuple[int, int, int], counted: tuple[bool, bool]
) -> None:
    """Else the budget would be endless."""
    loop = begun(tmp_path, calls(shell("make"), text="Now.", usage=TokenUsage(*usage)))
    needed = math.ceil(1.25 * loop.ctx.conversation.tokens)
    await take_turn(loop.ctx)
    said = message_tokens(loop.ctx.conversation.count, "Now.", ('{"command":"make"}',))
    assert loop.ctx.state.usage.to_wire() == {
        "inputTokens": needed if counted[0] else usage[0],
        "outputTokens": said if counted[1] else usage[1],
        "cachedInputTokens": usage[2],
    }


async def test_an_id_that_stands_in_the_thread_is_not_used_again(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one", "x")), calls(shell("two", "x"), shell("three", "y")), says())
    assert (await loop.run()).status == "completed"
    first, second, third = (answer.call_id for answer in loop.answers())
    assert (first, third) == ("x", "y")
    assert second.startswith("call_")


async def test_the_window_of_the_request_is_on_record(tmp_path: Path) -> None:
    loop = begun(tmp_path, says())
    for number in range(60):
        add_note(loop.ctx, f"note {number} " * 20)
    loop.ctx.judge.bundle = bundle(tmp_path, max_input=3000)
    await take_turn(loop.ctx)
    assert loop.kept().dropped_messages == loop.ctx.conversation.thread.dropped > 0
    assert loop.kept().tokens_known == (100, loop.ctx.conversation.tokens)


async def test_a_secret_of_the_model_is_not_on_record_and_runs_all_the_same(tmp_path: Path) -> None:
    loop = begun(tmp_path, calls(shell("login s3cret-value"), text="s3cret-value"), secrets=("s3cret-value",))
    step = await take_turn(loop.ctx)
    assert step.calls is not None
    assert step.calls[0].call.arguments == {"command": "login s3cret-value"}
    assert b"s3cret-value" not in b"".join(loop.kept().thread)
    assert step.assistant.content == "[redacted]"


# The disk


@pytest.mark.parametrize(
    ("made", "is_asked", "goes_on"),
    [
        (call("RunCommand", command="make"), False, False),
        (call("RunCommand", command="make"), True, True),
        (call("ReadFile", path=""), False, True),
        (None, False, True),
    ],
)
async def test_a_full_disk_keeps_nothing_from_going_on_that_a_resume_could_not_do_twice(
    tmp_path: Path, made: Any, *, is_asked: bool, goes_on: bool
) -> None:
    disk = SimulatedDisk()
    policy = bundle(tmp_path, asks=["Shell.Exec"] if is_asked else [])
    person = Person(lambda _: {"approved": False, "reason": "no"})
    loop = Loop(tmp_path, calls(*[made] if made else []), says(), disk=disk, policy=policy, gate=person)

    def full() -> None:
        disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)

    loop.model.at_request = full
    end = await loop.run()
    assert end.status == ("completed" if goes_on else "paused")
    assert loop.tools.ran == []
    if goes_on:
        assert loop.told(EventType.CHECKPOINT_FAILED)
    disk.calls.faults = NO_FAULTS
    loop.ctx.journal.write_ahead()
    assert loop.kept().thread == loop.ctx.state.thread, "the next write carries what this one could not"


async def test_a_call_that_cannot_be_recorded_stays_open_and_so_do_those_behind_it(tmp_path: Path) -> None:
    """The disk fails between the turn and the starts; what had started goes on to its end."""
    disk = SimulatedDisk()

    def full(request: ToolRequest) -> ToolResult:
        disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)
        return do(request)

    path = tmp_path / "a"
    turn = calls(write(path, "1"), write(path, "2"), read(path), write(tmp_path / "b", "3"))
    loop = Loop(tmp_path, turn, disk=disk, tools=Tools(full))
    end = await loop.run()
    assert (end.status, end.reason) == ("paused", "CHECKPOINT_WRITE_FAILED")
    assert (path.read_text(), loop.tools.ran) == ("1", [str(path), str(tmp_path / "b")])
    left = [one.tool_name for one in open_step(loop.ctx.journal.store).calls if one.result is None]
    assert left[:2] == ["WriteFile", "ReadFile"]
    assert [one.started for one in open_step(loop.ctx.journal.store).calls[1:3]] == [False, False]
    disk.calls.faults = NO_FAULTS
    resumed = loop.again(says(), tools=Tools())
    assert (await resumed.run()).status == "completed"
    assert [answer.code for answer in resumed.answers()] == ["done", "ok", "2", "done"]
    assert path.read_text() == "2"


async def test_a_step_is_durable_when_it_is_over(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    loop = Loop(tmp_path, calls(shell("make")), says(), disk=disk)

    def look() -> None:
        state = sessions_on(disk.crash(NOTHING_SURVIVES)).load(SESSION)
        assert state.open_step is None
        assert state.task is not None
        assert state.task.step_count == len(loop.model.requests) - 1

    loop.begin()
    loop.ctx.journal.write_ahead()
    loop.model.at_request = look
    await loop.run()
    assert len(loop.model.requests) == 2
    steps = [event.step_id for event in loop.watcher.events if event.event_type is EventType.STEP_STARTED]
    assert loop.told(EventType.STEP_COMPLETED) == [
        {"stepId": step_id, "stepCount": count} for count, step_id in enumerate(steps, 1)
    ]
    assert loop.ctx.state.step_cursor == steps[-1]


# Its end


async def test_an_answer_that_was_cut_goes_on(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("It is lo", stop="max_tokens"), says("ng.", stop="end_turn"))
    end = await loop.run()
    assert (end.text, loop.ctx.task.step_count) == ("It is long.", 2)
    assert loop.model.requests[1][-1]["content"][0]["text"] == CONTINUE_NOTE
    assert decode(loop.ctx.state.thread[3]).content == CONTINUE_NOTE


async def test_a_step_without_an_answer_to_a_call_is_not_over(tmp_path: Path) -> None:
    loop = begun(tmp_path, calls(shell("make")))
    step = await take_turn(loop.ctx)
    with pytest.raises(Exception, match="does not fit the state"):
        commit(loop.ctx, step, [])


async def test_a_step_that_a_crash_left_open(tmp_path: Path) -> None:
    loop = (await died(tmp_path, shell("make", "c"))).again()
    loop.ctx.phase.fire("resume")
    step = reopen(loop.ctx)
    assert (step.meaning, step.calls, [one.call_id for one in step.assistant.tool_calls]) == (
        "continue",
        None,
        ["c"],
    )
    assert loop.ctx.phase.state is TaskPhase.CHECKING_POLICY


@pytest.mark.parametrize(
    ("stop", "status", "requests"),
    [
        ("end_turn", "completed", 0),
        ("of_next_year", "failed", 0),
        ("max_tokens", "completed", 1),
        ("refusal", "failed", 0),
    ],
)
async def test_a_turn_without_calls_that_a_crash_left_open(
    tmp_path: Path, stop: str, status: str, requests: int
) -> None:
    loop = begun(tmp_path, says("Well.", stop=stop))
    await take_turn(loop.ctx)
    following = loop.again(says("Done."))
    assert (await following.run()).status == status
    assert len(following.model.requests) == requests


def test_a_step_is_reopened_only_where_one_is_open(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        reopen(begun(tmp_path).ctx)


# Words of the host


def test_a_note_is_on_record_and_in_the_thread(tmp_path: Path) -> None:
    loop = begun(tmp_path)
    before = loop.ctx.conversation.thread.tokens
    add_note(loop.ctx, "[It moved \ud800.]")
    note = decode(loop.kept().thread[-1])
    assert (note.role, note.content) == ("system", "[It moved ?.]")
    assert loop.ctx.conversation.thread.tokens == before + note.tokens


def test_only_a_session_that_was_saved_is_told_of_damage(tmp_path: Path) -> None:
    loop = begun(tmp_path)
    report_news(loop.ctx)
    loop.ctx.state.salvaged = "torn"
    report_news(loop.ctx)
    report_news(loop.ctx)
    assert len([data for data in loop.kept().thread if b"was damaged on disk" in data]) == 1


@pytest.mark.parametrize(("meaning", "expected"), [(None, "cut"), ("blocked", "blocked")])
async def test_an_older_record_without_a_meaning_is_read_by_the_stop_reason(
    tmp_path: Path, meaning: str | None, expected: str
) -> None:
    loop = begun(tmp_path, says("It is lo", stop="max_tokens"))
    await take_turn(loop.ctx)
    loop.ctx.journal.store.close()
    loop = loop.again()
    open_step = loop.ctx.state.open_step
    assert open_step is not None
    assert open_step.meaning == "cut"
    open_step.meaning = meaning
    loop.ctx.phase.fire("resume")
    assert reopen(loop.ctx).meaning == expected
