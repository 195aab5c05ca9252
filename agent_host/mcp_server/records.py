"""Tasks on record, for a client that asks by session and task id: also those that another process has or had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.host.records import stored_sessions
from agent_host.mcp_server.approving import question_in
from agent_host.states import SessionStatus, TaskPhase

if TYPE_CHECKING:
    from agent_host.host.records import Owner

APPROVAL_REQUIRED: Final = "APPROVAL_REQUIRED"
RUNNING: Final = "RUNNING"
_LISTED: Final = 20
_ELSEWHERE: Final = "another process has the session"
_OF_TASK: Final = (
    "startedAt", "reason", "message", "stepCount", "verdict", "endedBy", "retryable", "text", "denied", "patchMissing",
)  # fmt: skip


class Records:
    """The sessions of `owner` under `state_dir`; None: of whoever they are, until the first session of this server says
    who its user is."""

    def __init__(self, state_dir: str, owner: Owner | None) -> None:
        self._state_dir = state_dir
        self.owner = owner

    def list_sessions(self) -> list[dict[str, Any]]:
        """The last sessions. Raises AgentHostError."""
        return [one.to_wire() for one in stored_sessions(self._state_dir).all(self.owner)[:_LISTED]]

    def session_of(self, task_id: str) -> str | None:
        """The session that has, or had, the task; None where none is on record."""
        return stored_sessions(self._state_dir).session_of(task_id, self.owner)

    def refuse_others(self, session_id: str) -> None:
        """Raise SessionNotFound for a session that is not on record, or not the owner's."""
        stored_sessions(self._state_dir).record(session_id, self.owner)

    def report(self, session_id: str, task_id: str | None = None) -> dict[str, Any]:
        """Report the state of a task of the session, by default the last one, and once it is over all that is known of
        it; of a session without a task its row in lists. Raises SessionNotFound, UsageError for a task that it does not
        know, CheckpointUnreadable."""
        record = stored_sessions(self._state_dir).record(session_id, self.owner)
        ids = record.task_ids
        if task_id is None and not ids:
            return record.row.to_wire()
        task = record.task(task_id or ids[-1])
        found: dict[str, Any] = {"sessionId": session_id, "taskId": task["taskId"], "status": task["status"]}
        if task["status"] == TaskPhase.RUNNING and record.is_live:
            waiting = [question_in(asked).wire for asked in record.pending if asked["taskId"] == task["taskId"]]
            status = APPROVAL_REQUIRED if waiting else RUNNING
            return {**found, "status": status, "doing": _ELSEWHERE, **({"approvals": waiting} if waiting else {})}
        if task["status"] == TaskPhase.RUNNING:
            found["status"] = SessionStatus.PAUSED
        task = record.whole_task(task["taskId"])
        found |= {name: task[name] for name in _OF_TASK if task.get(name) is not None}
        found["filesChanged"] = [
            {"path": file["filePath"], **{name: file[name] for name in ("status", "additions", "deletions")}}
            for file in task["filesChanged"]
        ]
        return {**found, "usage": record.session_state()["tokenUsage"]}
