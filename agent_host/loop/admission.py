"""Admission of calls: after the calls before it on its path, and with a slot of its category (AH 4.2).

Calls of one turn on one path run one after the other, in call order. Of each category so many run at once; the others
wait in call order. A call takes its slot last, when it is approved and its turn on its path has come: one that holds a
slot waits for no other call, so no wait is circular, and a question to a person keeps no other call from running.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from agent_host.errors import CheckpointWriteFailed
from agent_host.loop.cancellation import TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Category
    from agent_host.loop.cancellation import Cancellation


class _Done(asyncio.Event):
    """Set when a turn is over. `open`: its call, or one before it, is still to be run, by a resume."""

    open = False


class PathOrder:
    """The order of calls that act on the same path; every call takes its turn before the first one runs."""

    def __init__(self) -> None:
        self._last: dict[str, _Done] = {}

    def turn(self, paths: Sequence[str]) -> PathTurn:
        """The next turn on all of `paths`; a call on no path has one of its own."""
        return PathTurn(self, paths)

    def enter(self, paths: Sequence[str], done: _Done) -> tuple[_Done, ...]:
        """Put `done` behind all that is on `paths`; what it stands behind, nothing when it is first."""
        before = tuple(self._last[path] for path in paths if path in self._last)
        self._last.update(dict.fromkeys(paths, done))
        return before


class PathTurn:
    """One call's turn on its paths. It is left in the end, whether the call was run or not."""

    def __init__(self, order: PathOrder, paths: Sequence[str]) -> None:
        self._order = order
        self._paths = tuple(paths)
        self._done = _Done()
        self._before = order.enter(self._paths, self._done)

    @property
    def is_first(self) -> bool:
        """True when no call stands before it."""
        return not self._before

    async def wait(self) -> None:
        """Wait for the calls before it. Raises CheckpointWriteFailed when one of them could not be put on record and
        is left to a resume: then so is this one, for they take effect in call order."""
        if await _await_all(self._before):
            raise CheckpointWriteFailed("a call before it on the same path was not recorded; nothing was started")

    async def leave(self, *, still_open: bool = False) -> None:
        """Let the next call begin, once those before are through: who waits for this one means them too. `still_open`:
        it is left to a resume."""
        self._done.open = await _await_all(self._before) or still_open
        self._done.set()

    async def move(self, paths: Sequence[str]) -> None:
        """Go over to `paths`, to which a person has moved the call, behind all calls of the turn that are there.

        In call order would be too late for those behind it: they may have run while the person was thinking. At the
        end nothing runs beside it, and what it finds is what its record says. Nothing can wait in a circle: the places
        that were taken at first wait for earlier calls only, and one that is moved into lets its first turn go.
        """
        if tuple(paths) == self._paths:
            return
        before, done = self._before, self._done
        self._paths, self._done = tuple(paths), _Done()
        self._before = self._order.enter(self._paths, self._done)
        try:
            done.open = await _await_all(before)
        finally:
            done.set()


async def _await_all(turns: Sequence[_Done]) -> bool:
    """Wait for all of `turns` to be over; whether one of them is left to a resume."""
    for turn in turns:
        await turn.wait()
    return any(turn.open for turn in turns)


class TurnSlots:
    """The slots of a turn's calls; `at_once` says how many of each category may run at the same time."""

    def __init__(self, at_once: Mapping[Category, int]) -> None:
        self._lines = {category: _Line(count) for category, count in at_once.items()}

    def slot(self, category: Category | None, number: int) -> CallSlot:
        """The slot of the turn's call `number`; one that can never run has no category."""
        return CallSlot(None if category is None else self._lines[category], number)


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


class CallSlot:
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
