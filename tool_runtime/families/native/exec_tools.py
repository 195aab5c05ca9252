"""cp__exec, over `core.process`: a program with its arguments, never a shell. Policy has judged both."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final

from policy.paths import normalize
from tool_runtime.core.paths import Scope, home_directory, resolve
from tool_runtime.core.process import end_leftovers
from tool_runtime.core.roots import within
from tool_runtime.families.answers import with_text
from tool_runtime.families.desktop.calls import mark_of, scope_of
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.families.environment import environment_under
from tool_runtime.families.native import limits
from tool_runtime.families.native.specs import EXEC
from tool_runtime.families.programs import command_params, kept, printed, refusals_of, told_of
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.platform import OS_FAMILY
from tool_runtime.tool import CallContext, Tool
from tool_runtime.wrappers import capped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Artifact, Leftovers, ToolRequest
    from tool_runtime.core.process import CommandOutcome, CommandParams
    from tool_runtime.families.programs import RunProgram
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import ToolOutput

_CUT: Final = {"stdout": "stdout_truncated", "stderr": "stderr_truncated"}


class ExecTools:
    """See `families.native.runner`. `roots` are the only places of the tool."""

    def __init__(
        self, settings: RuntimeSettings, pool: DaemonPool, roots: tuple[str, ...], run_program: RunProgram
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._roots = roots
        self._run_program = run_program

    def tools(self) -> Sequence[Tool]:
        """The tool, ready to run."""
        return (Tool(EXEC, capped(self._exec), DESKTOP),)

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. A program leaves processes behind."""
        return await end_leftovers(mark_of(request), self._pool)

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        return environment_under(self._settings)

    async def _exec(self, call: CallContext) -> ToolOutput:
        params = self._params(call)
        began = time.monotonic()
        outcome = await self._run_program(params)
        output = _shown(call, outcome, int((time.monotonic() - began) * 1000))
        if outcome.timed_out:
            said = "; ".join(filter(None, (f"timed out after {params.timeout_s:g} seconds", outcome.left.note())))
            raise ToolFault(FaultKind.TIMED_OUT, said, partial=output)
        return output

    def _params(self, call: CallContext) -> CommandParams:
        settings, arguments = self._settings, call.request.arguments
        program: str = arguments["command"]
        argv = [program, *arguments.get("args", ())]
        variables: Mapping[str, str] = arguments.get("env", {})
        if any("\0" in word or not _is_text(word) for word in (*argv, *variables, *variables.values())):
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$: a word holds a NUL character or a lone surrogate")
        if any("=" in name or not name for name in variables):
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.env: a name is empty or holds =")
        asked = normalize(
            arguments.get("working_dir") or settings.workspace, OS_FAMILY, settings.workspace, home_directory()
        )
        cwd = resolve(asked, within(scope_of(call.request), self._roots))
        resolve(program, Scope())  # absolute, or it is refused
        timeout_ms = min(arguments.get("timeout_ms", limits.EXEC_TIMEOUT_MS), limits.EXEC_TIMEOUT_MS)
        return command_params(
            call.request,
            settings,
            argv,
            cwd,
            {**self._environment, **variables, "PWD": cwd},
            timeout_s=timeout_ms / 1000,
            max_output_bytes=limits.STDOUT_BYTES,
        )


def _shown(call: CallContext, outcome: CommandOutcome, duration_ms: int) -> ToolOutput:
    stdout, stdout_cut = printed(outcome.stdout, limits.STDOUT_BYTES)
    stderr, stderr_cut = printed(outcome.stderr, limits.STDERR_BYTES)
    fields = {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": outcome.exit_code,
        "success": outcome.exit_code == 0 and not outcome.timed_out,
        "duration_ms": duration_ms,
        "timed_out": outcome.timed_out,
        "stdout_truncated": stdout_cut,
        "stderr_truncated": stderr_cut,
    }
    told = {**fields, **refusals_of(outcome)}
    output = with_text(call, told, cut=_CUT, exit_code=outcome.exit_code, denials=outcome.denials)
    return output._replace(artifacts=tuple(_kept(call, outcome)), stderr=told_of(outcome.stderr))


def _kept(call: CallContext, outcome: CommandOutcome) -> list[Artifact]:
    """What is too long to be read in the answer alone."""
    least = call.settings.artifact_threshold_bytes
    streams = (("stdout", outcome.stdout), ("stderr", outcome.stderr))
    found = [kept(call, captured, name, is_kept=captured.ends.total > least) for name, captured in streams]
    return [one for one in found if one is not None]


def _is_text(word: str) -> bool:
    return word == word.encode("utf-8", "replace").decode()
