"""Run one shell command (TR 4.4): spawn, feed, collect, time out, end the whole tree.

Memory is bounded regardless of the output, and a chunk takes time proportional to its length. Children are started with
`subprocess.Popen` (vfork) and watched by pidfd on the event loop, because asyncio's child watcher uses a thread per
process.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tool_runtime.output import HeadTail
from tool_runtime.output.artifacts import BUFFER_BYTES, Spill, SpillRoom
from tool_runtime.output.terminal import FIRST_BYTES, ShownEnds
from tool_runtime.platform import WINDOWS, current, windows
from tool_runtime.processes.guard import NO_LEFTOVERS, PipeWatch, feed_pipe, kill_until_quiet, read_pipe, watch_exit
from tool_runtime.tool import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from agent_host.contracts import Denial, Leftovers
    from policy import CommandScope
    from tool_runtime.processes.guard import ProcessGuard
    from tool_runtime.sandbox.session import Opened, Sandbox, SandboxedCommand
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import StreamName

    StartCommand = Callable[["CommandParams", DaemonPool, ProcessGuard | None, Sandbox | None], "RunningCommand"]
    """Starts a command, on this machine by `LocalCommand`. Raises ToolFault if the shell cannot be started."""

MARK_NAME: Final = "AGENT_HOST_CALL_MARK"
"""Environment variable that every process of a command inherits; it identifies strays when the tree is ended."""
_SEARCHED_BYTES: Final = 64 * 1024
"""Bytes of each stream, from both ends together, that are searched for denials."""


class CommandParams(NamedTuple):
    """`argv` is a result of the platform's `shell_argv`; `cwd` is an existing directory; sizes are bytes. `mark` is
    unique to the call, and identifies its leftovers after a crash. Without `timeout_s` there is no timeout.
    `artifact_max_bytes` is the maximum kept of all streams together; `buffer_bytes` of each stream are in memory, and
    longer output in a file in `spool_directory` (see `Spill`). With `one_stream` stdout also gets the stderr output, in
    order of arrival. `scope` is the sandbox's scope for the command, if there is a sandbox."""

    argv: list[str] | str
    cwd: str
    environment: Mapping[str, str]
    mark: str
    timeout_s: float | None
    max_output_bytes: int
    artifact_max_bytes: int
    stdin: bytes | None = None
    kill_grace_s: float = 5.0
    drain_s: float = 0.2
    buffer_bytes: int = BUFFER_BYTES
    spool_directory: str | None = None
    on_output: Callable[[StreamName, bytes], None] | None = None
    threaded: bool = WINDOWS
    one_stream: bool = False
    scope: CommandScope | None = None


class Captured:
    """One output stream: `ends` is its head and tail, `spill` all of it as far as there is `room`. It is also rendered
    as a terminal would show it, except with `one_stream`, which is read in pieces."""

    def __init__(self, params: CommandParams, name: StreamName, room: SpillRoom) -> None:
        self.ends = HeadTail(params.max_output_bytes)
        self.spill = Spill(room, params.buffer_bytes, params.spool_directory)
        self._name = name
        self._on_output = params.on_output
        self._shown: ShownEnds | None = None
        if not params.one_stream:
            self._shown = ShownEnds(params.max_output_bytes, FIRST_BYTES)

    def rewritten(self) -> tuple[int, bool]:
        """Return the number of characters that were overwritten or erased, and so are not shown. Also return true if
        the count is complete at the end of the stream; the middle of a very long one is not examined."""
        return (0, True) if self._shown is None else (self._shown.rewritten, self._shown.is_whole)

    def take(self, chunk: bytes) -> None:
        """Add the next bytes."""
        if self._shown is not None:
            self._shown.add(chunk)
        self.ends.add(chunk)
        self.spill.add(chunk)
        if self._on_output is not None:
            self._on_output(self._name, chunk)

    def rendered(self) -> HeadTail:
        """Return head and tail of the stream as a terminal would show it; call it after the end of the stream."""
        return self.ends if self._shown is None else self._shown.end()


