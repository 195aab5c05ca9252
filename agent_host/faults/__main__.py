"""`python -m agent_host.faults`: fault runs from the command line, so that one command reproduces each crash bug."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import shlex
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent_host.faults.crash_run import NotReached
from agent_host.faults.faults import (
    CrashArguments,
    FailSystemCall,
    Fault,
    KillAfterRecord,
    KillAtInstant,
    KillDuringRecovery,
    KillHelpers,
    NoFault,
    Race,
    every_system_call,
    run_through,
    why_not,
)
from agent_host.faults.scenarios import SCENARIOS, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_COMMAND = "python -m agent_host.faults"
RANDOM_SEEDS = range(12)
HELPER_SEEDS = range(25)
"""Each seed kills about twelve helpers."""
RECOVERIES = ((2, 1), (2, 2), (3, 3), (11, 2), (12, 1))
RACES = (Race(3), Race(3, 3), Race(4, 7), Race(3, 12), Race(2, 30))


class FaultJob(NamedTuple):
    """One fault run; `scenario` is a name in SCENARIOS or MODULE:CLASS."""

    fault: Fault
    scenario: str
    output: str

    @property
    def command(self) -> str:
        """The command line that reproduces this run."""
        options = [*self.fault.arguments, "--scenario", self.scenario, "--output", self.output]
        return f"{_COMMAND} {shlex.join(options)}"


class JobVerdict(NamedTuple):
    """The outcome of a job. `reached` is False if the fault could not happen."""

    problems: list[str]
    reached: bool = True


def run(argv: Sequence[str]) -> int:
    """Run or list the faults and return the exit code: 0, or 1 if a run failed. Invalid arguments exit with 2."""
    chosen = _parse(argv)
    faults: Iterable[Fault] = _every_fault(chosen.scenario) if chosen.all or chosen.list else [chosen.fault]
    jobs = [FaultJob(fault, chosen.scenario, chosen.output) for fault in faults]
    if chosen.list:
        for job in jobs:
            sys.stdout.write(job.command + "\n")
        sys.stdout.write(f"{_COMMAND} --after-record N --scenario {chosen.scenario}, N from 1 to the last record\n")
        return 0
    failed = 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for job, verdict in zip(jobs, pool.map(try_job, jobs), strict=True):
            failed += _report(job, verdict, alone=not chosen.all)
        if chosen.all:
            for number in itertools.count(1, chosen.jobs):
                records = map(KillAfterRecord, range(number, number + chosen.jobs))
                batch = [FaultJob(fault, chosen.scenario, chosen.output) for fault in records]
                verdicts = list(pool.map(try_job, batch))
                failed += sum(_report(job, verdict, alone=False) for job, verdict in zip(batch, verdicts, strict=True))
                if not all(verdict.reached for verdict in verdicts):
                    break
    return 1 if failed else 0


def try_job(job: FaultJob) -> JobVerdict:
    """Run one job in a temporary folder. If the run fails, the folder is kept and its last problem names it."""
    folder = Path(tempfile.mkdtemp(prefix="agent-host-run-")).resolve()
    try:
        problems = run_through(job.fault, folder, _scenario_named(job.scenario), output=job.output)
        if problems:
            return JobVerdict([*problems, f"kept: {folder}"])
        verdict = JobVerdict([])
    except NotReached as error:
        verdict = JobVerdict([str(error)], reached=False)
    shutil.rmtree(folder)
    return verdict


def _scenario_named(name: str) -> Scenario:
    """Return a built-in scenario, or an instance of the class `MODULE:CLASS`. Raises LookupError, ImportError,
    AttributeError."""
    module, _, attribute = name.partition(":")
    made = getattr(importlib.import_module(module), attribute)() if attribute else SCENARIOS[name]()
    if not isinstance(made, Scenario):
        raise LookupError(f"{name} is not a Scenario")
    return made


def _report(job: FaultJob, verdict: JobVerdict, *, alone: bool) -> bool:
    """Print the result of one run; return True if it failed."""
    if not verdict.reached and not alone:
        return False  # the one after the last record
    if not verdict.problems:
        sys.stdout.write(f"ok      {job.command}\n")
        return False
    sys.stdout.write(f"FAILED  {job.command}\n")
    for problem in verdict.problems:
        sys.stdout.write(f"        {' '.join(problem.split())}\n")
    sys.stdout.flush()
    return True


def _every_fault(scenario: str) -> Iterator[Fault]:
    """Yield all faults except the kills after a record, whose number depends on the scenario."""
    yield NoFault()
    yield from map(KillAtInstant, RANDOM_SEEDS)
    yield from itertools.starmap(KillDuringRecovery, RECOVERIES)
    yield from RACES
    if scenario == "helpers":
        yield from map(KillHelpers, HELPER_SEEDS)
    if scenario == "brief" and why_not() is None:
        yield from every_system_call()


_OPTIONS: tuple[tuple[type[Fault], str, str], ...] = (
    (KillAfterRecord, "N", "SIGKILL right after the N-th record"),
    (KillAtInstant, "SEED", "SIGKILL at three random instants"),
    (KillDuringRecovery, "N,M", "SIGKILL after record N, and after record M of the resume"),
    (KillHelpers, "SEED", "SIGKILL to a helper process whenever the model is asked; with --scenario helpers"),
    (Race, "N[,K]", "N processes start one session at once; with K, resume one killed after record K"),
    (CrashArguments, "OPTIONS", "options of agent_host.faults.crash"),
    (FailSystemCall, "CALL:N[+][:ERROR]", "the N-th fails (+: and later ones); or SIGKILL"),
)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description="Kill, race and starve real agent-host processes, resume, and check the end. See docs/faults.md.",
        allow_abbrev=False,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    for fault, metavar, text in _OPTIONS:
        which.add_argument(fault.option, type=fault.parse, dest="fault", metavar=metavar, help=text)
    which.add_argument("--undisturbed", action="store_const", const=NoFault(), dest="fault", help="no fault at all")
    which.add_argument("--all", action="store_true", help="every run; those of system calls with --scenario brief")
    which.add_argument("--list", action="store_true", help="the commands of --all")
    parser.add_argument("--scenario", default="effects", help=f"{', '.join(SCENARIOS)} or MODULE:CLASS (effects)")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="what the processes print (text)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once (one a processor)")
    chosen = parser.parse_args(argv)
    try:
        _scenario_named(chosen.scenario)
    except (LookupError, ImportError, AttributeError) as error:
        parser.error(f"--scenario {chosen.scenario}: {error}")
    if isinstance(chosen.fault, FailSystemCall) and (reason := why_not()):
        parser.error(f"--system-call: {reason}")
    return chosen


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
