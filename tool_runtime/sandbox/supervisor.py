"""Answer the kernel's questions about the sockets of sandboxed commands: where they may connect and at which ports they
may listen.

One thread waits for the questions of all commands of a session. It is not done on the event loop, because a program can
delay the call that is made for it, and so could stop the host. Each call is made on a copy of the program's descriptor,
with an address that was read once, so that nothing can be exchanged after it was judged.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tool_runtime.platform import linux_calls, seccomp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Decide = Callable[[int, "WaitingSyscall"], "int | Connect | Done"]
    """Decide on a call of one command, given its listener: the errno with which it ends (0 for none), or the next
    step."""

K = TypeVar("K")

_RETRY_S: Final = 0.02
_LEAVING_MS: Final = 20
"""Time for which a program that has just exited, and the host's thread that started it, may still count as running."""
_LONGEST_WAIT_S: Final = 150.0
_MAX_WAITING: Final = 128
"""Maximum pending connections: each takes up to two of the host's descriptors."""
_HUNG_UP: Final = select.EPOLLHUP | select.EPOLLERR


class Connect(NamedTuple):
    """A connection to make on `copy`, a copy of the program's descriptor. `address` may refer to the descriptor `place`
    (else -1). Both are closed afterwards."""

    copy: int
    address: bytes
    place: int = -1


class Done(NamedTuple):
    """A call that was done for the program, with its result; None if the kernel must do it."""

    value: int | None


class _PendingConnection(NamedTuple):
    """A connection that is not established yet, with a program waiting for it."""

    listener: int
    notice_id: int
    wanted: Connect
    since: float

    def close(self) -> None:
        os.close(self.wanted.copy)
        if self.wanted.place >= 0:
            os.close(self.wanted.place)


