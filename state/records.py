"""The records of a session's journal: one class for each, with its kind, its fields and the change that it makes.

A session's state is never written where it changes. The loop appends a record for each change, and `fold` applies it to
the `Checkpoint`: live at once, after a crash again from the file. Because both run the same `fold` of the same class, a
resumed session is in the state that the killed one was in.

A class here is all there is about a record:

- `@_record("kind")` names its kind in the journal. A kind is never reused for something else.
- Its fields stand in the file under their names in camelCase; a field with its default is left out. A field that is
  added later therefore needs a default, and an older file reads as if it held that.
- The annotations are the shape that a file's field must have; `state.record_shapes` derives the check from them, when a
  session is loaded and not before. A marker in `Annotated` names what the type cannot say, such as "any whole number".
- `message` is no field: the encoded message follows the fields in the file. Its annotation names its role.
- `fold` changes the state. It raises KeyError, TypeError, AttributeError or StopIteration if the record cannot follow
  what came before it; callers see Damaged.

Rules of a fold:

- It is deterministic: no clock, no disk, no setting. What it needs of the world is a field.
- It never edits a message. The thread only grows, in the order of the records.
- It does not trust: a file can hold any sequence of well-formed records. `tests/unit/state/test_store_machine.py` feeds
  it such.
- State that a snapshot must hold needs a place in `state.snapshot` as well; a field that only a fold sets and no
  snapshot keeps is lost at the next compaction.

Traps: `ApprovalAsked` and `ApprovalAnswered` share the kind "approval" and are told apart by `approved`. `CallStarted`
holds a `FileEffect`, whose two fields stand in the file as the record's own. Rows inside a record are typed
dictionaries: they are the JSON itself, and stand like this in snapshots too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, Protocol, TypedDict

from config.lean_typing import NamedTuple
from state.blobs import PLAIN_FILE, add_mode, mode_and_blob
from state.checkpoint import EarlierTask, Task, open_step_from
from state.errors import Damaged, UnknownVersion
from state.usage import NO_TOKENS, TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state.checkpoint import Checkpoint

# The start of an earlier task's prompt, for listings; its whole prompt stands in the thread.
_EARLIER_PROMPT_CHARS = 200
# The start of a background command's line, for the note about its end.
_LINE_CHARS = 80
_BY_THE_MODEL = "stopped"
_MAX_SEEN = 256

TaskStatus = Literal["running", "completed", "failed", "cancelled"]
CommandReason = Literal["exited", "timed_out", "stopped", "session_ended", "interrupted"]
ContextStrategy = Literal["drop_oldest", "clear_tool_results", "summarize"]

# Types of fields whose shape is more, or less, than their type.
OptionalText = Annotated[str | None, "or null"]
ExitCode = Annotated[int, "any whole number"]
ArtifactRow = Annotated[Mapping[str, Any], "artifact"]
EditedArguments = Annotated[dict[str, Any], "arguments"]
SessionStatus = Annotated[str, "session status"]
CallStatus = Annotated[str, "call status"]
Meaning = Annotated[str, "meaning"]
Scope = Annotated[str, "scope"]
Answerer = Annotated[str, "answerer"]
SystemMessage = Annotated[bytes, "system"]
UserMessage = Annotated[bytes, "user"]
AssistantMessage = Annotated[bytes, "assistant"]
ToolMessage = Annotated[bytes, "tool"]

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
    intent: NotRequired[Annotated[Intent, "or null"]]
    gated: NotRequired[bool]
    approvalId: NotRequired[str]


class RequestWindow(TypedDict):
    """The part of the thread that a request had: how many messages were left out, and its estimated input tokens."""

    dropped: int
    estimated: int


class ReplayRow(TypedDict):
    """The means to approve a denied call after all: the call, what approves its kind, and where it would have acted."""

    callId: str
    approve: str
    place: NotRequired[str]


class EndRow(TypedDict):
    """The end of a background command; fields as in CommandEnded."""

    reason: CommandReason
    exitCode: NotRequired[ExitCode]
    left: NotRequired[int]


class CommandRow(TypedDict):
    """A background command: the call that started it, and the start of its line. `ended` stands there from its end on
    until the model has been told."""

    callId: str
    taskId: str
    stepId: str
    line: str
    ended: NotRequired[EndRow]


class JournalRecord(Protocol):
    """A change of a session."""

    def fold(self, state: Checkpoint) -> None:
        """Apply the change to `state`."""
        ...


_KINDS: Final[dict[type[JournalRecord], str]] = {}
# What is no field of its own in the file: the message stands behind the fields, an effect is two fields.
_APART = frozenset(("message", "effect"))
_NAMES: Final[dict[type[JournalRecord], tuple[tuple[str, str], ...]]] = {}


def _record(kind: str) -> Callable[[type[JournalRecord]], Any]:
    """Register a class as a record of this kind."""

    def register(of: Any) -> Any:
        _KINDS[of] = kind
        _NAMES[of] = tuple((attribute, _name(attribute)) for attribute in of._fields if attribute not in _APART)
        return of

    return register


def _name(attribute: str) -> str:
    first, *others = attribute.split("_")
    return first + "".join(map(str.capitalize, others))


class FileEffect(NamedTuple):
    """The effect of a call on its file: the intent, None if it has none, and the first versions that it finds."""

    intent: Annotated[Intent | None, "or null"] = None
    baselines: Mapping[str, str | None] = {}


@_record("task_started")
class TaskStarted(NamedTuple):
    """A prompt came. `options` narrow what the task may do, in the application's words."""

    task_id: str
    prompt: str
    max_steps: int
    message: UserMessage
    options: Annotated[Mapping[str, Any], "task options"] = {}

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        if state.open_step is not None:
            raise KeyError("a task follows when the step before it is over")
        if state.task is not None:
            state.earlier_tasks.append(_make_earlier(state.task))
        state.queue = [queued for queued in state.queue if queued.task_id != self.task_id]
        state.steers = []
        state.task = Task(self.task_id, self.prompt, self.max_steps, options=dict(self.options))
        # It waits for nothing any more that kept it from being over.
        state.session_status = "SESSION_RUNNING"
        # Approvals for a task end with it.
        state.grants = [grant for grant in state.grants if grant.scope != "task"]
        state.thread.append(self.message)


