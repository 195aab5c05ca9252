"""HTTP/1.1 to one host: h11's protocol over a socket of asyncio's.

A session asks one gateway one thing at a time. Through httpcore, which lies below httpx and does the same for any
network library, the locks and scopes of anyio are a tenth of a step, and the imports a tenth of a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from typing import TYPE_CHECKING, Final, cast

import h11

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, AsyncIterator, Sequence

    Headers = Sequence[tuple[bytes, bytes]]

_PIECE: Final = 64 * 1024
_MOST_WAITING: Final = 256 * 1024
"""Bytes that wait to be read before no more are taken from the socket."""
_MOST_OF_HEADERS: Final = 100 * 1024
_KEPT_S: Final = 5.0
"""Longest time for which an idle connection is used again: httpx's default."""
_NEXT_ADDRESS_S: Final = 0.25
_CALL: Final = "Connect call failed"
_NO_ANSWER: Final = "the connection was closed without an answer"


class NetworkFailed(Exception):
    """The host is not reached, breaks off, or breaks the protocol."""


class NetworkLate(Exception):
    """The host takes too long to connect, to take a piece of a request, or to send one of an answer."""


class HttpConnection:
    """A connection, for one request at a time. Made by `connect`; `patience_s` is for each piece."""

    def __init__(self, socket: _Socket, patience_s: float) -> None:
        self._socket = socket
        self._patience_s = patience_s
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_OF_HEADERS)
        self._loop = asyncio.get_running_loop()
        self._idle_since = self._loop.time()

    @property
    def can_be_used(self) -> bool:
        """True for one that is idle, not for too long, and on which the host has said nothing since, also no end."""
        if asyncio.get_running_loop() is not self._loop or self._loop.time() - self._idle_since >= _KEPT_S:
            return False
        has_said_nothing = self._protocol.trailing_data == (b"", False) and not self._socket.has_news
        return self._protocol.our_state is h11.IDLE and has_said_nothing

    async def post(self, target: bytes, headers: Headers, body: AsyncIterable[bytes]) -> tuple[int, Headers]:
        """Send a request; the status and the headers of the answer. Raises NetworkFailed, NetworkLate."""
        try:
            await self._send(self._protocol.send(h11.Request(method=b"POST", target=target, headers=list(headers))))
            is_first = True
            async for piece in body:
                if not is_first:
                    await asyncio.sleep(0)  # the loop learns of a lost connection, the task of its cancellation
                is_first = False
                await self._send(self._protocol.send(h11.Data(data=piece)))
            await self._send(self._protocol.send(h11.EndOfMessage()))
        except _CannotWrite:
            pass  # who refuses a request may have said so before it has come whole
        except h11.LocalProtocolError as error:
            raise NetworkFailed(str(error)) from error
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event.status_code, list(event.headers)
            if not isinstance(event, h11.InformationalResponse):
                raise NetworkFailed(_NO_ANSWER)

    async def body(self) -> AsyncIterator[bytes]:
        """The body of the answer, in pieces. Raises NetworkFailed, NetworkLate."""
        while isinstance(event := await self._next_event(), h11.Data):
            yield bytes(event.data)

    async def end(self) -> None:
        """The answer is no longer read. The connection is kept for the next one if it was read to its end."""
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
            self._idle_since = self._loop.time()
        else:
            self.close()

    def close(self) -> None:
        """Close the connection; what was not written yet is dropped."""
        if self._protocol.our_state is not h11.CLOSED:
            self._protocol.send_failed()
        if not self._socket.has_closed:
            with contextlib.suppress(RuntimeError):  # its event loop is closed, and the socket with it
                self._socket.transport.abort()

    async def aclose(self) -> None:
        """As `close`, and nothing of it is left in the event loop."""
        self.close()
        await self._socket.wait_for_the_end()

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
            except h11.RemoteProtocolError as error:  # what the host has said may be what it was told, a key with it
                raise NetworkFailed(str(error).partition(": ")[0]) from error

    async def _read(self) -> bytes:
        socket = self._socket
        if not socket.received and not socket.has_ended:
            try:
                async with asyncio.timeout(self._patience_s):
                    await socket.wait_for_bytes()
            except TimeoutError as error:
                raise NetworkLate from error
        data = socket.take(_PIECE)
        if not data and socket.error is not None:
            raise NetworkFailed(_said(socket.error)) from socket.error
        return data

    async def _send(self, data: bytes | None) -> None:
        if not data:
            return
        socket = self._socket
        if socket.has_ended:
            raise _CannotWrite
        socket.transport.write(data)
        if socket.is_full:
            try:
                async with asyncio.timeout(self._patience_s):
                    await socket.wait_for_room()
            except TimeoutError as error:
                raise NetworkLate from error
            if socket.is_full:
                raise _CannotWrite


