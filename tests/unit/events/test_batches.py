"""Events for a service that is sometimes away: in order, none twice, bounded, and no one waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.errors import GatewayUnavailable
from agent_host.events import EventType
from agent_host.events.outbox import BatchedSink
from tests.support.events import emitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.events.emitter import Event

WANTED = frozenset({EventType.STEP_STARTED, EventType.STEP_COMPLETED})


class Service:
    """Takes batches; `away` says how many calls fail first. `took` is set with each batch."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.calls = 0
        self.batches: list[list[int]] = []
        self.called = asyncio.Event()
        self.took = asyncio.Event()

    async def __call__(self, lines: Sequence[bytes]) -> None:
        self.calls += 1
        self.called.set()
        await asyncio.sleep(0)
        if self.calls <= self.away:
            raise GatewayUnavailable("away")
        self.batches.append([orjson.loads(line)["eventId"] for line in lines])
        self.took.set()

    @property
    def ids(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    async def was_called(self) -> None:
        async with asyncio.timeout(10):
            await self.called.wait()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.ids) < count:
                self.took.clear()
                await self.took.wait()


def fast(service: Service, **more: Any) -> BatchedSink:
    return BatchedSink(service, WANTED, **{"max_wait_s": 0.005, "retry_base_s": 0.001, "retry_max_s": 0.004, **more})


def emit(sink: BatchedSink, count: int, first_id: int = 1) -> None:
    made = emitter(sink, first_id=first_id)
    for _ in range(count):
        made.emit(EventType.STEP_STARTED, {})


async def test_a_batch_goes_when_its_time_has_come() -> None:
    service = Service()
    sink = fast(service)
    emit(sink, 3)
    assert service.batches == []
    await service.has(3)
    assert service.batches == [[1, 2, 3]]
    await sink.aclose(5)


async def test_a_full_batch_goes_at_once() -> None:
    service = Service()
    sink = fast(service, max_batch=4, max_wait_s=60)
    emit(sink, 8)
    await service.has(8)
    assert [len(batch) for batch in service.batches] == [4, 4]
    await sink.aclose(5)


async def test_only_what_is_wanted_is_told_and_as_the_shape_says() -> None:
    seen: list[bytes] = []

    async def post(lines: Sequence[bytes]) -> None:
        seen.extend(lines)

    def shape(event: Event) -> bytes | None:
        return event.event_type.encode() if event.event_type is EventType.STEP_STARTED else None

    sink = BatchedSink(post, WANTED, shape=shape)
    made = emitter(sink)
    for event_type in (EventType.STEP_COMPLETED, EventType.TEXT_CHUNK, EventType.STEP_STARTED):
        made.emit(event_type, {})
    made.flush()
    await made.aclose(5)
    assert seen == [b"step_started"]


async def test_what_failed_is_tried_again_in_order_and_sent_once() -> None:
    service = Service(away=5)
    sink = fast(service, max_batch=2)
    emit(sink, 5)
    await service.has(5)
    assert service.ids == [1, 2, 3, 4, 5]
    assert sink.dropped == 0
    await sink.aclose(5)


@pytest.mark.parametrize("bound", [{"max_pending": 10}, {"max_pending_bytes": 2_000}])
async def test_memory_is_bounded_while_the_service_is_away(bound: dict[str, int]) -> None:
    service = Service(away=20)
    sink = fast(service, max_batch=2, **bound)
    emit(sink, 1)
    await service.was_called()
    emit(sink, 1_000, first_id=2)
    await sink.aclose(10)
    assert service.ids[0] == 1
    assert service.ids[-1] == 1_001
    assert service.ids == sorted(service.ids)
    assert 1 + 5 < len(service.ids) <= 1 + 10
    assert sink.dropped == 1_001 - len(service.ids)


async def test_closing_sends_what_is_pending_without_waiting_for_its_time() -> None:
    service = Service(away=1)
    sink = fast(service, max_wait_s=60, retry_base_s=0.001, retry_max_s=60)
    emit(sink, 3)
    await sink.aclose(10)
    assert (service.ids, sink.dropped) == ([1, 2, 3], 0)
    emit(sink, 1, first_id=4)
    await sink.aclose(10)
    assert service.ids == [1, 2, 3]


async def test_closing_cuts_a_long_wait_short() -> None:
    service = Service(away=1)
    sink = fast(service, retry_base_s=3600, retry_max_s=3600)
    emit(sink, 1)
    await service.was_called()
    await sink.aclose(10)
    assert service.ids == [1]


async def test_closing_gives_up_in_time_and_counts_what_is_left() -> None:
    hanging = asyncio.Event()

    async def post(_: Sequence[bytes]) -> None:
        await hanging.wait()

    sink = BatchedSink(post, WANTED, max_batch=2, max_wait_s=0)
    emit(sink, 5)
    await sink.aclose(0.02)
    assert sink.dropped == 5
    assert len(asyncio.all_tasks()) == 1


async def test_closing_without_events_does_nothing() -> None:
    service = Service()
    await fast(service).aclose(5)
    assert service.calls == 0
