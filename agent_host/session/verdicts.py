"""One verdict of a task and of its session, in the same words in results, events, lists and transcripts.

`endedBy` and `retryable` come from the table of `agent_host.errors`. A task that is done, with calls that nobody was
there to approve, was denied: policy ended it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from agent_host.errors import CANCELLED, INTERRUPTED, ErrorCode, ending_of
from agent_host.states import SessionStatus, TaskPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.loop.context import EndStatus
    from state.checkpoint import Checkpoint

Verdict = Literal["completed", "failed", "cancelled", "paused", "denied", "interrupted", "running"]

_OF_STATUS: Final[Mapping[str, Verdict]] = {
    TaskPhase.COMPLETED: "completed",
    TaskPhase.FAILED: "failed",
    TaskPhase.CANCELLED: "cancelled",
    SessionStatus.PAUSED: "paused",
}


def ended(status: EndStatus, reason: str | None, *, denied: bool) -> dict[str, Any]:
    """{verdict, endedBy, retryable} of a task that ended so; `denied`: calls of it could not be approved."""
    verdict: Verdict = status
    if denied and (status == "completed" or reason == ErrorCode.APPROVAL_REQUIRED):
        verdict, reason = "denied", ErrorCode.APPROVAL_REQUIRED
    elif reason == INTERRUPTED:
        verdict = "interrupted"
    elif status == "completed":
        reason = None
    return _fields(verdict, reason)


def on_record(state: Checkpoint, *, is_live: bool) -> dict[str, Any]:
    """{verdict, endedBy?, retryable?} of a session by what is on record of it; `is_live`: a process has it."""
    task = state.task
    if task is None:
        return _fields("running" if is_live else "interrupted", INTERRUPTED)
    if task.status != "running":
        return ended(task.status, task.reason, denied=bool(task.denied))
    if state.session_status == SessionStatus.PAUSED:
        return _fields("paused", task.reason or INTERRUPTED)
    if task.reason is None:
        return _fields("running" if is_live else "interrupted", INTERRUPTED)
    if task.reason == INTERRUPTED:
        return _fields("interrupted", INTERRUPTED)
    return _fields("cancelled" if task.reason == CANCELLED else "failed", task.reason)


def of_result(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a result on disk; that of an earlier version is judged by its status."""
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
