"""Checks of this machine. A check fails only for things that a run needs, and services that the environment names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from agent_host import import_isolation
from agent_host.capability_grants import KEY_VARIABLE, grant_key
from agent_host.display_text import count_noun, one_line
from agent_host.errors import PolicyError, UsageError
from agent_host.host import environment
from agent_host.host.backends import GATEWAY_PREFIX, NO_GATEWAY, Tokens, advice, ask_gateway, fit_toolset
from agent_host.host.dry_runs import first_request_tokens, policy_to_try
from agent_host.host.first_provider import local_servers, model_of, try_gateway, try_tool_call
from agent_host.host.mcp_servers import SessionServers, UnusedServer
from agent_host.host.options import anchor, model_facts, settings_from, with_provider
from agent_host.http import displayable_url, httpx, is_loopback, usable_in_header
from agent_host.ids import MACHINE
from agent_host.llm.deferred import KnownModels
from agent_host.llm.known_dialects import (
    dialect_of_script,
    dialect_of_settings,
)
from agent_host.services import TOOLS_TOKEN_VARIABLE, endpoints
from agent_host.testing.script import Script, ScriptError
from agent_host.thread.messages import AUTO, ESTIMATE, TokenizerUnavailable, counter
from config.policies import BUILT_IN
from config.settings import MOCK_PREFIX
from policy import STRONGEST
from state import make_private_dir
from state.temporary import scratch
from tool_runtime.platform import current
from tool_runtime.platform.directories import BY_DESCRIPTOR
from tool_runtime.platform.environment import path_to_trust
from tool_runtime.remote.backend import tools_of
from tool_runtime.remote.mcp import Http, Stdio
from tool_runtime.remote.mcp.source import McpSource
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import FaultKind, RuntimeSettings, SandboxSettings, ToolFault

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mcp.shared.auth import AuthorizationCodeResult

    from config.settings import Settings
    from tool_runtime.remote.mcp import ServerConfig


_NO_LINK = "opened from directory to directory, and no link is followed"
_LINKS = "a link that is moved between the check and the opening of a file is followed"
_PROBE_TIMEOUT_S = 5.0
_TOOLS_SHOWN = 10
_MAX_SERVER_BYTES = 8192
"""Part of the report on an MCP server: it lists each of its tools that is left out, with the reason."""
_PROBE = "import sys; sys.path.append(sys.argv[1]); from tool_runtime.processes.guard import main; main()"


class Check(NamedTuple):
    """One line of the report. `ok` None: information only, nothing depends on it. `scope` is what a command may do
    here, in JSON (`CommandScope.to_wire`)."""

    name: str
    ok: bool | None
    found: str
    scope: Mapping[str, Any] | None = None


def machine_checks(flags: Mapping[str, Any], state_dir: str, *, deep: bool = False) -> tuple[Check, ...]:
    """Run every check, with `flags` over the user's configuration; `deep`: have the model call a tool as well. Raises
    UsageError for a configuration that cannot be used, and for a current directory that was removed."""
    anchor(os.curdir)
    settings = with_provider(settings_from(flags, workspace=None))
    settings, of_model = _model(flags, settings, state_dir)
    url = settings.llm.gateway
    asks = bool(url) and not url.startswith(MOCK_PREFIX)
    return (
        Check("python", sys.version_info >= (3, 11), sys.version.split()[0]),
        *_program(),
        _gateway(settings, state_dir),
        *of_model,
        *([Check("tool call", *try_tool_call(settings, url, state_dir))] if deep and asks else ()),
        *_services(),
        *_mcp_servers(flags, settings, state_dir),
        _state_dir(state_dir),
        _tokenizer(settings),
        _shell(),
        Check("files", True, _NO_LINK) if BY_DESCRIPTOR else Check("files", None, _LINKS),
        _leftovers(environment.secret_variables(settings)),
        _sandbox(flags, settings, state_dir),
    )


def _program() -> list[Check]:
    inside = import_isolation.places_in(os.path.realpath(os.getcwd()))
    if not inside:
        return []
    found = f"no tool or command may change {', '.join(map(one_line, inside))}; install it elsewhere"
    return [Check("program", None, f"warning: agent-host runs from this workspace, and {found}")]


def _gateway(settings: Settings, state_dir: str) -> Check:
    url = settings.llm.gateway
    if not url:
        answering = ", ".join(f"{one.name} ({one.found}): --provider {one.name}" for one in local_servers())
        return Check("gateway", False, f"none: {NO_GATEWAY}" + (f"; here answers {answering}" if answering else ""))
    if url.startswith(MOCK_PREFIX):
        return _mock_gateway(url.removeprefix(MOCK_PREFIX))
    ok, found = try_gateway(settings, url, state_dir)
    provider = settings.provider
    return Check("gateway", ok, found if provider is None else f"{provider.name} ({provider.why}): {found}")


def _model(flags: Mapping[str, Any], settings: Settings, state_dir: str) -> tuple[Settings, list[Check]]:
    """The settings with the facts of a local server, and the model's window compared with the first request of a
    session in the current directory; no check if no window is known, or there is no policy to make a request by."""
    chosen = settings.llm.model
    dialect = (dialect_of_settings(settings) or dialect_of_script(settings)).dialect
    is_ours = settings.host.policy in BUILT_IN
    try:
        found = asyncio.run(
            ask_gateway(
                settings,
                dialect,
                Tokens.read().under(settings).gateway,
                state_dir,
                MACHINE.time,
                model=model_of(settings),
                may_choose=is_ours and not chosen,
                refresh=True,
            )
        )
        level = environment.level_of(settings, state_dir)
        tried = policy_to_try(flags, workspace=os.getcwd(), state_dir=state_dir, level=level)
    except (UsageError, PolicyError):  # other checks report its problem
        return settings, []
    settings, model = fit_toolset(found.settings, tried.bundle_in_use), model_of(found.settings)
    window = KnownModels(settings.models).table.of(model).limits.context_tokens
    served = () if found.facts is None else found.facts.models
    summary = found.summary.removeprefix(GATEWAY_PREFIX)
    if served and model not in served:
        summary = f"it serves {one_line(', '.join(served[:_TOOLS_SHOWN]))}: choose one with --model"
    if window is None:
        return settings, [Check("model", None, summary)] if summary else []
    families = environment.families_of(settings)
    needed = first_request_tokens(tried._replace(families=families), dialect, model)
    helps = advice(needed, window, families)
    words = helps or f"the first request of about {needed:,} tokens fits ({', '.join(families)} tools)"
    takes_none = (
        "; it reports that the model takes no tools" if found.facts and found.facts.takes_tools is False else ""
    )
    ok = needed < window and not takes_none
    return settings, [Check("model", ok, "; ".join(filter(None, (summary, words))) + takes_none)]


def _services() -> list[Check]:
    try:
        named = endpoints(os.environ)._asdict()
    except UsageError as error:
        return [Check("services", False, str(error))]
    tools = named.pop("backend_tools")
    urls = {name: url for name, url in named.items() if url is not None}
    found = [_answers(name, url, trust_env=_is_far(url)) for name, url in urls.items()]
    return found if tools is None else [*found, _backend_tools(tools, granted=named["session"] is not None)]


def _is_far(url: str) -> bool:
    return not is_loopback(urlsplit(url).hostname or "")


def _backend_tools(url: str, *, granted: bool) -> Check:
    """Check the list of the Backend Tool Service for this host's token. `granted`: a Session Service may give the
    grants that calls need; else they are signed here."""
    name, shown, token = "backend tools", displayable_url(url), os.environ.get(TOOLS_TOKEN_VARIABLE, "")
    if not usable_in_header(token):
        return Check(name, False, f"{TOOLS_TOKEN_VARIABLE} contains characters that no header can carry")
    try:
        key = grant_key(os.environ)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = httpx.get(f"{url}/tools", headers=headers, timeout=_PROBE_TIMEOUT_S, trust_env=_is_far(url))
        listed = tools_of(answer.content) if answer.status_code == 200 else None
    except (UsageError, ToolFault) as error:
        return Check(name, False, f"{shown}: {error}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Check(name, False, f"{shown}: {str(error) or type(error).__name__}")
    if listed is None:
        refused = answer.status_code == 401
        hint = f"; check {TOOLS_TOKEN_VARIABLE}" if token else f": set {TOOLS_TOKEN_VARIABLE}"
        return Check(name, False, f"{shown} says HTTP {answer.status_code}{hint if refused else ''}")
    tools = ", ".join(one_line(one.name) for one in listed.definitions[:_TOOLS_SHOWN])
    extra = len(listed.definitions) - _TOOLS_SHOWN
    found = f"{shown} lists {tools or 'no tools'}{f' and {extra} more' if extra > 0 else ''}"
    if listed.rejected:
        found += (
            f"; {len(listed.rejected)} cannot be used: {one_line('; '.join(map(': '.join, listed.rejected.items())))}"
        )
    if key is None and not granted:
        return Check(name, False, f"{found}; without {KEY_VARIABLE} it runs none of them for this host")
    return Check(name, True, found)


def _mcp_servers(flags: Mapping[str, Any], settings: Settings, state_dir: str) -> list[Check]:
    if not settings.mcp.servers:
        return []
    try:
        servers = check_servers(flags, settings, state_dir)
        return [Check(f"mcp {name}", ok, one_line(found, _MAX_SERVER_BYTES)) for name, ok, found in servers]
    except (UsageError, PolicyError) as error:
        return [Check("mcp", False, str(error))]


def _answers(name: str, url: str, *, trust_env: bool) -> Check:
    shown = displayable_url(url)
    try:
        status = httpx.get(url, timeout=_PROBE_TIMEOUT_S, trust_env=trust_env).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Check(name, False, f"{shown}: {str(error) or type(error).__name__}")
    return Check(name, True, f"{shown} answers (HTTP {status})")


def _mock_gateway(path: str) -> Check:
    try:
        turns = len(Script.load(path).turns)
    except ScriptError as error:
        return Check("gateway", False, str(error))
    return Check("gateway", True, f"script {path} with {turns} turns")


def _state_dir(path: str) -> Check:
    try:
        make_private_dir(path)
        with tempfile.TemporaryFile(dir=path) as handle:
            handle.write(b"probe")
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        return Check("state dir", False, f"{path}: {error.strerror}")
    return Check("state dir", True, f"{path} takes and syncs files")


def _tokenizer(settings: Settings) -> Check:
    name, model = settings.llm.tokenizer, model_of(settings)
    encoding = model_facts().table.of(model).limits.tokenizer
    if name == ESTIMATE:
        hint = "" if encoding is None else f'; {one_line(model)} counts with {encoding}: llm.tokenizer = "auto" uses it'
        return Check("tokenizer", True, name + hint)
    wanted = encoding if name == AUTO else name
    if wanted is None:
        return Check("tokenizer", True, f"{name}: the estimate, since tiktoken has no encoding for {one_line(model)}")
    try:
        counter(wanted)
    except TokenizerUnavailable as error:
        return Check("tokenizer", name == AUTO, f"{name}: {'the estimate, since ' if name == AUTO else ''}{error}")
    return Check("tokenizer", True, wanted)


def _shell() -> Check:
    shell = environment.host_shell(os.getcwd())
    found = os.access(shell, os.X_OK)
    return Check("shell", found, shell if found else f"{shell} is not there")


def _leftovers(secret: Collection[str]) -> Check:
    """Check that processes started by a command end with a host that is killed: tried with a process that has left
    everything by which it could be recognized."""
    if sys.platform == "win32":
        return Check("leftovers", None, "a Job Object ends what commands started")
    try:
        output = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE, import_isolation.ROOT],
            # Not from the working directory, and not from what PYTHONPATH has of the same name.
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH" and name not in secret}
            | {"PATH": path_to_trust(os.environ.get("PATH", os.defpath), (os.getcwd(),))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_PROBE_TIMEOUT_S * 4,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("leftovers", None, f"not tried: {type(error).__name__}")
    if not output.isdigit():
        return Check("leftovers", None, "not tried: `setsid` and `env` are needed for it")
    left, deadline = int(output), time.monotonic() + _PROBE_TIMEOUT_S
    while time.monotonic() < deadline:
        if not _runs(left):
            return Check("leftovers", True, "processes started by commands end with the host, even if it is killed")
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.kill(left, signal.SIGKILL)
    return Check("leftovers", None, "what hides may outlive a killed host; a resume ends what carries its mark")


def _runs(pid: int) -> bool:
    """False also for a zombie: in a container it may never be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    row = current.entry_of(pid)
    return row is None or row.alive


