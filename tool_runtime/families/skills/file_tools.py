"""Tools of the skills family for one file, over `core.files`, `core.writes` and `core.moves` (SK 5.1)."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

from agent_host.contracts import Leftovers
from agent_host.shown_text import name_for_json
from tool_runtime.core import files, moves, writes
from tool_runtime.families.answers import answer, excerpt
from tool_runtime.families.desktop import calls
from tool_runtime.families.desktop.file_tools import settled, with_diff
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.skills import limits
from tool_runtime.families.skills.specs import DELETE_FILE, READ_FILE, WRITE_FILE
from tool_runtime.faults import ToolFault
from tool_runtime.output import artifacts
from tool_runtime.output.text import decode_body
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.contracts import ToolRequest
    from tool_runtime.core.files import WholeFile
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput


class FileTools:
    """See `families.skills.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

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
        scope, mark = calls.scope_of(request), calls.mark_of(request)
        try:
            path = request.arguments["path"]
            removed = await self._pool.run(lambda: writes.remove_leftover(path, scope, mark))
        except (ToolFault, KeyError, TypeError):  # where the call may not write by now, nothing is touched
            return Leftovers()
        return Leftovers(removed)

    def _read_at_once(self, call: CallContext) -> ToolOutput | None:
        path, scope = call.request.arguments["path"], calls.scope_of(call.request)
        found = files.whole_at_once(path, scope, _most_bytes(call), call.abandoned)
        return None if found is None else _shown(call, found)

    async def _read(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], calls.scope_of(call.request)
        found = await self._pool.run(lambda: files.whole_file(path, scope, _most_bytes(call), call.abandoned))
        return _shown(call, found)

    async def _write(self, call: CallContext) -> ToolOutput:
        request = call.request
        path: str = request.arguments["path"]
        params = writes.WriteParams(
            path,
            calls.scope_of(request),
            calls.encoded(request.arguments["content"], "content"),
            calls.mark_of(request),
            _most_bytes(call),
            expected=calls.expected_of(request),
            kept=calls.kept_of(call),
        )
        outcome, diff = await self._pool.run(lambda: with_diff(writes.write_file(params, call.abandoned), path, call))
        fields = {
            "path": name_for_json(path),
            "bytes_written": len(params.data),
            "sha256": hashlib.sha256(params.data).hexdigest(),
        }
        made = (artifacts.file_diff(request, diff)._replace(ref_field="diff_ref"),) if diff else ()
        return answer(fields, artifacts=made, seen=str(outcome.seen))._replace(settle=settled(outcome))

    async def _delete(self, call: CallContext) -> ToolOutput:
        path, scope = call.request.arguments["path"], calls.scope_of(call.request)
        await self._pool.run(lambda: moves.delete_file(path, scope, call.abandoned))
        return answer({"path": name_for_json(path), "deleted": True})


def _most_bytes(call: CallContext) -> int:
    return limits.FILE_BYTES if call.max_file_size_bytes is None else min(call.max_file_size_bytes, limits.FILE_BYTES)


def _shown(call: CallContext, found: WholeFile) -> ToolOutput:
    """The excerpt that the call asks for. What is more than one excerpt is stored with the first."""
    fields: dict[str, Any] = {
        "content_excerpt": f"[{len(found.data)} bytes that are no text]",
        "size": len(found.data),
        "sha256": hashlib.sha256(found.data).hexdigest(),
        "truncated": False,
    }
    text, seen = decode_body(found.data), str(found.seen)
    if text is None:
        return answer(fields, seen=seen)
    start = call.request.arguments.get("offset", 0)
    end = excerpt(call, fields, "content_excerpt", text, start, limits.EXCERPT_CHARS)
    if end >= len(text):
        return answer(fields, seen=seen)
    fields |= {"truncated": True, "next_offset": end}
    if start:
        return answer(fields, seen=seen)
    stored = artifacts.tool_output(call.request, found.data, part="content")._replace(ref_field="storage_ref")
    return answer(fields, artifacts=(stored,), seen=seen)
