"""Directories that are opened without following a link, and operations on names in them.

A directory is a descriptor, or None if the system has no calls relative to one (Windows): then a name is a whole path,
and each component is checked just before it is used. A local file system (`is_local`) responds at once; a network or
FUSE file system may hang.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent_host.safe_open import O_PATH

if sys.platform == "linux":
    from tool_runtime.platform import linux_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BY_DESCRIPTOR: Final = os.open in os.supports_dir_fd
# O_PATH needs only search permission on a directory, not read permission.
PASS_FLAGS: Final = O_PATH | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
MAY_BE_LINK: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)
"""Errors of O_NOFOLLOW for a link, depending on system and flags."""
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_IO_REPARSE_TAG_MOUNT_POINT: Final = 0xA0000003  # a junction, which Windows reports as a directory
_COPYFILE_ACL_AND_XATTR: Final = 0b101
_GAINS_RIGHTS: Final = ("security.capability", "security.ima", "security.evm")
LINK_IN_THE_WAY: Final = "a link took its place after the path was checked"
_LOCAL: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "xfs", "zfs"})


def open_at_once(path: str, directory: int | None = None) -> int | None:
    """Open the directory at the absolute `path`, or beneath `directory`, by one call that follows no link (Linux 5.6).
    Returns the descriptor, or None if the call fails for any reason."""
    if sys.platform != "linux":
        return None
    resolve = _NO_SYMLINKS | (0 if directory is None else _BENEATH)
    how = struct.pack("=3Q", PASS_FLAGS, 0, resolve)
    at = -100 if directory is None else directory  # AT_FDCWD
    try:
        return linux_calls.call(linux_calls.OPENAT2, at, os.fsencode(path), how, len(how))
    except OSError:
        return None


def step(directory: int, name: str, flags: int = PASS_FLAGS, *, create: int | None = None) -> int:
    """Open the directory `name` in another one, and create it with the mode `create` if given. Raises OSError, ELOOP
    for a link."""
    try:
        return os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in MAY_BE_LINK and is_link(directory, name):
            raise OSError(errno.ELOOP, LINK_IN_THE_WAY, name) from error
        if error.errno != errno.ENOENT or create is None:
            raise
    with suppress(FileExistsError):  # another process may have created it first
        os.mkdir(name, create, dir_fd=directory)
    return os.open(name, flags, dir_fd=directory)


def walk(names: Sequence[str], start: int, *, create: int | None = None, last_flags: int = PASS_FLAGS) -> int:
    """Open the directory that `names` lead to from `start`, and close `start`. Raises OSError as `step` does."""
    fd = start
    try:
        for number, name in enumerate(names, 1):
            below = step(fd, name, last_flags if number == len(names) else PASS_FLAGS, create=create)
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd


def refuse_links_on(path: str, *, create: int | None = None) -> None:
    """Reject links on a system without directory descriptors: check each component of an absolute path, and create
    missing ones with the mode `create` if given. Raises OSError, ELOOP for a link or a junction."""
    above, name = os.path.split(path)
    if not name:
        return
    refuse_links_on(above, create=create)
    if create is not None and not os.path.lexists(path):
        with suppress(FileExistsError):
            os.mkdir(path, create)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) or getattr(found, "st_reparse_tag", 0) == _IO_REPARSE_TAG_MOUNT_POINT:
        raise OSError(errno.ELOOP, LINK_IN_THE_WAY, path)


def is_link(directory: int | None, name: str) -> bool:
    """True if `name` is a symbolic link. False if it does not exist. Raises OSError."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def set_mode(directory: int | None, name: str, mode: int) -> None:
    """Change the mode of a file or a directory. Raises OSError, ELOOP for a link."""
    if sys.platform == "win32":
        os.chmod(name, mode)
        return
    # O_PATH also opens an unreadable file; its mode is then changed by the descriptor's name in /proc.
    fd = os.open(name, O_PATH | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, LINK_IN_THE_WAY, name)
        os.chmod(f"/proc/self/fd/{fd}" if sys.platform == "linux" else fd, mode)
    finally:
        os.close(fd)


