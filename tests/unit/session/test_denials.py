"""How a call that nobody was there to approve is told in the result."""

from __future__ import annotations

from typing import Any

import pytest

from agent_host.approval import replay_of
from agent_host.errors import UsageError
from agent_host.ids import MACHINE
from agent_host.loop import Replay
from agent_host.session.reports import calls_to_replay, denied_approvals
from agent_host.thread.messages import Message, ToolCall, encode
from state.checkpoint import Task

MADE = replay_of("RunCommand", {"command": "make"}, session_id="s", approve="shell")


def task(*replays: dict[str, Any]) -> Task:
    return Task("t1", "Do it.", 5, denied=[{"toolName": "RunCommand", "replay": replay} for replay in replays])


def thread(*calls: ToolCall) -> list[bytes]:
    messages = [Message("user", "Do it.", 3), *(Message("assistant", "", 3, (call,)) for call in calls)]
    return [encode(message, MACHINE, session_id="s") for message in messages]


def told(denied: Task, messages: list[bytes]) -> list[dict[str, Any]]:
    return [row["replay"] for row in denied_approvals(denied, messages, "s")]


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
    replay = {"approve": "shell"}
    assert told(task({"callId": "c1", "approve": "shell"}), lost) == [replay]
    assert told(task({"callId": "c1", "approve": "shell"}), []) == [replay]


def test_a_replay_id_names_the_call_and_all_denials_of_it() -> None:
    make, other = ToolCall("c1", "RunCommand", {"command": "make"}), ToolCall("c2", "RunCommand", {"command": "id"})
    messages = thread(make, other, make.change_id("c3"))
    denied = task(*({"callId": name, "approve": "shell"} for name in ("c1", "c2", "c3")))
    assert calls_to_replay(denied, messages, "s", [MADE["id"]]) == [
        Replay(MADE["id"], make, ("c1", "c3"), approve="shell")
    ]
    with pytest.raises(UsageError, match="replay_0: no denied call of this session has that id; there is replay_"):
        calls_to_replay(denied, messages, "s", ["replay_0"])
    with pytest.raises(UsageError, match="there is none"):
        calls_to_replay(task(), messages, "s", ["replay_0"])
