"""Cost of the product over a bare loop (`benchmarks.children.floor`), both measured in one run on one machine.

It takes about three minutes; --quick makes fewer runs and steps, and leaves out the 2,000 steps.

Machines are noisy, so figures are medians, and those that a goal stands against are ratios where that is possible. What
is compared is run in turns. Policies are the built-in `ci` unless a line says that it is a bundle file, which is what
users have.
"""

from __future__ import annotations

import itertools
import os
import statistics
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.processes import PROGRAM, bare_commands, bare_interpreter_ms, program_ms, scratch
from benchmarks.report import MIB, Row, medians, milliseconds
from benchmarks.runs import Bench, Run, Turns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

LARGE, SMALL = 8 * 1024, 64
SKILLS = 200


def own_ms(runs: Iterable[Run]) -> float:
    """The median of all steps' own times."""
    return statistics.median(itertools.chain.from_iterable(run.own_ms for run in runs))


def start_up(bench: Bench, runs: int) -> Iterator[Row]:
    bare, version = medians((bare_interpreter_ms(), program_ms(PROGRAM, "--version")) for _ in range(runs))
    yield Row("--version against a bare interpreter", version / bare, "x", 1.5, f"{version:.0f} / {bare:.0f} ms")
    done: Turns = [{"text": "Done."}]
    floor, built_in, bundle, skilled = medians(
        (
            bench.floor(done).first_request_ms,
            bench.ours(done).first_request_ms,
            bench.ours(done, policy=bench.bundle).first_request_ms,
            bench.ours(done, skills=SKILLS).first_request_ms,
        )
        for _ in range(runs)
    )
    what = "start to the first request, against the floor"
    for name, ours, goal in ((what, built_in, 1.2), ("  the same with a bundle file", bundle, 1.15)):
        yield Row(name, ours / floor, "x", goal, f"{ours:.0f} / {floor:.0f} ms")
    yield Row(f"  {SKILLS} skills add to it", skilled - built_in, "ms", 20)


def short_steps(bench: Bench, steps: int, rounds: int) -> Iterator[Row]:
    """Steps that read 1 KB, with either kind of policy."""
    turns = bench.reading(steps)
    runs = [(bench.floor(turns), bench.ours(turns), bench.ours(turns, policy=bench.bundle)) for _ in range(rounds)]
    floors, built_in, bundle = zip(*runs, strict=True)
    floor, what = own_ms(floors), f"own time of a step over {steps} steps, against the floor"
    for name, measured in ((what, built_in), ("  the same with a bundle file", bundle)):
        ours = own_ms(measured)
        yield Row(name, ours / floor, "x", 1.35, f"{ours:.2f} / {floor:.2f} ms")
    peak = max(run.peak_mib for run in (*built_in, *bundle))
    yield Row(f"peak memory at {steps} steps", peak, "MiB", 45, f"floor {max(run.peak_mib for run in floors):.0f}")


def large_arguments(bench: Bench, steps: int, rounds: int) -> Iterator[Row]:
    """Steps that write a file: the arguments are in the answer, the log of events, the record and the next request.
    The same with little to write says what a write costs by itself."""
    small, large = (bench.writing(steps, size) for size in (SMALL, LARGE))
    runs = [
        [run for turns in (large, small) for run in (bench.floor(turns), bench.ours(turns, policy=bench.bundle))]
        for _ in range(rounds)
    ]
    floor, ours, small_floor, small_ours = map(own_ms, zip(*runs, strict=True))
    note = f"{ours:.2f} / {floor:.2f} ms; {SMALL} bytes {small_ours:.2f} / {small_floor:.2f} ms; a bundle file"
    yield Row("8 KiB of arguments in the events, against the floor", ours / floor, "x", None, note)


def long_session(bench: Bench) -> Iterator[Row]:
    turns = bench.reading(2000)
    floor = bench.floor(turns)
    ours = bench.ours(turns, policy=bench.bundle, through="counted")
    at_100, at_2000 = (statistics.median(ours.own_ms[at - 50 : at + 50]) for at in (100, 1948))
    floor_100, floor_2000 = (statistics.median(floor.own_ms[at - 50 : at + 50]) for at in (100, 1948))
    yield Row("step 2,000 against step 100", at_2000 / at_100, "x", 1.5, f"floor {floor_2000 / floor_100:.2f}x")
    yield Row("step 2,000 against the floor's", at_2000 / floor_2000, "x", 1.5, f"{at_2000:.2f} / {floor_2000:.2f} ms")
    written, syncs = (int(word) for word in ours.stderr.split("counted ")[1].split())
    log = bench.log_bytes()
    note = f"the run log {log / MIB:.1f}; the rest snapshots, journals, history and result"
    yield Row("bytes written over 2,000 steps of 1 KB results", (written + log) / MIB, "MiB", 25, note)
    yield Row("syncs a step", syncs / 2000, "", 2.02, "the rest are the snapshots'")
    yield Row("peak memory at 2,000 steps", ours.peak_mib, "MiB", 120, f"floor {floor.peak_mib:.0f}")


def parallel_tools(bench: Bench, steps: int) -> Iterator[Row]:
    words = ("sleep 0.1", "sleep 0.10")  # the same one eight times in a row, in each step, would end the task
    calls = [{"name": "RunCommand", "arguments": {"command": command}} for command in words * 4]
    turns: Turns = [{"text": "All at once.", "tool_calls": calls, "repeat": steps}, {"text": "Done."}]
    tools = own_ms([bench.ours(turns, through="slow_tools")])
    yield Row("8 parallel tools of 100 ms", tools, "ms", 110, "without their processes")
    ours, floor = own_ms([bench.ours(turns)]), own_ms([bench.floor(turns)])
    bare = statistics.median(milliseconds(bare_commands) for _ in range(steps))
    yield Row("8 parallel `sleep 0.1` in bash", ours, "ms", None, f"floor {floor:.1f}, eight bare Popen {bare:.1f}")


class Effort(NamedTuple):
    """Number of measurements."""

    starts: int
    steps: int
    rounds: int
    writes: int  # steps that write a file
    parallel: int  # steps with eight tools


FULL = Effort(starts=15, steps=90, rounds=5, writes=100, parallel=10)
QUICK = Effort(starts=1, steps=10, rounds=1, writes=5, parallel=2)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, help=f"process starts to take the median of: {FULL.starts}, and {QUICK.starts} with --quick"
    )


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    effort = QUICK if chosen.quick else FULL
    with scratch(os.getcwd()) as folder:
        bench = Bench(folder)
        yield from start_up(bench, chosen.runs or effort.starts)
        yield from short_steps(bench, effort.steps, effort.rounds)
        yield from large_arguments(bench, effort.writes, effort.rounds)
        yield from parallel_tools(bench, effort.parallel)
        if not chosen.quick:
            yield from long_session(bench)
