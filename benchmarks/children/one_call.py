"""One call of a tool in a process of its own: prints its milliseconds, and its memory above idle in MiB.

    python -m benchmarks.children.one_call WORKSPACE TOOL ARGUMENTS IDLE_ARGUMENTS

ARGUMENTS are JSON. A call with IDLE_ARGUMENTS comes first, so that what is imported late is there; idle is what the
process has then. A command's output goes to a session's events, as in the product.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import orjson

from agent_host.events.emitter import Emitter, LiveOutput
from agent_host.ids import MACHINE
from benchmarks.processes import resident_mib
from benchmarks.tool_calls import Calls
from tests.support.peak_memory import peak_kib


async def main(workspace: str, tool: str, arguments: str, idle_arguments: str) -> tuple[float, float]:
    emitter = Emitter(time=MACHINE.time, session_id="s", workspace_id="w", tenant_id="t", user_id="u")
    calls = Calls(workspace, guard_processes=True, on_output=LiveOutput(emitter).take)
    await calls.call(tool, **orjson.loads(idle_arguments))
    idle = resident_mib(os.getpid())
    began = time.perf_counter()
    await calls.call(tool, **orjson.loads(arguments))
    took = (time.perf_counter() - began) * 1000
    await calls.aclose()
    return took, peak_kib() / 1024 - idle


if __name__ == "__main__":
    print(*asyncio.run(main(*sys.argv[1:])))
