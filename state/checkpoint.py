"""The recoverable state of a session.

Records change it, live and after a crash in the same way (`state.records`). A message is kept as the bytes that it was
encoded to, and these are put into journal, snapshot and history as they are; only parts too large for a snapshot are
taken out of it (`state.blobs`). Rows are typed dictionaries: they are the JSON itself, in records and in snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

import orjson

from config.lean_typing import NamedTuple
from state.blobs import PLAIN_FILE, add_mode, mode_and_blob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EARLIER_PROMPT_CHARS = 200
"""The start of an earlier task's prompt, for listings; its whole prompt stands in the thread."""
_MAX_SEEN = 256
ENDED = "SESSION_COMPLETED"

TaskStatus = Literal["running", "completed", "failed", "cancelled"]
CommandReason = Literal["exited", "timed_out", "stopped", "session_ended", "interrupted"]
ContextStrategy = Literal["drop_oldest", "clear_tool_results", "summarize"]
ExitCode = Annotated[int, "any whole number"]
EditedArguments = Annotated[dict[str, Any], "arguments"]
Scope = Literal["once", "task", "session"]
Answerer = Literal["client", "command", "chat", "acp", "view"]
CallStatus = Literal["succeeded", "failed", "denied"]

FirstVersions = Mapping[str, str | None]
"""Blobs of what files held before they were first written, by path; None for a file that did not exist."""


def name_in_files(attribute: str) -> str:
    """The name of a field in records and snapshots: `task_id` is `taskId`."""
    first, *others = attribute.split("_")
    return first + "".join(map(str.capitalize, others))


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


class ModeRow(TypedDict):
    """The options that a client has set for a session since its launch; one that is as at the launch is left out."""

    policy: NotRequired[str]
    model: NotRequired[str]
    sandbox: NotRequired[str]
    approvalMode: NotRequired[str]


class UsedSkill(TypedDict):
    """A skill that holds until its task ends; `allowedTools` are the only tools that it leaves, None for all."""

    name: str
    allowedTools: list[str] | None


class SessionIdentity(NamedTuple):
    """The identity of a session, fixed for its life. `options` is what a resume needs to run as the first run did
    (workspace, policy, dialect...), chosen by the application; it holds no secrets."""

    session_id: str
    workspace_id: str
    tenant_id: str
    user_id: str
    options: dict[str, Any]


