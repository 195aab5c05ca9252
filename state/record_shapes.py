"""What each field of a snapshot, a record and a message may hold (AH 9.2, decision 0026). One table for each.

Names and values here are those of the files. Where one is a word of the application (the options of a task, an answer),
`tests/unit/state/test_record_shapes.py` holds that both know the same words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from state.shapes import COUNT, FLAG, OBJECT, TEXT, Leaf, ListOf, MapOf, Nullable, Record, Row, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state.shapes import Shape

ROLES = ("system", "user", "assistant", "tool")
SESSION_STATUSES = (
    "SESSION_CREATED",
    "SESSION_RUNNING",
    "SESSION_PAUSED",
    "SESSION_COMPLETED",
    "SESSION_FAILED",
    "SESSION_CANCELLED",
)
TASK_STATUSES = ("running", "completed", "failed", "cancelled")
CALL_STATUSES = ("succeeded", "failed", "denied")
SCOPES = ("once", "task", "session")
APPROVAL_MODES = ("always", "on_risky_actions", "never")

_SHA256 = re.compile(r"[0-9a-f]{64}")


def _writable(value: Any) -> bool:
    """Whether `value` does not nest too deep to be written again: orjson reads deeper than it writes."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


# In a record; in a snapshot it stands deeper (`resume.openStep.calls[0].editedArguments`).
_OBJECT = Leaf(
    "an object that does not nest too deep", lambda value: type(value) is dict and _writable([[[[[value]]]]])
)

_TEXT_OR_NULL = Nullable(TEXT)
_TASK_STATUS, _SESSION_STATUS = one_of(*TASK_STATUSES), one_of(*SESSION_STATUSES)
# Blobs of first versions, by path. A blob is a hash, or a word for content that was not kept.
_BASELINES = MapOf(_TEXT_OR_NULL)
_USAGE = Record({"inputTokens": COUNT, "outputTokens": COUNT, "cachedInputTokens": COUNT})
_INTENT = Record({"path": TEXT, "before": _TEXT_OR_NULL, "after": _TEXT_OR_NULL})
# Rows of earlier versions have all of the call (`id`, `command`, `request`) in place of its id.
_REPLAY = Record(
    {"approve": TEXT},
    {"callId": TEXT, "place": _TEXT_OR_NULL, "id": TEXT, "command": TEXT, "request": _OBJECT},
)
_TASK_OPTIONS = Record(
    {}, {"approval_mode": Nullable(one_of(*APPROVAL_MODES)), "allow_network": Nullable(FLAG)}, closed=True
)
_GRANT_OPTIONAL: dict[str, Shape] = dict.fromkeys(
    ("toolName", "capability", "action", "actionHash", "policyBundleVersion", "taskId", "grantedAt"), TEXT
)


class _Grant:
    """An approval for a task names its task."""

    _session = Record({"scope": one_of("task", "session"), "approvalId": TEXT}, _GRANT_OPTIONAL)
    _task = Record({"scope": one_of("task"), "approvalId": TEXT, "taskId": TEXT}, _GRANT_OPTIONAL)

    def _shape(self, value: Any) -> Record:
        return self._task if type(value) is dict and value.get("scope") == "task" else self._session

    def fits(self, value: Any) -> bool:
        return self._shape(value).fits(value)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        yield from self._shape(value).problems(value, path)


_GRANT = _Grant()
_DECISION_OPTIONAL: dict[str, Shape] = {"unattended": FLAG, "timedOut": FLAG, "boundTo": TEXT}
_DECISION = Record({"approved": FLAG, "scope": one_of(*SCOPES), "reason": TEXT}, _DECISION_OPTIONAL)

# What a setting may be; which value each takes is for the configuration to say.
_SETTING = Leaf(
    "a string, a number, true or false, or a list of strings",
    lambda value: (
        type(value) in (str, int, float, bool) or (type(value) is list and all(type(one) is str for one in value))
    ),
)
_OPTIONS = Record(
    {"flags": MapOf(_SETTING), "workspace": TEXT},
    {
        "temporary": TEXT,
        "started": Record(
            {},
            {
                "model": TEXT,
                "policy": _TEXT_OR_NULL,
                "policyHash": TEXT,
                "toolset": ListOf(TEXT),
                "key": TEXT,
                "promptMark": TEXT,
            },
        ),
    },
)

# --- messages (interface section 3) -----------------------------------------------------------------------------------

# In place of a large part; `state.large` takes it out and puts it back.
_BLOB = Record({"sha256": Leaf("a SHA-256", lambda value: type(value) is str and bool(_SHA256.fullmatch(value))),
                "bytes": COUNT})  # fmt: skip
