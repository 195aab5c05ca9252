"""A transport of the SDK over a program's standard streams, with the house's own process below it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from tool_runtime.core.server_process import LineTooLong

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from tool_runtime.core.server_process import ServerProcess
    from tool_runtime.mcp.wire import Incoming

    Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_transport(process: ServerProcess, incoming: Incoming) -> AsyncIterator[Streams]:
    """Messages from and to the program, one a line. What it prints besides is passed over; a line that is too long ends
    the session."""
    to_session, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_session:
            while True:
                try:
                    line = await process.read_line()
                except LineTooLong as error:
                    await to_session.send(error)
                    return
                if not line:
                    return
                for message in incoming.messages(line) if line.strip() else ():
                    await to_session.send(SessionMessage(jsonrpc_message_adapter.validate_python(message)))

    async def write() -> None:
        async with from_session:
            async for message in from_session:
                data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                incoming.sent(data)
                process.write(data + b"\n")

    async def quietly(work: asyncio.Task[None]) -> None:
        work.cancel()
        await asyncio.wait([work])

    tasks = [asyncio.ensure_future(_until_closed(read)), asyncio.ensure_future(_until_closed(write))]
    try:
        yield received, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
            for task in tasks:
                await quietly(task)
            for stream in (to_session, received, outgoing, from_session):
                await stream.aclose()


async def _until_closed(work: object) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await work()  # type: ignore[operator]  # one of the two above
