"""Where datagrams may go of a command that reaches any host."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

import pytest

from policy.scope import CommandScope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.contracts import Denial

if sys.platform != "linux":
    pytest.skip("the supervisor is Linux's", allow_module_level=True)

from tool_runtime.core import held_datagrams
from tool_runtime.core.held_sockets import Held
from tool_runtime.core.own_sockets import OwnSockets, Place, place_of
from tool_runtime.platform.linux_sandbox import Restriction
from tool_runtime.platform.sock_diag import Listeners

PUBLIC = "198.51.100.7"


def place(address: str, port: int) -> Place:
    raw = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(address) + bytes(8)
    found = place_of(raw)
    assert found is not None
    return found


class Sender:
    """A socket that sends, and what was refused to it."""

    def __init__(self) -> None:
        self.denials: list[Denial] = []
        self.listeners = Listeners()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.held = Held(
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
        return held_datagrams.refused_place(self.held, self.socket.fileno(), place(address, port))


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
    monkeypatch.setattr(held_datagrams, "_RESOLVERS", str(tmp_path / "resolv.conf"))
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
