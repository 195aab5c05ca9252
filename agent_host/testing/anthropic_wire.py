"""Answers in the Anthropic Messages dialect: pure functions from a turn to encoded bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.anthropic_request import pieces_of, read_request
from agent_host.testing.tool_ids import mark_of, tool_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.testing.dialect import RequestView
    from agent_host.testing.prompt_cache import Piece
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

    def pieces(self, payload: Any) -> list[Piece]:
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
        return _with_pings(events, turn.pings)

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
            "input": call.encoded_arguments(),
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


def _with_pings(events: list[bytes], pings: int) -> list[bytes]:
    """One ping after each of the first `pings` events, the rest of them before the last event."""
    if not pings:
        return events
    ping = _event("ping", {})
    spread = min(pings, len(events) - 1)
    head = [part for event in events[:spread] for part in (event, ping)]
    return [*head, *events[spread:-1], *[ping] * (pings - spread), events[-1]]
