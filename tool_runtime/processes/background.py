"""Commands that run on while the session goes on: started, followed, stopped (decision 0036).

Each has one stream, stdout and stderr as they come. Its first bytes are kept as those of any command are (`Spill`), and
the last ones in memory; what lies between is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.contracts import CommandEnd, Leftovers
from tool_runtime.output import whole_end
from tool_runtime.output.terminal import drop_unfinished
from tool_runtime.processes.command import end_marked, report
from tool_runtime.processes.pipes import NOBODY
from tool_runtime.tool import FaultKind, ToolFault, os_faults

if TYPE_CHECKING:
    from agent_host.contracts import CommandReason
    from tool_runtime.processes.command import Captured, CommandParams, RunningCommand, StartCommand
    from tool_runtime.processes.guard import ProcessGuard
    from tool_runtime.sandbox.session import Sandbox
    from tool_runtime.threads import DaemonPool

GRACE_AT_END_S: Final = 1.0
"""Time between SIGTERM and SIGKILL at the end of the session: a desktop waits ten seconds for everything."""

OnEnd = Callable[[CommandEnd], None]


class OutputPiece(NamedTuple):
    """A part of a command's output: the bytes `start` to `end` of `total`, of which the first `skipped` are kept no
    more. `data` has no character and no escape that is cut at its end, unless nothing else is left."""

    data: bytes
    start: int
    end: int
    total: int
    skipped: int = 0


class BackgroundCommand:
    """One background command. `end` is None as long as it runs; `seen` is up to where its output was read, and it
    `began` at that moment of the session's monotonic clock."""

    def __init__(
        self,
        command_id: str,
        params: CommandParams,
        command: RunningCommand,
        began: float,
    ) -> None:
        self.command_id = command_id
        self.mark = params.mark
        self.began = began
        self.end: CommandEnd | None = None
        self.seen = 0
        self._lifetime_s = params.timeout_s
        self._scope = params.scope
        self._command = command
        self._asked: asyncio.Future[CommandReason] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    def follow(self, on_end: OnEnd) -> None:
        """Go on to the command's end; `on_end` is called once."""
        self._command.connect()
        self._task = asyncio.create_task(self._follow(on_end), name=f"background {self.command_id}")

    def ask_to_end(self, reason: CommandReason) -> None:
        """Have it ended, by SIGTERM first; what asked for it earlier stays the reason."""
        if not self._asked.done():
            self._asked.set_result(reason)

    async def await_end(self, within_s: float | None = None) -> None:
        """Wait for the end, for `within_s` at most. Who waits may be cancelled; the command goes on to its end."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within_s)

    async def kill(self) -> None:
        """End it without any further grace."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def total(self) -> int:
        """The number of bytes that it has printed."""
        return self._command.stdout.ends.total

    def read(self, start: int, limit: int) -> OutputPiece:
        """Up to `limit` bytes of the output from byte `start` on. Raises ToolFault."""
        output, total = self._command.stdout, self.total
        start = min(start, total)
        with os_faults(f"the output of {self.command_id}"):
            data, first = _read_kept(output, start, limit)
        end = first + len(data)
        if end < total or self.end is None:  # the rest of a character, or of an escape, may follow
            characters = whole_end(data)
            data = drop_unfinished(characters) or characters or data
            end = first + len(data)
        return OutputPiece(data, start, end, total, first - start)

    def discard(self) -> None:
        """Let go of the output."""
        self._command.discard()

    async def _follow(self, on_end: OnEnd) -> None:
        command = self._command
        reason: CommandReason = "session_ended"
        left = 0
        try:
            reason = await self._over()
            if reason != "exited":
                left = len((await command.end()).running)
            await command.drain()
            left = left or await command.count_left()
        except asyncio.CancelledError:
            await command.kill()
        finally:
            command.close()
            if self._scope is not None:
                told = report(command.denials(was_ended=reason != "exited"), self._scope)
                command.stdout.take(told.encode("utf-8", "replace"))
            self.end = CommandEnd(self.command_id, reason, command.exit_code(), left)
            on_end(self.end)

    async def _over(self) -> CommandReason:
        """Why the command is to end, or has, once that is so."""
        exited, asked = self._command.exit, self._asked
        ends: list[asyncio.Future[Any]] = [exited, asked]
        await asyncio.wait(ends, timeout=self._lifetime_s, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            return "exited"
        return asked.result() if asked.done() else "timed_out"


def _read_kept(output: Captured, start: int, limit: int) -> tuple[bytes, int]:
    """The kept output from byte `start` on, up to `limit` bytes, and where it begins. Raises OSError."""
    if start < output.spill.kept_bytes:
        return output.spill.read(start, limit), start
    tail = output.ends.tail(output.ends.total - start)
    return tail[:limit], output.ends.total - len(tail)


class BackgroundCommands:
    """The background commands of one session's process, by id: those that run, `most` at once, and of those that have
    ended the last ones, as many again. `launch` starts one, `before` is how many the session has had in other
    processes."""

    def __init__(
        self,
        launch: StartCommand,
        pool: DaemonPool,
        guard: ProcessGuard | None,
        monotonic: Callable[[], float],
        *,
        most: int,
        before: int,
    ) -> None:
        self._launch = launch
        self._pool = pool
        self._guard = guard
        self._monotonic = monotonic
        self._most = most
        self._before = self._count = before
        self._all: dict[str, BackgroundCommand] = {}
        self._strays: list[str] = []

    def start(self, params: CommandParams, sandbox: Sandbox | None = None) -> BackgroundCommand:
        """A command that runs, held by `sandbox` where there is one; `Background.follow` has to be next. Raises
        ToolFault where as many run as may, and where the shell cannot be started."""
        running = [one.command_id for one in self._all.values() if one.end is None]
        if len(running) >= self._most:
            named = f": stop one of {', '.join(running)} first" if running else ""
            raise ToolFault(FaultKind.SYSTEM, f"{len(running)} commands run in the background, and no more may{named}")
        command_id = f"cmd_{self._count + 1}"
        launched = self._launch(params, self._pool, self._guard, sandbox)
        started = BackgroundCommand(command_id, params, launched, self._monotonic())
        self._count += 1
        self._all[command_id] = started
        return started

    def get(self, command_id: str) -> BackgroundCommand:
        """The command of this id. Raises ToolFault(INVALID_ARGUMENT), which names those that there are."""
        found = self._all.get(command_id)
        if found is None:
            there = ", ".join(f"{one.command_id} ({_state(one)})" for one in self._all.values()) or "none"
            told = "; those of an earlier process of the session have ended with it" if self._before else ""
            message = f"$.id: there is no background command {command_id[:64]!r}; there are: {there}{told}"
            raise ToolFault(FaultKind.INVALID_ARGUMENT, message)
        return found

    def forget_old(self) -> None:
        """Let go of the output of those that ended first, where there are too many."""
        over = [one for one in self._all.values() if one.end is not None]
        for one in over[: max(0, len(over) - max(1, self._most))]:
            self._drop(one)

    async def end_all(self) -> Leftovers:
        """End those that run, and count what else they have left running, which is ended too; a guard sees to that
        where there is one."""
        running = [one for one in self._all.values() if one.end is None]
        for one in running:
            one.ask_to_end("session_ended")
        await asyncio.gather(*(one.await_end(GRACE_AT_END_S) for one in running))
        await asyncio.gather(*(one.kill() for one in running))
        for one in list(self._all.values()):
            self._drop(one)
        strays, self._strays = self._strays, []
        return NOBODY if self._guard is not None else await end_marked(strays, self._pool)

    def _drop(self, one: BackgroundCommand) -> None:
        if one.end is not None and one.end.left:
            self._strays.append(one.mark)
        one.discard()
        del self._all[one.command_id]


def _state(one: BackgroundCommand) -> str:
    return "running" if one.end is None else one.end.note()
