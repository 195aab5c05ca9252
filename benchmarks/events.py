"""What an event costs the loop: creating it, and each watcher on top, while nobody reads.

python -m benchmarks.events
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from agent_host.events.emitter import Emitter
from agent_host.events.kinds import EventType
from agent_host.events.outbox import Outbox
from agent_host.events.ring import EventRing
from agent_host.scrub import Scrubber

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.events.emitter import Event

EVENTS = 10_000
ROUNDS = 15
_MICRO = 1_000_000


class Client:
    """A slow client behind an outbox."""

    def __init__(self) -> None:
        self._box = Outbox()

    def take(self, event: Event) -> None:
        self._box.put(event)

    def flush(self) -> None:
        pass


class Encoder:
    """Encodes everything, like the run log."""

    def take(self, event: Event) -> None:
        event.line()

    def flush(self) -> None:
        pass


def each_us(make: Callable[[], list[Client | EventRing | Encoder]], event_type: EventType, *secrets: str) -> float:
    """Microseconds an event, the median of some rounds."""
    payload = {"text": "a few words "} if event_type is EventType.TEXT_CHUNK else {"stepId": "step_1", "stepCount": 1}
    times = []
    for _ in range(ROUNDS):
        scrub = Scrubber(secrets).json
        made = Emitter(session_id="s", workspace_id="w", tenant_id="t", user_id="u", scrub=scrub)
        made.attach(make())
        began = time.perf_counter()
        for _ in range(EVENTS):
            made.emit(event_type, payload, task_id="task_1", step_id="step_1")
        times.append((time.perf_counter() - began) / EVENTS * _MICRO)
    return statistics.median(times)


def main() -> None:
    for event_type in (EventType.TEXT_CHUNK, EventType.STEP_COMPLETED):
        bare = each_us(list, event_type)
        print(f"{event_type}: {bare:.2f} µs to create one; on top")
        watchers: dict[str, Callable[[], list[Client | EventRing | Encoder]]] = {
            "a client that reads nothing, goal 3 µs": lambda: [Client()],
            "the ring": lambda: [EventRing()],
            "encoding it": lambda: [Encoder()],
        }
        for name, make in watchers.items():
            print(f"    {name:40} {each_us(make, event_type) - bare:6.2f} µs")
        both = each_us(lambda: [Encoder()], event_type, "a-gateway-token-of-some-length", "a-password")
        print(f"    {'encoding it, with two secrets to look for':40} {both - bare:6.2f} µs")


if __name__ == "__main__":
    main()
