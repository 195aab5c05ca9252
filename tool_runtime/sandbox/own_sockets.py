"""The sockets that a session's commands have bound: what they may connect to without any network.

Commands of one and the same scope share them, so that one in the background serves the next one. A command with a wider
scope is no way out for one with a narrower scope.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tool_runtime.platform.sock_diag import Listeners

K = TypeVar("K")

MAX_REMEMBERED: Final = 4096
_LOOPBACK_4: Final = b"\x7f\0\0\1"
_LOOPBACK_6: Final = bytes(15) + b"\1"
_MAPPED: Final = bytes(10) + b"\xff\xff"


class SocketAddress(NamedTuple):
    """An internet address as a program gave it: `raw` is a `struct sockaddr`, `address` packed (an IPv4 address that is
    mapped into IPv6 is packed as IPv4)."""

    family: int
    address: bytes
    port: int
    raw: bytes

    @property
    def text(self) -> str:
        """The address in its usual spelling."""
        family = socket.AF_INET if len(self.address) == 4 else socket.AF_INET6
        return socket.inet_ntop(family, self.address)

    @property
    def label(self) -> str:
        """Address and port."""
        return f"[{self.text}]:{self.port}" if ":" in self.text else f"{self.text}:{self.port}"

    @property
    def is_any(self) -> bool:
        """True if it stands for every address of the machine."""
        return not any(self.address)

    @property
    def is_loopback(self) -> bool:
        """True if it leads to this machine by its own loopback; all addresses, as a target, do."""
        return self.is_any or self.address == _LOOPBACK_6 or (len(self.address) == 4 and self.address[0] == 127)

    def move_to(self, address: bytes) -> SocketAddress:
        """The same port at another address, in a form that a socket of this family takes. Raises ValueError for an IPv6
        address and a socket of IPv4."""
        port = struct.pack(">H", self.port)
        if self.family == socket.AF_INET:
            if len(address) != 4:
                raise ValueError(f"no address of IPv4: {address!r}")
            raw = struct.pack("=H", self.family) + port + address + bytes(8)
        else:
            whole = _MAPPED + address if len(address) == 4 else address
            raw = struct.pack("=H", self.family) + port + bytes(4) + whole + bytes(4)
        return SocketAddress(self.family, address, self.port, raw)


def place_of(raw: bytes) -> SocketAddress | None:
    """The internet address that a `struct sockaddr` holds; None for any other."""
    if len(raw) < 8:
        return None
    family, port = struct.unpack_from("=H", raw)[0], struct.unpack_from(">H", raw, 2)[0]
    if family == socket.AF_INET:
        return SocketAddress(family, raw[4:8], port, raw[:16].ljust(16, b"\0"))
    if family == socket.AF_INET6 and len(raw) >= 24:
        address = raw[8:24]
        return SocketAddress(
            family, address[12:] if address.startswith(_MAPPED) else address, port, raw[:28].ljust(28, b"\0")
        )
    return None


class OwnSockets:
    """Of commands with one scope; for one thread."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._internet: dict[int, None] = {}
        self._unix: dict[tuple[int, int] | bytes, None] = {}

    def add_internet(self, inode: int) -> None:
        """Remember a socket that was bound to a port, by its inode."""
        _remember(self._internet, inode)

    def add_unix(self, identity: tuple[int, int] | bytes) -> None:
        """Remember where a unix socket was bound: the device and inode of its place, or its abstract name."""
        _remember(self._unix, identity)

    def has_unix(self, identity: tuple[int, int] | bytes) -> bool:
        """True if a command bound a unix socket there."""
        return identity in self._unix

    def reach(self, wanted: SocketAddress) -> tuple[SocketAddress | None, bool]:
        """The address at which a socket of ours answers at the port of `wanted`, None for nowhere; and whether a socket
        of somebody else listens there. Raises OSError."""
        foreign = False
        for address in _candidates(wanted):
            inode = self._listeners.inode(_family(address), address, wanted.port)
            if inode is not None and inode in self._internet:
                return wanted.move_to(address), foreign
            foreign = foreign or inode is not None
        return None, foreign

    def takes_datagrams(self, wanted: SocketAddress, sender: int) -> bool:
        """True if a socket of ours gets what the port `sender` sends to a place of the loopback. Raises OSError."""
        address = _LOOPBACK_4 if wanted.is_any and wanted.family == socket.AF_INET else wanted.address
        address = _LOOPBACK_6 if not any(address) else address
        inode = self._listeners.inode(_family(address), address, wanted.port, sender)
        return inode is not None and inode in self._internet


def _family(address: bytes) -> int:
    return socket.AF_INET if len(address) == 4 else socket.AF_INET6


def _candidates(wanted: SocketAddress) -> Iterator[bytes]:
    """A server that asks for all addresses is given one, of version 4: `localhost` may lead to the other first."""
    if not wanted.is_any:
        yield wanted.address
    if wanted.address != _LOOPBACK_4:
        yield _LOOPBACK_4
    if wanted.family == socket.AF_INET6 and wanted.address != _LOOPBACK_6:
        yield _LOOPBACK_6


def loopback_for(wanted: SocketAddress, *, only_6: bool) -> SocketAddress:
    """The address to bind for a socket that asks for all addresses."""
    return wanted.move_to(_LOOPBACK_6 if only_6 and wanted.family == socket.AF_INET6 else _LOOPBACK_4)


def _remember(table: dict[K, None], key: K) -> None:
    table[key] = None
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]
