"""Commands, over `processes.command` (TR 4.4).

A command that ends with a non-zero exit code has `succeeded` as a call: the tool did its work, and the model reads the
exit code in the text.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import TYPE_CHECKING

from agent_host.contracts import Leftovers
from policy.paths import normalize
from tool_runtime.families.answers import DESKTOP
from tool_runtime.families.desktop.calls import encode, mark_of, scope_of
from tool_runtime.families.desktop.specs import COMMAND_OUTPUT, RUN_COMMAND, STOP_COMMAND
from tool_runtime.families.desktop.timeouts import command_timeout_s
from tool_runtime.families.programs import command_params, environment_under, head_for_observers
from tool_runtime.files.paths import home_directory, resolve
from tool_runtime.output import artifacts
from tool_runtime.output.terminal import keep_colours, reduce, strip_controls
from tool_runtime.output.text import charset_of, decode_body, decode_output
from tool_runtime.output.truncate import HeadTail, truncate_text
from tool_runtime.platform import OS_FAMILY, current
from tool_runtime.processes.background import BackgroundCommands
from tool_runtime.processes.command import end_leftovers, run_command
from tool_runtime.processes.guard import ProcessGuard
from tool_runtime.processes.server import ServerProcess
from tool_runtime.tool import CallContext, FaultKind, Tool, ToolFault, ToolOutput, cap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Artifact, CommandEnd, ToolRequest
    from tool_runtime.processes.background import BackgroundCommand, OutputPiece
    from tool_runtime.processes.command import CommandOutcome, CommandParams
    from tool_runtime.processes.server import ServerParams
    from tool_runtime.sandbox.session import Sandbox
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool
    from tool_runtime.web.http import HttpOutcome


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
        return (Tool(RUN_COMMAND, cap(self._run_command), DESKTOP), *self._background.tools())

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
        """The sandbox of a command, made with the first that has a scope. Raises ToolFault where a level is required
        that does not work."""
        if self._settings.sandbox is None or params.scope is None:
            return None
        if self._sandbox is None and not self._unheld:
            from tool_runtime.sandbox.session import open_sandbox

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
        encode(command, "command")
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
            stdin=encode(arguments["stdin"], "stdin") if "stdin" in arguments else None,
        )


# Commands that run on, and the tools that follow them, over `processes.background`.


class BackgroundTools:
    """RunCommand with `background: true`, CommandOutput and StopCommand."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, guard: ProcessGuard | None) -> None:
        self._settings = settings
        self._commands = BackgroundCommands(pool, guard, most=settings.max_background, before=settings.commands_before)

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        running = ((COMMAND_OUTPUT, self._command_output), (STOP_COMMAND, self._stop_command))
        return tuple(Tool(spec, cap(run), DESKTOP) for spec, run in running)

    def start(self, call: CallContext, params: CommandParams, sandbox: Sandbox | None = None) -> ToolOutput:
        """Have a command run on. Raises ToolFault where it cannot be started, or too many run."""
        asked = (call.request.arguments.get("timeout"), self._settings.background_lifetime_s)
        lifetime_s = min((one for one in asked if one is not None), default=None)
        # Head and tail have to meet what is spooled: of a smaller artifact the rest would be nowhere.
        shown = min(params.max_output_bytes, params.artifact_max_bytes)
        started = self._commands.start(
            params._replace(timeout_s=lifetime_s, max_output_bytes=shown, on_output=None, one_stream=True),
            sandbox,
        )
        observer = self._settings.commands
        if observer is not None:
            observer.started(call.request, started.command_id)
        started.follow(functools.partial(self._report_end, call.request))
        until = "the session ends" if lifetime_s is None else f"{lifetime_s:g} seconds have passed, or the session ends"
        text = (
            f"Started in the background as {started.command_id}. CommandOutput reads what it prints, StopCommand ends "
            f"it. It runs until {until}; you are told when it is over."
        )
        return ToolOutput(text, command_id=started.command_id)

    async def end_all(self) -> Leftovers:
        """See `BackgroundCommands.end_all`."""
        return await self._commands.end_all()

    def _report_end(self, request: ToolRequest, end: CommandEnd) -> None:
        if self._settings.commands is not None:
            self._settings.commands.ended(request, end)
        self._commands.forget_old()

    async def _command_output(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        found = self._commands.get(arguments["id"])
        limit = min(arguments.get("limit", call.max_output_bytes), call.max_output_bytes)
        piece = found.read(arguments.get("offset", found.seen), limit)
        found.seen = max(found.seen, piece.end)
        text = f"{_state(found)}\n{_render(piece)}"
        return ToolOutput(text, capped=True, coloured=_colours_of("output", piece.data))

    async def _stop_command(self, call: CallContext) -> ToolOutput:
        found = self._commands.get(call.request.arguments["id"])
        found.ask_to_end("stopped")
        await found.await_end()
        unread = found.total - found.seen
        rest = f"\n{unread} bytes of its output were not read yet; CommandOutput reads them" if unread else ""
        return ToolOutput(f"{_state(found)}{rest}")


def _state(one: BackgroundCommand) -> str:
    if one.end is None:
        return f"{one.command_id}: running, for {time.monotonic() - one.began:.0f} seconds so far"
    return f"{one.command_id}: {one.end.note()}"


def _render(piece: OutputPiece) -> str:
    if not piece.data:
        return f"No output from byte {piece.start} on; there are {piece.total} bytes"
    text = decode_output(reduce(piece.data), crlf=current.CRLF)
    begins = piece.start + piece.skipped
    gap = f"[... {piece.skipped} bytes are not kept ...]\n" if piece.skipped else ""
    more = f"; {piece.total - piece.end} more from offset {piece.end}" if piece.end < piece.total else ""
    return f"Output, bytes {begins} to {piece.end} of {piece.total}{more}:\n{gap}{text}"


# What a finished command or HTTP exchange looks like to the model (TR 4.4, 4.5), and what is kept as an artifact.


def command_output(call: CallContext, outcome: CommandOutcome) -> ToolOutput:
    """TR 4.4; the output limit is shared, and what one stream does not need the other may have."""
    out, err, limit = outcome.stdout.rendered(), outcome.stderr.rendered(), call.max_output_bytes
    err_limit = min(err.total, max(limit // 2, limit - out.total))
    text = (
        f"Exit code: {outcome.exit_code}\n"
        f"--- stdout ---\n{_render_output(out, limit - err_limit)}"
        f"--- stderr ---\n{_render_output(err, err_limit)}"
    )
    kept: list[Artifact] = []
    coloured: dict[str, str] = {}
    for name, captured in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if captured.spill.problem is not None:
            text += f"[Of {name} only a part is kept, for the rest could not be written: {captured.spill.problem}]\n"
        rewritten, is_all = captured.rewritten()
        if rewritten:
            count = rewritten if is_all else f"{rewritten} or more"
            text += f"[Characters of {name} that were drawn over, and are not shown: {count}]\n"
        if captured.ends.total > call.settings.artifact_threshold_bytes:
            kept_bytes, total = captured.spill.kept_bytes, captured.ends.total
            if kept_bytes < total and captured.spill.problem is None:
                text += f"[Of the {total} bytes of {name} the first {kept_bytes} are stored, and the end]\n"
            content = captured.spill.content(captured.ends)
            kept.append(artifacts.tool_output(call.request, content, part=name))
        else:
            with contextlib.suppress(OSError):
                if captured.spill.kept_bytes == captured.ends.total:
                    coloured |= _colours_of(name, captured.spill.read(0, captured.ends.total))
            captured.spill.close()
    return ToolOutput(
        text + outcome.refused,
        tuple(kept),
        capped=True,
        exit_code=outcome.exit_code,
        stderr=head_for_observers(outcome.stderr),
        denials=outcome.denials,
        coloured=coloured,
    )


def _colours_of(name: str, data: bytes) -> dict[str, str]:
    kept = keep_colours(data)
    return {} if kept is None else {name: decode_output(kept, crlf=current.CRLF)}


def _render_output(ends: HeadTail, limit: int) -> str:
    text = decode_output(strip_controls(ends.render(limit)), crlf=current.CRLF)
    return text if not text or text.endswith("\n") else text + "\n"


def http_output(call: CallContext, outcome: HttpOutcome, note: str = "") -> ToolOutput:
    """TR 4.5; `note` stands in front."""
    content_type = _content_type(outcome)
    packed = "content-encoding" in outcome.headers
    length = len(outcome.body) if packed else outcome.headers.get("content-length", len(outcome.body))
    text = decode_body(outcome.body, charset_of(content_type))
    if text is None:
        text = f"Binary body, {len(outcome.body)} bytes"
    head = f"{note}HTTP {outcome.status} {outcome.reason}\nContent-Type: {content_type}\nContent-Length: {length}\n\n"
    kept: tuple[Artifact, ...] = ()
    if len(outcome.body) > call.settings.artifact_threshold_bytes:
        kept = (artifacts.tool_output(call.request, outcome.body, part="body", content_type=content_type),)
    return ToolOutput(head + truncate_text(text, call.max_output_bytes), kept, capped=True)


def describe_saved(outcome: HttpOutcome, path: str) -> ToolOutput:
    """A response whose body has gone to the file at `path`."""
    size = len(outcome.body)
    head = f"HTTP {outcome.status} {outcome.reason}\nContent-Type: {_content_type(outcome)}\nContent-Length: {size}\n\n"
    return ToolOutput(f"{head}Saved {size} bytes to {path}")


def _content_type(outcome: HttpOutcome) -> str:
    return outcome.headers.get("content-type", "unknown")
