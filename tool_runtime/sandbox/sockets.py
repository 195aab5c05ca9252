"""Decide on the socket calls of one command, one by one (see `supervisor`)."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.contracts import Denial
from policy.rules.sandbox import refusal
from tool_runtime.platform import linux_calls, linux_sandbox
from tool_runtime.sandbox import supervisor
from tool_runtime.sandbox.denials import LOOK_UP
from tool_runtime.sandbox.supervisor import Connect, Done, SocketAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from policy import CommandScope
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.sandbox.supervisor import OwnSockets, WaitingSyscall

_MAX_ADDRESS: Final = 128
_FAMILIES: Final = {1: "unix", 2: "IPv4", 10: "IPv6", 16: "netlink", 17: "packet", 38: "crypto", 40: "vsock"}
_NONBLOCK: Final = 0o4000
"""SOCK_NONBLOCK in a socket's type. Resolvers set it; programs that only look up their own address do not."""
_USUAL_FIRST_PORT: Final = 1024
_TYPES: Final = {1: "stream", 2: "datagram", 3: "raw"}

_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_DOMAIN: Final = 53
_RESOLVERS: Final = "/etc/resolv.conf"
_MAX_BYTES: Final = 65_535
_MAX_PIECES: Final = 1024
_MAX_MESSAGES: Final = 32
_MAX_CONTROL: Final = 1024
_MESSAGE: Final = struct.Struct("=QI4xQQQQi4x")  # struct msghdr: name, its length, pieces, how many, control, its size
_PIECE: Final = struct.Struct("=QQ")
_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL | socket.MSG_DONTROUTE | socket.MSG_CONFIRM | socket.MSG_MORE
"""Not MSG_ZEROCOPY: the kernel would send from memory of this process that may have been reused by then."""
_CONTROL: Final = struct.Struct("=QiI")
_LENGTH_AT: Final = 56
_EACH: Final = 64  # struct mmsghdr
# Allowed control messages: segment size, the sender's address, traffic class and time to live. None that redirects.
_ALONG: Final = frozenset({(17, 103), (0, 1), (0, 2), (0, 8), (41, 50), (41, 52), (41, 67)})


