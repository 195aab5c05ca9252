"""The source from which httpx-sse reads an answer: text as it arrives, of which no line and no event is larger, and
nothing later, than `[llm]` of the settings allows (AH 6.3).

httpx-sse keeps a line until it ends and an event until the empty line behind it, so bytes are counted before it has
them.
"""

from __future__ import annotations

import asyncio
import codecs
import zlib
from typing import TYPE_CHECKING, Final

import orjson

from agent_host.llm.raw_json import elements, members
from agent_host.llm.stream import StreamProtocolError
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping


class GatewayAnswer(NamedTuple):
    """An answer whose body is still to be read. `headers` are by their names in lower case; `close` ends it, after
    which the connection may be used again."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterable[bytes]
    close: Callable[[], Awaitable[None]]


class BoundedStream:
    """Stands for the response where httpx-sse takes one. `chunks` is the body as it comes, `pieces_of` decompresses
    each of them (`decoder`).

    An event stream is UTF-8 whatever its header says, and a byte order mark in front of it is no part of the first
    line. Bytes that are no UTF-8 are an error here, and not a replacement character in a tool's arguments; a lone
    surrogate that was encoded as if it were a character stands as it is.
    """

    headers: Final[Mapping[str, str]] = {"content-type": "text/event-stream"}

    def __init__(
        self, chunks: AsyncIterable[bytes], pieces_of: Callable[[bytes], Iterable[bytes]], limits: AnswerLimits
    ) -> None:
        self._chunks = chunks
        self._pieces_of = pieces_of
        self._limits = limits
        self._smallest = min(limits.max_line_bytes, limits.max_event_bytes)
        self._line_bytes = 0
        self._event_bytes = 0
        self._answer_bytes = 0
        self._after_cr = False
        self._at_start = True

    async def aiter_text(self) -> AsyncIterator[str]:
        """The text. Raises AnswerTooLarge, UnicodeDecodeError, and what `chunks` and `pieces_of` raise."""
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        async for chunk in self._chunks:
            later = False
            for piece in self._pieces_of(chunk):
                if later:  # one chunk may hold megabytes: time-outs and cancellations come between them
                    await asyncio.sleep(0)
                self._count(piece)
                text = decoder.decode(piece)
                if text and self._at_start:
                    self._at_start, text = False, text.removeprefix("\ufeff")
                if text:
                    yield text
                later = True
        decoder.decode(b"", final=True)

    def _count(self, piece: bytes) -> None:
        limits = self._limits
        self._answer_bytes += len(piece)
        if self._answer_bytes > limits.max_answer_bytes:
            raise AnswerTooLarge("an answer", "max_answer_bytes", limits.max_answer_bytes)
        if piece.endswith(b"\n\n") and self._event_bytes + self._line_bytes + len(piece) <= self._smallest:
            # Whole events, as nearly always: all of it is too short for one line or event that is too long.
            self._event_bytes = self._line_bytes = 0
            self._after_cr = False
            return
        if self._after_cr and piece.startswith(b"\n"):  # the second half of one line end
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        for line in piece.splitlines(keepends=True):
            content = line.rstrip(b"\r\n")
            self._line_bytes += len(content)
            if self._line_bytes > limits.max_line_bytes:
                raise AnswerTooLarge("a line", "max_line_bytes", limits.max_line_bytes)
            if self._event_bytes + self._line_bytes > limits.max_event_bytes:
                raise AnswerTooLarge("an event", "max_event_bytes", limits.max_event_bytes)
            if len(content) < len(line):  # the line is over, and with an empty one the event
                self._event_bytes = self._event_bytes + self._line_bytes + 1 if self._line_bytes else 0
                self._line_bytes = 0


def whole_events(data: bytes) -> Iterator[tuple[str, str]]:
    """Name and data of the events that are whole at the start of an answer that has been kept."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    for block in text.split("\n\n")[:-1]:
        name, said = "message", []
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            if field == "event":
                name = value.removeprefix(" ")
            elif field == "data":
                said.append(value.removeprefix(" "))
        if said:
            yield name, "\n".join(said)


# An answer that came as one JSON body, since the gateway did not heed `stream`: the events of a stream that says the
# same. What a dialect's assembler keeps as it came is put into them as it stands in the body.
#
# Each function raises LookupError, ValueError for a body that is no whole answer of its dialect.

Event = tuple[str, str]
"""Name and data."""


def messages_events(body: str) -> Iterator[Event]:
    """Of the Messages dialect: each block is whole where it starts; a call's arguments come as the text that they are,
    so that they are read as in a stream."""
    message = members(body)
    blocks = elements(message["content"])
    _refuse_open(message["stop_reason"])
    head = {name: text for name, text in message.items() if name != "content"}
    yield "message_start", _object({"message": _object(head)})
    for index, block in enumerate(blocks):
        begun, arguments = _start_block(block)
        yield "content_block_start", _object({"index": str(index), "content_block": begun})
        if arguments:
            delta = orjson.dumps({"type": "input_json_delta", "partial_json": arguments}).decode()
            yield "content_block_delta", _object({"index": str(index), "delta": delta})
        yield "content_block_stop", _object({"index": str(index)})
    ended = {name: text for name, text in message.items() if name in ("stop_reason", "stop_details")}
    yield "message_delta", _object({"delta": _object(ended), "usage": message.get("usage", "null")})
    yield "message_stop", "{}"


def chat_events(body: str) -> Iterator[Event]:
    """Of the Chat Completions dialect: one chunk, whose calls have their places as indexes."""
    answer = members(body)
    choices = [_choice(members(choice)) for choice in elements(answer["choices"])]
    yield "message", _object({**answer, "choices": f"[{','.join(choices)}]"})
    yield "message", "[DONE]"


