"""Calls of one turn on one path run one after the other, in call order (AH 4.2)."""

from __future__ import annotations

import asyncio

from agent_host.errors import CheckpointWriteFailed


class _Done(asyncio.Event):
    """Set when a place is left. `open`: its call, or one before it, is still to be run, by a resume."""

    open = False


class PathOrder:
    """The places of a turn's calls on the paths that they act on; all are taken before the first call runs."""

    def __init__(self) -> None:
        self._last: dict[str, _Done] = {}

    def place(self, path: str | None) -> Place:
        """The next place on `path`; a call on no path has one of its own."""
        return Place(self, path)

    def enter(self, path: str | None, done: _Done) -> _Done | None:
        """Put `done` behind all that is on `path`; what it stands behind, None when it is first."""
        if path is None:
            return None
        before = self._last.get(path)
        self._last[path] = done
        return before


class Place:
    """One call's place. It is left in the end, whether the call was run or not."""

    def __init__(self, order: PathOrder, path: str | None) -> None:
        self._order = order
        self._path = path
        self._done = _Done()
        self._before = order.enter(path, self._done)

    @property
    def is_first(self) -> bool:
        """True when no call stands before it."""
        return self._before is None

    async def turn(self) -> None:
        """Wait for the calls before it. Raises CheckpointWriteFailed when one of them could not be put on record and
        is left to a resume: then so is this one, for they take effect in call order."""
        if self._before is not None:
            await self._before.wait()
            if self._before.open:
                raise CheckpointWriteFailed("a call before it on the same path was not recorded; nothing was started")

    async def leave(self, *, still_open: bool = False) -> None:
        """Let the next call begin, once those before are through: who waits for this one means them too. `still_open`:
        it is left to a resume."""
        before = self._before
        if before is not None:
            await before.wait()
        self._done.open = still_open or (before is not None and before.open)
        self._done.set()

    async def move(self, path: str | None) -> None:
        """Go over to `path`, to which a person has moved the call, behind all calls of the turn that are there.

        In call order would be too late for those behind it: they may have run while the person was thinking. At the
        end nothing runs beside it, and what it finds is what its record says. Nothing can wait in a circle: the places
        that were taken at first wait for earlier calls only, and one that is moved into lets its first place go.
        """
        if path == self._path:
            return
        before, done = self._before, self._done
        self._path, self._done = path, _Done()
        self._before = self._order.enter(path, self._done)
        try:
            if before is not None:
                await before.wait()
                done.open = before.open
        finally:
            done.set()