@_record("task_reopened")
class TaskReopened(NamedTuple):
    """A task that was over goes on."""

    max_steps: int

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        task = _task(state)
        if task.status == "running":
            raise KeyError("only a task that is over is opened again")
        task.status, task.reason, task.max_steps = "running", None, self.max_steps
        state.session_status = "SESSION_RUNNING"


@_record("task_queued")
class TaskQueued(NamedTuple):
    """A prompt came while another task was open; its task begins when that one is over. Fields as in TaskStarted."""

    task_id: str
    prompt: str
    max_steps: int
    options: Annotated[Mapping[str, Any], "task options"] = {}

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        state.queue.append(self)


@_record("task_steered")
class TaskSteered(NamedTuple):
    """A person said something to the task that is open; the model reads it before its next turn. With `taken_back` a
    disk did not take the record of it, and nothing was said."""

    text: str
    taken_back: bool = False

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        if self.taken_back:
            state.steers.remove(self.text)
        else:
            state.steers.append(self.text)


class ModeRow(TypedDict):
    """The options that a client has set for a session since its launch; one that is as at the launch is left out."""

    policy: NotRequired[str]
    model: NotRequired[str]
    sandbox: NotRequired[str]
    approvalMode: NotRequired[str]


@_record("mode_changed")
class ModeChanged(NamedTuple):
    """A client changed the mode of the session; `mode` holds from here on, also for the task that is open."""

    mode: ModeRow

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        if self.mode.get("model") != state.mode.get("model") and state.task is not None:
            state.task.options = {name: value for name, value in state.task.options.items() if name != "model"}
        if self.mode.get("sandbox") != state.mode.get("sandbox"):
            state.sandbox = {}  # a person chose another level than that of the last command
        state.mode = self.mode


@_record("task_unqueued")
class TaskUnqueued(NamedTuple):
    """A queued task was cancelled before it began."""

    task_id: str

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        state.queue.remove(next(queued for queued in state.queue if queued.task_id == self.task_id))


