"""One approval for more than one call: how far it reaches, and what it is bound to (AH 10.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.loop.calls import granted_by
from agent_host.loop.prepare import prepare_calls
from agent_host.states import TaskPhase
from state.records import fields_of, record_of
from tests.support.loop import Loop
from tests.support.loop_parts import (
    Person,
    Tools,
    bundle,
    call,
    calls,
    do,
    says,
    shell,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.approval.gate import ApprovalGate
    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.llm import ModelTurn


def asking(folder: Path, gate: ApprovalGate | None, *turns: ModelTurn, **more: Any) -> Loop:
    """A loop whose commands, writes and uploads need an approval; its last turn ends the task."""
    policy = bundle(folder, asks=["Shell.Exec", "File.Write", "Workspace.Upload"])
    return Loop(folder, *turns, says(), gate=gate, policy=policy, **more)


def for_the(scope: str) -> Person:
    """Somebody who approves for a task or a session."""
    return Person(lambda _: {"approved": True, "scope": scope})


@pytest.mark.parametrize("scope", ["once", "task", "session"])
async def test_how_far_an_approval_reaches(tmp_path: Path, scope: str) -> None:
    person = for_the(scope)
    loop = asking(tmp_path, person, calls(shell("make")), calls(shell("make"), shell("make  ")), calls(shell("ls")))
    await loop.run()
    asked = {"once": ["make", "make", "make  ", "ls"], "task": ["make", "ls"], "session": ["make", "ls"]}
    assert [question.arguments["command"] for question in person.asked] == asked[scope]
    assert len(loop.tools.ran) == 4
    by = [payload.get("grantedBy") for payload in loop.told(EventType.TOOL_REQUESTED)]
    first = person.asked[0].approval_id
    assert [grant.scope for grant in loop.kept().grants] == ([] if scope == "once" else [scope] * 2)
    assert by == ([None] * 4 if scope == "once" else [None, first, first, None])
    following = loop.again(calls(shell("make")), says(), gate=person)
    following.begin("second")
    person.asked.clear()
    await following.run()
    assert len(person.asked) == (scope != "session")


async def test_a_grant_says_what_it_is_for(tmp_path: Path) -> None:
    person = for_the("session")
    loop = asking(tmp_path, person, calls(shell("make")))
    records = loop.watch_records()
    await loop.run()
    (grant,) = loop.kept().grants
    kinds = [kind for kind, _ in records]
    assert kinds.index("grant") + 1 == kinds.index("approval"), "a crash between the two leaves the grant"
    assert grant.action_hash
    assert grant.granted_at
    assert fields_of(grant._replace(approval_id="a", action_hash=None, granted_at=None)) == {
        "approvalId": "a",
        "scope": "session", "toolName": "RunCommand", "capability": "Shell.Exec", "action": "Run: make",
        "policyBundleVersion": "v1", "taskId": "t",
    }  # fmt: skip
    assert grant.approval_id == person.asked[0].approval_id


async def test_what_is_written_may_differ_and_what_is_uploaded_may_not(tmp_path: Path) -> None:
    person = for_the("task")
    upload = calls(call("UploadArtifact", content="a", name="n"))
    turns = [calls(write(tmp_path / "a", "1")), calls(write(tmp_path / "a", "2")), upload,
             calls(call("UploadArtifact", content="b", name="n")), upload]  # fmt: skip
    loop = asking(tmp_path, person, *turns, tools=Tools(do))
    await loop.run()
    assert [question.tool_name for question in person.asked] == ["WriteFile", "UploadArtifact", "UploadArtifact"]


async def test_a_grant_under_another_policy_covers_nothing(tmp_path: Path) -> None:
    person = for_the("session")
    loop = asking(tmp_path, person, calls(shell("ls")))
    await loop.run()
    changed = bundle(tmp_path, asks=["Shell.Exec"], ShellExec={"blocked_commands": ("rm",)})
    following = loop.again(calls(shell("ls")), says(), gate=person, policy=changed)
    following.begin("second")
    await following.run()
    assert len(person.asked) == 2


async def test_what_needs_no_approval_has_no_grant(tmp_path: Path) -> None:
    loop = Loop(tmp_path, policy=bundle(tmp_path))
    loop.begin()
    loop.ctx.journal.record(
        record_of("grant", {"scope": "session", "approvalId": "a", "actionHash": "x", "taskId": "t"})
    )
    (prepared,) = prepare_calls(loop.ctx, [shell("make")])
    assert granted_by(loop.ctx, prepared) is None


async def test_a_task_whose_calls_are_granted_waits_for_nobody(tmp_path: Path) -> None:
    stands: list[TaskPhase] = []

    def look(request: ToolRequest) -> ToolResult:
        stands.append(loop.ctx.phase.state)
        return do(request)

    loop = asking(tmp_path, for_the("task"), calls(shell("make")), calls(shell("make")), tools=Tools(look))
    await loop.run()
    assert stands == [TaskPhase.EXECUTING_TOOLS] * 2