def copy_attributes(directory: int | None, name: str, target: int) -> None:
    """Give the open file `target` exactly the access list and the extended attributes of the file `name`, except
    attributes that give a program more rights. Raises PermissionError if one cannot be copied."""
    if sys.platform == "win32":
        return
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if sys.platform == "darwin":
            import ctypes  # slow to import, as in `_system_call`

            copy = ctypes.CDLL(None, use_errno=True).fcopyfile
            if copy(fd, target, None, ctypes.c_uint32(_COPYFILE_ACL_AND_XATTR)) != 0:
                raise PermissionError(errno.EPERM, "its access list cannot be copied", name)
            return
        try:
            wanted = {one: os.getxattr(fd, one) for one in os.listxattr(fd)}
        except OSError:  # a file system without attributes
            return
        for one in os.listxattr(target):
            if one not in wanted:
                with suppress(OSError):
                    os.removexattr(target, one)
        for one, value in wanted.items():
            _set_attribute(target, one, value)
    finally:
        os.close(fd)


def _set_attribute(target: int, name: str, value: bytes) -> None:
    is_of_the_system = name.startswith(("security.", "trusted."))
    if name in _GAINS_RIGHTS:
        return
    try:
        os.setxattr(target, name, value)
    except OSError as error:
        if not is_of_the_system:
            raise PermissionError(errno.EPERM, f"its attribute {name} cannot be kept", name) from error


def names(directory: int | None, path: str) -> list[str]:
    """List the names in a directory with this path, sorted. Raises OSError."""
    if directory is None:
        return sorted(os.listdir(path))
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return sorted(os.listdir(readable))
    finally:
        os.close(readable)


def walk_down(directory: int | None, name: str, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a directory top-down, without following links. Yields the path of each directory (`path` is that of
    `directory`), its subdirectories and its other names. Raises OSError if one cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    if directory is None:
        yield from os.walk(name, onerror=fail)
        return
    for below, folders, files, _ in os.fwalk(name, onerror=fail, dir_fd=directory):
        yield os.path.join(path, below), folders, files


def remove_tree(directory: int | None, name: str) -> None:
    """Remove a directory with its content; links in it are not followed. Raises OSError."""
    import shutil  # imports every compression module; few calls remove a tree

    if BY_DESCRIPTOR and shutil.rmtree.avoids_symlink_attacks:
        shutil.rmtree(name, dir_fd=directory)
    else:
        shutil.rmtree(name)


def sync(directory: int | None) -> None:
    """Make the names in a directory durable. Does nothing on Windows or if the directory is unreadable, because no
    descriptor is available then; the effect has happened anyway."""
    if directory is None:
        return
    with suppress(OSError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


@functools.lru_cache(maxsize=64)
def is_local(device: int) -> bool:
    """True if the file system with this device number (`st_dev`) is on a disk or in memory of this machine. False if
    that is unknown, as on systems other than Linux."""
    if sys.platform != "linux":
        return False
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            return kind_of(f"{os.major(device)}:{os.minor(device)}", table.read()) in _LOCAL
    except OSError:
        return False


def kind_of(device: str, table: str) -> str | None:
    """Return the type of the file system with the number `device` (`8:1`) in a mountinfo `table`; None if it is not
    listed."""
    for line in table.splitlines():
        place, _, rest = line.partition(" - ")
        if place.split(" ")[2:3] == [device]:
            return rest.split(" ")[0]
    return None


# Atomic rename without replacing. Python offers no system call that does this everywhere.

_NOREPLACE: Final = 1  # of Linux's renameat2
_EXCL: Final = 4  # of macOS' renameatx_np
_CURRENT: Final = -100 if sys.platform == "linux" else -2
_UNKNOWN: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of a kernel or a file system that does not support the call or its flag."""


def move_new(source: int | None, name: str, target: int | None, new_name: str) -> None:
    """Move `name` in the directory `source` to `new_name` in `target` (descriptors, or None for whole paths), without
    replacing anything. Raises FileExistsError, and OSError with EXDEV for another file system.

    If the system cannot do this in one step, the file is linked to the new name and unlinked from the old one; a crash
    in between leaves both.
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

    at = tuple(_CURRENT if directory is None else directory for directory in (source, target))
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
    """True if both names are of one file and differ only in case (on a file system that ignores case)."""
    if os.path.basename(name).lower() != os.path.basename(new_name).lower() or name == new_name:
        return False
    one = os.stat(name, dir_fd=source, follow_symlinks=False)
    other = os.stat(new_name, dir_fd=target, follow_symlinks=False)
    return os.path.samestat(one, other) and one.st_nlink == 1


@functools.cache
def _system_call() -> Callable[..., int] | None:
    import ctypes  # a tenth of the startup time; most sessions move nothing

    name = "renameat2" if sys.platform == "linux" else "renameatx_np"
    call: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return call
