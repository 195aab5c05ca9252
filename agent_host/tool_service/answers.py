"""Answers to calls by idempotency key: a caller that repeats a key gets the recorded answer, and nothing runs twice.

A key is scoped to a tenant, session and tool, and to calls with the same arguments. Answers are kept for a bounded
time, in this process (`MemoryAnswers`) or, for several workers, in PostgreSQL (`agent_host.tool_service.postgres`).
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
"""Lifetime of an answer once it is recorded: far longer than a host retries."""

State = Literal["new", "running", "answered", "other_arguments", "lost"]


class IdempotencyScope(NamedTuple):
    """The scope of an idempotency key, and the key."""

    tenant: str
    session_id: str
    tool_name: str
    key: str


class Known(NamedTuple):
    """The state of a key. `new`: the caller that claimed it, and no other, runs the call. `lost`: the call ran in a
    worker that died, or its answer was dropped early; its outcome is unknown. `body` is the answer."""

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
    """Answers of one process. `clock` returns monotonic seconds. If answers exceed `max_bytes`, the oldest lose their
    text but keep their key, so a call still does not run twice. `epoch` changes when answers may have been forgotten: a
    host that saw a different epoch must not repeat a call. It is empty until it is known, and no call is accepted until
    then."""

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
        """Claim the key for a call. The first caller gets `new`; so does a `repeatable` call whose key is lost."""
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
        """Forget a claimed key whose call has not started."""
        self._running.pop(place).done.set()

    async def answer(self, place: IdempotencyScope, body: bytes) -> None:
        """Record the answer of a claimed key."""
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
        """Return the state of a key, or None if it is unknown."""
        entry = self._entry(place)
        return None if entry is None else entry.state()

    async def wait(self, place: IdempotencyScope, timeout_s: float) -> Known | None:
        """Wait until the call has ended or the timeout has passed, then do as `find` does."""
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
        """Release resources."""

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


# Admission of calls: limits of how many calls of a tenant run and wait at once. A call beyond both limits is refused
# immediately.
#
# A call occupies one of its tenant's slots while it runs. Slots are counted in this process (`LocalSlots`), or across
# all workers if they share a database (`agent_host.tool_service.postgres`).

_HANDED_ON_S: Final = 1.0
"""How long a worker passes a slot from one of its own calls to the next while other workers may also wait for a
slot."""


class Slot(NamedTuple):
    """The right of one call to run: a slot's `number`, taken at `since`. `holder` is the number of its database
    connection."""

    tenant: str
    number: int
    since: float
    holder: int = 0


class Slots(Protocol):
    """The counter of the slots of all tenants. `shared` is true if other processes take slots from it too."""

    shared: bool

    async def take(self, tenant: str, most: int) -> Slot | None:
        """Take a free slot of the tenant's `most` slots; None if none is free. Raises HttpRefusal 503."""

    async def give(self, slot: Slot) -> None:
        """Return a slot. Raises only on cancellation, after which the process ends."""

    async def aclose(self) -> None:
        """Return all slots."""


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
    """Admission of one tenant's calls in this worker. `clock` is the clock of `Slot.since`."""

    def __init__(
        self, tenant: str, limits: TenantLimits, slots: Slots, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tenant = tenant
        self._limits = limits
        self._slots = slots
        self._clock = clock
        self._inside = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        """Calls that wait for a slot, in order of arrival. Only the first looks for a free slot."""
        self._handed: deque[Slot] = deque()
        self._woken = asyncio.Event()
        self._full = False

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Count a call among those that run or wait here. Raises HttpRefusal 429 if the limits are reached."""
        if self._inside >= self._limits.max_concurrent + self._limits.max_queued:
            raise self._too_many()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def acquire(self) -> Slot:
        """Wait for a free slot: calls get slots in order of arrival, and the newest are refused. Raises HttpRefusal:
        429 if the queue here is full, 503 if slots cannot be counted."""
        if self._full and len(self._turns) >= max(1, self._limits.max_queued):
            raise self._too_many()
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self._wake_first()
        try:
            await turn
            return await self._next()
        finally:
            with contextlib.suppress(ValueError):  # removed already: it was refused
                self._turns.remove(turn)
            if self._turns:
                self._wake_first()
            else:
                self._full = False  # no call looks for a slot any more
                while self._handed:
                    await self._slots.give(self._handed.pop())

    async def release(self, slot: Slot) -> None:
        """Pass a slot to the next call that waits here, or return it."""
        age_s = self._clock() - slot.since
        if self._turns and self._full and (not self._slots.shared or age_s < _HANDED_ON_S):
            self._handed.append(slot)
            self._woken.set()
        else:
            await self._slots.give(slot)

    async def _next(self) -> Slot:
        """Wait for a slot, one call at a time. Polls for slots that other workers return."""
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
        """Refuse the newest calls beyond the queue's limit. Raises HttpRefusal if not even the first call may wait."""
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