def _sandbox(flags: Mapping[str, Any], settings: Settings, state_dir: str) -> Check:
    """Check the sandbox levels of this machine, tried with a small command: the restrictions that the strongest of them
    cannot enforce, and the access of a command in the current directory under the policy of the configuration."""
    found = environment.try_levels(state_dir)
    wanted, used = settings.sandbox.level, environment.level_of(settings, state_dir, found=found)
    words = [f"{name} works" if one["works"] else f"{name} does not: {one['problem']}" for name, one in found.items()]
    words += [f"{name} has {one['problem']}" for name, one in found.items() if one["works"] and one["problem"]]
    follows = "denied" if used.is_untried else f"held by {used.level}"
    words.append(f"sandbox.level = {wanted}: commands are {follows}")
    is_usual = used.level == "none" and wanted in ("none", STRONGEST) and not used.is_untried
    ok = None if is_usual else used.level != "none"
    scope = None if used.level == "none" else _local_scope(flags, state_dir, used)
    if used.unheld and scope is None:
        words.append(f"it does not hold {', '.join(used.unheld)}")
    return Check("sandbox", ok, "; ".join(words), scope)


def _local_scope(flags: Mapping[str, Any], state_dir: str, level: environment.Level) -> Mapping[str, Any] | None:
    """None if there is no usable policy: a start reports its problem."""
    try:
        tried = policy_to_try(flags, workspace=os.getcwd(), state_dir=state_dir, level=level)
    except (UsageError, PolicyError):
        return None
    return tried.hosts.scoping(level, tried.machine, is_here=True).row(tried.bundle_in_use, tried.machine)