class TokenUsage(NamedTuple):
    """Tokens of one call, of a task or of a session, as the gateway counts them.

    `input_tokens` are all tokens of the request; `cache_read_tokens` and `cache_write_tokens` are parts of them that
    the gateway read from its cache and wrote to it, and `cache_write_1h_tokens` the part of the latter that it keeps
    for an hour. `output_tokens` are all tokens of the answer, reasoning included.
    The budget of a session counts input and output (`total`), whatever a provider charges for a cached token.

    A gateway that counts too low does not raise what a session may use: `uncounted_input` and `uncounted_output` are
    what limits count beyond it (`for_limits`). They stand in records, and are no tokens of the gateway.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    uncounted_input: int = 0
    uncounted_output: int = 0

    @property
    def total(self) -> int:
        """Input and output, as the gateway counts them (AH 5.3)."""
        return self.input_tokens + self.output_tokens

    @property
    def for_limits(self) -> TokenUsage:
        """The tokens that limits count."""
        whole_input, whole_output = self.input_tokens + self.uncounted_input, self.output_tokens + self.uncounted_output
        return self._replace(
            input_tokens=whole_input, output_tokens=whole_output, uncounted_input=0, uncounted_output=0
        )

    def plus(self, other: TokenUsage) -> TokenUsage:
        """The sum of both."""
        return TokenUsage(*map(sum, zip(self, other, strict=True)))

    def to_wire(self) -> dict[str, int]:
        """The JSON form in events and results. Counts of what was written to the cache are left out where they are 0,
        as in files of earlier versions."""
        return self._named(USAGE_NAMES[:-2])

    def to_record(self) -> dict[str, int]:
        """The JSON form in records and snapshots: `to_wire`, and what limits count beyond it, where that is not 0."""
        return self._named(USAGE_NAMES)

    def _named(self, names: Sequence[str]) -> dict[str, int]:
        counts = enumerate(zip(names, self, strict=False))
        return {name: count for place, (name, count) in counts if count or place < _ALWAYS_COUNTED}

    @classmethod
    def from_record(cls, wire: Mapping[str, int]) -> TokenUsage:
        """Decode what `to_record` wrote; a count that is missing is 0."""
        return cls(*(wire.get(name, 0) for name in USAGE_NAMES))


USAGE_NAMES = (
    *("inputTokens", "outputTokens", "cachedInputTokens", "cacheWriteTokens", "cacheWrite1hTokens"),
    *("uncountedInputTokens", "uncountedOutputTokens"),
)
_ALWAYS_COUNTED = 3
NO_TOKENS = TokenUsage()


# Records that stay in the state as they are (`state.records`).


class TaskQueued(NamedTuple):
    """A prompt came while another task was open; its task begins when that one is over. Fields as in TaskStarted."""

    task_id: str
    prompt: str
    max_steps: int
    options: Annotated[Mapping[str, Any], "task options"] = {}

    def _fold(self, state: Checkpoint) -> None:
        state.queue.append(self)


class ApprovalAnswered(NamedTuple):
    """Somebody, or nobody in time, answered. `arguments` are what the person wrote in place of the model's; `bound_to`
    is what an approval holds for (`policy.rules.canonical`), `answered_by` the face that the person used, None
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

    def _fold(self, state: Checkpoint) -> None:
        call = state.open_call(self.call_id)
        call.gated, call.approval_id, call.answer = True, self.approval_id, self


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

    def _fold(self, state: Checkpoint) -> None:
        state.grants.append(self)


@dataclass(slots=True, repr=False)
class Task:
    """The current task, with what its result object will need. `finished_calls` rows: name, status, code or None;
    `reason` is why it ended, or why it stopped where a resume goes on. `exit_codes` are those of commands, by the
    place of the row, `tool_ms` how long the calls of a tool ran. `baselines` maps a path to the blob of its content
    before the task's first write to it (None: it did not exist); `options` narrow what it may do, in the application's
    words; `not_uploaded` are artifacts whose upload was given up, as rows of `artifact_given_up`; `skills` are those
    in use, by name, with the only tools that each leaves, None for all. `usage_by_model` is `usage` by the models that
    used it, as far as that is on record."""

    task_id: str
    prompt: str
    max_steps: int
    status: TaskStatus = "running"
    reason: str | None = None
    step_count: int = 0
    usage: TokenUsage = NO_TOKENS
    finished_calls: list[tuple[str, CallStatus, str | None]] = field(default_factory=list)
    denied: list[Annotated[dict[str, Any], "denied call"]] = field(default_factory=list)
    baselines: dict[str, str | None] = field(default_factory=dict)
    options: Annotated[dict[str, Any], "task options"] = field(default_factory=dict)
    not_uploaded: list[Annotated[dict[str, Any], "artifact given up"]] = field(default_factory=list)
    exit_codes: dict[int, ExitCode] = field(default_factory=dict)
    tool_ms: dict[str, int] = field(default_factory=dict)
    skills: dict[str, list[str] | None] = field(default_factory=dict)
    usage_by_model: dict[str, TokenUsage] = field(default_factory=dict)

    def add_call(self, call: OpenCall) -> None:
        """Add a call that has its result."""
        if call.exit_code is not None:
            self.exit_codes[len(self.finished_calls)] = call.exit_code
        if call.duration_ms is not None:
            self.tool_ms[call.tool_name] = self.tool_ms.get(call.tool_name, 0) + call.duration_ms
        self.finished_calls.append((call.tool_name, call.status or "failed", call.code))
        if call.replay is not None:
            self.denied.append({"toolName": call.tool_name, "replay": call.replay})


