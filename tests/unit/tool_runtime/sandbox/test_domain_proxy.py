"""The proxy by which commands that are held reach allowed hosts: what it lets through, what it refuses and reports.

127.0.0.1 stands for a local address, and 127.0.0.2 for a public one.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from agent_host.contracts import Denial
from policy.urls import UrlProblem
from tests.support.tls import server_context, tls_in_front_of
from tests.unit.tool_runtime.conftest import until
from tests.unit.tool_runtime.test_http import response, serving
from tool_runtime.threads import DaemonPool
from tool_runtime.web import DomainScope, Network, proxy
from tool_runtime.web.proxy import MAX_HEAD_BYTES, DomainProxy, NoProxyRequest, request_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="127.0.0.2 is an address of its own on Linux and Windows"
)
LOCAL, PUBLIC = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def pool() -> Iterator[DaemonPool]:
    made = DaemonPool()
    yield made
    made.close()


@pytest.fixture
def leads(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Where names lead; a name that is looked up again leads to the next one, the last for good."""
    table: dict[str, list[Any]] = {}

    def resolve(host: str, _port: int) -> list[str]:
        if host not in table:
            return [host]
        found = table[host]
        one = found.pop(0) if len(found) > 1 else found[0]
        return [one] if isinstance(one, str) else list(one)

    monkeypatch.setattr(proxy, "resolve", resolve)
    return table


class Asked:
    """A proxy, and what it has reported."""

    def __init__(
        self,
        pool: DaemonPool,
        allowed: tuple[str, ...] | None,
        blocked: tuple[str, ...] = (),
        upstream: Mapping[str, str] = {},
    ) -> None:
        self.denials: list[Denial] = []
        network = Network(lambda address: address == PUBLIC, proxies=upstream)
        self.proxy = DomainProxy(DomainScope(allowed, blocked), network, self.denials.append, pool)

    async def send(self, data: bytes, *, end: bool = True) -> bytes:
        """All that comes back for `data`."""
        reader, writer = await asyncio.open_connection(LOCAL, self.proxy.port)
        writer.write(data)
        await writer.drain()
        if end:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer

    async def get(self, url: str, host: str, *more: str) -> bytes:
        """The answer to a request of plain HTTP."""
        lines = [f"GET {url} HTTP/1.1", f"Host: {host}", *more, "", ""]
        return await self.send("\r\n".join(lines).encode())

    async def connect(self, target: str, then: bytes = b"") -> bytes:
        """The answer to a CONNECT with `then` behind it."""
        return await self.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode() + then)


@asynccontextmanager
async def asking(pool: DaemonPool, *scope: Any, **more: Any) -> AsyncIterator[Asked]:
    asked = Asked(pool, *scope, **more)
    try:
        yield asked
    finally:
        await asked.proxy.aclose()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("sandbox-proxy")]


