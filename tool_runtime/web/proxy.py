"""HTTP proxy for one sandboxed command, in this process and on loopback: its only way to allowed hosts by name.

It applies the domain rules and address checks of the HTTP tools. Traffic after a CONNECT is not inspected; the program
itself checks the certificate. The supervisor lets only the command's own processes reach the port.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from agent_host.contracts import Denial
from agent_host.errors import UsageError
from agent_host.http import TlsContext, first_line
from policy.urls import UrlProblem, target_of
from tool_runtime.tool import FaultKind, ToolFault
from tool_runtime.web import Blocked, DomainScope, Gate, Network, network_under, resolve

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from policy import CommandScope
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import RuntimeSettings

_BUFFER: Final = 64 * 1024
_HEAD_S: Final = 30.0
_PAUSE_S: Final = 0.05
_MAX_CONNECTIONS: Final = 128  # at once for one command; others wait. Each takes two of the host's descriptors
_CONNECT_S: Final = 30.0
_LAST_ANSWER_S: Final = 30.0  # of silence, after the program has ended its part of a connection by TLS
_RULES: Final = {FaultKind.OUT_OF_SCOPE: "domains", FaultKind.ADDRESS_REFUSED: "addresses"}


class Upstream(NamedTuple):
    """A proxy that the user configured: its address, whether it is reached by TLS, and the authorization header line
    that it requires."""

    host: str
    port: int
    is_secure: bool
    authorization: bytes | None = None

    @classmethod
    def read(cls, url: str) -> Upstream:
        """Read the proxy that a URL names."""
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = b"Proxy-Authorization: Basic " + base64.b64encode(pair.encode())
        return cls(parts.hostname or "", parts.port or (443 if is_secure else 80), is_secure, authorization)


def proxy_of(
    scope: CommandScope, runtime: RuntimeSettings, report: Callable[[Denial], None], pool: DaemonPool
) -> DomainProxy:
    """Start the proxy of one command under `scope`; `report` receives a Denial for each denied host."""
    return DomainProxy(DomainScope(scope.domains, scope.blocked_domains), network_under(runtime), report, pool)


class DomainProxy:
    """Listens on the running loop from its creation; `aclose` ends it with all its connections."""

    def __init__(
        self, domains: DomainScope, network: Network, report: Callable[[Denial], None], pool: DaemonPool
    ) -> None:
        self._report = report
        self._upstreams = {scheme: Upstream.read(url) for scheme, url in network.proxies.items()}
        self._tls: TlsContext | None = None
        self._pool = pool
        self._gate = Gate(domains, network)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._running: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._task = asyncio.create_task(self._serve(), name="sandbox-proxy")

    def allows(self, host: str) -> bool:
        """True if a host may be reached by name at the HTTPS port."""
        try:
            self._gate.check_url(f"https://{host}/")
        except (ToolFault, UrlProblem):
            return False
        return True

    def opens_here(self, address: str, port: int) -> bool:
        """True if a listener at a loopback address may be reached without the proxy, because programs connect to
        loopback directly."""
        return self._gate.opens_here(address, port)

    async def aclose(self) -> None:
        """Stop listening and close all connections. May be called again."""
        tasks = [self._task, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._socket.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:  # no descriptor is left, or the program disconnected
                self._places.release()
                await asyncio.sleep(_PAUSE_S)
                continue
            task = asyncio.create_task(self._handle(connection), name="sandbox-proxy-connection")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            task.add_done_callback(lambda _: self._places.release())

    async def _handle(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_BUFFER)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._read_request(reader, writer)
        finally:
            await _close(writer)

    async def _read_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                wanted = await read_request(reader)
        except (NoProxyRequest, UrlProblem) as error:
            await _refuse(writer, "400 Bad Request", str(error))
            return
        if wanted is not None:
            await self._answer(wanted, reader, writer)

    async def _answer(self, wanted: ProxyRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await self._connect(wanted)
        except ToolFault as fault:
            rule = "blocked_domains" if isinstance(fault, Blocked) else _RULES[fault.kind]
            self._report(Denial("host", wanted.label, rule, "connect"))
            await _refuse(writer, "403 Forbidden", f"refused by the sandbox: {fault}")
            return
        except (OSError, TimeoutError, UsageError) as error:
            why = first_line(error) if str(error) else "no answer in time"
            await _refuse(writer, "502 Bad Gateway", f"{wanted.label}: {why}")
            return
        try:
            upstream = self._upstream(wanted)
            if wanted.is_tunnel and upstream is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                extra = () if upstream is None or upstream.authorization is None else (upstream.authorization,)
                server_writer.write(wanted.head(for_proxy=upstream is not None, extra=extra))
            async with asyncio.TaskGroup() as group:  # until both ends have no more to send, or one disconnects
                sending = group.create_task(_pass_on(reader, server_writer))
                # By TLS the server does not learn that the program has ended its part.
                group.create_task(_pass_on(server_reader, writer, None if server_writer.can_write_eof() else sending))
        finally:
            await _close(server_writer)

    def _upstream(self, wanted: ProxyRequest) -> Upstream | None:
        if self._gate.is_local(wanted.host):
            return None
        return self._upstreams.get("https" if wanted.is_tunnel else "http")

    async def _trusted(self) -> ssl.SSLContext:
        if self._tls is None:  # loading the certificates takes longer than most commands
            self._tls = TlsContext("https:")
        return await self._pool.run(self._tls.get)

    async def _connect(self, wanted: ProxyRequest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an allowed host. Raises ToolFault if it is not allowed, OSError, TimeoutError,
        UsageError for certificates that cannot be loaded."""
        self._gate.check_url(wanted.url)
        upstream = self._upstream(wanted)
        async with asyncio.timeout(_CONNECT_S):
            if upstream is not None:  # it resolves the name itself, and the user configured it
                tls = await self._trusted() if upstream.is_secure else None
                return await _open(upstream.host, upstream.port, tls)
            addresses = await self._pool.run(lambda: resolve(wanted.host, wanted.port))
            self._gate.check_addresses(wanted.host, wanted.port, addresses)
            failed: OSError = OSError(f"{wanted.host} has no address")
            for address in addresses:
                try:
                    return await _open(address, wanted.port)
                except OSError as error:
                    failed = error
            raise failed


