"""Admission of calls: how many of a tenant run at once, and how many wait for that. What is beyond both is refused at
once.

A call holds one of its tenant's slots while it runs. Slots are counted in this process (`LocalSlots`), or over all
workers where they share a database (`agent_host.tool_service.postgres`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from agent_host.errors import ErrorCode
from agent_host.tool_service.tool import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent_host.tool_service.configuration import TenantLimits

_RETRY_AFTER_S: Final = 1
_FIRST_LOOK_S: Final = 0.01
_LATER_LOOK_S: Final = 0.1
_HANDED_ON_S: Final = 1.0
"""For how long a worker hands a slot on to its own calls while others may wait for one, too."""


class Slot(NamedTuple):
    """The right of one call to run: the `number` of a slot of the tenant, taken by the clock at `since`. `holder` says
    what holds it in the database."""

    tenant: str
    number: int
    since: float
    holder: int = 0


class Slots(Protocol):
    """The counter of the slots of all tenants. `shared`: other processes take them as well."""

    shared: bool

    async def take(self, tenant: str, most: int) -> Slot | None:
        """A free one of the `most` slots of a tenant; None where there is none. Raises Refusal 503."""
        ...

    async def give(self, slot: Slot) -> None:
        """Give a slot back. Raises nothing but cancellation, after which the process ends."""
        ...

    async def aclose(self) -> None:
        """Give all of them back."""
        ...


class LocalSlots:
    """Slots of this process alone."""

    shared = False

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    async def take(self, tenant: str, most: int) -> Slot | None:
        """See Slots."""
        if self._taken[tenant] >= most:
            return None
        self._taken[tenant] += 1
        return Slot(tenant, 0, time.monotonic())

    async def give(self, slot: Slot) -> None:
        """See Slots."""
        self._taken[slot.tenant] -= 1

    async def aclose(self) -> None:
        """See Slots."""


class Admission:
    """The calls of one tenant in this worker. `clock` is that of `Slot.since`."""

    def __init__(
        self, tenant: str, limits: TenantLimits, slots: Slots, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tenant = tenant
        self._limits = limits
        self._slots = slots
        self._clock = clock
        self._inside = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        """The calls that want a slot, in the order in which they came. The first of them looks for one."""
        self._handed: deque[Slot] = deque()
        self._woken = asyncio.Event()
        self._full = False

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """A place among the calls that run or wait here. Raises Refusal 429 where there is none."""
        if self._inside >= self._limits.max_concurrent + self._limits.max_queued:
            raise self._too_many()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def acquire(self) -> Slot:
        """A slot, once one is free: the call that came first has it first, and the newest are refused. Raises Refusal:
        429 where as many wait here as may, 503 where slots cannot be counted."""
        if self._full and len(self._turns) >= max(1, self._limits.max_queued):
            raise self._too_many()
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self._wake_first()
        try:
            await turn
            return await self._next()
        finally:
            with contextlib.suppress(ValueError):  # it was refused
                self._turns.remove(turn)
            if self._turns:
                self._wake_first()
            else:
                self._full = False  # nobody looks any more
                while self._handed:
                    await self._slots.give(self._handed.pop())

    async def release(self, slot: Slot) -> None:
        """Give a slot to the next call that waits here, or back."""
        age_s = self._clock() - slot.since
        if self._turns and self._full and (not self._slots.shared or age_s < _HANDED_ON_S):
            self._handed.append(slot)
            self._woken.set()
        else:
            await self._slots.give(slot)

    async def _next(self) -> Slot:
        """One call at a time is here. It looks again by itself for slots that other workers give back."""
        wait_s = _FIRST_LOOK_S
        while True:
            self._woken.clear()
            if self._handed:
                return self._handed.popleft()
            slot = await self._slots.take(self._tenant, self._limits.max_concurrent)
            self._full = slot is None
            if slot is not None:
                return slot
            self._refuse_newest()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s if self._slots.shared else None):
                    await self._woken.wait()
            wait_s = min(wait_s * 2, _LATER_LOOK_S)

    def _wake_first(self) -> None:
        if not self._turns[0].done():
            self._turns[0].set_result(None)

    def _refuse_newest(self) -> None:
        """Raises Refusal where not even the first may wait."""
        while len(self._turns) > max(1, self._limits.max_queued):
            newest = self._turns.pop()
            if not newest.done():
                newest.set_exception(self._too_many())
        if not self._limits.max_queued:
            raise self._too_many()

    def _too_many(self) -> HttpRefusal:
        limits = self._limits
        return HttpRefusal(
            429,
            ErrorCode.RATE_LIMITED,
            f"the tenant has as many calls under way as it may: {limits.max_concurrent} run at once, and "
            f"{limits.max_queued} wait; try again later",
            retry_after_s=_RETRY_AFTER_S,
        )
