"""The session process (`agent-host serve`): its start, a piece of text on its way through it, its memory.

It takes about two minutes; --quick starts fewer processes and sends fewer pieces.
Machines are noisy: what is compared is measured in turns in one run, and figures are medians unless they say otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.testing.services import MockServices
from benchmarks.bundles import of_a_user
from benchmarks.processes import PROGRAM, bare_interpreter_ms, output_of_child, resident_mib, scratch, start_child
from benchmarks.report import Row, medians

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

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

    def __init__(
        self, folder: str, gateway: str, env: Mapping[str, str] | None = None, *, policy: str | None = None
    ) -> None:
        self._ids = itertools.count(1)
        state = tempfile.mkdtemp(dir=folder, prefix="state-")
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--gateway", gateway, "--workspace", folder, "--state-dir", state]
            + ([] if policy is None else ["--policy", policy]),
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
def ticking(pieces: int, at_once: int, interval_s: float, paragraph: int = 0) -> Iterator[str]:
    """The URL of a gateway in a process of its own; see `benchmarks.children.ticking`."""
    with start_child("ticking", str(pieces), str(at_once), str(interval_s), str(paragraph)) as process:
        try:
            yield "" if process.stdout is None else process.stdout.readline().decode().strip()
        finally:
            process.kill()


# The start


def start_up(folder: str, runs: int) -> Iterator[Row]:
    """From the start of the process to the reply to CreateSession, which waits in the pipe."""
    policy = os.path.join(folder, "policy.json")
    with open(policy, "wb") as file:
        file.write(orjson.dumps(of_a_user(folder)))
    with MockServices(policy_bundle=of_a_user(folder)).in_thread() as url:
        everything = {f"{name}_SERVICE_URL": url for name in SERVICES} | {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        floor, with_defaults, with_bundle, with_all = medians(
            (
                bare_interpreter_ms(),
                first_reply_ms(folder),
                first_reply_ms(folder, policy=policy),
                first_reply_ms(folder, everything),
            )
            for _ in range(runs)
        )
    note = f"{with_defaults:.0f} / {floor:.0f} ms"
    yield Row("start to the first reply, against a bare interpreter", with_defaults / floor, "x", 10, note)
    note = f"{with_bundle:.0f} / {floor:.0f} ms"
    yield Row("the same with a bundle file", with_bundle / floor, "x", 10, note)
    note = f"{with_all:.0f} / {floor:.0f} ms"
    yield Row("the same with five services, a bundle and traces", with_all / floor, "x", None, note)


def first_reply_ms(folder: str, env: Mapping[str, str] | None = None, *, policy: str | None = None) -> float:
    began = time.perf_counter()
    serve = Serve(folder, NOWHERE, env, policy=policy)
    serve.request("CreateSession", **NEW_SESSION)
    took = (time.perf_counter() - began) * 1000
    serve.end()
    return took


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


def piece_of_text(folder: str, pieces: int, rounds: int) -> Iterator[Row]:
    """The host's delay of a piece between the gateway and the client, at 500 pieces a second."""
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
    floor, own = Latency(*medians(floors)), Latency(*medians(ours))
    note = f"floor {floor.median:.2f} ms"
    yield Row("a piece of text from gateway to client, median", own.median - floor.median, "ms", 1, note)
    yield Row("the same, 99 of 100", own.p99 - floor.p99, "ms", 1, f"floor {floor.p99:.2f} ms")
    note = f"after {(rounds + 1) * pieces} pieces"
    yield Row("resident memory of that session, idle", memory, "MiB", None, note)


def relayed(url: str) -> list[bytes]:
    """The same answer through the bare relay."""
    with start_child("relay", url) as process:
        return [b"%d %b" % (time.monotonic_ns(), line) for line in process.stdout or ()]


# Who watches


def watched(pieces: int, rounds: int) -> Iterator[Row]:
    """One answer, 10,000 pieces a second, with a client that is slow or does not read, against none."""
    clients = ("nobody", "silent", "slow")
    took: dict[str, list[tuple[float, ...]]] = {client: [] for client in clients}
    with ticking(pieces, 10, 0.001) as url:
        for _, client in itertools.product(range(rounds), clients):
            took[client].append(tuple(map(float, output_of_child("watched", url, client).split())))
    wall, cpu = ({name: statistics.median(run[at] for run in runs) for name, runs in took.items()} for at in (0, 1))
    for client, words in (("silent", "a client that reads nothing"), ("slow", "a client that reads slowly")):
        extra_us = (cpu[client] - cpu["nobody"]) / pieces * 1_000_000
        note = f"{wall[client]:.2f} s; {extra_us:.1f} µs more of the processor for a piece"
        yield Row(f"10,000 pieces a second, {words}", wall[client] / wall["nobody"], "x", 1.05, note)


# Memory


def memory(folder: str) -> Iterator[Row]:
    """After one task: whatever is imported late is there."""
    with ticking(100, 1, 0) as url:
        serve = Serve(folder, url)
        session_id = serve.request("CreateSession", **NEW_SESSION)["sessionId"]
        serve.task(session_id, "task")
        yield Row("resident memory of an idle session", resident_mib(serve.process.pid), "MiB", 60, "after one task")
        serve.end()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, help="process starts to take the median of: 15, and 1 with --quick")


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    with scratch() as folder:
        yield from start_up(folder, chosen.runs or (1 if chosen.quick else 15))
        yield from piece_of_text(folder, *((200, 1) if chosen.quick else (2000, 5)))
        yield from watched(*((1_000, 1) if chosen.quick else (20_000, 5)))
        yield from memory(folder)
