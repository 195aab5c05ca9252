"""Runs `agent-host` with tools that each take 100 ms and nothing else: what is left is the loop's own work.

python -m benchmarks.children.slow_tools run "Do it." --gateway http://127.0.0.1:8080
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from agent_host.cli.main import main
from agent_host.contracts import ToolResult
from tool_runtime.router import LocalToolRouter

if TYPE_CHECKING:
    from agent_host.contracts import ToolRequest

TOOL_S = 0.1


async def execute(_: LocalToolRouter, request: ToolRequest) -> ToolResult:
    await asyncio.sleep(TOOL_S)
    ids = (request.session_id, request.task_id, request.step_id)
    return ToolResult(request.tool_name, *ids, "succeeded", output_text=f"Done {request.step_id}.")


if __name__ == "__main__":
    setattr(LocalToolRouter, "execute", execute)  # noqa: B010  only the time is of interest here
    sys.exit(main())