@_record("turn")
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
    message: AssistantMessage
    meaning: Meaning | None = None
    window: RequestWindow | None = None
    baselines: Mapping[str, str | None] = {}
    settled: Sequence[str] = ()
    options: Annotated[Mapping[str, Any], "task options"] = {}
    model: str | None = None
    sandbox: Annotated[Mapping[str, Any], "sandbox"] = {}

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        task = _task(state)
        if state.open_step is not None:
            raise KeyError("a turn needs a step before it that is over")
        step = open_step_from({**fields_of(self), "position": len(state.thread)}, self.message)
        if self.window is not None:
            _show(state, self.window["dropped"])
        state.thread.append(self.message)
        # Calls that this turn makes good for; rows of earlier versions do not say which call they are about.
        task.denied = [row for row in task.denied if row["replay"].get("callId") not in self.settled]
        _add_usage(state, self.usage, self.model)
        _add_baselines(state, self.baselines)
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
    """A call needs an approval, under this id, that its turn did not name."""

    call_id: str
    approval_id: str

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        call = state.open_call(self.call_id)
        call.gated, call.approval_id, call.answer = True, self.approval_id, None


@_record("approval")
class ApprovalAnswered(NamedTuple):
    """Somebody, or nobody in time, answered. `arguments` are what the person wrote in place of the model's; `bound_to`
    is what an approval holds for (`agent_host.approval.grants`), `answered_by` the face that the person used, None
    where nobody was asked."""

    call_id: str
    approval_id: str
    approved: bool
    scope: Scope
    reason: str
    unattended: bool = False
    timed_out: bool = False
    bound_to: str | None = None
    arguments: EditedArguments | None = None
    answered_by: Answerer | None = None

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        call = state.open_call(self.call_id)
        call.gated, call.approval_id, call.answer = True, self.approval_id, self


@_record("grant")
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

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        state.grants.append(self)


@_record("call_started")
class CallStarted(NamedTuple):
    """A call with side effects is about to start. `effect` replaces what its turn says of it."""

    call_id: str
    effect: FileEffect | None = None

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        call = state.open_call(self.call_id)
        call.started = True
        if self.effect is not None:
            call.intent = self.effect.intent
            _add_baselines(state, self.effect.baselines)


class UsedSkill(TypedDict):
    """A skill that holds until its task ends; `allowedTools` are the only tools that it leaves, None for all."""

    name: str
    allowedTools: list[str] | None


@_record("call_finished")
class CallFinished(NamedTuple):
    """A call has its result. `replay` is how a denied one can be approved, `artifacts` are rows of what it left
    (`agent_host.loop.artifacts`), `uris` name what another service has stored of it, `exit_code` is a command's.
    `seen` are the files that it read or wrote, by path, as the tools know them again; None for one that is not there
    any more. `changed` are the files that a command was seen to change: the version before it by path, None for no
    file, a word of `state.blobs.NOT_KEPT` for what was not kept; those that the task had not on record are first
    versions. `unseen` says what was not looked at. `duration_ms` is how long the call ran, None for one that did not.
    `skill` is one that it has put to use. `coloured` is what a command printed, by stream, with its colours (SGR), for
    people who look at the session: no state, so it stands in journals and the archive."""

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

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        call = state.open_call(self.call_id)
        call.result, call.status, call.code, call.replay = self.message, self.status, self.code, self.replay
        call.exit_code, call.duration_ms = self.exit_code, self.duration_ms
        if self.uris:
            state.artifact_uris.setdefault(self.call_id, []).extend(self.uris)
        for row in self.artifacts:
            _add_artifact(state, {**row, "callId": self.call_id})
        _see_changes(state, self)
        if self.skill is not None:
            _task(state).skills[self.skill["name"]] = self.skill["allowedTools"]
        for path, seen in self.seen.items():
            state.seen.pop(path, None)  # the ones that were seen last stand last
            if seen is not None:
                state.seen[path] = seen
        for path in list(state.seen)[:-_MAX_SEEN]:
            del state.seen[path]


@_record("artifact_uploaded")
class ArtifactUploaded(NamedTuple):
    """The artifact `id` is stored at `uri`."""

    id: str
    uri: str

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        row = state.uploads.pop(self.id)
        state.artifact_uris.setdefault(row["callId"], []).append(self.uri)


@_record("artifact_given_up")
class ArtifactGivenUp(NamedTuple):
    """The artifact `id` will not be stored."""

    id: str
    why: str

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        row = state.uploads.pop(self.id)
        task = _task(state)
        if task.task_id == row["taskId"]:  # the result of an earlier task is out
            task.not_uploaded.append({**row, "why": self.why})


