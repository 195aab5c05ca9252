"""Programs that tools start, over `processes`: commands, those that run on in the background, and their output. A
command that ends with a non-zero exit code has `succeeded` as a call: the model reads the code in the text (TR 4.4)."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.contracts import Leftovers
from tool_runtime.families import fit_texts
from tool_runtime.files import Scope, resolve
from tool_runtime.output import artifacts, decode_output
from tool_runtime.output.terminal import keep_colours, reduce, strip_controls
from tool_runtime.platform import current
from tool_runtime.platform.environment import child_environment
from tool_runtime.processes.background import BackgroundCommands, ServerProcess
from tool_runtime.processes.command import CommandParams, end_leftovers, run_command
from tool_runtime.processes.guard import ProcessGuard
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput, encode, mark_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent_host.contracts import Artifact, CommandEnd, ToolRequest
    from tool_runtime.output import HeadTail
    from tool_runtime.processes.background import BackgroundCommand, OutputPiece
    from tool_runtime.processes.command import Captured, CommandOutcome, ServerParams, StartCommand
    from tool_runtime.sandbox.session import Sandbox
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import CallContext, RuntimeSettings, SandboxLevel

    RunProgram = Callable[[CommandParams], Awaitable[CommandOutcome]]
    """See LocalToolRouter.run_program."""

_BEGINNING_BYTES: Final = 4096
_CUT: Final = {"stdout": "stdout_truncated", "stderr": "stderr_truncated"}


class Commands:
    """The programs of one session, of all its families and of other providers. Families that answer in JSON call `run`;
    `run_command`, `read_output` and `stop` are the desktop family's own."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, start: StartCommand) -> None:
        self._settings = settings
        self._start_command = start
        self._pool = pool
        self._guard = ProcessGuard() if settings.guard_processes else None
        limits = {"most": settings.max_background, "before": settings.commands_before}
        self._background = BackgroundCommands(start, pool, self._guard, settings.outside.monotonic, **limits)
        self._ended = False
        self._sandboxes: dict[SandboxLevel, Sandbox | None] = {}

    @functools.cached_property
    def environment(self) -> Mapping[str, str]:
        """The environment of programs, as it is at the first one."""
        return environment_under(self._settings)

    @functools.cached_property
    def _shell(self) -> str:
        return self._settings.shell or current.default_shell(os.environ, self._settings.writable_places)

    async def run_program(self, params: CommandParams) -> CommandOutcome:
        """See LocalToolRouter."""
        return await run_command(self._start_command, params, self._pool, self._guard, self._sandbox_for(params))

    def start_program(self, params: ServerParams) -> ServerProcess:
        """See LocalToolRouter."""
        return ServerProcess(params, self._pool, self._guard, self._sandbox_for(params))

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider."""
        return await end_leftovers([mark_of(request)], self._pool)

    async def end_commands(self) -> Leftovers:
        """See ToolRouter."""
        if self._ended:
            return Leftovers()
        self._ended = True
        left = await self._background.end_all()
        if self._guard is not None:
            left = await self._pool.run(self._guard.close)
        for sandbox in filter(None, self._sandboxes.values()):
            await sandbox.aclose()
        return left

    def _state(self, one: BackgroundCommand) -> str:
        if one.end is not None:
            return f"{one.command_id}: {one.end.note()}"
        elapsed_s = self._settings.outside.monotonic() - one.started
        return f"{one.command_id}: running, for {elapsed_s:.0f} seconds so far"

    def _sandbox_for(self, params: CommandParams | ServerParams) -> Sandbox | None:
        own = self._settings.sandbox
        if own is None or params.scope is None:
            return None
        level = params.scope.level or own.level
        if level not in self._sandboxes:
            from tool_runtime.sandbox.session import open_sandbox

            settings = self._settings._replace(sandbox=own._replace(level=level))
            self._sandboxes[level] = open_sandbox(settings, self._pool)
        return self._sandboxes[level]

    async def run(
        self, call: CallContext, argv: list[str], cwd: str, env: Mapping[str, str], *, timeout_s: float, most_bytes: int
    ) -> FinishedProgram:
        """Run a program by its absolute path, and keep `most_bytes` of each stream. Raises ToolFault."""
        resolve(argv[0], Scope())  # absolute, or it is refused
        limits = {"timeout_s": timeout_s, "max_output_bytes": most_bytes}
        started = self._settings.outside.monotonic()
        outcome = await self.run_program(command_params(call.request, self._settings, argv, cwd, env, **limits))
        return FinishedProgram(call, outcome, self._settings.outside.ms_since(started), timeout_s)

    async def run_command(self, call: CallContext, directory: Callable[[CallContext, str | None], str]) -> ToolOutput:
        """Run a line of the shell, or have it run on; `directory` is as in Operations. Raises ToolFault."""
        params = self._command(call, directory)
        if call.arguments.get("background"):
            return self._start(call, params)
        outcome = await self.run_program(params)
        output = command_output(call, outcome)
        return _in_time(outcome, output, f"Command timed out after {params.timeout_s:g} seconds")

    def _command(self, call: CallContext, directory: Callable[[CallContext, str | None], str]) -> CommandParams:
        settings, arguments = self._settings, call.arguments
        command: str = arguments["command"]
        if not command.strip() or "\0" in command:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.command: must not be empty or hold a NUL character")
        encode(command, "command")
        timeout_s = arguments.get("timeout", settings.default_command_s)
        if timeout_s > settings.command_timeout_max_s:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.timeout: at most {settings.command_timeout_max_s}")
        cwd = directory(call, arguments.get("cwd"))
        return command_params(
            call.request,
            settings,
            current.shell_argv(self._shell, command),
            cwd,
            {**self.environment, "PWD": cwd},
            timeout_s=timeout_s,
            max_output_bytes=call.max_output_bytes,
            stdin=encode(arguments["stdin"], "stdin") if "stdin" in arguments else None,
        )

    def _start(self, call: CallContext, params: CommandParams) -> ToolOutput:
        request, observer = call.request, self._settings.commands
        asked = (request.arguments.get("timeout"), self._settings.background_lifetime_s)
        lifetime_s = min((one for one in asked if one is not None), default=None)
        # Head and tail must reach the spooled data: the rest of a smaller artifact would be lost.
        shown = min(params.max_output_bytes, params.artifact_max_bytes)
        started = self._background.start(
            params._replace(timeout_s=lifetime_s, max_output_bytes=shown, on_output=None, one_stream=True),
            self._sandbox_for(params),
        )

        def report_end(end: CommandEnd) -> None:
            if observer is not None:
                observer.ended(request, end)
            self._background.forget_old()

        if observer is not None:
            observer.started(request, started.command_id)
        started.follow(report_end)
        until = "the session ends" if lifetime_s is None else f"{lifetime_s:g} seconds have passed, or the session ends"
        text = (
            f"Started in the background as {started.command_id}. CommandOutput reads what it prints, StopCommand ends "
            f"it. It runs until {until}; you are told when it is over."
        )
        return ToolOutput(text, command_id=started.command_id)

    async def read_output(self, call: CallContext) -> ToolOutput:
        """Read the output of a background command. Raises ToolFault."""
        found = self._background.get(call.arguments["id"])
        limit = min(call.arguments.get("limit", call.max_output_bytes), call.max_output_bytes)
        piece = found.read(call.arguments.get("offset", found.seen), limit)
        found.seen = max(found.seen, piece.end)
        text = f"{self._state(found)}\n{_render(piece)}"
        return ToolOutput(text, capped=True, coloured=_coloured("output", piece.data))

    async def stop(self, call: CallContext) -> ToolOutput:
        """End a command in the background. Raises ToolFault."""
        found = self._background.get(call.arguments["id"])
        found.ask_to_end("stopped")
        await found.await_end()
        unread = found.total - found.seen
        rest = f"\n{unread} bytes of its output were not read yet; CommandOutput reads them" if unread else ""
        return ToolOutput(f"{self._state(found)}{rest}")


class FinishedProgram(NamedTuple):
    """A finished program, and its fields in a JSON answer."""

    call: CallContext
    outcome: CommandOutcome
    duration_ms: int
    timeout_s: float

    def text(self, name: str, limit_bytes: int) -> tuple[str, bool]:
        """stdout or stderr as a terminal would show it; True if it has more than `limit_bytes`."""
        ends = self.streams[name].rendered()
        return _show(ends, limit_bytes), ends.total > limit_bytes

    @property
    def streams(self) -> Mapping[str, Captured]:
        """stdout and stderr."""
        return {"stdout": self.outcome.stdout, "stderr": self.outcome.stderr}

    def answer(self, fields: Mapping[str, Any], stored: Mapping[str, Mapping[str, str]]) -> ToolOutput:
        """The output with these fields, including the texts, and with the sandbox's denials. The whole streams in
        `stored` are artifacts, with their own fields. Raises ToolFault for a program that timed out."""
        call, outcome = self.call, self.outcome
        if outcome.refused:
            fields = {**fields, "denials": outcome.refused.splitlines()[1:]}
        kept: list[Artifact] = []
        for name, captured in self.streams.items():
            if name in stored:
                artifact = artifacts.tool_output(call.request, captured.spill.content(captured.ends), part=name)
                kept.append(artifact._replace(**stored[name]))  # type: ignore[arg-type]
            else:
                captured.spill.close()
        extra: dict[str, Any] = {
            "exit_code": outcome.exit_code,
            "denials": outcome.denials,
            "stderr": _begin(outcome.stderr),
        }
        output = fit_texts(call, fields, cut=_CUT, **extra)._replace(artifacts=tuple(kept))
        return _in_time(outcome, output, f"timed out after {self.timeout_s:g} seconds")


def _in_time(outcome: CommandOutcome, output: ToolOutput, why: str) -> ToolOutput:
    if outcome.timed_out:
        raise ToolFault(FaultKind.TIMED_OUT, "; ".join(filter(None, (why, outcome.left.note()))), partial=output)
    return output


def command_params(
    request: ToolRequest, settings: RuntimeSettings, argv: list[str] | str, cwd: str, env: Mapping[str, str], **how: Any
) -> CommandParams:
    """The command that the call starts; `how` are further fields of CommandParams. Its output is displayed live."""
    on_output = settings.on_output
    return CommandParams(
        argv=argv,
        cwd=cwd,
        environment=env,
        mark=mark_of(request),
        artifact_max_bytes=settings.artifact_max_bytes,
        buffer_bytes=settings.output_buffer_bytes,
        spool_directory=settings.temporary,
        kill_grace_s=settings.kill_grace_s,
        drain_s=settings.drain_s,
        on_output=None if on_output is None else functools.partial(on_output, request),
        scope=request.constraints.command_scope,
        **how,
    )


def environment_under(settings: RuntimeSettings) -> dict[str, str]:
    """This process's environment for programs: without secrets, and without prompts. It is computed once, because that
    costs more than starting a process."""
    return child_environment(
        os.environ,
        secret=settings.secret_env,
        passthrough=settings.env_passthrough,
        allowed=settings.env_allowed,
        temporary=settings.temporary,
    )


def _show(ends: HeadTail, limit_bytes: int) -> str:
    return decode_output(strip_controls(ends.render(limit_bytes)), crlf=current.CRLF)


def _begin(captured: Captured) -> str:
    """The beginning of a stream for observers: longer than they are shown, so that a secret is still whole in it."""
    return _show(captured.rendered(), _BEGINNING_BYTES)


def _coloured(name: str, data: bytes) -> dict[str, str]:
    kept = keep_colours(data)
    return {} if kept is None else {name: decode_output(kept, crlf=current.CRLF)}


def _render(piece: OutputPiece) -> str:
    if not piece.data:
        return f"No output from byte {piece.start} on; there are {piece.total} bytes"
    text = decode_output(reduce(piece.data), crlf=current.CRLF)
    begins = piece.start + piece.skipped
    gap = f"[... {piece.skipped} bytes are not kept ...]\n" if piece.skipped else ""
    remainder = f"; {piece.total - piece.end} more from offset {piece.end}" if piece.end < piece.total else ""
    return f"Output, bytes {begins} to {piece.end} of {piece.total}{remainder}:\n{gap}{text}"


def command_output(call: CallContext, outcome: CommandOutcome) -> ToolOutput:
    """TR 4.4; the output limit is shared, and what one stream does not need the other may have."""
    out, err, limit = outcome.stdout.rendered(), outcome.stderr.rendered(), call.max_output_bytes
    err_limit = min(err.total, max(limit // 2, limit - out.total))
    text = f"Exit code: {outcome.exit_code}\n"
    for name, ends, most in (("stdout", out, limit - err_limit), ("stderr", err, err_limit)):
        shown = _show(ends, most)
        text += f"--- {name} ---\n{shown}" + ("" if not shown or shown.endswith("\n") else "\n")
    kept: list[Artifact] = []
    coloured: dict[str, str] = {}
    for name, captured in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        spill, total = captured.spill, captured.ends.total
        if spill.problem is not None:
            text += f"[Of {name} only a part is kept, for the rest could not be written: {spill.problem}]\n"
        rewritten, is_all = captured.rewritten()
        if rewritten:
            count = rewritten if is_all else f"{rewritten} or more"
            text += f"[Characters of {name} that were drawn over, and are not shown: {count}]\n"
        if total > call.settings.artifact_threshold_bytes:
            if spill.kept_bytes < total and spill.problem is None:
                text += f"[Of the {total} bytes of {name} the first {spill.kept_bytes} are stored, and the end]\n"
            kept.append(artifacts.tool_output(call.request, spill.content(captured.ends), part=name))
        else:
            with contextlib.suppress(OSError):
                if spill.kept_bytes == total:
                    coloured |= _coloured(name, spill.read(0, total))
            spill.close()
    extra: dict[str, Any] = {"exit_code": outcome.exit_code, "denials": outcome.denials, "coloured": coloured}
    return ToolOutput(text + outcome.refused, tuple(kept), capped=True, stderr=_begin(outcome.stderr), **extra)
