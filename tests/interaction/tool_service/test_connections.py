"""Clients that are slow, many or broken: what each may take, and that calls go on beside them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.tool_service.server import ServedConnections
from tests.support.tool_service import ACME, PATIENCE_S, FunctionTool, caller, grant, process, served, tenants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from agent_host.tool_service.tool import Call
    from tests.support.tool_service import Caller

    Connect = Callable[..., Awaitable["Peer"]]

CALL = (
    f"POST /tools/Echo/invoke HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ACME}\r\n"
    f"X-Capability-Grant: {grant('Echo', lasts_s=3600)}\r\n"
)
HALF_A_HEAD = b"GET /tools HTTP/1.1\r\nHost: x\r\nX-A: "
HALF_A_BODY = f"{CALL}Content-Length: 1000\r\n\r\n{{".encode()
LISTING = b"GET /tools HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n" % ACME.encode()


async def echo(_: Call) -> str:
    return "done"


@contextlib.asynccontextmanager
async def serving(folder: Path, connections: ServedConnections, *kinds: FunctionTool) -> AsyncIterator[Caller]:
    kinds = kinds or (FunctionTool("Echo", echo),)
    async with served(folder, tenants({kind.name: {} for kind in kinds}), *kinds, connections=connections) as service:
        yield service


class Peer:
    """A connection that a test writes to byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> bytes:
        """The first line of an answer; empty when the connection ended without one."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                return (await self.reader.readline()).strip()
        return b""

    async def ended(self) -> bool:
        """True once the other side has ended it."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                await self.reader.read()
        return True


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes connections to a URL, each with what it sends first."""
    peers: list[Peer] = []

    async def connected(url: str, data: bytes = b"") -> Peer:
        host, _, port = url.removeprefix("http://").rpartition(":")
        peers.append(Peer(*await asyncio.open_connection(host, int(port))))
        peers[-1].writer.write(data)
        return peers[-1]

    yield connected
    for peer in peers:
        peer.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await peer.writer.wait_closed()


def url_of(service: Caller) -> str:
    return str(service.http.base_url)


@pytest.mark.many_rows(3)
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (HALF_A_HEAD, b"HTTP/1.1 408 Request Timeout"),
        (HALF_A_BODY, b"HTTP/1.1 408 Request Timeout"),
        (LISTING + HALF_A_HEAD, b"HTTP/1.1 200 OK"),
        (b"\r\n" * 100, b""),
        (HALF_A_HEAD + b"a" * 100_000, b""),
    ],
)
async def test_a_request_that_does_not_arrive_ends_its_connection(
    tmp_path: Path, connect: Connect, sent: bytes, answer: bytes
) -> None:
    async with serving(tmp_path, ServedConnections(100, request_s=0.2)) as service:
        peer = await connect(url_of(service), sent)
        assert await peer.answer() == answer
        assert await peer.ended()


async def test_whoever_does_not_read_answers_is_let_go(tmp_path: Path, connect: Connect) -> None:
    async with serving(tmp_path, ServedConnections(100, request_s=0.2)) as service:
        peer = await connect(url_of(service), b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads as well
        async with asyncio.timeout(PATIENCE_S):
            while not peer.writer.transport.is_closing():
                peer.writer.write(b"GET /")
                await asyncio.sleep(0.01)


async def test_of_too_many_connections_the_oldest_without_a_token_ends(tmp_path: Path, connect: Connect) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def waits(_: Call) -> str:
        begun.set()
        await goes_on.wait()
        return "done"

    async with serving(tmp_path, ServedConnections(4), FunctionTool("Echo", waits)) as service:
        await service.http.aclose()
        url = url_of(service)
        async with caller(url) as client:
            running = asyncio.create_task(client.invoke("Echo"))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            known = await connect(url, LISTING)
            assert await known.answer() == b"HTTP/1.1 200 OK"
            slow = []
            for sent in (HALF_A_HEAD, HALF_A_BODY, b"", HALF_A_HEAD):
                slow.append(await connect(url, sent))
                async with caller(url) as another:  # each of these is one too many
                    assert (await another.http.get("/healthz")).status_code == 200
            assert all([await peer.ended() for peer in slow[:2]])
            known.writer.write(LISTING)
            assert b"200 OK" in await known.reader.readuntil(b"200 OK")
            goes_on.set()
            assert (await running).json()["outputText"] == "done"


async def test_the_rest_of_a_request_that_was_refused_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path, ServedConnections(100)) as service:
        for token, status in ((ACME, 413), ("nobody", 401)):
            assert (await service.invoke("Echo", {"text": "x" * 20_000_000}, token=token)).status_code == status
        assert (await service.invoke("Echo")).json()["outputText"] == "done"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are limited by a shell")
async def test_calls_go_on_beside_more_slow_connections_than_descriptors(tmp_path: Path, connect: Connect) -> None:
    vault = {"address": "http://127.0.0.1:9", "token": "vault-token-0123456789", "names": ["a#b"]}
    limited = ("/bin/sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    with process(tmp_path, tenants({"VaultRead": vault}), starter=limited) as service:
        for sent in (HALF_A_HEAD, HALF_A_BODY, b"") * 100:
            await connect(service.url, sent)
        for _ in range(20):
            async with caller(service.url) as client:
                assert (await client.invoke("VaultRead", {"name": "a#b"})).json()["status"] == "failed"
        assert service.errors() == ""
        for _ in range(50):
            peer = await connect(service.url, b"\0\r\n\r\n")
            assert await peer.answer() == b"HTTP/1.1 400 Bad Request"
        assert service.errors().splitlines() == ["Invalid HTTP request received."] * 10
        service.terminate()
        assert service.wait() == 0
