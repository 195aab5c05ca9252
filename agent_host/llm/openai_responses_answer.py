"""Answers of the Responses dialect: a turn out of the events of one stream (AH 6.3)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from agent_host.llm.answer_calls import CallReader, with_usable_ids
from agent_host.llm.openai_responses_items import Place
from agent_host.llm.openai_responses_output import ResponsesOutput
from agent_host.llm.openai_responses_values import failure_of, name_in, text_in, usage_of
from agent_host.llm.raw_json import elements, member, members
from agent_host.llm.stream import MAX_DETAIL, Meaning, ModelTurn, StreamProtocolError
from agent_host.llm.surrogates import loads_with_halves, may_hold_halves, repaired

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MEANINGS: Mapping[str, Meaning] = {
    "completed": "complete",
    # Of `incomplete_details.reason`; without one it is the status.
    "max_output_tokens": "cut",
    "max_messages": "cut",
    "content_filter": "blocked",
    "steered": "continue",
    "incomplete": "unknown",
    "cancelled": "unknown",
    # A message of a response that is complete may be a refusal.
    "refusal": "blocked",
}
_REFUSAL: Final = "refusal"
# What a response may have come to, the worse behind the better: some proxies end it with the event of another.
_STATUSES: Final = ("completed", "incomplete", "cancelled", "failed")
# What the standard calls an event without a name.
_UNNAMED: Final = "message"


def meaning_of(stop_reason: str) -> Meaning:
    """What a stop reason of this dialect means."""
    return _MEANINGS.get(stop_reason, "unknown")


def _as_it_is(name: str) -> str:
    return name


class ResponsesAssembler:
    """Puts a turn together from the events of one response: its items, as each is announced, streamed and done, and its
    end. `real_name` gives the tool that the model means by a name. No limit of the arguments where
    `max_call_arguments_bytes` is None."""

    def __init__(
        self, max_call_arguments_bytes: int | None = None, real_name: Callable[[str], str] = _as_it_is
    ) -> None:
        self.content = 0
        self.thinking = ""
        self._output = ResponsesOutput(CallReader(max_call_arguments_bytes), real_name)
        self._halves = False
        self._data = ""
        self._intact = True
        self._usage: Any = None
        self._response_id = self._response_model = ""
        self._stop_reason: str | None = None
        self._seen = self._started = self._has_items = False

    def feed(self, event: str, data: str) -> str | None:
        """Take one event; unknown ones are skipped, as the API asks of its clients, and so is all behind the end. What
        has no name of its own says in its data what it is."""
        self.thinking = ""
        is_named = event in self._HANDLERS
        if self._stop_reason is not None or not (is_named or (event == _UNNAMED and data.lstrip()[:1] == "{")):
            return None
        try:
            value = self._loads(data)
            event = event if is_named else _type_of(value)
            handler = self._HANDLERS.get(event)
            if handler is None:
                return None
            self._seen = True
            return handler(self, value)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # Its frames hold what was read of the event, and a retry holds the error while it reads the next answer.
            raise StreamProtocolError(f"the {event} event is malformed") from error.with_traceback(None)

    def finish(self) -> ModelTurn:
        """The turn, when the stream said how the response ended."""
        if not self._seen:
            raise StreamProtocolError("there was no event of Responses in it: check --dialect")
        if self._stop_reason is None:
            raise StreamProtocolError("the stream ended before the response did")
        refusal = self._output.refusal
        stop_reason = _REFUSAL if refusal else self._stop_reason
        meaning = meaning_of(stop_reason)
        text, calls, blocks, order = self._output.parts()
        said = repaired(" ".join(refusal.split())[:MAX_DETAIL])[0] or stop_reason
        return ModelTurn(
            text,
            with_usable_ids(calls),
            stop_reason,
            meaning,
            usage_of(self._usage),
            self._output.replaced,
            blocks,
            order,
            self._output.dropped,
            self._response_id,
            self._response_model,
            said if meaning in ("cut", "blocked") else "",
        )

    def _loads(self, data: str) -> dict[str, Any]:
        self._data, self._intact = data, True
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            if not may_hold_halves(data):
                raise
            self._intact, self._halves = False, True  # the second half may come with the next delta
            value = loads_with_halves(data)
        if not isinstance(value, dict):
            raise TypeError("an event is no object")
        return value

    def _created(self, data: dict[str, Any]) -> None:
        if self._started:
            raise StreamProtocolError("a second response begins in the stream of the first")
        self._started = True
        self.content += 1
        self._note_names(data.get("response") or {})

    def _item_added(self, data: dict[str, Any]) -> None:
        self._has_items = True
        item = data.get("item")
        if item is not None:  # as some servers announce one
            self._output.announce(item, _index(data))
            self.content += 1

    def _item_done(self, data: dict[str, Any]) -> str:
        self._has_items = True
        self.content += 1
        text_of = partial(member, self._data, "item")
        text, self.thinking = self._output.close(data["item"], _index(data), text_of, intact=self._intact)
        return text

    def _text_delta(self, data: dict[str, Any]) -> str:
        return self._output.say(_place(data), self._delta(data), halves=self._halves)

    def _refusal_delta(self, data: dict[str, Any]) -> str:
        return self._output.say(_place(data), self._delta(data), halves=self._halves, refused=True)

    def _thinking_delta(self, data: dict[str, Any]) -> None:
        self.thinking = self._output.think(_place(data), self._delta(data))

    def _summary_part(self, data: dict[str, Any]) -> None:
        """A further part of a summary is a paragraph of its own."""
        self.thinking = "\n\n" if self._output.has_thought(_place(data)) else ""

    def _arguments_delta(self, data: dict[str, Any]) -> None:
        self._output.argue(_place(data), self._delta(data))

    def _arguments_done(self, data: dict[str, Any]) -> None:
        """They count where the item has none when it is done."""
        arguments = data.get("arguments")
        if isinstance(arguments, str):
            self._output.argue(_place(data), arguments, whole=True)
        self.content += 1

    def _delta(self, data: dict[str, Any]) -> str:
        delta = data["delta"]
        if not isinstance(delta, str):
            raise ValueError("a delta is no text")
        self.content += len(delta)
        return delta

    def _completed(self, data: dict[str, Any]) -> str:
        return self._end(data, "completed")

    def _incomplete(self, data: dict[str, Any]) -> str:
        return self._end(data, "incomplete")

    def _failed(self, data: dict[str, Any]) -> str:
        return self._end(data, "failed")

    def _end(self, data: dict[str, Any], status: str) -> str:
        response: dict[str, Any] = data.get("response") or {}
        given = response.get("status")
        status = max((one for one in (status, given) if one in _STATUSES), key=_STATUSES.index)
        if status == "failed":
            raise failure_of(response.get("error"))
        shown = "" if self._has_items else self._take_output(response.get("output") or ())
        shown += self._output.close_messages()
        details = response.get("incomplete_details")
        reason = details.get("reason") if status == "incomplete" and isinstance(details, dict) else None
        self._note_names(response)
        self._usage = response.get("usage")
        self.content += 1
        self._stop_reason = repaired(text_in(reason))[0] or status
        return shown

    def _take_output(self, output: Any) -> str:
        """Take the items of a response that came without events of their own, as proxies send what they did not get as
        a stream; returns text to show."""
        shown: list[tuple[str, str]] = []
        texts = elements(members(members(self._data)["response"])["output"]) if output else ()
        for index, (item, text) in enumerate(zip(output, texts, strict=True)):
            shown.append(self._output.close(item, index, partial(str, text), intact=self._intact))
        self.thinking = "".join(thinking for _, thinking in shown)
        return "".join(text for text, _ in shown)

    def _error(self, data: dict[str, Any]) -> None:
        raise failure_of(data.get("error") or {name: value for name, value in data.items() if name != "type"})

    def _note_names(self, response: dict[str, Any]) -> None:
        self._response_id = self._response_id or name_in(response.get("id"))
        self._response_model = self._response_model or name_in(response.get("model"))

    _HANDLERS: ClassVar[dict[str, Callable[[ResponsesAssembler, dict[str, Any]], str | None]]] = {
        "response.created": _created,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.output_text.delta": _text_delta,
        "response.refusal.delta": _refusal_delta,
        "response.reasoning_summary_part.added": _summary_part,
        "response.reasoning_summary_text.delta": _thinking_delta,
        "response.reasoning_text.delta": _thinking_delta,
        "response.function_call_arguments.delta": _arguments_delta,
        "response.function_call_arguments.done": _arguments_done,
        "response.completed": _completed,
        "response.incomplete": _incomplete,
        "response.failed": _failed,
        "error": _error,
    }


def _type_of(data: dict[str, Any]) -> str:
    """What an event without a name is; some proxies send errors without a type as well."""
    return text_in(data.get("type")) or ("error" if data.get("error") else "")


def _place(data: dict[str, Any]) -> Place:
    return Place(text_in(data.get("item_id")), _index(data))


def _index(data: dict[str, Any]) -> int | None:
    index = data.get("output_index")
    return index if type(index) is int else None
