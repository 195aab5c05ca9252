"""The keys of a turn as tables: which there are, how each is read, and which go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from agent_host.testing.conditions import CONDITIONS, Condition
from agent_host.testing.script import ALWAYS, ErrorBody, ToolCall, Turn, Usage
from agent_host.testing.values import (
    BadValue,
    Reader,
    array_of,
    boolean,
    natural,
    string,
    table,
    table_of,
    whole_number,
)
from config.shapes import TEXT


def _conditions(raw: Any) -> tuple[Condition, ...]:
    values = table(raw, {key: kind.read for key, kind in CONDITIONS.items()})
    return tuple(Condition(key, value) for key, value in values.items())


def _arguments(raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise BadValue("must be a table; raw_arguments takes what is not")
    try:
        orjson.dumps(raw)
    except TypeError as error:
        raise BadValue(f"cannot be written as JSON: {error}") from None
    return dict(raw)


def _tool_call(raw: Any) -> ToolCall:
    values = table(raw, TOOL_CALL_KEYS, required=("name",))
    if "arguments" in values and "raw_arguments" in values:
        raise BadValue("and arguments exclude each other", "raw_arguments")
    return ToolCall(**values)


def _error(raw: Any) -> ErrorBody:
    return ErrorBody(**table(raw, ERROR_KEYS, required=("message",)))


def _stream_error(raw: Any) -> ErrorBody:
    return ErrorBody(**table(raw, STREAM_ERROR_KEYS, required=("message",)))


def _usage(raw: Any) -> Usage:
    usage = Usage(**table(raw, USAGE_KEYS))
    if usage.cache_creation_1h_input_tokens > usage.cache_creation_input_tokens:
        raise BadValue("is a part of cache_creation_input_tokens, and is more", "cache_creation_1h_input_tokens")
    return usage


def _garbage(raw: Any) -> bytes:
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, str):
        return string(raw).encode()
    return bytes(array_of(whole_number(0, 255))(raw))


def _times(raw: Any) -> int | str:
    if raw == ALWAYS:
        return ALWAYS
    if isinstance(raw, str):
        raise BadValue(f"must be a whole number or {ALWAYS!r}, not {raw!r}")
    return whole_number(1)(raw)


TOOL_CALL_KEYS: Mapping[str, Reader] = {
    "name": string,
    "arguments": _arguments,
    "raw_arguments": string,
    "id": string,
}
USAGE_KEYS: Mapping[str, Reader] = dict.fromkeys(Usage.__dataclass_fields__, natural)
ERROR_KEYS: Mapping[str, Reader] = {"type": string, "message": string}
STREAM_ERROR_KEYS: Mapping[str, Reader] = {**ERROR_KEYS, "failed": boolean}
TURN_KEYS: Mapping[str, Reader] = {
    "when": _conditions,
    "expect": _conditions,
    "text": string,
    "thinking": string,
    "redacted_thinking": string,
    "tool_calls": array_of(_tool_call),
    "usage": _usage,
    "stop_reason": string,
    "delay_ms": natural,
    "chunk_delay_ms": natural,
    "chunk_chars": whole_number(1),
    "split_bytes": whole_number(1),
    "cut_after_events": natural,
    "cut_after_bytes": natural,
    "pings": natural,
    "status": whole_number(400, 599),
    "error": _error,
    "headers": table_of(TEXT),
    "stream_error": _stream_error,
    "garbage": _garbage,
    "hang": boolean,
    "times": _times,
    "repeat": whole_number(1),
}

_ANSWER = ("text", "thinking", "redacted_thinking", "tool_calls")
_WAYS_TO_ANSWER = (*_ANSWER, "stream_error", "status", "garbage", "hang")
_ANSWER_KEYS = (
    *_ANSWER,
    "usage",
    "stop_reason",
    "chunk_chars",
    "cut_after_events",
    "pings",
    "stream_error",
)
_EXCLUDES: Mapping[str, tuple[str, ...]] = {
    "status": (*_ANSWER_KEYS, "garbage", "hang", "cut_after_bytes", "split_bytes", "chunk_delay_ms"),
    "garbage": (*_ANSWER_KEYS, "hang"),
    "hang": (*_ANSWER_KEYS, "cut_after_bytes", "split_bytes", "chunk_delay_ms", "headers"),
    "cut_after_bytes": ("cut_after_events", "stream_error"),
    "repeat": ("when",),
}
"""Keys that cannot stand beside a key, because one of the two would have no effect."""


def read_turn(number: int, raw: Any) -> Turn:
    """One turn from its table.

    Raises:
        BadValue: with the path of the key below the turn.
    """
    values = table(raw, TURN_KEYS)
    for key, excluded in _EXCLUDES.items():
        if key in values and (clash := next((other for other in excluded if other in values), None)):
            raise BadValue(f"cannot stand beside {clash!r}", key)
    if not any(key in values for key in _WAYS_TO_ANSWER):
        raise BadValue(f"answers nothing; give one of {', '.join(_WAYS_TO_ANSWER)}")
    if "error" in values and "status" not in values:
        raise BadValue("needs 'status' (an error inside the stream is 'stream_error')", "error")
    turn = Turn(number=number, **values)
    if turn.times is not None and not turn.fails and turn.when is None:
        raise BadValue("is for turns that fail or have 'when'; one that answers by position takes 'repeat'", "times")
    if turn.repeat > 1 and turn.fails:
        raise BadValue("is for turns that answer; one that fails takes 'times'", "repeat")
    return turn
