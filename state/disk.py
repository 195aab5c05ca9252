"""All file system operations of the store: the only interface between durability and the operating system.

Functions write complete files and folders durably, or replace them atomically (AH 9.3). A session's lock admits one
process; the operating system releases it when that process ends, even in a crash.

`Disk` is the local disk. Fault tests replace it: `agent_host.faults.disk` simulates one that loses unsynced data, and
`agent_host.faults.crash` wraps a real one whose calls fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Self

from config.lean_typing import NamedTuple
from state import FILE_MODE, NoSuchSession, SessionLocked, WriteFailed, make_private_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state import SessionPaths

    StartJob = Callable[[Callable[[], None]], "ThreadJob"]
    """Runs a function in the background; the caller waits for it before the session closes."""

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Otherwise opening a named pipe in a file's place would block until another process writes to it.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
# Smaller pieces are combined into writes of about this size.
_WRITE_BYTES = 256 * 1024
TEMPORARY = ".tmp"


class FileStatus(NamedTuple):
    """The status of a path, without following links. `modified`: seconds since the epoch. `foreign`: it belongs to
    another user; `exposed`: others may write to it; `readable`: others may read it. All three are False on Windows,
    which has no such modes."""

    kind: Literal["file", "directory", "other"]
    size: int
    modified: float
    links: int
    foreign: bool
    exposed: bool
    readable: bool


class Disk:
    """The local file system: operations on absolute paths and on descriptors that this disk returned. All raise
    OSError; no content is durable before `sync`, and no name before `sync_directory` of its directory. A replacement
    disk overrides every method."""

    def make_private_dir(self, path: str) -> None:
        """Create `path` and its parents, accessible only to the owner."""
        make_private_dir(path)

    def open_new(self, path: str) -> int:
        """Create a new empty private file at `path`, in place of any other, and return its descriptor."""
        self.remove(path)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY, FILE_MODE)

    def open_append(self, path: str) -> int:
        """Open the file at `path` for appending and return its descriptor; a link is rejected."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | _NO_FOLLOW | _BINARY)

    def write(self, fd: int, data: bytes) -> None:
        """Write all of `data`, continuing after short writes. If it raises, any part may have been written."""
        written = os.write(fd, data)
        if written < len(data):
            view = memoryview(data)[written:]
            while view:
                view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Make the file's content durable. After a failure its unsynced content may be lost permanently. macOS needs
        F_FULLFSYNC: its fsync stops at the drive's cache."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        elif sys.platform == "win32":
            os.fsync(fd)
        else:
            os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """Close the descriptor."""
        os.close(fd)

    def is_named(self, fd: int, path: str) -> bool:
        """True if `path` still leads to the file of `fd`: data written to a file without a name is lost."""
        return is_named(fd, path)

    def read(self, path: str) -> bytes:
        """Read the regular file at `path`; a link is rejected with ELOOP, anything else with EINVAL."""
        fd = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT | _BINARY)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):  # before `fdopen`, which does not close a folder's descriptor
                raise OSError(errno.EINVAL, "it is not a regular file", path)
            with os.fdopen(fd, "rb", closefd=False) as handle:
                return handle.read()
        finally:
            os.close(fd)

    def status(self, path: str) -> FileStatus | None:
        """Return the status of `path`; None if it does not exist."""
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        mode = found.st_mode
        posix = sys.platform != "win32"
        return FileStatus(
            "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other",
            found.st_size,
            found.st_mtime,
            found.st_nlink,
            foreign=posix and found.st_uid != os.geteuid(),
            exposed=posix and bool(mode & (stat.S_IWGRP | stat.S_IWOTH)),
            readable=posix and bool(mode & (stat.S_IRGRP | stat.S_IROTH)),
        )

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically, in place of any file there."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Make `target`, which must not exist, a hard link to the file `source`."""
        os.link(source, target)

    def remove(self, path: str) -> None:
        """Remove a name; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory `path` durable. Windows has no such call and does not need it."""
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, session_id: str) -> SessionLock:
        """Acquire the lock at `path`. Raises SessionLocked, WriteFailed."""
        return SessionLock.acquire(path, session_id)

    def holder(self, path: str) -> int | None:
        """Return the pid of the live process that holds the lock at `path`, 0 if it cannot be read, None if no process
        does."""
        return holder(path)

    def boot_id(self) -> str | None:
        """Return an id that changes with every boot; None if the system has none, which means "unknown"."""
        return boot_id()


