"""Every system call that a checkpoint is written with, failed once, failed from then on, and the process killed before
it.

What must hold: no effect starts before its record is durable, what fails is told by an event or pauses the task, and
once the disk is well a resume comes to the same end. By default each kind of call is tried at some of its places; with
AGENT_HOST_ALL_FAULTS=1 at all of them, which takes minutes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent_host.faults.crash_run import CrashRun
from agent_host.faults.faults import KILL, FailSystemCall, every_system_call, trace, why_not
from agent_host.faults.scenarios import EFFECTS, Brief
from tests.faults.jobs import passes, runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.faults.__main__ import FaultJob, JobVerdict

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def tried() -> Iterator[FailSystemCall]:
    if REASON is not None:
        return
    if os.environ.get("AGENT_HOST_ALL_FAULTS") == "1":
        yield from every_system_call()
        return
    for call, count in trace().calls.items():
        yield FailSystemCall(call, (count + 1) // 2, "ENOSPC")
        yield FailSystemCall(call, (count + 3) // 4, "EIO", persistently=True)
        yield FailSystemCall(call, (3 * count + 3) // 4, KILL)


@runs(tried(), scenario="brief")
def test_a_checkpoint_s_system_calls_fail(job: FaultJob, verdict: JobVerdict) -> None:
    passes(job, verdict)


def test_what_is_tried_is_what_a_checkpoint_is_made_of() -> None:
    assert {"openat", "write", "fdatasync", "fsync", "close"} <= trace().calls.keys()
    assert any(call.startswith("rename") for call in trace().calls)


@pytest.mark.parametrize("number", [3, 4, 5])
def test_nothing_starts_whose_record_is_not_durable(tmp_path: Path, number: int) -> None:
    """The turn that the gateway gave last could not be synced, so none of its calls has had an effect."""
    crash_run = CrashRun(tmp_path, Brief())
    with crash_run.serving():
        FailSystemCall("fdatasync", number, "EIO", persistently=True).inflict(crash_run)
        turns = len(crash_run.gateway.requests)
        assert turns in (1, 2)
        assert sorted((crash_run.workspace / "effects.log").read_text().split()) == sorted(EFFECTS[: 2 * (turns - 1)])
        crash_run.recover()
        assert crash_run.check() == []
