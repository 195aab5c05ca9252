"""The Anthropic Messages dialect: POST {url}/v1/messages, answered by server-sent events (AH 6.2, 6.3)."""

from __future__ import annotations

from base64 import b64encode
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from agent_host.llm import MAX_DETAIL, Meaning, ModelTurn, StreamFault, StreamProtocolError
from agent_host.llm.dialects import (
    MAX_COUNT,
    UNNAMED,
    Assembler,
    Dialect,
    MessageRenderer,
    TurnParts,
    refuse_open,
    required_text,
    sendable_name,
    size_of,
)
from agent_host.llm.raw_json import (
    elements,
    join_members,
    loads_with_halves,
    may_hold_halves,
    members,
    repair,
    split_open_end,
)
from agent_host.thread import UnitMark
from agent_host.thread.messages import NO_TEXT, Block, ToolCall
from config import json_text
from config.json_text import copy_to_keep
from state.checkpoint import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.contracts import Image, ToolSpec
    from agent_host.llm.dialects import CacheTtl, Event
    from agent_host.thread.messages import Message

NAME = "anthropic"
# The end of a message: it closes the last block's object, the array and the message.
_ENDS = b"}]}"
_CACHE_MARK: dict[CacheTtl, dict[str, str]] = {"5m": {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"}}


class AnthropicRenderer(MessageRenderer):
    """Messages in the form of the Messages API: results of one turn's calls are together in one user message. A cache
    mark is a field of the last block."""

    def __init__(self, model: str = "", cache_ttl: CacheTtl = "5m") -> None:
        super().__init__(model)
        self.cache_mark = UnitMark(b',"cache_control":' + orjson.dumps(_CACHE_MARK[cache_ttl]), len(_ENDS))

    def user(self, messages: Sequence[Message]) -> bytes:
        """Encode one user message with a text block for each of `messages`."""
        return copy_to_keep(orjson.dumps({"role": "user", "content": [_text(message) for message in messages]}))

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """Encode the assistant's blocks and, if it called tools, the user message with their results."""
        turn = orjson.dumps({"role": "assistant", "content": self._blocks(assistant)})
        if not results:
            return copy_to_keep(turn)
        answers: list[dict[str, Any]] = []
        for result in results:
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.tool_call_id}
            if result.images:
                texts = [_text(result)] if result.content.strip() else []
                block["content"] = [*texts, *map(_image, result.images)]
            elif result.content:
                block["content"] = orjson.Fragment(result.content_json)
            if result.is_error:
                block["is_error"] = True
            answers.append(block)
        return turn + b"," + orjson.dumps({"role": "user", "content": answers})

    def _blocks(self, assistant: Message) -> list[Any]:
        blocks: list[Any] = []
        answered = False
        for part in assistant.parts_for(NAME, self._model):
            if isinstance(part, Block):
                blocks.append(orjson.Fragment(part.raw))
                answered = answered or orjson.loads(part.raw)["type"] not in ("thinking", "redacted_thinking")
            elif not isinstance(part, str):
                name, given = sendable_name(part.name), orjson.Fragment(part.arguments_json)
                blocks.append({"type": "tool_use", "id": part.call_id, "name": name, "input": given})
                answered = True
            elif part.strip():
                is_all = part == assistant.content
                text = orjson.Fragment(assistant.content_json) if is_all else part
                blocks.append({"type": "text", "text": text})
                answered = True
        # The API refuses an assistant message that is empty or only thinking.
        return blocks if answered else [*blocks, {"type": "text", "text": NO_TEXT}]


def _image(image: Image) -> dict[str, Any]:
    data = orjson.Fragment(b'"%s"' % b64encode(image.data))
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}


def _text(message: Message) -> dict[str, Any]:
    text = message.content.strip()
    return {"type": "text", "text": orjson.Fragment(message.content_json) if text else NO_TEXT}