LOCAL_DISK = Disk()

_LINUX_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MACOS_COMMAND = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """See Disk. A record that was written but not synced survives a crash of the process, but not of the machine. So
    after a crash a missing record proves something only if the machine has been up since."""
    found = ""
    try:
        if sys.platform == "linux":
            with open(_LINUX_BOOT_ID, encoding="ascii") as handle:
                found = handle.read()
        elif sys.platform == "darwin":
            found = subprocess.run(_MACOS_COMMAND, capture_output=True, text=True, check=True, timeout=5, env={}).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return found.strip() or None


class ThreadJob:
    """Work in its own thread. If the system cannot start another thread, the constructor does the work itself."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._raised: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="compaction")
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._run()

    def done(self) -> bool:
        """True if the work is over, even if it failed. Never waits."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the end of the work. Raises the work's exception."""
        if self._thread is not None:
            self._thread.join()
        if self._raised is not None:
            raise self._raised

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  `wait` raises it
            self._raised = error


def make_durable_dir(disk: Disk, path: str, *, within: str, must_exist: bool = False) -> None:
    """Create `path` and its parents, accessible only to the owner; on return all names below the directory `within` and
    all new ones are durable. Raises OSError; with `must_exist` also if `within` does not exist."""
    if must_exist and disk.status(within) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), within)
    to_sync: list[str] = []
    at = path
    while at != os.path.dirname(at) and (at != within or disk.status(at) is None):
        to_sync.append(os.path.dirname(at))
        at = os.path.dirname(at)
        if len(at) < len(within) and disk.status(at) is not None:
            break
    disk.make_private_dir(path)
    for directory in reversed(to_sync):
        disk.sync_directory(directory)


