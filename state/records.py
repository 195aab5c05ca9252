"""The records of a session's journal: one class each, with its kind, its fields and its change of the state.

A session's state is never changed directly. The loop appends a record for each change, and `fold` applies it to the
`Checkpoint`: immediately, and after a crash again from the file. Both run the same `_fold` of the same class, so a
resumed session is in the same state as the killed one.

A class contains everything about its record:

- `@_record("kind")` sets its kind in the journal. A kind is never reused for something else.
- Its fields are in the file under their names in camelCase; a field that equals its default is left out. A field that
  is added later therefore needs a default, which older files are read with.
- The annotations define the shape of the fields in a file; `state.record_shapes` derives the checks from them, only
  when a session is loaded. A marker in `Annotated` names a shape that a type cannot express, such as "any whole
  number".
- `message` is not a field: the encoded message follows the fields in the file. Its annotation names its role.
- `_fold` changes the state. It raises KeyError, TypeError, AttributeError or StopIteration if the record cannot follow
  what came before it; callers see Damaged.

Rules of a fold:

- It is deterministic: no clock, no disk, no setting. Any outside value that it needs is a field.
- It never edits a message. The thread only grows, in the order of the records.
- It does not trust its input: a file can contain any sequence of well-formed records.
  `tests/unit/state/test_store_machine.py` tests such sequences.
- A field of the state must also be in `state.checkpoint.FIELDS`, or be written by `state.snapshot`: a field that no
  snapshot contains is lost at the next compaction.

Traps: `ApprovalAsked` and `ApprovalAnswered` share the kind "approval" and are distinguished by `approved`. Records
that are kept in the state unchanged, such as `ApprovalAnswered`, are in `state.checkpoint`, as are the rows inside a
record. `CallStarted` has a `FileEffect`, whose two fields are in the file as the record's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from config.lean_typing import NamedTuple
from state import Damaged, UnknownVersion
from state.checkpoint import (
    NO_TOKENS,
    ApprovalAnswered,
    ApprovalGranted,
    CallRow,
    CallStatus,
    CommandReason,
    ContextStrategy,
    EarlierTask,
    EndRow,
    ExitCode,
    Intent,
    ModeRow,
    ReplayRow,
    RequestWindow,
    Task,
    TaskQueued,
    TaskStatus,
    TokenUsage,
    UsedSkill,
    name_in_files,
    open_step_from,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.checkpoint import Checkpoint

# Length of a background command's line in the note about its end.
_LINE_CHARS = 80
_BY_THE_MODEL = "stopped"

# Types of fields whose shape is stricter or looser than their type.
OptionalText = Annotated[str | None, "or null"]
ArtifactRow = Annotated[Mapping[str, Any], "artifact"]
SessionStatus = Annotated[str, "session status"]
Meaning = Literal[
    "complete", "continue", "cut", "window", "blocked", "unknown", "empty", "call_as_text", "repeated", "bad_answer",
]  # fmt: skip
SystemMessage = Annotated[bytes, "system"]
UserMessage = Annotated[bytes, "user"]
AssistantMessage = Annotated[bytes, "assistant"]
ToolMessage = Annotated[bytes, "tool"]


class JournalRecord(Protocol):
    """A change of a session's state, which `fold` applies."""

    def _fold(self, state: Checkpoint) -> None: ...


_KINDS: Final[dict[type[JournalRecord], str]] = {}
# Attributes that are not fields in the file: the message follows the fields, an effect is two fields.
_NOT_FIELDS = frozenset(("message", "effect"))
_NAMES: Final[dict[type[JournalRecord], dict[str, str]]] = {}


def names_of(of: Any) -> dict[str, str]:
    """Return the attributes of a record's class, or of FileEffect, by their names in a file, without those in
    `_NOT_FIELDS`."""
    return {name_in_files(attribute): attribute for attribute in of._fields if attribute not in _NOT_FIELDS}


def _record(kind: str) -> Callable[[type[JournalRecord]], Any]:
    """Register a class as a record of this kind."""

    def register(of: Any) -> Any:
        _KINDS[of] = kind
        _NAMES[of] = names_of(of)
        return of

    return register


