"""Many sessions, each in its own process, for one client: an editor, a chat, a page.

A session outlives its process. When a process dies, its listener learns it, the others are not affected, and the next
prompt starts another process that resumes the session. A task that was open then is cancelled first: its actions are
recorded and in the conversation, so the model reads the new prompt after them and repeats nothing.

Events of a session are passed to its listener one after the other. A slow listener stops the reading: beyond
`most_waiting_bytes` nothing more is read from the pipe, and the session's own queue joins pieces of text, drops those
that do not fit, and reports that (docs/serve.md, GetEvents). So memory is bounded, and no session waits for a listener.
A reply is delivered after everything that the process sent before it; therefore a listener must not wait for a request
of its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from agent_host.rpc.messages import FramingError, LineSplitter
from agent_host.version import __version__
from config.json_text import dumps
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


LOCAL: Final = "local"
"""The user of this machine, and its tenant."""


class SessionSpec(NamedTuple):
    """Launch parameters of a session's process: options of `serve`, environment, directory, client. `opening` are extra
    parameters of CreateSession and of every ResumeSession."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    user_id: str = LOCAL
    tenant_id: str = LOCAL
    client_info: Mapping[str, str] = MappingProxyType({"name": "agent-host", "version": __version__})
    opening: Mapping[str, Any] = MappingProxyType({})


class Listener(Protocol):
    """The receiver of a session's events. Its methods are called one after the other; a slow one delays only itself. It
    must not await a request of its session; a separate task may."""

    async def on_event(self, event: dict[str, Any]) -> None:
        """Receive one event (docs/events.md). In a replay: open questions, and `replay_finished`."""

    async def on_item(self, item: dict[str, Any]) -> None:
        """Receive one item of a replayed session's transcript."""

    async def on_gone(self, exit_code: int, last_words: str) -> None:
        """Called when the process has ended, except by `close`."""

    async def on_resumed(self, result: dict[str, Any]) -> None:
        """Called when another process has resumed the session; `result` is that of ResumeSession."""


class TooManySessions(Exception):
    """The limit of sessions is reached: `str()` has their number and advice."""


class Supervisor:
    """See the module. `sessions` has the open ones, including those whose process has died."""

    def __init__(self, starter: Starter, *, most_sessions: int = 64, most_waiting_bytes: int = 8 * 1024 * 1024) -> None:
        self._starter = starter
        self._most_sessions = most_sessions
        self._most_waiting_bytes = most_waiting_bytes
        self._sessions: dict[str, SupervisedSession] = {}
        self._opening = 0
        self.sessions: Mapping[str, SupervisedSession] = MappingProxyType(self._sessions)

    async def create(self, spec: SessionSpec, listener: Listener) -> SupervisedSession:
        """Start a process with a new session. Raises TooManySessions, RpcFailure if the session cannot start,
        SessionGone if the process ends (its last words have the reason), OSError."""
        params = {
            "userId": spec.user_id,
            "tenantId": spec.tenant_id,
            "executionEnvironment": "desktop",
            "clientInfo": dict(spec.client_info),
            "supportedCapabilities": [],
            **spec.opening,
        }
        session, _ = await self._open(spec, listener, "CreateSession", params)
        return session

    async def resume(
        self, session_id: str, spec: SessionSpec, listener: Listener, *, replay: bool
    ) -> tuple[SupervisedSession, dict[str, Any]]:
        """Start a process that resumes the session, and return the result of ResumeSession with it. An open task does
        not continue by itself: the result names it, and another `ResumeSession` request continues it. With `replay` the
        listener gets its items, the open questions and `replay_finished` before any event. Raises the same errors as
        `create`, and ValueError for a session that is open here."""
        if session_id in self._sessions:
            raise ValueError(f"session {session_id} is open already")
        params = {"sessionId": session_id, "autoContinue": False, "replay": replay, **spec.opening}
        return await self._open(spec, listener, "ResumeSession", params)

    async def aclose(self) -> None:
        """Close every session, and the starter. Sessions with an open task stay resumable."""
        await asyncio.gather(*(session.close() for session in list(self._sessions.values())))
        await self._starter.aclose()

    async def _open(
        self, spec: SessionSpec, listener: Listener, method: str, params: Mapping[str, Any]
    ) -> tuple[SupervisedSession, dict[str, Any]]:
        if len(self._sessions) + self._opening >= self._most_sessions:
            raise TooManySessions(f"{self._most_sessions} sessions are open, which is the most: close one first")
        self._opening += 1
        try:
            life, result = await self._start(spec, listener, method, params)
        finally:
            self._opening -= 1
        session = SupervisedSession(self, spec, listener, life, result["sessionId"])
        self._sessions[session.session_id] = session
        life.begin()
        return session, result

    async def _start(
        self, spec: SessionSpec, listener: Listener, method: str, params: Mapping[str, Any]
    ) -> tuple[_Life, dict[str, Any]]:
        process = await self._starter.start(
            ["serve", *spec.arguments], environment=spec.environment, directory=spec.directory
        )
        life = _Life(listener, self._most_waiting_bytes)
        life.connection = SessionConnection(process, life.take)
        try:
            return life, await life.connection.request(method, params)
        except BaseException:
            life.connection.kill()
            raise

    async def revive(self, session_id: str, spec: SessionSpec, listener: Listener) -> tuple[_Life, dict[str, Any]]:
        """Start another process that resumes the session, and tell the listener."""
        params = {"sessionId": session_id, "autoContinue": False, **spec.opening}
        life, result = await self._start(spec, listener, "ResumeSession", params)
        life.begin(result)
        return life, result

    def forget(self, session_id: str) -> None:
        """Remove the session from the open ones."""
        self._sessions.pop(session_id, None)


