"""HTTP/1.1 to one host: what comes in any pieces, and what breaks off or breaks the protocol."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm.network import HttpConnection, NetworkFailed, NetworkLate, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

BODY = bytes(range(256)) * 8
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nX-Mixed: Case\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + BODY
HINTED = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + WHOLE


@asynccontextmanager
async def serving(serve: Serve, *, patience_s: float = 60.0) -> AsyncIterator[HttpConnection]:
    """A connection to a server of which `serve` is each connection."""
    idle = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()
            idle.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await connect("127.0.0.1", port, None, connect_s=60.0, patience_s=patience_s)
    try:
        yield connection
    finally:
        connection.close()
        await idle.wait()
        server.close()


def saying(*pieces: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"end of the request")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return serve


async def request(count: int = 1) -> AsyncIterator[bytes]:
    for _ in range(count - 1):
        yield b"x" * 65_536
    yield b"end of the request"


async def ask(connection: HttpConnection, count: int = 1) -> bytes:
    length = 65_536 * (count - 1) + len(b"end of the request")
    headers = [(b"host", b"a"), (b"content-length", b"%d" % length)]
    status, _ = await connection.post(b"/", headers, request(count))
    assert status == 200
    body = b"".join([piece async for piece in connection.body()])
    await connection.end()
    return body


@given(
    answer=st.sampled_from([WHOLE, CHUNKED, UNTIL_CLOSED, HINTED]),
    at=st.lists(st.integers(0, len(HINTED)), max_size=8).map(sorted),
)
def test_an_answer_may_come_in_any_pieces(answer: bytes, at: list[int]) -> None:
    pieces = [answer[start:end] for start, end in zip([0, *at], [*at, None], strict=True)]

    async def run() -> None:
        async with serving(saying(*pieces)) as connection:
            assert await ask(connection) == BODY

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "without an answer"),
        (WHOLE[:10], "without"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "illegal"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", "pending proposal"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, "too long"),
        (WHOLE[:-1], "closed connection"),
        (CHUNKED[:-4], "closed connection"),
        (CHUNKED.replace(b"\r\n800\r\n", b"\r\nzz\r\n"), "illegal chunk"),
    ],
)
async def test_an_answer_that_is_cut_or_none_is_told(answer: bytes, said: str) -> None:
    async with serving(saying(answer)) as connection:
        with pytest.raises(NetworkFailed, match=said):
            await ask(connection)
        assert not connection.can_be_used


async def test_a_host_that_is_silent_or_takes_nothing_is_late() -> None:
    for count in (1, 1000):
        over = asyncio.Event()

        async def waits(reader: asyncio.StreamReader, _: object, over: asyncio.Event = over) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await over.wait()

        async with serving(waits, patience_s=0.05) as connection:
            with pytest.raises(NetworkLate):
                await ask(connection, count)
            over.set()


async def test_a_refusal_that_comes_before_the_request_is_whole_is_read() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno")
        writer.write_eof()
        while await reader.read(65_536):
            pass

    async with serving(refuses) as connection:
        headers = [(b"host", b"a"), (b"content-length", b"%d" % (65_536 * 99 + len(b"end of the request")))]
        status, _ = await connection.post(b"/", headers, request(100))
        assert (status, [piece async for piece in connection.body()]) == (413, [b"no"])
        await connection.end()
        assert not connection.can_be_used


async def test_an_answer_that_comes_while_the_host_reads_no_more_is_read() -> None:
    over = asyncio.Event()

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\nno")
        await over.wait()

    async with serving(refuses) as connection:
        headers = [(b"host", b"a"), (b"content-length", b"%d" % (65_536 * 999 + len(b"end of the request")))]
        assert (await connection.post(b"/", headers, request(1000)))[0] == 429
        await connection.end()
        assert not connection.can_be_used
        over.set()


async def test_a_long_request_is_left_when_its_task_is_cancelled() -> None:
    sent, begun = 0, asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            begun.set()
            yield b"x"

    async def takes(reader: asyncio.StreamReader, _: object) -> None:
        while await reader.read(65_536):
            pass

    async with serving(takes) as connection:
        posting = asyncio.ensure_future(
            connection.post(b"/", [(b"host", b"a"), (b"content-length", b"9999999")], endless())
        )
        await begun.wait()
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
        assert sent < 100


async def test_what_is_said_behind_an_answer_is_not_the_next_one() -> None:
    async with serving(saying(WHOLE + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstale")) as connection:
        assert await ask(connection) == BODY
        assert not connection.can_be_used


async def test_a_host_that_repeats_the_request_is_told_without_its_words() -> None:
    async def repeats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readuntil(b"\r\n\r\n"))

    async with serving(repeats) as connection:
        with pytest.raises(NetworkFailed, match="illegal status line") as caught:
            await connection.post(b"/?key=SECRET", [(b"host", b"a"), (b"content-length", b"18")], request())
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "said"),
    [("127.0.0.1", "Connection refused"), ("a" * 70, "not a host name")],
)
async def test_a_host_that_is_not_there_is_told(host: str, said: str) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(NetworkFailed, match=said):
        await connect(host, port, None, connect_s=60.0, patience_s=60.0)


async def test_an_answer_is_taken_no_faster_than_it_is_read() -> None:
    written = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"end of the request")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1 << 30))
        piece = bytes(1 << 20)
        while written < 1 << 30:
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    async with serving(floods) as connection:
        headers = [(b"host", b"a"), (b"content-length", b"18")]
        assert (await connection.post(b"/", headers, request()))[0] == 200
        idle, before = 0, -1
        while idle < 200:  # turns of the loop in which nothing more was taken
            idle, before = (idle + 1 if written == before else 0), written
            await asyncio.sleep(0)
        assert written < 1 << 28
        body = connection.body()
        assert [len(await anext(body)) > 0 for _ in range(100)] == [True] * 100
