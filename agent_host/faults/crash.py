"""Runs `agent-host` and has it fail at one chosen point: killed with SIGKILL and no warning, or by a disk that fails.

    python -m agent_host.faults.crash --after-record 7 run "Do it." --gateway http://127.0.0.1:8080
    python -m agent_host.faults.crash --before-call 31 run "Do it." --gateway http://127.0.0.1:8080
    python -m agent_host.faults.crash --fail-call 31 --errno ENOSPC --persistently run "Do it." --gateway ...

For tests of what a crash leaves behind, of this project and of those who build on it. Every durable change of a session
is a record, so the numbers from 1 upwards visit every state that a crash can leave between two of them. Calls are what
the store asks of its disk (`state.disk.Disk`) to change something, so their numbers visit the states within a record.

    disk = FailingDisk(Disk(), Faults(fail_call=7, code=errno.ENOSPC, persistently=True))

is such a disk within a process. Calls are counted from 1. Only those that change something count, the letting go of a
lock among them; the plan says whether reading counts too.
"""

from __future__ import annotations

import argparse
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
    from collections.abc import Callable


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
        if plan.fail_call is None or self.count < plan.fail_call:
            return None
        if self.count > plan.fail_call and not plan.persistently:
            return None
        self.log[-1] += f" !! {errno.errorcode[plan.code]}"
        return OSError(plan.code, os.strerror(plan.code), text)

    def end(self) -> None:
        """Say that the call is over. Raises PowerCut where the plan has it."""
        if self.count == self.faults.cut_after:
            self._die(PowerCut(f"after call {self.log[-1].strip()}"))

    def _die(self, how: BaseException) -> None:
        self.log[-1] += f" !! {type(how).__name__} before it" if "before" in str(how) else " !! PowerCut after it"
        self.dead = how
        if self.kill is not None:
            self.kill()
        raise how


def kill_this_process() -> None:
    """SIGKILL, with no warning. Windows has none; there, os.kill ends a process at once with any other signal."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


class FailingDisk(Disk):
    """A disk around another one, of whose calls some fail. `kill_before` and the power cuts of its plan end this very
    process: on a real disk nothing less is like it. A failing `write` leaves the share of its data that the plan names,
    a failing `close` has closed all the same, as on Linux."""

    def __init__(self, disk: Disk, faults: Faults = NO_FAULTS) -> None:
        self._disk = disk
        self.calls = Calls(faults, kill_this_process)

    def write(self, fd: int, data: bytes) -> None:
        """See Disk."""
        failure = self.calls.begin(f"write({fd}, {len(data)} bytes)")
        if failure is not None:
            self._disk.write(fd, data[: int(len(data) * self.calls.faults.written)])
            raise failure
        self._disk.write(fd, data)
        self.calls.end()

    def close(self, fd: int) -> None:
        """See Disk."""
        failure = self.calls.begin(f"close({fd})")
        self._disk.close(fd)
        if failure is not None:
            raise failure
        self.calls.end()

    def is_named(self, fd: int, path: str) -> bool:
        """See Disk."""
        return self._disk.is_named(fd, path)

    def lock(self, path: str, session_id: str) -> SessionLock:
        """See Disk. A failing one raises WriteFailed, as the real one does."""
        failure = self.calls.begin(f"lock({path})")
        if failure is not None:
            raise WriteFailed(f"the lock {path} cannot be opened: {failure.strerror}") from failure
        lock = self._disk.lock(path, session_id)
        self.calls.end()
        return _CountedLock(lock, self.calls, path)

    def boot_id(self) -> str | None:
        """See Disk."""
        return self._disk.boot_id()


def _counted(name: str, *, reads: bool) -> Callable[..., Any]:
    """The method `name` of a FailingDisk: counted, failed where the plan says so, else passed on."""

    def method(disk: FailingDisk, *arguments: Any) -> Any:
        failure = disk.calls.begin(f"{name}({', '.join(map(str, arguments))})", reads=reads)
        if failure is not None:
            raise failure
        result = getattr(disk._disk, name)(*arguments)  # noqa: SLF001  a method of its class
        if not reads:
            disk.calls.end()
        return result

    return method


for _name in ("make_private_dir", "open_new", "open_append", "sync", "replace", "link", "remove", "sync_directory"):
    setattr(FailingDisk, _name, _counted(_name, reads=False))
for _name in ("read", "status", "names", "holder"):
    setattr(FailingDisk, _name, _counted(_name, reads=True))


class _CountedLock(SessionLock):
    """A lock whose release is a call of its disk: killed before it, the process leaves the lock's file."""

    def __init__(self, lock: SessionLock, calls: Calls, path: str) -> None:
        self._lock = lock
        self._calls = calls
        self._path = path

    def still_held(self) -> bool:
        """See SessionLock."""
        return self._lock.still_held()

    def release(self, *, remove: bool, untouched: bool = False) -> None:
        """See SessionLock. One that fails keeps the file and lets go of the lock."""
        failure = self._calls.begin(f"release({self._path}, remove={remove})")
        self._lock.release(remove=remove and failure is None, untouched=untouched)
        self._calls.end()


def kill_after_record(number: int) -> None:
    """From now on this process dies once it has appended `number` records, 1 being the next."""
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
    """From now on every Disk of this process follows the plan; returns the one that counts for all of them."""
    own = {name: value for name, value in vars(Disk).items() if isinstance(value, FunctionType)}
    # With the methods as they are now, so that what one of them asks of another is no call of the store's.
    untouched: Disk = type("UntouchedDisk", (Disk,), own)()
    failing = FailingDisk(untouched, faults)
    for name in own:
        # On the class and not on an object: the store may have been given the shared disk before anybody could swap it.
        setattr(Disk, name, _pass_on(getattr(failing, name)))
    return failing


def _pass_on(method: Any) -> Any:
    return lambda _disk, *arguments: method(*arguments)


def run(argv: list[str]) -> int:
    """The exit code of `agent-host`, if it lives to have one. Raises SystemExit(2) where the arguments are wrong."""
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
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--after-record", type=_number, metavar="N", help="die after the N-th record")
    where.add_argument("--before-call", type=_number, metavar="N", help="die before the N-th call to the disk")
    where.add_argument("--fail-call", type=_number, metavar="N", help="the N-th call to the disk fails")
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
