"""Dialects of gateways, one module each. This module has their common parts: base classes of requests and of answer
assemblers, and the reader of tool calls, which ensures complete arguments and valid ids."""

from __future__ import annotations

import copy
import itertools
import json
import re
from base64 import b64encode
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import orjson

from agent_host.llm import MAX_DETAIL, AnswerTooLarge, ModelTurn, StreamProtocolError
from agent_host.llm.raw_json import RawParts, loads_with_halves, may_hold_halves, name_in, repair, repair_json
from agent_host.thread import Renderer
from agent_host.thread.messages import NO_TEXT, Block, ToolCall, arguments_block, shortest
from config import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent_host.contracts import Image, ToolSpec
    from agent_host.llm import Meaning
    from agent_host.thread import UnitMark
    from agent_host.thread.messages import Message
    from state.checkpoint import TokenUsage

_TOO_DEEP = "the arguments are nested too deep"
_SEVERAL = re.compile(r"\}\s*\{")
_TAKEN_OTHERWISE = re.compile(r':(?:null|""|\{\})|\.0')
"""Values that a tool may read differently from how they were written (`ToolRouter.usable_arguments`)."""
# Gateways refuse longer ids, and ids with other characters.
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


CacheTtl = Literal["5m", "1h"]
"""Lifetime of a request's prefix in the provider's cache, in dialects that can set it."""
MAX_COUNT: Final = 10**9
"""Far more than any model accepts; the sums of a whole session still fit any JSON reader's integers."""
UNNAMED: Final = "message"
"""The name that the standard gives to an event without a name."""


