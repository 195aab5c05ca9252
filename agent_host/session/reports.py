"""Reports on a session: its row in a list, its state, and the result object of a task that ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

from agent_host.approval import ApprovalAnswer, replay_of
from agent_host.display_text import one_line
from agent_host.errors import CANCELLED, INTERRUPTED, ErrorCode, UsageError, ending_of
from agent_host.events import RUN_ENDS, EventType
from agent_host.ids import rfc3339
from agent_host.loop import Replay
from agent_host.loop.conversation import cost_fields
from agent_host.services.session import ApprovalDecision
from agent_host.states import SessionStatus, TaskPhase
from agent_host.thread.messages import decode
from config.lean_typing import NamedTuple
from config.shapes import OBJECT, TEXT, ListOf, Nullable, Record, integer, number, one_of
from state.blobs import NOT_KEPT, is_untouched, mode_and_blob, unavailable_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from agent_host.events.emitter import Event
    from agent_host.judging import Registry
    from agent_host.loop import LoopContext
    from agent_host.services.session import ApprovalReporter
    from agent_host.states import EndStatus, TaskEnd
    from agent_host.thread.messages import ToolCall
    from state.checkpoint import ApprovalAnswered, Checkpoint, OpenCall, SessionIdentity, Task, TaskStatus

_END_NAMES: dict[EndStatus, str] = {
    "completed": TaskPhase.COMPLETED,
    "failed": TaskPhase.FAILED,
    "cancelled": TaskPhase.CANCELLED,
    "paused": SessionStatus.PAUSED,
}
ON_RECORD: dict[TaskStatus, TaskPhase] = {
    "running": TaskPhase.RUNNING,
    "completed": TaskPhase.COMPLETED,
    "failed": TaskPhase.FAILED,
    "cancelled": TaskPhase.CANCELLED,
}

UNREADABLE = "UNREADABLE"
"""The status of a session whose record cannot be read."""
MARK_WORDS: Final[Mapping[str, str]] = {
    "crashed": "the process ended without a word",
    "session_resumed": "resumed",
    "session_paused": "paused",
    "context_compacted": "requests show less from here",
    "llm_retry": "the model's gateway failed, and was asked again",
    "llm_fallback": "another model was asked",
    "llm_window_cut": "the oldest messages were left out",
    "context_summary_retry": "the summary was asked for again",
    "checkpoint_failed": "the disk did not take a record",
    "storage_limit_reached": "no more is kept",
    "artifact_upload_failed": "an artifact was not stored",
    "policy_expired": "the policy has expired",
    "task_steered": "the user said",
    "mode_changed": "the mode changed",
    "task_completed": "task completed",
    "task_failed": "task failed",
    "task_cancelled": "task cancelled",
    "session_completed": "session ended",
    "session_failed": "session failed",
    "session_cancelled": "session cancelled",
}
"""The text of each mark of a transcript: a crash of the process, and events."""
_WAITS = "not uploaded yet: this process continues it, else a resume of the session"


class Owner(NamedTuple):
    """The owner of a session."""

    tenant_id: str
    user_id: str


class StoredSession(NamedTuple):
    """A session in a list. `prompt` is the prompt of the last task, `title` the first line of the first prompt, cut to
    80 characters; if the session cannot be read both are the reason. `pid` is the live process that has it (0:
    unknown). `updated_at` is in RFC 3339. `owner` is None if unknown. `usage` has the tokens of all its tasks in their
    JSON form, with `cost` and `costCurrency` if known; None if an earlier version did not keep them. `ending` has the
    verdict and, for an ended one, who ended it and whether a retry can help; `reason` is the reason if it is not
    completed. `duration_ms` is the duration of the last task of an ended session."""

    session_id: str
    status: str
    title: str
    prompt: str
    step_count: int
    total_tokens: int | None
    updated_at: str
    workspace: str
    owner: Owner | None
    pid: int | None = None
    resumable: bool = False
    usage: dict[str, Any] | None = None
    ending: Mapping[str, Any] = {"verdict": "interrupted"}
    reason: str | None = None
    duration_ms: int | None = None

    @property
    def verdict(self) -> str:
        """The verdict in one word, the same in all outputs."""
        return str(self.ending["verdict"])

    @property
    def description(self) -> str:
        """The verdict, the reason, and who ended it: `failed: UNAUTHORIZED, by infrastructure`."""
        if self.status == UNREADABLE:
            return UNREADABLE
        why = f": {self.reason}" if self.reason not in (None, self.verdict) else ""
        by = f", by {self.ending['endedBy']}" if self.verdict in ("failed", "paused", "denied") else ""
        return f"{self.verdict}{why}{by}"

    def to_wire(self) -> dict[str, Any]:
        """Return the session's row in lists."""
        return {
            "sessionId": self.session_id,
            "status": self.status,
            **self.ending,
            "reason": self.reason,
            "resumable": self.resumable,
            "pid": self.pid,
            "title": self.title,
            "prompt": self.prompt,
            "stepCount": self.step_count,
            "totalTokens": self.total_tokens,
            "updatedAt": self.updated_at,
            "workspace": self.workspace,
            **({} if self.usage is None else {"usage": self.usage}),
        }


