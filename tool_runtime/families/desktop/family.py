"""The desktop family as a provider: its list costs nothing, and what runs it is imported with the first call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from agent_host.contracts import Leftovers
from tool_runtime.families.catalogue import desktop_specs
from tool_runtime.families.desktop.timeouts import set_timeouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.contracts import ToolRequest, ToolSpec
    from tool_runtime.families.desktop.runner import DesktopRunner
    from tool_runtime.processes.command import CommandOutcome, CommandParams
    from tool_runtime.processes.server import ServerParams, ServerProcess
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import CallContext, Tool


class DesktopFamily:
    """See Provider. Where the family is not chosen only what reads stored outputs is offered, and what the host and
    other families have done here goes on."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool
        self._own = {spec.name: spec for spec in desktop_specs(settings.families)}

    @functools.cached_property
    def _specs(self) -> dict[str, ToolSpec]:
        return {name: set_timeouts(spec, self._settings) for name, spec in self._own.items()}

    @functools.cached_property
    def _runner(self) -> DesktopRunner:
        from tool_runtime.families.desktop.runner import DesktopRunner

        return DesktopRunner(self._settings, self._pool)

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return tuple(self._specs.values())

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        return self._runner.tool(name)._replace(spec=self._specs[name]) if name in self._own else None

    async def read_bytes(self, call: CallContext, path: str, max_bytes: int) -> bytes:
        """The content of one file, as ReadFile would find it. Raises ToolFault."""
        return await self._runner.read_bytes(call, path, max_bytes)

    async def run_program(self, params: CommandParams) -> CommandOutcome:
        """See LocalToolRouter."""
        return await self._runner.run_program(params)

    def start_program(self, params: ServerParams) -> ServerProcess:
        """See LocalToolRouter."""
        return self._runner.start_program(params)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        return await self._runner.end_leftovers(request)

    async def end_commands(self) -> Leftovers:
        """See ToolRouter."""
        return await self._runner.end_commands() if "_runner" in self.__dict__ else Leftovers()

    async def aclose(self) -> None:
        """See Provider."""
        if "_runner" in self.__dict__:
            await self._runner.aclose()
