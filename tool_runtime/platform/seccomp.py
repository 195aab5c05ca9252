"""Build and install a seccomp filter of system calls, a BPF program.

For calls that are allowed regardless of arguments, the kernel (since 5.11) caches the result, so only the calls in
`LOOKED_INTO` cost time.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from config.lean_typing import NamedTuple
from tool_runtime.platform import linux_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, Literal

    Network = Literal["closed", "supervised", "open"]
    """`closed`: no internet sockets and no connections. `supervised`: each connection, each port, and each socket that
    is not allowed waits for an answer of the process that has the filter's listener. `open`: TCP and UDP; if the filter
    has a listener, connections and the addresses of datagrams also wait for an answer."""

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_NOTIFY: Final = 0x7FC00000

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_HAS_BIT: Final = 0x45
_AND: Final = 0x54
_RETURN: Final = 0x06
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16
_X32: Final = 0x40000000

_NEW_NAMESPACES: Final = 0x7E020000
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
_FAST_OPEN: Final = 0x20000000
_SET_USER_ID: Final = 0o4000
_SET_USER_OR_GROUP_ID: Final = 0o6000
_MAKES_A_FILE: Final = 0o100 | 0o20000000  # O_CREAT, and O_TMPFILE without the bit of O_DIRECTORY
_SET_LEASE, _NOTIFY_OF_CHANGES = 1024, 1026
_PRIORITY_OF_USER, _IO_PRIORITY_OF_USER = 2, 3
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5
_NETLINK_ROUTE: Final = 0
_TCP: Final = 6
_TYPE_BITS: Final = 0xF

_SET_MODE_FILTER: Final = 1
_NEW_LISTENER: Final = 1 << 3
_WAIT_KILLABLE: Final = 1 << 5

# Denied if an argument (its index) has one of these values.
_VALUES: Final[Mapping[str, tuple[int, tuple[int, ...]]]] = {
    "ioctl": (1, (_TIOCSTI, _TIOCLINUX)),
    "fcntl": (1, (_SET_LEASE, _NOTIFY_OF_CHANGES)),
    "setpriority": (0, (_PRIORITY_OF_USER,)),
    "ioprio_set": (0, (_IO_PRIORITY_OF_USER,)),
}
# Denied if an argument has one of these bits: new namespaces, set-user-id modes, and sending that connects.
_BITS: Final[Mapping[str, tuple[int, int]]] = {
    "clone": (0, _NEW_NAMESPACES),
    "chmod": (1, _SET_USER_ID),
    "fchmod": (1, _SET_USER_ID),
    "fchmodat": (2, _SET_USER_ID),
    "fchmodat2": (2, _SET_USER_ID),
    "creat": (1, _SET_USER_OR_GROUP_ID),
    "mknod": (1, _SET_USER_OR_GROUP_ID),
    "mknodat": (2, _SET_USER_OR_GROUP_ID),
    "sendto": (3, _FAST_OPEN),
    "sendmsg": (2, _FAST_OPEN),
    "sendmmsg": (3, _FAST_OPEN),
}
# The indices of the flags and of the mode of a new file; the kernel ignores the mode if the file exists.
_OPENS: Final[Mapping[str, tuple[int, int]]] = {"open": (1, 2), "openat": (2, 3)}
_COLUMN: Final = {"x86_64": 0, "aarch64": 1}

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip if true, instructions to skip if false, value."""


_ALLOWED: Instruction = (_RETURN, 0, 0, _ALLOW)
_ASKED: Instruction = (_RETURN, 0, 0, _NOTIFY)


class Filter(NamedTuple):
    """The parameters of a filter: the architecture, the network access, and whether it has a listener for a
    supervisor."""

    machine: str
    network: Network
    has_listener: bool


def numbers_of(machine: str) -> dict[int, str]:
    """Return the names of the calls in `LOOKED_INTO`, by number."""
    column = _COLUMN[machine]
    return {both[column]: name for name, both in LOOKED_INTO.items()}


_BUILT: dict[Filter, bytes] = {}


def program(wanted: Filter) -> bytes:
    """Return the filter's instructions, built once per process. Calls in none of the tables are allowed; calls of
    another architecture, such as 32-bit ones, are denied. Raises KeyError for an unknown machine."""
    if wanted not in _BUILT:
        _BUILT[wanted] = _build(wanted)
    return _BUILT[wanted]


def _build(wanted: Filter) -> bytes:
    column = _COLUMN[wanted.machine]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, linux_calls.NUMBERS[wanted.machine].audit),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if wanted.machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), _refuse(errno.EPERM)]
    for name, both in LOOKED_INTO.items():
        block = _block(name, wanted)
        if block and both[column] >= 0:
            code += _if_call(both[column], block)
    for table, number in ((REFUSED, errno.EPERM), (MISSING, errno.ENOSYS)):
        for both in table.values():
            if both[column] >= 0:
                code += _if_call(both[column], [_refuse(number)])
    code.append(_ALLOWED)
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def install(instructions: bytes, *, with_listener: bool) -> int | None:
    """Install the filter on this thread for good; `forbid_new_privileges` must have been called before. Returns the
    listener if one is wanted. Raises OSError, EBUSY if another filter of this thread already has a listener."""
    known = linux_calls.NUMBERS[linux_calls.machine()]
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    argument = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(buffer))
    if not with_listener:
        linux_calls.call(known.seccomp, _SET_MODE_FILTER, 0, argument)
        return None
    try:
        # Otherwise a signal (Go's runtime sends many) would restart the question of a connection that was already made.
        return linux_calls.call(known.seccomp, _SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE, argument)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 5.19
            raise
    return linux_calls.call(known.seccomp, _SET_MODE_FILTER, _NEW_LISTENER, argument)


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _argument(index: int, *, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index + (4 if high else 0))


