"""The skills family as a provider: its list costs nothing, and what runs it is imported with the first call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tool_runtime.families.skills.specs import RUN_SCRIPT, SPECS, script_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.contracts import Leftovers, ToolRequest, ToolSpec
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.families.skills.runner import SkillsRunner
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import Tool

_NAMES = frozenset(spec.name for spec in SPECS)


class SkillsFamily:
    """See Provider. `run_program` runs a program as commands are run; `scripts` are those of the skills, None where
    there are none."""

    def __init__(
        self, settings: RuntimeSettings, pool: DaemonPool, run_program: RunProgram, scripts: SkillScripts | None
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._run_program = run_program
        self._scripts = scripts

    @functools.cached_property
    def _specs(self) -> tuple[ToolSpec, ...]:
        of_scripts = script_spec(self._settings.script_timeout_s)
        return tuple(of_scripts if spec is RUN_SCRIPT else spec for spec in SPECS)

    @functools.cached_property
    def _runner(self) -> SkillsRunner:
        from tool_runtime.families.skills.runner import SkillsRunner

        return SkillsRunner(self._settings, self._pool, self._run_program, self._scripts)

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return self._specs

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        return self._runner.tool(name) if name in _NAMES else None

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        return await self._runner.end_leftovers(request)

    async def aclose(self) -> None:
        """See Provider."""
        if "_runner" in self.__dict__:
            await self._runner.aclose()
