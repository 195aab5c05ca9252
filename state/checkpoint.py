"""The recoverable state of a session, and the one function that changes it.

Live and after a crash the state comes about the same way: `apply` folds records over it. A record is a kind, a few
fields, and at most one message in its encoded form; encoded messages are kept as bytes and put into journal, snapshot
and history as they are, so that nothing is encoded twice.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

from state.errors import Damaged, UnknownVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHECKPOINT_VERSION = "1.0"

TaskStatus = Literal["running", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    """Who and where: fixed for the life of a session. `options` is what a resume needs to run as the first run did
    (workspace, policy, dialect...), chosen by the application; it holds no secrets."""

    session_id: str
    workspace_id: str
    tenant_id: str
    user_id: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """One tool call of the open step.

    `problem` says why the arguments cannot be used.
    `intent` holds the path and the hashes before and after of a call whose whole effect is on one file. `gated`: it
    waits for an approval, so its start record, unlike others, is synced before it starts.
    """

    call_id: str
    tool_name: str
    arguments: dict[str, Any]
    side_effects: bool
    problem: str | None = None
    intent: dict[str, Any] | None = None
    gated: bool = False
    started: bool = False
    result: bytes | None = None
    status: str | None = None
    code: str | None = None
    replay: dict[str, Any] | None = None


@dataclass(slots=True)
class OpenStep:
    """A step whose model turn is recorded and whose tool calls are not all answered yet. `boot` is the boot of the
    machine in which the turn was recorded: see `state.boot`."""

    step_id: str
    stop_reason: str
    boot: str | None
    text: str
    calls: list[Call]


@dataclass(slots=True)
class Usage:
    """Tokens as the gateway counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    def add(self, other: dict[str, int]) -> None:
        """Add the counts of one call, by their wire names."""
        self.input_tokens += other.get("inputTokens", 0)
        self.output_tokens += other.get("outputTokens", 0)
        self.cached_input_tokens += other.get("cachedInputTokens", 0)

    def to_wire(self) -> dict[str, int]:
        """The `usage` object of the result."""
        return {
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "cachedInputTokens": self.cached_input_tokens,
        }


@dataclass(slots=True)
class Task:
    """The task at work, with what its result object will need. `finished_calls` rows: name, status, code or None."""

    task_id: str
    prompt: str
    max_steps: int
    status: TaskStatus = "running"
    reason: str | None = None
    step_count: int = 0
    usage: Usage = field(default_factory=Usage)
    finished_calls: list[tuple[str, str, str | None]] = field(default_factory=list)
    denied: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Checkpoint:
    """Everything that a resume needs. `thread` holds encoded messages; `baselines` maps a path to the blob of its
    content before the session's first write to it (None: it did not exist); `grants` are approvals given."""

    identity: SessionIdentity
    session_status: str = "SESSION_RUNNING"
    policy_bundle_version: str = ""
    thread: list[bytes] = field(default_factory=list)
    task: Task | None = None
    step_cursor: str | None = None
    open_step: OpenStep | None = None
    usage: Usage = field(default_factory=Usage)
    baselines: dict[str, str | None] = field(default_factory=dict)
    grants: list[dict[str, Any]] = field(default_factory=list)
    seq: int = 0

    @property
    def session_tokens_used(self) -> int:
        """Input and output of every call so far (AH 5.3)."""
        return self.usage.input_tokens + self.usage.output_tokens

    def apply(self, kind: str, fields: dict[str, Any], message: bytes | None) -> None:
        """Fold one record over the state. Raises Damaged for a record that cannot follow what came before."""
        try:
            _APPLY[kind](self, fields, message)
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise Damaged(f"record {kind!r} does not fit the state it follows") from error


def _append(state: Checkpoint, message: bytes | None) -> None:
    if message is not None:
        state.thread.append(message)