_NAMED_CALL = Record({"id": TEXT, "name": TEXT, "arguments": OBJECT}, {"problem": TEXT, "argumentsBlob": _BLOB})
_OF_EVERY_MESSAGE: dict[str, Shape] = {
    "messageId": TEXT,
    "sessionId": TEXT,
    "content": TEXT,
    "timestamp": TEXT,
    "tokenCount": COUNT,
}
_MAY_BE: dict[str, Shape] = {"taskId": TEXT, "stepId": TEXT, "contentBlob": _BLOB}
_MESSAGES = {
    "system": Record(_OF_EVERY_MESSAGE, _MAY_BE),
    "user": Record(_OF_EVERY_MESSAGE, _MAY_BE),
    "assistant": Record(_OF_EVERY_MESSAGE, {**_MAY_BE, "toolCalls": ListOf(_NAMED_CALL)}),
    "tool": Record({**_OF_EVERY_MESSAGE, "toolCallId": TEXT}, {**_MAY_BE, "isError": FLAG}),
}
_ANY_ROLE = Record({"role": one_of(*ROLES), **_OF_EVERY_MESSAGE}, _MAY_BE)


class _Message:
    """A ConversationMessage: what it holds goes by its role."""

    def __init__(self, *roles: str) -> None:
        self._roles = frozenset(roles)
        self._said = Leaf(f"a message of {' or '.join(roles)}", lambda _: False)

    def fits(self, value: Any) -> bool:
        role = value.get("role") if type(value) is dict else None
        return type(role) is str and role in self._roles and _MESSAGES[role].fits(value)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        role = value.get("role") if type(value) is dict else None
        known = type(role) is str and role in _MESSAGES
        if known and role not in self._roles:
            yield from self._said.problems(role, f"{path}.role")
        yield from (_MESSAGES[str(role)] if known else _ANY_ROLE).problems(value, path)


_MESSAGE = _Message(*ROLES)
_RESULT = _Message("tool")


def message_of(data: bytes, spoken: _Message = _MESSAGE) -> dict[str, Any] | None:
    """The message that `data` encodes; None where something is wrong with it, which `message_problems` tells."""
    try:
        wire: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not spoken.fits(wire):
        return None
    # Others are sent as they are.
    return None if ("toolCalls" in wire or "contentBlob" in wire) and not _writable(wire) else wire


def message_problems(data: bytes, path: str, spoken: _Message = _MESSAGE) -> list[str]:
    """What is wrong with a message that `message_of` does not give."""
    try:
        wire = orjson.loads(data)
    except orjson.JSONDecodeError:
        return [f"{path}: expected an object, found what is no JSON"]
    return list(spoken.problems(wire, path)) or [f"{path}: nests too deep to be written again"]


# --- the open step ----------------------------------------------------------------------------------------------------

_CALL_BEGUN: dict[str, Shape] = {"intent": Nullable(_INTENT), "gated": FLAG, "approvalId": TEXT}
_CALL = Record(
    {"callId": TEXT, "sideEffects": FLAG},
    {
        **_CALL_BEGUN,
        "started": FLAG,
        "result": _RESULT,
        "status": one_of(*CALL_STATUSES),
        "code": TEXT,
        "replay": _REPLAY,
        "decision": _DECISION,
        "editedArguments": _OBJECT,
    },
)
_STEP = Record({"stepId": TEXT, "stopReason": TEXT, "boot": _TEXT_OR_NULL, "position": COUNT, "calls": ListOf(_CALL)})

# --- the snapshot -----------------------------------------------------------------------------------------------------

_TASK = Record(
    {
        "taskId": TEXT,
        "prompt": TEXT,
        "status": _TASK_STATUS,
        "reason": _TEXT_OR_NULL,
        "stepCount": COUNT,
        "maxSteps": COUNT,
        "usage": _USAGE,
        "finishedCalls": ListOf(Row(TEXT, one_of(*CALL_STATUSES), _TEXT_OR_NULL)),
        "denied": ListOf(Record({"toolName": TEXT, "replay": _REPLAY})),
    },
    {"options": _TASK_OPTIONS, "baselines": _BASELINES},
)
_EARLIER_TASK = Record(
    {
        "taskId": TEXT,
        "prompt": TEXT,
        "status": _TASK_STATUS,
        "reason": _TEXT_OR_NULL,
        "stepCount": COUNT,
        "baselines": _BASELINES,
    }
)
_RESUME: dict[str, Shape] = {
    "journalSeq": COUNT,
    "options": _OPTIONS,
    "usage": _USAGE,
    "baselines": _BASELINES,
    "grants": ListOf(_GRANT),
    "openStep": Nullable(_STEP),
}
# Fields of `resume` that earlier versions did not have, by the first version that always has them.
_SINCE: dict[int, dict[str, Shape]] = {
    2: {"version": one_of(1, 2, 3), "salvaged": _TEXT_OR_NULL},
    3: {
        "earlierTasks": ListOf(_EARLIER_TASK),
        "droppedMessages": COUNT,
        "tokensKnown": Nullable(Row(COUNT, COUNT)),
    },
}
_HEAD: dict[str, Shape] = {
    "checkpointVersion": TEXT,
    "sessionId": TEXT,
    "workspaceId": TEXT,
    "tenantId": TEXT,
    "userId": TEXT,
    "sessionStatus": _SESSION_STATUS,
    "task": Nullable(_TASK),
    "stepCursor": _TEXT_OR_NULL,
    "sessionTokensUsed": COUNT,
    "policyBundleVersion": TEXT,
    "checkpointedAt": TEXT,
}