class _CannotWrite(Exception):
    """The host has ended its side, or has answered and reads no more."""


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, *, connect_s: float, patience_s: float
) -> HttpConnection:
    """A connection to the address of the host that answers first; `connect_s` is for that, and again for the handshake
    of TLS. Raises NetworkFailed, NetworkLate."""
    socket, loop = _Socket(), asyncio.get_running_loop()
    is_address = ":" in host or host.replace(".", "").isdigit()  # of one there is nothing to choose
    try:
        async with asyncio.timeout(connect_s if tls is None else 2 * connect_s):
            await loop.create_connection(
                lambda: socket, host, port, ssl=tls,
                server_hostname=None if tls is None else host,
                happy_eyeballs_delay=None if is_address else _NEXT_ADDRESS_S,
            )  # fmt: skip
    except TimeoutError as error:
        raise NetworkLate from error
    except OSError as error:  # of ssl as well
        raise NetworkFailed(_said(error)) from error
    except UnicodeError as error:
        raise NetworkFailed(f"{host[:80]} is no name of a host") from error
    return HttpConnection(socket, patience_s)


def _said(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error) or "the connection was reset"
    if isinstance(error, OSError) and error.errno and said.startswith(_CALL):
        said = f"{os.strerror(error.errno)}{said.removeprefix(_CALL)}"
    return said


class _Socket(asyncio.Protocol):
    """A socket as asyncio reports on it. One task reads and writes."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.has_ended = False
        """True once no more bytes come."""
        self.has_closed = False
        self.is_full = False
        self.error: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def has_news(self) -> bool:
        """True if there are bytes, or the end, that are not read yet; also those that the event loop has not seen."""
        if self.received or self.has_ended or self.transport.is_closing():
            return True
        file = self.transport.get_extra_info("socket").fileno()
        if not hasattr(select, "poll"):
            return bool(select.select([file], [], [], 0)[0])
        poll = select.poll()
        poll.register(file, select.POLLIN)
        return bool(poll.poll(0))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.received += data
        if len(self.received) > _MOST_WAITING:
            self.transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        """See asyncio.Protocol. A host that has ended gives no other answer: this side is closed as well."""
        self.has_ended = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.has_ended = self.has_closed = True
        self.is_full = False
        self.error = exc
        self._changed.set()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_full = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_full = False
        self._changed.set()

    def take(self, most: int) -> bytes:
        """Received bytes."""
        received = self.received
        if len(received) <= most:
            self.received = bytearray()
        else:
            self.received, received = received[most:], received[:most]
        if not self.has_closed and len(self.received) <= _MOST_WAITING:
            self.transport.resume_reading()
        return bytes(received)

    async def wait_for_bytes(self) -> None:
        """Until there are some, or the end."""
        while not (self.received or self.has_ended):
            await self._wait()

    async def wait_for_room(self) -> None:
        """Until more can be written, or need not: the connection is lost, or an answer has come."""
        while self.is_full and not self.has_ended and not self._has_answer:
            await self._wait()

    @property
    def _has_answer(self) -> bool:
        """True if the status that has come is a last one, none of the hints before it (`HTTP/1.1 1..`)."""
        return len(self.received) > 9 and self.received[9] != ord("1")

    async def wait_for_the_end(self) -> None:
        """Until the connection is closed on this side."""
        while not self.has_closed:
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