class SupervisedSession:
    """One session, in its current process."""

    def __init__(
        self, supervisor: Supervisor, spec: SessionSpec, listener: Listener, life: _Life, session_id: str
    ) -> None:
        self._supervisor, self._spec, self._listener = supervisor, spec, listener
        self._life = life
        self._reviving = asyncio.Lock()
        self.session_id = session_id

    @property
    def is_alive(self) -> bool:
        """True if its process runs."""
        return not self._life.connection.ended.done()

    @property
    def pid(self) -> int:
        """The id of its process, or of its last one."""
        return self._life.connection.pid

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to its process; `sessionId` is added. Raises RpcFailure, SessionGone."""
        return await self._life.request(method, {"sessionId": self.session_id, **(params or {})})

    async def start_task(
        self,
        task_id: str,
        prompt: str,
        options: Mapping[str, Any] | None = None,
        pictures: Sequence[Mapping[str, str]] = (),
    ) -> dict[str, Any]:
        """Start a task; if the process has died, first resume the session in another one and tell the listener. Raises
        RpcFailure, SessionGone, OSError."""
        async with self._reviving:
            if not self.is_alive:
                revived = self._supervisor.revive(self.session_id, self._spec, self._listener)
                self._life, result = await revived
                if (open_task := result.get("incompleteTask")) is not None:
                    await self._life.cancel(self.session_id, open_task["taskId"])
        extra: dict[str, Any] = {} if options is None else {"taskOptions": dict(options)}
        if pictures:
            extra["pictures"] = list(pictures)
        return await self.request("StartTask", {"taskId": task_id, "prompt": prompt, **extra})

    def kill(self) -> None:
        """Kill the process. The session stays resumable if it has not ended."""
        self._life.connection.kill()

    async def close(self, grace_s: float | None = 15.0) -> None:
        """End the process by ending its input: it finishes its step, and is killed after `grace_s` (None: no limit).
        The session stays resumable if it has not ended; the supervisor no longer has it."""
        self._supervisor.forget(self.session_id)
        async with self._reviving:
            await self._life.close(grace_s)


class _Life:
    """A session's time in one process: the connection, and the queue of the listener."""

    connection: SessionConnection

    def __init__(self, listener: Listener, most_waiting_bytes: int) -> None:
        self._listener = listener
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting: asyncio.Queue[tuple[Callable[[Any], Awaitable[None]], Mapping[str, Any], int] | None]
        self._waiting = asyncio.Queue()
        self._waiting_bytes = 0
        self._is_closing = False
        self._pump: asyncio.Task[None] | None = None
        self._over: dict[str, asyncio.Future[None]] = {}

    def begin(self, resumed: dict[str, Any] | None = None) -> None:
        """Start to pass events to the listener, first of all that the session was resumed."""
        self._pump = asyncio.ensure_future(self._hand_over(resumed))
        self._pump.add_done_callback(_report)
        self.connection.ended.add_done_callback(lambda _: self._waiting.put_nowait(None))

    def take(self, method: str, params: Mapping[str, Any], size_bytes: int) -> None:
        if method == "SessionItem":
            self._put(self._listener.on_item, params["item"], size_bytes)
        elif method == "SessionEvent":
            over = self._over.get(params.get("taskId", "")) if params["eventType"] in _ENDS else None
            if over is not None and not over.done():
                over.set_result(None)
            self._put(self._listener.on_event, params, size_bytes)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if self._pump is not None and asyncio.current_task() is self._pump:
            raise RuntimeError("a listener must not await a request of its session: the reply may be behind what waits")
        return await self.connection.request(method, params)

    async def cancel(self, session_id: str, task_id: str) -> None:
        """Cancel the task and wait for its end or the process's."""
        over = self._over[task_id] = asyncio.get_running_loop().create_future()
        await self.request("CancelTask", {"sessionId": session_id, "taskId": task_id})
        await asyncio.wait([over, self.connection.ended], return_when=asyncio.FIRST_COMPLETED)
        del self._over[task_id]

    async def close(self, grace_s: float | None) -> None:
        """Close the connection; the listener still gets everything received until then."""
        self._is_closing = True
        await self.connection.close(grace_s)
        if self._pump is not None and asyncio.current_task() is not self._pump:
            await asyncio.wait([self._pump], timeout=grace_s)
            self._pump.cancel()

    def _put(self, handler: Callable[[Any], Awaitable[None]], value: Mapping[str, Any], size_bytes: int) -> None:
        self._waiting_bytes += size_bytes
        self._waiting.put_nowait((handler, value, size_bytes))
        if self._waiting_bytes > self._most_waiting_bytes:
            self.connection.pause_reading(paused=True)

    async def _hand_over(self, resumed: dict[str, Any] | None) -> None:
        if resumed is not None:
            await self._listener.on_resumed(resumed)
        while (one := await self._waiting.get()) is not None:
            handler, value, size_bytes = one
            await handler(value)
            self._waiting_bytes -= size_bytes
            if self._waiting_bytes <= self._most_waiting_bytes // 2:
                self.connection.pause_reading(paused=False)
        if not self._is_closing:
            end = self.connection.ended.result()
            await self._listener.on_gone(end.exit_code, end.last_words)


