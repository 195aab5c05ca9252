"""Linux system calls that Python does not offer, by number. Importing this loads ctypes.

The first command of a session waits until the launcher has imported this module and its neighbours, which therefore
avoid `typing` and other slow imports."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from config.lean_typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

# The numbers above 423 are the same on every architecture.
PIDFD_OPEN: Final = 434
OPENAT2: Final = 437
PIDFD_GETFD: Final = 438
LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RESTRICT_SELF: Final = 446

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAPBSET_DROP: Final = 24
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = 63
_CAP_DAC_OVERRIDE: Final = 1
_CAP_FOWNER: Final = 3
_CLONE_FS: Final = 0x200


class Numbers(NamedTuple):
    """Numbers that differ between architectures: the audit value used in a filter, and system calls."""

    audit: int
    seccomp: int
    capset: int
    prctl: int
    unshare: int
    clone: int
    mount: int
    umount2: int


NUMBERS: Final = {
    "x86_64": Numbers(0xC000003E, 317, 126, 157, 272, 56, 165, 166),
    "aarch64": Numbers(0xC00000B7, 277, 91, 167, 97, 220, 40, 39),
}


def machine() -> str:
    """Return the architecture, as named by the kernel."""
    return os.uname().machine


def numbers() -> Numbers | None:
    """Return the numbers of this machine, None for an unknown architecture."""
    return NUMBERS.get(machine())


def unknown_machine() -> OSError:
    """Return the error for an unknown architecture."""
    return OSError(errno.ENOSYS, f"no system calls are known for {machine()}")


_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_BY_KINDS: dict[tuple[type, ...], Callable[..., int]] = {}


def _function(kinds: tuple[type, ...]) -> Callable[..., int]:
    """Return the C library's `syscall` for arguments of these types, so that ctypes need not inspect each argument."""
    function = _LIBRARY["syscall"]
    function.restype = ctypes.c_long
    function.argtypes = [
        ctypes.c_long,
        *(ctypes.c_long if issubclass(kind, int) else ctypes.c_char_p for kind in kinds),
    ]
    return function


def call(number: int, *arguments: int | bytes | None) -> int:
    """Do a system call and return its result. Raises OSError."""
    kinds = tuple(map(type, arguments))
    function = _BY_KINDS.get(kinds)
    if function is None:
        function = _BY_KINDS[kinds] = _function(kinds)
    result = function(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def forbid_new_privileges(known: Numbers) -> None:
    """Set no_new_privs: from now on no program that this thread runs gains rights by set-user-id or file capabilities.
    Raises OSError."""
    call(known.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities(known: Numbers, *, changes_modes: bool = False, is_bounded: bool = False) -> None:
    """Drop this thread's capabilities. Root keeps one: to read and write files of any owner, needed in a container that
    works on its user's files; the sandbox limits which paths. With `changes_modes` it also keeps the one to change
    their mode and times, which the sandbox must limit as well. `is_bounded` means that the thread has called
    `bound_capabilities`. Harmless without any capabilities."""
    kept = capabilities_to_keep(changes_modes=changes_modes)
    if not is_bounded:
        bound_capabilities(known, kept)
    call(known.prctl, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for some in (kept, kept & 1 << _CAP_DAC_OVERRIDE):
        try:
            _keep(known, some)
        except PermissionError:  # root in a container without them
            continue
        return
    _keep(known, 0)


def capabilities_to_keep(*, changes_modes: bool) -> int:
    """Return the capabilities that `drop_capabilities` keeps."""
    if os.geteuid() != 0:
        return 0
    return 1 << _CAP_DAC_OVERRIDE | (1 << _CAP_FOWNER if changes_modes else 0)


def bound_capabilities(known: Numbers, kept: int) -> None:
    """Limit the capabilities of programs that this thread starts to `kept`. The thread's own do not change."""
    drop = _function((int, int, int, int, int))  # forty times per command: `call` would double the time
    for capability in range(_LAST_CAPABILITY + 1):
        # EINVAL after the last one; EPERM without the right to do so, and then there is none to drop.
        if not kept >> capability & 1 and drop(known.prctl, _PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break


def _keep(known: Numbers, capabilities: int) -> None:
    """Set the thread's capabilities to exactly these. Raises OSError."""
    three = struct.pack("=6I", capabilities, capabilities, 0, 0, 0, 0)
    call(known.capset, struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), three)


def separate_directory() -> None:
    """Give this thread a working directory and a umask of its own, apart from its process. Raises OSError."""
    known = numbers()
    if known is None:
        raise unknown_machine()
    call(known.unshare, _CLONE_FS)


def copy_descriptor(thread: int, descriptor: int) -> int:
    """Copy the descriptor of another thread into this process. Raises OSError."""
    try:
        process = call(PIDFD_OPEN, thread, 0)
    except OSError:  # it is not the first thread of its process
        process = call(PIDFD_OPEN, _process_of(thread), 0)
    try:
        return call(PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    raise ProcessLookupError(thread)
