"""Answers in the Anthropic Messages dialect: pure functions from a turn to encoded bytes."""

from __future__ import annotations

import binascii
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.dialects import BadRequest, CachePiece, has_mark_of, mark_of, progress, tool_id
from agent_host.testing.script import RequestView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.testing.script import ErrorBody, Turn

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Anthropic:
    """`POST /v1/messages`, streaming and not."""

    path = "/v1/messages"
    has_cache_marks = True
    closing_events = 2

    def read(self, payload: Any, headers: Mapping[str, str]) -> RequestView:
        """See `Dialect.read`."""
        return read_request(payload, headers)

    def pieces(self, payload: Any) -> list[CachePiece]:
        """See `Dialect.pieces`."""
        return pieces_of(payload)

    def stream_events(self, turn: Turn, view: RequestView) -> list[bytes]:
        """See `Dialect.stream_events`."""
        events = [_event("message_start", {"message": _head(turn, view)})]
        for index, block in enumerate(_blocks(turn, view)):
            events += _block_events(index, block, turn.chunk_chars)
        delta = {"stop_reason": _stop_reason(turn), "stop_sequence": None}
        events.append(_event("message_delta", {"delta": delta, "usage": _usage(turn)}))
        events.append(_event("message_stop", {}))
        return _add_pings(events, turn.pings)

    def error_event(self, error: ErrorBody, view: RequestView) -> bytes:
        """See `Dialect.error_event`."""
        del view
        return _event("error", {"error": _error(500, error)})

    def failed_message(self, error: ErrorBody, view: RequestView) -> None:
        """See `Dialect.failed_message`."""

    def message(self, turn: Turn, view: RequestView) -> bytes:
        """See `Dialect.message`. Tool arguments that are not a JSON object go out as the string they are."""
        return orjson.dumps(
            {
                **_head(turn, view),
                "content": [_whole_block(block) for block in _blocks(turn, view)],
                "stop_reason": _stop_reason(turn),
                "usage": _usage(turn),
            }
        )

    def error(self, status: int, error: ErrorBody) -> bytes:
        """See `Dialect.error`."""
        return orjson.dumps({"type": "error", "error": _error(status, error)})


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def _error(status: int, error: ErrorBody) -> dict[str, str]:
    usual = ERROR_TYPES.get(status) or ERROR_TYPES[400 if status < 500 else 500]
    return {"type": error.type or usual, "message": error.message}


def _head(turn: Turn, view: RequestView) -> dict[str, Any]:
    return {
        "id": f"msg_{view.session}_{view.turn_index}",
        "type": "message",
        "role": "assistant",
        "model": view.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        # Output has hardly begun when a stream opens; the closing message_delta carries the final count.
        "usage": {**_usage(turn), "output_tokens": 1},
    }


def _usage(turn: Turn) -> dict[str, Any]:
    counts = turn.usage
    written, long = counts.cache_creation_input_tokens, counts.cache_creation_1h_input_tokens
    return {
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cache_read_input_tokens": counts.cache_read_input_tokens,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_5m_input_tokens": written - long, "ephemeral_1h_input_tokens": long},
    }


def _stop_reason(turn: Turn) -> str:
    return turn.stop_reason or ("tool_use" if turn.tool_calls else "end_turn")


