"""The temporary directory of one session: its path, creation, and removal together with the session.

It is in the system's temporary directory, because programs expect that. Its name contains a hash of the state
directory, so that two hosts with the same session id do not share it. Other directories that this program makes there
have a lock, so that the next start can remove those that a crash has left (`sweep`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from hashlib import sha256
from typing import TYPE_CHECKING

from state import APP_NAME, DIRECTORY_MODE, SessionPaths, check_session_id, make_private_dir
from state.disk import holder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

if sys.platform != "win32":
    import fcntl


_HASH_DIGITS = 8
_OF_A_SESSION = f"{APP_NAME}-"
_SCRATCH = f"{_OF_A_SESSION}~"
"""Prefix of directories that belong to no session: no id contains `~`. `tool_runtime.sandbox.launching` has another
one."""
_WINDOWS = bool(sys.platform == "win32")
_VARIABLES: tuple[str, ...] = ("TMP", "TEMP") if _WINDOWS else ("TMPDIR",)
_DEFAULTS: tuple[str, ...] = ("C:\\Windows\\Temp",) if _WINDOWS else ("/tmp", "/var/tmp")  # noqa: S108  platform defaults


def system_directory(environ: Mapping[str, str]) -> str:
    """Return the real path of the system's temporary directory: the one in the environment if it exists, else the
    platform's default."""
    # tempfile gives the same, but its import takes a tenth of a start, and it tests by writing a file.
    named = [environ[name] for name in _VARIABLES if environ.get(name)]
    for path in (*named, *_DEFAULTS):
        if os.path.isabs(path) and os.path.isdir(path):
            return os.path.realpath(path)
    return os.path.realpath(_DEFAULTS[0])


def session_directory(state_dir: str, session_id: str, environ: Mapping[str, str], recorded: str | None = None) -> str:
    """Return the real path of the session's own temporary directory, which need not exist: the one `recorded` by the
    process that started the session, unless its parent is gone. Raises InvalidSessionId."""
    if recorded is not None and os.path.isdir(os.path.dirname(recorded)):
        return recorded
    name = f"{_OF_A_SESSION}{check_session_id(session_id)}{_key_of(state_dir)}"
    return os.path.join(system_directory(environ), name)


def _key_of(state_dir: str) -> str:
    return f"-{sha256(os.fsencode(os.path.realpath(state_dir))).hexdigest()[:_HASH_DIGITS]}"


def make(path: str) -> None:
    """Make the directory with mode 0700; an existing one must belong to this user with that mode. Raises OSError."""
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        found = os.lstat(path)
        if not is_directory(found):
            raise NotADirectoryError(errno.ENOTDIR, "something other than a directory has its name", path) from None
        if not _is_ours(found):
            reason = "a directory of its name is there, and it is not this user's alone (0700)"
            raise PermissionError(errno.EPERM, reason, path) from None


def remove(path: str) -> None:
    """Remove the directory with its contents; no link is followed. Anything that cannot be removed stays, because no
    session needs it."""
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError), Folder(parent) as folder:
        found = folder.stat(name)
        if found is not None and is_directory(found) and _is_ours(found):
            folder.remove(name)


@contextlib.contextmanager
def scratch(purpose: str) -> Iterator[str]:
    """Make a directory with mode 0700 in the system's temporary directory, yield its real path, and remove it at the
    end. Raises OSError."""
    path = os.path.join(system_directory(os.environ), f"{_SCRATCH}{purpose}-{os.urandom(8).hex()}")
    os.mkdir(path, DIRECTORY_MODE)
    with contextlib.ExitStack() as at_end:
        at_end.callback(remove, path)
        if sys.platform != "win32":
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            at_end.callback(os.close, descriptor)
            with contextlib.suppress(OSError):  # a disk without locks, so none can be taken by `sweep` either
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield path


def sweep(state_dir: str, environ: Mapping[str, str]) -> None:
    """Remove the leftovers of crashes from the system's temporary directory: unlocked directories of this user, and
    those of sessions in this state directory that are over. Directories of resumable sessions stay."""
    if sys.platform == "win32":
        return
    known_by = _key_of(state_dir)
    with contextlib.suppress(OSError), Folder(system_directory(environ)) as folder:
        for name in folder.names():
            with contextlib.suppress(OSError):
                if name.startswith(_SCRATCH):
                    _remove_unlocked(folder, name)
                elif name.startswith(_OF_A_SESSION) and name.endswith(known_by):
                    session_id = name.removeprefix(_OF_A_SESSION).removesuffix(known_by)
                    paths = SessionPaths(state_dir, session_id)
                    # The session cannot be resumed, and no process holds it.
                    if not any(map(os.path.lexists, paths.checkpoint_files)) and holder(paths.lock) is None:
                        remove(os.path.join(folder.path, name))