_INTEGER, _ROWS = integer(), ListOf(OBJECT)
_RESULT: Final = Record(
    {
        "status": one_of(*map(str, _END_NAMES.values())),
        "text": TEXT,
        "stepCount": _INTEGER,
        "durationMs": _INTEGER,
        "usage": Record({"inputTokens": _INTEGER, "outputTokens": _INTEGER}),
        "toolCalls": _ROWS,
        "deniedApprovals": _ROWS,
    },
    {"reason": Nullable(TEXT), "cost": number(), "started": OBJECT},
)


def is_result(kept: dict[str, Any]) -> bool:
    """True if `kept` has the fields of a result object that are shown, with the right types."""
    return _RESULT.fits(kept)


def session_state(
    ctx: LoopContext, status: SessionStatus, pending: Sequence[dict[str, Any]], *, granted_before: int = 0
) -> dict[str, Any]:
    """Return the result of GetSessionState (interface section 2). The task is the current one, else the last one.
    `granted_before` is the number of approvals granted in earlier processes."""
    state, usage, limit = ctx.state, ctx.state.usage, ctx.judge.llm_policy.max_session_tokens
    at_work = ctx.phase.state is not TaskPhase.IDLE
    verdict = {"verdict": "running"} if at_work else verdict_on_record(state, is_live=True)
    fields: dict[str, Any] = {"sessionId": ctx.session_id, "sessionStatus": status, **verdict}
    if state.task is not None:
        fields["task"] = {
            "taskId": state.task.task_id,
            "status": ctx.phase.state if at_work else ON_RECORD[state.task.status],
            "stepCount": state.task.step_count,
            "maxSteps": state.task.max_steps,
        }
    fields["tokenUsage"] = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": state.usage.total,
        "remaining": max(0, limit - state.usage.total),
        "maxSessionTokens": limit,
        **{name: count for name, count in usage.to_wire().items() if count and name.startswith("cache")},
        **cost_fields(ctx.conversation.models, usage, state.usage_by_model),
        **({"maxCost": ctx.conversation.max_cost} if ctx.conversation.max_cost else {}),
    }
    fields["pendingApprovals"] = list(pending)
    grants = list(_grants(state, granted_before))
    return {**fields, "grants": grants} if grants else fields


def _grants(state: Checkpoint, granted_before: int) -> Iterator[dict[str, Any]]:
    """Yield {tool, scope, since, beforeRestart} of each approval for a task or the session that is still in effect."""
    task_id = None if state.task is None else state.task.task_id
    for place, grant in enumerate(state.grants):
        if grant.scope == "session" or (grant.scope == "task" and grant.task_id == task_id):
            row = {"tool": grant.tool_name, "scope": grant.scope, "since": grant.granted_at}
            yield {**row, "beforeRestart": place < granted_before}


