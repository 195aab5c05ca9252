"""Overhead of finding workspace changes per command: `sleep 0.1` in a repository of 5,000 files, with and without it.

The files lie in 400 folders, and all are tracked. Both kinds run in turns, each as one session of some steps. The first
command of a session reads git's index besides; later ones do where it has changed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from agent_host.workspace_changes.watch import Watch
from benchmarks.loop import own_ms
from benchmarks.processes import scratch
from benchmarks.report import Row, milliseconds
from benchmarks.runs import Bench, Run, Turns, session

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

FILES, FOLDERS = 5000, 400
_GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@y", "-c", "gc.auto=0")


def make_repository(folder: str) -> None:
    """A repository of small files, all of them tracked and older than its index."""
    for number in range(FILES):
        place = os.path.join(folder, f"folder{number % FOLDERS % 20}", f"deeper{number % FOLDERS}")
        os.makedirs(place, exist_ok=True)
        path = os.path.join(place, f"file{number}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"line of file {number}\n" * 40)
        before = time.time() - 3600
        os.utime(path, (before, before))
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        subprocess.run([*_GIT, *command], cwd=folder, check=True)


def run(bench: Bench, steps: int, *, watches: bool) -> Run:
    call = {"name": "RunCommand", "arguments": {"command": "sleep 0.1"}}
    turns: Turns = [{"text": "Again.", "tool_calls": [call], "repeat": steps}, {"text": "Done."}]
    settings = os.path.join(bench.folder, f"watches-{watches}.toml")
    with open(settings, "w", encoding="utf-8") as file:
        file.write(f"[tools]\nwatch_changes = {str(watches).lower()}\n")
    options = ["--gateway", "{url}", "--policy", "ci", "--max-steps", "10000", "--output", "json"]
    where = ["--state-dir", bench.state_dir, "--workspace", bench.workspace]
    program = [sys.executable, "-P", "-m", "agent_host", "run", "Do it.", *options, *where]
    return session(turns, program, bench.workspace, {**os.environ, "AGENT_HOST_CONFIG": settings})


def one_look_ms(folder: str, times: int) -> float:
    """The look before a command, by itself."""
    watch = Watch(os.path.realpath(folder))
    return statistics.median(milliseconds(lambda: watch.give_up(watch.begin())) for _ in range(times))


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    steps, rounds = (3, 1) if chosen.quick else (15, 3)
    with scratch(os.getcwd()) as folder:
        bench = Bench(folder)
        make_repository(bench.workspace)
        runs = [(run(bench, steps, watches=True), run(bench, steps, watches=False)) for _ in range(rounds)]
        with_look, without = (own_ms(one) for one in zip(*runs, strict=True))
        note = f"{with_look:.0f} / {without:.0f} ms"
        yield Row(f"`sleep 0.1` among {FILES} files, against the same unseen", with_look / without, "x", None, note)
        yield Row("  both looks", with_look - without, "ms")
        yield Row("  one look by itself", one_look_ms(bench.workspace, steps), "ms")