class SocketRules(NamedTuple):
    """The rules for a command's sockets, used in the supervisor's thread. `proxy_port` is the port of the host's proxy
    for the command, None for none. `private` are directories of which programs see their own instance. If `is_open`,
    any public address may be reached, and `address_allowed` decides which are public. `opens_here` decides if an
    address and port of the loopback interface may be reached although another program listens there. `agents` are the
    paths of agent sockets that the command may use, `all_agents` those of all agents. `report` is called with each
    denial."""

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

    def decide(self, listener: int, notice: WaitingSyscall) -> int | Connect | Done:
        """Return the errno with which the call ends (0 if it was done), its result, or an allowed connection to make.
        Raises OSError if the program's memory or descriptors cannot be read."""
        if notice.call in ("socket", "socketpair"):
            return self._socket(notice)
        if notice.call.startswith("send"):
            copy = linux_calls.copy_descriptor(notice.thread, notice.arguments[0] & 0xFFFFFFFF)
            try:
                return self._send(listener, notice, copy)
            finally:
                os.close(copy)
        size = 0 if notice.call == "listen" else min(notice.arguments[2] & 0xFFFFFFFF, _MAX_ADDRESS)
        raw = supervisor.read_memory(notice.thread, notice.arguments[1], size) if size else b""
        copy = linux_calls.copy_descriptor(notice.thread, notice.arguments[0] & 0xFFFFFFFF)
        answer: int | Connect = errno.EACCES
        try:
            if not supervisor.is_waiting(listener, notice.notice_id):
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

    def _refuse(self, denial: Denial) -> int:
        self.report(denial)
        return errno.EACCES

    def _socket(self, notice: WaitingSyscall) -> int:
        family, kind = notice.arguments[0] & 0xFFFFFFFF, notice.arguments[1] & 0xF
        if kind == socket.SOCK_DGRAM and family in _INTERNET and notice.arguments[1] & _NONBLOCK:
            return self._refuse(Denial("socket", "UDP", "network" if self.proxy_port is None else "proxy", LOOK_UP))
        named = f"{_FAMILIES.get(family, f'family {family}')} {_TYPES.get(kind, f'type {kind}')} socket"
        return self._refuse(Denial("socket", named, "network", "use"))

    # Connections

    def _connect(self, notice: WaitingSyscall, copy: int, raw: bytes) -> int | Connect:
        family = struct.unpack_from("=H", raw)[0] if len(raw) >= 2 else -1
        if family == socket.AF_UNIX:
            return self._connect_unix(notice, copy, raw)
        if family == socket.AF_UNSPEC:  # dissolves a connection
            return Connect(copy, raw)
        place = supervisor.place_of(raw)
        if place is None:
            return errno.EAFNOSUPPORT
        if self.is_open and is_datagram(copy):
            return self.place_error(copy, place) or Connect(copy, raw)
        if not place.is_loopback:
            if self.is_open and self.address_allowed(place.text):
                return Connect(copy, raw)
            rule = "addresses" if self.is_open else "network" if self.scope.domains == () else "domains"
            return self._refuse(Denial("host", place.label, rule, "connect"))
        if place.port == self.proxy_port and place.address == b"\x7f\0\0\1":
            return Connect(copy, place.raw)
        ours, foreign = self.own.reach(place)
        if ours is not None:
            return Connect(copy, ours.raw)
        if foreign and self.opens_here(place.text, place.port):
            return Connect(copy, place.raw)
        return self._refuse(Denial("host", place.label, "own", "connect")) if foreign else errno.ECONNREFUSED

    def _connect_unix(self, notice: WaitingSyscall, copy: int, raw: bytes) -> int | Connect:
        name = raw[2:]
        if not name or name.startswith(b"\0"):
            if self.own.has_unix(name):
                return Connect(copy, raw)
            return self._refuse(Denial("socket", f"@{_text(name[1:])}", "own", "connect"))
        path, cwd = name.partition(b"\0")[0], b"/proc/%d/cwd/" % notice.thread
        place = os.open(path if path.startswith(b"/") else cwd + path, os.O_PATH | os.O_CLOEXEC)
        refused = self._unix_refusal(place)
        if refused is None:
            return Connect(copy, struct.pack("=H", socket.AF_UNIX) + b"/proc/self/fd/%d\0" % place, place)
        os.close(place)
        return refused

    def _unix_refusal(self, place: int) -> int | None:
        found, real = os.fstat(place), os.readlink(f"/proc/self/fd/{place}")
        if not stat.S_ISSOCK(found.st_mode):
            return errno.ECONNREFUSED
        if real in self.agents or self.own.has_unix((found.st_dev, found.st_ino)):
            return None
        rule = "agents" if real in self.all_agents else "own"
        return self._refuse(Denial("socket", real, rule, "connect"))

    # Ports and paths to listen at

    def _bind(self, notice: WaitingSyscall, copy: int, raw: bytes) -> int:
        family = struct.unpack_from("=H", raw)[0] if len(raw) >= 2 else -1
        if family == socket.AF_UNIX:
            return self._bind_unix(notice, copy, raw)
        if family == socket.AF_NETLINK and is_of_routes(copy):
            return supervisor.socket_call("bind", copy, raw, len(raw))
        place = supervisor.place_of(raw)
        if place is None:
            return errno.EAFNOSUPPORT
        if self.is_open and is_datagram(copy) and place.is_any and not place.port:
            return self._bind_at(copy, place)  # a datagram socket needs it to send
        if place.is_any:
            place = supervisor.loopback_for(place, only_6=_is_6_only(copy, place.family))
        if not place.is_loopback:
            return self._refuse(Denial("port", place.label, "network", "listen"))
        return self._bind_at(copy, place)

    def _bind_at(self, copy: int, place: SocketAddress) -> int:
        if 0 < place.port < _first_free_port():
            return self._refuse(Denial("port", place.label, "ports", "listen"))
        code = supervisor.socket_call("bind", copy, place.raw, len(place.raw))
        if code == 0:
            self.own.add_internet(os.fstat(copy).st_ino)
        return code

    def _listen(self, copy: int, backlog: int) -> int:
        with socket.socket(fileno=os.dup(copy)) as one:
            name = one.getsockname() if one.family in _INTERNET else ("", 1)
        if not name[1]:  # not bound: it would listen at all addresses
            empty = SocketAddress(one.family, b"", 0, b"")
            code = self._bind_at(copy, supervisor.loopback_for(empty, only_6=_is_6_only(copy, one.family)))
            if code:
                return code
        return supervisor.socket_call("listen", copy, backlog & 0x7FFFFFFF)

    def _bind_unix(self, notice: WaitingSyscall, copy: int, raw: bytes) -> int:
        name = raw[2:]
        if not name or name.startswith(b"\0"):
            code = supervisor.socket_call("bind", copy, raw, len(raw))
            if code == 0 and name:
                self.own.add_unix(name)
            return code
        path = name.partition(b"\0")[0]
        cwd = os.open(f"/proc/{notice.thread}/cwd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._bind_path(copy, raw, path, cwd)
        finally:
            os.close(cwd)

    def _bind_path(self, copy: int, raw: bytes, path: bytes, cwd: int) -> int:
        parent = _real_directory(path, cwd)
        rule: str | None = refusal(self.scope, os.path.join(parent, _text(os.path.basename(path))), "posix", write=True)
        if rule is None and any(parent == one or parent.startswith(f"{one}/") for one in self.private):
            rule = "private"  # the host would create it in its own instance
        if rule is not None:
            return self._refuse(Denial("socket", _text(path), rule, "listen"))
        code = _bind_in_sandboxed_thread(self.restriction, cwd, copy, raw)
        if code == 0:
            found = os.stat(path, dir_fd=cwd, follow_symlinks=False)
            # A link in the path may lead to another program's socket by now, which is then not in a writable place.
            if refusal(self.scope, _real_directory(path, cwd), "posix", write=True) is None:
                self.own.add_unix((found.st_dev, found.st_ino))
        return code

    # Datagrams, if the network is open: the host reads each message once and sends it for the program, on a copy of its
    # descriptor. A message on any other socket is left to the kernel, because it goes where the socket is connected to.

    def place_error(self, copy: int, place: SocketAddress) -> int:
        """Return the errno that denies datagrams to an address, 0 for none. Also remember the socket as the command's
        own, so that replies reach it."""
        self.own.add_internet(os.fstat(copy).st_ino)
        if place.port == _DOMAIN and place.text in _resolvers():
            return 0
        if place.is_loopback:
            with socket.socket(fileno=os.dup(copy)) as one:
                sender = int(one.getsockname()[1])
            if self.own.takes_datagrams(place, sender):
                return 0
            rule = "own"
        elif self.address_allowed(place.text):
            return 0
        else:
            rule = "addresses"
        # Only reported as "use": programs often connect to find out their own address, and send nothing.
        return self._refuse(Denial("socket", f"UDP to {place.label}", rule, "use"))

    def _send(self, listener: int, notice: WaitingSyscall, copy: int) -> int | Done:
        """Answer `sendto` with an address, `sendmsg` and `sendmmsg`. The host never waits for a full socket buffer: the
        call ends with ENOBUFS if the program would have waited. Raises OSError."""
        thread, arguments = notice.thread, notice.arguments
        if notice.call == "sendto" and is_of_routes(copy):
            return _ask_routes(listener, notice, copy)
        if not is_datagram(copy):
            return errno.EISCONN if notice.call == "sendto" else Done(None)
        if notice.call == "sendto":
            name = _read(thread, arguments[4], min(arguments[5] & 0xFFFFFFFF, _MAX_ADDRESS))
            if arguments[2] > _MAX_BYTES:
                return errno.EMSGSIZE
            messages, flags = [_Message(name, _read(thread, arguments[1], arguments[2]), [])], arguments[3]
        elif notice.call == "sendmsg":
            messages, flags = [_message(thread, arguments[1])], arguments[2]
        else:
            count = min(arguments[2] & 0xFFFFFFFF, _MAX_MESSAGES)
            messages = [_message(thread, arguments[1] + _EACH * number) for number in range(count)]
            flags = arguments[3]
        if not supervisor.is_waiting(listener, notice.notice_id):
            return errno.ESRCH
        sent, code = self._send_all(copy, messages, flags & _FLAGS)
        if notice.call != "sendmmsg":
            return code or Done(sent[0])
        with suppress(OSError):  # the messages are sent, even if the sizes cannot be written
            for number, size in enumerate(sent):
                at = arguments[1] + _EACH * number + _LENGTH_AT
                supervisor.write_memory(listener, notice, at, struct.pack("=I", size))
        return Done(len(sent)) if sent or not code else code

    def _send_all(self, copy: int, messages: list[_Message], flags: int) -> tuple[list[int], int]:
        """Send messages; return the sizes of those sent, in order, and the errno that stopped it, or 0."""
        sizes: list[int] = []
        with socket.socket(fileno=os.dup(copy)) as one:
            for message in messages:
                try:
                    sizes.append(self._send_one(copy, one, message, flags))
                except BlockingIOError as error:
                    waits = not (flags & socket.MSG_DONTWAIT or fcntl.fcntl(copy, fcntl.F_GETFL) & os.O_NONBLOCK)
                    return sizes, errno.ENOBUFS if waits else error.errno or errno.EAGAIN
                except OSError as error:
                    return sizes, error.errno or errno.EACCES
        return sizes, 0

    def _send_one(self, copy: int, one: socket.socket, message: _Message, flags: int) -> int:
        flags |= socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        if not message.name:
            return one.sendmsg([message.data], message.along, flags)
        place = supervisor.place_of(message.name)
        if place is None:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        code = self.place_error(copy, place)
        if code:
            raise OSError(code, os.strerror(code))
        return one.sendmsg([message.data], message.along, flags, _address(place, one.family))


def _bind_in_sandboxed_thread(restriction: Restriction, cwd: int, copy: int, raw: bytes) -> int:
    """Bind in a fresh thread with the program's sandbox and directory, so that a relative path has the program's
    meaning, and a link in it leads nowhere that the program may not write. Returns the errno, 0 for none."""
    result = [errno.EACCES]

    def run() -> None:
        with suppress(OSError):
            linux_calls.separate_directory()
            os.fchdir(cwd)
            if restriction.abi:
                linux_sandbox.restrict_files(restriction)
            result[0] = supervisor.socket_call("bind", copy, raw, len(raw))

    thread = threading.Thread(target=run, name="sandbox-bind")
    thread.start()
    thread.join()
    return result[0]


def _real_directory(path: bytes, cwd: int) -> str:
    directory = os.open(os.path.dirname(path) or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=cwd)
    try:
        return os.readlink(f"/proc/self/fd/{directory}")
    finally:
        os.close(directory)


def _text(name: bytes) -> str:
    return os.fsdecode(name.rstrip(b"\0"))


def _first_free_port() -> int:
    """Return the first unprivileged port. Lower ones are denied, because the host may be root while it binds for a
    program without that right."""
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


class _Message(NamedTuple):
    """A message to send; `name` is the target address, empty if the socket is connected."""

    name: bytes
    data: bytes
    along: list[tuple[int, int, bytes]]


def is_datagram(copy: int) -> bool:
    """True if a descriptor is an IPv4 or IPv6 datagram socket."""
    with socket.socket(fileno=os.dup(copy)) as one:
        return one.family in _INTERNET and one.type == socket.SOCK_DGRAM


def is_of_routes(copy: int) -> bool:
    """True if a descriptor is a socket that lists the kernel's interfaces and routes. Changing them takes a capability
    of the socket's creator, which no command has, regardless of the sender."""
    with socket.socket(fileno=os.dup(copy)) as one:
        return one.family == socket.AF_NETLINK and one.proto == socket.NETLINK_ROUTE


def _ask_routes(listener: int, notice: WaitingSyscall, copy: int) -> int | Done:
    """Do `sendto` on a netlink socket, always to the kernel."""
    size = min(notice.arguments[2], _MAX_BYTES)
    data = _read(notice.thread, notice.arguments[1], size)
    if not supervisor.is_waiting(listener, notice.notice_id):
        return errno.ESRCH
    with socket.socket(fileno=os.dup(copy)) as one:
        try:
            # Without an address it goes to the kernel; with one, only the rights of this process would be checked.
            return Done(one.send(data, notice.arguments[3] & _FLAGS))
        except OSError as error:
            return error.errno or errno.EACCES


def _address(place: SocketAddress, family: int) -> Any:
    if family == socket.AF_INET:
        if place.family != socket.AF_INET:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return (place.text, place.port)
    mapped = f"::ffff:{place.text}" if len(place.address) == 4 else place.text
    if place.family == socket.AF_INET:
        return (mapped, place.port)
    flow, scope = (struct.unpack_from(form, place.raw, at)[0] for form, at in ((">I", 4), ("=I", 24)))
    return (mapped, place.port, flow, scope)


def _message(thread: int, address: int) -> _Message:
    name, size, pieces, count, control, control_size, _ = _MESSAGE.unpack(_read(thread, address, _MESSAGE.size))
    if count > _MAX_PIECES or control_size > _MAX_CONTROL:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
    listed = _PIECE.iter_unpack(_read(thread, pieces, _PIECE.size * count)) if count else ()
    data = bytearray()
    for base, length in listed:
        if len(data) + length > _MAX_BYTES:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        data += _read(thread, base, length)
    along = list(_along(_read(thread, control, control_size))) if control and control_size else []
    raw_address = _read(thread, name, min(size, _MAX_ADDRESS)) if name and size else b""
    return _Message(raw_address, bytes(data), along)


def _along(control: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the allowed control messages of `control`, a sequence of `struct cmsghdr`."""
    at = 0
    while at + _CONTROL.size <= len(control):
        length, level, kind = _CONTROL.unpack_from(control, at)
        if length < _CONTROL.size:
            return
        if (level, kind) in _ALONG:
            yield level, kind, control[at + _CONTROL.size : at + length]
        at += (length + 7) // 8 * 8


def _read(thread: int, address: int, size: int) -> bytes:
    """Read exactly `size` bytes of a thread's memory. Raises OSError."""
    found = supervisor.read_memory(thread, address, size) if size else b""
    if len(found) != size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return found


def _resolvers() -> frozenset[str]:
    """Return the addresses of this machine's name servers, which may be loopback or private ones."""
    found = set()
    with suppress(OSError), open(_RESOLVERS, encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver":
                found.add(words[1])
    return frozenset(found)
