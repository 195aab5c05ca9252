"""Cooperative cancellation (AH 4.5)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.loop.progress import Cancellation, TaskCancelled, ToolStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


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


async def test_a_request_leaves_nothing_of_it_in_the_task() -> None:
    """What the task waits for afterwards is not cancelled, however the work has taken the request."""
    cancellation, begun = Cancellation(), asyncio.Event()

    async def swallows() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await forever(begun)
        return "done all the same"

    async def asks_itself() -> str:
        cancellation.request(resumable=True)
        return "asked"

    async def fails_itself() -> str:
        cancellation.request(resumable=True)
        raise ValueError("asked")

    async def fails_in_cleaning_up() -> str:
        try:
            await forever(begun)
        finally:
            raise ValueError("cleaning up")

    async def nested() -> str:
        await cancellation.interruptible(forever(begun))
        return ""

    ends: dict[Callable[[], Coroutine[Any, Any, Any]], str] = {
        swallows: "done all the same", asks_itself: "asked", fails_itself: "ValueError('asked')",
        fails_in_cleaning_up: "ValueError('cleaning up')", nested: "TaskCancelled()",
        lambda: forever(begun): "TaskCancelled()",
    }  # fmt: skip

    async def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> str:
        try:
            found = str(await cancellation.interruptible(work()))
        except (ValueError, TaskCancelled) as error:
            found = repr(error)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return found

    for work, end in ends.items():
        cancellation.over()
        begun.clear()
        running = asyncio.ensure_future(run(work))
        if "itself" not in getattr(work, "__name__", ""):
            await begun.wait()
            cancellation.request(resumable=True)
        assert await running == end


@pytest.mark.parametrize("first", ["request", "cancel"])
async def test_a_task_that_is_cancelled_beside_a_request_is_cancelled(first: str) -> None:
    cancellation, begun = Cancellation(), asyncio.Event()
    waiting = asyncio.ensure_future(cancellation.interruptible(forever(begun)))
    await begun.wait()
    both: list[Callable[[], object]] = [lambda: cancellation.request(resumable=True), waiting.cancel]
    for ask in both if first == "request" else reversed(both):
        ask()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_time_out_of_the_work_is_its_own() -> None:
    async def late() -> None:
        async with asyncio.timeout(0):
            await forever(asyncio.Event())

    cancellation = Cancellation()
    with pytest.raises(TimeoutError):
        await cancellation.interruptible(late())
    cancellation.request(resumable=True)
    with pytest.raises(TaskCancelled):
        await cancellation.interruptible(late())


async def test_errors_of_the_work_come_through() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Cancellation().interruptible(fail())


class Stubborn:
    """A tool that takes two cancellations, and ends only when it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()
        self._cancelled = asyncio.Semaphore(0)
        self._seen = 0

    async def was_cancelled(self, times: int) -> None:
        while self._seen < times:
            await self._cancelled.acquire()
            self._seen += 1

    async def run(self) -> str:
        self.begun.set()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self._cancelled.release()
        return "ended"


async def test_an_abandoned_tool_is_not_waited_for() -> None:
    cancellation, tool = Cancellation(), Stubborn()
    waiting = asyncio.ensure_future(cancellation.run_until_forced(tool.run()))
    await tool.begun.wait()
    cancellation.request(resumable=False)
    cancellation.force(grace_s=0)
    await tool.was_cancelled(1)
    assert not waiting.done(), "only abandon gives it up"
    cancellation.abandon()
    with pytest.raises(ToolStopped):
        await waiting
    await tool.was_cancelled(2)  # which is to skip its grace
    tool.let_go.set()


async def test_a_cancelled_task_waits_for_its_tool_and_hands_every_cancellation_on() -> None:
    cancellation, tool = Cancellation(), Stubborn()
    waiting = asyncio.ensure_future(cancellation.run_until_forced(tool.run()))
    await tool.begun.wait()
    for number in (1, 2):
        waiting.cancel()
        await tool.was_cancelled(number)
        assert not waiting.done()
    tool.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_tool_that_ends_while_it_is_forced_keeps_its_result() -> None:
    cancellation, tool = Cancellation(), Stubborn()
    waiting = asyncio.ensure_future(cancellation.run_until_forced(tool.run()))
    await tool.begun.wait()
    cancellation.request(resumable=False)
    cancellation.force(grace_s=0)
    tool.let_go.set()
    assert await waiting == "ended"
