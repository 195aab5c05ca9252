"""The session process (`agent-host serve`): its start, a piece of text on its way through it, its memory.

    python -m benchmarks.session              everything, about two minutes
    python -m benchmarks.session --runs 5     fewer process starts

Machines are noisy: what is compared is measured in turns in one run, and figures are medians unless they say otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.testing.services import MockServices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(os.path.dirname(sys.executable), "agent-host")
NOWHERE = "http://127.0.0.1:9"
SERVICES = ("SESSION", "WORKSPACE", "APPROVAL", "AUDIT", "TELEMETRY")
NEW_SESSION = {
    "userId": "bench",
    "tenantId": "bench",
    "executionEnvironment": "desktop",
    "clientInfo": {"name": "benchmark"},
    "supportedCapabilities": [],
}


class Serve:
    """One `serve` process on pipes, and the client of it."""

    def __init__(self, folder: str, gateway: str, env: Mapping[str, str] | None = None) -> None:
        self._ids = itertools.count(1)
        state = tempfile.mkdtemp(dir=folder, prefix="state-")
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--gateway", gateway, "--workspace", folder, "--state-dir", state],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**own, **(env or {})},
        )

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one request; events on the way are skipped."""
        pipe = self.process.stdin
        if pipe is None:
            raise RuntimeError("the process was started with a pipe")
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        pipe.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        pipe.flush()
        while (answer := orjson.loads(self.line())).get("id") != number:
            pass
        if "result" not in answer:
            sys.exit(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def line(self) -> bytes:
        """The next line of the process."""
        pipe = self.process.stdout
        line = b"" if pipe is None else pipe.readline()
        if not line:
            sys.exit("serve has ended")
        return line

    def task(self, session_id: str, task_id: str) -> list[bytes]:
        """Play a task to its end; the texts that came, each behind the moment it arrived (`time.monotonic_ns`)."""
        self.request("StartTask", sessionId=session_id, taskId=task_id, prompt="Tell me.")
        found = []
        while True:
            line, now = self.line(), time.monotonic_ns()
            if b'"text_chunk"' in line:
                found.append(b"%d %b" % (now, line))
            elif b'"task_completed"' in line:
                return found
            elif b'"task_failed"' in line or b'"session_paused"' in line:
                sys.exit(line.decode())

    def end(self) -> None:
        """A clean end."""
        self.request("Shutdown")
        self.process.communicate()


@contextlib.contextmanager
def ticking(pieces: int, at_once: int, interval_s: float) -> Iterator[str]:
    """The URL of a gateway in a process of its own; see `ticking.py`."""
    argv = [sys.executable, os.path.join(HERE, "ticking.py"), str(pieces), str(at_once), str(interval_s)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield "" if process.stdout is None else process.stdout.readline().strip()
        finally:
            process.kill()


def report(what: str, figure: float, unit: str, goal: float | None, note: str = "") -> None:
    verdict = "" if goal is None else f"goal ≤ {goal:g}{unit}  {'ok' if figure <= goal else 'MISSED'}"
    print(f"{what:56} {figure:8.2f}{unit:4} {verdict:22} {note}", flush=True)


# The start


def start_up(folder: str, runs: int) -> None:
    """From the start of the process to the reply to CreateSession, which waits in the pipe."""
    bare, plain, full = [], [], []
    with MockServices(policy_bundle=bundle(folder)).in_thread() as url:
        everything = {f"{name}_SERVICE_URL": url for name in SERVICES} | {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        for _ in range(runs):
            bare.append(milliseconds_of_nothing())
            plain.append(first_reply_ms(folder, {}))
            full.append(first_reply_ms(folder, everything))
    floor, with_defaults, with_all = map(statistics.median, (bare, plain, full))
    report("start to the first reply, against a bare interpreter", with_defaults / floor, "x", 12, ms(with_defaults))
    report(
        "the same with five services, a bundle and traces", with_all / floor, "x", 12, f"{ms(with_all)}, {ms(floor)}"
    )


def ms(figure: float) -> str:
    return f"{figure:.0f} ms"


def milliseconds_of_nothing() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - began) * 1000


def first_reply_ms(folder: str, env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    serve = Serve(folder, NOWHERE, env)
    serve.request("CreateSession", **NEW_SESSION)
    took = (time.perf_counter() - began) * 1000
    serve.end()
    return took


def bundle(folder: str) -> dict[str, Any]:
    files = {"allowedPaths": [folder]}
    return {
        "policyBundleVersion": "bench.1",
        "schemaVersion": "1.0",
        "tenantId": "bench",
        "userId": "bench",
        "sessionId": "*",
        "expiresAt": "2100-01-01T00:00:00Z",
        "capabilities": [
            {"name": "File.Read", **files},
            {"name": "File.Write", **files},
            {"name": "Shell.Exec", "requiresApproval": True, "approvalRuleId": "commands"},
            {"name": "LLM.Call"},
        ],
        "llmPolicy": {
            "allowedModels": ["bench-model"],
            "maxInputTokens": 200_000,
            "maxOutputTokens": 16_384,
            "maxSessionTokens": 1_000_000,
        },
        "approvalRules": [{"approvalRuleId": "commands", "title": "Run a command", "description": "It may do harm."}],
    }


# A piece of text


class Latency(NamedTuple):
    """Milliseconds from the gateway to the client."""

    median: float
    p99: float


def latency_of(lines: list[bytes]) -> Latency:
    """Of lines that came: the moment of arrival, the event, whose text begins with the moment of sending."""
    waits = []
    for line in lines:
        arrived, _, event = line.partition(b" ")
        text = orjson.loads(event)["params"]["payload"]["text"]
        waits += [(int(arrived) - int(sent)) / 1_000_000 for sent in text.replace(".", " ").split()]
    cuts = statistics.quantiles(waits, n=100)
    return Latency(cuts[49], cuts[98])


def piece_of_text(folder: str, pieces: int = 2000, rounds: int = 5) -> None:
    """What the host adds to a piece's way from the gateway to the client, at 500 pieces a second."""
    floors, ours = [], []
    with ticking(pieces, 1, 0.002) as url:
        serve = Serve(folder, url)
        session_id = serve.request("CreateSession", **NEW_SESSION)["sessionId"]
        serve.task(session_id, "first")  # imports and connects
        for number in range(rounds):
            floors.append(latency_of(relayed(url)))
            ours.append(latency_of(serve.task(session_id, f"task-{number}")))
        memory = resident_mib(serve.process.pid)
        serve.end()
    floor = Latency(*map(statistics.median, zip(*floors, strict=True)))
    own = Latency(*map(statistics.median, zip(*ours, strict=True)))
    report(
        "a piece of text from gateway to client, median",
        own.median - floor.median,
        "ms",
        1,
        f"floor {floor.median:.2f}",
    )
    report("the same, 99 of 100", own.p99 - floor.p99, "ms", 1, f"floor {floor.p99:.2f} ms")
    report("resident memory of that session, idle", memory, "MiB", None, f"after {(rounds + 1) * pieces} pieces")


def relayed(url: str) -> list[bytes]:
    """The same answer through the bare relay."""
    argv = [sys.executable, os.path.join(HERE, "relay.py"), url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        return [b"%d %b" % (time.monotonic_ns(), line) for line in process.stdout or ()]


# Who watches


def watched(rounds: int) -> None:
    """One answer of 20,000 pieces, 10,000 a second, with a client that is slow or does not read, against none."""
    clients = ("nobody", "silent", "slow")
    script = os.path.join(HERE, "watched.py")
    took: dict[str, list[tuple[float, ...]]] = {client: [] for client in clients}
    with ticking(20_000, 10, 0.001) as url:
        for _, client in itertools.product(range(rounds), clients):
            said = subprocess.run([sys.executable, script, url, client], stdout=subprocess.PIPE, check=True).stdout
            took[client].append(tuple(map(float, said.split())))
    wall, cpu = ({name: statistics.median(run[at] for run in runs) for name, runs in took.items()} for at in (0, 1))
    for client, words in (("silent", "a client that reads nothing"), ("slow", "a client that reads slowly")):
        extra_us = (cpu[client] - cpu["nobody"]) / 20_000 * 1_000_000
        note = f"{wall[client]:.2f} s; {extra_us:.1f} µs more of the processor for a piece"
        report(f"10,000 pieces a second, {words}", wall[client] / wall["nobody"], "x", 1.05, note)


# Memory


def memory(folder: str) -> None:
    """After one task: whatever is imported late is there."""
    with ticking(100, 1, 0) as url:
        serve = Serve(folder, url)
        session_id = serve.request("CreateSession", **NEW_SESSION)["sessionId"]
        serve.task(session_id, "task")
        report("resident memory of an idle session", resident_mib(serve.process.pid), "MiB", 60, "after one task")
        serve.end()


def resident_mib(pid: int) -> float:
    """Linux and macOS have `ps`."""
    kib = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True).stdout
    return int(kib) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="The session process, in one run.")
    parser.add_argument("--runs", type=int, default=15, help="process starts to take the median of")
    chosen = parser.parse_args()
    folder = os.path.realpath(tempfile.mkdtemp(prefix="agent-host-bench-"))
    try:
        start_up(folder, chosen.runs)
        piece_of_text(folder)
        watched(5)
        memory(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
