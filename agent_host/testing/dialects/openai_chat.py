"""The Chat Completions dialect of the scripted gateway. Answers: pure functions from a turn to encoded bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.dialects import (
    BadRequest,
    MockDialect,
    blocks_of,
    check_image,
    find_bereft,
    ids_of_calls,
    insert_pings,
    objects_in,
    split,
    text_in,
    view_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.testing.script import ErrorBody, RequestView, Turn

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
    # terms of the Messages dialect in scripts; any other is sent unchanged
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "refusal": "stop",  # the text is the refusal
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_CREATED = 1767225600
COMMENT = b": ping\n\n"


def _stream_events(turn: Turn, view: RequestView) -> list[bytes]:
    head = _head(view, "chat.completion.chunk")
    deltas = [{"role": "assistant", "content": ""}, *_deltas(turn, view)]
    chunks = [_chunk(head, delta, None, view) for delta in deltas]
    chunks.append(_chunk(head, {}, _finish_reason(turn), view))
    if view.wants_usage:
        chunks.append({**head, "choices": [], "usage": _usage(turn)})
    events = [b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks]
    return insert_pings([*events, b"data: [DONE]\n\n"], COMMENT, turn.pings)


def _message(turn: Turn, view: RequestView) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, **_reasoning(turn)}
    if turn.text:
        message[_text_field(turn)] = turn.text
    if turn.tool_calls:
        message["tool_calls"] = list(_calls(turn, view))
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(turn)}
    return orjson.dumps({**_head(view, "chat.completion"), "choices": [choice], "usage": _usage(turn)})


def encode_error(status: int, error: ErrorBody) -> bytes:
    """Encode the body of an HTTP error, the same in both dialects of OpenAI."""
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
    """Return the script's counts in this dialect's form, in which the prompt is all input."""
    counts = turn.usage
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.prompt_tokens + counts.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": counts.cache_read_input_tokens,
            "cache_write_tokens": counts.cache_creation_input_tokens,
        },
    }


def _reasoning(turn: Turn) -> dict[str, Any]:
    """Return the fields of the message that must be sent back with its tool calls."""
    fields: dict[str, Any] = {}
    if turn.thinking:
        fields["reasoning_content"] = turn.thinking
    if turn.redacted_thinking:
        fields["reasoning_details"] = [
            {"type": "reasoning.encrypted", "data": turn.redacted_thinking, "id": "rs_0", "index": 0}
        ]
    return fields


def _calls(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    for call, call_id in zip(turn.tool_calls, ids_of_calls(turn, view, _reasoning(turn), prefix="call"), strict=True):
        function = {"name": call.name, "arguments": call.encode_arguments()}
        yield {"id": call_id, "type": "function", "function": function}


def _deltas(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    yield from ({"reasoning_content": piece} for piece in split(turn.thinking, turn.chunk_chars))
    yield from ({name: details} for name, details in _reasoning(turn).items() if name == "reasoning_details")
    yield from ({_text_field(turn): piece} for piece in split(turn.text, turn.chunk_chars))
    for index, call in enumerate(_calls(turn, view)):
        start = {**call, "function": {**call["function"], "arguments": ""}}
        yield {"tool_calls": [{"index": index, **start}]}
        for piece in split(call["function"]["arguments"], turn.chunk_chars):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


# Reading of requests in the Chat Completions dialect, as strict as the real endpoints about usual mistakes of clients.
#
# Scripts see messages of the Messages dialect. So the results of one turn's calls, with the pictures after them, count
# as one message of the user, and the system message is not counted.

ERROR_MARK = "[error] "
"""Prefix of a tool message for a failed call, because the wire has no field for that."""
REASONING = ("reasoning_content", "reasoning_details")
"""Fields of the gateway's own answers that must be sent back with tool calls."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_ID_CHARS = 40
DATA_URL = re.compile(r"data:([a-z/+.-]+);base64,(.*)", re.DOTALL)