def write_new(disk: Disk, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> int:
    """Write `chunks` to a new file at `path` and return its size; an incomplete file is removed again. Its name is not
    durable yet. Raises OSError."""
    size = 0
    fd = disk.open_new(path)
    try:
        for data in _gather(chunks):
            disk.write(fd, data)
            size += len(data)
        if durable:
            disk.sync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.close(fd)
        with contextlib.suppress(OSError):
            disk.remove(path)
        raise
    try:
        disk.close(fd)
    except OSError:  # a full disk may report it only now
        with contextlib.suppress(OSError):
            disk.remove(path)
        raise
    return size


def replace_atomically(disk: Disk, path: str, chunks: Iterable[bytes]) -> int:
    """Write `chunks` to `path` so that a reader or a crash sees either the old or the new file completely; return the
    size. Durable on return: temporary file in the same directory, sync, rename, sync of the directory (AH 9.3). Raises
    OSError."""
    size = write_new(disk, path + TEMPORARY, chunks)
    put_in_place(disk, path + TEMPORARY, path)
    disk.sync_directory(os.path.dirname(path))
    return size


def put_in_place(disk: Disk, temporary: str, path: str) -> None:
    """Rename `temporary` to `path`, in place of any file there; if that fails, `temporary` is removed. Not durable.
    Raises OSError."""
    try:
        disk.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise


def second_name(disk: Disk, path: str, second: str) -> None:
    """Make `second` a link to or a copy of the file at `path` (`link_or_copy`), atomically in place of any file there.
    Not durable. Raises OSError."""
    temporary = second_temporary(disk, path, second)
    put_in_place(disk, temporary, second)
    disk.remove(temporary)  # it remains if both are one file already: POSIX then renames nothing


def second_temporary(disk: Disk, path: str, second: str) -> str:
    """Link or copy the file at `path` to a temporary name, to be renamed to `second`; return that name. Raises
    OSError."""
    link_or_copy(disk, path, second + TEMPORARY)
    return second + TEMPORARY


def link_or_copy(disk: Disk, path: str, second: str) -> None:
    """Make `second` a hard link to the file at `path`, in place of any file there; a copy on file systems without hard
    links. Neither atomic nor durable. Raises OSError."""
    disk.remove(second)
    try:
        disk.link(path, second)
    except OSError:
        write_new(disk, second, [disk.read(path)], durable=False)


def _gather(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """Combine `chunks` into pieces that are large enough for a system call each."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _WRITE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


# Damaged files are kept as `.corrupt-N` in the same folder: nothing is ever deleted unread.

_MARK = ".corrupt-"


def move_aside(disk: Disk, paths: SessionPaths) -> str:
    """Move snapshot, journal and the previous pair aside, whatever they are, and return the first one's new path."""
    suffix = _free_suffix(disk, paths)
    existing = [path for path in paths.checkpoint_files if disk.status(path) is not None]
    for path in existing:
        disk.replace(path, path + suffix)
    disk.sync_directory(paths.checkpoints)
    return existing[0] + suffix


def copy_aside(disk: Disk, paths: SessionPaths) -> str:
    """Copy snapshot and journal aside, durably, and return the first copy's path; the originals stay, to be replaced by
    the recovered state. Anything but a plain file is moved. If only one of two copies succeeds, it is removed, so that
    retries do not fill a full disk further."""
    suffix = _free_suffix(disk, paths)
    found = {path: disk.status(path) for path in (paths.snapshot, paths.journal)}
    existing = {path: status for path, status in found.items() if status is not None}
    copied: list[str] = []
    try:
        for path, status in existing.items():
            if status.kind == "file":
                data = disk.read(path)
                copied.append(path + suffix)  # before the write: a copy whose close fails exists
                write_new(disk, path + suffix, [data])
            else:
                disk.replace(path, path + suffix)
        disk.sync_directory(paths.checkpoints)
    except OSError:
        for copy in copied:
            with contextlib.suppress(OSError):
                disk.remove(copy)
        raise
    return next(iter(existing)) + suffix


def is_quarantined(disk: Disk, paths: SessionPaths) -> bool:
    """True if damaged files of this session were moved or copied aside."""
    starts = tuple(os.path.basename(path) + _MARK for path in paths.checkpoint_files)
    return any(name.startswith(starts) for name in disk.names(paths.checkpoints))


def no_such(disk: Disk, paths: SessionPaths) -> NoSuchSession:
    """Return the error for a session that does not exist or has ended."""
    if disk.status(paths.result) is not None:
        return NoSuchSession(f"session {paths.session_id} has ended; its remains are in {paths.records}")
    return NoSuchSession(f"there is no session {paths.session_id} to resume under {paths.state_dir}")


def _free_suffix(disk: Disk, paths: SessionPaths) -> str:
    number = 1
    while any(disk.status(f"{path}{_MARK}{number}") is not None for path in paths.checkpoint_files):
        number += 1
    return f"{_MARK}{number}"


_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | _NO_FOLLOW | getattr(os, "O_CLOEXEC", 0)

# `holder` takes the lock for an instant; a process that starts in that instant retries before it gives up.
_PROBES_TOLERATED = 20
_PROBE_S = 0.005


class SessionLock:
    """A lock from `acquire` to `release`. Its file contains the holder's pid, for the error message of a second
    process."""

    def __init__(self, path: str, fd: int, before: tuple[os.stat_result, bytes] | None) -> None:
        self._path = path
        self._fd = fd
        self._before = before  # the file's status and content before the lock was taken

    @classmethod
    def acquire(cls, path: str, session_id: str) -> Self:
        """Take the lock. The file of a dead process does not matter. Raises SessionLocked with the holder's pid,
        WriteFailed if the file cannot be opened."""
        patience = _PROBES_TOLERATED
        while True:
            is_new = not os.path.lexists(path)
            try:
                fd = os.open(path, _LOCK_FLAGS, FILE_MODE)
            except OSError as error:
                raise WriteFailed(f"the lock {path} cannot be opened: {error.strerror}") from error
            try:
                if _try_lock(fd):
                    # The previous holder may have removed the file between our open and our lock: then our lock is on a
                    # file without a name, and another process could hold the lock on the path.
                    if is_named(fd, path):
                        before = None if is_new else (os.fstat(fd), _content_of(fd))
                        _write_content(fd, b"%d\n" % os.getpid())
                        return cls(path, fd, before)
                else:
                    pid = _pid_in(fd)
                    patience -= 1
                    if patience <= 0 or (pid is not None and _alive(pid)):
                        raise SessionLocked(session_id, pid)
                    time.sleep(_PROBE_S)
            except BaseException as error:
                os.close(fd)
                if isinstance(error, OSError):
                    raise WriteFailed(f"the lock {path} cannot be looked at: {error.strerror}") from error
                raise
            os.close(fd)

    def still_held(self) -> bool:
        """True if the path still leads to the lock's file; otherwise another process may hold a lock there. Raises
        OSError."""
        return self._fd >= 0 and is_named(self._fd, self._path)

    def release(self, *, remove: bool, untouched: bool = False) -> None:
        """Release the lock. `remove` also removes the file, which is right only if the session is over; another
        process's file at the path stays. `untouched` restores the state before `acquire`. Never raises."""
        if self._fd < 0:
            return
        if untouched and self._before is not None:
            status, content = self._before
            _write_content(self._fd, content)
            with contextlib.suppress(OSError, NotImplementedError):
                os.utime(self._fd, ns=(status.st_atime_ns, status.st_mtime_ns))
        remove = remove or (untouched and self._before is None)
        if remove and sys.platform != "win32":  # before the close: after it, the path may be another process's lock
            with contextlib.suppress(OSError):
                if self.still_held():
                    os.unlink(self._path)
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):  # the descriptor is closed anyway
            os.close(fd)
        if remove and sys.platform == "win32":  # an open file cannot be removed there, and one that is held fails
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def named_pid(path: str) -> int | None:
    """Return the pid in the lock file at `path`, no matter if it is held; None if there is none."""
    return _ask_lock(path, os.O_RDONLY, _pid_in)


def holder(path: str) -> int | None:
    """Return the pid of the live process that holds the lock at `path`, 0 if it cannot be read, None if no process
    does."""
    return _ask_lock(path, os.O_RDWR, lambda fd: None if _try_lock(fd) else (_pid_in(fd) or 0))


def _ask_lock(path: str, flags: int, ask: Callable[[int], int | None]) -> int | None:
    try:
        fd = os.open(path, flags | _NO_FOLLOW)
    except OSError:  # missing, or not a lock file of ours
        return None
    try:
        return ask(fd)
    except WriteFailed:  # a file system without locks: no process can hold one
        return None
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    if sys.platform == "win32":
        # A byte far after the pid, so that the second process can still read the file.
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(fd, 0, os.SEEK_SET)
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise WriteFailed(f"the lock cannot be taken: {error.strerror}") from error
    return True


def _content_of(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, 32)


def _pid_in(fd: int) -> int | None:
    text = _content_of(fd).strip()
    return int(text) if text.isdigit() else None


def _write_content(fd: int, content: bytes) -> None:
    """The pid is only for the error message of a second process, so the lock is valid without it on a full disk."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, content)


def is_named(fd: int, path: str) -> bool:
    """True if `path` leads to the open file `fd`. Raises OSError if it cannot be examined."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _alive(pid: int) -> bool:
    try:
        if sys.platform != "win32":
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True
