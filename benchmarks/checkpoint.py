"""What the checkpoint store costs: against the bare disk, as a session grows, and against two other ways to keep one.

    python -m benchmarks.checkpoint             everything, about two minutes
    python -m benchmarks.checkpoint --quick     fewer rounds, and step 1,000 in place of step 10,000

It asks six things: what a durable step costs over the same bytes written and synced by hand; how often it syncs;
whether step 10,000 costs more than step 100; how many bytes go to the disk for a byte of thread; how long the resume of
a 10 MB session takes; and how much memory such a session needs. Beside them stand the same steps kept by rewriting the
whole file, and by LangGraph where it is installed (`pip install langgraph langgraph-checkpoint-sqlite`).

Machines are noisy, so what is compared is measured in turns, and goals stand against ratios where that is possible.
Bytes are counted on Linux only, syncs where `kept.py` says.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

import orjson

from agent_host.llm.anthropic import AnthropicRenderer
from agent_host.thread.messages import decode
from agent_host.thread.thread import Thread
from benchmarks.kept import MIB, Cost, Disk, Step, Store, files_in, keep, make_step, new_session, written
from benchmarks.other_stores import comparison

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_MESSAGES, LONG_BYTES = 10_000, 10 * MIB
LONG_STEPS = LONG_MESSAGES // 2 - 1  # besides the system prompt and the user's


def keep_by_hand(fd: int, step: Step) -> float:
    """The same bytes, encoded before the clock starts, appended and synced twice; returns milliseconds."""
    ahead, rest = (
        b"".join(orjson.dumps({"kind": kind, **fields}) + (message or b"") + b"\n" for kind, fields, message in part)
        for part in (step.ahead, step.rest)
    )
    sync = os.fsync if sys.platform in ("darwin", "win32") else os.fdatasync
    started = time.perf_counter_ns()
    os.write(fd, ahead)
    sync(fd)
    os.write(fd, rest)
    sync(fd)
    return (time.perf_counter_ns() - started) / 1e6


class Row(NamedTuple):
    what: str
    figure: float
    unit: str = "x"
    goal: float | None = None
    note: str = ""

    def __str__(self) -> str:
        verdict = "" if self.goal is None else f"≤ {self.goal:g}"
        missed = "" if self.goal is None else ("ok" if self.figure <= self.goal else "MISSED")
        return f"{self.what:52} {self.figure:9.2f} {self.unit:4} {verdict:7} {missed:7} {self.note}".rstrip()


def durable_step(folder: str, calls: int, rounds: int) -> Iterator[Row]:
    """Ours and by hand in turns of five steps. Each step's syncs are counted on the way."""
    os.mkdir(folder)
    store, numbers = new_session(folder), itertools.count(1)
    fd = os.open(os.path.join(folder, "by-hand"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ours: list[Cost] = []
    raw: list[float] = []
    plain: list[int] = []
    compacting: list[int] = []
    for _ in range(rounds):
        for step in [make_step(next(numbers), calls) for _ in range(5)]:
            syncs, files = Disk.syncs, files_in(folder)
            ours.append(keep(store, step))
            (plain if files == files_in(folder) else compacting).append(Disk.syncs - syncs)
        raw += [keep_by_hand(fd, make_step(number, calls)) for number in range(5)]
    os.close(fd)
    store.close()
    of = "1 call" if calls == 1 else f"{calls} parallel calls"
    mine, own, bare = (statistics.median(values) for values in (*zip(*ours, strict=True), raw))
    note = f"{mine:.2f} / {bare:.2f} ms, {own:.2f} of it outside the syncs; means {mean_ms(ours):.2f} / "
    yield Row(f"a durable step of {of}, against by hand", mine / bare, "x", 1.5, f"{note}{statistics.fmean(raw):.2f}")
    rest = f"and {max(compacting, default=0)} at most in {len(compacting)} of {len(ours)} steps, which compacted"
    yield Row(f"syncs in a step of {of}", max(plain), "", 2, rest)


def mean_ms(costs: list[Cost]) -> float:
    return statistics.fmean(cost.ms for cost in costs)


def session_of(folder: str, steps: int) -> Store:
    """A session of so many steps, of which only the last is synced: it takes the others along."""
    Disk.off = True
    store = new_session(folder)
    for number in range(1, steps):
        keep(store, make_step(number))
    Disk.off = False
    keep(store, make_step(steps))
    return store


def growth(folder: str, late: int, sessions: int) -> Iterator[Row]:
    """Step `late` against step 100, measured in turns of few steps: one old session, and young ones that start afresh.

    A store that compacts each time the thread has doubled pays for it once in [n/√2, n√2], wherever n lies. So these
    are the windows, and their means are the goal's figure: each holds its fair share of compactions, which a median
    would hide and a short window would miss or catch by luck.
    """
    first, last = int(late / math.sqrt(2)), int(late * math.sqrt(2))
    os.mkdir(folder)
    old = session_of(os.path.join(folder, "old"), first - 1)
    numbers = itertools.count(first)
    aged: list[Cost] = []
    young: list[Cost] = []
    for turn in range(sessions):
        fresh = session_of(os.path.join(folder, f"young-{turn}"), 70)
        for number in range(71, 142):
            young.append(keep(fresh, make_step(number)))
            aged += [keep(old, make_step(next(numbers))) for _ in range(math.ceil((last - first) / (71 * sessions)))]
        fresh.close()
    old.close()
    name, late_ms, early_ms = f"step {late:,} against step 100", mean_ms(aged), mean_ms(young)
    note = f"{late_ms:.2f} / {early_ms:.2f} ms; slowest {max(aged).ms:.0f} / {max(young).ms:.0f}"
    yield Row(f"{name}, means with compactions", late_ms / early_ms, "x", 1.2, note)
    (late_ms, late_own), (early_ms, early_own) = (
        (statistics.median(column) for column in zip(*costs, strict=True)) for costs in (aged, young)
    )
    note = f"{late_ms:.2f} / {early_ms:.2f} ms; outside the syncs {late_own:.3f} / {early_own:.3f}"
    yield Row("  and medians", late_ms / early_ms, "x", None, note)


def bytes_written(folder: str, steps: int) -> Iterator[Row]:
    """The factor goes up with each compaction and down between them, so its highest point is shown beside the end's."""
    if sys.platform != "linux":
        return
    Disk.off = True
    before, thread, highest = written(), 0, 0.0
    store = new_session(folder)
    for number in range(1, steps + 1):
        step = make_step(number)
        keep(store, step)
        thread += step.thread_bytes
        highest = max(highest, (written() - before) / thread) if number >= 100 else 0.0
    store.close()
    Disk.off = False
    total = written() - before
    note = f"{total / MIB:.1f} of {thread / MIB:.1f} MiB; at most {highest:.2f} on the way since step 100"
    yield Row(f"bytes written over {steps:,} steps, against the thread's", total / thread, "x", 4, note)


def long_steps() -> Iterator[Step]:
    """The steps of a thread of 10,000 messages and 10 MiB."""
    padding = "x" * (LONG_BYTES // (LONG_STEPS + 1) - make_step(1, text="").thread_bytes)
    return (make_step(number, text=padding) for number in range(1, LONG_STEPS + 1))


def build_long(folder: str, compact_after: int) -> bool:
    """A long session that compacts once after so many steps; False when the store then does it again by itself."""
    Disk.off = True
    store = new_session(folder)
    files: set[tuple[str, int]] = set()
    for number, step in enumerate(long_steps(), 1):
        keep(store, step)
        if number == compact_after:
            store.compact()
            files = files_in(folder)
    undisturbed = files == files_in(folder)
    store.close()
    Disk.off = False
    return undisturbed


def longest_journal(folder: str) -> str:
    """A long session with as much behind its last compaction as the store lets gather, to about a hundredth."""
    found, low, high = "", 0, LONG_STEPS
    for attempt in range(7):
        middle, at = (low + high) // 2, os.path.join(folder, f"journal-{attempt}")
        if build_long(at, middle):
            shutil.rmtree(found, ignore_errors=True)
            found, high = at, middle
        else:
            shutil.rmtree(at)
            low = middle
    return found


def memory() -> tuple[int, int]:
    """Present and highest resident bytes. Not from getrusage on Linux: there a child starts with its parent's peak."""
    if sys.platform != "linux":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak, peak
    with open("/proc/self/status", encoding="ascii") as file:
        found = dict(line.split(":", 1) for line in file)
    return int(found["VmRSS"].split()[0]) * 1024, int(found["VmHWM"].split()[0]) * 1024


def child(what: str, folder: str) -> None:
    """In a process of its own: resume the session in `folder`, or make a long one there, with or without the thread
    that is sent. Prints what `InChild` holds."""
    gc.collect()
    if sys.platform == "linux":
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # what the imports needed for a moment is not the session's
    idle, _ = memory()
    thread = Thread(AnthropicRenderer())
    started, cpu = time.perf_counter(), time.process_time()
    if what == "resume":
        store = Store(folder)
        thread.restore(map(decode, itertools.islice(store.messages(), 1, None)))
    else:
        Disk.off = True
        store = new_session(folder)
        for step in long_steps():
            keep(store, step)
            if what == "create":
                thread.add_exchange(step.assistant, step.results)
        store.compact()
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = memory()[1]
    print(orjson.dumps([elapsed * 1000, cpu * 1000, peak - idle, sum(map(len, store.messages()))]).decode())


class InChild(NamedTuple):
    ms: float
    cpu_ms: float
    peak: int
    thread: int


def in_child(what: str, folder: str) -> InChild:
    argv = [sys.executable, "-m", "benchmarks.checkpoint", "--child", what, "--folder", folder]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return InChild(*orjson.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True, cwd=root).stdout))


def resume(folder: str, runs: int) -> Iterator[Row]:
    fresh = os.path.join(folder, "snapshot")
    build_long(fresh, LONG_STEPS)
    for where, state in (("a fresh snapshot", fresh), ("the longest journal", longest_journal(folder))):
        # Each resumes a copy of its own: one that compacted at once would make it easier for the next.
        copies = [shutil.copytree(state, f"{state}-{run}") for run in range(runs)]
        results = [in_child("resume", copy) for copy in copies]
        peak, size, cpu = max(run.peak for run in results), results[0].thread, min(run.cpu_ms for run in results)
        note = f"best of {runs} {min(results).ms:.0f}, of processor time {cpu:.0f}; a thread of {size / MIB:.1f} MiB"
        median = statistics.median(run.ms for run in results)
        yield Row(f"resume of 10,000 messages behind {where}", median, "ms", 250, note)
        yield Row("  its memory, against the thread's bytes", peak / size, "x", 3, f"{peak / MIB:.1f} MiB over idle")


def long_session(folder: str) -> Iterator[Row]:
    whole, alone = (in_child(what, os.path.join(folder, what)) for what in ("create", "create-alone"))
    note = f"{whole.peak / MIB:.1f} MiB over idle; the store alone {alone.peak / alone.thread:.2f}x"
    yield Row("memory of making it, against the thread's bytes", whole.peak / whole.thread, "x", 3, note)


def measure(folder: str, *, quick: bool, steps: int) -> Iterator[object]:
    yield from durable_step(os.path.join(folder, "one"), 1, 40 if quick else 200)
    yield from durable_step(os.path.join(folder, "eight"), 8, 40 if quick else 200)
    yield from growth(os.path.join(folder, "growth"), 1000 if quick else 10_000, 5 if quick else 20)
    yield from bytes_written(os.path.join(folder, "bytes"), 2000)
    yield from resume(os.path.join(folder, "long"), 3 if quick else 9)
    yield from long_session(os.path.join(folder, "long"))
    yield ""
    yield from comparison(os.path.join(folder, "ways"), steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the checkpoint store costs, in one run.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and step 1,000 in place of step 10,000")
    parser.add_argument("--steps", type=int, default=200, help="steps of the comparison with other ways")
    parser.add_argument("--folder", default=os.getcwd(), help="where to make a scratch folder: choose the disk to test")
    parser.add_argument("--child", choices=("resume", "create", "create-alone"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    Disk.watch()
    if chosen.child is not None:
        child(chosen.child, chosen.folder)
        return
    folder = os.path.realpath(tempfile.mkdtemp(prefix="agent-host-bench-", dir=chosen.folder))
    try:
        for line in measure(folder, quick=chosen.quick, steps=chosen.steps):
            print(line, flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
