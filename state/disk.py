"""All that the store asks of a machine: the one seam between durability and the operating system.

Whole files and folders are written through it: durably, or put in place of another atomically (AH 9.3). And the lock of
a session: one process for each, by a lock that the operating system drops when its holder dies, however it dies.

`Disk` is this machine's. Fault tests put another behind it: `agent_host.faults.disk` has a simulated one that loses
what was not synced, and a real one whose calls fail.
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

    Beside = Callable[[Callable[[], None]], "ThreadJob"]
    """Starts a function beside the caller, who waits for it before all ends."""

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
# A named pipe in a file's place would otherwise hold the open up until somebody writes to it.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
# Small pieces are gathered to writes of about this size: a snapshot consists of one piece a message.
_WRITE_BYTES = 256 * 1024
TEMPORARY = ".tmp"


class FileStatus(NamedTuple):
    """The status of a name, links not followed. `modified`: seconds since the epoch. `foreign`: it belongs to another
    user; `exposed`: others may write to it; `readable`: others may read it. Windows has no such modes: all False."""

    kind: Literal["file", "directory", "other"]
    size: int
    modified: float
    links: int
    foreign: bool
    exposed: bool
    readable: bool


class Disk:
    """The file system of this machine: operations on absolute paths and on descriptors that this disk gave out. All
    raise OSError; nothing is durable before `sync`, and no name before `sync_directory` of its directory. Another disk
    has another method for each of these."""

    def make_private_dir(self, path: str) -> None:
        """Create `path` and its parents, for their owner alone."""
        make_private_dir(path)

    def open_new(self, path: str) -> int:
        """A descriptor of a new empty private file at `path`, in place of what lies there."""
        self.remove(path)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY, FILE_MODE)

    def open_append(self, path: str) -> int:
        """A descriptor that writes to the end of the file at `path`; a link is refused."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | _NO_FOLLOW | _BINARY)

    def write(self, fd: int, data: bytes) -> None:
        """Write all of `data`: a short write goes on where it stopped. Where it raises, any part may be there."""
        written = os.write(fd, data)
        if written < len(data):
            view = memoryview(data)[written:]
            while view:
                view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Make the file's content durable. After a failure its unsynced content may be gone for good. macOS needs
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
        """True if `path` still leads to the file of `fd`: what is written to a file without a name is lost."""
        return is_named(fd, path)

    def read(self, path: str) -> bytes:
        """The whole regular file at `path`; a link is refused with ELOOP, anything else with EINVAL."""
        fd = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT | _BINARY)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):  # asked first: a folder's descriptor `fdopen` would leave open
                raise OSError(errno.EINVAL, "it is no regular file", path)
            with os.fdopen(fd, "rb", closefd=False) as handle:
                return handle.read()
        finally:
            os.close(fd)

    def status(self, path: str) -> FileStatus | None:
        """The status of `path`; None if nothing is there."""
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
        """Sorted names in a directory; empty when there is none."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def replace(self, source: str, target: str) -> None:
        """Give `source` the name `target`, atomically, in place of what had it."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give the file `source` the second name `target`, which must be free."""
        os.link(source, target)

    def remove(self, path: str) -> None:
        """Take a name away; one that is not there is fine."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory `path` durable. Windows has no such call and needs none."""
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, session_id: str) -> SessionLock:
        """The lock at `path`. Raises SessionLocked, WriteFailed."""
        return SessionLock.acquire(path, session_id)

    def holder(self, path: str) -> int | None:
        """Pid of the live process that holds the lock at `path`, 0 where it cannot be read, None when nobody does."""
        return holder(path)

    def boot_id(self) -> str | None:
        """An id that changes with every boot; None where the system offers none, which must be read as "unknown"."""
        return boot_id()


LOCAL_DISK = Disk()

_LINUX_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MACOS_COMMAND = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """See Disk. A record that was written but not synced survives the death of the process and not that of the machine:
    whether the absence of a record proves anything after a crash hangs on whether the machine has been up since."""
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
    """Work in a thread of its own. Where the system gives no further thread, it is done before this returns."""

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
        """True if the work is over, well or not. Never waits."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Return when the work is over. Raises what it raised."""
        if self._thread is not None:
            self._thread.join()
        if self._raised is not None:
            raise self._raised

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  it is raised where the work is waited for
            self._raised = error


