"""Faults for real running processes, and the function that runs a session with one of them.

    python -m agent_host.faults --after-record 7     # one run; --all runs every one
    python -m agent_host.faults --list

A run starts a session, injects its fault, resumes until the session is done, and checks the end: no effect happened
twice, none is unreported, the thread is valid, the totals are right, and the answer is that of an undisturbed session.
See docs/faults.md.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from agent_host.faults.crash_run import KILLED, Count, CrashRun, Ended, NotReached, count, growth, idle_helpers
from agent_host.faults.scenarios import Brief, Effects, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.faults.crash_run import StartedProcess

_HELD = 75
_UNUSABLE = 2


KILL = "SIGKILL"
# All system calls that may be used to write a checkpoint, on several platforms; strace ignores those that it lacks.
_CALLS = (
    *("open", "openat", "creat", "link", "linkat", "mkdir", "mkdirat", "flock", "chmod", "fchmod", "fchmodat", "close"),
    *("write", "pwrite64", "writev", "fallocate", "ftruncate", "fdatasync", "fsync"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat"),
    *("stat", "lstat", "fstat", "newfstatat", "statx", "read"),
)
_QUIET = ("strace", "-f", "-qq", "-e", "signal=none")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a running session. `option` of `python -m agent_host.faults` reproduces it, with the fault's text as
    its value, which `parse` reads."""

    option: ClassVar[str]

    def __str__(self) -> str:
        given = (getattr(self, one.name) for one in fields(self) if not one.kw_only)
        return ",".join(str(value) for value in given if value is not None)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of `python -m agent_host.faults` that reproduce the fault."""
        return self.option, str(self)

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse the value of the option. Raises ValueError, TypeError."""
        return cls(*map(int, text.split(",")))

    def inflict(self, crash_run: CrashRun) -> None:
        """Start the session of `crash_run` and inject the fault; no process runs on return. Raises NotReached."""
        raise NotImplementedError


def run_through(fault: Fault, folder: Path, scenario: Scenario | None = None, *, output: str = "text") -> list[str]:
    """Run a session of `scenario` (default: Effects) with `fault` to its end, in `folder`, an existing empty directory.
    Returns the problems, one line each. Raises NotReached."""
    crash_run = CrashRun(folder, scenario if scenario is not None else Effects(), output=output)
    with crash_run.serving():
        fault.inflict(crash_run)
        crash_run.recover()
        return crash_run.check()


@dataclass(frozen=True, slots=True)
class NoFault(Fault):
    """An undisturbed session, which must pass the same checks."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--undisturbed",)

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        _expect_end(crash_run, crash_run.finish(crash_run.run()))


@dataclass(frozen=True, slots=True)
class KillAfterRecord(Fault):
    """SIGKILL right after the `number`-th record of the first process, from 1."""

    option = "--after-record"
    number: int

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        _kill_after(self.number, crash_run, crash_run.run)


@dataclass(frozen=True, slots=True)
class KillDuringRecovery(Fault):
    """SIGKILL after record `first`, and again after record `second` of the process that resumes."""

    option = "--recovery"
    first: int
    second: int

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        _kill_after(self.first, crash_run, crash_run.run)
        _kill_after(self.second, crash_run, crash_run.resume, "records of the resume")


@dataclass(frozen=True, slots=True)
class KillAtInstant(Fault):
    """SIGKILL `kills` times in a row, each at a random instant within `seconds` after the process took the session's
    lock."""

    option = "--random"
    seed: int
    kills: int = field(default=3, kw_only=True)
    seconds: float = field(default=0.4, kw_only=True)

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. It is fine if the session is done before the last kill."""
        crash_run.lock_may_stay = True
        chance = random.Random(self.seed)
        process = crash_run.run()
        for _ in range(self.kills):
            crash_run.wait_until_held(process)
            crash_run.finish(process, kill_after_s=chance.uniform(0.0, self.seconds))
            if crash_run.reported is not None:
                return
            process = crash_run.resume()
        crash_run.finish(process)


