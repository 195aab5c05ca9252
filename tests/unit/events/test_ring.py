"""The ring of the last events: complete, or it says that it is not."""

from __future__ import annotations

import os
import tracemalloc
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agent_host.events import EventType
from agent_host.events.outbox import EventRing
from agent_host.events.sinks import RunLog
from tests.support.events import Watcher, emitter


def ids(lines: list[bytes]) -> list[int]:
    return [orjson.loads(line)["eventId"] for line in lines]


def test_an_empty_ring_has_nothing_and_misses_nothing() -> None:
    assert EventRing().since(0) == ([], False, 0)


def test_since_gives_what_came_behind_pieces_of_streams_too() -> None:
    ring, watcher = EventRing(), Watcher()
    made = emitter(ring, watcher)
    made.emit(EventType.STEP_STARTED, {"stepId": "a", "stepCount": 1})
    made.emit(EventType.TEXT_CHUNK, {"text": "x\ny"})
    made.flush()
    assert ring.since(0) == ([event.line()[:-1] for event in watcher.events], False, 2)
    assert ids(ring.since(1).events) == [2]
    assert ring.since(2) == ([], False, 2)
    assert ring.since(99) == ([], False, 2)
    assert all(b"\n" not in line for line in ring.since(0).events)


def test_what_was_dropped_is_a_gap_for_those_who_missed_it() -> None:
    ring = EventRing(3)
    made = emitter(ring)
    for _ in range(5):
        made.emit(EventType.POLICY_EXPIRED, {})
    for asked, gap in ((0, True), (1, True), (2, False), (3, False), (5, False)):
        found = ring.since(asked)
        assert (ids(found.events), found.gap_detected) == ([n for n in (3, 4, 5) if n > asked], gap), asked
        assert found.latest_id == 5


def test_a_resumed_process_misses_only_what_the_former_one_told() -> None:
    ring = EventRing(first_id=100_058)
    assert ring.since(100_057) == ([], False, 100_057)
    assert ring.since(57).gap_detected
    emitter(ring, first_id=100_058).emit(EventType.SESSION_RESUMED, {"resumedFromStep": 3})
    assert ids(ring.since(57).events) == [100_058]
    assert ring.since(57).gap_detected
    assert ring.since(0).gap_detected
    assert not ring.since(100_057).gap_detected


def test_bytes_are_bounded_whether_encoded_or_not() -> None:
    class Encoding(Watcher):
        def take(self, event: Any) -> None:
            event.line()

    for others in ([], [Encoding()]):
        ring = EventRing(max_bytes=100_000)
        made = emitter(*others, ring)
        for _ in range(100):
            made.emit(EventType.TEXT_CHUNK, {"text": "x" * 5_000})
        kept = ring.since(0)
        assert kept.gap_detected
        assert 50_000 < sum(map(len, kept.events)) <= 100_000


@given(st.integers(1, 7), st.lists(st.integers(1, 5), max_size=60), st.integers(0, 200))
def test_a_ring_is_the_tail_of_all_there_was(capacity: int, steps: list[int], asked: int) -> None:
    ring, everything, number = EventRing(capacity), [], 0
    for step in steps:  # numbers rise, not always by one
        number += step
        emitter(ring, first_id=number).emit(EventType.POLICY_EXPIRED, {})
        everything.append(number)
    found = ring.since(asked)
    kept = everything[-capacity:]
    assert ids(found.events) == [number for number in kept if number > asked]
    assert found.gap_detected == any(number > asked for number in everything[:-capacity])
    assert found.latest_id == (everything[-1] if everything else 0)


def test_a_long_life_keeps_its_order_and_its_bounds() -> None:
    ring = EventRing(1_000)
    made = emitter(ring)
    for _ in range(5_000):
        made.emit(EventType.POLICY_EXPIRED, {})
    assert ids(ring.since(4_500).events) == list(range(4_501, 5_001))
    assert len(ring.since(0).events) == 1_000


def test_what_is_kept_takes_about_what_it_holds() -> None:
    log, ring = RunLog(os.devnull), EventRing()
    made = emitter(log, ring)
    tracemalloc.start()
    try:
        for _ in range(1_000):
            made.emit(EventType.STEP_STARTED, {"stepId": "step_1", "stepCount": 1})
            made.flush()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * sum(map(len, ring.since(0).events))
