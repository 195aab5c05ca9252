"""Tool calls out of an answer, whatever its dialect: arguments that are whole, and ids that are sendable."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.ids import new_id
from agent_host.llm.limits import AnswerTooLarge
from agent_host.llm.surrogates import may_hold_halves, repaired_json
from agent_host.thread.blocks import arguments_block
from agent_host.thread.messages import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent_host.llm.stream import Meaning
    from agent_host.thread.blocks import Block

NOT_CLOSED = "the answer ended before the call did"
# Gateways refuse longer ones, and such with other characters.
_USABLE_ID = r"[A-Za-z0-9_.:-]{1,64}"


class CallReader:
    """Reads the calls of one answer. `replaced` counts halves of characters that became U+FFFD in them. No limit of the
    arguments where `max_arguments_bytes` is None."""

    def __init__(self, max_arguments_bytes: int | None = None) -> None:
        self.replaced = 0
        self._max_arguments_bytes = max_arguments_bytes

    def check_size(self, size: int) -> None:
        """Raises AnswerTooLarge for arguments of more bytes than a call may have."""
        limit = self._max_arguments_bytes
        if limit is not None and size > limit:
            raise AnswerTooLarge("arguments of one call", "max_call_arguments_bytes", limit)

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any] | None) -> ToolCall:
        """The call with its arguments, which come as JSON text or as an object; "" and None are an empty object.

        Arguments that are no JSON object (an answer cut at its limit ends inside them), or that name a field twice,
        leave an empty object and the reason: the call is answered with it and never runs. Raises AnswerTooLarge.
        """
        try:
            value = self._value(arguments) if isinstance(arguments, str) else arguments or {}
        except orjson.JSONDecodeError:
            return ToolCall(call_id, name, {}, "the arguments are not complete JSON")
        except _RepeatedField as error:
            return ToolCall(call_id, name, {}, f"the arguments have the field {error} twice")
        if not isinstance(value, dict):
            return ToolCall(call_id, name, {}, "the arguments are not a JSON object")
        call = ToolCall(call_id, name, value)
        try:
            size = len(call.arguments_json)
        except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
            return ToolCall(call_id, name, {}, "the arguments are nested too deep")
        if not isinstance(arguments, str):
            self.check_size(size)
        return call

    def _value(self, text: str) -> Any:
        if not text.strip():
            return {}
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            if not may_hold_halves(text):
                raise
            text, count = repaired_json(text)
            value = orjson.loads(text)
            self.replaced += count
        _refuse_repeated_fields(text)
        return value


def as_written(call: ToolCall, arguments: str, dialect: str) -> Block | None:
    """The block that has `arguments` go back as the model wrote them; None where the call has none that can be used,
    where they were mended, and where they are what the call would be written as anyway."""
    if call.problem is not None or not arguments.strip() or arguments == call.arguments_json.decode():
        return None
    if may_hold_halves(arguments) and repaired_json(arguments) != (arguments, 0):
        return None
    return arguments_block(arguments, dialect)


class _RepeatedField(ValueError):
    """A JSON object has a field twice; `str()` is its name, quoted and cut."""


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise _RepeatedField(repr(name[:80]))
        names.add(name)


_by_fields = json.JSONDecoder(object_pairs_hook=_refuse_repeated).decode


def _refuse_repeated_fields(text: str) -> None:
    """Readers differ on which of the two counts, so policy and a tool might judge and run different calls."""
    try:
        _by_fields(text)
    except RecursionError:  # the depth is judged with the value
        return


def meaning_with(calls: Sequence[ToolCall], meaning: Meaning) -> Meaning:
    """The meaning of a turn with these calls, where its stop means `meaning`: one that says that there are calls is not
    empty where there are."""
    return "complete" if calls and meaning == "empty" else meaning


def with_usable_ids(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The same calls; an id that is missing, repeated, too long or of characters that a gateway refuses is replaced by
    a new one, since every result is matched to its call by id."""
    seen: set[str] = set()
    usable: list[ToolCall] = []
    for call in calls:
        is_good = call.call_id not in seen and re.fullmatch(_USABLE_ID, call.call_id)
        unique = call if is_good else call.renamed(new_id("call"))
        seen.add(unique.call_id)
        usable.append(unique)
    return tuple(usable)
