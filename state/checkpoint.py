"""The recoverable state of a session.

Records change it, live and after a crash in the same way (`state.records`). A message is kept in its encoded form, and
these bytes are written to journal, snapshot and history unchanged; only parts that are too large for a snapshot are
replaced in it (`state.blobs`). Rows are typed dictionaries: they are exactly the JSON in records and snapshots.
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
"""Length of an earlier task's prompt in listings; the complete prompt is in the thread."""
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
"""Blobs of files' contents before they were first written, by path; None for a file that did not exist. `state.blobs`
has the forms of a version."""


def name_in_files(attribute: str) -> str:
    """Return the name of a field in records and snapshots: `taskId` for `task_id`."""
    first, *others = attribute.split("_")
    return first + "".join(map(str.capitalize, others))


class Target(TypedDict):
    """The path that a file is about to be moved to, and the SHA-256 of its previous content, None for no file."""

    path: str
    before: str | None


class Intent(TypedDict):
    """The intended effect of a call on one file: its path and the SHA-256 before and after. None means no file,
    "unavailable" an unknown hash. `kept` names the blob of the previous content, without secrets, which would undo the
    call; `unavailable_at` of `state.blobs` if it is not stored. `target`: the file is moved there."""

    path: str
    before: str | None
    after: str | None
    kept: NotRequired[str]
    target: NotRequired[Target]


class CallRow(TypedDict):
    """One call in the record of its turn. `gated`: it needs an approval, with the id `approvalId`."""

    callId: str
    sideEffects: bool
    intent: NotRequired[Annotated[Intent, "or null"]]
    gated: NotRequired[bool]
    approvalId: NotRequired[str]


class RequestWindow(TypedDict):
    """The part of the thread in a request: the number of messages left out, and the estimated input tokens."""

    dropped: int
    estimated: int


class ReplayRow(TypedDict):
    """Information to approve a denied call later: the call, the value for `--approve` that covers its kind, and the
    place on which it would have acted."""

    callId: str
    approve: str
    place: NotRequired[str]


class EndRow(TypedDict):
    """The end of a background command, with the fields of CommandEnded."""

    reason: CommandReason
    exitCode: NotRequired[ExitCode]
    left: NotRequired[int]


class CommandRow(TypedDict):
    """A background command: the call that started it, and the start of its line. `ended` is present from its end until
    the model has been informed."""

    callId: str
    taskId: str
    stepId: str
    line: str
    ended: NotRequired[EndRow]


class ModeRow(TypedDict):
    """Options that a client has changed since the session's launch; unchanged ones are absent."""

    policy: NotRequired[str]
    model: NotRequired[str]
    sandbox: NotRequired[str]
    approvalMode: NotRequired[str]


class UsedSkill(TypedDict):
    """A skill that is in use until its task ends; `allowedTools` are the only tools that it allows, None for all."""

    name: str
    allowedTools: list[str] | None


class SessionIdentity(NamedTuple):
    """The identity of a session, fixed for its life. `options` has what a resume needs to run like the first run
    (workspace, policy, dialect...), chosen by the application; it contains no secrets."""

    session_id: str
    workspace_id: str
    tenant_id: str
    user_id: str
    options: dict[str, Any]