@dataclass(frozen=True, slots=True)
class KillHelpers(Fault):
    """SIGKILL to a helper process of the host at each model call: the process that starts programs in namespaces, a
    prepared one, the first of its namespace, or the orphan reaper. The session continues undisturbed, and its processes
    and descriptors do not accumulate. Linux only."""

    option = "--helpers"
    seed: int

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. Raises NotReached if there was no helper."""
        chance = random.Random(self.seed)
        process = crash_run.run()
        counts: list[Count] = []
        killed = asked = 0
        while process.poll() is None:
            time.sleep(0.002)
            if len(crash_run.gateway.requests) <= asked:
                continue
            asked = len(crash_run.gateway.requests)
            time.sleep(chance.uniform(0.0, 0.02))
            found, helpers = count(process.pid), idle_helpers(process.pid)
            if found is not None:
                counts.append(found)
            if helpers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(helpers), signal.SIGKILL)
                    killed += 1
        crash_run.problems += growth(counts)
        _expect_end(crash_run, crash_run.finish(process))
        if not killed:
            raise NotReached("the session had no helper process")


@dataclass(frozen=True, slots=True)
class Race(Fault):
    """`processes` at once for one session. With `record`, they resume a session that was killed after that record;
    without, they all start one under the same id. One gets it; the others report the process that has it, or that the
    session exists already or is over."""

    option = "--race"
    processes: int
    record: int | None = None

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        crash_run.lock_may_stay = True
        if self.record is not None:
            _kill_after(self.record, crash_run, crash_run.run)
        start = crash_run.run if self.record is None else crash_run.resume
        started = [start() for _ in range(self.processes)]
        ended = [crash_run.finish(process) for process in started]
        winners = [process for process in ended if crash_run.reports_the_end(process)]
        if len(winners) != 1:
            crash_run.problems.append(f"{len(winners)} of {self.processes} processes had the session")
            return
        crash_run.reported = winners[0]
        for loser in ended:
            if loser is not winners[0] and not _is_rejected(loser, winners[0]):
                crash_run.problems.append(f"turned away with exit code {loser.code} and {loser.err.strip()!r}")


def _is_rejected(loser: Ended, winner: Ended) -> bool:
    """True if `loser` ended with one line and the matching exit code."""
    if loser.out or loser.err.count("\n") != 1:
        return False
    if loser.code == _HELD:
        return f"in use by process {winner.pid}:" in loser.err
    words = ("there is no session", "exists already", "has ended")
    return loser.code == _UNUSABLE and any(word in loser.err for word in words)


@dataclass(frozen=True, slots=True)
class CrashArguments(Fault):
    """Any options of agent_host.faults.crash, such as `--fail-call 12 --errno ENOSPC --persistently`, which kill the
    process or make its disk fail."""

    option = "--crash-arguments"
    options: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.options)

    @classmethod
    def parse(cls, text: str) -> CrashArguments:
        """See Fault."""
        return cls(tuple(shlex.split(text)))

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. It is unknown if the fault was reached, so NotReached is never raised."""
        ended = crash_run.finish(crash_run.run(crash=self.options))
        if ended.code != KILLED:
            crash_run.check_paused_or_done(ended)


def _expect_end(crash_run: CrashRun, ended: Ended) -> None:
    if ended.code != crash_run.scenario.exit_code:
        crash_run.problems.append(f"exit code {ended.code}: {ended.err.strip()}")


def _kill_after(
    record: int, crash_run: CrashRun, start: Callable[..., StartedProcess], records: str = "records"
) -> None:
    """Start a process that kills itself after a record. Raises NotReached if it ends before."""
    ended = crash_run.finish(start(crash=("--after-record", str(record))))
    if ended.code == KILLED:
        return
    if ended.code == crash_run.scenario.exit_code:
        raise NotReached(f"the session has fewer than {record} {records}")
    crash_run.problems.append(f"exit code {ended.code} instead of a kill: {ended.err.strip()}")


@dataclass(frozen=True, slots=True)
class Traced:
    """System calls of an undisturbed session on its checkpoint: `files` are paths below the state directory, `calls`
    the number of times each call is made on them."""

    files: tuple[str, ...]
    calls: Mapping[str, int]


