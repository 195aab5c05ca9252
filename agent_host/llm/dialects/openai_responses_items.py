"""Items of a Responses stream, and the events that belong to each (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from agent_host.llm import StreamFault
from agent_host.llm.dialects import NOT_CLOSED, count_in, keep_spelling, size_of
from agent_host.llm.errors import fault_of
from agent_host.llm.raw_json import join_members, members, repair, split_open_end
from agent_host.thread.messages import Block, ToolCall, shortest
from config.lean_typing import NamedTuple
from state.checkpoint import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.llm.dialects import CallReader
    from agent_host.thread.messages import Order

NAME: Final = "responses"
OF_CALL: Final = "beside"
"""The member of a block that has the fields which came with a call, beside its id, name and arguments. All other blocks
are whole items, which have a `type`."""
Kind = Literal["message", "function_call", "reasoning", "other"]
_KINDS: Final[Mapping[str, Kind]] = {"message": "message", "function_call": "function_call", "reasoning": "reasoning"}


class ItemPosition(NamedTuple):
    """The name that an event gives its item: its id, "" for none, and its place in the output, None for none."""

    item_id: str
    number: int | None


class ResponseItem:
    """One item as far as it has come. `parts` are the deltas of its text or arguments, `refused` those of a refusal,
    `size` the bytes of the arguments. `is_done`: its last event came; `is_whole`: the answer did not end in it. `raw`
    is JSON text to keep: the item, or of a call the fields that came with it. `told`: its thinking was shown.
    `replaced` counts halves of characters that became U+FFFD."""

    __slots__ = (
        "arguments", "call_id", "index", "is_done", "is_whole", "kind", "name", "open_end", "parts", "raw", "refused",
        "replaced", "size", "text", "told",
    )  # fmt: skip

    def __init__(self, kind: Kind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.is_done = self.is_whole = self.told = False
        self.call_id = self.name = self.arguments = self.text = ""
        self.raw: str | None = None
        self.parts: list[str] = []
        self.refused: list[str] = []
        self.open_end = ""  # the first half of a character that the next delta may complete
        self.size = self.replaced = 0


class StreamedItems:
    """The items of one answer. Of the two names of an item proxies get one or the other wrong: ids that change from
    event to event, one place for several items, or none. So an event belongs to the open item of its kind that has its
    id, else to that at its place."""

    def __init__(self) -> None:
        self._items: list[ResponseItem] = []
        self._by_id: dict[tuple[Kind, str], ResponseItem] = {}
        self._by_index: dict[tuple[Kind, int], ResponseItem] = {}
        self._newest: dict[Kind, ResponseItem] = {}
        self._closed: set[tuple[Kind, ItemPosition, str]] = set()
        self._highest = 0

    def announce(self, kind: Kind, place: ItemPosition) -> ResponseItem:
        """A new item, or the one that is known: another event may have been sent before the one that announces it."""
        known = self._by_id.get((kind, place.item_id)) if place.item_id else None
        if known is None or known.is_done or place.number not in (None, known.index):
            return self._begin(kind, place)
        return known

    def open(self, kind: Kind, place: ItemPosition) -> ResponseItem:
        """The open item that an event belongs to; a new one where none is."""
        return self._find(kind, place) or self._begin(kind, place)

    def close(self, kind: Kind, place: ItemPosition, call_id: str) -> ResponseItem | None:
        """The item that has come to its end; None where it had before."""
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
        """The items by their places, and of one place in the order in which they began."""
        return sorted(self._items, key=lambda item: item.index)

    def _find(self, kind: Kind, place: ItemPosition) -> ResponseItem | None:
        found = self._by_id.get((kind, place.item_id)) if place.item_id else None
        if found is None or found.is_done:
            found = self._newest.get(kind) if place.number is None else self._by_index.get((kind, place.number))
        return None if found is None or found.is_done else found

    def _begin(self, kind: Kind, place: ItemPosition) -> ResponseItem:
        if place.number is not None:
            self._highest = max(place.number, self._highest)
        item = ResponseItem(kind, self._highest if place.number is None else place.number)
        self._items.append(item)
        if place.item_id:
            self._by_id[kind, place.item_id] = item
        if place.number is not None:
            self._by_index[kind, place.number] = item
        self._newest[kind] = item
        return item


def kind_of(item: Mapping[str, Any]) -> Kind:
    """The kind of an item. Raises ValueError for one without a type."""
    kind = item.get("type")
    if not isinstance(kind, str) or not kind:
        raise ValueError("an item without a type")
    return _KINDS.get(kind, "other")


# What stands in the items, the counts and the errors of a Responses stream (AH 6.3).

# Codes of errors that may have gone by the next try.
_PASSING: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout"})


def text_in(value: object) -> str:
    """A text that may be missing, or of another type: "" then."""
    return value if isinstance(value, str) else ""


def message_text(content: Any) -> tuple[str, str]:
    """The text in the content of a message that is done, and the part of it that is a refusal."""
    if isinstance(content, str):  # as some servers have it
        return content, ""
    said: list[str] = []
    refused: list[str] = []
    for part in content or ():
        is_refusal = part.get("type") == "refusal"
        text = part.get("refusal" if is_refusal else "text")
        if isinstance(text, str):
            said.append(text)
            refused += [text] if is_refusal else []
    return "".join(said), "".join(refused)


def failure_of(error: Any) -> StreamFault:
    """The fault of a response that failed, or of an error event: `code` and `message`, which may be missing."""
    fault = fault_of(error or "the gateway does not say why")
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code and not code.isdigit():
        return StreamFault(str(fault), retryable=code in _PASSING, body=fault.body)
    return fault


def usage_of(usage: Any) -> TokenUsage:
    """The counts; `input_tokens` is all input, `output_tokens` has the reasoning in it."""
    details = usage.get("input_tokens_details") if isinstance(usage, dict) else None
    given = count_in(usage, "input_tokens")
    read = min(count_in(details, "cached_tokens"), given)
    written = min(count_in(details, "cache_write_tokens"), given - read)
    return TokenUsage(given, count_in(usage, "output_tokens"), read, written)


# The output of a Responses stream, item by item: text, calls, and what only the provider reads (AH 6.3).

# An item of another status is one that the answer ended in.
_WHOLE: Final = (None, "", "completed")
_KNOWN: Final = frozenset({"type", "call_id", "name", "arguments"})
# Calls of tools that were not offered, and that nobody here answers: a request with such a call is refused.
_UNANSWERED: Final = frozenset(
    ("apply_patch_call", "computer_call", "custom_tool_call", "local_shell_call", "mcp_approval_request", "shell_call")
)


class ResponsesOutput:
    """Takes the items of one answer and what is streamed of them. What is in an item is taken from its end; deltas are
    shown, and count for what never came to one. `real_name` gives the tool that the model means by a name. `dropped`
    counts what cannot be sent back."""

    def __init__(self, reader: CallReader, real_name: Callable[[str], str]) -> None:
        self._reader = reader
        self._real_name = real_name
        self._items = StreamedItems()
        self._open_thought = ""
        self._said: ResponseItem | None = None  # the message whose text came last
        self.dropped = 0

    @property
    def refusal(self) -> str:
        """The model's words when it refused, "" if it did not."""
        return "".join(part for item in self._items.sorted_items() for part in item.refused)

    @property
    def replaced(self) -> int:
        """Halves of characters that became U+FFFD."""
        return self._reader.replaced + sum(item.replaced for item in self._items.sorted_items())

    def announce(self, raw: dict[str, Any], index: int | None) -> None:
        """Take an item as it begins. It may be incomplete, but for what it is."""
        item = self._items.announce(kind_of(raw), _place(raw, index))
        if item.kind == "function_call":
            _name(item, raw)

    def close(
        self, raw: dict[str, Any], index: int | None, text_of: Callable[[], str | None], *, intact: bool
    ) -> tuple[str, str]:
        """Take an item that is done; returns text and thinking of it that have not been shown. `text_of` gives its JSON
        text, and `intact` says that no half of a character is in it. Raises AnswerTooLarge."""
        kind = kind_of(raw)
        item = self._items.close(kind, _place(raw, index), text_in(raw.get("call_id")))
        if item is None:
            return "", ""
        item.is_whole = raw.get("status") in _WHOLE
        text = thinking = ""
        if kind == "message":
            text = _take_message(item, raw)
        elif kind == "function_call":
            self._take_call(item, raw, text_of)
        elif kind == "reasoning" and not item.told:
            parts = [*(raw.get("summary") or ()), *(raw.get("content") or ())]
            said = (part.get("text") for part in parts if isinstance(part, dict))
            thinking = repair("\n\n".join(text for text in said if isinstance(text, str)))[0]
        if item.is_whole and self._is_kept(item, raw):
            self._keep(item, text_of() if intact else None)
        return text, thinking

    def say(self, place: ItemPosition, delta: str, *, halves: bool, refused: bool = False) -> str:
        """Take a piece of a message's text; returns what of it can be shown. `halves`: the first half of a character
        may have come before, or may be in it."""
        item = self._items.open("message", place)
        left = ""
        if halves:
            if self._said is not None and self._said is not item:  # a character does not go on in the next message
                left = _close_end(self._said)
            self._said = item
            delta, item.open_end = split_open_end(item.open_end + delta)
            delta, count = repair(delta)
            item.replaced += count
        item.parts.append(delta)
        if refused:
            item.refused.append(delta)
        return left + delta

    def think(self, place: ItemPosition, delta: str) -> str:
        """Take a piece of the thinking; returns what of it can be shown."""
        self._items.open("reasoning", place).told = True
        text, self._open_thought = split_open_end(self._open_thought + delta)
        return repair(text)[0]

    def has_thought(self, place: ItemPosition) -> bool:
        """True if something of this reasoning was shown."""
        return self._items.open("reasoning", place).told

    def argue(self, place: ItemPosition, delta: str, *, whole: bool = False) -> None:
        """Take a piece of a call's arguments, or all of them. Raises AnswerTooLarge."""
        item = self._items.open("function_call", place)
        if whole:
            item.parts, item.size = [], 0
        item.parts.append(delta)
        item.size += size_of(delta)
        self._reader.check_size(item.size)

    def close_messages(self) -> str:
        """End the messages that did not come to their end; returns what is shown for halves without a second."""
        shown = ""
        for item in self._items.sorted_items():
            if item.kind == "message" and not item.is_done:
                shown += _close_end(item)
                item.text = "".join(item.parts)
        return shown

    def parts(self) -> tuple[str, list[ToolCall], tuple[Block, ...], Order]:
        """The text, the calls, what only the provider reads, and their order. Raises AnswerTooLarge."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        blocks: list[Block] = []
        order: list[int | Literal["call", "block"]] = []
        for item in self._items.sorted_items():
            if item.kind == "function_call":
                if not (item.name or item.call_id):  # arguments of an item that was never added
                    continue
                call = self._call(item)
                calls.append(call)
                order.append("call")
                written = keep_spelling(call, item.arguments, NAME)
                if written is not None:
                    blocks.append(written)
                    order.append("block")
            if item.raw is not None:
                blocks.append(Block(item.raw, NAME, holds_text=bool(item.text)))
                order.append("block")
            if item.text:
                texts.append(item.text)
                order.append(len(item.text))
        return "".join(texts), calls, tuple(blocks), shortest(tuple(order))

    def _call(self, item: ResponseItem) -> ToolCall:
        name = self._real_name(item.name)
        if not item.is_whole:
            return ToolCall(item.call_id, name, {}, NOT_CLOSED)
        return self._reader.call(item.call_id, name, item.arguments)

    def _take_call(self, item: ResponseItem, raw: dict[str, Any], text_of: Callable[[], str | None]) -> None:
        _name(item, raw)
        arguments = raw.get("arguments")
        if arguments is None:
            arguments = "".join(item.parts)
        elif not isinstance(arguments, str):  # its text, so that all arguments are read in one way
            arguments = members(text_of() or "{}")["arguments"]
        self._reader.check_size(size_of(arguments))
        item.arguments, item.parts = arguments, []

    def _is_kept(self, item: ResponseItem, raw: dict[str, Any]) -> bool:
        """True if the item, or of a call its fields, is a block."""
        if item.kind == "message":  # one with an empty part is refused
            content = raw.get("content")
            is_said = isinstance(content, str) or all(part.get("text") or part.get("refusal") for part in content or ())
            return bool(item.text) and raw.get("role") == "assistant" and is_said
        if item.kind == "reasoning":
            # One that only names what a server may have stored is refused, for nothing is stored.
            return bool(raw.get("encrypted_content") or raw.get("content"))
        if item.kind == "function_call":
            return not raw.keys() <= _KNOWN
        if raw["type"] in _UNANSWERED:
            self.dropped += 1
            return False
        return True

    def _keep(self, item: ResponseItem, text: str | None) -> None:
        """Keep the JSON text of the item; what has half of a character in it cannot be sent back unchanged."""
        if text is None:
            self.dropped += 1
        elif item.kind == "function_call":
            beside = {name: value for name, value in members(text).items() if name not in _KNOWN}
            item.raw = join_members({OF_CALL: join_members(beside)})
        else:
            item.raw = text


def _place(raw: dict[str, Any], index: int | None) -> ItemPosition:
    return ItemPosition(text_in(raw.get("id")), index)


def _name(item: ResponseItem, raw: dict[str, Any]) -> None:
    call_id, first = repair(text_in(raw.get("call_id")))
    name, second = repair(text_in(raw.get("name")))
    item.call_id, item.name = call_id or item.call_id, name or item.name
    item.replaced = first + second


def _close_end(item: ResponseItem) -> str:
    """End a message in the first half of a character; returns what is shown for it, "" where there is none."""
    end, count = repair(item.open_end)
    item.open_end, item.replaced = "", item.replaced + count
    if end:
        item.parts.append(end)
    return end


def _take_message(item: ResponseItem, raw: dict[str, Any]) -> str:
    """Take the text of a message that is done; returns what of it has not been shown."""
    before = "".join(item.parts)
    text, refusal = message_text(raw.get("content"))
    if text:
        item.text, item.replaced = repair(text)
        item.refused = [repair(refusal)[0]]
    else:  # a server that leaves it to the deltas
        item.text, item.is_whole = before + _close_end(item), False
    item.parts, item.open_end = [], ""
    return item.text[len(before) :] if item.text.startswith(before) else ""
