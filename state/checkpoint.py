"""The recoverable state of a session, and the one function that changes it.

Live and after a crash the state comes about the same way: `apply` folds records over it. A record is a kind, a few
fields, and at most one message in its encoded form; encoded messages are kept as bytes and put into journal, snapshot
and history as they are; only parts too large for a snapshot are taken out of it (`state.large`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from state.errors import Damaged, UnknownVersion
from state.open_step import open_step_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state.open_step import Call, OpenStep

TaskStatus = Literal["running", "completed", "failed", "cancelled"]

# What a listing shows of a task that is over; its whole prompt stands in the thread.
_EARLIER_PROMPT_CHARS = 200


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
    """The task at work, with what its result object will need. `finished_calls` rows: name, status, code or None.
    `baselines` maps a path to the blob of its content before the task's first write to it (None: it did not exist);
    `options` narrow what it may do, in the application's words; `not_uploaded` are artifacts whose upload was given up,
    as rows of `artifact_given_up`."""

    task_id: str
    prompt: str
    max_steps: int
    status: TaskStatus = "running"
    reason: str | None = None
    step_count: int = 0
    usage: Usage = field(default_factory=Usage)
    finished_calls: list[tuple[str, str, str | None]] = field(default_factory=list)
    denied: list[dict[str, Any]] = field(default_factory=list)
    baselines: dict[str, str | None] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    not_uploaded: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EarlierTask:
    """A task that another one followed on the same thread; its `prompt` is cut to 200 characters."""

    task_id: str
    prompt: str
    status: TaskStatus
    reason: str | None
    step_count: int
    baselines: dict[str, str | None]


@dataclass(slots=True)
class Checkpoint:
    """Everything that a resume needs. `thread` holds encoded messages; `baselines` maps a path to the blob of its
    content before the session's first write to it (None: it did not exist); `earlier_tasks` are those before `task`,
    oldest first; `grants` are approvals given. `salvaged` says what was lost when the session was saved from damage,
    until the model has been told. `dropped_messages` of the conversation were left out of the last request;
    `tokens_known` are its input tokens as the gateway counted them and as they had been estimated. `uploads` are the
    artifacts that are still to be uploaded, by id and in order; `artifact_uris` has what was uploaded, by the call."""

    identity: SessionIdentity
    session_status: str = "SESSION_RUNNING"
    policy_bundle_version: str = ""
    thread: list[bytes] = field(default_factory=list)
    task: Task | None = None
    step_cursor: str | None = None
    open_step: OpenStep | None = None
    usage: Usage = field(default_factory=Usage)
    baselines: dict[str, str | None] = field(default_factory=dict)
    earlier_tasks: list[EarlierTask] = field(default_factory=list)
    grants: list[dict[str, Any]] = field(default_factory=list)
    seq: int = 0
    salvaged: str | None = None
    dropped_messages: int = 0
    tokens_known: tuple[int, int] | None = None
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    artifact_uris: dict[str, list[str]] = field(default_factory=dict)

    @property
    def session_tokens_used(self) -> int:
        """Input and output of every call so far (AH 5.3)."""
        return self.usage.input_tokens + self.usage.output_tokens

    @property
    def awaits_approval(self) -> bool:
        """Whether all is over, and the session stays only so that calls which were denied may still be approved."""
        task = self.task
        return task is not None and task.status != "running" and self.session_status == "SESSION_PAUSED"

    @property
    def has_begun(self) -> bool:
        """Whether a task is, or ever was, on record."""
        return self.task is not None or bool(self.earlier_tasks)

    def has_task(self, task_id: str) -> bool:
        """Whether a task of this id is or was one of the session's."""
        if self.task is not None and self.task.task_id == task_id:
            return True
        return any(task.task_id == task_id for task in self.earlier_tasks)

    def first_version_blobs(self) -> Iterator[str]:
        """The blobs of first versions that the session or one of its tasks names."""
        owners: list[Checkpoint | Task | EarlierTask] = [self, *self.earlier_tasks]
        if self.task is not None:
            owners.append(self.task)
        for owner in owners:
            yield from (blob for blob in owner.baselines.values() if blob is not None)

    def take_start_back(self, call_id: str) -> None:
        """The call did not start after all: the record that was to say so first could not be written."""
        _open_call(self, call_id).started = False

    def suspect_starts(self) -> None:
        """Take every unanswered call of the open step for started: records that may have said so are gone."""
        if self.open_step is not None:
            for call in self.open_step.calls:
                call.started = call.started or call.result is None

    def apply(self, kind: str, fields: dict[str, Any], message: bytes | None) -> None:
        """Fold one record over the state. Raises Damaged for a record that cannot follow what came before,
        UnknownVersion for a kind that this program does not have."""
        if kind not in _APPLY:
            raise UnknownVersion(f"records of kind {kind!r} are not known to this program")
        try:
            _APPLY[kind](self, fields, message)
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise Damaged(f"record {kind!r} does not fit the state it follows") from error


