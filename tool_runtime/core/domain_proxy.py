"""The way to allowed hosts for one command that is held: a proxy of HTTP in this process, on loopback.

It goes by the rules and the checks of addresses of the HTTP tools. What passes after a CONNECT is not looked into: a
certificate is checked by the program itself. The supervisor lets only the command's own processes reach the port.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from agent_host.contracts import Denial
from policy.urls import UrlProblem
from tool_runtime.core.domain_gate import Blocked, Gate, resolve
from tool_runtime.core.proxy_requests import BadRequest, Wanted, read_request
from tool_runtime.faults import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tool_runtime.core.domain_gate import DomainScope, Network
    from tool_runtime.threads import DaemonPool

_BUFFER: Final = 64 * 1024
_HEAD_S: Final = 30.0
_PAUSE_S: Final = 0.05
_MAX_CONNECTIONS: Final = 128
"""So many at once for one command: others wait. Each takes two of the host's descriptors."""
_CONNECT_S: Final = 30.0
_RULES: Final = {FaultKind.OUT_OF_SCOPE: "domains", FaultKind.ADDRESS_REFUSED: "addresses"}


class Upstream(NamedTuple):
    """A proxy of the user: where it is, and a header line with what it asks for."""

    host: str
    port: int
    authorization: bytes | None = None


def upstreams(proxies: Mapping[str, str]) -> dict[str, Upstream]:
    """The proxies that `proxies` names by URL, by the scheme that they are for. One that is reached by TLS is not used:
    nothing is reached then where only it leads."""
    found: dict[str, Upstream] = {}
    for scheme, url in proxies.items():
        parts = urlsplit(url)
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = b"Proxy-Authorization: Basic " + base64.b64encode(pair.encode())
        found[scheme] = Upstream(parts.hostname or "", parts.port or 80, authorization)
    return found


class ProxyParams(NamedTuple):
    """What a command may reach, and who is told of refusals. `upstream` maps `http` and `https` to a proxy of the
    user."""

    domains: DomainScope
    network: Network
    report: Callable[[Denial], None]
    upstream: Mapping[str, Upstream] = {}


class DomainProxy:
    """Listens as soon as it is made, on the running loop; `close` ends it with all that goes through it."""

    def __init__(self, params: ProxyParams, pool: DaemonPool) -> None:
        self._params = params
        self._pool = pool
        self._gate = Gate(params.domains, params.network)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._running: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._task = asyncio.create_task(self._serve(), name="sandbox-proxy")

    def allows(self, host: str) -> bool:
        """True if a host may be asked by its name, at the usual port."""
        try:
            self._gate.check_url(f"https://{host}/")
        except (ToolFault, UrlProblem):
            return False
        return True

    def opens_here(self, address: str, port: int) -> bool:
        """True if what listens at an address of the loopback may be reached past the proxy, as programs do."""
        return self._gate.opens_here(address, port)

    async def aclose(self) -> None:
        """Listen no longer, and cut what goes through. Harmless when repeated."""
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
            except OSError:  # no descriptor is left, or the program has gone again
                self._places.release()
                await asyncio.sleep(_PAUSE_S)
                continue
            task = asyncio.create_task(self._through(connection), name="sandbox-proxy-connection")
            self._running.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._places.release()

    async def _through(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_BUFFER)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._asked(reader, writer)
        finally:
            await _close(writer)

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                wanted = await read_request(reader)
        except (BadRequest, UrlProblem) as error:
            await _refused(writer, "400 Bad Request", str(error))
            return
        if wanted is not None:
            await self._answered(wanted, reader, writer)

    async def _answered(self, wanted: Wanted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await self._connected(wanted)
        except ToolFault as fault:
            rule = "blocked_domains" if isinstance(fault, Blocked) else _RULES[fault.kind]
            self._params.report(Denial("host", wanted.shown, rule, "connect"))
            await _refused(writer, "403 Forbidden", f"refused by the sandbox: {fault}")
            return
        except (OSError, TimeoutError) as error:
            await _refused(writer, "502 Bad Gateway", f"{wanted.shown}: {error or 'no answer in time'}")
            return
        try:
            if wanted.is_tunnel and not self._upstream(wanted):
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                upstream = self._upstream(wanted)
                more = () if upstream is None or upstream.authorization is None else (upstream.authorization,)
                server_writer.write(wanted.head(for_proxy=upstream is not None, more=more))
            await _both_ways((reader, writer), (server_reader, server_writer))
        finally:
            await _close(server_writer)

    def _upstream(self, wanted: Wanted) -> Upstream | None:
        if self._gate.is_local(wanted.host):
            return None
        return self._params.upstream.get("https" if wanted.is_tunnel else "http")

    async def _connected(self, wanted: Wanted) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connected to a host that may be asked. Raises ToolFault where it may not, OSError, TimeoutError."""
        self._gate.check_url(wanted.url)
        upstream = self._upstream(wanted)
        async with asyncio.timeout(_CONNECT_S):
            if upstream is not None:  # it looks the name up itself; the user has named it
                return await _open(upstream.host, upstream.port)
            addresses = await self._pool.run(lambda: resolve(wanted.host, wanted.port))
            self._gate.check_addresses(wanted.host, wanted.port, addresses)
            failed: OSError = OSError(f"{wanted.host} has no address")
            for address in addresses:
                try:
                    return await _open(address, wanted.port)
                except OSError as error:
                    failed = error
            raise failed


async def _open(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port, limit=_BUFFER)


async def _both_ways(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], other: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Until both ends have nothing more to send, or one of them is gone."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_pass_on(one[0], other[1]))
        group.create_task(_pass_on(other[0], one[1]))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_BUFFER):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _refused(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = f"{why}\n".encode("utf-8", "replace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
