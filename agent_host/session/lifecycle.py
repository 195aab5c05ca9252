"""The life of one session from its first record to its end (AH 3): the object that a terminal, CI or a desktop app
drives.

A session is created or resumed by `opening`, runs one task after the other on one thread of messages (`task_runner`),
and ends once: completed, cancelled, or left to be resumed. `states` has the machines with the transitions that are
allowed. This object checks the transition, and its parts do the work.

- `start` gets the identity and the policy bundle, and validates both.
- `tasks` has requested tasks: the record that a task starts with, and the queue, which is recorded too.
- `reports` builds the reports on a session: its state, the result object, the calls that still need approval.
- `patches` computes what a session or a task changed, from the recorded first versions and the disk.
- `stored` reads recorded sessions, resumable and ended, of any process.
- `SessionEnd` is the end: the result file, the history, the archive, the service, in an order that is safe in a crash.

Rules: everything is recorded before a client is told. A session ends only once: all requests to end it wait for the
same end. A session belongs to one process (`state.disk.SessionLock`), and to one user and tenant (`reports.Owner`): no
other reads it. A policy bundle that expires pauses the session; a resume gets a new one.

Traps: requests may arrive while the session is opening, while it ends, or after its end: `SessionHost` answers them by
the state, not by luck. A task's result is known before its history is uploaded. After a kill between the end of a task
and its clean-up the next process does the clean-up and reports the same end again, not a second one.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

import orjson

from agent_host.errors import CANCELLED, TIME_LIMIT, ErrorCode, OutOfOrder, SessionNotReady, UsageError
from agent_host.events import EventType
from agent_host.loop.background import end_commands
from agent_host.loop.conversation import cost_fields, refuse_unpriced
from agent_host.services.session import report_end
from agent_host.session.opening import temporary_of
from agent_host.session.reports import denied_approvals, session_state, verdict
from agent_host.session.task_runner import TaskRunner
from agent_host.session.tasks import NewTask, first_versions, keep_pictures, title_of, workspaces
from agent_host.states import SessionStatus, TaskEnd, session_machine
from agent_host.thread.prompt import writes_blocked_by
from config import json_text
from config.lean_typing import NamedTuple
from config.policies import is_built_in
from policy import SANDBOX_GRANT
from policy.rules import AS_THE_BUNDLE_SAYS
from policy.rules.toolset import risk_of_guarded
from state import WriteFailed, temporary
from state.disk import LOCAL_DISK, replace_atomically
from state.records import ModeChanged, SessionStatusChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AsyncExitStack
    from typing import Unpack

    from agent_host.approval.gate import Decision, Delivery, PendingApprovals
    from agent_host.events.emitter import Losses
    from agent_host.judging import Mode, Registry
    from agent_host.judging.scoping import Scoping
    from agent_host.loop import LoopContext
    from agent_host.services.session import SessionService
    from agent_host.session.patches import FilePatch, SessionChanges
    from agent_host.session.tasks import PromptPicture
    from agent_host.states import Machine
    from config.settings import Settings
    from policy.bundle import PolicyBundle
    from policy.redaction import Redaction
    from policy.rules import TaskOptions
    from state import SessionPaths
    from state.checkpoint import ModeRow

# Timeouts of a shutdown, within the desktop's limit of ten seconds (AH 3.4): for the step, then for tools that are
# ended by force, then for recording those that did not end.
_STEP_PATIENCE_S = 4.0
_FORCE_PATIENCE_S = 2.0
_RECORD_PATIENCE_S = 1.0
_UPLOADS_S = 1.0
_CUT_OFF = "ended by force: what ran was cut off"
_OBSERVERS_S = 1.0


def unknown_approvals(bundle: PolicyBundle, tools: Registry, names: Iterable[str]) -> list[str]:
    """Return those of `names`, given to approve in advance, that are neither a rule nor a tool nor a capability."""
    rules = {rule.approval_rule_id for rule in bundle.approval_rules}
    return sorted(set(names) - (rules | tools.names | tools.capabilities | {SANDBOX_GRANT}))


class SessionMode(NamedTuple):
    """The parts of a mode: the mode for decisions on calls, the sandbox of commands, the model of requests, and the
    redaction of the bundles."""

    mode: Mode
    scoping: Scoping | None
    model: str
    redaction: Redaction


class LiveSession:
    """A session around its loop context. Tasks run one at a time, on the same thread of messages.

    `tasks` runs them, `ending` ends the session, `has_ended` is True once the end has started. `pending_approvals` has
    the approvals that wait for a client, None without a client; `service` is notified of the end, `resources` are
    released with the session, `undelivered` returns, after the end, one line for each observer that missed events, and
    `losses` counts them. `on_broken` is called if a bug of the program ended a task; the caller that waits for the task
    gets the error as well."""

    def __init__(
        self,
        ctx: LoopContext,
        paths: SessionPaths,
        *,
        pending_approvals: PendingApprovals | None,
        service: SessionService,
        resources: AsyncExitStack,
        settings: Settings,
        undelivered: Callable[[], Sequence[str]],
        losses: Losses,
    ) -> None:
        self.ctx = ctx
        self.session_id, self.identity = ctx.session_id, ctx.state.identity
        self.paths = paths
        self._settings = settings
        self.undelivered = undelivered
        self._granted_before = len(ctx.state.grants)
        self.losses = losses
        self._life = session_machine()
        self._life.fire("open")
        self.tasks = TaskRunner(ctx, self._life, self._broken)
        self.has_ended = False
        self.on_broken: Callable[[BaseException], None] | None = None
        self.pending_approvals = pending_approvals
        self.ending = SessionEnd(self, self._life, service, resources)

    # Properties and reports

    @property
    def temporary(self) -> str:
        """The session's own directory for temporary files."""
        return temporary_of(self.paths.state_dir, self.ctx.state.identity)

    @property
    def incomplete_task(self) -> dict[str, Any] | None:
        """Return {taskId, prompt, stepCount, maxSteps} of the task that a resume continues, None if there is none."""
        task = self.ctx.state.task
        if task is None or task.status != "running":
            return None
        counts = {"stepCount": task.step_count, "maxSteps": task.max_steps}
        return {"taskId": task.task_id, "prompt": task.prompt, **counts}

    @property
    def step_count(self) -> int:
        """The number of steps that the last task has completed."""
        return 0 if self.ctx.state.task is None else self.ctx.state.task.step_count

    def compact(self) -> None:
        """Compact the context before the next request, by a summary unless `llm.context_strategy` names clearing."""
        self.ctx.conversation.compaction_wanted = True

    def state(self) -> dict[str, Any]:
        """Return the result of GetSessionState."""
        pending = [] if self.pending_approvals is None else self.pending_approvals.rows()
        state = session_state(self.ctx, self._life.state, pending, granted_before=self._granted_before)
        extra = {"mode": dict(self.ctx.state.mode), "queuedTasks": self.tasks.queue.rows()}
        return state | {name: value for name, value in extra.items() if value}

    def policy_notice(self) -> str | None:
        """Return a line for the user about a bundle that is not a built-in; None for a built-in."""
        bundle = self.ctx.judge.bundle
        if is_built_in(bundle.policy_bundle_version):
            return None
        from policy.rules.bundle_summary import summarize_in_line

        return summarize_in_line(bundle)

    def sandbox_notice(self) -> str | None:
        """Return a line for the user about the sandbox of commands; None if it is as requested."""
        judge = self.ctx.judge
        return None if judge.scoping is None else judge.scoping.notice(judge.bundle, judge.environment)

    def unknown_approvals(self, names: Iterable[str]) -> list[str]:
        """See the function `unknown_approvals`."""
        return unknown_approvals(self.ctx.judge.bundle, self.ctx.judge.tools, names)

    @property
    def changes(self) -> SessionChanges:
        """The changes recorded so far. Its methods may run in any thread and take as long as reading the files."""
        from agent_host.session.patches import SessionChanges  # a large import, not needed for the first reply

        state, workspace = self.ctx.state, self.ctx.judge.environment.workspace
        kept, clean = self.ctx.journal.store.kept, self.ctx.scrubber.data
        return SessionChanges(first_versions(state), kept, workspace, workspaces(state), clean)

    def unseen(self, task_id: str | None = None) -> str | None:
        """Return the reason why a preview of the session or a task may miss changes by commands; None if complete."""
        return first_versions(self.ctx.state).unseen_in(task_id)

    async def preview(self, task_id: str | None = None, file_paths: Sequence[str] | None = None) -> list[FilePatch]:
        """Return the changes of the session or one of its tasks, file by file. Raises UsageError for an unknown
        task."""
        try:
            return await asyncio.to_thread(self.changes.preview, task_id, file_paths)
        except LookupError as error:
            raise UsageError(str(error.args[0])) from error

    def result(self, end: TaskEnd) -> dict[str, Any]:
        """Return the result object of the last task (interface section 1), with the events that observers have missed
        so far."""
        result, losses = self.tasks.result(end), self.losses.so_far()
        return {**result, "undelivered": [loss.to_wire() for loss in losses]} if losses else result

    def cut_off(self) -> TaskEnd:
        """Return the end of the current task if the process is ended by force now: open, unless it had ended."""
        words = self.ctx.cancellation.time_limit
        if words is not None and self.tasks.last_end is None:
            return TaskEnd("paused", TIME_LIMIT, words, resumable=True)
        return self.tasks.last_end or TaskEnd("cancelled", CANCELLED, _CUT_OFF, resumable=True)

    # Its tasks

    def announce(self, environment: str) -> None:
        """Emit that the session has started."""
        judge, workspace = self.ctx.judge, self.ctx.judge.environment.workspace
        payload = {"executionEnvironment": environment, "workspace": workspace}
        payload |= {"model": self.ctx.conversation.model, **judge.sandbox()}
        blocking = writes_blocked_by(judge.bundle, workspace, judge.environment.os_family)
        if blocking is not None:
            payload["message"] = (
                f"the policy denies every write in this workspace, which lies in {blocking}: take another workspace"
            )
        self.ctx.emitter.emit(EventType.SESSION_STARTED, payload)

    def announce_return(self) -> None:
        """Emit that another process has taken over a session without a task to continue."""
        self.ctx.emitter.emit(
            EventType.SESSION_RESUMED, {"resumedFromStep": self.step_count, **self.ctx.judge.sandbox()}
        )

    def warm_up(self) -> None:
        """Prepare for the first task after the current step of the event loop, so that a reply is sent first."""
        asyncio.get_running_loop().call_soon(self.tasks.warm_up)

    def start_task(
        self,
        task_id: str,
        prompt: str,
        *,
        max_steps: int | None = None,
        options: TaskOptions = AS_THE_BUNDLE_SAYS,
        model: str | None = None,
        max_cost: float | None = None,
        queue: bool = False,
    ) -> bool:
        """Start a task; see `TaskRunner.start`. With `queue` it follows the open task and the queued ones; see
        `TaskRunner.enqueue`. Returns True if it was queued. Without `max_steps` the settings' limit applies, and the
        workspace's limit in any case; without `model` the session's. `max_cost` limits the cost of this task alone.
        Raises SessionNotReady while the session is paused."""
        settings = self._settings
        most = settings.host.max_steps if max_steps is None else settings.bound("host.max_steps", max_steps)
        task = NewTask(task_id, prompt, most, options, model, max_cost)
        if queue and (self.tasks.busy or self.incomplete_task is not None or self.tasks.queue.first is not None):
            self.tasks.enqueue(task)
            return True
        if self._life.state is SessionStatus.PAUSED:
            raise SessionNotReady("the session is paused; ResumeSession comes first")
        self.tasks.start(task)
        return False

    async def keep_pictures(self, pictures: Sequence[PromptPicture]) -> str:
        """Write pictures of a prompt to the temporary directory; return lines that name them. Raises UsageError."""
        try:
            return await asyncio.to_thread(keep_pictures, pictures, self.temporary, self.ctx.outside.new_id)
        except OSError as error:
            raise UsageError(f"the pictures cannot be written to {self.temporary}: {error.strerror}") from error

    def continue_task(self, *, max_steps: int | None = None, replay_ids: Collection[str] = ()) -> None:
        """Continue the recorded task; see `TaskRunner.continue_task`."""
        more_steps = self._settings.host.max_steps
        self.tasks.continue_task(max_steps=max_steps, replay_ids=replay_ids, more_steps=more_steps)
        self._leave_pause()  # only now, because a disk that is still full leaves the session paused

    def replays_approved(self, approvals: Collection[str], *, everything: bool) -> frozenset[str]:
        """Return the replay ids of the calls that were denied because no approver was present, and that `approvals` now
        name by rule, tool or capability. There are none for a task that is not over: its requests are answered as they
        come."""
        task, tools = self.ctx.state.task, self.ctx.judge.tools
        if task is None or task.status == "running" or not task.denied:
            return frozenset()

        def approves(tool_name: str, approve: str) -> bool:
            spec = tools.get(tool_name)
            if spec is not None and risk_of_guarded(tool_name, spec.capability) is not None:
                return tool_name in approvals
            names = {approve, tool_name, *(spec.capabilities if spec is not None else ())}
            return everything or not names.isdisjoint(approvals)

        rows = denied_approvals(task, self.ctx.state.thread, self.session_id)
        found = ((row["toolName"], row["replay"]) for row in rows)
        return frozenset(replay["id"] for name, replay in found if "id" in replay and approves(name, replay["approve"]))

    def renew(self, switch_bundle: Callable[[LoopContext], None]) -> None:
        """Switch to another bundle (AH 8.6) by `switch_bundle`. This ends a pause, unless a task is still to be
        continued. Raises SessionNotReady if the session has ended since the bundle was requested, OutOfOrder if it has
        started to run a task since then."""
        ctx = self.ctx
        if self.has_ended:
            raise SessionNotReady(f"session {self.session_id} has ended")
        if self.tasks.busy:
            raise OutOfOrder(f"session {self.session_id} is running a task; there is nothing to resume")
        switch_bundle(ctx)
        ctx.judge.expired = False
        if not self.tasks.is_suspended:
            self._leave_pause()
        ctx.journal.checkpoint(None, SessionStatusChanged(self._life.state, ctx.judge.bundle.policy_bundle_version))

    def set_mode(self, made: SessionMode) -> None:
        """Change the mode: it is recorded first, and applies from the next decision on. Raises SessionNotReady,
        UsageError for a model without known prices if the cost is limited, CheckpointWriteFailed (then nothing
        changed)."""
        ctx, before = self.ctx, self.ctx.state.mode
        if self.has_ended:
            raise SessionNotReady(f"session {self.session_id} has ended")
        if ctx.conversation.max_cost:
            refuse_unpriced(ctx.conversation.models, made.model)
        ctx.journal.record_durably(ModeChanged(cast("ModeRow", dict(made.mode.fields))), ModeChanged(before))
        self.apply_mode(made)
        sandboxed = {} if made.scoping is None else {"sandbox": made.scoping.level}
        ctx.emit(EventType.MODE_CHANGED, None, **{**made.mode.fields, **sandboxed})
        ctx.emitter.flush()  # a transcript shows it by this event

    def apply_mode(self, made: SessionMode) -> None:
        """Apply a recorded mode."""
        ctx = self.ctx
        ctx.judge.mode, ctx.judge.scoping = made.mode, made.scoping
        ctx.scrubber.redaction = made.redaction
        ctx.conversation.default_model = made.model
        ctx.conversation.renew_head(ctx.judge)

    def interrupt(self) -> None:
        """Stop the task at its next safe point and leave it open in the record, as after a signal."""
        self.tasks.stop(resumable=True)

    def end_by_time(self, words: str) -> None:
        """Stop the task because its time is over, in `words`, and leave it open in the record; running tools are ended
        now."""
        self.tasks.stop(resumable=True, time_limit=words)
        self.ctx.cancellation.force(grace_s=0)
        asyncio.get_running_loop().call_later(_FORCE_PATIENCE_S, self.ctx.cancellation.abandon)

    def decide(self, approval_id: str, **answer: Unpack[Decision]) -> Delivery:
        """Answer an approval; see `PendingApprovals.decide`. Raises ValueError for edited arguments that cannot be
        recorded, or that the tool would reject; then the call continues to wait."""
        pending, arguments = self.pending_approvals, answer.get("arguments")
        if pending is None:
            return "not_found"
        tool_name = pending.tool_of(approval_id)
        if answer["approved"] and arguments is not None and tool_name is not None:
            problem = self.ctx.router.argument_problem(tool_name, arguments)
            if problem is not None:
                raise ValueError(problem)
        return pending.decide(approval_id, **answer)

    # Its end

    async def end_uploads(self, end: TaskEnd) -> None:
        """Wait for the last uploads, so that the result can list what was not stored: for `services.upload_end_s` after
        a clean end, else for one second. Uploads that a resume can continue stay recorded."""
        resumable = end.resumable or bool(self.result(end)["deniedApprovals"])
        within_s = self.ctx.artifacts.queue.limits.end_s if end.status == "completed" else _UPLOADS_S
        await self.tasks.end_uploads(within_s, resumable=resumable)

    async def shut_down(self, reason: str) -> None:
        """End the session cleanly, whatever is running (AH 3.4), within the time that a desktop waits for it."""
        self.has_ended = self.tasks.closing = True
        task = self.ctx.state.task
        # A paused session cannot complete: ending it gives something up (AH 3.3).
        trigger = "cancel" if self._life.state is SessionStatus.PAUSED else "complete"
        if task is not None and task.status == "running" and not self._is_broken:
            trigger = "cancel"
            self.tasks.cancel(task.task_id, force=False, grace_s=0)
        if not await self._await_stop() or self._is_broken:
            await self.ending.detach()
        else:
            for queued in tuple(self.ctx.state.queue):
                self.tasks.queue.cancel(queued.task_id, "the session was ended before it started")
            await self.ending.end(trigger, self.tasks.end_on_record(), reason)

    async def expire(self, reason: str) -> None:
        """End the session because the Session Service has ended it; a task that was started meanwhile is stopped
        first."""
        if self.has_ended:  # its end has already started
            return
        self.has_ended = self.tasks.closing = True
        stopped = True
        if self.tasks.busy:
            self.tasks.stop(resumable=False)
            stopped = await self._await_stop()
        if not stopped or self._is_broken:
            await self.ending.detach()
        else:
            await self.ending.expire(reason)

    async def detach(self) -> None:
        """Finish the step and release the session; the next process resumes it."""
        self.has_ended = self.tasks.closing = True
        if self.pending_approvals is not None:
            self.pending_approvals.suspend()
        if self.tasks.busy:
            self.tasks.leaving = True
            self.interrupt()
            await self.tasks.idle()
        await self.ending.detach()

    async def conclude(self, end: TaskEnd | None) -> None:
        """End a session that had one task: for good if the task is over, else resumable. `end` is None if the task has
        none. A session with calls that no approver was present for stays resumable."""
        self.has_ended = self.tasks.closing = True
        if end is None or end.resumable or self.tasks.queue.first is not None:
            await self.ending.detach()
        elif self.result(end)["deniedApprovals"]:
            await self.ending.await_approvals(end)
        else:
            await self.ending.end("complete", end, None)

    async def _await_stop(self) -> bool:
        """Wait for the task that was asked to stop: for its step, then for tools that are ended by force. A tool that
        does not end is abandoned, but its result and the end of the task are recorded. Return False if they could not
        be; then the session stays resumable."""
        if await self.tasks.idle(_STEP_PATIENCE_S):
            return True
        self.ctx.cancellation.force(grace_s=0)
        if await self.tasks.idle(_FORCE_PATIENCE_S):
            return True
        self.ctx.cancellation.abandon()
        if await self.tasks.idle(_RECORD_PATIENCE_S):
            return True
        await self.tasks.give_up()
        return False

    @property
    def _is_broken(self) -> bool:
        return self._life.state is SessionStatus.FAILED

    def _broken(self, error: BaseException) -> None:
        """Leave the session as it is recorded; a resume continues from there."""
        self._life.fire("fail")
        payload = {"reason": ErrorCode.INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}"}
        self.ctx.emitter.emit(EventType.SESSION_FAILED, payload)
        self.ctx.emitter.flush()
        if self.on_broken is not None:
            self.on_broken(error)

    def _leave_pause(self) -> None:
        if self._life.state is SessionStatus.PAUSED:
            self._life.fire("resume")


