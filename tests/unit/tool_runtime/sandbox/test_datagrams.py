"""Where datagrams may go of a command that reaches any host."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import CommandScope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.contracts import Denial

if sys.platform != "linux":
    pytest.skip("the supervisor is Linux's", allow_module_level=True)

from tool_runtime.platform.linux_sandbox import Restriction
from tool_runtime.sandbox import sockets
from tool_runtime.sandbox.sockets import SocketRules
from tool_runtime.sandbox.supervisor import Listeners, OwnSockets, SocketAddress, place_of

PUBLIC = "198.51.100.7"


def place(address: str, port: int) -> SocketAddress:
    raw = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(address) + bytes(8)
    found = place_of(raw)
    assert found is not None
    return found


def place6(address: str, port: int) -> SocketAddress:
    raw = struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", port, 5) + socket.inet_pton(socket.AF_INET6, address)
    found = place_of(raw + struct.pack("=I", 9))
    assert found is not None
    return found


class Sender:
    """A socket that sends, and what was refused to it."""

    def __init__(self) -> None:
        self.denials: list[Denial] = []
        self.listeners = Listeners()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.held = SocketRules(
            CommandScope(domains=None),
            Restriction((), 0, "open", with_listener=True),
            OwnSockets(self.listeners),
            agents=frozenset(),
            all_agents=frozenset(),
            proxy_port=None,
            is_open=True,
            private=(),
            address_allowed=lambda address: address == PUBLIC,
            opens_here=lambda _address, _port: False,
            report=self.denials.append,
        )

    def to(self, address: str, port: int) -> int:
        return self.held.place_error(self.socket.fileno(), place(address, port))

    def send(self, messages: list[sockets._Message], flags: int = 0) -> tuple[list[int], int]:
        return self.held._send_all(self.socket.fileno(), messages, flags)


@pytest.fixture
def sender() -> Iterator[Sender]:
    made = Sender()
    yield made
    made.socket.close()
    made.listeners.close()


def test_public_addresses_and_the_servers_of_names_are_reached(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "resolv.conf").write_text("# x\nnameserver 10.0.0.2\noptions x\nnameserver\nnameserver 127.0.0.53\n")
    monkeypatch.setattr(sockets, "_RESOLVERS", str(tmp_path / "resolv.conf"))
    assert [sender.to(PUBLIC, 4433), sender.to("10.0.0.2", 53), sender.to("127.0.0.53", 53)] == [0, 0, 0]
    assert sender.denials == []
    for address, port in (("10.0.0.2", 54), ("10.0.0.3", 53), ("169.254.169.254", 53), ("127.0.0.53", 54)):
        assert sender.to(address, port) == errno.EACCES
    assert [(one.what, one.rule) for one in sender.denials] == [
        ("UDP to 10.0.0.2:54", "addresses"),
        ("UDP to 10.0.0.3:53", "addresses"),
        ("UDP to 169.254.169.254:53", "addresses"),
        ("UDP to 127.0.0.53:54", "own"),
    ]


@pytest.mark.parametrize("with_netlink", [True, False])
def test_own_sockets_are_reached_and_no_others(sender: Sender, *, with_netlink: bool) -> None:
    """Also where the kernel does not say whose a socket is, and its table has to be read."""
    if not with_netlink:
        sender.listeners.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert sender.to("127.0.0.1", port) == errno.EACCES
        sender.held.own.add_internet(os.fstat(server.fileno()).st_ino)
        assert sender.to("127.0.0.1", port) == 0


def test_one_socket_sends_to_addresses_of_both_families(sender: Sender) -> None:
    """A socket of IPv6 takes an address of IPv4 as well, one of IPv4 nothing else."""
    four, six = place(PUBLIC, 4433), place6("2001:db8::7", 4433)
    assert sockets._address(four, socket.AF_INET) == (PUBLIC, 4433)
    assert sockets._address(four, socket.AF_INET6) == (f"::ffff:{PUBLIC}", 4433)
    assert sockets._address(six, socket.AF_INET6) == ("2001:db8::7", 4433, 5, 9)
    with pytest.raises(OSError, match=os.strerror(errno.EAFNOSUPPORT)):
        sockets._address(six, socket.AF_INET)


def message(to: SocketAddress | None, data: bytes) -> sockets._Message:
    return sockets._Message(b"" if to is None else to.raw, data, [])


def test_messages_are_sent_up_to_the_first_that_is_refused(sender: Sender) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        sender.held.own.add_internet(os.fstat(server.fileno()).st_ino)
        own = place(*server.getsockname())
        others = [message(own, b"one"), message(own, b"four"), message(place("10.0.0.3", 1), b"x"), message(own, b"y")]
        assert sender.send([message(own, bytes(65_535))]) == ([], errno.EMSGSIZE)
        assert sender.send(others) == ([3, 4], errno.EACCES)
        assert [server.recv(9), server.recv(9)] == [b"one", b"four"]
        with pytest.raises(BlockingIOError):
            server.recv(9, socket.MSG_DONTWAIT)
    assert sender.send([message(None, b"x")]) == ([], errno.EDESTADDRREQ)


@pytest.mark.parametrize(
    ("blocking", "flags", "code"),
    [
        (True, 0, errno.ENOBUFS),
        (True, socket.MSG_DONTWAIT, errno.EAGAIN),
        (False, 0, errno.EAGAIN),
    ],
)
def test_a_full_buffer_keeps_nobody_waiting(sender: Sender, *, blocking: bool, flags: int, code: int) -> None:
    """What a program that would have waited gets is no invitation to try again at once."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with here, there:
        here.setblocking(blocking)
        sizes, error = sender.held._send_all(here.fileno(), [message(None, b"x")] * 10_000, flags)
    assert error == code
    assert set(sizes) == {1}


@given(st.binary(max_size=120), st.lists(st.tuples(st.sampled_from([0, 1, 17, 41]), st.integers(0, 110))))
def test_what_goes_along_is_listed_and_nothing_else(junk: bytes, wanted: list[tuple[int, int]]) -> None:
    """Any control data is read to its end; what leads elsewhere (another sender's interface, a descriptor) is left."""
    good = b"".join(struct.pack("=QiIi4x", 20, level, kind, 7) for level, kind in wanted)
    kept = [(level, kind, struct.pack("=i", 7)) for level, kind in wanted if (level, kind) in sockets._ALONG]
    assert list(sockets._along(good)) == kept
    found = list(sockets._along(good + junk))
    assert found[: len(kept)] == kept
    assert all((level, kind) in sockets._ALONG for level, kind, _ in found)
    assert sum(len(data) for _, _, data in found) <= len(good + junk)
