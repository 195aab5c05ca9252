"""The one writer into workspaces and into the temporary directories of sessions.

What a sandboxed command may write is the command's to arrange: it leaves links, named pipes, devices and hard links
where the host is about to write, and swaps a directory for a link between the host's look and its use. The host has all
of the user's rights, so that one name of a command's making would be a way out of the sandbox. Therefore:

- A path is real when it comes here: policy has judged it with all links followed. It is opened from the allowed root
  that covers it and follows no link on the way, by one call where the system has one (openat2), else component by
  component.
- From there on a name is one component of a directory that is held open. Nothing is done by a path.
- A new file is made with O_EXCL, under a name that nobody can guess or that follows from a secret of the call, and
  takes its place by a rename in the held directory: what lies there, a link, a pipe, another name of somebody's file,
  goes and is not written through.
- No file gets a set-user-id or set-group-id bit, nor keeps one that it is moved with. A directory keeps the
  set-group-id bit that it inherits: files in it have its group.
- A file is written in place only where no new file can take its place, by a descriptor that is opened in the held
  directory and is no link, pipe or device: `files.write` says when, and what is kept first.

What Windows lacks is in `platform.directories`. `tests/unit/test_one_writer.py` keeps all other code from writing by
path.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from agent_host.ids import own_name
from tool_runtime.files import SAFE_FLAGS
from tool_runtime.platform import directories
from tool_runtime.platform.directories import BY_DESCRIPTOR, PASS_FLAGS, move_new

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

PERMISSIONS: Final = 0o777  # the bits of a mode that a file gets from the host
NEW_DIRECTORY: Final = 0o777  # the mode of a new directory, before the umask
PRIVATE_DIRECTORY: Final = 0o700
_SET_IDS: Final = stat.S_ISUID | stat.S_ISGID
_PIECE_BYTES: Final = 1024 * 1024
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE_FLAGS


class OpenDirectory:
    """An open directory; `fd` is None if the system has no descriptor-relative calls. Names are those of entries in it,
    one component each; all methods raise OSError."""

    def __init__(self, path: str, fd: int | None) -> None:
        self.path = path
        self.fd = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def path_of(self, name: str) -> str:
        """The path of the entry for a call that also gets `fd`. Raises ValueError for an invalid name."""
        if name in ("", os.curdir, os.pardir) or os.path.basename(name) != name:
            raise ValueError(f"it is not a name in a directory: {name!r}")
        return name if self.fd is not None else os.path.join(self.path, name)

    def names(self) -> list[str]:
        """The names of all entries, sorted."""
        return directories.names(self.fd, self.path)

    def status(self, name: str) -> os.stat_result | None:
        """The status of the entry itself, not of a link's target; None if there is none."""
        try:
            return os.stat(self.path_of(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_existing(self, name: str) -> FileIO:
        """The regular file `name`, to be written in place and closed by the caller; no link or pipe is opened."""
        fd = os.open(self.path_of(name), os.O_RDWR | SAFE_FLAGS, dir_fd=self.fd)
        file = open(fd, "r+b", buffering=0)  # noqa: SIM115  the caller closes it
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            file.close()
            raise OSError(errno.EINVAL, "is not a regular file", name)
        return file

    def write_new(
        self,
        name: str,
        data: bytes,
        *,
        mode: int | None = None,
        like: os.stat_result | None = None,
        attributes: str | None = None,
        durable: bool = True,
    ) -> os.stat_result:
        """Create the file `name` with `data`, synced to the disk if `durable`; returns its status. It gets the owner
        and the permissions of `like`, or those of `mode`, else those of a new file, and the access lists and extended
        attributes of the entry `attributes`; raises PermissionError if they cannot be set. An entry with the name, left
        by a dead process, is removed first."""
        made_with = 0o666 if mode is None and like is None else 0o600
        try:
            fd = os.open(self.path_of(name), _NEW_FILE, made_with, dir_fd=self.fd)
        except FileExistsError:
            self.remove(name)
            fd = os.open(self.path_of(name), _NEW_FILE, made_with, dir_fd=self.fd)
        with open(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if like is not None and hasattr(os, "fchmod"):
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    with suppress(PermissionError):
                        os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, like.st_mode & PERMISSIONS)
            if attributes is not None:
                directories.copy_attributes(self.fd, self.path_of(attributes), fd)
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(fd, mode & PERMISSIONS)
            if durable:
                os.fsync(fd)
            return os.fstat(fd)

    def replace(self, temporary: str, name: str, *, durable: bool = True) -> None:
        """Rename the entry `temporary` to `name`, in one step, replacing an existing entry."""
        os.replace(self.path_of(temporary), self.path_of(name), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        if durable:
            directories.sync(self.fd)

    def put(self, name: str, data: bytes, mode: int, *, durable: bool = True) -> None:
        """Replace the file `name`, or any entry but a directory, by `data`, atomically."""
        with self._temporary() as temporary:
            self.write_new(temporary, data, mode=mode, durable=durable)
            self.replace(temporary, name, durable=durable)

    def put_link(self, name: str, target: str) -> None:
        """Replace `name`, or any entry but a directory, by a symbolic link to `target`."""
        with self._temporary() as temporary:
            os.symlink(target, self.path_of(temporary), dir_fd=self.fd)
            self.replace(temporary, name)

    @contextmanager
    def _temporary(self) -> Iterator[str]:
        """An unguessable name; its entry is removed if the block fails."""
        name = own_name(os.urandom(16).hex())
        try:
            yield name
        except BaseException:
            with suppress(OSError):
                self.remove(name)
            raise

    def make_directory(self, name: str, mode: int = NEW_DIRECTORY) -> None:
        """Make the directory `name`. Raises FileExistsError for anything of that name."""
        os.mkdir(self.path_of(name), mode, dir_fd=self.fd)

    def open_below(self, name: str) -> OpenDirectory:
        """The directory `name` in this one, to be closed by the caller; no link is followed."""
        if self.fd is None:
            directories.refuse_links_on(self.path_of(name))
            return OpenDirectory(self.path_of(name), None)
        return OpenDirectory(os.path.join(self.path, name), directories.step(self.fd, self.path_of(name)))

    def set_permissions(self, name: str, mode: int) -> None:
        """Change the permissions of a file or a directory, and of no link. A directory keeps other bits, a file loses
        them."""
        found = os.stat(self.path_of(name), dir_fd=self.fd, follow_symlinks=False).st_mode
        other = found & stat.S_ISGID if stat.S_ISDIR(found) else 0
        directories.set_mode(self.fd, self.path_of(name), mode & (0o1000 | PERMISSIONS) | other)

    def move(self, name: str, to: OpenDirectory, new_name: str) -> None:
        """Move a file to a nonexistent path. Set-user-id and set-group-id bits are removed first; if they cannot be, or
        would be removed from another name of the file as well, it is not moved."""
        found = os.stat(self.path_of(name), dir_fd=self.fd, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_mode & _SET_IDS:
            if found.st_nlink > 1:
                raise PermissionError(1, "it runs with its owner's rights, and has another name", name)
            self.set_permissions(name, found.st_mode)
        move_new(self.fd, self.path_of(name), to.fd, to.path_of(new_name))
        directories.sync(to.fd)
        directories.sync(self.fd)

    def link(self, name: str, new_name: str) -> None:
        """Give a file of this directory another name in it. Raises FileExistsError for anything of that name."""
        os.link(
            self.path_of(name), self.path_of(new_name), src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False
        )

    def remove(self, name: str) -> None:
        """Remove an entry that is no directory."""
        os.unlink(self.path_of(name), dir_fd=self.fd)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(self.path_of(name), dir_fd=self.fd)

    def walk(self, name: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """The directory `name` and all below it: the path of each, and the names of directories and others in it."""
        return directories.walk_down(self.fd, self.path_of(name), self.path)

    def remove_tree(self, name: str) -> None:
        """Remove a directory with its contents; links are removed, not their targets."""
        directories.remove_tree(self.fd, self.path_of(name))

    def sync(self) -> None:
        """Make the names in it durable."""
        directories.sync(self.fd)


def overwrite(file: FileIO, data: bytes, mode: int | None = None) -> None:
    """Have the open file hold `data`, on the disk when this returns, with the permissions `mode` if they are given. Its
    bits to run with its owner's rights go. Raises OSError, and then it may hold a part."""
    found = os.fstat(file.fileno()).st_mode
    if hasattr(os, "fchmod") and (mode is not None or found & _SET_IDS):
        os.fchmod(file.fileno(), (found if mode is None else mode) & PERMISSIONS)
    file.seek(0)
    view = memoryview(data)
    while view:
        view = view[file.write(view[:_PIECE_BYTES]) :]
    file.truncate()
    os.fsync(file.fileno())


def open_directory(real: str, root: str = "/", *, create: int | None = None) -> OpenDirectory:
    """The directory at the real path `real`, which is `root` or inside of it, to be closed by the caller. Missing
    directories are created with the mode `create`, if given. Raises OSError, ELOOP if there is a link on the way."""
    if not BY_DESCRIPTOR:
        directories.refuse_links_on(real, create=create)
        return OpenDirectory(real, None)
    fd = directories.open_at_once(root)
    if fd is None:
        fd = directories.walk(_names(root), os.open("/", PASS_FLAGS), create=create)
    below = os.path.relpath(real, root)
    if below == os.curdir:
        return OpenDirectory(real, fd)
    descriptor = directories.open_at_once(below, fd)
    if descriptor is None:
        descriptor = directories.walk(_names(below), fd, create=create)
    else:
        os.close(fd)
    return OpenDirectory(real, descriptor)


@contextmanager
def open_parent(real: str, root: str = "/", *, create: int | None = None) -> Iterator[tuple[OpenDirectory, str]]:
    """The directory of the real path `real`, as `open_directory` opens it, and the last name. Raises IsADirectoryError
    for the root of the file system, and OSError."""
    parent, name = os.path.split(real)
    if not name:
        raise IsADirectoryError(21, "is a directory", real)
    with open_directory(parent, root if len(root) <= len(parent) else "/", create=create) as directory:
        yield directory, name


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]