# The MCP servers of the user's configuration, and OAuth's one visit to a browser.

_AUTHORIZE_S = 300.0


def check_servers(flags: Mapping[str, Any], settings: Settings, state_dir: str) -> list[tuple[str, bool, str]]:
    """(name, True if it answers, the findings) of each, started and sandboxed as by a session in this directory under
    the policy of `flags`. Raises UsageError for entries that cannot be used, PolicyError for the policy."""
    workspace, now = os.path.realpath(os.getcwd()), MACHINE.now()
    used = environment.level_of(settings, state_dir)
    level = used.level
    with scratch("doctor") as temporary:
        bundle = scoping = sandbox = None
        tried = policy_to_try(flags, workspace=workspace, state_dir=state_dir, level=used)
        if level != "none" or used.is_untried:
            bundle = tried.bundle_in_use._replace(mcp_servers=())
            scoping = tried.hosts._replace(temporary=temporary).scoping(used, tried.machine, is_here=True)
        if level != "none":
            sandbox = SandboxSettings(level, required=True, caches=os.path.join(temporary, "caches"))
        runtime = RuntimeSettings(workspace, MACHINE, temporary=temporary, sandbox=sandbox)
        local = environment.this_environment(workspace, temporary=temporary)
        found: list[ServerConfig | UnusedServer] = []
        found += SessionServers(settings, tried.bundle_in_use, local, state_dir, now).incomplete()
        found += SessionServers(settings, bundle, local, state_dir, now, "", temporary, scoping).servers()
        return asyncio.run(_check(found, runtime)) if found else []


