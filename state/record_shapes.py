"""Shapes of messages, snapshots and records (AH 9.2, decision 0026).

Shapes of records are derived from the annotations of their classes (`state.records`). Names and values here are those
in the files. For those that the application defines (the options of a task, an answer),
`tests/unit/state/test_record_shapes.py` checks that both sides agree.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import orjson

from config.shapes import (
    COUNT,
    FLAG,
    OBJECT,
    TEXT,
    Either,
    Leaf,
    ListOf,
    MapOf,
    Nullable,
    Record,
    Row,
    display,
    integer,
    number,
    one_of,
)
from state.checkpoint import (
    CALL_FIELDS,
    FIELDS,
    USAGE_NAMES,
    ApprovalAnswered,
    ApprovalGranted,
    Checkpoint,
    Intent,
    OpenCall,
    OpenStep,
    ReplayRow,
    Task,
    TokenUsage,
    name_in_files,
)
from state.records import OF_THE_CALL, FileEffect, Meaning, names_of, types_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from config.shapes import Problem, Shape

# The fields of a recorded message: the ConversationMessage of interface section 3 (decision 0026).

ROLES = ("system", "user", "assistant", "tool")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def writable(value: Any) -> bool:
    """True if `value` is not nested too deeply to be written again: orjson reads deeper nesting than it writes."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _is_base64(text: str) -> bool:
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    return True


# Replaces a large part; see `shorten` and `restore` in `state.blobs`.
_BLOB = Record({"sha256": Leaf("a SHA-256", lambda value: type(value) is str and bool(_SHA256.fullmatch(value))),
                "bytes": COUNT})  # fmt: skip
_NAMED_CALL = Record({"id": TEXT, "name": TEXT, "arguments": OBJECT}, {"problem": TEXT, "argumentsBlob": _BLOB})
# Content for the provider only, as JSON text, and the order of text, calls and blocks (`agent_host.thread.messages`).
_BLOCK = Record({"raw": TEXT, "dialect": TEXT, "model": TEXT}, {"holdsText": FLAG, "rawBlob": _BLOB})
_PLACE = Leaf(
    'a number of characters, "call" or "block"',
    lambda value: value >= 0 if type(value) is int else type(value) is str and value in ("call", "block"),
)
# A picture, whose data is base64 (`agent_host.contracts.Image`).
_IMAGE = Record(
    {
        "mediaType": one_of("image/png", "image/jpeg", "image/gif", "image/webp"),
        "width": COUNT,
        "height": COUNT,
        "bytes": COUNT,
        "data": Leaf("base64", lambda value: type(value) is str and _is_base64(value)),
    },
    {"dataBlob": _BLOB},
)
_OF_EVERY_MESSAGE: dict[str, Shape] = {
    **dict.fromkeys(("messageId", "sessionId", "content", "timestamp"), TEXT),
    "tokenCount": COUNT,
}
_MAY_BE: dict[str, Shape] = {**dict.fromkeys(("taskId", "stepId", "parentId", "branch"), TEXT), "contentBlob": _BLOB}
_BY_ROLE = {
    "system": Record(_OF_EVERY_MESSAGE, {**_MAY_BE, "goesOn": FLAG, "workspace": TEXT}),
    "user": Record(_OF_EVERY_MESSAGE, _MAY_BE),
    "assistant": Record(
        _OF_EVERY_MESSAGE,
        {**_MAY_BE, "toolCalls": ListOf(_NAMED_CALL), "blocks": ListOf(_BLOCK), "order": ListOf(_PLACE)},
    ),
    "tool": Record(
        {**_OF_EVERY_MESSAGE, "toolCallId": TEXT},
        {**_MAY_BE, "isError": FLAG, "editedArguments": OBJECT, "images": ListOf(_IMAGE)},
    ),
}
_ANY_ROLE = Record({"role": one_of(*ROLES), **_OF_EVERY_MESSAGE}, _MAY_BE)


