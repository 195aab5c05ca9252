"""The Anthropic Messages dialect: POST {url}/v1/messages, answered by server-sent events (AH 6.2, 6.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from agent_host.lenient_json import to_keep
from agent_host.llm.stream import ModelTurn, StreamFault, StreamProtocolError, TokenUsage
from agent_host.stamps import new_id
from agent_host.thread.messages import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent_host.contracts import ToolDefinition
    from agent_host.thread.messages import Message

_API_VERSION = "2023-06-01"
# Errors that come after HTTP 200; all but these are passing troubles of the gateway.
_PERMANENT_ERRORS = frozenset({"invalid_request_error", "authentication_error", "permission_error", "not_found_error"})
_UNSENDABLE = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 128
# The API refuses empty text blocks.
_NOTHING_SAID = "(no text)"
# Far above what any model takes; the sums of a whole session stay countable in any JSON.
_MAX_COUNT = 10**9


class AnthropicRenderer:
    """Messages as the Messages API takes them: results of one turn's calls stand together in one user message."""

    def user(self, messages: Sequence[Message]) -> bytes:
        """One user message, a text block for each of `messages`."""
        return to_keep(orjson.dumps({"role": "user", "content": [_text(message) for message in messages]}))

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """The assistant's blocks and, where it called tools, the user message with their results."""
        blocks = [_text(assistant)] if assistant.content.strip() or not assistant.tool_calls else []
        blocks += [
            {
                "type": "tool_use",
                "id": call.call_id,
                "name": _sendable_name(call.name),
                "input": orjson.Fragment(call.arguments_json),
            }
            for call in assistant.tool_calls
        ]
        turn = orjson.dumps({"role": "assistant", "content": blocks})
        if not results:
            return to_keep(turn)
        answers: list[dict[str, Any]] = []
        for result in results:
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.tool_call_id}
            if result.content:
                block["content"] = orjson.Fragment(result.content_json)
            if result.is_error:
                block["is_error"] = True
            answers.append(block)
        return turn + b"," + orjson.dumps({"role": "user", "content": answers})


def _sendable_name(name: str) -> str:
    """A name that the API takes back: a model can make one up that it would refuse."""
    return _UNSENDABLE.sub("_", name)[:_MAX_NAME] or "_"


def _text(message: Message) -> dict[str, Any]:
    said = message.content.strip()
    return {"type": "text", "text": orjson.Fragment(message.content_json) if said else _NOTHING_SAID}


class AnthropicDialect:
    """See `agent_host.llm.stream.Dialect`."""

    path: ClassVar[str] = "/v1/messages"
    tail: ClassVar[bytes] = b"]}"

    def __init__(self) -> None:
        self.renderer = AnthropicRenderer()

    def headers(self, token: str | None) -> Mapping[str, str]:
        """JSON out, events in; the token goes where the vendor's own clients put it."""
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": _API_VERSION,
        }
        if token:
            headers["x-api-key"] = token
        return headers

    def head(self, *, model: str, max_tokens: int, system: str, tools: Sequence[ToolDefinition]) -> bytes:
        """Model, limits, system prompt and tools, with a cache mark behind them: they are the same in every call."""
        request: dict[str, Any] = {
            "model": model,
            "max_tokens": max_tokens,
            "stream": True,
            "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
        }
        if tools:
            request["tools"] = [
                {"name": tool.tool_name, "description": tool.description, "input_schema": tool.input_schema}
                for tool in tools
            ]
        return orjson.dumps(request)[:-1] + b',"messages":['

    def assembler(self) -> AnthropicAssembler:
        """A fresh one."""
        return AnthropicAssembler()

    def error_message(self, body: Any) -> str | None:
        """`error.message` of `{"type": "error", "error": {"type", "message"}}`."""
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        return message if isinstance(message, str) else None


@dataclass(slots=True)
class _Block:
    kind: str
    call_id: str = ""
    name: str = ""
    start_input: Any = None
    parts: list[str] = field(default_factory=list)


