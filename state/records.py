"""The records of a session's journal: one type for each kind, and how each is written as JSON and read back.

A record has the fields of its type under their names in camelCase; a field with its default is left out. What a field
may hold in a file is said in `state.record_shapes`, and what a record changes in `state.fold`. Rows inside a record are
typed dictionaries: they are the JSON itself, and stand like this in snapshots too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

from config.lean_typing import NamedTuple
from state.errors import Damaged, UnknownVersion
from state.usage import NO_TOKENS, TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

TaskStatus = Literal["running", "completed", "failed", "cancelled"]
CommandReason = Literal["exited", "timed_out", "stopped", "session_ended", "interrupted"]
FirstVersions = Mapping[str, str | None]
"""Blobs of what files held before they were first written, by path; None for a file that did not exist."""


class Target(TypedDict):
    """The path that a file is about to be moved to, and the SHA-256 of what is there before, None for no file."""

    path: str
    before: str | None


class Intent(TypedDict):
    """The effect that a call is about to have on one file: its path and the SHA-256 before and after. None stands for
    no file, "unavailable" for a hash that cannot be said. `kept` names the blob of what it finds, without secrets: the
    version that would take the call back; "unavailable" where that is not kept. `target`: the file is moved there."""

    path: str
    before: str | None
    after: str | None
    kept: NotRequired[str]
    target: NotRequired[Target]


class CallRow(TypedDict):
    """One call in the record of its turn. `gated`: an approval decides about it, under `approvalId`."""

    callId: str
    sideEffects: bool
    intent: NotRequired[Intent]
    gated: NotRequired[bool]
    approvalId: NotRequired[str]


class RequestWindow(TypedDict):
    """The part of the thread that a request had: how many messages were left out, and its estimated input tokens."""

    dropped: int
    estimated: int


ContextStrategy = Literal["drop_oldest", "clear_tool_results", "summarize"]


class ReplayRow(TypedDict):
    """The means to approve a denied call after all: the call, what approves its kind, and where it would have acted."""

    callId: str
    approve: str
    place: NotRequired[str]


class EndRow(TypedDict):
    """The end of a background command; fields as in CommandEnded."""

    reason: CommandReason
    exitCode: NotRequired[int]
    left: NotRequired[int]


class CommandRow(TypedDict):
    """A background command: the call that started it, and the start of its line. `ended` stands there from its end on
    until the model has been told."""

    callId: str
    taskId: str
    stepId: str
    line: str
    ended: NotRequired[EndRow]


class FileEffect(NamedTuple):
    """The effect of a call on its file: the intent, None if it has none, and the first versions that it finds."""

    intent: Intent | None = None
    baselines: Mapping[str, str | None] = {}


class TaskStarted(NamedTuple):
    """A prompt came. `options` narrow what the task may do, in the application's words."""

    task_id: str
    prompt: str
    max_steps: int
    message: bytes
    options: Mapping[str, Any] = {}


class TaskReopened(NamedTuple):
    """A task that was over goes on."""

    max_steps: int


class TaskQueued(NamedTuple):
    """A prompt came while another task was open; its task begins when that one is over. Fields as in TaskStarted."""

    task_id: str
    prompt: str
    max_steps: int
    options: Mapping[str, Any] = {}


class TaskUnqueued(NamedTuple):
    """A queued task was cancelled before it began."""

    task_id: str


class TurnTaken(NamedTuple):
    """The model answered. `stop_reason` is the gateway's word and `meaning` what its dialect makes of it, None in
    records of earlier versions. `baselines` are first versions of files that its calls are about to write, `settled`
    the ids of denied calls that it makes good for. `options` replace options of the task from this
    turn on. `model` used the tokens; None where none did, and in records of earlier versions. `sandbox` says how the
    commands of this turn and of those behind it are held, where that is not what the last such record says: a scope in
    JSON, with its level."""

    step_id: str
    stop_reason: str
    boot: str | None
    usage: TokenUsage
    calls: Sequence[CallRow]
    message: bytes
    meaning: str | None = None
    window: RequestWindow | None = None
    baselines: Mapping[str, str | None] = {}
    settled: Sequence[str] = ()
    options: Mapping[str, Any] = {}
    model: str | None = None
    sandbox: Mapping[str, Any] = {}


