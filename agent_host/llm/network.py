"""HTTP/1.1 to one host: h11's protocol over an asyncio socket.

A session sends one request at a time to one gateway. With httpcore, the layer below httpx that supports any network
library, anyio's locks and scopes would take a tenth of a step's time, and the imports a tenth of the startup time.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import select
import zlib
from typing import TYPE_CHECKING, Final, cast

import h11

from agent_host.llm import AnswerTooLarge, StreamProtocolError
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, AsyncIterator, Sequence

    Headers = Sequence[tuple[bytes, bytes]]
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

_PIECE: Final = 64 * 1024
_MOST_WAITING: Final = 256 * 1024
"""Above this many unread bytes no more are read from the socket."""
_KEPT_S: Final = 5.0
"""Longest idle time after which a connection is used again: httpx's default."""
_END_S: Final = 0.2  # for the end of an answer whose last event has arrived
_CALL: Final = "Connect call failed"
_NO_ANSWER: Final = "the connection was closed without an answer"


class NetworkFailed(Exception):
    """The host is unreachable, closes the connection early, or violates the protocol."""


class NetworkLate(Exception):
    """The host takes too long to connect, to receive a piece of a request, or to send a piece of an answer."""


class HttpConnection:
    """A connection for one request at a time, made by `connect`. `patience_s` is the timeout for each piece."""

    def __init__(self, socket: _Socket, patience_s: float) -> None:
        self._socket = socket
        self._patience_s = patience_s
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=100 * 1024)
        self._loop = asyncio.get_running_loop()
        self._idle_since = self._loop.time()

    @property
    def can_be_used(self) -> bool:
        """True if the connection is idle, not for too long, and the host has since neither sent anything nor closed
        it."""
        if asyncio.get_running_loop() is not self._loop or self._loop.time() - self._idle_since >= _KEPT_S:
            return False
        is_silent = self._protocol.trailing_data == (b"", False) and not self._socket.has_news
        return self._protocol.our_state is h11.IDLE and is_silent

    async def post(self, target: bytes, headers: Headers, body: AsyncIterable[bytes]) -> tuple[int, Headers]:
        """Send a request; return the status and the headers of the answer. Raises NetworkFailed, NetworkLate."""
        try:
            await self._send(self._protocol.send(h11.Request(method=b"POST", target=target, headers=list(headers))))
            is_first = True
            async for piece in body:
                if not is_first:
                    await asyncio.sleep(0)  # lets the loop notice a lost connection, and the task its cancellation
                is_first = False
                await self._send(self._protocol.send(h11.Data(data=piece)))
            await self._send(self._protocol.send(h11.EndOfMessage()))
        except _CannotWrite:
            pass  # a host may refuse a request before it has received all of it
        except h11.LocalProtocolError as error:
            raise NetworkFailed(str(error)) from error
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event.status_code, list(event.headers)
            if not isinstance(event, h11.InformationalResponse):
                raise NetworkFailed(_NO_ANSWER)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the answer in pieces. Raises NetworkFailed, NetworkLate."""
        while isinstance(event := await self._next_event(), h11.Data):
            yield bytes(event.data)

    async def end(self) -> None:
        """Stop reading the answer. The connection is kept for the next request if the answer was read to its end."""
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
            self._idle_since = self._loop.time()
        else:
            self.close()

    def close(self) -> None:
        """Close the connection; unwritten data is dropped."""
        if self._protocol.our_state is not h11.CLOSED:
            self._protocol.send_failed()
        if not self._socket.has_closed:
            with contextlib.suppress(RuntimeError):  # its event loop is closed, and the socket with it
                self._socket.transport.abort()

    async def aclose(self) -> None:
        """Close the connection and wait until the event loop has released it."""
        self.close()
        while not self._socket.has_closed:
            await self._socket.wait()

    async def _next_event(self) -> object:
        while True:
            try:
                event = self._protocol.next_event()
                if event is not h11.NEED_DATA:
                    return event
                data = await self._read()
                if not data and self._protocol.their_state is h11.SEND_RESPONSE:
                    raise NetworkFailed(_NO_ANSWER)
                self._protocol.receive_data(data)
            except h11.RemoteProtocolError as error:  # the host's text may quote the request, with its key
                raise NetworkFailed(str(error).partition(": ")[0]) from error

    async def _read(self) -> bytes:
        socket = self._socket
        if not socket.received and not socket.has_ended:
            await self._wait(lambda: bool(socket.received) or socket.has_ended)
        data = socket.take(_PIECE)
        if not data and socket.error is not None:
            raise NetworkFailed(_reason_of(socket.error)) from socket.error
        return data

    async def _send(self, data: bytes | None) -> None:
        if not data:
            return
        socket = self._socket
        if socket.has_ended:
            raise _CannotWrite
        socket.transport.write(data)
        if socket.is_full:
            # The wait also ends when the connection is lost or an answer has arrived.
            await self._wait(lambda: not socket.is_full or socket.has_ended or socket.has_answer)
            if socket.is_full:
                raise _CannotWrite

    async def _wait(self, is_over: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                while not is_over():
                    await self._socket.wait()
        except TimeoutError as error:
            raise NetworkLate from error


class _CannotWrite(Exception):
    """The host has closed its side, or has answered and stopped reading."""


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, *, connect_s: float, patience_s: float
) -> HttpConnection:
    """Connect to the address of the host that answers first; `connect_s` is the timeout for that, and again for the TLS
    handshake. Raises NetworkFailed, NetworkLate."""
    socket, loop = _Socket(), asyncio.get_running_loop()
    is_address = ":" in host or host.replace(".", "").isdigit()  # nothing to choose from then
    try:
        async with asyncio.timeout(connect_s if tls is None else 2 * connect_s):
            await loop.create_connection(
                lambda: socket, host, port, ssl=tls,
                server_hostname=None if tls is None else host,
                happy_eyeballs_delay=None if is_address else 0.25,
            )  # fmt: skip
    except TimeoutError as error:
        raise NetworkLate from error
    except OSError as error:  # includes ssl.SSLError
        raise NetworkFailed(_reason_of(error)) from error
    except UnicodeError as error:
        raise NetworkFailed(f"{host[:80]} is not a host name") from error
    return HttpConnection(socket, patience_s)


def _reason_of(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or "the connection was reset"
    if isinstance(error, OSError) and error.errno and reason.startswith(_CALL):
        reason = f"{os.strerror(error.errno)}{reason.removeprefix(_CALL)}"
    return reason


class _Socket(asyncio.Protocol):
    """An asyncio protocol of one socket, which a single task reads and writes."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.has_ended = False
        """True when no more bytes will arrive."""
        self.has_closed = False
        self.is_full = False
        self.error: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def has_news(self) -> bool:
        """True if there are unread bytes or the end of the stream, even if the event loop has not noticed them yet."""
        if self.received or self.has_ended or self.transport.is_closing():
            return True
        file = self.transport.get_extra_info("socket").fileno()
        if not hasattr(select, "poll"):
            return bool(select.select([file], [], [], 0)[0])
        poll = select.poll()
        poll.register(file, select.POLLIN)
        return bool(poll.poll(0))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) > _MOST_WAITING:
            self.transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        """See asyncio.Protocol. A host that has closed its side sends no other answer, so this side is closed as
        well."""
        self.has_ended = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = self.has_closed = True
        self.is_full = False
        self.error = exc
        self._changed.set()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._changed.set()

    def take(self, most: int) -> bytes:
        received = self.received
        if len(received) <= most:
            self.received = bytearray()
        else:
            self.received, received = received[most:], received[:most]
        if not self.has_closed and len(self.received) <= _MOST_WAITING:
            self.transport.resume_reading()
        return bytes(received)

    @property
    def has_answer(self) -> bool:
        """True if a final status has arrived, not only an informational one (`HTTP/1.1 1..`)."""
        return len(self.received) > 9 and self.received[9] != ord("1")

    async def wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


