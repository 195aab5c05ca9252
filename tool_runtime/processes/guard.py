"""Processes that commands start end with this process, however it ends.

While a command runs this process adopts orphans, so that what leaves its session, its group and its environment behind
is a descendant all the same; where the machine delegates a control group, commands have one of their own. A thread
tells a watcher, a small process of its own, which processes that are. When the host is killed the pipe between them
ends, and the watcher kills them. At an orderly end the host does so itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tool_runtime.platform import WINDOWS, current, windows
from tool_runtime.processes.pipes import NOBODY, kill_group, kill_until_quiet
from tool_runtime.sandbox import Backoff, end_helper, start_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.contracts import Leftovers
    from tool_runtime.platform.posix import ProcessEntry

TICK_S: Final = 0.25
"""Maximum age of the watcher's view; a process that lived for a second is known."""
_REAPER: Final = os.path.join(os.path.dirname(__file__), "orphan_reaper.py")
_PATIENCE_S: Final = 1.0
_MAX_MARKS: Final = 64
_CGROUPS: Final = "/sys/fs/cgroup"
_OWN_CGROUP: Final = "/proc/self/cgroup"
_KILL_FILE: Final = "cgroup.kill"
_MEMBERS_FILE: Final = "cgroup.procs"
_LEFT = "(setsid env -i sh -c 'echo $$; exec sleep 60' &) ; sleep 60"