class AnthropicAssembler:
    """Puts a turn together from message_start, content blocks by index, message_delta and message_stop."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, int] = {}
        self._stop_reason: str | None = None
        self._started = False
        self._over = False

    def feed(self, event: str, data: str) -> str | None:
        """Take one event; unknown ones are skipped, as the API asks of its clients."""
        handler = self._HANDLERS.get(event)
        if handler is None:
            return None
        try:
            return handler(self, orjson.loads(data))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise StreamProtocolError(f"the {event} event is malformed") from error

    def finish(self) -> ModelTurn:
        """The turn, when the stream said `message_stop`."""
        if not (self._started and self._over and self._stop_reason is not None):
            raise StreamProtocolError("the stream ended before the message did")
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        text = "".join(part for block in blocks if block.kind == "text" for part in block.parts)
        calls = _with_distinct_ids([_tool_call(block) for block in blocks if block.kind == "tool_use"])
        cached = self._usage.get("cache_read_input_tokens", 0)
        uncached = self._usage.get("input_tokens", 0) + self._usage.get("cache_creation_input_tokens", 0)
        usage = TokenUsage(uncached + cached, self._usage.get("output_tokens", 0), cached)
        return ModelTurn(text, calls, self._stop_reason, usage)

    def _message_start(self, data: dict[str, Any]) -> None:
        self._started = True
        self._note_usage(data["message"].get("usage") or {})

    def _block_start(self, data: dict[str, Any]) -> str | None:
        raw = data["content_block"]
        block = _Block(raw["type"], _string(raw.get("id")), _string(raw.get("name")), raw.get("input"))
        self._blocks[int(data["index"])] = block
        if block.kind != "text":
            return None
        text = _string(raw.get("text"))
        block.parts.append(text)
        return text

    def _block_delta(self, data: dict[str, Any]) -> str | None:
        block, delta = self._blocks[data["index"]], data["delta"]
        kind = delta["type"]
        if kind == "text_delta":
            text = _string(delta["text"], required=True)
            block.parts.append(text)
            return text
        if kind == "input_json_delta":
            block.parts.append(_string(delta["partial_json"], required=True))
        return None

    def _message_delta(self, data: dict[str, Any]) -> None:
        self._stop_reason = _string(data["delta"].get("stop_reason")) or self._stop_reason
        self._note_usage(data.get("usage") or {})

    def _message_stop(self, _: dict[str, Any]) -> None:
        self._over = True

    def _error(self, data: dict[str, Any]) -> None:
        error = data["error"]
        message = f"{error['type']}: {error.get('message', '')}"
        raise StreamFault(message, retryable=error["type"] not in _PERMANENT_ERRORS)

    def _note_usage(self, usage: Mapping[str, Any]) -> None:
        # Counts in message_delta are cumulative and replace those of message_start.
        counts = {name: min(count, _MAX_COUNT) for name, count in usage.items() if type(count) is int and count >= 0}
        self._usage.update(counts)

    _HANDLERS: ClassVar[dict[str, Callable[[AnthropicAssembler, Any], str | None]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "error": _error,
    }


def _string(value: object, *, required: bool = False) -> str:
    """`value` itself, "" for a missing one that may be missing. Raises ValueError for anything else."""
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def _tool_call(block: _Block) -> ToolCall:
    """The call of a tool_use block, its arguments encoded. Arguments that are no JSON object (an answer cut at
    max_tokens ends inside them) leave an empty object and the reason: the call is answered with it and never runs."""
    text = "".join(block.parts)
    try:
        arguments = orjson.loads(text) if text else block.start_input
    except orjson.JSONDecodeError:
        return ToolCall(block.call_id, block.name, {}, "the arguments are not complete JSON")
    if not isinstance(arguments, dict):
        problem = "the arguments are not a JSON object" if text else None
        return ToolCall(block.call_id, block.name, {}, problem)
    call = ToolCall(block.call_id, block.name, arguments)
    try:
        _ = call.arguments_json
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
        return ToolCall(block.call_id, block.name, {}, "the arguments are nested too deep")
    return call


def _with_distinct_ids(calls: list[ToolCall]) -> tuple[ToolCall, ...]:
    """The same calls; a missing or repeated id gets a new one, since every result is matched to its call by id."""
    seen: set[str] = set()
    distinct: list[ToolCall] = []
    for call in calls:
        unique = call if call.call_id and call.call_id not in seen else call.renamed(new_id("call"))
        seen.add(unique.call_id)
        distinct.append(unique)
    return tuple(distinct)
