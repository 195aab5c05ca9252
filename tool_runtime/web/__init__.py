"""Rules for the hosts that requests may reach, by name and by resolved address (TR 8.3), for the HTTP tools and for the
proxy of commands."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from policy.urls import (
    UrlProblem,
    address_is_public,
    blocking_rule,
    canonical_domain,
    domain_rules,
    host_and_port,
    is_address,
    is_local_name,
    matching_rule,
    target_of,
)
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tool_runtime.tool import RuntimeSettings

_LOOPBACK: Final = ("127.0.0.1", "::1")


class Blocked(ToolFault):
    """Fault for a host that policy blocks by its name or by a resolved address."""

    def __init__(self, what: str) -> None:
        super().__init__(FaultKind.OUT_OF_SCOPE, f"policy blocks {what}")


class DomainScope(NamedTuple):
    """Domain rules in policy's notation. None means no restriction of that kind, an empty tuple allows nothing."""

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] | None = None


class Network(NamedTuple):
    """Rules for all requests. `address_allowed` judges an IP address; `local_names` permits names that are local by
    convention. `proxies` maps schemes to URLs."""

    address_allowed: Callable[[str], bool]
    local_names: bool = False
    proxies: Mapping[str, str] = {}


def network_under(settings: RuntimeSettings) -> Network:
    """Return the rules for requests under these settings."""
    allowed, proxies = settings.address_allowed, {"http": settings.http_proxy, "https": settings.https_proxy}
    return Network(
        address_is_public if allowed is None else allowed,
        local_names=allowed is not None,
        proxies={scheme: url for scheme, url in proxies.items() if url is not None},
    )


class Gate:
    """Checks hosts, by name and by resolved address, against one scope."""

    def __init__(self, scope: DomainScope, network: Network) -> None:
        self._scope = scope
        self._network = network
        self._allowed = domain_rules(scope.allowed or ())
        self._blocked = domain_rules(scope.blocked or ())

    def check_url(self, url: str) -> None:
        """Raise ToolFault for a hop that policy would deny: OUT_OF_SCOPE (Blocked is one of these) or
        ADDRESS_REFUSED."""
        host, port = target_of(url)
        if blocking_rule(host, self._blocked, port) is not None:
            raise Blocked(f"this domain: {host_and_port(url)}")
        if self._scope.allowed is not None and matching_rule(host, self._allowed, port) is None:
            raise ToolFault(FaultKind.OUT_OF_SCOPE, f"the domain is not among the allowed ones: {host_and_port(url)}")
        if self.is_local(host) and not self._names(host, port):
            raise _local(host)

    def is_local(self, host: str) -> bool:
        """True if the spelling of a canonical host shows that it belongs to this machine or network."""
        if is_address(host):
            return not self._network.address_allowed(host)
        return is_local_name(host) and not self._network.local_names

    def check_addresses(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise ToolFault unless every address of a host may be connected to. A local host that the scope names may
        resolve to any address. Another name that the scope names may resolve to a local address only if the scope names
        that address too; otherwise, the owner of the name could choose which local service is reached."""
        host = canonical_domain(host)
        trusted = self._names(host, port)
        for address in addresses:
            if self._blocks(address, port):
                raise Blocked(f"an address of {host}: {address}")
            if self._network.address_allowed(address) or (trusted and self.is_local(host)):
                continue
            if not trusted or not self._names(address, port):
                raise _local(host, address)

    def opens_here(self, address: str, port: int) -> bool:
        """True if the scope names this loopback address or `localhost`, so that a listener there may be reached by
        address. A listener may answer at several loopback addresses, so a block of one applies to all."""
        is_named = any(self._names(one, port) for one in ("localhost", address))
        return is_named and not any(self._blocks(one, port) for one in ("localhost", address, *_LOOPBACK))

    def _names(self, host: str, port: int) -> bool:
        """True if an entry of the scope names exactly this host or address, without a wildcard."""
        rule = matching_rule(_canonical(host), self._allowed, port)
        return rule is not None and not rule.startswith("*")

    def _blocks(self, address: str, port: int) -> bool:
        canonical = _canonical(address)
        return bool(canonical) and blocking_rule(canonical, self._blocked, port) is not None


def resolve(host: str, port: int) -> list[str]:
    """Resolve a name to its addresses. Blocks; raises OSError."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def _canonical(host: str) -> str:
    """Return a host or address in canonical form; empty for text that is neither, such as an address with a scope."""
    try:
        return canonical_domain(host)
    except UrlProblem:
        return ""


def _local(host: str, address: str = "") -> ToolFault:
    leads = f" leads to {address}, which" if address and address != host else ""
    message = f"{host}{leads} is a local or reserved address, and allowedDomains of the policy does not name it"
    return ToolFault(FaultKind.ADDRESS_REFUSED, message)
