"""The Responses dialect of the scripted gateway. Answers: pure functions from a turn to encoded bytes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.testing.dialects import (
    BadRequest,
    MockDialect,
    blocks_of,
    find_bereft,
    ids_of_calls,
    insert_pings,
    named_event,
    objects_in,
    split,
    view_of,
)
from agent_host.testing.dialects.openai_chat import (
    COMMENT,
    ERROR_TYPES,
    array_in,
    check_arguments,
    check_id,
    check_name,
    check_picture,
    encode_error,
    image_block,
    model_of,
    result_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.testing.script import ErrorBody, RequestView, Turn

# Terms of the Messages dialect in scripts, and the reason of an incomplete response; None: it is complete.
_INCOMPLETE: Mapping[str, str | None] = {
    "": None,
    "end_turn": None,
    "stop_sequence": None,
    "tool_use": None,
    "pause_turn": "steered",
    "refusal": None,  # the text is the refusal
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
}
_CREATED = 1767225600


def _stream_events(turn: Turn, view: RequestView) -> list[bytes]:
    head = _response(view, "in_progress")
    emitted: list[tuple[str, dict[str, Any]]] = [("response.created", {"response": head})]
    emitted.append(("response.in_progress", {"response": head}))
    for index, item in enumerate(_items(turn, view)):
        emitted += _item_events(index, item, turn)
    ended = _end(turn, view)
    emitted.append((f"response.{ended['status']}", {"response": {**ended, "output": list(_items(turn, view))}}))
    events = [named_event(kind, {**fields, "sequence_number": number}) for number, (kind, fields) in enumerate(emitted)]
    return insert_pings(events, COMMENT, turn.pings)


def _error_event(error: ErrorBody, view: RequestView) -> bytes:
    if error.failed:
        return named_event("response.failed", {"response": _failure(error, view), "sequence_number": 0})
    code = error.type or ERROR_TYPES[500][1] or "server_error"
    return named_event("error", {"code": code, "message": error.message, "param": None, "sequence_number": 0})


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


def _failure(error: ErrorBody, view: RequestView) -> dict[str, Any]:
    details = {"code": error.type or "server_error", "message": error.message}
    return {**_response(view, "failed"), "error": details}


def _end(turn: Turn, view: RequestView) -> dict[str, Any]:
    reason = _INCOMPLETE.get(turn.stop_reason, turn.stop_reason)
    ended = {**_response(view, "completed" if reason is None else "incomplete"), "usage": _usage(turn)}
    return ended if reason is None else {**ended, "incomplete_details": {"reason": reason}}


def _usage(turn: Turn) -> dict[str, Any]:
    """Return the script's counts in this dialect's form, in which `input_tokens` is all input."""
    counts = turn.usage
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": counts.cache_read_input_tokens,
            "cache_write_tokens": counts.cache_creation_input_tokens,
        },
        "output_tokens": counts.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt_tokens + counts.output_tokens,
    }


def _items(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    reasoning = list(_reasoning(turn, view))
    yield from reasoning
    if turn.text:
        kind = "refusal" if turn.stop_reason == "refusal" else "output_text"
        part = {"type": kind, "refusal": turn.text} if kind == "refusal" else _text_part(turn.text)
        phase = "commentary" if turn.tool_calls else "final_answer"
        message = {"id": f"msg_{view.turn_index}", "type": "message", "status": "completed", "role": "assistant"}
        yield {**message, "content": [part], "phase": phase}
    for number, call_id in enumerate(ids_of_calls(turn, view, reasoning, prefix="call")):
        call = turn.tool_calls[number]
        yield {
            "id": f"fc_{view.turn_index}_{number}",
            "type": "function_call",
            "status": "completed",
            "arguments": call.encode_arguments(),
            "call_id": call_id,
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
    """Yield the events of an item: it is added, sent in pieces, and done."""
    of = {"item_id": item["id"], "output_index": index}
    yield "response.output_item.added", {"output_index": index, "item": {**item, **_EMPTY_START[item["type"]]}}
    for part in _parts(item):
        common = {**of, **part.common}
        if part.kind:
            yield f"response.{part.kind}.added", {**common, "part": {**part.complete, part.field: ""}}
        for piece in split(part.text, turn.chunk_chars):
            yield f"response.{part.event}.delta", {**common, "delta": piece, **part.of_delta}
        yield f"response.{part.event}.done", {**common, part.field: part.text, **part.of_done}
        if part.kind:
            yield f"response.{part.kind}.done", {**common, "part": part.complete}
    yield "response.output_item.done", {"output_index": index, "item": item}


_EMPTY_START: Mapping[str, Mapping[str, Any]] = {
    "message": {"status": "in_progress", "content": []},
    "function_call": {"status": "in_progress", "arguments": ""},
    "reasoning": {"summary": []},
}


class _Part(NamedTuple):
    """A part of an item that is sent in pieces. `event` is the name of its events, `kind` of the events around them, ""
    for none. `complete` is the part with its text in `field`; the fields of `common` are in all events, those of
    `of_delta` and `of_done` only in these."""

    event: str
    text: str
    field: str
    kind: str = ""
    complete: Mapping[str, Any] = MappingProxyType({})
    common: Mapping[str, Any] = MappingProxyType({})
    of_delta: Mapping[str, Any] = MappingProxyType({})
    of_done: Mapping[str, Any] = MappingProxyType({})


def _parts(item: Mapping[str, Any]) -> Iterator[_Part]:
    if item["type"] == "function_call":
        yield _Part("function_call_arguments", item["arguments"], "arguments", of_done={"name": item["name"]})
    for place, part in enumerate(item.get("summary", ())):
        around = "reasoning_summary_part"
        yield _Part("reasoning_summary_text", part["text"], "text", around, part, {"summary_index": place})
    for place, part in enumerate(item.get("content", ())):
        field = "refusal" if part["type"] == "refusal" else "text"
        extra: dict[str, Any] = {} if field == "refusal" else {"logprobs": []}
        yield _Part(part["type"], part[field], field, "content_part", part, {"content_index": place}, extra, extra)


# Reading of requests in the Responses dialect, as strict as the real endpoint about usual mistakes of clients.
#
# Scripts see messages of the Messages dialect. So consecutive items of the assistant count as one message, and so do
# the outputs of its calls; the system message is not counted.

_ROLES = ("system", "developer", "user", "assistant")
_MAX_ID_CHARS = 64
# The order of one turn's items by kind, then the outputs of its calls, then the user's message.
_RANKS = {"reasoning": 0, "message": 1, "function_call": 2, "function_call_output": 3}
_CALL, _OUTPUT, _OF_USER = 2, 3, 4


def read_request(payload: Any, headers: Mapping[str, str]) -> RequestView:
    """Check a decoded body of `POST /v1/responses` and return the data that scripts use. Raises BadRequest."""
    model = model_of(payload, "Missing required parameter: 'model'.")
    items = payload.get("input")
    if isinstance(items, str) and items:
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise BadRequest("Missing required parameter: 'input'.")
    kinds = [_check_item(number, item) for number, item in enumerate(items)]
    _check_order(items, kinds)
    messages = _as_messages(items, kinds)
    if not messages:
        raise BadRequest("input: at least one message of the user is required")
    _check_reasoning(messages, model)
    system = [_text(item.get("content")) for item in items if item.get("role") in ("system", "developer")]
    return view_of(
        messages,
        headers,
        model=model,
        system="\n".join([*filter(None, [payload.get("instructions")]), *system]),
        max_tokens=_max_tokens(payload),
        stream=payload.get("stream") is True,
        tools=tuple(_tool_name(number, tool) for number, tool in enumerate(array_in(payload, "tools"))),
    )


def _max_tokens(payload: Mapping[str, Any]) -> int | None:
    limit = payload.get("max_output_tokens")
    if limit is not None and (type(limit) is not int or limit < 16):
        raise BadRequest("Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16.")
    return limit


def _tool_name(number: int, tool: Any) -> str:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise BadRequest(f"tools[{number}]: must be of type function")
    if not isinstance(tool.get("parameters"), dict):
        raise BadRequest(f"tools[{number}].parameters: must be an object")
    return check_name(tool.get("name"), f"tools[{number}].name")


def _check_item(number: int, item: Any) -> str:
    where = f"input[{number}]"
    kind = item.get("type", "message") if isinstance(item, dict) else None
    check = _CHECKS.get(kind) if isinstance(kind, str) else None
    if check is None:
        raise BadRequest(f"Invalid value for '{where}.type': {kind!r}; supported are {', '.join(_CHECKS)}")
    check(where, item)
    return str(kind)


def _check_message(where: str, item: Mapping[str, Any]) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise BadRequest(f"{where}.role: must be one of {', '.join(_ROLES)}")
    if isinstance(content, str) and content:
        return
    if not isinstance(content, list) or not content:
        raise BadRequest(f"Invalid type for '{where}.content': expected a text or an array of parts, and not empty")
    text = ("output_text", "refusal") if role == "assistant" else ("input_text",)
    _check_parts(f"{where}.content", content, text, pictures=role == "user")


def _check_parts(where: str, parts: Sequence[Any], texts: Sequence[str], *, pictures: bool) -> None:
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_image" and pictures:
            check_picture({"url": part.get("image_url")}, f"{where}[{number}].image_url")
        elif kind not in texts or not (part.get("text") or part.get("refusal")):
            raise BadRequest(f"Invalid '{where}[{number}]': there is no such part here, or it is empty")


def _check_call(where: str, item: Mapping[str, Any]) -> None:
    check_name(item.get("name"), f"{where}.name")
    check_id(item.get("call_id"), f"{where}.call_id", _MAX_ID_CHARS)
    check_arguments(item.get("arguments"), f"{where}.arguments")


def _check_output(where: str, item: Mapping[str, Any]) -> None:
    check_id(item.get("call_id"), f"{where}.call_id", _MAX_ID_CHARS)
    output = item.get("output")
    if isinstance(output, list) and output:
        _check_parts(f"{where}.output", output, ("input_text",), pictures=True)
    elif not isinstance(output, str):
        raise BadRequest(f"Invalid type for '{where}.output': expected a text or an array of parts")


def _check_reasoning_item(where: str, item: Mapping[str, Any]) -> None:
    if not isinstance(item.get("encrypted_content"), str) or not isinstance(item.get("summary"), list):
        raise BadRequest(f"{where}: a reasoning item that is not stored needs encrypted_content and summary")


_CHECKS = {
    "message": _check_message,
    "function_call": _check_call,
    "function_call_output": _check_output,
    "reasoning": _check_reasoning_item,
}


def _check_order(items: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    """Check that each call has its output before the conversation continues, and that reasoning is followed by an
    item."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for number, (item, kind) in enumerate(zip(items, kinds, strict=True)):
        if kind == "function_call_output":
            if item["call_id"] not in open_calls:
                raise BadRequest(f"No tool call found for function call output with call_id {item['call_id']}.")
            open_calls.remove(item["call_id"])
        elif kind == "function_call":
            if item["call_id"] in seen:
                raise BadRequest(f"input[{number}]: ids of calls must be unique in a conversation: {item['call_id']}")
            seen.add(item["call_id"])
            open_calls.append(item["call_id"])
        elif open_calls and not _is_of_assistant(item):
            raise BadRequest(f"No tool output found for function call {', '.join(open_calls)}.")
        if kind == "reasoning" and not (number + 1 < len(items) and _is_of_assistant(items[number + 1])):
            raise BadRequest(
                f"Item {item.get('id')!r} of type 'reasoning' was provided without its required following item."
            )
    if open_calls:
        raise BadRequest(f"No tool output found for function call {', '.join(open_calls)}.")