_ENDS: Final = frozenset({"task_completed", "task_failed", "task_cancelled"})


def _report(pump: asyncio.Task[None]) -> None:
    """Report a listener's exception at once, because it is not awaited before the session is closed."""
    error = None if pump.cancelled() else pump.exception()
    if error is not None:
        context = {"message": "the listener of a session failed", "exception": error, "task": pump}
        asyncio.get_running_loop().call_exception_handler(context)


# One session process and its JSON-RPC: start `agent-host serve`, send requests, detect its end.

LAST_WORDS_BYTES: Final = 4096
_PIECE_BYTES: Final = 64 * 1024
_LEAVES_S: Final = 15.0


class Tail:
    """The last output of a stream, which is read continuously so that its writers never block."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._kept = bytearray()
        self._task = asyncio.ensure_future(self._read(reader))

    def text(self) -> str:
        """Return the last LAST_WORDS_BYTES."""
        return self._kept.decode(errors="replace")

    async def finish(self) -> None:
        """Wait briefly for the end of the stream; a process that continues may have inherited it."""
        await asyncio.wait([self._task], timeout=0.5)
        self._task.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                self._kept = (self._kept + data)[-LAST_WORDS_BYTES:]


def own_group() -> dict[str, Any]:
    """Options that keep the terminal keys of the client (Ctrl-C, Ctrl-Z) from a process: the client handles them, and
    decides if the session continues or ends."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"process_group": 0}


