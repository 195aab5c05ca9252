"""A session's tasks as its record has them: status, text, patch and files by session and task id, whichever process
lives, and after the last one has ended.

The record of a session is its checkpoint; once it has ended, its archive. If that was not kept, its result and its run
log are left, which know less: there is no patch without the versions of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import INTERRUPTED, CheckpointUnreadable, UsageError
from agent_host.events.kinds import EventType
from agent_host.session.reports import ON_RECORD, verdict, verdict_in_result
from agent_host.session.tasks import first_versions, workspaces
from agent_host.session.transcripts import describe, items_of
from agent_host.states import SessionStatus
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.session.patches import FilePatch
    from agent_host.session.stored import StoredSession
    from agent_host.session.transcripts import RunLog
    from state.checkpoint import Checkpoint, EarlierTask, Task

    Cleaner = Callable[[Checkpoint], Callable[[bytes], bytes] | None]

_OF_TASK: Final = (
    EventType.TASK_COMPLETED,
    EventType.TASK_FAILED,
    EventType.TASK_CANCELLED,
    EventType.SESSION_PAUSED,
)
_ENDS: Final = {
    EventType.SESSION_COMPLETED: SessionStatus.COMPLETED,
    EventType.SESSION_CANCELLED: SessionStatus.CANCELLED,
    EventType.SESSION_FAILED: SessionStatus.FAILED,
}
QUEUED: Final = "queued"
_RESUMES: Final = "the process has ended; a resume goes on with the task"
_NOT_CLEAN: Final = "not shown: what the session's policy redacts is not known here; resume the session to see it"
_ENDING: Final = ("verdict", "endedBy", "retryable")


class SessionRecord(NamedTuple):
    """The record of one session: its `row` in lists, its state, None if it cannot be read or if the records of one that
    `has_ended` were not kept, its messages as JSON, oldest first, its run log, and the result of one that has ended.
    `versions` gives what gives a version of a file by its name; `cleaner` is that of StoredSessions."""

    row: StoredSession
    state: Checkpoint | None
    has_ended: bool
    messages: Sequence[bytes]
    log: RunLog
    result: Mapping[str, Any]
    versions: Callable[[], Callable[[str], bytes | None]]
    cleaner: Cleaner

    @property
    def is_live(self) -> bool:
        """True if a process has the session."""
        return self.row.pid is not None

    @property
    def pending(self) -> list[dict[str, Any]]:
        """The questions that wait in the process that has the session, as `approval_requested` had them."""
        return list(self.log.asked.values()) if self.is_live else []

    @property
    def task_ids(self) -> list[str]:
        """Its tasks, oldest first; those that are queued come last."""
        if self.state is None:
            found = [mark["taskId"] for mark in self.log.marks if "taskId" in mark] if self.has_ended else []
            return list(dict.fromkeys([*found, *filter(None, [self.result.get("taskId")])]))
        state = self.state
        last = [] if state.task is None else [state.task.task_id]
        earlier, queued = ([one.task_id for one in state.earlier_tasks], [one.task_id for one in state.queue])
        return [*earlier, *last, *queued]

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """Its messages in the form of AH 9.2, pictures without their bytes."""
        return [describe(orjson.loads(message)) for message in self.messages]

    def items(self, task_id: str | None = None) -> list[dict[str, Any]]:
        """The items of its transcript, or of one of its tasks; see `items_of`. Raises UsageError for a task that it
        does not know."""
        items = items_of(self.messages, self.log)
        if task_id is None:
            return items
        if task_id not in self.task_ids:
            raise self._unknown(task_id)
        return [item for item in items if item.get("taskId") == task_id]

    def session_state(self, task_id: str | None = None) -> dict[str, Any]:
        """The result of GetSessionState for a session that no process here has; with a `task_id` all of that task.
        Raises UsageError for a task that the session does not know, CheckpointUnreadable."""
        row = self.row
        if self.state is None and not self.has_ended:
            raise CheckpointUnreadable(row.title)
        wanted = task_id if task_id is not None else next(reversed(self._task_ids), None)
        usage = {name: count for name, count in (row.usage or {}).items() if count or not name.startswith("cache")}
        task = None if wanted is None else self.task(wanted)
        if task is not None and task_id is None:
            task = {name: task[name] for name in ("taskId", "status", "stepCount", "maxSteps") if name in task}
        return {
            "sessionId": row.session_id,
            "sessionStatus": self._status,
            **row.ending,
            "resumable": row.resumable,
            **({} if task is None else {"task": task}),
            "tokenUsage": {**usage, "totalTokens": row.total_tokens or 0},
            "pendingApprovals": self.pending,
        }

    def task(self, task_id: str) -> dict[str, Any]:
        """{taskId, prompt, status, startedAt, stepCount, maxSteps?, verdict, endedBy?, retryable?, reason, message,
        text, denied?, usage?} of a task; `queued` is the status of one that has not begun. Raises UsageError for one
        that the session does not know."""
        state = self.state
        if state is None:
            return self._task_of_result(task_id)
        if state.task is not None and state.task.task_id == task_id:
            return self._last(state.task)
        for earlier in state.earlier_tasks:
            if earlier.task_id == task_id:
                mark = self._mark_of(task_id)
                ending = mark if "verdict" in mark else verdict(_end_of(earlier), earlier.reason, denied=False)
                fields: dict[str, Any] = {"prompt": earlier.prompt, "status": ON_RECORD[earlier.status]}
                fields |= {"stepCount": earlier.step_count, **_ending_in(ending)}
                return self._add_text(task_id, fields, earlier.reason, mark.get("message"))
        if any(queued.task_id == task_id for queued in state.queue):
            prompt = next(queued.prompt for queued in state.queue if queued.task_id == task_id)
            fields = {"prompt": prompt, "status": QUEUED, "stepCount": 0, "verdict": "running"}
            return self._add_text(task_id, fields, None, None)
        raise self._unknown(task_id)

    def preview(self, task_id: str | None = None, file_paths: Sequence[str] | None = None) -> list[FilePatch]:
        """The changes of the session or one of its tasks; see `session.patches.preview`. Raises UsageError for a task
        that it does not know, and where what files held was not kept; CheckpointUnreadable."""
        from agent_host.session.patches import preview  # comparing files is a large import

        if self.state is None and not self.has_ended:
            raise CheckpointUnreadable(self.row.title)
        if task_id is not None and task_id not in self.task_ids:
            raise self._unknown(task_id)
        if self.state is None:
            raise UsageError(
                f"what files held before session {self.row.session_id} was not kept (retention.keep_file_versions), so "
                "there is no patch"
            )
        places = workspaces(self.state)
        if task_id is not None and task_id not in self._task_ids:
            return []
        clean = self.cleaner(self.state)
        found = preview(
            first_versions(self.state),
            kept=self.versions(),
            clean=clean or bytes,
            workspace=places[-1],
            former=places,
            task_id=task_id,
            file_paths=file_paths,
        )
        return found if clean is not None else [patch._replace(diff=f"# {_NOT_CLEAN}\n") for patch in found]

    def whole_task(self, task_id: str) -> dict[str, Any]:
        """`task` with {filesChanged[{filePath, status, additions, deletions}], patch, unseen?}, or with `patchMissing`,
        which says why there is none."""
        try:
            files = [file.to_wire() for file in self.preview(task_id)]
        except UsageError as error:  # what files held was not kept
            return {**self.task(task_id), "filesChanged": [], "patchMissing": str(error)}
        patch, unseen = "".join(file.pop("diff") for file in files), self.unseen(task_id)
        changed = {"filesChanged": files, "patch": patch, **({} if unseen is None else {"unseen": unseen})}
        return {**self.task(task_id), **changed}

    def unseen(self, task_id: str | None) -> str | None:
        """Why a preview may leave out what commands changed; None where it does not."""
        return None if self.state is None else first_versions(self.state).unseen_in(task_id)

    @property
    def _task_ids(self) -> list[str]:
        queued = set() if self.state is None else {task.task_id for task in self.state.queue}
        return [task_id for task_id in self.task_ids if task_id not in queued]

    @property
    def _status(self) -> str:
        """The status of the session: of one that has ended, how."""
        if not self.has_ended and self.state is not None:
            return self.state.session_status
        marks = (_ENDS[mark["mark"]] for mark in reversed(self.log.marks) if mark["mark"] in _ENDS)
        return next(marks, SessionStatus.COMPLETED)

    def _last(self, task: Task) -> dict[str, Any]:
        mark = self._mark_of(task.task_id)
        fields: dict[str, Any] = {"prompt": task.prompt, "status": ON_RECORD[task.status]}
        fields |= {"stepCount": task.step_count, "maxSteps": task.max_steps, **self.row.ending}
        fields["usage"] = task.usage.to_wire()
        reason, message = task.reason, mark.get("message")
        if task.status == "running":
            stopped = not self.is_live and reason is None
            message = _RESUMES if stopped else message if mark.get("reason") == reason else None
            reason = INTERRUPTED if stopped else reason
        return self._add_text(task.task_id, fields, reason, message)

    def _task_of_result(self, task_id: str) -> dict[str, Any]:
        if task_id not in self.task_ids:
            raise self._unknown(task_id)
        kept, mark = self.result, self._mark_of(task_id)
        if task_id == kept.get("taskId"):
            fields = {name: kept[name] for name in ("prompt", "status", "stepCount", "usage") if name in kept}
            return self._add_text(
                task_id, {**fields, **verdict_in_result(kept)}, kept.get("reason"), kept.get("message")
            )
        name = str(mark.get("mark", "")).partition("_")[2]
        fields = {"prompt": "", "status": f"TASK_{name.upper()}", "stepCount": mark.get("stepCount", 0)}
        return self._add_text(task_id, {**fields, **_ending_in(mark)}, mark.get("reason"), mark.get("message"))

    def _add_text(
        self, task_id: str, fields: dict[str, Any], reason: str | None, message: str | None
    ) -> dict[str, Any]:
        if fields.get("verdict") == "completed":
            reason = message = None
        denied = self.log.denied.get(task_id)
        said = {"startedAt": self._began_at(task_id), "reason": reason, "message": message}
        said["text"] = self._text_of(task_id)
        return {"taskId": task_id, **fields, **said, **({"denied": denied} if denied else {})}

    def _began_at(self, task_id: str) -> str:
        """The time when the task was begun, in RFC 3339, as its first message has it."""
        quoted = orjson.dumps(task_id)
        named = (orjson.loads(data) for data in self.messages if quoted in data)
        return next((str(one["timestamp"]) for one in named if one.get("taskId") == task_id), self.row.updated_at)

    def _text_of(self, task_id: str) -> str:
        """The model's last words in the task."""
        quoted = orjson.dumps(task_id)
        for data in reversed(self.messages):
            if quoted in data and b'"role":"assistant"' in data:
                message = orjson.loads(data)
                if message.get("taskId") == task_id and message["role"] == "assistant" and message["content"]:
                    return str(message["content"])
        return ""

    def _mark_of(self, task_id: str) -> Mapping[str, Any]:
        """The last end of the task, by the run log."""
        marks = (one for one in reversed(self.log.marks) if one.get("taskId") == task_id and one["mark"] in _OF_TASK)
        return next(marks, {})

    def _unknown(self, task_id: str) -> UsageError:
        return UsageError(f"session {self.row.session_id} has no task {task_id[:128]!r}")


def _end_of(task: EarlierTask) -> Any:
    return "cancelled" if task.status == "running" else task.status


def _ending_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in _ENDING if name in fields}
