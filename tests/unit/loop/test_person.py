"""A server's question in the middle of a call: asked by the gate of approvals, told, and kept from secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_host.approval import ApprovalAnswer
from agent_host.approval.gate import PendingApprovals, UnattendedGate
from agent_host.contracts import PersonAnswer, PersonAsked
from agent_host.events import EventType
from agent_host.loop.elicitation import ask_person
from agent_host.states import TaskPhase
from tests.support.loop import Loop
from tests.support.loop_parts import Tools, bundle, calls, says, shell, succeeded

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.approval import ApprovalRequest
    from agent_host.approval.gate import ApprovalGate
    from agent_host.contracts import ToolRequest, ToolResult

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASKED = PersonAsked("mcp:odd", "Who are \x1byou?", NAME)


class Typed:
    """A person who answers at once."""

    def __init__(self, answer: ApprovalAnswer) -> None:
        self._answer = answer
        self.requests: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See ApprovalGate."""
        self.requests.append(request)
        return self._answer


async def asked(
    folder: Path, gate: ApprovalGate, asked: PersonAsked = ASKED, **more: Any
) -> tuple[Loop, PersonAnswer, list[TaskPhase]]:
    """A loop whose one call asks; the answer, and where the task stood when it had it."""
    answers: list[PersonAnswer] = []
    phases: list[TaskPhase] = []

    async def run(request: ToolRequest) -> ToolResult:
        answers.append(await ask_person(loop.ctx, request, asked))
        phases.append(loop.ctx.phase.state)
        return succeeded(request)

    loop = Loop(folder, calls(shell("ask", "c1")), says(), gate=gate, tools=Tools(run), **more)
    assert (await loop.run()).status == "completed"
    (answer,) = answers
    return loop, answer, phases


def filled(**content: Any) -> Typed:
    return Typed(ApprovalAnswer(True, "answered", arguments=content))


async def test_a_question_is_put_and_told_as_one(tmp_path: Path) -> None:
    gate = filled(name="Ada")
    loop, answer, phases = await asked(tmp_path, gate, policy=bundle(tmp_path)._replace(approval_timeout_s=7.5))
    assert answer == PersonAnswer("accept", {"name": "Ada"})
    assert phases == [TaskPhase.EXECUTING_TOOLS]
    (request,) = gate.requests
    assert (request.title, request.summary) == ("mcp:odd asks you", "Who are \\x1byou?")
    assert request.timeout_s == 7.5
    (told,) = loop.told(EventType.APPROVAL_REQUESTED)
    (over,) = loop.told(EventType.APPROVAL_RESOLVED)
    assert told["details"]["form"]["properties"] == {"name": {"type": "string"}}
    assert (told["isQuestion"], over["isQuestion"], over["decision"]) == (True, True, "approved")
    assert told["toolCallId"] == over["toolCallId"] == "c1"
    assert told["approvalId"] == over["approvalId"]
    assert b"Ada" not in b"".join(event.line() for event in loop.watcher.events)  # it goes to the server alone


@pytest.mark.parametrize(
    ("answer", "action", "reason"),
    [
        (ApprovalAnswer(False, "not you"), "decline", "not you"),
        (ApprovalAnswer(False, "nobody answered", timed_out=True), "cancel", "nobody answered"),
        (
            ApprovalAnswer(True, ""),
            "decline",
            "the answer does not fit the question, and was not sent: name is missing",
        ),
        (ApprovalAnswer(True, "", arguments={"name": 1}), "decline", "the answer does not fit the question"),
        (
            ApprovalAnswer(True, "", arguments={"name": "my hunter2-token is it"}),
            "decline",
            "the answer contains a secret, and was not sent",
        ),
    ],
)
async def test_what_is_not_sent(tmp_path: Path, answer: ApprovalAnswer, action: str, reason: str) -> None:
    loop, said, _ = await asked(tmp_path, Typed(answer), secrets=("hunter2-token",))
    assert (said.action, said.content) == (action, None)
    (over,) = loop.told(EventType.APPROVAL_RESOLVED)
    assert (over["decision"], over["reason"].startswith(reason)) == ("denied", True)
    assert len(loop.told(EventType.APPROVAL_TIMEOUT)) == answer.timed_out


async def test_what_looks_like_a_secret_is_not_sent(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string"}}}
    typed = "Tr0ub4dor&3xyz"
    _, said, _ = await asked(tmp_path, filled(password=typed), PersonAsked("mcp:odd", "Log in", schema), redaction=True)
    assert said == PersonAnswer("decline")


async def test_nothing_answers_a_question_in_advance(tmp_path: Path) -> None:
    loop, said, _ = await asked(tmp_path, UnattendedGate(frozenset({"RunCommand", "Mcp.Invoke"}), approve_all=True))
    assert said == PersonAnswer("cancel")
    (over,) = loop.told(EventType.APPROVAL_RESOLVED)
    assert over["reason"] == "no approver is present to answer it"


async def test_a_question_that_cannot_be_shown_is_not(tmp_path: Path) -> None:
    gate = filled()
    loop, said, _ = await asked(tmp_path, gate, PersonAsked("mcp:odd", "?", {"type": "array"}))
    assert said.problem == "this question cannot be displayed: its schema is not of an object"
    assert (gate.requests, loop.told(EventType.APPROVAL_REQUESTED)) == ([], [])


async def test_a_page_has_no_answer_but_that_it_was_opened(tmp_path: Path) -> None:
    gate = Typed(ApprovalAnswer(True, ""))
    _, said, _ = await asked(tmp_path, gate, PersonAsked("mcp:odd", "Log in", None, "https://example.com/in"))
    assert said == PersonAnswer("accept", None)
    assert gate.requests[0].to_payload()["details"]["host"] == "example.com"


async def test_a_cancelled_task_takes_its_question_back(tmp_path: Path) -> None:
    desk = PendingApprovals(timeout_s=3600)
    said: list[PersonAnswer] = []

    async def run(request: ToolRequest) -> ToolResult:
        loop.ctx.cancellation.request(resumable=False)
        said.append(await ask_person(loop.ctx, request, ASKED))
        return succeeded(request)

    loop = Loop(tmp_path, calls(shell("ask")), says(), gate=desk, tools=Tools(run))
    assert (await loop.run()).status == "cancelled"
    assert said == [PersonAnswer("cancel")]
    assert desk.rows() == []