def make_durable_dir(disk: Disk, path: str, *, within: str, is_there: bool = False) -> None:
    """Create `path`, its parents included, for their owner alone; the names below the directory `within` are durable on
    return, and all others that were not there before. Raises OSError; with `is_there` also where `within` is gone."""
    if is_there and disk.status(within) is None:
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
    """Put `chunks` into a new file at `path` and return its size; a file that could not be written whole is taken away
    again. Its name is not durable yet. Raises OSError."""
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
    except OSError:  # a disk that is full may say so only now
        with contextlib.suppress(OSError):
            disk.remove(path)
        raise
    return size


def replace_atomically(disk: Disk, path: str, chunks: Iterable[bytes]) -> int:
    """Put `chunks` at `path` so that a reader or a crash sees all of the old or all of the new, and return the size.
    Durable on return: temporary file in the same directory, sync, rename, sync of the directory (AH 9.3). Raises
    OSError."""
    size = write_new(disk, path + TEMPORARY, chunks)
    put_in_place(disk, path + TEMPORARY, path)
    disk.sync_directory(os.path.dirname(path))
    return size


def put_in_place(disk: Disk, temporary: str, path: str) -> None:
    """Rename `temporary` to `path`, in place of what is there; where the disk refuses that, it is taken away. Not
    durable. Raises OSError."""
    try:
        disk.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise


def second_name(disk: Disk, path: str, second: str) -> None:
    """Have `second` lead to the file at `path` (`link_or_copy`), atomically in place of what was there. Not durable.
    Raises OSError."""
    temporary = second_temporary(disk, path, second)
    put_in_place(disk, temporary, second)
    disk.remove(temporary)  # it stays where both lead to one file already: POSIX then renames nothing


def second_temporary(disk: Disk, path: str, second: str) -> str:
    """The file at `path` under a temporary name that is to be put in place of `second`. Raises OSError."""
    link_or_copy(disk, path, second + TEMPORARY)
    return second + TEMPORARY


def link_or_copy(disk: Disk, path: str, second: str) -> None:
    """Have `second` lead to the file at `path`, in place of what was there; a copy where the file system knows no
    second names. Neither atomic nor durable. Raises OSError."""
    disk.remove(second)
    try:
        disk.link(path, second)
    except OSError:
        write_new(disk, second, [disk.read(path)], durable=False)


