"""What is reported of a session on request: its state, and the result object of a task that ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agent_host.session.denials import denied_approvals
from agent_host.session.verdicts import ended, on_record
from agent_host.states import SessionStatus, TaskPhase
from state.blobs import NOT_KEPT, mode_and_blob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.loop.context import EndStatus, LoopContext, TaskEnd
    from state.checkpoint import Checkpoint, Task
    from state.records import TaskStatus

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

_WAITS = "not uploaded yet: this process goes on with it, else a resume of the session"


def is_result(kept: dict[str, Any]) -> bool:
    """True if `kept` has what is shown of a result object, in its types."""
    usage, rows = kept.get("usage"), (kept.get("toolCalls"), kept.get("deniedApprovals"))
    return (
        kept.get("status") in _END_NAMES.values()
        and isinstance(kept.get("text"), str)
        and isinstance(kept.get("reason"), str | None)
        and all(type(kept.get(name)) is int for name in ("stepCount", "durationMs"))
        and isinstance(usage, dict)
        and all(type(usage.get(name)) is int for name in ("inputTokens", "outputTokens"))
        and type(kept.get("cost", 0)) in (int, float)
        and all(isinstance(row, list) and all(isinstance(one, dict) for one in row) for row in rows)
        and isinstance(kept.get("started", {}), dict)
    )


def session_state(ctx: LoopContext, status: SessionStatus, pending: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of GetSessionState (interface section 2). The task is the current one, else the last one there was."""
    state, usage, limit = ctx.state, ctx.state.usage, ctx.judge.bundle.llm_policy.max_session_tokens
    at_work = ctx.phase.state is not TaskPhase.IDLE
    verdict = {"verdict": "running"} if at_work else on_record(state, is_live=True)
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
        "totalTokens": state.session_tokens_used,
        "remaining": max(0, limit - state.session_tokens_used),
        "maxSessionTokens": limit,
        **{name: count for name, count in usage.to_wire().items() if count and name.startswith("cache")},
        **cost_fields(ctx, state),
        **({"maxCost": ctx.conversation.max_cost} if ctx.conversation.max_cost else {}),
    }
    fields["pendingApprovals"] = list(pending)
    return fields


def cost_fields(ctx: LoopContext, owner: Checkpoint | Task) -> dict[str, Any]:
    """{cost, costCurrency} of the session or of one of its tasks; nothing where that is not known."""
    cost = ctx.conversation.models.cost(owner.usage, owner.usage_by_model)
    return {} if cost is None else cost.to_wire()


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
            {"toolName": name, "status": status}
            | ({"code": code} if code is not None else {})
            | ({"exitCode": task.exit_codes[place]} if place in task.exit_codes else {})
            for place, (name, status, code) in enumerate(task.finished_calls)
        ],
        "tools": _by_tool(task),
        "deniedApprovals": denied_approvals(task, ctx.state.thread, ctx.session_id),
        "resumedFromStep": resumed_from_step,
        "durationMs": duration_ms,
        "message": end.message,
        **ended(end.status, end.reason, denied=bool(task.denied)),
        "model": ctx.conversation.model,
        **cost_fields(ctx, task),
        "filesChanged": files_changed(ctx),
        **_sandbox(ctx),
        **({"changesUnseen": ctx.state.unseen[task.task_id]} if task.task_id in ctx.state.unseen else {}),
    }


def _sandbox(ctx: LoopContext) -> dict[str, Any]:
    """{sandbox: {level, wanted, why?}}: how commands were held; nothing where none was to be."""
    said = ctx.judge.sandbox().get("sandbox")
    return {} if said is None else {"sandbox": {name: value for name, value in said.items() if name != "scope"}}


def _by_tool(task: Task) -> dict[str, dict[str, int]]:
    """{calls, failed, denied, durationMs} of each tool that was called, in order of the first calls. `durationMs` is
    how long its calls ran together, without waits for approvals and for others."""
    found: dict[str, dict[str, int]] = {}
    for name, status, _ in task.finished_calls:
        row = found.setdefault(name, {"calls": 0, "failed": 0, "denied": 0, "durationMs": task.tool_ms.get(name, 0)})
        row["calls"] += 1
        if status in ("failed", "denied"):
            row[status] += 1
    return found


def files_changed(ctx: LoopContext) -> list[str]:
    """The files that calls of the last task wrote or deleted and that are not as they were before, in order of their
    absolute paths, and those that commands were seen to change. Of a file too large to look at it is assumed, and of
    one whose first version was not kept."""
    from agent_host.loop.intents import hash_on_disk, mode_at  # with the end of the first task

    found = []
    for path, version in ctx.task.baselines.items():
        if version is None:
            is_changed = os.path.lexists(path)
        else:
            mode, blob = mode_and_blob(version)
            now = mode_and_blob(hash_on_disk(path, ctx.scrubber.data) or "")[1]
            is_changed = blob in NOT_KEPT or now != blob or (mode is not None and mode_at(path) != mode)
        if is_changed:
            found.append(path)
    return sorted(found)
