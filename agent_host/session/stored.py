"""The sessions of a state directory, resumable and ended: a list of them, and the transcript of one."""

from __future__ import annotations

import contextlib
import functools
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.errors import ErrorCode, SessionNotFound, UsageError
from agent_host.session.new_task import title_of
from agent_host.session.opening import Owner, state_errors_translated
from agent_host.session.reports import verdict_in_result, verdict_on_record
from agent_host.session.stored_tasks import SessionRecord
from agent_host.session.transcripts import read_run_log
from config.lean_typing import NamedTuple
from state.disk import LOCAL_DISK
from state.errors import InvalidSessionId, StateError, WriteFailed
from state.file_store import FileCheckpointStore
from state.locations import SessionPaths
from state.store import Summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.llm.deferred import KnownModels
    from agent_host.session.stored_tasks import Cleaner
    from state.checkpoint import Checkpoint

UNREADABLE = "UNREADABLE"
# What a row takes from a result.
_KEPT = {"status": str, "prompt": str, "stepCount": int, "endedAt": str, "workspace": str}


class StoredSession(NamedTuple):
    """A session in a list. `prompt` is that of the last task, `title` the first line of the first one, cut to 80
    characters; of one that cannot be read both say why. `pid` is that of the live process that holds it (0: unknown).
    `updated_at` is in RFC 3339. `owner` is None where that is not known. `usage` are the tokens of all its tasks as
    JSON has them, with `cost` and `costCurrency` where that is known; None where an earlier version did not keep
    them. `ending` has the verdict, and of what has ended by whom and whether a retry can help
    (`agent_host.session.reports`); `reason` is why, where it is not completed."""

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

    @property
    def verdict(self) -> str:
        """The verdict in one word, the same everywhere."""
        return str(self.ending["verdict"])

    @property
    def description(self) -> str:
        """The verdict, why, and who ended it: `failed: UNAUTHORIZED, by infrastructure`."""
        if self.status == UNREADABLE:
            return UNREADABLE
        why = f": {self.reason}" if self.reason not in (None, self.verdict) else ""
        by = f", by {self.ending['endedBy']}" if self.verdict in ("failed", "paused", "denied") else ""
        return f"{self.verdict}{why}{by}"

    def to_wire(self) -> dict[str, Any]:
        """The session as lists show it."""
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


class StoredSessions:
    """The sessions under `state_dir`. A snapshot above the limit is not read. `models` knows what models cost;
    `cleaner` gives what takes secrets out of the files that a session has changed, None where nobody knows what is
    one."""

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
        """Newest first: those of `owner`, where one is given, whose title, prompt or workspace has `search` in it, in
        any letter case. Raises UsageError for a state directory that cannot be used."""
        wanted = search.casefold()
        found = [
            one
            for one in (*self._resumable(), *self._ended_sessions())
            if (owner is None or one.owner == owner)
            and wanted in f"{one.title}\n{one.prompt}\n{one.workspace}\n{one.session_id}".casefold()
        ]
        newest: dict[str, StoredSession] = {}
        for one in found:
            newest.setdefault(one.session_id, one)  # what can be resumed says more than an older result
        return sorted(newest.values(), key=lambda one: (one.updated_at, one.session_id), reverse=True)

    def record(self, session_id: str, owner: Owner | None = None) -> SessionRecord:
        """The record of the session and its tasks, resumable or ended. Raises SessionNotFound for one that is not
        there, or not the owner's, UsageError for an id that is none."""
        with state_errors_translated():
            paths = SessionPaths(self._state_dir, session_id)
            summary = self._store.summary(session_id)
        state = None if summary is None else summary.state
        if summary is None:
            with contextlib.suppress(StateError):  # its result and its run log say what is left
                state = self._store.load(session_id, ended_too=True)
        row = _read_ended(paths) if summary is None else self._from_summary(summary)
        messages = _thread_with_results(state) if state is not None else _history_of(paths, missing_ok=row is not None)
        if row is None:  # it ended without a result
            ended = Summary(session_id, state, "only its conversation is left", None, 0.0)
            row = self._from_summary(ended)._replace(resumable=False)
        if owner is not None and row.owner != owner:
            raise _not_found(session_id)
        result = orjson.loads(LOCAL_DISK.read(paths.result)) if summary is None and os.path.exists(paths.result) else {}
        versions = functools.partial(self._store.versions, session_id)
        log = read_run_log(paths.events)
        return SessionRecord(row, state, summary is None, messages, log, result, versions, self._cleaner)

    def session_of(self, task_id: str, owner: Owner | None = None) -> str | None:
        """The session that has or had a task of this id, the one that ran last where several do; None for none. Raises
        UsageError for a state directory that cannot be used."""
        for row in self.all(owner):
            with contextlib.suppress(SessionNotFound):
                if task_id in self.record(row.session_id, owner).task_ids:
                    return row.session_id
        return None

    def summaries(self) -> list[Summary]:
        """The resumable sessions with their states. Raises UsageError."""
        try:
            return self._store.list()
        except WriteFailed as error:
            raise UsageError(f"the state directory {self._state_dir} cannot be used: {error}") from error

    def _resumable(self) -> Iterator[StoredSession]:
        yield from map(self._from_summary, self.summaries())

    def _from_summary(self, summary: Summary) -> StoredSession:
        updated, state = _rfc3339(summary.updated_at), summary.state
        if state is None:
            why, whose = summary.problem, _owner_of_ended(SessionPaths(self._state_dir, summary.session_id), {})
            return StoredSession(summary.session_id, UNREADABLE, why, why, 0, None, updated, "", whose, pid=summary.pid)
        prompt = "" if state.task is None else state.task.prompt
        first = state.earlier_tasks[0].prompt if state.earlier_tasks else prompt
        return StoredSession(
            summary.session_id,
            state.session_status,
            title_of(first),
            prompt,
            0 if state.task is None else state.task.step_count,
            state.session_tokens_used,
            updated,
            str(state.identity.options.get("workspace", "")),
            _owner(state),
            pid=summary.pid,
            resumable=can_go_on(summary),
            usage=self._usage(state),
            ending=verdict_on_record(state, is_live=summary.pid is not None),
            reason=_reason_of(state),
        )

    def _usage(self, state: Checkpoint) -> dict[str, Any]:
        cost = None if self._models is None else self._models.cost(state.usage, state.usage_by_model)
        return {**state.usage.to_wire(), **({} if cost is None else cost.to_wire())}

    def _ended_sessions(self) -> Iterator[StoredSession]:
        folder = os.path.join(self._state_dir, "sessions")
        for name in _names(folder):
            with contextlib.suppress(InvalidSessionId):
                found = _read_ended(SessionPaths(self._state_dir, name))
                if found is not None:
                    yield found


