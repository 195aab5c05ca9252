"""What runs the tools of the skills family: a class for each kind of tool. A kind is imported with the first call of
one of its tools."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, Literal

from tool_runtime.families.skills.errors import FAULT_NAMES
from tool_runtime.families.skills.specs import (
    DELETE_FILE,
    GREP,
    LIST_DIR,
    NETWORK_REQUEST,
    READ_FILE,
    RUN_SCRIPT,
    WRITE_FILE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import Leftovers, ToolRequest
    from tool_runtime.core.scripts import SkillScripts
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.families.skills.file_tools import FileTools
    from tool_runtime.families.skills.request_tools import RequestTools
    from tool_runtime.families.skills.script_tools import ScriptTools
    from tool_runtime.families.skills.tree_tools import TreeTools
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import Tool

Kind = Literal["files", "trees", "scripts", "requests"]
_KINDS: Final[Mapping[str, Kind]] = {
    **{spec.name: "files" for spec in (READ_FILE, WRITE_FILE, DELETE_FILE)},
    **{spec.name: "trees" for spec in (LIST_DIR, GREP)},
    RUN_SCRIPT.name: "scripts",
    NETWORK_REQUEST.name: "requests",
}


class SkillsRunner:
    """The family's tools, by name."""

    def __init__(
        self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram, scripts: SkillScripts | None
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._skill_scripts = scripts
        self._tools: dict[str, Tool] = {}

    def tool(self, name: str) -> Tool:
        """What runs the tool of this name. Raises KeyError for a name that is none of the family's."""
        if name not in self._tools:
            for tool in self._of_kind(_KINDS[name]).tools():
                self._tools[tool.spec.name] = tool._replace(names=FAULT_NAMES)
        return self._tools[name]

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        scripts = request.tool_name == RUN_SCRIPT.name
        return await (self._scripts if scripts else self._files).end_leftovers(request)

    async def aclose(self) -> None:
        """Close pooled connections."""
        if "_requests" in self.__dict__:
            await self._requests.aclose()

    def _of_kind(self, kind: Kind) -> FileTools | TreeTools | ScriptTools | RequestTools:
        if kind == "files":
            return self._files
        if kind == "scripts":
            return self._scripts
        return self._trees if kind == "trees" else self._requests

    @functools.cached_property
    def _files(self) -> FileTools:
        from tool_runtime.families.skills.file_tools import FileTools

        return FileTools(self._settings, self._pool)

    @functools.cached_property
    def _trees(self) -> TreeTools:
        from tool_runtime.families.skills.tree_tools import TreeTools

        return TreeTools(self._settings, self._pool)

    @functools.cached_property
    def _scripts(self) -> ScriptTools:
        from tool_runtime.families.skills.script_tools import ScriptTools

        return ScriptTools(self._settings, self._pool, self._run_program, self._skill_scripts)

    @functools.cached_property
    def _requests(self) -> RequestTools:
        from tool_runtime.families.skills.request_tools import RequestTools

        return RequestTools(self._settings, self._pool)
