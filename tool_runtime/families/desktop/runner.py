"""The tools of the desktop family: a class for each kind of tool, under one set of settings (TR 4). A kind is imported
with the first call of one of its tools."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, Literal

from agent_host.contracts import Leftovers
from tool_runtime.families.desktop.specs import (
    COMMAND_OUTPUT,
    FIND_FILES,
    GREP,
    HTTP_REQUEST,
    LIST_DIRECTORY,
    READ_OUTPUT,
    RUN_COMMAND,
    SPECS,
    STOP_COMMAND,
)
from tool_runtime.families.desktop.timeouts import set_timeouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolRequest
    from tool_runtime.families.desktop.command_tools import CommandTools
    from tool_runtime.families.desktop.file_tools import FileTools, OutputTools
    from tool_runtime.families.desktop.request_tools import RequestTools
    from tool_runtime.families.desktop.tree_tools import TreeTools
    from tool_runtime.processes.command import CommandOutcome, CommandParams
    from tool_runtime.processes.server import ServerParams, ServerProcess
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import CallContext, Tool

Kind = Literal["files", "trees", "outputs", "commands", "requests"]


_KINDS: Final[Mapping[str, Kind]] = {
    **{spec.name: "files" for spec in SPECS},
    **{spec.name: "trees" for spec in (LIST_DIRECTORY, FIND_FILES, GREP)},
    **{spec.name: "commands" for spec in (RUN_COMMAND, COMMAND_OUTPUT, STOP_COMMAND)},
    HTTP_REQUEST.name: "requests",
    READ_OUTPUT.name: "outputs",
}


class DesktopRunner:
    """The family's tools, by name, and what they share."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool
        self._tools: dict[str, Tool] = {}

    def tool(self, name: str) -> Tool:
        """Return the tool of this name. Raises KeyError for a name that is none of the family's."""
        if name not in self._tools:
            for tool in self._tools_of_kind(_KINDS[name]).tools():
                self._tools[tool.spec.name] = tool._replace(spec=set_timeouts(tool.spec, self._settings))
        return self._tools[name]

    async def read_bytes(self, call: CallContext, path: str, max_bytes: int) -> bytes:
        """See DesktopFamily. Raises ToolFault."""
        return await self._files.read_bytes(call, path, max_bytes)

    async def run_program(self, params: CommandParams) -> CommandOutcome:
        """See LocalToolRouter."""
        return await self._commands.run_program(params)

    def start_program(self, params: ServerParams) -> ServerProcess:
        """See LocalToolRouter."""
        return self._commands.start_program(params)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        kind = _KINDS.get(request.tool_name)
        if kind is None:
            return Leftovers()
        return await (self._commands if kind == "commands" else self._files).end_leftovers(request)

    async def end_commands(self) -> Leftovers:
        """See ToolRouter."""
        return await self._commands.end_commands() if "_commands" in self.__dict__ else Leftovers()

    async def aclose(self) -> None:
        """Close pooled connections, and end what commands have left running."""
        if "_requests" in self.__dict__:
            await self._requests.aclose()
        await self.end_commands()

    def _tools_of_kind(self, kind: Kind) -> FileTools | TreeTools | OutputTools | CommandTools | RequestTools:
        if kind == "files":
            return self._files
        if kind == "commands":
            return self._commands
        if kind == "requests":
            return self._requests
        return self._trees if kind == "trees" else self._outputs

    @functools.cached_property
    def _files(self) -> FileTools:
        from tool_runtime.families.desktop.file_tools import FileTools

        return FileTools(self._settings, self._pool)

    @functools.cached_property
    def _trees(self) -> TreeTools:
        from tool_runtime.families.desktop.tree_tools import TreeTools

        return TreeTools(self._settings, self._pool)

    @functools.cached_property
    def _outputs(self) -> OutputTools:
        from tool_runtime.families.desktop.file_tools import OutputTools

        return OutputTools(self._settings, self._pool)

    @functools.cached_property
    def _commands(self) -> CommandTools:
        from tool_runtime.families.desktop.command_tools import CommandTools

        return CommandTools(self._settings, self._pool)

    @functools.cached_property
    def _requests(self) -> RequestTools:
        from tool_runtime.families.desktop.request_tools import RequestTools

        return RequestTools(self._settings, self._pool)
