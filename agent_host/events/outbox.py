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


class _Piece:
    """A piece of a stream, with those that came right behind it."""

    __slots__ = ("last", "size", "texts")

    def __init__(self, event: Event, text: str, size: int) -> None:
        self.last = event
        self.texts = [text]
        self.size = size

    def continued_by(self, event: Event) -> bool:
        """Whether `event` is of the same stream."""
        last = self.last
        if event.step_id != last.step_id or event.event_type is not last.event_type or event.task_id != last.task_id:
            return False
        ours, theirs = last.payload, event.payload
        return ours.get("toolCallId") == theirs.get("toolCallId") and ours.get("stream") == theirs.get("stream")

    def joined(self) -> Event:
        """One event for all of it, with the number of the last piece."""
        return self.last if len(self.texts) == 1 else self.last.with_text("".join(self.texts))


class Outbox:
    """A queue of events for one client. `put` on the loop's thread, and one consumer that calls `get`.

    A client that keeps up gets each event as it is. While events wait, pieces of one stream that follow each other
    become one. When `max_bytes` (about) or `max_events` wait, the oldest pieces of streams are dropped first, and when
    there are none the oldest event; the number of what is lost goes to the consumer with its next batch.
    """

    def __init__(self, max_bytes: int = 8 * 1024 * 1024, max_events: int = 10_000) -> None:
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._pieces: deque[_Piece] = deque()
        self._whole: deque[tuple[Event, int]] = deque()
        self._tail: _Piece | None = None  # what the next event may continue
        self._bytes = 0
        self._lost = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.dropped = 0
        """Events lost before the batch that `get` gave last, and behind the one before it."""

    def put(self, event: Event) -> None:
        """Queue the event; never waits. After `close` it goes nowhere."""
        if self._closed:
            return
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
        """All that waits, in order, as soon as there is something; empty once the box is closed and empty. `dropped`
        then says how many events are missing from before or within the batch."""
        while not self._pieces and not self._whole and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        batch = [piece.joined() for piece in self._pieces]
        batch += [event for event, _ in self._whole]
        batch.sort(key=lambda event: event.event_id)
        self._pieces.clear()
        self._whole.clear()
        self._tail, self._bytes = None, 0
        self.dropped, self._lost = self._lost, 0
        return batch

    def _put_piece(self, event: Event) -> None:
        text: str = event.payload.get("text", "")
        tail = self._tail
        if tail is not None and tail.size < _MAX_JOINED_BYTES and tail.continued_by(event):
            tail.texts.append(text)
            tail.last = event
            size = len(text)
            tail.size += size
        else:
            size = _ENVELOPE_BYTES + len(text)
            self._tail = _Piece(event, text, size)
            self._pieces.append(self._tail)
        self._bytes += size

    def _put_whole(self, event: Event) -> None:
        size = _size(event)
        self._whole.append((event, size))
        self._bytes += size
        self._tail = None

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes or len(self._pieces) + len(self._whole) > self._max_events:
            if self._pieces:
                piece = self._pieces.popleft()
                if piece is self._tail:
                    self._tail = None
                self._bytes -= piece.size
                self._lost += len(piece.texts)
            else:
                self._bytes -= self._whole.popleft()[1]
                self._lost += 1


def _size(event: Event) -> int:
    """Bytes of the event, about where nobody encoded it yet."""
    if event.encoded is not None:
        return len(event.encoded)
    return _ENVELOPE_BYTES + sum(_length(value) for value in event.payload.values())


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 16