class MessageShape:
    """The shape of a ConversationMessage with one of these `roles`: its fields depend on the role."""

    def __init__(self, *roles: str) -> None:
        self._roles = frozenset(roles)
        self._role_leaf = Leaf(f"a message of {' or '.join(roles)}", lambda _: False)

    def fits(self, value: Any) -> bool:
        """See Shape."""
        role = value.get("role") if type(value) is dict else None
        return type(role) is str and role in self._roles and _BY_ROLE[role].fits(value)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """See Shape."""
        role = value.get("role") if type(value) is dict else None
        known = type(role) is str and role in _BY_ROLE
        if known and role not in self._roles:
            yield from self._role_leaf.problems(role, f"{path}.role")
        yield from (_BY_ROLE[str(role)] if known else _ANY_ROLE).problems(value, path)


_ANY = MessageShape(*ROLES)
_MAY_NEST = frozenset(("toolCalls", "blocks", "contentBlob", "editedArguments", "images"))
RESULT = MessageShape("tool")
"""The shape of a call's result."""


def read_message(data: bytes, path: str, spoken: MessageShape = _ANY) -> tuple[dict[str, Any], list[str]]:
    """Decode the message in `data`; return it and its problems. It must not be used if there are any."""
    try:
        wire: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}, [f"{path}: must be an object, not broken JSON"]
    if not spoken.fits(wire):
        return {}, list(map(str, spoken.problems(wire, path)))
    # Other messages are sent unchanged, never encoded again.
    is_too_deep = not _MAY_NEST.isdisjoint(wire) and not writable(wire)
    return wire, [f"{path}: nests too deep to be written again"] if is_too_deep else []


SESSION_STATUSES = (
    "SESSION_CREATED",
    "SESSION_RUNNING",
    "SESSION_PAUSED",
    "SESSION_COMPLETED",
    "SESSION_FAILED",
    "SESSION_CANCELLED",
)
APPROVAL_MODES = ("always", "on_risky_actions", "never")

ARTIFACT_TYPES = ("tool_output", "file_diff", "session_history")

_REF = re.compile(r"artifacts/[A-Za-z0-9_-]+")

# Wrapped, because in a snapshot it is nested deeper (`resume.openStep.calls[0].editedArguments`).
_OBJECT = Leaf("an object that does not nest too deep", lambda value: type(value) is dict and writable([[[[[value]]]]]))

_TEXT_OR_NULL = Nullable(TEXT)
_EXIT_CODE = integer()
_SESSION_STATUS = one_of(*SESSION_STATUSES)
# Blobs of first versions, by path. A blob is a hash, or a word for content that was not stored.
_BASELINES = MapOf(_TEXT_OR_NULL)
_USAGE = Record(dict.fromkeys(USAGE_NAMES[:3], COUNT), dict.fromkeys(USAGE_NAMES[3:], COUNT))
# Rows of earlier versions have the whole call (`id`, `command`, `request`) instead of its id.
_REPLAY = Record(
    {"approve": TEXT},
    {"callId": TEXT, "place": _TEXT_OR_NULL, "id": TEXT, "command": TEXT, "request": _OBJECT},
)
_TASK_OPTIONS = Record(
    {},
    {
        "approval_mode": Nullable(one_of(*APPROVAL_MODES)),
        "allow_network": Nullable(FLAG),
        "model": TEXT,
        "tool_lists": MapOf(TEXT),
        "max_cost": number(0),
    },
    closed=True,
)

# An artifact of a call: stored locally under `ref`, remotely as `uri`, or not stored because of `why`.
_ARTIFACT: dict[str, Shape] = {
    "id": TEXT,
    "type": one_of(*ARTIFACT_TYPES),
    "name": TEXT,
    "contentType": TEXT,
    "bytes": COUNT,
}
_REFERENCE = Leaf("a reference such as artifacts/ID", lambda value: type(value) is str and bool(_REF.fullmatch(value)))


def _artifact(**required: Shape) -> Shape:
    """Return the shape of an artifact's row with the required fields `required`. A `ref` comes with the hash of its
    content."""
    stored: dict[str, Shape] = {"uri": TEXT, "why": TEXT, "taskId": TEXT, "stepId": _TEXT_OR_NULL, "callId": TEXT}
    return Either(
        lambda value: "ref" in value,
        Record({**_ARTIFACT, "ref": _REFERENCE, "sha256": TEXT, **required}, stored),
        Record({**_ARTIFACT, **required}, stored),
    )


