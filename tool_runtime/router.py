"""The `ToolRouter` of this package (TR 3): tools of several providers; here a fault becomes a result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent_host.contracts import Leftovers, ToolError, ToolRequest, ToolResult, ToolSpec
from tool_runtime.families.desktop_family import DesktopFamily
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.settings import RuntimeSettings
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import CallContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.tool import Provider, Tool, ToolOutput

__all__ = ["LocalToolRouter", "RuntimeSettings"]


class LocalToolRouter:
    """Runs the desktop family's tools on this machine, and those of `others`. Make it and use it on one event loop. Of
    two tools with one name the first provider's runs."""

    def __init__(self, settings: RuntimeSettings, others: Sequence[Provider] = ()) -> None:
        self._settings = settings
        self._pool = DaemonPool()
        self._desktop = DesktopFamily(settings, self._pool)
        self._providers: tuple[Provider, ...] = (self._desktop, *others)
        self._running: set[asyncio.Task[Any]] = set()

    async def tools(self) -> Sequence[ToolSpec]:
        """See ToolRouter."""
        found: dict[str, ToolSpec] = {}
        for provider in self._providers:
            for spec in await provider.tools():
                found.setdefault(spec.name, spec)
        return tuple(found.values())

    async def execute(self, request: ToolRequest) -> ToolResult:
        """Run one call; what goes wrong comes back as a failed result (TR 7.3). Only cancellation raises."""
        _, tool = self._tool(request.tool_name)
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
        """See ToolRouter."""
        provider, _ = self._tool(request.tool_name)
        return Leftovers() if provider is None else await provider.end_leftovers(request)

    async def aclose(self) -> None:
        """Cancel calls that are under way, end their processes, close connections."""
        running = self._running - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for provider in self._providers:
            await provider.aclose()
        self._pool.close()

    def _tool(self, name: str) -> tuple[Provider, Tool] | tuple[None, None]:
        for provider in self._providers:
            tool = provider.get(name)
            if tool is not None:
                return provider, tool
        return None, None


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
