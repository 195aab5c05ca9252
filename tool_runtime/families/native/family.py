"""The native family as a provider: its list costs nothing, and what runs it is imported with the first call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tool_runtime.families.native.specs import SPECS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.contracts import Leftovers, ToolRequest, ToolSpec
    from tool_runtime.families.native.runner import NativeRunner
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import Tool


class NativeFamily:
    """See Provider. `run_program` runs a program as commands are run."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._names = frozenset(spec.name for spec in SPECS) - settings.native_shadowed

    @functools.cached_property
    def _runner(self) -> NativeRunner:
        from tool_runtime.families.native.runner import NativeRunner

        return NativeRunner(self._settings, self._pool, self._run_program)

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return tuple(spec for spec in SPECS if spec.name in self._names)

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        return self._runner.tool(name) if name in self._names else None

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        return await self._runner.end_leftovers(request)

    async def aclose(self) -> None:
        """See Provider."""
        if "_runner" in self.__dict__:
            await self._runner.aclose()
