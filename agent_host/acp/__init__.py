"""An agent of the Agent Client Protocol (wire version 1) over session processes.

An editor starts `agent-host acp` once, and has any number of sessions over its one connection. This process holds no
session itself: each is a process of its own (`agent_host.clients.supervisor`), driven by the JSON-RPC of `serve`. So
policy, sandbox, records and resumes are those of every other client, and an editor can do nothing that `serve` refuses.

    editor ──NDJSON── Peer ── Agent ── EditorSession ── SupervisedSession ── serve
                                └───── Desk ─────────────────────────────── serve (a process without a session)

What each part is for:

- `peer` has the wire: requests in both directions, `$/cancel_request`, bounds, errors. It knows no method.
- This file has the methods, and which sessions there are.
- `session` has one session: its turn, its questions, what is heard of it.
- `updates` has the translations, and no state but the options of a session.

Rules:

- Only what works is advertised. Files and terminals of the editor (`fs/*`, `terminal/*`) are not used: effects go
  through the policy and the sandbox of the session, and so does the model's view of the disk.
- `cwd` is absolute, and on load and resume the workspace on record: a session does not move to an editor's directory.
- What a client sends has bounds, and an invalid message is answered; the process continues. Its content is not trusted
  either: editors take `mcpServers` from files of the project, so these are started only if the user's own configuration
  allows it (`acp.client_servers`), and then sandboxed.
- The user widens, the model never does: modes and options are `SetMode`, whose rules `serve` enforces.
- Without a provider `session/new` answers that authentication is required; `authenticate` looks again, and the
  terminal method runs `agent-host acp --init`.
- The editor's end ends the sessions: idle ones are over, those with an open task stay resumable.

Traps:

- The reply to `session/new` has to precede updates of the session, and all of a loaded history the reply to
  `session/load`: `EditorSession` retains updates until `start_sending`, which is called in the loop's next turn, or
  immediately.
- A task that waits for an answer when its process dies asks again only if it continues. So a load continues such a
  task, and no other: one that was interrupted at another point waits for `/continue`, and the next prompt cancels it.
- The codes of `serve` are not those of the protocol (-32002 has another meaning there): `error_of` translates them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent_host.acp.peer import AcpError, PeerMethod, RpcPeer
from agent_host.acp.session import AUTH_REQUIRED, EditorSession, error_of, translated
from agent_host.acp.updates import MOST_BLOCKS, POLICY, Choices, ChosenOptions, Features, Notice, prompt_in
from agent_host.clients.supervisor import LOCAL, RpcFailure, SessionConnection, SessionGone, SessionSpec, Supervisor
from agent_host.display_text import count_noun, one_line
from agent_host.rpc.messages import INVALID_PARAMS, INVALID_REQUEST, name, params
from agent_host.version import __version__
from config.lean_typing import NamedTuple
from config.shapes import OBJECT, ListOf, Text, integer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent_host.clients.supervisor import Starter
    from agent_host.rpc.server import Channel

WIRE_VERSION: Final = 1
RESOURCE_NOT_FOUND: Final = -32002
_AGENT_METHOD: Final = "agent"
_TERMINAL_METHOD: Final = "terminal"
_MOST_SERVERS: Final = 100
_MOST_PAGES: Final = 20
_ENDS_S: Final = 5.0

_T = TypeVar("_T")
_SESSION: Final = {"sessionId": name(128)}
_PLACE: Final = {"cwd": name(4096)}
_SERVERS: Final = ListOf(OBJECT, most=_MOST_SERVERS)
_FOLDERS: Final = ListOf(name(4096), most=_MOST_SERVERS)
_EXTRA: Final = {"mcpServers": _SERVERS, "additionalDirectories": _FOLDERS}


class AgentLaunch(NamedTuple):
    """The options of the command line for all sessions: those of `serve` as they were given, the environment and the
    directory of the processes. `provider_problem` looks for a provider and returns why there is none; `choices_of`
    gives the options in a workspace; `window_of` the window of a model. With `client_servers` the MCP servers that a
    client names are started; with `takes_pictures` the model can look at pictures."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    provider_problem: Callable[[], str | None]
    choices_of: Callable[[str], Choices]
    window_of: Callable[[str], int | None]
    client_servers: bool = False
    takes_pictures: bool = True

    def spec(self, workspace: str, client: Mapping[str, str], servers: Sequence[dict[str, Any]]) -> SessionSpec:
        """A session process for this workspace, with MCP servers of the client."""
        arguments = [*self.arguments, "--workspace", workspace]
        opening = {"clientServers": servers} if servers else {}
        return SessionSpec(arguments, self.environment, self.directory, client_info=client, opening=opening)


