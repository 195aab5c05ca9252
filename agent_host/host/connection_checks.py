"""One real call to the gateway, for `doctor`: what is wrong with URL, token, model or wire, in one line."""

from __future__ import annotations

import asyncio
import os
import webbrowser
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit
from urllib.request import getproxies, proxy_bypass

from agent_host.contracts import Subject, ToolSpec
from agent_host.display_text import count_noun, one_line
from agent_host.errors import GatewayError, GatewayUnavailable, GuardrailBlocked, UsageError
from agent_host.host.dry_runs import policy_to_try
from agent_host.host.environment import start_here, this_environment
from agent_host.host.gateway import Gateway, make_client
from agent_host.host.mcp_servers import SessionServers, UnusedServer
from agent_host.host.sandboxing import level_of
from agent_host.host.secrets import Tokens, token_name
from agent_host.http import TlsContext, displayable_url, first_line, httpx, is_loopback, strip_html
from agent_host.ids import MACHINE
from agent_host.llm import errors
from agent_host.llm.errors import KINDS, kind_of_answer
from agent_host.llm.known_dialects import (
    check_headers,
    check_token,
    check_url,
    dialect_of_settings,
    find_dialect,
    password_of,
    request_url,
    secrets_in,
)
from agent_host.llm.network import whole_events
from agent_host.llm.stream import AnswerTooLarge, StreamFault, StreamProtocolError
from agent_host.redaction import Scrubber
from agent_host.thread.messages import Message
from config.policies import BUILT_IN, template
from state.temporary import scratch
from tool_runtime.families.schemas import definition_of, parameters, text
from tool_runtime.platform.environment import path_to_trust
from tool_runtime.remote.mcp import Http, Stdio
from tool_runtime.remote.mcp.source import McpSource
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import FaultKind, RuntimeSettings, SandboxSettings, ToolFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp.shared.auth import AuthorizationCodeResult

    from agent_host.llm.dialects import Dialect
    from agent_host.llm.errors import Kind
    from agent_host.llm.stream import ModelTurn
    from config.settings import Settings
    from tool_runtime.remote.mcp import ServerConfig

_TIMEOUT_S = 20.0
_MAX_ANSWER_BYTES = 64 * 1024
_SAID_BYTES = 200
# The least that every provider takes.
_MAX_TOKENS = 16
_DEEP_TOKENS = 512
_LOOK_UP: Final = ToolSpec(
    "look_up",
    "Look up a word",
    parameters(["word"], word=text("The word")),
    capability="Tool.Invoke",
    subject=Subject("name"),
    effect="none",
    category="files",
)


