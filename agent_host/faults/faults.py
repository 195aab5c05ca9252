"""Faults that happen to real running processes, and the command that puts a session through them.

    python -m agent_host.faults --after-record 7     # one run; --all runs every one
    python -m agent_host.faults --list

A run starts a session, lets its fault happen, resumes until the session is done, and checks the end: no effect twice,
none unreported, the thread sendable, the totals right, the answer of an undisturbed session. docs/faults.md says more.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent_host.faults.census import Count, count, growth, idle_helpers
from agent_host.faults.crash_run import KILLED, CrashRun, Ended, NotReached
from agent_host.faults.scenarios import Effects, RunOutcome, Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.faults.crash_run import StartedProcess

__all__ = [
    "CrashArguments",
    "CrashRun",
    "Ended",
    "Fault",
    "KillAfterRecord",
    "KillAtInstant",
    "KillDuringRecovery",
    "KillHelpers",
    "NoFault",
    "NotReached",
    "Race",
    "RunOutcome",
    "Scenario",
    "run_through",
]

_HELD = 75
_UNUSABLE = 2


class Fault(Protocol):
    """Something that happens to a running session."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of `python -m agent_host.faults` that make it happen again."""
        ...

    def inflict(self, crash_run: CrashRun) -> None:
        """Start the session of `run` and let it happen; no process runs on return. Raises NotReached."""
        ...


def run_through(fault: Fault, folder: Path, scenario: Scenario | None = None, *, output: str = "text") -> list[str]:
    """Put a session of `scenario` (default: Effects) in `folder`, an existing empty directory, through `fault` and to
    its end. Returns what was wrong, one line each. Raises NotReached."""
    crash_run = CrashRun(folder, scenario if scenario is not None else Effects(), output=output)
    with crash_run.serving():
        fault.inflict(crash_run)
        crash_run.recover()
        return crash_run.check()


@dataclass(frozen=True, slots=True)
class NoFault:
    """An undisturbed session, which must pass the same checks."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--undisturbed",)

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        ended = crash_run.finish(crash_run.run())
        if ended.code != crash_run.scenario.exit_code:
            crash_run.problems.append(f"exit code {ended.code}: {ended.err.strip()}")


@dataclass(frozen=True, slots=True)
class KillAfterRecord:
    """SIGKILL right after the `number`-th record of the first process, from 1."""

    number: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--after-record", str(self.number))

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        _await_kill(crash_run, crash_run.run(crash=_options_after(self.number)), f"{self.number} records")


@dataclass(frozen=True, slots=True)
class KillDuringRecovery:
    """SIGKILL after record `first`, and again after record `second` of the process that resumes."""

    first: int
    second: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--recovery", f"{self.first},{self.second}")

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        _await_kill(crash_run, crash_run.run(crash=_options_after(self.first)), f"{self.first} records")
        _await_kill(
            crash_run, crash_run.resume(crash=_options_after(self.second)), f"{self.second} records of the resume"
        )


@dataclass(frozen=True, slots=True)
class KillAtInstant:
    """SIGKILL `kills` times in a row, each at a random instant within `seconds` of taking hold of the session."""

    seed: int
    kills: int = 3
    seconds: float = 0.4

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--random", str(self.seed))

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. A session that was done before the last kill is fine."""
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
class KillHelpers:
    """SIGKILL to a helper process of the host whenever the model is asked: the process that starts programs in
    namespaces, one that it has ready, the first of its namespace, or the watcher. The session goes on undisturbed, and
    has no more processes and descriptors later on. Linux."""

    seed: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--helpers", str(self.seed))

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. Raises NotReached where there was no helper."""
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
        ended = crash_run.finish(process)
        if ended.code != crash_run.scenario.exit_code:
            crash_run.problems.append(f"exit code {ended.code}: {ended.err.strip()}")
        if not killed:
            raise NotReached("the session had no helper process")


@dataclass(frozen=True, slots=True)
class Race:
    """`processes` at once for one session. With `record`, they resume one that was killed after that record; without,
    they all start it under the same id. One gets it, the others get to know who has it or that it is there or over."""

    processes: int
    record: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--race", f"{self.processes}" + ("" if self.record is None else f",{self.record}"))

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault."""
        crash_run.lock_may_stay = True
        if self.record is not None:
            _await_kill(crash_run, crash_run.run(crash=_options_after(self.record)), f"{self.record} records")
        start = crash_run.run if self.record is None else crash_run.resume
        started = [start() for _ in range(self.processes)]
        ended = [crash_run.finish(process) for process in started]
        winners = [process for process in ended if crash_run.reports_the_end(process)]
        if len(winners) != 1:
            crash_run.problems.append(f"{len(winners)} of {self.processes} processes had the session")
            return
        crash_run.reported = winners[0]
        for loser in ended:
            if loser is not winners[0] and not _is_turned_away(loser, winners[0]):
                crash_run.problems.append(f"turned away with exit code {loser.code} and {loser.err.strip()!r}")


def _is_turned_away(loser: Ended, winner: Ended) -> bool:
    """True if `loser` ended with one line and the code that goes with it."""
    if loser.out or loser.err.count("\n") != 1:
        return False
    if loser.code == _HELD:
        return f"held by process {winner.pid}:" in loser.err
    words = ("there is no session", "exists already", "has ended")
    return loser.code == _UNUSABLE and any(word in loser.err for word in words)


@dataclass(frozen=True, slots=True)
class CrashArguments:
    """Whatever options of agent_host.faults.crash, such as `--fail-call 12 --errno ENOSPC --persistently`: the process
    is killed by them, or finds its disk failing."""

    options: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """See Fault."""
        return ("--crash-arguments", " ".join(self.options))

    def inflict(self, crash_run: CrashRun) -> None:
        """See Fault. Whether the fault was reached cannot be seen from here."""
        ended = crash_run.finish(crash_run.run(crash=self.options))
        if ended.code != KILLED:
            crash_run.check_paused_or_done(ended)


def _options_after(record: int) -> tuple[str, ...]:
    return ("--after-record", str(record))


def _await_kill(crash_run: CrashRun, process: StartedProcess, what: str) -> None:
    """Wait for a process that kills itself. Raises NotReached when it came to its end instead."""
    ended = crash_run.finish(process)
    if ended.code == KILLED:
        return
    if ended.code == crash_run.scenario.exit_code:
        raise NotReached(f"the session has fewer than {what}")
    crash_run.problems.append(f"exit code {ended.code} instead of a kill: {ended.err.strip()}")
