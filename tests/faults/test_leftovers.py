"""Nothing that a command started outlives the host: a session that goes on elsewhere would have two writers."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.process import Host, call, eventually, gateway, say, shell, use

WAYS = """
import os, time
def stay(name):
    with open(name, "w") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)
def alone(name):
    os.setsid()
    stay(name)
def daemon(name):
    os.setsid()
    if os.fork() == 0:
        stay(name)
def stranger(name):
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", f"echo $$ > {name}; exec sleep 600"], {})
for way in (stay, alone, daemon, stranger):
    if os.fork() == 0:
        way(way.__name__)
        os._exit(0)
"""
CHAIN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = os.open("chain", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
while True:
    os.write(file, b".")
    if os.fork():
        os._exit(0)
    time.sleep(float(sys.argv[1]))
"""
NAMES = ("stay", "alone", "daemon", "stranger")
SEEN_S = 1.0
"""What has lived for so long has to end with the host."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and subreapers")


def left_by(host: Host) -> list[int]:
    """The four processes of WAYS, once they are there."""
    paths = [host.workspace / name for name in NAMES]
    eventually(lambda: all(path.exists() and path.read_text().endswith("\n") for path in paths), "all four")
    return [int(path.read_text()) for path in paths]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def lived(pids: list[int]) -> bool:
    """Whether the youngest has lived for SEEN_S."""
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    starts = [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / 100 for pid in pids]
    return up_s - max(starts) > SEEN_S


@pytest.mark.slow
@pytest.mark.parametrize("then", ["sleep 600", "true"])
def test_a_killed_host_leaves_nothing(host: Host, then: str) -> None:
    """While the command runs, and when it is over and only what it left behind runs."""
    (host.workspace / "ways.py").write_text(WAYS)
    with gateway(use(shell(f"{sys.executable} ways.py > /dev/null 2>&1; {then}")), {"hang": True}) as served:
        process = host.start_task(served.url, "--session-id", "s")
        pids = left_by(host)
        if then == "true":
            eventually(lambda: served.count == 2, "the next request")
        eventually(lambda: lived(pids), "a second")
        process.kill()
        eventually(lambda: all(map(is_gone, pids)), "the end of all four", within_s=20)


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.002, 0.02])
def test_a_killed_host_leaves_no_chain_that_keeps_forking(host: Host, pause_s: float) -> None:
    """The command is over, and each process of the chain lives for milliseconds: a look may see none of them alive."""
    (host.workspace / "chain.py").write_text(CHAIN)
    chain = f"{sys.executable} chain.py {pause_s} > /dev/null 2>&1"
    with gateway(use(shell(chain)), {"hang": True}) as served:
        process = host.start_task(served.url, "--session-id", "s")
        eventually(lambda: served.count == 2, "the next request")
        grown = (host.workspace / "chain").stat().st_size
        generations = int(SEEN_S / pause_s / 4)  # a generation takes longer than its pause
        eventually(lambda: (host.workspace / "chain").stat().st_size > grown + generations, "a second")
        process.kill()
        eventually(lambda: rests(host.workspace / "chain"), "the end of the chain", within_s=5)


def rests(path: Path) -> bool:
    """Whether nobody has written to it for half a second, which is many generations."""
    return time.time() - path.stat().st_mtime > SEEN_S / 2


def test_a_host_that_ends_leaves_nothing(host: Host) -> None:
    (host.workspace / "ways.py").write_text(WAYS)
    with gateway(use(shell(f"{sys.executable} ways.py > /dev/null 2>&1")), say("Done.")) as served:
        outcome = host.task(served.url)
        pids = left_by(host)
    assert outcome.code == 0
    assert all(map(is_gone, pids))


def children_of(pid: int) -> list[int]:
    """Each thread has its own."""
    return [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]


@pytest.mark.parametrize("watched", [True, False])
def test_a_resume_reports_the_background_command_that_a_kill_ended(host: Host, watched: bool) -> None:
    """With the watcher, which ends it at once, and where that is killed as well: then the resume does."""
    line = "echo $$ >> starts; echo up > up; exec sleep 600"
    os.mkfifo(host.workspace / "up")
    ends = use(call("CommandOutput", id="cmd_1"))
    with gateway(use(shell(line, background=True)), {"hang": True, "times": 1}, ends, say("Done.")) as served:
        process = host.start_task(served.url, "--session-id", "s")
        (host.workspace / "up").read_text()
        pid = int((host.workspace / "starts").read_text())
        eventually(lambda: served.count == 2, "the next request")
        eventually(lambda: len(children_of(process.pid)) == 2 and lived([pid]), "the watcher, and a second")
        if not watched:
            os.kill(process.pid, signal.SIGSTOP)  # or it starts another watcher
            for one in set(children_of(process.pid)) - {pid}:
                os.kill(one, signal.SIGKILL)
        process.kill()
        if watched:
            eventually(lambda: is_gone(pid), "the end of the command")
        else:
            assert not is_gone(pid)
        outcome = host.resume("s", "--gateway", served.url, "--output", "jsonl")
        assert outcome.code == 0
        assert is_gone(pid)
        said = json.dumps(served.bodies[2]["messages"])
        assert said.count("ended by a crash of the host") == 1
        assert said.count("cmd_1 (echo $$") == 1
    assert (host.workspace / "starts").read_text() == f"{pid}\n", "it was started once"
    ended = [event["payload"] for event in outcome.events if event["eventType"] == "command_ended"]
    assert [(one["commandId"], one["reason"]) for one in ended] == [("cmd_1", "interrupted")]