@functools.cache
def why_not() -> str | None:
    """Return the reason why system calls cannot be made to fail here; None if they can."""
    if sys.platform != "linux":
        return "only Linux has strace"
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(
        [*_QUIET, "--seccomp-bpf", "-e", "trace=none", sys.executable, "-c", ""],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"strace cannot trace here: {done.stderr.strip()}" if done.returncode or done.stderr else None


@functools.cache
def trace() -> Traced:
    """Trace one session of `Brief` in a temporary folder. Raises RuntimeError if the session had problems."""
    with tempfile.TemporaryDirectory(prefix="agent-host-traced-") as name:
        folder = Path(name).resolve()
        log = folder / "strace"
        crash_run = CrashRun(folder, Brief())
        with crash_run.serving():
            names = ",".join(f"?{call}" for call in _CALLS)
            crash_run.finish(
                crash_run.run(prefix=[*_QUIET, "--seccomp-bpf", "-y", "-o", str(log), "-e", f"trace={names}"])
            )
            problems = crash_run.check()
        if problems:
            raise RuntimeError(f"a traced session without a fault went wrong: {'; '.join(problems)}")
        return _read_log(log.read_text(encoding="utf-8", errors="replace"), crash_run)


def _read_log(text: str, crash_run: CrashRun) -> Traced:
    state = re.escape(crash_run.paths.state_dir)
    ours = re.compile(rf'["<]{state}/(checkpoints(?:/[^">]*)?|sessions/[^/">]+/result\.json[^">]*)[">]')
    files: set[str] = set()
    calls: collections.Counter[str] = collections.Counter()
    for line in text.splitlines():
        name = re.match(r"\d+ +(\w+)\(", line)
        if name is not None and (found := ours.findall(line)):
            files.update(found)
            calls[name[1]] += 1
    return Traced(tuple(sorted(files)), dict(sorted(calls.items())))


@dataclass(frozen=True, slots=True)
class FailSystemCall(Fault):
    """The `number`-th `call` on the checkpoint's files, counted from 1, fails with `error` (a name such as ENOSPC);
    with `persistently` every later one fails too. With the error "SIGKILL" the process is killed before the call is
    made."""

    option = "--system-call"
    call: str
    number: int
    error: str = "EIO"
    persistently: bool = False

    @classmethod
    def parse(cls, text: str) -> FailSystemCall:
        """Parse `CALL:NUMBER[+][:ERROR]`, the option's format. Raises ValueError."""
        call, _, rest = text.partition(":")
        number, _, error = rest.partition(":")
        if call not in _CALLS:
            raise ValueError(f"{call!r} is none of {', '.join(_CALLS)}")
        return cls(call, int(number.removesuffix("+")), error or "EIO", number.endswith("+"))

    def __str__(self) -> str:
        return f"{self.call}:{self.number}{'+' if self.persistently else ''}:{self.error}"

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. Raises RuntimeError if `why_not` returns a reason."""
        if reason := why_not():
            raise RuntimeError(reason)
        crash_run.lock_may_stay = True
        log = crash_run.folder / "strace"
        ended = crash_run.finish(crash_run.run(prefix=[*self._command(crash_run), "-o", str(log)]))
        if ended.code == KILLED and self.error == KILL:
            return
        if "(INJECTED)" not in log.read_text(encoding="utf-8", errors="replace"):
            raise NotReached(f"the session makes fewer than {self.number} of {self.call}")
        crash_run.check_paused_or_done(ended)
        warned = any(event.get("eventType") == "checkpoint_failed" for event in crash_run.events())
        # If no files are left, there was nothing to lose.
        if ended.code == crash_run.scenario.exit_code and crash_run.leftovers() and not warned:
            crash_run.problems.append("a call failed, and no event says so")

    def _command(self, crash_run: CrashRun) -> Iterator[str]:
        yield from _QUIET
        when = f"{self.number}{'+' if self.persistently else ''}"
        if self.error == KILL:
            # The signal needs a stop that --seccomp-bpf does not make; the error prevents the call itself.
            yield from ("-e", f"trace={self.call}", "-e", f"inject={self.call}:error=EIO:signal=KILL:when={when}")
        else:
            yield from ("--seccomp-bpf", "-e", f"trace={self.call}")
            yield from ("-e", f"inject={self.call}:error={self.error}:when={when}")
        for name in trace().files:
            yield from ("-P", f"{crash_run.paths.state_dir}/{name}")


def every_system_call(*, errors: Sequence[str] = ("ENOSPC", "EIO")) -> Iterator[FailSystemCall]:
    """Yield three faults for each call of a session of `Brief`: it fails once, it fails from then on, and the process
    is killed before it."""
    for call, times in trace().calls.items():
        for number in range(1, times + 1):
            error = errors[number % len(errors)]
            yield FailSystemCall(call, number, error)
            yield FailSystemCall(call, number, error, persistently=True)
            yield FailSystemCall(call, number, KILL)
