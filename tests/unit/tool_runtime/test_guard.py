"""What commands leave behind ends with the runtime that guards them; what forks all the time is ended, too (TR 6.2)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_host.contracts import Leftovers
from tool_runtime.platform import posix, windows
from tool_runtime.processes import guard, orphan_reaper
from tool_runtime.processes.guard import ProcessGuard

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.tool_runtime.conftest import MakeRouter

from tests.unit.tool_runtime.conftest import request, until

CHAIN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pause_s, leaves = float(sys.argv[1]), sys.argv[2] == "leaves"
open("begun", "w").close()
while True:
    if os.fork():
        os._exit(0)
    if leaves:
        os.setsid()
    os.utime("begun")
    time.sleep(pause_s)
"""
PR_GET_CHILD_SUBREAPER = 37
WATCHER = Path(guard.__file__).with_name("orphan_reaper.py")
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", "echo $$ > daemon; exec sleep 600"], {})
    os._exit(0)
while not os.path.exists("daemon") or not open("daemon").read().endswith("\\n"):
    time.sleep(0.005)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and subreapers")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def running(script: Path) -> list[int]:
    """Live processes that run it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(script) in line and is_alive(int(name)):
            found.append(int(name))
    return found


def watchers() -> list[int]:
    """Those of this process."""
    mine = str(os.getpid())
    return [pid for pid in running(WATCHER) if Path(f"/proc/{pid}/stat").read_text().split()[3] == mine]


def written(workspace: Path, text: str) -> str:
    """The command line that runs `text` as a script."""
    script = workspace / "script.py"
    script.write_text(text)
    return f"{sys.executable} {script}"


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["stays", "leaves"])
@pytest.mark.parametrize("pause_s", [0.002, 0.02])
@pytest.mark.parametrize("way", ["time-out", "cancel"])
async def test_a_chain_that_keeps_forking_is_ended(
    make_router: MakeRouter, workspace: Path, way: str, pause_s: float, leaves: str
) -> None:
    router = make_router(kill_grace_s=0.1, guard_processes=True)
    command = f"{written(workspace, CHAIN)} {pause_s} {leaves}; sleep 600"
    timeout = 1 if way == "time-out" else 60
    call = asyncio.create_task(router.execute(request("RunCommand", command=command, timeout=timeout)))
    await until((workspace / "begun").exists)
    if way == "cancel":
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        result = await call
        assert result.error is not None
        assert result.error.message == "Command timed out after 1 seconds"
    assert running(workspace / "script.py") == []


@pytest.mark.parametrize("leaves", ["stays", "leaves"])
@pytest.mark.parametrize("pause_s", [0.002, 0.02])
async def test_a_chain_that_a_command_left_behind_ends_with_the_runtime(
    make_router: MakeRouter, workspace: Path, pause_s: float, leaves: str
) -> None:
    router = make_router(guard_processes=True)
    chain = written(workspace, CHAIN)
    await router.execute(request("RunCommand", command=f"env -i {chain} {pause_s} {leaves} > /dev/null 2>&1"))
    await router.aclose()
    assert running(workspace / "script.py") == []


async def test_a_resume_does_not_rely_on_one_empty_look(
    make_router: MakeRouter, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may fall between two generations of a chain."""
    router = make_router()
    call = request("RunCommand", command="sleep 600 > /dev/null 2>&1 & echo $! > left")
    assert (await router.execute(call)).status == "succeeded"
    left = int((workspace / "left").read_text())
    looks = [dict[int, int]()]
    look = posix.tree_members
    monkeypatch.setattr(posix, "tree_members", lambda *given: looks.pop() if looks else look(*given))
    assert (await router.end_leftovers(call)).ended == 1
    assert not is_alive(left)


@pytest.mark.slow
async def test_children_that_no_command_started_are_left_alone(make_router: MakeRouter) -> None:
    """Those of a program that embeds the host, for example; their exit code is for whoever started them."""
    router = make_router(guard_processes=True)
    ended = subprocess.Popen(["sh", "-c", "exit 3"])  # noqa: ASYNC220  nobody waits for it here
    goes_on = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220
    try:
        await until(lambda: not is_alive(ended.pid))
        await router.execute(request("RunCommand", command="sleep 0.8"))  # the guard looks meanwhile
        await router.aclose()
        assert is_alive(goes_on.pid)
        assert ended.wait() == 3
    finally:
        goes_on.kill()
        goes_on.wait()


