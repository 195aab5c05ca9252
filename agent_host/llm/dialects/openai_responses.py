"""The Responses dialect of OpenAI: POST {url}/v1/responses, answered by server-sent events (AH 6.2, 6.3). The provider
stores nothing: reasoning arrives encrypted and is sent back with the conversation."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import orjson

from agent_host.llm import Meaning, ModelTurn, StreamFault, StreamProtocolError
from agent_host.llm.dialects import (
    UNNAMED,
    Assembler,
    Dialect,
    MessageRenderer,
    TurnParts,
    content_of,
    count_in,
    data_url,
    encode_arguments,
    extra_members,
    one_line,
    required_text,
    sendable_name,
    size_of,
)
from agent_host.llm.errors import fault_of
from agent_host.llm.raw_json import elements, join_members, members, repair, split_open_end
from agent_host.thread.messages import ARGUMENTS_TEXT, NO_TEXT, Block
from config.json_text import copy_to_keep
from config.lean_typing import NamedTuple
from state.checkpoint import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.contracts import Image, ToolSpec
    from agent_host.llm.dialects import Event
    from agent_host.thread.messages import Message, ToolCall

NAME: Final = "responses"
OF_CALL: Final = "beside"
"""The member of a block that contains a call's fields other than its id, name and arguments. All other blocks are
complete items, which have a `type`."""


class ResponsesRenderer(MessageRenderer):
    """Messages as items of Responses: texts, calls with their extra fields, and outputs by the id of their call."""

    def user(self, messages: Sequence[Message]) -> bytes:
        """Encode one message of the user with a part for each of `messages`."""
        parts = b",".join(b'{"type":"input_text","text":%b}' % content_of(message) for message in messages)
        return copy_to_keep(b'{"role":"user","content":[%b]}' % parts)

    def exchange(self, assistant: Message, results: Sequence[Message]) -> bytes:
        """Encode the items of the assistant and, if it called tools, the output of each call."""
        return copy_to_keep(b",".join([*self._items(assistant), *map(_output, results)]))

    def _items(self, assistant: Message) -> list[bytes]:
        items: list[bytes] = []
        answered = 0  # number of items up to the last that is not reasoning
        last: ToolCall | None = None
        of_last: dict[str, str] = {}
        for part in assistant.parts_for(NAME, self._model):
            if isinstance(part, Block):
                found = members(part.raw)
                kind = found.get("type")
                if kind is not None:
                    items.append(part.raw.encode())
                    answered = answered if orjson.loads(kind) == "reasoning" else len(items)
                    last = None
                elif last is not None:
                    of_last |= found
                    items[-1] = _call(last, of_last)
            elif not isinstance(part, str):
                items.append(_call(part))
                last, of_last, answered = part, {}, len(items)
            elif part.strip():
                items.append(b'{"role":"assistant","content":%b}' % orjson.dumps(part))
                last, answered = None, len(items)
        # The API refuses reasoning without an item after it, and an assistant turn without items.
        return items[:answered] or [*items, b'{"role":"assistant","content":%b}' % orjson.dumps(NO_TEXT)]


def _call(call: ToolCall, blocks: Mapping[str, str] = MappingProxyType({})) -> bytes:
    name, arguments = orjson.dumps(sendable_name(call.name)), encode_arguments(call, blocks.get(ARGUMENTS_TEXT))
    call_id, extra = orjson.dumps(call.call_id), extra_members(blocks.get(OF_CALL))
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b%b}' % (call_id, name, arguments, extra)


def _output(result: Message) -> bytes:
    content = content_of(result)
    if result.images:
        text = b'{"type":"input_text","text":%b}' % content
        content = b"[%b]" % b",".join([text, *map(_image, result.images)])
    return b'{"type":"function_call_output","call_id":%b,"output":%b}' % (orjson.dumps(result.tool_call_id), content)


def _image(image: Image) -> bytes:
    return b'{"type":"input_image","detail":"auto","image_url":%b}' % data_url(image)


# Answers of the Responses dialect: from the events of one stream to a turn (AH 6.3).

_MEANINGS: Mapping[str, Meaning] = {
    "completed": "complete",
    # Values of `incomplete_details.reason`; without one the status is used.
    "max_output_tokens": "cut",
    "max_messages": "cut",
    "content_filter": "blocked",
    "steered": "continue",
    "incomplete": "unknown",
    "cancelled": "unknown",
    # A message of a completed response may be a refusal.
    "refusal": "blocked",
}
_REFUSAL: Final = "refusal"
# Statuses of a response that has ended, from best to worst: some proxies end it with the event of another status.
_STATUSES: Final = ("completed", "incomplete", "cancelled", "failed")


# The answer ended in an item of any other status.
_COMPLETE: Final = (None, "", "completed")
_KNOWN: Final = frozenset({"type", "call_id", "name", "arguments"})
# Calls of tools that were not offered and are not answered here: the API refuses a request with such a call.
_UNANSWERED: Final = frozenset(
    ("apply_patch_call", "computer_call", "custom_tool_call", "local_shell_call", "mcp_approval_request", "shell_call")
)
# Codes of errors that may be gone at the next retry.
_PASSING: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout"})


class ResponsesAssembler(Assembler):
    """See Assembler. Builds a turn from the items of one response, each of which is announced, streamed and done, and
    from the response's end. An item's content is taken from its last event; deltas are shown, and are the content of an
    item without a last event."""

    meanings: ClassVar[Mapping[str, Meaning]] = _MEANINGS

    def __init__(self, max_call_arguments_bytes: int | None = None, real_name: Callable[[str], str] = str) -> None:
        super().__init__(max_call_arguments_bytes, real_name)
        self._items = StreamedItems()
        self._open_thought = ""
        self._last_message: ResponseItem | None = None  # the message of the last text delta
        self._usage: Any = None
        self._seen = self._has_items = False

    def _take(self, event: str, data: str) -> str | None:
        """Skip unknown events, as the API requires of its clients, and everything after the end. The type of an event
        without a name is read from its data."""
        is_named = event in self._HANDLERS
        if self._stop_reason is not None or not (is_named or (event == UNNAMED and data.lstrip()[:1] == "{")):
            return None
        value = self._load(data)
        if not isinstance(value, dict):
            raise TypeError("an event is not an object")
        if not is_named:  # some proxies send errors without a type as well
            self._event = text_in(value.get("type")) or ("error" if value.get("error") else "")
        handler = self._HANDLERS.get(self._event)
        if handler is None:
            return None
        self._seen = True
        return handler(self, value)

    def finish(self) -> ModelTurn:
        """Return the turn after an event that ended the response."""
        if not self._seen:
            raise StreamProtocolError("there was no event of Responses in it: check --dialect")
        if self._stop_reason is None:
            raise StreamProtocolError("the stream ended before the response did")
        parts, refusal = TurnParts(NAME), ""
        for item in self._items.sorted_items():
            refusal += "".join(item.refused)
            if item.kind == "function_call":
                if not (item.name or item.call_id):  # arguments of an item that was never announced
                    continue
                call = self._reader.call(item.call_id, item.name, item.arguments, is_closed=item.is_complete)
                parts.add_call(call, item.arguments)
            if item.raw is not None:
                parts.add_block(item.raw, holds_text=bool(item.text))
            parts.add_text(item.text)
            self._replaced += item.replaced
        stop_reason = _REFUSAL if refusal else self._stop_reason
        is_short = self.meaning_of(stop_reason) in ("cut", "blocked")
        detail = (one_line(refusal) or stop_reason) if is_short else ""
        return self._turn(parts, stop_reason, _token_usage(self._usage), detail)

    def _on_created(self, data: dict[str, Any]) -> None:
        if self._started:
            raise StreamProtocolError("a second response begins in the stream of the first")
        self._started = True
        self.content += 1
        self._note_names(data.get("response") or {})

    def _item_added(self, data: dict[str, Any]) -> None:
        self._has_items = True
        raw = data.get("item")
        if raw is None:  # some servers announce an item this way
            return
        item = self._items.announce(kind_of(raw), _place_of(raw, data))
        if item.kind == "function_call":
            item.take_names(raw)
        self.content += 1

    def _item_done(self, data: dict[str, Any]) -> str:
        self._has_items = True
        self.content += 1
        text, self.thinking = self._close(data["item"], _place_of(data["item"], data), ("item",))
        return text

    def _close(self, raw: dict[str, Any], place: ItemPosition, path: tuple[str | int, ...]) -> tuple[str, str]:
        """Process an item that is done, whose JSON is at `path` in the event; return its text and thinking that were
        not shown yet. Raises AnswerTooLarge."""
        kind = kind_of(raw)
        item = self._items.close(kind, place, text_in(raw.get("call_id")))
        if item is None:
            return "", ""
        item.is_complete = raw.get("status") in _COMPLETE
        text = thinking = ""
        if kind == "message":
            text = item.take_content(raw.get("content"))
        elif kind == "function_call":
            self._take_call(item, raw, path)
        elif kind == "reasoning" and not item.is_shown:
            parts = [*(raw.get("summary") or ()), *(raw.get("content") or ())]
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            thinking = repair("\n\n".join(text for text in texts if isinstance(text, str)))[0]
        if item.is_complete and self._is_kept(item, raw):
            if not self._intact:  # an item with a lone surrogate cannot be sent back unchanged
                self._dropped += 1
            elif kind == "function_call":
                extra = {name: value for name, value in self._raw.members(*path).items() if name not in _KNOWN}
                item.raw = join_members({OF_CALL: join_members(extra)})
            else:
                item.raw = self._raw.text(*path)
        return text, thinking

    def _take_call(self, item: ResponseItem, raw: dict[str, Any], path: tuple[str | int, ...]) -> None:
        item.take_names(raw)
        arguments = raw.get("arguments")
        if arguments is None:
            arguments = "".join(item.parts)
        elif not isinstance(arguments, str):  # its JSON text, so that all arguments are read in one way
            arguments = self._raw.text(*path, "arguments")
        self._reader.check_size(size_of(arguments))
        item.arguments, item.parts = arguments, []

    def _is_kept(self, item: ResponseItem, raw: dict[str, Any]) -> bool:
        """True if the item, or the extra fields of a call, becomes a block."""
        if item.kind == "message":  # the API refuses one with an empty part
            content = raw.get("content")
            has_text = isinstance(content, str) or all(
                part.get("text") or part.get("refusal") for part in content or ()
            )
            return bool(item.text) and raw.get("role") == "assistant" and has_text
        if item.kind == "reasoning":
            # The API refuses an item that only refers to a stored one, because nothing is stored.
            return bool(raw.get("encrypted_content") or raw.get("content"))
        if item.kind == "function_call":
            return not raw.keys() <= _KNOWN
        self._dropped += raw["type"] in _UNANSWERED
        return raw["type"] not in _UNANSWERED

    def _text_delta(self, data: dict[str, Any], *, refused: bool = False) -> str:
        place, delta = _place(data), self._delta(data)
        item = self._items.open("message", place)
        left = ""
        if self._halves:
            last, self._last_message = self._last_message, item
            if last is not None and last is not item:  # a character does not continue in the next message
                left = last.close_end()
            delta, item.open_end = split_open_end(item.open_end + delta)
            delta, count = repair(delta)
            item.replaced += count
        item.parts.append(delta)
        if refused:
            item.refused.append(delta)
        return left + delta

    def _thinking_delta(self, data: dict[str, Any]) -> None:
        place, delta = _place(data), self._delta(data)
        self._items.open("reasoning", place).is_shown = True
        text, self._open_thought = split_open_end(self._open_thought + delta)
        self.thinking = repair(text)[0]

    def _summary_part(self, data: dict[str, Any]) -> None:
        """Begin a new paragraph for a further part of a summary."""
        self.thinking = "\n\n" if self._items.open("reasoning", _place(data)).is_shown else ""

    def _arguments_delta(self, data: dict[str, Any]) -> None:
        place, delta = _place(data), self._delta(data)
        self._add_arguments(self._items.open("function_call", place), delta)

    def _arguments_done(self, data: dict[str, Any]) -> None:
        """Replace the deltas; used if the item has no arguments when it is done."""
        arguments = data.get("arguments")
        if isinstance(arguments, str):
            item = self._items.open("function_call", _place(data))
            item.parts, item.size = [], 0
            self._add_arguments(item, arguments)
        self.content += 1

    def _add_arguments(self, item: ResponseItem, part: str) -> None:
        item.parts.append(part)
        item.size += size_of(part)
        self._reader.check_size(item.size)

    def _delta(self, data: dict[str, Any]) -> str:
        delta = required_text(data["delta"])
        self.content += len(delta)
        return delta

    def _end(self, data: dict[str, Any], *, status: str) -> str:
        response: dict[str, Any] = data.get("response") or {}
        given = response.get("status")
        status = max((one for one in (status, given) if one in _STATUSES), key=_STATUSES.index)
        if status == "failed":
            raise failure_of(response.get("error"))
        shown = "" if self._has_items else self._take_output(response.get("output") or ())
        for item in self._items.sorted_items():
            if item.kind == "message" and not item.is_done:
                shown += item.close_end()
                item.text = "".join(item.parts)
        details = response.get("incomplete_details")
        reason = details.get("reason") if status == "incomplete" and isinstance(details, dict) else None
        self._note_names(response)
        self._usage = response.get("usage")
        self.content += 1
        self._stop_reason = repair(text_in(reason))[0] or status
        self.is_over = True
        return shown

    def _take_output(self, output: Any) -> str:
        """Process the items of a response without item events, as sent by proxies that did not receive a stream; return
        text to show."""
        shown = [
            self._close(item, _place_of(item, {"output_index": index}), ("response", "output", index))
            for index, item in enumerate(output)
        ]
        self.thinking = "".join(thinking for _, thinking in shown)
        return "".join(text for text, _ in shown)

    def _error(self, data: dict[str, Any]) -> None:
        raise failure_of(data.get("error") or {name: value for name, value in data.items() if name != "type"})

    _HANDLERS: ClassVar[dict[str, Callable[[ResponsesAssembler, dict[str, Any]], str | None]]] = {
        "response.created": _on_created,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.output_text.delta": _text_delta,
        "response.refusal.delta": partial(_text_delta, refused=True),
        "response.reasoning_summary_part.added": _summary_part,
        "response.reasoning_summary_text.delta": _thinking_delta,
        "response.reasoning_text.delta": _thinking_delta,
        "response.function_call_arguments.delta": _arguments_delta,
        "response.function_call_arguments.done": _arguments_done,
        "response.completed": partial(_end, status="completed"),
        "response.incomplete": partial(_end, status="incomplete"),
        "response.failed": partial(_end, status="failed"),
        "error": _error,
    }


# The items of a stream, and the assignment of events to them.

Kind = Literal["message", "function_call", "reasoning", "other"]
_KINDS: Final[Mapping[str, Kind]] = {"message": "message", "function_call": "function_call", "reasoning": "reasoning"}


class ItemPosition(NamedTuple):
    """An event's reference to its item: the id, "" for none, and the position in the output, None for none."""

    item_id: str
    number: int | None


