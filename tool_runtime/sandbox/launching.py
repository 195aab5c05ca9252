"""Programs in namespaces of their own, started by `launcher.py` on the host's behalf: they are its children."""

from __future__ import annotations

import errno
import marshal
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tool_runtime.platform import mounts, seccomp_notify
from tool_runtime.sandbox.helper_processes import Backoff, end_helper, start_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.mounts import DiskView, Namespaces

    Launch = Callable[[Sequence[str], str, Mapping[str, str], tuple[int, ...]], int]

_NUMBER: Final = struct.Struct("i")
_PATIENCE_S: Final = 20.0
_TRIES: Final = 4
_NAME: Final = "the process that starts programs in the sandbox"
_ENDING_S: Final = 1.0


class StartedProgram(NamedTuple):
    """A program that runs. `listener` is the descriptor that asks about its sockets."""

    pid: int
    listener: int | None


class Launcher:
    """One process for the commands of a session, which is started again where it has ended; safe from any thread.
    `kinds` are the namespaces that programs get. Raises OSError."""

    def __init__(self, kinds: Namespaces) -> None:
        self._kinds = ("u" if kinds.users else "") + ("p" if kinds.processes else "")
        self._lock = threading.Lock()
        self._backoff = Backoff()
        self._children: set[int] = set()
        self._before: list[socket.socket] = []
        self._alive = os.pipe()  # programs end with this, and not with the process that has started them
        try:
            self._begin()
        except OSError:
            self._close_pipe()
            raise

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as unused, theirs:
            unused.callback(ours.close)
            descriptors = (theirs.fileno(), self._alive[0])
            self._process = start_helper(
                "launcher.py", *map(str, descriptors), f"-{self._kinds}", descriptors=descriptors
            )
            unused.pop_all()
        self._asked = ours

    def _close_pipe(self) -> None:
        for descriptor in self._alive:
            os.close(descriptor)

    def start(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        streams: Sequence[int],
        view: DiskView,
        restriction: Restriction,
    ) -> StartedProgram:
        """Start a program, whose standard streams are `streams`. Raises OSError where it cannot be started or held."""
        rules = tuple(map(tuple, restriction.rules))
        request = {
            "argv": [os.fsdecode(word) for word in argv],
            "cwd": cwd,
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()},
            "held": (tuple(view), (rules, restriction.abi, restriction.network, restriction.with_listener)),
            "seen": tuple(mounts.look_at(view, (rule.path for rule in restriction.rules))),
        }
        with self._lock:
            self._reap()
            for _ in range(_TRIES):
                if self._process.poll() is not None:
                    self._restart()
                started = self._request(request, streams, argv[0], restriction)
                if started is not None:
                    self._backoff.worked()
                    return started
        raise OSError(errno.EIO, "ended whenever a program was to start", _NAME)

    def _restart(self) -> None:
        """Start it again. Programs that it has started go on."""
        time.sleep(self._backoff.wait_s)
        self._backoff.failed()
        asked = self._asked
        self._begin()
        asked.shutdown(socket.SHUT_WR)  # which ends the one that is ready, if there is one
        self._before.append(asked)

    def _request(
        self, request: dict[str, Any], streams: Sequence[int], program: str, restriction: Restriction
    ) -> StartedProgram | None:
        """The program; None where nobody has answered, or whoever did cannot start it any more."""
        data = marshal.dumps(request)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            content = os.memfd_create("request")  # a message has a bound, and this is read as a whole or not at all
            try:
                with theirs:
                    os.write(content, data)
                    socket.send_fds(self._asked, [b"?"], [theirs.fileno(), *streams, content])
            except ConnectionError:
                self._process.kill()  # if it has not ended by itself
                self._process.wait()
                return None
            finally:
                os.close(content)
            ours.settimeout(_PATIENCE_S)
            return self._await_start(ours, program, restriction)

    def _await_start(self, reply: socket.socket, program: str, restriction: Restriction) -> StartedProgram | None:
        """Wait for the outcome of a request: the program runs or has failed once the other ends of the reply are
        closed."""
        replies: dict[str, Any] = {}
        listener: int | None = None
        try:
            while True:
                data, descriptors, _, _ = socket.recv_fds(reply, 4096, 1)
                if descriptors:
                    listener = descriptors[0]
                elif not data:
                    break
                else:
                    replies |= marshal.loads(data)  # noqa: S302  of the launcher: the program does not have this socket
                    if {"listener", "program"} <= replies.keys():
                        listener = _take_listener(reply, replies["program"], replies.pop("listener"))
        except OSError as error:  # such as a time-out: what began may still become the program
            self._abandon(replies, listener)
            if isinstance(error, TimeoutError):  # somebody stopped it
                self._process.kill()
                self._process.wait()
                if "program" not in replies:
                    return None
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), _NAME) from error
            raise
        if "errno" in replies:
            self._abandon(replies, listener)
            code = replies["errno"]
            at = program if replies["step"] == "program" else f"{program} (its {replies['step']})"
            raise OSError(code, os.strerror(code), replies.get("file") or at)
        if "program" not in replies or (restriction.with_listener and listener is None):  # it was ended before it ran
            self._abandon(replies, listener)
            return None
        self._hear()
        self._children.discard(replies["program"])  # from here on it is reaped by who waits for it
        return StartedProgram(replies["program"], listener)

    def _abandon(self, replies: Mapping[str, Any], listener: int | None) -> None:
        if "program" in replies:
            with suppress(ProcessLookupError):
                os.kill(replies["program"], signal.SIGKILL)
            self._hear()
            self._children.discard(replies["program"])
            with suppress(ChildProcessError):
                os.waitpid(replies["program"], 0)
        if listener is not None:
            os.close(listener)

    def reap(self) -> None:
        """Let go of helpers that have ended, unless a program is being started."""
        if self._lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self._lock.release()

    def _reap(self) -> None:
        self._hear()
        for pid in tuple(self._children):
            with suppress(ChildProcessError):
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            self._children.discard(pid)

    def _hear(self) -> None:
        """Learn which children of this process it has made: each is reported before it is of use."""
        for source in (*self._before, self._asked):
            with suppress(OSError):  # there is no more at the moment
                while data := source.recv(_NUMBER.size, socket.MSG_DONTWAIT):
                    self._children.add(*_NUMBER.unpack(data))
                if source is not self._asked:  # nobody is left who would tell
                    self._before.remove(source)
                    source.close()

    def close(self) -> None:
        """End it, and all that runs in the namespaces that it has made. Harmless when repeated."""
        with self._lock:
            if self._asked.fileno() < 0:
                return
            with suppress(OSError):
                self._asked.shutdown(socket.SHUT_WR)
            self._close_pipe()
            end_helper(self._process)
            self._hear()
            # Never waited for one by one: the first process of a namespace is there until the others are reaped.
            for number in (0, signal.SIGKILL):  # to those that somebody stopped
                until = time.monotonic() + _ENDING_S
                for pid in self._children:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                while self._children and time.monotonic() < until:
                    self._reap()
                    time.sleep(0.001)
            for source in (*self._before, self._asked):
                source.close()


