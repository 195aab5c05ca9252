"""Trials take a second each, nearly all of it one processor's: while a test waits for its own, the next ones run."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from agent_host.testing.fault_command import Job, Verdict, try_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Ahead:
    """The verdicts on `jobs`, which are asked for in order."""

    def __init__(self, jobs: Sequence[Job], at_once: int) -> None:
        self._jobs = list(dict.fromkeys(jobs))
        self._at_once = at_once
        self._pool = ThreadPoolExecutor(at_once)
        self._futures: dict[Job, Future[Verdict]] = {}

    def verdict(self, job: Job) -> Verdict:
        at = self._jobs.index(job)
        for coming in self._jobs[at : at + self._at_once]:
            if coming not in self._futures:
                self._futures[coming] = self._pool.submit(try_job, coming)
        return self._futures[job].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def ahead(request: pytest.FixtureRequest) -> Iterator[Ahead]:
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    jobs = [given["job"] for given in parameters if isinstance(given.get("job"), Job)]
    trials = Ahead(jobs, os.cpu_count() or 1)
    yield trials
    trials.close()


@pytest.fixture
def verdict(ahead: Ahead, job: Job) -> Verdict:
    """What came of the test's `job`."""
    return ahead.verdict(job)