class ApprovalAsked(NamedTuple):
    """A call needs an approval, under this id, that its turn did not name."""

    call_id: str
    approval_id: str


class ApprovalAnswered(NamedTuple):
    """Somebody, or nobody in time, answered. `arguments` are what the person wrote in place of the model's; `bound_to`
    is what an approval holds for (`agent_host.approval.grants`)."""

    call_id: str
    approval_id: str
    approved: bool
    scope: str
    reason: str
    unattended: bool = False
    timed_out: bool = False
    bound_to: str | None = None
    arguments: dict[str, Any] | None = None


class ApprovalGranted(NamedTuple):
    """An approval for a task or a session. `action_hash` is what it is bound to; `granted_at` is in RFC 3339."""

    scope: str
    approval_id: str
    task_id: str | None = None
    tool_name: str | None = None
    capability: str | None = None
    action: str | None = None
    action_hash: str | None = None
    policy_bundle_version: str | None = None
    granted_at: str | None = None


class CallStarted(NamedTuple):
    """A call with side effects is about to start. `effect` replaces what its turn says of it."""

    call_id: str
    effect: FileEffect | None = None


class UsedSkill(TypedDict):
    """A skill that holds until its task ends; `allowedTools` are the only tools that it leaves, None for all."""

    name: str
    allowedTools: list[str] | None


class CallFinished(NamedTuple):
    """A call has its result. `replay` is how a denied one can be approved, `artifacts` are rows of what it left
    (`agent_host.loop.artifacts`), `uris` name what another service has stored of it, `exit_code` is a command's.
    `seen` are the files that it read or wrote, by path, as the tools know them again; None for one that is not there
    any more. `changed` are the files that a command was seen to change: the version before it by path, None for no
    file, a word of `state.blobs.NOT_KEPT` for what was not kept; those that the task had not on record are first
    versions. `unseen` says what was not looked at. `duration_ms` is how long the call ran, None for one that did not.
    `skill` is one that it has put to use."""

    call_id: str
    status: str
    message: bytes
    code: str | None = None
    replay: ReplayRow | None = None
    artifacts: Sequence[Mapping[str, Any]] = ()
    exit_code: int | None = None
    seen: Mapping[str, str | None] = {}
    changed: Mapping[str, str | None] = {}
    unseen: str | None = None
    duration_ms: int | None = None
    skill: UsedSkill | None = None
    uris: Sequence[str] = ()


class ArtifactUploaded(NamedTuple):
    """The artifact `id` is stored at `uri`."""

    id: str
    uri: str


class ArtifactGivenUp(NamedTuple):
    """The artifact `id` will not be stored."""

    id: str
    why: str


class CommandStarted(NamedTuple):
    """The call started a command that runs on in the background under `id`."""

    id: str
    call_id: str


class CommandEnded(NamedTuple):
    """The background command `id` is over; fields as in `agent_host.contracts.CommandEnd`."""

    id: str
    reason: CommandReason
    exit_code: int | None = None
    left: int = 0


class ChangesSeen(NamedTuple):
    """Changes that commands in the background were seen to make, or what was not looked at; fields as in
    CallFinished."""

    changed: Mapping[str, str | None] = {}
    unseen: str | None = None


class StepCommitted(NamedTuple):
    """All calls of the step have results. The last step of a task says how the task ended. `dropped` messages are left
    out of the next request, where the step moved the window; see `RequestWindow`."""

    step_count: int
    task_status: TaskStatus | None = None
    task_reason: str | None = None
    message: bytes | None = None
    dropped: int | None = None


class NoteAdded(NamedTuple):
    """A note of the host to the model. `of_damage`: it reports what damage to the record did. `of_commands` are the
    background commands whose end it reports."""

    message: bytes
    of_damage: bool = False
    of_commands: Sequence[str] = ()


class TaskEnded(NamedTuple):
    """A task is over."""

    status: TaskStatus
    reason: str | None = None


class ContextCompacted(NamedTuple):
    """Requests show less of the conversation from now on, which stays whole on record: all but the last messages are
    left out (`dropped`, behind the system prompt), large results among the first `cleared`, and `summary` stands in
    place of what is left out. `usage` is of the model call that made it."""

    strategy: ContextStrategy
    dropped: int
    cleared: int
    summary: str | None = None
    usage: TokenUsage = NO_TOKENS
    model: str | None = None


