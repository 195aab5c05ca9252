"""A program that runs on while the session does, and is talked to in lines over its standard streams.

It is started without a shell, under the guard that ends all that commands start, and its lines have a bound. Threads
move the bytes: that is the same on every system, and a program that prints faster than it is read waits. What it prints
to stderr is kept as far as its last bytes, to say why it ended.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import re
import subprocess
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from tool_runtime.platform import WINDOWS, current
from tool_runtime.processes.command import MARK_NAME
from tool_runtime.processes.pipes import kill_until_quiet
from tool_runtime.sandbox.denials import RealDisk, denials_in
from tool_runtime.tool import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.contracts import Denial
    from policy.scope import CommandScope
    from tool_runtime.processes.guard import ProcessGuard
    from tool_runtime.sandbox.session import Opened, Sandbox
    from tool_runtime.threads import DaemonPool

_AHEAD: Final = 8
"""Lines that are read before somebody takes the first."""
_STDERR_BYTES: Final = 8 * 1024
_MAX_DENIALS: Final = 5
_ERROR: Final = r"(?i)(?:error|exception)\b[^:]{0,80}: \S"
"""As most languages end a program; what some print behind it says less."""
_GRACE_S: Final = 2.0
_IDLE_GRACE_S: Final = 0.2
"""Of one that was not given any work."""


class ServerParams(NamedTuple):
    """`argv` is the program with its arguments, `cwd` an existing directory, `mark` unique to the program. A line of
    its output has at most `max_line_bytes`. `scope` is what the session's sandbox holds it to."""

    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    mark: str
    max_line_bytes: int
    scope: CommandScope | None = None


class ProgramLineTooLong(Exception):
    """The program printed a line beyond the bound."""


