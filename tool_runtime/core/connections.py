"""Where HTTP requests may go, and the connections that they go over (TR 8.3). Importing this loads httpcore.

Names are resolved here, and the connection goes to an address that was checked: a name that answers differently a
moment later (DNS rebinding) changes nothing. Above the connection everything keeps the name: Host, SNI, certificate and
pool. A pool of connections serves requests under one and the same scope, so that none is reused under another.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import httpcore
import httpx

from policy.urls import (
    UrlProblem,
    blocking_rule,
    canonical_domain,
    domain_rules,
    host_and_port,
    is_address,
    is_local_name,
    matching_rule,
    target_of,
)
from tool_runtime.faults import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from ssl import SSLContext

    from tool_runtime.threads import DaemonPool

_MAX_POOLS: Final = 32


class DomainScope(NamedTuple):
    """Domain rules in policy's notation. None means no restriction of that kind, an empty tuple allows nothing."""

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] | None = None


class Network(NamedTuple):
    """What is so for all requests. `address_allowed` judges an IP address as text; `local_names`: names that are local
    by convention are as good as others. `proxies` maps `http` and `https` to the URL of the proxy for that scheme.
    Without `tls_checks` any certificate is taken."""

    address_allowed: Callable[[str], bool]
    local_names: bool = False
    proxies: Mapping[str, str] = {}
    tls_checks: bool = True


class Gate:
    """What one scope lets through: hosts by their names, and the addresses that they lead to."""

    def __init__(self, scope: DomainScope, network: Network) -> None:
        self._scope = scope
        self._network = network
        self._allowed = domain_rules(scope.allowed or ())
        self._blocked = domain_rules(scope.blocked or ())

    def check_url(self, url: str) -> None:
        """Raises ToolFault for a hop that policy would refuse: OUT_OF_SCOPE, ADDRESS_REFUSED."""
        host, port = target_of(url)
        if blocking_rule(host, self._blocked, port) is not None:
            raise ToolFault(FaultKind.OUT_OF_SCOPE, f"policy blocks this domain: {host_and_port(url)}")
        if self._scope.allowed is not None and matching_rule(host, self._allowed, port) is None:
            raise ToolFault(FaultKind.OUT_OF_SCOPE, f"the domain is not among the allowed ones: {host_and_port(url)}")
        if self.is_local(host) and not self._names(host, port):
            raise _local(host)

    def is_local(self, host: str) -> bool:
        """Whether a canonical host is of this machine or network by its spelling."""
        if is_address(host):
            return not self._network.address_allowed(host)
        return is_local_name(host) and not self._network.local_names

    def check_addresses(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raises ToolFault unless each of the addresses that a host leads to may be connected to. A local host that the
        scope names may lead anywhere. Another name may lead to a local address only where the scope names that address
        as well: who answers for a name would else decide which local service is asked."""
        host = canonical_domain(host)
        trusted = self._names(host, port)
        for address in addresses:
            if self._blocks(address, port):
                raise ToolFault(FaultKind.OUT_OF_SCOPE, f"policy blocks an address of {host}: {address}")
            if self._network.address_allowed(address) or (trusted and self.is_local(host)):
                continue
            if not trusted or not self._names(address, port):
                raise _local(host, address)

    def _names(self, host: str, port: int) -> bool:
        """Whether an entry of the scope is for this very host or address, and no star."""
        rule = matching_rule(_canonical(host), self._allowed, port)
        return rule is not None and not rule.startswith("*")

    def _blocks(self, address: str, port: int) -> bool:
        canonical = _canonical(address)
        return bool(canonical) and blocking_rule(canonical, self._blocked, port) is not None


class Connections:
    """Pools of connections; made on a running loop, closed on the same."""

    def __init__(self, pool: DaemonPool, network: Network) -> None:
        self._threads = pool
        self._network = network
        # The user's SSL_CERT_FILE counts here: networks with a certificate authority of their own need it.
        self._tls = httpx.create_ssl_context(verify=network.tls_checks, trust_env=True)
        self._gates: dict[DomainScope, Gate] = {}
        self._pools: dict[tuple[DomainScope, str | None], httpcore.AsyncConnectionPool] = {}

    def gate(self, scope: DomainScope) -> Gate:
        """What `scope` lets through."""
        if scope not in self._gates:
            self._gates[scope] = Gate(scope, self._network)
        return self._gates[scope]

    def to(self, url: str, scope: DomainScope) -> httpcore.AsyncConnectionPool:
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


def _canonical(host: str) -> str:
    """A host or address in canonical form; empty for text that is neither, such as an address with a scope."""
    try:
        return canonical_domain(host)
    except UrlProblem:
        return ""


def _local(host: str, address: str = "") -> ToolFault:
    leads = f" leads to {address}, which" if address and address != host else ""
    message = f"{host}{leads} is a local or reserved address, and allowedDomains of the policy does not name it"
    return ToolFault(FaultKind.ADDRESS_REFUSED, message)


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
        addresses = await self._pool.run(lambda: _resolve(host, port))
        if self._gate is not None:
            self._gate.check_addresses(host, port, addresses)
        error: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error


def _resolve(host: str, port: int) -> list[str]:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
