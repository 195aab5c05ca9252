"""Cooperative cancellation (AH 4.5): a request is honoured at safe points; waiting without effects is cut short."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class TaskCancelled(Exception):
    """The task stops here because it was asked to."""


class Cancellation:
    """One request to stop. `resumable`: the task stays open in the checkpoint, as after a signal, so that a resume
    goes on with it; a client's CancelTask ends it for good."""

    def __init__(self) -> None:
        self.requested = False
        self.resumable = False
        self._waiting: set[asyncio.Task[Any]] = set()
        self._cut_short: set[asyncio.Task[Any]] = set()

    def request(self, *, resumable: bool) -> None:
        """Ask the task to stop. Model calls and waits for approval end now, running tools finish first."""
        if self.requested:
            return
        self.requested = True
        self.resumable = resumable
        for task in self._waiting:
            self._cut_short.add(task)
            task.cancel()

    def check(self) -> None:
        """A safe point. Raises TaskCancelled."""
        if self.requested:
            raise TaskCancelled

    async def interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is given up as soon as a stop is asked for. Raises TaskCancelled."""
        if self.requested:
            work.close()
            raise TaskCancelled
        task = asyncio.ensure_future(work)
        self._waiting.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            # Ours to translate only when nobody cancelled the whole task as well.
            if task in self._cut_short and not _being_cancelled():
                raise TaskCancelled from None
            raise
        finally:
            self._waiting.discard(task)
            self._cut_short.discard(task)


def _being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