class CommandOutcome(NamedTuple):
    """The result of a command. `exit_code` is 128 plus the signal number if a signal ended the shell. `left` counts
    processes that were killed or survived it, `denials` are those of the sandbox, and `refused` is their text for the
    result."""

    exit_code: int
    timed_out: bool
    stdout: Captured
    stderr: Captured
    left: Leftovers = NO_LEFTOVERS
    denials: tuple[Denial, ...] = ()
    refused: str = ""


class RunningCommand(Protocol):
    """A started command; call `connect` next and `close` at the end. `exit` is done when the shell has exited; its
    children may still run. It must not be cancelled."""

    stdout: Captured
    stderr: Captured
    exit: asyncio.Future[None]

    def connect(self) -> None:
        """Watch the child and its pipes on the running loop."""

    async def drain(self) -> None:
        """Wait for the ends of the pipes, at most `drain_s`."""

    async def end(self) -> Leftovers:
        """Ask the tree to end (SIGTERM on POSIX), then kill it. A cancellation skips the rest of the grace; another one
        skips the wait for the kill, which continues in its thread."""

    async def kill(self) -> Leftovers:
        """Kill the tree without grace."""

    async def count_left(self) -> int:
        """Return the number of live processes of the command, before `close`; 0 on Windows, where it is unknown."""

    def close(self) -> None:
        """Release pipes and watches and reap the shell."""

    def discard(self) -> None:
        """Discard the output."""

    def exit_code(self) -> int:
        """Return the exit code as a shell would report it."""

    def denials(self, *, was_ended: bool = False) -> tuple[Denial, ...]:
        """Return the denials of the sandbox after the command has ended, by itself or because it `was_ended`. If the
        command succeeded, only changes of guarded places are returned."""


async def run_command(
    start: StartCommand,
    params: CommandParams,
    pool: DaemonPool,
    guard: ProcessGuard | None = None,
    sandbox: Sandbox | None = None,
) -> CommandOutcome:
    """Start a command by `start` and run it to its end or timeout. Raises ToolFault if the shell cannot be started.
    `guard`, if given, ends leftover processes; `sandbox`, if given, restricts the command.

    Cancelling ends the process tree first; cancelling again skips the grace. A background child that keeps the pipes
    open after the shell's exit continues to run; output that it prints more than `drain_s` later is lost.
    """
    if sandbox is not None and params.scope is not None:
        await sandbox.look_around(params.scope)
    command = start(params, pool, guard, sandbox)
    timed_out = False
    left = NO_LEFTOVERS
    try:
        command.connect()
        try:
            async with asyncio.timeout(params.timeout_s):
                await command.exit
        except TimeoutError:
            timed_out = True
            left = await command.end()
        await command.drain()
    except asyncio.CancelledError:
        try:
            left = await command.end()
            if left.running and params.on_output is not None:  # the result will not mention them
                params.on_output("stderr", f"[{left.note()}]\n".encode())
        finally:
            command.discard()
        raise
    finally:
        command.close()
    denials = command.denials(was_ended=timed_out)
    refused = "" if params.scope is None else report(denials, params.scope)
    return CommandOutcome(command.exit_code(), timed_out, command.stdout, command.stderr, left, denials, refused)


async def end_leftovers(marks: Sequence[str], pool: DaemonPool) -> Leftovers:
    """Kill the remaining processes of the commands with these marks, whose host died or which may have left their
    sessions.

    Otherwise they would continue to have effects after the call was reported as interrupted. They are found by the mark
    in their environment, which only Linux shows. Takes 0.2 s even if there are none, because one empty look may fall
    between two generations of a forking process.
    """
    if WINDOWS or not marks:
        return NO_LEFTOVERS
    complete = [f"{MARK_NAME}={mark}#" for mark in marks]

    def find(on_sight: Callable[[int], None]) -> Mapping[int, int]:
        return {pid: at for one in complete for pid, at in current.tree_members(0, one, {}, on_sight).items()}

    return await pool.run(lambda: kill_until_quiet(find))