async def test_what_outlives_its_command_ends_with_the_runtime(make_router: MakeRouter, workspace: Path) -> None:
    """It left its session, its group and its environment behind."""
    router = make_router(guard_processes=True)
    result = await router.execute(request("RunCommand", command=written(workspace, DAEMON)))
    assert result.status == "succeeded", result
    daemon = int((workspace / "daemon").read_text())
    assert is_alive(daemon), "while the runtime is there it may go on"
    await router.aclose()
    assert not is_alive(daemon)


async def test_without_a_guard_nobody_is_ended(make_router: MakeRouter, workspace: Path) -> None:
    router = make_router()
    await router.execute(request("RunCommand", command=written(workspace, DAEMON)))
    daemon = int((workspace / "daemon").read_text())
    await router.aclose()
    assert is_alive(daemon)
    os.kill(daemon, 9)


async def test_the_dead_are_not_left_in_the_process_table(make_router: MakeRouter, workspace: Path) -> None:
    router = make_router(guard_processes=True)
    await router.execute(request("RunCommand", command=written(workspace, DAEMON)))
    daemon = int((workspace / "daemon").read_text())
    os.kill(daemon, 9)
    await until(lambda: not Path(f"/proc/{daemon}").exists())


@pytest.mark.slow
async def test_a_watcher_that_was_ended_is_replaced(make_router: MakeRouter, workspace: Path) -> None:
    router = make_router(guard_processes=True)
    call = asyncio.create_task(router.execute(request("RunCommand", command="sleep 600", timeout=60)))
    await until(lambda: bool(watchers()))
    (first,) = watchers()
    os.kill(first, 9)
    await until(lambda: bool(watchers()) and watchers() != [first])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await router.aclose()
    assert watchers() == []


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["M=1", f"M={'x' * 2**20}"])
async def test_a_watcher_that_was_stopped_keeps_nobody_waiting(mark: str) -> None:
    """Nor where its pipe is full, since what there is to tell it is longer than that."""
    guard = ProcessGuard()
    first = guard.start(asleep, "M=1")
    await until(lambda: bool(watchers()))
    (stopped,) = watchers()
    os.kill(stopped, signal.SIGSTOP)
    second = guard.start(asleep, mark)
    async with asyncio.timeout(30):
        await asyncio.to_thread(guard.close)
    assert not any(map(is_alive, (stopped, first.pid, second.pid)))
    assert [first.wait(), second.wait()] == [-signal.SIGKILL, -signal.SIGKILL]


def asleep() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


def group_at(folder: Path) -> Path:
    """What the kernel shows of a group, as plain files."""
    folder.mkdir(parents=True)
    for name in ("cgroup.procs", "cgroup.kill"):
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("0::/user/app\n", True),
        ("8:pids:/\n0::/user/app\n", True),
        ("0::/\n", False),
        ("8:pids:/user/app\n", False),
        ("0::/elsewhere\n", False),
        ("", False),
    ],
)
def test_a_control_group_is_made_where_it_may_be(tmp_path: Path, own: str, *, found: bool) -> None:
    group_at(tmp_path / "fs/user/app")
    (tmp_path / "own").write_text(own)
    made = guard.make_group("agent-host-1", root=str(tmp_path / "fs"), own=str(tmp_path / "own"))
    assert made == (str(tmp_path / "fs/user/app/agent-host-1") if found else None)
    assert (tmp_path / "fs/user/app/agent-host-1").is_dir() == found
    assert guard.make_group("agent-host-1", root=str(tmp_path / "fs"), own=str(tmp_path / "none")) is None


