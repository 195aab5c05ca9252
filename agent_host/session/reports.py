"""What is reported of a session on request: its state, and the result object of a task that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.loop.context import TaskEnd
from agent_host.session.denials import denied_approvals
from agent_host.states import SessionStatus, TaskPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.loop.context import EndStatus, LoopContext
    from state.records import TaskStatus

_END_NAMES: dict[EndStatus, str] = {
    "completed": TaskPhase.COMPLETED,
    "failed": TaskPhase.FAILED,
    "cancelled": TaskPhase.CANCELLED,
    "paused": SessionStatus.PAUSED,
}
_ON_RECORD: dict[TaskStatus, TaskPhase] = {
    "running": TaskPhase.RUNNING,
    "completed": TaskPhase.COMPLETED,
    "failed": TaskPhase.FAILED,
    "cancelled": TaskPhase.CANCELLED,
}

_WAITS = "not uploaded yet: this process goes on with it, else a resume of the session"


def is_result(kept: dict[str, Any]) -> bool:
    """Whether `kept` has what is shown of a result object, in its types."""
    usage, rows = kept.get("usage"), (kept.get("toolCalls"), kept.get("deniedApprovals"))
    return (
        kept.get("status") in _END_NAMES.values()
        and isinstance(kept.get("text"), str)
        and isinstance(kept.get("reason"), str | None)
        and all(type(kept.get(name)) is int for name in ("stepCount", "durationMs"))
        and isinstance(usage, dict)
        and all(type(usage.get(name)) is int for name in ("inputTokens", "outputTokens"))
        and all(isinstance(row, list) and all(isinstance(one, dict) for one in row) for row in rows)
        and isinstance(kept.get("started", {}), dict)
    )


def end_of(result: dict[str, Any]) -> TaskEnd:
    """How the task of a result object ended. For what `is_result` takes."""
    status = next(status for status, name in _END_NAMES.items() if name == result["status"])
    return TaskEnd(status, result["reason"], result["reason"], result["text"])


def session_state(ctx: LoopContext, status: SessionStatus, pending: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of GetSessionState (interface section 2). The task is the current one, else the last one there was."""
    state, usage, limit = ctx.state, ctx.state.usage, ctx.judge.bundle.llm_policy.max_session_tokens
    fields: dict[str, Any] = {"sessionId": ctx.session_id, "sessionStatus": status}
    if state.task is not None:
        at_work = ctx.phase.state is not TaskPhase.IDLE
        fields["task"] = {
            "taskId": state.task.task_id,
            "status": ctx.phase.state if at_work else _ON_RECORD[state.task.status],
            "stepCount": state.task.step_count,
            "maxSteps": state.task.max_steps,
        }
    fields["tokenUsage"] = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": state.session_tokens_used,
        "remaining": max(0, limit - state.session_tokens_used),
        "maxSessionTokens": limit,
    }
    fields["pendingApprovals"] = list(pending)
    return fields


def not_uploaded(ctx: LoopContext, history: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What of the current task, or of the last one, the Workspace Service has not stored: {artifactName, artifactType,
    message, storageRef?, toolCallId?}. `history` is such a row for the history, None where there is nothing to say."""
    task = ctx.task
    waiting = [row for row in ctx.state.uploads.values() if row["taskId"] == task.task_id]
    rows = [_missing(row, row["why"]) for row in task.not_uploaded] + [_missing(row, _WAITS) for row in waiting]
    return rows if history is None else [*rows, history]


def _missing(row: dict[str, Any], message: str) -> dict[str, Any]:
    fields = {"artifactName": row["name"], "artifactType": row["type"], "toolCallId": row["callId"], "message": message}
    return {**fields, "storageRef": row["ref"]} if "ref" in row else fields


def result_object(ctx: LoopContext, end: TaskEnd, *, resumed_from_step: int | None, duration_ms: int) -> dict[str, Any]:
    """The result object of the task that ended with `end` (interface section 1)."""
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
            {"toolName": name, "status": status} | ({"code": code} if code is not None else {})
            for name, status, code in task.finished_calls
        ],
        "deniedApprovals": denied_approvals(task, ctx.state.thread, ctx.session_id),
        "resumedFromStep": resumed_from_step,
        "durationMs": duration_ms,
    }
