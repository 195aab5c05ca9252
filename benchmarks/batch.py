"""Batches: how a second core helps sessions that use the processor, what a batch adds to sessions that wait, and its
own memory. Where Ray is installed, what its engine adds. The gateway is a process of its own, on the cores of the
batch. It takes about a minute; --quick makes fewer sessions.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import scratch
from benchmarks.report import Row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PROGRAM = [sys.executable, "-P", "-m", "agent_host"]
BUSY = "python3 -S -c 'import time; t = time.process_time()\nwhile time.process_time() - t < 0.5: pass'"
WAIT_MS = 2000
RAY_WAIT_MS = 10_000


def pinned(argv: list[str], cores: int) -> list[str]:
    """The command on so many cores."""
    return ["taskset", "-c", ",".join(map(str, range(cores))), *argv]


class Batch:
    """One run of a batch: its seconds, its rows, and its resident memory in MiB with the rows on record by then."""

    def __init__(
        self, folder: Path, turns: list[dict[str, Any]], count: int, jobs: int, cores: int, engine: str = "local"
    ) -> None:
        self._engine = engine
        folder.mkdir()
        (folder / "source").mkdir()
        (folder / "script.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
        rows = ({"id": f"t{number}", "prompt": "Do it.", "workspace": "source"} for number in range(count))
        (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.memory: list[tuple[int, float]] = []
        serving = [*PROGRAM, "mock-gateway", "--script", str(folder / "script.jsonl")]
        with subprocess.Popen(pinned(serving, cores), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as gateway:
            try:
                line = gateway.stdout.readline().decode() if gateway.stdout else ""
                self._run(folder, line.split()[-1], jobs, cores)
            finally:
                gateway.terminate()
        self.rows = [json.loads(one) for one in (folder / "tasks.jsonl.out" / "results.jsonl").read_text().splitlines()]

    def _run(self, folder: Path, url: str, jobs: int, cores: int) -> None:
        where = ["--gateway", url, "--policy", "full", "--sandbox", "none", "--state-dir", str(folder / "state")]
        argv = [*PROGRAM, "batch", str(folder / "tasks.jsonl"), "--jobs", str(jobs), "--engine", self._engine, *where]
        began = time.monotonic()
        process = subprocess.Popen(pinned(argv, cores), stdout=subprocess.DEVNULL)
        results = folder / "tasks.jsonl.out" / "results.jsonl"
        threading.Thread(target=self._watch, args=(process, results), daemon=True).start()
        if process.wait():
            raise RuntimeError(f"the batch ended with {process.returncode}")
        self.seconds = time.monotonic() - began

    def _watch(self, process: subprocess.Popen[bytes], results: Path) -> None:
        while process.poll() is None:
            try:
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                done = results.read_bytes().count(b"\n") if results.exists() else 0
            except (OSError, IndexError):
                return
            self.memory.append((done, pages * os.sysconf("SC_PAGE_SIZE") / 1024**2))
            time.sleep(0.05)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults()


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    count = 8 if chosen.quick else 24
    busy: list[dict[str, Any]] = [
        {"tool_calls": [{"name": "RunCommand", "arguments": {"command": BUSY}}]},
        {"text": "Done."},
    ]
    with scratch(os.getcwd()) as folder:
        one, two = (Batch(Path(folder, f"cores-{cores}"), busy, count, 2, cores) for cores in (1, 2))
        note = (
            f"{one.seconds:.1f} / {two.seconds:.1f} s for {count} sessions of half a second, jobs 2; goal 1.8 or more"
        )
        yield Row("sessions that use the processor: one core against two", one.seconds / two.seconds, "x", None, note)
        jobs, waiting = (10, 20) if chosen.quick else (20, 100)
        waits = Batch(Path(folder, "waits"), [{"text": "Done.", "delay_ms": WAIT_MS}], waiting, jobs, 2)
        sessions_s = sum(row["durationMs"] for row in waits.rows) / 1000 / jobs
        note = f"{waits.seconds:.1f} / {sessions_s:.1f} s for {waiting} sessions of {WAIT_MS / 1000:g} s, jobs {jobs}"
        yield Row("wall time against that of the sessions by jobs", waits.seconds / sessions_s, "x", 1.1, note)
        early = max(memory for done, memory in waits.memory if done <= waiting // 5)
        late = max(memory for done, memory in waits.memory if done < waiting)
        what = "memory of the batch until its last session ends, against that at a fifth"
        largest = max(memory for _, memory in waits.memory)
        yield Row(
            what, late / early, "x", 1.1, f"{late:.1f} / {early:.1f} MiB; {largest:.1f} while the page is written"
        )
        if importlib.util.find_spec("ray") is not None:
            yield _of_ray(Path(folder), 4 if chosen.quick else 12)


def _of_ray(folder: Path, count: int) -> Row:
    turns = [{"text": "Done.", "delay_ms": RAY_WAIT_MS}]
    local, ray = (Batch(folder / engine, turns, count, 4, 2, engine) for engine in ("local", "ray"))
    theirs, ours = (sum(row["durationMs"] for row in one.rows) / count for one in (ray, local))
    note = f"{theirs / 1000:.2f} / {ours / 1000:.2f} s a session of {RAY_WAIT_MS / 1000:g} s, jobs 4, ray.init apart"
    return Row("a session by the engine ray against local", theirs / ours, "x", 1.05, note)