class SocketSupervisor:
    """The supervisor of one session's commands. Created with the first sandboxed command; `watch` is safe from any
    thread."""

    def __init__(self) -> None:
        self.listeners = Listeners()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, tuple[Decide, Callable[[], None]]] = {}
        self._closing_one = threading.Lock()
        self._connecting: dict[int, _PendingConnection] = {}
        self._again: list[_PendingConnection] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sandbox-supervisor", daemon=True)
        self._thread.start()

    def watch(self, listener: int, decide: Decide, on_exit: Callable[[], None]) -> None:
        """Decide on one command's calls by `decide` until none of its programs is left; then close `listener` and call
        `on_exit`."""
        self._watched[listener] = decide, on_exit
        self._poll.register(listener, select.EPOLLIN)

    def has_programs(self, listener: int) -> bool:
        """True if the command with this listener still has programs. Safe from any thread."""
        with self._closing_one:  # so that the descriptor is not closed and reused
            if listener not in self._watched:
                return False
            poll = select.poll()
            poll.register(listener, 0)
            return not poll.poll(_LEAVING_MS)

    def close(self) -> None:
        """Stop answering. Programs that still run can make no further socket calls that need a decision. Call it once;
        it blocks for up to a second."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(1.0)
        os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._closing:
                for descriptor, events in self._poll.poll(_RETRY_S if self._again else None):
                    self._ready(descriptor, events)
                self._try_again()
        finally:  # whatever the reason: a program must not wait for an answer that never comes
            for listener in list(self._watched):
                self._release(listener)
            for waiting in (*self._connecting.values(), *self._again):
                waiting.close()
            self._poll.close()
            self.listeners.close()

    def _ready(self, descriptor: int, events: int) -> None:
        if descriptor in self._watched:
            if events & select.EPOLLIN:
                notice = receive(descriptor)
                if notice is not None:
                    self._decide(descriptor, notice)
            elif events & _HUNG_UP:
                self._release(descriptor)
        elif descriptor in self._connecting:
            waiting = self._connecting.pop(descriptor)
            with suppress(OSError):
                self._poll.unregister(waiting.wanted.copy)
            with socket.socket(fileno=os.dup(waiting.wanted.copy)) as one:
                code = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._answer(waiting, code)

    def _release(self, listener: int) -> None:
        with self._closing_one:
            _, on_exit = self._watched.pop(listener)
            with suppress(OSError):
                self._poll.unregister(listener)
            os.close(listener)
        on_exit()

    def _decide(self, listener: int, notice: WaitingSyscall) -> None:
        decide, _ = self._watched[listener]
        try:
            decided = decide(listener, notice)
        except OSError as error:  # the program has exited, or its memory cannot be read
            decided = error.errno or errno.EACCES
        except (ValueError, OverflowError, struct.error):  # its argument is no valid address or message
            decided = errno.EINVAL
        if isinstance(decided, int):
            answer(listener, notice.notice_id, decided)
        elif isinstance(decided, Done):
            answer(listener, notice.notice_id, 0, decided.value)
        else:
            self._connect(_PendingConnection(listener, notice.notice_id, decided, time.monotonic()))

    def _connect(self, waiting: _PendingConnection) -> None:
        copy, address = waiting.wanted.copy, waiting.wanted.address
        flags = fcntl.fcntl(copy, fcntl.F_GETFL)
        blocking = not flags & os.O_NONBLOCK
        if blocking:  # shared with the program, which waits for this call
            fcntl.fcntl(copy, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        try:
            code = socket_call("connect", copy, address, len(address))
        finally:
            if blocking:
                fcntl.fcntl(copy, fcntl.F_SETFL, flags)
        is_full = len(self._connecting) + len(self._again) >= _MAX_WAITING
        if blocking and code in (errno.EINPROGRESS, errno.EAGAIN) and is_full:
            self._answer(waiting, errno.EAGAIN)
        elif blocking and code == errno.EINPROGRESS:
            self._connecting[copy] = waiting
            self._poll.register(copy, select.EPOLLOUT)
        elif blocking and code == errno.EAGAIN:  # a unix socket whose server's queue is full
            self._again.append(waiting)
        else:
            self._answer(waiting, code)

    def _try_again(self) -> None:
        again, self._again = self._again, []
        for waiting in again:
            if not is_waiting(waiting.listener, waiting.notice_id):
                waiting.close()
            elif time.monotonic() - waiting.since > _LONGEST_WAIT_S:
                self._answer(waiting, errno.ETIMEDOUT)
            else:
                self._connect(waiting)

    def _answer(self, waiting: _PendingConnection, code: int) -> None:
        waiting.close()
        if waiting.listener in self._watched:
            answer(waiting.listener, waiting.notice_id, code)


# Questions and answers of a listener, the descriptor of seccomp user notifications.

_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_ID_VALID: Final = 0x40082102
_CONTINUE: Final = 1
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
_PROCESS_VM_READV: Final = {"x86_64": 310, "aarch64": 270}

_NAMES: Final = seccomp.numbers_of(linux_calls.machine()) if linux_calls.numbers() is not None else {}
_READV: Final = _PROCESS_VM_READV.get(linux_calls.machine(), -1)
_NUMBER_OF: Final = {name: number for number, name in _NAMES.items()}


class WaitingSyscall(NamedTuple):
    """A system call that waits for an answer: its thread, its name, and its arguments as numbers."""

    notice_id: int
    thread: int
    call: str
    arguments: tuple[int, ...]


def receive(listener: int) -> WaitingSyscall | None:
    """Return the next question of a readable listener; None if its thread has already ended. Raises OSError."""
    buffer = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    notice_id, thread, _, number, _, _, *arguments = _NOTICE.unpack(buffer)
    return WaitingSyscall(notice_id, thread, _NAMES.get(number, str(number)), tuple(arguments))


def answer(listener: int, notice_id: int, code: int, value: int | None = 0) -> None:
    """End a call with the error `code`, or with 0 and the result `value`. With None the kernel does the call, which is
    only safe if the decision did not depend on memory that the process can change. Harmless if its thread has ended."""
    response = struct.pack("=QqiI", notice_id, value or 0, -abs(code), _CONTINUE if value is None else 0)
    try:
        fcntl.ioctl(listener, _SEND, response)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def is_waiting(listener: int, notice_id: int) -> bool:
    """True if the thread still waits. Only then was its own memory read, not that of a later process with its ID."""
    try:
        fcntl.ioctl(listener, _ID_VALID, struct.pack("=Q", notice_id))
    except OSError:
        return False
    return True


def read_memory(thread: int, address: int, size: int) -> bytes:
    """Read up to `size` bytes of a waiting thread's memory. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    local = struct.pack("@PN", ctypes.addressof(buffer), size)
    remote = struct.pack("@PN", address, size)
    try:
        got = linux_calls.call(_READV, thread, local, 1, remote, 1, 0)
        return buffer.raw[:got]
    except PermissionError:  # some containers forbid this call but not the file
        descriptor = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, address)
        finally:
            os.close(descriptor)