class SessionProcess:
    """A process of a session, on pipes: `writer` is its standard input, `reader` its standard output."""

    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _tail: Tail | None = None

    async def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill it if it still runs."""
        raise NotImplementedError

    def last_words(self) -> str:
        """Return the end of its standard error, at most LAST_WORDS_BYTES."""
        return "" if self._tail is None else self._tail.text()


class Starter:
    """Starts session processes: a fresh interpreter for each."""

    async def prepare(self) -> None:
        """Prepare for fast starts, which need not wait for it."""

    async def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> SessionProcess:
        """Start `agent-host` with these arguments, in this directory, with this environment and no other variable.
        Raises OSError if no process can be started."""
        # -P: no module of the working directory is imported instead of ours.
        argv = [sys.executable, "-P", "-m", "agent_host", *arguments]
        return await Subprocess.start(argv, environment, directory)

    async def aclose(self) -> None:
        """Release everything prepared for further starts. Started processes continue."""


class Subprocess(SessionProcess):
    """A child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("the process was started with pipes")
        self._process = process
        self.pid = process.pid
        self.reader = process.stdout
        self.writer = process.stdin
        self._tail: Tail = Tail(process.stderr)

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], directory: str) -> Subprocess:
        """Start a program, in its own process group. Raises OSError."""
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment), cwd=directory, **own_group()
            )
        )

    async def wait(self) -> int:
        """See SessionProcess."""
        code = await self._process.wait()
        await self._tail.finish()
        return code

    def kill(self) -> None:
        """See SessionProcess."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


class RpcFailure(Exception):
    """A request failed: `code` is that of JSON-RPC, `name` the documented one (docs/errors.md)."""

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
    """Requests to one session process, and its notifications. `on_notification(method, params, size_bytes)` is called
    for each notification when it is read, in wire order; a request that awaits its reply resumes after the
    notifications that were read with that reply. `ended` is done, with the end of the process, after all notifications
    were passed on.
    """

    def __init__(self, process: SessionProcess, on_notification: Callable[[str, Mapping[str, Any], int], None]) -> None:
        self._process = process
        self.pid = process.pid
        self._on_notification = on_notification
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closing = False
        self.ended: asyncio.Future[SessionGone] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.ensure_future(self._read())

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the result. Raises RpcFailure, and SessionGone if the process has ended or ends before it answers."""
        if self.ended.done():
            raise self.ended.result()
        number = next(self._numbers)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params or {})}
        line = dumps(message, option=orjson.OPT_APPEND_NEWLINE)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            with contextlib.suppress(OSError, RuntimeError):  # the end of its output reveals its end as well
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
        """Stop reading the pipe, or resume reading. The process's own queue is bounded: a client that reads later gets
        joined pieces of text and the number of dropped events."""
        if paused and not self._is_closing:
            self._may_read.clear()
        else:
            self._may_read.set()

    async def close(self, grace_s: float | None = _LEAVES_S) -> SessionGone:
        """Close the input of the process, which then finishes its step and ends, as `serve` does. After `grace_s` it is
        killed, which also leaves an open task resumable. Returns its end."""
        self._is_closing = True
        self._may_read.set()
        self._process.writer.close()
        await asyncio.wait([self.ended], timeout=grace_s)
        self.kill()
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if not self.ended.done():
            self._process.kill()

    async def _read(self) -> None:
        lines = LineSplitter()
        try:
            while data := await self._process.reader.read(_PIECE_BYTES):
                for line in lines.feed(data):
                    self._take(line)
                await self._may_read.wait()
        except asyncio.CancelledError:  # the loop ends without waiting for the end of the process
            self._process.writer.close()
            raise
        except (FramingError, LookupError, TypeError, ValueError, OSError):  # not ours, or longer than any of ours
            self._process.kill()
        code = await self._process.wait()
        self._end(SessionGone(code, self._process.last_words()))

    def _end(self, end: SessionGone) -> None:
        self._process.writer.close()
        self.ended.set_result(end)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(end)

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
