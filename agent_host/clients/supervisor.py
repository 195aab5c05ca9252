"""Many sessions, each in a process of its own, for one client: an editor, a chat, a page.

A session outlives its process. When one dies, its listener is told, the others go on untouched, and the next prompt
starts another process that resumes the session. A task that was open then is cancelled first: what it did is on record
and in the conversation, so that the model reads the new prompt behind it and repeats nothing.

What a session says goes to its listener one after the other. A listener that is slow has its process wait: beyond
`most_waiting_bytes` nothing more is read from the pipe, and the session's own queue joins pieces of text, drops what it
has no room for, and says so (docs/serve.md, GetEvents). So memory is bounded, and no session waits for a listener. A
reply comes behind what the process said before it; therefore a listener must not wait for a request of its session.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent_host.clients.connection import SessionConnection
from agent_host.version import __version__
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent_host.clients.connection import Starter

MOST_SESSIONS: Final = 64
MOST_WAITING_BYTES: Final = 8 * 1024 * 1024


class SessionSpec(NamedTuple):
    """Launch parameters of a session's process: options of `serve`, environment, directory, client. `opening` are extra
    parameters of CreateSession and of every ResumeSession."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    user_id: str = "local"
    tenant_id: str = "local"
    client_info: Mapping[str, str] = MappingProxyType({"name": "agent-host", "version": __version__})
    opening: Mapping[str, Any] = MappingProxyType({})


class Listener(Protocol):
    """Whoever hears a session. The methods are called one after the other; a slow one holds up nobody but itself. It
    must not await a request of its session: a task of its own may."""

    async def on_event(self, event: dict[str, Any]) -> None:
        """Take one event (docs/events.md). Of a replay: questions that are open, and `replay_finished`."""
        ...

    async def on_item(self, item: dict[str, Any]) -> None:
        """Take one item of the transcript of a session that is replayed."""
        ...

    async def on_gone(self, exit_code: int, last_words: str) -> None:
        """Learn that the process has ended, other than by `close`."""
        ...

    async def on_resumed(self, result: dict[str, Any]) -> None:
        """Learn that another process has resumed the session; `result` is that of ResumeSession."""
        ...


class TooManySessions(Exception):
    """No session more: `str()` says how many there are and what to do."""


class Supervisor:
    """See the module. `sessions` has those that are open, also ones whose process has died."""

    def __init__(
        self, starter: Starter, *, most_sessions: int = MOST_SESSIONS, most_waiting_bytes: int = MOST_WAITING_BYTES
    ) -> None:
        self._starter = starter
        self._most_sessions = most_sessions
        self._most_waiting_bytes = most_waiting_bytes
        self._sessions: dict[str, SupervisedSession] = {}
        self._opening = 0
        self.sessions: Mapping[str, SupervisedSession] = MappingProxyType(self._sessions)

    async def create(self, spec: SessionSpec, listener: Listener) -> SupervisedSession:
        """Start a process with a new session. Raises TooManySessions, RpcFailure for what keeps the session from
        starting, SessionGone for what ends the process (its last words say why), OSError."""
        session, _ = await self._open(spec, listener, "CreateSession", _identity(spec))
        return session

    async def resume(
        self, session_id: str, spec: SessionSpec, listener: Listener, *, replay: bool
    ) -> tuple[SupervisedSession, dict[str, Any]]:
        """Start a process that resumes the session, and return the result of ResumeSession with it. A task that is open
        there does not continue by itself: the result names it, and `ResumeSession` asked once more continues it. With
        `replay` the listener gets its items, the open questions and `replay_finished` before any event. Raises as
        `create` does, and ValueError for a session that is open here."""
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
        session = SupervisedSession(result["sessionId"], life, self._restart(spec, listener), self._forget)
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

    def _restart(
        self, spec: SessionSpec, listener: Listener
    ) -> Callable[[str], Awaitable[tuple[_Life, dict[str, Any]]]]:
        async def restart(session_id: str) -> tuple[_Life, dict[str, Any]]:
            params = {"sessionId": session_id, "autoContinue": False, **spec.opening}
            life, result = await self._start(spec, listener, "ResumeSession", params)
            life.begin(result)
            return life, result

        return restart

    def _forget(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)