# The source from which httpx-sse reads an answer: text as it arrives, within the size limits and timeouts of the
# section `[llm]` of the settings (AH 6.3).
#
# httpx-sse buffers a line until it ends and an event until the empty line after it, so bytes are counted before it
# receives them.


class GatewayAnswer(NamedTuple):
    """An answer whose body is unread. The names of `headers` are in lower case; `close` ends the answer, after which
    the connection may be used again."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterable[bytes]
    close: Callable[[], Awaitable[None]]

    def decoder(self) -> Callable[[bytes], Iterable[bytes]]:
        """See `decoder`."""
        return decoder(self.headers.get("content-encoding", ""))

    async def read_to_end(self) -> None:
        """Read what follows a complete answer, so that its connection can be used again. It matters no more: it is not
        waited for, and a lost connection is no error."""
        with contextlib.suppress(TimeoutError, NetworkLate, NetworkFailed):
            async with asyncio.timeout(_END_S):
                async for _ in self.body:
                    pass


class BoundedStream:
    """A replacement for the response that httpx-sse reads. `chunks` are the body as it arrives, `pieces_of`
    decompresses each of them (`decoder`).

    An event stream is UTF-8 regardless of its header, and a byte order mark before it is not part of the first line.
    Bytes that are not UTF-8 are an error here, not a replacement character in a tool's arguments; an encoded lone
    surrogate is decoded unchanged.
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
        """Yield the text. Raises AnswerTooLarge, UnicodeDecodeError, and the errors of `chunks` and `pieces_of`."""
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        async for chunk in self._chunks:
            later = False
            for piece in self._pieces_of(chunk):
                if later:  # one chunk may hold megabytes: let timeouts and cancellations happen
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
            # The usual case, complete events: together they are shorter than the limits of a line and an event.
            self._event_bytes = self._line_bytes = 0
            self._after_cr = False
            return
        if self._after_cr and piece.startswith(b"\n"):  # the second half of a line end
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        for line in piece.splitlines(keepends=True):
            content = line.rstrip(b"\r\n")
            self._line_bytes += len(content)
            if self._line_bytes > limits.max_line_bytes:
                raise AnswerTooLarge("a line", "max_line_bytes", limits.max_line_bytes)
            if self._event_bytes + self._line_bytes > limits.max_event_bytes:
                raise AnswerTooLarge("an event", "max_event_bytes", limits.max_event_bytes)
            if len(content) < len(line):  # the line has ended, and with an empty line the event
                self._event_bytes = self._event_bytes + self._line_bytes + 1 if self._line_bytes else 0
                self._line_bytes = 0


