"""A client of `agent-host serve` over the standard streams of a child process: requests out, replies and events in."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.rpc.framing import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LEAVES_S: Final = 15.0
_GOES_S: Final = 2.0


class HostRefused(Exception):
    """The host has refused a request: `name` is the documented code (interface section 2), `str()` what was wrong."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class HostChild:
    """One `serve` process. `on_event` gets each event as it comes, None once no more can come. Make it with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, on_event: Callable[[dict[str, Any] | None], None]) -> None:
        self._process = process
        self._on_event = on_event
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._over = False
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, argv: Sequence[str], on_event: Callable[[dict[str, Any] | None], None]) -> HostChild:
        """Start the process; its standard error is ours. Raises OSError where it cannot be started."""
        pipe, env = asyncio.subprocess.PIPE, dict(os.environ)  # with the tokens that the process table does not show
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, env=env, limit=MAX_LINE_BYTES)
        return cls(process, on_event)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request. Raises Refused, also where the process has ended."""
        stdin = self._process.stdin
        if self._over or stdin is None:
            raise _refuse_ended()
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        stdin.write(orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + b"\n")
        try:
            with contextlib.suppress(ConnectionError):  # the end of its output says so as well
                await stdin.drain()
            message = await reply
        finally:
            del self._replies[number]
        if (error := message.get("error")) is not None:
            raise HostRefused(error.get("data", {}).get("code", "INTERNAL_ERROR"), error["message"])
        result: dict[str, Any] = message["result"]
        return result

    async def await_end(self) -> None:
        """Wait until the process, which says nothing any more, is gone, and its session is nobody's."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _GOES_S)

    async def leave(self) -> None:
        """End its input: it finishes the step, leaves a task that is open resumable, and ends. One that takes too long
        is killed, which leaves the task resumable as well."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _LEAVES_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reader

    async def _read(self) -> None:
        stdout = self._process.stdout
        try:
            while stdout is not None and (line := await stdout.readline()):
                self._take(orjson.loads(line))
        except (ValueError, orjson.JSONDecodeError):  # a line above the limit, or none of ours
            self._process.kill()
        finally:
            self._over = True
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(_refuse_ended())
            self._on_event(None)

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "SessionEvent":
            self._on_event(message["params"])
            return
        reply = self._replies.get(message.get("id") or 0)
        if reply is not None and not reply.done():
            reply.set_result(message)


def _refuse_ended() -> HostRefused:
    return HostRefused("INTERNAL_ERROR", "the process of the session has ended; standard error says why")
