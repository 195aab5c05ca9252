"""Start, continue, stop and finish the current task; one runs at a time, each on the same thread of messages."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Artifact
from agent_host.errors import (
    INTERRUPTED,
    CheckpointWriteFailed,
    NoActiveTask,
    PolicyExpired,
    TaskAlreadyRunning,
    UsageError,
)
from agent_host.events import EventType
from agent_host.loop import ResumeNote
from agent_host.loop.conversation import refuse_unpriced
from agent_host.services.workspace import Upload, UploadFailed
from agent_host.session.reports import (
    approvals_of_open_calls,
    calls_to_replay,
    end_of,
    not_uploaded,
    result_object,
    verdict,
)
from agent_host.session.tasks import TaskQueue, note_of_move, record_of_task
from agent_host.states import TaskEnd
from agent_host.thread.messages import decode, last_answer
from state.records import SessionStatusChanged, TaskEnded, TaskReopened, TaskSteered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence

    from agent_host.loop import LoopContext, Replay
    from agent_host.session.tasks import NewTask
    from agent_host.states import EndStatus, Machine, SessionStatus
    from state.checkpoint import Checkpoint

_END_EVENTS: dict[EndStatus, EventType] = {
    "completed": EventType.TASK_COMPLETED,
    "failed": EventType.TASK_FAILED,
    "cancelled": EventType.TASK_CANCELLED,
    "paused": EventType.SESSION_PAUSED,
}
_AGAIN = "[The user has you go on with the task. Nothing was done since your last answer.]"
MAX_STEERS = 16
MAX_STEER_BYTES = 64 * 1024


class TaskRunner:
    """The tasks of one session. `life` is the session's own machine: a task that cannot continue pauses the session.
    `on_broken` gets the unexpected error that ended a task; `leaving` is True while the process is ending."""

    def __init__(
        self, ctx: LoopContext, life: Machine[SessionStatus], on_broken: Callable[[BaseException], None]
    ) -> None:
        self._ctx = ctx
        self._life = life
        self._on_broken = on_broken
        self._running: asyncio.Task[TaskEnd] | None = None
        self._started = ctx.outside.monotonic()
        self._duration_ms: int | None = None
        self._resumed_from_step: int | None = None
        self._result: dict[str, Any] | None = None
        self._history = History(ctx)
        self.queue = TaskQueue(ctx)
        self.leaving = False
        self.closing = False

    @property
    def busy(self) -> bool:
        """True if a task is running in this process."""
        return self._running is not None and not self._running.done()

    @property
    def count(self) -> int:
        """The number of tasks that the session has had, in all processes."""
        state = self._ctx.state
        return len(state.earlier_tasks) + (state.task is not None)

    @property
    def is_suspended(self) -> bool:
        """True if the recorded task is open but not running: a resume continues it, a cancellation ends it."""
        task = self._ctx.state.task
        return task is not None and task.status == "running" and not self.busy

    @property
    def last_end(self) -> TaskEnd | None:
        """The end of the last task of this process, None if none has ended."""
        running = self._running
        done = running is not None and running.done() and not running.cancelled() and running.exception() is None
        return running.result() if running is not None and done else None

    def end_on_record(self) -> TaskEnd | None:
        """Return the end of the last task, in this process or before; None for a session without tasks."""
        return self.last_end or (None if self._ctx.state.task is None else self._repeat_end())

    def start(self, task: NewTask, *, queued: bool = False) -> None:
        """Start a task; on return it is recorded and running. `queued`: it is the first in the queue. Raises
        TaskAlreadyRunning, PolicyExpired, UsageError for an id that the session has used, for a model that the bundle
        does not allow, and for one without known prices if the cost is limited; CheckpointWriteFailed. After an error
        the session has no such task, and the id can be used again."""
        ctx = self._ctx
        self._refuse_model(task)
        started = record_of_task(
            task,
            ctx.outside,
            session_id=ctx.session_id,
            scrubber=ctx.scrubber,
            count=ctx.conversation.count,
            parent=ctx.state.last_message,
        )
        self._make_room(task.task_id, queued=queued)
        expires_at = min(bundle.expires_at for bundle in ctx.judge.bundles)
        if expires_at <= ctx.judge.clock():
            raise PolicyExpired(f"the policy expired at {expires_at.isoformat()}; resume with a new one")
        # Before the new record, because the thread is read from the recorded state.
        ctx.conversation.use_model(task.model, ctx.judge)
        ctx.journal.try_record(started.record)
        ctx.narrow_task(task.options)
        ctx.conversation.thread.add_task(started.message)
        self._begin()

    def warm_up(self) -> None:
        """Prepare for the first task: import its modules in a thread, which the process joins at its end."""
        threading.Thread(target=import_loop, name="warm-up-loop").start()
        self._ctx.conversation.warm_up()

    def enqueue(self, task: NewTask) -> None:
        """Queue a task after the open one and those that are queued. Raises the errors of `TaskQueue.add`, UsageError
        for an id that the session has used and for a model that `start` would reject."""
        self._refuse_used(task.task_id)
        self._refuse_model(task)
        self.queue.add(task)

    def start_queued(self) -> None:
        """Start the next queued task if no task is open. Under an expired bundle it stays queued until a resume; if its
        start cannot be written to disk it fails."""
        task = self.queue.first
        if task is None or self.closing or self.busy or self.is_suspended:
            return
        try:
            self.start(task, queued=True)
        except PolicyExpired:
            self._ctx.emit(EventType.POLICY_EXPIRED, None)
        except (CheckpointWriteFailed, UsageError) as error:
            self.queue.fail(task.task_id, error.code, str(error))

    def start_recorded(self) -> None:
        """Start the task in the session's first record; see `opening.create_store`."""
        self._ctx.begin_task(self._ctx.task)
        self._begin()

    def continue_task(
        self, *, max_steps: int | None = None, replay_ids: Collection[str] = (), more_steps: int = 0
    ) -> None:
        """Continue the recorded task if it is open; if it has ended only its end is reported again. `max_steps`
        replaces the task's limit. `replay_ids` name denied calls that are run first; for them a task that has ended
        continues as well, by default for `more_steps`. Raises UsageError if there is no task or no such call,
        CheckpointWriteFailed."""
        ctx, task = self._ctx, self._ctx.state.task
        if task is None:
            raise UsageError(f"session {ctx.session_id} has no task to continue")
        replays = calls_to_replay(task, ctx.state.thread, ctx.session_id, replay_ids) if replay_ids else []
        self._resumed_from_step = task.step_count
        if task.status != "running":
            if not replays:
                self._run(self._report_again())
                return
            ctx.journal.record(TaskReopened(max_steps or task.step_count + more_steps))
        ctx.journal.record(SessionStatusChanged("SESSION_RUNNING", ctx.judge.bundle.policy_bundle_version, max_steps))
        for answer in approvals_of_open_calls(ctx.state, ctx.session_id, replay_ids):
            ctx.journal.record(answer)
        ctx.begin_task(task)
        ctx.phase.fire("resume")
        ctx.emit(EventType.SESSION_RESUMED, None, resumedFromStep=task.step_count, **ctx.judge.sandbox())
        resume_note = note_of_move(ctx.state, ctx.judge.environment.workspace)
        if resume_note is None and not replays and _ends_with_an_answer(ctx.state):
            resume_note = ResumeNote(_AGAIN)
        self._run(self._drive(resume_note, replays))

    def cancel(self, task_id: str, *, force: bool = False, grace_s: float = 2.0) -> None:
        """End the task for good at its next safe point (AH 4.5); with `force` tools get `grace_s` seconds. Raises
        NoActiveTask."""
        ctx, task = self._ctx, self._ctx.state.task
        if self.queue.has(task_id):
            self.queue.cancel(task_id)
            return
        if task is None or task.task_id != task_id or task.status != "running":
            raise NoActiveTask(f"no task {task_id[:128]!r} is running")
        self.stop(resumable=False)
        if force:
            ctx.cancellation.force(grace_s=grace_s)
        if not self.busy:  # its open step needs results, and its end has to be recorded
            ctx.begin_task(task)
            ctx.phase.fire("resume")
            self._run(self._drive())

    def steer(self, task_id: str, text: str) -> None:
        """Add `text` for the model to read before its next turn of the task; on return it is durable. Raises
        NoActiveTask if the task's end is recorded, UsageError beyond a bound, CheckpointWriteFailed."""
        ctx, task = self._ctx, self._ctx.state.task
        if task is None or task.task_id != task_id or task.status != "running":
            raise NoActiveTask(f"no task {task_id[:128]!r} is running")
        if len(ctx.state.steers) >= MAX_STEERS:
            raise UsageError(f"{MAX_STEERS} messages wait already: the model reads them before its next turn")
        if len(text.encode("utf-8", "replace")) > MAX_STEER_BYTES:
            raise UsageError(f"text: must have at most {MAX_STEER_BYTES:,} bytes")
        message = ctx.scrubber.text(text.encode("utf-8", "replace").decode())
        ctx.journal.record_durably(TaskSteered(message), TaskSteered(message, taken_back=True))
        ctx.emit(EventType.TASK_STEERED, None, text=message, position=len(ctx.state.steers))
        ctx.emitter.flush()  # a transcript shows it by this event

    def stop(self, *, resumable: bool, time_limit: str | None = None) -> None:
        """Ask the task to stop at its next safe point. `resumable`: it stays open. `time_limit`: the reason, in
        words."""
        self._ctx.cancellation.request(resumable=resumable, time_limit=time_limit)

    async def await_end(self) -> TaskEnd:
        """Wait for the end of the current task, or return that of the last one. Cancelling this wait ends the task as a
        crash would."""
        if self._running is None:
            raise RuntimeError("no task was begun")
        return await self._running

    async def idle(self, within_s: float | None = None) -> bool:
        """Wait until no task runs, for at most `within_s`, and return True if none does. The task continues
        otherwise."""
        if self._running is not None:
            await asyncio.wait([self._running], timeout=within_s)
        return not self.busy

    async def give_up(self) -> None:
        """End a task as a crash would, because waiting longer is not possible."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    def result(self, end: TaskEnd) -> dict[str, Any]:
        """Return the result object of the last task (interface section 1). It is always the same, except for the list
        of artifacts that were not uploaded, since those may be uploaded later."""
        if self._result is None:
            duration_ms = self._ctx.outside.ms_since(self._started) if self._duration_ms is None else self._duration_ms
            step = self._resumed_from_step
            self._result = result_object(self._ctx, end, resumed_from_step=step, duration_ms=duration_ms)
        missed = not_uploaded(self._ctx, self._history.missed)
        return {**self._result, "notUploaded": missed} if missed else self._result

    async def end_uploads(self, within_s: float, *, resumable: bool) -> None:
        """End the last uploads, including the history; see `UploadQueue.close`."""
        if not self._ctx.artifacts.queue.is_closed:
            if not resumable:  # a task that stays open sent its history when it stopped
                self._history.queue()
            await self._ctx.artifacts.queue.close(within_s, resumable=resumable)

    def _begin(self) -> None:
        self._ctx.phase.fire("start")
        self._ctx.emit(EventType.TASK_STARTED, None, maxSteps=self._ctx.task.max_steps)
        self._resumed_from_step = None
        self._run(self._drive())

    def _refuse_model(self, task: NewTask) -> None:
        conversation, allowed = self._ctx.conversation, self._ctx.judge.llm_policy.allowed_models
        model = task.model or conversation.default_model
        if task.model is not None and model not in allowed:
            raise UsageError(f"model {model!r} is not in llmPolicy.allowedModels: {', '.join(allowed)}")
        if conversation.max_cost or task.max_cost is not None:
            refuse_unpriced(conversation.models, model)

    def _refuse_used(self, task_id: str) -> None:
        if self._ctx.state.has_task(task_id):
            raise UsageError(f"task id {task_id!r} has been used in this session; choose another")

    def _make_room(self, task_id: str, *, queued: bool) -> None:
        if self.busy:
            raise TaskAlreadyRunning(f"task {self._ctx.task.task_id} is running; one task follows the other")
        if not queued:
            self._refuse_used(task_id)
        if self.is_suspended:
            end, open_id = self.last_end, self._ctx.task.task_id
            if end is None or end.status != "failed":
                raise TaskAlreadyRunning(f"task {open_id} is not over: resume the session, or cancel the task")
            # It failed for a reason that a resume could have fixed, but no resume was requested.
            self._ctx.journal.try_record(TaskEnded("failed", end.reason or "the next task was started instead"))

    def _run(self, work: Coroutine[Any, Any, TaskEnd]) -> None:
        self._result, self._duration_ms = None, None
        self._started = self._ctx.outside.monotonic()
        self._running = asyncio.ensure_future(work)
        self._running.add_done_callback(self._done)

    def _done(self, running: asyncio.Task[TaskEnd]) -> None:
        error = None if running.cancelled() else running.exception()
        if error is not None:
            self._on_broken(error)
        elif not running.cancelled() and not running.result().resumable:
            self.start_queued()

    async def _drive(self, resume_note: ResumeNote | None = None, replays: Sequence[Replay] = ()) -> TaskEnd:
        run_task, ctx = import_loop(), self._ctx
        end = await run_task(ctx, resume_note=resume_note, replays=replays)
        is_final = ctx.cancellation.requested and not ctx.cancellation.resumable
        if end.resumable and is_final:  # requested while the step that a stop left open was being finished
            self._settle()
            ctx.phase.fire("resume")
            end = await run_task(ctx)
        return self._wind_up(end)

    async def _report_again(self) -> TaskEnd:
        return self._wind_up(self._repeat_end())

    def _wind_up(self, end: TaskEnd) -> TaskEnd:
        """Clean up after the end of a task; a resume repeats this if the process died before it was finished. It never
        awaits, so that the event, the state and the permission to start another task always agree. The history follows
        (interface section 2)."""
        ctx = self._ctx
        self._duration_ms = ctx.outside.ms_since(self._started)
        self._settle()
        if end.status == "paused" and self._life.may("pause"):  # a cancellation may come in a pause
            self._life.fire("pause")
        ctx.cancellation.over()
        payload: dict[str, Any] = {"stepCount": ctx.task.step_count, "totalTokens": ctx.state.usage.total}
        if end.reason is not None:
            payload |= {"reason": end.reason, "message": end.message}
        kind = _END_EVENTS[end.status]
        if self.leaving and end.status == "cancelled" and end.resumable:  # the process ends, the task does not
            kind = EventType.SESSION_PAUSED
            payload |= {"reason": INTERRUPTED, "message": "the process ends; a resume continues the task"}
            ctx.journal.checkpoint(None, SessionStatusChanged("SESSION_RUNNING", reason=INTERRUPTED), sync=False)
        denied = bool(ctx.task.denied)
        ctx.emit(kind, None, **payload, **verdict(end.status, payload.get("reason"), denied=denied))
        ctx.emitter.flush()
        self._history.queue()
        return end

    def _settle(self) -> None:
        if self._ctx.phase.may("settle"):
            self._ctx.phase.fire("settle")

    def _repeat_end(self) -> TaskEnd:
        """Return the end of a task whose process died between the end and its clean-up."""
        task = self._ctx.task
        text = last_answer(self._ctx.state.thread) if task.status == "completed" else ""
        reason = None if task.status == "running" else task.reason  # it is why it stayed open, not why it ended
        return TaskEnd(end_of(task.status), reason, reason, text)


def import_loop() -> Callable[..., Awaitable[TaskEnd]]:
    """Import the loop's modules late, so that the first reply of a session does not wait for them."""
    from agent_host.loop.task import run_task

    return run_task


