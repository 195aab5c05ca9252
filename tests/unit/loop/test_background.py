"""Background commands as the host has them: on record, in events, and in notes to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import CommandEnd, Leftovers
from agent_host.events import EventType
from agent_host.loop.background import CommandLog, end_commands, reap_background_commands
from tests.support.loop import Loop
from tests.support.loop_parts import Tools, call, calls, says, succeeded

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult


class Commands(Tools):
    """Tools whose RunCommand starts a background command; `ends` of those that are over follow at once."""

    def __init__(self, *ends: CommandEnd) -> None:
        super().__init__(self._start)
        self.log: CommandLog | None = None
        self.at_the_end = Leftovers()
        self._ends = {end.command_id: end for end in ends}
        self._count = 0

    async def end_commands(self) -> Leftovers:
        return self.at_the_end

    def _start(self, request: ToolRequest) -> ToolResult:
        assert self.log is not None
        if request.tool_name != "RunCommand":
            return succeeded(request)
        self._count += 1
        command_id = f"cmd_{self._count}"
        self.log.started(request, command_id)
        if command_id in self._ends:
            self.log.ended(request, self._ends[command_id])
        return succeeded(request)._replace(command_id=command_id)


def loop_of(folder: Path, tools: Commands, *turns: object, **more: object) -> Loop:
    loop = Loop(folder, *turns, tools=tools, **more)  # type: ignore[arg-type]  # handed on as they came
    tools.log = CommandLog(loop.ctx.journal, loop.ctx.emitter)
    return loop


def in_background(line: str, call_id: str | None = None) -> object:
    return calls(call("RunCommand", call_id, command=line, background=True))


def notes(loop: Loop, request: int) -> list[str]:
    """What the last message of a request says besides results."""
    blocks = [block for message in loop.model.requests[request] for block in message["content"]]
    return [block["text"] for block in blocks if block["type"] == "text" and "Background" in block["text"]]


async def test_the_model_reads_of_an_end_before_its_next_turn_and_once(tmp_path: Path) -> None:
    tools = Commands(CommandEnd("cmd_1", "exited", 3, left=2))
    loop = loop_of(tmp_path, tools, in_background("make  \n  all"), calls(call("ReadFile", path="/w/a")), says("Done."))
    await loop.run()
    said = "cmd_1 (make all): exit code 3; 2 of its processes still run, and end with the session"
    assert notes(loop, 1) == notes(loop, 2) == [f"[Background commands have ended:\n{said}]"]
    (completed, _) = loop.told(EventType.TOOL_COMPLETED)
    assert completed["commandId"] == "cmd_1"
    (ended,) = loop.told(EventType.COMMAND_ENDED)
    assert ended == {
        "commandId": "cmd_1", "toolCallId": completed["toolCallId"], "reason": "exited", "exitCode": 3,
        "processesLeft": 2,
    }  # fmt: skip
    assert loop.kept().commands == {}


async def test_many_ends_are_one_bounded_note(tmp_path: Path) -> None:
    ends = [CommandEnd(f"cmd_{number}", "timed_out", 143) for number in range(1, 31)]
    turn = calls(*(call("RunCommand", command="x" * 500, background=True) for _ in ends))
    loop = loop_of(tmp_path, Commands(*ends), turn, says())
    await loop.run()
    (note,) = notes(loop, 1)
    lines = note.splitlines()
    assert lines[1] == f"cmd_1 ({'x' * 80}): ended by its time-out, exit code 143"
    assert (len(lines), lines[-1]) == (22, "and 10 more]")
    assert loop.kept().commands == {}


async def test_one_that_the_model_stopped_is_not_told_again(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, Commands(CommandEnd("cmd_1", "stopped", 143)), in_background("make"), says())
    await loop.run()
    assert notes(loop, 1) == []
    assert loop.kept().commands == {}


async def test_what_a_crash_ended_is_ended_and_told(tmp_path: Path) -> None:
    """Its call is not made again, and what is left of it is looked for by the call that started it."""
    first = loop_of(tmp_path, Commands(), in_background("server", "c1"), RuntimeError("killed"))
    with pytest.raises(RuntimeError, match="killed"):
        await first.run()
    (row,) = first.kept().commands.values()
    tools = Commands()
    loop = first.again(says("Done."), tools=tools)
    await reap_background_commands(loop.ctx)
    (request,) = tools.leftovers
    assert (request.tool_name, request.task_id, request.step_id, request.tool_call_id) == (
        "RunCommand", row["taskId"], row["stepId"], "c1",
    )  # fmt: skip
    await reap_background_commands(loop.ctx)
    assert len(tools.leftovers) == 1
    await loop.run()
    assert tools.requests == []
    assert notes(loop, 0) == ["[Background commands have ended:\ncmd_1 (server): ended by a crash of the host]"]
    assert [event["reason"] for event in loop.told(EventType.COMMAND_ENDED)] == ["interrupted"]


async def test_the_end_of_the_session_reports_what_was_left(tmp_path: Path) -> None:
    tools = Commands()
    loop = loop_of(tmp_path, tools, says())
    await loop.run()
    await end_commands(loop.ctx)
    assert loop.told(EventType.COMMAND_ENDED) == []
    tools.at_the_end = Leftovers(3, (7,))
    await end_commands(loop.ctx)
    expected = {"reason": "session_ended", "processesEnded": 3, "processesLeft": 1}
    assert loop.told(EventType.COMMAND_ENDED) == [expected]
