"""The service process: uvicorn runs one worker in it, or several worker processes that share one socket."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import orjson
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from agent_host.capability_grants import KEY_VARIABLE, grant_key
from agent_host.errors import UsageError
from agent_host.http import TlsContext
from agent_host.ids import MACHINE
from agent_host.services import TOKEN_VARIABLE, endpoints
from agent_host.services.http import ServiceClient
from agent_host.tool_service.answers import LocalSlots, MemoryAnswers
from agent_host.tool_service.http_app import HAS_TOKEN, HttpApp
from agent_host.tool_service.invocation import METRICS_DIRECTORY, Invoker, Metrics, Watchers
from agent_host.tool_service.storage import LocalStorage, ServiceStorage
from agent_host.tool_service.tenants import ServedTenant, read_configuration
from agent_host.tool_service.tool import ENTRY_POINTS
from agent_host.tool_service.tools import CloudDbQuery, ObjectRead, VaultRead
from state.temporary import scratch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from starlette.applications import Starlette

    from agent_host.tool_service.answers import Slots
    from agent_host.tool_service.invocation import Answers
    from agent_host.tool_service.postgres import PostgresAnswers, PostgresSlots
    from agent_host.tool_service.storage import Bucket, Storage
    from agent_host.tool_service.tenants import Configuration
    from agent_host.tool_service.tool import BackendTool

_OPTIONS: Final = "AGENT_HOST_TOOL_SERVICE_OPTIONS"
"""Environment variable that passes the options to the worker processes; it contains no secrets."""
_LONGEST_WAIT_S: Final = 30.0
"""Maximum delay between two attempts to start a worker."""
_MOST_LOGGED: Final = 10
_LOG: Final = logging.getLogger("agent_host.tool_service")


class ServiceOptions(NamedTuple):
    """Options of `agent-host tool-service`. Calls that run when a signal arrives have `drain_s` to finish. If no
    Workspace Service is configured, outputs are stored as files below `artifacts`."""

    tenants: str
    host: str
    port: int
    workers: int
    drain_s: float
    artifacts: str


def serve(options: ServiceOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives. `on_ready` gets the URL once requests are accepted. Raises UsageError."""
    configuration, _ = _check(options, os.environ)
    if options.workers > 1 and configuration.answers_url is None:
        raise UsageError(
            "several workers keep the answers of calls in PostgreSQL: name a database in the tenants file, "
            "service.answers.url, or use --workers 1"
        )
    if configuration.answers_url is not None:  # report a mistake here, not in a worker
        asyncio.run(_try_answers(configuration.answers_url))
    os.environ[_OPTIONS] = orjson.dumps(list(options)).decode()
    _bound_log()
    room = ConnectionRoom.found()
    config = uvicorn.Config(
        "agent_host.tool_service.server:worker",
        factory=True,
        workers=options.workers,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        http=ServedConnections(room.connections),  # type: ignore[arg-type]  # what makes one, as a class does
        ws="none",
        backlog=room.backlog,
        timeout_graceful_shutdown=int(options.drain_s) or 1,
    )
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(_listening(options.host, options.port, room.backlog))
        host, port = listening.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn raises a signal again after the shutdown
        if options.workers == 1:
            _WorkerServer(config, lambda: on_ready(url)).run([listening])
            return
        numbers = stack.enter_context(scratch("metrics"))
        os.environ[METRICS_DIRECTORY] = numbers
        on_ready(url)  # the socket listens: requests before the first worker starts wait in its backlog
        _Workers(config, sockets=[listening]).run()


@dataclass
class _WorkerLife:
    """The life of a worker: `served` is true if it has been ready, `failures` counts failed starts in a row, `again_at`
    is when its replacement starts."""

    served: bool = False
    failures: int = 0
    again_at: float | None = None


