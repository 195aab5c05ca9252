"""A task as it is asked for, and the record that it begins with (AH 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.loop.context import MAX_COST_OPTION, MODEL_OPTION
from agent_host.thread.messages import Message, encodable, encode
from agent_host.thread.tokens import message_tokens
from config.lean_typing import NamedTuple
from policy.rules.options import AS_THE_BUNDLE_SAYS, TaskOptions
from state.records import TaskQueued, TaskStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.scrub import Scrubber
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


def record_of_task(task: NewTask, *, session_id: str, scrubber: Scrubber, count: Callable[[str], int]) -> TaskRecord:
    """The record of `task` without the secrets of its prompt. `count` gives the tokens of a text."""
    prompt = scrubber.text(encodable(task.prompt))
    message = Message("user", prompt, message_tokens(count, prompt))
    encoded = encode(message, session_id=session_id, task_id=task.task_id)
    return TaskRecord(TaskStarted(task.task_id, prompt, task.max_steps, encoded, _options_of(task)), message)


def queued_record(task: NewTask, scrubber: Scrubber) -> TaskQueued:
    """The record of a task that waits, without the secrets of its prompt."""
    return TaskQueued(task.task_id, scrubber.text(encodable(task.prompt)), task.max_steps, _options_of(task))


def task_in_queue(queued: TaskQueued) -> NewTask:
    """The task that `queued_record` put on record."""
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
    return settings.integer("host.max_steps") if wanted is None else settings.within("host.max_steps", wanted)


def title_of(prompt: str) -> str:
    """The first line of a prompt that has anything in it, cut to 80 characters: the title of what was begun with it."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"
