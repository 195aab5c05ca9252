"""Answers to calls by their idempotency keys: whoever sends a key again gets the answer, and nothing runs twice.

A key holds within tenant, session and tool, for calls of the same arguments. Answers are kept for a bounded time, in
this process (`MemoryAnswers`) or, for several workers, in PostgreSQL (`agent_host.tool_service.postgres`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from agent_host.errors import ErrorCode
from agent_host.ids import MACHINE
from agent_host.tool_service.tool import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent_host.tool_service.tool import TenantLimits

KEPT_S: Final = 3600.0
"""Lifetime of an answer after it was given: far longer than a host retries."""

State = Literal["new", "running", "answered", "other_arguments", "lost"]


class IdempotencyScope(NamedTuple):
    """The scope of a key."""

    tenant: str
    session_id: str
    tool_name: str
    key: str


class Known(NamedTuple):
    """The state of a key. `new`: whoever asked has it to run, and nobody else. `lost`: it ran in a worker that died, or
    its answer was let go early; its outcome is unknown. `body` is the answer."""

    state: State
    body: bytes | None = None


class _Entry:
    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.body: bytes | None = None
        self.done = asyncio.Event()
        self.kept_until = 0.0

    def state(self) -> Known:
        if not self.done.is_set():
            return Known("running")
        return Known("lost") if self.body is None else Known("answered", self.body)


class MemoryAnswers:
    """Answers of one process. `clock` gives seconds that only grow. When answers fill `max_bytes` the oldest lose their
    text and keep their key, so that a call still does not run twice. `epoch` changes when answers may have been
    forgotten: a host that saw another one must not send a call again. Empty as long as it is not known; no call is
    taken then."""

    def __init__(
        self,
        *,
        kept_s: float = KEPT_S,
        max_bytes: int = 128 * 1024 * 1024,
        max_places: int = 200_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epoch = MACHINE.new_id("epoch")
        self._kept_s, self._max_bytes, self._max_places = kept_s, max_bytes, max_places
        self._clock = clock
        self._running: dict[IdempotencyScope, _Entry] = {}
        self._answered: OrderedDict[IdempotencyScope, _Entry] = OrderedDict()
        self._with_text: OrderedDict[IdempotencyScope, _Entry] = OrderedDict()
        self._bytes = 0

    async def claim(self, place: IdempotencyScope, fingerprint: str, *, repeatable: bool) -> Known:
        """Claim the key for a call; the first to ask has it as `new`, and so has a `repeatable` one that is lost."""
        entry = self._entry(place)
        if entry is not None and entry.fingerprint != fingerprint:
            return Known("other_arguments")
        known = None if entry is None else entry.state()
        if known is not None and not (known.state == "lost" and repeatable):
            return known
        self._answered.pop(place, None)
        self._running[place] = _Entry(fingerprint)
        return Known("new")

    async def release(self, place: IdempotencyScope) -> None:
        """Forget a key that was claimed and whose call has not begun."""
        self._running.pop(place).done.set()

    async def answer(self, place: IdempotencyScope, body: bytes) -> None:
        """Keep the answer of a key that was claimed."""
        entry = self._running.pop(place)
        entry.body, entry.kept_until = body, self._clock() + self._kept_s
        self._answered[place] = self._with_text[place] = entry
        self._bytes += len(body)
        entry.done.set()
        while self._bytes > self._max_bytes:
            _, oldest = self._with_text.popitem(last=False)
            self._bytes -= len(oldest.body or b"")
            oldest.body = None
        while len(self._answered) > self._max_places:
            self._forget(next(iter(self._answered)))

    async def find(self, place: IdempotencyScope) -> Known | None:
        """The state of a key; None for an unknown one."""
        entry = self._entry(place)
        return None if entry is None else entry.state()

    async def wait(self, place: IdempotencyScope, timeout_s: float) -> Known | None:
        """As `find`, once the call is not running any more, or the time is over."""
        entry = self._entry(place)
        if entry is None:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                await entry.done.wait()
        except TimeoutError:
            return Known("running")
        return await self.find(place)

    async def ready(self) -> bool:
        """True if keys can be claimed now."""
        return True

    async def aclose(self) -> None:
        """Release what is held."""

    def _entry(self, place: IdempotencyScope) -> _Entry | None:
        now = self._clock()
        while self._answered:
            oldest, entry = next(iter(self._answered.items()))
            if entry.kept_until > now:
                break
            self._forget(oldest)
        return self._running.get(place) or self._answered.get(place)

    def _forget(self, place: IdempotencyScope) -> None:
        entry = self._answered.pop(place)
        if self._with_text.pop(place, None) is not None:
            self._bytes -= len(entry.body or b"")


# Admission of calls: how many of a tenant run at once, and how many wait for that. What is beyond both is refused at
# once.
#
# A call holds one of its tenant's slots while it runs. Slots are counted in this process (`LocalSlots`), or over all
# workers where they share a database (`agent_host.tool_service.postgres`).

_HANDED_ON_S: Final = 1.0
"""For how long a worker hands a slot on to its own calls while others may wait for one, too."""


class Slot(NamedTuple):
    """The right of one call to run: a slot's `number`, taken at `since`; `holder` is its connection to a database."""

    tenant: str
    number: int
    since: float
    holder: int = 0


class Slots(Protocol):
    """The counter of the slots of all tenants. `shared`: other processes take them as well."""

    shared: bool

    async def take(self, tenant: str, most: int) -> Slot | None:
        """A free one of the `most` slots of a tenant; None where there is none. Raises Refusal 503."""

    async def give(self, slot: Slot) -> None:
        """Give a slot back. Raises nothing but cancellation, after which the process ends."""

    async def aclose(self) -> None:
        """Give all of them back."""


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
        wait_s = 0.01
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
            wait_s = min(wait_s * 2, 0.1)

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
            retry_after_s=1,
        )
