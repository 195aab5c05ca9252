"""How many calls of one turn run at once, by category; the others wait in call order (AH 4.2).

A call takes its slot last, when it is approved and its turn on its path has come: who holds one waits for no other
call, so nobody waits in a circle, and a question to a person keeps nobody from running.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from agent_host.loop.cancellation import TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import Category
    from agent_host.loop.cancellation import Cancellation


class Slots:
    """The slots of a turn's calls; `at_once` says how many of each category may run at the same time."""

    def __init__(self, at_once: Mapping[Category, int]) -> None:
        self._lines = {category: _Line(count) for category, count in at_once.items()}

    def slot(self, category: Category | None, number: int) -> Slot:
        """The slot of the turn's call `number`; one that can never run has no category."""
        return Slot(None if category is None else self._lines[category], number)


class _Line:
    """`free` slots, and the calls that wait for one, by their numbers."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    def hand_on(self) -> None:
        """One slot is free again: to the first in call order that still waits."""
        while self.waiting:
            _, turn = heapq.heappop(self.waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


class Slot:
    """One call's. It is given back in the end, whether it was taken or not."""

    def __init__(self, line: _Line | None, number: int) -> None:
        self._line = line
        self._number = number
        self._taken = False

    async def take(self, cancellation: Cancellation) -> bool:
        """Have the slot; True when that took a wait. Raises TaskCancelled when the task is to stop before it is
        there."""
        line = self._line
        if cancellation.requested:
            raise TaskCancelled
        if line is None or self._taken:
            return False
        if line.free:
            line.free -= 1
            self._taken = True
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(line.waiting, (self._number, turn))
        try:
            await cancellation.interruptible(_until(turn))
        except (asyncio.CancelledError, TaskCancelled):
            if not turn.cancel() and not turn.cancelled():  # it had come, and nobody is there to use it
                line.hand_on()
            raise
        self._taken = True
        return True

    def give_back(self) -> None:
        """Let the next one run; harmless when it was not taken."""
        if self._line is not None and self._taken:
            self._taken = False
            self._line.hand_on()


async def _until(turn: asyncio.Future[None]) -> None:
    await turn
