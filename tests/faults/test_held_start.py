"""A host that is killed at each step of the start of a held command. Whatever runs by then is held, and ended with the
resume at the latest; nothing of it stays, and the resume says that the call was interrupted."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.process import Host, eventually, gateway, say, shell, use
from tool_runtime import sandbox as levels

if sys.platform != "linux":
    pytest.skip("there is no sandbox", allow_module_level=True)

from tool_runtime.platform import current

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SANDBOX, PLATFORM = "tool_runtime.sandbox", "tool_runtime.platform"
BOTH = (
    f"{SANDBOX}.protected_paths:Guarded.begin before 1",
    f"{SANDBOX}.protected_paths:Guarded.begin after 1",
    f"{SANDBOX}.session:Sandbox.launch before 1",
    f"{SANDBOX}.session:Sandbox.launch after 1",
    f"{SANDBOX}.supervisor:SocketSupervisor.watch after 1",
)
RUNNING = BOTH[3:]
STEPS = {
    "landlock": (
        *BOTH,
        f"{PLATFORM}.linux_calls:forbid_new_privileges after 1",
        f"{PLATFORM}.linux_sandbox:make_ruleset after 1",
        f"{PLATFORM}.linux_sandbox:restrict_self after 1",
        f"{PLATFORM}.seccomp:install after 1",
    ),
    "namespace": (
        *BOTH,
        f"{SANDBOX}.launching:Launcher.__init__ after 1",
        "socket:send_fds after 1",
        "socket:recv_fds before 1",
        "socket:recv_fds after 1",
        "socket:recv_fds after 2",
        "socket:recv_fds after 3",
    ),
}
# It tries what it may not until it is ended. The settings are written in one call and never empty: empty ones start no
# program, and are not reported.
SCRIPT = """
echo begun > begun.txt
while :; do
    echo x 2> /dev/null > ../outside
    echo x 2> /dev/null 1<> .git/config
    sleep 0.02
done
"""


@pytest.fixture
def orphans() -> Iterator[set[int]]:
    """Processes of this one before the test; what loses its parent becomes one, too."""
    current.adopt_orphans()
    yield set(living())
    current.adopt_orphans(adopt=False)


def living() -> list[int]:
    """All descendants of this process that have not ended, without those that wait to become a host; those that have
    ended are reaped."""
    rows = current.descendants(os.getpid())
    for pid, row in rows.items():
        if not row.alive and row.parent == os.getpid():
            current.reap(pid)
    return [pid for pid, row in rows.items() if row.alive and not waits_to_begin(pid)]


def waits_to_begin(pid: int) -> bool:
    """Whether it is one of those that `tests.support.process` starts ahead."""
    try:
        return b"tests.support.warm_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended just now
        return True


def groups() -> set[str]:
    """The control groups of hosts."""
    return {str(path) for path in Path("/sys/fs/cgroup").rglob("agent-host-*")}


@pytest.mark.slow
@pytest.mark.parametrize(("level", "step"), [(level, step) for level, steps in STEPS.items() for step in steps])
def test_what_a_killed_host_has_started_is_held_and_ended(
    host: Host, level: levels.Level, step: str, orphans: set[int]
) -> None:
    if not levels.look(level).works:
        pytest.skip(levels.look(level).problem)
    (host.workspace / ".git").mkdir()
    (host.workspace / ".git" / "config").write_text("mine")
    (host.workspace / "try.sh").write_text(SCRIPT)
    before = groups()
    with gateway(use(shell("sh try.sh")), say("Done.")) as served:
        program, env = "tests.support.killed_start", {"PYTHONPATH": str(ROOT), "KILL_AT": step}
        options = ("--gateway", served.url, "--policy", "ci", "--sandbox", level, "--session-id", "s1")
        ended = host.start("run", "Do it.", *options, "--output", "json", program=program, env=env).finish()
        assert ended.code == -signal.SIGKILL, ended
        if level == "landlock" and step in RUNNING:  # with namespaces it ends with its host
            eventually((host.workspace / "begun.txt").exists, "the program, which runs on")
        resumed = host.resume("s1")
        assert resumed.code == 0, resumed.stderr
        assert [call.get("code") for call in resumed.result["toolCalls"]] == ["TOOL_INTERRUPTED"]
        (told,) = served.results()
        assert told.is_error
    eventually(lambda: set(living()) <= orphans, "the end of all that the host has started")
    assert not (host.root / "outside").exists()
    changed = (host.workspace / ".git" / "config").read_text() != "mine"
    assert not changed or (level == "landlock" and ".git/config" in told.text)  # seen afterwards
    assert list(host.temporary.iterdir()) == []
    assert groups() <= before
    assert str(host.root) not in Path("/proc/self/mountinfo").read_text()
