"""File systems that answer at once: those on disks of this machine. A server or a program behind one may never."""

from __future__ import annotations

import errno
import functools
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCAL: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "xfs", "zfs"})
_TABLE: Final = "/proc/self/mountinfo"


@functools.lru_cache(maxsize=64)
def is_local(device: int) -> bool:
    """True if the file system with this device number (`st_dev`) is one on a disk, or in the memory, of this machine.
    False where the system does not say, as outside of Linux."""
    if sys.platform != "linux":
        return False
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            return kind_of(f"{os.major(device)}:{os.minor(device)}", table.read()) in _LOCAL
    except OSError:
        return False


def kind_of(device: str, table: str) -> str | None:
    """The type of the file system with the number `device` (`8:1`) in the text of a mountinfo; None where it is not in
    there."""
    for line in table.splitlines():
        place, _, rest = line.partition(" - ")
        if place.split(" ")[2:3] == [device]:
            return rest.split(" ")[0]
    return None


# Moving a file to where nothing is, in one step: no system call that Python offers does that everywhere.

_NOREPLACE: Final = 1  # of Linux's renameat2
_EXCL: Final = 4  # of macOS' renameatx_np
_AT_FDCWD: Final = -100 if sys.platform == "linux" else -2
_UNKNOWN: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a kernel or a file system answers that does not know the call or its flag."""


def move_new(source: int | None, name: str, target: int | None, new_name: str) -> None:
    """Move `name` of the directory `source` to `new_name` of `target`: descriptors, or None for whole paths. Nothing is
    replaced. Raises FileExistsError, and OSError with EXDEV for another file system.

    Where the system cannot rename so, the file gets a second name and loses its first: a crash between leaves both.
    """
    if sys.platform == "win32":
        os.rename(name, new_name)  # replaces nothing there
        return
    if not _try_rename(source, name, target, new_name):
        os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        os.unlink(name, dir_fd=source)


def _try_rename(source: int | None, name: str, target: int | None, new_name: str) -> bool:
    rename = _system_call()
    if rename is None:
        return False
    import ctypes

    at = tuple(_AT_FDCWD if directory is None else directory for directory in (source, target))
    flag = _NOREPLACE if sys.platform == "linux" else _EXCL
    if rename(at[0], os.fsencode(name), at[1], os.fsencode(new_name), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.EEXIST and _is_respelled(source, name, target, new_name):
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        return True
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), name, None, new_name)


def _is_respelled(source: int | None, name: str, target: int | None, new_name: str) -> bool:
    """True if both names are one file's, and differ in case only, as where the file system ignores case."""
    if os.path.basename(name).lower() != os.path.basename(new_name).lower() or name == new_name:
        return False
    one = os.stat(name, dir_fd=source, follow_symlinks=False)
    other = os.stat(new_name, dir_fd=target, follow_symlinks=False)
    return os.path.samestat(one, other) and one.st_nlink == 1


@functools.cache
def _system_call() -> Callable[..., int] | None:
    """The C library's call, None where it has none."""
    import ctypes  # a tenth of a start, and most sessions move nothing

    name = "renameat2" if sys.platform == "linux" else "renameatx_np"
    call: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return call
