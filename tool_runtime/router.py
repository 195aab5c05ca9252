"""The `ToolRouter` of this package (TR 3): a table of wrapped tools; here a fault becomes a result."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from agent_host.contracts import Leftovers, ToolDefinition, ToolError, ToolRequest, ToolResult
from tool_runtime.families.desktop_definitions import DEFINITIONS
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.settings import RuntimeSettings
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import CallContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tool_runtime.families.desktop import DesktopProvider
    from tool_runtime.tool import Tool, ToolOutput
    from tool_runtime.wrappers import Counter

__all__ = ["LocalToolRouter", "RuntimeSettings"]


class LocalToolRouter:
    """Runs the desktop family's tools on this machine. Make it and use it on one event loop."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._pool = DaemonPool()
        self._running: set[asyncio.Task[Any]] = set()

    @functools.cached_property
    def _desktop(self) -> DesktopProvider:
        """Imported with the first call: a session's first request needs only the definitions."""
        from tool_runtime.families.desktop import DesktopProvider

        return DesktopProvider(self._settings, self._pool)

    @functools.cached_property
    def _tools(self) -> Mapping[str, Tool]:
        return {tool.definition.tool_name: tool for tool in self._desktop.tools()}

    @property
    def counters(self) -> Mapping[str, Counter]:
        """Calls, failures and seconds by tool name."""
        return self._desktop.counters

    def get_available_tools(self) -> Sequence[ToolDefinition]:
        """All tools that this router can run, before policy narrows them."""
        return DEFINITIONS

    async def execute(self, request: ToolRequest) -> ToolResult:
        """Run one call; what goes wrong comes back as a failed result (TR 7.3). Only cancellation raises."""
        tool = self._tools.get(request.tool_name)
        if tool is None:
            code = DESKTOP[FaultKind.UNKNOWN_TOOL]
            return ToolResult.failure(request, code, f"Unknown tool: {request.tool_name}")
        task = asyncio.current_task()
        if task is not None:
            self._running.add(task)
        try:
            return _succeeded(request, await tool.run(CallContext.of(request, self._settings)))
        except ToolFault as fault:
            return _failed(request, tool, fault)
        finally:
            if task is not None:
                self._running.discard(task)

    async def read_bytes(self, request: ToolRequest, path: str, max_bytes: int) -> bytes | ToolError:
        """The content of one file for the host's own tools, as ReadFile would find it: within the scope and the limits
        of `request`, links that move refused, in a thread, within the time that files have. Only cancellation raises.
        """
        try:
            return await self._desktop.read_bytes(CallContext.of(request, self._settings), path, max_bytes)
        except ToolFault as fault:
            return ToolError(str(DESKTOP[fault.kind]), str(fault))

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """End what a host that died left running of the call `request`, and take away its temporary file."""
        return await self._desktop.end_leftovers(request)

    async def aclose(self) -> None:
        """Cancel calls that are under way, end their processes, close connections."""
        running = self._running - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        if "_desktop" in self.__dict__:
            await self._desktop.aclose()
        self._pool.close()


def _succeeded(request: ToolRequest, output: ToolOutput) -> ToolResult:
    return ToolResult(
        request.tool_name,
        request.session_id,
        request.task_id,
        request.step_id,
        "succeeded",
        output_text=output.text,
        artifacts=output.artifacts,
    )


def _failed(request: ToolRequest, tool: Tool, fault: ToolFault) -> ToolResult:
    partial = fault.partial
    return ToolResult(
        request.tool_name,
        request.session_id,
        request.task_id,
        request.step_id,
        "failed",
        output_text=partial.text if partial is not None else None,
        error=ToolError(str(tool.codes[fault.kind]), str(fault)),
        artifacts=partial.artifacts if partial is not None else (),
    )