class TokenUsage(NamedTuple):
    """Tokens of one call, a task or a session, as the gateway counts them.

    `input_tokens` are all tokens of the request; `cache_read_tokens` and `cache_write_tokens` are parts of them that
    the gateway read from its cache and wrote to it, and `cache_write_1h_tokens` the part of the latter that it keeps
    for an hour. `output_tokens` are all tokens of the answer, including reasoning. The budget of a session counts input
    and output (`total`), regardless of a provider's price for a cached token.

    A gateway that counts too low does not extend a session's limits: `uncounted_input` and `uncounted_output` are
    counted for limits in addition (`for_limits`). They are in records, but are not tokens of the gateway.
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
        """Input plus output, as the gateway counts them (AH 5.3)."""
        return self.input_tokens + self.output_tokens

    @property
    def for_limits(self) -> TokenUsage:
        """The tokens that count for limits."""
        whole_input, whole_output = self.input_tokens + self.uncounted_input, self.output_tokens + self.uncounted_output
        return self._replace(
            input_tokens=whole_input, output_tokens=whole_output, uncounted_input=0, uncounted_output=0
        )

    def plus(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both."""
        return TokenUsage(*map(sum, zip(self, other, strict=True)))

    def to_wire(self) -> dict[str, int]:
        """Return the JSON form for events and results. Counts of cache writes are left out if they are 0, as in files
        of earlier versions."""
        return self._named(USAGE_NAMES[:-2])

    def to_record(self) -> dict[str, int]:
        """Return the JSON form for records and snapshots: `to_wire`, and the uncounted tokens if they are not 0."""
        return self._named(USAGE_NAMES)

    def _named(self, names: Sequence[str]) -> dict[str, int]:
        counts = enumerate(zip(names, self, strict=False))
        return {name: count for place, (name, count) in counts if count or place < _ALWAYS_COUNTED}

    @classmethod
    def from_record(cls, wire: Mapping[str, int]) -> TokenUsage:
        """Decode the output of `to_record`; a missing count is 0."""
        return cls(*(wire.get(name, 0) for name in USAGE_NAMES))


USAGE_NAMES = (
    *("inputTokens", "outputTokens", "cachedInputTokens", "cacheWriteTokens", "cacheWrite1hTokens"),
    *("uncountedInputTokens", "uncountedOutputTokens"),
)
_ALWAYS_COUNTED = 3
NO_TOKENS = TokenUsage()


# Records that are kept in the state unchanged (`state.records`).


class TaskQueued(NamedTuple):
    """A prompt arrived while another task was open; its task starts when that one is over. Fields as in TaskStarted."""

    task_id: str
    prompt: str
    max_steps: int
    options: Annotated[Mapping[str, Any], "task options"] = {}

    def _fold(self, state: Checkpoint) -> None:
        state.queue.append(self)


class ApprovalAnswered(NamedTuple):
    """An approval was answered or timed out. `arguments` replace the model's if the user edited them; `bound_to` is the
    action that an approval covers (`policy.rules.canonical`), `answered_by` the interface that the user used, None if
    there was no prompt."""

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
    """An approval for a task or a session. `action_hash` identifies the approved action; `granted_at` is in RFC
    3339."""

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
    """The current task, with the data for its result object. `finished_calls` rows: name, status, code or None;
    `reason` is why it ended, or why it paused. `exit_codes` are those of commands, by the index of the row; `tool_ms`
    is the total duration of a tool's calls. `baselines` maps a path to the blob of its content before the task's first
    write to it (None: it did not exist); `options` restrict the task, in the application's terms; `not_uploaded` are
    artifacts whose upload was given up, as rows of `artifact_given_up`; `skills` are those in use, by name, with the
    only tools that each allows, None for all. `usage_by_model` is `usage` by model, as far as it is recorded."""

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
    """A task that was followed by another one on the same thread; its `prompt` is cut to 200 characters."""

    task_id: str
    prompt: str
    status: TaskStatus
    reason: str | None
    step_count: int
    baselines: dict[str, str | None]

    @classmethod
    def of(cls, task: Task) -> EarlierTask:
        """Return the part of the task that is kept when the next one starts."""
        prompt = task.prompt[:_EARLIER_PROMPT_CHARS]
        return cls(task.task_id, prompt, task.status, task.reason, task.step_count, task.baselines)


