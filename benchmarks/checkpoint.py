"""Cost of the checkpoint store: against the bare disk, as a session grows, and against two other ways to keep one.

It takes about two minutes; --quick has fewer rounds, step 200 in place of step 10,000, and a session of 400 KB in place
of 10 MB.

It asks six things: what a durable step costs over the same bytes written and synced by hand; how often it syncs;
whether step 10,000 costs more than step 100; how many bytes go to the disk for a byte of thread; how long the resume of
a 10 MB session takes; and how much memory such a session needs. Beside them stand the same steps kept by rewriting the
whole file, and by LangGraph where it is installed (`pip install langgraph langgraph-checkpoint-sqlite`).

Machines are noisy, so what is compared is measured in turns, and goals stand against ratios where that is possible.
Bytes are counted on Linux only, syncs where `benchmarks.kept` says.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import statistics
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import orjson

from benchmarks.kept import (
    Cost,
    Disk,
    Step,
    Store,
    files_in,
    keep,
    long_steps,
    make_step,
    new_session,
    steps_of,
    written,
)
from benchmarks.other_stores import comparison
from benchmarks.processes import output_of_child, scratch
from benchmarks.report import MIB, Row, medians
from state.journal import encode
from state.records import message_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def keep_by_hand(fd: int, step: Step) -> float:
    """The same bytes, encoded before the clock starts, appended and synced twice; returns milliseconds."""
    ahead, rest = (
        b"".join(encode(record) + (message_of(record) or b"") + b"\n" for record in part)
        for part in (step.ahead, step.rest)
    )
    sync = os.fsync if sys.platform in ("darwin", "win32") else os.fdatasync
    started = time.perf_counter_ns()
    os.write(fd, ahead)
    sync(fd)
    os.write(fd, rest)
    sync(fd)
    return (time.perf_counter_ns() - started) / 1e6


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
    (mine, own), bare = medians(ours), statistics.median(raw)
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
    (late_ms, late_own), (early_ms, early_own) = medians(aged), medians(young)
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


def build_long(folder: str, messages: int, compact_after: int) -> bool:
    """A long session that compacts once after so many steps; False when the store then does it again by itself."""
    Disk.off = True
    store = new_session(folder)
    files: set[tuple[str, int]] = set()
    for number, step in enumerate(long_steps(messages), 1):
        keep(store, step)
        if number == compact_after:
            store.compact()
            files = files_in(folder)
    store.close()  # waits for a compaction that is under way
    Disk.off = False
    return files == files_in(folder)


def longest_journal(folder: str, messages: int) -> str:
    """A long session with as much behind its last compaction as the store lets gather, to about a hundredth."""
    found, low, high = "", 0, steps_of(messages)
    for attempt in range(7):
        middle, at = (low + high) // 2, os.path.join(folder, f"journal-{attempt}")
        if build_long(at, messages, middle):
            shutil.rmtree(found, ignore_errors=True)
            found, high = at, middle
        else:
            shutil.rmtree(at)
            low = middle
    return found


class InChild(NamedTuple):
    """Output of `benchmarks.children.long_session`. `ms`: outside the syncs."""

    ms: float
    cpu_ms: float
    peak: int
    thread: int


def in_child(what: str, folder: str, messages: int) -> InChild:
    return InChild(*orjson.loads(output_of_child("long_session", what, folder, str(messages))))


def resume(folder: str, messages: int, runs: int) -> Iterator[Row]:
    fresh = os.path.join(folder, "snapshot")
    build_long(fresh, messages, steps_of(messages))
    journal = longest_journal(folder, messages)
    for where, state in (("a fresh snapshot", fresh), ("the longest journal", journal)):
        # Each resumes a copy of its own: one that compacted at once would make it easier for the next.
        copies = [shutil.copytree(state, f"{state}-{run}") for run in range(runs)]
        results = [in_child("resume", copy, messages) for copy in copies]
        peak, size, cpu = max(run.peak for run in results), results[0].thread, min(run.cpu_ms for run in results)
        best = f"best of {runs} {min(results).ms:.0f}, of processor time {cpu:.0f}"
        note = f"outside the syncs; {best}; a thread of {size / MIB:.1f} MiB"
        median = statistics.median(run.ms for run in results)
        yield Row(f"resume of {messages:,} messages behind {where}", median, "ms", 250, note)
        over = f"{peak / MIB:.1f} MiB over idle"
        yield Row(f"  its memory behind {where}, against the thread's", peak / size, "x", 3, over)


def long_session(folder: str, messages: int) -> Iterator[Row]:
    whole, alone = (in_child(what, os.path.join(folder, what), messages) for what in ("create", "create-alone"))
    note = f"{whole.peak / MIB:.1f} MiB over idle; the store alone {alone.peak / alone.thread:.2f}x"
    yield Row("memory of making it, against the thread's bytes", whole.peak / whole.thread, "x", 3, note)


class Effort(NamedTuple):
    """Number of measurements."""

    turns: int  # of five durable steps
    late: int  # the late step
    sessions: int  # young ones, to set beside it
    counted: int  # steps whose bytes are counted
    messages: int  # of the long session
    runs: int  # of its resume
    rounds: int  # of the comparison with other ways
    steps: int  # in each of those rounds


FULL = Effort(turns=200, late=10_000, sessions=20, counted=2000, messages=10_000, runs=9, rounds=5, steps=200)
QUICK = Effort(turns=4, late=200, sessions=1, counted=200, messages=400, runs=1, rounds=1, steps=20)


def measure(folder: str, effort: Effort) -> Iterator[object]:
    yield from durable_step(os.path.join(folder, "one"), 1, effort.turns)
    yield from durable_step(os.path.join(folder, "eight"), 8, effort.turns)
    yield from growth(os.path.join(folder, "growth"), effort.late, effort.sessions)
    yield from bytes_written(os.path.join(folder, "bytes"), effort.counted)
    yield from resume(os.path.join(folder, "long"), effort.messages, effort.runs)
    yield from long_session(os.path.join(folder, "long"), effort.messages)
    yield from comparison(os.path.join(folder, "ways"), effort.steps, effort.rounds)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, help="steps of the comparison with other ways")
    parser.add_argument("--folder", default=os.getcwd(), help="where to make a scratch folder: choose the disk to test")


def rows(chosen: argparse.Namespace) -> Iterator[object]:
    Disk.watch()
    effort = QUICK if chosen.quick else FULL
    if chosen.steps is not None:
        effort = effort._replace(steps=chosen.steps)
    with scratch(chosen.folder) as folder:
        yield from measure(folder, effort)
