"""The Backend Tool Service in a test: in this loop, or as a process of its own, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import orjson
import uvicorn

from agent_host.capability_grants import CapabilityGrant, sign
from agent_host.tool_service.server import ServedConnections, all_tools, application
from agent_host.tool_service.tenants import read_configuration
from agent_host.tool_service.tool import Output
from config.shapes import OBJECT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from agent_host.tool_service.tool import BackendTool, Call, TenantServices

KEY = bytes(range(32))
KEY_ENVIRONMENT = {"AGENT_HOST_GRANT_KEY": KEY.hex()}
ACME = "acme-token-0123456789"
OTHER = "other-token-0123456789"
PATIENCE_S = 30.0


class FunctionTool:
    """A backend tool whose calls are a function's; as an entry point would bring it."""

    description = "a tool of a test"
    shape = OBJECT

    def __init__(
        self,
        name: str,
        function: Callable[[Call], Awaitable[Output | str]],
        *,
        schema: Mapping[str, Any] | None = None,
        high_risk: bool = False,
        repeatable: bool = False,
    ) -> None:
        self.name = name
        self.input_schema: Mapping[str, Any] = schema or {"type": "object"}
        self.high_risk = high_risk
        self.repeatable = repeatable
        self.calls: list[Call] = []
        self._function = function

    def build(self, configuration: Mapping[str, Any], services: TenantServices) -> FunctionTool:
        return self

    async def run(self, call: Call) -> Output:
        self.calls.append(call)
        found = await self._function(call)
        return Output(found) if isinstance(found, str) else found

    async def aclose(self) -> None: ...


def grant(
    *names: str, tenant: str = "acme", session: str = "sess_1", lasts_s: float = 600.0, key: bytes = KEY, **more: str
) -> str:
    """A signed grant for a session."""
    return sign(CapabilityGrant(tenant, session, names, time.time() + lasts_s, **more), key)


def invocation(tool: str, arguments: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The body of an invocation."""
    ids = {"sessionId": "sess_1", "taskId": "task_1", "stepId": "step_1", "workspaceId": "ws_1"}
    return {**ids, "toolName": tool, "arguments": dict(arguments), **more}


class Caller(NamedTuple):
    """Sends requests to a service."""

    http: httpx.AsyncClient

    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        token: str = ACME,
        with_grant: str | None = None,
        key: str | None = None,
        **more: Any,
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        if with_grant != "":
            headers["x-capability-grant"] = with_grant or grant(tool)
        if key is not None:
            headers["idempotency-key"] = key
        body = invocation(tool, arguments or {}, **more)
        return await self.http.post(f"/tools/{tool}/invoke", content=orjson.dumps(body), headers=headers)

    async def find(self, tool: str, key: str, *, token: str = ACME, with_grant: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}", "x-capability-grant": with_grant or grant(tool)}
        return await self.http.get(f"/tools/{tool}/invocations/{key}", headers=headers)


def tenants(tools: Mapping[str, Any], *, other: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A tenants file with `acme`, and `other` beside it."""
    found: dict[str, Any] = {"acme": {"token": ACME, "tools": dict(tools), **more}}
    if other is not None:
        found["other"] = {"token": OTHER, "tools": dict(other)}
    return {"tenants": found}


@contextlib.asynccontextmanager
async def served(
    folder: Path,
    file: Mapping[str, Any],
    *kinds: BackendTool,
    environ: Mapping[str, str] | None = None,
    connections: ServedConnections | None = None,
) -> AsyncIterator[Caller]:
    """The service in this loop, with `kinds` beside the shipped tools."""
    known = {**all_tools(), **{tool.name: tool for tool in kinds}}
    path = folder / "tenants.json"
    path.write_bytes(orjson.dumps(file))
    configuration = read_configuration(str(path), environ or {}, known)
    app = application(configuration, KEY, environ or {}, artifacts=str(folder / "artifacts"), kinds=known)
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    # A busy loop looks at a timer before it reads: it would end an idle connection on which a request has just come.
    kept_s = round(PATIENCE_S)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=connections or ServedConnections(1000),  # type: ignore[arg-type]  # as the service does it
            log_config=None,
            lifespan="on",
            access_log=False,
            timeout_keep_alive=kept_s,
        )
    )
    with listening:
        serving = asyncio.create_task(_serve(server, listening))
        try:
            limits = httpx.Limits(max_connections=1000)
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False, limits=limits) as http:
                async with asyncio.timeout(PATIENCE_S):
                    await http.get("/readyz")
                yield Caller(http)
        finally:
            server.should_exit = True
            await serving


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    # `serve` would take over the signals of the test run.
    await server._serve([listening])