@dataclass(slots=True, repr=False)
class OpenCall:
    """One tool call of the open step.

    `problem` is the reason why the arguments cannot be used. `intent` has the path and the hashes before and after of a
    call whose whole effect is on one file. `gated`: it waits for an approval, so its start record, unlike others, is
    synced before it starts. `approval_id` is the approval's id; `answer` is its answer, None until there is one.
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
        """The arguments that replace `arguments` because the user edited them in the approval; None if not."""
        return None if self.answer is None else self.answer.arguments


@dataclass(slots=True, repr=False)
class OpenStep:
    """A step whose model turn is recorded and whose tool calls are not all answered yet. `boot` is the boot id of the
    machine when the turn was recorded: see `state.disk`. `position` is the index of its message in the thread.
    `stop_reason` is the gateway's value and `meaning` the dialect's interpretation of it, None in older records."""

    step_id: str
    stop_reason: str
    boot: str | None
    position: int
    text: str
    calls: list[OpenCall]
    meaning: str | None = None


@dataclass(slots=True, repr=False)
class Checkpoint:
    """Everything that a resume needs. `thread` has the encoded messages; `baselines` maps a path to the blob of its
    content before the session's first write to it (None: it did not exist); `earlier_tasks` are those before `task`,
    oldest first; `grants` are approvals for a task or the session. `salvaged` describes what was lost when the session
    was recovered from damage, until the model has read it. `dropped_messages` is the number of messages left out of the
    last request; `tokens_known` are its input tokens as counted by the gateway and as estimated before, and
    `tokens_known_of` is its model. `usage_by_model` is `usage` by model, as far as it is recorded. `uploads` are
    artifacts not uploaded yet, by id and in order; `artifact_uris` has the URIs of uploaded ones, by call. `queue` has
    the tasks that follow, the next one first; `steers` are the user's messages to the open task that the model has not
    read. `seen` has the state of files when a call last read or wrote them, by path, in the tools' format; it keeps
    only the most recent ones, in that order. `unseen` gives, by task, the reason why changes by its commands are not
    completely known. `commands` are background commands that run, or whose end the model does not know yet, by id;
    `commands_started` is their total number. Requests leave out large results among the first `cleared_messages`, and
    have `summary` in place of the dropped messages. The part that requests show last changed when there were
    `flattened_messages`: models that verify their thinking get those as plain text. `sandbox` describes the last
    sandbox of commands (`TurnTaken`), empty if there was none. `mode` has the options that a client has changed since
    the launch."""

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
        """The message that the next one will follow; None if there is only the system prompt. If the open step has
        results, it is the last of them, because they are added to the thread first."""
        results = [] if self.open_step is None else [call.result for call in self.open_step.calls if call.result]
        return results[-1] if results else self.thread[-1] if len(self.thread) > 1 else None

    @property
    def awaits_approval(self) -> bool:
        """True if the session is kept only so that denied calls may still be approved."""
        task = self.task
        return task is not None and task.status != "running" and self.session_status == "SESSION_PAUSED"

    def has_task(self, task_id: str) -> bool:
        """True if the session has a current, earlier or queued task with this id."""
        tasks = (*self.earlier_tasks, *self.queue, *(() if self.task is None else (self.task,)))
        return any(task.task_id == task_id for task in tasks)

    def first_version_blobs(self) -> Iterator[str]:
        """Yield the blobs of first versions that the session or one of its tasks names."""
        owners: list[Checkpoint | Task | EarlierTask] = [self, *self.earlier_tasks]
        if self.task is not None:
            owners.append(self.task)
        for owner in owners:
            yield from (mode_and_blob(one)[1] for one in owner.baselines.values() if one is not None)

    def suspect_starts(self) -> None:
        """Treat every unanswered call of the open step as started, because its start record may be lost."""
        if self.open_step is not None:
            for call in self.open_step.calls:
                call.started = call.started or call.result is None

    def open_call(self, call_id: str) -> OpenCall:
        """Return the call of the open step. Raises KeyError if there is no open step, or it has no such call."""
        for call in () if self.open_step is None else self.open_step.calls:
            if call.call_id == call_id:
                return call
        raise KeyError(call_id)

    def require_task(self) -> Task:
        """Return the current task. Raises KeyError if there is none."""
        if self.task is None:
            raise KeyError("no task")
        return self.task

    def show(self, dropped: int, cleared: int | None = None, summary: str | None = None) -> None:
        """Set the part of the conversation that requests contain from now on; if `cleared` is None, the cleared
        messages and the summary are unchanged."""
        before = (self.dropped_messages, self.cleared_messages, self.summary)
        if cleared is None:
            cleared, summary = self.cleared_messages, self.summary
        if (dropped, cleared, summary) != before:
            self.dropped_messages, self.cleared_messages, self.summary = dropped, cleared, summary
            self.flattened_messages = len(self.thread) - 1  # without the system prompt

    def add_usage(self, usage: TokenUsage, model: str | None) -> None:
        """Add a model's usage to the task and to the session."""
        for owner in (self, self.require_task()):
            owner.usage = owner.usage.plus(usage)
            if model is not None:
                owner.usage_by_model[model] = owner.usage_by_model.get(model, NO_TOKENS).plus(usage)

    def add_baselines(self, baselines: FirstVersions) -> None:
        """Add first versions of files for the task, and for the session unless an earlier task has written the path."""
        if baselines:
            task = self.require_task()
            for path, version in baselines.items():
                for known in (self.baselines, task.baselines):
                    known[path] = _copy_mode(known[path], version) if path in known else version

    def see_files(self, seen: Mapping[str, str | None]) -> None:
        """Remember the state of files that a call read or wrote; None for a file that no longer exists."""
        for path, mark in seen.items():
            self.seen.pop(path, None)  # the most recent ones are last
            if mark is not None:
                self.seen[path] = mark
        for path in list(self.seen)[:-_MAX_SEEN]:
            del self.seen[path]

    def see_changes(self, changed: FirstVersions, unseen: str | None) -> None:
        """Add the file versions before changes by commands, and the reason why not all changes are known."""
        self.add_baselines(changed)
        if unseen is not None:
            self.unseen.setdefault(self.require_task().task_id, unseen)

    def add_artifact(self, row: dict[str, Any]) -> None:
        """Add an artifact of a call of the open step: stored (`uri`), given up (`why`), or still to be uploaded."""
        task, step = self.require_task(), self.open_step
        if "uri" in row:
            self.artifact_uris.setdefault(row["callId"], []).append(row["uri"])
        elif "why" in row:
            task.not_uploaded.append(row)
        else:
            step_id = None if step is None else step.step_id
            self.uploads[row["id"]] = {**row, "taskId": task.task_id, "stepId": step_id}


