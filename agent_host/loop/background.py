"""Background commands of the session: on record, reported to the observers and to the model (decision 0036)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from agent_host.contracts import CommandEnd, ToolRequest
from agent_host.events import EventType
from state.blobs import UNAVAILABLE, add_mode, mode_and_blob
from state.records import ChangesSeen, CommandEnded, CommandStarted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent_host.contracts import ToolSpec
    from agent_host.events.emitter import Emitter
    from agent_host.loop import Journal, LoopContext
    from agent_host.workspace_changes.watch import Changes, Watch, WatchWindow
    from policy.facts import ActionFacts
    from state.checkpoint import Checkpoint

_MAX_NAMED = 20


class CommandLog:
    """See `CommandObserver`: records the start and end of background commands."""

    def __init__(self, journal: Journal, emitter: Emitter) -> None:
        self._journal = journal
        self._emitter = emitter

    def started(self, request: ToolRequest, command_id: str) -> None:
        """See CommandObserver. Nothing is synced: if the machine loses the record, it has lost the command too."""
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
    """The note for the model about background commands that have ended, and their ids; None if it has read of all."""
    over = {command_id: row for command_id, row in state.commands.items() if "ended" in row}
    if not over:
        return None
    lines = []
    for command_id, row in list(over.items())[:_MAX_NAMED]:
        ended = row["ended"]
        end = CommandEnd(command_id, ended["reason"], ended.get("exitCode"), ended.get("left", 0))
        lines.append(f"{command_id} ({row['line']}): {end.note()}")
    if len(over) > _MAX_NAMED:
        lines.append(f"and {len(over) - _MAX_NAMED} more")
    return "\n".join(["[Background commands have ended:", *lines]) + "]", tuple(over)


async def reap_background_commands(ctx: LoopContext) -> None:
    """Terminate the background commands of a killed host process and record that for the model."""
    open_ones = {command_id: row for command_id, row in ctx.state.commands.items() if "ended" not in row}
    # The calls that started them, with the fields by which their processes are found.
    requests = {
        command_id: ToolRequest(
            "RunCommand", {}, ctx.session_id, row["taskId"], row["stepId"], row["callId"], "Shell.Exec"
        )
        for command_id, row in open_ones.items()
    }
    left = await asyncio.gather(*map(ctx.router.end_leftovers, requests.values()))  # each looks for a while
    log = CommandLog(ctx.journal, ctx.emitter)
    for (command_id, request), found in zip(requests.items(), left, strict=True):
        log.ended(request, CommandEnd(command_id, "interrupted", left=len(found.running)))
    if open_ones and ctx.command_watch is not None:
        ctx.journal.checkpoint(None, ChangesSeen(unseen=CUT_OFF), sync=False)


async def end_commands(ctx: LoopContext) -> None:
    """End background commands and what else commands have left running, and report it."""
    left = await ctx.router.end_commands()
    await see_background_changes(ctx)
    if left.ended or left.running:
        still = {"processesLeft": len(left.running)} if left.running else {}
        ctx.emit(EventType.COMMAND_ENDED, None, reason="session_ended", processesEnded=left.ended, **still)


# Changes that a command makes in the workspace: detected by comparing before and after its call, stored like first
# versions, recorded with its result (decision 0039).

CUT_OFF = "a command was cut off by the end of the process: its changes were not examined"
_FAILED = "the workspace could not be looked at"


class CommandChanges:
    """Changes that a command made: the previous versions by path, as in `CallFinished.changed`, and the unexamined part
    of the workspace. `runs_on`: it continues in the background and is examined after each step."""

    def __init__(self, unseen: str | None = None) -> None:
        self.files: dict[str, str | None] = {}
        self.unseen = unseen
        self.runs_on = False


def is_watched(ctx: LoopContext, spec: ToolSpec | None, facts: ActionFacts | None = None) -> bool:
    """True if there is a look around a call of the tool: it runs commands, or deletes a whole directory."""
    if ctx.command_watch is None or spec is None:
        return False
    if getattr(facts, "tree", False):  # of a path; a new session has no facts yet
        return True
    return spec.subject.kind in ("command", "program", "script") or (bool(spec.runs) and spec.side_effects)


@contextlib.asynccontextmanager
async def watch_call(
    ctx: LoopContext, spec: ToolSpec | None, facts: ActionFacts | None = None
) -> AsyncIterator[CommandChanges]:
    """Context manager around the execution of a call: on exit, also by an error, the yielded value contains what the
    call changed. Does nothing for an unwatched call. The comparison runs in another thread."""
    found = CommandChanges()
    if ctx.command_watch is None or not is_watched(ctx, spec, facts):
        yield found
        return
    watch = ctx.command_watch.watch()
    try:
        window = await asyncio.to_thread(watch.begin)
    except OSError:
        found.unseen = _FAILED
        yield found
        return
    try:
        yield found
    finally:
        if found.runs_on and ctx.command_watch.background_window is None:
            ctx.command_watch.background_window = window
        else:
            await _end(ctx, watch, window, found)


async def see_background_changes(ctx: LoopContext) -> bool:
    """Record what background commands have changed since the last comparison, and start another if one still runs.
    Returns True if they changed something."""
    commands = ctx.command_watch
    if commands is None or commands.background_window is None:
        return False
    watch, window, found = commands.watch(), commands.background_window, CommandChanges()
    commands.background_window = None
    try:
        if any("ended" not in row for row in ctx.state.commands.values()):
            # Begun before the other ends: no gap between them.
            commands.background_window = await asyncio.to_thread(watch.begin)
    except OSError:
        found.unseen = _FAILED
    await _end(ctx, watch, window, found)
    files = {
        path: before
        for path, before in found.files.items()
        if path not in ctx.task.baselines or before is None or mode_and_blob(before)[0] is not None
    }
    if files or found.unseen is not None:
        ctx.journal.checkpoint(None, ChangesSeen(files, found.unseen), sync=False)
    return bool(found.files)


async def _end(ctx: LoopContext, watch: Watch, window: WatchWindow, found: CommandChanges) -> None:
    try:
        changes = await asyncio.to_thread(watch.end, window, lambda path: _may_keep(ctx, path))
        _take(ctx, changes, found)
    except OSError:
        found.unseen = _FAILED
    finally:
        watch.give_up(window)


def _may_keep(ctx: LoopContext, path: str) -> bool:
    from policy.facts import PathFacts  # a new session has no facts yet

    return ctx.judge.may_read(PathFacts(path, path, path, "file"))


def _take(ctx: LoopContext, changes: Changes, found: CommandChanges) -> None:
    for path, before in changes.files.items():
        if not isinstance(before, bytes):
            version = before
        elif path in ctx.task.baselines and not ctx.journal.keeps_versions:
            version = UNAVAILABLE
        else:
            version = ctx.journal.keep(ctx.scrubber.data(before))
        found.files[path] = add_mode(changes.modes[path], version) if version and path in changes.modes else version
    found.unseen = changes.unseen
