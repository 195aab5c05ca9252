"""Streams of Chat Completions in few words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agent_host.llm.dialects.openai_chat import ChatAssembler
from agent_host.testing.dialects.openai_chat import CHAT_COMPLETIONS
from agent_host.testing.script import Script
from tests.unit.llm.helpers import VIEW

if TYPE_CHECKING:
    from agent_host.llm import ModelTurn

DONE = "[DONE]"


def chunk(delta: Any = None, finish: Any = None, **beside: Any) -> str:
    """The data of one chunk with one choice."""
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **beside})


def ended(finish: Any = "stop", **beside: Any) -> str:
    return chunk({}, finish, **beside)


def called(*entries: Any) -> str:
    return chunk({"tool_calls": list(entries)})


def call(index: int | None, call_id: Any = None, name: Any = None, arguments: Any = None, **beside: Any) -> Any:
    """An entry of `tool_calls`, without what is None."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry: dict[str, Any] = {"function": function, **beside}
    return entry | {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}


def assemble(
    *data: str, shown: list[str] | None = None, thoughts: list[str] | None = None, limit: int | None = None
) -> ModelTurn:
    """The turn of a stream of unnamed events."""
    assembler = ChatAssembler(limit)
    for one in data:
        piece = assembler.feed("message", one)
        if piece and shown is not None:
            shown.append(piece)
        if assembler.thinking and thoughts is not None:
            thoughts.append(assembler.thinking)
    return assembler.finish()


def stream_of(turn: dict[str, Any]) -> bytes:
    """What the mock gateway sends for `turn`."""
    return b"".join(CHAT_COMPLETIONS.stream_events(Script.from_turns([turn]).turns[0], VIEW))


def data_of(turn: dict[str, Any]) -> list[str]:
    """The data of each event of it, comments left out."""
    events = stream_of(turn).decode().removesuffix("\n\n").split("\n\n")
    return [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