class SessionEnd:
    """The end of one session. `service` is notified, `resources` are released. `kept_at` is the file of the result if
    it could be written, and `unkept` describes, in one line, what could not be; `stays` is True if the session can then
    be resumed although its task is over."""

    def __init__(
        self, session: LiveSession, life: Machine[SessionStatus], service: SessionService, resources: AsyncExitStack
    ) -> None:
        self._ctx, self._paths, self._work = session.ctx, session.paths, session.tasks
        self._life = life
        self._service = service
        self._resources = resources
        self._started = self._ctx.outside.monotonic()
        self._started_at = self._ctx.outside.stamp()
        self.kept_at: str | None = None
        self.unkept: str | None = None
        self.stays = False

    async def end(self, trigger: str, end: TaskEnd | None, reason: str | None) -> None:
        """End the session by `trigger` of its machine, with the last task's `end`. A full disk raises nothing: data
        that could not be written is reported by an event and in `unkept`."""
        ctx = self._ctx
        await self._work.end_uploads(_OBSERVERS_S, resumable=False)
        if end is not None and not self._keep_result(end):
            # If the result cannot be written the checkpoint is kept instead, and a resume reports the end again.
            self.stays = _exists(self._paths.state_dir)
            await self.detach()
            return
        await end_commands(ctx)
        self._life.fire(trigger)
        totals = {
            "taskCount": self._work.count,
            "totalTokens": ctx.state.usage.total,
            "durationMs": ctx.outside.ms_since(self._started),
        }
        payload = {**totals, "reason": reason} if reason is not None else totals
        kind = EventType.SESSION_CANCELLED if trigger == "cancel" else EventType.SESSION_COMPLETED
        ctx.emitter.emit(kind, payload)
        ctx.emitter.flush()
        why = reason or ("completed" if end is None else end.status)
        await report_end(self._service, ctx.session_id, reason=why, within_s=_OBSERVERS_S)
        await self._delete()

    async def expire(self, reason: str) -> None:
        """End a session that the Session Service has ended and that can never be resumed (AH 9.6)."""
        await end_commands(self._ctx)
        self._life.fire("fail")
        payload = {"reason": ErrorCode.SESSION_EXPIRED, "message": reason}
        self._ctx.emitter.emit(EventType.SESSION_FAILED, payload)
        await self._work.end_uploads(_OBSERVERS_S, resumable=False)
        await self._delete()

    async def await_approvals(self, end: TaskEnd) -> None:
        """Pause a session whose task is over, because a resume can still approve its denied calls, until it is
        pruned."""
        ctx = self._ctx
        await self._work.end_uploads(_OBSERVERS_S, resumable=True)
        self._keep_result(end)
        await end_commands(ctx)
        self._life.fire("pause")
        ctx.journal.checkpoint(None, SessionStatusChanged(SessionStatus.PAUSED, reason=ErrorCode.APPROVAL_REQUIRED))
        totals: dict[str, Any] = {"stepCount": ctx.task.step_count, "totalTokens": ctx.state.usage.total}
        payload = {"reason": ErrorCode.APPROVAL_REQUIRED, "message": "a resume can approve the calls that were denied"}
        totals |= verdict("paused", ErrorCode.APPROVAL_REQUIRED, denied=True)
        ctx.emit(EventType.SESSION_PAUSED, None, **totals, **payload)
        await self.detach()

    async def detach(self) -> None:
        """Leave everything as it is recorded."""
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
        except WriteFailed as error:
            self._warn_of_disk(str(error))
            self.stays = _exists(self._paths.snapshot)
        if ctx.journal.store.unarchived is not None:
            self._warn_of_disk(ctx.journal.store.unarchived)
        if self.unkept is not None:
            ctx.emitter.flush()
        if not self.stays:
            temporary.remove(temporary_of(self._paths.state_dir, ctx.state.identity))

    def _keep_result(self, end: TaskEnd) -> bool:
        """Write result.json; return False, after a report, if the disk fails."""
        state, models = self._ctx.state, self._ctx.conversation.models
        kept = {
            **self._work.result(end),
            "prompt": self._ctx.task.prompt,
            "title": title_of(state.earlier_tasks[0].prompt if state.earlier_tasks else self._ctx.task.prompt),
            "tenantId": state.identity.tenant_id,
            "userId": state.identity.user_id,
            "totalTokens": state.usage.total,
            "sessionUsage": {**state.usage.to_wire(), **cost_fields(models, state.usage, state.usage_by_model)},
            "workspace": self._ctx.judge.environment.workspace,
            "resumable": end.resumable,
            "startedAt": self._started_at,
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


def _exists(path: str) -> bool:
    return os.path.lexists(path)