class ServerProcess:
    """One such program, started as it is made. Its user sets `has_worked` when it has been given work: it may
    have something to finish then. Raises ToolFault where it cannot be started."""

    def __init__(
        self, params: ServerParams, pool: DaemonPool, guard: ProcessGuard | None, sandbox: Sandbox | None = None
    ) -> None:
        self._params = params
        self._pool = pool
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        value = f"{params.mark}#{os.urandom(8).hex()}"
        self._mark = f"{MARK_NAME}={value}"
        self._known: dict[int, int] = {}
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._to_write: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = False
        self._last_words = b""
        self._at_end = self._by_itself = self._has_spoken = self.has_worked = False
        self._denials: list[Denial] = []
        held = None
        if sandbox is not None and params.scope is not None:
            _refuse_missing(params)
            held = sandbox.hold(params.scope, params.cwd, self._report_denial, params.mark)
        self._held = held

        def start() -> subprocess.Popen[bytes]:
            if held is None:
                return self._start(value, {}, subprocess.Popen)
            return held.start(lambda opened: self._start(value, held.variables, opened))

        try:
            self._process = start() if guard is None else guard.start(start, self._mark)
        except (OSError, ValueError) as error:
            problem = error if isinstance(error, OSError) else OSError(0, str(error))
            raise fault_of(problem, params.argv[0]) from error
        for work in (self._read, self._write, self._listen):
            threading.Thread(target=work, name=f"server-{work.__name__}", daemon=True).start()

    async def read_line(self) -> bytes:
        """The next line with its end; empty at the end of the output. Raises LineTooLong."""
        line = await self._lines.get()
        self._room.release()
        self._has_spoken = True
        if len(line) > self._params.max_line_bytes:
            raise ProgramLineTooLong(f"a line of more than {self._params.max_line_bytes} bytes")
        return line

    def write(self, data: bytes) -> None:
        """Have the program read `data`, after what was written before. One that has ended reads nothing."""
        self._to_write.put(data)

    @property
    def has_ended(self) -> bool:
        """True if its output has come to its end."""
        return self._at_end

    @property
    def ending(self) -> str:
        """A note on its end, if it came before anybody ended it; else empty."""
        if not self._by_itself:
            return ""
        code = self._process.returncode
        return f"its program has ended with exit code {code}" if code and code > 0 else "its program has ended"

    @property
    def last_words(self) -> str:
        """The last line that it printed to stderr, of an error where there is one; empty where it printed none."""
        lines = self._last_words.decode("utf-8", "replace").strip().splitlines()
        errors = [line.strip() for line in lines if re.search(_ERROR, line)]
        return errors[-1] if errors else lines[-1] if lines else ""

    def refusals(self, said: str | None = None) -> tuple[str, ...]:
        """Describe the denials of its sandbox, each in a line, the first few: by what it `said` of a failure, by
        default to stderr, and by what was seen of hosts and sockets since this was asked last."""
        scope = self._params.scope
        if self._held is None or scope is None:
            return ()
        text = self._last_words.decode("utf-8", "replace") if said is None else said
        seen, self._denials = self._denials, []
        found = [*seen, *denials_in(text, 1, scope, self._params.cwd, RealDisk())]
        return tuple(denial.note() for denial in dict.fromkeys(found[:_MAX_DENIALS]))

    def _report_denial(self, denial: Denial) -> None:
        """From any thread."""
        if len(self._denials) < _MAX_DENIALS and denial not in self._denials:
            self._denials.append(denial)

    async def aclose(self) -> None:
        """Close its input, and end it and what it has started, where it does not end by itself. One that has not had
        any work gets little time for it, and one that has not said anything yet none."""
        if self._closing:
            return
        self._closing = True
        self._to_write.put(None)
        self._room.release(1 << 20)  # it may be waiting for somebody to read what it prints
        ending = asyncio.ensure_future(self._pool.run(self._end))
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():  # who is cancelled meanwhile has it ended all the same
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                cancelled = error
        ending.result()
        if cancelled is not None:
            raise cancelled

    def _end(self) -> None:
        with suppress(subprocess.TimeoutExpired, ChildProcessError):  # somebody has reaped it
            self._wait(_GRACE_S if self.has_worked else _IDLE_GRACE_S if self._has_spoken else 0)
        if WINDOWS:
            self._process.kill()
        else:
            kill_until_quiet(self._find, [self._process.pid])
        if self._guard is None:
            self._process.wait()
        else:
            self._guard.release(self._process)
        if self._held is not None:
            self._held.over()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _wait(self, within_s: float) -> None:
        """Until it has ended, without reaping it: its number stays its own until the guard lets go of it."""
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

    def _find(self, on_sight: Callable[[int], None]) -> Mapping[int, int]:
        members = current.tree_members(self._process.pid, self._mark, self._known, on_sight)
        self._known |= members
        return members

    def _start(self, mark: str, variables: Mapping[str, str], opened: Opened) -> subprocess.Popen[bytes]:
        params = self._params
        return opened(
            list(params.argv),
            cwd=params.cwd,
            env={**params.environment, **variables, MARK_NAME: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )

    # In threads

    def _read(self) -> None:
        most = self._params.max_line_bytes
        line = b"\n"
        while line:
            try:
                line = _pipe(self._process.stdout).readline(most + 1)
            except (OSError, ValueError):  # it was closed
                line = b""
            self._at_end = not line or len(line) > most
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
        except (OSError, ValueError):  # it has ended: the reader sees that
            pass
        with suppress(OSError):
            pipe.close()

    def _listen(self) -> None:
        with suppress(OSError, ValueError):
            while chunk := _pipe(self._process.stderr).read1(4096):  # type: ignore[attr-defined]  # a BufferedReader has it
                self._last_words = (self._last_words + chunk)[-_STDERR_BYTES:]


def _refuse_missing(params: ServerParams) -> None:
    """Raises ToolFault for a program that is not there: a sandbox starts itself, and would not say so."""
    program = params.argv[0]
    is_file = os.path.isabs(program) and os.path.isfile(program)  # a relative one would be the workspace's
    if not (is_file and os.access(program, os.X_OK)):
        code = errno.EACCES if is_file else errno.ENOENT
        raise fault_of(OSError(code, os.strerror(code)), program)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise OSError("the program was started without pipes")
    return pipe
