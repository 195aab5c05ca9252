"""Bounded queues for slow observers, clients or services, on which the loop never waits (invariant 5)."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from agent_host.errors import AgentHostError
from agent_host.events import LIVE_ONLY, EventType
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Sequence

    from agent_host.events.emitter import Event

# The last events of a session, for a client that missed some (`GetEvents`, interface section 2).

# How much of the list may be spent entries before it is made again.
_SPENT = 1024


class Since(NamedTuple):
    """Events after a given one: encoded, without newlines. `gap_detected`: some of it is not there any more."""

    events: list[bytes]
    gap_detected: bool
    latest_id: int


class EventRing:
    """A sink that stores the last events, including pieces of streams. `first_id` is the first number of this process:
    events before it came from another process, and are missing here.

    An event that another sink has encoded is stored encoded; any other is encoded on demand, and its size is estimated
    until then.
    """

    def __init__(self, capacity: int = 10_000, max_bytes: int = 64 * 1024 * 1024, *, first_id: int = 1) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        # Three parallel lists; entries before `_start` are spent.
        self._ids: list[int] = []
        self._items: list[Event | bytes | None] = []
        self._sizes: list[int] = []
        self._start = 0
        self._settled = 0  # entries before it are final
        self._bytes = 0
        self._last_dropped = first_id - 1  # the last number that is not available here
        self._latest = first_id - 1

    def take(self, event: Event) -> None:
        """Store the event; drop the oldest one if there is no room."""
        line = event.encoded
        if line is None:
            # In events that are not encoded yet, only strings at the top of a payload get long.
            size = _ENVELOPE_BYTES + sum(len(text) for text in event.payload.values() if isinstance(text, str))
            self._items.append(event)
        else:
            size = len(line)
            self._items.append(line)
        self._ids.append(event.event_id)
        self._sizes.append(size)
        self._bytes += size
        self._latest = event.event_id
        self._make_room()

    def flush(self) -> None:
        """Keep as they are those events that others have encoded since they were taken."""
        for at in range(max(self._settled, self._start), len(self._items)):
            item = self._items[at]
            if item is None or isinstance(item, bytes) or item.encoded is None:
                continue
            self._items[at], size = item.encoded, len(item.encoded)
            self._bytes += size - self._sizes[at]
            self._sizes[at] = size
        self._settled = len(self._items)
        self._make_room()

    def since(self, event_id: int) -> Since:
        """All events after the number `event_id`; 0 requests all."""
        at = bisect_right(self._ids, event_id, lo=self._start)
        events = [item if isinstance(item, bytes) else item.line() for item in self._items[at:] if item is not None]
        return Since([line.rstrip(b"\n") for line in events], event_id < self._last_dropped, self._latest)

    def _make_room(self) -> None:
        while len(self._ids) - self._start > self._capacity or self._bytes > self._max_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        at = self._start
        self._last_dropped = self._ids[at]
        self._bytes -= self._sizes[at]
        self._items[at] = None
        self._start += 1
        if self._start >= _SPENT and self._start * 2 > len(self._ids):
            del self._ids[: self._start], self._items[: self._start], self._sizes[: self._start]
            self._settled = max(0, self._settled - self._start)
            self._start = 0


_ENVELOPE_BYTES = 400
# Pieces are joined up to this size, so that little is dropped at once.
_MAX_JOINED_BYTES = 64 * 1024


class _WaitingEvent:
    """A queued event; for a piece of a stream, with the pieces directly after it. `place` is the position of the first
    of them among all queued events, from 1."""

    __slots__ = ("first_id", "last", "place", "size", "texts")

    def __init__(self, event: Event, place: int, size: int) -> None:
        self.first_id = event.event_id
        self.last = event
        self.place = place
        self.size = size
        self.texts: list[str] | None = None  # made for the second piece: a client that keeps up gets one at a time

    @property
    def count(self) -> int:
        """The number of these events."""
        return 1 if self.texts is None else len(self.texts)

    def continues(self, event: Event) -> bool:
        """True if `event` is of the same stream; the text of a failed attempt is a separate stream."""
        last, ours, theirs = self.last, self.last.payload, event.payload
        return (
            event.step_id == last.step_id
            and event.event_type is last.event_type
            and event.task_id == last.task_id
            and ours.get("attempt") == theirs.get("attempt")
            and ours.get("toolCallId") == theirs.get("toolCallId")
            and ours.get("stream") == theirs.get("stream")
        )

    def join(self, event: Event, text: str) -> None:
        if self.texts is None:
            self.texts = [_text_of(self.last)]
        self.texts.append(text)
        self.last = event
        self.size += len(text)

    def merge(self, dropped: int) -> Event:
        """One event for all of it, with the number of the last piece; `dropped` events are missing before it."""
        if self.texts is not None:
            return self.last.trim(first_id=self.first_id, text="".join(self.texts), dropped=dropped)
        return self.last if not dropped else self.last.trim(dropped=dropped)


class Outbox:
    """A queue of events for one client. `put` on the loop's thread, and one consumer that calls `get`.

    A client that keeps up gets each event as it is. While events are queued, consecutive pieces of one stream become
    one event, which contains the number of the first. Above `max_bytes` (about) or `max_events`, the oldest pieces of
    streams are dropped first, and if there are none, the oldest event. An event that retracts text (`llm_retry`) is not
    a piece of a stream: it is not dropped before that text, nor joined with it. The event after a gap contains the
    number of dropped events.
    """

    def __init__(self, max_bytes: int = 8 * 1024 * 1024, max_events: int = 10_000) -> None:
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._pieces: deque[_WaitingEvent] = deque()
        self._others: deque[_WaitingEvent] = deque()
        self._tail: _WaitingEvent | None = None  # the next event may continue it
        self._bytes = 0
        self._put = 0  # events so far
        self._given = 0  # the place of the last one that was given out
        self._news = asyncio.Event()
        self._closed = False

    def put(self, event: Event) -> None:
        """Queue the event; never waits. After `close` it goes nowhere."""
        if self._closed:
            return
        self._put += 1
        if event.event_type in LIVE_ONLY:
            self._put_piece(event)
        else:
            self._add(self._others, event, _size(event))
            self._tail = None
        while self._bytes > self._max_bytes or len(self._pieces) + len(self._others) > self._max_events:
            dropped = (self._pieces or self._others).popleft()
            self._bytes -= dropped.size
            if dropped is self._tail:
                self._tail = None
        self._news.set()

    def close(self) -> None:
        """No more comes. What waits can still be got; then `get` gives nothing."""
        self._closed = True
        self._news.set()

    async def get(self) -> list[Event]:
        """All that waits, in order, as soon as there is something; empty once the box is closed and empty."""
        while not self._pieces and not self._others and not self._closed:
            self._news.clear()
            await self._news.wait()
        waiting = sorted([*self._pieces, *self._others], key=lambda one: one.place)
        self._pieces.clear()
        self._others.clear()
        self._tail, self._bytes = None, 0
        batch = []
        for one in waiting:
            batch.append(one.merge(one.place - self._given - 1))
            self._given = one.place + one.count - 1
        return batch

    def _put_piece(self, event: Event) -> None:
        text = _text_of(event)
        tail = self._tail
        if tail is not None and tail.size < _MAX_JOINED_BYTES and tail.continues(event):
            tail.join(event, text)
            self._bytes += len(text)
        else:
            self._tail = self._add(self._pieces, event, _ENVELOPE_BYTES + len(text))

    def _add(self, waiting: deque[_WaitingEvent], event: Event, size: int) -> _WaitingEvent:
        added = _WaitingEvent(event, self._put, size)
        waiting.append(added)
        self._bytes += size
        return added


def _text_of(event: Event) -> str:
    text: str = event.payload.get("text", "")
    return text


def _size(event: Event) -> int:
    """Bytes of the event, estimated if it is not encoded yet."""
    if event.encoded is not None:
        return len(event.encoded)
    return _ENVELOPE_BYTES + sum(len(value) if isinstance(value, str) else 16 for value in event.payload.values())


# Events on their way to a service (AH 12): in batches and in order, retried until the service has them.

_RETRY_AT_THE_END_S = 0.1


class BatchedSink:
    """Passes events of the types `wanted` to `post`, from one background task of the running loop.

    `post` takes up to `max_batch` encoded events, each with its newline, and raises AgentHostError if the service did
    not accept them: the same batch is then retried after a delay that doubles from `retry_base_s` to `retry_max_s`.
    `shape` returns the bytes to send for an event, None to skip it; without it the event is sent unchanged. The queue
    is bounded by `max_pending` and `max_pending_bytes`; the oldest event is dropped first, except for a batch that is
    being posted. `dropped` counts events that the service never got.
    """

    def __init__(
        self,
        post: Callable[[Sequence[bytes]], Awaitable[None]],
        wanted: Container[EventType],
        *,
        max_batch: int = 200,
        max_wait_s: float = 1.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 16 * 1024 * 1024,
        retry_base_s: float = 0.5,
        retry_max_s: float = 30.0,
        shape: Callable[[Event], bytes | None] | None = None,
    ) -> None:
        self._post = post
        self._wanted = wanted
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._retry_s = (retry_base_s, retry_max_s)
        self._shape = shape
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._posting: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self.dropped = 0

    def take(self, event: Event) -> None:
        """Queue the event. The background task starts with the first one."""
        if event.event_type not in self._wanted or self._closing.is_set():
            return
        line = event.line() if self._shape is None else self._shape(event)
        if line is None:
            return
        self._pending.append(line)
        self._pending_bytes += len(line)
        while len(self._pending) > self._max_pending or self._pending_bytes > self._max_pending_bytes:
            self._pending_bytes -= len(self._pending.popleft())
            self.dropped += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="events to a service")
        elif len(self._pending) == 1 or len(self._pending) >= self._max_batch:
            self._wake.set()

    def flush(self) -> None:
        """Do nothing: a batch is sent when it is full or due."""

    async def aclose(self, timeout_s: float) -> None:
        """Post pending events within `timeout_s`, else abandon them and count them as dropped."""
        self._closing.set()
        self._wake.set()
        task = self._task
        if task is not None:
            try:
                await asyncio.wait([task], timeout=timeout_s)
            finally:
                if task.cancel():
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                self.dropped += len(self._pending) + len(self._posting)
                self._pending.clear()
                self._posting = []

    async def _run(self) -> None:
        while await self._batch_is_due():
            self._posting = [self._pending.popleft() for _ in range(min(self._max_batch, len(self._pending)))]
            self._pending_bytes -= sum(map(len, self._posting))
            await self._deliver()

    async def _batch_is_due(self) -> bool:
        """Wait for the next batch; False when all is sent and no more comes."""
        while not self._pending:
            if self._closing.is_set():
                return False
            await self._woken()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._max_wait_s):
                while len(self._pending) < self._max_batch and not self._closing.is_set():
                    await self._woken()
        return True

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _deliver(self) -> None:
        """Post the batch until it is taken. Closing cuts a wait short, and lets no other one get long."""
        wait_s, max_s = self._retry_s
        while True:
            with contextlib.suppress(AgentHostError):
                await self._post(self._posting)
                self._posting = []
                return
            if self._closing.is_set():
                await asyncio.sleep(min(wait_s, _RETRY_AT_THE_END_S))
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._closing.wait()
            wait_s = min(wait_s * 2, max_s)
