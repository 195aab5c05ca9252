"""URLs, domain rules and IP addresses, by spelling alone: no name is looked up here."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

# Expressions are text, and compiled by the cache of `re` when they are first used: a start is not to wait for them.
_URL = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)"
_AUTHORITY = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{0,5}))?"
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NUMBER = r"0x[0-9a-f]*|[0-9]+"
_MAX_HOST = 253
_MAX_PORT = 65_535
_PORTS = {"http": 80, "https": 443}
_ENTRY_PORT = r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*):(?P<port>[0-9]{1,5})"
_LOCAL_NAMES = frozenset(
    {"localhost", "local", "internal", "localdomain", "home", "corp", "lan", "intranet", "private", "home.arpa"}
)
"""Reserved (RFC 6761, 6762, 8375, `internal`), or never given out because local networks use them."""


class UrlProblem(ValueError):
    """A URL that is rejected before any rule; the message is the reason."""


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


def target_of(url: str) -> tuple[str, int]:
    """The canonical host, and the port that is connected to. Raises what `host_of` raises."""
    host, port = host_of(url), port_of(url)
    return host, _PORTS[url.partition(":")[0].lower()] if port is None else port


def host_and_port(url: str) -> str:
    """The host, with a port that is not the scheme's own, as a rule has it. Raises what `host_of` raises."""
    host, port = target_of(url)
    return host if port == _PORTS[url.partition(":")[0].lower()] else _add_port(host, port)


def _authority_of(url: str) -> re.Match[str]:
    match = re.match(_URL, url)
    if match is None:
        raise UrlProblem("not an absolute URL")
    if match["scheme"].lower() not in _PORTS:
        raise UrlProblem(f"scheme {match['scheme']} is not http or https")
    if "@" in match["authority"]:
        raise UrlProblem("the URL carries user information")
    parts = re.fullmatch(_AUTHORITY, match["authority"])
    if parts is None or not 0 < int(parts["port"] or 1) <= _MAX_PORT:
        raise UrlProblem("the URL has no valid host and port")
    return parts


def canonical_domain(entry: str) -> str:
    """A domain rule in canonical form: `example.com`, `*.example.com` or an IP literal, followed by `:port` where
    the entry names one; an IPv6 literal with a port stands in brackets, `[::1]:8080`. Raises UrlProblem."""
    named = re.fullmatch(_ENTRY_PORT, entry)
    if named is None:
        if entry.startswith("[") and not entry.endswith("]"):
            raise UrlProblem(f"{entry!r} is not an address, or no port follows it")
        return _canonical_name(f"[{entry}]" if entry.count(":") > 1 and not entry.startswith("[") else entry)
    port = int(named["port"])
    if not 0 < port <= _MAX_PORT:
        raise UrlProblem(f"{port} is not a port")
    return _add_port(_canonical_name(named["host"]), port)


def _canonical_name(entry: str) -> str:
    return "*." + _canonical_host(entry[2:]) if entry.startswith("*.") else _canonical_host(entry)


def _add_port(rule: str, port: int) -> str:
    return f"[{rule}]:{port}" if ":" in rule else f"{rule}:{port}"


def _split_port(rule: str) -> tuple[str, int | None]:
    named = re.fullmatch(_ENTRY_PORT, rule)
    return (rule, None) if named is None else (named["host"].strip("[]"), int(named["port"]))


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


def matching_rule(host: str, table: dict[str, str], port: int | None = None) -> str | None:
    """The entry of `domain_rules(…)` for a canonical host and the port that is connected to; without a port only
    entries without one count. `*.example.com` covers every name below it, not itself; an entry without a port covers
    every port. The host's own entries go before those with a star, and of two for the same names the one with the
    port."""
    for name in _covering_names(host):
        if port is not None and (rule := _add_port(name, port)) in table:
            return table[rule]
        if name in table:
            return table[name]
    return None


def _covering_names(host: str) -> Iterator[str]:
    yield host
    rest = host
    while "." in rest and not is_address(host):
        rest = rest.partition(".")[2]
        yield f"*.{rest}"


def covers(rule: str, table: dict[str, str]) -> bool:
    """True if `domain_rules(…)` cover all that a canonical rule does; a star is covered by a star only."""
    name, port = _split_port(rule)
    return matching_rule(name, table, port) is not None


