"""IP addresses: which are public, and which IPv4 address an IPv6 one carries.

The table of networks that are not public is our own: the standard library's `is_global` takes NAT64, 6to4,
IPv4-compatible, site-local and multicast forms of local addresses for global ones.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

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
_network = lru_cache(maxsize=64)(ip_network)
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})


def canonical_v6(text: str) -> str | None:
    """The canonical spelling of an IPv6 address, entirely in hexadecimal; None if it is not one."""
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
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return _v4_is_public(parsed) if parsed.version == 4 else _v6_is_public(parsed)


def find_embedded_v4(host: str) -> str | None:
    """The IPv4 address inside an IPv6 literal, None for any other host; it may be unreachable."""
    if ":" not in host:
        return None
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
    number = int(address)
    for network, shift in _EMBEDDED_V4:
        if address in _network(network):
            return _v4_is_public(IPv4Address((number >> shift) & 0xFFFF_FFFF))
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP and not _v4_is_public(IPv4Address(number & 0xFFFF_FFFF)):
        return False
    return address in _network(_PUBLIC_V6) and not any(address in _network(one) for one in _NOT_PUBLIC_V6)
