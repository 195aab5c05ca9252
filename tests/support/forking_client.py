"""A client of the fork server that is there to be killed: `forking_client SPEC WAY` begins a task and says in one line
of JSON which processes there are. With `leaves` it ends then, and closes nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agent_host.clients.fork_server import ForkServer
from agent_host.clients.supervisor import SessionSpec, Supervisor


class Deaf:
    """A listener that only notes that a call was made."""

    def __init__(self) -> None:
        self.steps = 0
        self.second_step = asyncio.Event()

    async def on_event(self, event: dict[str, Any]) -> None:
        self.steps += event["eventType"] == "step_started"
        if self.steps == 2:
            self.second_step.set()

    async def on_item(self, item: dict[str, Any]) -> None:
        """Nothing is replayed."""

    async def on_gone(self, exit_code: int, last_words: str) -> None:
        """Nobody asks."""

    async def on_resumed(self, result: dict[str, Any]) -> None:
        """Nothing is resumed."""


async def main() -> None:
    starter = ForkServer()
    await starter.prepare()
    deaf = Deaf()
    session = await Supervisor(starter).create(SessionSpec(**json.loads(sys.argv[1])), deaf)
    await session.start_task("a", "Do it.")
    await deaf.second_step.wait()
    print(json.dumps({"session": session.session_id, "pid": session.pid, "server": starter.pid}), flush=True)
    if sys.argv[2] != "leaves":
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