# The type of a setting; the configuration checks its value.
_SETTING = Leaf(
    "a string, a number, true or false, or a list of strings",
    lambda value: (
        type(value) in (str, int, float, bool) or (type(value) is list and all(type(one) is str for one in value))
    ),
)
# A local server's facts about its models when the session started (`agent_host.llm.local_server.ServerFacts`).
_SERVER_FACTS = Record(
    {"models": ListOf(TEXT), "context_tokens": Nullable(COUNT), "page": TEXT, "takes_tools": Nullable(FLAG)}
)
_OPTIONS = Record(
    {"flags": MapOf(_SETTING), "workspace": TEXT},
    {
        "temporary": TEXT,
        "gateway": TEXT,
        "started": Record(
            {},
            {
                "model": TEXT,
                "policy": _TEXT_OR_NULL,
                "policyHash": TEXT,
                "toolset": ListOf(TEXT),
                "key": TEXT,
                "promptMark": TEXT,
                "servers": MapOf(Nullable(_SERVER_FACTS)),
                "redaction": Record({"bundleVersion": TEXT, "hasRules": FLAG}),
            },
        ),
    },
)

SANDBOX_LEVELS = ("none", "landlock", "namespace")
_PLACES = ListOf(TEXT)
_SANDBOX = Record(
    {"level": one_of(*SANDBOX_LEVELS)},
    {
        "reads": Nullable(_PLACES),
        "domains": Nullable(_PLACES),
        **dict.fromkeys(("writes", "hidden", "guarded", "blockedDomains", "agents", "unheld", "withheld"), _PLACES),
    },
)


_MARKED: dict[str, Shape] = {
    "any whole number": _EXIT_CODE,
    "task options": _TASK_OPTIONS,
    "sandbox": _SANDBOX,
    "artifact": _artifact(),
    "artifact given up": _artifact(callId=TEXT, why=TEXT),
    "denied call": Record({"toolName": TEXT, "replay": _REPLAY}),
    "upload": _artifact(callId=TEXT, taskId=TEXT, stepId=_TEXT_OR_NULL),
    "arguments": _OBJECT,
    "session status": _SESSION_STATUS,
}
_TYPES: dict[Any, Shape] = {
    str: TEXT,
    int: COUNT,
    bool: FLAG,
    TokenUsage: _USAGE,
    ReplayRow: _REPLAY,
    bytes: RESULT,  # the one message in a field
}


def shape_of(hint: Any) -> Shape:
    """Return the shape of a value with this annotation in `state.records`."""
    if hint in _TYPES:
        return _TYPES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marker = hint.__metadata__[0]
        return Nullable(shape_of(_without_none(arguments[0]))) if marker == "or null" else _MARKED[marker]
    if hasattr(hint, "_fields"):
        return Record(*_shapes_of_fields(hint))
    if origin is Literal:
        return one_of(*arguments)
    if type(None) in arguments:
        return Nullable(shape_of(_without_none(hint)))
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        required = {name: shape_of(of) for name, of in hints.items() if get_origin(of) is not NotRequired}
        return Record(required, {name: shape_of(get_args(of)[0]) for name, of in hints.items() if name not in required})
    if origin is tuple and Ellipsis not in arguments:
        return Row(*map(shape_of, arguments))
    return MapOf(shape_of(arguments[1])) if origin in (Mapping, dict) else ListOf(shape_of(arguments[0]))


def _without_none(hint: Any) -> Any:
    """Return the type without None, because a file leaves None out."""
    others = [one for one in get_args(hint) if one is not type(None)]
    return others[0] if len(others) < len(get_args(hint)) else hint


