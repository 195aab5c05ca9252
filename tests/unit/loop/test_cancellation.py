"""Cooperative cancellation (AH 4.5)."""

from __future__ import annotations

import asyncio

import pytest

from agent_host.loop.cancellation import Cancellation, TaskCancelled


async def forever(begun: asyncio.Event) -> None:
    begun.set()
    await asyncio.Event().wait()


async def test_a_request_cuts_waiting_short() -> None:
    cancellation, begun = Cancellation(), asyncio.Event()
    waiting = asyncio.ensure_future(cancellation.interruptible(forever(begun)))
    await begun.wait()
    cancellation.request(resumable=True)
    with pytest.raises(TaskCancelled):
        await waiting


async def test_what_is_done_in_time_is_kept() -> None:
    async def answer() -> int:
        return 42

    assert await Cancellation().interruptible(answer()) == 42


async def test_nothing_starts_after_a_request() -> None:
    cancellation, begun = Cancellation(), asyncio.Event()
    cancellation.request(resumable=False)
    with pytest.raises(TaskCancelled):
        await cancellation.interruptible(forever(begun))
    with pytest.raises(TaskCancelled):
        cancellation.check()
    assert not begun.is_set()


@pytest.mark.parametrize("first", [True, False])
async def test_a_task_that_is_once_ended_for_good_does_not_stay_open(first: bool) -> None:
    cancellation = Cancellation()
    cancellation.request(resumable=first)
    cancellation.request(resumable=not first)
    assert not cancellation.resumable


async def test_cancelling_the_whole_task_is_not_taken_for_a_request() -> None:
    cancellation, begun = Cancellation(), asyncio.Event()
    waiting = asyncio.ensure_future(cancellation.interruptible(forever(begun)))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_errors_of_the_work_come_through() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Cancellation().interruptible(fail())