class EarlierTask(NamedTuple):
    """A task that another one followed on the same thread; its `prompt` is cut to 200 characters."""

    task_id: str
    prompt: str
    status: TaskStatus
    reason: str | None
    step_count: int
    baselines: dict[str, str | None]

    @classmethod
    def of(cls, task: Task) -> EarlierTask:
        """The part of the task that stays when the next one begins."""
        prompt = task.prompt[:_EARLIER_PROMPT_CHARS]
        return cls(task.task_id, prompt, task.status, task.reason, task.step_count, task.baselines)


@dataclass(slots=True, repr=False)
class OpenCall:
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
    status: CallStatus | None = None
    code: str | None = None
    replay: ReplayRow | None = None
    approval_id: str | None = None
    answer: ApprovalAnswered | None = None
    exit_code: ExitCode | None = None
    duration_ms: int | None = None

    @property
    def edited_arguments(self) -> dict[str, Any] | None:
        """The arguments that the person who approved the call wrote in place of `arguments`, None if there are none."""
        return None if self.answer is None else self.answer.arguments


@dataclass(slots=True, repr=False)
class OpenStep:
    """A step whose model turn is recorded and whose tool calls are not all answered yet. `boot` is the boot of the
    machine in which the turn was recorded: see `state.disk`. `position` is the place of its message in the thread.
    `stop_reason` is the gateway's word for the end of the turn and `meaning` what its dialect made of it, None in older
    records."""

    step_id: str
    stop_reason: str
    boot: str | None
    position: int
    text: str
    calls: list[OpenCall]
    meaning: str | None = None


