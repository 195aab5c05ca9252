"""What records and messages may hold: the words of the application, and what has to be there."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from agent_host import contracts
from agent_host.approval import AnsweredBy, ApprovalAnswer, Scope
from agent_host.contracts import ArtifactType, ToolStatus
from agent_host.llm import Meaning
from agent_host.states import SessionStatus
from agent_host.thread.messages import Role
from policy.rules import ApprovalMode, TaskOptions
from state import Damaged, checkpoint, record_shapes, records
from state import record_shapes as message_shapes
from state.checkpoint import CallStatus, CommandReason, TaskStatus
from state.journal import frame, parse
from state.loading import change_of, fields_of_line
from state.record_shapes import record_problems
from state.records import fields_of
from tests.support.rows import each_row
from tests.unit.state.helpers import USAGE, message


@each_row(
    ("words", "own"),
    [
        (message_shapes.ROLES, get_args(Role)),
        (record_shapes.SESSION_STATUSES, tuple(SessionStatus)),
        (("running", "completed", "failed", "cancelled"), get_args(TaskStatus)),
        (get_args(CallStatus), get_args(ToolStatus)),
        (get_args(records.Meaning), get_args(Meaning)),
        (record_shapes.ARTIFACT_TYPES, get_args(ArtifactType)),
        (get_args(checkpoint.Scope), get_args(Scope)),
        (get_args(checkpoint.Answerer), get_args(AnsweredBy)),
        (record_shapes.APPROVAL_MODES, get_args(ApprovalMode)),
        (get_args(CommandReason), get_args(contracts.CommandReason)),
    ],
)
def test_files_and_program_know_the_same_words(words: tuple[str, ...], own: tuple[str, ...]) -> None:
    assert words == own


@each_row("mode", [None, *get_args(ApprovalMode)])
@each_row("network", [None, True, False])
def test_every_option_of_a_task_can_be_read_again(mode: ApprovalMode | None, network: bool | None) -> None:
    options = TaskOptions(mode, network)._asdict()
    fields = {"taskId": "t", "prompt": "p", "maxSteps": 1, "options": options}
    assert record_problems("task_started", fields, message("user", "p")) == []
    options["else"] = 1
    assert record_problems("task_started", fields, message("user", "p")) == [
        "options.else: is not known; known are approval_mode, allow_network, model, tool_lists, max_cost"
    ]


@pytest.mark.parametrize(
    "answer",
    [
        ApprovalAnswer(approved=True, reason=""),
        ApprovalAnswer(approved=False, reason="no", unattended=True, timed_out=True),
        ApprovalAnswer(approved=True, reason="", scope="session", arguments={"command": "ls"}),
        ApprovalAnswer(approved=True, reason="", answered_by="command"),
    ],
)
def test_every_answer_can_be_read_again(answer: ApprovalAnswer) -> None:
    fields = fields_of(answer.to_record("c", "a", "x"))
    assert record_problems("approval", fields, None) == []


TURN: dict[str, Any] = {"stepId": "s", "stopReason": "tool_use", "boot": None, "usage": USAGE, "calls": []}
CALLS = [{"id": "c", "name": "T", "arguments": {}}]


@each_row(
    ("kind", "fields", "spoken", "said"),
    [
        ("turn", TURN, message("assistant", ""), []),
        ("turn", TURN, None, ["message: is missing"]),
        ("turn", TURN, b"{", ["message: must be an object, not broken JSON"]),
        ("turn", TURN, message("user", ""), ['message.role: must be a message of assistant, not "user"']),
        ("turn", TURN, message("boss", ""),
         ['message.role: must be one of system, user, assistant, tool, not "boss"']),
        ("turn", TURN, b"[]", ["message: must be an object, not a list of 0"]),
        ("turn", {**TURN, "usage": {**USAGE, "inputTokens": -1}}, message("assistant", ""),
         ["usage.inputTokens: must be a whole number of at least 0, not -1"]),
        ("turn", TURN, message("assistant", "", toolCalls=[{**CALLS[0], "arguments": []}]),
         ["message.toolCalls[0].arguments: must be an object, not a list of 0"]),
        ("call_finished", {"callId": "c", "status": "succeeded"}, message("tool", ""),
         ["message.toolCallId: is missing"]),
        ("call_finished", {"callId": "c", "status": "succeeded"}, message("tool", "", toolCallId="d"),
         ["message.toolCallId: must be the record's callId, not another"]),
        ("call_finished", {"status": "done"}, message("tool", "", toolCallId="d"),
         ["callId: is missing", 'status: must be one of succeeded, failed, denied, not "done"']),
        ("step_committed", {"stepCount": 1}, None, []),
        ("step_committed", {"stepCount": 1, "dropped": -1}, None,
         ["dropped: must be a whole number of at least 0, not -1"]),
        ("turn", {**TURN, "options": {"model": 5}}, message("assistant", ""),
         ["options.model: must be a string, not 5"]),
        ("grant", {"scope": "session", "approvalId": "a"}, None, []),
        ("grant", {"scope": "task", "approvalId": "a"}, None, ["taskId: is missing"]),
        ("grant", {"scope": "once", "approvalId": "a"}, None,
         ['scope: must be one of task, session, not "once"']),
        ("approval", {"callId": "c", "approvalId": "a"}, None, []),
        ("approval", {"callId": "c", "approvalId": "a", "scope": "once", "reason": ""}, None,
         ["approved: is missing"]),
        ("of tomorrow", {"x": 1}, None, []),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_record(kind: str, fields: dict[str, Any], spoken: bytes | None, said: list[str]) -> None:
    assert record_problems(kind, fields, spoken) == said


@each_row("kind", sorted(set(records._KINDS.values())))
def test_each_field_of_each_record_has_a_shape(kind: str) -> None:
    names = set(records.names_of(records.types_of(kind)[-1]))
    wrong = [problem.partition(":")[0] for problem in record_problems(kind, dict.fromkeys(names, 0.5), None)]
    assert names == {*wrong} - {"message"}


def test_arguments_may_nest_as_deep_as_they_can_be_written() -> None:
    def nested(depth: int) -> bytes:
        return message("assistant", "", toolCalls=[CALLS[0]]).replace(
            b'"arguments":{}', b'"arguments":{"a":' + b"[" * depth + b"]" * depth + b"}"
        )

    assert record_problems("turn", TURN, nested(240)) == []
    assert len(record_problems("turn", TURN, nested(300))) == 1


@each_row(
    ("fields", "said"),
    [
        (b"[]", "record 1 has no kind"),
        (b"{", "record 1 has no kind"),
        (b'{"kind":5}', "record 1 has no kind"),
        (b'{"kind":"opened","sessionId":5}',
         "record 1 (opened) is whole and of another shape: sessionId: must be a string, not 5"),
        (b'{"kind":"opened","durable":-1}',
         "record 1 (opened) is whole and of another shape: durable: must be a whole number of at least 0, not -1"),
        (b'{"kind":"opened","sessionId":"s","blobs":[]}',
         "record 1 (opened) is whole and of another shape: blobs: must be base64 by name"),
        (b'{"kind":"opened","sessionId":"s","blobs":{"n":5}}',
         "record 1 (opened) is whole and of another shape: blobs: must be base64 by name"),
        (b'{"kind":"opened","sessionId":"s","blobs":{"n":"!"}}',
         "record 1 (opened) is whole and of another shape: blobs: must be base64 by name"),
    ],
)  # fmt: skip
def test_records_of_another_shape_are_damage(fields: bytes, said: str) -> None:
    (record,) = parse(frame(1, 0, fields)).records
    with pytest.raises(Damaged) as raised:
        change_of(record)
    assert str(raised.value) == said
    assert isinstance(fields_of_line(record), dict)
