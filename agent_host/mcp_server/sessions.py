"""The sessions of one server: which has a process, which is handed a task, and which makes room for another."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Final, TextIO

import anyio
from mcp.server.stdio import stdio_server

from agent_host.mcp_server.child import Refused
from agent_host.mcp_server.hosted import HostedSession
from agent_host.mcp_server.server import TaskServer
from agent_host.rpc.framing import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.mcp_server.records import Records

MAX_SESSIONS: Final = 8
"""Processes at once; of more, the one that has had no task for the longest time ends."""
_NO_TASK: Final = "the session has no open task: give a prompt"


class Sessions:
    """The sessions of one server. `argv` starts the process of each; `records` has what is on record of them and of
    others."""

    def __init__(self, argv: Sequence[str], records: Records) -> None:
        self._argv = argv
        self.records = records
        self._open: dict[str, HostedSession] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self._starting = 0
        """Those that get a process just now."""
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """By session: who hands it a task, or ends its process, does so alone."""
        self.closing = False

    def find_by_task(self, task_id: str) -> HostedSession | None:
        """The session whose present task it is."""
        return next((one for one in self._open.values() if one.task_id == task_id), None)

    def get(self, session_id: str) -> HostedSession | None:
        """The session of that id, where it has a process here."""
        return self._open.get(session_id)

    @property
    def ids(self) -> list[str]:
        """Those that have a process here, the last used last."""
        return list(self._open)

    async def run(self, prompt: str | None, session_id: str | None, options: Mapping[str, Any]) -> HostedSession:
        """Hand a task to a session: to a new one, or to the one named; without a prompt the open task of that one goes
        on. Raises Refused, and OSError where no process can be started."""
        if session_id is None:
            return await self._hand_over(prompt, None, options)
        async with self._turn(session_id):
            return await self._hand_over(prompt, session_id, options)

    def _turn(self, session_id: str) -> asyncio.Lock:
        return self._turns.setdefault(session_id, asyncio.Lock())

    async def _hand_over(self, prompt: str | None, session_id: str | None, options: Mapping[str, Any]) -> HostedSession:
        session = self._open.get(session_id or "")
        if session is None and session_id is not None:
            await asyncio.to_thread(self.records.refuse_others, session_id)
        if session is not None and session.is_paused and prompt is None:
            await self._end(session)
            session = None
        if session is None:
            session = await self._open_session(session_id, goes_on=prompt is None)
        elif prompt is None and not session.is_running:
            raise Refused("INVALID_REQUEST", _NO_TASK)
        self._open[session.session_id] = self._open.pop(session.session_id, session)
        if prompt is not None:
            await session.start(prompt, options)
        return session

    def cancel_later(self, session: HostedSession) -> None:
        """Cancel its task for a client that does not wait for it any more."""
        task = asyncio.create_task(self._cancel(session))
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def aclose(self) -> None:
        """End all processes. Tasks that go on stay resumable."""
        self.closing = True
        for task in list(self._beside):
            task.cancel()
        await asyncio.gather(*(session.leave() for session in self._open.values()))
        self._open.clear()

    async def _cancel(self, session: HostedSession) -> None:
        if not self.closing:  # a client that has gone has not cancelled anything
            await session.cancel()

    async def _open_session(self, session_id: str | None, *, goes_on: bool) -> HostedSession:
        await self._make_room()
        self._starting += 1
        session = HostedSession(self.records)
        try:
            had_task = await session.open(self._argv, session_id, goes_on=goes_on)
            if had_task and not goes_on:
                raise Refused("INVALID_REQUEST", "the session has an open task: leave out the prompt to go on with it")
            if session_id is not None and goes_on and not had_task:
                raise Refused("INVALID_REQUEST", _NO_TASK)
        except BaseException:
            await session.leave()
            raise
        finally:
            self._starting -= 1
        self._open[session.session_id] = session
        return session

    async def _make_room(self) -> None:
        """Have room for one more process, with no pause between the last look and the return."""
        while len(self._open) + self._starting >= MAX_SESSIONS:
            free = (one for key, one in self._open.items() if not one.is_running and not self._turn(key).locked())
            idle = next(free, None)
            if idle is None:
                raise Refused("RATE_LIMITED", f"{MAX_SESSIONS} tasks are running; wait for one of them")
            async with self._turn(idle.session_id):
                await self._end(idle)

    async def _end(self, session: HostedSession) -> None:
        """End its process, in its turn."""
        self._open.pop(session.session_id, None)  # the end of the server may have come before
        await session.leave()


# One connection of the MCP server, from the first byte to the last session's end.


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
