"""Programs started in namespaces: what is left where the last step of a start fails."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.process import eventually
from tool_runtime import sandbox as levels
from tool_runtime.platform import current, landlock, linux_calls, linux_sandbox
from tool_runtime.platform.mounts import DiskView
from tool_runtime.sandbox import launching
from tool_runtime.sandbox.launching import Launcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOUND = levels.look("namespace")
pytestmark = pytest.mark.skipif(not FOUND.works or not FOUND.is_supervised, reason="namespaces do not work here")


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher(FOUND.namespaces)
    yield made
    made.close()


def start(launcher: Launcher, argv: list[str]) -> int:
    """The id of a program whose network is open, which is where the host copies the listener."""
    rules = [landlock.PathRule("/", landlock.READ)]
    restriction = linux_sandbox.Restriction(rules, FOUND.abi, "open", True)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        began = launcher.start(argv, "/", {}, (null, null, null), DiskView((), (), ()), restriction)
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
        patch.setattr(linux_calls, "copy_descriptor", refuse)
        with pytest.raises(BrokenPipeError, match="/bin/true"):
            start(launcher, ["/bin/true"])
    (process,) = refused
    assert not os.path.exists(f"/proc/{process}")
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    program = start(launcher, ["/bin/true"])  # the launcher goes on
    assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == 0


def test_a_start_that_is_late_ends_what_it_began(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[int] = []
    copied = linux_calls.copy_descriptor

    def stop(process: int, descriptor: int) -> int:
        late.append(process)
        os.kill(process, signal.SIGSTOP)
        return copied(process, descriptor)

    run(launcher)
    eventually(lambda: len(helpers_of(launcher)) == 3, "the next process to be ready")
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(linux_calls, "copy_descriptor", stop)
    monkeypatch.setattr(launching, "_PATIENCE_S", 0.2)
    with pytest.raises(TimeoutError):
        start(launcher, ["/bin/true"])
    (process,) = late
    assert not os.path.exists(f"/proc/{process}")
    assert len(os.listdir("/proc/self/fd")) <= len(before)


_BEFORE: set[int] = set()
"""Children of this process that tests in other files have left running."""


@pytest.fixture(autouse=True)
def _those_of_others() -> None:
    _BEFORE.clear()
    _BEFORE.update(current.descendants(os.getpid()))


def children() -> set[int]:
    """Children of this process, and theirs, that came with this test."""
    return current.descendants(os.getpid()).keys() - _BEFORE


def helpers_of(launcher: Launcher) -> dict[str, int]:
    """The process that is ready and the first process of its namespace, by their numbers there, and the launcher."""
    found = {"launcher": launcher._process.pid}
    for pid in children():
        status = Path(f"/proc/{pid}/status").read_text()
        inside = re.search(r"^NSpid:\s+\d+\s+(\d+)$", status, re.MULTILINE)
        if inside is not None and "\nState:\tZ" not in status:
            found["first" if inside[1] == "1" else "ready"] = pid
    return found


def run(launcher: Launcher) -> None:
    """Start a program, and see that it has done its work."""
    program = start(launcher, ["/bin/true"])
    assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == 0


def await_end_of(launcher: Launcher, helper: int) -> None:
    eventually(lambda: helper not in helpers_of(launcher).values(), "the helper to end")


@pytest.mark.parametrize("killed", ["launcher", "first", "ready"])
def test_a_program_starts_although_a_helper_was_killed(launcher: Launcher, killed: str) -> None:
    def rests() -> bool:
        launcher.reap()
        return len(helpers_of(launcher)) == len(children()) == 3

    run(launcher)
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        eventually(rests, "the next process to be ready, and nobody else to be left")
        there = helpers_of(launcher)
        os.kill(there[killed], signal.SIGKILL)
        if killed == "launcher":
            os.waitid(os.P_PID, there[killed], os.WEXITED | os.WNOWAIT)
        else:  # the first process of a namespace takes the others with it only once it comes to run
            await_end_of(launcher, there["ready"])
        run(launcher)
    eventually(rests, "the next process to be ready, and nobody else to be left")
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [("ready",), ("launcher", "ready")])
def test_a_helper_that_was_stopped_is_done_without(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, stopped: Sequence[str]
) -> None:
    run(launcher)
    eventually(lambda: len(helpers_of(launcher)) == 3, "the next process to be ready")
    there = helpers_of(launcher)
    for name in stopped:
        os.kill(there[name], signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(launching, "_PATIENCE_S", 2.0)
        run(launcher)
    launcher.close()
    assert not children()


def test_programs_go_on_when_the_launcher_has_died_and_leave_no_process(launcher: Launcher) -> None:
    """Of forty programs no process is left, which took a number each for ever."""
    runs_on = start(launcher, ["/bin/sleep", "600"])
    os.kill(launcher._process.pid, signal.SIGKILL)
    for _ in range(40):
        run(launcher)
    assert os.waitpid(runs_on, os.WNOHANG) == (0, 0)
    os.kill(runs_on, signal.SIGKILL)
    os.waitpid(runs_on, 0)
    launcher.close()
    assert not children()


def test_a_program_starts_though_the_launcher_dies_after_the_request(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that is ready takes the request, and has nobody left to tell."""
    run(launcher)
    eventually(lambda: len(helpers_of(launcher)) == 3, "the next process to be ready")
    os.kill(launcher._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, launcher._process.pid, os.WEXITED | os.WNOWAIT)
    with monkeypatch.context() as patch:
        patch.setattr(launcher._process, "poll", lambda: None)  # it died a moment later
        run(launcher)


