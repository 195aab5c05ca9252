"""One connection of the MCP server, from the first byte to the last session's end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TextIO

import anyio
from mcp.server.stdio import stdio_server

from agent_host.mcp_server.server import TaskServer
from agent_host.rpc.framing import MAX_LINE_BYTES

if TYPE_CHECKING:
    from agent_host.mcp_server.sessions import Sessions


async def serve(
    sessions: Sessions,
    streams: tuple[TextIO, TextIO],
    stop: asyncio.Future[int],
    *,
    allow_approve: bool,
) -> int | None:
    """Serve a client until it leaves, or until `stop` is set: then the result of that. `streams` are those to read from
    and to write to. What runs at the end stays resumable."""
    read_from, write_to = streams
    server = TaskServer(sessions, allow_approve=allow_approve).server()

    async def connection() -> None:
        lines = _Lines(read_from, sessions)
        async with stdio_server(lines, anyio.wrap_file(write_to)) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    serving = asyncio.ensure_future(connection())
    try:
        await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        return stop.result() if stop.done() else None
    finally:
        await sessions.aclose()
        if serving.done():
            await serving
        else:
            serving.cancel()


class _Lines(anyio.AsyncFile[str]):
    """Standard input in lines of at most 32 MiB. Its end closes the sessions, before what waits for them is cancelled:
    a client that has gone has cancelled no task."""

    def __init__(self, file: TextIO, sessions: Sessions) -> None:
        super().__init__(file)
        self._file = file
        self._sessions = sessions

    async def readline(self) -> str:
        """The next line, empty at the end; one that is too long ends the connection."""
        line = await anyio.to_thread.run_sync(self._file.readline, MAX_LINE_BYTES + 1, abandon_on_cancel=True)
        if len(line) > MAX_LINE_BYTES:
            line = ""
        if not line:
            self._sessions.closing = True
        return line
