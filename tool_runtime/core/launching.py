"""Programs in namespaces of their own, started by `launcher.py` on the host's behalf: they are its children."""

from __future__ import annotations

import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tool_runtime.platform import seccomp_notify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tool_runtime.core.sandbox import Namespaces
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.mounts import View

    Launch = Callable[[Sequence[str], str, Mapping[str, str], tuple[int, ...]], int]

_SCRIPT: Final = os.path.join(os.path.dirname(__file__), "launcher.py")
_PATIENCE_S: Final = 20.0


class Started(NamedTuple):
    """A program that runs. `listener` is the descriptor that asks about its sockets."""

    pid: int
    listener: int | None


class Launcher:
    """One process for the commands of a session; safe from any thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ExitStack() as unused, theirs:
            unused.callback(ours.close)
            alive, self._alive = os.pipe()
            unused.callback(os.close, self._alive)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-E", _SCRIPT, str(theirs.fileno()), str(alive)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    pass_fds=(theirs.fileno(), alive),
                )
            finally:
                os.close(alive)
            unused.pop_all()
        self._asked = ours
        self._lock = threading.Lock()

    def start(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        streams: Sequence[int],
        kinds: Namespaces,
        view: View,
        restriction: Restriction,
    ) -> Started:
        """Start a program, whose standard streams are `streams`. Raises OSError where it cannot be started or held."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "argv": [os.fsdecode(word) for word in argv],
            "cwd": cwd,
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()},
            "users": kinds.users,
            "processes": kinds.processes,
            "view": {"writes": view.writes, "guarded": view.guarded, "hidden": view.hidden},
            "restriction": {
                "rules": list(map(tuple, restriction.rules)),
                "abi": restriction.abi,
                "network": restriction.network,
                "with_listener": restriction.with_listener,
            },
        }
        data = marshal.dumps(request)
        with ours:
            with theirs, self._lock:
                socket.send_fds(self._asked, [struct.pack("=I", len(data))], [theirs.fileno(), *streams])
                self._asked.sendall(data)
            ours.settimeout(_PATIENCE_S)
            return _started(ours, argv[0])

    def close(self) -> None:
        """End it, and all that runs in the namespaces that it has made."""
        self._asked.close()
        os.close(self._alive)
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:  # somebody stopped it
            self._process.kill()
            self._process.wait()


def _started(reply: socket.socket, program: str) -> Started:
    """What came of a request, once the program runs or has failed: the other ends of the reply are closed then."""
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
                    listener = _taken(reply, replies["program"], replies.pop("listener"))
    except OSError:  # such as a time-out: what began may still become the program
        for process in {replies[role] for role in ("helper", "program") if role in replies}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            _reap(process)
        if listener is not None:
            os.close(listener)
        raise
    if "helper" in replies:
        _reap(replies["helper"])
    if "program" not in replies or "errno" in replies:
        if listener is not None:
            os.close(listener)
        if "program" in replies:
            _reap(replies["program"])
        code = replies.get("errno") or 5  # EIO: the launcher itself is gone
        at = program if replies.get("step") == "program" else f"{program} (its {replies.get('step', 'launcher')})"
        raise OSError(code, os.strerror(code), replies.get("file") or at)
    return Started(replies["program"], listener)


def _taken(reply: socket.socket, process: int, listener: int) -> int | None:
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


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # the guard of processes was faster
        os.waitpid(pid, 0)


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
