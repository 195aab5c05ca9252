"""The calls of one turn: run at once, in order on one path, answered in call order, on record before they start."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import ToolResult
from agent_host.events import EventType
from agent_host.faults.disk import NOTHING_SURVIVES, SimulatedDisk
from state.blobs import sha256_hex
from tests.support.loop import Loop, sessions_on
from tests.support.loop_parts import (
    NOW,
    SESSION,
    Tools,
    bundle,
    call,
    calls,
    do,
    read,
    says,
    says_yes,
    settled,
    shell,
    succeeded,
    write,
)
from tests.support.records import answered

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest
    from state.checkpoint import OpenCall


def on_record(loop: Loop, call_id: str) -> OpenCall:
    """The call as the next process would find it now."""
    step = loop.kept().open_step
    assert step is not None
    return next(one for one in step.calls if one.call_id == call_id)


class Held:
    """Tools whose calls end when the test says so, by what they act on."""

    def __init__(self) -> None:
        self.tools = Tools(self.run)
        self.ends: dict[str, asyncio.Event] = {}

    async def run(self, request: ToolRequest) -> ToolResult:
        await self.ends.setdefault(self.tools.ran[-1], asyncio.Event()).wait()
        return do(request)

    def end(self, what: str) -> None:
        self.ends[what].set()


async def test_calls_run_at_once_and_are_answered_in_call_order(tmp_path: Path) -> None:
    held = Held()
    turn = calls(*map(shell, ("one", "two", "three")))
    loop = Loop(tmp_path, turn, says(), tools=held.tools)
    running = asyncio.ensure_future(loop.run())
    await settled()
    assert held.tools.ran == ["one", "two", "three"]
    for what in ("three", "one", "two"):
        held.end(what)
        await settled()
    await running
    assert [answer.call_id for answer in loop.answers()] == [one.call_id for one in turn.tool_calls]
    ended = [payload["toolCallId"] for payload in loop.told(EventType.TOOL_COMPLETED)]
    assert ended == [turn.tool_calls[place].call_id for place in (2, 0, 1)]


async def test_a_result_is_on_record_before_its_siblings_have_ended(tmp_path: Path) -> None:
    held = Held()
    loop = Loop(tmp_path, calls(shell("one", "a"), shell("two", "b")), says(), tools=held.tools)
    running = asyncio.ensure_future(loop.run())
    await settled()
    held.end("two")
    await settled()
    assert (on_record(loop, "b").status, on_record(loop, "a").status) == ("succeeded", None)
    held.end("one")
    await running


async def test_turn_and_calls_are_durable_before_the_first_tool_starts(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    seen: list[tuple[str, ...]] = []

    def look(request: ToolRequest) -> ToolResult:
        after_power_loss = sessions_on(disk.crash(NOTHING_SURVIVES)).load(SESSION).open_step
        assert after_power_loss is not None
        seen.append(tuple(one.tool_name for one in after_power_loss.calls))
        return do(request)

    (tmp_path / "a").write_text("text")
    loop = Loop(tmp_path, calls(shell("one"), read(tmp_path / "a")), says(), tools=Tools(look), disk=disk)
    await loop.run()
    assert seen == [("RunCommand", "ReadFile")] * 2


async def test_the_start_of_a_call_with_side_effects_is_on_record_before_it(tmp_path: Path) -> None:
    started: dict[str, bool] = {}

    def look(request: ToolRequest) -> ToolResult:
        started[request.tool_call_id] = on_record(loop, request.tool_call_id).started
        return do(request)

    (tmp_path / "a").write_text("text")
    turn = calls(shell("one", "effect"), read(tmp_path / "a", "none"), write(tmp_path / "b", "x", "file"))
    loop = Loop(tmp_path, turn, says(), tools=Tools(look))
    await loop.run()
    assert started == {"effect": True, "none": False, "file": True}


async def test_an_approved_call_is_known_to_have_started_even_when_the_machine_goes_down(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    seen: list[tuple[bool, object]] = []

    def look(request: ToolRequest) -> ToolResult:
        step = sessions_on(disk.crash(NOTHING_SURVIVES)).load(SESSION).open_step
        assert step is not None
        seen.append((step.calls[0].started, (answered(step.calls[0]) or {}).get("approved")))
        return do(request)

    policy = bundle(tmp_path, asks=["Shell.Exec"])
    loop = Loop(tmp_path, calls(shell("one")), says(), tools=Tools(look), disk=disk, gate=says_yes(), policy=policy)
    await loop.run()
    assert seen == [(True, True)]


# On one path


async def test_calls_on_one_path_keep_their_order_whatever_it_is_called(tmp_path: Path) -> None:
    held = Held()
    path, other = tmp_path / "a", tmp_path / "b"
    by_another_name = f"{tmp_path}/x/../a"
    turn = calls(write(path, "1"), write(by_another_name, "2"), read(path), write(other, "3"))
    loop = Loop(tmp_path, turn, says(), tools=held.tools)
    running = asyncio.ensure_future(loop.run())
    await settled()
    assert held.tools.ran == [str(path), str(other)]
    held.end(str(path))
    await settled()
    held.end(by_another_name)
    held.end(str(other))
    await running
    assert [answer.text for answer in loop.answers()] == ["ok", "ok", "2", "ok"]


async def test_what_a_call_behind_another_finds_is_what_its_record_says(tmp_path: Path) -> None:
    path, intents = tmp_path / "a", []

    def look(request: ToolRequest) -> ToolResult:
        intents.append(on_record(loop, request.tool_call_id).intent)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write("of the tool's own")
        return succeeded(request)

    loop = Loop(tmp_path, calls(write(path, "1"), write(path, "2")), says(), tools=Tools(look))
    await loop.run()
    digests = [None, sha256_hex(b"1"), sha256_hex(b"of the tool's own"), sha256_hex(b"2")]
    assert intents == [
        {"path": str(path), "before": digests[0], "after": digests[1]},
        {"path": str(path), "before": digests[2], "after": digests[3]},
    ]
    assert loop.ctx.task.baselines == {str(path): None}


async def test_policy_judges_a_call_again_that_had_to_wait_for_another(tmp_path: Path) -> None:
    def expire(request: ToolRequest) -> ToolResult:
        loop.now = NOW + timedelta(days=2)
        return do(request)

    path = tmp_path / "a"
    loop = Loop(tmp_path, calls(write(path, "1"), write(path, "2")), tools=Tools(expire))
    assert (await loop.run()).reason == "POLICY_EXPIRED"
    assert path.read_text() == "1"
    assert [answer.code for answer in loop.answers()] == ["ok", "POLICY_EXPIRED"]


async def test_a_read_that_had_to_wait_is_not_judged_again(tmp_path: Path) -> None:
    def expire(request: ToolRequest) -> ToolResult:
        loop.now = NOW + timedelta(days=2)
        return do(request)

    path = tmp_path / "a"
    loop = Loop(tmp_path, calls(write(path, "1"), read(path)), tools=Tools(expire))
    await loop.run()
    assert [answer.text for answer in loop.answers()] == ["ok", "1"]


async def test_a_stop_keeps_a_call_from_starting_that_waits_for_another(tmp_path: Path) -> None:
    def stop(request: ToolRequest) -> ToolResult:
        loop.ctx.cancellation.request(resumable=False)
        return do(request)

    path = tmp_path / "a"
    loop = Loop(tmp_path, calls(write(path, "1"), write(path, "2"), read(path)), tools=Tools(stop))
    assert (await loop.run()).status == "cancelled"
    assert path.read_text() == "1"
    refused = "TOOL_INTERRUPTED: not started: the task was cancelled first"
    assert [answer.text for answer in loop.answers()] == ["ok", refused, refused]


# What fails


async def test_what_fails_is_the_call_and_not_its_siblings(tmp_path: Path) -> None:
    def fail(request: ToolRequest) -> ToolResult:
        if request.arguments.get("command") == "bad":
            return ToolResult.failure(request, "TOOL_EXECUTION_FAILED", "exit 3", output_text="half")
        return succeeded(request)

    outside = read("/etc/passwd")
    turn = calls(shell("good"), shell("bad"), outside, call("Teleport"), shell("good too"))
    loop = Loop(tmp_path, turn, says(), tools=Tools(fail))
    assert (await loop.run()).status == "completed"
    assert [row[1:] for row in loop.finished()] == [
        ("succeeded", None),
        ("failed", "TOOL_EXECUTION_FAILED"),
        ("denied", "CAPABILITY_DENIED"),
        ("failed", "TOOL_NOT_FOUND"),
        ("succeeded", None),
    ]
    assert loop.answers()[1].text == "TOOL_EXECUTION_FAILED: exit 3\nhalf"
    assert [answer.is_error for answer in loop.answers()] == [False, True, True, True, False]
    assert loop.tools.ran == ["good", "bad", "good too"]


@pytest.mark.parametrize("alone", [True, False])
async def test_a_fault_of_the_program_waits_until_its_siblings_are_on_record(tmp_path: Path, *, alone: bool) -> None:
    async def run(request: ToolRequest) -> ToolResult:
        if request.arguments["command"] == "broken":
            raise ZeroDivisionError
        await settled(5)
        return succeeded(request)

    turn = calls(shell("broken", "a")) if alone else calls(shell("broken", "a"), shell("slow", "b"))
    loop = Loop(tmp_path, turn, tools=Tools(run))
    with pytest.raises(ZeroDivisionError):
        await loop.run()
    assert on_record(loop, "a").started
    assert on_record(loop, "a").result is None
    if not alone:
        assert on_record(loop, "b").status == "succeeded"


async def test_a_tool_that_is_ended_by_force_is_answered(tmp_path: Path) -> None:
    async def hang(request: ToolRequest) -> ToolResult:
        loop.ctx.live_output.take(request, "stdout", b"half a line")
        await asyncio.Event().wait()
        return succeeded(request)

    loop = Loop(tmp_path, calls(shell("hang")), tools=Tools(hang))
    running = asyncio.ensure_future(loop.run())
    await settled()
    loop.ctx.cancellation.request(resumable=False)
    loop.ctx.cancellation.force(grace_s=0)
    assert (await running).status == "cancelled"
    (answer,) = loop.answers()
    assert "ended by force" in answer.text
    assert loop.finished() == [("RunCommand", "failed", "TOOL_INTERRUPTED")]
    kinds = loop.kinds()
    assert kinds.index(EventType.TOOL_OUTPUT_CHUNK) < kinds.index(EventType.TOOL_COMPLETED)


# What observers are told


async def test_what_is_told_of_a_call_before_it_runs(tmp_path: Path) -> None:
    long = "echo s3cret-value " + "x" * 200
    loop = Loop(tmp_path, calls(shell(long, "c"), call("Teleport", "d")), says(), secrets=("s3cret-value",))
    await loop.run()
    told, unknown = loop.told(EventType.TOOL_REQUESTED)
    kept = '{"command":"' + long.replace("s3cret-value", "[redacted]") + '"}'
    assert told == {
        "toolCallId": "c",
        "toolName": "RunCommand",
        "capability": "Shell.Exec",
        "summary": long.replace("s3cret-value", "[redacted]")[:160],
        "argumentsSha256": sha256_hex(kept.encode()),
        "arguments": json.loads(kept),
        "decision": "ALLOWED",
        "rule": "capabilities[Shell.Exec]",
        "riskLevel": "medium",
    }
    sha256 = sha256_hex(b"{}")
    assert unknown == {"toolCallId": "d", "toolName": "Teleport", "argumentsSha256": sha256, "arguments": {}}
    assert loop.tools.ran == [long], "the call runs with every byte"
