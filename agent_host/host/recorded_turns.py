"""The turn of a script that gives an answer of a real gateway again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import httpx

from agent_host.llm import errors
from agent_host.llm.errors import NAMES, kind_of_answer, kind_of_event
from agent_host.llm.event_stream import whole_events
from agent_host.llm.stream import StreamFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent_host.llm.errors import Kind, Said
    from agent_host.llm.stream import Dialect, Meaning, ModelTurn

# The words that scripts have for ends of an answer; each wire of the scripted gateway puts them into its own.
_STOPS: Mapping[Meaning, str] = {
    "cut": "max_tokens",
    "blocked": "refusal",
    "continue": "pause_turn",
    "window": "model_context_window_exceeded",
    "empty": "tool_use",
}
_NO_DETAILS = "no details"


def turn_of(dialect: Dialect, status: int, headers: Mapping[str, str], data: bytes) -> dict[str, Any]:
    """The turn that answers with this HTTP status and body. `headers` are those that an error is sent with.

    Raises StreamProtocolError for a stream that broke off, AnswerTooLarge.
    """
    body = errors.parse(data)
    if status != httpx.codes.OK:
        said = errors.read(data)
        error = _error(said, body, lambda said: kind_of_answer(status, said))
        return {"status": status, "error": error, "headers": dict(headers)}
    if errors.is_error(body):
        sent = {"content-type": "application/json", **headers}
        return {"garbage": data.decode("utf-8", "replace"), "headers": sent}
    if errors.is_whole_answer(body):
        with contextlib.suppress(LookupError, ValueError):
            return _turn_of_events(dialect, list(dialect.whole(data.decode())))
    return _turn_of_events(dialect, whole_events(data))


def _turn_of_events(dialect: Dialect, events: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The turn that gives a stream of these events, with the error that it may end in."""
    assembler = dialect.assembler()
    texts: list[str] = []
    thoughts: list[str] = []
    for name, event in events:
        try:
            texts.append(assembler.feed(name, event) or "")
        except StreamFault as fault:
            turn = {"text": "".join(texts), "thinking": "".join(thoughts), "stream_error": _stream_error(fault, event)}
            return {key: value for key, value in turn.items() if value}
        thoughts.append(assembler.thinking)
    return _complete(assembler.finish(), "".join(thoughts))


def _complete(answer: ModelTurn, thinking: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"text": answer.text, "usage": _usage(answer)}
    if thinking:
        turn["thinking"] = thinking
    if answer.tool_calls:
        turn["tool_calls"] = [
            {"name": call.name, "raw_arguments": "{"}
            if call.problem
            else {"name": call.name, "arguments": call.arguments}
            for call in answer.tool_calls
        ]
    if answer.meaning != "complete":
        turn["stop_reason"] = _STOPS.get(answer.meaning, answer.stop_reason)
    return turn


def _usage(answer: ModelTurn) -> dict[str, int]:
    usage = answer.usage
    counted = {
        "input_tokens": max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens),
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }
    for_an_hour = usage.cache_write_1h_tokens
    return {**counted, "cache_creation_1h_input_tokens": for_an_hour} if for_an_hour else counted


def _stream_error(fault: StreamFault, event: str) -> dict[str, Any]:
    """The error in the middle of a stream. `failed`: the response itself ended so, as on the wire of Responses."""
    error = _error(errors.read_value(fault.body), fault.body, lambda said: kind_of_event(said, passing=fault.retryable))
    value = errors.parse(event.encode("utf-8", "replace"))
    return {**error, "failed": True} if isinstance(value, dict) and "response" in value else error


def _error(said: Said, body: Any, meaning: Callable[[Said], Kind]) -> dict[str, Any]:
    """The error of a script, which has one name for type and code: the first that means by itself what all names of the
    real one mean."""
    kind = meaning(said)
    message = said.message or _NO_DETAILS
    for name in (*_own_names(body), *sorted(said.names), *NAMES.get(kind, ())[:1]):
        alone = errors.read_value({"error": {"type": name, "message": message}})
        if meaning(alone) == kind:
            return {"type": name, "message": message}
    return {"message": message}


def _own_names(body: Any) -> Iterator[str]:
    """Type and code of an error, where it has them in the usual place."""
    error = body.get("error") if isinstance(body, dict) else None
    names = (error.get("type"), error.get("code")) if isinstance(error, dict) else ()
    return (name for name in names if isinstance(name, str) and name)
