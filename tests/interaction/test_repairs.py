"""The benchmark of repairs: its checks tell a repair from a bug, and a batch scores it as its script says."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.testing import MockGateway, Script
from tests.support.repairs import FOLDER, MOCK, SOLUTIONS, SOLVED, TASKS, UNSOLVED, check, is_solved, repair, run_batch

if sys.platform == "win32":
    pytest.skip("shell lines of POSIX systems", allow_module_level=True)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host


def test_there_are_twenty_tasks_each_with_its_solution() -> None:
    assert (len(TASKS), len(SOLVED), len(UNSOLVED)) == (20, 15, 5)
    assert list(TASKS) == list(SOLUTIONS)
    assert {row["workspace"] for row in TASKS.values()} == {
        f"tasks/{path.name}" for path in (FOLDER / "tasks").iterdir()
    }


@pytest.mark.slow
@pytest.mark.many_rows(4)
@pytest.mark.parametrize("task", TASKS)
def test_a_check_passes_after_the_repair_and_not_before(tmp_path: Path, task: str) -> None:
    workspace = tmp_path / "workspace"
    shutil.copytree(FOLDER / TASKS[task]["workspace"], workspace)
    before = check(workspace, task)
    assert (before.returncode, "FAILED (" in before.stderr) == (1, True), before.stderr
    repair(workspace, task)
    after = check(workspace, task)
    assert (after.returncode, "\nOK\n" in after.stderr) == (0, True), after.stderr
    test = workspace / f"test_{task}.py"
    test.write_text(test.read_text() + "# changed\n")
    assert check(workspace, task).returncode != 0, "a test that was changed proves nothing"


@pytest.mark.slow
def test_a_batch_scores_the_repairs_as_their_script_solves_them(host: Host) -> None:
    gateway = MockGateway(Script.load(MOCK))
    with gateway.in_thread() as url:
        rows = run_batch(host, url)
    assert gateway.failures == []
    assert {name: is_solved(row) for name, row in rows.items()} == {task: task in SOLVED for task in TASKS}
    ended = {name: row["reason"] for name, row in rows.items() if row["status"] != "TASK_COMPLETED"}
    assert ended == {"temperature": "LLM_REPEATED_CALL"}
