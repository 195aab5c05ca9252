"""The wire dialects of the scripted gateway: their interface and its values, and the Messages dialect of Anthropic,
whose terms scripts use. Each of OpenAI's dialects has its own module."""

from __future__ import annotations

import binascii
import re
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from agent_host.testing.script import RequestView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent_host.testing.script import ErrorBody, Turn


_LOOK_BACK = 20
_MAX_MARKS = 4
_MAX_ENTRIES = 100_000
_MINIMUM_TOKENS = 1024
"""A prefix with fewer tokens is not cached: the usual minimum."""
_BYTES_PER_TOKEN = 4
_BLOCK_BYTES = 128 * _BYTES_PER_TOKEN
_Data = TypeVar("_Data", str, bytes)


class BadRequest(ValueError):
    """A real gateway would refuse the request; the text names the problem and its place."""


@dataclass(frozen=True, slots=True)
class MockDialect:
    """One wire format, as pure functions: bytes and values, no I/O.

    `path` is the path to which requests are posted, `closing_events` the number of events at the end of a stream that
    declare the answer complete. `has_cache_marks`: requests mark the prefixes to cache; else the provider caches what
    it can.

    `read(payload, headers)` checks the decoded request body and returns the data that scripts use; it raises BadRequest
    for a body that a real gateway would refuse. `pieces(payload)` splits a request that `read` accepted into the parts
    that a provider caches, in their order.

    `stream_events(turn, view)` returns the answer as encoded stream events, one item each, of which the last ends the
    stream properly; `message(turn, view)` returns the answer to a request without streaming, one JSON body.
    `error_event(error, view)` reports an error after the stream has started; `failed_message(error, view)` does so for
    a request without streaming, with HTTP 200, and is None if the wire has no such form. `error(status, error)` returns
    the body of an HTTP error; an empty `error.type` means the usual one for `status`.
    """

    path: str
    closing_events: int
    read: Callable[[Any, Mapping[str, str]], RequestView]
    pieces: Callable[[Any], Sequence[CachePiece]]
    stream_events: Callable[[Turn, RequestView], Sequence[bytes]]
    error_event: Callable[[ErrorBody, RequestView], bytes]
    message: Callable[[Turn, RequestView], bytes]
    error: Callable[[int, ErrorBody], bytes]
    failed_message: Callable[[ErrorBody, RequestView], bytes | None] = lambda *_: None
    has_cache_marks: bool = False


def named_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Encode a server-sent event whose data contains its kind as well."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def insert_pings(events: list[bytes], ping: bytes, count: int) -> list[bytes]:
    """Add one ping after each of the first `count` events; remaining pings go before the last event."""
    spread = min(count, len(events) - 1)
    head = [part for event in events[:spread] for part in (event, ping)]
    return [*head, *events[spread:-1], *[ping] * (count - spread), events[-1]]


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in `value`; none if it is not an array."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def split(data: _Data, size: int) -> list[_Data]:
    """Split into pieces of `size` characters or bytes, of which the last may be shorter."""
    return [data[start : start + size] for start in range(0, len(data), size)]


# Ids of tool calls that the gateway generates. They encode all state of a conversation that it would have to store: the
# progress of the conversation, and a mark of the thinking that must be sent back.

_OWN = re.compile(r"[a-z]+_(\d+)_\d+(?:_(\d+))?(?:_t([0-9a-f]{4})([0-9a-f]{12}))?")


def ids_of_calls(turn: Turn, view: RequestView, thinking: object, *, prefix: str = "toolu") -> Iterator[str]:
    """Yield the ids of an answer's calls: the script's or a generated one, unique in its conversation. It encodes the
    progress of the conversation, which `progress` reads: `toolu_{turn_index}_{call}`, then the position of the next
    answer if that lags behind because of turns with `when`. If there is `thinking`, it ends with the mark of that."""
    next_position = view.position + (turn.when is None)
    lag = "" if next_position == view.turn_index + 1 else f"_{next_position}"
    for number, call in enumerate(turn.tool_calls):
        yield call.id or f"{prefix}_{view.turn_index}_{number}{lag}{mark_of(view.model, thinking)}"