class ServerParams(NamedTuple):
    """`argv` is the program with its arguments, `cwd` an existing directory, `mark` unique to the program. A line of
    its output has at most `max_line_bytes`. `scope` is the session sandbox's scope for it."""

    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    mark: str
    max_line_bytes: int
    scope: CommandScope | None = None


class MarkedProgram:
    """A program in a process session of its own, under the guard and in the sandbox if there are any. Its descendants
    are found by a mark in the environment, even if they left the session."""

    def __init__(
        self, program: CommandParams | ServerParams, guard: ProcessGuard | None, sandbox: Sandbox | None
    ) -> None:
        self._program = program
        self._guard = guard
        # The random part distinguishes processes started by this host from those of another one for the same call.
        self._value = f"{program.mark}#{os.urandom(8).hex()}"
        self._mark = f"{MARK_NAME}={self._value}"
        self._known: dict[int, int] = {}
        self._sandboxed: SandboxedCommand | None = None
        if sandbox is not None and program.scope is not None:
            self._sandboxed = sandbox.prepare(program.scope, program.cwd, self._report_denial, program.mark)

    def _report_denial(self, denial: Denial) -> None:
        raise NotImplementedError

    def _start(self, *, stdin: int, bufsize: int) -> None:
        """Start the program, with pipes. Raises OSError, ValueError."""
        program, sandboxed, guard = self._program, self._sandboxed, self._guard
        variables = {} if sandboxed is None else sandboxed.variables

        def open_by(opened: Opened) -> subprocess.Popen[bytes]:
            return opened(
                program.argv if isinstance(program.argv, str) else list(program.argv),
                cwd=program.cwd,
                env={**program.environment, **variables, MARK_NAME: self._value},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=bufsize,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )

        def start() -> subprocess.Popen[bytes]:
            return open_by(subprocess.Popen) if sandboxed is None else sandboxed.start(open_by)

        self._process = start() if guard is None else guard.start(start, self._mark)

    def _release(self) -> None:
        """Release the guard and the sandbox after the program has ended or was abandoned."""
        if self._guard is None:
            self._process.poll()
        else:
            self._guard.release(self._process)
        if self._sandboxed is not None:
            self._sandboxed.over()

    def _find(self, leader: int, on_sight: Callable[[int], None]) -> Mapping[int, int]:
        members = current.tree_members(leader, self._mark, self._known, on_sight)
        self._known |= members
        return members