async def test_commands_are_put_into_the_control_group_and_it_is_ended(
    make_router: MakeRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_at(tmp_path / "group")
    monkeypatch.setattr(guard, "make_group", lambda _: str(group))
    router = make_router(guard_processes=True)
    result = await router.execute(request("RunCommand", command="echo $$"))
    assert result.output_text is not None
    assert (group / "cgroup.procs").read_text() in result.output_text
    assert (group / "cgroup.kill").read_text() == ""
    await router.aclose()
    assert (group / "cgroup.kill").read_text() == "1"


def test_the_watcher_ends_the_control_group(tmp_path: Path) -> None:
    group = group_at(tmp_path / "a group")
    lines = f"cgroup {group}\nmarks\nmembers\n".encode()
    subprocess.run([sys.executable, "-I", "-S", "-E", WATCHER], input=lines, timeout=30, check=True)
    assert (group / "cgroup.kill").read_text() == "1"


def watched(*members: tuple[int, int, int]) -> None:
    """What the watcher does once the host is dead, which had reported `members`: process, start time, group."""
    said = " ".join(f"{pid}:{started}:{group}" for pid, started, group in members)
    lines = f"marks\nmembers {said}\n".encode()
    subprocess.run([sys.executable, "-I", "-S", "-E", WATCHER], input=lines, timeout=30, check=True)


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.02])
async def test_the_watcher_ends_a_chain_of_which_only_the_group_is_known(workspace: Path, pause_s: float) -> None:
    line = written(workspace, CHAIN)
    leader = subprocess.Popen(  # noqa: ASYNC220  nobody waits for it here
        [*line.split(), str(pause_s), "stays"], cwd=workspace, start_new_session=True
    )
    leader.wait()
    await until((workspace / "begun").exists)
    watched((leader.pid, 1, leader.pid))
    assert running(workspace / "script.py") == []


def test_the_watcher_spares_a_process_that_got_the_number_of_one_that_ended() -> None:
    stranger = asleep()
    try:
        watched((stranger.pid, 1, stranger.pid))
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("kill_group", [guard.kill_group, orphan_reaper.kill_group])
def test_the_numbers_that_mean_no_group_are_not_killed(
    monkeypatch: pytest.MonkeyPatch, kill_group: Callable[[int], None]
) -> None:
    """A process table shows group 0 for the kernel's own; as numbers to kill, 0 and 1 would take in everybody."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(-pid))
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    for group in (-1, 0, 1, 2):
        kill_group(group)
    assert killed == [2]


def is_subreaper() -> bool:
    answer = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0
    return answer.value == 1


async def test_orphans_are_adopted_as_long_as_there_is_a_runtime_to_reap_them(make_router: MakeRouter) -> None:
    """Those of the process that embeds it would fill the process table."""
    assert not is_subreaper()
    router = make_router(guard_processes=True)
    await router.execute(request("RunCommand", command="true"))
    assert is_subreaper()
    await router.aclose()
    assert not is_subreaper()


def test_descendants_are_the_same_however_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "sleep 600 & sh -c 'sleep 600 & echo; wait' & wait"
    tree = subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert tree.stdout is not None
        tree.stdout.read(1)
        found = posix.descendants(tree.pid)
        monkeypatch.setattr(posix, "children_are_listed", lambda: False)
        assert found == posix.descendants(tree.pid)
        assert len(found) == 3
    finally:
        os.killpg(tree.pid, signal.SIGKILL)
        tree.communicate()


def test_a_note_about_what_does_not_die_is_bounded() -> None:
    note = Leftovers(0, tuple(range(1000))).note()
    assert note.startswith("still running after SIGKILL: 0, 1, ")
    assert note.endswith(" and 980 more")


def test_what_does_not_die_is_reported() -> None:
    """SIGKILL leaves a process in an uninterruptible wait as it is."""
    hunted = guard.kill_until_quiet(lambda _: {2**22 + 1: 7})
    assert hunted.running == (2**22 + 1,)
    assert hunted.note() == f"still running after SIGKILL: {2**22 + 1}"


@pytest.mark.parametrize(("pointer_bytes", "size"), [(8, 144), (4, 112)])
def test_the_limits_of_a_windows_job_are_laid_out_as_windows_reads_them(pointer_bytes: int, size: int) -> None:
    limits = windows.job_limits(pointer_bytes)
    assert len(limits) == size
    assert struct.unpack_from("<I", limits, 16) == (0x2000,)
    assert sum(limits) == 0x20
