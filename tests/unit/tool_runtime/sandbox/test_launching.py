"""Programs started in namespaces: what is left where the last step of a start fails."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tool_runtime.core import launching, sandbox
from tool_runtime.core.launching import Launcher
from tool_runtime.platform import landlock_rights, linux_sandbox, seccomp_notify
from tool_runtime.platform.mounts import View

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUND = sandbox.look("namespace")
pytestmark = pytest.mark.skipif(not FOUND.works or not FOUND.is_supervised, reason="namespaces do not work here")


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher(FOUND.namespaces)
    yield made
    made.close()


def start(launcher: Launcher, argv: list[str]) -> int:
    """The id of a program whose network is open, which is where the host copies the listener."""
    rules = [landlock_rights.PathRule("/", landlock_rights.READ)]
    restriction = linux_sandbox.Restriction(rules, FOUND.abi, "open", True)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        began = launcher.start(argv, "/", {}, (null, null, null), View((), (), ()), restriction)
    finally:
        os.close(null)
    assert began.listener is not None
    os.close(began.listener)
    return began.pid


def test_a_listener_that_cannot_be_copied_ends_the_start_and_leaves_no_process(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def refuse(process: int, _: int) -> int:
        refused.append(process)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(seccomp_notify, "copy_descriptor", refuse)
        with pytest.raises(BrokenPipeError, match="/bin/true"):
            start(launcher, ["/bin/true"])
    (process,) = refused
    assert not os.path.exists(f"/proc/{process}")
    assert len(os.listdir("/proc/self/fd")) == len(before)
    program = start(launcher, ["/bin/true"])  # the launcher goes on
    assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == 0


def test_a_start_that_is_late_ends_what_it_began(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[int] = []
    copied = seccomp_notify.copy_descriptor

    def stop(process: int, descriptor: int) -> int:
        late.append(process)
        os.kill(process, signal.SIGSTOP)
        return copied(process, descriptor)

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(seccomp_notify, "copy_descriptor", stop)
    monkeypatch.setattr(launching, "_PATIENCE_S", 0.2)
    with pytest.raises(TimeoutError):
        start(launcher, ["/bin/true"])
    (process,) = late
    assert not os.path.exists(f"/proc/{process}")
    assert len(os.listdir("/proc/self/fd")) == len(before)