@dataclass(slots=True, repr=False)
class Checkpoint:
    """Everything that a resume needs. `thread` holds encoded messages; `baselines` maps a path to the blob of its
    content before the session's first write to it (None: it did not exist); `earlier_tasks` are those before `task`,
    oldest first; `grants` are approvals given. `salvaged` says what was lost when the session was saved from damage,
    until the model has read it. `dropped_messages` of the conversation were left out of the last request;
    `tokens_known` are its input tokens as the gateway counted them and as they had been estimated, and
    `tokens_known_of` its model. `usage_by_model` is `usage` by the models that used it, as far as that is on record.
    `uploads` are the artifacts that are still to be uploaded, by id and in order; `artifact_uris` has what was
    uploaded, by the call. `queue` are the tasks that follow, the next one first; `steers` is what a person said
    to the open task and the model has not read. `seen` are files as a call last read
    or wrote them, by path, in words of the tools: the ones that were seen last, in that order. `unseen` says by task
    why not all that its commands changed is known. `commands` are background commands that run, or whose end the model
    does not know yet, by id; `commands_started` is how many there have been. Requests leave out large results among the
    first `cleared_messages`, and have `summary` in the place of what they leave out. What they show changed last when
    there were `flattened_messages`: models that verify their thinking read these as plain text. `sandbox` says how
    commands were held last (`TurnTaken`), empty where nothing held any. `mode` has the options that a client has set
    since the launch."""

    identity: SessionIdentity
    session_status: str = "SESSION_RUNNING"
    policy_bundle_version: str = ""
    thread: list[bytes] = field(default_factory=list)
    task: Task | None = None
    step_cursor: str | None = None
    open_step: OpenStep | None = None
    usage: TokenUsage = NO_TOKENS
    baselines: dict[str, str | None] = field(default_factory=dict)
    earlier_tasks: list[EarlierTask] = field(default_factory=list)
    grants: list[ApprovalGranted] = field(default_factory=list)
    seq: int = 0
    salvaged: str | None = None
    dropped_messages: int = 0
    tokens_known: tuple[int, int] | None = None
    uploads: dict[str, Annotated[dict[str, Any], "upload"]] = field(default_factory=dict)
    artifact_uris: dict[str, list[str]] = field(default_factory=dict)
    queue: list[TaskQueued] = field(default_factory=list)
    steers: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    commands: dict[str, CommandRow] = field(default_factory=dict)
    commands_started: int = 0
    cleared_messages: int = 0
    summary: str | None = None
    flattened_messages: int = 0
    usage_by_model: dict[str, TokenUsage] = field(default_factory=dict)
    tokens_known_of: str | None = None
    sandbox: Annotated[Mapping[str, Any], "sandbox"] = field(default_factory=dict)
    mode: ModeRow = field(default_factory=ModeRow)

    @property
    def last_message(self) -> bytes | None:
        """The message that the next one follows; None if there is nothing behind the system prompt. The last result of
        the open step, because it enters the thread before anything else does."""
        results = [] if self.open_step is None else [call.result for call in self.open_step.calls if call.result]
        return results[-1] if results else self.thread[-1] if len(self.thread) > 1 else None

    @property
    def awaits_approval(self) -> bool:
        """True if all is over, and the session stays only so that calls which were denied may still be approved."""
        task = self.task
        return task is not None and task.status != "running" and self.session_status == "SESSION_PAUSED"

    def has_task(self, task_id: str) -> bool:
        """True if a task of this id is, was or will be one of the session's."""
        tasks = (*self.earlier_tasks, *self.queue, *(() if self.task is None else (self.task,)))
        return any(task.task_id == task_id for task in tasks)

    def first_version_blobs(self) -> Iterator[str]:
        """The blobs of first versions that the session or one of its tasks names."""
        owners: list[Checkpoint | Task | EarlierTask] = [self, *self.earlier_tasks]
        if self.task is not None:
            owners.append(self.task)
        for owner in owners:
            yield from (mode_and_blob(one)[1] for one in owner.baselines.values() if one is not None)

    def suspect_starts(self) -> None:
        """Take every unanswered call of the open step for started: records that may have said so are gone."""
        if self.open_step is not None:
            for call in self.open_step.calls:
                call.started = call.started or call.result is None

    def open_call(self, call_id: str) -> OpenCall:
        """The call of the open step. Raises KeyError where no step is open, or has it."""
        for call in () if self.open_step is None else self.open_step.calls:
            if call.call_id == call_id:
                return call
        raise KeyError(call_id)

    def require_task(self) -> Task:
        """The current task. Raises KeyError if there is none."""
        if self.task is None:
            raise KeyError("no task")
        return self.task

    def show(self, dropped: int, cleared: int | None = None, summary: str | None = None) -> None:
        """Set the part of the conversation that requests show from now on; None for `cleared` keeps the cleared
        messages and the summary."""
        before = (self.dropped_messages, self.cleared_messages, self.summary)
        if cleared is None:
            cleared, summary = self.cleared_messages, self.summary
        if (dropped, cleared, summary) != before:
            self.dropped_messages, self.cleared_messages, self.summary = dropped, cleared, summary
            self.flattened_messages = len(self.thread) - 1  # the system prompt is none

    def add_usage(self, usage: TokenUsage, model: str | None) -> None:
        """Count what a model used, for the task and for the session."""
        for owner in (self, self.require_task()):
            owner.usage = owner.usage.plus(usage)
            if model is not None:
                owner.usage_by_model[model] = owner.usage_by_model.get(model, NO_TOKENS).plus(usage)

    def add_baselines(self, baselines: FirstVersions) -> None:
        """Add first versions that a task finds; a path that an earlier task has written has none."""
        if baselines:
            task = self.require_task()
            for path, version in baselines.items():
                for known in (self.baselines, task.baselines):
                    known[path] = _copy_mode(known[path], version) if path in known else version

    def see_files(self, seen: Mapping[str, str | None]) -> None:
        """Keep files as a call read or wrote them; None for one that is not there any more."""
        for path, mark in seen.items():
            self.seen.pop(path, None)  # the ones that were seen last stand last
            if mark is not None:
                self.seen[path] = mark
        for path in list(self.seen)[:-_MAX_SEEN]:
            del self.seen[path]

    def see_changes(self, changed: FirstVersions, unseen: str | None) -> None:
        """Add the versions before changes that commands made, and why not all of these are known."""
        self.add_baselines(changed)
        if unseen is not None:
            self.unseen.setdefault(self.require_task().task_id, unseen)

    def add_artifact(self, row: dict[str, Any]) -> None:
        """An artifact of a call of the open step: stored (`uri`), not to be stored (`why`), or still to be uploaded."""
        task, step = self.require_task(), self.open_step
        if "uri" in row:
            self.artifact_uris.setdefault(row["callId"], []).append(row["uri"])
        elif "why" in row:
            task.not_uploaded.append(row)
        else:
            step_id = None if step is None else step.step_id
            self.uploads[row["id"]] = {**row, "taskId": task.task_id, "stepId": step_id}


