"""The sessions of a state directory, resumable and ended: their list, and the record of each."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.errors import INTERRUPTED, CheckpointUnreadable, ErrorCode, SessionNotFound, UsageError
from agent_host.events import EventType
from agent_host.ids import rfc3339
from agent_host.loop.conversation import cost_fields
from agent_host.session.opening import state_errors_translated
from agent_host.session.reports import (
    ON_RECORD,
    UNREADABLE,
    Owner,
    StoredSession,
    end_of,
    verdict,
    verdict_in_result,
    verdict_on_record,
)
from agent_host.session.tasks import first_versions, title_of, workspaces
from agent_host.session.transcript import Transcript, describe, doubts_of, items_of, pictures_of, read_run_log, steps_of
from agent_host.states import SessionStatus
from config.lean_typing import NamedTuple
from config.shapes import TEXT, Record, integer, number
from state import InvalidSessionId, SessionPaths, StateError, WriteFailed
from state.disk import LOCAL_DISK
from state.file_store import FileCheckpointStore, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from agent_host.llm.deferred import KnownModels
    from agent_host.session.patches import FilePatch, SessionChanges, WholePatch
    from agent_host.session.transcript import CallsOfRunLog, Item
    from state.checkpoint import Checkpoint, Task

    Cleaner = Callable[[Checkpoint], Callable[[bytes], bytes] | None]

_MAX_DIFF_BYTES: Final = 1024 * 1024
_INTEGER: Final = integer()
_IN_ROW: Final = Record({**dict.fromkeys(("status", "prompt", "endedAt", "workspace"), TEXT), "stepCount": _INTEGER})
"""The fields of a result that a row needs."""
_USAGE: Final = Record(
    dict.fromkeys(("inputTokens", "outputTokens", "cachedInputTokens"), _INTEGER), {"cost": number()}
)
"""The usage in a result; earlier versions did not keep it."""


class StoredSessions:
    """The sessions under `state_dir`. A snapshot above the limit is not read. `models` has the prices of models;
    `cleaner` returns the function that redacts secrets in the files that a session has changed, None if its redaction
    rules are not known."""

    def __init__(
        self,
        state_dir: str,
        *,
        snapshot_limit_bytes: int,
        models: KnownModels | None = None,
        cleaner: Cleaner = lambda _: None,
    ) -> None:
        self._state_dir = state_dir
        self._models = models
        self._cleaner = cleaner
        self._store = FileCheckpointStore(state_dir, snapshot_limit_bytes=snapshot_limit_bytes)

    def all(self, owner: Owner | None = None, search: str = "") -> list[StoredSession]:
        """Return sessions, newest first: those of `owner`, if one is given, whose title, prompt, workspace or id
        contains `search` in any letter case. Raises UsageError for a state directory that cannot be used."""
        wanted = search.casefold()
        found = [
            one
            for one in (*map(self._from_summary, self.summaries()), *self._ended_sessions())
            if (owner is None or one.owner == owner)
            and wanted in f"{one.title}\n{one.prompt}\n{one.workspace}\n{one.session_id}".casefold()
        ]
        newest: dict[str, StoredSession] = {}
        for one in found:
            newest.setdefault(one.session_id, one)  # a resumable session has more information than an older result
        return sorted(newest.values(), key=lambda one: (one.updated_at, one.session_id), reverse=True)

    def record(self, session_id: str, owner: Owner | None = None) -> SessionRecord:
        """Read the record of the session and its tasks, resumable or ended. Raises SessionNotFound for one that does
        not exist or has another owner, UsageError for an invalid id."""
        with state_errors_translated():
            paths = SessionPaths(self._state_dir, session_id)
            summary = self._store.summary(session_id)
        state = None if summary is None else summary.state
        if summary is None:
            with contextlib.suppress(StateError):  # its result and its run log are left
                state = self._store.load(session_id, ended_too=True)
        row = _read_ended(paths) if summary is None else self._from_summary(summary)
        if state is None:
            messages = _history_of(paths, missing_ok=row is not None)
        else:  # including the results that the open step has so far
            calls = [] if state.open_step is None else state.open_step.calls
            messages = [*state.thread, *(call.result for call in calls if call.result is not None)]
        if row is None:  # it ended without a result
            ended = Summary(session_id, state, "only its conversation is left", None, 0.0)
            row = self._from_summary(ended)._replace(resumable=False)
        if owner is not None and row.owner != owner:
            raise _not_found(session_id)
        result = orjson.loads(LOCAL_DISK.read(paths.result)) if summary is None and os.path.exists(paths.result) else {}
        log = read_run_log(paths.events)
        return SessionRecord(row, state, summary is None, messages, log, result, self._store, self._cleaner, paths)

    def session_of(self, task_id: str, owner: Owner | None = None) -> str | None:
        """Return the session that has or had a task of this id, the newest of several; else None. Raises UsageError."""
        for row in self.all(owner):
            with contextlib.suppress(SessionNotFound):
                if task_id in self.record(row.session_id, owner).task_ids:
                    return row.session_id
        return None

    def summaries(self) -> list[Summary]:
        """Return the resumable sessions with their states. Raises UsageError."""
        try:
            return self._store.list()
        except WriteFailed as error:
            raise UsageError(f"the state directory {self._state_dir} cannot be used: {error}") from error

    def newest_resumable(self, passed_over: Callable[[str], object]) -> str | None:
        """Return the id of the session that ran last and that no live process has; None if there is none. `passed_over`
        gets a line for each session that cannot be read."""
        newest = sorted(self.summaries(), key=lambda summary: summary.updated_at, reverse=True)
        for summary in newest:
            if summary.state is None and summary.pid is None:
                passed_over(f"session {summary.session_id} is passed over: {summary.problem}")
        offered = [summary for summary in newest if can_continue(summary)]
        # A session that only waits for approvals has nothing to do unless they are given, so it comes last.
        offered.sort(key=lambda summary: summary.state is not None and summary.state.awaits_approval)
        return offered[0].session_id if offered else None

    def _from_summary(self, summary: Summary) -> StoredSession:
        updated, state = rfc3339(summary.updated_at), summary.state
        if state is None:
            why, whose = summary.problem, _owner_of_ended(SessionPaths(self._state_dir, summary.session_id), {})
            return StoredSession(summary.session_id, UNREADABLE, why, why, 0, None, updated, "", whose, pid=summary.pid)
        prompt = "" if state.task is None else state.task.prompt
        first = state.earlier_tasks[0].prompt if state.earlier_tasks else prompt
        reason = None if state.task is None else state.task.reason
        if state.task is not None and state.awaits_approval:
            reason = ErrorCode.APPROVAL_REQUIRED
        return StoredSession(
            summary.session_id,
            state.session_status,
            title_of(first),
            prompt,
            0 if state.task is None else state.task.step_count,
            state.usage.total,
            updated,
            str(state.identity.options.get("workspace", "")),
            Owner(state.identity.tenant_id, state.identity.user_id),
            pid=summary.pid,
            resumable=can_continue(summary),
            usage={
                **state.usage.to_wire(),
                **({} if self._models is None else cost_fields(self._models, state.usage, state.usage_by_model)),
            },
            ending=verdict_on_record(state, is_live=summary.pid is not None),
            reason=reason,
        )

    def _ended_sessions(self) -> Iterator[StoredSession]:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(os.path.join(self._state_dir, "sessions")))
        for name in names:
            with contextlib.suppress(InvalidSessionId):
                found = _read_ended(SessionPaths(self._state_dir, name))
                if found is not None:
                    yield found


def can_continue(summary: Summary) -> bool:
    """True if `agent-host resume` can continue it: no process has it, and it has a task."""
    return summary.pid is None and summary.state is not None and summary.state.task is not None


def _read_ended(paths: SessionPaths) -> StoredSession | None:
    """Return the row of an ended session from its result; None if that is not a result of ours."""
    try:
        kept = orjson.loads(LOCAL_DISK.read(paths.result))
    except (OSError, orjson.JSONDecodeError):
        return None
    if not _IN_ROW.fits(kept):
        return None
    title, tokens, usage = kept.get("title"), kept.get("totalTokens"), kept.get("sessionUsage")
    return StoredSession(
        paths.session_id,
        kept["status"],
        title if isinstance(title, str) else title_of(kept["prompt"]),
        kept["prompt"],
        kept["stepCount"],
        tokens if type(tokens) is int else None,
        kept["endedAt"],
        kept["workspace"],
        _owner_of_ended(paths, kept),
        usage=usage if _USAGE.fits(usage) else None,
        ending=verdict_in_result(kept),
        reason=kept["reason"] if isinstance(kept.get("reason"), str) else None,
        duration_ms=kept["durationMs"] if type(kept.get("durationMs")) is int else None,
    )


def _owner_of_ended(paths: SessionPaths, kept: dict[str, Any]) -> Owner | None:
    """Return the owner from the result, else from the first event, because results of earlier versions do not have
    it."""
    for source in (kept, _first_event(paths.events)):
        tenant, user = source.get("tenantId"), source.get("userId")
        if isinstance(tenant, str) and isinstance(user, str):
            return Owner(tenant, user)
    return None


def _first_event(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as handle:
            event = orjson.loads(handle.readline())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return event if isinstance(event, dict) else {}


def _history_of(paths: SessionPaths, *, missing_ok: bool = False) -> list[bytes]:
    try:
        history = orjson.loads(LOCAL_DISK.read(os.path.join(paths.artifacts, "session_history")))
        return [orjson.dumps(message) for message in history if isinstance(message, dict)]
    except (OSError, orjson.JSONDecodeError, TypeError) as error:
        if missing_ok:
            return []
        raise _not_found(paths.session_id) from error


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(
        f"there is no session {session_id} with its history on this disk; `agent-host sessions` lists all"
    )


# A session's tasks from its record: status, text, patch and files by session and task id, whether or not a process has
# the session, also after its end. The record of a session is its checkpoint, and after its end its archive. If that was
# not kept, only its result and its run log are left, which contain less: without the versions of files there is no
# patch.

_OF_TASK: Final = (EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_CANCELLED, EventType.SESSION_PAUSED)
_ENDS: Final = {
    EventType.SESSION_COMPLETED: SessionStatus.COMPLETED,
    EventType.SESSION_CANCELLED: SessionStatus.CANCELLED,
    EventType.SESSION_FAILED: SessionStatus.FAILED,
}
QUEUED: Final = "queued"
_RESUMES: Final = "the process has ended; a resume continues the task"
_NOT_CLEAN: Final = (
    "not shown: the redaction rules of the session's policy are unknown here; resume the session to see it"
)
_ENDING: Final = ("verdict", "endedBy", "retryable")


class SessionRecord(NamedTuple):
    """The record of one session: its `row` in lists, its state (None if it cannot be read, or if it `has_ended` and its
    records were not kept), its messages as JSON, oldest first, its run log, and its result if it has ended. `store` has
    the versions of files and coloured output; `cleaner` is that of StoredSessions."""

    row: StoredSession
    state: Checkpoint | None
    has_ended: bool
    messages: Sequence[bytes]
    log: CallsOfRunLog
    result: Mapping[str, Any]
    store: FileCheckpointStore
    cleaner: Cleaner
    paths: SessionPaths

    @property
    def is_live(self) -> bool:
        """True if a live process has the session."""
        return self.row.pid is not None

    @property
    def pending(self) -> list[dict[str, Any]]:
        """The open questions of the process that has the session, with the payload of `approval_requested`."""
        return list(self.log.asked.values()) if self.is_live else []

    @property
    def task_ids(self) -> list[str]:
        """The ids of its tasks, oldest first, then the queued ones."""
        if self.state is None:
            found = [mark["taskId"] for mark in self.log.marks if "taskId" in mark] if self.has_ended else []
            return list(dict.fromkeys([*found, *filter(None, [self.result.get("taskId")])]))
        state = self.state
        last = () if state.task is None else (state.task,)
        return [one.task_id for one in (*state.earlier_tasks, *last, *state.queue)]

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """Its messages in the form of AH 9.2, pictures without their bytes."""
        return [describe(orjson.loads(message)) for message in self.messages]

    def transcript(self) -> Transcript:
        """Return the transcript of the session (`agent_host.session.transcript`)."""
        items = self.items()
        return Transcript(
            self.row,
            items,
            steps_of(items, self.log),
            self.log.waits,
            doubts_of(self.row, items, self.log),
            next(reversed(self.log.sandboxes), None),
            self.pending,
            lambda: pictures_of(self.messages),
            self._diff,
            self.preview,
        )

    def items(self, task_id: str | None = None) -> list[Item]:
        """Return the items of its transcript, or of one of its tasks. Raises UsageError for a task that it does not
        know."""
        try:
            coloured = self.store.coloured(self.row.session_id)
        except StateError:  # colours are optional: the text is complete without them
            coloured = {}
        items = items_of(self.messages, self.log, coloured)
        if task_id is None:
            return items
        if task_id not in self.task_ids:
            raise self._unknown(task_id)
        return [item for item in items if item.get("taskId") == task_id]

    def _diff(self, ref: str) -> str | None:
        """Return the text of an artifact on this disk by its `storageRef`; None if it does not exist or is larger than
        _MAX_DIFF_BYTES."""
        folder, _, name = ref.partition("/")
        if folder != "artifacts" or not name or "/" in name or os.sep in name or name.startswith("."):
            return None
        try:
            with open(os.path.join(self.paths.artifacts, name), "rb") as file:
                data = file.read(_MAX_DIFF_BYTES + 1)
        except OSError:
            return None
        return None if len(data) > _MAX_DIFF_BYTES else data.decode("utf-8", "replace")

    def session_state(self, task_id: str | None = None) -> dict[str, Any]:
        """Return the result of GetSessionState for a session that this process does not have; with a `task_id` all
        fields of that task. Raises UsageError for a task that the session does not know, CheckpointUnreadable."""
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
        """Return {taskId, prompt, status, startedAt, stepCount, maxSteps?, verdict, endedBy?, retryable?, reason,
        message, text, denied?, usage?} of a task; the status is `queued` if it has not started. Raises UsageError for a
        task that the session does not know."""
        state = self.state
        if state is None:
            return self._task_of_result(task_id)
        if state.task is not None and state.task.task_id == task_id:
            return self._last(state.task)
        for earlier in state.earlier_tasks:
            if earlier.task_id == task_id:
                mark = self._mark_of(task_id)
                ending = mark if "verdict" in mark else verdict(end_of(earlier.status), earlier.reason, denied=False)
                fields: dict[str, Any] = {"prompt": earlier.prompt, "status": ON_RECORD[earlier.status]}
                fields |= {"stepCount": earlier.step_count, **_ending_in(ending)}
                return self._add_text(task_id, fields, earlier.reason, mark.get("message"))
        for queued in state.queue:
            if queued.task_id == task_id:
                fields = {"prompt": queued.prompt, "status": QUEUED, "stepCount": 0, "verdict": "running"}
                return self._add_text(task_id, fields, None, None)
        raise self._unknown(task_id)

    def preview(self, task_id: str | None = None, file_paths: Sequence[str] | None = None) -> list[FilePatch]:
        """Return the changes of the session or one of its tasks; see `SessionChanges.preview`. Raises UsageError for a
        task that it does not know, and if the former contents of files were not kept; CheckpointUnreadable."""
        if self.state is None and not self.has_ended:
            raise CheckpointUnreadable(self.row.title)
        if task_id is not None and task_id not in self.task_ids:
            raise self._unknown(task_id)
        if self.state is None:
            raise UsageError(
                f"the content of files before session {self.row.session_id} was not kept "
                "(retention.keep_file_versions), so there is no patch"
            )
        if task_id is not None and task_id not in self._task_ids:
            return []
        clean = self.cleaner(self.state)
        found = self._changes(self.state, clean or bytes).preview(task_id, file_paths)
        return found if clean is not None else [patch._replace(diff=f"# {_NOT_CLEAN}\n") for patch in found]

    def whole_patch(self, without: Collection[str] = ()) -> WholePatch:
        """Return all changes of the session for another copy of its workspace; see `SessionChanges.whole_patch`. Raises
        UsageError if the former contents of files were not kept, or if the redaction rules are not known."""
        clean = None if self.state is None else self.cleaner(self.state)
        if self.state is None or clean is None:
            raise UsageError(
                f"the content of files before session {self.row.session_id} was not kept, so there is no patch"
            )
        return self._changes(self.state, clean).whole_patch(without)

    def _changes(self, state: Checkpoint, clean: Callable[[bytes], bytes]) -> SessionChanges:
        from agent_host.session.patches import SessionChanges  # comparing files is a large import

        places, versions = workspaces(state), functools.cache(self.store.versions)

        def kept(name: str) -> bytes | None:  # finding versions is as slow as reading the session
            return versions(self.row.session_id)(name)

        return SessionChanges(first_versions(state), kept, places[-1], places, clean)

    def whole_task(self, task_id: str) -> dict[str, Any]:
        """Return `task` with {filesChanged[{filePath, status, additions, deletions}], patch, unseen?} or
        `patchMissing`."""
        try:
            files = [file.to_wire() for file in self.preview(task_id)]
        except UsageError as error:  # the former contents of files were not kept
            return {**self.task(task_id), "filesChanged": [], "patchMissing": str(error)}
        patch, unseen = "".join(file.pop("diff") for file in files), self.unseen(task_id)
        changed = {"filesChanged": files, "patch": patch, **({} if unseen is None else {"unseen": unseen})}
        return {**self.task(task_id), **changed}

    def unseen(self, task_id: str | None) -> str | None:
        """Return the reason why a preview may miss changes by commands; None if it is complete."""
        return None if self.state is None else first_versions(self.state).unseen_in(task_id)

    @property
    def _task_ids(self) -> list[str]:
        queued = set() if self.state is None else {task.task_id for task in self.state.queue}
        return [task_id for task_id in self.task_ids if task_id not in queued]

    @property
    def _status(self) -> str:
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
        details = {"startedAt": self._started_at(task_id), "reason": reason, "message": message}
        details["text"] = self._text_of(task_id)
        return {"taskId": task_id, **fields, **details, **({"denied": denied} if denied else {})}

    def _started_at(self, task_id: str) -> str:
        quoted = orjson.dumps(task_id)
        named = (orjson.loads(data) for data in self.messages if quoted in data)
        return next((str(one["timestamp"]) for one in named if one.get("taskId") == task_id), self.row.updated_at)

    def _text_of(self, task_id: str) -> str:
        quoted = orjson.dumps(task_id)
        for data in reversed(self.messages):
            if quoted in data and b'"role":"assistant"' in data:
                message = orjson.loads(data)
                if message.get("taskId") == task_id and message["role"] == "assistant" and message["content"]:
                    return str(message["content"])
        return ""

    def _mark_of(self, task_id: str) -> Mapping[str, Any]:
        marks = (one for one in reversed(self.log.marks) if one.get("taskId") == task_id and one["mark"] in _OF_TASK)
        return next(marks, {})

    def _unknown(self, task_id: str) -> UsageError:
        return UsageError(f"session {self.row.session_id} has no task {task_id[:128]!r}")


def _ending_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in _ENDING if name in fields}