def snapshot_shape(resume_version: int) -> Record:
    """The shape of a snapshot but for its thread, in a version of `resume`, from 1 on."""
    always = {name: shape for since, fields in _SINCE.items() if since <= resume_version for name, shape in
              fields.items()}  # fmt: skip
    later = {name: shape for fields in _SINCE.values() for name, shape in fields.items() if name not in always}
    return Record({**_HEAD, "resume": Record({**_RESUME, **always}, later)})


# --- records of the journal -------------------------------------------------------------------------------------------


class _Approval:
    """The record of an answer; without one it says only under which id a call is asked for."""

    _asked = Record({"callId": TEXT, "approvalId": TEXT})
    _answered = Record(
        {"callId": TEXT, "approvalId": TEXT, "approved": FLAG, "scope": one_of(*SCOPES), "reason": TEXT},
        {"arguments": _OBJECT, **_DECISION_OPTIONAL},
    )

    def _shape(self, value: Any) -> Record:
        bare = type(value) is dict and value.keys() <= {"callId", "approvalId"}
        return self._asked if bare else self._answered

    def fits(self, value: Any) -> bool:
        return self._shape(value).fits(value)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        yield from self._shape(value).problems(value, path)


_RECORDS: dict[str, Shape] = {
    "opened": Record({"sessionId": TEXT}, {"status": _SESSION_STATUS, "boot": _TEXT_OR_NULL, "snapshot": TEXT}),
    "task_started": Record({"taskId": TEXT, "prompt": TEXT, "maxSteps": COUNT}, {"options": _TASK_OPTIONS}),
    "task_reopened": Record({"maxSteps": COUNT}),
    "turn": Record(
        {
            "stepId": TEXT,
            "stopReason": TEXT,
            "boot": _TEXT_OR_NULL,
            "usage": _USAGE,
            "calls": ListOf(Record({"callId": TEXT, "sideEffects": FLAG}, _CALL_BEGUN)),
        },
        {
            "window": Record({"dropped": COUNT, "estimated": COUNT}),
            "baselines": _BASELINES,
            "settled": ListOf(TEXT),
        },
    ),
    "approval": _Approval(),
    "call_started": Record({"callId": TEXT}, {"intent": Nullable(_INTENT), "baselines": _BASELINES}),
    "call_finished": Record({"callId": TEXT, "status": one_of(*CALL_STATUSES)}, {"code": TEXT, "replay": _REPLAY}),
    "step_committed": Record({"stepCount": COUNT}, {"taskStatus": _TASK_STATUS, "taskReason": _TEXT_OR_NULL}),
    "note": Record({}, {"ofDamage": FLAG}),
    "task_ended": Record({"status": _TASK_STATUS}, {"reason": _TEXT_OR_NULL}),
    "session_status": Record(
        {"status": _SESSION_STATUS}, {"policyBundleVersion": TEXT, "maxSteps": COUNT, "reason": _TEXT_OR_NULL}
    ),
    "grant": _GRANT,
}
# Whose message a record has; those of other kinds have none. A step may be committed without one.
_SPOKEN: dict[str, _Message] = {
    "task_started": _Message("user"),
    "turn": _Message("assistant"),
    "call_finished": _RESULT,
    "step_committed": _Message("system"),
    "note": _Message("system"),
}
_MAY_BE_SILENT = frozenset({"step_committed"})


def record_problems(kind: str, fields: dict[str, Any], message: bytes | None) -> list[str]:
    """What is wrong with a record of the journal, one line for each thing; nothing for a kind that is not known here.

    `fields` are those without what is the store's own (`state.store.KIND` and its like).
    """
    shape = _RECORDS.get(kind)
    if shape is None:
        return []
    found = [] if shape.fits(fields) else list(shape.problems(fields, ""))
    spoken = _SPOKEN.get(kind)
    if spoken is None:
        return found
    if message is None:
        return found if kind in _MAY_BE_SILENT else [*found, "message: is missing"]
    wire = message_of(message, spoken)
    if wire is None:
        found += message_problems(message, "message", spoken)
    elif kind == "call_finished" and not found and wire["toolCallId"] != fields["callId"]:
        found.append("message.toolCallId: expected the record's callId, found another")
    return found
