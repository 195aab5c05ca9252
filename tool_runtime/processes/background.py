"""Start, follow and stop commands that run in the background of a session (decision 0036).

Each has one output stream, stdout and stderr as they arrive. Its first bytes are kept like those of any command
(`Spill`), the last ones in memory; bytes between them are only counted.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import queue
import re
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.contracts import CommandEnd, Leftovers
from tool_runtime.output import whole_end
from tool_runtime.output.terminal import drop_unfinished
from tool_runtime.platform import WINDOWS
from tool_runtime.processes.command import MarkedProgram, end_leftovers, report
from tool_runtime.processes.guard import NO_LEFTOVERS, kill_until_quiet
from tool_runtime.sandbox.denials import Disk, denials_in
from tool_runtime.tool import FaultKind, ToolFault, fault_of, os_faults

if TYPE_CHECKING:
    from agent_host.contracts import CommandReason, Denial
    from tool_runtime.processes.command import CommandParams, RunningCommand, ServerParams, StartCommand
    from tool_runtime.processes.guard import ProcessGuard
    from tool_runtime.sandbox.session import Sandbox
    from tool_runtime.threads import DaemonPool

GRACE_AT_END_S: Final = 1.0
"""Time between SIGTERM and SIGKILL at the end of the session. Short, because a desktop waits ten seconds for
everything."""

OnEnd = Callable[[CommandEnd], None]


class OutputPiece(NamedTuple):
    """A part of a command's output: the bytes `start` to `end` of `total`. `skipped` bytes before `start` are no longer
    kept. `data` does not end inside a character or an escape sequence, unless it has nothing else."""

    data: bytes
    start: int
    end: int
    total: int
    skipped: int = 0


class BackgroundCommand:
    """One background command. `end` is None while it runs; `seen` is the position up to which its output was read, and
    `started` the start time on the session's monotonic clock."""

    def __init__(self, command_id: str, params: CommandParams, command: RunningCommand, started: float) -> None:
        self.command_id = command_id
        self.mark = params.mark
        self.started = started
        self.end: CommandEnd | None = None
        self.seen = 0
        self._lifetime_s = params.timeout_s
        self._scope = params.scope
        self._command = command
        self._asked: asyncio.Future[CommandReason] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    def follow(self, on_end: OnEnd) -> None:
        """Follow the command to its end; `on_end` is called once."""
        self._command.connect()
        self._task = asyncio.create_task(self._follow(on_end), name=f"background {self.command_id}")

    def ask_to_end(self, reason: CommandReason) -> None:
        """Request the end of the command, with SIGTERM first. The reason of the first request is kept."""
        if not self._asked.done():
            self._asked.set_result(reason)

    async def await_end(self, within_s: float | None = None) -> None:
        """Wait for the end, at most `within_s`. Cancelling the wait does not affect the command."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within_s)

    async def kill(self) -> None:
        """Kill it without further grace."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def total(self) -> int:
        """The number of bytes printed."""
        return self._command.stdout.ends.total

    def read(self, start: int, limit: int) -> OutputPiece:
        """Read up to `limit` bytes of the output from byte `start`. Raises ToolFault."""
        output, total = self._command.stdout, self.total
        start = min(start, total)
        with os_faults(f"the output of {self.command_id}"):
            if start < output.spill.kept_bytes:
                data, first = output.spill.read(start, limit), start
            else:
                tail = output.ends.tail(total - start)
                data, first = tail[:limit], total - len(tail)
        end = first + len(data)
        if end < total or self.end is None:  # the rest of a character or an escape may follow
            characters = whole_end(data)
            data = drop_unfinished(characters) or characters or data
            end = first + len(data)
        return OutputPiece(data, start, end, total, first - start)

    def discard(self) -> None:
        """Discard the output."""
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
                refusals = report(command.denials(was_ended=reason != "exited"), self._scope)
                command.stdout.take(refusals.encode("utf-8", "replace"))
            self.end = CommandEnd(self.command_id, reason, command.exit_code(), left)
            on_end(self.end)

    async def _over(self) -> CommandReason:
        """Wait until the command has ended or must end, and return the reason."""
        exited, asked = self._command.exit, self._asked
        ends: list[asyncio.Future[Any]] = [exited, asked]
        await asyncio.wait(ends, timeout=self._lifetime_s, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            return "exited"
        return asked.result() if asked.done() else "timed_out"


class BackgroundCommands:
    """The background commands of one session's process, by ID: up to `most` running ones, and as many of the most
    recently ended. `before` is the number that the session had in earlier processes."""

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
        """Start a command, in `sandbox` if there is one; call `BackgroundCommand.follow` next. Raises ToolFault if too
        many are running or the shell cannot be started."""
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
        """Return the command with this ID. Raises ToolFault(INVALID_ARGUMENT), which lists the existing ones."""
        found = self._all.get(command_id)
        if found is None:
            states = {one.command_id: "running" if one.end is None else one.end.note() for one in self._all.values()}
            existing = ", ".join(f"{name} ({state})" for name, state in states.items()) or "none"
            earlier = "; those of an earlier process of the session have ended with it" if self._before else ""
            message = f"$.id: there is no background command {command_id[:64]!r}; there are: {existing}{earlier}"
            raise ToolFault(FaultKind.INVALID_ARGUMENT, message)
        return found

    def forget_old(self) -> None:
        """Drop the oldest ended commands with their output, if there are too many."""
        over = [one for one in self._all.values() if one.end is not None]
        for one in over[: max(0, len(over) - max(1, self._most))]:
            self._drop(one)

    async def end_all(self) -> Leftovers:
        """End the running commands, and kill and count their leftover processes. A guard, if there is one, does the
        latter instead."""
        running = [one for one in self._all.values() if one.end is None]
        for one in running:
            one.ask_to_end("session_ended")
        await asyncio.gather(*(one.await_end(GRACE_AT_END_S) for one in running))
        await asyncio.gather(*(one.kill() for one in running))
        for one in list(self._all.values()):
            self._drop(one)
        strays, self._strays = self._strays, []
        return NO_LEFTOVERS if self._guard is not None else await end_leftovers(strays, self._pool)

    def _drop(self, one: BackgroundCommand) -> None:
        if one.end is not None and one.end.left:
            self._strays.append(one.mark)
        one.discard()
        del self._all[one.command_id]


# A program that runs during the session and exchanges lines over its standard streams.
#
# It is started without a shell, under the guard, and its lines have a maximum length. Threads move the bytes, which
# works on every system, and blocks a program that prints faster than it is read. The last bytes of stderr are kept, to
# explain its end.

_AHEAD: Final = 8
"""Lines that are read ahead of the consumer."""
_STDERR_BYTES: Final = 8 * 1024
_MAX_DENIALS: Final = 5
_ERROR: Final = r"(?i)(?:error|exception)\b[^:]{0,80}: \S"
"""The final error line of most languages; lines that some print after it are less useful."""
_GRACE_S: Final = 2.0
_IDLE_GRACE_S: Final = 0.2
"""Grace for a program that was not given any work."""


class ProgramLineTooLong(Exception):
    """The program printed a line longer than the maximum."""


class ServerProcess(MarkedProgram):
    """A program for line exchange, started by the constructor. Its user sets `has_worked` when it was given work,
    because it may then need time to finish. Raises ToolFault if it cannot be started."""

    def __init__(
        self, params: ServerParams, pool: DaemonPool, guard: ProcessGuard | None, sandbox: Sandbox | None = None
    ) -> None:
        self._params = params
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._to_write: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last_words = b""
        self._closing = self._by_itself = self._has_spoken = self.has_worked = False
        self.has_ended = False
        """True after the end of its output."""
        self._denials: list[Denial] = []
        if sandbox is not None and params.scope is not None:
            _refuse_missing(params)
        super().__init__(params, guard, sandbox)
        try:
            self._start(stdin=subprocess.PIPE, bufsize=-1)
        except (OSError, ValueError) as error:
            problem = error if isinstance(error, OSError) else OSError(0, str(error))
            raise fault_of(problem, params.argv[0]) from error
        for work in (self._read, self._write, self._listen):
            threading.Thread(target=work, name=f"server-{work.__name__}", daemon=True).start()

    async def read_line(self) -> bytes:
        """Return the next line with its line end; empty at the end of the output. Raises ProgramLineTooLong."""
        line = await self._lines.get()
        self._room.release()
        self._has_spoken = True
        if len(line) > self._params.max_line_bytes:
            raise ProgramLineTooLong(f"a line of more than {self._params.max_line_bytes} bytes")
        return line

    def write(self, data: bytes) -> None:
        """Queue `data` for the program's stdin. Ignored if the program has ended."""
        self._to_write.put(data)

    @property
    def ending(self) -> str:
        """A note on its end if it ended by itself; else empty."""
        if not self._by_itself:
            return ""
        code = self._process.returncode
        return f"its program has ended with exit code {code}" if code and code > 0 else "its program has ended"

    @property
    def last_words(self) -> str:
        """The last error line that it printed to stderr, else its last line; empty if it printed none."""
        lines = self._last_words.decode("utf-8", "replace").strip().splitlines()
        errors = [line.strip() for line in lines if re.search(_ERROR, line)]
        return errors[-1] if errors else lines[-1] if lines else ""

    def refusals(self, printed: str | None = None) -> tuple[str, ...]:
        """Describe the first few denials of its sandbox, one line each: those found in its error text `printed` (by
        default stderr), and those of hosts and sockets reported since the last call."""
        scope = self._params.scope
        if self._sandboxed is None or scope is None:
            return ()
        text = self._last_words.decode("utf-8", "replace") if printed is None else printed
        seen, self._denials = self._denials, []
        found = [*seen, *denials_in(text, 1, scope, self._params.cwd, Disk())]
        return tuple(denial.note() for denial in dict.fromkeys(found[:_MAX_DENIALS]))

    def _report_denial(self, denial: Denial) -> None:
        if len(self._denials) < _MAX_DENIALS and denial not in self._denials:
            self._denials.append(denial)

    async def aclose(self) -> None:
        """Close its input, and kill it and its children if it does not exit by itself. It gets little time if it has
        had no work, and none if it has not printed a line yet."""
        if self._closing:
            return
        self._closing = True
        self._to_write.put(None)
        self._room.release(1 << 20)  # the reading thread may be waiting for the consumer
        ending = asyncio.ensure_future(self._pool.run(self._end))
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():  # it is ended even if this is cancelled
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                cancelled = error
        ending.result()
        if cancelled is not None:
            raise cancelled

    def _end(self) -> None:
        with suppress(subprocess.TimeoutExpired, ChildProcessError):  # it was reaped already
            self._wait(_GRACE_S if self.has_worked else _IDLE_GRACE_S if self._has_spoken else 0)
        if WINDOWS:
            self._process.kill()
        else:
            leader = self._process.pid
            kill_until_quiet(functools.partial(self._find, leader), [leader])
        if self._guard is None:
            self._process.wait()
        self._release()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _wait(self, within_s: float) -> None:
        """Wait until it has ended, without reaping it, so that its PID is not reused before the guard releases it."""
        if WINDOWS or not hasattr(os, "waitid"):
            self._process.wait(within_s)
            return
        deadline = threading.Event()
        pause_s = 0.005
        waited = 0.0
        while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if waited >= within_s:
                return
            deadline.wait(pause_s)
            waited += pause_s

    # In threads

    def _read(self) -> None:
        most = self._params.max_line_bytes
        line = b"\n"
        while line:
            try:
                line = _pipe(self._process.stdout).readline(most + 1)
            except (OSError, ValueError):  # it was closed
                line = b""
            self.has_ended = not line or len(line) > most
            self._by_itself = not line and not self._closing
            self._room.acquire()
            with suppress(RuntimeError):  # the loop is over
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            if len(line) > most:
                return

    def _write(self) -> None:
        pipe = _pipe(self._process.stdin)
        try:
            while (data := self._to_write.get()) is not None:
                pipe.write(data)
                pipe.flush()
        except (OSError, ValueError):  # it has ended; the reader notices
            pass
        with suppress(OSError):
            pipe.close()

    def _listen(self) -> None:
        with suppress(OSError, ValueError):
            while chunk := _pipe(self._process.stderr).read1(4096):  # type: ignore[attr-defined]  # a BufferedReader has it
                self._last_words = (self._last_words + chunk)[-_STDERR_BYTES:]


def _refuse_missing(params: ServerParams) -> None:
    """Raise ToolFault for a missing or non-executable program, which a start in the sandbox would not report."""
    program = params.argv[0]
    is_file = os.path.isabs(program) and os.path.isfile(program)  # a relative one would be in the workspace
    if not (is_file and os.access(program, os.X_OK)):
        code = errno.EACCES if is_file else errno.ENOENT
        raise fault_of(OSError(code, os.strerror(code)), program)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise OSError("the program was started without pipes")
    return pipe