def not_uploaded(ctx: LoopContext, history: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the artifacts of the current task, or of the last one, that the Workspace Service has not stored:
    {artifactName, artifactType, message, storageRef?, toolCallId?}. `history` is such a row for the history, None if it
    was stored."""
    task = ctx.task
    waiting = [row for row in ctx.state.uploads.values() if row["taskId"] == task.task_id]
    rows = []
    for row in (*task.not_uploaded, *waiting):
        missing = {"artifactName": row["name"], "artifactType": row["type"], "toolCallId": row["callId"]}
        missing["message"] = row.get("why", _WAITS)
        rows.append({**missing, "storageRef": row["ref"]} if "ref" in row else missing)
    return rows if history is None else [*rows, history]


def result_object(ctx: LoopContext, end: TaskEnd, *, resumed_from_step: int | None, duration_ms: int) -> dict[str, Any]:
    """Return the result object of the task that ended with `end` (interface section 1)."""
    task = ctx.task
    return {
        "sessionId": ctx.session_id,
        "taskId": task.task_id,
        "status": _END_NAMES[end.status],
        "reason": end.reason,
        "text": end.text,
        "stepCount": task.step_count,
        "usage": task.usage.to_wire(),
        "toolCalls": [
            {"toolName": name, "status": status}
            | ({"code": code} if code is not None else {})
            | ({"exitCode": task.exit_codes[place]} if place in task.exit_codes else {})
            for place, (name, status, code) in enumerate(task.finished_calls)
        ],
        "tools": _tool_counts(task),
        "deniedApprovals": denied_approvals(task, ctx.state.thread, ctx.session_id),
        "resumedFromStep": resumed_from_step,
        "durationMs": duration_ms,
        "message": end.message,
        **verdict(end.status, end.reason, denied=bool(task.denied)),
        "model": ctx.conversation.model,
        **cost_fields(ctx.conversation.models, task.usage, task.usage_by_model),
        **_answer(ctx, end),
        "filesChanged": files_changed(ctx),
        **{key: {name: row[name] for name in row if name != "scope"} for key, row in ctx.judge.sandbox().items()},
        **({"changesUnseen": ctx.state.unseen[task.task_id]} if task.task_id in ctx.state.unseen else {}),
    }


def _answer(ctx: LoopContext, end: TaskEnd) -> dict[str, Any]:
    form = ctx.progress.form
    if form is None or end.status != "completed":
        return {}
    read = form.read(end.text)
    return {} if read.problem is not None else {"answer": read.value}


def _tool_counts(task: Task) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, status, _ in task.finished_calls:
        row = found.setdefault(name, {"calls": 0, "failed": 0, "denied": 0, "durationMs": task.tool_ms.get(name, 0)})
        row["calls"] += 1
        if status in ("failed", "denied"):
            row[status] += 1
    return found


def files_changed(ctx: LoopContext) -> list[str]:
    """Return the absolute paths, sorted, of files that calls of the last task wrote or deleted, or that commands were
    seen to change, and that differ from their content before. A file that is too large to compare, or whose first
    version was not kept, is assumed to differ unless it is recorded with the state that it still has."""
    from agent_host.loop.prepare import hash_on_disk, mode_at  # imported with the end of the first task

    found = []
    for path, version in ctx.task.baselines.items():
        if version is None:
            is_changed = os.path.lexists(path)
        elif is_untouched(version, unavailable_at(path)):
            is_changed = False
        else:
            mode, blob = mode_and_blob(version)
            now = mode_and_blob(hash_on_disk(path, ctx.scrubber.data) or "")[1]
            is_changed = blob in NOT_KEPT or now != blob or (mode is not None and mode_at(path) != mode)
        if is_changed:
            found.append(path)
    return sorted(found)


# Verdicts of tasks and sessions, with the same words in results, events, lists and transcripts.
#
# `endedBy` and `retryable` come from the table of `agent_host.errors`. The verdict of a completed task is `denied`,
# ended by policy, if calls of it needed an approval and no approver was present.

Verdict = Literal["completed", "failed", "cancelled", "paused", "denied", "interrupted", "running"]

_OF_STATUS: Final[Mapping[str, Verdict]] = {name: status for status, name in _END_NAMES.items()}


def end_of(status: TaskStatus) -> EndStatus:
    """Return the end of a task of this status whose session has ended: a task recorded as running was cancelled by
    that."""
    return "cancelled" if status == "running" else status


def verdict(status: EndStatus, reason: str | None, *, denied: bool) -> dict[str, Any]:
    """Return {verdict, endedBy, retryable} of a task with this end; `denied`: calls of it could not be approved."""
    verdict: Verdict = status
    if denied and (status == "completed" or reason == ErrorCode.APPROVAL_REQUIRED):
        verdict, reason = "denied", ErrorCode.APPROVAL_REQUIRED
    elif reason == INTERRUPTED:
        verdict = "interrupted"
    elif status == "completed":
        reason = None
    return _fields(verdict, reason)


def verdict_on_record(state: Checkpoint, *, is_live: bool) -> dict[str, Any]:
    """Return {verdict, endedBy?, retryable?} of a session from its record; `is_live`: a process has it."""
    task = state.task
    if task is None:
        return _fields("running" if is_live else "interrupted", INTERRUPTED)
    if task.status != "running":
        return verdict(task.status, task.reason, denied=bool(task.denied))
    if state.session_status == SessionStatus.PAUSED:
        return _fields("paused", task.reason or INTERRUPTED)
    if task.reason is None:
        return _fields("running" if is_live else "interrupted", INTERRUPTED)
    if task.reason == INTERRUPTED:
        return _fields("interrupted", INTERRUPTED)
    return _fields("cancelled" if task.reason == CANCELLED else "failed", task.reason)


def verdict_in_result(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same from a result on disk; for a result of an earlier version it is derived from the status."""
    names = ("verdict", "endedBy", "retryable")
    if isinstance(kept.get("verdict"), str) and isinstance(kept.get("endedBy"), str):
        return {name: kept[name] for name in names if name in kept}
    status, reason = _OF_STATUS.get(str(kept.get("status")), "interrupted"), kept.get("reason")
    if status == "completed" and kept.get("deniedApprovals"):
        status, reason = "denied", ErrorCode.APPROVAL_REQUIRED
    return _fields(status, reason if isinstance(reason, str) else None)


def _fields(verdict: Verdict, reason: str | None) -> dict[str, Any]:
    if verdict == "running":
        return {"verdict": verdict}
    ending = ending_of(reason, has_failed=verdict == "failed")
    return {"verdict": verdict, "endedBy": ending.ended_by, "retryable": ending.retryable}


# Calls that were denied because no approver was present: their rows in the result object, and their replay (SK 4.2,
# 4.3). The record has the call's id and the option that approves its kind; only the thread has its arguments.


def denied_approvals(task: Task, thread: Sequence[bytes], session_id: str) -> list[dict[str, Any]]:
    """Return `deniedApprovals` of the result: {toolName, replay} for each. If the arguments were lost to a damaged
    disk, the replay only has the option that approves the kind. Rows of earlier versions contain the whole replay."""
    calls = _calls(task, thread)
    return [
        {"toolName": row["toolName"], "replay": _replay(row["replay"], calls, row["toolName"], session_id)}
        for row in task.denied
    ]


def calls_to_replay(task: Task, thread: Sequence[bytes], session_id: str, wanted: Collection[str]) -> list[Replay]:
    """Return one replay for each id in `wanted`, in the order of the denials. Raises UsageError for an id that is not
    of this task. The call of an open task may have been run, or started, before a crash: repeating the same command
    continues from there, and nothing is run twice."""
    calls = _calls(task, thread)
    found: dict[str, Replay] = {}
    for row in task.denied:
        kept = row["replay"]
        call = calls.get(kept.get("callId", ""))
        replay_id = _replay(kept, calls, row["toolName"], session_id).get("id", "")
        if call is None or replay_id not in wanted:
            continue
        first = found.get(replay_id) or Replay(replay_id, call, ())
        settles = (*first.settles, call.call_id)
        found[replay_id] = first._replace(settles=settles, place=kept.get("place"), approve=kept["approve"])
    unknown = sorted(set(wanted) - found.keys())
    if unknown and task.status == "running":
        every = (call for data in thread if b'"toolCalls"' in data for call in decode(data).tool_calls)
        made = {replay_of(call.name, call.arguments, session_id="", approve="")["id"] for call in every}
        unknown = [replay_id for replay_id in unknown if replay_id not in made]
    if unknown:
        replay_ids = (row["replay"].get("id") for row in denied_approvals(task, thread, session_id))
        known = ", ".join(dict.fromkeys(replay_id for replay_id in replay_ids if replay_id)) or "none"
        raise UsageError(f"--approve {unknown[0]}: no denied call of this session has that id; there is {known}")
    return list(found.values())


def approvals_of_open_calls(state: Checkpoint, session_id: str, wanted: Collection[str]) -> list[ApprovalAnswered]:
    """Return approvals for the calls of the open step that wait for one and whose replay ids are in `wanted`."""
    answers = []
    for call in () if state.open_step is None or not wanted else state.open_step.calls:
        if call.approval_id is None or call.started or call.result is not None or call.problem is not None:
            continue
        answer = None if call.answer is None else ApprovalAnswer.from_record(call.answer)
        if answer is not None and (answer.approved or answer.is_denial):
            continue
        replay_id = replay_of(call.tool_name, call.arguments, session_id=session_id, approve="")["id"]
        if replay_id in wanted:
            approval = ApprovalAnswer(approved=True, reason=f"approved by --approve {replay_id}")
            answers.append(approval.to_record(call.call_id, call.approval_id))
    return answers


def _replay(kept: dict[str, Any], calls: dict[str, ToolCall], tool_name: str, session_id: str) -> dict[str, Any]:
    if "callId" not in kept:
        return kept
    call = calls.get(kept["callId"])
    if call is not None and call.problem is None:
        return replay_of(tool_name, call.arguments, session_id=session_id, approve=kept["approve"])
    return {"approve": kept["approve"]}


def _calls(task: Task, thread: Sequence[bytes]) -> dict[str, ToolCall]:
    wanted = {row["replay"]["callId"] for row in task.denied if "callId" in row["replay"]}
    found: dict[str, ToolCall] = {}
    for data in reversed(thread):
        if len(found) == len(wanted):
            break
        if b'"toolCalls"' in data:
            found.update((call.call_id, call) for call in decode(data).tool_calls if call.call_id in wanted)
    return found


class ApprovalReports:
    """A sink that passes every decision to `reporter`, each once, without waiting for the service. `scrub` redacts
    secrets in a text; `tools` are the tools that recorded calls may use."""

    def __init__(
        self,
        reporter: ApprovalReporter,
        identity: SessionIdentity,
        scrub: Callable[[str], str],
        tools: Registry,
        time: Callable[[], float],
    ) -> None:
        self._time = time
        self._tools = tools
        self._reporter = reporter
        self._identity = identity
        self._scrub = scrub
        self._asked: dict[str, dict[str, Any]] = {}
        self._again: set[str] = set()

    def again(self, state: Checkpoint) -> None:
        """Report the answers of the step that a former process left open, because it may have died before it reported
        them. If it did report them, the service has the same decision under the same key."""
        step, task = state.open_step, state.task
        if step is None or task is None:
            return
        for call in step.calls:
            if call.answer is not None and call.approval_id is not None:
                self._again.add(call.approval_id)
                self._report(
                    call.approval_id,
                    task.task_id,
                    call.answer.approved,
                    call.answer.reason,
                    self._summary(call),
                    self._time(),
                    step_id=step.step_id,
                    is_retry=True,
                )

    def take(self, event: Event) -> None:
        """Remember requests, and report answers."""
        payload = event.payload
        if event.event_type in RUN_ENDS:
            self._asked.clear()  # a request that was cancelled while it waited is never answered
        elif event.event_type is EventType.APPROVAL_REQUESTED:
            self._asked[payload["approvalId"]] = payload
        elif event.event_type is EventType.APPROVAL_RESOLVED and payload["approvalId"] not in self._again:
            asked = self._asked.pop(payload["approvalId"], {})
            self._report(
                payload["approvalId"],
                event.task_id or "",
                payload["decision"] == "approved",
                payload.get("reason"),
                asked.get("actionSummary", ""),
                event.at,
                step_id=event.step_id,
                risk_level=asked.get("riskLevel"),
            )

    def flush(self) -> None:
        """Do nothing: this sink has no buffer."""

    def _report(
        self, approval_id: str, task_id: str, approved: bool, reason: str | None, summary: str, at: float, **extra: Any
    ) -> None:
        who = self._identity
        self._reporter.take(
            ApprovalDecision(
                approval_id,
                who.session_id,
                task_id,
                who.user_id,
                who.tenant_id,
                who.workspace_id,
                "approved" if approved else "denied",
                summary,
                rfc3339(at),
                reason=None if reason is None else self._scrub(reason),
                **extra,
            )
        )

    def _summary(self, call: OpenCall) -> str:
        """Return the call in one line; the summary that the person saw is not recorded."""
        spec = self._tools.get(call.tool_name)
        subject = "" if spec is None else f": {spec.summary(call.arguments)}"
        return one_line(self._scrub(f"{call.tool_name}{subject}"))