class ProcessGuard:
    """For one host process; made with it, started with the first command. Safe to use from its event loop. One at a
    time in a process: it takes every descendant for its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaders: set[int] = set()
        self._marks: list[str] = []
        self._awake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff()
        self._reported = b""
        self._has_reported = False
        self._known: dict[int, int] = {}
        self._cgroup: str | None = None
        self._job: windows.JobObject | None = None

    def start(self, start: Callable[[], subprocess.Popen[bytes]], mark: str) -> subprocess.Popen[bytes]:
        """The process that `start` starts, under guard. `mark` (`NAME=value`) is in its environment. Raises what
        `start` raises."""
        if WINDOWS:
            self._job = self._job or windows.JobObject()
            process = start()
            self._job.add(process)
            return process
        if self._thread is None:
            current.adopt_orphans()
            self._cgroup = make_group(f"agent-host-{os.getpid()}")
            self._thread = threading.Thread(target=self._run, name="process-guard", daemon=True)
            self._thread.start()
        with self._lock:  # between the two nobody may reap it
            process = start()
            if self._cgroup is not None:
                _add_to_group(self._cgroup, process.pid)
            self._leaders.add(process.pid)
            self._marks = [*self._marks[-_MAX_MARKS + 1 :], mark]
        self._awake.set()
        return process

    @property
    def has_reported(self) -> bool:
        """True if the watcher process has what it needs to end what commands have left running."""
        return self._has_reported

    def release(self, process: subprocess.Popen[bytes]) -> None:
        """The shell has ended, or is no longer waited for; what it left goes on under guard."""
        with self._lock:
            process.poll()
            self._leaders.discard(process.pid)

    def close(self) -> Leftovers:
        """End everything that commands have left running. Blocks, 0.2 s where there is anything."""
        job, self._job = self._job, None
        if job is not None:
            job.close()
        if self._thread is None:
            return NOBODY
        self._closing.set()
        self._awake.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive() and self._watcher is not None:
            self._watcher.kill()  # somebody stopped it, and its pipe is full
            self._thread.join()
        self._reap(self._rows())
        # Of a chain that keeps forking a zombie at least is there at any time: nobody else reaps it.
        left = kill_until_quiet(self._found) if self._rows() else NOBODY
        self._reap(self._rows())
        if self._cgroup is not None:
            _end_group(self._cgroup)
        # Nobody reaps them from here on: what escaped would fill the process table as long as this process lives.
        current.adopt_orphans(adopt=False)
        self._say(b"bye\n")
        self._let_go()
        return left

    # In the thread

    def _run(self) -> None:
        """A look costs milliseconds, so there is one a tick, whatever is started meanwhile. What ends within a tick
        costs nothing, the watcher's start included."""
        busy = False
        while True:
            if not busy:
                self._awake.wait()
            self._awake.clear()
            if self._closing.wait(TICK_S):
                return
            rows = self._rows()
            if rows or self._watcher is not None:
                self._tell(rows)
            self._reap(rows)
            busy = bool(rows) or bool(self._leaders)

    def _rows(self) -> dict[int, ProcessEntry]:
        """The processes of commands: all descendants of this process but the watcher and those in its own process
        group. Commands start in sessions of their own, from which nobody comes back; what is in this group was started
        by somebody else in this process, who waits for it."""
        rows = current.descendants(os.getpid())
        if self._watcher is not None:
            rows.pop(self._watcher.pid, None)
        own = os.getpgrp()
        known, self._known = self._known, {}
        for pid, started in known.items() - {(pid, row.started) for pid, row in rows.items()}:
            row = current.entry_of(pid)  # one look may miss it
            if row is not None and row.started == started:
                rows[pid] = row
        rows = {pid: row for pid, row in rows.items() if row.group != own}
        self._known = {pid: row.started for pid, row in rows.items()}
        return rows

    def _found(self, on_sight: Callable[[int], None]) -> Mapping[int, int]:
        """For the hunt at the end."""
        rows = self._rows()
        self._reap(rows)
        live = {pid: row for pid, row in rows.items() if row.alive}
        for pid in live:
            on_sight(pid)
        for group in {row.group for row in live.values()}:
            kill_group(group)
        return {pid: row.started for pid, row in live.items()}

    def _reap(self, rows: Mapping[int, ProcessEntry]) -> None:
        """Adopted children that have ended. Those that somebody started and waits for are not touched."""
        with self._lock:
            for pid, row in rows.items():
                if not row.alive and row.parent == os.getpid() and pid not in self._leaders:
                    current.reap(pid)

    def _tell(self, rows: Mapping[int, ProcessEntry]) -> None:
        """The dead are reported, too: of what keeps forking a look may see nobody else, and they show the group."""
        members = " ".join(f"{pid}:{row.started}:{row.group}" for pid, row in sorted(rows.items()))
        marks = " ".join(mark for mark in self._marks if " " not in mark and "\n" not in mark)
        group = "" if self._cgroup is None else f"cgroup {self._cgroup}\n"
        report = f"marks {marks}\nmembers {members}\n" if members else f"marks {marks}\nmembers\n"
        line = (group + report).encode()
        if line == self._reported and self._watcher_is_alive():
            self._backoff.worked()  # for a tick at least
            return
        self._reported = line
        said = self._say(line)
        if not said:  # somebody ended it
            self._let_go()
            self._start_watcher()
            said = self._say(line)
        self._has_reported = said

    def _watcher_is_alive(self) -> bool:
        return self._watcher is not None and self._watcher.poll() is None

    def _say(self, line: bytes) -> bool:
        watcher = self._watcher
        if watcher is None or watcher.stdin is None:
            return False
        try:
            watcher.stdin.write(line)
            watcher.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def _start_watcher(self) -> None:
        """Without one, as in a program that is no Python interpreter, only a resume looks for what was left."""
        if self._backoff.wait_s == 0:
            self._backoff.failed()
            with suppress(OSError):
                self._watcher = start_helper(_REAPER, stdin=subprocess.PIPE, own_session=True)

    def _let_go(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            end_helper(watcher)


def make_group(name: str, *, root: str = _CGROUPS, own: str = _OWN_CGROUP) -> str | None:
    """A new control group below that of this process, None where this user may make none there (version 2 with
    `cgroup.kill` only). Found by the file `own`, below `root`."""
    try:
        with open(own, encoding="utf-8") as file:
            within = next((line[3:].strip() for line in file if line.startswith("0::")), None)
        if within is None:
            return None
        parent = os.path.normpath(f"{root}/{within}")
        if not all(os.access(os.path.join(parent, part), os.W_OK) for part in ("", _MEMBERS_FILE, _KILL_FILE)):
            return None  # the root group has no such file: it can't be killed, and is nobody's to divide
        path = os.path.join(parent, name)
        os.mkdir(path, 0o700)
    except (OSError, UnicodeDecodeError):
        return None
    return path


def _add_to_group(path: str, pid: int) -> None:
    """Put a process into the group; what it starts from then on is in it, too. One that is gone needs no place."""
    _write_to(os.path.join(path, _MEMBERS_FILE), str(pid))


def _end_group(path: str) -> None:
    """Kill all that is in the group, and take the group away once it is empty."""
    _write_to(os.path.join(path, _KILL_FILE), "1")
    with suppress(OSError):
        os.rmdir(path)


def _write_to(path: str, value: str) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def main() -> None:
    """Try the guard on this machine, for `agent-host doctor`, in a process of its own: leave a process behind that has
    a session of its own, no parent and no environment, print its id, and die as a killed host would."""
    guard = ProcessGuard()
    command = guard.start(
        lambda: subprocess.Popen(["/bin/sh", "-c", _LEFT], stdout=subprocess.PIPE, start_new_session=True), "NONE=1"
    )
    if command.stdout is not None:
        sys.stdout.write(command.stdout.readline().decode())
        sys.stdout.flush()
    latest = time.monotonic() + 8 * TICK_S
    while not guard.has_reported and time.monotonic() < latest:  # it does within a tick
        time.sleep(TICK_S / 25)
    os.kill(os.getpid(), signal.SIGKILL)