def progress(answers: Iterable[Sequence[object]]) -> tuple[int, int]:
    """Return `turn_index` and `position` of a request (see `RequestView`), from the ids of the calls in each assistant
    message, newest first.

    A count of these messages is too low once a client has dropped old ones to fit its context window, and does not show
    which of them came from turns with `when`. So the newest generated id decides, and only messages after it are
    counted: a gateway that has just started gets the same result as one that has seen the whole session.
    """
    count = 0
    for ids in answers:
        count += 1
        for call_id in ids:
            if own := _OWN.fullmatch(str(call_id)):
                turn_index = int(own[1]) + 1
                position = turn_index if own[2] is None else int(own[2])
                return turn_index + count - 1, position + count - 1
    return count, count


def mark_of(model: str, thinking: object) -> str:
    """Return the end of the ids of calls after this thinking of `model`; "" if there is no thinking."""
    return f"_t{_digest(model)[:4]}{_digest(thinking)[:12]}" if thinking else ""


def has_mark_of(call_id: object, model: str) -> bool:
    """True if the id has a mark of `model`, because other models do not read that one's thinking."""
    own = _OWN.fullmatch(str(call_id))
    return own is not None and own[3] == _digest(model)[:4]


def find_bereft(call_ids: Iterable[object], model: str, thinking: object) -> str | None:
    """Return the first call with a mark of `model`, if the thinking before it was not `thinking`; else None."""
    marked = next((str(call_id) for call_id in call_ids if has_mark_of(call_id, model)), None)
    return None if marked is None or marked.endswith(mark_of(model, thinking) or "_") else marked


def _digest(value: object) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


class CachePiece(NamedTuple):
    """A part of a request that is cached or processed as a whole. `marked`: it ends with a cache mark; `long`: that
    requests an hour."""

    data: bytes
    marked: bool = False
    long: bool = False


def blocks_of(*parts: Any) -> list[CachePiece]:
    """Split parts of a request into blocks, as a provider without marks caches them, so that a prefix of a part can be
    found."""
    return [CachePiece(piece) for part in parts for piece in split(orjson.dumps(part), _BLOCK_BYTES)]


class Counts(NamedTuple):
    """Tokens of one request: all of them, those read from the cache, those written to it, and of the latter those
    cached for an hour."""

    total: int
    read: int
    written: int
    long: int = 0


