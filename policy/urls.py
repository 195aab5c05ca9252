"""URLs, domain rules and addresses, by spelling alone: no name is looked up here.

The table of networks that are not public is our own: the standard library's `is_global` takes NAT64, 6to4,
IPv4-compatible, site-local and multicast forms of local addresses for global ones.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Address, IPv6Address, IPv4Network, IPv6Network  # isort: skip

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_MAX_HOST = 253
_SCHEMES = frozenset({"http", "https"})
_LOCAL_NAMES = frozenset(
    {"localhost", "local", "internal", "localdomain", "home", "corp", "lan", "intranet", "private", "home.arpa"}
)
"""Reserved (RFC 6761, 6762, 8375, `internal`), or never given out because local networks use them."""

_NOT_PUBLIC_V4 = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4", "240.0.0.0/4",
    "168.63.129.16/32",  # the platform of a cloud to its machines, though the address is out of a public range
)  # fmt: skip
_PUBLIC_V6 = "2000::/3"
_NOT_PUBLIC_V6 = ("2001::/23", "2001:db8::/32", "3fff::/20")
_EMBEDDED_V4 = (
    # network, bits to the right of the embedded address
    ("::/96", 0),  # IPv4-compatible
    ("::ffff:0:0/96", 0),  # IPv4-mapped
    ("::ffff:0:0:0/96", 0),  # IPv4-translated
    ("64:ff9b::/96", 0),  # NAT64
    ("2002::/16", 80),  # 6to4
)
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})


class UrlProblem(ValueError):
    """A URL that is refused before any rule is asked; the message says why."""


def host_of(url: str) -> str:
    """The host in canonical form: lower case, IDNA, no trailing dot; IP literals of any notation as one spelling
    (no brackets). Raises UrlProblem for schemes other than http and https, user information and malformed URLs."""
    if any(character <= " " or character == "\x7f" for character in url):
        raise UrlProblem("the URL has white space or control characters")
    return _canonical_host(_authority_of(url)["host"])


def port_of(url: str) -> int | None:
    """The port that the URL names, None when it names none. Raises what `host_of` raises."""
    port = _authority_of(url)["port"]
    return int(port) if port else None


def _authority_of(url: str) -> re.Match[str]:
    match = _URL.match(url)
    if match is None:
        raise UrlProblem("not an absolute URL")
    if match["scheme"].lower() not in _SCHEMES:
        raise UrlProblem(f"scheme {match['scheme']} is not http or https")
    if "@" in match["authority"]:
        raise UrlProblem("the URL carries user information")
    parts = _AUTHORITY.fullmatch(match["authority"])
    if parts is None or int(parts["port"] or 0) > 65_535:
        raise UrlProblem("the URL has no valid host and port")
    return parts


def canonical_domain(entry: str) -> str:
    """A domain rule in canonical form: `example.com`, `*.example.com` or an IP literal. Raises UrlProblem."""
    if entry.startswith("*."):
        return "*." + _canonical_host(entry[2:])
    return _canonical_host(f"[{entry}]" if entry.count(":") > 1 else entry)


def domain_rules(entries: Iterable[str]) -> dict[str, str]:
    """Canonical rule → entry as written. An entry that can't be read stands at '', which no host matches, so that a
    block list can refuse everything instead of protecting nothing."""
    table: dict[str, str] = {}
    for entry in entries:
        try:
            table[canonical_domain(entry)] = entry
        except UrlProblem:
            table[""] = entry
    return table


def matching_rule(host: str, table: dict[str, str]) -> str | None:
    """The entry of `domain_rules(…)` for a canonical host. `*.example.com` covers every name below it, not itself."""
    if host in table:
        return table[host]
    rest = host
    while "." in rest and not is_address(host):
        rest = rest.partition(".")[2]
        if "*." + rest in table:
            return table["*." + rest]
    return None


def is_address(host: str) -> bool:
    """True for a canonical host that is an IP literal."""
    return ":" in host or host.rpartition(".")[2].isdecimal()


def is_local_name(host: str) -> bool:
    """True for names that never leave the machine or its network: by convention, or because they have one label, which
    no public name has."""
    if is_address(host):
        return False
    labels = host.split(".")
    return len(labels) == 1 or labels[-1] in _LOCAL_NAMES or ".".join(labels[-2:]) in _LOCAL_NAMES


def address_is_public(address: str) -> bool:
    """True when an IP address (text as a resolver gives it) lies on the public internet. Anything else, text that is no
    address and scoped addresses included, is False. IPv4 inside IPv6 is judged as the IPv4 address it is."""
    from ipaddress import ip_address

    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return _v4_is_public(parsed) if parsed.version == 4 else _v6_is_public(parsed)


def embedded_v4(host: str) -> str | None:
    """The IPv4 address that a canonical host, an IPv6 literal, carries; None for any other host. For refusing alone:
    whether the address is reached depends on the network."""
    from ipaddress import IPv4Address, IPv6Address

    if ":" not in host:
        return None
    address = IPv6Address(host)
    number = int(address)
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        return str(IPv4Address(number & 0xFFFF_FFFF))
    for network, shift in _tables()[3]:
        if address in network:
            return str(IPv4Address((number >> shift) & 0xFFFF_FFFF))
    return None


def blocking_rule(host: str, table: dict[str, str]) -> str | None:
    """The entry of `domain_rules(…)` that refuses a canonical host: one that can't be read, one that matches it, or one
    for the same IPv4 address, whether host or entry carries that in an IPv6 address."""
    found = table.get("") or matching_rule(host, table)
    if found is not None or not is_address(host):
        return found
    wanted = embedded_v4(host) or host
    return next((entry for rule, entry in table.items() if (embedded_v4(rule) or rule) == wanted), None)


def _v4_is_public(address: IPv4Address) -> bool:
    return not any(address in network for network in _tables()[0])


def _v6_is_public(address: IPv6Address) -> bool:
    from ipaddress import IPv4Address

    if address.scope_id is not None:
        return False
    number = int(address)
    _, public, not_public, embedded = _tables()
    for network, shift in embedded:
        if address in network:
            return _v4_is_public(IPv4Address((number >> shift) & 0xFFFF_FFFF))
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP and not _v4_is_public(IPv4Address(number & 0xFFFF_FFFF)):
        return False
    return address in public and not any(address in network for network in not_public)


@lru_cache(maxsize=1)
def _tables() -> tuple[
    tuple[IPv4Network, ...], IPv6Network, tuple[IPv6Network, ...], tuple[tuple[IPv6Network, int], ...]
]:
    from ipaddress import IPv4Network, IPv6Network

    return (
        tuple(map(IPv4Network, _NOT_PUBLIC_V4)),
        IPv6Network(_PUBLIC_V6),
        tuple(map(IPv6Network, _NOT_PUBLIC_V6)),
        tuple((IPv6Network(network), shift) for network, shift in _EMBEDDED_V4),
    )


def _canonical_host(host: str) -> str:
    if host.startswith("["):
        from ipaddress import IPv6Address

        try:
            address = IPv6Address(host.strip("[]"))
        except ValueError:
            raise UrlProblem(f"{host} is not an IPv6 address") from None
        if address.ipv4_mapped is not None:  # which newer Pythons write with dots
            low = int(address) & 0xFFFFFFFF
            return f"::ffff:{low >> 16:x}:{low & 0xFFFF:x}"
        return str(address)
    if not host.isascii():
        host = _to_ascii(host)
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _canonical_v4(host, labels)
    if len(host) > _MAX_HOST or not all(map(_LABEL.fullmatch, labels)):
        raise UrlProblem(f"{host!r} is not a host name")
    return host


def _to_ascii(host: str) -> str:
    """By IDNA 2008, with the mappings of UTS 46 and no transition: what the HTTP client asks for. The standard library
    goes by IDNA 2003, to which `ß` is `ss`, and so another host."""
    if len(host) > _MAX_HOST:
        raise UrlProblem(f"the host is longer than {_MAX_HOST} characters")
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except UnicodeError:
        raise UrlProblem(f"{host!r} is not an internationalised host name") from None


def _canonical_v4(host: str, labels: list[str]) -> str:
    """One to four numbers, decimal, octal or hexadecimal, the last filling what is left: as inet_aton reads them."""
    numbers = [_number(label) for label in labels]
    if len(numbers) > 4 or any(number > 255 for number in numbers[:-1]):
        raise UrlProblem(f"{host!r} is not an IPv4 address")
    if numbers[-1] >= 256 ** (5 - len(numbers)):
        raise UrlProblem(f"{host!r} is not an IPv4 address")
    value = numbers[-1] + sum(number << (8 * (3 - place)) for place, number in enumerate(numbers[:-1]))
    return ".".join(str((value >> shift) & 255) for shift in (24, 16, 8, 0))


def _number(label: str) -> int:
    if not _NUMBER.fullmatch(label) or len(label) > 16:
        raise UrlProblem(f"{label!r} is not a number of an IPv4 address")
    try:
        if label.startswith("0x"):
            return int(label[2:] or "0", 16)
        return int(label, 8) if label.startswith("0") else int(label)
    except ValueError:
        raise UrlProblem(f"{label!r} is not a number of an IPv4 address") from None