def _ends_with_an_answer(state: Checkpoint) -> bool:
    """True if the thread ends with an answer of the model, as in a task that was reopened for denied calls that then
    were not run. No request may end like that (invariant 4)."""
    last = None if state.open_step is not None else decode(state.thread[-1])
    return last is not None and last.role == "assistant" and not last.tool_calls


# The history of a session: its whole thread as one artifact, uploaded after each task (AH 5.5, interface 2).


NAME = "session_history.json"
_KIND: Final = "session_history"
_CONTENT_TYPE = "application/json"
_CALL_ID = b',"toolCallId":'
# `encode` writes the role after two ids of at most 128 characters.
_ROLE, _ROLE_WITHIN = b'"role":"tool"', 400


class History:
    """Uploads of the thread of one session. If the last one was not stored, `missed` is its row in the result's
    `notUploaded`."""

    def __init__(self, ctx: LoopContext) -> None:
        self._ctx = ctx
        self._queued = 0  # messages in the last upload that was stored or is on its way
        self.missed: dict[str, Any] | None = None

    def queue(self) -> None:
        """Queue an upload of the present thread after the waiting artifacts, unless it was uploaded already. Never
        waits."""
        ctx, count = self._ctx, len(self._ctx.state.thread)
        if count == self._queued and self.missed is None:
            return
        self._queued, self.missed = count, None
        task_id = None if ctx.state.task is None else ctx.state.task.task_id

        def data() -> bytes:
            return b"[%b]" % b",".join(add_uris(ctx.state.thread[:count], ctx.state.artifact_uris))

        def stored(uri: str) -> None:
            if not ctx.artifacts.elsewhere:  # it is in the same place as the session's other records
                return
            payload = {"artifactName": NAME, "artifactUri": uri}
            ctx.emitter.emit(EventType.ARTIFACT_UPLOADED, payload, task_id=task_id)

        def missed(message: str, again: bool) -> None:
            payload: dict[str, Any] = {"artifactName": NAME, "message": message}
            if not again:  # otherwise the checkpoint stays, and contains all of it
                payload |= self._keep_locally(data(), task_id)
            if self._queued == count:
                self.missed = {"artifactType": _KIND, **payload}
            ctx.emitter.emit(EventType.ARTIFACT_UPLOAD_FAILED, payload, task_id=task_id)

        size = sum(map(len, ctx.state.thread))
        ctx.artifacts.queue.put(Upload(_KIND, NAME, _CONTENT_TYPE, size, data, stored, missed, task_id))

    def _keep_locally(self, data: bytes, task_id: str | None) -> dict[str, str]:
        """Store on this disk a history that the remote store did not take; return {storageRef}, empty if this fails
        too."""
        if not self._ctx.artifacts.elsewhere:
            return {}
        try:
            artifact = Artifact(_KIND, NAME, _CONTENT_TYPE, data)
            return {"storageRef": self._ctx.artifacts.home.keep_history(artifact, task_id=task_id).ref}
        except UploadFailed:
            return {}


def add_uris(messages: Sequence[bytes], uris: Mapping[str, Sequence[str]]) -> Sequence[bytes]:
    """Return encoded `messages`, in which the results of the calls in `uris` have the URIs of their artifacts as
    `artifactUris`."""
    if not uris:
        return messages
    known = {orjson.dumps(call_id): orjson.dumps(found) for call_id, found in uris.items()}
    return [_add_uris(message, known) for message in messages]


def _add_uris(message: bytes, known: Mapping[bytes, bytes]) -> bytes:
    """Add the URIs without parsing JSON: within a text the quotes of the key would be escaped, and `isError` follows
    the id."""
    if message.find(_ROLE, 0, _ROLE_WITHIN) < 0:
        return message
    at = message.rfind(_CALL_ID)
    end = message.find(b',"isError"', at)
    found = known.get(message[at + len(_CALL_ID) : end]) if 0 <= at < end else None
    return message if found is None else b'%s,"artifactUris":%s}' % (message[:-1], found)
