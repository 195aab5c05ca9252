"""System calls that fail under a session's feet: strace refuses one that a checkpoint is written with, once or from
then on, or kills the process before it. Linux only; needs the program `strace` and leave to trace."""

from __future__ import annotations

import collections
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_host.faults.crash_run import KILLED, CrashRun, NotReached
from agent_host.faults.scenarios import Brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KILL = "SIGKILL"
# All that a checkpoint may be made of, by the names of several machines; strace passes over those that it lacks.
_CALLS = (
    *("open", "openat", "creat", "link", "linkat", "mkdir", "mkdirat", "flock", "chmod", "fchmod", "fchmodat", "close"),
    *("write", "pwrite64", "writev", "fallocate", "ftruncate", "fdatasync", "fsync"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat"),
    *("stat", "lstat", "fstat", "newfstatat", "statx", "read"),
)
_QUIET = ("strace", "-f", "-qq", "-e", "signal=none")


@dataclass(frozen=True, slots=True)
class Traced:
    """System calls of an undisturbed session for its checkpoint: `files`, paths below the state directory, and how
    often each call is made on them."""

    files: tuple[str, ...]
    calls: Mapping[str, int]


@functools.cache
def why_not() -> str | None:
    """Why system calls cannot be made to fail here; None when they can."""
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
    """Of one session of `Brief`, made for this in a temporary folder. Raises RuntimeError when it did not go well."""
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
class FailSystemCall:
    """The `number`-th `call` on the checkpoint's files, from 1, fails with `error` (a name such as ENOSPC), with
    `persistently` every later one too; with the error "SIGKILL" the process is killed before the call is made."""

    call: str
    number: int
    error: str = "EIO"
    persistently: bool = False

    @classmethod
    def parse(cls, text: str) -> FailSystemCall:
        """From `CALL:NUMBER[+][:ERROR]`, as the command takes it. Raises ValueError."""
        call, _, rest = text.partition(":")
        number, _, error = rest.partition(":")
        if call not in _CALLS:
            raise ValueError(f"{call!r} is none of {', '.join(_CALLS)}")
        return cls(call, int(number.removesuffix("+")), error or "EIO", number.endswith("+"))

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--system-call", f"{self.call}:{self.number}{'+' if self.persistently else ''}:{self.error}")

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. Raises RuntimeError where `why_not` has a reason."""
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
        # Where nothing is left there was nothing to lose either.
        if ended.code == crash_run.scenario.exit_code and crash_run.leftovers() and not _has_warned(crash_run):
            crash_run.problems.append("a call failed, and no event says so")

    def _command(self, crash_run: CrashRun) -> Iterator[str]:
        yield from _QUIET
        when = f"{self.number}{'+' if self.persistently else ''}"
        if self.error == KILL:
            # The signal is delivered at a stop that the fast way of tracing does not make; the error keeps the call
            # itself from happening.
            yield from ("-e", f"trace={self.call}", "-e", f"inject={self.call}:error=EIO:signal=KILL:when={when}")
        else:
            yield from ("--seccomp-bpf", "-e", f"trace={self.call}")
            yield from ("-e", f"inject={self.call}:error={self.error}:when={when}")
        for name in trace().files:
            yield from ("-P", f"{crash_run.paths.state_dir}/{name}")


def _has_warned(crash_run: CrashRun) -> bool:
    return any(event.get("eventType") == "checkpoint_failed" for event in crash_run.events())


def every_system_call(*, errors: Sequence[str] = ("ENOSPC", "EIO")) -> Iterator[FailSystemCall]:
    """Each call of a session of `Brief` failed once, failed from then on, and the process killed before it."""
    for call, count in trace().calls.items():
        for number in range(1, count + 1):
            error = errors[number % len(errors)]
            yield FailSystemCall(call, number, error)
            yield FailSystemCall(call, number, error, persistently=True)
            yield FailSystemCall(call, number, KILL)
