"""A service behind TLS: believed with the right certificate, and with no other."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trustme

from agent_host.errors import ServiceUnavailable
from agent_host.http import TlsContext
from tests.unit.services.helpers import TOKEN, client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def https(authority: trustme.CA) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The URL of a server that answers one request a connection, and the heads of those that came."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        await server.wait_closed()


async def test_a_trusted_service_and_one_context_for_several_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "roots.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    async with https(authority) as (url, heads):
        shared = TlsContext(url)
        async with client(url, tls=shared) as one, client(url, tls=shared) as two, client(url) as three:
            for each in (one, two, three):
                assert await each.post("/x", b"{}") == {}
    assert all(f"Bearer {TOKEN}".encode() in head for head in heads)


async def test_a_certificate_of_nobody_known_gets_no_token() -> None:
    async with https(trustme.CA()) as (url, heads), client(url, retries=0) as made:
        with pytest.raises(ServiceUnavailable, match=r"cannot be reached: .*certificate"):
            await made.post("/x", b"{}")
    assert heads == []
