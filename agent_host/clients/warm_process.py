"""A process that has only imported the modules of sessions (see `fork_server`): as `python -m
agent_host.clients.warm_process FD` it forks a session process for each packet on that socket, with `--spare` it becomes
one itself.

A session process gets its order on its control stream, and reports there in lines of JSON: `{"ready": true}` or
`{"errno": N}`; for a fork before that `{"pid": N}` or `{"refused": WHY}`, and at its end `{"code": N}` by itself and
`{"ended": N}` by the process that forked it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import locale
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from agent_host import http
from agent_host.clients import Order
from agent_host.import_isolation import PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

STREAMS: Final = 3
_SPARE: Final = "--spare"

# These import the rest: everything that a session with files and commands needs, and the dialects.
MODULES: Final = (
    "agent_host.cli.main",
    "agent_host.cli.options",
    "agent_host.cli.servers",
    "agent_host.host.records",
    "agent_host.host.opening",
    "agent_host.host.sessions",
    "agent_host.judging.decisions",
    "agent_host.llm.client",
    "agent_host.llm.dialects.anthropic",
    "agent_host.llm.dialects.openai_chat",
    "agent_host.llm.dialects.openai_responses",
    "agent_host.llm.network",
    "agent_host.llm.local_server",
    "agent_host.loop.task",
    "agent_host.rpc.methods",
    "agent_host.rpc.channels",
    "agent_host.session.external_bundles",
    "agent_host.session.patches",
    "agent_host.workspace_changes.watch",
    "concurrent.futures.thread",
    "encodings.ascii",
    "encodings.utf_8_sig",
    "h11",
    "hmac",
    "policy.bundle.validate",
    "policy.shell.reader",
    "re2",
    "secrets",
    "tomllib",
    "tool_runtime.families.commands",
    "tool_runtime.families.operations",
    "tool_runtime.sandbox",
)
_OF_LINUX: Final = (
    "tool_runtime.sandbox.launching",
    "tool_runtime.sandbox.protected_paths",
    "tool_runtime.sandbox.session",
    "tool_runtime.sandbox.supervisor",
    "tool_runtime.sandbox.workspace_places",
)


def import_all() -> None:
    """Import MODULES, and httpx in this program's form."""
    for name in (*MODULES, *(_OF_LINUX if sys.platform == "linux" else ())):
        importlib.import_module(name)
    for name in (http.httpx.__name__, "httpx_sse"):
        importlib.import_module(name)


class InstalledFiles:
    """Stamps of the files that this process has imported or may import."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, int] | None] = {}
        folders = [os.path.join(ROOT, name) for name in ("agent_host", *PACKAGES)]
        self._add([sys.executable, *(path for folder in folders for path in _installed(folder))])

    def add_imported(self) -> None:
        """Add imported files from any place."""
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._add(file for file in files if file)

    def have_changed(self) -> bool:
        """True if a file has changed or is gone."""
        return any(_stamp(path) != stamp for path, stamp in self._stamps.items())

    def _add(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self._stamps:
                self._stamps[path] = _stamp(path)


def _installed(folder: str) -> Iterable[str]:
    """Modules and data, including those that are read later."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(place, name) for name in files)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def refusal(expected: Collection[int]) -> str | None:
    """Return why this process must not fork; None if it may. A thread would be missing in the child, and its locks
    would stay locked; a descriptor other than the `expected` ones would be open in a session that it does not belong
    to."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"it has {len(threads)} threads"
    extra = sorted({fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)} - set(expected))
    return f"it has descriptors that it should not have: {extra}" if extra else None


def _is_open(fd: int) -> bool:
    """False for the descriptor that the list was read with."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class Control:
    """The control stream of a session process, or of one that waits for its order."""

    def __init__(self, receive: Callable[[int], bytes], send: Callable[[bytes], object]) -> None:
        self._receive, self._send = receive, send

    def order(self) -> Order | None:
        """Read the order; None if the other side is gone."""
        return Order.read(self._read)

    def send(self, **message: object) -> None:
        """Tell the other side, if it is still there."""
        with contextlib.suppress(OSError):
            self._send(json.dumps(message).encode() + b"\n")

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length and (piece := self._receive(length - len(data))):
            data += piece
        return bytes(data)


