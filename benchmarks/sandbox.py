"""Cost of sandboxing a command: its start, a step of a session, a connection that is judged, a job with many files, the
import.

Starts of `bash -c true` are interleaved, plain and held, and the least of each is compared: what else the machine does
only adds. Steps are those of whole processes, run in turns, that call RunCommand with `printf`; the lower quartiles of
each turn are compared. It takes about two minutes; --quick makes fewer starts and steps. Levels that do not work here
are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from agent_host.ids import MACHINE
from benchmarks.processes import scratch
from benchmarks.report import MIB, Row, milliseconds
from benchmarks.runs import Bench, Turns
from policy import CommandScope
from tool_runtime import sandbox
from tool_runtime.processes.command import CommandParams, LocalCommand, run_command
from tool_runtime.sandbox.session import open_sandbox
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import RuntimeSettings, SandboxSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from tool_runtime.sandbox.session import Sandbox

GOALS = {"landlock": 1.0, "landlock, 200 rules": 2.5, "namespace": 6.0}
LEVELS: dict[str, sandbox.Level] = {
    "landlock": "landlock",
    "landlock, 200 rules": "landlock",
    "namespace": "namespace",
}
HOST_BYTES = 600 * MIB
CONNECTS = """
import socket, statistics, sys, threading, time
server = socket.create_server(("127.0.0.1", 0))
def serve():
    while True: server.accept()[0].close()
threading.Thread(target=serve, daemon=True).start()
times = []
for _ in range(int(sys.argv[1])):
    one = socket.socket()
    began = time.perf_counter_ns()
    one.connect(server.getsockname())
    times.append(time.perf_counter_ns() - began)
    one.close()
    time.sleep(0.0005)
print(min(times) / 1000)
"""
JOB = """
import json, os, pathlib, shutil, sys, tarfile, time
name = sys.argv[1]
made, packed, out = (pathlib.Path(f"{name}-{what}") for what in ("made", "packed", "out"))
def work():
    for n in range(5):
        folder = made / f"d{n}" / "deep"
        folder.mkdir(parents=True)
        (folder / "file.json").write_text(json.dumps({"n": n, "lines": ["line"] * 50}))
    with tarfile.open(packed, "w") as archive:
        archive.add(made)
    with tarfile.open(packed) as archive:
        archive.extractall(out)
    for path in out.rglob("*.json"):
        os.rename(path, path.with_suffix(".txt"))
        path.with_suffix(".txt").read_text()
    shutil.rmtree(made), shutil.rmtree(out), os.unlink(packed)
work()
with open(f"turn-{name}") as turns, open(f"said-{name}", "w") as said:
    for turn in turns:
        began = time.process_time_ns()
        work()
        print(time.process_time_ns() - began, file=said, flush=True)