def _reason_of(state: Checkpoint) -> str | None:
    if state.task is None or state.awaits_approval:
        return None if state.task is None else ErrorCode.APPROVAL_REQUIRED
    return state.task.reason


def can_go_on(summary: Summary) -> bool:
    """True if `agent-host resume` has something to go on with, in one place for the list and for the choice. A session
    without a task is for a client that has one (`ResumeSession`)."""
    return summary.pid is None and summary.state is not None and summary.state.task is not None


def _read_ended(paths: SessionPaths) -> StoredSession | None:
    """The row of a session that ended, by its result; None if that is none of ours."""
    try:
        kept = orjson.loads(LOCAL_DISK.read(paths.result))
        values = [kept[key] for key in _KEPT]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if [type(value) for value in values] != list(_KEPT.values()):
        return None
    status, prompt, steps, ended, workspace = values
    title, tokens = kept.get("title"), kept.get("totalTokens")
    return StoredSession(
        paths.session_id,
        status,
        title if isinstance(title, str) else title_of(prompt),
        prompt,
        steps,
        tokens if type(tokens) is int else None,
        ended,
        workspace,
        _owner_of_ended(paths, kept),
        usage=_usage_of_ended(kept),
        ending=verdict_in_result(kept),
        reason=kept["reason"] if isinstance(kept.get("reason"), str) else None,
    )


def _usage_of_ended(kept: dict[str, Any]) -> dict[str, Any] | None:
    """The usage in a result, None for one of an earlier version and for what is no usage."""
    usage = kept.get("sessionUsage")
    counts = ("inputTokens", "outputTokens", "cachedInputTokens")
    if not isinstance(usage, dict) or any(type(usage.get(name)) is not int for name in counts):
        return None
    return usage if type(usage.get("cost", 0)) in (int, float) else None


def _owner(state: Checkpoint) -> Owner:
    return Owner(state.identity.tenant_id, state.identity.user_id)


def _owner_of_ended(paths: SessionPaths, kept: dict[str, Any]) -> Owner | None:
    """From the result, else from the first event: results of earlier versions do not say it."""
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


def _thread_with_results(state: Checkpoint) -> list[bytes]:
    """The thread, with the results that the open step has so far."""
    calls = [] if state.open_step is None else state.open_step.calls
    return [*state.thread, *(call.result for call in calls if call.result is not None)]


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


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _rfc3339(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