class SupervisedSession:
    """One session, in whichever process it has."""

    def __init__(
        self,
        session_id: str,
        life: _Life,
        restart: Callable[[str], Awaitable[tuple[_Life, dict[str, Any]]]],
        forget: Callable[[str], None],
    ) -> None:
        self.session_id = session_id
        self._life = life
        self._restart = restart
        self._forget = forget
        self._reviving = asyncio.Lock()

    @property
    def is_alive(self) -> bool:
        """True if its process runs."""
        return not self._life.connection.gone.done()

    @property
    def pid(self) -> int:
        """The id of its process, or of the last one that it had."""
        return self._life.connection.pid

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask its process; `sessionId` is added. Raises RpcFailure, SessionGone."""
        return await self._life.request(method, {"sessionId": self.session_id, **(params or {})})

    async def start_task(
        self,
        task_id: str,
        prompt: str,
        options: Mapping[str, Any] | None = None,
        pictures: Sequence[Mapping[str, str]] = (),
    ) -> dict[str, Any]:
        """Start a task; if the process has died, in another one that has resumed the session, of which the listener is
        told. Raises RpcFailure, SessionGone, OSError."""
        async with self._reviving:
            if not self.is_alive:
                await self._revive()
        extra: dict[str, Any] = {} if options is None else {"taskOptions": dict(options)}
        if pictures:
            extra["pictures"] = list(pictures)
        return await self.request("StartTask", {"taskId": task_id, "prompt": prompt, **extra})

    def kill(self) -> None:
        """End the process at once. The session stays resumable, if it is not over."""
        self._life.connection.kill()

    async def close(self, grace_s: float | None = 15.0) -> None:
        """End the process as the end of its input does: it finishes its step, and is killed after `grace_s`, which is
        unbounded for None. The session stays resumable, if it is not over; it is no session of the supervisor any
        more."""
        self._forget(self.session_id)
        async with self._reviving:
            await self._life.close(grace_s)

    async def _revive(self) -> None:
        self._life, result = await self._restart(self.session_id)
        open_task = result.get("incompleteTask")
        if open_task is not None:
            await self._life.cancel(self.session_id, open_task["taskId"])


class _Life:
    """A session's time in one process: the connection, and what waits for the listener."""

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
        """Hand over what comes, first of all that the session was resumed."""
        self._pump = asyncio.ensure_future(self._hand_over(resumed))
        self._pump.add_done_callback(_report)
        self.connection.gone.add_done_callback(lambda _: self._waiting.put_nowait(None))

    def take(self, method: str, params: Mapping[str, Any], size_bytes: int) -> None:
        """Have a notification wait for the listener."""
        if method == "SessionItem":
            self._put(self._listener.on_item, params["item"], size_bytes)
        elif method == "SessionEvent":
            over = self._over.get(params.get("taskId", "")) if params["eventType"] in _ENDS else None
            if over is not None and not over.done():
                over.set_result(None)
            self._put(self._listener.on_event, params, size_bytes)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """See SupervisedSession."""
        if self._pump is not None and asyncio.current_task() is self._pump:
            raise RuntimeError("a listener must not await a request of its session: the reply may be behind what waits")
        return await self.connection.request(method, params)

    async def cancel(self, session_id: str, task_id: str) -> None:
        """Cancel the task and wait for its end, or that of the process."""
        over = self._over[task_id] = asyncio.get_running_loop().create_future()
        await self.request("CancelTask", {"sessionId": session_id, "taskId": task_id})
        await asyncio.wait([over, self.connection.gone], return_when=asyncio.FIRST_COMPLETED)
        del self._over[task_id]

    async def close(self, grace_s: float | None) -> None:
        """Close the connection; the listener still gets what came until then."""
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
            gone = self.connection.gone.result()
            await self._listener.on_gone(gone.exit_code, gone.last_words)


_ENDS: Final = frozenset({"task_completed", "task_failed", "task_cancelled"})


def _report(pump: asyncio.Task[None]) -> None:
    """Report at once what a listener raised: nobody awaits it before the session is closed."""
    error = None if pump.cancelled() else pump.exception()
    if error is not None:
        context = {"message": "the listener of a session failed", "exception": error, "task": pump}
        asyncio.get_running_loop().call_exception_handler(context)


def _identity(spec: SessionSpec) -> dict[str, Any]:
    return {
        "userId": spec.user_id,
        "tenantId": spec.tenant_id,
        "executionEnvironment": "desktop",
        "clientInfo": dict(spec.client_info),
        "supportedCapabilities": [],
        **spec.opening,
    }