class Postgres(NamedTuple):
    """A running server; `url` is that of an empty database of its superuser, `folder` its own."""

    url: str
    folder: Path

    def stop(self, mode: str = "immediate") -> None:
        """End it at once."""
        _as_owner(self.folder, _program("pg_ctl"), "-D", str(self.folder / "data"), "-m", mode, "stop")

    def start(self) -> None:
        """Start it again."""
        _start(self.folder)


def _program(name: str) -> str | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


def postgres_is_there() -> bool:
    """Whether PostgreSQL's own programs are installed."""
    return all(map(_program, ("initdb", "pg_ctl"))) and sys.platform != "win32"


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A server of its own on loopback, as a user that is not root."""
    # Not below pytest's folder, which another user may not enter; and a socket's path has to be short.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        _as_owner(folder, _program("initdb"), "-D", str(folder / "data"), "-U", "admin", "--no-sync", "-A", "trust",
                  "-E", "UTF8", "--locale=C.UTF-8")  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = {
            "port": port, "listen_addresses": "'127.0.0.1'", "unix_socket_directories": f"'{folder}'", "fsync": "off",
            "max_connections": 60, "shared_buffers": "16MB",
        }  # fmt: skip
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        _start(folder)
        running = Postgres(f"postgresql://admin@127.0.0.1:{port}/postgres", folder)
        try:
            with _ended_with_this_process(folder):
                yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ended_with_this_process(folder: Path) -> Iterator[None]:
    """The server below `folder` does not outlive this process, also where that is killed: it is no child of its own."""
    script = 'read -r _ && exit; kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"; rm -rf "$1"'
    argv = ["/bin/sh", "-c", script, "sh", str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as keeper:
        try:
            yield
        finally:
            keeper.communicate(b"\n")


def _start(folder: Path) -> None:
    _as_owner(folder, _program("pg_ctl"), "-D", str(folder / "data"), "-l", str(folder / "log"), "-w", "start")


def _as_owner(folder: Path, program: str | None, *arguments: str) -> None:
    assert program is not None
    user = "postgres" if os.geteuid() == 0 else None
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    done = subprocess.run(
        [program, *arguments], cwd=folder, user=user, env=environment, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


class ServiceProcess:
    """`agent-host tool-service` as a process."""

    def __init__(
        self,
        folder: Path,
        file: Mapping[str, Any],
        *options: str,
        environ: Mapping[str, str] | None = None,
        starter: Sequence[str] = (),
    ) -> None:
        path = folder / "tenants.json"
        path.write_bytes(orjson.dumps(file))
        self._stderr = (folder / "service-errors").open("w+b")
        self._popen = subprocess.Popen(
            [*starter, sys.executable, "-P", "-m", "agent_host", "tool-service", "--tenants", str(path),
             "--state-dir", str(folder / "state"), *options],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(folder), **KEY_ENVIRONMENT, **(environ or {})},
        )  # fmt: skip
        assert self._popen.stdout is not None
        self.url = self._popen.stdout.readline().decode().strip()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def terminate(self) -> None:
        self._popen.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit code."""
        return self._popen.wait(PATIENCE_S)

    def kill(self) -> None:
        """All of its processes, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(PATIENCE_S)

    def errors(self) -> str:
        """What it wrote to standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def close(self) -> None:
        self.kill()
        self._stderr.close()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


@contextlib.contextmanager
def process(
    folder: Path,
    file: Mapping[str, Any],
    *options: str,
    environ: Mapping[str, str] | None = None,
    starter: Sequence[str] = (),
) -> Iterator[ServiceProcess]:
    """The service as a process, ended with the block. `starter` is the program that starts it, with its arguments."""
    service = ServiceProcess(folder, file, *options, environ=environ, starter=starter)
    try:
        yield service
    finally:
        service.close()


@contextlib.asynccontextmanager
async def caller(url: str) -> AsyncIterator[Caller]:
    """A client of a service that runs elsewhere."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as http:
        yield Caller(http)