def _gather(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """`chunks` in pieces worth a system call each."""
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


# What is damaged is kept as `.corrupt-N` beside its place: nothing is ever deleted unread.

_MARK = ".corrupt-"


def move_aside(disk: Disk, paths: SessionPaths) -> str:
    """Move snapshot and journal aside, and the pair before them, whatever lies in their places, and return the first
    one's new path."""
    suffix = _free_suffix(disk, paths)
    there = [path for path in paths.checkpoint_files if disk.status(path) is not None]
    for path in there:
        disk.replace(path, path + suffix)
    disk.sync_directory(paths.checkpoints)
    return there[0] + suffix


def copy_aside(disk: Disk, paths: SessionPaths) -> str:
    """Copy snapshot and journal aside, durably, and return the first one's path; they stay in their places, to be
    replaced by what was saved of them. What is no plain file is moved. A disk that takes only one of two copies is left
    with none, so that trying again on a full one does not fill it further."""
    suffix = _free_suffix(disk, paths)
    found = {path: disk.status(path) for path in (paths.snapshot, paths.journal)}
    there = {path: status for path, status in found.items() if status is not None}
    copied: list[str] = []
    try:
        for path, status in there.items():
            if status.kind == "file":
                data = disk.read(path)
                copied.append(path + suffix)  # first: one whose close fails is there
                write_new(disk, path + suffix, [data])
            else:
                disk.replace(path, path + suffix)
        disk.sync_directory(paths.checkpoints)
    except OSError:
        for copy in copied:
            with contextlib.suppress(OSError):
                disk.remove(copy)
        raise
    return next(iter(there)) + suffix


def is_quarantined(disk: Disk, paths: SessionPaths) -> bool:
    """True when something of this session was put aside."""
    starts = tuple(os.path.basename(path) + _MARK for path in paths.checkpoint_files)
    return any(name.startswith(starts) for name in disk.names(paths.checkpoints))


def no_such(disk: Disk, paths: SessionPaths) -> NoSuchSession:
    """The error for a session that is not there."""
    if disk.status(paths.result) is not None:
        return NoSuchSession(f"session {paths.session_id} has ended; its remains are in {paths.records}")
    return NoSuchSession(f"there is no session {paths.session_id} to resume under {paths.state_dir}")


def _free_suffix(disk: Disk, paths: SessionPaths) -> str:
    number = 1
    while any(disk.status(f"{path}{_MARK}{number}") is not None for path in paths.checkpoint_files):
        number += 1
    return f"{_MARK}{number}"


_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | _NO_FOLLOW | getattr(os, "O_CLOEXEC", 0)

# `holder` takes the lock for an instant; a process that starts in that instant looks again before it gives up.
_PROBES_TOLERATED = 20
_PROBE_S = 0.005


class SessionLock:
    """Held from `acquire` to `release`. The file holds the pid of the holder, for the message to the second one."""

    def __init__(self, path: str, fd: int, before: tuple[os.stat_result, bytes] | None) -> None:
        self._path = path
        self._fd = fd
        self._before = before  # the file when the lock was taken, and its content

    @classmethod
    def acquire(cls, path: str, session_id: str) -> Self:
        """Take the lock. A file left by a dead process is no obstacle. Raises SessionLocked with the holder's pid,
        WriteFailed when the file cannot be opened."""
        patience = _PROBES_TOLERATED
        while True:
            is_new = not os.path.lexists(path)
            try:
                fd = os.open(path, _LOCK_FLAGS, FILE_MODE)
            except OSError as error:
                raise WriteFailed(f"the lock {path} cannot be opened: {error.strerror}") from error
            try:
                if _try_lock(fd):
                    # The holder before us may have removed the file between our open and our lock: then we hold a
                    # lock on nothing, and another process could hold the one on the name.
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
        """True if the lock's file is still the one under its name; otherwise another process may hold a lock there.
        Raises OSError."""
        return self._fd >= 0 and is_named(self._fd, self._path)

    def release(self, *, remove: bool, untouched: bool = False) -> None:
        """Let go; `remove` takes the file away too, which is right only when the session is over: one of another
        process under that name stays. `untouched` leaves all as it was before `acquire`. Never raises."""
        if self._fd < 0:
            return
        if untouched and self._before is not None:
            status, content = self._before
            _write_content(self._fd, content)
            with contextlib.suppress(OSError, NotImplementedError):
                os.utime(self._fd, ns=(status.st_atime_ns, status.st_mtime_ns))
        remove = remove or (untouched and self._before is None)
        if remove and sys.platform != "win32":  # before the close: behind it, the name may be another process's lock
            with contextlib.suppress(OSError):
                if self.still_held():
                    os.unlink(self._path)
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):  # the descriptor is gone all the same
            os.close(fd)
        if remove and sys.platform == "win32":  # an open file has no other chance there, and a held one refuses
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def named_pid(path: str) -> int | None:
    """The pid that stands in the lock at `path`, whoever holds it; None where none does."""
    return _ask_lock(path, os.O_RDONLY, _pid_in)


def holder(path: str) -> int | None:
    """Pid of the live process that holds the lock at `path`; None when nobody does."""
    return _ask_lock(path, os.O_RDWR, lambda fd: None if _try_lock(fd) else (_pid_in(fd) or 0))


def _ask_lock(path: str, flags: int, ask: Callable[[int], int | None]) -> int | None:
    try:
        fd = os.open(path, flags | _NO_FOLLOW)
    except OSError:  # not there, or nothing that could be a lock of ours
        return None
    try:
        return ask(fd)
    except WriteFailed:  # a file system without locks: nobody can hold one
        return None
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    if sys.platform == "win32":
        # A byte far behind the pid, so that the file stays readable for the second process.
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
    """A pid is for the message to the second process; on a full disk the lock is held without it."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, content)


def is_named(fd: int, path: str) -> bool:
    """True if `path` leads to the open file `fd`. Raises OSError when it cannot be looked at."""
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
    except PermissionError:  # another user's
        pass
    return True