def _is_closed(schema: Any) -> bool:
    """True if all objects of a JSON Schema exclude additional properties: the provider refuses any other schema."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    is_object = schema.get("type") == "object" or "properties" in schema
    return not (is_object and schema.get("additionalProperties") is not False) and all(map(_is_closed, schema.values()))


# Answers of the Anthropic Messages dialect: from the events of one stream to a turn (AH 6.3).

_MEANINGS: dict[str, Meaning] = {
    "end_turn": "complete",
    "stop_sequence": "complete",
    "tool_use": "empty",
    "max_tokens": "cut",
    "model_context_window_exceeded": "window",
    "pause_turn": "continue",
    "compaction": "continue",
    "refusal": "blocked",
}
_OURS = frozenset({"text", "tool_use"})
# A field of `cache_creation` in the usage; the rest of `cache_creation_input_tokens` is cached for five minutes.
_WRITTEN_FOR_AN_HOUR = "ephemeral_1h_input_tokens"


# Deltas whose text is appended to a field of an opaque block, and deltas whose value replaces a field.
_APPENDED = {"thinking_delta": "thinking"}
_REPLACED = {"signature_delta": ("signature",), "compaction_delta": ("content", "encrypted_content")}


class _Block:
    """One content block. Blocks that are neither text nor calls of our tools are opaque and sent back unchanged:
    thinking with its signature, redacted thinking, calls and results of the provider's tools, and unknown kinds.
    `parts` are pieces of a text or of arguments."""

    def __init__(self, index: int, start: dict[str, Any]) -> None:
        self.index = index
        self.start = start
        self.raw = ""  # JSON text of the start of an opaque block
        self.input = ""  # JSON text of arguments that came with the start
        self.kind = required_text(start["type"])
        self.call_id, self.name = _string(start.get("id")), _string(start.get("name"))
        self.is_opaque = self.kind not in _OURS
        self.closed = False
        self.parts: list[str] = []
        self.argument_bytes = 0
        self.open_end = ""  # a high surrogate that the next text may complete
        self.citations: list[Any] = []
        self._appended: dict[str, list[str]] = {}
        self._replaced: dict[str, Any] = {}
        self._known = True
        self._open_thought = ""

    def add(self, delta: dict[str, Any]) -> None:
        """Add a delta of an opaque block. Raises KeyError, TypeError for a malformed one."""
        kind = delta["type"]
        if kind in _APPENDED:
            field = _APPENDED[kind]
            self._appended.setdefault(field, []).append(delta[field])
        elif kind in _REPLACED:
            self._replaced |= {field: delta[field] for field in _REPLACED[kind] if field in delta}
        elif kind == "input_json_delta":
            self.parts.append(delta["partial_json"])
        elif any(value for name, value in delta.items() if name != "type"):
            self._known = False

    def shown(self, part: dict[str, Any]) -> str:
        """Return the thinking in `part`, the start of this block or a delta, for display; "" for none. A high surrogate
        is retained until the low one arrives, and not shown without it."""
        text = part.get("thinking") if part["type"] in ("thinking", "thinking_delta") else None
        if not isinstance(text, str):
            return ""
        text, self._open_thought = split_open_end(self._open_thought + text)
        return repair(text)[0]

    def to_json(self) -> str | None:
        """Return the opaque block as JSON text; None if it cannot be sent back unchanged, because it is malformed or
        had a lone surrogate or a delta of an unknown kind."""
        if not self._known:
            return None
        try:
            block: dict[str, Any] = json_text.loads(self.raw)
            if not (self._appended or self._replaced or self.parts):
                return self.raw
            for field, pieces in self._appended.items():
                block[field], replaced = repair(block.get(field, "") + "".join(pieces))
                if replaced:
                    return None
            block |= self._replaced
            arguments = "".join(self.parts)
            if arguments:
                json_text.loads(arguments)
                block["input"] = orjson.Fragment(arguments)
            return orjson.dumps(block).decode()
        except (TypeError, ValueError):  # orjson's own errors are of these kinds
            return None

    def text_with_fields(self, text: str) -> str | None:
        """Return the block of a text as JSON text; None if it has no other fields or they cannot be encoded."""
        fields = {name: value for name, value in self.start.items() if value is not None}
        fields |= {"type": "text", "text": text}
        if self.citations:
            first = fields.get("citations")
            fields["citations"] = [*first, *self.citations] if isinstance(first, list) else self.citations
        if len(fields) == len(("type", "text")) or fields.get("citations") == []:
            return None
        try:
            return orjson.dumps(fields).decode()
        except orjson.JSONEncodeError:
            return None


class AnthropicAssembler(Assembler):
    """See Assembler. Builds a turn from message_start, content blocks by index, message_delta and message_stop."""

    meanings: ClassVar[Mapping[str, Meaning]] = _MEANINGS

    def __init__(self, max_call_arguments_bytes: int | None = None, real_name: Callable[[str], str] = str) -> None:
        super().__init__(max_call_arguments_bytes, real_name)
        self._by_index: dict[int, _Block] = {}
        self._blocks: list[_Block] = []
        self._usage: dict[str, int] = {}
        self._detail = ""

    def _take(self, event: str, data: str) -> str | None:
        """Skip unknown events, as the API requires of its clients, and everything after the end. The type of an event
        without a name, as sent by proxies, is read from its data."""
        if event == UNNAMED:
            event = self._event = _type_of(data)
        handler = self._HANDLERS.get(event)
        if handler is None or self.is_over:
            return None
        return handler(self, self._load(data, ends=event != "content_block_delta"))

    def finish(self) -> ModelTurn:
        """Return the turn after `message_stop`. An unclosed block is not kept, except for its text, and neither is
        thinking without a signature in an answer that was cut."""
        if not (self._started and self.is_over and self._stop_reason is not None):
            raise StreamProtocolError("the stream ended before the message did")
        parts = TurnParts(NAME)
        for block in sorted(self._blocks, key=lambda block: block.index):
            if block.kind == "tool_use":
                parts.add_call(self._tool_call(block))
                continue
            text = "" if block.is_opaque else "".join(block.parts)
            raw = block.to_json() if block.is_opaque else block.text_with_fields(text)
            if self._is_cut() and raw and block.kind == "thinking" and not orjson.loads(raw).get("signature"):
                continue
            self._dropped += block.closed and block.is_opaque and raw is None
            if raw is not None and block.closed and (text or block.is_opaque):
                parts.add_block(raw, holds_text=not block.is_opaque)
            parts.add_text(text)
        detail = self._detail if self._stop_reason != "max_tokens" else self._stop_reason
        return self._turn(parts, self._stop_reason, self._token_usage(), detail)

    def _is_cut(self) -> bool:
        return self.meaning_of(self._stop_reason or "") in ("cut", "window")

    def _message_start(self, data: dict[str, Any]) -> None:
        if self._started:
            raise StreamProtocolError("a second message begins in the stream of the first")
        self.content += 1
        self._started = True
        message = data["message"]
        self._note_names(message)
        self._note_usage(message.get("usage") or {})

    def _block_start(self, data: dict[str, Any]) -> str | None:
        raw = data["content_block"]
        block = _Block(int(data["index"]), raw)
        left = self._close_ends() if self._halves else ""
        self.content += block.index not in self._by_index
        self._blocks.append(block)  # proxies may send several blocks with one index
        self._by_index[block.index] = block
        if block.kind == "tool_use" and isinstance(raw.get("input"), dict) and raw["input"] and not self._halves:
            block.input = self._raw.members("content_block").get("input", "")
        if block.is_opaque:
            block.raw = self._raw.text("content_block")
            self.thinking = block.shown(raw)
        if block.kind != "text":
            return left
        text = _string(raw.get("text"))
        block.parts.append(text)
        return left + text

    def _block_delta(self, data: dict[str, Any]) -> str | None:
        block, delta = self._by_index.get(data["index"]), data["delta"]
        if block is None:  # a delta of a block that never started
            return None
        kind = delta["type"]
        if block.is_opaque:
            block.add(delta)
            self.thinking = block.shown(delta)
        if kind == "text_delta" and block.kind == "text":
            text = required_text(delta["text"])
            self.content += len(text)
            if self._halves:
                text, block.open_end = split_open_end(block.open_end + text)
                text = self._repair(text)
            block.parts.append(text)
            return text
        if kind == "citations_delta":
            block.citations.append(delta["citation"])
        if kind == "input_json_delta" and block.kind == "tool_use":
            self._add_arguments(block, required_text(delta["partial_json"]))
        elif any(value for name, value in delta.items() if name != "type"):
            self.content += 1
        return None

    def _block_stop(self, data: dict[str, Any]) -> None:
        block = self._by_index.get(data["index"])
        if block is not None:
            block.closed = True

    def _add_arguments(self, block: _Block, part: str) -> None:
        self.content += len(part)
        block.parts.append(part)
        block.argument_bytes += size_of(part)
        self._reader.check_size(block.argument_bytes)

    def _message_delta(self, data: dict[str, Any]) -> None:
        reason = _string(data["delta"].get("stop_reason"))
        self.content += reason not in ("", self._stop_reason)
        self._stop_reason = reason or self._stop_reason
        details = data["delta"].get("stop_details")
        parts = [details.get(name) for name in ("category", "explanation")] if isinstance(details, dict) else []
        line = " ".join(": ".join(part for part in parts if isinstance(part, str) and part).split())
        self._detail = line[:MAX_DETAIL] or self._detail
        self._note_usage(data.get("usage") or {})

    def _message_stop(self, _: dict[str, Any]) -> str | None:
        self.is_over = True
        return self._close_ends() if self._halves else None

    def _close_ends(self) -> str:
        """Return the text for high surrogates that were never completed."""
        closed = ""
        for block in self._blocks:
            if block.open_end:
                end, block.open_end = self._repair(block.open_end), ""
                block.parts.append(end)
                closed += end
        return closed

    def _error(self, data: dict[str, Any]) -> None:
        error = data["error"]
        raise StreamFault(f"{required_text(error['type'])}: {error.get('message', '')}", body=data)

    def _tool_call(self, block: _Block) -> ToolCall:
        """Return the call of a tool_use block, with a `problem` if it cannot run."""
        at_the_limit = self._is_cut() and block is self._blocks[-1] and not "".join(block.parts).strip()
        at_start = block.start.get("input")
        is_closed = block.closed and not (at_the_limit and not at_start)
        if is_closed:
            self._reader.check_size(size_of(block.input))
        arguments = "".join(block.parts) or block.input or (at_start if isinstance(at_start, dict) else None)
        return self._reader.call(block.call_id, block.name, arguments, is_closed=is_closed)

    def _token_usage(self) -> TokenUsage:
        """Return the counts. This API's `input_tokens` excludes tokens read from the cache and written to it."""
        count = self._usage.get
        read, written = count("cache_read_input_tokens", 0), count("cache_creation_input_tokens", 0)
        input_tokens = count("input_tokens", 0) + read + written
        long = min(written, count(_WRITTEN_FOR_AN_HOUR, 0))
        return TokenUsage(input_tokens, count("output_tokens", 0), read, written, long)

    def _note_usage(self, usage: Mapping[str, Any]) -> None:
        # Counts in message_delta are cumulative, so they replace those of message_start.
        by_time = usage.get("cache_creation")
        counts = {**usage, **by_time} if isinstance(by_time, dict) else usage
        self._usage.update(
            (name, min(count, MAX_COUNT)) for name, count in counts.items() if type(count) is int and count >= 0
        )

    _HANDLERS: ClassVar[dict[str, Callable[[AnthropicAssembler, Any], str | None]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "error": _error,
    }


def _type_of(data: str) -> str:
    """Return the type in an event's data, "" for none. Raises StreamProtocolError for an object that cannot be read,
    because it may have been any event."""
    try:
        kind = (loads_with_halves if may_hold_halves(data) else orjson.loads)(data).get("type")
    except (ValueError, AttributeError) as error:
        if data.lstrip().startswith("{"):
            raise StreamProtocolError("an event without a name is malformed") from error.with_traceback(None)
        return ""
    return kind if isinstance(kind, str) else ""


def _string(value: object) -> str:
    """Return a text, "" if it is missing. Raises ValueError for any other type."""
    return "" if value is None else required_text(value)


class AnthropicDialect(Dialect):
    """See Dialect. This provider finds its cache by the request's prefix and accepts no key for it."""

    name: ClassVar[str] = NAME
    renderer_type: ClassVar[type[MessageRenderer]] = AnthropicRenderer
    assembler_type: ClassVar[type[Assembler]] = AnthropicAssembler
    path: ClassVar[str] = "/v1/messages"
    caches_by_name: ClassVar[bool] = False
    key_header: ClassVar[str] = "x-api-key"
    own_headers: ClassVar[Mapping[str, str]] = MappingProxyType({"anthropic-version": "2023-06-01"})

    def _settings(self, max_output_tokens: int) -> dict[str, Any]:
        return {"max_tokens": max_output_tokens, "stream": True}

    def _definition(self, name: str, tool: ToolSpec) -> dict[str, Any]:
        return {"name": name, "description": tool.description, "input_schema": tool.input_schema}

    def _answer_form(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        form = {"format": {"type": "json_schema", "schema": schema}}
        return {"output_config": form} if _is_closed(schema) else {}

    def _open(self, request: dict[str, Any], system: str, *, is_marked: bool) -> bytes:
        mark = {"cache_control": _CACHE_MARK[self._cache_ttl]} if is_marked else {}
        request["system"] = [{"type": "text", "text": system, **mark}]
        return orjson.dumps(request)[:-1] + b',"messages":['

    def events_of_answer(self, body: str) -> Iterator[Event]:
        """See Dialect. Each block is complete in its start event, except that a call's arguments follow as JSON text in
        a delta, so that they are read as in a stream."""
        message = members(body)
        blocks = elements(message["content"])
        refuse_open(message["stop_reason"])
        head = {name: text for name, text in message.items() if name != "content"}
        yield "message_start", join_members({"message": join_members(head)})
        for index, block in enumerate(blocks):
            start, arguments = _start_block(block)
            yield "content_block_start", join_members({"index": str(index), "content_block": start})
            if arguments:
                delta = orjson.dumps({"type": "input_json_delta", "partial_json": arguments}).decode()
                yield "content_block_delta", join_members({"index": str(index), "delta": delta})
            yield "content_block_stop", join_members({"index": str(index)})
        ended = {name: text for name, text in message.items() if name in ("stop_reason", "stop_details")}
        yield "message_delta", join_members({"delta": join_members(ended), "usage": message.get("usage", "null")})
        yield "message_stop", "{}"


def _start_block(block: str) -> tuple[str, str]:
    """Return the block for its start event, and the JSON text of the arguments if it is a call of our tools."""
    fields = members(block)
    if orjson.loads(fields["type"]) != "tool_use" or "input" not in fields:
        return block, ""
    arguments = fields.pop("input")
    value = orjson.loads(arguments)
    return join_members(fields), value if isinstance(value, str) else arguments
