"""A task as it is asked for, and the record that it begins with (AH 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.errors import CANCELLED, CheckpointWriteFailed, UsageError
from agent_host.events import EventType
from agent_host.loop.context import MAX_COST_OPTION, MODEL_OPTION
from agent_host.session.reports import verdict
from agent_host.thread.messages import Message, encodable, encode
from agent_host.thread.tokens import message_tokens
from config.lean_typing import NamedTuple
from policy.rules import AS_THE_BUNDLE_SAYS, TaskOptions
from state.records import TaskQueued, TaskStarted, TaskUnqueued

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.ids import Outside
    from agent_host.loop.context import LoopContext
    from agent_host.redaction import Scrubber
    from config.settings import Settings

_TITLE_CHARS = 80


class NewTask(NamedTuple):
    """`max_steps` is 1 to 10,000; `options` narrow what the bundle allows; `model` is None for the session's, and
    `max_cost` where only the session's cost is limited."""

    task_id: str
    prompt: str
    max_steps: int
    options: TaskOptions = AS_THE_BUNDLE_SAYS
    model: str | None = None
    max_cost: float | None = None


class TaskRecord(NamedTuple):
    """The record that a task begins with, and the user's message in it."""

    record: TaskStarted
    message: Message


def record_of_task(
    task: NewTask,
    outside: Outside,
    *,
    session_id: str,
    scrubber: Scrubber,
    count: Callable[[str], int],
    parent: bytes | None = None,
) -> TaskRecord:
    """The record of `task` without the secrets of its prompt. `count` gives the tokens of a text; `parent` is the
    message before the prompt, None for the first."""
    prompt = scrubber.text(encodable(task.prompt))
    message = Message("user", prompt, message_tokens(count, prompt))
    encoded = encode(message, outside, session_id=session_id, task_id=task.task_id, parent=parent)
    return TaskRecord(TaskStarted(task.task_id, prompt, task.max_steps, encoded, _options_of(task)), message)


def make_record(task: NewTask, scrubber: Scrubber) -> TaskQueued:
    """The record of a task that waits, without the secrets of its prompt."""
    return TaskQueued(task.task_id, scrubber.text(encodable(task.prompt)), task.max_steps, _options_of(task))


def task_in_queue(queued: TaskQueued) -> NewTask:
    """The task that `make_record` put on record."""
    options = dict(queued.options)
    model, max_cost = options.pop(MODEL_OPTION, None), options.pop(MAX_COST_OPTION, None)
    return NewTask(queued.task_id, queued.prompt, queued.max_steps, TaskOptions(**options), model, max_cost)


def _options_of(task: NewTask) -> dict[str, Any]:
    options = {} if task.options == AS_THE_BUNDLE_SAYS else task.options._asdict()
    own = {MODEL_OPTION: task.model, MAX_COST_OPTION: task.max_cost}
    return options | {name: value for name, value in own.items() if value is not None}


def max_steps_of(settings: Settings, wanted: int | None) -> int:
    """The limit of steps for a task that asks for `wanted`, None for that of the settings; a workspace's own limit
    holds in any case."""
    return settings.host.max_steps if wanted is None else settings.bound("host.max_steps", wanted)


def title_of(prompt: str) -> str:
    """The first line of a prompt that has anything in it, cut to 80 characters: the title of what was begun with it."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"


# Tasks that wait until the one before them is over: on record, so that a crash forgets none (interface section 2).

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

    def rows(self) -> list[dict[str, str]]:
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
        ctx.journal.try_record(make_record(task, ctx.scrubber))
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
        how = verdict("failed" if is_failed else "cancelled", why.get("reason", CANCELLED), denied=False)
        if self.has(task_id):
            ctx.journal.checkpoint(None, TaskUnqueued(task_id))
        totals = {"stepCount": 0, "totalTokens": ctx.state.session_tokens_used}
        ctx.emitter.emit(kind, {**totals, **why, **how}, task_id=task_id)
