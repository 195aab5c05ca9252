"""How many calls of a turn run at once: each category has its number, and the others wait in call order (AH 4.2)."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.approval.gate import UnattendedGate
from agent_host.events import EventType
from agent_host.loop.calls import CallDone, CallSlot, PathTurn, SlotLine
from agent_host.loop.progress import Cancellation, TaskCancelled
from state.blobs import sha256_hex
from tests.support.loop import Loop
from tests.support.loop_parts import NOW, YES, Person, Tools, bundle, call, calls, do, read, says, settled, shell, write
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult

COMMANDS = [shell(f"command {number}", f"c{number}") for number in range(6)]


class Held:
    """Tools whose calls end when the test says so, by what they act on."""

    def __init__(self) -> None:
        self.tools = Tools(self.run)
        self.running: dict[str, asyncio.Event] = {}

    async def run(self, request: ToolRequest) -> ToolResult:
        what = self.tools.ran[-1]
        self.running[what] = asyncio.Event()
        await self.running[what].wait()
        return do(request)

    async def end(self, *commands: str) -> None:
        for command in commands:
            self.running[command].set()
        await settled()


async def test_the_others_wait_in_call_order(tmp_path: Path) -> None:
    held = Held()
    loop = Loop(tmp_path, calls(*COMMANDS), says(), tools=held.tools, at_once={"commands": 2})
    running = asyncio.ensure_future(loop.run())
    await settled()
    assert held.tools.ran == ["command 0", "command 1"]
    await held.end("command 1")
    assert held.tools.ran[2:] == ["command 2"]
    await held.end("command 2", "command 0")
    assert held.tools.ran[3:] == ["command 3", "command 4"]
    await held.end("command 3", "command 4")
    await held.end("command 5")
    assert (await running).status == "completed"
    assert held.tools.ran == [f"command {number}" for number in range(6)]
    assert [answer.call_id for answer in loop.answers()] == [f"c{number}" for number in range(6)]


def test_each_tool_has_a_category() -> None:
    assert {name: row.category for name, row in TOOLS.items()} == {
        "ReadFile": "files",
        "ListDirectory": "files",
        "FindFiles": "files",
        "Grep": "files",
        "WriteFile": "files",
        "EditFile": "files",
        "MoveFile": "files",
        "DeleteFile": "files",
        "RunCommand": "commands",
        "CommandOutput": "files",
        "StopCommand": "files",
        "HttpRequest": "requests",
        "ReadOutput": "files",
        "UploadArtifact": "uploads",
    }


async def test_categories_do_not_wait_for_each_other(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    held = Held()
    turn = calls(
        shell("one"),
        shell("two"),
        read(tmp_path / "a"),
        read(tmp_path / "b"),
        call("HttpRequest", url="https://example.com/1"),
        call("UploadArtifact", path=str(tmp_path / "c")),
    )
    one_each = {"commands": 1, "files": 1, "requests": 1, "uploads": 1}
    loop = Loop(tmp_path, turn, says(), tools=held.tools, at_once=one_each)  # type: ignore[arg-type]
    running = asyncio.ensure_future(loop.run())
    await settled()
    first_of_each = ["RunCommand", "ReadFile", "HttpRequest", "UploadArtifact"]
    assert [request.tool_name for request in held.tools.requests] == first_of_each
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_question_holds_no_slot(tmp_path: Path) -> None:
    """And who is approved late goes before those that wait behind it in call order."""
    held, person = Held(), Person(lambda _: None)
    policy = bundle(tmp_path, asks=["Network.Http"])
    urls = [f"https://example.com/{number}" for number in range(3)]
    turn = calls(*(call("HttpRequest", url=url) for url in urls), *COMMANDS[:1])
    loop = Loop(tmp_path, turn, says(), tools=held.tools, gate=person, policy=policy, at_once={"requests": 1})
    running = asyncio.ensure_future(loop.run())
    await settled()
    assert held.tools.ran == ["command 0"]
    for asked in (person.asked[2], person.asked[1], person.asked[0]):
        person.pending_approvals.decide(asked.approval_id, **YES)
        await settled()
    assert held.tools.ran[1:] == [urls[2]]
    await held.end(urls[2])
    assert held.tools.ran[2:] == [urls[0]]
    await held.end(urls[0])
    await held.end(urls[1], "command 0")
    assert (await running).status == "completed"


async def test_a_call_takes_its_slot_when_its_turn_on_its_path_has_come(tmp_path: Path) -> None:
    """The second of three waits for the first, which waits for a person; with the only slot it would wait for ever."""
    person = Person(lambda _: None)
    policy = bundle(tmp_path, asks=["File.Delete"])
    turn = calls(call("DeleteFile", path=str(tmp_path / "a")), write(tmp_path / "a", "new"), write(tmp_path / "b", "b"))
    (tmp_path / "a").write_text("old")
    loop = Loop(tmp_path, turn, says(), gate=person, policy=policy, at_once={"files": 1})
    running = asyncio.ensure_future(loop.run())
    await settled()
    assert loop.tools.ran == [str(tmp_path / "b")]
    person.pending_approvals.decide(person.asked[0].approval_id, **YES)
    assert (await running).status == "completed"
    assert (tmp_path / "a").read_text() == "new"


async def test_what_waits_when_the_task_is_cancelled_was_not_started(tmp_path: Path) -> None:
    held = Held()
    loop = Loop(tmp_path, calls(*COMMANDS[:3]), tools=held.tools, at_once={"commands": 1})
    records = loop.watch_records()
    running = asyncio.ensure_future(loop.run())
    await settled()
    loop.ctx.cancellation.request(resumable=False)
    await settled()
    assert {answer["toolCallId"] for answer in loop.told(EventType.TOOL_COMPLETED)} == {"c1", "c2"}
    await held.end("command 0")
    assert (await running).status == "cancelled"
    assert [fields["callId"] for kind, fields in records if kind == "call_started"] == ["c0"]
    assert loop.texts()[1:] == ["TOOL_INTERRUPTED: not started: the task was cancelled first"] * 2


async def test_what_waits_at_a_stop_that_keeps_the_task_open_is_run_by_a_resume(tmp_path: Path) -> None:
    held = Held()
    loop = Loop(tmp_path, calls(*COMMANDS[:3]), tools=held.tools, at_once={"commands": 1})
    running = asyncio.ensure_future(loop.run())
    await settled()
    loop.ctx.cancellation.request(resumable=True)
    await held.end("command 0")
    assert (await running).resumable
    again = loop.again(says(), tools=Tools())
    assert (await again.run()).status == "completed"
    assert again.tools.ran == ["command 1", "command 2"]
    assert [answer.call_id for answer in again.answers()] == ["c0", "c1", "c2"]


async def test_a_call_that_waited_is_judged_anew(tmp_path: Path) -> None:
    """Its record says what it will really find, and a policy that has expired meanwhile lets it do nothing."""
    held = Held()
    paths = [tmp_path / name for name in "abc"]
    loop = Loop(
        tmp_path, calls(*(write(path, "new") for path in paths)), says(), tools=held.tools, at_once={"files": 1}
    )
    records = loop.watch_records()
    running = asyncio.ensure_future(loop.run())
    await settled()
    paths[1].write_text("meanwhile")
    await held.end(str(paths[0]))
    loop.now = NOW + timedelta(days=2)
    await held.end(str(paths[1]))
    await running
    started = [fields for kind, fields in records if kind == "call_started"]
    assert len(started) == 2
    assert started[1]["intent"]["before"] == sha256_hex(b"meanwhile")
    assert [answer.code for answer in loop.answers()][2:] == ["POLICY_EXPIRED"]


async def test_a_refused_call_needs_no_slot(tmp_path: Path) -> None:
    held = Held()
    turn = calls(COMMANDS[0], shell("denied"), call("Teleport", to="x"))
    policy = bundle(tmp_path, asks=["Shell.Exec"])
    gate = UnattendedGate(frozenset())
    loop = Loop(tmp_path, turn, says(), tools=held.tools, policy=policy, gate=gate, at_once={"commands": 1})
    assert (await loop.run()).status == "completed"
    assert held.tools.ran == []


async def test_a_slot_that_comes_as_its_call_is_given_up_goes_to_the_next() -> None:
    cancellation = Cancellation()
    line = SlotLine(1)
    first, second, third = (CallSlot(line, number) for number in range(3))
    assert not await first.take(cancellation)
    waits = [asyncio.ensure_future(slot.take(cancellation)) for slot in (second, third)]
    await settled()
    first.give_back()
    waits[0].cancel()  # in the same moment
    with pytest.raises(asyncio.CancelledError):
        await waits[0]
    assert await waits[1]
    third.give_back()
    third.give_back()
    last = [CallSlot(line, number) for number in (3, 4)]
    assert not await last[0].take(cancellation)
    waits = [asyncio.ensure_future(last[1].take(cancellation))]
    await settled()
    assert not waits[0].done(), "giving it back twice made no second slot"
    cancellation.request(resumable=False)
    with pytest.raises(TaskCancelled):
        await waits[0]
    with pytest.raises(TaskCancelled):
        await CallSlot(line, 5).take(cancellation)


@dataclasses.dataclass
class Plan:
    """A call: its paths, where a person moves it, rounds it is thought about and runs for."""

    paths: tuple[str, ...]
    moved: tuple[str, ...]
    thinks: int
    runs: int


PATHS = st.sampled_from([(), ("a",), ("b",), ("a", "b"), ("b", "c")])
PLANS = st.lists(st.builds(Plan, PATHS, PATHS, st.integers(0, 4), st.integers(0, 3)), max_size=8)


@settings(deadline=None)
@given(PLANS, st.integers(1, 3))
def test_slots_and_paths_together_leave_nobody_waiting(plans: list[Plan], at_once: int) -> None:
    order, line, cancellation = dict[str, CallDone](), SlotLine(at_once), Cancellation()
    ran: list[int] = []
    running = 0

    async def one(number: int) -> None:
        nonlocal running
        plan, place, slot = plans[number], turns[number], CallSlot(line, number)
        try:
            for _ in range(plan.thinks):
                await asyncio.sleep(0)
            await place.move(plan.moved)
            await place.wait()
            await slot.take(cancellation)
            running += 1
            assert running <= at_once
            for _ in range(plan.runs):
                await asyncio.sleep(0)
            running -= 1
            ran.append(number)
        finally:
            slot.give_back()
            await place.leave()

    async def play() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*map(one, range(len(plans))))

    turns = [PathTurn(order, plan.paths) for plan in plans]
    asyncio.run(play())
    assert sorted(ran) == list(range(len(plans)))
