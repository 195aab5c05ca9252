"""Directories that are reached without following a link and then held open, and what is done to a name in one.

A directory is a descriptor, or None where the system has no calls relative to one (Windows): then a name is a whole
path, and each component is looked at just before it is used. A file system on a disk of this machine (`is_local`)
answers at once; a server or a program behind one may never.
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
# O_PATH needs no read permission on a directory, only the right to pass through it.
PASS_FLAGS: Final = O_PATH | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
MAY_BE_LINK: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)
"""The answers to O_NOFOLLOW where a link is in the way, by system and flags."""
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_IO_REPARSE_TAG_MOUNT_POINT: Final = 0xA0000003  # a junction, which Windows reports as a directory
_COPYFILE_ACL_AND_XATTR: Final = 0b101
_GAINS_RIGHTS: Final = ("security.capability", "security.ima", "security.evm")
LINK_IN_THE_WAY: Final = "a link took its place after the path was checked"
_LOCAL: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "xfs", "zfs"})


def open_at_once(path: str, directory: int | None = None) -> int | None:
    """Descriptor of the directory at the absolute `path`, or beneath `directory`, by one call that follows no link
    (Linux 5.6). None where that call does not open it, which says nothing about why."""
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
    """Descriptor of the directory `name` in another, made with the mode `create` if given. Raises OSError, ELOOP for a
    link."""
    try:
        return os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in MAY_BE_LINK and is_link(directory, name):
            raise OSError(errno.ELOOP, LINK_IN_THE_WAY, name) from error
        if error.errno != errno.ENOENT or create is None:
            raise
    with suppress(FileExistsError):  # somebody else may be faster
        os.mkdir(name, create, dir_fd=directory)
    return os.open(name, flags, dir_fd=directory)


def walk(names: Sequence[str], start: int, *, create: int | None = None, last_flags: int = PASS_FLAGS) -> int:
    """Descriptor of the directory that `names` lead to from `start`, which is closed. Raises OSError as `step` does."""
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
    """Refuse links on a system without descriptors: look at each component of an absolute path, and make what is
    missing with the mode `create`, if that is given. Raises OSError, ELOOP for a link or a junction."""
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
    """True if `name` is a symbolic link. Raises OSError, but not for what is missing."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def set_mode(directory: int | None, name: str, mode: int) -> None:
    """Change the mode of a file or a directory, and of no link. Raises OSError."""
    if sys.platform == "win32":
        os.chmod(name, mode)
        return
    # A file that nobody may read is opened by O_PATH alone, and then changed by its name among the descriptors.
    fd = os.open(name, O_PATH | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, LINK_IN_THE_WAY, name)
        os.chmod(f"/proc/self/fd/{fd}" if sys.platform == "linux" else fd, mode)
    finally:
        os.close(fd)


def copy_attributes(directory: int | None, name: str, target: int) -> None:
    """Give the open file `target` the access list and the extended attributes of the file `name`, and no others. Those
    by which a program gains rights stay behind. Raises PermissionError for what cannot be given."""
    if sys.platform == "win32":
        return
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if sys.platform == "darwin":
            import ctypes  # as in `moves`

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
    """The names in a directory, which has the given path, sorted. Raises OSError."""
    if directory is None:
        return sorted(os.listdir(path))
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return sorted(os.listdir(readable))
    finally:
        os.close(readable)


def walk_down(directory: int | None, name: str, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """A directory and all below it, from the top down: the path of each, where `directory` has the given one, and the
    names of directories and of all else in it. No link is followed. Raises OSError for what cannot be looked at."""

    def fail(error: OSError) -> None:
        raise error

    if directory is None:
        yield from os.walk(name, onerror=fail)
        return
    for below, folders, files, _ in os.fwalk(name, onerror=fail, dir_fd=directory):
        yield os.path.join(path, below), folders, files


def remove_tree(directory: int | None, name: str) -> None:
    """Remove a directory with all in it; of a link the link. Raises OSError."""
    import shutil  # brings every compression there is, and few calls remove a tree

    if BY_DESCRIPTOR and shutil.rmtree.avoids_symlink_attacks:
        shutil.rmtree(name, dir_fd=directory)
    else:
        shutil.rmtree(name)


def sync(directory: int | None) -> None:
    """Make the names in a directory durable. Windows gives no descriptor for it, and a directory that may not be read
    none either: the effect has happened all the same."""
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
    """True if the file system with this device number (`st_dev`) is one on a disk, or in the memory, of this machine.
    False where the system does not say, as outside of Linux."""
    if sys.platform != "linux":
        return False
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            return kind_of(f"{os.major(device)}:{os.minor(device)}", table.read()) in _LOCAL
    except OSError:
        return False


def kind_of(device: str, table: str) -> str | None:
    """The type of the file system with the number `device` (`8:1`) in a mountinfo; None if it is not in there."""
    for line in table.splitlines():
        place, _, rest = line.partition(" - ")
        if place.split(" ")[2:3] == [device]:
            return rest.split(" ")[0]
    return None


# Moving a file to where nothing is, in one step: no system call that Python offers does that everywhere.

_NOREPLACE: Final = 1  # of Linux's renameat2
_EXCL: Final = 4  # of macOS' renameatx_np
_CURRENT: Final = -100 if sys.platform == "linux" else -2
_UNKNOWN: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of a kernel or a file system that does not support the call or its flag."""


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
    """True if both names are one file's, and differ in case only, as where the file system ignores case."""
    if os.path.basename(name).lower() != os.path.basename(new_name).lower() or name == new_name:
        return False
    one = os.stat(name, dir_fd=source, follow_symlinks=False)
    other = os.stat(new_name, dir_fd=target, follow_symlinks=False)
    return os.path.samestat(one, other) and one.st_nlink == 1


@functools.cache
def _system_call() -> Callable[..., int] | None:
    import ctypes  # a tenth of a start, and most sessions move nothing

    name = "renameat2" if sys.platform == "linux" else "renameatx_np"
    call: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return call
