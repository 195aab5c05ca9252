"""Session processes that start at once: forked from a process that has imported everything and has no state.

Most of a session's start is the interpreter and the imports, which are always the same. So a client lets one process,
the fork server, do them once. For a session the server forks, and the child applies its launch parameters: arguments,
environment, directory, umask, limits, standard streams. From then on it runs the same code as `agent-host serve`,
`main` with its arguments, and exits as the interpreter does. There is still one process per session; only its first 300
ms are shared.

The fork server must not have the following, because every session would inherit it:

- Secrets, or anything of a user or a workspace. It starts with an empty environment, in `/`, and only the child reads a
  session's order from a socket. So the order is never in the memory that the next child is forked from, and `environ`
  and `cmdline` in /proc of the server and its children show only what the server was started with: nothing.
- Threads and descriptors. A thread does not exist in the child, and its locks stay locked. Before each fork the server
  counts both in /proc; it refuses to fork if there is one too many. The client then starts interpreters instead, and
  reports the reason once.
- An event loop, caches that depend on an environment, a chosen temporary directory, random state. The server only
  imports modules; no module reads the environment when it is imported (a test checks that). The interpreter seeds
  `random` again in each child, and ids come from the kernel. The seed of string hashes and the memory layout are the
  server's, and so the same for all sessions of one client, which belong to one user.
- Other versions of the files. It stamps the installed files before it imports, checks them before each fork, and exits
  if one has changed. The next start makes a new server.

The protocol: the server inherits one end of an unnamed socket pair, and exits when the other end is closed, which
happens when its client ends for any reason. A packet there carries three pipes and a control socket of the new process.
The client writes the order to the control socket; the server replies there with the process id and a pidfd, so that a
signal never reaches another process with the same number; the child reports that it is ready, or its error. At the end
the server reports the exit code. If the server is gone by then, the child's own report counts; if there is none because
a signal ended the child, the end of the control socket counts as SIGKILL. Sessions need the server for nothing else,
and outlive it.

A child ends with its client as `serve` does: at the end of its standard input, whose other end only the client has. It
is in the process group that the client was in when it started the server; the server ignores the interrupt key.

Traps:

- Variables that are read only when the interpreter, the loader or a C library starts (`PYTHON…`, `LD_…`) cannot be
  given to a fork, nor can a locale with another encoding than UTF-8. With these a fresh interpreter is started.
- A start never waits until the server is ready, because until then fresh interpreters are faster.
- On macOS a process without threads cannot be had, and Windows has no fork: there one spare process is started in
  advance and never forked (`SpareStarter`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.clients import Order
from agent_host.clients.supervisor import SessionProcess, Starter, Subprocess, Tail, own_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from config.settings import Settings

PROGRAM: Final = (sys.executable, "-P", "-m", "agent_host.clients.warm_process")
_ANSWERS_S: Final = 30.0
_ENDS_S: Final = 5.0
_AT_ONCE: Final = 16
_NEEDED_BY_WINDOWS: Final = ("SYSTEMROOT", "SYSTEMDRIVE")
_READ_AT_THE_START: Final = ("PYTHON", "LD_", "DYLD_", "GLIBC_", "MALLOC_", "OPENSSL_", "SSLKEYLOGFILE")
_WITHOUT_EFFECT: Final = frozenset({"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})
"""Variables without effect on a session process, or whose effect is reproduced."""


def default_starter(settings: Settings, notify: Callable[[str], None] | None = None) -> Starter:
    """Return the fastest way to start session processes here that `clients.fork_server` allows. `notify` gets one line
    if that turns out not to work."""
    if not settings.clients.fork_server:
        return Starter()
    if sys.platform == "linux" and _has_process_descriptors():
        return ForkServer(notify)

    return SpareStarter()


def can_be_given(environment: Mapping[str, str]) -> bool:
    """True if a process that has started can still take over this environment."""
    steering = (name for name in environment if name.startswith(_READ_AT_THE_START))
    if not _WITHOUT_EFFECT.issuperset(steering):
        return False
    names = (environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    language, _, encoding = next(filter(None, names), "C").partition("@")[0].partition(".")
    return language in ("C", "POSIX") if not encoding else encoding.lower().replace("-", "") == "utf8"


class ForkServer(Starter):
    """A `Starter`, see the module. Use it on one event loop."""

    def __init__(self, notify: Callable[[str], None] | None = None, program: Sequence[str] = PROGRAM) -> None:
        self._notify = notify or _write
        self._program = program
        self._server: _Server | None = None
        self._starting = asyncio.Lock()
        self._is_off = False

    @property
    def pid(self) -> int | None:
        """The id of the process that forks, None if there is none."""
        return None if self._server is None else self._server.pid

    async def prepare(self) -> None:
        """See Starter."""
        server = await self._running()
        if server is not None:
            await asyncio.wait([server.is_ready])

    async def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> SessionProcess:
        """See Starter."""
        server = await self._running() if can_be_given(environment) else None
        if server is not None and server.was_ready and not server.has_ended:
            try:
                process = await server.fork(order_of(arguments, environment, directory), directory)
            except ForkRefused as refused:
                await self._turn_off(f"it refuses to fork: {refused}")
            else:
                if process is not None:
                    return process
                await self._running()  # for the next start
        return await super().start(arguments, environment=environment, directory=directory)

    async def aclose(self) -> None:
        """See Starter."""
        self._is_off = True
        await self._leave()

    async def _running(self) -> _Server | None:
        """The server, ready or not; a new one replaces one that is gone. None if there must be none."""
        async with self._starting:
            if self._server is not None and self._server.has_ended:
                was_ready, why = self._server.was_ready, self._server.last_words()
                await self._leave()
                if not was_ready:
                    await self._turn_off(f"it has ended: {why or 'the reason is unknown'}")
            if self._server is None and not self._is_off:
                try:
                    self._server = await _Server.start(self._program)
                except OSError as error:
                    await self._turn_off(str(error))
            return self._server

    async def _turn_off(self, why: str) -> None:
        if not self._is_off:
            self._is_off = True
            self._notify(f"the fork server does not work, and sessions start more slowly without it: {why}")
        await self._leave()

    async def _leave(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()


class ForkRefused(Exception):
    """The server does not fork; `str()` is the reason."""


class _Server:
    def __init__(self, process: asyncio.subprocess.Process, ours: socket.socket) -> None:
        self._process = process
        self._socket = ours
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._asked: set[_Forked] = set()
        self._tail = Tail(process.stderr) if process.stderr is not None else None
        self.pid = process.pid
        self.has_ended = False
        self.was_ready = False
        self.is_ready: asyncio.Future[None] = self._loop.create_future()
        """Also done when the server is gone."""
        ours.setblocking(False)
        self._loop.add_reader(ours, self._receive)

    @classmethod
    async def start(cls, program: Sequence[str]) -> _Server:
        """Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nothing = asyncio.subprocess.DEVNULL
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *program, str(theirs.fileno()), stdin=nothing, stdout=nothing, stderr=asyncio.subprocess.PIPE,
                    env={}, cwd="/", pass_fds=(theirs.fileno(),), **own_group(),
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    async def fork(self, order: Order, directory: str) -> SessionProcess | None:
        """Fork a process that executes `order`. None if the server is gone, or ends meanwhile. Raises ForkRefused, and
        OSError if the process cannot execute it."""
        async with self._room:
            process = await _Forked.ask(self._socket)
            if process is None:
                self._end()
                return None
            self._asked.add(process)
            try:
                async with asyncio.timeout(_ANSWERS_S):
                    return process if await process.begin(order, directory) else None
            except TimeoutError:
                self._kill()
                return None
            finally:
                self._asked.discard(process)
                if not process.is_ready:
                    process.release()

    def last_words(self) -> str:
        return "" if self._tail is None else self._tail.text().strip().rpartition("\n")[2]

    async def close(self) -> None:
        self._end()
        try:
            await asyncio.wait_for(self._process.wait(), _ENDS_S)
        except TimeoutError:
            self._kill()
        if self._tail is not None:
            await self._tail.finish()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._end()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self.was_ready = True
        self._announce()

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._announce()
            for process in self._asked:
                process.settle({})

    def _announce(self) -> None:
        if not self.is_ready.done():
            self.is_ready.set_result(None)