class LocalCommand(MarkedProgram):
    """A RunningCommand on this machine. Raises ToolFault if the shell cannot be started."""

    def __init__(
        self, params: CommandParams, pool: DaemonPool, guard: ProcessGuard | None, sandbox: Sandbox | None = None
    ) -> None:
        self._params = params
        self._pool = pool
        self._exit: PipeWatch | None = None
        self._outputs: list[PipeWatch] = []
        self._input: PipeWatch | None = None
        room = SpillRoom(params.artifact_max_bytes)
        self.stdout = Captured(params, "stdout", room)
        self.stderr = self.stdout if params.one_stream else Captured(params, "stderr", room)
        self.exit: asyncio.Future[None]
        self._loop = asyncio.get_running_loop()
        super().__init__(params, guard, sandbox)
        try:
            self._start(stdin=subprocess.DEVNULL if params.stdin is None else subprocess.PIPE, bufsize=0)
        except OSError as error:
            raise fault_of(error, str(error.filename or params.cwd)) from error

    def connect(self) -> None:
        """See RunningCommand."""
        child, threaded = self._process, self._params.threaded
        self._exit = watch_exit(child)
        self.exit = self._exit.done
        if child.stdout is not None and child.stderr is not None:
            self._outputs.append(read_pipe(child.stdout, self.stdout.take, threaded=threaded))
            self._outputs.append(read_pipe(child.stderr, self.stderr.take, threaded=threaded))
        if child.stdin is not None:
            self._input = feed_pipe(child.stdin, self._params.stdin or b"", threaded=threaded)

    async def drain(self) -> None:
        """See RunningCommand."""
        if any(not output.done.done() for output in self._outputs):
            await asyncio.wait([output.done for output in self._outputs], timeout=self._params.drain_s)

    async def end(self) -> Leftovers:
        """See RunningCommand."""
        try:
            await self._ask()
        except asyncio.CancelledError:
            await self.kill()
            raise
        return await self.kill()

    async def count_left(self) -> int:
        """See RunningCommand."""
        return 0 if WINDOWS else len(await self._pool.run(self._members))

    def close(self) -> None:
        """See RunningCommand."""
        for watch in (*self._outputs, self._input, self._exit):
            if watch is not None:
                watch.close()
        self._release()

    def discard(self) -> None:
        """See RunningCommand."""
        self.stdout.spill.close()
        self.stderr.spill.close()

    def exit_code(self) -> int:
        """See RunningCommand."""
        code = self._process.returncode
        if code is None:  # killed, but not reaped yet
            return 128 + 9
        return 128 - code if code < 0 else code

    def denials(self, *, was_ended: bool = False) -> tuple[Denial, ...]:
        """See RunningCommand."""
        if self._sandboxed is None:
            return ()
        printed = (one.ends.render(_SEARCHED_BYTES) for one in {self.stdout: None, self.stderr: None})
        return self._sandboxed.finish(self.exit_code(), b"\n".join(printed), was_ended=was_ended)

    def _report_denial(self, denial: Denial) -> None:
        """Print a denial immediately, from any thread, because a program may keep retrying for minutes."""
        line = f"[sandbox: {denial.note()}]\n".encode("utf-8", "replace")
        on_output = self._params.on_output
        if self._params.one_stream:
            report = functools.partial(self.stdout.take, line)
        elif on_output is not None:
            report = functools.partial(on_output, "stderr", line)
        else:
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(report)

    async def _ask(self) -> None:
        if WINDOWS:
            argv = windows.kill_argv(self._process.pid, os.environ)
            await self._pool.run(lambda: subprocess.run(argv, check=False, capture_output=True))
            return
        deadline = time.monotonic() + self._params.kill_grace_s
        members = await self._pool.run(self._members)
        if members:
            self._signal(members, signal.SIGTERM)
        pause_s = 0.005
        while members and time.monotonic() < deadline:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)
            members = await self._pool.run(self._members)

    async def kill(self) -> Leftovers:
        """See RunningCommand."""
        if WINDOWS:
            self._process.kill()
            return NO_LEFTOVERS
        find, leader = self._find, self._process.pid
        return await self._pool.run(lambda: kill_until_quiet(functools.partial(find, leader), [leader]))

    def _members(self) -> Collection[int]:
        return self._find(self._process.pid, lambda _: None).keys()

    def _signal(self, members: Collection[int], number: signal.Signals) -> None:
        """Signal each member once: first the group as a whole, because it may be forking, then members outside of
        it."""
        group = self._process.pid
        outside = []
        for pid in members:
            with suppress(ProcessLookupError):
                if os.getpgid(pid) != group:
                    outside.append(pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        for pid in outside:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


# Denials of a command, as part of its result.

_MAX_LISTED: Final = 10
_ASK: Final = (
    "Nothing of this runs again by itself. Where the task needs it, make a new call with sandboxGrant: "
    "{write: [places], domains: [hosts]} and a reason; hidden and read-only places cannot be granted."
)


def report(denials: Sequence[Denial], scope: CommandScope) -> str:
    """Return lines for the model: up to ten denials, the places that `scope` lets commands write, and how to request
    more. Empty if there are no denials."""
    if not denials:
        return ""
    lines = ["--- sandbox ---", *(denial.note() for denial in denials[:_MAX_LISTED])]
    if len(denials) > _MAX_LISTED:
        lines.append(f"and {len(denials) - _MAX_LISTED} more")
    if any(denial.action in ("write", "listen") for denial in denials):
        lines.append(f"Commands may write in: {', '.join(scope.writes[:_MAX_LISTED]) or 'no place'}")
    return "\n".join([*lines, _ASK, ""])