async def _open(
    host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port, limit=_BUFFER, ssl=tls)


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sending: asyncio.Task[None] | None = None
) -> None:
    """Forward until the end of `reader` or, after the task `sending` has ended, until it is silent."""
    with suppress(OSError):
        while data := await (reader.read(_BUFFER) if sending is None else _read_last(reader, sending)):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _read_last(reader: asyncio.StreamReader, sending: asyncio.Task[None]) -> bytes:
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWER_S):
                return await reader.read(_BUFFER)
        if sending.done():
            return b""


async def _refuse(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = f"{why}\n".encode("utf-8", "replace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


MAX_HEAD_BYTES: Final = 32 * 1024
_OF_THE_HOP: Final = frozenset({b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive"})


class NoProxyRequest(ValueError):
    """Raised if a program sent something other than a proxy request; the message gives the reason."""


class ProxyRequest(NamedTuple):
    """One request. `line` is its first line, `fields` its header lines as received."""

    host: str
    port: int
    is_tunnel: bool
    line: bytes
    fields: tuple[bytes, ...]

    @property
    def url(self) -> str:
        """The URL of the host and port, in the form that domain rules accept."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tunnel else 'http'}://{host}:{self.port}/"

    @property
    def label(self) -> str:
        """The host, with the port if it is not the default."""
        return self.host if self.port == (443 if self.is_tunnel else 80) else f"{self.host}:{self.port}"

    def head(self, *, for_proxy: bool, extra: tuple[bytes, ...] = ()) -> bytes:
        """Return the head to forward: with a path for a server, with the whole URL and `extra` lines for another proxy.
        A connection carries one request, because a second one could be meant for another host."""
        method, target, version = self.line.split(b" ")
        # Forward the host in the spelling that was judged, because two parsers may read one spelling as two hosts.
        if self.is_tunnel:
            target = self.url[len("https://") : -1].encode()
        else:
            path = _path_of(target)
            target = f"{self.url[:-1]}".encode() + path if for_proxy else path
        kept = [field for field in self.fields if field.partition(b":")[0].strip().lower() not in _OF_THE_HOP]
        if not self.is_tunnel:
            kept.append(b"Connection: close")
        return b"\r\n".join([b" ".join((method, target, version)), *kept, *extra, b"", b""])


def _path_of(target: bytes) -> bytes:
    """Return the path and query of an absolute URL, without the fragment, which only the client uses."""
    rest = target.split(b"://", 1)[1].partition(b"#")[0]
    at = min((rest.find(mark) for mark in (b"/", b"?") if mark in rest), default=len(rest))
    return rest[at:] if rest[at : at + 1] == b"/" else b"/" + rest[at:]


async def read_request(reader: asyncio.StreamReader) -> ProxyRequest | None:
    """Read the head of a request; None if nothing came. Raises NoProxyRequest, UrlProblem, IncompleteReadError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise NoProxyRequest("the head of the request is too long") from error
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    return request_of(head)


def request_of(head: bytes) -> ProxyRequest:
    """Parse the request in `head`, which ends in an empty line. Raises NoProxyRequest, UrlProblem."""
    if len(head) > MAX_HEAD_BYTES:
        raise NoProxyRequest("the head of the request is too long")
    line, *fields = head[:-4].split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[1].isascii():
        raise NoProxyRequest("this is a proxy of HTTP/1.1: no request for one was sent")
    if any(b"\n" in field or b"\r" in field or field[:1] in b" \t" or b":" not in field for field in fields):
        raise NoProxyRequest("a header line is malformed")
    method, target = parts[0], parts[1].decode("ascii")
    if method == b"CONNECT":
        host, port = target_of(f"https://{target}/")
        return ProxyRequest(host, port, True, line, tuple(fields))
    if not target.lower().startswith("http://"):
        raise UrlProblem("a proxy is asked for whole URLs of http; https goes by CONNECT")
    host, port = target_of(target)
    _check_host(fields, host, port)
    return ProxyRequest(host, port, False, line, tuple(fields))


def _check_host(fields: list[bytes], host: str, port: int) -> None:
    """Check that the Host header names the judged host, because a server with several names selects by it. Raises
    NoProxyRequest, UrlProblem."""
    pairs = (field.partition(b":") for field in fields)
    named = [value.strip() for name, _, value in pairs if name.strip().lower() == b"host"]
    if len(named) != 1:
        raise NoProxyRequest("there must be one Host header")
    if not named[0].isascii() or target_of(f"http://{named[0].decode('ascii')}/") != (host, port):
        raise NoProxyRequest("the Host header and the URL name different hosts")