def _remove_unlocked(folder: Folder, name: str) -> None:
    found = folder.stat(name)
    if found is None or not is_directory(found) or not _is_ours(found):
        return
    descriptor = folder.descriptor_of(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.remove(name)
    finally:
        os.close(descriptor)


def _is_ours(found: os.stat_result) -> bool:
    if _WINDOWS:  # the directory is in the user's profile, which others cannot access
        return True
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == DIRECTORY_MODE


# A folder that is kept open, so that replacing its name by a link later has no effect.

# On other platforms (Windows) names are checked just before they are used.
BY_DESCRIPTOR = (
    {os.open, os.stat, os.unlink, os.rename, os.rmdir} <= os.supports_dir_fd
    and {os.listdir, os.scandir} <= os.supports_fd
    and os.stat in os.supports_follow_symlinks  # then `shutil.rmtree.avoids_symlink_attacks` is true as well
)
_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_IO_REPARSE_TAG_MOUNT_POINT = 0xA0000003  # a junction, which Windows reports as a directory


def is_link(found: os.stat_result) -> bool:
    """True if `found`, from a stat that does not follow links, is a symbolic link or a Windows junction."""
    return stat.S_ISLNK(found.st_mode) or getattr(found, "st_reparse_tag", 0) == _IO_REPARSE_TAG_MOUNT_POINT


def is_directory(found: os.stat_result) -> bool:
    """True if `found`, from a stat that does not follow links, is a directory and not a link to one."""
    return stat.S_ISDIR(found.st_mode) and not is_link(found)


class Folder(contextlib.AbstractContextManager["Folder"]):
    """Operations on names in one directory. A missing directory counts as empty until `make`; names are never followed
    through a link."""

    def __init__(self, path: str, parent: Folder | None = None) -> None:
        """Open `path`; with a `parent` as the entry of that name in it, which must not be a link. Raises OSError."""
        self.path = path
        self._parent = parent
        self._fd: int | None = None
        self._exists = False
        with contextlib.suppress(FileNotFoundError):
            self._open()

    def close(self) -> None:
        """Close the directory."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._exists = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def make(self) -> None:
        """Create the directory with mode 0700 if it does not exist. Raises OSError."""
        if not self._exists:
            make_private_dir(self.path)
            self._open()

    def descriptor_of(self, path: str) -> int:
        """Return a new descriptor of the subdirectory with the last name of `path`. Raises OSError."""
        return os.open(os.path.basename(path), _FLAGS | _NO_FOLLOW, dir_fd=self._fd)

    def names(self) -> list[str]:
        """Return the sorted names in the directory. Raises OSError."""
        return sorted(os.listdir(self.path if self._fd is None else self._fd)) if self._exists else []

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of an entry, without following links; None if it does not exist. Raises OSError."""
        if not self._exists:
            return None
        try:
            return os.stat(self._path_of(name), dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_current(self) -> bool:
        """True if the path still leads to the directory that was opened."""
        try:
            return self._fd is None or os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._fd))
        except OSError:
            return False

    def is_named(self, path: str, name: str) -> bool:
        """True if `path` still leads to the entry `name` of this directory."""
        mine = self.stat(name)
        try:
            return mine is not None and os.path.samestat(os.stat(path, follow_symlinks=False), mine)
        except OSError:
            return False

    def size(self, name: str) -> int:
        """Return the number of bytes in the file `name`, or in all files below the directory `name`. Links and
        unreadable entries count as 0."""
        found = self.stat(name)
        if found is None or is_link(found):
            return 0
        return _size_below(os.path.join(self.path, name)) if is_directory(found) else found.st_size

    def rename(self, name: str, new: str) -> None:
        """Rename an entry within the directory; durable on return. Raises OSError."""
        os.rename(self._path_of(name), self._path_of(new), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        if self._fd is not None:
            os.fsync(self._fd)

    def remove(self, name: str) -> None:
        """Remove an entry: a directory with its contents, a link but not its target. A missing entry is fine. Raises
        OSError."""
        found = self.stat(name)
        if found is None:
            return
        if not is_directory(found):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path_of(name), dir_fd=self._fd)
            return
        import shutil  # imports all compression modules, and most sessions remove folders only at their end

        try:
            shutil.rmtree(self._path_of(name), dir_fd=self._fd)
        except RecursionError as error:
            raise OSError(errno.ELOOP, "folders are nested too deep", os.path.join(self.path, name)) from error
        except OSError as error:
            if error.errno is None:  # its error for a link, which has no errno in some Python versions
                raise OSError(errno.ELOOP, "a symbolic link, which is not followed", self._path_of(name)) from error
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
        self._exists = True

    def _path_of(self, name: str) -> str:
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
