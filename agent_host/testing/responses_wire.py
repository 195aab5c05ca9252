"""Answers in the Responses dialect: pure functions from a turn to encoded bytes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.testing.chat_wire import ERROR_TYPES, with_comments
from agent_host.testing.prompt_cache import blocks_of
from agent_host.testing.responses_request import read_request
from agent_host.testing.tool_ids import mark_of, tool_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.testing.dialect import RequestView
    from agent_host.testing.prompt_cache import Piece
    from agent_host.testing.script import ErrorBody, Turn

# Words that scripts have of the Messages dialect, and what a response is incomplete for; None: it is complete.
_INCOMPLETE: Mapping[str, str | None] = {
    "": None,
    "end_turn": None,
    "stop_sequence": None,
    "tool_use": None,
    "pause_turn": "steered",
    "refusal": None,  # the text says it
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
}
_CREATED = 1767225600


class Responses:
    """`POST /v1/responses`, streaming and not."""

    path = "/v1/responses"
    has_cache_marks = False
    closing_events = 1

    def read(self, payload: Any, headers: Mapping[str, str]) -> RequestView:
        """See `Dialect.read`."""
        return read_request(payload, headers)

    def pieces(self, payload: Any) -> list[Piece]:
        """See `Dialect.pieces`."""
        parts = (*(payload.get("tools") or ()), *payload["input"])
        return [piece for part in parts for piece in blocks_of(orjson.dumps(part))]

    def stream_events(self, turn: Turn, view: RequestView) -> list[bytes]:
        """See `Dialect.stream_events`."""
        head = _response(view, "in_progress")
        told: list[tuple[str, dict[str, Any]]] = [("response.created", {"response": head})]
        told.append(("response.in_progress", {"response": head}))
        for index, item in enumerate(_items(turn, view)):
            told += _item_events(index, item, turn)
        ended = _ended(turn, view)
        told.append((f"response.{ended['status']}", {"response": {**ended, "output": list(_items(turn, view))}}))
        events = [_event(kind, {**fields, "sequence_number": number}) for number, (kind, fields) in enumerate(told)]
        return with_comments(events, turn.pings)

    def error_event(self, error: ErrorBody, view: RequestView) -> bytes:
        """See `Dialect.error_event`."""
        if error.failed:
            return _event("response.failed", {"response": _failed(error, view), "sequence_number": 0})
        code = error.type or ERROR_TYPES[500][1] or "server_error"
        return _event("error", {"code": code, "message": error.message, "param": None, "sequence_number": 0})

    def failed_message(self, error: ErrorBody, view: RequestView) -> bytes | None:
        """See `Dialect.failed_message`."""
        return orjson.dumps(_failed(error, view)) if error.failed else None

    def message(self, turn: Turn, view: RequestView) -> bytes:
        """See `Dialect.message`."""
        return orjson.dumps({**_ended(turn, view), "output": list(_items(turn, view))})

    def error(self, status: int, error: ErrorBody) -> bytes:
        """See `Dialect.error`."""
        usual = ERROR_TYPES.get(status) or ERROR_TYPES[400 if status < 500 else 500]
        kind, code = (error.type, error.type) if error.type else usual
        return orjson.dumps({"error": {"message": error.message, "type": kind, "param": None, "code": code}})


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def _response(view: RequestView, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{view.session}_{view.turn_index}",
        "object": "response",
        "created_at": _CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": view.model,
        "output": [],
        "parallel_tool_calls": True,
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _failed(error: ErrorBody, view: RequestView) -> dict[str, Any]:
    said = {"code": error.type or "server_error", "message": error.message}
    return {**_response(view, "failed"), "error": said}


def _ended(turn: Turn, view: RequestView) -> dict[str, Any]:
    reason = _INCOMPLETE.get(turn.stop_reason, turn.stop_reason)
    ended = {**_response(view, "completed" if reason is None else "incomplete"), "usage": _usage(turn)}
    return ended if reason is None else {**ended, "incomplete_details": {"reason": reason}}


def _usage(turn: Turn) -> dict[str, Any]:
    """The script's counts in this wire's form, where the input is all of it."""
    counts = turn.usage
    given = counts.input_tokens + counts.cache_read_input_tokens + counts.cache_creation_input_tokens
    return {
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": counts.cache_read_input_tokens,
            "cache_write_tokens": counts.cache_creation_input_tokens,
        },
        "output_tokens": counts.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + counts.output_tokens,
    }


def _items(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    """The items of the answer, whole."""
    reasoning = list(_reasoning(turn, view))
    yield from reasoning
    if turn.text:
        kind = "refusal" if turn.stop_reason == "refusal" else "output_text"
        part = {"type": kind, "refusal": turn.text} if kind == "refusal" else _text_part(turn.text)
        phase = "commentary" if turn.tool_calls else "final_answer"
        message = {"id": f"msg_{view.turn_index}", "type": "message", "status": "completed", "role": "assistant"}
        yield {**message, "content": [part], "phase": phase}
    mark = mark_of(view.model, reasoning)
    for number, call in enumerate(turn.tool_calls):
        made = tool_id(view, number, takes_position=turn.when is None, mark=mark, prefix="call")
        yield {
            "id": f"fc_{view.turn_index}_{number}",
            "type": "function_call",
            "status": "completed",
            "arguments": call.encoded_arguments(),
            "call_id": call.id or made,
            "name": call.name,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _reasoning(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    if turn.thinking or turn.redacted_thinking:
        summary = [{"type": "summary_text", "text": turn.thinking}] if turn.thinking else []
        sealed = turn.redacted_thinking or f"sealed_{view.session}_{view.turn_index}"
        yield {"id": f"rs_{view.turn_index}", "type": "reasoning", "encrypted_content": sealed, "summary": summary}


def _item_events(index: int, item: dict[str, Any], turn: Turn) -> Iterator[tuple[str, dict[str, Any]]]:
    """An item as it is added, told in pieces, and done."""
    of = {"item_id": item["id"], "output_index": index}
    begun, parts = _BEGUN[item["type"]](item)
    yield "response.output_item.added", {"output_index": index, "item": begun}
    for part in parts:
        beside = {**of, **part.beside}
        if part.kind:
            yield f"response.{part.kind}.added", {**beside, "part": {**part.whole, part.field: ""}}
        for start in range(0, len(part.text), turn.chunk_chars):
            piece = {"delta": part.text[start : start + turn.chunk_chars], **part.of_delta}
            yield f"response.{part.told}.delta", {**beside, **piece}
        yield f"response.{part.told}.done", {**beside, part.field: part.text, **part.of_done}
        if part.kind:
            yield f"response.{part.kind}.done", {**beside, "part": part.whole}
    yield "response.output_item.done", {"output_index": index, "item": item}


class _Part(NamedTuple):
    """A part of an item that comes in pieces: `told` names its events, `kind` those around them, "" for none. `whole`
    is the part with its text in `field`; `beside` stands in all events, `of_delta` and `of_done` in some."""

    told: str
    text: str
    field: str
    kind: str = ""
    whole: Mapping[str, Any] = MappingProxyType({})
    beside: Mapping[str, Any] = MappingProxyType({})
    of_delta: Mapping[str, Any] = MappingProxyType({})
    of_done: Mapping[str, Any] = MappingProxyType({})


_Begun = tuple[dict[str, Any], list[_Part]]


def _begun_message(item: dict[str, Any]) -> _Begun:
    (part,) = item["content"]
    place = {"content_index": 0}
    if part["type"] == "refusal":
        told = _Part("refusal", part["refusal"], "refusal", "content_part", part, place)
    else:
        logprobs: dict[str, Any] = {"logprobs": []}
        told = _Part("output_text", part["text"], "text", "content_part", part, place, logprobs, logprobs)
    return {**item, "status": "in_progress", "content": []}, [told]


def _begun_call(item: dict[str, Any]) -> _Begun:
    named = {"name": item["name"]}
    told = _Part("function_call_arguments", item["arguments"], "arguments", of_done=named)
    return {**item, "status": "in_progress", "arguments": ""}, [told]


def _begun_reasoning(item: dict[str, Any]) -> _Begun:
    around = "reasoning_summary_part"
    told = [
        _Part("reasoning_summary_text", part["text"], "text", around, part, {"summary_index": number})
        for number, part in enumerate(item["summary"])
    ]
    return {**item, "summary": []}, told


_BEGUN = {"message": _begun_message, "function_call": _begun_call, "reasoning": _begun_reasoning}
