"""Processes of the program that do not wait for its imports, which are half of what most of the tests cost.

`start` forks a process that has imported what a session needs and has done nothing else. What it gives is a process of
its own, as `subprocess.Popen` would start it: its own session and streams, its own environment and directory, its own
run of `agent_host.__main__`; it is killed, waited for and found in the process table like any other. Two processes are
there to be forked, in turns, so that one that goes on with a session has other hashes of strings than the one before.

What it does not show is what the interpreter's own start and end do, what stands in the process table, and which
signals the starting process ignores: those are inherited from the process that is forked. So where variables concern
the interpreter's start, `can_start` is false, as on a machine without pidfds (outside of Linux); and tests may ask for
a process of `subprocess` (`Host.cold`), or start the program themselves.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

_AVAILABLE = hasattr(os, "pidfd_open")
_READ_AT_THE_START = ("PYTHON", "LANG", "LC_", "LD_", "SSL_")
NUMBER = struct.Struct("=i")
"""A process id, or how a process ended, on its socket."""
_AT_ONCE = 2
_ANSWERS_S = 60.0
"""A process that has to import first answers within seconds, also on a busy machine."""


class Started(Protocol):
    """What tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its id."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """What it reads; None where that is the null device."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """What it writes."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """What it writes there."""

    def poll(self) -> int | None:
        """How it ended; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises TimeoutExpired."""

    def kill(self) -> None:
        """SIGKILL, if it has not been seen to end."""


def can_start(env: Mapping[str, str]) -> bool:
    """Whether a process that has the variables `env` of a test, beside its usual ones, can be forked."""
    return _AVAILABLE and not any(name.startswith(_READ_AT_THE_START) for name in env)


def start(
    program: str,
    arguments: Sequence[str],
    *,
    piped: bool,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    imports: tuple[str, ...] = (),
) -> Started:
    """`python -P -m program arguments` in a session of its own, forked. `piped`: stdin is a pipe; `imports`: modules
    that it has imported beyond those that any session needs."""
    asked = {"program": program, "arguments": list(arguments), "env": dict(env), "cwd": os.fspath(cwd)}
    return _next(imports).fork(asked, piped=piped)


def start_argv(argv: Sequence[str], env: Mapping[str, str]) -> Forked:
    """`start` of a whole command, `[sys.executable, "-P", "-m", program, *arguments]`, in this directory."""
    _, _, _, program, *arguments = argv
    asked = {"program": program, "arguments": arguments, "env": dict(env), "cwd": os.getcwd()}
    return _next(()).fork(asked, piped=False)


class Forked:
    """A process that was forked. Like a child it stays in the process table until its end has been seen."""

    def __init__(self, word: socket.socket, streams: Sequence[IO[bytes] | None]) -> None:
        self._word = word
        self.pid = self._number()
        self.returncode: int | Any = None
        self._read = (bytearray(), bytearray())
        self.stdin, self.stdout, self.stderr = streams

    def poll(self) -> int | None:
        """See Started."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """See Started."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("agent-host", timeout or 0.0)
        return code

    def kill(self) -> None:
        """See Started."""
        if self.poll() is None:
            os.kill(self.pid, 9)

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """All that it wrote, as `subprocess.Popen.communicate` gives it."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pipes = {pipe.fileno(): pipe for pipe in (self.stdout, self.stderr) if pipe is not None and not pipe.closed}
        while pipes:
            for number in select.select(list(pipes), [], [], _left(deadline))[0]:
                chunk = os.read(number, 65536)
                self._read[pipes[number] is self.stderr].extend(chunk)
                if not chunk:
                    pipes.pop(number).close()
            if pipes and deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("agent-host", timeout or 0.0)
        self.wait(_left(deadline))
        out, err = (bytes(data).decode(errors="replace") for data in self._read)
        return out, err

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._word], [], [], within_s)[0]:
            self.returncode = self._number()
            self._word.close()
        return self.returncode

    def _number(self) -> int:
        self._word.settimeout(_ANSWERS_S)
        (number,) = NUMBER.unpack(self._word.recv(NUMBER.size, socket.MSG_WAITALL))
        assert isinstance(number, int)
        return number


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class _Warm:
    """A process that is forked, and the socket on which it is asked to."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        self._asked, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.warm_process", str(other.fileno()), *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[other.fileno()],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        )  # in this process group: a session that runs in this process ends what has left it
        other.close()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def fork(self, asked: dict[str, Any], *, piped: bool) -> Forked:
        """A process that does what is asked."""
        (inward, to_it), (from_it, outward), (from_errors, errors) = (os.pipe() for _ in range(3))
        if not piped:
            os.close(inward)
            os.close(to_it)
            inward = os.open(os.devnull, os.O_RDONLY)
        mine, word = socket.socketpair()
        socket.send_fds(self._asked, [b"."], [inward, outward, errors, word.fileno()])
        for end in (inward, outward, errors):
            os.close(end)
        word.close()
        mine.sendall(json.dumps(asked).encode() + b"\n")
        stdin = os.fdopen(to_it, "wb") if piped else None
        return Forked(mine, [stdin, os.fdopen(from_it, "rb"), os.fdopen(from_errors, "rb")])

    def close(self) -> None:
        """It ends, and is waited for; one that does not is killed."""
        self._asked.close()
        try:
            self._process.communicate(timeout=_ANSWERS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


_warm: dict[tuple[str, ...], list[_Warm]] = {}
_turns = itertools.count()


def close() -> None:
    """End what was there to be forked."""
    while _warm:
        for warm in _warm.popitem()[1]:
            warm.close()


def _next(imports: tuple[str, ...]) -> _Warm:
    there = _warm.setdefault(imports, [])
    for ended in [warm for warm in there if not warm.alive]:
        there.remove(ended)
        ended.close()
    there.extend(_Warm(imports) for _ in range(_AT_ONCE - len(there)))
    return _warm[imports][next(_turns) % _AT_ONCE]
