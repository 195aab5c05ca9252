"""The outbox of one client: at once for one that reads, bounded for one that does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.events.kinds import LIVE_ONLY, EventType
from agent_host.events.outbox import Outbox
from tests.support.events import Watcher, emitter


class Fed:
    """An outbox behind an emitter."""

    def __init__(self, **limits: int) -> None:
        self.box = Outbox(**limits)
        self.watcher = Watcher()
        self.emitter = emitter(self.watcher)

    def emit(self, event_type: EventType, step_id: str = "a", **payload: Any) -> None:
        self.emitter.emit(event_type, payload, task_id="t", step_id=step_id)
        self.box.put(self.watcher.events.pop())

    def say(self, text: str, step_id: str = "a") -> None:
        self.emit(EventType.TEXT_CHUNK, step_id, text=text)

    def print(self, text: str, call: str = "c", stream: str = "stdout") -> None:
        self.emit(EventType.TOOL_OUTPUT_CHUNK, toolCallId=call, stream=stream, text=text)

    async def got(self) -> list[tuple[int, str]]:
        return [(event.event_id, event.payload.get("text", "-")) for event in await self.box.get()]


async def test_a_client_that_reads_gets_each_piece_at_once() -> None:
    fed = Fed()
    reading = asyncio.create_task(fed.got())
    await asyncio.sleep(0)
    fed.say("one")
    assert await reading == [(1, "one")]
    fed.say("two")
    assert await fed.got() == [(2, "two")]


async def test_pieces_that_wait_side_by_side_become_one() -> None:
    fed = Fed()
    for text in "abc":
        fed.say(text)
    fed.emit(EventType.STEP_COMPLETED)
    fed.say("d")
    fed.say("e")
    fed.say("f", step_id="b")
    fed.print("1")
    fed.print("2")
    fed.print("3", stream="stderr")
    fed.print("4", call="d", stream="stderr")
    assert await fed.got() == [
        (3, "abc"), (4, "-"), (6, "de"), (7, "f"), (9, "12"), (10, "3"), (11, "4"),
    ]  # fmt: skip
    assert fed.box.dropped == 0


async def test_what_became_one_is_an_event_like_any_other() -> None:
    fed = Fed()
    fed.print("1")
    fed.print("2")
    (event,) = await fed.box.get()
    envelope = event.envelope
    assert (envelope["eventId"], envelope["taskId"], envelope["stepId"]) == (2, "t", "a")
    assert envelope["payload"] == {"toolCallId": "c", "stream": "stdout", "text": "12"}
    assert b'"12"' in event.line()


async def test_a_piece_that_was_given_out_does_not_grow() -> None:
    fed = Fed()
    fed.say("a")
    first = await fed.box.get()
    fed.say("b")
    assert [event.payload["text"] for event in first] == ["a"]
    assert await fed.got() == [(2, "b")]


async def test_when_it_is_full_streams_go_first_and_the_client_is_told() -> None:
    fed = Fed(max_events=3)
    fed.say("lost")
    fed.say("lost too")
    for _ in range(3):
        fed.emit(EventType.STEP_COMPLETED)
    assert await fed.got() == [(3, "-"), (4, "-"), (5, "-")]
    assert fed.box.dropped == 2
    for _ in range(5):
        fed.emit(EventType.STEP_COMPLETED)
    assert await fed.got() == [(8, "-"), (9, "-"), (10, "-")]
    assert fed.box.dropped == 2
    fed.say("on")
    assert await fed.got() == [(11, "on")]
    assert fed.box.dropped == 0


async def test_bytes_are_bounded_whatever_the_events_are() -> None:
    fed = Fed(max_bytes=200_000)
    for number in range(3_000):
        fed.say("x" * 100)
        if number % 100 == 0:
            fed.emit(EventType.APPROVAL_REQUESTED, actionSummary="x" * 1_000)
    batch = await fed.box.get()
    assert sum(len(event.line()) for event in batch) < 220_000
    assert [event.event_id for event in batch] == sorted(event.event_id for event in batch)
    assert sum(event.event_type is EventType.APPROVAL_REQUESTED for event in batch) == 30
    assert fed.box.dropped > 0


async def test_a_closed_box_gives_what_it_has_and_then_nothing() -> None:
    fed = Fed()
    fed.say("last")
    fed.box.close()
    fed.say("too late")
    assert await fed.got() == [(1, "last")]
    assert await fed.got() == []


async def test_closing_wakes_who_waits() -> None:
    fed = Fed()
    reading = asyncio.create_task(fed.got())
    await asyncio.sleep(0)
    fed.box.close()
    assert await reading == []


async def test_a_wait_can_be_cancelled_and_begun_again() -> None:
    fed = Fed()
    reading = asyncio.create_task(fed.got())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    fed.say("a")
    assert await fed.got() == [(1, "a")]


@given(st.lists(st.sampled_from(["say a", "say b", "print", "whole", "get"]), max_size=60), st.integers(1, 8))
def test_nothing_is_lost_untold_or_out_of_order(actions: list[str], room: int) -> None:
    async def run() -> None:
        fed, pieces, text, seen, dropped = Fed(max_events=room), 0, "", [], 0
        for action in [*actions, "get"]:
            if action == "whole":
                fed.emit(EventType.STEP_COMPLETED)
            elif action == "print":
                fed.print("p")
            elif action != "get":
                fed.say("s", step_id=action)
            elif fed.box._bytes:
                batch = await fed.box.get()
                dropped += fed.box.dropped
                seen += [event.event_id for event in batch]
                text += "".join(event.payload["text"] for event in batch if event.event_type in LIVE_ONLY)
                pieces += sum(event.event_type not in LIVE_ONLY for event in batch)
        assert seen == sorted(set(seen))
        assert len(text) + pieces + dropped == sum(action != "get" for action in actions)

    asyncio.run(run())
