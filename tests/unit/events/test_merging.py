"""The live stream of a slow client and its GetEvents, merged by the rules of docs/events.md."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agent_host.events import EventType
from agent_host.events.outbox import EventRing, Outbox
from tests.support.events import emitter
from tests.support.merged_events import MergedEvents

ACTIONS = ["say", "say", "say", "think", "fail", "step", "print", "read", "ask", "hear", "reconnect"]


class Talk:
    """A session that speaks, its ring, and one client behind a queue of `room` events that merges what it gets. A reply
    holds `at_once` events."""

    def __init__(self, room: int, kept: int, at_once: int) -> None:
        self._room, self._at_once = room, at_once
        self.ring = EventRing(kept)
        self.box = Outbox(max_events=room)
        self.client = MergedEvents()
        self.texts: defaultdict[tuple[str, str], str] = defaultdict(str)
        self.printed = ""
        self.count = 0
        self._reply: dict[str, Any] | None = None
        self._step, self._attempt = 0, 1
        self._emitter = emitter(self)

    # A sink

    def take(self, event: Any) -> None:
        self.ring.take(event)
        self.box.put(event)

    def flush(self) -> None:
        pass

    # What happens

    @property
    def step_id(self) -> str:
        return f"step {self._step}"

    def emit(self, event_type: EventType, **payload: Any) -> None:
        self.count += 1
        self._emitter.emit(event_type, payload, task_id="t", step_id=self.step_id)

    def say(self, event_type: EventType = EventType.TEXT_CHUNK) -> None:
        text = f"[{self.count}]"
        self.texts[self.step_id, event_type] += text
        self.emit(event_type, text=text, attempt=self._attempt)

    def think(self) -> None:
        self.say(EventType.THINKING_CHUNK)

    def fail(self) -> None:
        self.emit(EventType.LLM_RETRY, attempt=self._attempt, waitMs=0, message="down")
        self._attempt += 1
        self.texts[self.step_id, "text_chunk"] = self.texts[self.step_id, "thinking_chunk"] = ""

    def step(self) -> None:
        self.emit(EventType.STEP_COMPLETED, stepId=self.step_id, stepCount=self._step)
        self._step, self._attempt = self._step + 1, 1

    def print(self) -> None:
        self.printed += f"[{self.count}]"
        self.emit(EventType.TOOL_OUTPUT_CHUNK, toolCallId="c", stream="stdout", text=f"[{self.count}]")

    # What the client does

    async def read(self) -> None:
        if self.box._bytes:
            for event in await self.box.get():
                self.client.live(orjson.loads(event.line()))

    def ask(self) -> None:
        """The reply is made now, and heard later."""
        since = self.client.ask_since
        if since is not None and self._reply is None:
            found = self.ring.since(since)
            events = [orjson.loads(line) for line in found.events[: self._at_once]]
            self._reply = {"events": events, "gapDetected": found.gap_detected, "latestId": found.latest_id}

    def hear(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            self.client.reply(reply)

    def reconnect(self) -> None:
        """What waited for the client is gone, and so is the reply."""
        self._reply = None
        self.box = Outbox(max_events=self._room)
        self.client.connected()

    async def catch_up(self) -> None:
        """A loss is reported with the next event, so there is one more."""
        self.step()
        await self.read()
        self.hear()
        while self.client.ask_since is not None:
            self.ask()
            self.hear()


async def played(actions: list[str], *, room: int, kept: int, at_once: int) -> Talk:
    talk = Talk(room, kept, at_once)
    for action in actions:
        done = getattr(talk, action)()
        if done is not None:
            await done
    await talk.catch_up()
    return talk


def numbers(talk: Talk) -> list[int]:
    """What the client's events cover, in their order."""
    return [
        number
        for event in talk.client.events
        for number in range(event.get("firstEventId", event["eventId"]), event["eventId"] + 1)
    ]


@given(st.lists(st.sampled_from(ACTIONS), max_size=80), st.integers(1, 6), st.integers(1, 9))
def test_nothing_is_lost_or_doubled(actions: list[str], room: int, at_once: int) -> None:
    talk = asyncio.run(played(actions, room=room, kept=1000, at_once=at_once))
    assert numbers(talk) == list(range(1, talk.count + 1))
    for (step_id, kind), text in talk.texts.items():
        assert talk.client.text(step_id, kind) == text
    printed = [event["payload"]["text"] for event in talk.client.events if event["eventType"] == "tool_output_chunk"]
    assert "".join(printed) == talk.printed
    assert not talk.client.is_incomplete


@given(
    st.lists(st.sampled_from(ACTIONS), max_size=80), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)
)  # fmt: skip
def test_what_is_not_kept_any_more_is_known_to_be_missing(
    actions: list[str], room: int, at_once: int, kept: int
) -> None:
    talk = asyncio.run(played(actions, room=room, kept=kept, at_once=at_once))
    found = numbers(talk)
    assert found == sorted(set(found))
    if len(found) < talk.count:
        assert talk.client.is_incomplete


async def test_a_joined_event_that_overlaps_a_reply_is_taken_once() -> None:
    """The queue holds pieces 3 to 6 in one event, of which the reply gave 3 and 4."""
    talk = Talk(room=100, kept=100, at_once=100)
    for _ in range(2):
        talk.say()
    talk.box = Outbox(max_events=100)  # another connection
    talk.client.connected()
    talk.say()
    talk.say()
    talk.ask()
    talk.hear()
    assert numbers(talk) == [1, 2, 3, 4]
    talk.say()
    talk.say()
    await talk.read()
    joined = talk.client.events[-1]
    assert (joined["firstEventId"], joined["eventId"]) == (3, 6)
    assert numbers(talk) == [1, 2, 3, 4, 5, 6]
    assert talk.client.text("step 0") == "[0][1][2][3][4][5]"
