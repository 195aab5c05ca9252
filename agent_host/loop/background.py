"""Background commands of the session: on record, reported to the observers and to the model (decision 0036)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent_host.contracts import CommandEnd, ToolRequest
from agent_host.events.kinds import EventType
from agent_host.loop.command_changes import CUT_OFF, see_background_changes
from state.records import ChangesSeen, CommandEnded, CommandStarted

if TYPE_CHECKING:
    from agent_host.events.emitter import Emitter
    from agent_host.loop.context import LoopContext
    from agent_host.loop.journal import Journal
    from state.checkpoint import Checkpoint
    from state.records import CommandRow

_TOOL, _CAPABILITY = "RunCommand", "Shell.Exec"
_MAX_NAMED = 20


class CommandLog:
    """See `CommandObserver`: what happens to background commands goes on record as it happens."""

    def __init__(self, journal: Journal, emitter: Emitter) -> None:
        self._journal = journal
        self._emitter = emitter

    def started(self, request: ToolRequest, command_id: str) -> None:
        """See CommandObserver. Nothing is synced: where the machine has lost the record, the command is gone too."""
        self._journal.checkpoint(request.step_id, CommandStarted(command_id, request.tool_call_id), sync=False)

    def ended(self, request: ToolRequest, end: CommandEnd) -> None:
        """See CommandObserver."""
        record = CommandEnded(end.command_id, end.reason, end.exit_code, end.left)
        self._journal.checkpoint(request.step_id, record, sync=False)
        payload: dict[str, Any] = {
            "commandId": end.command_id,
            "toolCallId": request.tool_call_id,
            "reason": end.reason,
            **({} if end.exit_code is None else {"exitCode": end.exit_code}),
            **({"processesLeft": end.left} if end.left else {}),
        }
        self._emitter.emit(EventType.COMMAND_ENDED, payload, task_id=request.task_id, step_id=request.step_id)


def commands_to_report(state: Checkpoint) -> tuple[str, tuple[str, ...]] | None:
    """What the model is to read of background commands that have ended, and their ids; None where it has read of
    all."""
    over = {command_id: row for command_id, row in state.commands.items() if "ended" in row}
    if not over:
        return None
    lines = [_line(command_id, row) for command_id, row in list(over.items())[:_MAX_NAMED]]
    if len(over) > _MAX_NAMED:
        lines.append(f"and {len(over) - _MAX_NAMED} more")
    return "\n".join(["[Background commands have ended:", *lines]) + "]", tuple(over)


def _line(command_id: str, row: CommandRow) -> str:
    ended = row["ended"]
    end = CommandEnd(command_id, ended["reason"], ended.get("exitCode"), ended.get("left", 0))
    return f"{command_id} ({row['line']}): {end.note()}"


async def take_up_commands(ctx: LoopContext) -> None:
    """End what is left of the background commands of a process that was killed, and put their end on record; the model
    reads of it before its next turn."""
    open_ones = {command_id: row for command_id, row in ctx.state.commands.items() if "ended" not in row}
    requests = {command_id: _request_of(ctx, row) for command_id, row in open_ones.items()}
    left = await asyncio.gather(*map(ctx.router.end_leftovers, requests.values()))  # each looks for a while
    log = CommandLog(ctx.journal, ctx.emitter)
    for (command_id, request), found in zip(requests.items(), left, strict=True):
        log.ended(request, CommandEnd(command_id, "interrupted", left=len(found.running)))
    if open_ones and ctx.command_watch is not None:
        ctx.journal.checkpoint(None, ChangesSeen(unseen=CUT_OFF), sync=False)


def _request_of(ctx: LoopContext, row: CommandRow) -> ToolRequest:
    """The call that started the command, as far as its processes are found by it."""
    return ToolRequest(_TOOL, {}, ctx.session_id, row["taskId"], row["stepId"], row["callId"], _CAPABILITY)


async def end_commands(ctx: LoopContext) -> None:
    """End background commands and what else commands have left running, and report it: the session is over, or goes on
    in another process."""
    left = await ctx.router.end_commands()
    await see_background_changes(ctx)
    if left.ended or left.running:
        still = {"processesLeft": len(left.running)} if left.running else {}
        ctx.emit(EventType.COMMAND_ENDED, None, reason="session_ended", processesEnded=left.ended, **still)
