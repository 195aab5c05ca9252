"""Whoever approves a call may write other arguments: what runs then, what is on record, what the model reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent_host.events import EventType
from tests.support.loop import Loop
from tests.support.loop_parts import NO, YES, Person, Tools, bundle, calls, do, says, settled, shell, write
from tests.support.records import answered

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.approval import ApprovalRequest
    from agent_host.contracts import ToolRequest, ToolResult

NOTE = "[The person who approved this call changed its arguments. It was run, or refused, with: {}]"


def changes(scope: str = "once", **arguments: Any) -> Person:
    """Somebody who approves with other arguments."""
    return Person(lambda _: {"approved": True, "scope": scope, "arguments": arguments})


async def test_what_runs_is_what_was_approved_and_the_model_reads_it(tmp_path: Path) -> None:
    recorded: list[Any] = []

    def look(request: ToolRequest) -> ToolResult:
        step = loop.kept().open_step
        recorded.extend([] if step is None else [step.calls[0].arguments, step.calls[0].edited_arguments])
        return do(request)

    policy = bundle(tmp_path, asks=["Shell.Exec"])
    loop = Loop(tmp_path, calls(shell("make")), says(), gate=changes(command="make -n"), policy=policy,
                tools=Tools(look))  # fmt: skip
    await loop.run()
    assert loop.tools.ran == ["make -n"]
    assert loop.answers()[0].text == NOTE.format('{"command":"make -n"}') + "\nok"
    assert recorded == [{"command": "make"}, {"command": "make -n"}]
    before, after = loop.told(EventType.TOOL_REQUESTED)
    assert ("edited" in before, after["edited"], after["summary"]) == (False, True, "make -n")
    assert after["argumentsSha256"] != before["argumentsSha256"]
    assert loop.told(EventType.APPROVAL_RESOLVED)[0]["edited"] is True


async def test_policy_judges_what_was_written(tmp_path: Path) -> None:
    policy = bundle(tmp_path, asks=["Shell.Exec"], ShellExec={"blocked_commands": ("rm",)})
    loop = Loop(tmp_path, calls(shell("ls")), says(), gate=changes(command="rm x"), policy=policy)
    await loop.run()
    assert loop.tools.ran == []
    first, _, rest = loop.answers()[0].text.partition("\n")
    assert first == NOTE.format('{"command":"rm x"}')
    assert rest.startswith("CAPABILITY_DENIED: ")


async def test_arguments_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    policy = bundle(tmp_path, asks=["Shell.Exec"])
    loop = Loop(tmp_path, calls(shell("make")), says(), gate=changes(command=7), policy=policy)
    await loop.run()
    assert "\nINVALID_REQUEST: " in loop.answers()[0].text


async def test_arguments_with_a_secret_run_and_are_kept_nowhere(tmp_path: Path) -> None:
    decisions: list[Any] = []

    def look(request: ToolRequest) -> ToolResult:
        step = loop.kept().open_step
        decisions.append(None if step is None else (answered(step.calls[0]), step.calls[0].edited_arguments))
        return do(request)

    policy = bundle(tmp_path, asks=["Shell.Exec"])
    person = changes(command="login s3cret-value")
    loop = Loop(tmp_path, calls(shell("login")), says(), gate=person, policy=policy, secrets=("s3cret-value",),
                tools=Tools(look))  # fmt: skip
    await loop.run()
    assert loop.tools.ran == ["login s3cret-value"]
    assert decisions == [(None, None)], "a crash before the start asks again"
    assert loop.answers()[0].text == NOTE.format('{"command":"login [redacted]"}') + "\nok"


async def test_a_wider_approval_is_for_what_the_call_was_changed_to(tmp_path: Path) -> None:
    def say(request: ApprovalRequest) -> dict[str, Any]:
        if len(person.asked) > 1:
            return NO
        return {"approved": True, "scope": "task", "arguments": {"command": "make -n"}}

    person = Person(say)
    turns = [calls(shell("make")), calls(shell("make -n"), shell("make"))]
    loop = Loop(tmp_path, *turns, says(), gate=person, policy=bundle(tmp_path, asks=["Shell.Exec"]))
    await loop.run()
    assert loop.tools.ran == ["make -n", "make -n"]
    assert [question.arguments["command"] for question in person.asked] == ["make", "make"]
    assert loop.kept().grants[0].action == "Run: make -n"


async def test_a_call_that_is_moved_goes_behind_those_that_are_there(tmp_path: Path) -> None:
    """It was approved after the others had begun, so that call order would be too late for them."""
    first, second = tmp_path / "a", tmp_path / "b"
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def run(request: ToolRequest) -> ToolResult:
        begun.set()
        if request.arguments["content"] == "slow":
            await let_go.wait()
        return do(request)

    def say(request: ApprovalRequest) -> dict[str, Any]:
        if request.arguments["path"] == str(first):
            return {"approved": True, "arguments": {"path": str(second), "content": "moved"}}
        return YES

    policy = bundle(tmp_path, asks=["File.Write"])
    turn = calls(write(first, "x"), write(second, "slow"))
    loop = Loop(tmp_path, turn, says(), gate=Person(say), policy=policy, tools=Tools(run))
    running = asyncio.ensure_future(loop.run())
    await begun.wait()
    await settled()
    assert loop.tools.ran == [str(second)]
    let_go.set()
    await running
    assert (second.read_text(), first.exists()) == ("moved", False)
    assert set(loop.ctx.task.baselines) == {str(second)}