def authorize(flags: Mapping[str, Any], state_dir: str, name: str, notify: Callable[[str], None]) -> str:
    """Have the user authorize this program at a server of the configuration, in a browser; returns the outcome. Raises
    UsageError."""
    settings, local = settings_from(flags, workspace=None), environment.this_environment(anchor(os.curdir))
    found = list(SessionServers(settings, None, local, state_dir, MACHINE.now()).servers())
    server = next((one for one in found if one.name == name), None)
    if server is None or isinstance(server, UnusedServer):
        why = f"{name}: {server.why}" if server is not None else f"there is no server {name!r} in mcp.servers"
        raise UsageError(f"configuration: {why}")
    if not isinstance(server.place, Http) or server.place.oauth_folder is None:
        raise UsageError(f"configuration: mcp.servers: {name} has no oauth = true")
    return asyncio.run(_authorize(server, notify))


async def _check(servers: list[ServerConfig | UnusedServer], runtime: RuntimeSettings) -> list[tuple[str, bool, str]]:
    router = LocalToolRouter(runtime, environment.start_here)
    try:
        return list(await asyncio.gather(*(_check_server(one, runtime, router) for one in servers)))
    finally:
        await router.aclose()


async def _check_server(
    server: ServerConfig | UnusedServer, runtime: RuntimeSettings, router: LocalToolRouter
) -> tuple[str, bool, str]:
    if isinstance(server, UnusedServer):
        return server.name, False, server.why
    source = McpSource(server, runtime, router.start_program)
    place = displayable_url(server.place.url) if isinstance(server.place, Http) else server.place.argv[0]
    try:
        listed = await source.list()
    except ToolFault as fault:
        return server.name, False, f"{place}: {fault}{_advice(server.place)}"
    finally:
        await source.aclose()
    return server.name, True, f"{place} answers, {count_noun(len(listed.definitions), 'tool')}{listed.note}"