def write_memory(listener: int, notice: WaitingSyscall, address: int, data: bytes) -> None:
    """Write `data` to the memory of the thread that waits for the answer to `notice`. Raises OSError."""
    descriptor = os.open(f"/proc/{notice.thread}/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        if not is_waiting(listener, notice.notice_id):  # another process may have its ID by now
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        os.pwrite(descriptor, data, address)
    finally:
        os.close(descriptor)


def socket_call(name: str, descriptor: int, *arguments: int | bytes) -> int:
    """Call `connect`, `bind` or `listen`; return the errno, 0 for none."""
    try:
        linux_calls.call(_NUMBER_OF[name], descriptor, *arguments)
    except OSError as error:
        return error.errno or errno.EACCES
    return 0


# Sockets that a session's commands have bound, which they may connect to without any network.
#
# Commands with equal scopes share them, so that a background command can serve the next one. Other scopes do not, so
# that a command with a wider scope is no way out for one with a narrower scope. A socket is identified by its inode,
# which the kernel reports (sock_diag). Without sock_diag the kernel's table is read, which is slower the more sockets
# there are.

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
    """An internet address: `raw` is a `struct sockaddr`, `address` is packed (as IPv4 if it is IPv4-mapped IPv6)."""

    family: int
    address: bytes
    port: int
    raw: bytes

    @property
    def text(self) -> str:
        """The address as text."""
        return socket.inet_ntop(_family(self.address), self.address)

    @property
    def label(self) -> str:
        """Address and port."""
        return f"[{self.text}]:{self.port}" if ":" in self.text else f"{self.text}:{self.port}"

    @property
    def is_any(self) -> bool:
        """True for the wildcard address, all addresses of the machine."""
        return not any(self.address)

    @property
    def is_loopback(self) -> bool:
        """True for an address of the loopback interface; the wildcard is one as a target."""
        return self.is_any or self.address == _LOOPBACK_6 or (len(self.address) == 4 and self.address[0] == 127)

    def move_to(self, address: bytes) -> SocketAddress:
        """Return the same port at another address, for a socket of this family. Raises ValueError for an IPv6 address
        and an IPv4 socket."""
        port = struct.pack(">H", self.port)
        if self.family == socket.AF_INET:
            if len(address) != 4:
                raise ValueError(f"no address of IPv4: {address!r}")
            raw = struct.pack("=H", self.family) + port + address + bytes(8)
        else:
            mapped = _MAPPED + address if len(address) == 4 else address
            raw = struct.pack("=H", self.family) + port + bytes(4) + mapped + bytes(4)
        return SocketAddress(self.family, address, self.port, raw)


def place_of(raw: bytes) -> SocketAddress | None:
    """Parse a `struct sockaddr`; None if it is no internet address."""
    if len(raw) < 8:
        return None
    family, port = struct.unpack_from("=H", raw)[0], struct.unpack_from(">H", raw, 2)[0]
    if family == socket.AF_INET:
        return SocketAddress(family, raw[4:8], port, raw[:16].ljust(16, b"\0"))
    if family == socket.AF_INET6 and len(raw) >= 24:
        address = raw[8:24]
        plain = address[12:] if address.startswith(_MAPPED) else address
        return SocketAddress(family, plain, port, raw[:28].ljust(28, b"\0"))
    return None


class OwnSockets:
    """The sockets bound by commands with one scope. Not thread-safe."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._internet: dict[int, None] = {}
        self._unix: dict[tuple[int, int] | bytes, None] = {}

    def add_internet(self, inode: int) -> None:
        """Remember a socket that was bound to a port, by its inode."""
        _remember(self._internet, inode)

    def add_unix(self, identity: tuple[int, int] | bytes) -> None:
        """Remember a bound unix socket, by the device and inode of its path or by its abstract name."""
        _remember(self._unix, identity)

    def has_unix(self, identity: tuple[int, int] | bytes) -> bool:
        """True if a command bound this unix socket."""
        return identity in self._unix

    def reach(self, wanted: SocketAddress) -> tuple[SocketAddress | None, bool]:
        """Return the address at which a socket of these commands listens at the port of `wanted` (or None), and true if
        another program's socket does. Raises OSError."""
        foreign = False
        for address in _candidates(wanted):
            inode = self._listeners.inode(_family(address), address, wanted.port)
            if inode is not None and inode in self._internet:
                return wanted.move_to(address), foreign
            foreign = foreign or inode is not None
        return None, foreign

    def takes_datagrams(self, wanted: SocketAddress, sender: int) -> bool:
        """True if datagrams from the port `sender` to this loopback address reach a socket of these commands. Raises
        OSError."""
        address = _LOOPBACK_4 if wanted.is_any and wanted.family == socket.AF_INET else wanted.address
        address = _LOOPBACK_6 if not any(address) else address
        inode = self._listeners.inode(_family(address), address, wanted.port, sender)
        return inode is not None and inode in self._internet


def _family(address: bytes) -> int:
    return socket.AF_INET if len(address) == 4 else socket.AF_INET6


def _candidates(wanted: SocketAddress) -> Iterator[bytes]:
    """Yield the addresses to try. A server that binds the wildcard gets only the IPv4 loopback address, and `localhost`
    may resolve to the IPv6 one first."""
    if not wanted.is_any:
        yield wanted.address
    if wanted.address != _LOOPBACK_4:
        yield _LOOPBACK_4
    if wanted.family == socket.AF_INET6 and wanted.address != _LOOPBACK_6:
        yield _LOOPBACK_6


def loopback_for(wanted: SocketAddress, *, only_6: bool) -> SocketAddress:
    """Return the address to bind for a socket that asks for the wildcard address."""
    return wanted.move_to(_LOOPBACK_6 if only_6 and wanted.family == socket.AF_INET6 else _LOOPBACK_4)


def _remember(table: dict[K, None], key: K) -> None:
    table[key] = None
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]