def _shapes_of_fields(of: Any) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the shapes of a record's fields: those that are always present, and those that have a default. A default
    of None is never in a file."""
    required: dict[str, Shape] = {}
    optional: dict[str, Shape] = {}
    for owner in (of, FileEffect) if "effect" in of._fields else (of,):
        hints, defaults = get_type_hints(owner, include_extras=True), owner._field_defaults
        for name, attribute in names_of(owner).items():
            if attribute not in defaults:
                required[name] = shape_of(hints[attribute])
            else:
                hint = hints[attribute]
                optional[name] = shape_of(_without_none(hint) if defaults[attribute] is None else hint)
    return required, optional


_, _GRANT_OPTIONAL = _shapes_of_fields(ApprovalGranted)
# An approval for a task names its task.
_TYPES[ApprovalGranted] = Either(
    lambda value: value.get("scope") == "task",
    Record({"scope": one_of("task"), "approvalId": TEXT, "taskId": TEXT}, _GRANT_OPTIONAL),
    Record({"scope": one_of("task", "session"), "approvalId": TEXT}, _GRANT_OPTIONAL),
)
_DECISION = Record(
    *({name: shape for name, shape in shapes.items() if name not in OF_THE_CALL}
      for shapes in _shapes_of_fields(ApprovalAnswered))
)  # fmt: skip


_CALL_HINTS = get_type_hints(OpenCall, include_extras=True)
_CALL = Record(
    {"callId": TEXT, "sideEffects": FLAG},
    {
        **{name_in_files(one): shape_of(_without_none(_CALL_HINTS[one])) for one in CALL_FIELDS},
        "intent": Nullable(shape_of(Intent)),
        "approvalId": TEXT,
        "decision": _DECISION,
        "editedArguments": _OBJECT,
    },
)
_TYPES[OpenStep] = Record(
    {"stepId": TEXT, "stopReason": TEXT, "boot": _TEXT_OR_NULL, "position": COUNT, "calls": ListOf(_CALL)},
    {"meaning": shape_of(Meaning)},
)


def _shapes_of(of: type) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the shapes of an object's fields in a snapshot: those that are always present, and the others."""
    hints = get_type_hints(of, include_extras=True)
    always, others = FIELDS[of]
    return (
        {name_in_files(one): shape_of(hints[one]) for one in always},
        {name_in_files(one): shape_of(_without_none(hints[one])) for one in others},
    )


_TASK_ALWAYS, _TASK_OTHERS = _shapes_of(Task)
_TASK = Record(_TASK_ALWAYS, {**_TASK_OTHERS, "baselines": _BASELINES})
_RESUME_ALWAYS, _RESUME_OPTIONAL = _shapes_of(Checkpoint)
# Fields of `resume` that earlier versions did not have, by the first version that always has them.
_SINCE: dict[int, dict[str, Shape]] = {
    2: {"version": one_of(1, 2, 3), "salvaged": _RESUME_ALWAYS.pop("salvaged")},
    3: {name: _RESUME_ALWAYS.pop(name) for name in ("earlierTasks", "droppedMessages", "tokensKnown")},
}
_RESUME: dict[str, Shape] = {"journalSeq": COUNT, "options": _OPTIONS, **_RESUME_ALWAYS}
_HEAD: dict[str, Shape] = {
    **dict.fromkeys(("checkpointVersion", "sessionId", "workspaceId", "tenantId", "userId"), TEXT),
    "sessionStatus": _SESSION_STATUS,
    "task": Nullable(_TASK),
    "stepCursor": _TEXT_OR_NULL,
    "sessionTokensUsed": COUNT,
    "policyBundleVersion": TEXT,
    "checkpointedAt": TEXT,
}


def snapshot_shape(resume_version: int) -> Record:
    """Return the shape of a snapshot without its thread, for a version of `resume` from 1 on."""
    always = {name: shape for since, fields in _SINCE.items() if since <= resume_version for name, shape in
              fields.items()}  # fmt: skip
    later = {name: shape for fields in _SINCE.values() for name, shape in fields.items() if name not in always}
    return Record({**_HEAD, "resume": Record({**_RESUME, **always}, {**_RESUME_OPTIONAL, **later})})


_OPENED = Record(
    {},
    {
        "sessionId": TEXT,
        "status": _SESSION_STATUS,
        "boot": _TEXT_OR_NULL,
        "snapshot": TEXT,
        "durable": COUNT,
        "reopened": FLAG,
    },
)


@cache
def _record_shape(kind: str) -> Shape | None:
    """Return the shape of a record's fields, None for an unknown kind."""
    if kind == "opened":
        return _OPENED
    shapes = list(map(shape_of, types_of(kind)))
    if len(shapes) == 2:  # an approval: without an answer it has only the ids
        return Either(lambda value: value.keys() <= {"callId", "approvalId"}, *shapes)
    return shapes[0] if shapes else None


@cache
def _message_shape(kind: str) -> tuple[MessageShape | None, bool]:
    """Return the shape of a record's message, None if it has none, and True if it may be missing."""
    for of in types_of(kind):
        hint = get_type_hints(of, include_extras=True).get("message")
        if hint is not None:
            (role,) = (hint if get_origin(hint) is Annotated else get_args(hint)[0]).__metadata__
            return RESULT if role == "tool" else MessageShape(role), get_origin(hint) is not Annotated
    return None, True


