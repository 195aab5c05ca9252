"""A folder held open, so that swapping its name for a link later leads nowhere else."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Self

from state.locations import make_private_dir

# Elsewhere (Windows) names are looked at just before they are used.
BY_DESCRIPTOR = (
    {os.open, os.stat, os.unlink, os.rename, os.rmdir} <= os.supports_dir_fd
    and {os.listdir, os.scandir} <= os.supports_fd
    and os.stat in os.supports_follow_symlinks  # with this `shutil.rmtree.avoids_symlink_attacks` holds as well
)
_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_IO_REPARSE_TAG_MOUNT_POINT = 0xA0000003  # a junction, which Windows reports as a directory


def is_link(found: os.stat_result) -> bool:
    """True if what was looked at without following is a symbolic link or a Windows junction."""
    return stat.S_ISLNK(found.st_mode) or getattr(found, "st_reparse_tag", 0) == _IO_REPARSE_TAG_MOUNT_POINT


def is_directory(found: os.stat_result) -> bool:
    """True if what was looked at without following is a directory of its own and no link to one."""
    return stat.S_ISDIR(found.st_mode) and not is_link(found)


class Folder:
    """Names in one directory. A missing directory is an empty one until `make`; names never lead through a link."""

    def __init__(self, path: str, parent: Folder | None = None) -> None:
        """Open `path`; with a `parent` as the entry of that name in it, and then no link. Raises OSError."""
        self.path = path
        self._parent = parent
        self._fd: int | None = None
        self._there = False
        with contextlib.suppress(FileNotFoundError):
            self._open()

    def close(self) -> None:
        """Let go of the directory."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._there = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make(self) -> None:
        """Create the directory, 0700, if it is not there. Raises OSError."""
        if not self._there:
            make_private_dir(self.path)
            self._open()

    def descriptor_of(self, path: str) -> int:
        """A new descriptor of the directory in this one that has the last name of `path`. Raises OSError."""
        return os.open(os.path.basename(path), _FLAGS | _NO_FOLLOW, dir_fd=self._fd)

    def names(self) -> list[str]:
        """What lies in it, sorted. Raises OSError."""
        return sorted(os.listdir(self.path if self._fd is None else self._fd)) if self._there else []

    def stat(self, name: str) -> os.stat_result | None:
        """The entry itself, not what it may link to; None when there is none. Raises OSError."""
        if not self._there:
            return None
        try:
            return os.stat(self._at(name), dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_current(self) -> bool:
        """True if the path still leads to the directory that was opened."""
        try:
            return self._fd is None or os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._fd))
        except OSError:
            return False

    def is_named(self, path: str, name: str) -> bool:
        """True if `path` leads to the entry `name` of this very directory still."""
        mine = self.stat(name)
        try:
            return mine is not None and os.path.samestat(os.stat(path, follow_symlinks=False), mine)
        except OSError:
            return False

    def size(self, name: str) -> int:
        """Bytes in the file `name`, or in all files below the directory `name`. Links and what cannot be looked at
        count nothing."""
        found = self.stat(name)
        if found is None or is_link(found):
            return 0
        return _size_below(os.path.join(self.path, name)) if is_directory(found) else found.st_size

    def rename(self, name: str, new: str) -> None:
        """Rename an entry within the directory; durable on return. Raises OSError."""
        os.rename(self._at(name), self._at(new), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        if self._fd is not None:
            os.fsync(self._fd)

    def remove(self, name: str) -> None:
        """Remove an entry: a directory with all below it, of a link the link. None is fine. Raises OSError."""
        found = self.stat(name)
        if found is None:
            return
        if not is_directory(found):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at(name), dir_fd=self._fd)
            return
        import shutil  # brings every compression there is, and most sessions remove their folders only at their end

        try:
            shutil.rmtree(self._at(name), dir_fd=self._fd)
        except RecursionError as error:
            raise OSError(errno.ELOOP, "folders are nested too deep", os.path.join(self.path, name)) from error
        except OSError as error:
            if error.errno is None:  # its own word for a link, which not every Python version puts in
                raise OSError(errno.ELOOP, "a symbolic link, which is not followed", self._at(name)) from error
            raise

    def _open(self) -> None:
        found = os.stat(self.path) if self._parent is None else self._parent.stat(os.path.basename(self.path))
        if found is None:
            return
        if is_link(found):
            raise OSError(errno.ELOOP, "it is a link, which is not followed", self.path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
        if BY_DESCRIPTOR:
            self._fd = os.open(self.path, _FLAGS) if self._parent is None else self._parent.descriptor_of(self.path)
        self._there = True

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name) if self._fd is None else name


def _size_below(path: str) -> int:
    total, left = 0, [path]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if is_directory(found):
                        left.append(entry.path)
                    elif not is_link(found):
                        total += found.st_size
        except OSError:
            continue
    return total