class Listeners:
    """Queries which socket has an address (sock_diag). Not thread-safe."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        try:
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(1.0)
            self._ask(self._netlink, socket.AF_INET, _LOOPBACK_4, 1, None)
        except OSError:  # the kernel has no sock_diag
            self.close()

    def inode(self, family: int, address: bytes, port: int, sender: int | None = None) -> int | None:
        """Return the inode of the socket that a TCP connection to `address` (packed) would reach, or, with `sender`, of
        the UDP socket that gets datagrams from that port of the same address. None if there is none. Raises OSError."""
        if self._netlink is not None:
            return self._ask(self._netlink, family, address, port, sender)
        name, state = ("tcp", _LISTEN) if sender is None else ("udp", _CLOSED)
        version = "" if family == socket.AF_INET else "6"
        with open(f"/proc/net/{name}{version}", encoding="utf-8") as table:
            found = _find_in_table(table.read(), address, port, state)
        if found is None and family == socket.AF_INET:  # an IPv6 socket may accept both
            with open(f"/proc/net/{name}6", encoding="utf-8") as table:
                found = _find_in_table(table.read(), _MAPPED + address, port, state)
        return found

    def close(self) -> None:
        """Close the socket."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def _ask(self, netlink: socket.socket, family: int, address: bytes, port: int, sender: int | None) -> int | None:
        at = address.ljust(16, b"\0")
        if sender is None:
            place = struct.pack(">HH", port, 0) + at + bytes(16)
            protocol, states = socket.IPPROTO_TCP, 1 << _LISTEN
        else:  # for UDP the kernel swaps the ends
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
    """Find the inode of a socket in this state at `address` (packed) or the wildcard, in a table like /proc/net/tcp."""
    # The kernel writes an address as 4-byte numbers in native byte order.
    shown = "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))
    wanted = {f"{shown}:{port:04X}", f"{'0' * len(shown)}:{port:04X}"}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if fields[3] == f"{state:02X}" and fields[1] in wanted:
            return int(fields[9])
    return None
