"""The connection to a gateway: kept while it can be, made anew where it cannot, by a proxy where the environment names
one."""

from __future__ import annotations

import asyncio
import base64
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from agent_host.errors import GatewayUnavailable
from agent_host.llm.dialects.anthropic import AnthropicDialect
from agent_host.llm.dialects.openai_chat import ChatDialect
from agent_host.llm.dialects.openai_responses import ResponsesDialect
from agent_host.testing.dialects import ANTHROPIC
from agent_host.testing.dialects.openai_chat import CHAT_COMPLETIONS
from agent_host.testing.dialects.openai_responses import RESPONSES
from agent_host.testing.gateway import Script
from tests.unit.llm.helpers import VIEW, client, ended, ok, prompt, raw_server, sse, started, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent_host.llm.client import LlmClient
    from agent_host.llm.dialects import Dialect
    from agent_host.testing.dialects import MockDialect

ANSWER = ok(sse(started(), *text(0, "ok"), *ended()))
HALF = ANSWER[: ANSWER.index(b"message_stop")]


class Gateway:
    """Answers requests over kept connections. `connections` are the requests of each; after the `closes_after`th of one
    it closes that and puts its number of requests into `ended`; while `holds` is set an answer stops half way."""

    def __init__(self, closes_after: int) -> None:
        self._closes_after = closes_after
        self.holds = False
        self.connections: list[list[bytes]] = []
        self.ended: asyncio.Queue[int] = asyncio.Queue()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[bytes] = []
        self.connections.append(mine)
        try:
            while len(mine) < self._closes_after:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                mine.append(head + await reader.readexactly(length))
                writer.write(HALF if self.holds else ANSWER)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            await writer.wait_closed()
            self.ended.put_nowait(len(mine))


@asynccontextmanager
async def keeping(host: str = "127.0.0.1", *, closes_after: int = 100) -> AsyncIterator[Gateway]:
    made = Gateway(closes_after)
    server = await asyncio.start_server(made.handle, host, 0)
    made.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


async def call(made: LlmClient, shown: asyncio.Event | None = None) -> str:
    def show(_: str) -> None:
        if shown is not None:
            shown.set()

    head = made.dialect.head(model="m", max_output_tokens=64, system="", tools=[])
    renderer = made.dialect.renderer("m")
    return (await made.stream(head, [renderer.user([prompt("hi")])], show)).text


async def test_requests_share_one_connection() -> None:
    async with keeping() as gateway, client(gateway.url) as made:
        assert [await call(made) for _ in range(5)] == ["ok"] * 5
        assert [len(one) for one in gateway.connections] == [5]
        assert gateway.ended.empty()


async def test_a_connection_that_the_server_has_closed_is_made_anew() -> None:
    async with keeping(closes_after=2) as gateway, client(gateway.url) as made:
        for count in range(1, 6):
            assert await call(made) == "ok"
            if count % 2 == 0:
                assert await gateway.ended.get() == 2
        assert [len(one) for one in gateway.connections] == [2, 2, 1]


async def test_a_call_that_is_cancelled_leaves_no_half_answer_to_the_next() -> None:
    async with keeping() as gateway, client(gateway.url) as made:
        assert await call(made) == "ok"
        gateway.holds, shown = True, asyncio.Event()
        running = asyncio.ensure_future(call(made, shown))
        await shown.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        gateway.holds = False
        assert await call(made) == "ok"
        assert [len(one) for one in gateway.connections] == [2, 1]


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DIALECTS: list[tuple[Dialect, MockDialect]] = [
    (AnthropicDialect(), ANTHROPIC),
    (ChatDialect(), CHAT_COMPLETIONS),
    (ResponsesDialect(), RESPONSES),
]


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one[0].name)
async def test_an_answer_whose_last_event_has_come_is_complete(
    dialect: tuple[Dialect, MockDialect], is_cut: bool
) -> None:
    """The connection is cut before the end of the body, or stays open without it."""
    body = b"".join(dialect[1].stream_events(Script.from_turns([{"text": "ok"}]).turns[0], VIEW))
    open_until = asyncio.Event()
    count = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"%x\r\n%s\r\n" % (len(body), body))
        await writer.drain()
        if not is_cut:
            await open_until.wait()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server, client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", dialect=dialect[0]) as made:
        assert [await call(made), await call(made)] == ["ok", "ok"]
        open_until.set()
    assert count == 2


async def test_a_cookie_that_cannot_be_sent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cookies = ("set-cookie: a=\xe9; path=/", "set-cookie: b=1; path=/")
    async with raw_server(ok(sse(started(), *text(0, "ok"), *ended()), *cookies)) as gateway:
        for proxy in (None, gateway.url):
            if proxy is not None:
                monkeypatch.setenv("http_proxy", proxy)
            async with client(gateway.url if proxy is None else "http://gateway.example/") as made:
                assert [await call(made), await call(made)] == ["ok", "ok"]
    for number in (1, 3):
        assert b"cookie: b=1\r\n" in gateway.requests[number].lower()


async def test_a_server_that_is_not_there_is_asked_again_by_the_next_call() -> None:
    async with keeping() as gateway:
        url = gateway.url
    async with client(url) as made:
        for _ in range(2):
            with pytest.raises(GatewayUnavailable, match="failed"):
                await call(made)


async def test_a_name_and_password_in_the_url_are_sent_as_such() -> None:
    async with keeping() as gateway, client(gateway.url.replace("//", "//me:pass%20word@")) as made:
        await call(made)
        await call(made)
        ((first, second),) = gateway.connections
    given = base64.b64encode(b"me:pass word")
    assert first.count(b"authorization: Basic " + given) + first.count(b"Authorization: Basic " + given) == 1
    assert first == second
    assert b"pass%20word" not in first


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
async def test_a_gateway_elsewhere_is_asked_by_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    async with raw_server(ANSWER) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        async with client("http://gateway.example/") as made:
            assert await call(made) == "ok"
        (request,) = proxy.requests
    assert request.startswith(b"POST http://gateway.example/v1/messages HTTP/1.1\r\n")
    assert b"x-session-id: sess_1" in request.lower()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of their own")
async def test_a_gateway_that_no_proxy_is_for_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(ANSWER) as proxy, keeping("0.0.0.0") as gateway:
        monkeypatch.setenv("http_proxy", proxy.url)
        for no_proxy, asked in (("0.0.0.0", 0), ("other.example", 1)):
            monkeypatch.setenv("no_proxy", no_proxy)
            async with client(gateway.url) as made:
                assert await call(made) == "ok"
            assert len(proxy.requests) == asked
