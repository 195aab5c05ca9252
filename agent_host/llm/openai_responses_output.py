"""The output of a Responses stream, item by item: text, calls, and what only the provider reads (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from agent_host.llm.answer_calls import NOT_CLOSED, as_written
from agent_host.llm.openai_responses import NAME, OF_CALL
from agent_host.llm.openai_responses_items import Item, Place, StreamedItems, kind_of
from agent_host.llm.openai_responses_values import are_said, is_readable, said_in, size_of, text_in, thoughts_in
from agent_host.llm.raw_json import members
from agent_host.llm.surrogates import repaired, without_open_end
from agent_host.thread.blocks import Block, shortest
from agent_host.thread.messages import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.llm.answer_calls import CallReader
    from agent_host.thread.blocks import Order

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
        self._said: Item | None = None  # the message whose text came last
        self.dropped = 0

    @property
    def refusal(self) -> str:
        """What the model said when it refused, "" where it did not."""
        return "".join(part for item in self._items.in_order() for part in item.refused)

    @property
    def replaced(self) -> int:
        """Halves of characters that became U+FFFD."""
        return self._reader.replaced + sum(item.replaced for item in self._items.in_order())

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
            thinking = thoughts_in(raw)
        if item.is_whole and self._is_kept(item, raw):
            self._keep(item, text_of() if intact else None)
        return text, thinking

    def say(self, place: Place, delta: str, *, halves: bool, refused: bool = False) -> str:
        """Take a piece of a message's text; returns what of it can be shown. `halves`: the first half of a character
        may have come before, or may be in it."""
        item = self._items.open("message", place)
        left = ""
        if halves:
            if self._said is not None and self._said is not item:  # a character does not go on in the next message
                left = _close_end(self._said)
            self._said = item
            delta, item.open_end = without_open_end(item.open_end + delta)
            delta, count = repaired(delta)
            item.replaced += count
        item.parts.append(delta)
        if refused:
            item.refused.append(delta)
        return left + delta

    def think(self, place: Place, delta: str) -> str:
        """Take a piece of the thinking; returns what of it can be shown."""
        self._items.open("reasoning", place).told = True
        text, self._open_thought = without_open_end(self._open_thought + delta)
        return repaired(text)[0]

    def has_thought(self, place: Place) -> bool:
        """True if something of this reasoning was shown."""
        return self._items.open("reasoning", place).told

    def argue(self, place: Place, delta: str, *, whole: bool = False) -> None:
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
        for item in self._items.in_order():
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
        for item in self._items.in_order():
            if item.kind == "function_call":
                if not (item.name or item.call_id):  # arguments of an item that was never added
                    continue
                call = self._call(item)
                calls.append(call)
                order.append("call")
                written = as_written(call, item.arguments, NAME)
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

    def _call(self, item: Item) -> ToolCall:
        name = self._real_name(item.name)
        if not item.is_whole:
            return ToolCall(item.call_id, name, {}, NOT_CLOSED)
        return self._reader.call(item.call_id, name, item.arguments)

    def _take_call(self, item: Item, raw: dict[str, Any], text_of: Callable[[], str | None]) -> None:
        _name(item, raw)
        arguments = raw.get("arguments")
        if arguments is None:
            arguments = "".join(item.parts)
        elif not isinstance(arguments, str):  # its text, so that all arguments are read in one way
            arguments = members(text_of() or "{}")["arguments"]
        self._reader.check_size(size_of(arguments))
        item.arguments, item.parts = arguments, []

    def _is_kept(self, item: Item, raw: dict[str, Any]) -> bool:
        """True if the item, or of a call its fields, is a block."""
        if item.kind == "message":  # one with an empty part is refused
            return bool(item.text) and raw.get("role") == "assistant" and are_said(raw.get("content"))
        if item.kind == "reasoning":
            return is_readable(raw)
        if item.kind == "function_call":
            return not raw.keys() <= _KNOWN
        if raw["type"] in _UNANSWERED:
            self.dropped += 1
            return False
        return True

    def _keep(self, item: Item, text: str | None) -> None:
        """Keep the JSON text of the item; what has half of a character in it cannot be sent back unchanged."""
        if text is None:
            self.dropped += 1
        elif item.kind == "function_call":
            beside = ((name, value) for name, value in members(text).items() if name not in _KNOWN)
            fields = ",".join(f"{orjson.dumps(name).decode()}:{value}" for name, value in beside)
            item.raw = f'{{"{OF_CALL}":{{{fields}}}}}'
        else:
            item.raw = text


def _place(raw: dict[str, Any], index: int | None) -> Place:
    return Place(text_in(raw.get("id")), index)


def _name(item: Item, raw: dict[str, Any]) -> None:
    call_id, first = repaired(text_in(raw.get("call_id")))
    name, second = repaired(text_in(raw.get("name")))
    item.call_id, item.name = call_id or item.call_id, name or item.name
    item.replaced = first + second


def _close_end(item: Item) -> str:
    """End a message in the first half of a character; returns what is shown for it, "" where there is none."""
    end, count = repaired(item.open_end)
    item.open_end, item.replaced = "", item.replaced + count
    if end:
        item.parts.append(end)
    return end


def _take_message(item: Item, raw: dict[str, Any]) -> str:
    """Take the text of a message that is done; returns what of it has not been shown."""
    before = "".join(item.parts)
    text, refusal = said_in(raw.get("content"))
    if text:
        item.text, item.replaced = repaired(text)
        item.refused = [repaired(refusal)[0]]
    else:  # a server that leaves it to the deltas
        item.text, item.is_whole = before + _close_end(item), False
    item.parts, item.open_end = [], ""
    return item.text[len(before) :] if item.text.startswith(before) else ""
