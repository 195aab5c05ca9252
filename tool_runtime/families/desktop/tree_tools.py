"""Tools for a tree of files, over `core.listing` and `core.grep`."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from tool_runtime.core.grep import GrepParams, grep
from tool_runtime.core.listing import FindParams, ListParams, find_files, list_directory
from tool_runtime.core.ripgrep import installed
from tool_runtime.families.desktop.calls import scope_of
from tool_runtime.families.desktop.tree_rendering import found_files, grep_output, listed_directory
from tool_runtime.families.desktop.tree_specs import FIND_FILES, GREP, LIST_DIRECTORY
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.tool import CallContext, Tool, ToolOutput
from tool_runtime.wrappers import capped, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.core.ripgrep import Ripgrep
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool


class TreeTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        within = functools.partial(timed, timeout_s=self._settings.file_timeout_s)
        running = ((LIST_DIRECTORY, self._list), (FIND_FILES, self._find), (GREP, self._grep))
        return tuple(Tool(spec, capped(within(run)), DESKTOP) for spec, run in running)

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return installed(os.environ.get("PATH", ""), self._settings.workspace)

    async def _list(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = ListParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments.get("depth", 1),
            arguments.get("offset", 0),
            arguments.get("limit", 500),
        )
        listing = await self._pool.run(lambda: list_directory(params, call.abandoned))
        return ToolOutput(listed_directory(listing, params, self._settings.workspace))

    async def _find(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = FindParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments["pattern"],
            arguments.get("offset", 0),
            arguments.get("limit", 500),
            arguments.get("includeIgnored", False),
        )
        listing = await self._pool.run(lambda: find_files(params, call.abandoned))
        return ToolOutput(found_files(listing, params, self._settings.workspace))

    async def _grep(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = GrepParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments["pattern"],
            arguments.get("glob"),
            arguments.get("mode", "content"),
            arguments.get("before", 0),
            arguments.get("after", 0),
            arguments.get("ignoreCase", False),
            arguments.get("literal", False),
            arguments.get("limit", 200),
            arguments.get("offset", 0),
            arguments.get("includeIgnored", False),
            call.max_file_size_bytes,
            self._rg,
        )
        outcome = await self._pool.run(lambda: grep(params, call.abandoned))
        return ToolOutput(grep_output(outcome, params, self._settings.workspace))
