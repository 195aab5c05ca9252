"""Tasks that wait until the one before them is over: on record, so that a crash forgets none (interface section 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import CANCELLED, CheckpointWriteFailed, UsageError
from agent_host.events.kinds import EventType
from agent_host.session.new_task import queued_record, task_in_queue
from agent_host.session.verdicts import ended
from state.records import TaskUnqueued

if TYPE_CHECKING:
    from agent_host.loop.context import LoopContext
    from agent_host.session.new_task import NewTask

MAX_QUEUED = 16


class TaskQueue:
    """The queue of one session."""

    def __init__(self, ctx: LoopContext) -> None:
        self._ctx = ctx

    @property
    def first(self) -> NewTask | None:
        """The task that is next, None where none waits."""
        queue = self._ctx.state.queue
        return task_in_queue(queue[0]) if queue else None

    def listed(self) -> list[dict[str, str]]:
        """{taskId, prompt} of each task that waits, the next one first."""
        return [{"taskId": queued.task_id, "prompt": queued.prompt} for queued in self._ctx.state.queue]

    def has(self, task_id: str) -> bool:
        """True if the task waits."""
        return any(queued.task_id == task_id for queued in self._ctx.state.queue)

    def add(self, task: NewTask) -> None:
        """Put a task behind those that wait; on return it is durable. Raises UsageError where 16 wait already,
        CheckpointWriteFailed, and then it does not wait."""
        ctx = self._ctx
        if len(ctx.state.queue) >= MAX_QUEUED:
            raise UsageError(f"{MAX_QUEUED} tasks wait already: cancel one, or wait until one has begun")
        ctx.journal.try_record(queued_record(task, ctx.scrubber))
        try:
            ctx.journal.write_ahead()
        except CheckpointWriteFailed:
            ctx.journal.checkpoint(None, TaskUnqueued(task.task_id))
            raise
        payload = {"position": len(ctx.state.queue), "maxSteps": task.max_steps}
        ctx.emitter.emit(EventType.TASK_QUEUED, payload, task_id=task.task_id)

    def cancel(self, task_id: str, why: str = "cancelled before it began") -> None:
        """Take a task out that waits."""
        self._leave(task_id, EventType.TASK_CANCELLED, message=why)

    def cancel_all(self, why: str) -> None:
        """Take out every task that waits."""
        for queued in tuple(self._ctx.state.queue):
            self.cancel(queued.task_id, why)

    def fail(self, task_id: str, reason: str, message: str) -> None:
        """Take a task out that could not begin."""
        self._leave(task_id, EventType.TASK_FAILED, reason=reason, message=message)

    def _leave(self, task_id: str, kind: EventType, **why: str) -> None:
        ctx = self._ctx
        is_failed = kind is EventType.TASK_FAILED
        how = ended("failed" if is_failed else "cancelled", why.get("reason", CANCELLED), denied=False)
        if self.has(task_id):
            ctx.journal.checkpoint(None, TaskUnqueued(task_id))
        totals = {"stepCount": 0, "totalTokens": ctx.state.session_tokens_used}
        ctx.emitter.emit(kind, {**totals, **why, **how}, task_id=task_id)
