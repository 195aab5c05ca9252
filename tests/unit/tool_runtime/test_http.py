from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_host.contracts import ToolConstraints
from tests.unit.tool_runtime.conftest import Call, MakeRouter, error_of, request, text_of, until

Answer = Callable[[str, dict[str, str], bytes], bytes]


def response(status: str = "200 OK", body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server:
    """Answers by path and keeps what it was asked: (first line, headers, body)."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.requests.append((head[0], headers, body))
                answer = self.answers.get(head[0].split()[1])
                if answer is None:
                    await reader.read()  # says nothing until the client leaves
                    return
                writer.write(answer.replace(b"{port}", str(self.port).encode()))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(answers: dict[str, bytes], host: str = "127.0.0.1") -> AsyncIterator[Server]:
    server = Server(answers)
    listener = await asyncio.start_server(server.serve, host, 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        try:
            yield server
        finally:  # a server waits for its connections from Python 3.12 on, and the client keeps its own open
            for writer in server.writers:
                writer.close()


async def test_a_plain_get(call: Call) -> None:
    async with serving({"/a?b=1": response(body="grün".encode(), Content_Type="text/plain; charset=utf-8")}) as server:
        result = await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/a?b=1#part")
        assert text_of(result) == ("HTTP 200 OK\nContent-Type: text/plain; charset=utf-8\nContent-Length: 5\n\ngrün")
        line, headers, _ = server.requests[0]
        assert line == "GET /a?b=1 HTTP/1.1"
        assert headers["host"] == f"127.0.0.1:{server.port}"


async def test_method_headers_body_and_an_error_status(call: Call) -> None:
    async with serving({"/": response("418 I'm a teapot", b"{}")}) as server:
        result = await call(
            "HttpRequest", url=f"http://127.0.0.1:{server.port}", method="PUT", headers={"X-A": "b"}, body="dätä"
        )
        assert text_of(result).startswith("HTTP 418 I'm a teapot\nContent-Type: unknown\n")
        line, headers, body = server.requests[0]
        assert (line, headers["x-a"], body.decode()) == ("PUT / HTTP/1.1", "b", "dätä")


async def test_connections_are_pooled(call: Call) -> None:
    async with serving({"/": response()}) as server:
        for _ in range(3):
            text_of(await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/"))
        assert server.connections == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "file:///etc/passwd"}, "URL"),
        ({"url": "ftp://127.0.0.1/"}, "ftp"),
        ({"url": "http://"}, "URL"),
        ({"url": "not a url"}, "URL"),
        ({"url": "http://a@127.0.0.1/"}, "user information"),
        ({"url": "http://127.0.0.1/", "method": "CONNECT"}, "$.method"),
        ({"url": "http://127.0.0.1/", "timeout": 61}, "$.timeout"),
        ({"url": "http://127.0.0.1/", "headers": {"Host": "evil"}}, "Host"),
        ({"url": "http://127.0.0.1/", "headers": {"content-length": "3"}}, "content-length"),
        ({"url": "http://127.0.0.1/", "headers": {"Transfer-Encoding": "chunked"}}, "Transfer-Encoding"),
        ({"url": "http://127.0.0.1/", "headers": {"X": "a\r\nHost: evil"}}, "header"),
        ({"url": "http://127.0.0.1/", "headers": {"X Y": "a"}}, "header"),
        ({"url": "http://127.0.0.1/", "headers": {"X": 1}}, "$.headers.X"),
    ],
)
async def test_refused_arguments(call: Call, arguments: dict[str, Any], said: str) -> None:
    code, message = error_of(await call("HttpRequest", **arguments))
    assert code == "INVALID_REQUEST"
    assert said in message


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "0x7f.1", "2130706433", "169.254.169.254", "10.1.2.3"]
)
async def test_local_addresses_are_refused_by_default(make_router: MakeRouter, host: str) -> None:
    router = make_router(address_allowed=None)
    code, message = error_of(await router.execute(request("HttpRequest", url=f"http://{host}:1/")))
    assert (code, "local or reserved address" in message) == ("INVALID_REQUEST", True)


async def test_the_connection_goes_to_the_address_that_was_checked(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that answers with a harmless address first and a local one later gets no second question."""
    asked: list[str] = []
    honest = socket.getaddrinfo

    def rebinding(host: Any, *arguments: Any, **more: Any) -> Any:
        if host not in ("rebind.example", b"rebind.example"):
            return honest(host, *arguments, **more)
        asked.append(str(host))
        return honest("127.0.0.1" if len(asked) == 1 else "127.0.0.9", *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    judged: list[str] = []

    def only_first(address: str) -> bool:
        judged.append(address)
        return address == "127.0.0.1"

    router = make_router(address_allowed=only_first)
    async with serving({"/": response(body=b"first")}) as server:
        url = f"http://rebind.example:{server.port}/"
        assert text_of(await router.execute(request("HttpRequest", url=url))).endswith("first")
        assert server.requests[0][1]["host"] == f"rebind.example:{server.port}"
        assert (len(asked), judged) == (1, ["127.0.0.1"])
        server.answers["/"] = response(body=b"first", Connection="close")
        await router.execute(request("HttpRequest", url=url))
        code, message = error_of(await router.execute(request("HttpRequest", url=url)))
        assert (code, "127.0.0.9" in message) == ("INVALID_REQUEST", True)


async def test_a_name_with_one_local_address_among_others_is_refused(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(_host: Any, port: int, **_more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.1", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    async with serving({"/": response()}) as server:
        url = f"http://two.example:{server.port}/"
        assert error_of(await make_router().execute(request("HttpRequest", url=url)))[0] == "INVALID_REQUEST"
        assert server.connections == 0


async def test_redirects_are_followed_and_counted(call: Call) -> None:
    hops = {f"/{n}": response("302 Found", Location=f"/{n + 1}") for n in range(9)}
    hops["/9"] = response(body=b"end")
    async with serving(hops) as server:
        assert text_of(await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/4")).endswith("\n\nend")
        code, message = error_of(await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/3"))
        assert (code, "more than 5 redirects" in message) == ("TOOL_EXECUTION_FAILED", True)


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:{port}/x", "file:///etc/passwd", "http://user@127.0.0.1:{port}/x"]
)
async def test_each_hop_is_judged_anew(call: Call, target: str) -> None:
    async with serving({"/": response("302 Found", Location=target), "/x": response()}, "0.0.0.0") as server:
        assert error_of(await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/"))[0] == "INVALID_REQUEST"
        assert len(server.requests) == 1


async def test_domain_rules_hold_at_each_hop(call: Call) -> None:
    answers = {"/": response("302 Found", Location="http://localhost:{port}/x"), "/x": response(body=b"there")}
    async with serving(answers) as server:
        url = f"http://127.0.0.1:{server.port}/"
        for limits in (
            ToolConstraints(allowed_domains=("127.0.0.1",)),
            ToolConstraints(blocked_domains=("localhost",)),
        ):
            assert error_of(await call("HttpRequest", limits, url=url))[0] == "PERMISSION_DENIED"
        assert [line for line, _, _ in server.requests] == ["GET / HTTP/1.1"] * 2
        assert text_of(await call("HttpRequest", url=url)).endswith("there")
        none = ToolConstraints(allowed_domains=())
        assert error_of(await call("HttpRequest", none, url=url))[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize("blocked", ["127.0.0.2", "[::ffff:127.0.0.2]", "no domain at all"])
@pytest.mark.parametrize("target", ["127.0.0.2", "[::ffff:127.0.0.2]"])
async def test_a_blocked_address_is_blocked_at_each_hop_however_it_is_spelled(
    call: Call, blocked: str, target: str
) -> None:
    async with serving({"/": response("302 Found", Location=f"http://{target}:{{port}}/x")}) as server:
        limits = ToolConstraints(blocked_domains=(blocked,))
        found = error_of(await call("HttpRequest", limits, url=f"http://127.0.0.1:{server.port}/"))
        assert (found[0], "policy blocks this domain" in found[1]) == ("PERMISSION_DENIED", True)


async def test_credentials_stay_with_their_origin(call: Call) -> None:
    answers = {
        "/same": response("307 Temporary Redirect", Location="/away"),
        "/away": response("307 Temporary Redirect", Location="http://localhost:{port}/end"),
        "/end": response(),
    }
    headers = {"Authorization": "Bearer x", "Cookie": "a=b", "X-Api-Key": "k", "Accept": "text/html"}
    async with serving(answers) as server:
        await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/same", headers=headers, method="POST", body="b")
        _, second, third = (headers for _, headers, _ in server.requests)
        assert second["authorization"] == "Bearer x"
        assert not {"authorization", "cookie", "x-api-key"} & third.keys()
        assert third["accept"] == "text/html"
        assert [body for _, _, body in server.requests] == [b"b"] * 3


async def test_see_other_becomes_a_get_without_body(call: Call) -> None:
    async with serving({"/": response("303 See Other", Location="/got"), "/got": response()}) as server:
        await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/", method="POST", body="x")
        line, headers, body = server.requests[1]
        assert (line, "content-length" in headers, body) == ("GET /got HTTP/1.1", False, b"")


async def test_long_bodies_are_cut_and_kept_as_an_artifact(make_router: MakeRouter) -> None:
    router = make_router(max_output_bytes=1000)
    async with serving({"/": response(body=b"x" * 20_000, Content_Type="text/plain")}) as server:
        result = await router.execute(request("HttpRequest", url=f"http://127.0.0.1:{server.port}/"))
        assert "[... truncated 19000 bytes of 20000 ...]" in text_of(result)
        assert [(a.artifact_type, a.content_type, a.data) for a in result.artifacts] == [
            ("tool_output", "text/plain", b"x" * 20_000)
        ]


async def test_binary_bodies_are_described(call: Call) -> None:
    async with serving({"/": response(body=b"\x89PNG\0\0", Content_Type="image/png")}) as server:
        text = text_of(await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/"))
        assert text.endswith("\n\nBinary body, 6 bytes")


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-15)
    return engine.compress(data) + engine.flush()


@pytest.mark.parametrize(
    ("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)]
)
async def test_compressed_bodies(call: Call, coding: str, pack: Callable[[bytes], bytes]) -> None:
    data = json.dumps(list(range(500))).encode()
    async with serving({"/": response(body=pack(data), Content_Encoding=coding)}) as server:
        text = text_of(await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/"))
        assert text.endswith(data.decode())
        assert f"Content-Length: {len(data)}\n" in text


async def test_body_limit_holds_for_declared_streamed_and_packed_bodies(make_router: MakeRouter) -> None:
    router = make_router(http_max_body_bytes=1000)
    answers = {
        "/declared": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        "/streamed": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n",
        "/packed": response(body=gzip.compress(b"x" * 50_000_000), Content_Encoding="gzip"),
        "/fits": response(body=b"x" * 1000),
    }
    async with serving(answers) as server:
        for path in ("declared", "streamed", "packed"):
            url = f"http://127.0.0.1:{server.port}/{path}"
            code, message = error_of(await router.execute(request("HttpRequest", url=url)))
            assert (code, "larger than 1000 bytes" in message) == ("TOOL_EXECUTION_FAILED", True), path
        text_of(await router.execute(request("HttpRequest", url=f"http://127.0.0.1:{server.port}/fits")))


@pytest.mark.slow
async def test_a_silent_server_times_out(call: Call) -> None:
    async with serving({}) as server:
        result = await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/", timeout=1)
        assert error_of(result) == ("TOOL_EXECUTION_TIMEOUT", "Request timed out after 1 seconds")


async def test_a_request_that_names_no_time_has_that_of_the_configuration(make_router: MakeRouter) -> None:
    async with serving({}) as server:
        url = f"http://127.0.0.1:{server.port}/"
        result = await make_router(http_timeout_s=0.2).execute(request("HttpRequest", url=url))
    assert error_of(result) == ("TOOL_EXECUTION_TIMEOUT", "Request timed out after 0.2 seconds")


async def test_broken_peers_are_results(call: Call) -> None:
    async with serving({"/": b"SSH-2.0-OpenSSH\r\n\r\n"}) as server:
        assert error_of(await call("HttpRequest", url=f"http://127.0.0.1:{server.port}/"))[0] == "TOOL_EXECUTION_FAILED"
        port = server.port
    assert error_of(await call("HttpRequest", url=f"http://127.0.0.1:{port}/"))[0] == "TOOL_EXECUTION_FAILED"


async def test_cancelling_a_request_propagates(call: Call) -> None:
    async with serving({}) as server:
        waiting: Awaitable[Any] = call("HttpRequest", url=f"http://127.0.0.1:{server.port}/")
        task = asyncio.ensure_future(waiting)
        await until(lambda: bool(server.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_tls_asks_for_the_name_though_it_connects_to_an_address(call: Call) -> None:
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: names.append(name)

    async def ignore(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listener = await asyncio.start_server(ignore, "127.0.0.1", 0, ssl=context)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        code, _ = error_of(await call("HttpRequest", url=f"https://localhost:{port}/"))
    assert (code, names) == ("TOOL_EXECUTION_FAILED", ["localhost"])
