"""A file with two names, written by a session that is killed after each of its records and resumed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.faults.crash_run import CrashRun
from agent_host.faults.faults import KillAfterRecord
from agent_host.faults.scenarios import RunOutcome, Scenario, script_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.testing.script import Script

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="kills")]


class TwoNames(Scenario):
    """One write into a file with two names."""

    answer = "It is written."

    def prepare(self, workspace: Path) -> None:
        (workspace / "a").write_text("one\n")
        (workspace / "b").hardlink_to(workspace / "a")

    def script(self, workspace: Path) -> Script:
        write = {"name": "WriteFile", "arguments": {"path": f"{workspace}/a", "content": "two\n"}}
        return script_of([([write], [write])], self.answer)

    def check(self, outcome: RunOutcome) -> list[str]:
        held = (outcome.workspace / "b").read_text()
        return [] if held == "two\n" and (outcome.workspace / "a").samefile(outcome.workspace / "b") else [held]


@pytest.mark.parametrize("number", range(1, 6))
def test_a_killed_write_in_place_leaves_one_file_and_nothing_kept(tmp_path: Path, number: int) -> None:
    crash_run = CrashRun(tmp_path, TwoNames())
    with crash_run.serving():
        KillAfterRecord(number).inflict(crash_run)
        crash_run.recover()
        assert crash_run.check() == []
    kept = crash_run.paths.kept_folder
    assert not os.path.isdir(kept) or os.listdir(kept) == []
