"""Stored outputs, over `core.stored`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.patterns import compiled, problem_of
from tool_runtime.core.stored import StoredParams, StoredPart, read_stored
from tool_runtime.families.desktop.output_specs import READ_OUTPUT
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.tool import CallContext, Tool, ToolOutput
from tool_runtime.wrappers import capped, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool


class OutputTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        return (Tool(READ_OUTPUT, capped(timed(self._read_output, self._settings.file_timeout_s)), DESKTOP),)

    async def _read_output(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        pattern: str | None = arguments.get("pattern")
        wanted = None if pattern is None else compiled(pattern)
        if pattern is not None and wanted is None:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.pattern: {problem_of(pattern)} (RE2's syntax)")
        params = StoredParams(arguments.get("offset", 1), arguments.get("limit", 200), wanted)
        return await self._pool.run(lambda: stored_part(self._settings, call, arguments["ref"], params))


def stored_part(settings: RuntimeSettings, call: CallContext, ref: str, params: StoredParams) -> ToolOutput:
    """A part of what the session has stored under `ref`. Blocking. Raises ToolFault."""
    with os_faults(ref):
        file = None if settings.open_output is None else settings.open_output(ref)
        if file is None:
            raise ToolFault(FaultKind.NOT_FOUND, f"this session has stored nothing under {ref}")
        with file:
            return ToolOutput(_shown(read_stored(file, params, call.max_output_bytes, call.abandoned), params))


def _shown(part: StoredPart, params: StoredParams) -> str:
    what = "lines" if params.pattern is None else "matches"
    if not part.lines:
        more = " more" if params.offset > 1 else ""
        return f"[No{more} {what} in {part.seen} line{'' if part.seen == 1 else 's'}]\n"
    lines = [text if params.pattern is None else f"{number}: {text}" for number, text in part.lines]
    if part.more:
        lines.append(f"[{len(lines)} {what} shown; offset: {params.offset + len(lines)} goes on]")
    return "\n".join(lines) + "\n"
