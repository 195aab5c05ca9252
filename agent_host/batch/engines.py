"""The local engine of a batch: processes of this machine, started as other clients' sessions are."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from agent_host.batch.attempts import MOST_OUTPUT, EngineFailed, ProcessEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.clients.connection import SessionProcess, Starter

_LEAVES_S: Final = 20.0


class LocalEngine:
    """An `Engine` of this machine; `starter` starts its processes, which end with their standard input."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    async def run(self, name: str, arguments: Sequence[str], *, directory: str) -> ProcessEnd:
        """See Engine."""
        try:
            process = await self._starter.start(arguments, environment=dict(os.environ), directory=directory)
        except OSError as error:
            raise EngineFailed(f"{name}: no process can be started: {error.strerror or error}") from error
        reading = asyncio.ensure_future(_output_of(process))
        try:
            output = await asyncio.shield(reading)
            return ProcessEnd(await process.wait(), output, process.last_words())
        except asyncio.CancelledError:
            process.writer.close()
            if not (await asyncio.wait([reading], timeout=_LEAVES_S))[0]:
                process.kill()
            await process.wait()
            raise
        finally:
            process.writer.close()
            reading.cancel()

    async def aclose(self) -> None:
        """See Engine."""
        await self._starter.aclose()


async def _output_of(process: SessionProcess) -> bytes:
    """What the process writes, to its end; more than a result can have ends the process."""
    output = bytearray()
    while piece := await process.reader.read(1 << 20):
        output += piece
        if len(output) > MOST_OUTPUT:
            process.kill()
            break
    return bytes(output)
