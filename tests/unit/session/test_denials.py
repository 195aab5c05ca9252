"""How a call that nobody was there to approve is told in the result."""

from __future__ import annotations

from typing import Any

from agent_host.approval.request import replay_of
from agent_host.session.denials import denied_approvals
from agent_host.thread.messages import Message, ToolCall, encode
from state.checkpoint import Task

MADE = replay_of("RunCommand", {"command": "make"}, prompt="Do it.", approve="shell")


def task(*replays: dict[str, Any]) -> Task:
    return Task("t1", "Do it.", 5, denied=[{"toolName": "RunCommand", "replay": replay} for replay in replays])


def thread(*calls: ToolCall) -> list[bytes]:
    messages = [Message("user", "Do it.", 3), *(Message("assistant", "", 3, (call,)) for call in calls)]
    return [encode(message, session_id="s") for message in messages]


def told(denied: Task, messages: list[bytes]) -> list[dict[str, Any]]:
    return [row["replay"] for row in denied_approvals(denied, messages)]


def test_the_arguments_come_from_the_thread() -> None:
    calls = [
        ToolCall(f"c{number}", "RunCommand", {"command": name}) for number, name in enumerate(["ls", "make", "id"])
    ]
    assert told(task({"callId": "c1", "approve": "shell"}), thread(*calls)) == [MADE]


def test_what_an_earlier_version_recorded_is_told_as_it_stands() -> None:
    later = {"callId": "c1", "approve": "shell"}
    messages = thread(ToolCall("c1", "RunCommand", {"command": "make"}))
    assert told(task({"id": "replay_1", "approve": "RunCommand"}, later), messages) == [
        {"id": "replay_1", "approve": "RunCommand"},
        MADE,
    ]


def test_arguments_that_were_lost_are_not_made_up() -> None:
    lost = thread(ToolCall("c1", "RunCommand", {}, "lost"))
    replay = {key: MADE[key] for key in ("approve", "command")}
    assert told(task({"callId": "c1", "approve": "shell"}), lost) == [replay]
    assert told(task({"callId": "c1", "approve": "shell"}), []) == [replay]
