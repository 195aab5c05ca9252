"""The recoverable state of a session.

Records change it, live and after a crash in the same way (`state.records`). A
message is kept as the bytes that it was encoded to, and these are put into journal, snapshot and history as they are;
only parts too large for a snapshot are taken out of it (`state.blobs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from config.lean_typing import NamedTuple
from state.blobs import mode_and_blob
from state.usage import NO_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state.records import (
        ApprovalAnswered,
        ApprovalGranted,
        CommandRow,
        Intent,
        ModeRow,
        ReplayRow,
        TaskQueued,
        TaskStatus,
    )
    from state.usage import TokenUsage


class SessionIdentity(NamedTuple):
    """The identity of a session, fixed for its life. `options` is what a resume needs to run as the first run did
    (workspace, policy, dialect...), chosen by the application; it holds no secrets."""

    session_id: str
    workspace_id: str
    tenant_id: str
    user_id: str
    options: dict[str, Any]


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
    finished_calls: list[tuple[str, str, str | None]] = field(default_factory=list)
    denied: list[dict[str, Any]] = field(default_factory=list)
    baselines: dict[str, str | None] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    not_uploaded: list[dict[str, Any]] = field(default_factory=list)
    exit_codes: dict[int, int] = field(default_factory=dict)
    tool_ms: dict[str, int] = field(default_factory=dict)
    skills: dict[str, list[str] | None] = field(default_factory=dict)
    usage_by_model: dict[str, TokenUsage] = field(default_factory=dict)


class EarlierTask(NamedTuple):
    """A task that another one followed on the same thread; its `prompt` is cut to 200 characters."""

    task_id: str
    prompt: str
    status: TaskStatus
    reason: str | None
    step_count: int
    baselines: dict[str, str | None]


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
    status: str | None = None
    code: str | None = None
    replay: ReplayRow | None = None
    approval_id: str | None = None
    answer: ApprovalAnswered | None = None
    exit_code: int | None = None
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


def _no_mode() -> ModeRow:
    return {}


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
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
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
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    mode: ModeRow = field(default_factory=_no_mode)

    @property
    def session_tokens_used(self) -> int:
        """Input and output of every call so far (AH 5.3)."""
        return self.usage.total

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

    @property
    def has_begun(self) -> bool:
        """True if a task is, or ever was, on record."""
        return self.task is not None or bool(self.earlier_tasks)

    def has_task(self, task_id: str) -> bool:
        """True if a task of this id is, was or will be one of the session's."""
        if self.task is not None and self.task.task_id == task_id:
            return True
        others = {task.task_id for task in self.earlier_tasks} | {task.task_id for task in self.queue}
        return task_id in others

    def first_version_blobs(self) -> Iterator[str]:
        """The blobs of first versions that the session or one of its tasks names."""
        owners: list[Checkpoint | Task | EarlierTask] = [self, *self.earlier_tasks]
        if self.task is not None:
            owners.append(self.task)
        for owner in owners:
            yield from (mode_and_blob(one)[1] for one in owner.baselines.values() if one is not None)

    def take_start_back(self, call_id: str) -> None:
        """The call did not start after all: the record that was to say so first could not be written."""
        self.open_call(call_id).started = False

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


def open_step_from(fields: dict[str, Any], message: bytes) -> OpenStep:
    """Return the open step: names and arguments of the calls stand in the assistant's message, the rest in `fields`.
    Answers to approvals are not among them. Raises KeyError unless the calls of both are the same."""
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


def _call_from(raw: dict[str, Any], named: dict[str, Any]) -> OpenCall:
    result = raw.get("result")
    return OpenCall(
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
        exit_code=raw.get("exitCode"),
        duration_ms=raw.get("durationMs"),
    )
