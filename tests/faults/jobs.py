"""Fault runs as parameters of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent_host.faults.__main__ import FaultJob, JobVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent_host.faults.faults import Fault


def runs(faults: Iterable[Fault], *, scenario: str = "effects", output: str = "text") -> pytest.MarkDecorator:
    """Parametrises a test that takes `job` and `verdict`."""
    jobs = [FaultJob(fault, scenario, output) for fault in faults]
    return pytest.mark.parametrize("job", jobs, ids=[" ".join(job.fault.arguments) for job in jobs])


def passes(job: FaultJob, verdict: JobVerdict) -> None:
    """The run found nothing wrong; a failure starts with the command that does it again."""
    assert verdict == JobVerdict([]), "\n".join([job.command, *verdict.problems])