class FileEffect(NamedTuple):
    """The effect of a call on its file: the intent, None if there is none, and the first versions of files."""

    intent: Annotated[Intent | None, "or null"] = None
    baselines: Mapping[str, str | None] = {}


@_record("task_started")
class TaskStarted(NamedTuple):
    """A task started with a prompt. `options` restrict the task, in the application's terms."""

    task_id: str
    prompt: str
    max_steps: int
    message: UserMessage
    options: Annotated[Mapping[str, Any], "task options"] = {}

    def _fold(self, state: Checkpoint) -> None:
        if state.open_step is not None:
            raise KeyError("a task follows when the step before it is over")
        if state.task is not None:
            state.earlier_tasks.append(EarlierTask.of(state.task))
        state.queue = [queued for queued in state.queue if queued.task_id != self.task_id]
        state.steers = []
        state.task = Task(self.task_id, self.prompt, self.max_steps, options=dict(self.options))
        # A session that was paused or over runs again.
        state.session_status = "SESSION_RUNNING"
        # Approvals for a task expire with it.
        state.grants = [grant for grant in state.grants if grant.scope != "task"]
        state.thread.append(self.message)


@_record("task_reopened")
class TaskReopened(NamedTuple):
    """A task that was over continues."""

    max_steps: int

    def _fold(self, state: Checkpoint) -> None:
        task = state.require_task()
        if task.status == "running":
            raise KeyError("only a task that is over is opened again")
        task.status, task.reason, task.max_steps = "running", None, self.max_steps
        state.session_status = "SESSION_RUNNING"


@_record("task_steered")
class TaskSteered(NamedTuple):
    """The user sent a message to the open task; the model reads it before its next turn. `taken_back` revokes it,
    because its record could not be synced."""

    text: str
    taken_back: bool = False

    def _fold(self, state: Checkpoint) -> None:
        if self.taken_back:
            state.steers.remove(self.text)
        else:
            state.steers.append(self.text)


@_record("mode_changed")
class ModeChanged(NamedTuple):
    """A client changed the mode of the session; `mode` applies from here on, also to the open task."""

    mode: ModeRow

    def _fold(self, state: Checkpoint) -> None:
        if self.mode.get("model") != state.mode.get("model") and state.task is not None:
            state.task.options = {name: value for name, value in state.task.options.items() if name != "model"}
        if self.mode.get("sandbox") != state.mode.get("sandbox"):
            state.sandbox = {}  # the level chosen now differs from that of the last command
        state.mode = self.mode


@_record("task_unqueued")
class TaskUnqueued(NamedTuple):
    """A queued task was cancelled before it started."""

    task_id: str

    def _fold(self, state: Checkpoint) -> None:
        state.queue.remove(next(queued for queued in state.queue if queued.task_id == self.task_id))


@_record("turn")
class TurnTaken(NamedTuple):
    """The model answered. `stop_reason` is the gateway's value and `meaning` the dialect's interpretation of it, None
    in records of earlier versions. `baselines` are first versions of files that its calls are about to write, `settled`
    the ids of denied calls that it makes up for. `options` replace options of the task from this turn on. `model` is
    the model that used the tokens; None if none did, and in records of earlier versions. `sandbox` is the sandbox of
    commands from this turn on, if it differs from the last record's: a scope in JSON, with its level."""

    step_id: str
    stop_reason: str
    boot: str | None
    usage: TokenUsage
    calls: Sequence[CallRow]
    message: AssistantMessage
    meaning: Meaning | None = None
    window: RequestWindow | None = None
    baselines: Mapping[str, str | None] = {}
    settled: Sequence[str] = ()
    options: Annotated[Mapping[str, Any], "task options"] = {}
    model: str | None = None
    sandbox: Annotated[Mapping[str, Any], "sandbox"] = {}

    def _fold(self, state: Checkpoint) -> None:
        task = state.require_task()
        if state.open_step is not None:
            raise KeyError("a turn needs a step before it that is over")
        step = open_step_from({**fields_of(self), "position": len(state.thread)}, self.message)
        if self.window is not None:
            state.show(self.window["dropped"])
        state.thread.append(self.message)
        # Calls that this turn makes up for; rows of earlier versions do not have the call's id.
        task.denied = [row for row in task.denied if row["replay"].get("callId") not in self.settled]
        state.add_usage(self.usage, self.model)
        state.add_baselines(self.baselines)
        if self.window is not None:
            state.tokens_known = (self.usage.input_tokens, self.window["estimated"])
            state.tokens_known_of = self.model
        if self.options:
            task.options = {**task.options, **self.options}
        if self.sandbox:
            state.sandbox = dict(self.sandbox)
        state.open_step = step