def try_gateway(settings: Settings, url: str, state_dir: str) -> tuple[bool, str]:
    """True if the gateway at `url` answers a request with the token and the model of a run, and what it did. With
    `auto` its dialect is looked for anew, and kept in `state_dir`."""
    try:
        host = check_url(url).host
        token = check_token(Tokens.read().under(settings).gateway)
        headers = check_headers(settings.llm.headers)
        dialect, found = dialect_of_settings(settings) or find_dialect(
            settings, url, token, state_dir, MACHINE.time, anew=True
        )
    except (UsageError, GatewayError) as error:
        return False, str(error)
    model = model_of(settings)
    scrubber = Scrubber([token, password_of(url), *secrets_in(headers)])
    shown, began = displayable_url(request_url(url, dialect.path)).partition("?")[0], MACHINE.monotonic()
    try:
        with httpx.stream(
            "POST",
            request_url(url, dialect.path),
            content=_request(dialect, model),
            headers={**dialect.headers(token), **headers, "x-session-id": "doctor", "accept-encoding": "identity"},
            timeout=_TIMEOUT_S,
            verify=TlsContext(url).get(),
            trust_env=not is_loopback(host),
        ) as response:
            status, media_type = response.status_code, response.headers.get("content-type", "none")
            data, speaks = _start_of(response, dialect, until=began + _TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return False, f"{shown} cannot be reached{_by_proxy(url, host)}: {one_line(first_line(error))}"
    read = errors.read(data)
    said = scrubber.text(one_line(strip_html(read.message) or "an empty answer", _SAID_BYTES))
    if status != httpx.codes.OK:
        kind = kind_of_answer(status, read)
        why = _refusal(kind, status, model, token_name(settings), has_token=token is not None)
        return False, f"{shown} {why} (HTTP {status}): {said}"
    if not media_type.startswith("text/event-stream") or not speaks:
        return False, f"{shown} does not speak the wire {dialect.name!r}: it answered {one_line(media_type)}: {said}"
    took = MACHINE.ms_since(began)
    return True, f"{shown} answers with model {one_line(model)} ({took} ms)" + (f"; {found}" if found else "")


def try_tool_call(settings: Settings, url: str, state_dir: str) -> tuple[bool, str]:
    """True if the model behind the gateway calls a tool when it is asked to, and the server gives that as a call; and
    what it did. One request of up to `_DEEP_TOKENS` tokens."""
    try:
        token = check_token(Tokens.read().under(settings).gateway)
        dialect, _ = dialect_of_settings(settings) or find_dialect(settings, url, token, state_dir, MACHINE.time)
        turn = asyncio.run(_tool_call(settings, url, dialect, token))
    except (UsageError, GatewayError, GuardrailBlocked) as error:
        return False, str(error)
    if any(call.name == _LOOK_UP.name for call in turn.tool_calls):
        return True, "the model calls a tool, and the server gives it as a call"
    how = "llama.cpp needs --jinja and a template with tools, vLLM --enable-auto-tool-choice and --tool-call-parser"
    if _LOOK_UP.name in turn.text:
        return False, f"the model wrote its call as text: this server parses none ({how})"
    said = one_line(turn.text or "an empty answer", _SAID_BYTES)
    return False, f"the model called no tool: choose one that can, or the server parses no calls ({how}): {said}"


async def _tool_call(settings: Settings, url: str, dialect: Dialect, token: str | None) -> ModelTurn:
    model = model_of(settings)
    head = dialect.head(
        model=model, max_output_tokens=_DEEP_TOKENS, system="You work through tools.", tools=[definition_of(_LOOK_UP)]
    )
    question = Message("user", "Call the tool look_up with the word ok.", 12)
    client = make_client(settings, Gateway(url, TlsContext(url)), token, dialect, "doctor", MACHINE.time)
    try:
        return await client.stream(head, [dialect.renderer(model).user([question])], lambda _text: None)
    finally:
        await client.aclose()


def _by_proxy(url: str, host: str) -> str:
    """The proxy that the environment names for this URL, in words; "" for none."""
    proxy = getproxies().get(url.partition(":")[0].lower()) or getproxies().get("all")
    if proxy is None or is_loopback(host) or proxy_bypass(host):
        return ""
    return f" by the proxy {displayable_url(proxy)} of the environment (NO_PROXY names hosts that need none)"


def _request(dialect: Dialect, model: str) -> bytes:
    head = dialect.head(model=model, max_output_tokens=_MAX_TOKENS, system="Answer in one word.", tools=[])
    return b"".join((head, dialect.renderer(model).user([Message("user", "Say: ok", 3)]), dialect.tail))


def model_of(settings: Settings) -> str:
    """The model of a run: the setting's, else the first that the policy allows, where that is a built-in."""
    policy = settings.host.policy
    allowed = template(policy if policy in BUILT_IN else "workspace")["llmPolicy"]["allowedModels"]
    return settings.llm.model or str(allowed[0])


def _refusal(kind: Kind, status: int, model: str, token: str, *, has_token: bool) -> str:
    if kind == "credentials":
        return f"refuses the token in {token}" if has_token else f"wants a token: set {token}"
    if kind == "loading":
        return "is loading the model: try again once it is loaded; a run waits for it up to llm.max_wait_s"
    no_token = "" if has_token else f"; no token was sent: set {token} if it wants one"
    if kind == "model":
        return f"does not serve the model {one_line(model)!r}: check --model{no_token}"
    if kind == "billing":
        return f"has no credit or budget left: {KINDS[kind].advice}"
    if kind == "rate_limit":
        return "limits requests: try again later"
    if issubclass(KINDS[kind].error, GatewayUnavailable):
        return "fails: try again later"
    if status == httpx.codes.NOT_FOUND:
        unknown = f"does not know the path, or the model {one_line(model)!r}"
        return f"{unknown}: check --gateway, --dialect and --model{no_token}"
    return f"refuses the request: check the model, {one_line(model)!r}, and the wire"


def _start_of(response: httpx.Response, dialect: Dialect, *, until: float) -> tuple[bytes, bool]:
    """The answer up to its first content, `until` a moment of the monotonic clock, and whether the dialect reads it."""
    data = b""
    for piece in response.iter_raw():
        data += piece
        speaks = _is_of(dialect, data)
        if speaks or len(data) > _MAX_ANSWER_BYTES or MACHINE.monotonic() > until:
            return data, speaks
    return data, False


def _is_of(dialect: Dialect, data: bytes) -> bool:
    """True if the whole events at the start of a stream bring something of an answer of this dialect."""
    assembler = dialect.assembler()
    try:
        for event, content in whole_events(data):
            assembler.feed(event, content)
    except (StreamProtocolError, StreamFault, AnswerTooLarge):
        return False
    return assembler.content > 0


# Inner door: whether the MCP servers of the user's configuration answer, and OAuth's one visit to a browser.

_AUTHORIZE_S = 300.0


def check_servers(flags: Mapping[str, Any], settings: Settings, state_dir: str) -> list[tuple[str, bool, str]]:
    """(name, whether it answers, what was found) of each, started and held as a session in this directory would under
    the policy of `flags`. Raises UsageError for entries that cannot be used, PolicyError for the policy."""
    workspace, now = os.path.realpath(os.getcwd()), MACHINE.now()
    used = level_of(settings, state_dir)
    level = used.level
    with scratch("doctor") as temporary:
        bundle = scoping = sandbox = None
        if level != "none" or used.is_untried:
            tried = policy_to_try(flags, workspace=workspace, state_dir=state_dir, level=used)
            bundle = tried.bundle_in_use._replace(mcp_servers=())
            scoping = tried.hosts._replace(temporary=temporary).scoping(used, tried.here, is_here=True)
        if level != "none":
            sandbox = SandboxSettings(level, required=True, caches=os.path.join(temporary, "caches"))
        runtime = RuntimeSettings(workspace, MACHINE, temporary=temporary, sandbox=sandbox)
        here = this_environment(workspace, temporary=temporary)
        found = list(SessionServers(settings, bundle, here, state_dir, now, "", temporary, scoping).servers())
        return asyncio.run(_check(found, runtime)) if found else []


def authorize(settings: Settings, state_dir: str, name: str, say: Callable[[str], None]) -> str:
    """Have the person authorize this program at a server, in a browser; what came of it. Raises UsageError."""
    found = list(SessionServers(settings, None, this_environment(os.getcwd()), state_dir, MACHINE.now()).servers())
    server = next((one for one in found if one.name == name), None)
    if server is None or isinstance(server, UnusedServer):
        why = f"{name}: {server.why}" if server is not None else f"there is no server {name!r} in mcp.servers"
        raise UsageError(f"configuration: {why}")
    if not isinstance(server.place, Http) or server.place.oauth_folder is None:
        raise UsageError(f"configuration: mcp.servers: {name} has no oauth = true")
    return asyncio.run(_authorize(server, say))


async def _check(servers: list[ServerConfig | UnusedServer], runtime: RuntimeSettings) -> list[tuple[str, bool, str]]:
    router = LocalToolRouter(runtime, start_here)
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
    is_held = isinstance(server.place, Stdio) and server.place.scope is not None
    try:
        listed = await source.list()
    except ToolFault as fault:
        held = "; the sandbox holds it: write and domains of its entry give it more" if is_held else ""
        return server.name, False, f"{place}: {fault}{held}"
    finally:
        await source.aclose()
    return server.name, True, f"{place} answers, {count_noun(len(listed.definitions), 'tool')}{listed.note}"


class _Redirect:
    """The page on this machine to which an authorization server sends the browser with its answer."""

    def __init__(self) -> None:
        self._answered: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def listen(self) -> asyncio.Server:
        """Serve the page at the usual port; one that registers with the server again gets any other."""
        from tool_runtime.remote.mcp.oauth import DEFAULT_PORT

        try:
            return await asyncio.start_server(self._serve, "127.0.0.1", DEFAULT_PORT)
        except OSError:  # another program has it
            return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the answer. Raises ToolFault for one that says no, and TimeoutError."""
        async with asyncio.timeout(_AUTHORIZE_S):
            return await self._answered

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("ascii", "replace").split()
        self._take(parse_qs(urlsplit(line[1]).query) if len(line) > 1 else {})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nYou can close this.\n")
        await writer.drain()
        writer.close()

    def _take(self, said: Mapping[str, list[str]]) -> None:
        from mcp.shared.auth import AuthorizationCodeResult

        if self._answered.done():
            return
        if "error" in said:
            why = "; ".join(said.get(name, [""])[0] for name in ("error", "error_description") if name in said)
            fault = ToolFault(FaultKind.ACCESS_DENIED, f"the authorization server says: {one_line(why)}")
            self._answered.set_exception(fault)
        elif "code" in said:
            first = {name: values[0] for name, values in said.items() if name in ("code", "state", "iss")}
            self._answered.set_result(AuthorizationCodeResult.model_validate(first))


async def _authorize(server: ServerConfig, say: Callable[[str], None]) -> str:
    from tool_runtime.remote.mcp.oauth import Browser

    async def send_to(url: str) -> None:
        say(f"authorize agent-host at {url}")
        # It takes the browser from PATH.
        os.environ["PATH"] = path_to_trust(os.environ.get("PATH", os.defpath), (os.getcwd(),))
        await asyncio.to_thread(webbrowser.open, url)

    redirect = _Redirect()
    listening = await redirect.listen()
    port = listening.sockets[0].getsockname()[1]
    runtime = RuntimeSettings(os.getcwd(), MACHINE)
    router = LocalToolRouter(runtime, start_here)
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
