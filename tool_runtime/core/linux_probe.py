"""Whether this Linux can hold programs: tried with a small one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tool_runtime.core.fresh_thread import in_fresh_thread
from tool_runtime.core.sandbox import Found
from tool_runtime.platform import landlock, linux_calls, linux_sandbox, seccomp_notify

if TYPE_CHECKING:
    from tool_runtime.platform.linux_sandbox import Restriction
    from tool_runtime.platform.seccomp import Network

_TRY: Final = 'read -r line; if true 2>/dev/null >"$1"; then exit 3; fi; exit 0'
_PATIENCE_S: Final = 10.0


def landlock_level() -> Found:
    """Whether threads can hold programs by Landlock."""
    if linux_calls.numbers() is None:
        return Found("landlock", works=False, problem=f"it is not known for {linux_calls.machine()}")
    abi = landlock.abi()
    if abi < landlock.LEAST_ABI:
        has = f"version {abi} of Landlock" if abi else "no Landlock, or it is switched off"
        return Found("landlock", works=False, problem=f"the kernel has {has}; version {landlock.LEAST_ABI} is needed")
    unheld = linux_sandbox.not_held(abi)
    problem = try_thread(abi, with_listener=True)
    if problem is None:
        return Found("landlock", works=True, abi=abi, is_supervised=True, unheld=unheld)
    without = try_thread(abi, with_listener=False)
    if without is None:
        # Then every connection is refused: nothing is held less, and less works.
        return Found("landlock", works=True, problem=f"no supervisor: {problem}", abi=abi, unheld=unheld)
    return Found("landlock", works=False, problem=without, abi=abi)


def try_thread(abi: int, *, with_listener: bool) -> str | None:
    """Why a thread cannot hold a program so; None where it can."""
    with tempfile.TemporaryDirectory(prefix="agent-host-probe-") as directory:
        kept = os.path.join(directory, "kept")
        rules = [landlock.PathRule("/", landlock.READ)]
        network: Network = "supervised" if with_listener else "closed"
        restriction = linux_sandbox.Restriction(rules, abi, network, with_listener)
        try:
            process, listener = in_fresh_thread(lambda: _started(restriction, ["/bin/sh", "-c", _TRY, "sh", kept]))
            return _ended(process, listener)
        except OSError as error:
            return error.strerror or str(error)


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


def namespace_level() -> Found:
    """Whether programs can be given a view of the machine of their own."""
    return Found("namespace", works=False, problem="it is not built yet")
