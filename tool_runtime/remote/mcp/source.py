"""An MCP server as a source of tools: connected when it is first needed, and again when the connection is lost."""

from __future__ import annotations

import asyncio
import sys
import threading
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, Final

from tool_runtime.remote.lists import MAX_TOOLS, Definition, usable
from tool_runtime.remote.mcp.servers import Asking, Http
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from importlib.machinery import ModuleSpec

    from agent_host.contracts import AskPerson, ToolRequest
    from tool_runtime.processes.server import ServerParams, ServerProcess
    from tool_runtime.remote.lists import ToolList
    from tool_runtime.remote.mcp.connection import ServerConnection
    from tool_runtime.remote.mcp.oauth import Browser
    from tool_runtime.remote.mcp.servers import ServerConfig
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.tool import CallContext, ToolOutput

_TRIES: Final = 3
_PAUSE_S: Final = 0.25


class McpSource:
    """A Source. `start` starts a program that runs on. `on_changed` is called when the server says that its tools have
    changed. `browser` is for a person who authorizes this program; without it nobody is there. `ask_person` puts a
    question of a server to a person, where its entry lets it ask. `on_secrets` gets the tokens that OAuth has brought.
    `pause` waits for so many seconds between two tries to connect."""

    def __init__(
        self,
        config: ServerConfig,
        settings: RuntimeSettings,
        start: Callable[[ServerParams], ServerProcess],
        *,
        browser: Browser | None = None,
        ask_person: AskPerson | None = None,
        on_secrets: Callable[[Iterable[str | None]], None] = lambda _: None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._pause = pause
        self._on_secrets = on_secrets
        self._ask_person = ask_person if config.elicitation else None
        self._config = config
        self._settings = settings
        self._start = start
        self._browser = browser
        self._connection: ServerConnection | None = None
        self._opening = asyncio.Lock()
        self._import = SdkImport()
        self._closed = False
        self._identities: tuple[ServerConnection, dict[str, str]] | None = None
        self.on_changed: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """See Source."""
        return f"mcp:{self._config.name}"

    async def list(self) -> ToolList:
        """See Source."""
        return await self._list(await self._connect())

    async def _list(self, connection: ServerConnection) -> ToolList:
        tools, rejected = await connection.tools()
        found = list(_definitions(self._config.name, tools, rejected))
        listed = await asyncio.to_thread(usable, found, rejected)
        self._identities = connection, {one.name: one.identity for one in listed.definitions}
        return listed

    async def _refuse_changed(self, connection: ServerConnection, tool: Definition) -> None:
        """Raises ToolFault for a tool that is by now another one than the task has: what runs there is not what was
        judged. A connection that is new, or that has spoken of changes, is asked first."""
        if self._identities is None or self._identities[0] is not connection:
            await self._list(connection)
        if self._identities is None or self._identities[1].get(tool.name) == tool.identity:
            return
        self._on_change()
        raise ToolFault(
            FaultKind.CHANGED,
            f"{tool.name} is not what it was when this task began, and was not called: the next task has it as it is",
        )

    async def call(self, tool: Definition, call: CallContext) -> ToolOutput:
        """See Source. A call is sent once, and once more only where the server cannot have got it."""
        from tool_runtime.remote.mcp.questions import NotSent

        name = tool.name.partition("/")[2]
        arguments = call.request.arguments
        for again in (True, False):
            connection = await self._connect()
            try:
                await self._refuse_changed(connection, tool)
                result = await connection.call(
                    name, arguments, lambda *said: self._progress(call.request, *said), self._asking(call)
                )
            except NotSent:
                if again:
                    continue
                raise ToolFault(FaultKind.NETWORK, f"{self.name} has not taken the call") from None
            from tool_runtime.remote.mcp.results import output_of

            try:
                return output_of(result, call.request, tool.output_schema, self._settings.artifact_threshold_bytes)
            except ToolFault as fault:
                raise connection.explain(fault) from fault
        raise AssertionError("one of the two ways out was taken")

    def _asking(self, call: CallContext) -> Asking | None:
        """The server's means to ask during the call; None if it may not."""
        ask_person = self._ask_person
        if ask_person is None:
            return None
        return Asking(lambda asked: ask_person(call.request, asked), call.clock.paused)

    async def outcome(self, tool: Definition, call: CallContext) -> ToolOutput | None:  # noqa: ARG002 - see Source
        """See Source. MCP has no question for it."""
        return None

    async def aclose(self) -> None:
        """See Source."""
        self._closed = True
        if self._settings.guard_processes:  # the process is the session's own, and ends with it
            self._import.stop()
        if self._connection is not None:
            await self._connection.aclose()

    async def _connect(self) -> ServerConnection:
        """An open connection: the one that there is, or a new one, tried for a few times. Raises ToolFault."""
        async with self._opening:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            if self._connection is not None:
                await self._connection.aclose()
            module = await asyncio.to_thread(self._import.load)
            tries = _TRIES if isinstance(self._config.place, Http) else 1  # a program that ends does so again
            for number in range(tries):
                if self._closed:
                    raise ToolFault(FaultKind.NETWORK, f"{self.name} is closed")
                auth = self._auth()
                connection: ServerConnection = module.ServerConnection(self._config, self._start, self._on_change, auth)
                try:
                    await connection.open()
                except ToolFault as fault:
                    if number + 1 == tries or fault.kind is not FaultKind.NETWORK or connection.is_refused:
                        raise
                    await self._pause(_PAUSE_S * 4**number)
                    continue
                self._connection = connection
                return connection
            raise AssertionError("the last try returns or raises")

    def _auth(self) -> Any:
        place = self._config.place
        if not isinstance(place, Http) or place.oauth_folder is None:
            return None
        from tool_runtime.remote.mcp.oauth import oauth_of

        return oauth_of(
            self._config.name, place.url, place.oauth_folder, browser=self._browser, on_secrets=self._on_secrets
        )

    def _on_change(self) -> None:
        self._identities = None
        self.on_changed()

    def _progress(self, request: ToolRequest, done: float, total: float | None, message: str | None) -> None:
        if self._settings.on_output is None:
            return
        of = "" if total is None else f" of {total:g}"
        line = f"{done:g}{of}{f': {message}' if message else ''}\n"
        self._settings.on_output(request, "stdout", line[:1000].encode("utf-8", "replace"))


def _definitions(server: str, tools: Sequence[Any], rejected: dict[str, str]) -> Iterator[Definition]:
    """The tools that a server describes; what is no description of a tool goes to `rejected`."""
    for number, tool in enumerate(tools, 1):
        name = tool.get("name") if isinstance(tool, dict) else None
        if isinstance(name, str) and name:
            described = [text for key in ("description", "title") if isinstance(text := tool.get(key), str) and text]
            schemas = tool.get("inputSchema"), tool.get("outputSchema")
            yield Definition(f"{server}/{name}", described[0] if described else "", *schemas)
        elif len(rejected) < MAX_TOOLS:
            rejected[f"{server}/#{number}"] = "it has no name" if isinstance(tool, dict) else "it is not an object"


# The import of the SDK, which takes most of a second, in a thread; where the process is to end it is cut short.
#
# Python waits for its threads at its exit, and a thread that it does not wait for may crash in the code of an
# extension. An import has no way to be stopped but between two modules, the largest of which takes less than a tenth
# of a second: there a finder raises what nothing catches.

_CHANGING = threading.Lock()
"""`sys.meta_path` gets a new list: an import of another thread may be in the middle of the one that there is, and would
pass over a finder where that one moves."""


class Stopped(BaseException):
    """Nobody waits for this import any more. No Exception: modules catch those, and go on without what they miss."""


class SdkImport(MetaPathFinder):
    """One import of it, by `load` in a thread."""

    def __init__(self) -> None:
        self._stopped = False
        self._thread: int | None = None

    def load(self) -> Any:
        """The module that brings the SDK along. Raises ToolFault where it is not there, or after `stop`."""
        self._thread = threading.get_ident()
        with _CHANGING:
            sys.meta_path = [self, *sys.meta_path]
        try:
            from tool_runtime.remote.mcp import connection
        except ImportError as error:
            raise ToolFault(
                FaultKind.SYSTEM, f"MCP servers need the extra mcp, which is not installed ({error.name})"
            ) from error
        except Stopped:
            raise ToolFault(FaultKind.NETWORK, "the session is over") from None
        finally:
            with _CHANGING:
                sys.meta_path = [one for one in sys.meta_path if one is not self]
        return connection

    def stop(self) -> None:
        """Have `load` end at its next module. What it has imported is not to be used from then on: packages may be
        there in part, so this is for a process that ends."""
        self._stopped = True

    def find_spec(
        self,
        fullname: str,  # noqa: ARG002  see MetaPathFinder
        path: Sequence[str] | None,  # noqa: ARG002
        target: Any = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """See MetaPathFinder: it finds nothing, and stops one thread."""
        if self._stopped and threading.get_ident() == self._thread:
            raise Stopped
        return None
