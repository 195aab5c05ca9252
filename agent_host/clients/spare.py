"""Session processes where there is no fork: one is started ahead of need, and learns later what it is to be.

The spare is `warm_process` with `--spare`: it has imported everything, has no environment, and waits for its order on
standard input. It takes over what it is given as a forked child does, says so in one line, and is then `agent-host`
with these arguments, whose standard streams are those that it has. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Final

import orjson

from agent_host.clients.connection import InterpreterStarter, Subprocess
from agent_host.clients.fork_server import PROGRAM, can_be_given, order_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.clients.connection import SessionProcess
    from agent_host.clients.warm_process import Order

_ANSWERS_S: Final = 30.0
_NEEDED_BY_WINDOWS: Final = ("SYSTEMROOT", "SYSTEMDRIVE")


class SpareStarter:
    """A `Starter` that has one process ready. Use it on one event loop."""

    def __init__(self) -> None:
        self._fresh = InterpreterStarter()
        self._spare: asyncio.Task[Subprocess | None] | None = None
        self._is_closed = False

    async def prepare(self) -> None:
        """See Starter."""
        self._begin()
        if self._spare is not None:
            await asyncio.wait([self._spare])

    async def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> SessionProcess:
        """See Starter."""
        process: SessionProcess | None = None
        if can_be_given(environment) and self._spare is not None and self._spare.done():
            spare, self._spare = self._spare.result(), None
            if spare is not None and await _hand_over(spare, order_of(arguments, environment, directory), directory):
                process = spare
        if process is None:
            process = await self._fresh.start(arguments, environment=environment, directory=directory)
        self._begin()
        return process

    def _begin(self) -> None:
        if self._spare is None and not self._is_closed:
            self._spare = asyncio.ensure_future(_start_spare())

    async def aclose(self) -> None:
        """See Starter."""
        self._is_closed = True
        taken, self._spare = self._spare, None
        process = None if taken is None else await taken
        if process is not None:
            process.writer.close()
            await process.wait()


async def _start_spare() -> Subprocess | None:
    """A process that has imported all; None if there is none."""
    pipe = asyncio.subprocess.PIPE
    variables = {name: os.environ[name] for name in _NEEDED_BY_WINDOWS if name in os.environ}
    try:
        started = await asyncio.create_subprocess_exec(
            *PROGRAM, "--spare", stdin=pipe, stdout=pipe, stderr=pipe,
            env=variables if sys.platform == "win32" else {}, cwd=os.sep,
        )  # fmt: skip
    except OSError:
        return None
    process = Subprocess(started)
    return process if await process.reader.readline() else None


async def _hand_over(process: Subprocess, order: Order, directory: str) -> bool:
    """True if the process is what the order says. Raises OSError if it cannot be."""
    answer: dict[str, int] = {}
    with contextlib.suppress(ConnectionError, TimeoutError, ValueError):
        process.writer.write(order.encode())
        async with asyncio.timeout(_ANSWERS_S):
            await process.writer.drain()
            answer = orjson.loads(await process.reader.readline())
    if "ready" in answer:
        return True
    process.writer.close()
    process.kill()
    await process.wait()
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]), directory)
    return False
