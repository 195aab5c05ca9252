"""What the sockets of one command may do, judged call by call (see `supervisor`)."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.contracts import Denial
from policy.rules.scope_verdict import refusal
from tool_runtime.core.held_datagrams import Done, is_datagram, is_of_routes, refused_place, send
from tool_runtime.core.own_sockets import OwnSockets, Place, loopback_for, place_of
from tool_runtime.platform import linux_calls, linux_sandbox, seccomp_notify

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy.scope import CommandScope
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp_notify import Notice

_MAX_ADDRESS: Final = 128
_FAMILIES: Final = {1: "unix", 2: "IPv4", 10: "IPv6", 16: "netlink", 17: "packet", 38: "crypto", 40: "vsock"}
_NONBLOCK: Final = 0o4000
"""Of the type of a socket: with it a resolver asks, and without it one looks which address it would have."""
_USUAL_FIRST_PORT: Final = 1024
_TYPES: Final = {1: "stream", 2: "datagram", 3: "raw"}


class Connect(NamedTuple):
    """A connection that may be made: by which copy of the program's descriptor, to where. `place` is a descriptor that
    the address names, -1 for none. The receiver closes both."""

    copy: int
    address: bytes
    place: int = -1


class Held(NamedTuple):
    """What a command's sockets are held to. `proxy_port` is that of the host's proxy for the command, None for none.
    `private` are places of which programs have their own. `is_open`: any public address may be reached, and
    `address_allowed` says which is; `opens_here` which address and port of the loopback may be reached though somebody
    else listens there. `agents` are the places of agents' sockets that may be used. `report` is called with each
    refusal."""

    scope: CommandScope
    restriction: Restriction
    own: OwnSockets
    agents: frozenset[str]
    all_agents: frozenset[str]
    proxy_port: int | None
    is_open: bool
    private: tuple[str, ...]
    address_allowed: Callable[[str], bool]
    opens_here: Callable[[str, int], bool]
    report: Callable[[Denial], None]


class HeldSockets:
    """For one command, in the supervisor's thread."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def decide(self, listener: int, notice: Notice) -> int | Connect | Done:
        """The number of the error by which the call ends, 0 for one that was done; or what was done, or a connection
        that may be made. Raises OSError where the program cannot be looked into."""
        if notice.call in ("socket", "socketpair"):
            return self._socket(notice)
        if notice.call.startswith("send"):
            return self._send(listener, notice)
        size = 0 if notice.call == "listen" else min(notice.arguments[2] & 0xFFFFFFFF, _MAX_ADDRESS)
        raw = seccomp_notify.read_memory(notice.thread, notice.arguments[1], size) if size else b""
        copy = seccomp_notify.copy_descriptor(notice.thread, notice.arguments[0] & 0xFFFFFFFF)
        answer: int | Connect = errno.EACCES
        try:
            if not seccomp_notify.is_waiting(listener, notice.notice_id):
                return errno.ESRCH
            if notice.call == "connect":
                answer = self._connect(notice, copy, raw)
            elif notice.call == "bind":
                answer = self._bind(notice, copy, raw)
            else:
                answer = self._listen(copy, notice.arguments[1])
            return answer
        finally:
            if isinstance(answer, int):
                os.close(copy)

    def _send(self, listener: int, notice: Notice) -> int | Done:
        copy = seccomp_notify.copy_descriptor(notice.thread, notice.arguments[0] & 0xFFFFFFFF)
        try:
            return send(self._held, listener, notice, copy)
        finally:
            os.close(copy)

    def _refuse(self, denial: Denial, code: int = errno.EACCES) -> int:
        self._held.report(denial)
        return code

    def _socket(self, notice: Notice) -> int:
        family, kind = notice.arguments[0] & 0xFFFFFFFF, notice.arguments[1] & 0xF
        if (
            kind == socket.SOCK_DGRAM
            and family in (socket.AF_INET, socket.AF_INET6)
            and notice.arguments[1] & _NONBLOCK
        ):
            rule = "network" if self._held.proxy_port is None else "proxy"
            return self._refuse(Denial("socket", "UDP", rule, "look up names by"))
        named = f"{_FAMILIES.get(family, f'family {family}')} {_TYPES.get(kind, f'type {kind}')} socket"
        return self._refuse(Denial("socket", named, "network", "use"))

    # Connections

    def _connect(self, notice: Notice, copy: int, raw: bytes) -> int | Connect:
        family = struct.unpack_from("=H", raw)[0] if len(raw) >= 2 else -1
        if family == socket.AF_UNIX:
            return self._connect_unix(notice, copy, raw)
        if family == socket.AF_UNSPEC:  # undoes a connection
            return Connect(copy, raw)
        place = place_of(raw)
        if place is None:
            return errno.EAFNOSUPPORT
        if self._held.is_open and is_datagram(copy):
            return refused_place(self._held, copy, place) or Connect(copy, raw)
        if not place.is_loopback:
            if self._held.is_open and self._held.address_allowed(place.text):
                return Connect(copy, raw)
            rule = "addresses" if self._held.is_open else "network" if self._held.scope.domains == () else "domains"
            return self._refuse(Denial("host", place.shown, rule, "connect"))
        if place.port == self._held.proxy_port and place.address == b"\x7f\0\0\1":
            return Connect(copy, place.raw)
        ours, foreign = self._held.own.reach(place)
        if ours is not None:
            return Connect(copy, ours.raw)
        if foreign and self._held.opens_here(place.text, place.port):
            return Connect(copy, place.raw)
        return self._refuse(Denial("host", place.shown, "own", "connect")) if foreign else errno.ECONNREFUSED

    def _connect_unix(self, notice: Notice, copy: int, raw: bytes) -> int | Connect:
        name = raw[2:]
        if not name or name.startswith(b"\0"):
            if self._held.own.has_unix(name):
                return Connect(copy, raw)
            return self._refuse(Denial("socket", f"@{_text(name[1:])}", "own", "connect"))
        path = name.partition(b"\0")[0]
        place = os.open(_seen_by(notice.thread, path), os.O_PATH | os.O_CLOEXEC)
        refused = self._unix_refusal(place)
        if refused is None:
            return Connect(copy, struct.pack("=H", socket.AF_UNIX) + b"/proc/self/fd/%d\0" % place, place)
        os.close(place)
        return refused

    def _unix_refusal(self, place: int) -> int | None:
        found, real = os.fstat(place), os.readlink(f"/proc/self/fd/{place}")
        if not stat.S_ISSOCK(found.st_mode):
            return errno.ECONNREFUSED
        if real in self._held.agents or self._held.own.has_unix((found.st_dev, found.st_ino)):
            return None
        rule = "agents" if real in self._held.all_agents else "own"
        return self._refuse(Denial("socket", real, rule, "connect"))

    # Ports and places to listen at

    def _bind(self, notice: Notice, copy: int, raw: bytes) -> int:
        family = struct.unpack_from("=H", raw)[0] if len(raw) >= 2 else -1
        if family == socket.AF_UNIX:
            return self._bind_unix(notice, copy, raw)
        if family == socket.AF_NETLINK and is_of_routes(copy):
            return seccomp_notify.socket_call("bind", copy, raw, len(raw))
        place = place_of(raw)
        if place is None:
            return errno.EAFNOSUPPORT
        if self._held.is_open and is_datagram(copy) and place.is_any and not place.port:
            return self._bind_at(copy, place)  # to send from, to any place
        if place.is_any:
            place = loopback_for(place, only_6=_is_6_only(copy, place.family))
        if not place.is_loopback:
            return self._refuse(Denial("port", place.shown, "network", "listen"))
        return self._bind_at(copy, place)

    def _bind_at(self, copy: int, place: Place) -> int:
        if 0 < place.port < _first_free_port():
            return self._refuse(Denial("port", place.shown, "ports", "listen"))
        code = seccomp_notify.socket_call("bind", copy, place.raw, len(place.raw))
        if code == 0:
            self._held.own.add_internet(os.fstat(copy).st_ino)
        return code

    def _listen(self, copy: int, backlog: int) -> int:
        with socket.socket(fileno=os.dup(copy)) as one:
            name = one.getsockname() if one.family in (socket.AF_INET, socket.AF_INET6) else ("", 1)
        if not name[1]:  # it would listen at all addresses
            empty = Place(one.family, b"", 0, b"")
            code = self._bind_at(copy, loopback_for(empty, only_6=_is_6_only(copy, one.family)))
            if code:
                return code
        return seccomp_notify.socket_call("listen", copy, backlog & 0x7FFFFFFF)

    def _bind_unix(self, notice: Notice, copy: int, raw: bytes) -> int:
        name = raw[2:]
        if not name or name.startswith(b"\0"):
            code = seccomp_notify.socket_call("bind", copy, raw, len(raw))
            if code == 0 and name:
                self._held.own.add_unix(name)
            return code
        path = name.partition(b"\0")[0]
        there = os.open(f"/proc/{notice.thread}/cwd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._bind_path(copy, raw, path, there)
        finally:
            os.close(there)

    def _bind_path(self, copy: int, raw: bytes, path: bytes, there: int) -> int:
        parent = _real_directory(path, there)
        rule: str | None = refusal(
            self._held.scope, os.path.join(parent, _text(os.path.basename(path))), "posix", write=True
        )
        if rule is None and any(parent == one or parent.startswith(f"{one}/") for one in self._held.private):
            rule = "private"  # the host would make it in its own
        if rule is not None:
            return self._refuse(Denial("socket", _text(path), rule, "listen"))
        code = _in_held_thread(self._held.restriction, there, lambda: _bound(copy, raw))
        if code == 0:
            found = os.stat(path, dir_fd=there, follow_symlinks=False)
            # What lies there by now may be another's, by a link in its path: then it is not among the writable places.
            if refusal(self._held.scope, _real_directory(path, there), "posix", write=True) is None:
                self._held.own.add_unix((found.st_dev, found.st_ino))
        return code


def _bound(copy: int, raw: bytes) -> int:
    return seccomp_notify.socket_call("bind", copy, raw, len(raw))


def _in_held_thread(restriction: Restriction, there: int, work: Callable[[], int]) -> int:
    """`work` by a fresh thread that the kernel holds as it holds the program, in the program's directory: so a path is
    taken as the program means it, and no link in it leads further than the program gets."""
    result = [errno.EACCES]

    def run() -> None:
        with suppress(OSError):
            linux_calls.separate_directory()
            os.fchdir(there)
            if restriction.abi:
                linux_sandbox.hold_files(restriction)
            result[0] = work()

    thread = threading.Thread(target=run, name="sandbox-bind")
    thread.start()
    thread.join()
    return result[0]


def _real_directory(path: bytes, there: int) -> str:
    """The real path of the directory that `path` lies in. Raises OSError."""
    directory = os.open(os.path.dirname(path) or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=there)
    try:
        return os.readlink(f"/proc/self/fd/{directory}")
    finally:
        os.close(directory)


def _seen_by(thread: int, path: bytes) -> bytes:
    return path if path.startswith(b"/") else b"/proc/%d/cwd/%b" % (thread, path)


def _text(name: bytes) -> str:
    return os.fsdecode(name.rstrip(b"\0"))


def _first_free_port() -> int:
    """Below it only the system's own programs listen: the host may be root, and what it binds for is not."""
    try:
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _USUAL_FIRST_PORT


def _is_6_only(copy: int, family: int) -> bool:
    if family != socket.AF_INET6:
        return False
    with socket.socket(fileno=os.dup(copy)) as one:
        return bool(one.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
