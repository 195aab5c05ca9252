"""An answer that came as one JSON body, since the gateway did not heed `stream`: the events of a stream that says the
same. What a dialect's assembler keeps as it came is put into them as it stands in the body.

Each function raises LookupError, ValueError for a body that is no whole answer of its dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from agent_host.llm.raw_json import elements, members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Event = tuple[str, str]
"""Name and data."""


def messages_events(body: str) -> Iterator[Event]:
    """Of the Messages dialect: each block is whole where it starts; a call's arguments come as the text that they are,
    so that they are read as in a stream."""
    message = members(body)
    blocks = elements(message["content"])
    _refuse_open(message["stop_reason"])
    head = {name: text for name, text in message.items() if name != "content"}
    yield "message_start", _object({"message": _object(head)})
    for index, block in enumerate(blocks):
        begun, arguments = _begun(block)
        yield "content_block_start", _object({"index": str(index), "content_block": begun})
        if arguments:
            delta = orjson.dumps({"type": "input_json_delta", "partial_json": arguments}).decode()
            yield "content_block_delta", _object({"index": str(index), "delta": delta})
        yield "content_block_stop", _object({"index": str(index)})
    ended = {name: text for name, text in message.items() if name in ("stop_reason", "stop_details")}
    yield "message_delta", _object({"delta": _object(ended), "usage": message.get("usage", "null")})
    yield "message_stop", "{}"


def chat_events(body: str) -> Iterator[Event]:
    """Of the Chat Completions dialect: one chunk, whose calls have their places as indexes."""
    answer = members(body)
    choices = [_choice(members(choice)) for choice in elements(answer["choices"])]
    yield "message", _object({**answer, "choices": f"[{','.join(choices)}]"})
    yield "message", "[DONE]"


def response_events(body: str) -> Iterator[Event]:
    """Of the Responses dialect: its last event has the whole response."""
    response = members(body)
    elements(response["output"])
    status = orjson.loads(response.get("status", '"completed"'))
    if status not in ("completed", "incomplete", "failed", "cancelled"):
        raise ValueError(f"the response is still {status!r}")
    yield "response.completed", _object({"response": body})


def _begun(block: str) -> tuple[str, str]:
    """The block as one that starts, and the JSON text of its arguments where it is a call of our tools."""
    fields = members(block)
    if orjson.loads(fields["type"]) != "tool_use" or "input" not in fields:
        return block, ""
    arguments = fields.pop("input")
    value = orjson.loads(arguments)
    return _object(fields), value if isinstance(value, str) else arguments


def _refuse_open(reason: str) -> None:
    """Raises ValueError for an answer that does not say why it ended."""
    if not isinstance(orjson.loads(reason), str):
        raise ValueError("the answer has no end")


def _choice(choice: Mapping[str, str]) -> str:
    _refuse_open(choice["finish_reason"])
    message = members(choice["message"])
    if orjson.loads(message.get("tool_calls", "null")):
        given = enumerate(elements(message["tool_calls"]))
        calls = [_object({**members(call), "index": str(index)}) for index, call in given]
        message["tool_calls"] = f"[{','.join(calls)}]"
    return _object({**{name: text for name, text in choice.items() if name != "message"}, "delta": _object(message)})


def _object(fields: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{orjson.dumps(name).decode()}:{text}' for name, text in fields.items())}}}"