def complete_events(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield name and data of the complete events at the start of a stored answer."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    for block in text.split("\n\n")[:-1]:
        name, data_lines = "message", []
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            if field == "event":
                name = value.removeprefix(" ")
            elif field == "data":
                data_lines.append(value.removeprefix(" "))
        if data_lines:
            yield name, "\n".join(data_lines)


class GatewayTimeouts(NamedTuple):
    """Timeouts in seconds. `read_s` is the longest silence between two bytes of an answer, `progress_s` the longest
    time without content (pings and comments are not content), `answer_s` the longest time for one answer, from its
    request."""

    connect_s: float
    read_s: float
    progress_s: float
    answer_s: float


class AnswerLimits(NamedTuple):
    """Limits of one answer in bytes, counted after decompression; each is the setting of the same name in `[llm]`."""

    max_line_bytes: int
    max_event_bytes: int
    max_call_arguments_bytes: int
    max_answer_bytes: int


class Patience:
    """The deadlines of one answer. `timeout` is entered around the whole call; `renew` postpones it after each content.

    To be created in a running event loop.
    """

    def __init__(self, timeouts: GatewayTimeouts) -> None:
        self._timeouts = timeouts
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + timeouts.answer_s
        self._renewed = self._now()
        self.timeout = asyncio.timeout_at(self._next())

    def renew(self) -> None:
        """Postpone the deadline because content has arrived. As it is called with each event, it does nothing until a
        hundredth of the allowed time has passed since it last did."""
        if self._now() - self._renewed > self._timeouts.progress_s / 100:
            self._renewed = self._now()
            self.timeout.reschedule(self._next())

    def what_was_missed(self) -> str:
        """Return the predicate of an error message: the deadline that the gateway missed."""
        if self.timeout.when() == self._end:
            return f"was not done after {self._timeouts.answer_s:g} s (llm.answer_timeout_s)"
        return f"sent no content for {self._timeouts.progress_s:g} s (llm.progress_timeout_s)"

    def _next(self) -> float:
        return min(self._end, self._now() + self._timeouts.progress_s)


# Decompression of an answer's body in pieces: a kilobyte of gzip may contain a megabyte, which must be counted before
# all of it is in memory.

ACCEPTED = "gzip, deflate"
"""The header accept-encoding of requests."""

_PIECE_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_WBITS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


class UnknownCoding(Exception):
    """The body has a content encoding that the request did not offer."""


def decoder(content_encoding: str) -> Callable[[bytes], Iterable[bytes]]:
    """Return the decoder that splits each chunk of a body with this Content-Encoding into decompressed pieces of at
    most 64 KiB; an uncompressed chunk is one piece.

    Raises UnknownCoding. The decoder raises StreamProtocolError for data that cannot be decompressed.
    """
    names = [name.strip().lower() for name in content_encoding.split(",")]
    coded = [name for name in names if name not in ("", "identity")]
    if not coded:
        return lambda chunk: (chunk,)
    wbits = _WBITS.get(coded[0])
    if wbits is None or len(coded) > 1:
        raise UnknownCoding(", ".join(coded))
    return _Inflater(wbits).pieces


class _Inflater:
    def __init__(self, wbits: int) -> None:
        self._zlib = zlib.decompressobj(wbits)
        self._may_be_bare = wbits == zlib.MAX_WBITS

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """See `decoder`. Data after the end of the compressed data is ignored, as other clients do."""
        if self._may_be_bare and chunk:
            self._may_be_bare = False
            # RFC 1950: method 8 and, if the second byte has arrived too, a checksum of both.
            has_header = chunk[0] & 0x0F == 8 and (len(chunk) == 1 or int.from_bytes(chunk[:2]) % 31 == 0)
            if not has_header:  # some servers send raw deflate for "deflate"
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