def tokens_of(data: bytes) -> int:
    """Count the tokens of a text, four bytes each: imprecise, but the same on every machine."""
    return -(-len(data) // _BYTES_PER_TOKEN)


class PromptCache:
    """The cache of one provider, for all models and sessions. Nothing expires, because tests have no clock."""

    def __init__(self, minimum_tokens: int = _MINIMUM_TOKENS) -> None:
        self._minimum = minimum_tokens
        self._kept: OrderedDict[bytes, None] = OrderedDict()

    def count(self, model: str, pieces: Sequence[CachePiece], *, has_marks: bool) -> Counts:
        """Count the tokens of an answered request, and cache the prefixes that a provider would. Raises BadRequest for
        more cache marks than a provider accepts."""
        ends = list(_prefixes(model, pieces))
        marks = [place for place, piece in enumerate(pieces) if piece.marked] if has_marks else [len(pieces) - 1]
        if len(marks) > _MAX_MARKS:
            raise BadRequest(f"a request may have {_MAX_MARKS} cache marks, this one has {len(marks)}")
        back = _LOOK_BACK if has_marks else len(pieces)
        read = max((tokens for mark in marks for tokens in self._find_known(ends, mark, back)), default=0)
        written = max((ends[mark].tokens for mark in marks if ends[mark].tokens >= self._minimum), default=0)
        for place in marks if has_marks else range(len(ends)):
            if ends[place].tokens >= self._minimum:
                self._kept[ends[place].digest] = None
                self._kept.move_to_end(ends[place].digest)
        while len(self._kept) > _MAX_ENTRIES:
            self._kept.popitem(last=False)
        for_an_hour = (ends[mark].tokens for mark in marks if pieces[mark].long)
        long = max((tokens for tokens in for_an_hour if tokens <= written), default=0)
        return Counts(ends[-1].tokens if ends else 0, read, max(0, written - read), max(0, long - read))

    def _find_known(self, ends: Sequence[_Prefix], mark: int, back: int) -> Iterator[int]:
        """Yield the tokens of the longest cached prefix that ends at the mark or less than `back` pieces before it."""
        for place in range(mark, max(-1, mark - back), -1):
            if ends[place].digest in self._kept:
                yield ends[place].tokens
                return


class _Prefix(NamedTuple):
    digest: bytes
    tokens: int


def _prefixes(model: str, pieces: Sequence[CachePiece]) -> Iterator[_Prefix]:
    running, tokens = blake2b(model.encode(), digest_size=16), 0
    for piece in pieces:
        running.update(len(piece.data).to_bytes(8, "big") + piece.data)
        tokens += tokens_of(piece.data)
        yield _Prefix(running.digest(), tokens)


# Answers in the Anthropic Messages dialect.

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _stream_events(turn: Turn, view: RequestView) -> list[bytes]:
    events = [named_event("message_start", {"message": _head(turn, view)})]
    for index, block in enumerate(_blocks(turn, view)):
        events += _block_events(index, block, turn.chunk_chars)
    delta = {"stop_reason": _stop_reason(turn), "stop_sequence": None}
    events.append(named_event("message_delta", {"delta": delta, "usage": _usage(turn)}))
    events.append(named_event("message_stop", {}))
    return insert_pings(events, named_event("ping", {}), turn.pings)


def _message(turn: Turn, view: RequestView) -> bytes:
    """Encode the answer without streaming. Tool arguments that are not JSON are sent as a string."""
    content = [_complete_block(block) for block in _blocks(turn, view)]
    answer = {"content": content, "stop_reason": _stop_reason(turn), "usage": _usage(turn)}
    return orjson.dumps({**_head(turn, view), **answer})


def _error_body(status: int, error: ErrorBody) -> dict[str, Any]:
    usual = ERROR_TYPES.get(status) or ERROR_TYPES[400 if status < 500 else 500]
    return {"type": "error", "error": {"type": error.type or usual, "message": error.message}}


def _head(turn: Turn, view: RequestView) -> dict[str, Any]:
    return {
        "id": f"msg_{view.session}_{view.turn_index}",
        "type": "message",
        "role": "assistant",
        "model": view.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        # Little output exists when a stream starts; the final message_delta contains the final count.
        "usage": {**_usage(turn), "output_tokens": 1},
    }


def _usage(turn: Turn) -> dict[str, Any]:
    counts = turn.usage
    written, long = counts.cache_creation_input_tokens, counts.cache_creation_1h_input_tokens
    return {
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cache_read_input_tokens": counts.cache_read_input_tokens,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_5m_input_tokens": written - long, "ephemeral_1h_input_tokens": long},
    }


def _stop_reason(turn: Turn) -> str:
    return turn.stop_reason or ("tool_use" if turn.tool_calls else "end_turn")


