"""How much the product costs over a bare loop (`floor.py`), both measured in one run on one machine.

    python benchmarks/loop.py             everything, about two minutes
    python benchmarks/loop.py --quick     without the 2,000 steps

Machines are noisy, so figures are medians, and those that a goal stands against are ratios where that is possible.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.gateway import MockGateway, Script

if TYPE_CHECKING:
    from agent_host.testing.gateway import RequestRecord

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1024 * 1024
RESULT_BYTES = 1024
PROMPT = "Read the file as often as you are told."
_MS = 1_000_000


@dataclass(frozen=True)
class Run:
    """One process: how long it took to its first request, its own time before each later one, its peak memory."""

    first_request_ms: float
    own_ms: list[float]
    peak_mib: float
    stderr: str


def session(turns: list[dict[str, Any]], command: list[str], cwd: str) -> Run:
    """Run `command` (`{url}` stands for the gateway) against a gateway that plays `turns`."""
    gateway = MockGateway(Script.from_turns(turns))
    with gateway.in_thread() as url, tempfile.TemporaryFile() as stderr:
        argv = [part.replace("{url}", url) for part in command]
        started = time.monotonic_ns()
        process = subprocess.Popen(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        said = stderr.read().decode()
    if process.returncode != 0 or gateway.failures:
        sys.exit(f"{argv[:4]} ended with {process.returncode}: {said[-2000:]}\n{gateway.failures[:3]}")
    records = gateway.requests
    first = (records[0].first_byte_ns - started) / _MS
    return Run(first, own_times(records), usage.ru_maxrss / 1024, said)


def own_times(records: tuple[RequestRecord, ...]) -> list[float]:
    """Milliseconds from the last byte of each answer to the first byte of the next request."""
    return [
        (after.first_byte_ns - before.answer_end_ns) / _MS
        for before, after in itertools.pairwise(records)
        if before.answer_end_ns is not None
    ]


def reading_turns(steps: int, path: str) -> list[dict[str, Any]]:
    """A script that has a 1 KB file read in every step but the last."""
    call = {"name": "ReadFile", "arguments": {"path": path}}
    return [{"text": "Again.", "tool_calls": [call], "repeat": steps - 1}, {"text": "Done."}]


class Bench:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.workspace = os.path.join(folder, "workspace")
        os.mkdir(self.workspace)
        self.file = os.path.join(self.workspace, "kilobyte.txt")
        with open(self.file, "w", encoding="utf-8") as handle:
            handle.write(("The quick brown fox jumps over the lazy dog, again.\n" * 40)[:RESULT_BYTES])
        self.policy = os.path.join(folder, "policy.json")
        with open(self.policy, "wb") as out:
            out.write(orjson.dumps(wide_policy(self.workspace)))
        self._runs = 0

    def floor(self, turns: list[dict[str, Any]]) -> Run:
        self._runs += 1
        log = os.path.join(self.folder, f"floor-{self._runs}.log")
        script = os.path.join(HERE, "floor.py")
        argv = [sys.executable, script, "--gateway", "{url}", "--log", log, "--prompt", PROMPT]
        return session(turns, argv, self.workspace)

    def ours(
        self, turns: list[dict[str, Any]], *, policy: str = "ci", steps: int = 40, through: str | None = None
    ) -> Run:
        """`through` names a script beside this one that runs the program in its own way."""
        self._runs += 1
        program = ["-m", "agent_host.cli.main"] if through is None else [os.path.join(HERE, through)]
        options = ["--gateway", "{url}", "--policy", policy, "--max-steps", str(steps), "--output", "json"]
        where = ["--state-dir", self.state_dir, "--workspace", self.workspace]
        return session(turns, [sys.executable, *program, "run", PROMPT, *options, *where], self.workspace)

    @property
    def state_dir(self) -> str:
        return os.path.join(self.folder, f"state-{self._runs}")


def wide_policy(workspace: str) -> dict[str, Any]:
    """A bundle whose token limits do not cut the thread: the floor never cuts it either."""
    limits = {"maxInputTokens": 10**9, "maxOutputTokens": 16384, "maxSessionTokens": 10**12}
    return {
        "policyBundleVersion": "bench.1",
        "schemaVersion": "1.0",
        "tenantId": "bench",
        "userId": "bench",
        "sessionId": "*",
        "expiresAt": "2100-01-01T00:00:00Z",
        "capabilities": [{"name": "File.Read", "allowedPaths": [workspace]}, {"name": "LLM.Call"}],
        "llmPolicy": {"allowedModels": ["mock-model"], **limits},
        "approvalRules": [],
    }


def elapsed_ms(argv: list[str], runs: int) -> float:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def report(what: str, figure: float, unit: str, goal: float | None, note: str = "") -> None:
    verdict = "" if goal is None else f"goal ≤ {goal:g}{unit}  {'ok' if figure <= goal else 'MISSED'}"
    print(f"{what:52} {figure:8.2f}{unit:4} {verdict:24} {note}", flush=True)


def start_up(bench: Bench, runs: int) -> None:
    bare = elapsed_ms([sys.executable, "-c", "pass"], runs)
    program = os.path.join(os.path.dirname(sys.executable), "agent-host")
    version = elapsed_ms([program, "--version"], runs)
    report("--version against a bare interpreter", version / bare, "x", 3, f"{version:.0f} against {bare:.0f} ms")
    done = [{"text": "Done."}]
    pairs = [(bench.floor(done).first_request_ms, bench.ours(done).first_request_ms) for _ in range(runs)]
    floor, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    report(
        "start to the first request, against the floor", ours / floor, "x", 1.4, f"{ours:.0f} against {floor:.0f} ms"
    )


def two_hundred_steps(bench: Bench) -> None:
    turns = reading_turns(200, bench.file)
    rounds = [(bench.floor(turns), bench.ours(turns, steps=400)) for _ in range(3)]
    floor = statistics.median(time for run, _ in rounds for time in run.own_ms)
    ours = statistics.median(time for _, run in rounds for time in run.own_ms)
    report(
        "own time of a step over 200 steps, against the floor", ours / floor, "x", 1.75, f"{ours:.2f} / {floor:.2f} ms"
    )
    report(
        "peak memory at 200 steps",
        max(run.peak_mib for _, run in rounds),
        "MiB",
        45,
        f"floor {rounds[0][0].peak_mib:.0f}",
    )


def two_thousand_steps(bench: Bench) -> None:
    turns = reading_turns(2000, bench.file)
    floor = bench.floor(turns)
    ours = bench.ours(turns, policy=bench.policy, steps=4000, through="counted.py")
    at_100, at_2000 = (statistics.median(ours.own_ms[at - 50 : at + 50]) for at in (100, 1948))
    floor_100, floor_2000 = (statistics.median(floor.own_ms[at - 50 : at + 50]) for at in (100, 1948))
    report("step 2,000 against step 100", at_2000 / at_100, "x", 1.5, f"floor {floor_2000 / floor_100:.2f}x")
    report("step 2,000 against the floor's", at_2000 / floor_2000, "x", 1.5, f"{at_2000:.2f} / {floor_2000:.2f} ms")
    written, syncs = (int(word) for word in ours.stderr.split("counted ")[1].split())
    log = sum(
        os.path.getsize(os.path.join(at, "events.jsonl"))
        for at, _, names in os.walk(bench.state_dir)
        if "events.jsonl" in names
    )
    note = f"the run log {log / MIB:.1f}; the rest snapshots, journals, history and result"
    report("bytes written over 2,000 steps of 1 KB results", (written + log) / MIB, "MiB", 25, note)
    report("syncs a step", syncs / 2000, "", 2.02, "the rest are the snapshots'")
    report("peak memory at 2,000 steps", ours.peak_mib, "MiB", 120, f"floor {floor.peak_mib:.0f}")


def parallel_tools(bench: Bench) -> None:
    calls = [{"name": "RunCommand", "arguments": {"command": "sleep 0.1"}}] * 8
    turns: list[dict[str, Any]] = [{"text": "All at once.", "tool_calls": calls, "repeat": 10}, {"text": "Done."}]
    tools = statistics.median(bench.ours(turns, through="slow_tools.py").own_ms)
    report("8 parallel tools of 100 ms", tools, "ms", 110, "without their processes")
    ours, floor = (statistics.median(run.own_ms) for run in (bench.ours(turns), bench.floor(turns)))
    bare = statistics.median(bare_commands() for _ in range(10))
    report("8 parallel `sleep 0.1` in bash", ours, "ms", None, f"floor {floor:.1f}, eight bare Popen {bare:.1f}")


def bare_commands() -> float:
    """Milliseconds of eight `bash -c "sleep 0.1"` at once with nothing around them: the machine's own share."""
    started = time.perf_counter()
    pipe = subprocess.PIPE
    running = [subprocess.Popen(["bash", "-c", "sleep 0.1"], stdout=pipe, stderr=pipe) for _ in range(8)]
    for process in running:
        process.communicate()
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="The product against the floor, in one run.")
    parser.add_argument("--quick", action="store_true", help="leave out the 2,000 steps")
    parser.add_argument("--runs", type=int, default=15, help="process starts to take the median of")
    chosen = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="agent-host-bench-", dir=os.getcwd())
    try:
        bench = Bench(os.path.realpath(folder))
        start_up(bench, chosen.runs)
        two_hundred_steps(bench)
        parallel_tools(bench)
        if not chosen.quick:
            two_thousand_steps(bench)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
