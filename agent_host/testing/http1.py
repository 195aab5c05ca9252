"""A small HTTP/1.1 server for loopback, based on asyncio streams and h11, whose handlers receive complete requests.

It can misbehave in ways that ordinary servers avoid: stop in the middle of a body, send a body in pieces of any size,
and keep a client waiting forever. `MockServer` runs it on the current event loop or in its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import h11

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

MAX_BODY_BYTES = 64 << 20
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One complete request. Header names are in lower case; times are of `time.monotonic_ns`. `body` is None if the
    client sent more than the server accepts; `body_bytes` is the full count nevertheless."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    body_bytes: int
    first_byte_ns: int
    body_end_ns: int


class Reply:
    """The answer to one request. `started_ns` and `ended_ns` (`time.monotonic_ns`) are 0 until the answer starts and
    ends."""

    def __init__(
        self, protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, head_only: bool
    ) -> None:
        self._protocol = protocol
        self._reader = reader
        self._writer = writer
        self._head_only = head_only
        self.status = 0
        self.started_ns = 0
        self.ended_ns = 0

    async def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send the complete answer at once."""
        await self.stream(status, {**headers, "content-length": str(len(body))}, [body])

    async def stream(
        self,
        status: int,
        headers: Mapping[str, str],
        pieces: Sequence[bytes],
        *,
        separately: bool = False,
        pause_s: float = 0,
        complete: bool = True,
    ) -> None:
        """Send `pieces`, each as its own HTTP chunk unless `headers` have a content-length. They are sent in one write,
        or with `separately` in one write each, after a pause of `pause_s`. If not `complete`, the connection is closed
        after the last piece, before the end of the body."""
        self.status = status
        head = self._protocol.send(h11.Response(status_code=status, headers=list(headers.items()))) or b""
        chunks = (self._protocol.send(h11.Data(data=piece)) or b"" for piece in pieces if piece and not self._head_only)
        if separately:
            await self._write(head)
            for chunk in chunks:
                await asyncio.sleep(pause_s)
                await self._write(chunk)
            head = b""
        body = b"".join(chunks)
        end = self._protocol.send(h11.EndOfMessage()) or b"" if complete else b""
        await self._write(head + body + end)
        self.ended_ns = time.monotonic_ns()

    async def relay(self, status: int, headers: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        """Send `pieces` as they arrive, each as an HTTP chunk."""
        self.status = status
        await self._write(self._protocol.send(h11.Response(status_code=status, headers=list(headers.items()))) or b"")
        async for piece in pieces:
            if piece and not self._head_only:
                await self._write(self._protocol.send(h11.Data(data=piece)) or b"")
        await self._write(self._protocol.send(h11.EndOfMessage()) or b"")
        self.ended_ns = time.monotonic_ns()

    async def await_client_end(self) -> None:
        """Send no answer; return when the client has closed its end."""
        while await self._reader.read(_READ_BYTES):
            pass

    async def _write(self, data: bytes) -> None:
        if data:
            self._writer.write(data)
            self.started_ns = self.started_ns or time.monotonic_ns()
            await self._writer.drain()


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]


class MockServer:
    """A server that listens and runs one task per connection until `aclose`: an async context manager, or in its own
    thread, called `name`. Bodies larger than `max_body_bytes` (default MAX_BODY_BYTES) are not kept."""

    def __init__(self, handler: Handler, *, name: str = "mock-server", max_body_bytes: int | None = None) -> None:
        self._handler = handler
        self._name = name
        self._max_body_bytes = max_body_bytes or MAX_BODY_BYTES
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen on `host` and `port` (0: any free one) and return the base URL (also in `url`), such as
        `http://127.0.0.1:54321`. Raises OSError if the address is unavailable."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_READ_BYTES)
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"
        return self.url

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @contextlib.contextmanager
    def in_thread(self, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve from a thread with its own event loop, for code without one. Yields the base URL. Raises OSError if the
        address is unavailable."""
        ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def serve() -> None:
            stop = asyncio.Event()
            try:
                url = await self.start(host, port)
            except OSError as error:
                ready.set_exception(error)
                return
            ready.set_result((url, asyncio.get_running_loop(), stop))
            await stop.wait()
            await self.aclose()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name=self._name, daemon=True)
        thread.start()
        try:
            url, loop, stop = ready.result()
            try:
                yield url
            finally:
                loop.call_soon_threadsafe(stop.set)
        finally:
            thread.join()

    async def aclose(self) -> None:
        """Stop listening and drop all connections at once, hanging answers included. May be called again."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The task is registered before it first runs, so that `aclose` does not miss a connection that arrives
        # meanwhile.
        if self._server is None:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._on_connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(lambda task: self._on_closed(task, writer))

    def _on_closed(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._connections.discard(task)
        if not writer.is_closing():  # cancelled before its first step
            writer.transport.abort()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = h11.Connection(h11.SERVER)
        while True:
            try:
                request = await _read_request(protocol, reader, writer, self._max_body_bytes)
            except h11.RemoteProtocolError as error:
                if protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    reply = Reply(protocol, reader, writer, head_only=False)
                    text = f"bad HTTP: {error}\n".encode()
                    await reply.send(
                        error.error_status_hint, {"content-type": "text/plain", "connection": "close"}, text
                    )
                return
            if request is None:
                return
            await self._handler(request, Reply(protocol, reader, writer, head_only=request.method == "HEAD"))
            if protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
                return
            protocol.start_next_cycle()
            del request  # do not keep this body while the next one, which may be as large, arrives


async def _read_request(
    protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_body_bytes: int
) -> HttpRequest | None:
    """Read the next request; return None if the client has closed the connection instead. Raises
    h11.RemoteProtocolError if the data is not HTTP or ended too early."""
    head: h11.Request | None = None
    parts: list[bytes] = []
    body_bytes = first_byte_ns = 0
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            if protocol.they_are_waiting_for_100_continue:
                writer.write(protocol.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            data = await reader.read(_READ_BYTES)
            first_byte_ns = first_byte_ns or time.monotonic_ns()
            protocol.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body_bytes += len(event.data)
            if body_bytes > max_body_bytes:
                parts.clear()  # read to the end without keeping it, so that the client sees the answer
            else:
                parts.append(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            break
        else:
            return None
    return HttpRequest(
        method=head.method.decode(),
        path=head.target.decode().partition("?")[0],
        headers={name.decode(): value.decode("latin-1") for name, value in head.headers},
        body=b"".join(parts) if body_bytes <= max_body_bytes else None,
        body_bytes=body_bytes,
        first_byte_ns=first_byte_ns or time.monotonic_ns(),
        body_end_ns=time.monotonic_ns(),
    )
