"""The end of a session (AH 3.4, 9.6): what is kept of it, who gets to know, what is let go; for good, or to be
resumed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.errors import ErrorCode
from agent_host.events import EventType
from agent_host.loop.background import end_commands
from agent_host.services.session import say_goodbye
from agent_host.session.new_task import title_of
from agent_host.session.opening import temporary_of
from agent_host.session.reports import cost_fields, verdict
from agent_host.states import SessionStatus
from config import json_text
from state import errors as state_errors
from state import temporary
from state.disk import LOCAL_DISK, replace_atomically
from state.records import SessionStatusChanged

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from agent_host.loop.context import LoopContext
    from agent_host.services.session import SessionService
    from agent_host.session.task_runner import TaskRunner
    from agent_host.states import Machine, TaskEnd
    from state.locations import SessionPaths

_OBSERVERS_S = 1.0


class SessionEnd:
    """The end of one session. `service` gets to know of it, `resources` are let go.

    `kept_at` is the file of the result where the disk took it, and `unkept` what it refused, in one line; `stays`: the
    session can then be resumed although its task is over.
    """

    def __init__(
        self,
        ctx: LoopContext,
        paths: SessionPaths,
        work: TaskRunner,
        life: Machine[SessionStatus],
        service: SessionService,
        resources: AsyncExitStack,
    ) -> None:
        self._ctx = ctx
        self._paths = paths
        self._work = work
        self._life = life
        self._service = service
        self._resources = resources
        self._began = ctx.outside.monotonic()
        self._began_at = ctx.outside.stamp()
        self.kept_at: str | None = None
        self.unkept: str | None = None
        self.stays = False

    async def end(self, trigger: str, end: TaskEnd | None, reason: str | None) -> None:
        """Over by `trigger` of the session's machine, with the last task's `end`. Never raises for a disk that is full:
        what could not be kept is reported by an event and in `unkept`."""
        ctx = self._ctx
        await self._work.end_uploads(_OBSERVERS_S, resumable=False)
        if end is not None and not self._keep_result(end):
            # A disk that did not take the result keeps the checkpoint instead: a resume reports the end again.
            self.stays = _is_there(self._paths.state_dir)
            await self.leave()
            return
        await end_commands(ctx)
        self._life.fire(trigger)
        totals = {
            "taskCount": self._work.count,
            "totalTokens": ctx.state.session_tokens_used,
            "durationMs": ctx.outside.ms_since(self._began),
        }
        payload = {**totals, "reason": reason} if reason is not None else totals
        kind = EventType.SESSION_CANCELLED if trigger == "cancel" else EventType.SESSION_COMPLETED
        ctx.emitter.emit(kind, payload)
        ctx.emitter.flush()
        why = reason or ("completed" if end is None else end.status)
        await say_goodbye(self._service, ctx.session_id, reason=why, within_s=_OBSERVERS_S)
        await self._delete()

    async def expire(self, reason: str) -> None:
        """The Session Service has ended the session: nobody will ever resume it (AH 9.6)."""
        await end_commands(self._ctx)
        self._life.fire("fail")
        payload = {"reason": ErrorCode.SESSION_EXPIRED, "message": reason}
        self._ctx.emitter.emit(EventType.SESSION_FAILED, payload)
        await self._work.end_uploads(_OBSERVERS_S, resumable=False)
        await self._delete()

    async def await_approvals(self, end: TaskEnd) -> None:
        """The task is over, and calls that nobody could approve can still be: by a resume, until it is pruned."""
        ctx = self._ctx
        await self._work.end_uploads(_OBSERVERS_S, resumable=True)
        self._keep_result(end)
        await end_commands(ctx)
        self._life.fire("pause")
        ctx.journal.checkpoint(None, SessionStatusChanged(SessionStatus.PAUSED, reason=ErrorCode.APPROVAL_REQUIRED))
        totals: dict[str, Any] = {"stepCount": ctx.task.step_count, "totalTokens": ctx.state.session_tokens_used}
        payload = {"reason": ErrorCode.APPROVAL_REQUIRED, "message": "a resume can approve the calls that were denied"}
        totals |= verdict("paused", ErrorCode.APPROVAL_REQUIRED, denied=True)
        ctx.emit(EventType.SESSION_PAUSED, None, **totals, **payload)
        await self.leave()

    async def leave(self) -> None:
        """Leave everything as it is on record."""
        await end_commands(self._ctx)
        await self._work.end_uploads(_OBSERVERS_S, resumable=True)
        self._ctx.emitter.flush()
        await self._resources.aclose()
        self._ctx.journal.store.close()

    async def _delete(self) -> None:
        ctx = self._ctx
        ctx.emitter.flush()
        await self._resources.aclose()
        try:
            ctx.journal.store.delete()
        except state_errors.WriteFailed as error:
            self._warn_of_disk(str(error))
            self.stays = _is_there(self._paths.snapshot)
        if ctx.journal.store.unarchived is not None:
            self._warn_of_disk(ctx.journal.store.unarchived)
        if self.unkept is not None:
            ctx.emitter.flush()
        if not self.stays:
            temporary.remove(temporary_of(self._paths.state_dir, ctx.state.identity))

    def _keep_result(self, end: TaskEnd) -> bool:
        """Write result.json; False when the disk did not take it, which is then reported."""
        state = self._ctx.state
        kept = {
            **self._work.result(end),
            "prompt": self._ctx.task.prompt,
            "title": title_of(state.earlier_tasks[0].prompt if state.earlier_tasks else self._ctx.task.prompt),
            "tenantId": state.identity.tenant_id,
            "userId": state.identity.user_id,
            "totalTokens": state.session_tokens_used,
            "sessionUsage": {**state.usage.to_wire(), **cost_fields(self._ctx, state)},
            "workspace": self._ctx.judge.environment.workspace,
            "resumable": end.resumable,
            "startedAt": self._began_at,
            "endedAt": self._ctx.outside.stamp(),
        }
        started = self._ctx.state.identity.options.get("started")
        if started:
            kept["started"] = started
        try:
            replace_atomically(LOCAL_DISK, self._paths.result, [json_text.dumps(kept, option=orjson.OPT_INDENT_2)])
        except OSError as error:
            self._warn_of_disk(f"the result could not be kept: {error.strerror}")
            return False
        self.kept_at = self._paths.result
        return True

    def _warn_of_disk(self, message: str) -> None:
        self.unkept = message
        failed = {"message": message, "code": ErrorCode.CHECKPOINT_WRITE_FAILED}
        task = self._ctx.state.task
        self._ctx.emitter.emit(EventType.CHECKPOINT_FAILED, failed, task_id=None if task is None else task.task_id)


def _is_there(path: str) -> bool:
    return os.path.lexists(path)
