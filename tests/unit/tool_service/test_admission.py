"""How many calls of a tenant run and wait: in one worker, and in two that count together."""

from __future__ import annotations

import asyncio

import pytest

from agent_host.tool_service.answers import Admission, LocalSlots, Slot
from agent_host.tool_service.tool import HttpRefusal, TenantLimits

PATIENCE_S = 10.0


class SharedSlots(LocalSlots):
    """Slots that two workers take: in tests both are in this process. Others run while one is taken, as they do while a
    database is asked."""

    shared = True

    async def take(self, tenant: str, most: int) -> Slot | None:
        await asyncio.sleep(0)
        return await super().take(tenant, most)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def admission(slots: LocalSlots, most: int, queued: int, clock: Clock | None = None) -> Admission:
    limits = TenantLimits(max_concurrent=most, max_queued=queued)
    return Admission("acme", limits, slots) if clock is None else Admission("acme", limits, slots, clock)


async def acquired(*calls: asyncio.Task[Slot]) -> list[Slot]:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*calls)


async def refused(worker: Admission) -> None:
    with pytest.raises(HttpRefusal) as error:
        await worker.acquire()
    assert (error.value.status, error.value.retry_after_s) == (429, 1)


async def idle() -> None:
    """Until every task waits for something else than the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("slots", [LocalSlots, SharedSlots])
async def test_who_came_first_runs_first(slots: type[LocalSlots]) -> None:
    worker = admission(slots(), 1, 10)
    slot, order = await worker.acquire(), []

    async def run(number: int) -> None:
        mine = await worker.acquire()
        order.append(number)
        await worker.release(mine)

    calls = [asyncio.create_task(run(number)) for number in range(5)]
    await idle()
    assert order == []
    await worker.release(slot)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*calls)
    assert order == [0, 1, 2, 3, 4]


async def test_a_call_that_is_cancelled_while_it_waits_takes_nothing_along() -> None:
    worker = admission(LocalSlots(), 1, 10)
    slot = await worker.acquire()
    calls = [asyncio.create_task(worker.acquire()) for _ in range(3)]
    await idle()
    for call in calls[:2]:
        call.cancel()
    await idle()
    await worker.release(slot)
    (slot,) = await acquired(calls[2])
    last = asyncio.create_task(worker.acquire())
    await idle()
    await worker.release(slot)  # it is handed to a call that is cancelled at the same moment
    last.cancel()
    await asyncio.wait([last])
    if not last.cancelled():
        await worker.release(last.result())
    await acquired(asyncio.create_task(worker.acquire()))


async def test_two_workers_run_as_many_as_one_may() -> None:
    slots = SharedSlots()
    one, two = admission(slots, 2, 4), admission(slots, 2, 4)
    held = [await one.acquire(), await two.acquire()]
    waiting = [asyncio.create_task(worker.acquire()) for worker in (one, two)]
    await idle()
    assert not any(call.done() for call in waiting)
    await one.release(held[0])
    await two.release(held[1])
    for worker, slot in zip((one, two), await acquired(*waiting), strict=True):
        await worker.release(slot)


@pytest.mark.parametrize("queued", [0, 1])
async def test_more_than_may_wait_are_refused_also_where_another_worker_has_the_slots(queued: int) -> None:
    slots = SharedSlots()
    one, two = admission(slots, 1, queued), admission(slots, 1, queued)
    slot = await one.acquire()
    waiting = [asyncio.create_task(two.acquire()) for _ in range(queued)]
    await idle()
    await refused(two)
    await one.release(slot)
    for found in await acquired(*waiting):
        await two.release(found)
    await two.release(await two.acquire())  # and once there is room it runs


async def test_after_a_full_moment_calls_that_come_together_all_run() -> None:
    worker = admission(SharedSlots(), 4, 0)
    slots = [await worker.acquire() for _ in range(4)]
    await refused(worker)
    for slot in slots:
        await worker.release(slot)
    assert len(await acquired(*(asyncio.create_task(worker.acquire()) for _ in range(4)))) == 4


async def test_of_calls_that_come_together_the_newest_are_refused() -> None:
    slots = SharedSlots()
    other, worker = admission(slots, 1, 2), admission(slots, 1, 2)
    slot = await other.acquire()
    calls = [asyncio.create_task(worker.acquire()) for _ in range(4)]
    await idle()
    assert [call.done() for call in calls] == [False, False, True, True]
    for call in calls[2:]:
        assert isinstance(call.exception(), HttpRefusal)
    await other.release(slot)
    (first,) = await acquired(calls[0])
    await worker.release(first)
    await acquired(calls[1])


async def test_a_worker_that_always_has_calls_leaves_slots_to_another() -> None:
    slots, clock = SharedSlots(), Clock()
    busy, other = admission(slots, 1, 100, clock), admission(slots, 1, 100, clock)
    ended = asyncio.Event()

    async def flood() -> None:
        while not ended.is_set():
            slot = await busy.acquire()
            clock.now += 0.2
            await asyncio.sleep(0)
            await busy.release(slot)

    flooding = [asyncio.create_task(flood()) for _ in range(3)]
    await idle()
    (slot,) = await acquired(asyncio.create_task(other.acquire()))
    ended.set()
    await other.release(slot)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*flooding)