def _blocks(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    """The content blocks of the answer, a tool call's `input` still being the text of its arguments."""
    thinking = list(_thinking(turn, view))
    yield from thinking
    if turn.text:
        yield {"type": "text", "text": turn.text}
    for number, call in enumerate(turn.tool_calls):
        yield {
            "type": "tool_use",
            "id": call.id
            or tool_id(view, number, takes_position=turn.when is None, mark=mark_of(view.model, thinking)),
            "name": call.name,
            "input": call.encode_arguments(),
        }


def _thinking(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    if turn.thinking:
        yield {"type": "thinking", "thinking": turn.thinking, "signature": f"sig_{view.session}_{view.turn_index}"}
    if turn.redacted_thinking:
        yield {"type": "redacted_thinking", "data": turn.redacted_thinking}


def _whole_block(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] != "tool_use":
        return block
    try:
        return {**block, "input": orjson.loads(block["input"])}
    except orjson.JSONDecodeError:
        return block


_EMPTY_START: Mapping[str, Mapping[str, Any]] = {
    "thinking": {"thinking": "", "signature": ""},
    "text": {"text": ""},
    "tool_use": {"input": {}},
}
_DELTAS: Mapping[str, tuple[tuple[str, str, str, bool], ...]] = {
    # block type: (field of the block, delta type, field of the delta, sent in chunks)
    "thinking": (
        ("thinking", "thinking_delta", "thinking", True),
        ("signature", "signature_delta", "signature", False),
    ),
    "text": (("text", "text_delta", "text", True),),
    "tool_use": (("input", "input_json_delta", "partial_json", True),),
}


def _block_events(index: int, block: dict[str, Any], chunk_chars: int) -> Iterator[bytes]:
    kind = block["type"]
    yield _event("content_block_start", {"index": index, "content_block": {**block, **_EMPTY_START.get(kind, {})}})
    for source, delta_type, target, chunked in _DELTAS.get(kind, ()):
        text: str = block[source]
        step = chunk_chars if chunked else max(len(text), 1)
        for start in range(0, len(text), step):
            delta = {"type": delta_type, target: text[start : start + step]}
            yield _event("content_block_delta", {"index": index, "delta": delta})
    yield _event("content_block_stop", {"index": index})


def _add_pings(events: list[bytes], pings: int) -> list[bytes]:
    """One ping after each of the first `pings` events, the rest of them before the last event."""
    if not pings:
        return events
    ping = _event("ping", {})
    spread = min(pings, len(events) - 1)
    head = [part for event in events[:spread] for part in (event, ping)]
    return [*head, *events[spread:-1], *[ping] * (pings - spread), events[-1]]


# Reading requests in the Anthropic Messages dialect, as strictly as the real endpoint where clients go wrong.
#
# Above all a thread must be sendable: each tool call answered by exactly one result, in the very next message.

_ROLES = ("user", "assistant")


def read_request(payload: Any, headers: Mapping[str, str]) -> RequestView:
    """Check a decoded body of `POST /v1/messages` and take from it what scripts look at.

    Raises:
        BadRequest: the body is not one that can be answered.
    """
    if not isinstance(payload, dict):
        raise BadRequest("the body must be a JSON object")
    model = _require(payload, "model", str)
    max_tokens = _require(payload, "max_tokens", int)
    messages = _require(payload, "messages", list)
    if not messages:
        raise BadRequest("messages: at least one message is required")
    _check_messages(messages)
    check_thinking(messages, model)
    last = messages[-1]
    turn_index, position = progress(
        [block.get("id") for block in _blocks_of(message, "tool_use")]
        for message in reversed(messages)
        if message["role"] == "assistant"
    )
    return RequestView(
        session=headers.get("x-session-id") or _thread_key(messages),
        model=model,
        system=_text(payload.get("system", "")),
        max_tokens=max_tokens,
        stream=payload.get("stream") is True,
        tools=tuple(str(tool.get("name", "")) for tool in payload.get("tools") or () if isinstance(tool, dict)),
        message_count=len(messages),
        turn_index=turn_index,
        position=position,
        last_role=last["role"],
        last_text=_text(last["content"]),
        last_tool_error=any(block.get("is_error") is True for block in _blocks_of(last, "tool_result")),
        last_images=tuple(images_in(last["content"])),
        image_count=sum(1 for message in messages for _ in images_in(message["content"])),
        headers=headers,
    )


def pieces_of(payload: dict[str, Any]) -> list[CachePiece]:
    """Tools, system prompt and the blocks of all messages, as a cache keeps them. A mark is no part of what is kept."""
    blocks: list[tuple[str, Any]] = [("tools", tool) for tool in payload.get("tools") or ()]
    blocks += [("system", block) for block in _to_blocks(payload.get("system") or ())]
    blocks += [
        (f"{number} {message['role']}", block)
        for number, message in enumerate(payload["messages"])
        for block in _to_blocks(message["content"])
    ]
    return [_piece(place, block) for place, block in blocks]


def _to_blocks(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _piece(place: str, block: Any) -> CachePiece:
    if not isinstance(block, dict):
        return CachePiece(orjson.dumps([place, block]))
    kept = {name: value for name, value in block.items() if name != "cache_control"}
    mark = block.get("cache_control")
    is_long = isinstance(mark, dict) and mark.get("ttl") == "1h"
    return CachePiece(orjson.dumps([place, kept]), marked=mark is not None, long=is_long)


def _require(payload: dict[str, Any], key: str, kind: type) -> Any:
    value = payload.get(key)
    if value is None:
        raise BadRequest(f"{key}: field required")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRequest(f"{key}: must be of type {kind.__name__}")
    return value


def _check_messages(messages: Sequence[Any]) -> None:
    """Roles, contents and the pairing of tool calls with results, in one pass: threads may hold thousands."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise BadRequest(f"messages.{index}: role must be one of {', '.join(_ROLES)}")
        calls, results = _check_content(index, message.get("content"))
        if open_calls or results:
            _check_pairing(index, open_calls, results)
        if calls and message["role"] != "assistant":
            raise BadRequest(f"messages.{index}: tool_use blocks belong to the assistant")
        if calls and (len(set(calls)) < len(calls) or not seen.isdisjoint(calls)):
            raise BadRequest(f"messages.{index}: tool_use ids must be unique in a conversation: {', '.join(calls)}")
        seen.update(calls)
        open_calls = calls
    if messages[0]["role"] != "user":
        raise BadRequest("messages.0: the first message must be the user's")
    if open_calls:
        _check_pairing(len(messages), open_calls, [])


def _check_content(index: int, content: Any) -> tuple[list[str], list[str]]:
    """The ids of the tool calls and of the tool results in one message's content."""
    calls: list[str] = []
    results: list[str] = []
    if isinstance(content, str) and content:
        return calls, results
    if not isinstance(content, list) or not content:
        raise BadRequest(f"messages.{index}: content must be text or an array of blocks, and not empty")
    for position, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            results.append(str(block.get("tool_use_id")))
            _check_result(block.get("content"), f"messages.{index}.content.{position}")
        elif kind == "image":
            check_image(block, f"messages.{index}.content.{position}")
        elif kind == "tool_use":
            calls.append(str(block.get("id")))
            if not isinstance(block.get("input"), dict):
                raise BadRequest(f"messages.{index}.content.{position}: the input of tool_use must be an object")
        elif kind == "text" and not block.get("text"):
            raise BadRequest(f"messages.{index}.content.{position}: text blocks must not be empty")
        elif not isinstance(kind, str):
            raise BadRequest(f"messages.{index}.content.{position}: must be an object with a type")
    return calls, results


def _check_result(content: Any, where: str) -> None:
    """The content of a tool result, where it is blocks: texts that are not empty, and images."""
    for position, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "image":
            check_image(block, f"{where}.content.{position}")
        elif kind == "text" and not block.get("text"):
            raise BadRequest(f"{where}.content.{position}: text blocks must not be empty")
        elif not isinstance(kind, str):
            raise BadRequest(f"{where}.content.{position}: must be an object with a type")


def _check_pairing(index: int, calls: list[str], results: list[str]) -> None:
    if calls == results:
        return
    if lacking := [call for call in calls if call not in results]:
        raise BadRequest(f"messages.{index - 1}: tool_use without tool_result right after it: {', '.join(lacking)}")
    if strays := [result for result in results if result not in calls]:
        raise BadRequest(f"messages.{index}: tool_result without tool_use right before it: {', '.join(strays)}")
    if len(results) > len(calls):
        raise BadRequest(f"messages.{index}: more than one tool_result for one tool_use")


def _thread_key(messages: Sequence[dict[str, Any]]) -> str:
    """A key for conversations that do not say their session: it stays the same as long as the first message does."""
    return sha256(_text(messages[0]["content"]).encode()).hexdigest()[:16]


def _blocks_of(message: Mapping[str, Any], kind: str) -> Sequence[dict[str, Any]]:
    content = message["content"]
    return () if isinstance(content, str) else [block for block in content if block.get("type") == kind]


def _text(content: Any) -> str:
    """The text of a string, of blocks, or of tool results in blocks, one part a line."""
    return content if isinstance(content, str) else "\n".join(_texts(content))


def _texts(blocks: Any) -> Iterable[str]:
    if not isinstance(blocks, list):
        return
    for block in blocks:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "text":
            yield str(block.get("text", ""))
        elif block.get("type") == "tool_result":
            yield _text(block.get("content", ""))


# True if thinking comes back as it was sent, which the real endpoint asks for beside tool calls.
#
# The gateway remembers nothing: the ids of the calls carry a mark, made of the model and of the thinking before them.

_KINDS = ("thinking", "redacted_thinking")


def check_thinking(messages: Sequence[Any], model: str) -> None:
    """Each call whose id has a mark of `model` must stand behind the blocks that it stood behind. Another model reads
    none of them. Raises BadRequest."""
    for index, message in enumerate(messages):
        content = message["content"]
        if message["role"] != "assistant" or isinstance(content, str):
            continue
        for block in content:
            if block["type"] == "tool_use" and has_mark_of(block.get("id"), model):
                _check(index, content, block["id"], model)
                break


def _check(index: int, content: Sequence[dict[str, Any]], call_id: str, model: str) -> None:
    first = next(place for place, block in enumerate(content) if block["type"] == "tool_use")
    places = [place for place, block in enumerate(content[:first]) if block["type"] in _KINDS]
    if not places:
        raise BadRequest(
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{content[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block (preceding the lastmost set of `tool_use` and `tool_result` blocks)"
        )
    if not call_id.endswith(mark_of(model, [content[place] for place in places])):
        raise BadRequest(
            f"messages.{index}.content.{places[0]}: `thinking` or `redacted_thinking` blocks in the latest assistant "
            "message cannot be modified. These blocks must remain as they were in the original response"
        )


# Image blocks of a request, checked as the real endpoint does: kind, encoding, size.

_MAX_BASE64_BYTES = 5 * 1024 * 1024
_BEGINNINGS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


def check_image(block: Mapping[str, Any], where: str) -> None:
    """Raises BadRequest for an image block that would be refused; `where` is its place in the request."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise BadRequest(f"{where}.source: must be an object of type base64")
    kind, data = source.get("media_type"), source.get("data")
    if kind not in _BEGINNINGS:
        raise BadRequest(f"{where}.source.base64.media_type: must be one of {', '.join(_BEGINNINGS)}")
    if not isinstance(data, str) or not data:
        raise BadRequest(f"{where}.source.base64.data: field required")
    if len(data) > _MAX_BASE64_BYTES:
        raise BadRequest(
            f"{where}.source.base64: image exceeds 5 MB maximum: {len(data)} bytes > {_MAX_BASE64_BYTES} bytes"
        )
    try:
        decoded = binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise BadRequest(f"{where}.source.base64.data: is not base64") from error
    if not decoded.startswith(_BEGINNINGS[kind]):
        raise BadRequest(f"{where}.source.base64.data: the image does not appear to be {kind}")


def images_in(content: Any) -> Iterator[str]:
    """The media types of the images in a message's content, those in tool results included."""
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "image":
            yield str(block["source"]["media_type"])
        elif isinstance(block, dict) and block.get("type") == "tool_result":
            yield from images_in(block.get("content"))