class SessionStatusChanged(NamedTuple):
    """The session has another status, or works under another bundle or limit of steps."""

    status: str
    policy_bundle_version: str | None = None
    max_steps: int | None = None
    reason: str | None = None


Record = (
    TaskStarted
    | TaskReopened
    | TaskQueued
    | TaskUnqueued
    | TurnTaken
    | ApprovalAsked
    | ApprovalAnswered
    | ApprovalGranted
    | CallStarted
    | CallFinished
    | ArtifactUploaded
    | ArtifactGivenUp
    | CommandStarted
    | CommandEnded
    | ChangesSeen
    | StepCommitted
    | NoteAdded
    | TaskEnded
    | ContextCompacted
    | SessionStatusChanged
)
_KINDS: Final[dict[type[Record], str]] = {
    TaskStarted: "task_started",
    TaskReopened: "task_reopened",
    TaskQueued: "task_queued",
    TaskUnqueued: "task_unqueued",
    TurnTaken: "turn",
    ApprovalAsked: "approval",
    ApprovalAnswered: "approval",
    ApprovalGranted: "grant",
    CallStarted: "call_started",
    CallFinished: "call_finished",
    ArtifactUploaded: "artifact_uploaded",
    ArtifactGivenUp: "artifact_given_up",
    CommandStarted: "command_started",
    CommandEnded: "command_ended",
    ChangesSeen: "changes_seen",
    StepCommitted: "step_committed",
    NoteAdded: "note",
    TaskEnded: "task_ended",
    ContextCompacted: "context_compacted",
    SessionStatusChanged: "session_status",
}
_TYPES: Final = {kind: of for of, kind in _KINDS.items()}
# What is no field of its own in the file: the message stands behind the fields, an effect is two fields.
_APART = frozenset(("message", "effect"))


def _name(attribute: str) -> str:
    first, *others = attribute.split("_")
    return first + "".join(map(str.capitalize, others))


_NAMES: Final = {
    of: tuple((attribute, _name(attribute)) for attribute in of._fields if attribute not in _APART) for of in _KINDS
}


def kind_of(record: Record) -> str:
    """The name of the record's kind in a journal."""
    return _KINDS[type(record)]


def fields_of(record: Record) -> dict[str, Any]:
    """The record's fields as JSON has them, without its message."""
    fields = dict(_set_fields(record))
    if isinstance(record, TurnTaken | ContextCompacted):
        fields["usage"] = record.usage.to_record()
    if isinstance(record, CallStarted) and record.effect is not None:
        fields |= {"intent": record.effect.intent, "baselines": record.effect.baselines}
    return fields


def message_of(record: Record) -> bytes | None:
    """The record's message in encoded form, None where it has none."""
    message: bytes | None = getattr(record, "message", None)
    return message


def record_of(kind: str, fields: Mapping[str, Any], message: bytes | None = None) -> Record:
    """The record that `kind_of`, `fields_of` and `message_of` describe; fields that are not known are passed over.

    Raises:
        UnknownVersion: no record is of this kind.
        Damaged: a field, or the message, is missing.
    """
    of = _TYPES.get(kind)
    if of is None:
        raise UnknownVersion(f"records of kind {kind!r} are not known to this program")
    if of is ApprovalAnswered and "approved" not in fields:
        of = ApprovalAsked
    given = {attribute: fields[name] for attribute, name in _NAMES[of] if name in fields}
    if message is not None and "message" in of._fields:
        given["message"] = message
    if "usage" in given:
        given["usage"] = TokenUsage.from_record(given["usage"])
    if of is CallStarted and ("intent" in fields or "baselines" in fields):
        given["effect"] = FileEffect(fields.get("intent"), fields.get("baselines", {}))
    missing = [name for name in of._fields if name not in given and name not in of._field_defaults]
    if missing:
        raise Damaged(f"record {kind!r} has no {', '.join(map(_name, missing))}")
    return of(**given)


def _set_fields(record: Record) -> Iterator[tuple[str, Any]]:
    defaults = record._field_defaults
    for attribute, name in _NAMES[type(record)]:
        value = getattr(record, attribute)
        if attribute not in defaults or value != defaults[attribute]:
            yield name, value
