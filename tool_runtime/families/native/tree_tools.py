"""Native tools for a tree of files, over `core.excludes`, `core.pages` and `core.grep`."""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from agent_host.shown_text import name_for_json
from tool_runtime.core.excludes import FilesParams, list_files
from tool_runtime.core.grep import GrepParams, grep
from tool_runtime.core.pages import PageParams, Pager, token_of
from tool_runtime.core.ripgrep import installed
from tool_runtime.core.roots import within
from tool_runtime.core.tree import MAX_DEPTH
from tool_runtime.families.answers import answer, fitting
from tool_runtime.families.desktop.calls import scope_of
from tool_runtime.families.desktop.tree_rendering import cut_line
from tool_runtime.families.desktop.tree_tools import is_near
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.native import limits
from tool_runtime.families.native.specs import GREP, LIST_DIR, LIST_FILES
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped, timed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tool_runtime.core.grep import GrepOutcome
    from tool_runtime.core.pages import Page
    from tool_runtime.core.ripgrep import Ripgrep
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput

_AT_ONCE_ENTRIES: Final = 500
_MAX_NAMES: Final = 2_000_000
"""Entries of one directory that pages are made of."""


class TreeTools:
    """See `families.native.runner`. `roots` are the only places of the tools."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, roots: tuple[str, ...]) -> None:
        self._settings = settings
        self._pool = pool
        self._roots = roots
        self._pager = Pager()

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        bounded = functools.partial(timed, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(LIST_FILES, capped(bounded(self._list_files)), DESKTOP),
            Tool(LIST_DIR, capped(bounded(self._list_dir)), DESKTOP, self._list_dir_at_once),
            Tool(GREP, capped(bounded(self._grep)), DESKTOP, self._grep_at_once),
        )

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return installed(os.environ.get("PATH", ""), self._settings.writable_places)

    async def _list_files(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        scope = within(scope_of(call.request), self._roots)
        params = FilesParams(arguments["dir"], scope, arguments.get("exclude", ()), arguments.get("recursive", False))
        found = await self._pool.run(lambda: list_files(params, call.abandoned))
        fields: dict[str, Any] = {} if found.stopped is None else {"stopped": found.stopped}
        paths = list(map(name_for_json, found.paths))
        count = fitting(call, fields, paths)
        if count < len(paths):
            fields["truncated"] = True
        return answer({"files": paths[:count], **fields})

    def _list_dir_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._page_params(call)
        if params.recursive or params.size > _AT_ONCE_ENTRIES:
            return None
        if not self._pager.knows(params):
            if not is_near(params.path, stat.S_ISDIR):
                return None
            params = params._replace(max_entries=_AT_ONCE_ENTRIES)
        page = self._pager.page(params, call.abandoned)
        return None if page.stopped is not None else _paged(call, page)

    async def _list_dir(self, call: CallContext) -> ToolOutput:
        params = self._page_params(call)
        return _paged(call, await self._pool.run(lambda: self._pager.page(params, call.abandoned)))

    def _page_params(self, call: CallContext) -> PageParams:
        arguments = call.request.arguments
        params = PageParams(
            arguments["path"],
            within(scope_of(call.request), self._roots),
            arguments.get("page_size", limits.PAGE_SIZE),
            arguments.get("page_token"),
            arguments.get("pattern"),
            arguments.get("recursive", False),
            arguments.get("include_files", True),
            arguments.get("include_dirs", True),
        )
        return params if params.recursive else params._replace(max_entries=_MAX_NAMES)

    def _grep_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._search(call)
        return _found(call, grep(params, call.abandoned)) if is_near(params.path, stat.S_ISREG) else None

    async def _grep(self, call: CallContext) -> ToolOutput:
        params = self._search(call)._replace(rg=self._rg)
        return _found(call, await self._pool.run(lambda: grep(params, call.abandoned)))

    def _search(self, call: CallContext) -> GrepParams:
        arguments = call.request.arguments
        most = arguments.get("max_file_bytes", limits.MAX_FILE_BYTES)
        granted = call.max_file_size_bytes
        return GrepParams(
            arguments["path"],
            within(scope_of(call.request), self._roots),
            arguments["pattern"],
            ignore_case=arguments.get("ignore_case", False),
            limit=arguments.get("max_results", limits.MAX_RESULTS),
            ignored_too=True,
            max_file_size_bytes=most if granted is None else min(most, granted),
            depth=MAX_DEPTH if arguments.get("recursive", False) else 1,
            max_files=arguments.get("max_files_visited", limits.MAX_FILES_VISITED),
            printable_only=True,
        )


def _paged(call: CallContext, page: Page) -> ToolOutput:
    rows = [{"path": name_for_json(path), "type": kind} for path, kind in page.entries]
    fields: dict[str, Any] = {} if page.stopped is None else {"stopped": page.stopped}
    count = fitting(call, fields, rows)
    if count < len(rows) or page.more:
        fields["next_page_token"] = token_of(page.entries[count - 1][0], page.root)
    return answer({"entries": rows[:count], **fields})


def _found(call: CallContext, outcome: GrepOutcome) -> ToolOutput:
    rows = list(_matches(outcome))
    passed_over = outcome.large + outcome.unreadable
    fields: dict[str, Any] = {} if outcome.stopped is None else {"stopped": outcome.stopped}
    if passed_over:
        fields["passed_over"] = passed_over
    count = fitting(call, fields, rows)
    if count < len(rows) or outcome.more:
        fields["truncated"] = True
    return answer({"matches": rows[:count], **fields})


def _matches(outcome: GrepOutcome) -> Iterator[dict[str, Any]]:
    for hit in outcome.hits:
        file = name_for_json(hit.path)
        for line in hit.lines:
            start = line.start or 0
            column = len(line.text[:start].decode("utf-8", "replace")) + 1
            yield {"file": file, "line": line.number, "column": column, "text": cut_line(line.text, start)}