def common_domains(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The entries of two lists that the other one covers; None, any host, takes nothing away."""
    if one is None or other is None:
        return other if one is None else one
    first, second = domain_rules(one), domain_rules(other)
    of_one = (entry for rule, entry in first.items() if rule and covers(rule, second))
    return tuple(dict.fromkeys((*of_one, *(entry for rule, entry in second.items() if rule and covers(rule, first)))))


def is_address(host: str) -> bool:
    """True for a canonical host that is an IP literal."""
    return ":" in host or host.rpartition(".")[2].isdecimal()


def is_local_name(host: str) -> bool:
    """True for names that never leave the machine or its network: by convention, or of one label."""
    if is_address(host):
        return False
    labels = host.split(".")
    return len(labels) == 1 or labels[-1] in _LOCAL_NAMES or ".".join(labels[-2:]) in _LOCAL_NAMES


def blocking_rule(host: str, table: dict[str, str], port: int | None = None) -> str | None:
    """The entry of `domain_rules(…)` that refuses a canonical host on a port: one that can't be read, one that matches
    it, or one for the same IPv4 address, whether host or entry carries that in an IPv6 address."""
    found = table.get("") or matching_rule(host, table, port)
    if found is not None or not is_address(host):
        return found
    wanted = find_embedded_v4(host) or host
    for rule, entry in table.items():
        name, its_port = _split_port(rule)
        if its_port in (None, port) and (find_embedded_v4(name) or name) == wanted:
            return entry
    return None


def _canonical_host(host: str) -> str:
    if host.startswith("["):
        address = canonical_v6(host.strip("[]"))
        if address is None:
            raise UrlProblem(f"{host} is not an IPv6 address")
        return address
    if not host.isascii():
        host = _to_ascii(host)
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if re.fullmatch(_NUMBER, labels[-1]):
        return _canonical_v4(host, labels)
    if len(host) > _MAX_HOST or not all(re.fullmatch(_LABEL, label) for label in labels):
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
    if len(numbers) > 4 or any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(numbers)):
        raise UrlProblem(f"{host!r} is not an IPv4 address")
    value = numbers[-1] + sum(number << (8 * (3 - place)) for place, number in enumerate(numbers[:-1]))
    return ".".join(str((value >> shift) & 255) for shift in (24, 16, 8, 0))


def _number(label: str) -> int:
    if not re.fullmatch(_NUMBER, label) or len(label) > 16:
        raise UrlProblem(f"{label!r} is not a number of an IPv4 address")
    try:
        if label.startswith("0x"):
            return int(label[2:] or "0", 16)
        return int(label, 8) if label.startswith("0") else int(label)
    except ValueError:
        raise UrlProblem(f"{label!r} is not a number of an IPv4 address") from None


# IP addresses: which are public, and which IPv4 address an IPv6 one contains.
#
# The table of networks that are not public is our own: the standard library's `is_global` treats NAT64, 6to4,
# IPv4-compatible, site-local and multicast forms of local addresses as global.

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


def canonical_v6(text: str) -> str | None:
    """The canonical spelling of an IPv6 address, entirely in hexadecimal; None if it is not one."""
    from ipaddress import IPv6Address  # few hosts are addresses

    try:
        address = IPv6Address(text)
    except ValueError:
        return None
    if address.ipv4_mapped is not None:  # which newer Pythons write with dots
        low = int(address) & 0xFFFFFFFF
        return f"::ffff:{low >> 16:x}:{low & 0xFFFF:x}"
    return str(address)


def address_is_public(address: str) -> bool:
    """True if an IP address (text from a resolver) is on the public internet. False for anything else, including other
    text and scoped addresses. IPv4 inside IPv6 is judged as IPv4."""
    from ipaddress import ip_address

    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return _v4_is_public(parsed) if parsed.version == 4 else _v6_is_public(parsed)


def find_embedded_v4(host: str) -> str | None:
    """The IPv4 address inside an IPv6 literal, None for any other host; it may be unreachable."""
    if ":" not in host:
        return None
    from ipaddress import IPv4Address, IPv6Address

    address = IPv6Address(host)
    number = int(address)
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        return str(IPv4Address(number & 0xFFFF_FFFF))
    for network, shift in _EMBEDDED_V4:
        if address in _network(network):
            return str(IPv4Address((number >> shift) & 0xFFFF_FFFF))
    return None


def _v4_is_public(address: IPv4Address) -> bool:
    return not any(address in _network(one) for one in _NOT_PUBLIC_V4)


def _v6_is_public(address: IPv6Address) -> bool:
    if address.scope_id is not None:
        return False
    from ipaddress import IPv4Address

    number = int(address)
    for network, shift in _EMBEDDED_V4:
        if address in _network(network):
            return _v4_is_public(IPv4Address((number >> shift) & 0xFFFF_FFFF))
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP and not _v4_is_public(IPv4Address(number & 0xFFFF_FFFF)):
        return False
    return address in _network(_PUBLIC_V6) and not any(address in _network(one) for one in _NOT_PUBLIC_V6)


@lru_cache(maxsize=64)
def _network(text: str) -> IPv4Network | IPv6Network:
    from ipaddress import ip_network

    return ip_network(text)
