"""Commands, over `core.process` (TR 4.4).

A command that ends with a non-zero exit code has `succeeded` as a call: the tool did its work, and the model reads the
exit code in the text.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from agent_host.contracts import Leftovers
from policy.paths import normalize
from tool_runtime.core.guard import ProcessGuard
from tool_runtime.core.paths import home_directory, resolve
from tool_runtime.core.process import end_leftovers, run_command
from tool_runtime.core.server_process import ServerProcess
from tool_runtime.families.desktop.background_tools import BackgroundTools
from tool_runtime.families.desktop.calls import encoded, mark_of, scope_of
from tool_runtime.families.desktop.command_specs import RUN_COMMAND
from tool_runtime.families.desktop.rendering import command_output
from tool_runtime.families.desktop.timeouts import command_timeout_s
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.environment import environment_under
from tool_runtime.families.programs import command_params
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.platform import OS_FAMILY, current
from tool_runtime.tool import CallContext, Tool, ToolOutput
from tool_runtime.wrappers import capped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import ToolRequest
    from tool_runtime.core.holding import Sandbox
    from tool_runtime.core.process import CommandOutcome, CommandParams
    from tool_runtime.core.server_process import ServerParams
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool


class CommandTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool
        self._guard = ProcessGuard() if settings.guard_processes else None
        self._background = BackgroundTools(settings, pool, self._guard)
        self._ended = False
        self._sandbox: Sandbox | None = None
        self._unheld = False

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        return (Tool(RUN_COMMAND, capped(self._run_command), DESKTOP), *self._background.tools())

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A command leaves processes behind."""
        return await end_leftovers(mark_of(request), self._pool)

    async def end_commands(self) -> Leftovers:
        """See ToolRouter."""
        if self._ended:
            return Leftovers()
        self._ended = True
        left = await self._background.end_all()
        if self._guard is not None:
            left = await self._pool.run(self._guard.close)
        if self._sandbox is not None:
            await self._sandbox.aclose()
        return left

    def _sandbox_for(self, params: CommandParams | ServerParams) -> Sandbox | None:
        """What holds a command, made with the first that has a scope. Raises ToolFault where a level is required that
        does not work."""
        if self._settings.sandbox is None or params.scope is None:
            return None
        if self._sandbox is None and not self._unheld:
            from tool_runtime.core.sandbox import open_sandbox

            self._sandbox = open_sandbox(self._settings, self._pool)
            self._unheld = self._sandbox is None
        return self._sandbox

    @functools.cached_property
    def _shell(self) -> str:
        return self._settings.shell or current.default_shell(os.environ, self._settings.writable_places)

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        """As it is at the first command."""
        return environment_under(self._settings)

    async def run_program(self, params: CommandParams) -> CommandOutcome:
        """See LocalToolRouter."""
        return await run_command(params, self._pool, self._guard, self._sandbox_for(params))

    def start_program(self, params: ServerParams) -> ServerProcess:
        """See LocalToolRouter."""
        return ServerProcess(params, self._pool, self._guard, self._sandbox_for(params))

    async def _run_command(self, call: CallContext) -> ToolOutput:
        params = self._command(call)
        if call.request.arguments.get("background"):
            return self._background.start(call, params, self._sandbox_for(params))
        outcome = await self.run_program(params)
        output = command_output(call, outcome)
        if outcome.timed_out:
            timeout_s = call.request.arguments.get("timeout", command_timeout_s(self._settings))
            said = "; ".join(filter(None, (f"Command timed out after {timeout_s:g} seconds", outcome.left.note())))
            raise ToolFault(FaultKind.TIMED_OUT, said, partial=output)
        return output

    def _command(self, call: CallContext) -> CommandParams:
        settings, arguments = self._settings, call.request.arguments
        command: str = arguments["command"]
        if not command.strip() or "\0" in command:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.command: must not be empty or hold a NUL character")
        encoded(command, "command")
        timeout_s = arguments.get("timeout", command_timeout_s(settings))
        if timeout_s > settings.command_timeout_max_s:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.timeout: at most {settings.command_timeout_max_s}")
        asked = normalize(arguments.get("cwd") or settings.workspace, OS_FAMILY, settings.workspace, home_directory())
        cwd = resolve(asked, scope_of(call.request))
        return command_params(
            call.request,
            settings,
            current.shell_argv(self._shell, command),
            cwd,
            {**self._environment, "PWD": cwd},
            timeout_s=timeout_s,
            max_output_bytes=call.max_output_bytes,
            stdin=encoded(arguments["stdin"], "stdin") if "stdin" in arguments else None,
        )
