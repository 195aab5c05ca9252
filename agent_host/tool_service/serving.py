"""The service as a process: one worker in it, or several beside it, behind one socket; uvicorn runs them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
import uvicorn
from uvicorn.supervisors import Multiprocess

from agent_host.capability_grants import KEY_VARIABLE, grant_key
from agent_host.errors import UsageError
from agent_host.http_basics import TlsContext
from agent_host.services.endpoints import TOKEN_VARIABLE, endpoints
from agent_host.services.http import ServiceClient
from agent_host.tool_service.admission import LocalSlots
from agent_host.tool_service.answers import MemoryAnswers
from agent_host.tool_service.catalogue import all_tools
from agent_host.tool_service.configuration import read_configuration
from agent_host.tool_service.http_app import HttpApp
from agent_host.tool_service.invoking import Invoker
from agent_host.tool_service.storing import LocalStorage, ServiceStorage
from agent_host.tool_service.tenants import ServedTenant, Tenants
from agent_host.tool_service.watching import METRICS_DIRECTORY, Metrics, Watchers
from state.temporary import scratch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.applications import Starlette

    from agent_host.tool_service.admission import Slots
    from agent_host.tool_service.answers import Answers
    from agent_host.tool_service.buckets import Bucket
    from agent_host.tool_service.configuration import Configuration
    from agent_host.tool_service.storing import Storage
    from agent_host.tool_service.tool import BackendTool

_OPTIONS: Final = "AGENT_HOST_TOOL_SERVICE_OPTIONS"
"""How the options reach workers, which are processes of their own; there is nothing secret in them."""
_LAST_EVENTS_S: Final = 5.0
_BACKLOG: Final = 2048


class ServiceOptions(NamedTuple):
    """Options of `agent-host tool-service`. Calls that run when a signal comes have `drain_s` to end. Where no
    Workspace Service is named, outputs are files below `artifacts`."""

    tenants: str
    host: str
    port: int
    workers: int
    drain_s: float
    artifacts: str


def serve(options: ServiceOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal comes. `on_ready` gets the URL once requests are taken. Raises UsageError."""
    configuration, _ = _checked(options, os.environ)
    if options.workers > 1 and configuration.answers_url is None:
        raise UsageError(
            "several workers keep the answers of calls in PostgreSQL: name a database in the tenants file, "
            "service.answers.url, or use --workers 1"
        )
    asyncio.run(_try_answers(configuration))  # a mistake is reported here, and not by a worker
    os.environ[_OPTIONS] = orjson.dumps(list(options)).decode()
    config = uvicorn.Config(
        "agent_host.tool_service.serving:worker",
        factory=True,
        workers=options.workers,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=int(options.drain_s) or 1,
    )
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(_listening(options.host, options.port))
        host, port = listening.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn raises a signal again once all is over
        if options.workers == 1:
            _Server(config, lambda: on_ready(url)).run([listening])
            return
        numbers = stack.enter_context(scratch("metrics"))
        os.environ[METRICS_DIRECTORY] = numbers
        on_ready(url)  # the socket listens: what comes before the first worker waits in its queue
        Multiprocess(config, sockets=[listening]).run()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()


def worker() -> Starlette:
    """The ASGI application of one worker, from the options in its environment. Raises UsageError."""
    options = ServiceOptions(*orjson.loads(os.environ[_OPTIONS]))
    configuration, key = _checked(options, os.environ)
    return application(configuration, key, os.environ, artifacts=options.artifacts, kinds=all_tools())


def application(
    configuration: Configuration,
    key: bytes,
    environ: Mapping[str, str],
    *,
    artifacts: str,
    kinds: Mapping[str, BackendTool],
) -> Starlette:
    """The ASGI application, with tools of these `kinds`. Nothing is connected before it starts. Raises UsageError."""
    parts = _Parts(configuration, key, environ, artifacts, kinds)
    return HttpApp(parts.tenants, parts.metrics, parts.opened).starlette()


class _Parts:
    """What the application is put together from."""

    def __init__(
        self,
        configuration: Configuration,
        key: bytes,
        environ: Mapping[str, str],
        artifacts: str,
        kinds: Mapping[str, BackendTool],
    ) -> None:
        self._configuration = configuration
        self._key = key
        urls = endpoints(environ)
        token = environ.get(TOKEN_VARIABLE) or None
        tls: dict[str, TlsContext] = {}

        def client_of(url: str | None) -> ServiceClient | None:
            if url is None:
                return None
            return ServiceClient(url, token, tls=tls.setdefault(url.partition(":")[0], TlsContext(url)))

        self._workspace = client_of(urls.workspace)
        self.metrics = Metrics()
        self._watchers = Watchers(client_of(urls.telemetry), client_of(urls.audit), self.metrics)

        def storage(bucket: Bucket | None) -> Storage:
            return LocalStorage(artifacts) if self._workspace is None else ServiceStorage(self._workspace, bucket)

        served = [ServedTenant(tenant, kinds, key, storage) for tenant in configuration.tenants.values()]
        self.tenants = Tenants(served, configuration)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Answers, Invoker]]:
        """What keeps answers and what runs calls. At the end the services are told what they do not know yet, and
        everything is released."""
        answers, slots = await _answers(self._configuration), _slots(self._configuration)
        for tenant in self.tenants.all.values():
            tenant.open(slots)
        try:
            yield answers, Invoker(self._key, answers, self._watchers, self.metrics)
        finally:
            await self._watchers.aclose(_LAST_EVENTS_S)
            for tenant in self.tenants.all.values():
                await tenant.aclose()
            if self._workspace is not None:
                await self._workspace.aclose()
            await slots.aclose()
            await answers.aclose()


async def _answers(configuration: Configuration) -> Answers:
    """Where answers are kept. Raises UsageError."""
    if configuration.answers_url is None:
        return MemoryAnswers()
    from agent_host.tool_service.postgres_answers import PostgresAnswers

    return await PostgresAnswers.open(configuration.answers_url)


def _slots(configuration: Configuration) -> Slots:
    """What counts the calls that run: over all services that share a database."""
    if configuration.answers_url is None:
        return LocalSlots()
    from agent_host.tool_service.postgres_slots import PostgresSlots

    return PostgresSlots(configuration.answers_url)


async def _try_answers(configuration: Configuration) -> None:
    await (await _answers(configuration)).aclose()


def _checked(options: ServiceOptions, environ: Mapping[str, str]) -> tuple[Configuration, bytes]:
    key = grant_key(environ)
    if key is None:
        raise UsageError(
            f"set {KEY_VARIABLE} to the key of capability grants, such as `openssl rand -hex 32` gives; hosts need "
            f"the same"
        )
    return read_configuration(options.tenants, environ, all_tools()), key


def _listening(host: str, port: int) -> socket.socket:
    """Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio sends small packets at once; without it the body of an answer waits for the
    # client to confirm its head, which takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # there it would let two services have one port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        listening.set_inheritable(True)
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listening
