"""One session from its first record to its clean end (AH 3): the object that a terminal, CI or a desktop app drives."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import orjson

from agent_host import lenient_json
from agent_host.contracts import Artifact
from agent_host.errors import CheckpointWriteFailed, ErrorCode, UsageError
from agent_host.events.kinds import EventType
from agent_host.loop.task import run_task
from agent_host.routing.capabilities import TOOLS
from agent_host.services.workspace import UploadFailed
from agent_host.session.denials import denied_approvals
from agent_host.session.moves import news_of_move, workspaces
from agent_host.session.patches import session_patch
from agent_host.stamps import new_id, now_rfc3339
from agent_host.thread.messages import Message, encodable, encode, last_answer
from agent_host.thread.tokens import message_tokens
from state import errors as state_errors
from state.disk import LOCAL_DISK
from state.files import replace_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent_host.loop.context import EndStatus, LoopContext, TaskEnd
    from state.locations import SessionPaths
    from state.store import LoadReport

_STATUS_NAMES: dict[EndStatus, str] = {
    "completed": "TASK_COMPLETED",
    "failed": "TASK_FAILED",
    "cancelled": "TASK_CANCELLED",
    "paused": "SESSION_PAUSED",
}
_END_EVENTS: dict[EndStatus, EventType] = {
    "completed": EventType.TASK_COMPLETED,
    "failed": EventType.TASK_FAILED,
    "cancelled": EventType.TASK_CANCELLED,
    "paused": EventType.SESSION_PAUSED,
}


class Session:
    """A running session around its loop context. One task at a time; each may follow another on the same thread.

    `close` sets `kept_at` to the file of the result where the disk took it, and `unkept` to what it refused of the end,
    in one line; `stays`: the session can then be resumed although its task is over.
    """

    def __init__(self, ctx: LoopContext, paths: SessionPaths) -> None:
        self._ctx = ctx
        self._paths = paths
        self._resumed_from_step: int | None = None
        self._began = time.monotonic()
        self._began_at = now_rfc3339()
        self._result: dict[str, Any] | None = None
        self.kept_at: str | None = None
        self.unkept: str | None = None
        self.stays = False

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._ctx.session_id

    @property
    def records(self) -> str:
        """The folder of what stays after the end: events, artifacts, the result."""
        return self._paths.records

    @property
    def report(self) -> LoadReport:
        """What was found on disk besides the session when it was opened."""
        return self._ctx.store.report

    def unknown_approvals(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are no approval rule of the bundle, no tool and no capability: most likely misspelt."""
        rules = {rule.approval_rule_id for rule in self._ctx.bundle.approval_rules}
        known = rules | TOOLS.keys() | {row.capability for row in TOOLS.values()}
        return sorted(set(names) - known)

    def request_cancel(self, *, resumable: bool) -> None:
        """Stop at the next safe point (AH 4.5)."""
        self._ctx.cancellation.request(resumable=resumable)

    async def run(self, prompt: str, *, max_steps: int) -> TaskEnd:
        """One task from its prompt to its end. Raises UsageError when even its start cannot be recorded: then there is
        nothing to resume."""
        ctx, prompt = self._ctx, encodable(prompt)
        task_id = new_id("task")
        message = Message("user", prompt, message_tokens(ctx.count, prompt))
        encoded = encode(message, session_id=self.session_id, task_id=task_id)
        ctx.emitter.emit(EventType.SESSION_STARTED, {"workspace": ctx.where.workspace, "model": ctx.model})
        try:
            ctx.record("task_started", {"taskId": task_id, "prompt": prompt, "maxSteps": max_steps}, encoded)
        except CheckpointWriteFailed as error:
            raise UsageError(f"the state directory {self._paths.state_dir} cannot be used: {error}") from error
        ctx.thread.add_task(message)
        ctx.emit(EventType.TASK_STARTED, None, maxSteps=max_steps)
        return await self._drive()

    async def resume(self, *, max_steps: int | None = None) -> TaskEnd:
        """Go on with the task that the checkpoint holds; a task that had ended already only gets its end told.

        `max_steps` replaces the task's limit. Raises UsageError when there is no task, CheckpointWriteFailed.
        """
        ctx = self._ctx
        task = ctx.state.task
        if task is None:
            raise UsageError(f"session {self.session_id} has no task to go on with")
        self._resumed_from_step = task.step_count
        if task.status != "running":
            return await self._wind_up(self._told_again())
        fields: dict[str, Any] = {
            "status": "SESSION_RUNNING",
            "policyBundleVersion": ctx.bundle.policy_bundle_version,
        }
        if max_steps is not None:
            fields["maxSteps"] = max_steps
        ctx.record("session_status", fields)
        ctx.emit(EventType.SESSION_RESUMED, None, resumedFromStep=task.step_count)
        return await self._drive(news_of_move(ctx.state, ctx.where.workspace))

    def patch(self) -> str:
        """What the session changed, as a unified diff."""
        ctx = self._ctx
        workspace = ctx.where.workspace
        return session_patch(
            ctx.state.baselines, kept=ctx.store.kept, workspace=workspace, former=workspaces(ctx.state)
        )

    def result(self, end: TaskEnd) -> dict[str, Any]:
        """The result object (interface section 1); the same one whenever it is asked for."""
        if self._result is None:
            self._result = self._make_result(end)
        return self._result

    def _make_result(self, end: TaskEnd) -> dict[str, Any]:
        task = self._ctx.task
        return {
            "sessionId": self.session_id,
            "taskId": task.task_id,
            "status": _STATUS_NAMES[end.status],
            "reason": end.reason,
            "text": end.text,
            "stepCount": task.step_count,
            "usage": task.usage.to_wire(),
            "toolCalls": [
                {"toolName": name, "status": status} | ({"code": code} if code is not None else {})
                for name, status, code in task.finished_calls
            ],
            "deniedApprovals": denied_approvals(task, self._ctx.state.thread),
            "resumedFromStep": self._resumed_from_step,
            "durationMs": int((time.monotonic() - self._began) * 1000),
        }

    async def close(self, end: TaskEnd | None) -> None:
        """Let the session go: over for good when its task is, else resumable (AH 3.4, 9.6). Never raises for a disk
        that is full: what could not be kept is told by an event and in `unkept`."""
        ctx = self._ctx
        kept = end is not None and self._keep_result(end)
        # A disk that did not take the result keeps the checkpoint instead: a resume tells the end again.
        over = end is not None and not end.resumable and kept
        if over:
            ctx.emitter.emit(EventType.SESSION_COMPLETED, {"totalTokens": ctx.state.session_tokens_used})
        self.stays = end is not None and not end.resumable and not kept
        ctx.emitter.flush()
        await ctx.llm.aclose()
        await ctx.router.aclose()
        if not over:
            ctx.store.close()
            return
        try:
            ctx.store.delete()
        except state_errors.WriteFailed as error:
            self._warn_of_disk(str(error))
            self.stays = _is_there(self._paths.snapshot)
            ctx.emitter.flush()

    async def _drive(self, news: str | None = None) -> TaskEnd:
        ctx = self._ctx
        self._result = None
        return await self._wind_up(await run_task(ctx, news=news))

    async def _wind_up(self, end: TaskEnd) -> TaskEnd:
        """What follows the end of a task; a resume does it again when the process died before it was through."""
        ctx = self._ctx
        await self._upload_history()
        payload: dict[str, Any] = {"stepCount": ctx.task.step_count, "totalTokens": ctx.state.session_tokens_used}
        if end.reason is not None:
            payload |= {"reason": end.reason, "message": end.message}
        ctx.emit(_END_EVENTS[end.status], None, **payload)
        return end

    def _told_again(self) -> TaskEnd:
        """The end of a task whose process died between the end and its clean-up."""
        from agent_host.loop.context import TaskEnd

        task = self._ctx.task
        text = last_answer(self._ctx.state.thread) if task.status == "completed" else ""
        status: EndStatus = "completed" if task.status == "completed" else "failed"
        return TaskEnd("cancelled" if task.status == "cancelled" else status, task.reason, task.reason, text)

    async def _upload_history(self) -> None:
        """The whole thread as the session's `session_history` artifact (AH 5.5)."""
        ctx = self._ctx
        data = b"".join((b"[", *_separated(ctx.state.thread), b"]"))
        artifact = Artifact("session_history", "session_history.json", "application/json", data)
        try:
            await ctx.workspace.upload(artifact, task_id=ctx.task.task_id, step_id=None)
        except UploadFailed as error:
            ctx.emit(EventType.ARTIFACT_UPLOAD_FAILED, None, artifactName=artifact.name, message=str(error))

    def _keep_result(self, end: TaskEnd) -> bool:
        """Write result.json; False when the disk did not take it, which is then told."""
        kept = {
            **self.result(end),
            "prompt": self._ctx.task.prompt,
            "workspace": self._ctx.where.workspace,
            "resumable": end.resumable,
            "startedAt": self._began_at,
            "endedAt": now_rfc3339(),
        }
        try:
            os.makedirs(self._paths.records, mode=0o700, exist_ok=True)
            replace_atomically(LOCAL_DISK, self._paths.result, [lenient_json.dumps(kept, option=orjson.OPT_INDENT_2)])
        except OSError as error:
            self._warn_of_disk(f"the result could not be kept: {error.strerror}")
            return False
        self.kept_at = self._paths.result
        return True

    def _warn_of_disk(self, message: str) -> None:
        self.unkept = message
        self._ctx.emit(EventType.CHECKPOINT_FAILED, None, message=message, code=ErrorCode.CHECKPOINT_WRITE_FAILED)


def _is_there(path: str) -> bool:
    return os.path.lexists(path)


def _separated(messages: Iterable[bytes]) -> Iterator[bytes]:
    """`messages` with commas between them."""
    separator = b""
    for message in messages:
        yield separator
        yield message
        separator = b","
