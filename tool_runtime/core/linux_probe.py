"""Whether this Linux can hold programs: tried with a small one."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tool_runtime.core.fresh_thread import in_fresh_thread
from tool_runtime.core.launching import Launcher
from tool_runtime.core.sandbox import Found, Namespaces
from tool_runtime.platform import landlock, landlock_rights, linux_calls, linux_sandbox, seccomp_notify
from tool_runtime.platform.mounts import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp import Network

_TRY: Final = 'read -r line; if true 2>/dev/null >"$1"; then exit 3; fi; exit 0'
_TRY_VIEW: Final = 'if true 2>/dev/null >"$1"; then exit 3; fi; if read -r line < "$2"; then exit 4; fi; exit 0'
_PATIENCE_S: Final = 10.0


@contextmanager
def _scratch() -> Iterator[str]:
    """A directory for two files, which goes at the end; `tempfile` takes longer to import than all of this."""
    path = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"agent-host-probe-{os.urandom(8).hex()}")  # noqa: S108  its name is random, and mkdir follows nothing
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)


def landlock_level() -> Found:
    """Whether threads can hold programs by Landlock."""
    if linux_calls.numbers() is None:
        return Found("landlock", works=False, problem=f"it is not known for {linux_calls.machine()}")
    abi = landlock.abi()
    if abi < landlock.LEAST_ABI:
        has = f"version {abi} of Landlock" if abi else "no Landlock, or it is switched off"
        return Found("landlock", works=False, problem=f"the kernel has {has}; version {landlock.LEAST_ABI} is needed")
    problem = try_thread(abi, with_listener=True)
    unheld = linux_sandbox.not_held(abi, is_supervised=problem is None)
    if problem is None:
        return Found("landlock", works=True, abi=abi, is_supervised=True, unheld=unheld)
    without = try_thread(abi, with_listener=False)
    if without is None:
        # Then every connection is refused: nothing is held less, and less works.
        return Found(
            "landlock",
            works=True,
            problem=f"no supervisor, so that no connection is made: {problem}",
            abi=abi,
            unheld=unheld,
        )
    return Found("landlock", works=False, problem=without, abi=abi)


def try_thread(abi: int, *, with_listener: bool) -> str | None:
    """Why a thread cannot hold a program so; None where it can."""
    rules = [landlock_rights.PathRule("/", landlock_rights.READ)]
    network: Network = "supervised" if with_listener else "closed"
    restriction = linux_sandbox.Restriction(rules, abi, network, with_listener)
    try:
        with _scratch() as directory:
            argv = ["/bin/sh", "-c", _TRY, "sh", os.path.join(directory, "kept")]
            process, listener = in_fresh_thread(lambda: _started(restriction, argv))
            return _ended(process, listener)
    except OSError as error:
        return _said(error)


def _started(restriction: Restriction, argv: list[str]) -> tuple[subprocess.Popen[bytes], int | None]:

    listener = linux_sandbox.restrict_this_thread(restriction)
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env={}), listener
    except OSError:
        if listener is not None:
            os.close(listener)
        raise


def _ended(process: subprocess.Popen[bytes], listener: int | None) -> str | None:
    """What is wrong with the program that was tried; raises OSError where its descriptors cannot be had."""

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
    return None if process.returncode == 0 else f"a held program ended with {process.returncode}"


def namespace_level(below: Callable[[], Found]) -> Found:
    """Whether programs can be given a view of the machine of their own, held as Landlock's level holds them: `below`
    finds that one."""
    try:
        launcher = Launcher()  # it takes longest to be ready
    except OSError as error:
        return Found("namespace", works=False, problem=_said(error))
    try:
        return _namespaces(launcher, below())
    finally:
        threading.Thread(target=launcher.close, name="sandbox-launcher-end").start()


def _namespaces(launcher: Launcher, under: Found) -> Found:
    if not under.works:
        return Found("namespace", works=False, problem=under.problem)
    problems = []
    for users in (False, True) if os.geteuid() == 0 else (True,):
        for processes in (True, False):
            kinds = Namespaces(users, processes)
            try:
                problem = _try_namespaces(launcher, kinds, under)
            except OSError as error:
                problem = _said(error)
            if problem is None:
                unheld = linux_sandbox.not_held_by_namespaces(processes=processes, is_supervised=under.is_supervised)
                return under._replace(level="namespace", unheld=unheld, namespaces=kinds)
            problems.append(problem)
    return Found("namespace", works=False, problem=problems[-1])


def _try_namespaces(launcher: Launcher, kinds: Namespaces, under: Found) -> str | None:
    """Why a program cannot be given `kinds`; None where it can. Raises OSError."""
    with _scratch() as directory:
        kept, hidden = (os.path.join(directory, name) for name in ("kept", "hidden"))
        for path in (kept, hidden):
            with open(path, "w", encoding="utf-8") as file:
                file.write("x")
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
        return None if code == 0 else f"a program with a view of its own ended with {code}"


def _said(error: OSError) -> str:
    at = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{at}"