def response_events(body: str) -> Iterator[Event]:
    """Of the Responses dialect: its last event has the whole response."""
    response = members(body)
    elements(response["output"])
    status = orjson.loads(response.get("status", '"completed"'))
    if status not in ("completed", "incomplete", "failed", "cancelled"):
        raise ValueError(f"the response is still {status!r}")
    yield "response.completed", _object({"response": body})


def _start_block(block: str) -> tuple[str, str]:
    """The block as one that starts, and the JSON text of its arguments where it is a call of our tools."""
    fields = members(block)
    if orjson.loads(fields["type"]) != "tool_use" or "input" not in fields:
        return block, ""
    arguments = fields.pop("input")
    value = orjson.loads(arguments)
    return _object(fields), value if isinstance(value, str) else arguments


def _refuse_open(reason: str) -> None:
    """Raises ValueError for an answer that does not say why it ended."""
    if not isinstance(orjson.loads(reason), str):
        raise ValueError("the answer has no end")


def _choice(choice: Mapping[str, str]) -> str:
    _refuse_open(choice["finish_reason"])
    message = members(choice["message"])
    if orjson.loads(message.get("tool_calls", "null")):
        given = enumerate(elements(message["tool_calls"]))
        calls = [_object({**members(call), "index": str(index)}) for index, call in given]
        message["tool_calls"] = f"[{','.join(calls)}]"
    return _object({**{name: text for name, text in choice.items() if name != "message"}, "delta": _object(message)})


def _object(fields: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{orjson.dumps(name).decode()}:{text}' for name, text in fields.items())}}}"


class GatewayTimeouts(NamedTuple):
    """Seconds. `read_s` is the longest silence between two bytes of an answer, `progress_s` the longest time without
    content (pings and comments are none), `answer_s` the longest time for one answer from its request on."""

    connect_s: float
    read_s: float
    progress_s: float
    answer_s: float


class AnswerLimits(NamedTuple):
    """Bytes of one answer, counted after decompression; each is the setting of the same name in `[llm]`."""

    max_line_bytes: int
    max_event_bytes: int
    max_call_arguments_bytes: int
    max_answer_bytes: int


class AnswerTooLarge(Exception):
    """The answer is over a limit; `str()` of it names what, how much and the setting. A retry would be over it too."""

    def __init__(self, what: str, setting: str, limit: int) -> None:
        super().__init__(f"{what} of more than {limit} bytes (llm.{setting})")


class Patience:
    """The deadlines of one answer. `timeout` is entered around the whole call, `renew` moves it with each content.

    Made where an event loop runs.
    """

    def __init__(self, timeouts: GatewayTimeouts) -> None:
        self._timeouts = timeouts
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + timeouts.answer_s
        self._renewed = self._now()
        self.timeout = asyncio.timeout_at(self._next())

    def renew(self) -> None:
        """Content has come. Asked with each event, so the deadline is moved only when it is a hundredth late."""
        if self._now() - self._renewed > self._timeouts.progress_s / 100:
            self._renewed = self._now()
            self.timeout.reschedule(self._next())

    def what_was_missed(self) -> str:
        """The part of the answer that the gateway has not given in time, with its name before it."""
        if self.timeout.when() == self._end:
            return f"was not done after {self._timeouts.answer_s:g} s (llm.answer_timeout_s)"
        return f"sent no content for {self._timeouts.progress_s:g} s (llm.progress_timeout_s)"

    def _next(self) -> float:
        return min(self._end, self._now() + self._timeouts.progress_s)


# The body of an answer as its sender wrote it, decompressed in pieces: a kilobyte of gzip may hold a megabyte, and
# nobody who counts bytes can count them before they exist.

ACCEPTED = "gzip, deflate"
"""The accept-encoding of requests."""

_PIECE_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_WBITS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


class UnknownCoding(Exception):
    """The body is coded in a way that the request did not offer."""


def decoder(content_encoding: str) -> Callable[[bytes], Iterable[bytes]]:
    """Return the decoder that makes pieces of at most 64 KiB of each chunk of a body with this Content-Encoding; a
    chunk that is not coded is its own piece.

    Raises UnknownCoding. What is returned raises StreamProtocolError for what cannot be decompressed.
    """
    names = [name.strip().lower() for name in content_encoding.split(",")]
    coded = [name for name in names if name not in ("", "identity")]
    if not coded:
        return _pass_on
    wbits = _WBITS.get(coded[0])
    if wbits is None or len(coded) > 1:
        raise UnknownCoding(", ".join(coded))
    return _Inflater(wbits).pieces


def _pass_on(chunk: bytes) -> Iterable[bytes]:
    return (chunk,)


class _Inflater:
    def __init__(self, wbits: int) -> None:
        self._zlib = zlib.decompressobj(wbits)
        self._may_be_bare = wbits == zlib.MAX_WBITS

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """See `decoder`. What stands behind the end of the compressed data is passed over, as clients do."""
        if self._may_be_bare and chunk:
            self._may_be_bare = False
            if not _begins_with_zlib_header(chunk):  # some servers take "deflate" by its word
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        while not self._zlib.eof:
            try:
                piece = self._zlib.decompress(chunk, _PIECE_BYTES)
            except zlib.error as error:
                raise StreamProtocolError(f"it cannot be decompressed: {error}") from error
            if piece:
                yield piece
            chunk = self._zlib.unconsumed_tail
            if len(piece) < _PIECE_BYTES:
                return


def _begins_with_zlib_header(chunk: bytes) -> bool:
    """RFC 1950: method 8 and, where the second byte is there too, a check of both."""
    return chunk[0] & 0x0F == 8 and (len(chunk) == 1 or int.from_bytes(chunk[:2]) % 31 == 0)
