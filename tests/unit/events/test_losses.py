"""What observers did not get, told once in a while and whole at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import orjson

from agent_host.events import EventType
from agent_host.events.emitter import INTERVAL_S, Losses
from agent_host.events.otel import OtelSink
from agent_host.ids import MACHINE
from tests.support.events import Watcher, emitter

if TYPE_CHECKING:
    import pytest


class Observer:
    dropped = 0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_loss_is_told_once_in_an_interval_with_its_whole_number() -> None:
    clock, one, two = Clock(), Observer(), Observer()
    losses = Losses(clock)
    losses.watch("one", one)
    losses.watch("two", two)
    assert losses.news() == losses.so_far() == []
    one.dropped = 2
    assert losses.news() == [("one", 2)]
    assert losses.news() == []
    one.dropped, two.dropped = 5, 1
    assert losses.news() == [("two", 1)], "the other's time has not come"
    clock.now += INTERVAL_S
    assert losses.news() == [("one", 5)]
    assert losses.so_far() == [("one", 5), ("two", 1)]


def test_the_next_whole_event_tells_it() -> None:
    losses, observer, watcher = Losses(MACHINE.monotonic), Observer(), Watcher()
    losses.watch("the audit service", observer)
    events = emitter(watcher, losses=losses)
    events.emit(EventType.POLICY_EXPIRED, {})
    observer.dropped = 3
    events.emit(EventType.TEXT_CHUNK, {"text": "a piece may be joined with others"})
    events.emit(EventType.POLICY_EXPIRED, {})
    events.emit(EventType.POLICY_EXPIRED, {})
    told = [orjson.loads(event.line()).get("undelivered") for event in watcher.events]
    message = "3 records did not reach the audit service"
    assert told == [None, None, [{"observer": "the audit service", "records": 3, "message": message}], None]


async def test_all_is_lost_on_an_opentelemetry_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agent_host.events.otel_export", None)
    sink = OtelSink(frozenset({"traces"}), provider="anthropic")
    events = emitter(sink)
    events.emit(EventType.POLICY_EXPIRED, {})
    events.emit(EventType.TEXT_CHUNK, {"text": "a piece"})
    await sink.aclose(20)
    assert (sink.dropped, sink.unusable is None) == (1, False)
    events.emit(EventType.POLICY_EXPIRED, {})
    assert sink.dropped == 2
