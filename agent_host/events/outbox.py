"""What waits for one client that may be slow: bounded, and nobody else waits for it (invariant 5)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from agent_host.events.kinds import LIVE_ONLY

if TYPE_CHECKING:
    from agent_host.events.emitter import Event

_ENVELOPE_BYTES = 400
# Pieces are joined up to here, so that what is dropped for want of room is never much at once.
_MAX_JOINED_BYTES = 64 * 1024


class _Waiting:
    """An event that waits; for a piece of a stream, with those that came right behind it. `place` is that of the first
    of them among all that were put, from 1."""

    __slots__ = ("first_id", "last", "place", "size", "texts")

    def __init__(self, event: Event, place: int, size: int) -> None:
        self.first_id = event.event_id
        self.last = event
        self.place = place
        self.size = size
        self.texts: list[str] | None = None  # made for the second piece: a client that keeps up gets one at a time

    @property
    def count(self) -> int:
        """How many events these are."""
        return 1 if self.texts is None else len(self.texts)

    def continued_by(self, event: Event) -> bool:
        """True if `event` is of the same stream; what an attempt says that failed is a stream of its own."""
        last = self.last
        if event.step_id != last.step_id or event.event_type is not last.event_type or event.task_id != last.task_id:
            return False
        ours, theirs = last.payload, event.payload
        return (
            ours.get("attempt") == theirs.get("attempt")
            and ours.get("toolCallId") == theirs.get("toolCallId")
            and ours.get("stream") == theirs.get("stream")
        )

    def join(self, event: Event, text: str) -> None:
        """Take one more piece."""
        if self.texts is None:
            self.texts = [_text_of(self.last)]
        self.texts.append(text)
        self.last = event
        self.size += len(text)

    def sent(self, dropped: int) -> Event:
        """One event for all of it, with the number of the last piece; `dropped` events are missing before it."""
        if self.texts is not None:
            return self.last.as_sent(first_id=self.first_id, text="".join(self.texts), dropped=dropped)
        return self.last if not dropped else self.last.as_sent(dropped=dropped)


class Outbox:
    """A queue of events for one client. `put` on the loop's thread, and one consumer that calls `get`.

    A client that keeps up gets each event as it is. While events wait, pieces of one stream that follow each other
    become one, which says with which event it begins. When `max_bytes` (about) or `max_events` wait, the oldest pieces
    of streams are dropped first, and when there are none the oldest event. What takes text back (`llm_retry`) is no
    piece of a stream: it is not dropped before that text, nor joined with it. The event behind what was dropped says
    how much that is.
    """

    def __init__(self, max_bytes: int = 8 * 1024 * 1024, max_events: int = 10_000) -> None:
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._pieces: deque[_Waiting] = deque()
        self._whole: deque[_Waiting] = deque()
        self._tail: _Waiting | None = None  # what the next event may continue
        self._bytes = 0
        self._put = 0  # events so far
        self._given = 0  # the place of the last one that was given out
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, event: Event) -> None:
        """Queue the event; never waits. After `close` it goes nowhere."""
        if self._closed:
            return
        self._put += 1
        if event.event_type in LIVE_ONLY:
            self._put_piece(event)
        else:
            self._put_whole(event)
        if self._bytes > self._max_bytes or len(self._pieces) + len(self._whole) > self._max_events:
            self._make_room()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        """No more comes. What waits can still be got; then `get` gives nothing."""
        self._closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> list[Event]:
        """All that waits, in order, as soon as there is something; empty once the box is closed and empty."""
        while not self._pieces and not self._whole and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        waiting = sorted([*self._pieces, *self._whole], key=lambda one: one.place)
        self._pieces.clear()
        self._whole.clear()
        self._tail, self._bytes = None, 0
        batch = []
        for one in waiting:
            batch.append(one.sent(one.place - self._given - 1))
            self._given = one.place + one.count - 1
        return batch

    def _put_piece(self, event: Event) -> None:
        text = _text_of(event)
        tail = self._tail
        if tail is not None and tail.size < _MAX_JOINED_BYTES and tail.continued_by(event):
            tail.join(event, text)
            self._bytes += len(text)
        else:
            size = _ENVELOPE_BYTES + len(text)
            self._tail = _Waiting(event, self._put, size)
            self._pieces.append(self._tail)
            self._bytes += size

    def _put_whole(self, event: Event) -> None:
        size = _size(event)
        self._whole.append(_Waiting(event, self._put, size))
        self._bytes += size
        self._tail = None

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes or len(self._pieces) + len(self._whole) > self._max_events:
            if self._pieces:
                dropped = self._pieces.popleft()
                if dropped is self._tail:
                    self._tail = None
            else:
                dropped = self._whole.popleft()
            self._bytes -= dropped.size


def _text_of(event: Event) -> str:
    text: str = event.payload.get("text", "")
    return text


def _size(event: Event) -> int:
    """Bytes of the event, about where nobody encoded it yet."""
    if event.encoded is not None:
        return len(event.encoded)
    return _ENVELOPE_BYTES + sum(_length(value) for value in event.payload.values())


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 16
