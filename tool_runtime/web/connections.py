"""The hosts that HTTP requests may go to, and the connections that they go over (TR 8.3). Importing this loads
httpcore.

Names are resolved here, and the connection goes to an address that was checked: a name that answers differently a
moment later (DNS rebinding) changes nothing. Above the connection everything keeps the name: Host, SNI, certificate and
pool. A pool of connections serves requests under one and the same scope, so that none is reused under another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import httpcore
import httpx

from policy.urls import target_of
from tool_runtime.tool import FaultKind, ToolFault
from tool_runtime.web.domain_gate import DomainScope, Gate, Network, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ssl import SSLContext

    from tool_runtime.threads import DaemonPool

__all__ = ["ConnectionPools", "DomainScope", "Network"]

_MAX_POOLS: Final = 32


class ConnectionPools:
    """Pools of connections; made on a running loop, closed on the same."""

    def __init__(self, pool: DaemonPool, network: Network) -> None:
        self._threads = pool
        self._network = network
        # The user's SSL_CERT_FILE counts here: networks with a certificate authority of their own need it.
        self._tls = httpx.create_ssl_context(verify=network.tls_checks, trust_env=True)
        self._gates: dict[DomainScope, Gate] = {}
        self._pools: dict[tuple[DomainScope, str | None], httpcore.AsyncConnectionPool] = {}

    def gate(self, scope: DomainScope) -> Gate:
        """The gate of `scope`."""
        if scope not in self._gates:
            self._gates[scope] = Gate(scope, self._network)
        return self._gates[scope]

    def pool_for(self, url: str, scope: DomainScope) -> httpcore.AsyncConnectionPool:
        """The pool for a URL that the gate of `scope` has let through. Local hosts are asked without a proxy, whose own
        network they are not in."""
        scheme, gate = url.partition(":")[0].lower(), self.gate(scope)
        proxy = None if gate.is_local(target_of(url)[0]) else self._network.proxies.get(scheme)
        key = (scope, proxy)
        if key not in self._pools:
            if len(self._pools) >= _MAX_POOLS:
                raise ToolFault(FaultKind.SYSTEM, "requests were made under too many policies in one process")
            self._pools[key] = self._new(gate, proxy)
        return self._pools[key]

    def _new(self, gate: Gate, proxy: str | None) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            proxy=None if proxy is None else _proxy(proxy, self._tls),
            max_connections=32,
            max_keepalive_connections=8,
            keepalive_expiry=15.0,
            network_backend=_CheckedBackend(self._threads, gate if proxy is None else None),
        )

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()


def _proxy(url: str, tls: SSLContext) -> httpcore.Proxy:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return httpcore.Proxy(
        f"{parts.scheme}://{host}:{port}", auth=auth, ssl_context=tls if parts.scheme == "https" else None
    )


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves names itself and connects only to addresses that the gate lets through, all of the name's or none.
    Without a gate it connects to a proxy, which the user has named."""

    def __init__(self, pool: DaemonPool, gate: Gate | None) -> None:
        self._pool = pool
        self._gate = gate
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """As httpcore says. Raises ToolFault: ADDRESS_REFUSED, OUT_OF_SCOPE."""
        addresses = await self._pool.run(lambda: resolve(host, port))
        if self._gate is not None:
            self._gate.check_addresses(host, port, addresses)
        error: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error
