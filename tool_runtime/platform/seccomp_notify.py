"""The descriptor by which the kernel asks about system calls (seccomp user notification): its questions and answers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from typing import Final, NamedTuple

from tool_runtime.platform import linux_calls, seccomp

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
    """One call that waits for an answer: of which thread, by its name, with its arguments as numbers."""

    notice_id: int
    thread: int
    call: str
    arguments: tuple[int, ...]


def receive(listener: int) -> WaitingSyscall | None:
    """The next question of a descriptor that is ready; None where its thread is gone already. Raises OSError."""
    buffer = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    notice_id, thread, _, number, _, _, *arguments = _NOTICE.unpack(buffer)
    return WaitingSyscall(notice_id, thread, _NAMES.get(number, str(number)), tuple(arguments))


def answer(listener: int, notice_id: int, code: int, value: int = 0) -> None:
    """Have the call end with the error `code`, 0 for success, and then with the result `value`. Harmless where its
    thread is gone."""
    _send(listener, struct.pack("=QqiI", notice_id, value, -abs(code), 0))


def let_through(listener: int, notice_id: int) -> None:
    """Have the kernel do the call itself: for calls about which nothing is judged that its process could change."""
    _send(listener, struct.pack("=QqiI", notice_id, 0, 0, _CONTINUE))


def _send(listener: int, response: bytes) -> None:
    try:
        fcntl.ioctl(listener, _SEND, response)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def is_waiting(listener: int, notice_id: int) -> bool:
    """True if the thread still waits: only then what was read of it was its own, and not that of a later process with
    its number."""
    try:
        fcntl.ioctl(listener, _ID_VALID, struct.pack("=Q", notice_id))
    except OSError:
        return False
    return True


def read_memory(thread: int, address: int, size: int) -> bytes:
    """`size` bytes of a waiting thread's memory. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    local = struct.pack("@PN", ctypes.addressof(buffer), size)
    remote = struct.pack("@PN", address, size)
    try:
        got = linux_calls.call(_READV, thread, local, 1, remote, 1, 0)
        return buffer.raw[:got]
    except PermissionError:  # some containers forbid this call, and not the file
        descriptor = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, address)
        finally:
            os.close(descriptor)


def write_memory(listener: int, notice: WaitingSyscall, address: int, data: bytes) -> None:
    """Put `data` into the memory of the thread that waits for the answer to `notice`. Raises OSError."""
    descriptor = os.open(f"/proc/{notice.thread}/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        if not is_waiting(listener, notice.notice_id):  # another process may have its number by now
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        os.pwrite(descriptor, data, address)
    finally:
        os.close(descriptor)


def copy_descriptor(thread: int, descriptor: int) -> int:
    """A descriptor of ours for what `descriptor` is to a thread. Raises OSError."""
    try:
        process = linux_calls.call(linux_calls.PIDFD_OPEN, thread, 0)
    except OSError:  # it is not the first thread of its process
        process = linux_calls.call(linux_calls.PIDFD_OPEN, _process_of(thread), 0)
    try:
        return linux_calls.call(linux_calls.PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    raise ProcessLookupError(thread)


def socket_call(name: str, descriptor: int, *arguments: int | bytes) -> int:
    """Do `connect`, `bind` or `listen` ourselves, with an address as it is in memory; the number of the error, 0 for
    none."""
    try:
        linux_calls.call(_NUMBER_OF[name], descriptor, *arguments)
    except OSError as error:
        return error.errno or errno.EACCES
    return 0


def socket_error(descriptor: int) -> int:
    """The number of the error by which a connection failed, 0 for one that was made."""
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