def _if_call(number: int, block: list[Instruction]) -> list[Instruction]:
    return [(_EQUAL, 0, len(block), number), *block]


def _block(name: str, wanted: Filter) -> list[Instruction]:
    """Return the instructions for one call in `LOOKED_INTO`, which end in a result; none if it is allowed."""
    refuse = _refuse(errno.EPERM)
    if name in _VALUES:
        index, values = _VALUES[name]
        tried = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
        return [_argument(index), *tried, _ALLOWED, refuse]
    if name in _BITS:
        index, bits = _BITS[name]
        return [_argument(index), (_HAS_BIT, 0, 1, bits), refuse, *_sending(name, wanted)]
    if name in _OPENS:
        flags, mode = _OPENS[name]
        made = [_argument(mode), (_HAS_BIT, 0, 1, _SET_USER_OR_GROUP_ID), refuse]
        return [_argument(flags), (_HAS_BIT, 0, len(made), _MAKES_A_FILE), *made, _ALLOWED]
    if name == "prlimit64":  # limits of other processes may only be read
        return [
            *(_argument(0), (_EQUAL, 4, 0, 0)),
            *(_argument(2), (_EQUAL, 0, 3, 0)),
            *(_argument(2, high=True), (_EQUAL, 0, 1, 0)),
            *(_ALLOWED, refuse),
        ]
    if name == "socket":
        return _socket(wanted)
    if name == "socketpair":
        return _socketpair(wanted)
    return _connecting(name, wanted)


def _socket_error(wanted: Filter) -> Instruction:
    return _ASKED if wanted.has_listener else _refuse(errno.EACCES)


def _socket(wanted: Filter) -> list[Instruction]:
    """Allow unix stream sockets, TCP unless the network is closed, and UDP if it is open. Unix datagram sockets are not
    allowed, because they can send to any other without connecting. Netlink lists interfaces and routes (`getifaddrs`);
    changing them takes a capability that no command has."""
    refused = _socket_error(wanted)
    kind = [_argument(1), (_AND, 0, 0, _TYPE_BITS)]
    unix = [*kind, (_EQUAL, 1, 0, _STREAM), (_EQUAL, 0, 1, _SEQPACKET), _ALLOWED, refused]
    if wanted.network == "closed":
        internet = [refused]
    else:
        protocol = [_argument(2), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, _TCP), _ALLOWED, refused]
        datagrams = [(_EQUAL, 0, 1, _DGRAM), _ALLOWED] if wanted.network == "open" else []
        internet = [*kind, *datagrams, (_EQUAL, 0, len(protocol), _STREAM), *protocol, refused]
    netlink = [*kind, (_EQUAL, 1, 0, _RAW), (_EQUAL, 0, 3, _DGRAM), _argument(2), (_EQUAL, 0, 1, _NETLINK_ROUTE)]
    netlink += [_ALLOWED, refused]
    return [
        _argument(0),
        *((_EQUAL, 0, len(unix), _UNIX), *unix),
        *((_EQUAL, 0, len(netlink), _NETLINK), *netlink),
        *((_EQUAL, 1, 0, _INET), (_EQUAL, 0, len(internet), _INET6), *internet),
        refused,
    ]


def _socketpair(wanted: Filter) -> list[Instruction]:
    """Allow only unix types that cannot send to others: for a raw one the kernel makes a datagram socket."""
    refused = _socket_error(wanted)
    kind = [_argument(1), (_AND, 0, 0, _TYPE_BITS), (_EQUAL, 1, 0, _STREAM), (_EQUAL, 0, 1, _SEQPACKET)]
    return [*(_argument(0), (_EQUAL, 1, 0, _UNIX), refused), *kind, _ALLOWED, refused]


def _sending(name: str, wanted: Filter) -> list[Instruction]:
    """Rules for sending. Data without an address goes where its socket is connected to. If the network is open, the
    supervisor decides on the addresses of datagrams; that of a message is in memory, which a filter cannot read."""
    if not name.startswith("send") or wanted.network != "open" or not wanted.has_listener:
        return [_ALLOWED]
    if name != "sendto":
        return [_ASKED]
    return [_argument(4), (_EQUAL, 0, 2, 0), _argument(4, high=True), (_EQUAL, 1, 0, 0), _ASKED, _ALLOWED]


def _connecting(name: str, wanted: Filter) -> list[Instruction]:
    """Rules for connect, bind and listen. Without a supervisor the target of a connection is unknown, so `connect` is
    denied unless the network is open."""
    if wanted.has_listener:
        return [_ASKED]
    return [_refuse(errno.EACCES)] if name == "connect" and wanted.network != "open" else []


# System calls that are denied to sandboxed programs, and those that are checked: their numbers on x86_64 and aarch64,
# -1 if there is none.

REFUSED: Final[Mapping[str, tuple[int, int]]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}
# Programs work without these: they use the older call, whose arguments a filter can read.
MISSING: Final[Mapping[str, tuple[int, int]]] = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "openat2": (437, 437),
}
# The most frequent calls come first, because the kernel checks them in this order.
LOOKED_INTO: Final[Mapping[str, tuple[int, int]]] = {
    "openat": (257, 56),
    "open": (2, -1),
    "creat": (85, -1),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "clone": (56, 220),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "prlimit64": (302, 261),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
}