class Agent:
    """The agent of one editor. `over` is set when the editor has left."""

    def __init__(self, launch: AgentLaunch, starter: Starter, channel: Channel) -> None:
        self._launch = launch
        self._supervisor = Supervisor(starter)
        self._desk = StateProcess(launch, starter)
        self._sessions: dict[str, EditorSession] = {}
        self._opening: set[str] = set()
        self._features: Features | None = None
        self._client: Mapping[str, str] = {"name": "acp"}
        self.over = asyncio.Event()
        notifications = {"session/cancel": PeerMethod(params(_SESSION), self._cancel)}
        self.peer = RpcPeer(channel, self._requests(), notifications, self.over.set)

    def _requests(self) -> dict[str, PeerMethod]:
        found = {
            "initialize": PeerMethod(params({"protocolVersion": integer(0, 65535)}), self._initialize),
            "authenticate": PeerMethod(params({"methodId": name(128)}), self._authenticate),
            "session/new": PeerMethod(params(_PLACE, _EXTRA), self._new),
            "session/load": PeerMethod(params({**_SESSION, **_PLACE}, _EXTRA), self._load),
            "session/resume": PeerMethod(params({**_SESSION, **_PLACE}, _EXTRA), self._resume),
            "session/list": PeerMethod(params(optional={**_PLACE, "cursor": name(256)}), self._list),
            "session/close": PeerMethod(params(_SESSION), self._close),
            "session/delete": PeerMethod(params(_SESSION), self._delete),
            "session/prompt": PeerMethod(
                params({**_SESSION, "prompt": ListOf(OBJECT, least=1, most=MOST_BLOCKS)}), self._prompt
            ),
            "session/set_mode": PeerMethod(params({**_SESSION, "modeId": name(4096)}), self._set_mode),
            "session/set_config_option": PeerMethod(
                params({**_SESSION, "configId": name(128), "value": Text(1, 4096)}), self._set_option
            ),
        }
        return {
            method: one if method == "initialize" else self._require_initialized(one) for method, one in found.items()
        }

    def _require_initialized(self, method: PeerMethod) -> PeerMethod:
        def serve(given: Mapping[str, Any]) -> Any:
            if self._features is None:
                raise AcpError(INVALID_REQUEST, "initialize comes first")
            return method.serve(given)

        return method._replace(serve=serve)

    async def aclose(self) -> None:
        """End the sessions that the editor left: idle ones are over, an open task stays resumable."""
        idle = [one for one in self._sessions.values() if not one.is_busy and one.open_task is None]
        for session in self._sessions.values():
            await session.close()
        await self.peer.close()
        await asyncio.gather(*map(_shut_down, idle))
        await self._desk.aclose()
        await self._supervisor.aclose()

    # The connection

    async def _initialize(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._features = _features_in(given.get("clientCapabilities"))
        self._client = _client_in(given.get("clientInfo"))
        methods: list[dict[str, Any]] = [
            {
                "id": _AGENT_METHOD,
                "name": "Look for a provider",
                "description": "Use the provider that the configuration or the environment names.",
            }
        ]
        if self._features.terminal_auth:
            terminal = {
                "type": "terminal",
                "id": _TERMINAL_METHOD,
                "name": "Set up a provider",
                "description": "Find a provider, prove it with one call, and write the configuration.",
            }
            methods.append({**terminal, "args": ["--init"]})
        return {
            "protocolVersion": WIRE_VERSION,
            "agentInfo": {"name": "agent-host", "title": "Agent Host", "version": __version__},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": self._launch.takes_pictures, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": False, "sse": False},
                "sessionCapabilities": {"list": {}, "delete": {}, "resume": {}, "close": {}},
            },
            "authMethods": methods,
        }

    async def _authenticate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if given["methodId"] != _AGENT_METHOD:
            raise AcpError(INVALID_PARAMS, f"methodId: must be {_AGENT_METHOD}")
        await self._require_provider()
        return {}

    async def _require_provider(self) -> None:
        problem = await asyncio.to_thread(self._launch.provider_problem)
        if problem is not None:
            raise AcpError(AUTH_REQUIRED, problem)

    # Sessions

    async def _new(self, given: Mapping[str, Any]) -> dict[str, Any]:
        workspace = _workspace_in(given)
        spec = self._launch.spec(workspace, self._client, self._servers_in(given))
        await self._require_provider()
        session = self._editor_session(spec, workspace)
        choosing = asyncio.ensure_future(asyncio.to_thread(self._launch.choices_of, workspace))
        try:
            with translated():
                session.attach(await self._supervisor.create(spec, session))
                started, choices = await _or_close(session, asyncio.gather(session.started, choosing))
        finally:
            choosing.cancel()
        sandbox = started.get("sandbox")
        wanted = sandbox.get("wanted") if isinstance(sandbox, dict) else None
        session.options = ChosenOptions(choices, {**started, "sandbox": wanted})
        self._sessions[session.session_id] = session
        self._greet(session, given)
        asyncio.get_running_loop().call_soon(session.start_sending)  # after the reply
        return {"sessionId": session.session_id, **session.options.to_wire()}

    async def _load(self, given: Mapping[str, Any]) -> dict[str, Any]:
        session = await self._open(given, replay=True)
        session.start_sending()
        with translated():
            await session.replayed
        self._greet(session, given)
        if session.open_task is not None and session.waits_for_answer:
            await session.continue_without_prompt()  # it asks its question again
        elif session.open_task is not None:
            session.notify(
                Notice("info", "A task of this session is open", "/continue continues it; a prompt cancels it.")
            )
        return session.options.to_wire()

    async def _resume(self, given: Mapping[str, Any]) -> dict[str, Any]:
        session = await self._open(given, replay=False)
        self._greet(session, given)
        asyncio.get_running_loop().call_soon(session.start_sending)
        return session.options.to_wire()

    async def _open(self, given: Mapping[str, Any], *, replay: bool) -> EditorSession:
        """A session on record in a process of its own. One that is open here is closed first, unless it is busy."""
        workspace, session_id = _workspace_in(given), given["sessionId"]
        spec = self._launch.spec(workspace, self._client, self._servers_in(given))
        if session_id in self._opening:
            raise AcpError(INVALID_REQUEST, "the session is just being opened")
        self._opening.add(session_id)
        try:
            await self._require_provider()
            recorded = await self._recorded_workspace(session_id)
            if recorded != workspace:
                raise AcpError(INVALID_PARAMS, f"cwd: the workspace of the session is {recorded}")
            before = self._sessions.get(session_id)
            if before is not None:
                if before.is_busy:
                    raise AcpError(INVALID_REQUEST, "a prompt of this session is running")
                del self._sessions[session_id]
                await before.close()
                await before.supervised.close()
            session = self._editor_session(spec, workspace)
            choices = await asyncio.to_thread(self._launch.choices_of, workspace)
            with translated():
                supervised, result = await self._supervisor.resume(session_id, spec, session, replay=replay)
            session.attach(supervised, result)
            session.has_title = True
            session.options = ChosenOptions(choices, {})
            session.options.take_mode((await _or_close(session, session.request("GetSessionState"))).get("mode", {}))
            self._sessions[session_id] = session
            return session
        finally:
            self._opening.discard(session_id)

    async def _recorded_workspace(self, session_id: str) -> str:
        rows = (await self._desk.request("ListSessions", {"search": session_id, "limit": 500}))["sessions"]
        found = next((row for row in rows if row["sessionId"] == session_id), None)
        if found is None:
            raise AcpError(RESOURCE_NOT_FOUND, f"there is no session {session_id!r}")
        return str(found["workspace"])

    async def _list(self, given: Mapping[str, Any]) -> dict[str, Any]:
        only = _workspace_in(given) if "cwd" in given else None
        cursor, rows = given.get("cursor"), []
        for _ in range(_MOST_PAGES):
            page = await self._desk.request("ListSessions", {} if cursor is None else {"cursor": cursor})
            rows = [_row_of(one) for one in page["sessions"] if only in (None, one["workspace"])]
            cursor = page.get("nextCursor")
            if rows or cursor is None:
                break
        return {"sessions": rows, **({} if cursor is None else {"nextCursor": cursor})}

    async def _close(self, given: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session(given)
        session.cancel()
        self._sessions.pop(session.session_id, None)
        await session.close()
        await _shut_down(session)
        await session.supervised.close()
        return {}

    async def _delete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Remove a session; one that could be resumed is ended first, since a person has chosen to lose it."""
        session_id = given["sessionId"]
        workspace = await self._recorded_workspace(session_id)
        if session_id in self._sessions:
            await self._close(given)
        try:
            await self._desk.request("DeleteSession", {"sessionId": session_id})
        except AcpError as error:
            if error.code not in (INVALID_REQUEST, INVALID_PARAMS):
                raise
            await self._open({"sessionId": session_id, "cwd": workspace}, replay=False)
            await self._close(given)
            await self._desk.request("DeleteSession", {"sessionId": session_id})
        return {}

    # Turns

    async def _prompt(self, given: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session(given)
        prompt = prompt_in(given["prompt"], takes_pictures=self._launch.takes_pictures)
        text = prompt.text.strip()
        command = _COMMANDS.get(text[1:]) if text.startswith("/") and len(given["prompt"]) == 1 else None
        if command is None:
            return {"stopReason": await session.prompt(prompt)}
        if command.run is None:
            return {"stopReason": await session.continue_task()}
        session.answer_text(await command.run(session))
        return {"stopReason": "end_turn"}

    def _cancel(self, given: Mapping[str, Any]) -> None:
        session = self._sessions.get(given["sessionId"])
        if session is not None:
            session.cancel()

    # Options

    async def _set_mode(self, given: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session(given)
        await session.set_option(POLICY, given["modeId"])
        session.show_options()
        return {}

    async def _set_option(self, given: Mapping[str, Any]) -> dict[str, Any]:
        session, chosen = self._session(given), given["configId"]
        await session.set_option(chosen, given["value"])
        if chosen == POLICY:
            session.show_mode()
        return {"configOptions": session.options.config_options}

    # Which sessions there are

    def _session(self, given: Mapping[str, Any]) -> EditorSession:
        session = self._sessions.get(given["sessionId"])
        if session is None:
            raise AcpError(RESOURCE_NOT_FOUND, "there is no such session on this connection: new, load or resume one")
        return session

    def _editor_session(self, spec: SessionSpec, workspace: str) -> EditorSession:
        async def reopen(session: EditorSession) -> None:
            """Give the session, whose process has died, another one, in which its task stays open."""
            await session.supervised.close()
            supervised, result = await self._supervisor.resume(session.session_id, spec, session, replay=False)
            session.attach(supervised, result)
            await session.on_resumed(result)

        features = self._features or Features()
        return EditorSession(self.peer, features, workspace, reopen, self._launch.window_of)

    def _servers_in(self, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The MCP servers of a request that are started: programs, if the user's configuration allows it."""
        named = given.get("mcpServers", ()) if self._launch.client_servers else ()
        return [_server_in(one, f"mcpServers[{place}]") for place, one in enumerate(named) if _is_program(one)]

    def _greet(self, session: EditorSession, given: Mapping[str, Any]) -> None:
        commands = [{"name": one, "description": command.about} for one, command in _COMMANDS.items()]
        unused = [one for one in given.get("mcpServers", ()) if not (self._launch.client_servers and _is_program(one))]
        named = [one_line(str(one.get("name", "?")), 100) for one in unused]

        session.update({"sessionUpdate": "available_commands_update", "availableCommands": commands})
        if named:
            session.notify(Notice("warning", f"MCP servers that are not started: {', '.join(named)}", _NOT_STARTED))


_NOT_STARTED: Final = (
    "An editor may take them from files of the project. `client_servers = true` under [acp] in your own configuration "
    "has those that are programs started, sandboxed; others are for [[mcp.servers]] there."
)


class StateProcess:
    """A process of `serve` without a session, for requests about the state directory; started when needed, and exits by
    itself after a while without a session."""

    def __init__(self, launch: AgentLaunch, starter: Starter) -> None:
        self._launch = launch
        self._starter = starter
        self._connection: SessionConnection | None = None
        self._starting = asyncio.Lock()

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask it. Raises AcpError."""
        given = {**params, "userId": LOCAL, "tenantId": LOCAL}
        try:
            try:
                return await (await self._connected()).request(method, given)
            except SessionGone:  # it was about to end
                return await (await self._connected()).request(method, given)
        except RpcFailure as error:
            code = RESOURCE_NOT_FOUND if error.name == "SESSION_NOT_FOUND" else error_of(error).code
            raise AcpError(code, str(error), {"code": error.name, "retryable": error.retryable}) from error
        except (SessionGone, OSError) as error:
            raise error_of(error) from error

    async def aclose(self) -> None:
        """End it."""
        if self._connection is not None:
            await self._connection.close()

    async def _connected(self) -> SessionConnection:
        async with self._starting:
            if self._connection is None or self._connection.ended.done():
                process = await self._starter.start(
                    ["serve", *self._launch.arguments],
                    environment=self._launch.environment,
                    directory=self._launch.directory,
                )
                self._connection = SessionConnection(process, lambda *_: None)
            return self._connection


# Commands that a person types in place of a prompt


async def _compact(session: EditorSession) -> str:
    await session.request("CompactContext")
    return "The next request shows less of the conversation; the record keeps all of it."


async def _cost(session: EditorSession) -> str:
    usage = (await session.request("GetSessionState"))["tokenUsage"]
    cost = f", {usage['cost']:g} {usage['costCurrency']}" if "cost" in usage else ""
    return f"{usage['inputTokens']} tokens in, {usage['outputTokens']} out{cost}"


async def _diff(session: EditorSession) -> str:
    found = await session.request("GetPatchPreview")
    files = found["files"]
    head = count_noun(len(files), "changed file")
    unseen = f" ({found['unseen']})" if "unseen" in found else ""
    text = "".join(file["diff"] for file in files)
    fence = "`" * 3
    while fence in text:
        fence += "`"
    return f"{head}{unseen}" + (f"\n\n{fence}diff\n{text}\n{fence}" if text else "")


class _TypedCommand(NamedTuple):
    about: str
    run: Callable[[EditorSession], Awaitable[str]] | None
    """The answer to a command; None if it continues the open task."""


_COMMANDS: Final = {
    "compact": _TypedCommand("Make room: the next request shows less of the conversation", _compact),
    "continue": _TypedCommand("Continue the task that a crash or a pause left open", None),
    "cost": _TypedCommand("Tokens and cost of the session", _cost),
    "diff": _TypedCommand("What the session has changed", _diff),
}


# Messages of a client


def _features_in(capabilities: Any) -> Features:
    """The features of a client; whatever has another form than the protocol's is a feature that is not there."""
    session, auth = _member(capabilities, "session"), _member(capabilities, "auth")
    elicitation = _member(capabilities, "elicitation")
    return Features(
        notices=session.get("notices") is not None,
        compactions=session.get("compaction") is not None,
        terminal_auth=auth.get("terminal") is True,
        forms=elicitation.get("form") is not None,
        pages=elicitation.get("url") is not None,
    )


def _member(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _client_in(info: Any) -> dict[str, str]:
    given = info if isinstance(info, dict) else {}
    fields = {key: value[:256] for key in ("name", "version") if isinstance(value := given.get(key), str)}
    return fields or {"name": "acp"}


def _workspace_in(given: Mapping[str, Any]) -> str:
    """The real path of `cwd`. Raises AcpError."""
    if given.get("additionalDirectories"):
        raise AcpError(INVALID_PARAMS, "additionalDirectories: this agent has one workspace a session")
    path: str = given["cwd"]
    if not os.path.isabs(path):
        raise AcpError(INVALID_PARAMS, "cwd: must be an absolute path")
    return os.path.realpath(path)


def _is_program(server: Mapping[str, Any]) -> bool:
    return server.get("type", "stdio") == "stdio" and "url" not in server


def _server_in(server: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A server over standard streams as `serve` takes it, which checks the rest. Raises AcpError."""
    variables = server.get("env") or []
    if not isinstance(variables, list) or not all(isinstance(one, dict) and "name" in one for one in variables):
        raise AcpError(INVALID_PARAMS, f"{path}.env: must be a list of objects with name and value")
    return {
        "name": server.get("name"),
        "command": server.get("command"),
        "args": server.get("args") or [],
        "env": {str(one["name"]): one.get("value") for one in variables},
    }


def _row_of(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sessionId": one["sessionId"],
        "cwd": one["workspace"],
        "title": one["title"] or None,
        "updatedAt": one["updatedAt"] or None,
    }


async def _or_close(session: EditorSession, opening: Awaitable[_T]) -> _T:
    try:
        return await opening
    except BaseException:
        await session.close()
        await session.supervised.close()
        raise


async def _shut_down(session: EditorSession) -> None:
    with contextlib.suppress(RpcFailure, SessionGone, TimeoutError):
        async with asyncio.timeout(_ENDS_S):
            await session.supervised.request("Shutdown", {})
