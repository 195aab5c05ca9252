"""Start programs in namespaces of their own by `launcher.py` (they are children of the host), and try with a small
program which sandbox levels work on this Linux."""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory
from tool_runtime.platform import landlock, linux_calls, linux_sandbox, mounts
from tool_runtime.platform.mounts import DiskView, LevelFinding, Namespaces
from tool_runtime.sandbox.helper_processes import Backoff, end_helper, start_helper
from tool_runtime.threads import run_in_fresh_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp import Network

    Launch = Callable[[Sequence[str], str, Mapping[str, str], tuple[int, ...]], int]

_NUMBER: Final = struct.Struct("i")
_PATIENCE_S: Final = 20.0
_TRIES: Final = 4
_NAME: Final = "the process that starts programs in the sandbox"


class StartedProgram(NamedTuple):
    """A running program. `listener` is the descriptor of its socket questions, None without a supervisor."""

    pid: int
    listener: int | None


class Launcher:
    """The launcher process for the commands of a session, restarted if it has ended; safe from any thread. `kinds` are
    the namespaces that programs get. Raises OSError."""

    def __init__(self, kinds: Namespaces) -> None:
        self._kinds = ("u" if kinds.users else "") + ("p" if kinds.processes else "")
        self._lock = threading.Lock()
        self._backoff = Backoff()
        self._children: set[int] = set()
        self._before: list[socket.socket] = []
        self._alive = os.pipe()  # programs end when this closes, not with their launcher
        try:
            self._begin()
        except OSError:
            self._close_pipe()
            raise

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as unused, theirs:
            unused.callback(ours.close)
            ends = (theirs.fileno(), self._alive[0])
            self._process = start_helper("launcher.py", *map(str, ends), f"-{self._kinds}", descriptors=ends)
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
        """Start a program with the standard streams `streams`. Raises OSError if it cannot be started or sandboxed."""
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
        """Restart the launcher. Programs that it has started continue."""
        time.sleep(self._backoff.wait_s)
        self._backoff.failed()
        asked = self._asked
        self._begin()
        asked.shutdown(socket.SHUT_WR)  # which ends its ready process, if there is one
        self._before.append(asked)

    def _request(
        self, request: dict[str, Any], streams: Sequence[int], program: str, restriction: Restriction
    ) -> StartedProgram | None:
        """Return the program; None if no process answered, or the one that did cannot start it any more."""
        data = marshal.dumps(request)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            content = os.memfd_create("request")  # the size of a message is limited
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
        """Wait for the outcome of a request, which is complete once the other ends of `reply` are closed."""
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
                    replies |= marshal.loads(data)  # noqa: S302 from the launcher: the program has no such socket
                    if {"listener", "program"} <= replies.keys():
                        listener = _take_listener(reply, replies["program"], replies.pop("listener"))
        except OSError as error:  # for example a timeout: the process may still become the program
            self._abandon(replies, listener)
            if not isinstance(error, TimeoutError):
                raise
            self._process.kill()  # something stopped it (SIGSTOP)
            self._process.wait()
            if "program" not in replies:
                return None
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), _NAME) from error
        if "errno" in replies:
            self._abandon(replies, listener)
            code = replies["errno"]
            at = program if replies["step"] == "program" else f"{program} (its {replies['step']})"
            raise OSError(code, os.strerror(code), replies.get("file") or at)
        if "program" not in replies or (restriction.with_listener and listener is None):  # it was killed before it ran
            self._abandon(replies, listener)
            return None
        self._hear()
        self._children.discard(replies["program"])  # from here on the caller reaps it
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
        """Reap helpers that have exited, unless a program is being started."""
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
        """Read the IDs of the children that the launcher has made for this process; each is reported before it is
        used."""
        for source in (*self._before, self._asked):
            with suppress(OSError):  # nothing more to read now
                while data := source.recv(_NUMBER.size, socket.MSG_DONTWAIT):
                    self._children.add(*_NUMBER.unpack(data))
                if source is not self._asked:  # it is closed: no sender is left
                    self._before.remove(source)
                    source.close()

    def close(self) -> None:
        """End the launcher and everything that runs in its namespaces. Harmless when repeated."""
        with self._lock:
            if self._asked.fileno() < 0:
                return
            with suppress(OSError):
                self._asked.shutdown(socket.SHUT_WR)
            self._close_pipe()
            end_helper(self._process)
            self._hear()
            # Never waited for one by one, because the first process of a namespace remains until the others are reaped.
            for number in (0, signal.SIGKILL):  # the second time kills stopped ones
                until = time.monotonic() + 1.0
                for pid in self._children:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                while self._children and time.monotonic() < until:
                    self._reap()
                    time.sleep(0.001)
            for source in (*self._before, self._asked):
                source.close()