async def test_a_tunnel_to_an_allowed_host_is_not_looked_into(pool: DaemonPool, leads: dict[str, Any]) -> None:
    leads["allowed.test"] = [PUBLIC]
    async with serving({"/x": response(body=b"inside")}, PUBLIC) as server, asking(pool, ("allowed.test",)) as asked:
        answer = await asked.connect(f"allowed.test:{server.port}", b"GET /x HTTP/1.1\r\nHost: other.test\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
        assert answer.endswith(b"inside")
    assert asked.denials == []


async def test_plain_http_goes_to_the_host_that_was_judged(pool: DaemonPool, leads: dict[str, Any]) -> None:
    """One request a connection, and nothing of the way in it: what follows might be for another host."""
    leads["allowed.test"] = [PUBLIC]
    async with serving({"/x?y=1": response(body=b"served")}, PUBLIC) as server, asking(pool, ("*.test",)) as asked:
        at = f"allowed.test:{server.port}"
        answer = await asked.get(
            f"http://ALLOWED.test:{server.port}/x?y=1#part", at, "Proxy-Authorization: Basic x", "Accept: */*"
        )
        assert answer.endswith(b"served")
        line, headers, _ = server.requests[0]
        assert line == "GET /x?y=1 HTTP/1.1"
        assert headers == {"host": at, "accept": "*/*", "connection": "close"}


REFUSED = {
    "a host that is not allowed": ("evil.test", "evil.test", "domains"),
    "one whose name tells of blocks": ("blocks.example", "blocks.example", "domains"),
    "a blocked host": ("bad.allowed.test", "bad.allowed.test", "blocked_domains"),
    "a name that leads to a local address": ("inside.allowed.test", "inside.allowed.test", "addresses"),
    "a name that leads to a local address as well": ("both.allowed.test", "both.allowed.test", "addresses"),
    "a name that leads to a blocked address": ("to-blocked.allowed.test", "to-blocked.allowed.test", "blocked_domains"),
    "an address of the loopback": ("127.0.0.1", "127.0.0.1", "domains"),
    "one in another spelling": ("0x7f.1", "127.0.0.1", "domains"),
    "one of version 6": ("[::1]", "::1", "domains"),
    "the service of a cloud": ("169.254.169.254", "169.254.169.254", "domains"),
    "localhost": ("localhost", "localhost", "domains"),
}
LEADS: dict[str, list[Any]] = {
    "inside.allowed.test": [LOCAL],
    "both.allowed.test": [(PUBLIC, LOCAL)],
    "to-blocked.allowed.test": ["192.0.2.1"],
}


@pytest.mark.parametrize(("host", "shown", "rule"), REFUSED.values(), ids=REFUSED)
async def test_what_is_refused_is_reported_once_and_said(
    pool: DaemonPool, leads: dict[str, Any], host: str, shown: str, rule: str
) -> None:
    leads.update(LEADS)
    async with asking(pool, ("*.allowed.test",), ("bad.allowed.test", "192.0.2.1")) as asked:
        tunnel = await asked.connect(f"{host}:443")
        plain = await asked.get(f"http://{host}/", host)
    assert tunnel.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert plain.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"refused by the sandbox: " in tunnel
    assert asked.denials == [Denial("host", shown, rule, "connect")] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "db.internal"])
async def test_where_any_host_is_allowed_local_ones_are_not(pool: DaemonPool, host: str) -> None:
    async with asking(pool, None) as asked:
        answer = await asked.connect(f"{host}:443")
    assert b"403 Forbidden" in answer
    assert [denial.rule for denial in asked.denials] == ["addresses"]


@pytest.mark.parametrize("named", ["localhost", "localhost:{port}", "127.0.0.1"])
async def test_a_local_host_is_reached_where_it_is_named(pool: DaemonPool, leads: dict[str, Any], named: str) -> None:
    leads["localhost"] = [LOCAL]
    async with serving({"/": response(body=b"near")}) as server:
        async with asking(pool, (named.format(port=server.port),)) as asked:
            host = "127.0.0.1" if named == "127.0.0.1" else "localhost"
            assert (await asked.get(f"http://{host}:{server.port}/", f"{host}:{server.port}")).endswith(b"near")
            assert asked.proxy.opens_here(LOCAL, server.port)
            assert asked.proxy.opens_here(LOCAL, 1) == (named != "localhost:{port}")
        async with asking(pool, (named.format(port=server.port),), (LOCAL,)) as asked:
            assert b"403" in await asked.get(f"http://{host}:{server.port}/", f"{host}:{server.port}")
            assert not asked.proxy.opens_here(LOCAL, server.port)


@pytest.mark.parametrize("blocked", ["localhost", "127.0.0.1", "[::1]:{port}"])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::"])
async def test_a_local_host_that_is_blocked_at_one_address_is_blocked_at_all(
    pool: DaemonPool, address: str, blocked: str
) -> None:
    """One listener answers at several of them."""
    async with asking(pool, ("localhost", "127.0.0.2"), (blocked.format(port=4433),)) as asked:
        assert not asked.proxy.opens_here(address, 4433)
        assert asked.proxy.opens_here(address, 4434) == (blocked == "[::1]:{port}")


async def test_a_name_is_looked_up_once(pool: DaemonPool, leads: dict[str, Any]) -> None:
    """What was judged is what is connected to: whoever answers for the name says something else the next time."""
    leads["rebound.test"] = [PUBLIC, LOCAL]
    async with serving({"/": response(body=b"public")}, PUBLIC) as server, asking(pool, ("rebound.test",)) as asked:
        at = f"rebound.test:{server.port}"
        assert (await asked.get(f"http://{at}/", at)).endswith(b"public")
        assert b"403" in await asked.get(f"http://{at}/", at)
    assert [denial.rule for denial in asked.denials] == ["addresses"]


