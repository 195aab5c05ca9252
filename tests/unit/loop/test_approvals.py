"""A call that needs an approval: the question, the answer on record, what follows from it (AH 10)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.approval.gate import UnattendedGate
from agent_host.events import EventType
from agent_host.judging import PreparedCall
from agent_host.loop.calls import cancel_before_start
from agent_host.loop.progress import TaskCancelled
from agent_host.states import TaskPhase
from policy.rules import TaskOptions
from tests.support.loop import Loop
from tests.support.loop_parts import (
    NO,
    NOW,
    YES,
    Person,
    Tools,
    bundle,
    calls,
    do,
    read,
    says,
    says_yes,
    settled,
    shell,
    write,
)
from tests.support.records import answered

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.approval import ApprovalRequest
    from agent_host.approval.gate import ApprovalGate
    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.llm import ModelTurn


def asking(folder: Path, gate: ApprovalGate | None, *turns: ModelTurn, **more: Any) -> Loop:
    """A loop whose commands, writes and uploads need an approval; its last turn ends the task."""
    policy = bundle(folder, asks=["Shell.Exec", "File.Write", "Workspace.Upload"])
    return Loop(folder, *turns, says(), gate=gate, policy=policy, **more)


async def test_an_approved_call_runs_once_with_its_answer_on_record(tmp_path: Path) -> None:
    def look(request: ToolRequest) -> ToolResult:
        step = loop.kept().open_step
        assert step is not None
        (call,) = step.calls
        said = dict(answered(call) or {})
        assert len(said.pop("boundTo")) == 64
        assert (call.started, call.gated, said) == (
            True, True,
            {"approved": True, "scope": "once", "reason": "approved by the user", "answeredBy": "client"},
        )  # fmt: skip
        return do(request)

    person = says_yes()
    loop = asking(tmp_path, person, calls(shell("make", "c")), tools=Tools(look))
    records = loop.watch_records()
    assert (await loop.run()).status == "completed"
    assert loop.tools.ran == ["make"]
    assert [kind for kind, _ in records if kind.startswith(("approval", "call"))] == [
        "approval", "call_started", "call_finished",
    ]  # fmt: skip
    (question,) = person.asked
    assert (question.rule_id, question.title, question.description) == (
        "rule-Shell.Exec", "May it Shell.Exec?", "It wants to.",
    )  # fmt: skip
    assert (question.summary, question.details["toolCallId"], question.risk_level) == ("Run: make", "c", "medium")
    (told,), (resolved,) = loop.told(EventType.APPROVAL_REQUESTED), loop.told(EventType.APPROVAL_RESOLVED)
    assert 0 <= resolved["latencyMs"] < 3_600_000, "how long it waited, and not what time it is"
    assert told == {"toolCallId": "c", **question.to_payload()}
    replay = told["replay"]
    assert replay["request"] == {"toolName": "RunCommand", "arguments": {"command": "make"}}
    assert replay["command"] == f"agent-host resume s --approve {replay['id']}"
    assert replay["approve"] == "rule-Shell.Exec"
    assert resolved == {
        "approvalId": question.approval_id, "toolCallId": "c", "decision": "approved", "scope": "once",
        "reason": "approved by the user", "latencyMs": resolved["latencyMs"], "answeredBy": "client",
    }  # fmt: skip
    assert loop.told(EventType.TOOL_REQUESTED)[0]["decision"] == "APPROVAL_REQUIRED"


async def test_a_denied_call_does_not_run_and_the_model_reads_why(tmp_path: Path) -> None:
    loop = asking(tmp_path, Person(lambda _: NO), calls(shell("make"), read(tmp_path / "a")))
    (tmp_path / "a").write_text("text")
    await loop.run()
    assert [answer.text for answer in loop.answers()] == ["APPROVAL_DENIED: not today", "text"]
    assert loop.finished()[0] == ("RunCommand", "denied", "APPROVAL_DENIED")
    assert loop.ctx.task.denied == []


async def test_what_nobody_answers_in_time_is_denied_and_told(tmp_path: Path) -> None:
    loop = asking(tmp_path, Person(lambda _: None, timeout_s=0), calls(shell("make")))
    await loop.run()
    assert loop.answers()[0].code == "APPROVAL_REQUIRED", "as docs/errors.md has it: nobody gave it in time"
    assert [row["toolName"] for row in loop.ctx.task.denied] == ["RunCommand"], "a resume can approve it"
    (timed_out,), (resolved,) = loop.told(EventType.APPROVAL_TIMEOUT), loop.told(EventType.APPROVAL_RESOLVED)
    assert timed_out == {"approvalId": resolved["approvalId"], "waitedMs": resolved["latencyMs"]}
    assert resolved["replay"] == loop.told(EventType.APPROVAL_REQUESTED)[0]["replay"]
    assert loop.kinds().index(EventType.APPROVAL_TIMEOUT) < loop.kinds().index(EventType.APPROVAL_RESOLVED)


async def test_where_nobody_is_there_the_call_can_be_replayed(tmp_path: Path) -> None:
    loop = asking(tmp_path, None, calls(shell("make", "c")))
    await loop.run()
    assert loop.answers()[0].code == "APPROVAL_REQUIRED"
    assert loop.finished() == [("RunCommand", "denied", "APPROVAL_REQUIRED")]
    replay = {"callId": "c", "approve": "rule-Shell.Exec", "place": loop.folder}
    assert loop.ctx.task.denied == [{"toolName": "RunCommand", "replay": replay}]
    (resolved,) = loop.told(EventType.APPROVAL_RESOLVED)
    replay = resolved["replay"]
    assert replay["command"] == f"agent-host resume s --approve {replay['id']}"
    assert (replay["approve"], replay["request"]["arguments"]) == ("rule-Shell.Exec", {"command": "make"})


async def test_a_call_without_a_rule_is_approved_by_its_tools_name(tmp_path: Path) -> None:
    policy = bundle(tmp_path, ShellExec={"requires_approval": True})
    loop = Loop(tmp_path, calls(shell("make")), says(), policy=policy)
    await loop.run()
    assert loop.ctx.task.denied[0]["replay"]["approve"] == "RunCommand"
    (told,) = loop.told(EventType.APPROVAL_REQUESTED)
    assert (told["title"], told["description"]) == ("RunCommand wants to act", "the capability requires approval")


@pytest.mark.parametrize("names", [{"rule-Shell.Exec"}, {"RunCommand"}, {"Shell.Exec"}])
async def test_what_was_approved_in_advance_runs(tmp_path: Path, names: set[str]) -> None:
    loop = asking(tmp_path, UnattendedGate(frozenset(names)), calls(shell("make"), write(tmp_path / "a", "x")))
    await loop.run()
    assert loop.tools.ran == ["make"]


async def test_the_audit_holds_no_call_that_is_long_or_has_a_secret(tmp_path: Path) -> None:
    long = "echo " + "x" * 20_000
    turn = calls(shell(long), shell("echo s3cret-value"))
    loop = asking(tmp_path, None, turn, secrets=("s3cret-value",))
    await loop.run()
    first, second = (payload["replay"] for payload in loop.told(EventType.APPROVAL_RESOLVED))
    assert set(first) == {"id", "approve", "command"}
    assert second == {"approve": "rule-Shell.Exec"}


async def test_a_reason_is_kept_without_its_secrets(tmp_path: Path) -> None:
    said: list[Any] = []

    def look(request: ToolRequest) -> ToolResult:
        step = loop.kept().open_step
        said.append(None if step is None else (answered(step.calls[0]) or {})["reason"])
        return do(request)

    person = Person(lambda _: {"approved": True, "reason": "use s3cret-value"})
    loop = asking(tmp_path, person, calls(shell("make")), secrets=("s3cret-value",), tools=Tools(look))
    await loop.run()
    assert said == ["use [redacted]"]


async def test_policy_has_the_last_word_after_the_wait(tmp_path: Path) -> None:
    def expire(_: ApprovalRequest) -> dict[str, Any]:
        loop.now = NOW + timedelta(days=2)
        return YES

    loop = asking(tmp_path, Person(expire), calls(shell("make")))
    records = loop.watch_records()
    assert (await loop.run()).reason == "POLICY_EXPIRED"
    assert (loop.tools.ran, loop.answers()[0].code) == ([], "POLICY_EXPIRED")
    assert "call_started" not in [kind for kind, _ in records]


async def test_what_an_approved_write_finds_is_what_is_there_after_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def meanwhile(_: ApprovalRequest) -> dict[str, Any]:
        path.write_text("by somebody else")
        return YES

    loop = asking(tmp_path, Person(meanwhile), calls(write(path, "mine")))
    await loop.run()
    (name,) = loop.ctx.task.baselines.values()
    assert loop.ctx.journal.store.kept(str(name)) == b"by somebody else"


async def test_calls_that_need_no_approval_do_not_wait_for_those_that_do(tmp_path: Path) -> None:
    person = Person(lambda _: None)
    (tmp_path / "a").write_text("text")
    loop = asking(tmp_path, person, calls(shell("make"), read(tmp_path / "a")))
    running = asyncio.ensure_future(loop.run())
    await settled()
    assert loop.tools.ran == [str(tmp_path / "a")]
    assert loop.ctx.phase.state is TaskPhase.WAITING_FOR_APPROVAL
    person.pending_approvals.decide(person.asked[0].approval_id, approved=True)
    assert (await running).status == "completed"
    assert loop.tools.ran == [str(tmp_path / "a"), "make"]


async def test_observers_have_the_question_and_the_answer_before_anybody_waits(tmp_path: Path) -> None:
    """The wait may be long, and the call may be what the process dies in."""
    flushed: list[int] = []

    def note(*_: object) -> dict[str, Any]:
        flushed.append(loop.watcher.flushes)
        return YES

    def run(request: ToolRequest) -> ToolResult:
        note()
        return do(request)

    loop = asking(tmp_path, Person(note), calls(shell("make")), tools=Tools(run))
    await loop.run()
    assert flushed == [2, 4]  # the first is that of the request to the model, the third that of the answer


async def test_an_approved_call_that_waits_for_another_does_not_start_after_a_stop(tmp_path: Path) -> None:
    both = asyncio.Event()

    def say(_: ApprovalRequest) -> dict[str, Any]:
        if len(person.asked) == 2:
            both.set()
        return YES

    async def stop(request: ToolRequest) -> ToolResult:
        await both.wait()
        await settled()
        loop.ctx.cancellation.request(resumable=False)
        return do(request)

    path, person = tmp_path / "a", Person(say)
    loop = asking(tmp_path, person, calls(write(path, "1"), write(path, "2")), tools=Tools(stop))
    records = loop.watch_records()
    assert (await loop.run()).status == "cancelled"
    assert loop.texts() == ["ok", "TOOL_INTERRUPTED: not started: the task was cancelled first"]
    assert [kind for kind, _ in records].count("call_started") == 1


# A stop


def test_a_call_that_does_not_start_is_refused_where_the_task_ends(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.ctx.cancellation.request(resumable=False)
    refusal = cancel_before_start(loop.ctx, PreparedCall(shell("make"))).refusal
    assert refusal is not None
    assert (refusal.status, refusal.code) == ("failed", "TOOL_INTERRUPTED")


def test_a_call_that_does_not_start_stays_open_where_the_task_does(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.ctx.cancellation.request(resumable=True)
    with pytest.raises(TaskCancelled):
        cancel_before_start(loop.ctx, PreparedCall(shell("make")))


async def test_a_task_that_wants_an_approval_for_all_effects_asks_for_them(tmp_path: Path) -> None:
    person = says_yes()
    (tmp_path / "a").write_text("text")
    turn = calls(shell("make"), read(tmp_path / "a"))
    loop = Loop(tmp_path, turn, says(), gate=person, options=TaskOptions(approval_mode="always"))
    await loop.run()
    assert [question.tool_name for question in person.asked] == ["RunCommand"]
    assert person.asked[0].rule_id is None