class _Workers(Multiprocess):
    """uvicorn's supervisor, except that it does not give up if a worker cannot start: it retries at growing
    intervals."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._lives: WeakKeyDictionary[Process, _WorkerLife] = WeakKeyDictionary()

    def keep_subprocess_alive(self) -> None:
        patience_s = self.config.timeout_worker_healthcheck
        for place, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            life = self._lives.setdefault(process, _WorkerLife())
            if life.again_at is None and process.is_alive(patience_s):
                life.served = life.served or process.is_ready(patience_s)
                continue
            if life.again_at is None:
                life.again_at = time.monotonic() + self._bury(process, life)
            if time.monotonic() >= life.again_at:
                self.processes[place] = new = Process(self.config, self.sockets)
                self._lives[new] = _WorkerLife(failures=life.failures)
                new.start()

    def _bury(self, process: Process, life: _WorkerLife) -> float:
        """Kill and reap a worker that has ended or does not respond. Returns the seconds until its replacement
        starts."""
        process.kill()
        process.join()
        life.failures = 0 if life.served else life.failures + 1
        wait_s = min(2.0**life.failures - 1, _LONGEST_WAIT_S)
        if life.failures:
            _LOG.error("a worker did not start (exit code %s); it is tried again in %g s", process.exitcode, wait_s)
        return wait_s


class _WorkerServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()


def worker() -> Starlette:
    """Return the ASGI application of one worker, configured by its environment. If the configuration is invalid, raises
    UsageError in the main process and ends a worker process."""
    _bound_log()
    options = ServiceOptions(*orjson.loads(os.environ[_OPTIONS]))
    try:
        configuration, key = _check(options, os.environ)
        return application(configuration, key, os.environ, artifacts=options.artifacts, kinds=all_tools())
    except UsageError as error:
        if multiprocessing.parent_process() is None:
            raise
        _LOG.error("%s", error)
        sys.exit(STARTUP_FAILURE)


def _bound_log() -> None:
    logging.root.handlers[:] = [_BoundedLog()]


class _BoundedLog(logging.StreamHandler[Any]):
    """Writes a limited number of records per minute and place in the code and counts the others, so that clients cannot
    fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._counted: dict[tuple[str, int], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        place, now = (record.pathname, record.lineno), time.monotonic()
        since, count = self._counted.get(place, (now, 0))
        if now - since > 60.0:
            if count > _MOST_LOGGED:
                record.msg, record.args = f"{record.getMessage()} ({count - _MOST_LOGGED} more were left out)", None
            since, count = now, 0
        self._counted[place] = since, count + 1
        if count < _MOST_LOGGED:
            super().emit(record)


def application(
    configuration: Configuration,
    key: bytes,
    environ: Mapping[str, str],
    *,
    artifacts: str,
    kinds: Mapping[str, BackendTool],
) -> Starlette:
    """Return the ASGI application with tools of these `kinds`. Connects to nothing before it starts. Raises
    UsageError."""
    urls = endpoints(environ)
    token = environ.get(TOKEN_VARIABLE) or None
    tls: dict[str, TlsContext] = {}

    def client_of(url: str | None) -> ServiceClient | None:
        if url is None:
            return None
        context = tls.setdefault(url.partition(":")[0], TlsContext(url))
        return ServiceClient(url, token, outside=MACHINE, tls=context)

    workspace, metrics = client_of(urls.workspace), Metrics()
    watchers = Watchers(client_of(urls.telemetry), client_of(urls.audit), metrics)

    def storage(bucket: Bucket | None) -> Storage:
        return LocalStorage(artifacts) if workspace is None else ServiceStorage(workspace, bucket)

    tenants = [ServedTenant(tenant, kinds, key, storage) for tenant in configuration.tenants.values()]
    opened = functools.partial(_opened, configuration.answers_url, key, tenants, watchers, metrics, workspace)
    return HttpApp(tenants, metrics, opened).starlette()


@contextlib.asynccontextmanager
async def _opened(
    answers_url: str | None, key: bytes, tenants: Sequence[ServedTenant], watchers: Watchers, metrics: Metrics,
    workspace: ServiceClient | None,
) -> AsyncIterator[tuple[Answers, Invoker]]:  # fmt: skip
    """Provide the answer store and the invoker. On exit, deliver the last events to services and release everything."""
    answers: Answers = MemoryAnswers()
    slots: Slots = LocalSlots()
    if answers_url is not None:  # shared by all workers and services that use the database
        shared_answers, shared_slots = _postgres()
        answers, slots = await shared_answers.opening(answers_url), shared_slots(answers_url)
    for tenant in tenants:
        tenant.open(slots)
    try:
        yield answers, Invoker(key, answers, watchers, metrics)
    finally:
        await watchers.aclose(5.0)
        for tenant in tenants:
            await tenant.aclose()
        if workspace is not None:
            await workspace.aclose()
        await slots.aclose()
        await answers.aclose()


async def _try_answers(url: str) -> None:
    """Raise UsageError if answers cannot be recorded."""
    await (await _postgres()[0].open(url)).aclose()


def _postgres() -> tuple[type[PostgresAnswers], type[PostgresSlots]]:
    from agent_host.tool_service.postgres import PostgresAnswers, PostgresSlots  # psycopg is only for databases

    return PostgresAnswers, PostgresSlots


def _check(options: ServiceOptions, environ: Mapping[str, str]) -> tuple[Configuration, bytes]:
    key = grant_key(environ)
    if key is None:
        advice = f"set {KEY_VARIABLE} to the key of capability grants, such as `openssl rand -hex 32` gives"
        raise UsageError(f"{advice}; hosts need the same")
    return read_configuration(options.tenants, environ, all_tools()), key


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    """Open the listening socket. Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the protocol is given, asyncio sends small packets immediately; without it, the body of a response waits until
    # the client acknowledges the head, which takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # there it would let two services share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(backlog)
        listening.set_inheritable(True)
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listening


# Kinds of tools: those of this package and those of installed packages.

_NEEDED: Final = ("name", "description", "input_schema", "shape", "high_risk", "repeatable", "build")


def all_tools() -> dict[str, BackendTool]:
    """Return all kinds of tools by name. Raises UsageError for an entry point that cannot be used."""
    shipped: tuple[BackendTool, ...] = (CloudDbQuery, VaultRead, ObjectRead)
    found = {tool.name: tool for tool in shipped}
    for entry in entry_points(group=ENTRY_POINTS):
        named = f"the backend tool {entry.name} ({entry.value})"
        try:
            tool: BackendTool = entry.load()
        except Exception as error:  # a foreign package may raise anything when it is imported
            raise UsageError(f"{named} cannot be loaded: {type(error).__name__}: {error}") from error
        if isinstance(tool, type):
            raise UsageError(f"{named} is a class: name an instance of it")
        lacking = [name for name in _NEEDED if not hasattr(tool, name)]
        if lacking:
            raise UsageError(f"{named} is not a BackendTool: it has no {', '.join(lacking)}")
        if tool.name in found:
            raise UsageError(f"{named} has the name of another: {tool.name}")
        found[tool.name] = tool
    return found


# Client connections, limited in number and in the time that a request may take to arrive.
#
# uvicorn waits for the rest of a request without a limit, and accepts as many connections as there are descriptors.
# Here a request has a deadline, which is extended as bytes arrive. If there are too many connections, the one that has
# waited longest for its request is ended, and those that have not sent a tenant's token go first. A connection with a
# running call is never ended for another.

if sys.platform != "win32":
    import resource


_LEAST_BYTES_A_SECOND: Final = 16 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_CONNECTIONS: Final = 4096
_WANTED_DESCRIPTORS: Final = 65_536
_MAX_BACKLOG: Final = 2048
_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ConnectionRoom(NamedTuple):
    """The number of connections that a process serves, and the number that may wait to be accepted. asyncio accepts all
    waiting ones at once, and logs errors if there is no descriptor for one."""

    connections: int
    backlog: int

    @classmethod
    def found(cls) -> ConnectionRoom:
        """Raise the process's descriptor limit as far as useful, and return the numbers that it allows."""
        if sys.platform == "win32":
            return cls(_MAX_CONNECTIONS, _MAX_BACKLOG)
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY:
            wanted = _WANTED_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _WANTED_DESCRIPTORS)
            limit = max(limit, wanted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        else:
            limit = _WANTED_DESCRIPTORS
        return cls(min(_MAX_CONNECTIONS, limit // 2), min(_MAX_BACKLOG, max(1, limit // 16)))


class ServedConnections:
    """All connections of a process. uvicorn calls it to create the protocol of each (`Config.http`)."""

    def __init__(self, most: int, request_s: float = 20.0) -> None:
        self.request_s = request_s
        self._most = most
        self._open: set[_BoundedConnection] = set()
        # Connections that wait for a request, longest wait first: those without a token so far, and those with one.
        self._waiting: tuple[dict[_BoundedConnection, None], dict[_BoundedConnection, None]] = ({}, {})

    def __call__(self, **parts: Any) -> _BoundedConnection:
        """Return the protocol of a new connection."""
        return _BoundedConnection(self, **parts)

    def enter(self, connection: _BoundedConnection) -> None:
        """Count a new connection. If there are too many, end the one that has waited longest, or else this one."""
        self._open.add(connection)
        if len(self._open) > self._most:
            oldest = next((one for waiting in self._waiting for one in waiting), connection)
            oldest.abort()

    def leave(self, connection: _BoundedConnection) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self.set_waiting(connection, waiting=False)

    def set_waiting(self, connection: _BoundedConnection, *, waiting: bool) -> None:
        """Record that a connection now waits for its next request, or no longer does."""
        for kind in self._waiting:
            kind.pop(connection, None)
        if waiting and connection in self._open:
            self._waiting[connection.has_token][connection] = None


class _BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol, which also ends if a request does not arrive in time or a response is not read."""

    has_token = False

    def __init__(self, connections: ServedConnections, **parts: Any) -> None:
        super().__init__(**parts)
        self._all = connections
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._in_head = False
        self._head_bytes = 0
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._all.enter(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.abort()
        elif self._timer is not None:
            if self._is_busy():
                self._stop_waiting()
            elif self._has_open_request():
                self._due += len(data) / _LEAST_BYTES_A_SECOND

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.has_token = self.has_token or HAS_TOKEN in self.scope
        if not self._is_busy():
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()  # a client that does not read its response is treated as idle
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_busy():
            self._stop_waiting()

    def abort(self) -> None:
        self._forget()
        self.transport.abort()

    def _is_busy(self) -> bool:
        """True if a complete request has arrived and is not answered yet."""
        if self.flow.write_paused:
            return False
        return bool(self.pipeline) or (self._has_open_request() and not self.cycle.more_body)

    def _has_open_request(self) -> bool:
        """True if the newest request has arrived, at least in part, and is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return
        self._unsent = sys.maxsize
        self._due = self.loop.time() + self._all.request_s
        self._timer = self.loop.call_at(self._due, self._look)
        self._all.set_waiting(self, waiting=True)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._all.set_waiting(self, waiting=False)

    def _forget(self) -> None:
        self._stop_waiting()
        self._all.leave(self)

    def _look(self) -> None:
        """End the connection unless its deadline was extended."""
        unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
        if 0 < unsent < self._unsent:
            self._unsent, self._due = unsent, now + self._all.request_s
        if now < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
            return
        if unsent or self.transport.is_closing():
            self.abort()
            return
        if self._in_head or self._has_open_request():
            self.transport.write(_TOO_LATE)
        self._stop_waiting()
        self.transport.close()
