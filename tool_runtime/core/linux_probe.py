"""Whether this Linux can hold programs: tried with a small one."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from tool_runtime.core.fresh_thread import in_fresh_thread
from tool_runtime.core.launching import Launcher
from tool_runtime.core.sandbox import Found, Namespaces
from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory
from tool_runtime.platform import landlock, landlock_rights, linux_calls, linux_sandbox, seccomp_notify
from tool_runtime.platform.mounts import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp import Network

_TRY: Final = 'read -r line; if true 2>/dev/null >"$1"; then exit 3; fi; exit 0'
_TRY_VIEW: Final = 'if true 2>/dev/null >"$1"; then exit 3; fi; if read -r line < "$2"; then exit 4; fi; exit 0'
_FILES: Final = ("kept", "hidden")
_PATIENCE_S: Final = 10.0

_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


class Problem(NamedTuple):
    """Why a trial failed. `is_passing`: it says nothing about the next one."""

    text: str
    is_passing: bool = False


class _NoScratch(OSError):
    """There is no place for the files of a trial."""


@contextmanager
def _scratch() -> Iterator[tuple[str, str]]:
    """The paths of two files, which go at the end; `tempfile` takes longer to import than all of this. Raises
    _NoScratch."""
    above, name = os.path.realpath(os.environ.get("TMPDIR") or "/tmp"), f"agent-host-probe-{os.urandom(8).hex()}"  # noqa: S108  its name is random
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(open_directory(above))
            directory.make_directory(name, PRIVATE_DIRECTORY)
            stack.callback(_remove, directory, name)
            with directory.below(name) as scratch:
                for one in _FILES:
                    scratch.write_new(one, b"x", mode=0o600, durable=False)
        except OSError as error:
            raise _NoScratch(error.errno, error.strerror, above) from error
        yield os.path.join(above, name, _FILES[0]), os.path.join(above, name, _FILES[1])


def _remove(directory: OpenDirectory, name: str) -> None:
    with directory.below(name) as scratch:
        for one in scratch.names():
            scratch.remove(one)
    directory.remove_directory(name)


def landlock_level() -> Found:
    """Whether threads can hold programs by Landlock."""
    if linux_calls.numbers() is None:
        return Found("landlock", works=False, problem=f"it is not known for {linux_calls.machine()}")
    abi = landlock.abi()
    if abi < landlock.LEAST_ABI:
        has = f"version {abi} of Landlock" if abi else "no Landlock, or it is switched off"
        return Found("landlock", works=False, problem=f"the kernel has {has}; version {landlock.LEAST_ABI} is needed")
    problem = _try_thread(abi, with_listener=True)
    unheld = linux_sandbox.not_held(abi, is_supervised=problem is None)
    if problem is None:
        return Found("landlock", works=True, abi=abi, is_supervised=True, unheld=unheld)
    without = _try_thread(abi, with_listener=False)
    if without is None:
        # Then every connection is refused: nothing is held less, and less works.
        return Found(
            "landlock",
            works=True,
            problem=f"no supervisor, so that no connection is made: {problem.text}",
            abi=abi,
            unheld=unheld,
            is_passing=problem.is_passing,
        )
    return Found("landlock", works=False, problem=without.text, abi=abi, is_passing=without.is_passing)


def _try_thread(abi: int, *, with_listener: bool) -> Problem | None:
    """Why a thread cannot hold a program so; None where it can."""
    rules = [landlock_rights.PathRule("/", landlock_rights.READ)]
    network: Network = "supervised" if with_listener else "closed"
    restriction = linux_sandbox.Restriction(rules, abi, network, with_listener)
    try:
        with _scratch() as (kept, _):
            argv = ["/bin/sh", "-c", _TRY, "sh", kept]
            process, listener = in_fresh_thread(lambda: _started(restriction, argv))
            return _ended(process, listener)
    except OSError as error:
        return _problem(error)


def _started(restriction: Restriction, argv: list[str]) -> tuple[subprocess.Popen[bytes], int | None]:
    listener = linux_sandbox.restrict_this_thread(restriction)
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env={}), listener
    except OSError:
        if listener is not None:
            os.close(listener)
        raise


def _ended(process: subprocess.Popen[bytes], listener: int | None) -> Problem | None:
    """What is wrong with the program that was tried; raises OSError where its descriptors cannot be had."""
    is_late = False
    with process:
        try:
            if listener is not None:
                os.close(seccomp_notify.copy_descriptor(process.pid, 0))
        finally:
            try:
                process.communicate(b"\n", _PATIENCE_S)
            except subprocess.TimeoutExpired:
                is_late = True
            process.kill()
            if listener is not None:
                os.close(listener)
    code = process.returncode
    return None if code == 0 else Problem(f"a held program ended with {code}", is_passing=is_late)


def namespace_level(below: Callable[[], Found]) -> Found:
    """Whether programs can be given a view of the machine of their own, held as Landlock's level holds them: `below`
    finds that one."""
    try:
        launcher = Launcher()  # it takes longest to be ready
    except OSError as error:
        return _no_namespaces(_problem(error))
    try:
        return _namespaces(launcher, below())
    finally:
        threading.Thread(target=launcher.close, name="sandbox-launcher-end").start()


def _namespaces(launcher: Launcher, under: Found) -> Found:
    if not under.works:
        return _no_namespaces(Problem(under.problem, under.is_passing))
    problems = []
    for users in (False, True) if os.geteuid() == 0 else (True,):
        for processes in (True, False):
            kinds = Namespaces(users, processes)
            try:
                problem = _try_namespaces(launcher, kinds, under)
            except OSError as error:
                problem = _problem(error)
            if problem is None:
                unheld = linux_sandbox.not_held_by_namespaces(processes=processes, is_supervised=under.is_supervised)
                return under._replace(level="namespace", unheld=unheld, namespaces=kinds)
            problems.append(problem)
    return _no_namespaces(problems[-1]._replace(is_passing=any(one.is_passing for one in problems)))


def _no_namespaces(problem: Problem) -> Found:
    return Found("namespace", works=False, problem=problem.text, is_passing=problem.is_passing)


def _try_namespaces(launcher: Launcher, kinds: Namespaces, under: Found) -> Problem | None:
    """Why a program cannot be given `kinds`; None where it can. Raises OSError."""
    with _scratch() as (kept, hidden):
        network: Network = "supervised" if under.is_supervised else "closed"
        whole = landlock_rights.READ | landlock_rights.WRITE  # the view is what is tried
        rules = [landlock_rights.PathRule("/", whole)]
        restriction = linux_sandbox.Restriction(rules, under.abi, network, under.is_supervised)
        view = View((), (), (hidden,), has_processes=kinds.processes)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            argv = ["/bin/sh", "-c", _TRY_VIEW, "sh", kept, hidden]
            began = launcher.start(argv, "/", {}, (null, null, null), kinds, view, restriction)
        finally:
            os.close(null)
        if began.listener is not None:
            os.close(began.listener)
        code = os.waitstatus_to_exitcode(os.waitpid(began.pid, 0)[1])
        return None if code == 0 else Problem(f"a program with a view of its own ended with {code}")


def _problem(error: OSError) -> Problem:
    at = f" ({error.filename})" if error.filename else ""
    is_passing = isinstance(error, _NoScratch | TimeoutError) or error.errno in _PASSING
    return Problem(f"{error.strerror or error}{at}", is_passing)
