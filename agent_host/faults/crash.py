"""Run `agent-host` and make it fail at one chosen point: kill it with SIGKILL, or make its disk fail.

    python -m agent_host.faults.crash --after-record 7 run "Do it." --gateway http://127.0.0.1:8080
    python -m agent_host.faults.crash --before-call 31 run "Do it." --gateway http://127.0.0.1:8080
    python -m agent_host.faults.crash --fail-call 31 --errno ENOSPC --persistently run "Do it." --gateway ...

For tests of the state that a crash leaves, in this project and in those that build on it. Every durable change of a
session is a record, so the record numbers from 1 upwards cover every state that a crash can leave between two records.
Calls are the store's changing operations on its disk (`state.disk.Disk`), so their numbers cover the states within a
record.

    disk = FailingDisk(Disk(), Faults(fail_call=7, code=errno.ENOSPC, persistently=True))

is such a disk within a process. Calls are counted from 1. Only calls that change something count, including the release
of a lock; with `count_reads` reads count too.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from agent_host.cli.main import main
from state import WriteFailed
from state.disk import Disk, SessionLock
from state.journal import JournalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CODES: Final = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EROFS", "EDQUOT") if hasattr(errno, name)}


class PowerCut(BaseException):
    """The machine lost power. A BaseException, so that no `except Exception` of the program under test survives it."""


class Killed(BaseException):
    """The process was killed. A BaseException, like PowerCut."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults by the number of the call at which they occur. `written` is the fraction of its data that a failing write
    still writes."""

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
    """Counts and logs the calls of a disk, and makes those fail that `faults` names."""

    faults: Faults = NO_FAULTS
    kill: Callable[[], None] | None = None
    count: int = 0
    log: list[str] = field(default_factory=list)
    dead: BaseException | None = None

    def begin(self, text: str, *, reads: bool = False) -> OSError | None:
        """Count one call and return the error with which it must fail, if any. Raises PowerCut or Killed if `faults`
        has one at this call, and for every later call."""
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
        if plan.fail_call is None or self.count < plan.fail_call:
            return None
        if self.count > plan.fail_call and not plan.persistently:
            return None
        self.log[-1] += f" !! {errno.errorcode[plan.code]}"
        return OSError(plan.code, os.strerror(plan.code), text)

    def end(self) -> None:
        """End the call. Raises PowerCut if `faults` has one after it."""
        if self.count == self.faults.cut_after:
            self._die(PowerCut(f"after call {self.log[-1].strip()}"))

    def _die(self, cause: BaseException) -> None:
        self.log[-1] += f" !! {type(cause).__name__} before it" if "before" in str(cause) else " !! PowerCut after it"
        self.dead = cause
        if self.kill is not None:
            self.kill()
        raise cause


def kill_this_process() -> None:
    """Send SIGKILL to this process. Windows has no SIGKILL, but there os.kill with SIGTERM also ends a process at
    once."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


class FailingDisk(Disk):
    """Wraps a disk and makes some of its calls fail. `kill` ends the process at a planned kill or power cut; on a real
    disk only that is realistic. A failing `write` still writes the fraction of its data that the plan names; a failing
    `close` still closes, as on Linux."""

    def __init__(
        self, disk: Disk, faults: Faults = NO_FAULTS, *, kill: Callable[[], None] | None = kill_this_process
    ) -> None:
        self._disk = disk
        self._paths: dict[int, str] = {}  # by descriptor
        self.calls = Calls(faults, kill)

    def write(self, fd: int, data: bytes) -> None:
        """See Disk."""
        share = data[: int(len(data) * self.calls.faults.written)]
        text = f"write({self._name_of(fd)}, {len(data)} bytes)"
        with self._call(text, instead=lambda: self._disk.write(fd, share)):
            self._disk.write(fd, data)

    def sync(self, fd: int) -> None:
        """See Disk."""
        with self._call(f"sync({self._name_of(fd)})", instead=lambda: self._fail_to_sync(fd)):
            self._disk.sync(fd)

    def close(self, fd: int) -> None:
        """See Disk."""
        with self._call(f"close({self._name_of(fd)})", instead=lambda: self._disk.close(fd)):
            self._disk.close(fd)

    def lock(self, path: str, session_id: str) -> SessionLock:
        """See Disk. A failing lock raises WriteFailed, as a real one does."""
        try:
            with self._call(f"lock({path})"):
                return _CountedLock(self._disk.lock(path, session_id), self.calls, path)
        except OSError as error:
            raise WriteFailed(f"the lock {path} cannot be opened: {error.strerror}") from error

    def boot_id(self) -> str | None:
        """See Disk."""
        return self._disk.boot_id()

    def _name_of(self, fd: int) -> str | int:
        return self._paths.get(fd, fd)

    def _fail_to_sync(self, fd: int) -> None:
        """Apply the effects of a failing sync to the file: nothing, since a real disk cannot be told to fail."""

    @contextlib.contextmanager
    def _call(self, text: str, *, reads: bool = False, instead: Callable[[], object] | None = None) -> Iterator[None]:
        """Count and log one call, and make it fail if the plan says so; `instead` then has its remaining effects."""
        failure = self.calls.begin(text, reads=reads)
        if failure is not None:
            if instead is not None:
                instead()
            raise failure
        yield
        if not reads:
            self.calls.end()