class ForkLoop:
    """Forks a process for each packet on `asked`, and reports the end of each. A packet carries standard input, output
    and error of the new process, and its control socket, from which only the child reads. So a session's order, which
    may contain secrets, is never in the memory of this process or of another child."""

    def __init__(self, asked: socket.socket, files: InstalledFiles) -> None:
        self._asked = asked
        self._files = files
        self._poll = select.poll()
        self._poll.register(asked, select.POLLIN)
        self._running: dict[int, tuple[int, socket.socket]] = {}  # process and control, by pidfd

    def serve(self) -> Control | None:
        """Return the control stream in each child; in this process None, after the client is gone or the installed
        files have changed."""
        self._asked.send(b"ready")
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._running:
                    self._report_end(descriptor)
                    continue
                data, received, _, _ = socket.recv_fds(self._asked, 1, 16, socket.MSG_CMSG_CLOEXEC)
                if not data or self._files.have_changed():
                    return None
                control = self._fork(received)
                if control is not None:
                    return Control(control.recv, control.sendall)

    def _fork(self, received: list[int]) -> socket.socket | None:
        """Return the control socket in the child."""
        *streams, place = received[: STREAMS + 1]
        control = socket.socket(fileno=place)
        reason = refusal({0, 1, 2, self._asked.fileno(), place, *streams, *self._descriptors()})
        pid = -1 if reason is not None else os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # as `own_group` does for a started process
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for pidfd, (_, others) in self._running.items():
                os.close(pidfd)
                others.close()
            self._running.clear()
            self._asked.close()
        elif pid > 0:
            pidfd = os.pidfd_open(pid)
            self._running[pidfd] = pid, control
            self._poll.register(pidfd, select.POLLIN)
            with contextlib.suppress(OSError):
                socket.send_fds(control, [b'{"pid": %d}\n' % pid], [pidfd])
        else:
            Control(control.recv, control.sendall).send(refused=reason)
            control.close()
        for one in (*streams, *received[STREAMS + 1 :]):
            os.close(one)
        return control if pid == 0 else None

    def _descriptors(self) -> Iterator[int]:
        for pidfd, (_, control) in self._running.items():
            yield from (pidfd, control.fileno())

    def _report_end(self, pidfd: int) -> None:
        pid, control = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        Control(control.recv, control.sendall).send(ended=os.waitstatus_to_exitcode(status))
        control.close()


def main() -> None:
    """See the module."""
    place = sys.argv[-1]
    on_interrupt = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the client's terminal
    files = InstalledFiles()
    import_all()
    files.add_imported()
    gc.collect()
    gc.freeze()
    is_spare = place == _SPARE
    control = _spare_control() if is_spare else ForkLoop(socket.socket(fileno=int(place)), files).serve()
    order = None if control is None else control.order()
    if control is None or order is None or (is_spare and files.have_changed()):
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        become(order)
    except OSError as error:
        control.send(errno=error.errno)
        return
    control.send(ready=True)
    # Imported by name, because this package is below the command line, and any client may start it.
    code = importlib.import_module("agent_host.cli.main").main()
    if not is_spare:
        control.send(code=code)
    sys.exit(code)


def _spare_control() -> Control:
    control = Control(lambda length: os.read(0, length), lambda data: os.write(1, data))
    control.send(spare=True)
    return control


def become(order: Order) -> None:
    """Give this process the state of an interpreter started with this order. Raises OSError."""
    os.umask(order["umask"])
    _limit(order["limits"])
    _take_environment(order["environment"])
    os.chdir(order["directory"])
    words = order["arguments"]
    sys.argv = [os.path.join(ROOT, "agent_host", "__main__.py"), *words]
    sys.orig_argv = [sys.executable, "-P", "-m", "agent_host", *words]
    stream: Any = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  these are for the life of the process
    vars(sys).update(stdin=stream, __stdin__=stream)
    stream = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    vars(sys).update(stdout=stream, __stdout__=stream)
    stream = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    vars(sys).update(stderr=stream, __stderr__=stream)


def _take_environment(environment: Mapping[str, str]) -> None:
    """Replace all variables, and the C library's state derived from them. At its start the interpreter replaces the
    locale "C", for itself and its children (PEP 538), as it did for this process, which had no variables."""
    coerced = os.environ.get("LC_CTYPE")
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    if sys.platform == "win32":
        return
    time.tzset()
    is_legacy = _locale_of_environment() in ("C", "POSIX")
    if is_legacy and coerced is not None and not environment.get("LC_ALL"):
        os.environ["LC_CTYPE"] = coerced
        _locale_of_environment()


def _locale_of_environment() -> str:
    try:
        return locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:  # the locale is not installed
        return locale.setlocale(locale.LC_CTYPE, "C")


def _limit(limits: Mapping[str, tuple[int, int]]) -> None:
    if sys.platform != "win32":
        import resource

        for name, (soft, hard) in limits.items():
            try:
                resource.setrlimit(getattr(resource, name), (soft, hard))
            except ValueError as error:  # above the hard limit that this process was started with
                raise PermissionError(errno.EPERM, str(error)) from error


if __name__ == "__main__":
    main()
