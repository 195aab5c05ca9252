"""Programs that tools start, whichever family they are of: how they are run, and what is kept of what they print."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Final

from tool_runtime.families.desktop.calls import mark_of
from tool_runtime.output import artifacts
from tool_runtime.output.terminal import strip_controls
from tool_runtime.output.text import decode_output
from tool_runtime.platform import current
from tool_runtime.platform.environment import child_environment
from tool_runtime.processes.command import CommandParams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent_host.contracts import Artifact, ToolRequest
    from tool_runtime.processes.command import Captured, CommandOutcome
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.tool import CallContext

    RunProgram = Callable[[CommandParams], Awaitable[CommandOutcome]]
    """See LocalToolRouter.run_program."""


_TOLD_BYTES: Final = 4096


def command_params(
    request: ToolRequest,
    settings: RuntimeSettings,
    argv: list[str] | str,
    cwd: str,
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    max_output_bytes: int,
    stdin: bytes | None = None,
    is_shown: bool = True,
) -> CommandParams:
    """The command that the call starts. `is_shown`: what it prints is shown as it comes."""
    on_output = settings.on_output if is_shown else None
    return CommandParams(
        argv=argv,
        cwd=cwd,
        environment=environment,
        mark=mark_of(request),
        timeout_s=timeout_s,
        max_output_bytes=max_output_bytes,
        artifact_max_bytes=settings.artifact_max_bytes,
        buffer_bytes=settings.output_buffer_bytes,
        spool_directory=settings.temporary,
        stdin=stdin,
        kill_grace_s=settings.kill_grace_s,
        drain_s=settings.drain_s,
        on_output=functools.partial(on_output, request) if on_output is not None else None,
        scope=request.constraints.command_scope,
    )


def render_stream(captured: Captured, limit_bytes: int) -> tuple[str, bool]:
    """Render a stream as a terminal would show it, its middle left out if it has more than `limit_bytes`; and whether
    it has."""
    ends = captured.rendered()
    return decode_output(strip_controls(ends.render(limit_bytes)), crlf=current.CRLF), ends.total > limit_bytes


def refusals_of(outcome: CommandOutcome) -> dict[str, Any]:
    """The field of an answer that says what a sandbox refused, and how to ask for it; none where nothing was."""
    return {"denials": outcome.refused.splitlines()[1:]} if outcome.refused else {}


def head_for_observers(captured: Captured) -> str:
    """The beginning of a stream, for observers: longer than what they are shown, so that a secret is still whole in
    it."""
    return render_stream(captured, _TOLD_BYTES)[0]


def stream_to_store(call: CallContext, captured: Captured, part: str, *, is_kept: bool) -> Artifact | None:
    """All of a stream, to be stored; where it need not be, it is let go."""
    if is_kept:
        return artifacts.tool_output(call.request, captured.spill.content(captured.ends), part=part)
    captured.spill.close()
    return None


# What programs that tools start get for their environment.


def environment_under(settings: RuntimeSettings) -> dict[str, str]:
    """This process's environment as programs get it: without secrets, and with nobody to be asked. Reading it costs
    more than starting a process does, so it is done once."""
    return child_environment(
        os.environ,
        secret=settings.secret_env,
        passthrough=settings.env_passthrough,
        allowed=settings.env_allowed,
        temporary=settings.temporary,
    )