def _counted(name: str, *, reads: bool) -> Callable[..., Any]:
    def method(disk: FailingDisk, *arguments: Any) -> Any:
        with disk._call(f"{name}({', '.join(map(str, arguments))})", reads=reads):  # noqa: SLF001  a method of its class
            result = getattr(disk._disk, name)(*arguments)  # noqa: SLF001  the same
            if name in ("open_new", "open_append"):
                disk._paths[result] = arguments[0]  # noqa: SLF001  the same
        return result

    return method


for _name in ("make_private_dir", "open_new", "open_append", "replace", "link", "remove", "sync_directory"):
    setattr(FailingDisk, _name, _counted(_name, reads=False))
for _name in ("is_named", "read", "status", "names", "holder"):
    setattr(FailingDisk, _name, _counted(_name, reads=True))


class _CountedLock(SessionLock):
    """A lock whose release counts as a call of its disk: a process killed before it leaves the lock's file."""

    def __init__(self, lock: SessionLock, calls: Calls, path: str) -> None:
        self._lock: SessionLock | None = lock
        self._calls = calls
        self._path = path

    def still_held(self) -> bool:
        if failure := self._calls.begin(f"still_held({self._path})", reads=True):
            raise failure
        return self._lock is not None and self._lock.still_held()

    def release(self, *, remove: bool, untouched: bool = False) -> None:
        """Release the lock; if the call fails, the file stays."""
        lock, self._lock = self._lock, None
        if lock is not None:
            failure = self._calls.begin(f"release({self._path}, remove={remove})")
            lock.release(remove=remove and failure is None, untouched=untouched)
            self._calls.end()


def kill_after_record(number: int) -> None:
    """Make this process kill itself once it has appended `number` more records."""
    append = JournalFile.append
    left = number

    def count(journal: JournalFile, *record: Any) -> Any:
        nonlocal left
        appended = append(journal, *record)
        left -= 1
        if left <= 0:
            kill_this_process()
        return appended

    setattr(JournalFile, "append", count)  # noqa: B010  the one seam that every record passes


def spoil_local_disk(faults: Faults) -> FailingDisk:
    """Make every Disk of this process follow the plan; return the FailingDisk that counts for all of them."""
    own = {name: value for name, value in vars(Disk).items() if isinstance(value, FunctionType)}
    # With the original methods, so that a call from one method to another does not count as a call of the store.
    untouched: Disk = type("UntouchedDisk", (Disk,), own)()
    failing = FailingDisk(untouched, faults)
    for name in own:
        # On the class and not on an object, because the store may already have the shared disk.
        setattr(Disk, name, _pass_on(getattr(failing, name)))
    return failing


def _pass_on(method: Any) -> Any:
    return lambda _disk, *arguments: method(*arguments)


def run(argv: list[str]) -> int:
    """Run `agent-host` with the fault and return its exit code, if it survives. Raises SystemExit(2) if the arguments
    are invalid."""
    given = _parser().parse_args(argv)
    if given.after_record is not None:
        kill_after_record(given.after_record)
    elif given.before_call is not None:
        spoil_local_disk(Faults(kill_before=given.before_call))
    else:
        spoil_local_disk(Faults(fail_call=given.fail_call, code=CODES[given.errno], persistently=given.persistently))
    return main(given.arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m agent_host.faults.crash", allow_abbrev=False)
    point = parser.add_mutually_exclusive_group(required=True)
    point.add_argument("--after-record", type=_number, metavar="N", help="die after the N-th record")
    point.add_argument("--before-call", type=_number, metavar="N", help="die before the N-th call to the disk")
    point.add_argument("--fail-call", type=_number, metavar="N", help="the N-th call to the disk fails")
    parser.add_argument("--errno", choices=sorted(CODES), default="EIO", help="with which error (EIO)")
    parser.add_argument("--persistently", action="store_true", help="and every call after it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS OF agent-host")
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
