"""Tools of the skills family for a tree of files, over `core.listing` and `core.grep` (SK 5.2, 5.3)."""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from agent_host.shown_text import name_for_json
from tool_runtime.core.grep import GrepParams, grep
from tool_runtime.core.hidden import hidden_names
from tool_runtime.core.listing import ListParams, list_directory
from tool_runtime.core.ripgrep import installed
from tool_runtime.families.answers import answer, fitting
from tool_runtime.families.desktop.calls import scope_of
from tool_runtime.families.desktop.tree_rendering import cut_line
from tool_runtime.families.desktop.tree_tools import is_near
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.skills import limits
from tool_runtime.families.skills.specs import GREP, LIST_DIR
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.core.grep import GrepOutcome
    from tool_runtime.core.listing import Listed, Listing
    from tool_runtime.core.ripgrep import Ripgrep
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput

_AT_ONCE_ENTRIES: Final = 200


class TreeTools:
    """See `families.skills.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool
        self._hidden = hidden_names(settings.hidden_files)

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        bounded = functools.partial(timed, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(LIST_DIR, capped(bounded(self._list)), DESKTOP, self._list_at_once),
            Tool(GREP, capped(bounded(self._grep)), DESKTOP, self._grep_at_once),
        )

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return installed(os.environ.get("PATH", ""), self._settings.writable_places)

    def _list_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._listing(call)._replace(max_entries=_AT_ONCE_ENTRIES)
        if not is_near(params.path, stat.S_ISDIR):
            return None
        listing = list_directory(params, call.abandoned)
        return None if listing.stopped is not None else _listed(call, listing, params.offset)

    async def _list(self, call: CallContext) -> ToolOutput:
        params = self._listing(call)
        return _listed(call, await self._pool.run(lambda: list_directory(params, call.abandoned)), params.offset)

    def _listing(self, call: CallContext) -> ListParams:
        arguments = call.request.arguments
        return ListParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            offset=arguments.get("offset", 0),
            limit=arguments.get("max_entries", limits.ENTRIES),
            hidden=self._hidden,
        )

    def _grep_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._search(call)
        return _found(call, params, grep(params, call.abandoned)) if is_near(params.path, stat.S_ISREG) else None

    async def _grep(self, call: CallContext) -> ToolOutput:
        params = self._search(call)._replace(rg=self._rg)
        return _found(call, params, await self._pool.run(lambda: grep(params, call.abandoned)))

    def _search(self, call: CallContext) -> GrepParams:
        arguments = call.request.arguments
        most, granted = limits.FILE_BYTES, call.max_file_size_bytes
        return GrepParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments["pattern"],
            arguments.get("glob"),
            arguments.get("mode", "content"),
            ignore_case=arguments.get("ignore_case", False),
            limit=arguments.get("max_results", limits.RESULTS),
            max_file_size_bytes=most if granted is None else min(most, granted),
            hidden=self._hidden,
        )


def _listed(call: CallContext, listing: Listing, offset: int) -> ToolOutput:
    rows = list(map(_entry, listing.page))
    fields: dict[str, Any] = {"total": listing.total, "hidden": listing.hidden, "truncated": False}
    if listing.stopped is not None:
        fields["stopped"] = listing.stopped
    count = fitting(call, fields, rows)
    fields["truncated"] = offset + count < listing.total
    return answer({"entries": rows[:count], **fields})


def _entry(listed: Listed) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name_for_json(listed.path), "type": listed.kind}
    return row if listed.size is None else {**row, "size": listed.size}


def _found(call: CallContext, params: GrepParams, outcome: GrepOutcome) -> ToolOutput:
    counts = {
        "hidden": outcome.hidden, "ignored": outcome.ignored, "passed_over": outcome.large + outcome.unreadable,
    }  # fmt: skip
    fields: dict[str, Any] = {"truncated": False, **{name: count for name, count in counts.items() if count}}
    if outcome.stopped is not None:
        fields["stopped"] = outcome.stopped
    name, rows = ("files", _files(outcome)) if params.mode == "files" else ("matches", _matches(outcome))
    count = fitting(call, fields, rows)
    fields["truncated"] = outcome.more or count < len(rows)
    return answer({name: rows[:count], **fields})


def _files(outcome: GrepOutcome) -> list[Any]:
    return [name_for_json(hit.path) for hit in outcome.hits]


def _matches(outcome: GrepOutcome) -> list[Any]:
    return [
        {"path": name_for_json(hit.path), "line": line.number, "text": cut_line(line.text, line.start or 0)}
        for hit in outcome.hits
        for line in hit.lines
    ]
