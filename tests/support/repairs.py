"""The benchmark of repairs (benchmarks/repairs/README.md), as tests read it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.process import Host

FOLDER = Path(__file__).parents[2] / "benchmarks" / "repairs"
MOCK = FOLDER / "mock.jsonl"
UNSOLVED = {"tree", "words", "matrix", "versions", "temperature"}
"""The tasks that the script does not solve."""


def _rows(name: str) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in found}


TASKS = _rows("tasks.jsonl")
SOLUTIONS = _rows("solutions.jsonl")
SOLVED = set(TASKS) - UNSOLVED


def repair(workspace: Path, task: str) -> None:
    """Write the known solution."""
    solution = SOLUTIONS[task]
    path = workspace / solution["path"]
    text = path.read_text(encoding="utf-8")
    assert text.count(solution["oldText"]) == 1
    path.write_text(text.replace(solution["oldText"], solution["newText"]), encoding="utf-8", newline="\n")


def run_batch(host: Host, url: str) -> dict[str, dict[str, Any]]:
    """Run all tasks as a batch, each once: the row of each."""
    out = host.root / "out"
    options = ["--out", str(out), "--gateway", url, "--policy", "ci", "--jobs", "2", "--retries", "0"]
    outcome = host.run("batch", FOLDER / "tasks.jsonl", *options)
    assert outcome.code == 1, outcome.stderr
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in rows}


def is_solved(row: dict[str, Any]) -> bool:
    """The check of a row of a batch passed."""
    return row.get("check") == {"exitCode": 0}


def check(workspace: Path, task: str) -> subprocess.CompletedProcess[str]:
    """Run the check of a task in a workspace."""
    line = TASKS[task]["check"]
    return subprocess.run(line, shell=True, cwd=workspace, capture_output=True, text=True, timeout=60, check=False)
