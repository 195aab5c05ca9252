"""Answers to calls by their idempotency keys: whoever sends a key again gets the answer, and nothing runs twice.

A key holds within tenant, session and tool, for calls of the same arguments. Answers are kept for a bounded time, in
this process (`MemoryAnswers`) or, for several workers, in PostgreSQL (`agent_host.tool_service.postgres`).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from agent_host.ids import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_S: Final = 3600.0
"""Lifetime of an answer after it was given: far longer than a host retries."""
_MAX_BYTES: Final = 128 * 1024 * 1024
_MAX_PLACES: Final = 200_000

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


class Answers(Protocol):
    """Keeps answers."""

    epoch: str
    """Changes when answers may have been forgotten: a host that saw another one must not send a call again. Empty as
    long as it is not known; no call is taken then."""

    async def claim(self, place: IdempotencyScope, fingerprint: str, *, repeatable: bool) -> Known:
        """Claim the key for a call of these arguments; the first to ask has it as `new`. A `repeatable` call that is
        lost is `new` again."""
        ...

    async def release(self, place: IdempotencyScope) -> None:
        """Forget a key that was claimed and whose call has not begun."""
        ...

    async def answer(self, place: IdempotencyScope, body: bytes) -> None:
        """Keep the answer of a key that was claimed."""
        ...

    async def find(self, place: IdempotencyScope) -> Known | None:
        """The state of a key; None for an unknown one."""
        ...

    async def wait(self, place: IdempotencyScope, timeout_s: float) -> Known | None:
        """As `find`, once the call is not running any more, or the time is over."""
        ...

    async def ready(self) -> bool:
        """True if keys can be claimed now."""
        ...

    async def aclose(self) -> None:
        """Release what is held."""
        ...


class _Entry:
    __slots__ = ("body", "done", "fingerprint", "kept_until")

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.body: bytes | None = None
        self.done = asyncio.Event()
        self.kept_until = 0.0


class MemoryAnswers:
    """Answers of one process. `clock` gives seconds that only grow. When answers fill `max_bytes` the oldest lose their
    text and keep their key, so that a call still does not run twice."""

    def __init__(
        self,
        *,
        kept_s: float = KEPT_S,
        max_bytes: int = _MAX_BYTES,
        max_places: int = _MAX_PLACES,
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
        """See Answers."""
        entry = self._entry(place)
        if entry is None:
            self._running[place] = _Entry(fingerprint)
            return Known("new")
        if entry.fingerprint != fingerprint:
            return Known("other_arguments")
        known = _state_of(entry)
        if known.state == "lost" and repeatable:
            del self._answered[place]
            self._running[place] = _Entry(fingerprint)
            return Known("new")
        return known

    async def release(self, place: IdempotencyScope) -> None:
        """See Answers."""
        self._running.pop(place).done.set()

    async def answer(self, place: IdempotencyScope, body: bytes) -> None:
        """See Answers."""
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
        """See Answers."""
        entry = self._entry(place)
        return None if entry is None else _state_of(entry)

    async def wait(self, place: IdempotencyScope, timeout_s: float) -> Known | None:
        """See Answers."""
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
        """See Answers."""
        return True

    async def aclose(self) -> None:
        """See Answers."""

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


def _state_of(entry: _Entry) -> Known:
    if not entry.done.is_set():
        return Known("running")
    return Known("lost") if entry.body is None else Known("answered", entry.body)