class _Forked(SessionProcess):
    """A process that the server has forked, or will fork."""

    def __init__(self, control: socket.socket, streams: tuple[int, int, int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._streams: tuple[int, ...] = streams
        self._rest = b""
        self._word: Mapping[str, Any] = {}
        self._pidfd = -1
        self._code: int | None = None
        self._sending: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self.is_ready = False
        self.pid = -1
        control.setblocking(False)
        self._loop.add_reader(control, self._receive)

    @classmethod
    async def ask(cls, server: socket.socket) -> _Forked | None:
        """Request a process from the server. None if it is gone."""
        (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(server, [b"f"], [in_read, out_write, err_write, theirs.fileno()])
        except OSError:
            ours.close()
            for one in (in_write, out_read, err_read):
                os.close(one)
            return None
        finally:
            theirs.close()
            for one in (in_read, out_write, err_write):
                os.close(one)
        return cls(ours, (in_write, out_read, err_read))

    async def begin(self, order: Order, directory: str) -> bool:
        """Send the order and wait until the process has applied it. False if the server is gone. Raises ForkRefused,
        OSError."""
        self._sending = asyncio.ensure_future(self._send(order.encode()))
        answer = await self._answer
        if "refused" in answer:
            raise ForkRefused(answer["refused"])
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), directory)
        if not answer:
            return False
        inward, outward, errors = self._streams
        self._streams = ()
        self.writer = await _writer_of(self._loop, inward)
        self.reader = await _reader_of(self._loop, outward)
        self._tail = Tail(await _reader_of(self._loop, errors))
        self.is_ready = True
        return True

    async def wait(self) -> int:
        code = await asyncio.shield(self._ended)
        if self._tail is not None:
            await self._tail.finish()
        return code

    def kill(self) -> None:
        if sys.platform == "linux" and not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def release(self) -> None:
        self._end(-signal.SIGTERM)
        for one in self._streams:
            os.close(one)
        self._streams = ()

    async def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the answer has the details
            await self._loop.sock_sendall(self._control, data)

    def _receive(self) -> None:
        if sys.platform == "win32":
            return
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 4096, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self._pidfd = descriptor
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(orjson.loads(line))
        if not data:
            self._end(-9 if self._code is None else self._code)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "pid" in message:
            self.pid = message["pid"]
        elif "code" in message:
            self._code = message["code"]
        elif "ended" in message:
            self._end(message["ended"])
        else:
            self._word = message
        # The child may be ready before the server has reported its process id.
        if self._word and (self.pid >= 0 or "ready" not in self._word):
            self.settle(self._word)

    def settle(self, answer: Mapping[str, Any]) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    def _end(self, code: int) -> None:
        if self._ended.done():
            return
        self._ended.set_result(code)
        self.settle({})
        self._loop.remove_reader(self._control)
        if self._sending is not None:
            self._sending.cancel()
        self._loop.call_soon(self._control.close)  # after the loop no longer watches it for writing
        if self._pidfd >= 0:
            os.close(self._pidfd)


async def _writer_of(loop: asyncio.AbstractEventLoop, descriptor: int) -> asyncio.StreamWriter:
    file = os.fdopen(descriptor, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _reader_of(loop: asyncio.AbstractEventLoop, descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    file = os.fdopen(descriptor, "rb", buffering=0)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


def order_of(arguments: Sequence[str], environment: Mapping[str, str], directory: str) -> Order:
    """Return the order for a process that this one starts."""
    return Order(
        arguments=list(arguments), environment=dict(environment), directory=directory, umask=_umask(), limits=_limits()
    )


def _umask() -> int:
    """The umask of this process. Reading it from the C library sets another one for a moment, for all threads: one that
    grants nothing."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    found = os.umask(0o077)
    os.umask(found)
    return found


def _limits() -> dict[str, tuple[int, int]]:
    if sys.platform == "win32":
        return {}
    import resource

    names = (name for name in dir(resource) if name.startswith("RLIMIT_"))
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _has_process_descriptors() -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _write(line: str) -> None:
    sys.stderr.write(f"agent-host: {line}\n")


# Session processes without fork: one is started in advance, and gets its order later.
#
# The spare is `warm_process` with `--spare`: it has imported everything, has no environment, and waits for its order on
# standard input. It applies its launch parameters as a forked child does, confirms that in one line, and then is
# `agent-host` with these arguments and its own standard streams. It ends when its input does.


class SpareStarter(Starter):
    """A `Starter` that keeps one process ready. Use it on one event loop."""

    def __init__(self) -> None:
        self._spare: asyncio.Task[Subprocess | None] | None = None
        self._is_closed = False

    async def prepare(self) -> None:
        """See Starter."""
        self._begin()
        if self._spare is not None:
            await asyncio.wait([self._spare])

    async def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> SessionProcess:
        """See Starter."""
        process: SessionProcess | None = None
        if can_be_given(environment) and self._spare is not None and self._spare.done():
            spare, self._spare = self._spare.result(), None
            if spare is not None and await _hand_over(spare, order_of(arguments, environment, directory), directory):
                process = spare
        if process is None:
            process = await super().start(arguments, environment=environment, directory=directory)
        self._begin()
        return process

    def _begin(self) -> None:
        if self._spare is None and not self._is_closed:
            self._spare = asyncio.ensure_future(_start_spare())

    async def aclose(self) -> None:
        """See Starter."""
        self._is_closed = True
        taken, self._spare = self._spare, None
        process = None if taken is None else await taken
        if process is not None:
            process.writer.close()
            await process.wait()


async def _start_spare() -> Subprocess | None:
    """Start a process that imports everything; None if that fails."""
    needed = _NEEDED_BY_WINDOWS if sys.platform == "win32" else ()
    variables = {name: os.environ[name] for name in needed if name in os.environ}
    try:
        process = await Subprocess.start([*PROGRAM, "--spare"], variables, os.sep)
    except OSError:
        return None
    return process if await process.reader.readline() else None


async def _hand_over(process: Subprocess, order: Order, directory: str) -> bool:
    """True if the process has applied the order. Raises OSError if it cannot."""
    answer: dict[str, int] = {}
    with contextlib.suppress(ConnectionError, TimeoutError, ValueError):
        process.writer.write(order.encode())
        async with asyncio.timeout(_ANSWERS_S):
            await process.writer.drain()
            answer = orjson.loads(await process.reader.readline())
    if "ready" in answer:
        return True
    process.writer.close()
    process.kill()
    await process.wait()
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]), directory)
    return False
