"""Tools for a tree of files, over `core.listing` and `core.grep`."""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING, Final

from tool_runtime.core.files import AT_ONCE_BYTES
from tool_runtime.core.grep import GrepParams, grep
from tool_runtime.core.listing import FindParams, ListParams, find_files, list_directory
from tool_runtime.core.ripgrep import installed
from tool_runtime.families.desktop.calls import scope_of
from tool_runtime.families.desktop.tree_rendering import found_files, grep_output, listed_directory
from tool_runtime.families.desktop.tree_specs import FIND_FILES, GREP, LIST_DIRECTORY
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.platform.disks import is_local
from tool_runtime.tool import CallContext, Tool, ToolOutput
from tool_runtime.wrappers import capped, timed, with_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tool_runtime.core.listing import Listing
    from tool_runtime.core.ripgrep import Ripgrep
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool

_AT_ONCE_ENTRIES: Final = 200


class TreeTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        within = functools.partial(timed, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(LIST_DIRECTORY, capped(within(self._list)), DESKTOP, self._list_at_once),
            Tool(FIND_FILES, capped(within(self._find)), DESKTOP),
            Tool(GREP, capped(within(self._grep)), DESKTOP, self._grep_at_once),
        )

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return installed(os.environ.get("PATH", ""), self._settings.writable_places)

    def _list_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._listing(call)._replace(max_entries=_AT_ONCE_ENTRIES)
        if params.depth > 1 or not is_near(params.path, stat.S_ISDIR):
            return None
        listing = list_directory(params, call.abandoned)
        return None if listing.stopped is not None else self._listed(call, listing, params)

    async def _list(self, call: CallContext) -> ToolOutput:
        params = self._listing(call)
        return self._listed(call, await self._pool.run(lambda: list_directory(params, call.abandoned)), params)

    def _listing(self, call: CallContext) -> ListParams:
        arguments = call.request.arguments
        return ListParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments.get("depth", 1),
            arguments.get("offset", 0),
            arguments.get("limit", 500),
        )

    def _listed(self, call: CallContext, listing: Listing, params: ListParams) -> ToolOutput:
        return with_limit(ToolOutput(listed_directory(listing, params, self._settings.workspace)), call)

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

    def _grep_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._search(call)
        if not is_near(params.path, stat.S_ISREG):
            return None
        outcome = grep(params, call.abandoned)
        return with_limit(ToolOutput(grep_output(outcome, params, self._settings.workspace)), call)

    async def _grep(self, call: CallContext) -> ToolOutput:
        params = self._search(call)._replace(rg=self._rg)
        outcome = await self._pool.run(lambda: grep(params, call.abandoned))
        return ToolOutput(grep_output(outcome, params, self._settings.workspace))

    def _search(self, call: CallContext) -> GrepParams:
        arguments = call.request.arguments
        return GrepParams(
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
        )


def is_near(path: str, is_kind: Callable[[int], bool]) -> bool:
    """True if what is at the path is of the kind, small, and on a disk of this machine: then it is looked at where it
    is asked for, in less time than a thread takes to begin."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # the call itself says what is wrong
        return False
    return is_kind(status.st_mode) and status.st_size <= AT_ONCE_BYTES and is_local(status.st_dev)
