"""What came of a crash_run: whole processes that were started, killed and resumed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.faults.__main__ import FaultJob, JobVerdict, try_job
from agent_host.faults.crash_run import CrashRun, StartedProcess, start_process
from agent_host.faults.faults import KillAtInstant
from tests.support import warm_starts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _start(argv: Sequence[str], env: Mapping[str, str]) -> StartedProcess:
    return warm_starts.start_argv(argv, env) if argv[0] == sys.executable else start_process(argv, env)


@pytest.fixture(autouse=True)
def _starts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are forked, but for those that are traced and those that may be killed while they import."""
    job = request.node.callspec.params.get("job") if hasattr(request.node, "callspec") else None
    at_any_instant = isinstance(job, FaultJob) and isinstance(job.fault, KillAtInstant)
    if warm_starts.can_start({}) and not at_any_instant:
        monkeypatch.setattr(CrashRun, "start", staticmethod(_start))


@pytest.fixture
def verdict(job: FaultJob) -> JobVerdict:
    """What came of the test's `job`."""
    return try_job(job)
