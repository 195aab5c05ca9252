"""True if this Linux can hold programs: tried with a small one."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory
from tool_runtime.platform import landlock, landlock_rules, linux_calls, linux_sandbox, seccomp_notify
from tool_runtime.platform.mounts import DiskView, LevelFinding, Namespaces
from tool_runtime.sandbox.launching import Launcher
from tool_runtime.threads import run_in_fresh_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp import Network

_TRY: Final = 'read -r line; if true 2>/dev/null >"$1"; then exit 3; fi; exit 0'
_TRY_VIEW: Final = 'if true 2>/dev/null >"$1"; then exit 3; fi; if read -r line < "$2"; then exit 4; fi; exit 0'
_FILES: Final = ("kept", "hidden")
_PATIENCE_S: Final = 10.0


_SHELL: Final = "/bin/sh"
_NONE_HERE: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
"""Errors of landlock, seccomp, unshare and mount if the level does not exist or this process may not use it. Any other
error is a failure of the trial: a machine whose disk is full still has a sandbox."""
_NO_NAMESPACES: Final = _NONE_HERE | {errno.EINVAL, errno.ENOSPC}
"""unshare answers so, too: a kernel made without them, or a limit of none. Landlock holds commands then."""
_NO_LISTENER: Final = _NONE_HERE | {errno.EINVAL, errno.EBUSY}
"""seccomp answers so, too, where there are no listeners, or this process is held by one. Landlock does without."""


class TrialProblem(NamedTuple):
    """Why a trial failed. `is_passing`: for a reason of its own, which says nothing about the level."""

    text: str
    is_passing: bool = False


class _NoScratch(OSError):
    """There is no place for the files of a trial."""


@contextmanager
def _scratch(directory: str) -> Iterator[tuple[str, str]]:
    """The paths of two files below `directory`, which go at the end; `tempfile` takes longer to import than all of
    this. Raises _NoScratch."""
    above, name = os.path.realpath(directory), f"agent-host-~probe-{os.urandom(8).hex()}"
    with ExitStack() as stack:
        try:
            held = stack.enter_context(open_directory(above))
            held.make_directory(name, PRIVATE_DIRECTORY)
            stack.callback(_remove, held, name)
            scratch = stack.enter_context(held.open_below(name))
            with suppress(OSError):  # held by a lock, or the next start removes it (`state.temporary.sweep`)
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
    """Try by files in `directory` whether threads can hold programs by Landlock."""
    if linux_calls.numbers() is None:
        return LevelFinding("landlock", works=False, problem=f"it is not known for {linux_calls.machine()}")
    try:
        abi = landlock.abi()
    except OSError as error:
        return LevelFinding("landlock", works=False, problem=_problem(error, _NONE_HERE).text, is_passing=True)
    if abi < landlock.LEAST_ABI:
        has = f"version {abi} of Landlock" if abi else "no Landlock, or it is switched off"
        return LevelFinding(
            "landlock", works=False, problem=f"the kernel has {has}; version {landlock.LEAST_ABI} is needed"
        )
    problem = _try_thread(directory, abi, with_listener=True)
    unheld = linux_sandbox.not_held(abi, is_supervised=problem is None)
    if problem is None:
        return LevelFinding("landlock", works=True, abi=abi, is_supervised=True, unheld=unheld)
    without = _try_thread(directory, abi, with_listener=False)
    if without is None:
        # Then every connection is refused: nothing is held less, and less works.
        return LevelFinding(
            "landlock",
            works=True,
            problem=f"no supervisor, so that no connection is made: {problem.text}",
            abi=abi,
            unheld=unheld,
            is_passing=problem.is_passing,
        )
    return LevelFinding("landlock", works=False, problem=without.text, abi=abi, is_passing=without.is_passing)


def _try_thread(directory: str, abi: int, *, with_listener: bool) -> TrialProblem | None:
    """Why a thread cannot hold a program so; None where it can."""
    rules = [landlock_rules.PathRule("/", landlock_rules.READ)]
    network: Network = "supervised" if with_listener else "closed"
    restriction = linux_sandbox.Restriction(rules, abi, network, with_listener)
    try:
        with _scratch(directory) as (kept, _):
            argv = [_SHELL, "-c", _TRY, "sh", kept]
            process, listener = run_in_fresh_thread(lambda: _start(restriction, argv))
            return _await_end(process, listener)
    except OSError as error:
        return _problem(error, _NO_LISTENER if with_listener else _NONE_HERE)


def _start(restriction: Restriction, argv: list[str]) -> tuple[subprocess.Popen[bytes], int | None]:
    listener = linux_sandbox.restrict_this_thread(restriction)
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env={}), listener
    except OSError:
        if listener is not None:
            os.close(listener)
        raise


def _await_end(process: subprocess.Popen[bytes], listener: int | None) -> TrialProblem | None:
    """The problem of the program that was tried; raises OSError if its descriptors cannot be had."""
    with process:
        try:
            if listener is not None:
                os.close(seccomp_notify.copy_descriptor(process.pid, 0))
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(b"\n", _PATIENCE_S)
            process.kill()
            if listener is not None:
                os.close(listener)
    code = process.returncode
    return None if code == 0 else TrialProblem(f"a held program ended with {code}", is_passing=True)


def namespace_level(directory: str, below: Callable[[], LevelFinding]) -> LevelFinding:
    """Try by files in `directory` whether programs can be given a view of the machine of their own, held as Landlock's
    level holds them: `below` finds that one."""
    kinds = [
        Namespaces(users, processes)
        for users in ((False, True) if os.geteuid() == 0 else (True,))
        for processes in (True, False)
    ]
    try:
        first = Launcher(kinds[0])  # it takes longest to be ready
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
            unheld = linux_sandbox.not_held_by_namespaces(processes=one.processes, is_supervised=under.is_supervised)
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
    """Why a program cannot be given `kinds` by `launcher`, which ends; None where it can. Raises OSError."""
    with ExitStack() as stack:
        stack.callback(_end, launcher)
        kept, hidden = stack.enter_context(_scratch(directory))
        network: Network = "supervised" if under.is_supervised else "closed"
        whole = landlock_rules.READ | landlock_rules.WRITE  # the view is what is tried
        rules = [landlock_rules.PathRule("/", whole)]
        restriction = linux_sandbox.Restriction(rules, under.abi, network, under.is_supervised)
        view = DiskView((), (), (hidden,), has_processes=kinds.processes)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            argv = [_SHELL, "-c", _TRY_VIEW, "sh", kept, hidden]
            began = launcher.start(argv, "/", {}, (null, null, null), view, restriction)
        finally:
            os.close(null)
        if began.listener is not None:
            os.close(began.listener)
        code = os.waitstatus_to_exitcode(os.waitpid(began.pid, 0)[1])
        return None if code == 0 else TrialProblem(f"a program with a view of its own ended with {code}")


def _problem(error: OSError, settled: frozenset[int]) -> TrialProblem:
    """The problem behind an error of a trial; one with an errno of `settled` means that there is no such level."""
    at = f" ({error.filename})" if error.filename else ""
    is_passing = isinstance(error, _NoScratch) or error.filename == _SHELL or error.errno not in settled
    return TrialProblem(f"{error.strerror or error}{at}", is_passing)
