"""Dialects of gateways, a module for each. Here is what they share: tool calls out of an answer, with arguments that
are whole and ids that are sendable."""

from __future__ import annotations

import itertools
import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.llm.event_stream import AnswerTooLarge
from agent_host.llm.raw_json import may_hold_halves, repair_json
from agent_host.thread.messages import ToolCall, arguments_block
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent_host.llm.stream import Meaning
    from agent_host.thread.messages import Block

NOT_CLOSED = "the answer ended before the call did"
_TOO_DEEP = "the arguments are nested too deep"
# Gateways refuse longer ones, and such with other characters.
_SEVERAL = re.compile(r"\}\s*\{")
_TAKEN_OTHERWISE = re.compile(r':(?:null|""|\{\})|\.0')
"""Values that a tool may read differently from how they are written (`ToolRouter.usable_arguments`)."""
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


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
        except json_text.TooDeep:
            return ToolCall(call_id, name, {}, _TOO_DEEP)
        except orjson.JSONDecodeError:
            return ToolCall(call_id, name, {}, _why_no_json(str(arguments)))
        except _RepeatedField as error:
            return ToolCall(call_id, name, {}, f"the arguments have the field {error} twice")
        if not isinstance(value, dict):
            return ToolCall(call_id, name, {}, "the arguments are not a JSON object")
        call = ToolCall(call_id, name, value)
        try:
            size = len(call.arguments_json)
            json_text.check_depth(call.arguments_json)
        except (orjson.JSONEncodeError, json_text.TooDeep):  # an event may nest deeper than what it brings
            return ToolCall(call_id, name, {}, _TOO_DEEP)
        if not isinstance(arguments, str):
            self.check_size(size)
        return call

    def _value(self, text: str) -> Any:
        if not text.strip():
            return {}
        try:
            value = json_text.loads(text)
        except orjson.JSONDecodeError:
            several = _last_of_several(text)
            if several is not None:
                return several
            if not may_hold_halves(text):
                raise
            text, count = repair_json(text)
            value = json_text.loads(text)
            self.replaced += count
        _refuse_repeated_fields(text)
        return value


def keep_spelling(call: ToolCall, arguments: str, dialect: str) -> Block | None:
    """The block that has `arguments` go back as the model wrote them; None where the call has none that can be used,
    where they were mended, and where they are what the call would be written as anyway."""
    if call.problem is not None or not arguments.strip():
        return None
    if arguments == call.arguments_json.decode() and not _TAKEN_OTHERWISE.search(arguments):
        return None
    if _SEVERAL.search(arguments) and _last_of_several(arguments) is not None:
        return None
    if may_hold_halves(arguments) and repair_json(arguments) != (arguments, 0):
        return None
    return arguments_block(arguments, dialect)


def _last_of_several(text: str) -> dict[str, Any] | None:
    """The object meant by several whole ones in a row: the last that is not empty, where the others are `{}` or equal
    to it; None for any other text. Raises _RepeatedField."""
    if not _SEVERAL.search(text):
        return None
    found: list[dict[str, Any]] = []
    place = 0
    try:
        while place < len(text):
            value, place = _by_fields.raw_decode(text, place)
            place = _space_after(text, place)
            if not isinstance(value, dict):
                return None
            if value and value not in found:
                found.append(value)
    except (json.JSONDecodeError, RecursionError):
        return None
    return None if len(found) > 1 else found[0] if found else {}


def _space_after(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def _why_no_json(text: str) -> str:
    """Words for the model about arguments that are no JSON: where, and which of the usual slips it is."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place, rest, before = error.pos, text[error.pos :], text[: error.pos].rstrip()
        where = f"at character {place + 1}"
        is_escape = error.msg.startswith("Invalid \\")
        if error.msg.startswith("Unterminated") or not rest.strip() or (is_escape and '"' not in rest):
            return "the arguments are not complete JSON: they end before the object does"
        if error.msg.startswith("Invalid control"):
            return f"the arguments are not JSON: a raw newline or control character stands in a text {where}; write \\n"
        if rest.startswith(",") or (before.endswith(",") and rest[:1] in ("}", "]")):
            return f"the arguments are not JSON: a comma too many {where}, before the end of an object or a list"
        if rest.startswith("'"):
            return f"the arguments are not JSON: single quotes {where}; names and texts stand in double quotes"
        if rest.startswith(("None", "True", "False", "undefined")):
            return f"the arguments are not JSON: {where} write null, true or false"
        if is_escape:
            return f"the arguments are not JSON: a backslash {where} begins no escape; write it twice"
        if error.msg == "Extra data":
            return f"the arguments are not one JSON object: more follows it {where}"
        near = rest[:20].encode("utf-8", "replace").decode()
        return f"the arguments are not JSON: {error.msg} {where}, near {near!r}"
    return "the arguments are not JSON: NaN, Infinity and numbers beyond 64 bits are none"


class _RepeatedField(ValueError):
    """A JSON object has a field twice; `str()` is its name, quoted and cut."""


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise _RepeatedField(repr(name[:80]))
        names.add(name)
    return dict(pairs)


_by_fields = json.JSONDecoder(object_pairs_hook=_refuse_repeated)


def _refuse_repeated_fields(text: str) -> None:
    """Readers differ on which of the two counts, so policy and a tool might judge and run different calls."""
    _by_fields.decode(text)


def meaning_with(calls: Sequence[ToolCall], meaning: Meaning) -> Meaning:
    """The meaning of a turn with these calls, where its stop means `meaning`: one that says that there are calls is not
    empty where there are."""
    return "complete" if calls and meaning == "empty" else meaning


def mend_ids(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The same calls; an id that is missing, repeated, too long or of characters that a gateway refuses is replaced by
    one that no other call of the turn has, since every result is matched to its call by id."""
    calls = tuple(calls)
    taken = {call.call_id for call in calls}
    free = (name for name in map("call_{}".format, itertools.count(1)) if name not in taken)
    seen: set[str] = set()
    usable: list[ToolCall] = []
    for call in calls:
        is_good = call.call_id not in seen and _USABLE_ID.fullmatch(call.call_id)
        unique = call if is_good else call.change_id(next(free))
        seen.add(unique.call_id)
        usable.append(unique)
    return tuple(usable)


# Calls as OpenAI's wires have them: names of tools in 64 characters of a small alphabet, made so that the way back is
# known, and arguments as text.

_MAX_CHARS = 64
_HASH_CHARS = 16
_PLAIN = r"[A-Za-z0-9_-]{1,64}"
_MADE = rf"[A-Za-z0-9_-]*_[0-9a-f]{{{_HASH_CHARS}}}"


def sendable_name(name: str) -> str:
    """`name` where a gateway takes it; else what is left of it with a hash behind it. The same name always gives the
    same one, and no two names give one: a name that looks as if it were made here is made anew as well."""
    if re.fullmatch(_PLAIN, name) and not re.fullmatch(_MADE, name):
        return name
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _MAX_CHARS - _HASH_CHARS - 1]
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{kept}_{digest}"


def encode_arguments(call: ToolCall, written: str | None) -> bytes:
    """The arguments as a JSON string: `written`, which is one, where the model's own text is known."""
    return orjson.dumps(call.arguments_json.decode()) if written is None else written.encode()


class SentNames:
    """The tools that one session's requests have offered: what the model calls them, and what they are called here."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def offer(self, name: str) -> str:
        """The name under which a request offers the tool."""
        sent = sendable_name(name)
        if sent != name:
            self._real[sent] = name
        return sent

    def real(self, sent: str) -> str:
        """The tool that the model means; a name that nobody offered is left as it is."""
        return self._real.get(sent, sent)