def _take_listener(reply: socket.socket, process: int, listener: int) -> int | None:
    """Copy the listener of a process that is about to become the program and waits for the copy. None if that fails;
    the process then reads the end of `reply` and reports an error."""
    copy = None
    try:
        copy = linux_calls.copy_descriptor(process, listener)
        reply.send(b"1")
    except OSError:
        with suppress(OSError):
            reply.shutdown(socket.SHUT_WR)
    return copy


class LaunchedPopen(subprocess.Popen[bytes]):
    """A Popen whose process is started by `launch`, which gets argv, directory, environment and standard streams and
    returns the process ID. It replaces one internal step of Popen."""

    def __init__(self, launch: Launch, *args: Any, **options: Any) -> None:
        self._launch = launch
        super().__init__(*args, **options)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        cwd, env = rest[4], rest[5]
        pipes = rest[9:15]
        try:
            argv: list[str] = [args] if isinstance(args, str) else list(args)
            given = zip((pipes[0], pipes[3], pipes[5]), range(3), strict=True)
            streams = tuple(own if pipe == -1 else pipe for pipe, own in given)
            self.pid = self._launch(argv, cwd or os.getcwd(), os.environ if env is None else env, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined] # a method of Popen that the stubs omit


# Find out if this Linux can sandbox programs, by trying it with a small one.

_TRY: Final = 'read -r line; if true 2>/dev/null >"$1"; then exit 3; fi; exit 0'
_TRY_VIEW: Final = 'if true 2>/dev/null >"$1"; then exit 3; fi; if read -r line < "$2"; then exit 4; fi; exit 0'
_FILES: Final = ("kept", "hidden")
_SHELL: Final = "/bin/sh"
_UNSUPPORTED: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
"""Errors of landlock, seccomp, unshare and mount if the level does not exist or this process may not use it. Any other
error is a failure of the trial: a machine whose disk is full still has a sandbox."""
_NO_NAMESPACES: Final = _UNSUPPORTED | {errno.EINVAL, errno.ENOSPC}
"""unshare also fails with these: on a kernel built without namespaces, or with a limit of 0. Landlock is used then."""
_NO_LISTENER: Final = _UNSUPPORTED | {errno.EINVAL, errno.EBUSY}
"""seccomp also fails with these if there are no listeners, or this process already has one. Landlock works without."""


class TrialProblem(NamedTuple):
    """The reason why a trial failed. `is_passing` means that the trial itself failed, so the level may still work."""

    text: str
    is_passing: bool = False


class _NoScratch(OSError):
    """The files of a trial cannot be created."""


@contextmanager
def _scratch(directory: str) -> Iterator[tuple[str, str]]:
    """Create two files below `directory`, without the slow `tempfile`; they are removed at the end. Raises
    _NoScratch."""
    above, name = os.path.realpath(directory), f"agent-host-~probe-{os.urandom(8).hex()}"
    with ExitStack() as stack:
        try:
            parent = stack.enter_context(open_directory(above))
            parent.make_directory(name, PRIVATE_DIRECTORY)
            stack.callback(_remove, parent, name)
            scratch = stack.enter_context(parent.open_below(name))
            with suppress(OSError):  # locked, else another start removes it (`state.temporary.sweep`)
                fcntl.flock(scratch.fd or -1, fcntl.LOCK_SH)
            for one in _FILES:
                scratch.write_new(one, b"x", mode=0o600, durable=False)
        except OSError as error:
            raise _NoScratch(error.errno, error.strerror, above) from error
        yield os.path.join(above, name, _FILES[0]), os.path.join(above, name, _FILES[1])


def _remove(directory: OpenDirectory, name: str) -> None:
    with directory.open_below(name) as scratch:
        for one in scratch.names():
            scratch.remove(one)
    directory.remove_directory(name)


def landlock_level(directory: str) -> LevelFinding:
    """Try the level `landlock`, in which a thread sandboxes programs, with files in `directory`."""
    none = LevelFinding("landlock", works=False)
    if linux_calls.numbers() is None:
        return none._replace(problem=f"it is not known for {linux_calls.machine()}")
    try:
        abi = linux_sandbox.abi()
    except OSError as error:
        return none._replace(problem=_problem(error, _UNSUPPORTED).text, is_passing=True)
    if abi < linux_sandbox.LEAST_ABI:
        has = f"version {abi} of Landlock" if abi else "no Landlock, or it is switched off"
        return none._replace(problem=f"the kernel has {has}; version {linux_sandbox.LEAST_ABI} is needed")
    problem = _try_thread(directory, abi, with_listener=True)
    works = LevelFinding("landlock", works=True, abi=abi, is_supervised=problem is None)
    works = works._replace(unheld=linux_sandbox.not_enforced(abi, is_supervised=works.is_supervised))
    if problem is None:
        return works
    without = _try_thread(directory, abi, with_listener=False)
    if without is None:
        # Then connections are denied, unless the scope allows any host: less works in this sandbox.
        text = f"no supervisor, so that no connection is made: {problem.text}"
        return works._replace(problem=text, is_passing=problem.is_passing)
    return none._replace(problem=without.text, abi=abi, is_passing=without.is_passing)


