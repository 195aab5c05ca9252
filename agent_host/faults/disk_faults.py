"""Disks whose calls fail: the plan of what goes wrong at which call, and a real disk that follows it.

    disk = FailingDisk(LocalDisk(), Faults(fail_call=7, code=errno.ENOSPC, persistently=True))

Calls are counted from 1. Only those that change something count, the letting go of a lock among them; the plan says
whether reading counts too.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from state.errors import WriteFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.disk import Disk, FileStatus, Lock

CODES: Final = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EROFS", "EDQUOT") if hasattr(errno, name)}


class PowerCut(BaseException):
    """The machine lost its power. No `except Exception` of the program under test may live on after it."""


class Killed(BaseException):
    """The process was killed, like PowerCut beyond the reach of the program under test."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults by the call at which they occur. `written` is the share of its data that a failing write leaves behind."""

    fail_call: int | None = None
    code: int = errno.EIO
    persistently: bool = False
    written: float = 0.5
    cut_before: int | None = None
    cut_after: int | None = None
    kill_before: int | None = None
    count_reads: bool = False


NO_FAULTS: Final = Faults()


@dataclass(slots=True)
class Calls:
    """The calls of a disk so far, counted and written down, and the plan's answer to each."""

    faults: Faults = NO_FAULTS
    kill: Callable[[], None] | None = None
    count: int = 0
    log: list[str] = field(default_factory=list)
    dead: BaseException | None = None

    def begin(self, text: str, *, reads: bool = False) -> OSError | None:
        """Count one call and say with which error it is to fail, if any. Raises PowerCut or Killed where the plan has
        it, and for every call after that."""
        if self.dead is not None:
            raise self.dead
        if reads and not self.faults.count_reads:
            return None
        self.count += 1
        self.log.append(f"{self.count:4} {text}")
        plan = self.faults
        if self.count == plan.cut_before:
            self._die(PowerCut(f"before call {self.count}: {text}"))
        if self.count == plan.kill_before:
            self._die(Killed(f"before call {self.count}: {text}"))
        return self._failure(text)

    def end(self) -> None:
        """Say that the call is over. Raises PowerCut where the plan has it."""
        if self.count == self.faults.cut_after:
            self._die(PowerCut(f"after call {self.log[-1].strip()}"))

    def _failure(self, text: str) -> OSError | None:
        plan = self.faults
        if plan.fail_call is None or self.count < plan.fail_call:
            return None
        if self.count > plan.fail_call and not plan.persistently:
            return None
        self.log[-1] += f" !! {errno.errorcode[plan.code]}"
        return OSError(plan.code, os.strerror(plan.code), text)

    def _die(self, how: BaseException) -> None:
        self.log[-1] += f" !! {type(how).__name__} before it" if "before" in str(how) else " !! PowerCut after it"
        self.dead = how
        if self.kill is not None:
            self.kill()
        raise how


def kill_this_process() -> None:
    """SIGKILL, with no warning. Windows has none; there, os.kill ends a process at once with any other signal."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


class FailingDisk:
    """A `state.disk.Disk` around another one, of whose calls some fail. `kill_before` and the power cuts of its plan
    end this very process: on a real disk nothing less is like it."""

    def __init__(self, disk: Disk, faults: Faults = NO_FAULTS) -> None:
        self._disk = disk
        self.calls = Calls(faults, kill_this_process)

    def _pass(self, text: str, *, reads: bool = False) -> None:
        failure = self.calls.begin(text, reads=reads)
        if failure is not None:
            raise failure

    def make_private_dir(self, path: str) -> None:
        """See Disk."""
        self._pass(f"make_private_dir({path})")
        self._disk.make_private_dir(path)
        self.calls.end()

    def open_new(self, path: str) -> int:
        """See Disk."""
        self._pass(f"open_new({path})")
        fd = self._disk.open_new(path)
        self.calls.end()
        return fd

    def open_append(self, path: str) -> int:
        """See Disk."""
        self._pass(f"open_append({path})")
        fd = self._disk.open_append(path)
        self.calls.end()
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """See Disk. A failing one writes the share of `data` that the plan names."""
        failure = self.calls.begin(f"write({fd}, {len(data)} bytes)")
        if failure is not None:
            self._disk.write(fd, data[: int(len(data) * self.calls.faults.written)])
            raise failure
        self._disk.write(fd, data)
        self.calls.end()

    def sync(self, fd: int) -> None:
        """See Disk."""
        self._pass(f"sync({fd})")
        self._disk.sync(fd)
        self.calls.end()

    def close(self, fd: int) -> None:
        """See Disk. A close that fails has closed all the same, as on Linux."""
        failure = self.calls.begin(f"close({fd})")
        self._disk.close(fd)
        if failure is not None:
            raise failure
        self.calls.end()

    def is_named(self, fd: int, path: str) -> bool:
        """See Disk."""
        return self._disk.is_named(fd, path)

    def read(self, path: str) -> bytes:
        """See Disk."""
        self._pass(f"read({path})", reads=True)
        return self._disk.read(path)

    def status(self, path: str) -> FileStatus | None:
        """See Disk."""
        self._pass(f"status({path})", reads=True)
        return self._disk.status(path)

    def names(self, path: str) -> list[str]:
        """See Disk."""
        self._pass(f"names({path})", reads=True)
        return self._disk.names(path)

    def replace(self, source: str, target: str) -> None:
        """See Disk."""
        self._pass(f"replace({source}, {target})")
        self._disk.replace(source, target)
        self.calls.end()

    def link(self, source: str, target: str) -> None:
        """See Disk."""
        self._pass(f"link({source}, {target})")
        self._disk.link(source, target)
        self.calls.end()

    def remove(self, path: str) -> None:
        """See Disk."""
        self._pass(f"remove({path})")
        self._disk.remove(path)
        self.calls.end()

    def sync_directory(self, path: str) -> None:
        """See Disk."""
        self._pass(f"sync_directory({path})")
        self._disk.sync_directory(path)
        self.calls.end()

    def lock(self, path: str, session_id: str) -> Lock:
        """See Disk. A failing one raises WriteFailed, as the real one does."""
        failure = self.calls.begin(f"lock({path})")
        if failure is not None:
            raise WriteFailed(f"the lock {path} cannot be opened: {failure.strerror}") from failure
        lock = self._disk.lock(path, session_id)
        self.calls.end()
        return _CountedLock(lock, self.calls, path)

    def holder(self, path: str) -> int | None:
        """See Disk."""
        self._pass(f"holder({path})", reads=True)
        return self._disk.holder(path)

    def boot_id(self) -> str | None:
        """See Disk."""
        return self._disk.boot_id()


class _CountedLock:
    """A lock whose release is a call of its disk: killed before it, the process leaves the lock's file."""

    def __init__(self, lock: Lock, calls: Calls, path: str) -> None:
        self._lock = lock
        self._calls = calls
        self._path = path

    def still_held(self) -> bool:
        """See state.disk.Lock."""
        return self._lock.still_held()

    def release(self, *, remove: bool, untouched: bool = False) -> None:
        """See state.disk.Lock. One that fails keeps the file and lets go of the lock."""
        failure = self._calls.begin(f"release({self._path}, remove={remove})")
        self._lock.release(remove=remove and failure is None, untouched=untouched)
        self._calls.end()
