"""The outbox of one client: at once for one that reads, bounded for one that does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.events import LIVE_ONLY, EventType
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
        self.last = self.watcher.events.pop()
        self.box.put(self.last)

    def say(self, text: str, step_id: str = "a") -> None:
        self.emit(EventType.TEXT_CHUNK, step_id, text=text)

    def print(self, text: str, call: str = "c", stream: str = "stdout") -> None:
        self.emit(EventType.TOOL_OUTPUT_CHUNK, toolCallId=call, stream=stream, text=text)

    async def got(self) -> list[tuple[int, str]]:
        return [(event.event_id, event.payload.get("text", "-")) for event in await self.box.get()]

    async def losses(self) -> list[tuple[int, int]]:
        return [(event.event_id, event.envelope.get("droppedEvents", 0)) for event in await self.box.get()]


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


async def test_what_became_one_is_an_event_like_any_other() -> None:
    fed = Fed()
    fed.print("1")
    fed.print("2")
    (event,) = await fed.box.get()
    envelope = event.envelope
    assert (envelope["firstEventId"], envelope["eventId"]) == (1, 2)
    assert (envelope["taskId"], envelope["stepId"]) == ("t", "a")
    assert "droppedEvents" not in envelope
    assert envelope["payload"] == {"toolCallId": "c", "stream": "stdout", "text": "12"}
    assert b'"12"' in event.line()


async def test_a_piece_that_was_given_out_does_not_grow() -> None:
    fed = Fed()
    fed.say("a")
    first = await fed.box.get()
    fed.say("b")
    assert [event.payload["text"] for event in first] == ["a"]
    assert await fed.got() == [(2, "b")]


async def test_when_it_is_full_streams_go_first_and_the_next_event_says_so() -> None:
    fed = Fed(max_events=3)
    fed.say("lost")
    fed.say("lost too")
    for _ in range(3):
        fed.emit(EventType.STEP_COMPLETED)
    assert await fed.losses() == [(3, 2), (4, 0), (5, 0)]
    for _ in range(5):
        fed.emit(EventType.STEP_COMPLETED)
    assert await fed.losses() == [(8, 2), (9, 0), (10, 0)]
    fed.say("on")
    assert await fed.losses() == [(11, 0)]


async def test_each_gap_is_reported_where_it_is() -> None:
    fed = Fed(max_events=3)
    for text in "abc":
        fed.say(text)
        fed.emit(EventType.STEP_COMPLETED)
    assert await fed.losses() == [(2, 1), (4, 1), (6, 1)]


async def test_an_event_behind_a_loss_is_the_same_for_everybody_else() -> None:
    fed = Fed(max_events=1)
    fed.say("lost")
    fed.emit(EventType.STEP_COMPLETED, stepCount=1)
    (event,) = await fed.box.get()
    kept = fed.last
    assert event.envelope == {**kept.envelope, "droppedEvents": 1}
    assert "droppedEvents" not in kept.envelope
    assert b'"droppedEvents":1' in event.line()


async def test_attempts_and_kinds_of_text_stay_apart() -> None:
    fed = Fed()
    for attempt in (1, 2):
        for text in "ab":
            fed.emit(EventType.THINKING_CHUNK, text=text, attempt=attempt)
        for text in "cd":
            fed.emit(EventType.TEXT_CHUNK, text=text, attempt=attempt)
    fed.emit(EventType.TEXT_CHUNK, text="e", attempt=3)
    assert await fed.got() == [(2, "ab"), (4, "cd"), (6, "ab"), (8, "cd"), (9, "e")]


async def test_what_takes_text_back_is_dropped_behind_that_text() -> None:
    """Even where the text is newer than other events that wait."""
    fed = Fed(max_events=3)
    fed.emit(EventType.STEP_STARTED)
    fed.emit(EventType.THINKING_CHUNK, text="a", attempt=1)
    fed.emit(EventType.TEXT_CHUNK, text="b", attempt=1)
    fed.emit(EventType.LLM_RETRY, attempt=1, waitMs=0, message="down")
    fed.emit(EventType.TEXT_CHUNK, text="c", attempt=2)
    events = await fed.box.get()
    assert [event.event_type for event in events] == ["step_started", "llm_retry", "text_chunk"]
    assert [event.payload.get("attempt") for event in events] == [None, 1, 2]
    assert events[1].envelope["droppedEvents"] == 2


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
    assert sum(event.envelope.get("droppedEvents", 0) for event in batch) > 0


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


def covered(event: dict[str, Any]) -> range:
    return range(event.get("firstEventId", event["eventId"]), event["eventId"] + 1)


def taken_back(envelope: dict[str, Any]) -> tuple[str, int]:
    return envelope["stepId"], envelope["payload"]["attempt"]


@given(
    st.lists(st.sampled_from(["say a", "say b", "think", "fail", "print", "whole", "get"]), max_size=60),
    st.integers(1, 8),
)
def test_nothing_is_lost_untold_or_out_of_order(actions: list[str], room: int) -> None:
    async def run() -> None:
        fed, made, got = Fed(max_events=room), 0, []
        attempt = 1
        for action in [*actions, "whole", "get"]:
            if action == "whole":
                fed.emit(EventType.STEP_COMPLETED)
            elif action == "print":
                fed.print("p")
            elif action == "fail":
                fed.emit(EventType.LLM_RETRY, attempt=attempt, waitMs=0, message="down")
                attempt += 1
            elif action == "think":
                fed.emit(EventType.THINKING_CHUNK, text="t", attempt=attempt)
            elif action != "get":
                fed.emit(EventType.TEXT_CHUNK, "a" if action == "say a" else "b", text="s", attempt=attempt)
            elif fed.box._bytes:
                batch = [event.envelope for event in await fed.box.get()]
                check(batch)
                got += batch
            made += action != "get"
        last = 0
        for event in got:
            numbers = covered(event)
            assert numbers[0] - last - 1 == event.get("droppedEvents", 0)
            assert ("firstEventId" in event) == (len(numbers) > 1)
            if event["eventType"] in LIVE_ONLY:
                assert len(event["payload"]["text"]) == len(numbers)
            last = event["eventId"]
        assert last == made

    def check(batch: list[dict[str, Any]]) -> None:
        """Where text of an attempt waited, what takes it back was not dropped."""
        retries = {taken_back(event) for event in batch if event["eventType"] == "llm_retry"}
        said = {taken_back(event) for event in batch if event["eventType"] in ("text_chunk", "thinking_chunk")}
        highest = max((attempt for _, attempt in retries), default=0)
        assert {one for one in said if one[0] == "a" and one[1] <= highest} <= {
            ("a", attempt) for step, attempt in retries if step == "a"
        }

    asyncio.run(run())