"""
"""Files are made, packed, unpacked, found, renamed, read and removed, some milliseconds a turn."""


STEP_GOALS = {"landlock": (3.0, 3.0), "namespace": (3.0, 6.0)}
"""Milliseconds over the same step without a sandbox: when the model takes its time to answer, and when it does not."""
ANSWER_MS = 40
BESIDE = 1000


class Bed:
    """A workspace, and what starts commands in it; make and use it on one event loop."""

    def __init__(self, folder: str) -> None:
        self.workspace = os.path.join(folder, "workspace")
        self.many = os.path.join(folder, "many")
        for path in (self.workspace, self.many, os.path.join(self.many, "hidden")):
            os.mkdir(path)
        for number in range(200):
            os.mkdir(os.path.join(self.many, f"beside{number}"))
        self._pool = DaemonPool()
        self._sandboxes: dict[str, Sandbox | None] = {"plain": None}
        self.plain = CommandScope(writes=(self.workspace,))
        self.scopes = {"landlock, 200 rules": self.plain._replace(reads=("/usr", "/etc", "/lib", "/bin", self.many))}
        hidden = (os.path.join(self.many, "hidden"),)
        self.scopes["landlock, 200 rules"] = self.scopes["landlock, 200 rules"]._replace(hidden=hidden)

    def levels(self) -> list[str]:
        """Levels to compare with a plain start."""
        works = [level for level, of in LEVELS.items() if sandbox.look(of).works]
        for level in works:
            runtime = RuntimeSettings(
                outside=MACHINE, workspace=self.workspace, sandbox=SandboxSettings(LEVELS[level], required=True)
            )
            self._sandboxes[level] = open_sandbox(runtime, self._pool)
        return works

    async def run(self, level: str, argv: Sequence[str]) -> tuple[float, str]:
        """Return the milliseconds that a command takes, and its output. A failure ends the program."""
        params = CommandParams(
            list(argv),
            self.workspace,
            {"PATH": os.environ["PATH"]},
            "bench",
            120,
            10_000,
            10_000,
            scope=self.scopes.get(level, self.plain),
        )
        began = time.perf_counter_ns()
        outcome = await run_command(LocalCommand, params, self._pool, None, self._sandboxes[level])
        took = (time.perf_counter_ns() - began) / 1e6
        if outcome.exit_code:
            sys.exit(f"{level}: {outcome.stderr.ends.render(2000).decode()}")
        return took, outcome.stdout.ends.render(10_000).decode()

    async def starts_ms(self, levels: Sequence[str], rounds: int) -> dict[str, float]:
        """The least that a start takes at each level, and without any."""
        times: dict[str, list[float]] = {level: [] for level in ("plain", *levels)}
        for _ in range(rounds):
            for level, taken in times.items():
                taken.append((await self.run(level, ["bash", "-c", "true"]))[0])
        return {level: min(taken) for level, taken in times.items()}

    async def aclose(self) -> None:
        """End what runs."""
        for one in self._sandboxes.values():
            if one is not None:
                await one.aclose()
        self._pool.close()


async def measured(folder: str, rounds: int) -> list[Row]:
    bed = Bed(folder)
    levels = bed.levels()
    await bed.starts_ms(levels, 1)  # launchers and threads are made with the first
    found = []
    least = await bed.starts_ms(levels, rounds)
    for level in levels:
        note = f"{least[level]:.2f} / {least['plain']:.2f} ms"
        found.append(Row(f"{level}: added to a start", least[level] - least["plain"], "ms", GOALS[level], note))
    ballast = bytearray(os.urandom(MIB)) * (HOST_BYTES // MIB)
    large = await bed.starts_ms(levels, rounds)
    for level in levels:
        added = large[level] - large["plain"]
        note = f"{len(ballast) // MIB} MiB"
        found.append(Row(f"{level}: added in a large host", added, "ms", GOALS[level], note))
    del ballast
    plain_levels = [level for level in levels if "," not in level]
    for level in plain_levels:
        took = [float((await bed.run(level, [sys.executable, "-c", CONNECTS, str(4 * rounds)]))[1]) for _ in range(2)]
        found.append(Row(f"{level}: a connection that is judged", min(took), "us", 100.0))
    found += await many_files(bed, plain_levels, 2 * rounds)
    await bed.aclose()
    return found


async def many_files(bed: Bed, levels: Sequence[str], rounds: int) -> list[Row]:
    """JOB at each level against a plain one: programs that take turns, so that what else the machine does meets them
    alike. Compared is their processor time with the kernel's part, each turn with the plain one beside it: what holds a
    command costs nothing else there, since nobody is asked about a file."""
    names = ["plain", *levels]
    with contextlib.ExitStack() as stack:
        pipes = {
            name: [stack.enter_context(pipe_in(bed.workspace, f"{what}-{name}")) for what in ("turn", "said")]
            for name in names
        }
        programs = [asyncio.create_task(bed.run(name, [sys.executable, "-S", "-c", JOB, name])) for name in names]
        turns = asyncio.create_task(take_turns(pipes, rounds))
        ended, _ = await asyncio.wait([turns, *programs], return_when=asyncio.FIRST_COMPLETED)
        if turns not in ended:  # it would wait for what has ended
            turns.cancel()
            sys.exit("a job with many files ended before its last turn")
        took = await turns
    await asyncio.gather(*programs)
    found = []
    for level in levels:
        ratio = statistics.median(held / plain for held, plain in zip(took[level], took["plain"], strict=True))
        note = f"median of {rounds} pairs; least {min(took[level]):.2f} / {min(took['plain']):.2f} ms"
        found.append(Row(f"{level}: a job with many files, against plain", ratio, "x", 1.1, note))
    return found


def steps(folder: str, levels: Sequence[str], count: int, rounds: int) -> Iterator[Row]:
    """Overhead of a level per step: with a state directory among few files and among many, and with a model that
    answers at once, so that nothing could be prepared."""
    many = os.path.join(folder, "many")
    os.mkdir(many)
    for number in range(BESIDE):
        with open(os.path.join(many, f"beside{number}"), "w", encoding="utf-8"):
            pass
    for kind, name, delay_ms in (("few", "few", ANSWER_MS), ("many", "many", ANSWER_MS), ("at-once", "few", 0)):
        place = os.path.join(folder if name == "few" else many, f"steps-{kind}")
        os.mkdir(place)
        bench = Bench(place, folder if name == "few" else many)
        names = ("none", *levels)
        turns = [own_quartiles(bench, names, printing(count, delay_ms)) for _ in range(rounds)]
        for level in levels:
            added = statistics.median(turn[level] - turn["none"] for turn in turns)
            note = f"{statistics.median(turn['none'] for turn in turns):.2f} ms without"
            goal = STEP_GOALS[level][0 if delay_ms else 1]
            told = {"few": "", "many": f", {BESIDE} files beside its state", "at-once": ", answers at once"}[kind]
            yield Row(f"{level}: added to a step{told}", added, "ms", goal, note)


def own_quartiles(bench: Bench, levels: Sequence[str], turns: Turns) -> dict[str, float]:
    """The lower quartile of a step's own time at each level; the first steps, which start what there is for all, are
    left out."""
    runs = {level: bench.ours(turns, options=("--sandbox", level)) for level in levels}
    return {level: statistics.quantiles(run.own_ms[3:], n=4)[0] for level, run in runs.items()}


def printing(count: int, delay_ms: int) -> Turns:
    """A script with so many commands, each of which prints something new."""
    calls = [{"name": "RunCommand", "arguments": {"command": f"printf {number}"}} for number in range(count)]
    turns: Turns = [{"text": f"{n}.", "tool_calls": [call], "delay_ms": delay_ms} for n, call in enumerate(calls)]
    return [*turns, {"text": "Done.", "delay_ms": delay_ms}]


def pipe_in(folder: str, name: str) -> io.FileIO:
    """A named pipe, made and opened for both directions, so that nothing waits until its other end is open."""
    path = os.path.join(folder, name)
    os.mkfifo(path)
    return io.FileIO(os.open(path, os.O_RDWR), "r+")


async def take_turns(pipes: Mapping[str, Sequence[io.FileIO]], rounds: int) -> dict[str, list[float]]:
    """The milliseconds of each turn of each program; `pipes` has of each where it is given a turn, and where it says
    how long that took."""
    loop = asyncio.get_running_loop()
    readers = {name: asyncio.StreamReader() for name in pipes}
    for name, reader in readers.items():
        await loop.connect_read_pipe(functools.partial(asyncio.StreamReaderProtocol, reader), pipes[name][1])
    took: dict[str, list[float]] = {name: [] for name in pipes}
    for number in range(rounds):
        first = number % len(pipes)
        for name in (*[*pipes][first:], *[*pipes][:first]):
            pipes[name][0].write(b"\n")
            took[name].append(int(await readers[name].readline()) / 1e6)
    return took


def import_ms(rounds: int) -> float:
    """Time the imports of the first sandboxed command that the loop and other commands do not need."""
    code = (
        "import time, agent_host.loop.task; from tool_runtime.families import commands;"
        "from tool_runtime import sandbox as levels; began = time.perf_counter();"
        "import tool_runtime.sandbox.session; print((time.perf_counter() - began) * 1000)"
    )
    argv = [sys.executable, "-c", code]
    return min(float(subprocess.run(argv, capture_output=True, check=True).stdout) for _ in range(rounds))


def add_options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    rounds = 5 if chosen.quick else 50
    with scratch() as folder:
        yield from asyncio.run(measured(folder, rounds))
    levels = [level for level in STEP_GOALS if sandbox.look(LEVELS[level]).works]
    with scratch(os.getcwd()) as folder:
        yield from steps(folder, levels, 2 * rounds, 2 if chosen.quick else 5)
    yield Row("imported with the first command", import_ms(rounds // 5), "ms", 5.0)
    yield Row("the look which levels work", milliseconds(lambda: sandbox.look(sandbox.LEVELS[0])), "ms")