@_record("approval")
class ApprovalAsked(NamedTuple):
    """A call needs an approval, with this id, that the record of its turn did not name."""

    call_id: str
    approval_id: str

    def _fold(self, state: Checkpoint) -> None:
        call = state.open_call(self.call_id)
        call.gated, call.approval_id, call.answer = True, self.approval_id, None


# Records that are kept in the state unchanged.
for _kind, _of in (("task_queued", TaskQueued), ("approval", ApprovalAnswered), ("grant", ApprovalGranted)):
    _record(_kind)(_of)


OF_THE_CALL: Final = frozenset(("callId", "approvalId", "arguments"))
"""Fields of an answer that a snapshot has in the row of its call."""


@_record("call_started")
class CallStarted(NamedTuple):
    """A call with side effects is about to start. `effect` replaces the one in the record of its turn."""

    call_id: str
    effect: FileEffect | None = None

    def _fold(self, state: Checkpoint) -> None:
        call = state.open_call(self.call_id)
        call.started = True
        if self.effect is not None:
            call.intent = self.effect.intent
            state.add_baselines(self.effect.baselines)


@_record("call_finished")
class CallFinished(NamedTuple):
    """A call has its result. `replay` has the data to approve a denied call later; `artifacts` are rows of the call's
    artifacts (`agent_host.loop.results`), `uris` are artifacts that a remote service has stored, `exit_code` is a
    command's. `seen` has the files that it read or wrote, by path, in the tools' format; None for a file that no longer
    exists. `changed` has the files that a command changed: the version before it by path, None for no file, a word of
    `state.blobs.NOT_KEPT` for content that was not stored; those that the task has not recorded yet are first versions.
    `unseen` describes what was not examined. `duration_ms` is the duration of the call, None if it did not run. `skill`
    is a skill that it put in use. `coloured` is a command's output by stream with its colours (SGR), for display only:
    it is not part of the state, so it is only in journals and the archive."""

    call_id: str
    status: CallStatus
    message: ToolMessage
    code: str | None = None
    replay: ReplayRow | None = None
    artifacts: Sequence[ArtifactRow] = ()
    exit_code: ExitCode | None = None
    seen: Mapping[str, str | None] = {}
    changed: Mapping[str, str | None] = {}
    unseen: str | None = None
    duration_ms: int | None = None
    skill: UsedSkill | None = None
    uris: Sequence[str] = ()
    coloured: Mapping[str, str] = {}

    def _fold(self, state: Checkpoint) -> None:
        call = state.open_call(self.call_id)
        call.result, call.status, call.code, call.replay = self.message, self.status, self.code, self.replay
        call.exit_code, call.duration_ms = self.exit_code, self.duration_ms
        if self.uris:
            state.artifact_uris.setdefault(self.call_id, []).extend(self.uris)
        for row in self.artifacts:
            state.add_artifact({**row, "callId": self.call_id})
        state.see_changes(self.changed, self.unseen)
        if self.skill is not None:
            state.require_task().skills[self.skill["name"]] = self.skill["allowedTools"]
        state.see_files(self.seen)


@_record("artifact_uploaded")
class ArtifactUploaded(NamedTuple):
    """The artifact `id` is stored at `uri`."""

    id: str
    uri: str

    def _fold(self, state: Checkpoint) -> None:
        row = state.uploads.pop(self.id)
        state.artifact_uris.setdefault(row["callId"], []).append(self.uri)


