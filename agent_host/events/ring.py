"""The last events of a session, for a client that asks what it missed (`GetEvents`, interface section 2)."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from agent_host.events.emitter import Event

_ENVELOPE_BYTES = 400
# How much of the list may be spent entries before it is made again.
_SPENT = 1024


class Since(NamedTuple):
    """What came behind an event: encoded, without newlines. `gap_detected`: some of it is not there any more."""

    events: list[bytes]
    gap_detected: bool
    latest_id: int


class EventRing:
    """A sink that keeps the last events, pieces of streams too. `first_id` is the first number that this process gives
    out: what came before it was another process's, and is missing here.

    What is encoded for somebody else is kept so; what nobody asked for is encoded when it is asked for, and its size is
    a guess until then.
    """

    def __init__(self, capacity: int = 10_000, max_bytes: int = 64 * 1024 * 1024, *, first_id: int = 1) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        # Three lists side by side; what lies before `_start` is spent.
        self._ids: list[int] = []
        self._items: list[Event | bytes | None] = []
        self._sizes: list[int] = []
        self._start = 0
        self._settled = 0  # what lies before it is kept as it will stay
        self._bytes = 0
        self._gone = first_id - 1  # the last number that is not to be had here
        self._latest = first_id - 1

    def take(self, event: Event) -> None:
        """Keep the event; the oldest one goes where there is no room."""
        line = event.encoded
        if line is None:
            size = _guess(event)
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
        """Everything behind the event of number `event_id`; 0 asks for all there ever was."""
        at = bisect_right(self._ids, event_id, lo=self._start)
        events = [item if isinstance(item, bytes) else item.line() for item in self._items[at:] if item is not None]
        return Since([line.rstrip(b"\n") for line in events], event_id < self._gone, self._latest)

    def _make_room(self) -> None:
        while len(self._ids) - self._start > self._capacity or self._bytes > self._max_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        at = self._start
        self._gone = self._ids[at]
        self._bytes -= self._sizes[at]
        self._items[at] = None
        self._start += 1
        if self._start >= _SPENT and self._start * 2 > len(self._ids):
            del self._ids[: self._start], self._items[: self._start], self._sizes[: self._start]
            self._settled = max(0, self._settled - self._start)
            self._start = 0


def _guess(event: Event) -> int:
    """About what the event takes: only strings at the top of a payload get long before somebody encodes them."""
    return _ENVELOPE_BYTES + sum(len(value) for value in event.payload.values() if isinstance(value, str))