def _try_thread(directory: str, abi: int, *, with_listener: bool) -> TrialProblem | None:
    """Return the reason why a thread cannot sandbox a program like this; None if it can."""
    rules = [landlock.PathRule("/", landlock.READ)]
    network: Network = "supervised" if with_listener else "closed"
    restriction = linux_sandbox.Restriction(rules, abi, network, with_listener)
    try:
        with _scratch(directory) as (kept, _):
            argv, pipe = [_SHELL, "-c", _TRY, "sh", kept], subprocess.PIPE

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env={})

            process, listener = run_in_fresh_thread(lambda: linux_sandbox.launch_by_this_thread(restriction, start))
            return _await_end(process, listener)
    except OSError as error:
        return _problem(error, _NO_LISTENER if with_listener else _UNSUPPORTED)


def _await_end(process: subprocess.Popen[bytes], listener: int | None) -> TrialProblem | None:
    """Return the problem of the trial program, None for none. Raises OSError if its descriptors cannot be copied."""
    with process:
        try:
            if listener is not None:
                os.close(linux_calls.copy_descriptor(process.pid, 0))
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(b"\n", 10.0)
            process.kill()
            if listener is not None:
                os.close(listener)
    code = process.returncode
    return None if code == 0 else TrialProblem(f"a sandboxed program ended with {code}", is_passing=True)


def namespace_level(directory: str, below: Callable[[], LevelFinding]) -> LevelFinding:
    """Try the level `namespace` with files in `directory`: programs get their own view of the disk, and also need what
    the level `landlock` needs (`below` returns its finding)."""
    kinds = [
        Namespaces(users, processes)
        for users in ((False, True) if os.geteuid() == 0 else (True,))
        for processes in (True, False)
    ]
    try:
        first = Launcher(kinds[0])  # it takes the longest to get ready
    except OSError as error:
        return _no_namespaces(_problem(error, frozenset()))
    try:
        under = below()
    except BaseException:
        _end(first)
        raise
    problems = []
    for one in kinds if under.works else ():
        try:
            problem = _try_namespaces(directory, first if one is kinds[0] else Launcher(one), one, under)
        except OSError as error:
            problem = _problem(error, _NO_NAMESPACES)
        if problem is None:
            unheld = linux_sandbox.not_enforced_by_namespaces(
                processes=one.processes, is_supervised=under.is_supervised
            )
            return under._replace(level="namespace", unheld=unheld, namespaces=one)
        problems.append(problem)
    if not problems:
        _end(first)
        return _no_namespaces(TrialProblem(under.problem, under.is_passing))
    return _no_namespaces(problems[-1]._replace(is_passing=any(one.is_passing for one in problems)))


def _end(launcher: Launcher) -> None:
    threading.Thread(target=launcher.close, name="sandbox-launcher-end").start()


def _no_namespaces(problem: TrialProblem) -> LevelFinding:
    return LevelFinding("namespace", works=False, problem=problem.text, is_passing=problem.is_passing)


def _try_namespaces(directory: str, launcher: Launcher, kinds: Namespaces, under: LevelFinding) -> TrialProblem | None:
    """Return the reason why `launcher` cannot give a program the namespaces `kinds`; None if it can. Closes `launcher`.
    Raises OSError."""
    with ExitStack() as stack:
        stack.callback(_end, launcher)
        kept, hidden = stack.enter_context(_scratch(directory))
        network: Network = "supervised" if under.is_supervised else "closed"
        rights = landlock.READ | landlock.WRITE  # only the view is tried
        rules = [landlock.PathRule("/", rights)]
        restriction = linux_sandbox.Restriction(rules, under.abi, network, under.is_supervised)
        view = DiskView((), (), (hidden,), has_processes=kinds.processes)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            argv = [_SHELL, "-c", _TRY_VIEW, "sh", kept, hidden]
            started = launcher.start(argv, "/", {}, (null, null, null), view, restriction)
        finally:
            os.close(null)
        if started.listener is not None:
            os.close(started.listener)
        code = os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1])
        return None if code == 0 else TrialProblem(f"a program with a view of its own ended with {code}")


def _problem(error: OSError, settled: frozenset[int]) -> TrialProblem:
    """Return the problem that an error of a trial means; an errno in `settled` means that the level does not exist
    here."""
    at = f" ({error.filename})" if error.filename else ""
    is_passing = isinstance(error, _NoScratch) or error.filename == _SHELL or error.errno not in settled
    return TrialProblem(f"{error.strerror or error}{at}", is_passing)
