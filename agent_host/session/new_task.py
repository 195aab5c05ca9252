"""A task as it is asked for, and the record that it begins with (AH 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent_host.thread.messages import Message, encodable, encode
from agent_host.thread.tokens import message_tokens
from policy.rules.options import AS_THE_BUNDLE_SAYS, TaskOptions
from state.records import TaskStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.scrub import Scrubber
    from config.settings import Settings


class NewTask(NamedTuple):
    """`max_steps` is 1 to 10,000; `options` narrow what the bundle allows."""

    task_id: str
    prompt: str
    max_steps: int
    options: TaskOptions = AS_THE_BUNDLE_SAYS


class TaskRecord(NamedTuple):
    """The record that a task begins with, and the user's message in it."""

    record: TaskStarted
    message: Message


def record_of_task(task: NewTask, *, session_id: str, scrubber: Scrubber, count: Callable[[str], int]) -> TaskRecord:
    """The record of `task` without the secrets of its prompt. `count` gives the tokens of a text."""
    prompt = scrubber.text(encodable(task.prompt))
    message = Message("user", prompt, message_tokens(count, prompt))
    options = {} if task.options == AS_THE_BUNDLE_SAYS else task.options._asdict()
    encoded = encode(message, session_id=session_id, task_id=task.task_id)
    return TaskRecord(TaskStarted(task.task_id, prompt, task.max_steps, encoded, options), message)


def max_steps_of(settings: Settings, wanted: int | None) -> int:
    """The limit of steps for a task that asks for `wanted`, None for that of the settings; a workspace's own limit
    holds in any case."""
    return settings.integer("host.max_steps") if wanted is None else settings.within("host.max_steps", wanted)