def _advice(place: Http | Stdio) -> str:
    if isinstance(place, Http):
        return ""
    if not os.path.isabs(place.argv[0]):  # none of PATH
        return "; command is a program alone, its arguments are args" if " " in place.argv[0] else ""
    return "" if place.scope is None else "; the sandbox holds it: write and domains of its entry give it more"


class _Redirect:
    def __init__(self) -> None:
        self._answered: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def listen(self, port: int) -> asyncio.Server:
        """Serve the page at the usual `port`; one that registers with the server again gets any other."""
        try:
            return await asyncio.start_server(self._serve, "127.0.0.1", port)
        except OSError:  # another program has it
            return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the answer. Raises ToolFault for a refusal, and TimeoutError."""
        async with asyncio.timeout(_AUTHORIZE_S):
            return await self._answered

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("ascii", "replace").split()
        self._take(parse_qs(urlsplit(line[1]).query) if len(line) > 1 else {})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nYou can close this.\n")
        await writer.drain()
        writer.close()

    def _take(self, query: Mapping[str, list[str]]) -> None:
        from mcp.shared.auth import AuthorizationCodeResult

        if self._answered.done():
            return
        if "error" in query:
            why = "; ".join(query.get(name, [""])[0] for name in ("error", "error_description") if name in query)
            fault = ToolFault(FaultKind.ACCESS_DENIED, f"the authorization server says: {one_line(why)}")
            self._answered.set_exception(fault)
        elif "code" in query:
            first = {name: values[0] for name, values in query.items() if name in ("code", "state", "iss")}
            self._answered.set_result(AuthorizationCodeResult.model_validate(first))


async def _authorize(server: ServerConfig, notify: Callable[[str], None]) -> str:
    from tool_runtime.remote.mcp.oauth import DEFAULT_PORT, Browser

    async def send_to(url: str) -> None:
        notify(f"authorize agent-host at {url}")
        # It takes the browser from PATH.
        os.environ["PATH"] = path_to_trust(os.environ.get("PATH", os.defpath), (os.getcwd(),))
        await asyncio.to_thread(webbrowser.open, url)

    redirect = _Redirect()
    listening = await redirect.listen(DEFAULT_PORT)
    port = listening.sockets[0].getsockname()[1]
    runtime = RuntimeSettings(os.getcwd(), MACHINE)
    router = LocalToolRouter(runtime, environment.start_here)
    source = McpSource(
        server._replace(connect_timeout_s=_AUTHORIZE_S),
        runtime,
        router.start_program,
        browser=Browser(send_to, redirect.answer, port),
    )
    async with listening:
        try:
            listed = await source.list()
        except ToolFault as fault:
            raise UsageError(f"mcp.servers: {server.name}: {fault}") from fault
        finally:
            await source.aclose()
            await router.aclose()
    return f"{server.name} is authorized, {count_noun(len(listed.definitions), 'tool')}"