def _append(state: Checkpoint, message: bytes | None) -> None:
    if message is not None:
        state.thread.append(message)


def _task_started(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    if state.open_step is not None:
        raise KeyError("a task follows when the step before it is over")
    if state.task is not None:
        state.earlier_tasks.append(_as_earlier(state.task))
    state.task = Task(fields["taskId"], fields["prompt"], fields["maxSteps"], options=fields.get("options", {}))
    # It waits for nothing any more that kept it from being over.
    state.session_status = "SESSION_RUNNING"
    # Approvals for a task end with it.
    state.grants = [grant for grant in state.grants if grant.get("scope") != "task"]
    _append(state, message)


def _as_earlier(task: Task) -> EarlierTask:
    prompt = task.prompt[:_EARLIER_PROMPT_CHARS]
    return EarlierTask(task.task_id, prompt, task.status, task.reason, task.step_count, task.baselines)


def _task_reopened(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    task = _task(state)
    if task.status == "running":
        raise KeyError("only a task that is over is opened again")
    task.status, task.reason, task.max_steps = "running", None, fields["maxSteps"]
    state.session_status = "SESSION_RUNNING"


def _turn(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    task = _task(state)
    if message is None or state.open_step is not None:
        raise KeyError("a turn needs a message and no step that is still open")
    step = open_step_from({**fields, "position": len(state.thread)}, message)
    _append(state, message)
    # Calls that this turn makes good for; rows of earlier versions do not say which call they are about.
    settled = fields.get("settled", ())
    task.denied = [row for row in task.denied if row["replay"].get("callId") not in settled]
    state.usage.add(fields["usage"])
    task.usage.add(fields["usage"])
    _add_baselines(state, fields)
    if "window" in fields:
        state.dropped_messages = fields["window"]["dropped"]
        state.tokens_known = (fields["usage"]["inputTokens"], fields["window"]["estimated"])
    state.open_step = step


def _add_baselines(state: Checkpoint, fields: dict[str, Any]) -> None:
    """What a task finds at a path that an earlier one has written is no first version of the session's."""
    given = fields.get("baselines", {})
    if given:
        task = _task(state)
        for path, blob in given.items():
            state.baselines.setdefault(path, blob)
            task.baselines.setdefault(path, blob)


_NOT_OF_THE_DECISION = frozenset(("callId", "approvalId", "arguments"))


def _approval(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    call = _open_call(state, fields["callId"])
    call.gated, call.approval_id = True, fields["approvalId"]
    call.decision = {key: value for key, value in fields.items() if key not in _NOT_OF_THE_DECISION} or None
    call.edited_arguments = fields.get("arguments")


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
    for row in fields.get("artifacts", ()):
        _add_artifact(state, {**row, "callId": fields["callId"]})


def _add_artifact(state: Checkpoint, row: dict[str, Any]) -> None:
    """An artifact of a call of the open step: stored (`uri`), not to be stored (`why`), or still to be uploaded."""
    task, step = _task(state), state.open_step
    if "uri" in row:
        state.artifact_uris.setdefault(row["callId"], []).append(row["uri"])
    elif "why" in row:
        task.not_uploaded.append(row)
    else:
        state.uploads[row["id"]] = {**row, "taskId": task.task_id, "stepId": None if step is None else step.step_id}


def _artifact_uploaded(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    row = state.uploads.pop(fields["id"])
    state.artifact_uris.setdefault(row["callId"], []).append(fields["uri"])


def _artifact_given_up(state: Checkpoint, fields: dict[str, Any], _: bytes | None) -> None:
    row = state.uploads.pop(fields["id"])
    task = _task(state)
    if task.task_id == row["taskId"]:  # the result of an earlier task has been told
        task.not_uploaded.append({**row, "why": fields["why"]})


def _step_committed(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    task, step = _task(state), state.open_step
    if step is None or any(call.result is None for call in step.calls):
        raise KeyError("a step is committed when it is open and all its calls are answered")
    for call in step.calls:
        _append(state, call.result)
        task.finished_calls.append((call.tool_name, call.status or "failed", call.code))
        if call.replay is not None:
            task.denied.append({"toolName": call.tool_name, "replay": call.replay})
    _append(state, message)
    task.step_count = fields["stepCount"]
    # The task ends with its last step, in the same record: a crash between two would have the model asked again.
    task.status = fields.get("taskStatus", task.status)
    task.reason = fields.get("taskReason", task.reason)
    state.step_cursor = step.step_id
    state.open_step = None


def _note(state: Checkpoint, fields: dict[str, Any], message: bytes | None) -> None:
    _append(state, message)
    if fields.get("ofDamage"):
        state.salvaged = None


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
    "task_reopened": _task_reopened,
    "turn": _turn,
    "approval": _approval,
    "call_started": _call_started,
    "call_finished": _call_finished,
    "artifact_uploaded": _artifact_uploaded,
    "artifact_given_up": _artifact_given_up,
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
