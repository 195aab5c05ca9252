"""One process per session: a lock that the operating system drops when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Self

from config.lean_typing import NamedTuple
from state.errors import SessionLocked, WriteFailed
from state.locations import FILE_MODE

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

# `holder` takes the lock for an instant; a process that starts in that instant looks again before it gives up.
_PROBES_TOLERATED = 20
_PROBE_S = 0.005


class SessionLock:
    """Held from `acquire` to `release`. The file holds the pid of the holder, for the message to the second one."""

    def __init__(self, path: str, fd: int, before: _Before | None) -> None:
        self._path = path
        self._fd = fd
        self._before = before

    @classmethod
    def acquire(cls, path: str, session_id: str) -> Self:
        """Take the lock. A file left by a dead process is no obstacle.

        Raises SessionLocked with the holder's pid, WriteFailed when the file cannot be opened.
        """
        patience = _PROBES_TOLERATED
        while True:
            is_new = not os.path.lexists(path)
            try:
                fd = os.open(path, _FLAGS, FILE_MODE)
            except OSError as error:
                raise WriteFailed(f"the lock {path} cannot be opened: {error.strerror}") from error
            try:
                if _try_lock(fd):
                    # The holder before us may have removed the file between our open and our lock: then we hold a
                    # lock on nothing, and another process could hold the one on the name.
                    if is_named(fd, path):
                        before = None if is_new else _Before.read(fd)
                        _write_pid(fd)
                        return cls(path, fd, before)
                else:
                    pid = _pid_in(fd)
                    patience -= 1
                    if patience <= 0 or (pid is not None and _alive(pid)):
                        raise SessionLocked(session_id, pid)
                    time.sleep(_PROBE_S)
            except OSError as error:
                os.close(fd)
                raise WriteFailed(f"the lock {path} cannot be looked at: {error.strerror}") from error
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def still_held(self) -> bool:
        """True if the file of this lock is still the one under its name. Raises OSError when that cannot be found
        out."""
        return self._fd >= 0 and is_named(self._fd, self._path)

    def release(self, *, remove: bool, untouched: bool = False) -> None:
        """Let go; `remove` takes the file away too, which is right only when the session is over. A file of
        another process under that name stays. `untouched` leaves all as it was before `acquire`."""
        if self._fd < 0:
            return
        if untouched and self._before is not None:
            self._before.put_back(self._fd)
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


class _Before(NamedTuple):
    """The content of a lock's file when the lock was taken, and when that was written."""

    content: bytes
    times_ns: tuple[int, int]

    @classmethod
    def read(cls, fd: int) -> Self:
        """Those of an open file. Raises OSError."""
        status = os.fstat(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        return cls(os.read(fd, 32), (status.st_atime_ns, status.st_mtime_ns))

    def put_back(self, fd: int) -> None:
        """Have the file as it was. What the disk does not take stays as it is: a pid that nobody has any more."""
        with contextlib.suppress(OSError, NotImplementedError):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, self.content)
            os.utime(fd, ns=self.times_ns)


def named_pid(path: str) -> int | None:
    """The pid that stands in the lock at `path`, whoever holds it; None where none does."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        return _pid_in(fd)
    finally:
        os.close(fd)


def holder(path: str) -> int | None:
    """Pid of the live process that holds the lock at `path`; None when nobody does."""
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # not there, or nothing that could be a lock of ours
        return None
    try:
        return None if _try_lock(fd) else (_pid_in(fd) or 0)
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


def _pid_in(fd: int) -> int | None:
    os.lseek(fd, 0, os.SEEK_SET)
    text = os.read(fd, 32).strip()
    return int(text) if text.isdigit() else None


def _write_pid(fd: int) -> None:
    """The pid is for the message to the second process; on a full disk the lock is held without it."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"%d\n" % os.getpid())


def is_named(fd: int, path: str) -> bool:
    """True if `path` leads to the open file `fd`. Raises OSError when it cannot be looked at."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