@_record("artifact_given_up")
class ArtifactGivenUp(NamedTuple):
    """The upload of the artifact `id` was given up."""

    id: str
    why: str

    def _fold(self, state: Checkpoint) -> None:
        row = state.uploads.pop(self.id)
        task = state.require_task()
        if task.task_id == row["taskId"]:  # the result of an earlier task is already written
            task.not_uploaded.append({**row, "why": self.why})


@_record("command_started")
class CommandStarted(NamedTuple):
    """The call started the background command `id`."""

    id: str
    call_id: str

    def _fold(self, state: Checkpoint) -> None:
        call, step = state.open_call(self.call_id), state.open_step
        if step is None or self.id in state.commands:
            raise KeyError("a background command is started once, by a call of the open step")
        arguments = call.arguments if call.edited_arguments is None else call.edited_arguments
        line = " ".join(str(arguments.get("command", "")).split())[:_LINE_CHARS]
        state.commands[self.id] = {
            "callId": self.call_id,
            "taskId": state.require_task().task_id,
            "stepId": step.step_id,
            "line": line,
        }
        state.commands_started += 1


@_record("command_ended")
class CommandEnded(NamedTuple):
    """The background command `id` is over; fields as in `agent_host.contracts.CommandEnd`."""

    id: str
    reason: CommandReason
    exit_code: ExitCode | None = None
    left: int = 0

    def _fold(self, state: Checkpoint) -> None:
        row = state.commands[self.id]
        if self.reason == _BY_THE_MODEL:  # the result of the call that stopped it reports this
            del state.commands[self.id]
            return
        ended: EndRow = {"reason": self.reason}
        if self.exit_code is not None:
            ended["exitCode"] = self.exit_code
        if self.left:
            ended["left"] = self.left
        row["ended"] = ended


@_record("changes_seen")
class ChangesSeen(NamedTuple):
    """Changes by background commands, or what was not examined; fields as in CallFinished."""

    changed: Mapping[str, str | None] = {}
    unseen: str | None = None

    def _fold(self, state: Checkpoint) -> None:
        state.see_changes(self.changed, self.unseen)


@_record("step_committed")
class StepCommitted(NamedTuple):
    """All calls of the step have results. The last step of a task has the status and reason of its end. `dropped`
    messages are left out of the next request, if the step moved the window; see `RequestWindow`."""

    step_count: int
    task_status: TaskStatus | None = None
    task_reason: OptionalText = None
    message: SystemMessage | None = None
    dropped: int | None = None

    def _fold(self, state: Checkpoint) -> None:
        task, step = state.require_task(), state.open_step
        if step is None or any(call.result is None for call in step.calls):
            raise KeyError("a step is committed when it is open and all its calls are answered")
        for call in step.calls:
            if call.result is not None:
                state.thread.append(call.result)
            task.add_call(call)
        if self.message is not None:
            state.thread.append(self.message)
        task.step_count = self.step_count
        # The task ends with its last step, in the same record: after a crash between two records the model would be
        # called again.
        task.status = self.task_status or task.status
        task.reason = self.task_reason or task.reason
        if self.dropped is not None:
            state.show(self.dropped)
        state.step_cursor = step.step_id
        state.open_step = None


@_record("note")
class NoteAdded(NamedTuple):
    """A note of the host to the model. `of_damage`: it reports the loss from damage. `of_commands` are the background
    commands whose end it reports. It contains the first `steers` of the user's messages to the open task."""

    message: SystemMessage
    of_damage: bool = False
    of_commands: Sequence[str] = ()
    steers: int = 0

    def _fold(self, state: Checkpoint) -> None:
        state.thread.append(self.message)
        del state.steers[: self.steers]
        if self.of_damage:
            state.salvaged = None
        for command_id in self.of_commands:
            del state.commands[command_id]


@_record("task_ended")
class TaskEnded(NamedTuple):
    """A task is over."""

    status: TaskStatus
    reason: OptionalText = None

    def _fold(self, state: Checkpoint) -> None:
        task = state.require_task()
        task.status, task.reason = self.status, self.reason


