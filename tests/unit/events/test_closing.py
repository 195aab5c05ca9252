"""The end of an emitter: every sink gets its time, none gets more, and none can hurt another."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from agent_host.events import EventType
from tests.support.events import Watcher, emitter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Closing(Watcher):
    """Takes `needs_s` to close, or waits `until` something."""

    def __init__(
        self,
        needs_s: float = 0,
        *,
        until: Callable[[], Awaitable[object]] | None = None,
        fails: bool = False,
        stubborn: bool = False,
    ) -> None:
        super().__init__()
        self.until = until
        self.needs_s = needs_s
        self.fails = fails
        self.stubborn = stubborn
        self.closed = False

    async def aclose(self, timeout_s: float) -> None:
        if self.fails:
            raise RuntimeError("broken")
        try:
            await (asyncio.sleep(self.needs_s) if self.until is None else self.until())
        except asyncio.CancelledError:
            if not self.stubborn:
                raise
            await asyncio.sleep(self.needs_s)
        self.closed = True


async def test_all_close_at_once_and_those_without_a_close_are_flushed() -> None:
    all_at_once = asyncio.Barrier(3)
    sinks = [Closing(until=all_at_once.wait) for _ in range(3)]
    plain = Watcher()
    made = emitter(*sinks, plain)
    made.emit(EventType.POLICY_EXPIRED, {})
    await made.aclose(60)
    assert all(sink.closed for sink in sinks)
    assert plain.flushes == 1


async def test_who_fails_or_does_not_end_hurts_nobody() -> None:
    good, late = Closing(), Closing(60)
    await emitter(Closing(fails=True), late, good).aclose(0.02)
    assert good.closed
    assert not late.closed
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.slow
async def test_who_does_not_even_obey_is_left() -> None:
    began = time.monotonic()
    await emitter(Closing(60, stubborn=True)).aclose(0.02)
    assert time.monotonic() - began < 20
    (left,) = asyncio.all_tasks() - {asyncio.current_task()}
    left.cancel()


async def test_the_caller_can_be_cancelled() -> None:
    sink = Closing(60)
    closing = asyncio.create_task(emitter(sink).aclose(60))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert len(asyncio.all_tasks()) == 1


async def test_without_sinks_there_is_nothing_to_do() -> None:
    await emitter().aclose(0)
    await emitter(Watcher()).aclose(0)


async def test_no_secret_is_encoded_and_sinks_in_the_process_see_the_payload() -> None:
    watcher = Watcher()
    emitter(watcher, scrub=lambda line: line.replace(b"secret", b"***")).emit(
        EventType.TEXT_CHUNK, {"text": "a secret"}
    )
    (event,) = watcher.events
    assert b"secret" not in event.line()
    assert b"a ***" in event.line()
    assert b"secret" not in event.trim(text="another secret", dropped=1).line()
    assert event.payload == {"text": "a secret"}
