"""Answers in the Chat Completions dialect: pure functions from a turn to encoded bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.chat_request import read_request
from agent_host.testing.prompt_cache import blocks_of
from agent_host.testing.tool_ids import mark_of, tool_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.testing.dialect import RequestView
    from agent_host.testing.prompt_cache import Piece
    from agent_host.testing.script import ErrorBody, Turn

ERROR_TYPES: Mapping[int, tuple[str, str | None]] = {
    # type and code
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("insufficient_quota", "insufficient_quota"),
    403: ("invalid_request_error", "permission_denied"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", None),
}
_STOP_REASONS: Mapping[str, str] = {
    # words that scripts have of the Messages dialect; any other is sent as it is
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "refusal": "stop",  # the text says it
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_CREATED = 1767225600


class ChatCompletions:
    """`POST /v1/chat/completions`, streaming and not."""

    path = "/v1/chat/completions"
    has_cache_marks = False
    closing_events = 3

    def read(self, payload: Any, headers: Mapping[str, str]) -> RequestView:
        """See `Dialect.read`."""
        return read_request(payload, headers)

    def pieces(self, payload: Any) -> list[Piece]:
        """See `Dialect.pieces`."""
        parts = (*(payload.get("tools") or ()), *payload["messages"])
        return [piece for part in parts for piece in blocks_of(orjson.dumps(part))]

    def stream_events(self, turn: Turn, view: RequestView) -> list[bytes]:
        """See `Dialect.stream_events`."""
        head = _head(view, "chat.completion.chunk")
        deltas = [{"role": "assistant", "content": ""}, *_deltas(turn, view)]
        chunks = [_chunk(head, delta, None, view) for delta in deltas]
        chunks.append(_chunk(head, {}, _finish_reason(turn), view))
        if view.wants_usage:
            chunks.append({**head, "choices": [], "usage": _usage(turn)})
        events = [b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks]
        return with_comments([*events, b"data: [DONE]\n\n"], turn.pings)

    def error_event(self, error: ErrorBody, view: RequestView) -> bytes:
        """See `Dialect.error_event`."""
        del view
        return b"data: %b\n\n" % self.error(500, error)

    def failed_message(self, error: ErrorBody, view: RequestView) -> None:
        """See `Dialect.failed_message`."""

    def message(self, turn: Turn, view: RequestView) -> bytes:
        """See `Dialect.message`."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, **_reasoning(turn)}
        if turn.text:
            message[_text_field(turn)] = turn.text
        if turn.tool_calls:
            message["tool_calls"] = list(_calls(turn, view))
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(turn)}
        return orjson.dumps({**_head(view, "chat.completion"), "choices": [choice], "usage": _usage(turn)})

    def error(self, status: int, error: ErrorBody) -> bytes:
        """See `Dialect.error`."""
        usual = ERROR_TYPES.get(status) or ERROR_TYPES[400 if status < 500 else 500]
        kind, code = (error.type, error.type) if error.type else usual
        return orjson.dumps({"error": {"message": error.message, "type": kind, "param": None, "code": code}})


def _head(view: RequestView, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{view.session}-{view.turn_index}"
    return {"id": name, "object": kind, "created": _CREATED, "model": view.model}


def _chunk(
    head: Mapping[str, Any], delta: Mapping[str, Any], finish_reason: str | None, view: RequestView
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**head, "choices": [choice], **({"usage": None} if view.wants_usage else {})}


def _finish_reason(turn: Turn) -> str:
    if turn.stop_reason:
        return _STOP_REASONS.get(turn.stop_reason, turn.stop_reason)
    return "tool_calls" if turn.tool_calls else "stop"


def _text_field(turn: Turn) -> str:
    return "refusal" if turn.stop_reason == "refusal" else "content"


def _usage(turn: Turn) -> dict[str, Any]:
    """The script's counts in this wire's form, where the prompt is all input."""
    counts = turn.usage
    prompt = counts.input_tokens + counts.cache_read_input_tokens + counts.cache_creation_input_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": counts.output_tokens,
        "total_tokens": prompt + counts.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": counts.cache_read_input_tokens,
            "cache_write_tokens": counts.cache_creation_input_tokens,
        },
    }


def _reasoning(turn: Turn) -> dict[str, Any]:
    """The fields of the message that have to come back beside its tool calls."""
    fields: dict[str, Any] = {}
    if turn.thinking:
        fields["reasoning_content"] = turn.thinking
    if turn.redacted_thinking:
        fields["reasoning_details"] = [
            {"type": "reasoning.encrypted", "data": turn.redacted_thinking, "id": "rs_0", "index": 0}
        ]
    return fields


def _calls(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    mark = mark_of(view.model, _reasoning(turn))
    for number, call in enumerate(turn.tool_calls):
        made = tool_id(view, number, takes_position=turn.when is None, mark=mark, prefix="call")
        function = {"name": call.name, "arguments": call.encoded_arguments()}
        yield {"id": call.id or made, "type": "function", "function": function}


def _deltas(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    for piece in _pieces(turn.thinking, turn):
        yield {"reasoning_content": piece}
    reasoning = _reasoning(turn)
    if "reasoning_details" in reasoning:
        yield {"reasoning_details": reasoning["reasoning_details"]}
    for piece in _pieces(turn.text, turn):
        yield {_text_field(turn): piece}
    for index, call in enumerate(_calls(turn, view)):
        arguments = call["function"]["arguments"]
        start = {**call, "function": {**call["function"], "arguments": ""}}
        yield {"tool_calls": [{"index": index, **start}]}
        for piece in _pieces(arguments, turn):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, turn: Turn) -> Iterator[str]:
    for start in range(0, len(text), turn.chunk_chars):
        yield text[start : start + turn.chunk_chars]


def with_comments(events: list[bytes], pings: int) -> list[bytes]:
    """One comment after each of the first `pings` events, the rest of them before the last event."""
    ping = b": ping\n\n"
    spread = min(pings, len(events) - 1)
    head = [part for event in events[:spread] for part in (event, ping)]
    return [*head, *events[spread:-1], *[ping] * (pings - spread), events[-1]]
