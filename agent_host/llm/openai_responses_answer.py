"""Answers of the Responses dialect: a turn out of the events of one stream (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import orjson

from agent_host.llm.answer_calls import NOT_CLOSED, CallReader, with_usable_ids
from agent_host.llm.openai_responses import NAME, OF_CALL
from agent_host.llm.raw_json import member, members
from agent_host.llm.stream import Meaning, ModelTurn, StreamFault, StreamProtocolError
from agent_host.llm.surrogates import loads_with_halves, may_hold_halves, repaired, without_open_end
from agent_host.thread.blocks import Block, shortest
from agent_host.thread.messages import ToolCall
from config.lean_typing import NamedTuple
from state.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.thread.blocks import Order

_COMPLETED: Final = "completed"
_REFUSAL: Final = "refusal"
# Why a response is not complete, and `completed`, `refusal` for one that is.
_MEANINGS: Mapping[str, Meaning] = {
    _COMPLETED: "complete",
    "steered": "continue",
    "max_output_tokens": "cut",
    "max_messages": "cut",
    "content_filter": "blocked",
    _REFUSAL: "blocked",
}
# Errors of a response that another try may not have.
_PASSING: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout"})
_OF_CALL: Final = frozenset({"type", "call_id", "name", "arguments"})
# Far above what any model takes; the sums of a whole session stay countable in any JSON.
_MAX_COUNT = 10**9
_MAX_NAME_CHARS = 256
# What the standard calls an event without a name.
_UNNAMED = "message"


def meaning_of(stop_reason: str) -> Meaning:
    """What a stop reason of this dialect means."""
    return _MEANINGS.get(stop_reason, "unknown")


def _as_it_is(name: str) -> str:
    return name


class _Item(NamedTuple):
    """One item of the output. `raw` is its JSON text where it is whole and can go back, None else; `is_done`: the
    stream said that it is whole."""

    value: dict[str, Any]
    raw: str | None = None
    is_done: bool = False


class ResponsesAssembler:
    """Puts a turn together from the items of one response; what was added and never done is not whole. `real_name`
    gives the tool that the model means by a name. No limit of the arguments where `max_call_arguments_bytes` is None.
    """

    def __init__(
        self, max_call_arguments_bytes: int | None = None, real_name: Callable[[str], str] = _as_it_is
    ) -> None:
        self.content = 0
        self.thinking = ""
        self._reader = CallReader(max_call_arguments_bytes)
        self._real_name = real_name
        self._items: dict[int, _Item] = {}
        self._texts: dict[int, list[str]] = {}
        self._argument_bytes: dict[int, int] = {}
        self._open: dict[str, str] = {}  # first halves of characters that a next delta may complete, by kind
        self._refused = False
        self._replaced = 0
        self._usage: dict[str, Any] = {}
        self._response_id = self._response_model = ""
        self._started = False
        self._stop_reason: str | None = None
        self._data = ""

    def feed(self, event: str, data: str) -> str | None:
        """Take one event; unknown ones are skipped, and so is all behind the end."""
        self.thinking = ""
        if self._stop_reason is not None or not data.startswith("{"):
            return None
        try:
            if event == _UNNAMED:
                event = _string(self._loads(data).get("type"))
            handler = self._HANDLERS.get(event)
            if handler is None:
                return None
            self._data = data
            return handler(self, self._loads(data)) or None
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # Its frames hold what was read of the event, and a retry holds the error while it reads the next answer.
            raise StreamProtocolError(f"the {event[:80]} event is malformed") from error.with_traceback(None)

    def finish(self) -> ModelTurn:
        """The turn, when the response ended."""
        if not self._started:
            raise StreamProtocolError("there was no response in it: check --dialect")
        if self._stop_reason is None:
            raise StreamProtocolError("the stream ended before the response did")
        stop_reason = _REFUSAL if self._refused and self._stop_reason == _COMPLETED else self._stop_reason
        meaning = meaning_of(stop_reason)
        text, calls, blocks, order, dropped = self._parts()
        return ModelTurn(
            text,
            with_usable_ids(calls),
            stop_reason,
            meaning,
            _token_usage(self._usage),
            self._replaced + self._reader.replaced,
            blocks,
            order,
            dropped,
            self._response_id,
            self._response_model,
            stop_reason if meaning == "cut" else "",
        )

    def _parts(self) -> tuple[str, list[ToolCall], tuple[Block, ...], Order, int]:
        """Text, calls and what only the provider reads, their order, and how many items cannot go back."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        blocks: list[Block] = []
        order: list[int | Literal["call", "block"]] = []
        dropped = 0
        for place in sorted(self._items.keys() | self._texts.keys()):
            item = self._items.get(place, _Item({"type": "message"}))
            kind = item.value.get("type")
            if kind == "function_call":
                calls.append(self._call(item))
                order.append("call")
                beside = _beside(item.raw)
                if beside is not None:
                    blocks.append(Block(beside, NAME))
                    order.append("block")
                continue
            text = self._text_of(place, item) if kind == "message" else ""
            dropped += item.is_done and item.raw is None
            if item.is_done and item.raw is not None and (text or kind != "message"):
                blocks.append(Block(item.raw, NAME, holds_text=kind == "message"))
                order.append("block")
            if text:
                texts.append(text)
                order.append(len(text))
        return "".join(texts), calls, tuple(blocks), shortest(tuple(order)), dropped

    def _call(self, item: _Item) -> ToolCall:
        """The call of an item; its problem where the item is not whole."""
        value = item.value
        call_id, name = self._repaired(_string(value.get("call_id"))), self._repaired(_string(value.get("name")))
        name = self._real_name(name)
        if not item.is_done or value.get("status") == "incomplete":
            return ToolCall(call_id, name, {}, NOT_CLOSED)
        return self._reader.call(call_id, name, value.get("arguments"))

    def _text_of(self, place: int, item: _Item) -> str:
        """What was shown of a message; where nothing streamed, what its item says."""
        if place in self._texts:
            return "".join(self._texts[place])
        parts = item.value.get("content") or ()
        return "".join(self._repaired(_string(part.get("text") or part.get("refusal"))) for part in parts)

    def _loads(self, data: str) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            if not may_hold_halves(data):
                raise
        return loads_with_halves(data)

    def _created(self, data: dict[str, Any]) -> None:
        if self._started:
            raise StreamProtocolError("a second response begins in the stream of the first")
        self._started = True
        self.content += 1
        response = data["response"]
        self._response_id, self._response_model = _name(response.get("id")), _name(response.get("model"))

    def _added(self, data: dict[str, Any]) -> None:
        self.content += 1
        item: dict[str, Any] = data["item"]
        self._items.setdefault(int(data["output_index"]), _Item({**item, "type": _string(item["type"])}))

    def _done(self, data: dict[str, Any]) -> str:
        place, item = int(data["output_index"]), data["item"]
        self.content += 1
        raw = member(self._data, "item")
        is_whole = not may_hold_halves(self._data) or (repaired(raw or "")[1] == 0 and _loads_strictly(raw))
        self._items[place] = _Item({**item, "type": _string(item["type"])}, raw if is_whole else None, is_done=True)
        refusals = [part for part in item.get("content") or () if isinstance(part, dict) and part.get("refusal")]
        self._refused = self._refused or (item["type"] == "message" and bool(refusals))
        return self._closed("text")

    def _text(self, data: dict[str, Any]) -> str:
        place, text = int(data["output_index"]), _string(data["delta"])
        self.content += len(text)
        text, self._open["text"] = without_open_end(self._open.get("text", "") + text)
        text = self._repaired(text)
        self._texts.setdefault(place, []).append(text)
        self._open_place = place
        return text

    def _refusal(self, data: dict[str, Any]) -> str:
        self._refused = True
        return self._text(data)

    def _thought(self, data: dict[str, Any]) -> None:
        text = _string(data["delta"])
        self.content += len(text)
        text, self._open["thought"] = without_open_end(self._open.get("thought", "") + text)
        self.thinking = repaired(text)[0]

    def _arguments(self, data: dict[str, Any]) -> None:
        place, part = int(data["output_index"]), _string(data["delta"])
        self.content += len(part)
        size = self._argument_bytes.get(place, 0) + len(part.encode("utf-8", "surrogatepass"))
        self._argument_bytes[place] = size
        self._reader.check_size(size)

    def _completed(self, data: dict[str, Any]) -> str:
        self._end(data["response"], _COMPLETED)
        return self._closed("text")

    def _incomplete(self, data: dict[str, Any]) -> str:
        response = data["response"]
        details = response.get("incomplete_details") or {}
        self._end(response, self._repaired(_string(details.get("reason"))) or "incomplete")
        return self._closed("text")

    def _end(self, response: dict[str, Any], reason: str) -> None:
        usage = response.get("usage")
        self._usage = usage if isinstance(usage, dict) else {}
        self._response_model = self._response_model or _name(response.get("model"))
        self._started = True
        self._stop_reason = reason
        self.content += 1

    def _failed(self, data: dict[str, Any]) -> None:
        raise _fault(data["response"].get("error") or {})

    def _error(self, data: dict[str, Any]) -> None:
        error = data.get("error")
        raise _fault(error if isinstance(error, dict) else data)

    def _closed(self, kind: str) -> str:
        """What is shown for a first half whose second never came."""
        left = self._open.pop(kind, "")
        if not left:
            return ""
        end = self._repaired(left)
        self._texts[self._open_place].append(end)
        return end

    def _repaired(self, text: str) -> str:
        text, count = repaired(text)
        self._replaced += count
        return text

    _open_place = 0
    _HANDLERS: ClassVar[dict[str, Callable[[ResponsesAssembler, Any], str | None]]] = {
        "response.created": _created,
        "response.output_item.added": _added,
        "response.output_item.done": _done,
        "response.output_text.delta": _text,
        "response.refusal.delta": _refusal,
        "response.reasoning_summary_text.delta": _thought,
        "response.reasoning_text.delta": _thought,
        "response.function_call_arguments.delta": _arguments,
        "response.completed": _completed,
        "response.incomplete": _incomplete,
        "response.failed": _failed,
        "error": _error,
    }


