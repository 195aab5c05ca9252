"""What runs the native tools: a class for each kind of tool, under one set of settings and roots. A kind is imported
with the first call of one of its tools."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final, Literal

from tool_runtime.families.native.errors import FAULT_NAMES
from tool_runtime.families.native.specs import (
    DELETE_FILE,
    EXEC,
    FETCH,
    GREP,
    LIST_DIR,
    LIST_FILES,
    READ_FILE,
    WRITE_FILE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import Leftovers, ToolRequest
    from tool_runtime.families.native.exec_tools import ExecTools
    from tool_runtime.families.native.fetch_tools import FetchTools
    from tool_runtime.families.native.file_tools import FileTools
    from tool_runtime.families.native.tree_tools import TreeTools
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import Tool

Kind = Literal["files", "trees", "programs", "requests"]
_KINDS: Final[Mapping[str, Kind]] = {
    **{spec.name: "files" for spec in (READ_FILE, WRITE_FILE, DELETE_FILE)},
    **{spec.name: "trees" for spec in (LIST_FILES, LIST_DIR, GREP)},
    EXEC.name: "programs",
    FETCH.name: "requests",
}


class NativeRunner:
    """The family's tools, by name. Its roots are resolved here, once."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._roots = tuple(map(os.path.realpath, settings.native_roots or (settings.workspace,)))
        self._tools: dict[str, Tool] = {}

    def tool(self, name: str) -> Tool:
        """What runs the tool of this name. Raises KeyError for a name that is none of the family's."""
        if name not in self._tools:
            for tool in self._of_kind(_KINDS[name]).tools():
                self._tools[tool.spec.name] = tool._replace(names=FAULT_NAMES)
        return self._tools[name]

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        programs = request.tool_name == EXEC.name
        return await (self._programs if programs else self._files).end_leftovers(request)

    async def aclose(self) -> None:
        """Close pooled connections."""
        if "_requests" in self.__dict__:
            await self._requests.aclose()

    def _of_kind(self, kind: Kind) -> FileTools | TreeTools | ExecTools | FetchTools:
        if kind == "files":
            return self._files
        if kind == "programs":
            return self._programs
        return self._trees if kind == "trees" else self._requests

    @functools.cached_property
    def _files(self) -> FileTools:
        from tool_runtime.families.native.file_tools import FileTools

        return FileTools(self._settings, self._pool, self._roots)

    @functools.cached_property
    def _trees(self) -> TreeTools:
        from tool_runtime.families.native.tree_tools import TreeTools

        return TreeTools(self._settings, self._pool, self._roots)

    @functools.cached_property
    def _programs(self) -> ExecTools:
        from tool_runtime.families.native.exec_tools import ExecTools

        return ExecTools(self._settings, self._pool, self._roots, self._run_program)

    @functools.cached_property
    def _requests(self) -> FetchTools:
        from tool_runtime.families.native.fetch_tools import FetchTools

        return FetchTools(self._settings, self._pool)
