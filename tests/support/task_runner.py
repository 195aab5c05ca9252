"""The tasks of one session, for tests of what runs them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_host.session.task_runner import TaskRunner
from agent_host.session.tasks import NewTask
from agent_host.states import session_machine
from policy.rules import AS_THE_BUNDLE_SAYS, TaskOptions

if TYPE_CHECKING:
    from agent_host.states import TaskEnd
    from tests.support.loop import Loop


def work_on(loop: Loop) -> TaskRunner:
    """The tasks of a session that is open."""
    life = session_machine()
    life.fire("open")
    broken: list[BaseException] = []
    return TaskRunner(loop.ctx, life, broken.append)


def start(
    work: TaskRunner, task_id: str = "t", prompt: str = "Do it.", options: TaskOptions = AS_THE_BUNDLE_SAYS
) -> None:
    """Begin a task."""
    work.start(NewTask(task_id, prompt, 5, options))


async def ended(work: TaskRunner) -> TaskEnd:
    """The end of the task that runs."""
    async with asyncio.timeout(20):
        return await work.await_end()
