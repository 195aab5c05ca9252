"""A host for one shell line in a sandbox: `python -m tests.support.held_host WORKSPACE LINE LEVEL`."""

from __future__ import annotations

import asyncio
import os
import sys

from agent_host.ids import MACHINE
from policy import CommandScope
from tool_runtime.processes.command import CommandParams, LocalCommand, run_command
from tool_runtime.sandbox.session import open_sandbox
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import RuntimeSettings, SandboxSettings


async def main(workspace: str, line: str, level: str) -> None:
    """Run the line, and print whether a supervisor decides its connections, its exit code and its output."""
    pool = DaemonPool()
    runtime = RuntimeSettings(outside=MACHINE, workspace=workspace, sandbox=SandboxSettings(level, required=True))  # type: ignore[arg-type]  # a level
    params = CommandParams(
        ["/bin/sh", "-c", line], workspace, {"PATH": os.environ["PATH"]}, "m", 60, 10000, 10000,
        scope=CommandScope(writes=(workspace,)),
    )  # fmt: skip
    sandbox = open_sandbox(runtime, pool)
    assert sandbox is not None
    print(sandbox.found.is_supervised, flush=True)
    outcome = await run_command(LocalCommand, params, pool, None, sandbox)
    print(outcome.exit_code, outcome.stdout.ends.render(1000).decode(), outcome.stderr.ends.render(1000).decode())
    await sandbox.aclose()
    pool.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