def _copy_mode(first: str | None, later: str | None) -> str | None:
    """Return a first version with the mode from a later version, if it has none yet. A file that was gone in between,
    without a recorded mode, was a plain file."""
    if first is None or mode_and_blob(first)[0] is not None:
        return first
    if later is None:
        return add_mode(PLAIN_FILE, first)
    mode = mode_and_blob(later)[0]
    return first if mode is None else add_mode(mode, first)


def open_step_from(fields: dict[str, Any], message: bytes) -> OpenStep:
    """Return the open step: names and arguments of the calls are in the assistant's message, the rest in `fields`,
    without the answers to approvals. Raises KeyError unless both have the same calls."""
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
"""Fields of an open call that are in its row if they differ from their defaults; so is `approval_id`."""
_NAMES_IN_ROW = {attribute: name_in_files(attribute) for attribute in (*CALL_FIELDS, "approval_id")}


def _call_from(raw: dict[str, Any], named: dict[str, Any]) -> OpenCall:
    given = {attribute: raw[name] for attribute, name in _NAMES_IN_ROW.items() if name in raw}
    if given.get("result") is not None:
        given["result"] = orjson.dumps(given["result"])
    problem = named.get("problem")
    return OpenCall(raw["callId"], named["name"], named["arguments"], raw["sideEffects"], problem, **given)


# Fields in snapshots by class, in the order of the file: those that are always present, and those that are present if
# they differ from their defaults.
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