def test_a_launcher_that_cannot_be_started_is_named(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    run(launcher)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    os.kill(launcher._process.pid, signal.SIGKILL)
    launcher._process.wait()
    with pytest.raises(OSError, match="the process that starts programs in the sandbox"):
        start(launcher, ["/bin/true"])
    monkeypatch.undo()
    run(launcher)


@pytest.mark.parametrize("change", ["hidden", "appears", "guarded", "folder", "writable", "linked"])
def test_a_process_that_is_ready_has_the_view_of_now(launcher: Launcher, tmp_path: Path, change: str) -> None:
    """What has got another name or content since it was made ready is held as if it had been made then."""
    places = {name: tmp_path / name for name in ("work", "hidden", "later", "other")}
    for name in ("work", "hidden", "other"):
        places[name].mkdir()
    work, hidden, later, other = places.values()
    (work / "folder").mkdir()
    (work / "folder" / "guarded").write_text("mine")
    (hidden / "secret").write_text("secret")
    (other / "secret").write_text("other")
    file = tmp_path / "file"
    file.write_text("secret")
    view = DiskView((str(work),), (str(work / "folder" / "guarded"),), (str(hidden), str(later), str(file)))
    script = (
        f"cat {hidden}/secret {later}/secret {file} {tmp_path}/moved/secret; echo x > {work}/folder/guarded;"
        f"echo x > {work}/new; echo x > {other}/new"
    )
    for _ in range(4):
        output(launcher, ["/bin/sh", "-c", script], view)
    eventually(lambda: len(helpers_of(launcher)) == 3, "the next process to be ready")
    match change:
        case "hidden":
            hidden.rename(tmp_path / "moved")
            other.rename(hidden)
            other.mkdir()
        case "appears":
            later.mkdir()
            (later / "secret").write_text("secret")
        case "guarded":
            (work / "folder" / "more").write_text("mine")
            (work / "folder" / "more").rename(work / "folder" / "guarded")
        case "folder":
            (work / "folder").rename(work / "before")
            (work / "folder").mkdir()
            (work / "folder" / "guarded").write_text("mine")
        case "writable":
            (work / "new").unlink()
            work.rename(tmp_path / "old")
            work.mkdir()
            (work / "folder").mkdir()
            (work / "folder" / "guarded").write_text("mine")
        case _:  # the same file by another name, whose cover went with the first
            os.link(file, tmp_path / "link")
            file.unlink()
            os.rename(tmp_path / "link", file)
    told = output(launcher, ["/bin/sh", "-c", script], view)
    assert ("secret" in told) == (change == "hidden")  # which has a name now that nobody hides
    assert "other" not in told
    assert (work / "folder" / "guarded").read_text() == "mine"
    assert (work / "new").exists()
    assert not (other / "new").exists()
    assert not (tmp_path / "old" / "new").exists()


def test_a_process_that_is_ready_runs_nothing_of_another_scope(launcher: Launcher) -> None:
    """Neither one with fewer rights nor one with more."""
    wide, narrow = DiskView((), (), ()), DiskView((), (), ("/etc",))
    few = [landlock.PathRule(path, landlock.READ) for path in ("/usr", "/bin", "/lib", "/lib64")]
    for _ in range(2):
        for view, rules, told in ((wide, WHOLE, True), (wide, few, False), (narrow, WHOLE, False), (wide, WHOLE, True)):
            for _ in range(3):
                eventually(lambda: len(helpers_of(launcher)) == 3, "the next process to be ready")
                assert ("root" in output(launcher, ["/bin/cat", "/etc/passwd"], view, rules)) == told


def test_shared_memory_of_others_is_out_of_sight(launcher: Launcher) -> None:
    """Also where a scope names its folder, as every scope does that writes the devices."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as others:
        view = DiskView(("/dev/null", "/dev/shm", "/dev/pts"), (), ())
        assert output(launcher, ["/bin/ls", "/dev/shm", "/dev/pts"], view).split() == ["/dev/pts:", "ptmx", "/dev/shm:"]
        assert os.path.exists(others.name)


WHOLE = [landlock.PathRule("/", landlock.READ | landlock.WRITE)]


def output(launcher: Launcher, argv: list[str], view: DiskView, rules: Sequence[landlock.PathRule] = WHOLE) -> str:
    """What a program prints that only its view holds back, unless `rules` do."""
    restriction = linux_sandbox.Restriction(rules, FOUND.abi, "supervised", True)
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        began = launcher.start(argv, "/", {"PATH": "/usr/bin:/bin"}, (null, write, null), view, restriction)
    finally:
        os.close(null)
        os.close(write)
    assert began.listener is not None
    os.close(began.listener)
    with open(read, encoding="utf-8") as printed:
        text = printed.read()
    os.waitpid(began.pid, 0)
    return text
