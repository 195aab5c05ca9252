"""A client with many sessions: from the start of a session's process to the reply to CreateSession, under a built-in
policy, for a fresh interpreter, the fork server and a spare process; one start, and eight at once.

The ways take turns in one run, and figures are medians. It takes about a minute; --quick makes one round.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

from agent_host.clients.fork_server import ForkServer, SpareStarter
from agent_host.clients.supervisor import SessionSpec, Starter, Supervisor
from benchmarks.processes import scratch
from benchmarks.report import Row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


AT_ONCE = 8
NOWHERE = "http://127.0.0.1:9"


class Deaf:
    """A listener that does nothing."""

    async def on_event(self, event: dict[str, Any]) -> None:
        pass

    async def on_item(self, item: dict[str, Any]) -> None:
        pass

    async def on_gone(self, exit_code: int, last_words: str) -> None:
        pass

    async def on_resumed(self, result: dict[str, Any]) -> None:
        pass


def spec_in(folder: str) -> SessionSpec:
    state = tempfile.mkdtemp(dir=folder, prefix="state-")
    arguments = ["--gateway", NOWHERE, "--policy", "ci", "--workspace", folder, "--state-dir", state]
    own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return SessionSpec(arguments, own, folder)


async def start_ms(starter: Starter, spec: SessionSpec, count: int) -> float:
    """So many sessions at once, until the last is ready; they end before this does."""
    supervisor = Supervisor(starter)
    began = time.perf_counter()
    sessions = await asyncio.gather(*(supervisor.create(spec, Deaf()) for _ in range(count)))
    took = (time.perf_counter() - began) * 1000
    await asyncio.gather(*(session.request("Shutdown") for session in sessions))
    await asyncio.gather(*(session.close() for session in sessions))
    return took


async def measured(folder: str, rounds: int) -> dict[str, dict[int, float]]:
    """Medians in milliseconds, by the way and by how many are started at once."""
    starters: dict[str, Starter] = {
        "interpreter": Starter(), "fork": ForkServer(), "spare": SpareStarter(),
    }  # fmt: skip
    spec = spec_in(folder)
    await start_ms(starters["interpreter"], spec, 1)  # tries the levels of the sandbox
    took: dict[str, dict[int, list[float]]] = {name: {1: [], AT_ONCE: []} for name in starters}
    for _ in range(rounds):
        for name, starter in starters.items():
            for count, figures in took[name].items():
                await starter.prepare()
                figures.append(await start_ms(starter, spec, count))
    for starter in starters.values():
        await starter.aclose()
    return {name: {count: statistics.median(one) for count, one in rows.items()} for name, rows in took.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="starts to take the median of: 7, and 1 with --quick")


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    with scratch() as folder:
        found = asyncio.run(measured(folder, chosen.rounds or (1 if chosen.quick else 7)))
    plain, fork, spare = found["interpreter"], found["fork"], found["spare"]
    yield Row("a new session with the fork server", fork[1], "ms", 100)
    yield Row("the same, against a fresh interpreter", fork[1] / plain[1], "x", 0.5, f"/ {plain[1]:.0f} ms")
    note = f"{fork[AT_ONCE]:.0f} / {plain[AT_ONCE]:.0f} ms"
    yield Row("eight at once, against eight interpreters", fork[AT_ONCE] / plain[AT_ONCE], "x", 0.5, note)
    yield Row("a new session with a spare process, against an interpreter", spare[1] / plain[1], "x", None)