def record_problems(kind: str, fields: dict[str, Any], message: bytes | None) -> list[str]:
    """Return the problems of a journal's record, one line each; none for an unknown kind. `fields` does not include the
    store's own fields (`state.journal.KIND` and others)."""
    shape = _record_shape(kind)
    if shape is None:
        return []
    found = [] if shape.fits(fields) else list(map(str, shape.problems(fields, "")))
    spoken, is_optional = _message_shape(kind)
    if spoken is None:
        return found
    if message is None:
        return found if is_optional else [*found, "message: is missing"]
    wire, problems = read_message(message, "message", spoken)
    found += problems
    if kind == "call_finished" and not found and wire["toolCallId"] != fields["callId"]:
        found.append("message.toolCallId: must be the record's callId, not another")
    return found


# Checks of a snapshot with a valid checksum: the shape of each field, and the consistency between fields.


def snapshot_problems(raw: dict[str, Any], version: int, thread: Sequence[bytes] | None) -> list[str]:
    """Return every problem with its path. `raw` is the snapshot without its messages, `version` that of its `resume`;
    `thread` is None if it has no list of messages."""
    shape = snapshot_shape(version)
    found = [] if shape.fits(raw) else list(map(str, shape.problems(raw, "")))
    if thread is None:
        return [*found, "thread: must be a list"]
    of_thread, waiting = _thread_problems(thread)
    found += of_thread
    if found:  # consistency cannot be checked yet
        return found
    step = raw["resume"]["openStep"]
    for upload_id, row in raw["resume"].get("uploads", {}).items():
        if row["id"] != upload_id:
            found.append(f"resume.uploads[{display(upload_id)}].id: must be the same id, not another")
    position = None if step is None else step["position"]
    found += (
        f"thread[{place}].toolCalls: call {display(call_id)} has no result, and its step is not open"
        for call_id, place in waiting.items()
        if place != position
    )
    if step is not None:
        found += _step_problems(step, thread, {call_id for call_id, place in waiting.items() if place == position})
    try:
        orjson.dumps(raw)
    except orjson.JSONEncodeError:
        found.append("it nests too deep to be written again")
    return found


def _thread_problems(thread: Sequence[bytes]) -> tuple[list[str], dict[str, int]]:
    """Return the problems, and the positions of the calls without a result in the thread, by id."""
    found: list[str] = []
    unpaired: list[str] = []
    waiting: dict[str, int] = {}
    for place, data in enumerate(thread):
        wire, problems = read_message(data, f"thread[{place}]")
        if problems:
            found += problems
        elif "toolCalls" in wire:
            for call in wire["toolCalls"]:
                waiting[call["id"]] = place
        elif "toolCallId" in wire and waiting.pop(wire["toolCallId"], None) is None:
            unpaired.append(f"thread[{place}].toolCallId: must name a call before it that has no result yet")
    if not thread:
        found.append("thread: must have at least the system prompt")
    elif not found and orjson.loads(thread[0])["role"] != "system":
        unpaired.append('thread[0].role: must be "system": the system prompt comes first')
    return found or unpaired, waiting


def _step_problems(step: dict[str, Any], thread: Sequence[bytes], open_calls: set[str]) -> Iterator[str]:
    """Yield the problems of the open step. `open_calls` are the calls of its message that have no result in the
    thread."""
    path, position = "resume.openStep", step["position"]
    turn = orjson.loads(thread[position]) if position < len(thread) else {}
    if turn.get("role") != "assistant":
        yield f"{path}.position: must be the place of an assistant's message, not {position}"
        return
    rows = [row["callId"] for row in step["calls"]]
    if len(rows) != len(open_calls) or set(rows) != open_calls:
        yield f"{path}.calls: must be a row for each call of thread[{position}], and no other"
    for place, row in enumerate(step["calls"]):
        if ("result" in row) != ("status" in row):
            yield f"{path}.calls[{place}]: must have `result` and `status` together"
        elif "result" in row and row["result"]["toolCallId"] != row["callId"]:
            yield f"{path}.calls[{place}].result.toolCallId: must be the row's callId, not another"