@_record("command_started")
class CommandStarted(NamedTuple):
    """The call started a command that runs on in the background under `id`."""

    id: str
    call_id: str

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        call, step = state.open_call(self.call_id), state.open_step
        if step is None or self.id in state.commands:
            raise KeyError("a background command is started once, by a call of the open step")
        arguments = call.arguments if call.edited_arguments is None else call.edited_arguments
        line = " ".join(str(arguments.get("command", "")).split())[:_LINE_CHARS]
        state.commands[self.id] = {
            "callId": self.call_id,
            "taskId": _task(state).task_id,
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

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        row = state.commands[self.id]
        if self.reason == _BY_THE_MODEL:  # the answer to its call says so
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
    """Changes that commands in the background were seen to make, or what was not looked at; fields as in
    CallFinished."""

    changed: Mapping[str, str | None] = {}
    unseen: str | None = None

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        _see_changes(state, self)


@_record("step_committed")
class StepCommitted(NamedTuple):
    """All calls of the step have results. The last step of a task says how the task ended. `dropped` messages are left
    out of the next request, where the step moved the window; see `RequestWindow`."""

    step_count: int
    task_status: TaskStatus | None = None
    task_reason: OptionalText = None
    message: SystemMessage | None = None
    dropped: int | None = None

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        task, step = _task(state), state.open_step
        if step is None or any(call.result is None for call in step.calls):
            raise KeyError("a step is committed when it is open and all its calls are answered")
        for call in step.calls:
            if call.result is not None:
                state.thread.append(call.result)
            if call.exit_code is not None:
                task.exit_codes[len(task.finished_calls)] = call.exit_code
            if call.duration_ms is not None:
                task.tool_ms[call.tool_name] = task.tool_ms.get(call.tool_name, 0) + call.duration_ms
            task.finished_calls.append((call.tool_name, call.status or "failed", call.code))
            if call.replay is not None:
                task.denied.append({"toolName": call.tool_name, "replay": call.replay})
        if self.message is not None:
            state.thread.append(self.message)
        task.step_count = self.step_count
        # The task ends with its last step, in the same self: a crash between two would have the model asked again.
        task.status = self.task_status or task.status
        task.reason = self.task_reason or task.reason
        if self.dropped is not None:
            _show(state, self.dropped)
        state.step_cursor = step.step_id
        state.open_step = None


@_record("note")
class NoteAdded(NamedTuple):
    """A note of the host to the model. `of_damage`: it reports what damage to the record did. `of_commands` are the
    background commands whose end it reports. It has the first `steers` of what a person said meanwhile."""

    message: SystemMessage
    of_damage: bool = False
    of_commands: Sequence[str] = ()
    steers: int = 0

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
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

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        task = _task(state)
        task.status, task.reason = self.status, self.reason


@_record("context_compacted")
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

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
        _show(state, self.dropped, self.cleared, self.summary)
        _add_usage(state, self.usage, self.model)


@_record("session_status")
class SessionStatusChanged(NamedTuple):
    """The session has another status, or works under another bundle or limit of steps."""

    status: SessionStatus
    policy_bundle_version: str | None = None
    max_steps: int | None = None
    reason: OptionalText = None

    def fold(self, state: Checkpoint) -> None:
        """See Record."""
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
            state.task.reason = self.reason  # why it stopped where a resume goes on; None from that resume on


_TYPES: Final = {kind: of for of, kind in _KINDS.items()}


def fold(state: Checkpoint, record: JournalRecord) -> None:
    """Change `state` as `record` says. Raises Damaged for a record that cannot follow what came before."""
    try:
        record.fold(state)
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise Damaged(f"record {kind_of(record)!r} does not fit the state it follows") from error


def names_of(of: Any) -> dict[str, str]:
    """Return the attributes of a record's class, or of FileEffect, by their names in a file, without those apart."""
    return {_name(attribute): attribute for attribute in of._fields if attribute not in _APART}


def types_of(kind: str) -> list[type[JournalRecord]]:
    """The classes of a kind: none if it is not known, and two for an approval."""
    return [of for of, known in _KINDS.items() if known == kind]


def kind_of(record: JournalRecord) -> str:
    """The name of the record's kind in a journal."""
    return _KINDS[type(record)]


def fields_of(record: JournalRecord) -> dict[str, Any]:
    """The record's fields as JSON has them, without its message."""
    fields = dict(_set_fields(record))
    if isinstance(record, TurnTaken | ContextCompacted):
        fields["usage"] = record.usage.to_record()
    if isinstance(record, CallStarted) and record.effect is not None:
        fields |= {"intent": record.effect.intent, "baselines": record.effect.baselines}
    return fields


def message_of(record: JournalRecord) -> bytes | None:
    """The record's message in encoded form, None where it has none."""
    message: bytes | None = getattr(record, "message", None)
    return message


def record_of(kind: str, fields: Mapping[str, Any], message: bytes | None = None) -> JournalRecord:
    """The record that `kind_of`, `fields_of` and `message_of` describe; fields that are not known are passed over.

    Raises:
        UnknownVersion: no record is of this kind.
        Damaged: a field, or the message, is missing.
    """
    of: Any = _TYPES.get(kind)
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
    record: JournalRecord = of(**given)
    return record


def _set_fields(record: JournalRecord) -> Iterator[tuple[str, Any]]:
    defaults = type(record)._field_defaults  # type: ignore[attr-defined]  # each is a named tuple
    for attribute, name in _NAMES[type(record)]:
        value = getattr(record, attribute)
        if attribute not in defaults or value != defaults[attribute]:
            yield name, value


def _make_earlier(task: Task) -> EarlierTask:
    prompt = task.prompt[:_EARLIER_PROMPT_CHARS]
    return EarlierTask(task.task_id, prompt, task.status, task.reason, task.step_count, task.baselines)


def _task(state: Checkpoint) -> Task:
    if state.task is None:
        raise KeyError("no task")
    return state.task


def _show(state: Checkpoint, dropped: int, cleared: int | None = None, summary: str | None = None) -> None:
    """Set the part of the conversation that requests show from now on; None for `cleared` keeps the cleared messages
    and the summary."""
    before = (state.dropped_messages, state.cleared_messages, state.summary)
    if cleared is None:
        cleared, summary = state.cleared_messages, state.summary
    if (dropped, cleared, summary) != before:
        state.dropped_messages, state.cleared_messages, state.summary = dropped, cleared, summary
        state.flattened_messages = len(state.thread) - 1  # the system prompt is none


def _add_usage(state: Checkpoint, usage: TokenUsage, model: str | None) -> None:
    """Count what a model used, for the task and for the session."""
    for owner in (state, _task(state)):
        owner.usage = owner.usage.plus(usage)
        if model is not None:
            owner.usage_by_model[model] = owner.usage_by_model.get(model, NO_TOKENS).plus(usage)


def _add_baselines(state: Checkpoint, baselines: FirstVersions) -> None:
    """Add first versions that a task finds; a path that an earlier task has written has none."""
    if baselines:
        task = _task(state)
        for path, version in baselines.items():
            for known in (state.baselines, task.baselines):
                known[path] = _copy_mode(known[path], version) if path in known else version


def _copy_mode(first: str | None, later: str | None) -> str | None:
    """A first version with the mode that a later call found, where none had changed it until then. One that was gone
    for a while without a mode on record was a plain file's."""
    if first is None or mode_and_blob(first)[0] is not None:
        return first
    if later is None:
        return add_mode(PLAIN_FILE, first)
    mode = mode_and_blob(later)[0]
    return first if mode is None else add_mode(mode, first)


def _see_changes(state: Checkpoint, record: CallFinished | ChangesSeen) -> None:
    _add_baselines(state, record.changed)
    if record.unseen is not None:
        state.unseen.setdefault(_task(state).task_id, record.unseen)


def _add_artifact(state: Checkpoint, row: dict[str, Any]) -> None:
    """An artifact of a call of the open step: stored (`uri`), not to be stored (`why`), or still to be uploaded."""
    task, step = _task(state), state.open_step
    if "uri" in row:
        state.artifact_uris.setdefault(row["callId"], []).append(row["uri"])
    elif "why" in row:
        task.not_uploaded.append(row)
    else:
        state.uploads[row["id"]] = {**row, "taskId": task.task_id, "stepId": None if step is None else step.step_id}
