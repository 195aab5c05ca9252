"""A gateway behind TLS, as every real one is: its certificate is checked, and its answer streams."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import trustme

from tests.support.process import Host, gateway, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            writer.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    try:
        yield f"https://127.0.0.1:{ports[0]}"
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_a_gateway_with_a_certificate_that_the_system_trusts(host: Host, authority: trustme.CA, tmp_path: Path) -> None:
    trusted = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(str(trusted))
    with gateway(say("Done.")) as model, tls_in_front_of(model.url, server_context(authority, "127.0.0.1")) as url:
        options = ("--gateway", url, "--policy", "full", "--output", "json")
        outcome = host.run("run", "Do it.", *options, env={"SSL_CERT_FILE": str(trusted)})
    assert (outcome.code, outcome.result["text"]) == (0, "Done."), outcome.stderr


@pytest.mark.parametrize(("name", "trusts"), [("127.0.0.1", False), ("other.example", True)])
def test_a_certificate_that_cannot_be_trusted(
    host: Host, authority: trustme.CA, tmp_path: Path, name: str, trusts: bool
) -> None:
    """From nobody known, or of another host: no request is sent, and the session waits for a gateway that is right."""
    host.configure(max_retries=0)
    trusted = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(str(trusted))
    with gateway(say("Never.")) as model:
        with tls_in_front_of(model.url, server_context(authority, name)) as url:
            options = ("--gateway", url, "--policy", "full", "--output", "json")
            outcome = host.run("run", "Do it.", *options, env={"SSL_CERT_FILE": str(trusted)} if trusts else {})
        assert model.count == 0
    assert outcome.code == 3
    assert "certificate verify failed" in outcome.stderr.lower()