def read_request(payload: Any, headers: Mapping[str, str]) -> RequestView:
    """Check a decoded body of `POST /v1/chat/completions` and return the data that scripts use. Raises BadRequest."""
    model = model_of(payload, "you must provide a model parameter")
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: must be an array, and not empty")
    _check_messages(messages)
    _check_reasoning(messages, model)
    seen = _as_messages(messages)
    if not seen:
        raise BadRequest("messages: at least one message of the user is required")
    stream = payload.get("stream") is True
    system = (message for message in messages if message["role"] in ("system", "developer"))
    return view_of(
        seen,
        headers,
        model=model,
        system="\n".join(text_in(message.get("content")) for message in system),
        max_tokens=_max_tokens(payload),
        stream=stream,
        tools=tuple(_tool_name(number, tool) for number, tool in enumerate(array_in(payload, "tools"))),
        wants_usage=_wants_usage(payload.get("stream_options"), stream=stream),
    )


def array_in(payload: Mapping[str, Any], key: str) -> Sequence[Any]:
    """Return an array of a request, empty if it is missing. Raises BadRequest if it is not an array."""
    value = payload.get(key)
    if value is not None and not isinstance(value, list):
        raise BadRequest(f"{key}: must be an array")
    return value or ()


def _max_tokens(payload: Mapping[str, Any]) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if payload.get(name) is not None]
    if len(names) > 1:
        raise BadRequest("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
    limit = payload[names[0]] if names else None
    if limit is not None and (type(limit) is not int or limit < 1):
        raise BadRequest(f"{names[0]}: must be a whole number from 1")
    return limit


def _wants_usage(options: Any, *, stream: bool) -> bool:
    if options is not None and not stream:
        raise BadRequest("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    return isinstance(options, dict) and options.get("include_usage") is True


def _tool_name(number: int, tool: Any) -> str:
    function = _function_of(tool, f"tools[{number}]")
    if not isinstance(function.get("parameters", {}), dict):
        raise BadRequest(f"tools[{number}].function.parameters: must be an object")
    return check_name(function.get("name"), f"tools[{number}].function.name")


def check_name(name: Any, where: str) -> str:
    """Check and return the name of a tool. Raises BadRequest for one that the real endpoints refuse."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(f"Invalid '{where}': expected a string that matches the pattern '^[a-zA-Z0-9_-]{{1,64}}$'.")
    return name


def check_arguments(text: Any, where: str) -> None:
    """Check the arguments of a call, which must be the text of a JSON object. Raises BadRequest."""
    try:
        arguments = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{where}: must be the text of a JSON object")


def check_id(call_id: Any, where: str, most: int) -> str:
    """Check and return the id of a call, of at most `most` characters. Raises BadRequest."""
    if not isinstance(call_id, str) or not 0 < len(call_id) <= most:
        raise BadRequest(f"Invalid '{where}': expected a string with 1 to {most} characters.")
    return call_id


def model_of(payload: Any, missing: str) -> str:
    """Return the model that a request names. Raises BadRequest, with the text `missing` if there is none."""
    if not isinstance(payload, dict):
        raise BadRequest("We could not parse the JSON body of your request: it must be an object")
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest(missing)
    return model


def _check_messages(messages: Sequence[Any]) -> None:
    """Check roles, contents and the pairing of tool calls with results, in one pass, because threads may have thousands
    of messages."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise BadRequest(f"messages[{index}].role: must be one of {', '.join(_ROLES)}")
        _check_content(index, message)
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in open_calls:
                raise BadRequest(
                    f"Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                    f"'tool_calls' (messages[{index}].tool_call_id: {call_id!r})"
                )
            open_calls.remove(call_id)
            continue
        _refuse_open(index, open_calls)
        open_calls = _ids_of_calls(index, message)
        if len(set(open_calls)) < len(open_calls) or not seen.isdisjoint(open_calls):
            raise BadRequest(f"messages[{index}]: ids of tool calls must be unique in a conversation: {open_calls}")
        seen.update(open_calls)
    _refuse_open(len(messages), open_calls)


def _refuse_open(index: int, open_calls: Sequence[str]) -> None:
    if open_calls:
        raise BadRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following did not have response messages in front of messages[{index}]: "
            f"{', '.join(open_calls)}"
        )


def _ids_of_calls(index: int, message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return []
    where = f"messages[{index}].tool_calls"
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        raise BadRequest(f"{where}: must be an array of the assistant, and not empty")
    return [_check_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _function_of(named: Any, where: str) -> dict[str, Any]:
    function = named.get("function") if isinstance(named, dict) and named.get("type") == "function" else None
    if not isinstance(function, dict):
        raise BadRequest(f"{where}: must be of type function")
    return function


def _check_call(call: Any, where: str) -> str:
    function = _function_of(call, where)
    check_name(function.get("name"), f"{where}.function.name")
    check_arguments(function.get("arguments"), f"{where}.function.arguments")
    return check_id(call.get("id"), f"{where}.id", _MAX_ID_CHARS)


def _check_content(index: int, message: Mapping[str, Any]) -> None:
    content, role, where = message.get("content"), message["role"], f"messages[{index}].content"
    if isinstance(content, str) and content:
        return
    if content is None and role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
        return
    if not isinstance(content, list) or not content:
        raise BadRequest(f"Invalid type for '{where}': expected a text or an array of parts that is not empty")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url" and role == "user":
            check_picture(part.get("image_url"), f"{where}[{number}].image_url")
        elif kind != "text" or not isinstance(part.get("text"), str) or not part["text"]:
            raise BadRequest(f"Invalid '{where}[{number}]': a {role} message has no part like this, or it is empty")


def check_picture(picture: Any, where: str) -> None:
    """Check a picture, which must be `{"url": …}` with base64. Raises BadRequest."""
    url = picture.get("url") if isinstance(picture, dict) else None
    found = DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise BadRequest(f"{where}.url: must be a data URL with base64")
    check_image({"source": {"type": "base64", "media_type": found[1], "data": found[2]}}, where)


def _check_reasoning(messages: Sequence[Mapping[str, Any]], model: str) -> None:
    """Check that each call whose id has a mark of `model` has the reasoning that the gateway sent with it."""
    for index, message in enumerate(messages):
        sent = {name: message[name] for name in REASONING if name in message}
        if find_bereft((call["id"] for call in message.get("tool_calls") or ()), model, sent):
            raise BadRequest(
                f"messages[{index}]: the reasoning that came with these tool calls ({' and '.join(REASONING)}) must be "
                "passed back to the API as it was"
            )


def _as_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert the messages to the Messages dialect: consecutive tool messages become one, with the pictures after
    them."""
    seen: list[dict[str, Any]] = []
    is_of_tool = False
    for message in messages:
        role, text = message["role"], text_in(message.get("content"))
        if role in ("system", "developer"):
            continue
        images = [
            image_block(part["image_url"]["url"])
            for part in objects_in(message.get("content"))
            if part["type"] == "image_url"
        ]
        calls = [{"type": "tool_use", "id": call["id"]} for call in message.get("tool_calls") or ()]
        blocks = result_blocks(text) if role == "tool" else [{"type": "text", "text": text}, *images, *calls]
        if is_of_tool and (role == "tool" or images):
            seen[-1]["content"] += blocks if role == "tool" else images
        else:
            seen.append({"role": "assistant" if role == "assistant" else "user", "content": blocks})
        is_of_tool = role == "tool"
    return seen


def result_blocks(text: str, images: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return the output of a call in the form of the Messages dialect."""
    content = [{"type": "text", "text": text.removeprefix(ERROR_MARK)}, *images]
    return [{"type": "tool_result", "content": content, "is_error": text.startswith(ERROR_MARK)}]


def image_block(url: str) -> dict[str, Any]:
    """Return a picture that `check_picture` accepted in the form of the Messages dialect; scripts see only its type."""
    return {"type": "image", "source": {"media_type": url.removeprefix("data:").partition(";")[0]}}


CHAT_COMPLETIONS = MockDialect(
    path="/v1/chat/completions",
    closing_events=3,
    read=read_request,
    pieces=lambda payload: blocks_of(*(payload.get("tools") or ()), *payload["messages"]),
    stream_events=_stream_events,
    error_event=lambda error, _: b"data: %b\n\n" % encode_error(500, error),
    message=_message,
    error=encode_error,
)
"""`POST /v1/chat/completions`, with and without streaming."""
