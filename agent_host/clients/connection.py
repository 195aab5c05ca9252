"""One session process and the JSON-RPC with it: how a client starts `agent-host serve`, asks it, learns of its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from agent_host.rpc.framing import FramingError, LineSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LAST_WORDS_BYTES: Final = 4096
_PIECE_BYTES: Final = 64 * 1024
_LEAVES_S: Final = 15.0


class SessionProcess(Protocol):
    """A process of a session, on pipes."""

    @property
    def pid(self) -> int:
        """Its id."""
        ...

    @property
    def reader(self) -> asyncio.StreamReader:
        """Its standard output."""
        ...

    @property
    def writer(self) -> asyncio.StreamWriter:
        """Its standard input."""
        ...

    async def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        ...

    def kill(self) -> None:
        """End it at once, if it still runs."""
        ...

    def last_words(self) -> str:
        """Return the end of what it wrote to standard error: LAST_WORDS_BYTES at most."""
        ...


class Starter(Protocol):
    """A way to start session processes."""

    async def prepare(self) -> None:
        """Get ready, so that starts are fast; they need not wait for it."""
        ...

    async def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> SessionProcess:
        """Start `agent-host` with these arguments, in this directory, with this environment and no other variable.
        Raises OSError if no process can be started."""
        ...

    async def aclose(self) -> None:
        """Let go of what is there for further starts. Processes that were started go on."""
        ...


class Tail:
    """The end of what comes from a stream, which is read as it comes: nobody who writes there has to wait."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._kept = bytearray()
        self._task = asyncio.ensure_future(self._read(reader))

    def text(self) -> str:
        """Return the last LAST_WORDS_BYTES."""
        return self._kept.decode(errors="replace")

    async def finish(self) -> None:
        """Wait for the end of the stream, a moment only: a process that goes on may have inherited it."""
        await asyncio.wait([self._task], timeout=0.5)
        self._task.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                self._kept = (self._kept + data)[-LAST_WORDS_BYTES:]


def own_group() -> dict[str, Any]:
    """Options of a process that the keys of the client's terminal (Ctrl-C, Ctrl-Z) are not for: the client acts on
    them, and the session continues or ends as the client says."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"process_group": 0}


class InterpreterStarter:
    """A `Starter` that has a fresh interpreter for each process."""

    async def prepare(self) -> None:
        """See Starter."""

    async def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> SessionProcess:
        """See Starter."""
        pipe = asyncio.subprocess.PIPE
        # -P: a module of the working directory is not taken for ours.
        argv = [sys.executable, "-P", "-m", "agent_host", *arguments]
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment), cwd=directory, **own_group()
        )
        return Subprocess(process)

    async def aclose(self) -> None:
        """See Starter."""


class Subprocess:
    """A `SessionProcess` that this process has started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("the process was started with pipes")
        self._process = process
        self.pid = process.pid
        self.reader = process.stdout
        self.writer = process.stdin
        self._tail = Tail(process.stderr)

    async def wait(self) -> int:
        """See SessionProcess."""
        code = await self._process.wait()
        await self._tail.finish()
        return code

    def kill(self) -> None:
        """See SessionProcess."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def last_words(self) -> str:
        """See SessionProcess."""
        return self._tail.text()


class RpcFailure(Exception):
    """A request was refused: `code` is that of JSON-RPC, `name` the documented one (docs/errors.md)."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        data = error.get("data") or {}
        self.code: int = error.get("code", 0)
        self.name: str = data.get("code", "INTERNAL_ERROR")
        self.message: str = str(self)
        self.retryable: bool = data.get("retryable", False)
        self.details: Mapping[str, Any] = data.get("details") or {}


class SessionGone(Exception):
    """The process has ended: `exit_code` is negative for a signal, `last_words` the end of its standard error."""

    def __init__(self, exit_code: int, last_words: str) -> None:
        how = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        last_line = last_words.strip().rpartition("\n")[2]
        super().__init__(f"the process of the session {how}{f': {last_line}' if last_line else ''}")
        self.exit_code = exit_code
        self.last_words = last_words


class SessionConnection:
    """The requests to one session process and what it says. `on_notification(method, params, size_bytes)` is called for
    each notification as it is read, in the order of the wire; a request that awaits its reply resumes after the
    notifications that were read with that reply. `gone` is done, with the end of the process, once all was handed over.
    """

    def __init__(self, process: SessionProcess, on_notification: Callable[[str, Mapping[str, Any], int], None]) -> None:
        self._process = process
        self._on_notification = on_notification
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closing = False
        self.gone: asyncio.Future[SessionGone] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.ensure_future(self._read())

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the result. Raises RpcFailure, and SessionGone if the process has ended or ends before it answers."""
        if self.gone.done():
            raise self.gone.result()
        number = next(self._numbers)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params or {})}
        line = orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            with contextlib.suppress(OSError, RuntimeError):  # the end of its output tells of its end as well
                self._process.writer.write(line)
                await self._process.writer.drain()
            answer = await reply
        finally:
            del self._replies[number]
        if (error := answer.get("error")) is not None:
            raise RpcFailure(error)
        result: dict[str, Any] = answer["result"]
        return result

    def pause_reading(self, *, paused: bool) -> None:
        """Leave what the process says in the pipe, or read again. Its own queue is bounded: a client that reads later
        gets pieces of text joined, and is told what was dropped."""
        if paused and not self._is_closing:
            self._may_read.clear()
        else:
            self._may_read.set()

    async def close(self, grace_s: float | None = _LEAVES_S) -> SessionGone:
        """Close the input of the process, which then finishes its step and ends, as `serve` does. After `grace_s` it is
        killed, which leaves an open task resumable as well. Returns its end."""
        self._is_closing = True
        self._may_read.set()
        self._process.writer.close()
        await asyncio.wait([self.gone], timeout=grace_s)
        self.kill()
        return await asyncio.shield(self.gone)

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        if not self.gone.done():
            self._process.kill()

    async def _read(self) -> None:
        lines = LineSplitter()
        try:
            while data := await self._process.reader.read(_PIECE_BYTES):
                for line in lines.feed(data):
                    self._take(line)
                await self._may_read.wait()
        except asyncio.CancelledError:  # the loop ends, which does not wait for the end of the process
            self._process.writer.close()
            raise
        except (FramingError, LookupError, TypeError, ValueError, OSError):  # none of ours, or longer than any of ours
            self._process.kill()
        code = await self._process.wait()
        self._end(SessionGone(code, self._process.last_words()))

    def _end(self, gone: SessionGone) -> None:
        self._process.writer.close()
        self.gone.set_result(gone)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(gone)

    def _take(self, line: bytes | FramingError) -> None:
        if isinstance(line, FramingError):
            raise line
        message = orjson.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message is an object")
        if "method" in message:
            self._on_notification(message["method"], message.get("params") or {}, len(line))
            return
        reply = self._replies.get(message.get("id") or 0)
        if reply is not None and not reply.done():
            reply.set_result(message)
