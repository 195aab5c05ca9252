"""What came of a crash_run: whole processes that were started, killed and resumed."""

from __future__ import annotations

import pytest

from agent_host.faults.command import Job, Verdict, try_job


@pytest.fixture
def verdict(job: Job) -> Verdict:
    """What came of the test's `job`."""
    return try_job(job)