class Dialect:
    """One wire format of a gateway: encoding of requests, reading of events, meanings of stop reasons, parts that only
    the provider reads. All code specific to a provider is in its dialect (docs/architecture.md, "A dialect").
    `cache_ttl` is the lifetime of a request's prefix in the provider's cache, in wires that can set it.
    `max_tokens_field` is the name of an answer's limit in Chat Completions. `names_cache`: the gateway accepts
    `prompt_cache_key`. `own_key`: the token is a key of the vendor itself."""

    name: ClassVar[str]
    """The mark of this dialect's recorded blocks; it never changes."""
    path: ClassVar[str]
    """The path of requests, after the gateway's URL."""
    tail: ClassVar[bytes] = b"]}"
    """The end of the request's JSON after the last message."""
    takes_images: ClassVar[bool] = True
    """If false, no message with a picture is passed to a renderer."""
    caches_by_name: ClassVar[bool] = True
    key_header: ClassVar[str] = "authorization"
    own_headers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    messages_field: ClassVar[str] = "messages"
    renderer_type: ClassVar[type[MessageRenderer]]
    assembler_type: ClassVar[type[Assembler]]

    def __init__(
        self,
        cache_ttl: CacheTtl = "5m",
        *,
        max_tokens_field: str = "max_completion_tokens",
        names_cache: bool = True,
        own_key: bool = False,
    ) -> None:
        self._cache_ttl: CacheTtl = cache_ttl
        self._max_tokens_field = max_tokens_field
        self._names_cache = names_cache
        self._own_key = own_key
        self._names = SentNames()

    def kept_for(self, cache_ttl: CacheTtl) -> Dialect:
        """Return a copy with another cache lifetime. Both share the state of a session, such as the names under which
        its tools were offered."""
        kept = copy.copy(self)
        kept._cache_ttl = cache_ttl  # noqa: SLF001  a copy of self
        return kept

    def renderer(self, model: str) -> Renderer:
        """Return the renderer of messages to wire form. It sends only the blocks that this dialect and `model` made."""
        return self.renderer_type(model, self._cache_ttl)

    def headers(self, token: str | None) -> dict[str, str]:
        """Return the headers of a request. The token is in the header of the vendor's own clients and, unless it is a
        key of the vendor itself, also in the header that other gateways read. A provider may refuse unexpected
        headers."""
        keys = {"x-api-key": token, "authorization": f"Bearer {token}"} if token else {}
        carrying = {name: key for name, key in keys.items() if key and (name == self.key_header or not self._own_key)}
        return {"content-type": "application/json", "accept": "text/event-stream", **self.own_headers, **carrying}

    def head(
        self,
        *,
        model: str,
        max_output_tokens: int,
        system: str,
        tools: Sequence[ToolSpec],
        session_id: str = "",
        is_marked: bool = True,
        answer_schema: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Encode the request's JSON up to the first message; once per session. `tail` closes it. `session_id` is a key
        for the provider's cache, "" for none. `is_marked`: it ends with a cache mark, if the wire has marks.
        `answer_schema` is the JSON Schema of the final answer, for providers that enforce one."""
        request: dict[str, Any] = {"model": model, **self._settings(max_output_tokens)}
        if session_id and self._names_cache and self.caches_by_name:
            request["prompt_cache_key"] = session_id
        if tools:
            request["tools"] = [self._definition(self._names.offer(tool.name), tool) for tool in tools]
        if answer_schema is not None:
            request |= self._answer_form(answer_schema)
        return self._open(request, system, is_marked=is_marked)

    def _settings(self, max_output_tokens: int) -> dict[str, Any]:
        raise NotImplementedError

    def _definition(self, name: str, tool: ToolSpec) -> dict[str, Any]:
        raise NotImplementedError

    def _answer_form(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _open(self, request: dict[str, Any], system: str, *, is_marked: bool) -> bytes:
        """Add the system prompt as the first message, because outside of the messages it may not be cached."""
        del is_marked
        first = orjson.dumps({"role": "system", "content": system}) + b"," if system.strip() else b""
        return b'%b,"%b":[%b' % (orjson.dumps(request)[:-1], self.messages_field.encode(), first)

    def assembler(self, max_call_arguments_bytes: int | None = None) -> Assembler:
        """Return a new assembler for one response; with None the arguments of a call have no limit."""
        return self.assembler_type(max_call_arguments_bytes, self._names.real)

    def events_of_answer(self, body: str) -> Iterator[Event]:
        """Yield the events of a stream equivalent to this JSON body, the answer of a gateway that ignores `stream`.
        Parts that an assembler keeps unchanged are copied verbatim from the body. Raises LookupError, ValueError for a
        body that is not a complete answer of this dialect."""
        raise NotImplementedError


Event = tuple[str, str]
"""Name and data of a server-sent event."""


class MessageRenderer(Renderer):
    """See Renderer. If `cache_mark` is None, the wire has no cache marks and the provider caches what it can."""

    cache_mark: UnitMark | None = None

    def __init__(self, model: str = "", cache_ttl: CacheTtl = "5m") -> None:  # noqa: ARG002  most wires cannot set it
        self._model = model


class Assembler:
    """An assembler of the events of one stream into a turn. `real_name` returns the tool that the model means by a
    name. If `max_call_arguments_bytes` is None, arguments have no limit."""

    meanings: ClassVar[Mapping[str, Meaning]]

    def __init__(self, max_call_arguments_bytes: int | None = None, real_name: Callable[[str], str] = str) -> None:
        self.content = 0
        """Grows with each event that carries a part of the answer, and with no other event, such as a ping."""
        self.thinking = ""
        """The model's thinking in the last event, to be shown at once; "" for none."""
        self.is_over = False
        """True after the event that ends an answer: what the connection does then is of no consequence."""
        self._reader = CallReader(max_call_arguments_bytes, real_name)
        self._event = ""  # the name of the last event
        self._data = ""  # its JSON
        self._known_parts = RawParts("")
        self._halves = False  # a lone surrogate may have arrived
        self._intact = True  # the last event had none
        self._started = False
        self._replaced = self._dropped = 0
        self._response_id = self._response_model = ""
        self._stop_reason: str | None = None

    def feed(self, event: str, data: str) -> str | None:
        """Process one server-sent event; return text to show at once. Raises StreamProtocolError, StreamFault,
        AnswerTooLarge."""
        self.thinking, self._event = "", event
        try:
            return self._take(event, data)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # Its frames would keep the parsed event in memory, and a retry keeps the error while it reads the next
            # answer.
            raise StreamProtocolError(f"{self._name_event()} is malformed") from error.with_traceback(None)

    def _take(self, event: str, data: str) -> str | None:
        raise NotImplementedError

    def _name_event(self) -> str:
        return f"the {self._event} event"

    def finish(self) -> ModelTurn:
        """Return the turn. Raises StreamProtocolError if the stream was cut, AnswerTooLarge."""
        raise NotImplementedError

    def _turn(self, parts: TurnParts, stop_reason: str, usage: TokenUsage, detail: str) -> ModelTurn:
        meaning, calls = self.meaning_of(stop_reason), mend_ids(parts.calls)
        return ModelTurn(
            "".join(parts.texts),
            calls,
            stop_reason,
            "complete" if calls and meaning == "empty" else meaning,  # "empty" announces calls, and there are calls
            usage,
            self._replaced + self._reader.replaced,
            tuple(parts.blocks),
            shortest(tuple(parts.order)),
            self._dropped,
            self._response_id,
            self._response_model,
            detail,
        )

    def _load(self, data: str, *, ends: bool = False) -> Any:
        """Parse an event's JSON, which may contain lone surrogates. `ends`: no later event can complete one."""
        self._data, self._intact = data, True
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            if not may_hold_halves(data):
                raise
        # Not in the handler, so that a new error does not carry the frames of the first one.
        self._intact, self._halves = False, True
        if not ends:
            return loads_with_halves(data)
        data, count = repair_json(data)
        self._replaced += count
        return orjson.loads(data)

    @property
    def _raw(self) -> RawParts:
        """The JSON text of the last event's parts, read on demand: nearly all events contain only texts and do not need
        it."""
        if self._known_parts.data is not self._data:
            self._known_parts = RawParts(self._data)
        return self._known_parts

    @classmethod
    def meaning_of(cls, stop_reason: str) -> Meaning:
        """Return the meaning of a stop reason of this dialect; "unknown" for one that the provider adds later."""
        return cls.meanings.get(stop_reason, "unknown")

    def _note_names(self, response: Mapping[str, Any]) -> None:
        self._response_id = self._response_id or name_in(response.get("id"))
        self._response_model = self._response_model or name_in(response.get("model"))

    def _repair(self, text: str) -> str:
        text, count = repair(text)
        self._replaced += count
        return text


class TurnParts:
    """The parts of an answer in their order: texts, calls, and blocks that only the provider reads."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []
        self.blocks: list[Block] = []
        self.order: list[int | Literal["call", "block"]] = []

    def add_text(self, text: str) -> None:
        """Add a text, which may be empty."""
        if text:
            self.texts.append(text)
            self.order.append(len(text))

    def add_call(self, call: ToolCall, arguments: str = "") -> None:
        """Add a call, whose `arguments` are sent back as the model wrote them."""
        self.calls.append(call)
        self.order.append("call")
        written = keep_spelling(call, arguments, self._dialect)
        if written is not None:
            self._add(written)

    def add_block(self, raw: str, *, holds_text: bool = False) -> None:
        """Add a block of this JSON. `holds_text`: it contains the text that is added next."""
        self._add(Block(raw, self._dialect, holds_text=holds_text))

    def _add(self, block: Block) -> None:
        self.blocks.append(block)
        self.order.append("block")


def count_in(counts: Any, *names: str) -> int:
    """Return the first of these fields that is a valid count, at most `MAX_COUNT`; 0 if there is none."""
    found = (counts.get(name) for name in names) if isinstance(counts, dict) else ()
    return next((min(count, MAX_COUNT) for count in found if type(count) is int and count >= 0), 0)


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8, lone surrogates included."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def required_text(value: object) -> str:
    """Return `value`. Raises ValueError if it is not a string."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def one_line(text: str) -> str:
    """Return the beginning of a model's refusal in one line."""
    return repair(" ".join(text.split())[:MAX_DETAIL])[0]


def refuse_open(reason: str) -> None:
    """Raise ValueError for an answer without a stop reason."""
    if not isinstance(orjson.loads(reason), str):
        raise ValueError("the answer has no end")


class CallReader:
    """A reader of one answer's calls. `replaced` counts lone surrogates in them that became U+FFFD. If
    `max_arguments_bytes` is None, arguments have no limit. `real_name` returns the tool that the model means by a
    name."""

    def __init__(self, max_arguments_bytes: int | None = None, real_name: Callable[[str], str] = str) -> None:
        self.replaced = 0
        self._max_arguments_bytes = max_arguments_bytes
        self._real_name = real_name

    def check_size(self, size: int) -> None:
        """Raise AnswerTooLarge for arguments over the limit of a call."""
        limit = self._max_arguments_bytes
        if limit is not None and size > limit:
            raise AnswerTooLarge("arguments of one call", "max_call_arguments_bytes", limit)

    def call(
        self, call_id: str, name: str, arguments: str | dict[str, Any] | None, *, is_closed: bool = True
    ) -> ToolCall:
        """Make the call from its arguments, which are JSON text or an object; "" and None are an empty object.

        Arguments that are not a JSON object (for example because the answer was cut inside them) or that have a field
        twice become an empty object and a `problem`: the call is answered with that and never runs. So does a call in
        which the answer ended (not `is_closed`). Raises AnswerTooLarge.
        """
        name = self._real_name(name)
        if not is_closed:
            return ToolCall(call_id, name, {}, "the answer ended before the call did")
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
        except (orjson.JSONEncodeError, json_text.TooDeep):  # an event may nest deeper than arguments may
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
        _by_fields.decode(text)  # readers differ on which duplicate wins: policy and a tool might read different calls
        return value


def keep_spelling(call: ToolCall, arguments: str, dialect: str) -> Block | None:
    """Return the block that sends `arguments` back as the model wrote them; None if they cannot be used, were repaired,
    or are identical to the call's own encoding."""
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
    """Return the object meant by several complete ones in a row: the only one that is not empty, if the others are `{}`
    or equal to it; None for any other text. Raises _RepeatedField."""
    if not _SEVERAL.search(text):
        return None
    found: list[dict[str, Any]] = []
    place = 0
    try:
        while place < len(text):
            value, place = _by_fields.raw_decode(text, place)
            while text[place : place + 1] in (" ", "\t", "\r", "\n"):
                place += 1
            if not isinstance(value, dict):
                return None
            if value and value not in found:
                found.append(value)
    except (json.JSONDecodeError, RecursionError):
        return None
    return None if len(found) > 1 else found[0] if found else {}


def _why_no_json(text: str) -> str:
    """Explain to the model why arguments are not JSON: the position and, if it is a usual slip, which one."""
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
            return f"the arguments are not JSON: single quotes {where}; names and texts need double quotes"
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


def mend_ids(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls with valid ids: an id that is missing, repeated, too long or has characters that gateways refuse
    is replaced by one that is unique in the turn, because results are matched to calls by id."""
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


# Messages and calls in OpenAI's wire formats: no empty texts, arguments as text, and tool names of at most 64
# characters from a small alphabet, with a mapping back to the real names.

_NO_TEXT: Final = b'"%b"' % NO_TEXT.encode()
_MAX_CHARS = 64
_HASH_CHARS = 16
_PLAIN = r"[A-Za-z0-9_-]{1,64}"
_MADE = rf"[A-Za-z0-9_-]*_[0-9a-f]{{{_HASH_CHARS}}}"


def sendable_name(name: str) -> str:
    """Return `name` if gateways accept it; else its valid characters followed by a hash. The result is deterministic
    and unique: a name that looks like such a result gets a hash as well."""
    if re.fullmatch(_PLAIN, name) and not re.fullmatch(_MADE, name):
        return name
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _MAX_CHARS - _HASH_CHARS - 1]
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{kept}_{digest}"


def content_of(message: Message) -> bytes:
    """Return the text of a message as a JSON string. An error is marked in the text, because these wires have no field
    for it."""
    content = message.content_json if message.content.strip() else _NO_TEXT
    return b'"[error] %b' % content[1:] if message.is_error else content


def extra_members(fields: str | None) -> bytes:
    """Return the members of the JSON object `fields` verbatim, with a comma before them, to be added after others."""
    inner = "" if fields is None else fields.strip()[1:-1].strip()
    return b",%b" % inner.encode() if inner else b""


def data_url(image: Image) -> bytes:
    """Return the picture's data URL as a JSON string."""
    return b'"data:%b;base64,%b"' % (image.media_type.encode(), b64encode(image.data))


def encode_arguments(call: ToolCall, written: str | None) -> bytes:
    """Return the arguments as a JSON string: `written`, already such a string, if the model's own text is known."""
    return orjson.dumps(call.arguments_json.decode()) if written is None else written.encode()


class SentNames:
    """The tools offered by one session's requests: a mapping from the names sent to the model to the real names."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def offer(self, name: str) -> str:
        """Return the name under which a request offers the tool."""
        sent = sendable_name(name)
        if sent != name:
            self._real[sent] = name
        return sent

    def real(self, sent: str) -> str:
        """Return the tool that the model means; a name that was not offered is returned unchanged."""
        return self._real.get(sent, sent)
