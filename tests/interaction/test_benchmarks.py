"""The benchmarks run: each in its short form, as a process, from a directory that is not the repository's.

Figures are only looked at for being there. What they should be depends on the machine.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from tests.support.browser import PROGRAM

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"(?P<what>\S.*?) {2,}(?P<figure>-?[\d.]+|-?inf|nan)( .*)?")
"""What was measured, two blanks at least, the figure; its unit, goal and note."""

POLICY = [
    f"{what}, {entries} entries a list"
    for entries in ("10", "1,000")
    for what in ("a path to read", "a path to write", "a shell line", "a URL", "the first path")
]
EVENTS = [
    f"{kind}, {what}"
    for kind in ("text_chunk", "step_completed")
    for what in (
        "creating one",
        "a client that reads nothing",
        "the ring",
        "encoding it",
        "encoding it, with two secrets to look for",
    )
]
TEXTS = ("code", "code, with two rules", "prose", "a secret a line", "one long value", "placeholders")
EXPECTED = {
    "loop": [
        "--version against a bare interpreter",
        "start to the first request, against the floor",
        "own time of a step over 10 steps, against the floor",
        "the same with a bundle file",
        "peak memory at 10 steps",
        "8 KiB of arguments in the events, against the floor",
        "8 parallel tools of 100 ms",
        "8 parallel `sleep 0.1` in bash",
    ],
    "checkpoint": [
        "a durable step of 1 call, against by hand",
        "syncs in a step of 1 call",
        "a durable step of 8 parallel calls, against by hand",
        "syncs in a step of 8 parallel calls",
        "step 200 against step 100, means with compactions",
        "and medians",
        "resume of 400 messages behind a fresh snapshot",
        "resume of 400 messages behind the longest journal",
        "its memory behind a fresh snapshot, against the thread's",
        "its memory behind the longest journal, against the thread's",
        "memory of making it, against the thread's bytes",
        "ours",
        "whole file rewritten, once a step",
    ],
    "tools": [
        "read, against `cat`",
        "list, against `ls -l`",
        "grep in one file, against `grep -n`",
        "grep in 50 files, against `grep -rn`",
        "write, against a process that does the same",
        "write, against the same by hand with its syncs",
        "an edit of a file of 1 MB",
        "8 commands of 100 ms, against eight bare Popen",
        "grep over 1,000 files without rg, against `grep -r`",
        "a command that prints 32 MiB, against `cat` into a pipe",
        "the same in colours, against `cat` into a pipe",
        "the same drawn again and again, against `cat` into a pipe",
        "memory of the tools for it above idle",
        "the whole host for 32 MiB that a command prints, against `cat`",
        "the most memory of that host, above one that prints nothing",
        "the whole host for the same in colours, against `cat`",
        "the whole host for the same drawn again and again, against `cat`",
        "memory for the first lines of 64 MiB above idle",
        "memory for the last lines of 64 MiB above idle",
    ],
    "policy": [*POLICY, "the first shell line of a process", "useful, 2,000 segments with &&"],
    "session": [
        "start to the first reply, against a bare interpreter",
        "the same with five services, a bundle and traces",
        "a piece of text from gateway to client, median",
        "the same, 99 of 100",
        "resident memory of that session, idle",
        "10,000 pieces a second, a client that reads nothing",
        "10,000 pieces a second, a client that reads slowly",
        "resident memory of an idle session",
    ],
    "acp": [
        "session/new with a warm fork server",
        "session/new with a fresh interpreter",
        "a piece of text from the gateway at the editor, median",
        "the same, 99 of 100",
    ],
    "chat": [
        "to the prompt",
        "a piece of text on the screen, 200 ms after the one before, median",
        "a piece of text on the screen, 10 ms after the one before, 99 of 100",
        "memory of the chat's own process",
    ],
    "batch": [
        "sessions that use the processor: one core against two",
        "wall time against that of the sessions by jobs",
        "memory of the batch until its last session ends, against that at a fifth",
    ],
    "clients": [
        "a new session with the fork server",
        "the same, against a fresh interpreter",
        "eight at once, against eight interpreters",
        "a new session with a spare process, against an interpreter",
    ],
    "events": EVENTS,
    "changes": ["`sleep 0.1` among 5000 files, against the same unseen", "both looks", "one look by itself"],
    "llm": [
        "60 steps, a window that holds all",
        "60 steps, a window of 40,000 tokens",
        "30 steps of 12 parallel calls",
        "anthropic: reading an answer, against the official SDK",
        "openai: reading an answer, against the official SDK",
        "responses: reading an answer, against the official SDK",
    ],
    "service": [
        "the tool itself, a query on SQLite",
        "a request that only answers",
        "with token and grant looked at",
        "a call without a key, beyond the tool",
        "a call with a key, beyond the tool",
        "a key that comes again",
        "calls a second, four clients at once",
    ],
    "sandbox": ["imported with the first command", "the look which levels work"],
    "pages": [
        "the page is written, with the start of the program",
        "its size",
        "it is loaded and can be used",
        "the slowest of four searches, painted",
        "100 sessions listed",
        "an event is on the page, median",
        "a kill is on the page",
        "a resume is on the page",
    ],
    "redaction": [*(f"{text}, four times as long" for text in TEXTS), "an event's line", "with a secret"],
}


def benchmarks(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True)


def figures(report: str) -> dict[str, float]:
    """By what was measured; lines without a figure are headings."""
    found = (LINE.fullmatch(line.strip()) for line in report.splitlines())
    return {row["what"]: float(row["figure"]) for row in found if row}


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_runs_from_anywhere_and_prints_its_figures(name: str, tmp_path: Path) -> None:
    if name == "pages" and PROGRAM is None:
        pytest.skip("Chromium is not installed")
    done = benchmarks(tmp_path, name, "--quick")
    assert (done.returncode, done.stderr) == (0, "")
    found = figures(done.stdout)
    assert [what for what in EXPECTED[name] if what not in found] == []
    assert [what for what, figure in found.items() if not math.isfinite(figure)] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.many_rows(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "llm" else []) for name in BENCHMARKS]
)
def test_each_says_what_it_measures_and_its_options(name: str, tmp_path: Path) -> None:
    done = benchmarks(tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--quick" in done.stdout
    assert len(done.stdout.split("\n\n")[1]) > 80


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    done = benchmarks(tmp_path, "floor")
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid choice: 'floor'" in done.stderr
    assert [name for name in BENCHMARKS if name not in done.stderr.splitlines()[-1]] == []


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("--help",), 0)])
def test_the_list_is_shown_to_whoever_asks_or_names_nothing(
    arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    done = benchmarks(tmp_path, *arguments)
    assert done.returncode == code
    shown = done.stdout if code == 0 else done.stderr
    for name, line in BENCHMARKS.items():
        assert re.search(rf"^ +{name}\s+{re.escape(line.split(maxsplit=1)[0])}", shown, re.MULTILINE)
