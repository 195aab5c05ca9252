"""The process that `tests/support/warm_starts.py` forks: it imports, and waits to be asked.

One packet on the socket that it is given carries the streams of a process and a socket of its own, on which come its
arguments; its id goes back there, and at its end how it ended. The process stays a zombie until the other side has let
go of that socket. At the end of the packets this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

from tests.support.warm_starts import NUMBER

# What a session with a command and a file imports sooner or later, and what many commands do, by what imports the rest.
_OF_A_SESSION = (
    "agent_host.cli.headless",
    "agent_host.cli.main",
    "agent_host.cli.options",
    "agent_host.cli.pipeline",
    "agent_host.cli.policy",
    "agent_host.cli.servers",
    "agent_host.host.dry_runs",
    "agent_host.host.opening",
    "agent_host.host.sessions",
    "agent_host.host.options",
    "agent_host.host.workspace_tools",
    "agent_host.judging.decisions",
    "agent_host.llm.dialects.anthropic",
    "agent_host.llm.client",
    "agent_host.llm.network",
    "agent_host.llm.local_server",
    "agent_host.llm.dialects.openai_chat",
    "agent_host.loop.task",
    "agent_host.rpc.methods",
    "agent_host.rpc.channels",
    "agent_host.session.external_bundles",
    "agent_host.session.patches",
    "agent_host.workspace_changes.watch",
    "policy.bundle.validate",
    "policy.rules.bundle_summary",
    "policy.shell.reader",
    "state.loading",
    "state.tool_lists",
    "tool_runtime.families.commands",
    "tool_runtime.families.native",
    "tool_runtime.families.operations",
    "tool_runtime.families.project",
    "tool_runtime.families.skills",
    "tool_runtime.sandbox",
    "tool_runtime.sandbox.launching",
    "concurrent.futures.thread",
    "encodings.ascii",
    "encodings.utf_8_sig",
    "h11",
    "idna",
    "re2",
    "shlex",
    "tomllib",
    "unicodedata",
)

_NOT_FLUSHED = 120
"""The interpreter's exit code where what is left of the output cannot be written."""

Asked = dict[str, Any]


class _Forks:
    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._poll = select.poll()
        self._poll.register(asked, select.POLLIN)
        self._running: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
        self._ended: dict[int, tuple[int, socket.socket]] = {}  # by descriptor of the socket

    def serve(self) -> Asked | None:
        """Fork whenever that is asked. Returns what was asked in each process that was forked, and None at the end."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._running:
                    self._tell(descriptor)
                elif descriptor in self._ended:
                    self._forget(descriptor)
                else:
                    _, streams, _, _ = socket.recv_fds(self._asked, 1, 4)
                    if not streams:
                        return None
                    asked = self._fork(streams)
                    if asked is not None:
                        return asked

    def _fork(self, streams: list[int]) -> Asked | None:
        word = socket.socket(fileno=streams.pop())
        with word.makefile("rb") as lines:
            asked: Asked = json.loads(lines.readline())
        pid = os.fork()
        if pid == 0:
            for place, stream in enumerate(streams):
                os.dup2(stream, place)
            os.closerange(3, max([word.fileno(), *streams, *self._running, *self._ended]) + 1)
            return asked
        for stream in streams:
            os.close(stream)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = pid, word
        self._poll.register(pidfd, select.POLLIN)
        word.sendall(NUMBER.pack(pid))
        return None

    def _tell(self, pidfd: int) -> None:
        pid, word = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        with contextlib.suppress(BrokenPipeError):
            word.sendall(NUMBER.pack(code))
        self._ended[word.fileno()] = pid, word
        self._poll.register(word, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        pid, word = self._ended.pop(descriptor)
        self._poll.unregister(descriptor)
        word.close()
        os.waitpid(pid, 0)


def main() -> None:
    """See the module."""
    from agent_host import http

    for name in _OF_A_SESSION:
        importlib.import_module(name)
    assert http.httpx  # as a session imports it, without its program
    for name in ("httpx_sse", *sys.argv[2:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal that the tests run on
    asked = _Forks(socket.socket(fileno=int(sys.argv[1]))).serve()
    if asked is not None:
        _become(**asked)


def _become(program: str, arguments: list[str], env: dict[str, str], cwd: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [program, *arguments]
    sys.orig_argv = [sys.executable, "-P", "-m", program, *arguments]
    from agent_host import import_isolation

    import_isolation.settle()
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _end(end.code or 0)
        raise


def _end(code: int) -> NoReturn:
    """The end of the interpreter, but for letting go of each object: that would copy all memory that is shared with the
    process that was forked, which is most of what a short command costs."""
    threading._shutdown()  # type: ignore[attr-defined]  # private, and what the interpreter calls
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = _NOT_FLUSHED
        except (AttributeError, ValueError):  # there is none, or it is closed
            pass
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
