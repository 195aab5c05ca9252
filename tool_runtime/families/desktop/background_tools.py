"""Commands that run on, and the tools that follow them, over `core.background`."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from tool_runtime.core.background import BackgroundCommands
from tool_runtime.families.desktop.command_specs import COMMAND_OUTPUT, STOP_COMMAND
from tool_runtime.families.dialects import DESKTOP
from tool_runtime.output.terminal import reduced
from tool_runtime.output.text import decode_output
from tool_runtime.platform import current
from tool_runtime.tool import CallContext, Tool, ToolOutput
from tool_runtime.wrappers import capped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.contracts import CommandEnd, Leftovers, ToolRequest
    from tool_runtime.core.background import Background, Piece
    from tool_runtime.core.guard import ProcessGuard
    from tool_runtime.core.holding import Sandbox
    from tool_runtime.core.process import CommandParams
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool


class BackgroundTools:
    """RunCommand with `background: true`, CommandOutput and StopCommand."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, guard: ProcessGuard | None) -> None:
        self._settings = settings
        self._commands = BackgroundCommands(pool, guard, most=settings.max_background, before=settings.commands_before)

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        running = ((COMMAND_OUTPUT, self._command_output), (STOP_COMMAND, self._stop_command))
        return tuple(Tool(spec, capped(run), DESKTOP) for spec, run in running)

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
        started.follow(functools.partial(self._ended, call.request))
        until = "the session ends" if lifetime_s is None else f"{lifetime_s:g} seconds have passed, or the session ends"
        text = (
            f"Started in the background as {started.command_id}. CommandOutput reads what it prints, StopCommand ends "
            f"it. It runs until {until}; you are told when it is over."
        )
        return ToolOutput(text, command_id=started.command_id)

    async def end_all(self) -> Leftovers:
        """See `BackgroundCommands.end_all`."""
        return await self._commands.end_all()

    def _ended(self, request: ToolRequest, end: CommandEnd) -> None:
        if self._settings.commands is not None:
            self._settings.commands.ended(request, end)
        self._commands.forget_old()

    async def _command_output(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        found = self._commands.get(arguments["id"])
        limit = min(arguments.get("limit", call.max_output_bytes), call.max_output_bytes)
        piece = found.read(arguments.get("offset", found.seen), limit)
        found.seen = max(found.seen, piece.end)
        return ToolOutput(f"{_state(found)}\n{_shown(piece)}", capped=True)

    async def _stop_command(self, call: CallContext) -> ToolOutput:
        found = self._commands.get(call.request.arguments["id"])
        found.ask_to_end("stopped")
        await found.ended()
        unread = found.total - found.seen
        rest = f"\n{unread} bytes of its output were not read yet; CommandOutput reads them" if unread else ""
        return ToolOutput(f"{_state(found)}{rest}")


def _state(one: Background) -> str:
    if one.end is None:
        return f"{one.command_id}: running, for {time.monotonic() - one.began:.0f} seconds so far"
    return f"{one.command_id}: {one.end.note()}"


def _shown(piece: Piece) -> str:
    if not piece.data:
        return f"No output from byte {piece.start} on; there are {piece.total} bytes"
    text = decode_output(reduced(piece.data), crlf=current.CRLF)
    begins = piece.start + piece.skipped
    gap = f"[... {piece.skipped} bytes are not kept ...]\n" if piece.skipped else ""
    more = f"; {piece.total - piece.end} more from offset {piece.end}" if piece.end < piece.total else ""
    return f"Output, bytes {begins} to {piece.end} of {piece.total}{more}:\n{gap}{text}"