class ResponseItem:
    """One item as far as it has arrived. `parts` are the deltas of its text or arguments, `refused` those of a refusal,
    `size` the bytes of the arguments. `is_done`: its last event has arrived; `is_complete`: the answer did not end in
    it. `raw` is JSON text to keep: the item, or the extra fields of a call. `is_shown`: its thinking was shown.
    `replaced` counts lone surrogates that became U+FFFD."""

    def __init__(self, kind: Kind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.is_done = self.is_complete = self.is_shown = False
        self.call_id = self.name = self.arguments = self.text = ""
        self.raw: str | None = None
        self.parts: list[str] = []
        self.refused: list[str] = []
        self.open_end = ""  # a high surrogate that the next delta may complete
        self.size = self.replaced = 0

    def take_names(self, raw: Mapping[str, Any]) -> None:
        """Set the id and the name of a call, if present."""
        call_id, first = repair(text_in(raw.get("call_id")))
        name, second = repair(text_in(raw.get("name")))
        self.call_id, self.name = call_id or self.call_id, name or self.name
        self.replaced = first + second

    def take_content(self, content: Any) -> str:
        """Set the content of a message that is done; return the text that was not shown yet."""
        before = "".join(self.parts)
        texts: list[str] = []
        refused: list[str] = []
        for part in [{"text": content}] if isinstance(content, str) else content or ():  # some servers send a string
            is_refusal = part.get("type") == "refusal"
            texts.append(text_in(part.get("refusal" if is_refusal else "text")))
            refused += texts[-1:] if is_refusal else []
        if text := "".join(texts):
            self.text, self.replaced = repair(text)
            self.refused = [repair("".join(refused))[0]]
        else:  # the server sent the text only in deltas
            self.text, self.is_complete = before + self.close_end(), False
        self.parts, self.open_end = [], ""
        return self.text[len(before) :] if self.text.startswith(before) else ""

    def close_end(self) -> str:
        """Replace a high surrogate that was not completed; return the text to show for it, "" if there is none."""
        end, count = repair(self.open_end)
        self.open_end, self.replaced = "", self.replaced + count
        if end:
            self.parts.append(end)
        return end


class StreamedItems:
    """The items of one answer. Proxies may get an item's id or its position wrong: ids that change from event to event,
    one position for several items, or none. So an event belongs to the open item of its kind with its id, else to the
    one at its position."""

    def __init__(self) -> None:
        self._items: list[ResponseItem] = []
        # Keys are ids, positions, and None for the newest of a kind.
        self._newest: dict[tuple[Kind, str | int | None], ResponseItem] = {}
        self._closed: set[tuple[Kind, ItemPosition, str]] = set()
        self._highest = 0

    def announce(self, kind: Kind, place: ItemPosition) -> ResponseItem:
        """Return a new item, or the existing one: an item's other events may arrive before the one that announces
        it."""
        known = self._newest.get((kind, place.item_id)) if place.item_id else None
        if known is None or known.is_done or place.number not in (None, known.index):
            return self._begin(kind, place)
        return known

    def open(self, kind: Kind, place: ItemPosition) -> ResponseItem:
        """Return the open item to which an event belongs, or a new one if there is none."""
        return self._find(kind, place) or self._begin(kind, place)

    def close(self, kind: Kind, place: ItemPosition, call_id: str) -> ResponseItem | None:
        """Mark an item as done and return it; None if it was done before."""
        item = self._find(kind, place)
        names_it = bool(place.item_id) and place.number is not None
        if item is None:
            if names_it and (kind, place, call_id) in self._closed:
                return None
            item = self._begin(kind, place)
        if names_it:
            self._closed.add((kind, place, call_id))
        item.is_done = True
        return item

    def sorted_items(self) -> list[ResponseItem]:
        """Return the items by position; those with the same position in the order in which they started."""
        return sorted(self._items, key=lambda item: item.index)

    def _find(self, kind: Kind, place: ItemPosition) -> ResponseItem | None:
        found = self._newest.get((kind, place.item_id)) if place.item_id else None
        if found is None or found.is_done:
            found = self._newest.get((kind, place.number))
        return None if found is None or found.is_done else found

    def _begin(self, kind: Kind, place: ItemPosition) -> ResponseItem:
        if place.number is not None:
            self._highest = max(place.number, self._highest)
        item = ResponseItem(kind, self._highest if place.number is None else place.number)
        self._items.append(item)
        for name in (place.item_id or None, place.number, None):
            self._newest[kind, name] = item
        return item


def kind_of(item: Mapping[str, Any]) -> Kind:
    """Return the kind of an item. Raises ValueError for one without a type."""
    kind = item.get("type")
    if not isinstance(kind, str) or not kind:
        raise ValueError("an item without a type")
    return _KINDS.get(kind, "other")


def _place(data: dict[str, Any]) -> ItemPosition:
    index = data.get("output_index")
    return ItemPosition(text_in(data.get("item_id")), index if type(index) is int else None)


def _place_of(item: dict[str, Any], data: dict[str, Any]) -> ItemPosition:
    return _place({**data, "item_id": item.get("id")})


def text_in(value: object) -> str:
    """Return `value` if it is a text, else ""."""
    return value if isinstance(value, str) else ""


def failure_of(error: Any) -> StreamFault:
    """Return the fault of a failed response or of an error event, from its `code` and `message`, which may be
    missing."""
    fault = fault_of(error or "the gateway gives no reason")
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code and not code.isdigit():
        return StreamFault(str(fault), retryable=code in _PASSING, body=fault.body)
    return fault


def _token_usage(usage: Any) -> TokenUsage:
    """Return the counts. `input_tokens` is all input, `output_tokens` includes reasoning."""
    details = usage.get("input_tokens_details") if isinstance(usage, dict) else None
    given = count_in(usage, "input_tokens")
    read = min(count_in(details, "cached_tokens"), given)
    written = min(count_in(details, "cache_write_tokens"), given - read)
    return TokenUsage(given, count_in(usage, "output_tokens"), read, written)


class ResponsesDialect(Dialect):
    """See Dialect."""

    name: ClassVar[str] = NAME
    renderer_type: ClassVar[type[MessageRenderer]] = ResponsesRenderer
    assembler_type: ClassVar[type[Assembler]] = ResponsesAssembler
    path: ClassVar[str] = "/v1/responses"
    messages_field: ClassVar[str] = "input"

    def _settings(self, max_output_tokens: int) -> dict[str, Any]:
        include = ["reasoning.encrypted_content"]
        return {"max_output_tokens": max_output_tokens, "stream": True, "store": False, "include": include}

    def _definition(self, name: str, tool: ToolSpec) -> dict[str, Any]:
        # The default is strict, which refuses schemas with optional fields.
        described = {"name": name, "description": tool.description, "parameters": tool.input_schema}
        return {"type": "function", **described, "strict": False}

    def _answer_form(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": False}}}

    def events_of_answer(self, body: str) -> Iterator[Event]:
        """See Dialect. Yields one event, since the last event of a stream contains the complete response."""
        response = members(body)
        elements(response["output"])
        status = orjson.loads(response.get("status", '"completed"'))
        if status not in _STATUSES:
            raise ValueError(f"the response is still {status!r}")
        yield "response.completed", join_members({"response": body})
