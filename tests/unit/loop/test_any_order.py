"""Calls that run at once, whatever is answered, ends, fails, stops or dies in whichever order (invariants 1, 3, 4)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.contracts import ToolResult
from agent_host.faults.crash import Faults, Killed, PowerCut
from agent_host.faults.disk import EXTREMES, SimulatedDisk
from tests.support.loop import Loop, sessions_on
from tests.support.loop_parts import Person, Tools, bundle, call, calls, do, read, says, says_yes, settled, shell, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent_host.contracts import ToolRequest
    from agent_host.thread.messages import ToolCall

KINDS = ("asked", "request", "read", "denied", "unknown", "write a", "write b")
MOVES = ("yes", "no", "edited", "end", "fail", "end", "yes", "stop", "crash")
EFFECTS = ("asked", "request", "write a", "write b")


def one_of(kind: str, number: int, folder: str) -> ToolCall:
    """A call of this kind, told from the others by its number."""
    call_id = f"c{number}"
    match kind:
        case "asked":
            return shell(f"asked {number}", call_id)
        case "request":
            return call("HttpRequest", call_id, url=f"https://example.com/{number}")
        case "read":
            return read(f"{folder}/there", call_id)
        case "denied":
            return read("/etc/passwd", call_id)
        case "unknown":
            return call("Teleport", call_id, to=str(number))
    return write(f"{folder}/{kind[-1]}", f"{number}", call_id)


class Seen(NamedTuple):
    """What happened, over all processes: the ids of calls as they took effect, of those that were approved, and of
    those that a process was asked to run after their result had been on record."""

    effects: list[str]
    approved: set[str]
    again: list[str]

    def hold(self, kinds: list[str], loop: Loop) -> None:
        """What must be true once the task is over, whatever happened."""
        ids = [f"c{number}" for number in range(len(kinds))]
        assert [answer.call_id for answer in loop.answers()] == ids
        assert loop.ctx.state.open_step is None
        assert self.again == []
        assert len(set(self.effects)) == len(self.effects), "no effect happens twice"
        for answer, kind in zip(loop.answers(), kinds, strict=True):
            if kind not in EFFECTS:
                assert answer.call_id not in self.effects
                continue
            if kind == "asked" and answer.call_id not in self.approved:
                assert answer.call_id not in self.effects
            if not answer.is_error:
                assert answer.call_id in self.effects, answer
            if answer.code in ("APPROVAL_DENIED", "CAPABILITY_DENIED"):
                assert answer.call_id not in self.effects, answer
        for path in "ab":
            written = [int(one[1:]) for one in self.effects if kinds[int(one[1:])] == f"write {path}"]
            assert written == sorted(written), "calls on one path keep their order"
            if written:
                with open(f"{loop.folder}/{path}", encoding="utf-8") as handle:
                    assert handle.read() == str(written[-1])


class Play:
    """A task with one turn of such calls, over as many processes as die. `early`: a call's effect comes first, and then
    it takes its time; else it comes at its end."""

    def __init__(self, folder: str, kinds: list[str], moves: list[tuple[str, int]], *, early: bool) -> None:
        self.kinds, self.moves, self.early = kinds, moves, early
        self.seen = Seen([], set(), [])
        self.waiting: dict[str, asyncio.Future[bool]] = {}
        self.person = Person(lambda _: None)
        turn = calls(*(one_of(kind, number, folder) for number, kind in enumerate(kinds)))
        policy = bundle(folder, asks=["Shell.Exec"])
        self.loop = Loop(folder, turn, says("Done."), gate=self.person, policy=policy, tools=Tools(self.execute))

    async def execute(self, request: ToolRequest) -> ToolResult:
        call_id, has_effect = request.tool_call_id, request.tool_name != "ReadFile"
        step = self.loop.kept().open_step
        assert step is not None
        if any(one.call_id == call_id and one.result is not None for one in step.calls):
            self.seen.again.append(call_id)
        if self.early and has_effect:
            self.seen.effects.append(call_id)
            do(request)
        self.waiting[call_id] = asyncio.get_running_loop().create_future()
        good = await self.waiting[call_id]
        if not good:
            return ToolResult.failure(request, "TOOL_EXECUTION_FAILED", "it broke")
        if not self.early and has_effect:
            self.seen.effects.append(call_id)
            do(request)
        return do(request) if request.tool_name == "ReadFile" else self.good(request)

    @staticmethod
    def good(request: ToolRequest) -> ToolResult:
        return ToolResult(request.tool_name, request.session_id, request.task_id, request.step_id, "succeeded", "ok")

    def move(self, move: str, which: int) -> bool:
        """Make one move; False when it is one that nothing waits for."""
        waiting = [one for one, future in self.waiting.items() if not future.done()]
        asked = self.person.pending_approvals.rows()
        if move in ("end", "fail") and waiting:
            self.waiting[waiting[which % len(waiting)]].set_result(move == "end")
        elif move in ("yes", "no", "edited") and asked:
            question = asked[which % len(asked)]
            call_id = question["details"]["toolCallId"]
            arguments = {"command": f"edited {call_id}"} if move == "edited" else None
            self.person.pending_approvals.decide(question["approvalId"], approved=move != "no", arguments=arguments)
            if move != "no":
                self.seen.approved.add(call_id)
        else:
            return False
        return True

    async def process(self) -> bool:
        """One process; True when the task is over."""
        running = asyncio.ensure_future(self.loop.run())
        while not running.done():
            await settled(15)
            move, which = self.moves.pop(0) if self.moves else ("", 0)
            if move == "crash":
                running.cancel()
                await asyncio.wait([running])
                return False
            if move == "stop":
                self.loop.ctx.cancellation.request(resumable=which % 2 == 0)
            elif move == "" or not self.move(move, which):
                _ = self.move("yes", 0) or self.move("end", 0)
        end = running.result()
        assert end.status in ("completed", "cancelled")
        return not end.resumable

    async def play(self) -> None:
        while not await self.process():
            self.waiting.clear()
            self.person = Person(lambda _: None)
            left = [says("Done.")]
            self.loop = self.loop.again(*left, gate=self.person, tools=Tools(self.execute))
        if len(self.loop.ctx.state.thread) > 2:  # else it was stopped before the model was asked
            self.seen.hold(self.kinds, self.loop)


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 4)), max_size=12),
    early=st.booleans(),
)
def test_whatever_happens_each_call_has_one_result_and_no_effect_comes_twice(
    kinds: list[str], moves: list[tuple[str, int]], *, early: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/there", "w", encoding="utf-8") as handle:
            handle.write("text")
        asyncio.run(Play(os.path.realpath(folder), kinds, list(moves), early=early).play())


# Killed, or without power, before each call of the disk

SCENE = ["asked", "write a", "write a", "read", "request", "denied"]


async def until_dead(folder: Path, disk: SimulatedDisk, faults: Callable[[int], Faults] | None) -> tuple[Loop, Seen]:
    """A process that dies by `faults`, which are made from the number of calls to create the session."""
    seen = Seen([], set(), [])
    (folder / "there").write_text("text")
    turn = calls(*(one_of(kind, number, str(folder)) for number, kind in enumerate(SCENE)))
    loop = Loop(folder, turn, says("Done."), gate=says_yes(), policy=bundle(folder, asks=["Shell.Exec"]), disk=disk,
                tools=tools_of(seen))  # fmt: skip
    if faults is not None:
        disk.calls.faults = faults(disk.calls.count)
    with contextlib.suppress(Killed, PowerCut):
        await loop.run()
    return loop, seen


def tools_of(seen: Seen) -> Tools:
    """Tools that write down what took effect; those with an effect have it at once."""

    def execute(request: ToolRequest) -> ToolResult:
        seen.approved.add(request.tool_call_id)
        if request.tool_name != "ReadFile":
            seen.effects.append(request.tool_call_id)
        return do(request)

    return Tools(execute)


async def go_on(loop: Loop, seen: Seen, after: SimulatedDisk, *, other_boot: bool) -> None:
    """The next process, to the end; it finds what `after` holds."""
    turn = calls(*(one_of(kind, number, loop.folder) for number, kind in enumerate(SCENE)))
    following = Loop(loop.folder, sessions=sessions_on(after), gate=says_yes(), policy=loop.ctx.judge.bundle,
                     tools=tools_of(seen))  # fmt: skip
    state = following.ctx.state
    begun = state.open_step is not None or len(state.thread) > 2
    following.model.turns = [says("Done.")] if begun else [turn, says("Done.")]
    if other_boot and state.open_step is not None:
        state.open_step.boot = "before the power went"
    if state.task is not None and state.task.status != "running":
        return
    assert (await following.run()).status == "completed"
    seen.hold(SCENE, following)


async def calls_of_the_disk(folder: Path) -> int:
    disk = SimulatedDisk()
    made: list[int] = []
    await until_dead(folder, disk, lambda count: made.append(count) or Faults())  # type: ignore[func-returns-value]  # a place to note it
    return disk.calls.count - made[0]


async def test_killed_anywhere_a_process_leaves_what_the_next_can_go_on_with(tmp_path: Path) -> None:
    count = await calls_of_the_disk(tmp_path)
    assert count > 10
    for number in range(1, count + 1):
        (tmp_path / "a").unlink(missing_ok=True)
        disk = SimulatedDisk()
        loop, seen = await until_dead(tmp_path, disk, lambda start, at=number: Faults(kill_before=start + at))  # type: ignore[misc]  # bound here
        await go_on(loop, seen, disk.kill(), other_boot=False)


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("left", EXTREMES)
async def test_a_power_loss_anywhere_leaves_what_the_next_process_can_go_on_with(tmp_path: Path, left: str) -> None:
    for number in range(1, await calls_of_the_disk(tmp_path) + 1):
        (tmp_path / "a").unlink(missing_ok=True)
        disk = SimulatedDisk()
        loop, seen = await until_dead(tmp_path, disk, lambda start, at=number: Faults(cut_before=start + at))  # type: ignore[misc]  # bound here
        await go_on(loop, seen, disk.crash(EXTREMES[left]), other_boot=True)