def _is_of_assistant(item: Mapping[str, Any]) -> bool:
    return item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"


def _as_messages(items: Sequence[dict[str, Any]], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Convert the items to the Messages dialect: those of one turn become one message, and so do the outputs of its
    calls."""
    messages: list[dict[str, Any]] = []
    before = _OF_USER
    for item, kind in zip(items, kinds, strict=True):
        if item.get("role") in ("system", "developer"):
            continue
        rank = _RANKS[kind] if kind != "message" or _is_of_assistant(item) else _OF_USER
        if not messages or not (before < rank < _OUTPUT or rank == before in (_CALL, _OUTPUT)):
            messages.append({"role": "assistant" if _is_of_assistant(item) else "user", "content": []})
        messages[-1]["content"] += _blocks(item, kind)
        before = rank
    return messages


def _blocks(item: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    if kind == "reasoning":
        return [{"type": "thinking", "item": item}]
    if kind == "function_call":
        return [{"type": "tool_use", "id": item["call_id"]}]
    content = item.get("output" if kind == "function_call_output" else "content")
    images = [image_block(part["image_url"]) for part in objects_in(content) if part["type"] == "input_image"]
    if kind == "function_call_output":
        return result_blocks(_text(content), images)
    return [{"type": "text", "text": _text(content)}, *images]


def _check_reasoning(messages: Sequence[Mapping[str, Any]], model: str) -> None:
    """Check that each call whose id has a mark of `model` has the reasoning that the gateway sent with it."""
    for message in messages:
        blocks = message["content"]
        sent = [block["item"] for block in blocks if block["type"] == "thinking"]
        call_id = find_bereft((block["id"] for block in blocks if block["type"] == "tool_use"), model, sent)
        if call_id is not None:
            raise BadRequest(
                f"Function call {call_id!r} was provided without its required reasoning item, as it was sent."
            )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            part.get("text") or part.get("refusal") or "" for part in content if part["type"] != "input_image"
        )
    return content or ""


RESPONSES = MockDialect(
    path="/v1/responses",
    closing_events=1,
    read=read_request,
    pieces=lambda payload: blocks_of(*(payload.get("tools") or ()), *payload["input"]),
    stream_events=_stream_events,
    error_event=_error_event,
    failed_message=lambda error, view: orjson.dumps(_failure(error, view)) if error.failed else None,
    message=lambda turn, view: orjson.dumps({**_end(turn, view), "output": list(_items(turn, view))}),
    error=encode_error,
)
"""`POST /v1/responses`, with and without streaming."""