async def test_a_port_that_is_named_is_no_other_port(pool: DaemonPool, leads: dict[str, Any]) -> None:
    leads["allowed.test"] = [PUBLIC]
    async with asking(pool, ("allowed.test:443",)) as asked:
        refused = await asked.connect("allowed.test:8443")
        closed = await asked.connect("allowed.test:443")  # nobody listens there
    assert refused.startswith(b"HTTP/1.1 403")
    assert closed.startswith(b"HTTP/1.1 502 Bad Gateway")
    assert [denial.what for denial in asked.denials] == ["allowed.test:8443"]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"hello\r\n\r\n", b"this is a proxy of HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"this is a proxy of HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"a proxy is asked for whole URLs"),
        (b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", b"https goes by CONNECT"),
        (b"GET http://a.test/ HTTP/2\r\nHost: a.test\r\n\r\n", b"this is a proxy of HTTP/1.1"),
        (b"GET http://a.test/ HTTP/1.1\r\n\r\n", b"one Host header"),
        (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", b"one Host header"),
        (b"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", b"different hosts"),
        (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test:81\r\n\r\n", b"different hosts"),
        (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n folded: x\r\n\r\n", b"a header line is malformed"),
        (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nno colon\r\n\r\n", b"a header line is malformed"),
        (b"GET http://a.test/ HTTP/1.1\nHost: a.test\r\n\r\n", b"HTTP/1.1"),
        (b"GET http://u@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", b"user information"),
        (b"CONNECT a.test@b.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n", b"user information"),
        (b"CONNECT a.test:99999 HTTP/1.1\r\nHost: a.test\r\n\r\n", b"no valid host and port"),
        (b"CONNECT a.test:443 HTTP/1.1\r\nX: " + MAX_HEAD_BYTES * b"x" + b"\r\n\r\n", b"too long"),
    ],
)
async def test_what_is_no_request_is_answered_with_why(pool: DaemonPool, sent: bytes, why: bytes) -> None:
    async with asking(pool, ("a.test",)) as asked:
        answer = await asked.send(sent)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer
    assert why in answer
    assert asked.denials == []


@given(st.binary(max_size=300) | st.text("GETCON htp:/\r\nHost.[]@1", max_size=80).map(str.encode))
def test_any_bytes_are_a_request_or_are_refused(data: bytes) -> None:
    try:
        wanted = request_of(data + b"\r\n\r\n")
    except (NoProxyRequest, UrlProblem):
        return
    assert wanted.host
    assert 0 <= wanted.port <= 65_535
    for for_proxy in (True, False):
        head = wanted.head(for_proxy=for_proxy)
        assert head.endswith(b"\r\n\r\n")
        assert head.count(b"\r\n\r\n") == 1


async def test_who_sends_nothing_or_goes_is_let_go(pool: DaemonPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_HEAD_S", 0.05)
    async with asking(pool, ("a.test",)) as asked:
        assert await asked.send(b"") == b""
        assert await asked.send(b"GET http://a.te") == b""
        assert await asked.send(b"GET http://a.te", end=False) == b""  # slow, until its time is over
        with suppress(ConnectionError):  # with much unread it may be a reset
            assert b"too long" in await asked.send(200_000 * b"x")


async def test_a_host_that_does_not_answer_is_told_in_time(
    pool: DaemonPool, leads: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    leads["a.test"] = [PUBLIC]
    monkeypatch.setattr(proxy, "_CONNECT_S", 0.05)

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(proxy, "_open", never)

    async with asking(pool, ("a.test",)) as asked:
        assert b"502 Bad Gateway" in await asked.connect("a.test:443")


async def test_a_command_takes_no_more_than_its_share_of_descriptors(
    pool: DaemonPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes beyond waits until another connection has ended."""
    monkeypatch.setattr(proxy, "_MAX_CONNECTIONS", 3)
    async with asking(pool, ("a.test",)) as asked:
        idle = [await asyncio.open_connection(LOCAL, asked.proxy.port) for _ in range(10)]
        try:
            waiting = asyncio.create_task(asked.connect("b.test:443"))
            await until(lambda: len(asked.proxy._running) >= 3)
            for _ in range(20):  # turns of the loop, in each of which it could take another one
                await asyncio.sleep(0)
            assert (len(asked.proxy._running), waiting.done()) == (3, False)
        finally:
            for _, writer in idle:
                writer.close()
        assert b"403" in await asyncio.wait_for(waiting, 10)


async def test_the_end_cuts_what_goes_through(pool: DaemonPool, leads: dict[str, Any]) -> None:
    leads["a.test"] = [PUBLIC]
    async with serving({}, PUBLIC) as server, asking(pool, ("a.test",)) as asked:
        reader, writer = await asyncio.open_connection(LOCAL, asked.proxy.port)
        writer.write(f"CONNECT a.test:{server.port} HTTP/1.1\r\n\r\n".encode())
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        await asked.proxy.aclose()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


@pytest.mark.parametrize("pair", ["", "me:s%40cret@"])
async def test_the_users_own_proxy_is_asked_for_what_is_allowed(pool: DaemonPool, pair: str) -> None:
    """It gets the spelling that was judged, and looks the name up itself. A refused host does not come to it."""
    answers = {
        "http://a.test:80/x": response(body=b"by the other"),
        "a.test:443": b"HTTP/1.1 200 OK\r\n\r\ntunnel",
    }
    async with serving(answers) as other:
        url = f"http://{pair}127.0.0.1:{other.port}"
        async with asking(pool, ("a.test",), upstream={"http": url, "https": url}) as asked:
            assert (await asked.get("http://A.test/x", "a.test")).endswith(b"by the other")
            assert (await asked.connect("a.TEST:443")).endswith(b"tunnel")
            assert b"403" in await asked.connect("b.test:443")
    assert [line for line, _, _ in other.requests] == ["GET http://a.test:80/x HTTP/1.1", "CONNECT a.test:443 HTTP/1.1"]
    credentials = {headers.get("proxy-authorization") for _, headers, _ in other.requests}
    assert credentials == {f"Basic {base64.b64encode(b'me:s@cret').decode()}" if pair else None}
    assert [denial.what for denial in asked.denials] == ["b.test"]


async def test_a_proxy_with_https_is_reached_by_tls_alone(pool: DaemonPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its password is never sent in the clear, and not to a server whose certificate is not trusted."""
    monkeypatch.setattr(proxy, "_LAST_ANSWER_S", 0.2)
    authority = trustme.CA()
    answers = {"http://a.test:80/x": response(body=b"by the other"), "a.test:443": b"HTTP/1.1 200 OK\r\n\r\ntunnel"}
    async with serving(answers) as other:
        with tls_in_front_of(f"http://{LOCAL}:{other.port}", server_context(authority, LOCAL)) as secure:
            url = secure.replace("https://", "https://me:secret@")
            async with asking(pool, ("a.test",), upstream={"http": url, "https": url}) as asked:
                answer = await asked.connect("a.test:443")
                assert b"502" in answer
                assert b"not trusted; SSL_CERT_FILE names" in answer
            assert other.requests == []
            with authority.cert_pem.tempfile() as trusted:
                monkeypatch.setenv("SSL_CERT_FILE", trusted)
                async with asking(pool, ("a.test",), upstream={"http": url, "https": url}) as asked:
                    assert (await asked.get("http://a.test/x", "a.test")).endswith(b"by the other")
                    assert (await asked.connect("a.test:443")).endswith(b"tunnel")


async def test_a_named_local_host_goes_past_the_users_own_proxy(pool: DaemonPool, leads: dict[str, Any]) -> None:
    leads["localhost"] = [LOCAL]
    async with serving({"/": response(body=b"near")}) as server:
        upstream = {"http": f"http://127.0.0.1:{server.port + 1}"}
        async with asking(pool, ("localhost",), upstream=upstream) as asked:
            assert (await asked.get(f"http://localhost:{server.port}/", f"localhost:{server.port}")).endswith(b"near")
