"""Native tools for one file, over `core.files`, `core.writes`, `core.moves` and `core.deletes`."""

from __future__ import annotations

import functools
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from agent_host.contracts import Leftovers
from agent_host.shown_text import name_for_json
from policy.paths import is_under, normalize
from tool_runtime.core import deletes, files, moves, writes
from tool_runtime.core.roots import within
from tool_runtime.families.answers import answer, with_text
from tool_runtime.families.desktop.calls import encoded, expected_of, kept_of, mark_of, scope_of
from tool_runtime.families.desktop.file_tools import settled, with_diff
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.native.limits import MAX_FILE_BYTES
from tool_runtime.families.native.specs import DELETE_FILE, READ_FILE, WRITE_FILE
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.output import artifacts
from tool_runtime.output.text import decode_body
from tool_runtime.platform import OS_FAMILY
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.contracts import ToolRequest
    from tool_runtime.core.files import WholeFile
    from tool_runtime.core.paths import Scope
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput


class FileTools:
    """See `families.native.runner`. `roots` are the only places of the tools."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, roots: tuple[str, ...]) -> None:
        self._settings = settings
        self._pool = pool
        self._roots = roots

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        bounded = functools.partial(timed, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(READ_FILE, capped(bounded(self._read)), DESKTOP, self._read_at_once),
            Tool(WRITE_FILE, capped(bounded(self._write)), DESKTOP),
            Tool(DELETE_FILE, capped(bounded(self._delete)), DESKTOP),
        )

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A write leaves its temporary file behind."""
        if request.tool_name != WRITE_FILE.name:
            return Leftovers()
        scope = within(scope_of(request), self._roots)
        try:
            removed = await self._pool.run(
                lambda: writes.remove_leftover(request.arguments["path"], scope, mark_of(request))
            )
        except (ToolFault, KeyError, TypeError):  # where the call may not write by now, nothing is touched
            return Leftovers()
        return Leftovers(removed)

    def _read_at_once(self, call: CallContext) -> ToolOutput | None:
        scope = within(scope_of(call.request), self._roots)
        found = files.whole_at_once(call.request.arguments["path"], scope, _most_bytes(call), call.abandoned)
        return None if found is None else _shown(call, found)

    async def _read(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], within(scope_of(call.request), self._roots)
        found = await self._pool.run(lambda: files.whole_file(path, scope, _most_bytes(call), call.abandoned))
        return _shown(call, found)

    async def _write(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        path, mode = arguments["path"], arguments.get("mode")
        params = writes.WriteParams(
            path,
            within(scope_of(call.request), self._roots),
            encoded(arguments["content"], "content"),
            mark_of(call.request),
            _most_bytes(call),
            expected=expected_of(call.request),
            append=arguments.get("append", False),
            mode=None if mode is None else int(mode, 8),
            through_links=False,
            kept=kept_of(call),
        )
        outcome, diff = await self._pool.run(lambda: with_diff(writes.write_file(params, call.abandoned), path, call))
        made = (artifacts.file_diff(call.request, diff),) if diff else ()
        return answer({"success": True}, artifacts=made, seen=str(outcome.seen))._replace(settle=settled(outcome))

    async def _delete(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], within(scope_of(call.request), self._roots)
        recursive = call.request.arguments.get("recursive", False)
        await self._pool.run(lambda: self._delete_one(path, scope, call, recursive=recursive))
        return answer({"success": True})

    def _delete_one(self, path: str, scope: Scope, call: CallContext, *, recursive: bool) -> None:
        if recursive and os.path.isdir(path) and not os.path.islink(path):
            with os_faults(path):
                real = normalize(os.path.realpath(path), OS_FAMILY)
            if any(is_under(normalize(root, OS_FAMILY), real, OS_FAMILY) for root in self._roots):
                raise ToolFault(FaultKind.OUT_OF_SCOPE, f"is a root of the tools, or holds one: {path}")
            deletes.delete_tree(path, scope, call.abandoned)
        else:
            moves.delete_file(path, scope, call.abandoned, through_links=False)


def _most_bytes(call: CallContext) -> int:
    return MAX_FILE_BYTES if call.max_file_size_bytes is None else min(call.max_file_size_bytes, MAX_FILE_BYTES)


def _shown(call: CallContext, found: WholeFile) -> ToolOutput:
    status = found.status
    text = decode_body(found.data)
    if text is None:
        path = call.request.arguments["path"]
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"is no text, but {len(found.data)} bytes of a binary file: {path}")
    modified = datetime.fromtimestamp(status.st_mtime, UTC).isoformat().replace("+00:00", "Z")
    fields = {
        "content": text,
        "metadata": {
            "path": name_for_json(found.real),
            "size": len(found.data),
            "mode": f"{status.st_mode & 0o7777:04o}",
            "modified": modified,
        },
    }
    return with_text(call, fields, cut={"content": "truncated"}, stored="content", seen=str(found.seen))