def _copy_mode(first: str | None, later: str | None) -> str | None:
    """A first version with the mode that a later call found, where none had changed it until then. One that was gone
    for a while without a mode on record was a plain file's."""
    if first is None or mode_and_blob(first)[0] is not None:
        return first
    if later is None:
        return add_mode(PLAIN_FILE, first)
    mode = mode_and_blob(later)[0]
    return first if mode is None else add_mode(mode, first)


def open_step_from(fields: dict[str, Any], message: bytes) -> OpenStep:
    """Return the open step: names and arguments of the calls stand in the assistant's message, the rest in `fields`.
    Answers to approvals are not among them. Raises KeyError unless the calls of both are the same."""
    turn = orjson.loads(message)
    named = {call["id"]: call for call in turn.get("toolCalls", [])}
    if len(named) != len(fields["calls"]):
        raise KeyError("each call of the message has a row")
    calls = [_call_from(raw, named[raw["callId"]]) for raw in fields["calls"]]
    place = fields["position"]
    return OpenStep(
        fields["stepId"], fields["stopReason"], fields["boot"], place, turn["content"], calls, fields.get("meaning")
    )


CALL_FIELDS = ("intent", "gated", "started", "result", "status", "code", "replay", "exit_code", "duration_ms")
"""Fields of an open call that its row has if they are not their defaults; and `approval_id`."""
_NAMES_IN_ROW = {attribute: name_in_files(attribute) for attribute in (*CALL_FIELDS, "approval_id")}


def _call_from(raw: dict[str, Any], named: dict[str, Any]) -> OpenCall:
    given = {attribute: raw[name] for attribute, name in _NAMES_IN_ROW.items() if name in raw}
    if given.get("result") is not None:
        given["result"] = orjson.dumps(given["result"])
    problem = named.get("problem")
    return OpenCall(raw["callId"], named["name"], named["arguments"], raw["sideEffects"], problem, **given)


# In snapshots: fields by their classes, in the order of the file; those that are always in it, and those that are if
# they are not their defaults.
FIELDS: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Checkpoint: (
        ("usage", "baselines", "earlier_tasks", "grants", "open_step", "salvaged", "dropped_messages", "tokens_known"),
        (
            *("uploads", "artifact_uris", "queue", "steers", "commands", "commands_started", "cleared_messages"),
            *("summary", "flattened_messages", "seen", "unseen", "usage_by_model", "tokens_known_of", "sandbox"),
            "mode",
        ),
    ),
    Task: (
        ("task_id", "prompt", "status", "reason", "step_count", "max_steps", "usage", "finished_calls", "denied"),
        ("exit_codes", "tool_ms", "skills", "options", "not_uploaded", "usage_by_model"),
    ),
    EarlierTask: (("task_id", "prompt", "status", "reason", "step_count", "baselines"), ()),
}