def _take_listener(reply: socket.socket, process: int, listener: int) -> int | None:
    """A copy of the listener of a process that is to become the program, and waits until it has been copied. None where
    that fails: the process then reads the end of `reply`, and reports an error."""
    copy = None
    try:
        copy = seccomp_notify.copy_descriptor(process, listener)
        reply.send(b"1")
    except OSError:
        with suppress(OSError):
            reply.shutdown(socket.SHUT_WR)
    return copy


class LaunchedPopen(subprocess.Popen[bytes]):
    """A process that `launch` starts, with argv, directory, environment and standard streams, and whose id it gives;
    for the rest a Popen, whose one internal step it takes the place of."""

    def __init__(self, launch: Launch, *args: Any, **more: Any) -> None:
        self._launch = launch
        super().__init__(*args, **more)

    def _execute_child(self, args: Any, *more: Any) -> None:
        cwd, env = more[4], more[5]
        pipes = more[9:15]
        try:
            argv: list[str] = [args] if isinstance(args, str) else list(args)
            given = zip((pipes[0], pipes[3], pipes[5]), range(3), strict=True)
            streams = tuple(own if pipe == -1 else pipe for pipe, own in given)
            self.pid = self._launch(argv, cwd or os.getcwd(), os.environ if env is None else env, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # of its parent, which the stubs leave out
