"""TLS in front of a plain server of a test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def tls_in_front_of(url: str, context: ssl.SSLContext) -> Iterator[str]:
    """An https URL on loopback whose bytes go to the plain server at `url`."""
    ready, address = threading.Event(), urlsplit(url)
    ports: list[int] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        pairs: set[asyncio.StreamWriter] = set()
        handlers: set[asyncio.Task[None] | None] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.add(asyncio.current_task())
            inner_reader, inner_writer = await asyncio.open_connection(address.hostname, address.port)
            pairs.update((writer, inner_writer))
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        loops.append((asyncio.get_running_loop(), stop))
        ready.set()
        await stop.wait()
        server.close()
        for writer in pairs:
            writer.transport.abort()
        await asyncio.gather(*filter(None, handlers), return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    try:
        yield f"https://127.0.0.1:{ports[0]}"
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context
