"""The event loop's own time for one long answer, with and without a client: a session in this process.

    python -m benchmarks.children.watched GATEWAY nobody|silent|slow

`nobody`: no client, and no ring of events for one. `silent`: a client that reads nothing. `slow`: one that reads 4 KB
fifty times a second. Prints the seconds from the task's start to its end, and the CPU seconds of the loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from agent_host.approval.gate import UnattendedGate
from agent_host.host.opening import SessionOpener
from agent_host.rpc.channels import StreamChannel
from agent_host.rpc.server import ClientConnection, Feed
from agent_host.services.session import NewSession
from agent_host.session.opening import ResolvedOptions
from config.load import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.events.emitter import Sink


def connect(feed: Feed, *, reads: bool) -> ClientConnection:
    """A client on two pipes."""
    theirs, ours = os.pipe()
    stdin, _ = os.pipe()
    if reads:
        threading.Thread(target=read_slowly, args=(theirs,), daemon=True).start()
    channel = StreamChannel(stdin, ours)
    connection = ClientConnection(channel, {}, feed.attach(), lambda _: None)
    channel.start(connection)
    return connection


def read_slowly(fd: int) -> None:
    while os.read(fd, 4096):
        time.sleep(0.02)


async def main(gateway: str, client: str) -> tuple[float, float]:
    feed = Feed()

    def watch(first_id: int) -> Sequence[Sink]:
        feed.begin(first_id)
        return () if client == "nobody" else (feed,)

    with tempfile.TemporaryDirectory() as folder:
        flags = {"llm.gateway": gateway, "host.policy": "full"}
        resolved = ResolvedOptions(load(flags, workspace=folder), flags, folder, os.path.join(folder, "state"), None)
        opener = SessionOpener(resolved, gate=lambda _: UnattendedGate(frozenset()), watch=watch)
        session = (await opener.create(NewSession("u", "t", "ci", (folder,)))).session
        connection = None if client == "nobody" else connect(feed, reads=client == "slow")
        # The first task imports and connects; the second one is measured.
        for name in ("first", "second"):
            began, began_cpu = time.perf_counter(), time.thread_time()
            session.start_task(name, "Tell me a long story.")
            end = await session.tasks.await_end()
            took = time.perf_counter() - began, time.thread_time() - began_cpu
            if end.status != "completed":
                sys.exit(f"the task ended with {end.status}: {end.message}")
        await session.shut_down("measured")
        if connection is not None:
            await connection.close()
    return took


if __name__ == "__main__":
    print(*asyncio.run(main(*sys.argv[1:])))
