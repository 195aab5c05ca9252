"""What commands leave behind ends with the runtime that guards them; what forks all the time is ended, too (TR 6.2)."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tool_runtime.core import hunt
from tool_runtime.platform import cgroups, windows

if TYPE_CHECKING:
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


def written(workspace: Path, text: str) -> str:
    """The command line that runs `text` as a script."""
    script = workspace / "script.py"
    script.write_text(text)
    return f"{sys.executable} {script}"


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


async def test_a_watcher_that_was_ended_is_replaced(make_router: MakeRouter, workspace: Path) -> None:
    router = make_router(guard_processes=True)
    call = asyncio.create_task(router.execute(request("RunCommand", command="sleep 600", timeout=60)))
    watcher = Path(hunt.__file__).with_name("watcher.py")
    mine = os.getpid()

    def ours() -> list[int]:
        return [pid for pid in running(watcher) if Path(f"/proc/{pid}/stat").read_text().split()[3] == str(mine)]

    await until(lambda: bool(ours()))
    (first,) = ours()
    os.kill(first, 9)
    await until(lambda: bool(ours()) and ours() != [first])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await router.aclose()
    assert ours() == []


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
    made = cgroups.make("agent-host-1", root=str(tmp_path / "fs"), own=str(tmp_path / "own"))
    assert made == (str(tmp_path / "fs/user/app/agent-host-1") if found else None)
    assert (tmp_path / "fs/user/app/agent-host-1").is_dir() == found
    assert cgroups.make("agent-host-1", root=str(tmp_path / "fs"), own=str(tmp_path / "none")) is None


async def test_commands_are_put_into_the_control_group_and_it_is_ended(
    make_router: MakeRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_at(tmp_path / "group")
    monkeypatch.setattr(cgroups, "make", lambda _: str(group))
    router = make_router(guard_processes=True)
    result = await router.execute(request("RunCommand", command="echo $$"))
    assert result.output_text is not None
    assert (group / "cgroup.procs").read_text() in result.output_text
    assert (group / "cgroup.kill").read_text() == ""
    await router.aclose()
    assert (group / "cgroup.kill").read_text() == "1"


def test_the_watcher_ends_the_control_group(tmp_path: Path) -> None:
    group = group_at(tmp_path / "a group")
    watcher = Path(hunt.__file__).with_name("watcher.py")
    lines = f"cgroup {group}\nmarks\nmembers\n".encode()
    subprocess.run([sys.executable, "-I", "-S", "-E", watcher], input=lines, timeout=30, check=True)
    assert (group / "cgroup.kill").read_text() == "1"


def test_what_does_not_die_is_reported() -> None:
    """SIGKILL leaves a process in an uninterruptible wait as it is."""
    hunted = hunt.kill_until_quiet(lambda _: {2**22 + 1: 7})
    assert hunted.running == (2**22 + 1,)
    assert hunted.note() == f"still running after SIGKILL: {2**22 + 1}"


@pytest.mark.parametrize(("pointer_bytes", "size"), [(8, 144), (4, 112)])
def test_the_limits_of_a_windows_job_are_laid_out_as_windows_reads_them(pointer_bytes: int, size: int) -> None:
    limits = windows.job_limits(pointer_bytes)
    assert len(limits) == size
    assert struct.unpack_from("<I", limits, 16) == (0x2000,)
    assert sum(limits) == 0x20
