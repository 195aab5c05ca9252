"""The filter of system calls, run by a small machine that does what the kernel's does."""

from __future__ import annotations

import errno
import struct

import pytest

from tests.support.rows import each_row
from tool_runtime.platform import landlock, linux_calls, linux_sandbox, seccomp
from tool_runtime.platform.seccomp import Filter

ALLOWED, ASKED = "allowed", "asked"
MACHINES = ["x86_64", "aarch64"]


def verdict(program: bytes, number: int, *arguments: int, audit: int) -> str | int:
    """What the filter says of one call: `allowed`, `asked`, or the number of an error."""
    packed = [one & 0xFFFFFFFFFFFFFFFF for one in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("=iIQ6Q", number - (1 << 32) if number >= 1 << 31 else number, audit, 0, *packed)
    code = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        if operation == 0x20:
            value = struct.unpack_from("=I", data, constant)[0]
        elif operation == 0x54:
            value &= constant
        elif operation in (0x15, 0x35, 0x45):
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[operation]
            at += if_true if holds else if_false
        else:
            assert operation == 0x06
            kind, error = constant & 0xFFFF0000, constant & 0xFFFF
            return ALLOWED if kind == 0x7FFF0000 else ASKED if kind == 0x7FC00000 else error


def judge(machine: str, network: seccomp.Network, name: str, *arguments: int, listener: bool = True) -> str | int:
    column = MACHINES.index(machine)
    tables = {**seccomp.LOOKED_INTO, **seccomp.REFUSED, **seccomp.MISSING}
    program = seccomp.program(Filter(machine, network, listener))
    return verdict(program, tables[name][column], *arguments, audit=linux_calls.NUMBERS[machine].audit)


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_are_always_refused(machine: str) -> None:
    column = MACHINES.index(machine)
    for name, both in seccomp.REFUSED.items():
        if both[column] >= 0:
            assert judge(machine, "open", name) == errno.EPERM, name
    for name in seccomp.MISSING:
        assert judge(machine, "open", name) == errno.ENOSYS, name


@pytest.mark.parametrize("machine", MACHINES)
def test_everything_else_is_allowed(machine: str) -> None:
    column = MACHINES.index(machine)
    tables = (seccomp.REFUSED, seccomp.MISSING, seccomp.LOOKED_INTO)
    known = {both[column] for table in tables for both in table.values()}
    program = seccomp.program(Filter(machine, "closed", has_listener=False))
    audit = linux_calls.NUMBERS[machine].audit
    for number in set(range(470)) - known:
        assert verdict(program, number, audit=audit) == ALLOWED, number


def test_calls_of_other_architectures_are_refused() -> None:
    program = seccomp.program(Filter("x86_64", "open", has_listener=True))
    assert verdict(program, 20, audit=0x40000003) == errno.EPERM  # i386
    assert verdict(program, 0x40000000 + 39, audit=linux_calls.NUMBERS["x86_64"].audit) == errno.EPERM
    assert verdict(program, 0, audit=linux_calls.NUMBERS["x86_64"].audit) == ALLOWED


@each_row("machine", MACHINES)
@each_row(
    ("name", "arguments", "expected"),
    [
        ("clone", (17,), ALLOWED),
        ("clone", (0x3D0F00,), ALLOWED),  # a thread
        ("clone", (0x10000000 | 17,), errno.EPERM),
        ("clone", (0x40000000 | 17,), errno.EPERM),
        ("ioctl", (0, 0x5401), ALLOWED),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0x100005412), errno.EPERM),  # the kernel takes the lower half
        ("ioctl", (0, 0x541C), errno.EPERM),
        ("fcntl", (3, 2), ALLOWED),
        ("fcntl", (3, 1024, 1), errno.EPERM),  # a lease
        ("fcntl", (3, 1026, 1), errno.EPERM),
        ("fcntl", (3, 1025), ALLOWED),
        ("setpriority", (0, 7, 1), ALLOWED),
        ("setpriority", (2, 7, 1), errno.EPERM),
        ("ioprio_set", (3, 7, 1), errno.EPERM),
        ("fchmod", (3, 0o755), ALLOWED),
        ("fchmod", (3, 0o2755), ALLOWED),
        ("fchmod", (3, 0o4755), errno.EPERM),
        ("fchmodat", (3, 1, 0o4000), errno.EPERM),
        ("fchmodat2", (3, 1, 0o4000), errno.EPERM),
        ("openat", (3, 1, 0, 0o4755), ALLOWED),  # a mode that nothing gets
        ("openat", (3, 1, 0o101, 0o644), ALLOWED),
        ("openat", (3, 1, 0o101, 0o1777), ALLOWED),
        ("openat", (3, 1, 0o101, 0o4755), errno.EPERM),
        ("openat", (3, 1, 0o2000302, 0o2755), errno.EPERM),
        ("openat", (3, 1, 0o20000002, 0o4755), errno.EPERM),  # O_TMPFILE, whichever bit O_DIRECTORY is
        ("openat", (3, 1, 0o20000002, 0o600), ALLOWED),
        ("openat", (3, 1, 1 << 32 | 0o100, 1 << 32 | 0o4000), errno.EPERM),
        ("openat", (3, 1, 0o100, 0o100644), ALLOWED),
        ("mknodat", (3, 1, 0o104755), errno.EPERM),
        ("mknodat", (3, 1, 0o102755), errno.EPERM),
        ("mknodat", (3, 1, 0o010644), ALLOWED),  # a named pipe
        ("prlimit64", (0, 7, 1), ALLOWED),
        ("prlimit64", (5, 7, 0, 1), ALLOWED),
        ("prlimit64", (5, 7, 1), errno.EPERM),
        ("prlimit64", (5, 7, 1 << 32), errno.EPERM),
        ("sendto", (3, 1, 1, 0), ALLOWED),
        ("sendto", (3, 1, 1, 0x20000000), errno.EPERM),
        ("sendmsg", (3, 1, 0x20000000), errno.EPERM),
        ("sendmmsg", (3, 1, 1, 0x20000000), errno.EPERM),
        ("sendmmsg", (3, 1, 0x20000000, 0), ALLOWED),
        ("socketpair", (1, 1), ALLOWED),
        ("socketpair", (1, 2 | 0o2000000), ASKED),
        ("socketpair", (2, 1), ASKED),
        ("socket", (1, 1 | 0o2004000), ALLOWED),
        ("socket", (1, 5), ALLOWED),
        ("socket", (1, 2), ASKED),
        ("socket", (2, 1, 0), ALLOWED),
        ("socket", (10, 1 | 0o2000000, 6), ALLOWED),
        ("socket", (2, 1, 132), ASKED),
        ("socket", (2, 1, 262), ASKED),
        ("socket", (2, 2), ASKED),
        ("socket", (2, 3, 1), ASKED),
        ("socket", (16, 3 | 0o2000000, 0), ALLOWED),
        ("socket", (16, 2, 0), ALLOWED),
        ("socket", (16, 3, 4), ASKED),
        ("socket", (16, 1, 0), ASKED),
        ("socket", (17, 3), ASKED),
        ("socket", (40, 1), ASKED),
        ("connect", (3, 1, 16), ASKED),
        ("bind", (3, 1, 16), ASKED),
        ("listen", (3, 1), ASKED),
    ],
)
def test_calls_that_are_looked_into(machine: str, name: str, arguments: tuple[int, ...], expected: str | int) -> None:
    assert judge(machine, "supervised", name, *arguments) == expected


