"""Cost of an event to the loop: creating it, and each watcher on top, while nobody reads."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from agent_host.events import EventType
from agent_host.events.emitter import Emitter
from agent_host.events.outbox import EventRing, Outbox
from agent_host.ids import MACHINE
from agent_host.redaction import Scrubber
from benchmarks.report import Row, milliseconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from agent_host.events.emitter import Event

PAYLOADS: dict[EventType, dict[str, object]] = {
    EventType.TEXT_CHUNK: {"text": "a few words "},
    EventType.STEP_COMPLETED: {"stepId": "step_1", "stepCount": 1},
}


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


Watchers = list[Client | EventRing | Encoder]


class Effort(NamedTuple):
    """Number of events in each round, and of rounds."""

    events: int
    rounds: int

    def each_us(self, make: Callable[[], Watchers], event_type: EventType, *secrets: str) -> float:
        """Microseconds an event, the median of the rounds."""
        return statistics.median(self._round_us(make(), event_type, secrets) for _ in range(self.rounds))

    def _round_us(self, watchers: Watchers, event_type: EventType, secrets: tuple[str, ...]) -> float:
        made = Emitter(
            time=MACHINE.time,
            session_id="s",
            workspace_id="w",
            tenant_id="t",
            user_id="u",
            scrub=Scrubber(secrets).json,
        )
        made.attach(watchers)
        payload = PAYLOADS[event_type]

        def work() -> None:
            for _ in range(self.events):
                made.emit(event_type, payload, task_id="task_1", step_id="step_1")

        return milliseconds(work) / self.events * 1000


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """An event's creation, then each watcher's share."""
    effort = Effort(1_000, 3) if chosen.quick else Effort(10_000, 15)
    watchers: dict[str, tuple[Callable[[], Watchers], float | None]] = {
        "a client that reads nothing": (lambda: [Client()], 3),
        "the ring": (lambda: [EventRing()], None),
        "encoding it": (lambda: [Encoder()], None),
    }
    for event_type in PAYLOADS:
        bare = effort.each_us(list, event_type)
        yield Row(f"{event_type}, creating one", bare, "µs")
        for name, (make, goal) in watchers.items():
            yield Row(f"{event_type}, {name}", effort.each_us(make, event_type) - bare, "µs", goal, "on top")
        both = effort.each_us(lambda: [Encoder()], event_type, "a-gateway-token-of-some-length", "a-password")
        yield Row(f"{event_type}, encoding it, with two secrets to look for", both - bare, "µs", None, "on top")
