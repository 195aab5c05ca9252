"""Cancellation (AH 4.5): a request is honoured at safe points, and waiting without effects is cut short; by force, what
tools have running is ended too."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

T = TypeVar("T")


class TaskCancelled(Exception):
    """The task stops here because it was asked to."""


class ToolStopped(Exception):
    """A running tool was ended by force; what it had done by then is not known."""


class Cancellation:
    """One request to stop. `resumable`: the task stays open in the checkpoint, as after a signal, so that a resume
    goes on with it; a client's CancelTask ends it for good. `time_limit` says in words that the run's time was over,
    None where that is not the reason."""

    def __init__(self) -> None:
        self.requested = False
        self.resumable = False
        self.time_limit: str | None = None
        self._waiting: list[asyncio.Task[Any]] = []
        self._tools: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}
        self._cut_short: set[asyncio.Task[Any]] = set()
        self._forced = False
        self._timer: asyncio.TimerHandle | None = None

    def request(self, *, resumable: bool, time_limit: str | None = None) -> None:
        """Ask the task to stop. Model calls and waits for approval end now, running tools finish first."""
        self.time_limit = time_limit if resumable else None
        if self.requested:
            self.resumable = self.resumable and resumable  # for good takes precedence over for now
            return
        self.requested = True
        self.resumable = resumable
        self._cut(dict.fromkeys(self._waiting))

    def force(self, *, grace_s: float) -> None:
        """After `request`: running tools have `grace_s` to finish, then they are ended with all that they started."""
        if self._timer is None and not self._forced:
            self._timer = asyncio.get_running_loop().call_later(grace_s, self._end_tools)

    def abandon(self) -> None:
        """After `force`, for tools that take too long to end: they are killed without further grace, and nobody waits
        for that. What they had done is on record as not known."""
        for task, waiting in list(self._tools.items()):
            self._cut_short.add(task)
            task.cancel()
            waiting.cancel()

    def over(self) -> None:
        """The task that was to stop has stopped; the next one starts uncancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self.requested = self.resumable = self._forced = False
        self.time_limit = None
        self._timer = None

    def _end_tools(self) -> None:
        self._forced = True
        self._cut(self._tools)

    def _cut(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        for task in tasks:
            self._cut_short.add(task)
            task.cancel()

    def check(self) -> None:
        """A safe point. Raises TaskCancelled."""
        if self.requested:
            raise TaskCancelled

    async def interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is given up as soon as a stop is asked for. Raises TaskCancelled. The work runs
        in the caller's own task, which is cancelled for it, as `asyncio.timeout` does it."""
        if self.requested:
            work.close()
            raise TaskCancelled
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in one
        self._waiting.append(task)
        try:
            return await work
        except asyncio.CancelledError:
            # Ours to translate only when nobody cancelled the whole task as well.
            if task in self._cut_short:
                self._cut_short.discard(task)
                if task.uncancel() == 0:
                    raise TaskCancelled from None
            raise
        finally:
            self._waiting.remove(task)
            if task in self._cut_short and task not in self._waiting:
                self._cut_short.discard(task)
                await _take_back(task)

    async def run_until_forced(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, a running tool, which only force ends. Raises ToolStopped, with `abandon` before the
        tool has ended; the router ends it then (`ToolRouter.aclose`)."""
        if self._forced:
            work.close()
            raise ToolStopped
        task = asyncio.ensure_future(work)
        waiting = asyncio.shield(task)
        self._tools[task] = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling() > 0:
                await _end(task)
            elif task in self._cut_short:
                raise ToolStopped from None
            raise
        finally:
            del self._tools[task]
            self._cut_short.discard(task)


async def _take_back(task: asyncio.Task[Any]) -> None:
    """Undo the cancellation of the task that runs, of which its work has made nothing, or which is still to come."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    if task.uncancel() > 0:  # somebody else has cancelled it, too
        raise asyncio.CancelledError


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait for its end; each further cancellation of the one who waits goes on to it."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
