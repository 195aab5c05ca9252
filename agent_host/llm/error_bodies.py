"""What an error of a gateway says, whatever the shape of its body.

Bodies differ: `{"error": {"message", "type", "code"}}` of Anthropic and OpenAI, the same in a list (Gemini), without
`error` around it (vLLM, Amazon Bedrock), `{"error": "text"}` (Ollama), `{"detail": ...}` (FastAPI), and one inside the
other, also as JSON in a string (OpenRouter, LiteLLM). All are read here by the names of their fields.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from config import json_text
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MESSAGES = ("message", "detail", "msg", "error", "raw", "error_description", "errorMessage", "actionReason")
_NAMES = ("type", "code", "error_code", "error_type", "reason", "status", "action", "__type")
_INSIDE = ("error", "errors", "detail", "details", "message", "raw", "metadata", "innererror", "inner_error",
           "provider_specific_fields")  # fmt: skip
_WHOLE_ANSWERS = ("content", "choices", "output", "candidates")

_MAX_DEPTH = 6
_MAX_PARTS = 64
_MAX_TEXT = 4096
_MAX_NAME = 100
_STATUSES = range(400, 600)
# Names of several words, as no prose has them.
_NAME_IN_TEXT = r"\b(?:[A-Za-z]{2,40}_[A-Za-z0-9_]{2,60}|[A-Za-z]{2,60}(?:Error|Exception))\b"


class Said(NamedTuple):
    """What an error says. `message` is for people, "" where there is none; `names` are its types, codes and reasons in
    small letters; `status` is the HTTP status that stands in it, and `limit` the tokens that the model takes."""

    message: str
    names: frozenset[str] = frozenset()
    status: int | None = None
    limit: int | None = None


def read(body: bytes) -> Said:
    """What the body of an answer says; of one that is no JSON, or of an unknown shape, its text."""
    said = read_value(parsed(body))
    return said if said.message or said.names else said._replace(message=_one_line(body.decode("utf-8", "replace")))


def parsed(body: bytes) -> Any:
    """The JSON value in the body of an answer; None for one that is no JSON."""
    try:
        return json_text.loads(body)
    except orjson.JSONDecodeError:
        return None


def read_value(value: Any) -> Said:
    """What a JSON value says; nothing where it is of an unknown shape."""
    messages: dict[str, None] = {}
    names: set[str] = set()
    status = limit = None
    for part in _parts(value):
        messages |= dict.fromkeys(_texts(part))
        for name in _names(part):
            names.add(name)
            if status is None and name.isascii() and name.isdigit() and int(name) in _STATUSES:
                status = int(name)
        limit = limit or _count(part.get("n_ctx"))  # llama.cpp
    return Said(_joined(messages), frozenset(names), status, limit)


def names_in(text: str) -> frozenset[str]:
    """The names of errors that stand in a text, in small letters: for an error whose names went into its message."""
    return frozenset(name.lower() for name in re.findall(_NAME_IN_TEXT, text[:_MAX_TEXT]))


def is_error(value: Any) -> bool:
    """True if the body of a successful answer is an error all the same."""
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, dict):
        return False
    return bool(first.get("error")) or "error" in (first.get("type"), first.get("object"))


def is_whole_answer(value: Any) -> bool:
    """True if the body of a successful answer is the model's, as it comes without a stream."""
    return isinstance(value, dict) and any(name in value for name in _WHOLE_ANSWERS)


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of an error that say something, the outer before the inner; no more than a few."""
    level, left = [value], _MAX_PARTS
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for one in level[:left]:
            left -= 1
            if isinstance(one, list):
                below += one[:_MAX_PARTS]
            elif isinstance(one, dict):
                yield one
                below += (_opened(one[name]) for name in _INSIDE if name in one)
        level = below


def _opened(value: Any) -> Any:
    """JSON in a string as what it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json_text.loads(value)
    except orjson.JSONDecodeError:
        return value


def _texts(part: Mapping[str, Any]) -> Iterator[str]:
    for name in _MESSAGES:
        value = part.get(name)
        if isinstance(value, str) and not isinstance(_opened(value), dict | list):
            yield _one_line(value)


def _names(part: Mapping[str, Any]) -> Iterator[str]:
    for name in _NAMES:
        value = part.get(name)
        if type(value) is int:
            value = str(value)
        if isinstance(value, str) and 0 < len(value) <= _MAX_NAME:
            yield value.strip().lower()


def _joined(messages: Mapping[str, None]) -> str:
    """Every message once; one that another has in it adds nothing."""
    kept: list[str] = []
    for message in messages:
        if message and not any(message in other for other in kept):
            kept.append(message)
    return ": ".join(kept)[:_MAX_TEXT]


def _one_line(text: str) -> str:
    return " ".join(text[:_MAX_TEXT].split())


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
