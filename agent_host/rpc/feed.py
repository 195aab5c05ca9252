"""The session's events for clients: a bounded queue for the one that is there, a ring for the one that missed some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.events.outbox import EventRing, Outbox, Since

if TYPE_CHECKING:
    from agent_host.events.emitter import Event


class Feed:
    """A sink between a session and its clients, who come one after the other."""

    def __init__(self) -> None:
        self._ring = EventRing()
        self._outbox: Outbox | None = None

    def begin(self, first_id: int) -> None:
        """The session's first event will have this number."""
        self._ring = EventRing(first_id=first_id)

    def attach(self) -> Outbox:
        """The queue of the client that is there from here on; that of the one before gets nothing more."""
        self.detach()
        self._outbox = Outbox()
        return self._outbox

    def detach(self) -> None:
        """Nobody is there."""
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.close()

    def since(self, event_id: int) -> Since:
        """Answer GetEvents; see `EventRing.since`."""
        return self._ring.since(event_id)

    def take(self, event: Event) -> None:
        """See Sink."""
        self._ring.take(event)
        if self._outbox is not None:
            self._outbox.put(event)

    def flush(self) -> None:
        """See Sink. The client's queue empties itself."""
        self._ring.flush()
