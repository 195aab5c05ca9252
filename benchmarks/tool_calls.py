"""Calls of desktop and native tools as the loop makes them, for `benchmarks tools`: through the router, in a scope."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from agent_host.contracts import ToolConstraints, ToolRequest
from agent_host.ids import MACHINE
from policy import CapabilityName
from tool_runtime.processes.command import LocalCommand
from tool_runtime.router import LocalToolRouter
from tool_runtime.tool import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tool_runtime.tool import StreamName

_FILES = (CapabilityName.FILE_READ, CapabilityName.FILE_WRITE, CapabilityName.FILE_DELETE)


class Calls:
    """A router of its own for `workspace`, and calls to it. Make and use it on one event loop."""

    def __init__(
        self,
        workspace: str,
        *,
        guard_processes: bool = False,
        on_output: Callable[[ToolRequest, StreamName, bytes], None] | None = None,
        max_output_bytes: int = 102_400,
    ) -> None:
        settings = RuntimeSettings(
            outside=MACHINE,
            workspace=workspace,
            guard_processes=guard_processes,
            on_output=on_output,
            families=("desktop", "native"),
            max_output_bytes=max_output_bytes,
        )
        self._router = LocalToolRouter(settings, LocalCommand)
        self._scope = ToolConstraints(allowed_paths=(workspace,), blocked_paths=(os.path.join(workspace, ".git"),))

    async def call(self, tool: str, /, **arguments: Any) -> str:
        """The text of a call's result. What fails ends the program, with its message."""
        also = {str(name): self._scope for name in _FILES}
        request = ToolRequest(tool, arguments, "bench", "task", "step", "call", "any", self._scope, also)
        result = self._router.at_once(request) or await self._router.execute(request)
        for artifact in result.artifacts:
            artifact.close()
        if result.error is not None:
            sys.exit(f"{tool}: {result.error.message}")
        return result.output_text or ""

    async def aclose(self) -> None:
        """End what runs."""
        await self._router.aclose()
