"""Inner door: whether the MCP servers of the user's configuration answer, and OAuth's one visit to a browser."""

from __future__ import annotations

import asyncio
import os
import webbrowser
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from agent_host.api.dry_runs import policy_to_try
from agent_host.app.machine import this_environment
from agent_host.app.mcp_entries import Refused
from agent_host.app.mcp_servers import servers_of_user
from agent_host.app.sandboxing import level_of
from agent_host.errors import UsageError
from agent_host.http_basics import shown_url
from agent_host.shown_text import counted, one_line
from state.temporary import scratch
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.mcp.servers import Http, Stdio
from tool_runtime.mcp.source import Browser, McpSource
from tool_runtime.platform.programs import trusted_path
from tool_runtime.router import LocalToolRouter
from tool_runtime.settings import RuntimeSettings, SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from config.settings import Settings
    from tool_runtime.mcp.servers import ServerConfig

_AUTHORIZE_S = 300.0


def check_servers(flags: Mapping[str, Any], settings: Settings, state_dir: str) -> list[tuple[str, bool, str]]:
    """(name, whether it answers, what was found) of each, started and held as a session in this directory would under
    the policy of `flags`. Raises UsageError for entries that cannot be used, PolicyError for the policy."""
    workspace, now = os.path.realpath(os.getcwd()), datetime.now(UTC)
    used = level_of(settings, state_dir)
    level = used.level
    with scratch("doctor") as temporary:
        bundle = scoping = sandbox = None
        if level != "none" or used.is_untried:
            tried = policy_to_try(flags, workspace=workspace, state_dir=state_dir, level=used)
            bundle = tried.in_use._replace(mcp_servers=())
            scoping = tried.hosts._replace(temporary=temporary).scoping(used, tried.here, is_here=True)
        if level != "none":
            sandbox = SandboxSettings(level, required=True, caches=os.path.join(temporary, "caches"))
        runtime = RuntimeSettings(workspace=workspace, temporary=temporary, sandbox=sandbox)
        here = this_environment(workspace, temporary=temporary)
        found = list(
            servers_of_user(settings, here, state_dir, now, bundle=bundle, scoping=scoping, temporary=temporary)
        )
        return asyncio.run(_check(found, runtime)) if found else []


def authorize(settings: Settings, state_dir: str, name: str, say: Callable[[str], None]) -> str:
    """Have the person authorize this program at a server, in a browser; what came of it. Raises UsageError."""
    found = list(servers_of_user(settings, this_environment(os.getcwd()), state_dir, datetime.now(UTC)))
    server = next((one for one in found if one.name == name), None)
    if server is None or isinstance(server, Refused):
        why = f"{name}: {server.why}" if server is not None else f"there is no server {name!r} in mcp.servers"
        raise UsageError(f"configuration: {why}")
    if not isinstance(server.place, Http) or server.place.oauth_folder is None:
        raise UsageError(f"configuration: mcp.servers: {name} has no oauth = true")
    return asyncio.run(_authorize(server, say))


async def _check(servers: list[ServerConfig | Refused], runtime: RuntimeSettings) -> list[tuple[str, bool, str]]:
    router = LocalToolRouter(runtime)
    try:
        return list(await asyncio.gather(*(_checked(one, runtime, router) for one in servers)))
    finally:
        await router.aclose()


async def _checked(
    server: ServerConfig | Refused, runtime: RuntimeSettings, router: LocalToolRouter
) -> tuple[str, bool, str]:
    if isinstance(server, Refused):
        return server.name, False, server.why
    source = McpSource(server, runtime, router.start_program)
    place = shown_url(server.place.url) if isinstance(server.place, Http) else server.place.argv[0]
    is_held = isinstance(server.place, Stdio) and server.place.scope is not None
    try:
        listed = await source.list()
    except ToolFault as fault:
        held = "; the sandbox holds it: write and domains of its entry give it more" if is_held else ""
        return server.name, False, f"{place}: {fault}{held}"
    finally:
        await source.aclose()
    return server.name, True, f"{place} answers, {counted(len(listed.definitions), 'tool')}{listed.left_out}"


async def _authorize(server: ServerConfig, say: Callable[[str], None]) -> str:
    from mcp.shared.auth import AuthorizationCodeResult

    from tool_runtime.mcp.oauth import DEFAULT_PORT

    answered: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("ascii", "replace").split()
        said = parse_qs(urlsplit(line[1]).query) if len(line) > 1 else {}
        if "error" in said and not answered.done():
            why = "; ".join(said.get(name, [""])[0] for name in ("error", "error_description") if name in said)
            answered.set_exception(
                ToolFault(FaultKind.ACCESS_DENIED, f"the authorization server says: {one_line(why)}")
            )
        elif "code" in said and not answered.done():
            first = {name: values[0] for name, values in said.items() if name in ("code", "state", "iss")}
            answered.set_result(AuthorizationCodeResult.model_validate(first))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nYou can close this.\n")
        await writer.drain()
        writer.close()

    async def send_to(url: str) -> None:
        say(f"authorize agent-host at {url}")
        # It takes the browser from PATH.
        os.environ["PATH"] = trusted_path(os.environ.get("PATH", os.defpath), (os.getcwd(),))
        await asyncio.to_thread(webbrowser.open, url)

    async def sent_back() -> AuthorizationCodeResult:
        async with asyncio.timeout(_AUTHORIZE_S):
            return await answered

    try:
        listening = await asyncio.start_server(answer, "127.0.0.1", DEFAULT_PORT)
    except OSError:  # another program has it: one that registers with the server again gets any other
        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    runtime = RuntimeSettings(workspace=os.getcwd())
    router = LocalToolRouter(runtime)
    source = McpSource(
        server._replace(connect_timeout_s=_AUTHORIZE_S),
        runtime,
        router.start_program,
        browser=Browser(send_to, sent_back, port),
    )
    async with listening:
        try:
            listed = await source.list()
        except ToolFault as fault:
            raise UsageError(f"mcp.servers: {server.name}: {fault}") from fault
        finally:
            await source.aclose()
            await router.aclose()
    return f"{server.name} is authorized, {counted(len(listed.definitions), 'tool')}"