def _blocks(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    """Yield the content blocks of the answer; a tool call's `input` is still the text of its arguments."""
    thinking = list(_thinking(turn, view))
    yield from thinking
    if turn.text:
        yield {"type": "text", "text": turn.text}
    for call, call_id in zip(turn.tool_calls, ids_of_calls(turn, view, thinking), strict=True):
        yield {"type": "tool_use", "id": call_id, "name": call.name, "input": call.encode_arguments()}


def _thinking(turn: Turn, view: RequestView) -> Iterator[dict[str, Any]]:
    if turn.thinking:
        yield {"type": "thinking", "thinking": turn.thinking, "signature": f"sig_{view.session}_{view.turn_index}"}
    if turn.redacted_thinking:
        yield {"type": "redacted_thinking", "data": turn.redacted_thinking}


def _complete_block(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] != "tool_use":
        return block
    try:
        return {**block, "input": orjson.loads(block["input"])}
    except orjson.JSONDecodeError:
        return block


_EMPTY_START: Mapping[str, Mapping[str, Any]] = {
    "thinking": {"thinking": "", "signature": ""},
    "text": {"text": ""},
    "tool_use": {"input": {}},
}
_DELTAS: Mapping[str, tuple[tuple[str, str, str, bool], ...]] = {
    # block type: (field of the block, delta type, field of the delta, True if sent in chunks)
    "thinking": (
        ("thinking", "thinking_delta", "thinking", True),
        ("signature", "signature_delta", "signature", False),
    ),
    "text": (("text", "text_delta", "text", True),),
    "tool_use": (("input", "input_json_delta", "partial_json", True),),
}


def _block_events(index: int, block: dict[str, Any], chunk_chars: int) -> Iterator[bytes]:
    kind = block["type"]
    yield named_event("content_block_start", {"index": index, "content_block": {**block, **_EMPTY_START.get(kind, {})}})
    for source, delta_type, target, chunked in _DELTAS.get(kind, ()):
        text: str = block[source]
        for piece in split(text, chunk_chars if chunked else max(len(text), 1)):
            delta = {"type": delta_type, target: piece}
            yield named_event("content_block_delta", {"index": index, "delta": delta})
    yield named_event("content_block_stop", {"index": index})


# Reading of requests in the Anthropic Messages dialect, as strict as the real endpoint about usual mistakes of clients.
#
# Most importantly, a thread must be valid: each tool call has exactly one result, in the next message.

_ROLES = ("user", "assistant")


def read_request(payload: Any, headers: Mapping[str, str]) -> RequestView:
    """Check a decoded body of `POST /v1/messages` and return the data that scripts use. Raises BadRequest."""
    if not isinstance(payload, dict):
        raise BadRequest("the body must be a JSON object")
    model = _require(payload, "model", str)
    max_tokens = _require(payload, "max_tokens", int)
    messages = _require(payload, "messages", list)
    if not messages:
        raise BadRequest("messages: at least one message is required")
    _check_messages(messages)
    _check_thinking(messages, model)
    tools = objects_in(payload.get("tools"))
    return view_of(
        messages,
        headers,
        model=model,
        system=text_in(payload.get("system", "")),
        max_tokens=max_tokens,
        stream=payload.get("stream") is True,
        tools=tuple(str(tool.get("name", "")) for tool in tools),
    )


def view_of(messages: Sequence[Mapping[str, Any]], headers: Mapping[str, str], **known: Any) -> RequestView:
    """Return the view of a request for scripts, which is the same in every dialect: `messages` are in the form of the
    Messages dialect. The session is the one that the request names, else a hash of the first message, which is stable
    as long as that message does not change."""
    last = messages[-1]
    turn_index, position = progress(
        [block.get("id") for block in _blocks_of(message, "tool_use")]
        for message in reversed(messages)
        if message["role"] == "assistant"
    )
    return RequestView(
        session=headers.get("x-session-id") or sha256(text_in(messages[0]["content"]).encode()).hexdigest()[:16],
        message_count=len(messages),
        turn_index=turn_index,
        position=position,
        last_role=last["role"],
        last_text=text_in(last["content"]),
        last_tool_error=any(block.get("is_error") is True for block in _blocks_of(last, "tool_result")),
        headers=headers,
        last_images=tuple(images_in(last["content"])),
        image_count=sum(1 for message in messages for _ in images_in(message["content"])),
        **known,
    )


def pieces_of(payload: dict[str, Any]) -> list[CachePiece]:
    """Return tools, system prompt and the blocks of all messages as pieces for the cache, without their cache marks."""
    blocks: list[tuple[str, Any]] = [("tools", tool) for tool in payload.get("tools") or ()]
    blocks += [("system", block) for block in _to_blocks(payload.get("system") or ())]
    blocks += [
        (f"{number} {message['role']}", block)
        for number, message in enumerate(payload["messages"])
        for block in _to_blocks(message["content"])
    ]
    return [_piece(place, block) for place, block in blocks]


def _to_blocks(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _piece(place: str, block: Any) -> CachePiece:
    if not isinstance(block, dict):
        return CachePiece(orjson.dumps([place, block]))
    kept = {name: value for name, value in block.items() if name != "cache_control"}
    mark = block.get("cache_control")
    is_long = isinstance(mark, dict) and mark.get("ttl") == "1h"
    return CachePiece(orjson.dumps([place, kept]), marked=mark is not None, long=is_long)


def _require(payload: dict[str, Any], key: str, kind: type) -> Any:
    value = payload.get(key)
    if value is None:
        raise BadRequest(f"{key}: field required")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRequest(f"{key}: must be of type {kind.__name__}")
    return value


def _check_messages(messages: Sequence[Any]) -> None:
    """Check roles, contents and the pairing of tool calls with results, in one pass, because threads may have thousands
    of messages."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise BadRequest(f"messages.{index}: role must be one of {', '.join(_ROLES)}")
        calls, results = _check_content(index, message.get("content"))
        if open_calls or results:
            _check_pairing(index, open_calls, results)
        if calls and message["role"] != "assistant":
            raise BadRequest(f"messages.{index}: tool_use blocks belong to the assistant")
        if calls and (len(set(calls)) < len(calls) or not seen.isdisjoint(calls)):
            raise BadRequest(f"messages.{index}: tool_use ids must be unique in a conversation: {', '.join(calls)}")
        seen.update(calls)
        open_calls = calls
    if messages[0]["role"] != "user":
        raise BadRequest("messages.0: the first message must be the user's")
    if open_calls:
        _check_pairing(len(messages), open_calls, [])


def _check_content(index: int, content: Any) -> tuple[list[str], list[str]]:
    """Check one message's content, and return the ids of its tool calls and of its tool results."""
    calls: list[str] = []
    results: list[str] = []
    if isinstance(content, str) and content:
        return calls, results
    if not isinstance(content, list) or not content:
        raise BadRequest(f"messages.{index}: content must be text or an array of blocks, and not empty")
    for position, block in enumerate(content):
        where = f"messages.{index}.content.{position}"
        kind = _check_block(block, where)
        if kind == "tool_result":
            results.append(str(block.get("tool_use_id")))
            parts = block.get("content")
            for place, part in enumerate(parts if isinstance(parts, list) else ()):
                _check_block(part, f"{where}.content.{place}")
        elif kind == "tool_use":
            calls.append(str(block.get("id")))
            if not isinstance(block.get("input"), dict):
                raise BadRequest(f"{where}: the input of tool_use must be an object")
    return calls, results


def _check_block(block: Any, where: str) -> str:
    """Check a block of a message or of a tool result and return its type: texts must not be empty, and images must be
    readable."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise BadRequest(f"{where}: must be an object with a type")
    if kind == "image":
        check_image(block, where)
    elif kind == "text" and not block.get("text"):
        raise BadRequest(f"{where}: text blocks must not be empty")
    return kind


def _check_pairing(index: int, calls: list[str], results: list[str]) -> None:
    if calls == results:
        return
    if lacking := [call for call in calls if call not in results]:
        raise BadRequest(f"messages.{index - 1}: tool_use without tool_result right after it: {', '.join(lacking)}")
    if strays := [result for result in results if result not in calls]:
        raise BadRequest(f"messages.{index}: tool_result without tool_use right before it: {', '.join(strays)}")
    if len(results) > len(calls):
        raise BadRequest(f"messages.{index}: more than one tool_result for one tool_use")


def _blocks_of(message: Mapping[str, Any], kind: str) -> Sequence[dict[str, Any]]:
    content = message["content"]
    return () if isinstance(content, str) else [block for block in content if block.get("type") == kind]


def text_in(content: Any) -> str:
    """Return the text of a string, of blocks, or of tool results in blocks, one part per line."""
    if isinstance(content, str):
        return content
    texts = {
        "text": lambda block: str(block.get("text", "")),
        "tool_result": lambda block: text_in(block.get("content")),
    }
    return "\n".join(texts[block["type"]](block) for block in objects_in(content) if block.get("type") in texts)


# Thinking must be sent back unchanged, as the real endpoint requires with tool calls. The gateway stores nothing: the
# ids of calls contain a mark, a hash of the model and of the thinking before them.

_KINDS = ("thinking", "redacted_thinking")


def _check_thinking(messages: Sequence[Any], model: str) -> None:
    """Check that each call whose id has a mark of `model` is still after its thinking blocks. Other models ignore
    these. Raises BadRequest."""
    for index, message in enumerate(messages):
        calls = _blocks_of(message, "tool_use") if message["role"] == "assistant" else ()
        marked = next((block["id"] for block in calls if has_mark_of(block.get("id"), model)), None)
        if marked is None:
            continue
        content = message["content"]
        places = [place for place, block in enumerate(content[: content.index(calls[0])]) if block["type"] in _KINDS]
        if not places:
            raise BadRequest(
                f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
                f"`{content[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
                "thinking block (preceding the lastmost set of `tool_use` and `tool_result` blocks)"
            )
        if not marked.endswith(mark_of(model, [content[place] for place in places])):
            raise BadRequest(
                f"messages.{index}.content.{places[0]}: `thinking` or `redacted_thinking` blocks in the latest "
                "assistant message cannot be modified. These blocks must remain as they were in the original response"
            )


# Image blocks of a request, checked like the real endpoint: type, encoding, size.

_MAX_BASE64_BYTES = 5 * 1024 * 1024
_BEGINNINGS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


def check_image(block: Mapping[str, Any], where: str) -> None:
    """Raise BadRequest for an image block that would be refused; `where` is its place in the request."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise BadRequest(f"{where}.source: must be an object of type base64")
    kind, data = source.get("media_type"), source.get("data")
    if kind not in _BEGINNINGS:
        raise BadRequest(f"{where}.source.base64.media_type: must be one of {', '.join(_BEGINNINGS)}")
    if not isinstance(data, str) or not data:
        raise BadRequest(f"{where}.source.base64.data: field required")
    if len(data) > _MAX_BASE64_BYTES:
        raise BadRequest(
            f"{where}.source.base64: image exceeds 5 MB maximum: {len(data)} bytes > {_MAX_BASE64_BYTES} bytes"
        )
    try:
        decoded = binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise BadRequest(f"{where}.source.base64.data: is not base64") from error
    if not decoded.startswith(_BEGINNINGS[kind]):
        raise BadRequest(f"{where}.source.base64.data: the image does not appear to be {kind}")


def images_in(content: Any) -> Iterator[str]:
    """Yield the media types of the images in a message's content, including those in tool results."""
    for block in objects_in(content):
        if block.get("type") == "image":
            yield str(block["source"]["media_type"])
        elif block.get("type") == "tool_result":
            yield from images_in(block.get("content"))


ANTHROPIC = MockDialect(
    path="/v1/messages",
    has_cache_marks=True,
    closing_events=2,
    read=read_request,
    pieces=pieces_of,
    stream_events=_stream_events,
    error_event=lambda error, _: named_event("error", {"error": _error_body(500, error)["error"]}),
    message=_message,
    error=lambda status, error: orjson.dumps(_error_body(status, error)),
)
"""`POST /v1/messages`, with and without streaming."""