@_record("context_compacted")
class ContextCompacted(NamedTuple):
    """Requests contain less of the conversation from now on; the full conversation is always kept. The first `dropped`
    messages after the system prompt are left out, also large results among the first `cleared`, and `summary` replaces
    the dropped messages. `usage` is that of the model call that made it."""

    strategy: ContextStrategy
    dropped: int
    cleared: int
    summary: str | None = None
    usage: TokenUsage = NO_TOKENS
    model: str | None = None

    def _fold(self, state: Checkpoint) -> None:
        state.show(self.dropped, self.cleared, self.summary)
        state.add_usage(self.usage, self.model)


@_record("session_status")
class SessionStatusChanged(NamedTuple):
    """The session has a new status, policy bundle or step limit."""

    status: SessionStatus
    policy_bundle_version: str | None = None
    max_steps: int | None = None
    reason: OptionalText = None

    def _fold(self, state: Checkpoint) -> None:
        state.session_status = self.status
        if self.policy_bundle_version is not None:
            state.policy_bundle_version = self.policy_bundle_version
        if state.task is not None and self.max_steps is not None:
            state.task.max_steps = self.max_steps
        if (
            state.task is not None
            and state.task.status == "running"
            and (self.reason or self.status == "SESSION_RUNNING")
        ):
            state.task.reason = self.reason  # why it paused; None once it is resumed


_TYPES: Final = {kind: of for of, kind in _KINDS.items()}


def fold(state: Checkpoint, record: JournalRecord) -> None:
    """Apply `record` to `state`. Raises Damaged if it cannot follow the records before it."""
    try:
        record._fold(state)  # noqa: SLF001  of a class of this module
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise Damaged(f"record {kind_of(record)!r} does not fit the state it follows") from error


def types_of(kind: str) -> list[type[JournalRecord]]:
    """Return the classes of a kind: none if it is unknown, and two for an approval."""
    return [of for of, known in _KINDS.items() if known == kind]


def kind_of(record: JournalRecord) -> str:
    """Return the name of the record's kind in a journal."""
    return _KINDS[type(record)]


def fields_of(record: JournalRecord) -> dict[str, Any]:
    """Return the record's fields in JSON form, without its message."""
    defaults = type(record)._field_defaults  # type: ignore[attr-defined]  # each is a named tuple
    given = ((attribute, name, getattr(record, attribute)) for name, attribute in _NAMES[type(record)].items())
    fields = {name: one for attribute, name, one in given if attribute not in defaults or one != defaults[attribute]}
    if isinstance(record, TurnTaken | ContextCompacted):
        fields["usage"] = record.usage.to_record()
    if isinstance(record, CallStarted) and record.effect is not None:
        fields |= {"intent": record.effect.intent, "baselines": record.effect.baselines}
    return fields


def message_of(record: JournalRecord) -> bytes | None:
    """Return the record's encoded message, None if it has none."""
    return getattr(record, "message", None)


def record_of(kind: str, fields: Mapping[str, Any], message: bytes | None = None) -> JournalRecord:
    """Build the record from the results of `kind_of`, `fields_of` and `message_of`; unknown fields are ignored. Raises
    UnknownVersion if the kind is unknown, Damaged if a field or the message is missing."""
    of: Any = _TYPES.get(kind)
    if of is None:
        raise UnknownVersion(f"records of kind {kind!r} are not known to this program")
    if of is ApprovalAnswered and "approved" not in fields:
        of = ApprovalAsked
    given = {attribute: fields[name] for name, attribute in _NAMES[of].items() if name in fields}
    if message is not None and "message" in of._fields:
        given["message"] = message
    if "usage" in given:
        given["usage"] = TokenUsage.from_record(given["usage"])
    if of is CallStarted and ("intent" in fields or "baselines" in fields):
        given["effect"] = FileEffect(fields.get("intent"), fields.get("baselines", {}))
    missing = [name for name in of._fields if name not in given and name not in of._field_defaults]
    if missing:
        raise Damaged(f"record {kind!r} has no {', '.join(map(name_in_files, missing))}")
    record: JournalRecord = of(**given)
    return record
