"""The sockets that a session's commands have bound: what they may connect to without any network.

Commands of one and the same scope share them, so that one in the background serves the next one. A command with a wider
scope is no way out for one with a narrower scope. Whose a socket is, the kernel is asked (sock_diag); its table, which
takes the longer to read the larger the machine is, is read if it does not answer.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

K = TypeVar("K")

MAX_REMEMBERED: Final = 4096
_LOOPBACK_4: Final = b"\x7f\0\0\1"
_LOOPBACK_6: Final = bytes(15) + b"\1"
_MAPPED: Final = bytes(10) + b"\xff\xff"
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_CLOSED, _LISTEN = 7, 10
_EVERY_STATE: Final = 0xFFFFFFFF
_INODE_AT: Final = 84
_STATE_AT: Final = 17
_ERROR_AT: Final = 16
_NO_COOKIE: Final = 0xFFFFFFFF


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


class Listeners:
    """A socket to ask by; for one thread."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        try:
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(1.0)
            self._ask(self._netlink, socket.AF_INET, b"\x7f\0\0\1", 1, None)
        except OSError:  # a kernel without it
            self.close()

    def inode(self, family: int, address: bytes, port: int, sender: int | None = None) -> int | None:
        """The inode of the socket that a TCP connection to `address` (packed) would reach; or one of UDP that gets what
        the port `sender` of the same address sends. None where there is none. Raises OSError."""
        if self._netlink is not None:
            return self._ask(self._netlink, family, address, port, sender)
        name, state = ("tcp", _LISTEN) if sender is None else ("udp", _CLOSED)
        version = "" if family == socket.AF_INET else "6"
        with open(f"/proc/net/{name}{version}", encoding="utf-8") as table:
            found = _find_in_table(table.read(), address, port, state)
        if found is None and family == socket.AF_INET:  # a socket of version 6 may take both
            with open(f"/proc/net/{name}6", encoding="utf-8") as table:
                text = table.read()
            mapped = bytes(10) + b"\xff\xff" + address
            found = _find_in_table(text, mapped, port, state)
        return found

    def close(self) -> None:
        """Let go of the socket."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def _ask(self, netlink: socket.socket, family: int, address: bytes, port: int, sender: int | None) -> int | None:
        at = address.ljust(16, b"\0")
        if sender is None:
            place = struct.pack(">HH", port, 0) + at + bytes(16)
            protocol, states = socket.IPPROTO_TCP, 1 << _LISTEN
        else:  # for UDP the kernel has the ends the other way round
            place = struct.pack(">HH", sender, port) + at + at
            protocol, states = socket.IPPROTO_UDP, _EVERY_STATE
        place += struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
        request = struct.pack("=BBBxI", family, protocol, 0, states) + place
        header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0)
        netlink.send(header + request)
        answer = netlink.recv(4096)
        if struct.unpack_from("=H", answer, 4)[0] != _SOCK_DIAG_BY_FAMILY:
            code = -struct.unpack_from("=i", answer, _ERROR_AT)[0]
            if code == 2:  # ENOENT
                return None
            raise OSError(code, os.strerror(code))
        if sender is None and answer[_STATE_AT] != _LISTEN:
            return None
        return int(struct.unpack_from("=I", answer, _INODE_AT)[0])


def _find_in_table(text: str, address: bytes, port: int, state: int = _LISTEN) -> int | None:
    """The inode of what is in this state at `address` (packed) or at all addresses, by the text of /proc/net/tcp and
    its like."""
    # The kernel writes an address as numbers of four bytes in the machine's own order.
    shown = "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))
    wanted = {f"{shown}:{port:04X}", f"{'0' * len(shown)}:{port:04X}"}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if fields[3] == f"{state:02X}" and fields[1] in wanted:
            return int(fields[9])
    return None