def _loads_strictly(raw: str | None) -> bool:
    """Whether a JSON text holds whole characters only."""
    try:
        orjson.loads(raw or "")
    except orjson.JSONDecodeError:
        return False
    return True


def _beside(raw: str | None) -> str | None:
    """The fields of a call beside its id, name and arguments, as a block keeps them; None where there are none."""
    kept = {name: text for name, text in members(raw).items() if name not in _OF_CALL} if raw else {}
    if not kept:
        return None
    fields = ",".join(f"{orjson.dumps(name).decode()}:{text}" for name, text in kept.items())
    return f"{OF_CALL.decode()}{{{fields}}}}}"


def _fault(error: Mapping[str, Any]) -> StreamFault:
    """The fault of an error with `code` and `message`."""
    code, message = error.get("code"), error.get("message")
    word = code if isinstance(code, str) else "error"
    text, _ = repaired(f"{word}: {message if isinstance(message, str) else ''}")
    body = {"error": {"code": code, "message": message, "type": error.get("type") if "error" in error else None}}
    return StreamFault(text, retryable=word in _PASSING or word == "error", body=body)


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """The counts; `input_tokens` is all input, `output_tokens` has the reasoning in it."""
    details = usage.get("input_tokens_details")
    given = _count(usage, "input_tokens")
    cached = details if isinstance(details, dict) else {}
    read = min(_count(cached, "cached_tokens"), given)
    written = min(_count(cached, "cache_write_tokens"), given - read)
    return TokenUsage(given, _count(usage, "output_tokens"), read, written)


def _count(counts: Mapping[str, Any], name: str) -> int:
    count = counts.get(name)
    return min(count, _MAX_COUNT) if type(count) is int and count >= 0 else 0


def _string(value: object) -> str:
    """`value` itself, "" for None. Raises ValueError for what is no string."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def _name(value: object) -> str:
    """A name that only observers read: what is no string, or too long, is none."""
    return repaired(value)[0] if isinstance(value, str) and len(value) <= _MAX_NAME_CHARS else ""
