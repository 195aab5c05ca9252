"""The step that is open: a model turn on record whose calls are not all answered, as value and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from state.records import ApprovalAnswered, fields_of, record_of

if TYPE_CHECKING:
    from state.records import Intent, ReplayRow

_OF_THE_CALL = frozenset(("callId", "approvalId", "arguments"))


@dataclass(slots=True, repr=False)
class Call:
    """One tool call of the open step.

    `problem` says why the arguments cannot be used. `intent` holds the path and the hashes before and after of a call
    whose whole effect is on one file. `gated`: it waits for an approval, so its start record, unlike others, is synced
    before it starts. `approval_id`: what it is asked under. `answer` is what was answered, None until it was.
    """

    call_id: str
    tool_name: str
    arguments: dict[str, Any]
    side_effects: bool
    problem: str | None = None
    intent: Intent | None = None
    gated: bool = False
    started: bool = False
    result: bytes | None = None
    status: str | None = None
    code: str | None = None
    replay: ReplayRow | None = None
    approval_id: str | None = None
    answer: ApprovalAnswered | None = None
    exit_code: int | None = None
    duration_ms: int | None = None

    @property
    def edited_arguments(self) -> dict[str, Any] | None:
        """What the person who approved it put in place of `arguments`, None where they left these."""
        return None if self.answer is None else self.answer.arguments


@dataclass(slots=True, repr=False)
class OpenStep:
    """A step whose model turn is recorded and whose tool calls are not all answered yet. `boot` is the boot of the
    machine in which the turn was recorded: see `state.boot`. `position` is the place of its message in the thread.
    `stop_reason` is the gateway's word for the end of the turn and `meaning` what its dialect made of it, None in older
    records."""

    step_id: str
    stop_reason: str
    boot: str | None
    position: int
    text: str
    calls: list[Call]
    meaning: str | None = None


def open_step_from(fields: dict[str, Any], message: bytes) -> OpenStep:
    """The open step: names and arguments of the calls stand in the assistant's message, the rest in `fields`. Raises
    KeyError unless the calls of both are the same."""
    turn = orjson.loads(message)
    named = {call["id"]: call for call in turn.get("toolCalls", [])}
    if len(named) != len(fields["calls"]):
        raise KeyError("each call of the message has a row")
    calls = [_call_from(raw, named[raw["callId"]]) for raw in fields["calls"]]
    return OpenStep(
        fields["stepId"],
        fields["stopReason"],
        fields["boot"],
        fields["position"],
        turn["content"],
        calls,
        fields.get("meaning"),
    )


def _call_from(raw: dict[str, Any], named: dict[str, Any]) -> Call:
    result = raw.get("result")
    return Call(
        raw["callId"],
        named["name"],
        named["arguments"],
        raw["sideEffects"],
        named.get("problem"),
        raw.get("intent"),
        raw.get("gated", False),
        raw.get("started", False),
        None if result is None else orjson.dumps(result),
        raw.get("status"),
        raw.get("code"),
        raw.get("replay"),
        raw.get("approvalId"),
        _answer_from(raw),
        raw.get("exitCode"),
        raw.get("durationMs"),
    )


def _answer_from(raw: dict[str, Any]) -> ApprovalAnswered | None:
    """A snapshot has the answer without what it has of the call anyway."""
    decision = raw.get("decision")
    if decision is None:
        return None
    said = {**decision, "callId": raw["callId"], "approvalId": raw.get("approvalId", "")}
    answer = record_of("approval", said | {"arguments": raw.get("editedArguments")})
    return answer if isinstance(answer, ApprovalAnswered) else None


def _answer_to_json(answer: ApprovalAnswered | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    return {name: value for name, value in fields_of(answer).items() if name not in _OF_THE_CALL}


def call_to_json(call: Call) -> dict[str, Any]:
    """A call as it stands in records and snapshots, beside the message that names it; defaults are left out."""
    optional = {
        "intent": call.intent,
        "gated": call.gated or None,
        "started": call.started or None,
        "result": None if call.result is None else orjson.Fragment(call.result),
        "status": call.status,
        "code": call.code,
        "replay": call.replay,
        "exitCode": call.exit_code,
        "durationMs": call.duration_ms,
        "approvalId": call.approval_id,
        "decision": _answer_to_json(call.answer),
        "editedArguments": call.edited_arguments,
    }
    given = {key: value for key, value in optional.items() if value is not None}
    return {"callId": call.call_id, "sideEffects": call.side_effects, **given}