def _task_started(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    state.task = Task(fields["taskId"], fields["prompt"], fields["maxSteps"])
    state.open_step = None
    _append(state, message)


def _turn(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    task = _task(state)
    if message is None:
        raise KeyError("message")
    _append(state, message)
    state.usage.add(fields["usage"])
    task.usage.add(fields["usage"])
    _add_baselines(state, fields)
    state.open_step = _open_step(fields, message)


def _add_baselines(state: Checkpoint, fields: dict[str, Any]) -> None:
    for path, blob in fields.get("baselines", {}).items():
        state.baselines.setdefault(path, blob)


def _call_started(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    call = _open_call(state, fields["callId"])
    call.started = True
    call.intent = fields.get("intent", call.intent)
    _add_baselines(state, fields)


def _call_finished(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    call = _open_call(state, fields["callId"])
    call.result = message
    call.status = fields["status"]
    call.code = fields.get("code")
    call.replay = fields.get("replay")


def _step_committed(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    task, step = _task(state), state.open_step
    if step is None:
        raise KeyError("no open step")
    for call in step.calls:
        _append(state, call.result)
        task.finished_calls.append((call.tool_name, call.status or "failed", call.code))
        if call.replay is not None:
            task.denied.append({"toolName": call.tool_name, "replay": call.replay})
    _append(state, message)
    task.step_count = fields["stepCount"]
    state.step_cursor = step.step_id
    state.open_step = None


def _note(state: Checkpoint, _: dict[str, Any], message: bytes | None) -> None:
    _append(state, message)


def _task_ended(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    task = _task(state)
    task.status = fields["status"]
    task.reason = fields.get("reason")


def _session_status(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    state.session_status = fields["status"]
    state.policy_bundle_version = fields.get("policyBundleVersion", state.policy_bundle_version)
    if state.task is not None and "maxSteps" in fields:
        state.task.max_steps = fields["maxSteps"]


def _grant(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    state.grants.append(fields)


_APPLY: dict[str, Callable[[Checkpoint, dict[str, Any], bytes | None], None]] = {
    "task_started": _task_started,
    "turn": _turn,
    "call_started": _call_started,
    "call_finished": _call_finished,
    "step_committed": _step_committed,
    "note": _note,
    "task_ended": _task_ended,
    "session_status": _session_status,
    "grant": _grant,
}


def _task(state: Checkpoint) -> Task:
    if state.task is None:
        raise KeyError("no task")
    return state.task


def _open_call(state: Checkpoint, call_id: str) -> Call:
    if state.open_step is None:
        raise KeyError("no open step")
    return next(call for call in state.open_step.calls if call.call_id == call_id)


def _open_step(fields: dict[str, Any], message: bytes) -> OpenStep:
    """The open step: names and arguments of the calls stand in the assistant's message, the rest in `fields`."""
    turn = orjson.loads(message)
    named = {call["id"]: call for call in turn.get("toolCalls", [])}
    calls = [_call_from(raw, named[raw["callId"]]) for raw in fields["calls"]]
    return OpenStep(fields["stepId"], fields["stopReason"], fields["boot"], turn["content"], calls)


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
    )


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
    }
    return {
        "callId": call.call_id,
        "sideEffects": call.side_effects,
        **{key: value for key, value in optional.items() if value is not None},
    }


_CHECKSUM_KEY = b',"checksum":"crc32:'
_TRAILER_BYTES = len(_CHECKSUM_KEY) + 8 + len(b'"}\n')


def encode_snapshot(state: Checkpoint, checkpointed_at: str) -> list[bytes]:
    """The snapshot file in chunks: JSON in the form of AH 9.2 with what a resume needs under `resume`, ended by a
    checksum over everything before it. Messages go in as they were encoded when they were made."""
    task, step = state.task, state.open_step
    identity = state.identity
    head = orjson.dumps(
        {
            "checkpointVersion": CHECKPOINT_VERSION,
            "sessionId": identity.session_id,
            "workspaceId": identity.workspace_id,
            "tenantId": identity.tenant_id,
            "userId": identity.user_id,
            "sessionStatus": state.session_status,
            "task": None if task is None else _task_to_json(task),
            "stepCursor": state.step_cursor,
            "sessionTokensUsed": state.session_tokens_used,
            "policyBundleVersion": state.policy_bundle_version,
            "checkpointedAt": checkpointed_at,
            "resume": {
                "journalSeq": state.seq,
                "options": identity.options,
                "usage": state.usage.to_wire(),
                "baselines": state.baselines,
                "grants": state.grants,
                "openStep": None if step is None else _step_to_json(step),
            },
        }
    )
    body = [head[:-1] + b',"thread":[', *_separated(state.thread), b"]"]
    checksum = 0
    for chunk in body:
        checksum = zlib.crc32(chunk, checksum)
    return [*body, _CHECKSUM_KEY + b'%08x"}\n' % checksum]


def decode_snapshot(data: bytes) -> Checkpoint:
    """The state that `data` holds. Raises Damaged or UnknownVersion."""
    body, trailer = data[:-_TRAILER_BYTES], data[-_TRAILER_BYTES:]
    whole = trailer == _CHECKSUM_KEY + b'%08x"}\n' % zlib.crc32(body)
    try:
        raw = orjson.loads(data)
        version = raw["checkpointVersion"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise Damaged("the checkpoint is not readable as JSON") from error
    if version != CHECKPOINT_VERSION:
        raise UnknownVersion(f"checkpoint version {version!r} is not known to this program ({CHECKPOINT_VERSION})")
    if not whole:
        raise Damaged("the checkpoint's checksum does not match its content")
    resume = raw["resume"]
    step = resume["openStep"]
    thread = [orjson.dumps(message) for message in raw["thread"]]
    return Checkpoint(
        SessionIdentity(raw["sessionId"], raw["workspaceId"], raw["tenantId"], raw["userId"], resume["options"]),
        session_status=raw["sessionStatus"],
        policy_bundle_version=raw["policyBundleVersion"],
        thread=thread,
        task=None if raw["task"] is None else _task_from_json(raw["task"]),
        step_cursor=raw["stepCursor"],
        open_step=None if step is None else _open_step(step, thread[-1]),
        usage=_usage_from(resume["usage"]),
        baselines=resume["baselines"],
        grants=resume["grants"],
        seq=resume["journalSeq"],
    )


def _separated(messages: Iterable[bytes]) -> Iterable[bytes]:
    first = True
    for message in messages:
        if not first:
            yield b","
        first = False
        yield message


def _step_to_json(step: OpenStep) -> dict[str, Any]:
    return {
        "stepId": step.step_id,
        "stopReason": step.stop_reason,
        "boot": step.boot,
        "calls": [call_to_json(call) for call in step.calls],
    }


def _task_to_json(task: Task) -> dict[str, Any]:
    return {
        "taskId": task.task_id,
        "prompt": task.prompt,
        "status": task.status,
        "reason": task.reason,
        "stepCount": task.step_count,
        "maxSteps": task.max_steps,
        "usage": task.usage.to_wire(),
        "finishedCalls": task.finished_calls,
        "denied": task.denied,
    }


def _task_from_json(raw: dict[str, Any]) -> Task:
    return Task(
        raw["taskId"],
        raw["prompt"],
        raw["maxSteps"],
        raw["status"],
        raw["reason"],
        raw["stepCount"],
        _usage_from(raw["usage"]),
        [(name, status, code) for name, status, code in raw["finishedCalls"]],
        raw["denied"],
    )


def _usage_from(raw: dict[str, int]) -> Usage:
    return Usage(raw["inputTokens"], raw["outputTokens"], raw["cachedInputTokens"])
