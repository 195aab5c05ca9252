"""Events of a session as a conversation prints them, where some were dropped or come again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from agent_host.chat.conversation import Conversation
from agent_host.chat.paper import Paper
from agent_host.clients.supervisor import SessionSpec

NOW = "2026-01-01T00:00:00Z"
TEXT = "First paragraph.\n\nSecond paragraph.\n\nThird paragraph."


class Printed:
    """A face that only prints."""

    def __init__(self) -> None:
        self.text = ""
        self.columns = 80

    def print(self, text: str) -> None:
        self.text += text

    def refresh(self) -> None:
        pass

    async def room(self) -> None:
        pass

    def call_attention(self, title: str) -> None:
        del title


class Records:
    """What is on record of the only task."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self._items = items

    def items(self, session_id: str, task_id: str) -> tuple[dict[str, Any], ...]:
        assert (session_id, task_id) == ("s", "t")
        return self._items

    def diff_of_call(self, session_id: str, payload: Any) -> str:
        del session_id, payload
        return ""


async def nothing(method: str, params: Any = None) -> dict[str, Any]:
    del method, params
    return {}


def conversation(*items: dict[str, Any]) -> tuple[Conversation, Printed]:
    face = Printed()
    chat = Conversation(
        cast("Any", face),
        Paper(lambda: 80, styled=False),
        cast("Any", SimpleNamespace(resume=resumed)),
        SessionSpec([], {}, "/w"),
        cast("Any", Records(*items)),
    )
    chat.session = cast("Any", SimpleNamespace(session_id="s", is_alive=True, request=nothing, close=closed))
    return chat, face


async def take(chat: Conversation, *events: tuple[str, dict[str, Any]], dropped: int = 0) -> None:
    for kind, payload in events:
        event = {"eventType": kind, "payload": payload, "taskId": "t", "stepId": "step", "timestamp": NOW}
        await chat.on_event(event | ({"droppedEvents": dropped} if dropped else {}))
        dropped = 0


MESSAGE = {"kind": "message", "role": "assistant", "text": TEXT, "stepId": "step", "itemId": "m"}
ENDS = {"kind": "mark", "mark": "task_completed", "itemId": "e"}
STARTED = ("task_started", {"maxSteps": 40})
ANSWERED = ("llm_request_completed", {"inputTokens": 1, "outputTokens": 1})
CALL = {"toolCallId": "c", "toolName": "RunCommand", "arguments": {"command": "ls"}}
DONE = CALL | {"status": "succeeded", "exitCode": 0}


async def test_text_that_was_dropped_is_printed_from_the_record_once() -> None:
    chat, face = conversation(MESSAGE)
    await take(chat, STARTED, ("text_chunk", {"text": TEXT[:25]}))
    await take(chat, ("text_chunk", {"text": TEXT[40:]}), ANSWERED, ("tool_requested", CALL), dropped=7)
    await take(chat, ("tool_completed", DONE), ("task_completed", {}))
    assert "7 events are not shown" in face.text
    assert [face.text.count(one) for one in ("First p", "Second p", "Third p", "● RunCommand ls")] == [1, 1, 1, 1]
    assert face.text.index("First p") < face.text.index("Second p") < face.text.index("Third p")
    assert face.text.index("Third p") < face.text.index("● RunCommand")


async def test_what_a_process_did_before_it_died_is_printed_once() -> None:
    """Its last words were lost with it: the end of an answer, the result of a call, the end of the task."""
    for heard in range(0, len(TEXT) + 1, 8):
        call = {"kind": "call", "itemId": "c", "stepId": "step", **DONE}
        chat, face = conversation(MESSAGE, call, ENDS)
        await take(chat, STARTED, ("text_chunk", {"text": TEXT[:heard]}))
        cast("Any", chat.session).is_alive = False
        await chat.on_gone(-9, "")
        await chat.revive()
        assert [face.text.count(one) for one in ("First p", "Second p", "Third p", "● RunCommand ls")] == [1, 1, 1, 1]
        assert face.text.count("completed") == 1
        assert not chat.is_busy


async def closed(grace_s: float) -> None:
    del grace_s


async def resumed(*given: Any, replay: bool) -> tuple[Any, dict[str, Any]]:
    del given
    assert not replay
    return SimpleNamespace(session_id="s", is_alive=True, request=nothing), {}


async def test_its_own_session_is_no_other_process() -> None:
    """The person's first prompt opens it while the others are looked for."""
    chat, face = conversation()
    chat.session, on_disk = None, {"other"}
    is_on_disk = asyncio.Event()

    async def create(*_: Any) -> Any:
        on_disk.add("own")
        is_on_disk.set()
        await asyncio.sleep(0)
        return SimpleNamespace(session_id="own")

    def other_processes(own: str | None) -> list[str]:
        return [f"another process: {one}" for one in sorted(on_disk) if one != own]

    cast("Any", chat)._supervisor = SimpleNamespace(create=create)
    cast("Any", chat.records).other_processes = other_processes
    opening = asyncio.ensure_future(chat.open_session())
    await is_on_disk.wait()
    await chat.warn_of_others()
    await opening
    assert "another process: other" in face.text
    assert "another process: own" not in face.text