@each_row("network", ["closed", "supervised", "open"])
@each_row(
    ("name", "arguments", "expected"),
    [
        ("open", (1, 0, 0o4755), ALLOWED),
        ("open", (1, 0o101, 0o666), ALLOWED),
        ("open", (1, 0o101, 0o4755), errno.EPERM),
        ("open", (1, 0o20200002, 0o2755), errno.EPERM),
        ("creat", (1, 0o755), ALLOWED),
        ("creat", (1, 0o4755), errno.EPERM),
        ("mknod", (1, 0o104755), errno.EPERM),
        ("mknod", (1, 0o140755), ALLOWED),
    ],
)
def test_calls_that_one_machine_has(
    network: seccomp.Network, name: str, arguments: tuple[int, ...], expected: str | int
) -> None:
    assert judge("x86_64", network, name, *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_without_anybody_to_ask_there_is_no_connection(machine: str) -> None:
    for arguments in ((2, 1), (10, 1), (2, 2), (16, 3, 4)):
        assert judge(machine, "closed", "socket", *arguments, listener=False) == errno.EACCES
    assert judge(machine, "closed", "connect", 3, 1, 16, listener=False) == errno.EACCES
    assert judge(machine, "closed", "bind", 3, 1, 16, listener=False) == ALLOWED
    assert judge(machine, "closed", "socket", 1, 1, listener=False) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_an_open_network_has_datagrams_of_the_internet_only(machine: str) -> None:
    assert judge(machine, "open", "socket", 2, 2 | 0o2000000) == ALLOWED
    assert judge(machine, "open", "socket", 10, 2) == ALLOWED
    assert judge(machine, "open", "socket", 1, 2) == ASKED
    assert judge(machine, "open", "socket", 2, 3, 1) == ASKED


@pytest.mark.parametrize("machine", MACHINES)
def test_where_datagrams_go_is_asked_only_where_they_may_go_anywhere(machine: str) -> None:
    to_somebody, to_nobody = (3, 1, 1, 0, 1 << 32, 16), (3, 1, 1, 0, 0, 16)
    assert judge(machine, "open", "sendto", *to_somebody) == ASKED
    assert judge(machine, "open", "sendto", 3, 1, 1, 0, 7, 16) == ASKED
    assert judge(machine, "open", "sendto", *to_nobody) == ALLOWED
    for name in ("sendmsg", "sendmmsg"):
        assert judge(machine, "open", name, 3, 1, 0, 0) == ASKED
        assert judge(machine, "supervised", name, 3, 1, 0, 0) == ALLOWED
        assert judge(machine, "open", name, 3, 1, 0, 0, listener=False) == ALLOWED
    assert judge(machine, "open", "sendto", 3, 1, 1, 0x20000000, 7, 16) == errno.EPERM


@pytest.mark.parametrize(
    ("abi", "size", "lost"),
    [
        (1, 8, landlock.REFER | landlock.TRUNCATE | landlock.IOCTL_DEV),
        (2, 8, landlock.TRUNCATE | landlock.IOCTL_DEV),
        (3, 8, landlock.IOCTL_DEV),
        (4, 16, landlock.IOCTL_DEV),
        (5, 16, 0),
        (6, 24, 0),
        (7, 24, 0),
    ],
)
def test_rulesets_hold_what_their_version_can(abi: int, size: int, lost: int) -> None:
    attributes = linux_sandbox.ruleset_attributes(abi, restrict_tcp=True)
    assert len(attributes) == size
    assert struct.unpack_from("=Q", attributes)[0] == (1 << 16) - 1 - lost
    assert struct.unpack_from("=Q", attributes.ljust(24, b"\0"), 8)[0] == (3 if abi >= 4 else 0)
    assert struct.unpack_from("=Q", attributes.ljust(24, b"\0"), 16)[0] == (3 if abi >= 6 else 0)
    assert (
        struct.unpack_from("=Q", linux_sandbox.ruleset_attributes(abi, restrict_tcp=False).ljust(24, b"\0"), 8)[0] == 0
    )
