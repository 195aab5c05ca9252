"""What policy allows is really run, in a jail of stub programs: nothing unlisted starts, nothing else changes.

`AGENT_HOST_JAIL_LINES=200000 AGENT_HOST_JAIL_SEED=7` makes it a long hunt. `python -m tests.support.shell_hunt` does
the same without pytest, and goes on after what it finds; `--kinds` in a workspace with protected files and links.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from tests.support.shell_lines import Lines

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the shells are POSIX's")

LINES = int(os.environ.get("AGENT_HOST_JAIL_LINES", "8000"))
KINDS = int(os.environ.get("AGENT_HOST_JAIL_LINES", "1500"))
SEED = int(os.environ.get("AGENT_HOST_JAIL_SEED", "1"))
WORKERS = min(os.cpu_count() or 1, 4)
_PATIENCE_S = 120 + LINES / 20


class Report(NamedTuple):
    """What the processes of a hunt found, and their counts together."""

    escapes: list[dict[str, Any]]
    counts: dict[str, int]


def hunt(lines: int, *options: str, workers: int = 1, judge: str = "policy") -> Report:
    """Run a hunt in `workers` processes, each with a seed of its own."""
    module = [
        sys.executable,
        "-m",
        "tests.support.shell_hunt",
        "--judge",
        judge,
        "--lines",
        str(lines // workers),
        *options,
    ]
    started = [
        subprocess.Popen(
            [*module, "--seed", str(SEED + number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for number in range(workers)
    ]
    escapes: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    try:
        for process in started:
            output, errors = process.communicate(timeout=_PATIENCE_S)
            assert process.returncode == 0, errors.decode()
            *found, last = [json.loads(line) for line in output.splitlines()]
            escapes += found
            for name, count in last["counts"].items():
                counts[name] = counts.get(name, 0) + count
    finally:
        for process in started:
            process.kill()
            process.wait()
    return Report(escapes, counts)


@pytest.mark.slow
def test_no_allowed_line_starts_or_changes_what_it_may_not() -> None:
    report = hunt(LINES, workers=WORKERS)
    assert report.escapes == []
    # Refusing everything would be no proof, and neither would lines that start nothing.
    assert report.counts["judged"] == LINES // WORKERS * WORKERS
    assert report.counts["run"] > report.counts["judged"] * 0.2
    assert report.counts["started"] > report.counts["run"] * 0.5


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--blocks",)], ids=["a list", "blocks alone"])
def test_no_allowed_line_is_of_the_kinds_by_which_hunts_got_out(options: tuple[str, ...]) -> None:
    report = hunt(KINDS, "--kinds", "--whole", *options, workers=WORKERS)
    assert report.counts["run"] > 10
    assert report.escapes == []


@pytest.mark.slow
def test_a_judge_that_allows_everything_is_found_out() -> None:
    report = hunt(150, "--kinds", judge="everything")
    assert {escape["problem"].split()[0] for escape in report.escapes} >= {"started", "changed"}
    assert len(report.escapes) >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judge", "lines", "kinds"),
    [("first-word", 700, {"started", "looked", "changed"}), ("no-redirections", 1_600, {"changed"})],
)
def test_a_judge_that_is_talked_round_is_found_out(judge: str, lines: int, kinds: set[str]) -> None:
    """The net itself: it catches programs, names that no program has, and files."""
    report = hunt(lines, judge=judge)
    assert {escape["problem"].split()[0] for escape in report.escapes} == kinds
    assert len(report.escapes) >= 10


def test_the_same_seed_makes_the_same_lines() -> None:
    one, two, other = Lines(5, ["ls"]), Lines(5, ["ls"]), Lines(6, ["ls"])
    made = [one.line() for _ in range(200)]
    assert made == [two.line() for _ in range(200)]
    assert made != [other.line() for _ in range(200)]
    assert len(set(made)) > 150
