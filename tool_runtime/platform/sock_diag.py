"""Owners of sockets at addresses of this machine: asked of the kernel (sock_diag), and read from its table if it does
not answer. The table takes longer to read the larger the machine is."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_CLOSED, _LISTEN = 7, 10
_EVERY_STATE: Final = 0xFFFFFFFF
_INODE_AT: Final = 84
_STATE_AT: Final = 17
_ERROR_AT: Final = 16
_NO_COOKIE: Final = 0xFFFFFFFF


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
            found = find_in_table(table.read(), address, port, state)
        if found is None and family == socket.AF_INET:  # a socket of version 6 may take both
            with open(f"/proc/net/{name}6", encoding="utf-8") as table:
                text = table.read()
            mapped = bytes(10) + b"\xff\xff" + address
            found = find_in_table(text, mapped, port, state)
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


def find_in_table(text: str, address: bytes, port: int, state: int = _LISTEN) -> int | None:
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
