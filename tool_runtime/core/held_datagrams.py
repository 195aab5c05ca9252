"""Where the datagrams of one command go, judged one by one (see `supervisor`), where its network is open.

The host sends in the program's place, on a copy of its descriptor, what it has read once. A message on any other socket
is left to the kernel: its place is where that socket is connected to.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.contracts import Denial
from tool_runtime.core.own_sockets import place_of
from tool_runtime.platform import seccomp_notify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tool_runtime.core.held_sockets import Held
    from tool_runtime.core.own_sockets import Place
    from tool_runtime.platform.seccomp_notify import Notice

_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_DOMAIN: Final = 53
_RESOLVERS: Final = "/etc/resolv.conf"
_MAX_ADDRESS: Final = 128
_MAX_BYTES: Final = 65_535
_MAX_PIECES: Final = 1024
_MAX_MESSAGES: Final = 32
_MAX_CONTROL: Final = 1024
_MESSAGE: Final = struct.Struct("=QI4xQQQQi4x")  # struct msghdr: name, its length, pieces, how many, control, its size
_PIECE: Final = struct.Struct("=QQ")
_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL | socket.MSG_DONTROUTE | socket.MSG_CONFIRM | socket.MSG_MORE
"""Not MSG_ZEROCOPY: the kernel would send from the memory of this process after it has been used for something else."""
_CONTROL: Final = struct.Struct("=QiI")
_LENGTH_AT: Final = 56
_EACH: Final = 64  # struct mmsghdr
# What may go along: the size of pieces, the sender's address, class and time to live. Nothing that leads elsewhere.
_ALONG: Final = frozenset({(17, 103), (0, 1), (0, 2), (0, 8), (41, 50), (41, 52), (41, 67)})


class Done(NamedTuple):
    """A call that was done in the program's place, with its result; None for one that the kernel is to do."""

    value: int | None


class _Message(NamedTuple):
    """What is to be sent; an empty `name` where the socket is connected."""

    name: bytes
    data: bytes
    along: list[tuple[int, int, bytes]]


def is_datagram(copy: int) -> bool:
    """True if a descriptor is a socket of the internet that sends datagrams."""
    with socket.socket(fileno=os.dup(copy)) as one:
        return one.family in _INTERNET and one.type == socket.SOCK_DGRAM


def refused_place(held: Held, copy: int, place: Place) -> int:
    """The number of the error by which datagrams for a place are refused, 0 where they may go there. The socket is
    remembered: what it sends to may answer."""
    held.own.add_internet(os.fstat(copy).st_ino)
    if place.port == _DOMAIN and place.text in _resolvers():
        return 0
    if place.is_loopback:
        if held.own.takes_datagrams(place, _port(copy)):
            return 0
        rule = "own"
    elif held.address_allowed(place.text):
        return 0
    else:
        rule = "addresses"
    # Programs look by a connection which address they would have, and send nothing.
    held.report(Denial("socket", f"UDP to {place.shown}", rule, "use"))
    return errno.EACCES


def is_of_routes(copy: int) -> bool:
    """True if a descriptor is a socket by which the kernel says which interfaces and routes there are. To change one
    takes a capability of whoever made the socket, which no command has, whoever sends on it."""
    with socket.socket(fileno=os.dup(copy)) as one:
        return one.family == socket.AF_NETLINK and one.proto == socket.NETLINK_ROUTE


def send(held: Held, listener: int, notice: Notice, copy: int) -> int | Done:
    """The answer to `sendto` with an address, `sendmsg` and `sendmmsg`. Nobody waits for a socket whose buffer is full:
    its call ends with ENOBUFS where the program would have waited. Raises OSError."""
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
    if not seccomp_notify.is_waiting(listener, notice.notice_id):
        return errno.ESRCH
    sent, code = _sent(held, copy, messages, flags & _FLAGS)
    if notice.call != "sendmmsg":
        return code or Done(sent[0])
    with suppress(OSError):  # they have been sent, whatever the program has given for their sizes
        for number, size in enumerate(sent):
            at = arguments[1] + _EACH * number + _LENGTH_AT
            seccomp_notify.write_memory(listener, notice, at, struct.pack("=I", size))
    return Done(len(sent)) if sent or not code else code


def _ask_routes(listener: int, notice: Notice, copy: int) -> int | Done:
    """`sendto` to the kernel, the only one that is spoken to by netlink here."""
    size = min(notice.arguments[2], _MAX_BYTES)
    data = _read(notice.thread, notice.arguments[1], size)
    if not seccomp_notify.is_waiting(listener, notice.notice_id):
        return errno.ESRCH
    with socket.socket(fileno=os.dup(copy)) as one:
        try:
            # By its default place, the kernel: with an address the rights of this process alone would count.
            return Done(one.send(data, notice.arguments[3] & _FLAGS))
        except OSError as error:
            return error.errno or errno.EACCES


def _sent(held: Held, copy: int, messages: list[_Message], flags: int) -> tuple[list[int], int]:
    """The sizes of what was sent, in order, and the number of the error that ended it."""
    sizes: list[int] = []
    with socket.socket(fileno=os.dup(copy)) as one:
        for message in messages:
            try:
                sizes.append(_send_one(held, copy, one, message, flags))
            except BlockingIOError as error:
                waits = not (flags & socket.MSG_DONTWAIT or fcntl.fcntl(copy, fcntl.F_GETFL) & os.O_NONBLOCK)
                return sizes, errno.ENOBUFS if waits else error.errno or errno.EAGAIN
            except OSError as error:
                return sizes, error.errno or errno.EACCES
    return sizes, 0


def _send_one(held: Held, copy: int, one: socket.socket, message: _Message, flags: int) -> int:
    flags |= socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    if not message.name:
        return one.sendmsg([message.data], message.along, flags)
    place = place_of(message.name)
    if place is None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    code = refused_place(held, copy, place)
    if code:
        raise OSError(code, os.strerror(code))
    return one.sendmsg([message.data], message.along, flags, _named(place, one.family))


def _named(place: Place, family: int) -> Any:
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
    whole = _read(thread, name, min(size, _MAX_ADDRESS)) if name and size else b""
    return _Message(whole, bytes(data), along)


def _along(control: bytes) -> Iterator[tuple[int, int, bytes]]:
    """What goes along with a message: `struct cmsghdr` one behind the other."""
    at = 0
    while at + _CONTROL.size <= len(control):
        length, level, kind = _CONTROL.unpack_from(control, at)
        if length < _CONTROL.size:
            return
        if (level, kind) in _ALONG:
            yield level, kind, control[at + _CONTROL.size : at + length]
        at += (length + 7) // 8 * 8


def _read(thread: int, address: int, size: int) -> bytes:
    """Exactly so many bytes of a thread's memory. Raises OSError."""
    found = seccomp_notify.read_memory(thread, address, size) if size else b""
    if len(found) != size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return found


def _port(copy: int) -> int:
    with socket.socket(fileno=os.dup(copy)) as one:
        return int(one.getsockname()[1])


def _resolvers() -> frozenset[str]:
    """The addresses at which this machine asks for names; they may be its own, or of its network."""
    found = set()
    with suppress(OSError), open(_RESOLVERS, encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver":
                found.add(words[1])
    return frozenset(found)
