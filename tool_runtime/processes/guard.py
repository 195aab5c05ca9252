"""End the processes that commands start when this process ends, even if it crashes.

This process adopts orphans, so that a process that leaves its session, its group and its environment is still a
descendant. If the machine delegates a control group, commands get one of their own. A thread reports the processes to
the orphan reaper, a small separate process. If the host is killed, the pipe between them closes, and the reaper kills
them. At an orderly end the host does so itself.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

from agent_host.contracts import Leftovers
from tool_runtime.platform import WINDOWS, current, windows
from tool_runtime.sandbox.helper_processes import Backoff, end_helper, start_helper

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tool_runtime.platform.posix import ProcessEntry

TICK_S: Final = 0.25
"""Maximum age of the reaper's information, so that a process that lived for a second is known."""
_REAPER: Final = os.path.join(os.path.dirname(__file__), "orphan_reaper.py")
_PATIENCE_S: Final = 1.0
_MAX_MARKS: Final = 64
_KILL_FILE: Final = "cgroup.kill"
_MEMBERS_FILE: Final = "cgroup.procs"
_LEFT = "(setsid env -i sh -c 'echo $$; exec sleep 60' &) ; sleep 60"


class ProcessGuard:
    """The guard of one host process, which treats every descendant as a command's process. Safe to use from its event
    loop."""

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
        self.has_reported = False
        """True if the reaper has the information to end the processes of commands."""
        self._known: dict[int, int] = {}
        self._cgroup: str | None = None
        self._job: windows.JobObject | None = None

    def start(self, start: Callable[[], subprocess.Popen[bytes]], mark: str) -> subprocess.Popen[bytes]:
        """Start a process by `start` and guard it; it has `mark` (`NAME=value`) in its environment."""
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
        with self._lock:  # so that the thread does not reap it in between
            process = start()
            if self._cgroup is not None:
                # Processes that it starts from now on are in the group, too. Fails harmlessly if it has ended.
                _write_to(os.path.join(self._cgroup, _MEMBERS_FILE), str(process.pid))
            self._leaders.add(process.pid)
            self._marks = [*self._marks[-_MAX_MARKS + 1 :], mark]
        self._awake.set()
        return process

    def release(self, process: subprocess.Popen[bytes]) -> None:
        """Release a shell that has ended or was abandoned; its leftover processes remain guarded."""
        with self._lock:
            process.poll()
            self._leaders.discard(process.pid)

    def close(self) -> Leftovers:
        """End all leftover processes of commands. Blocks, for at least 0.2 s if there are any."""
        job, self._job = self._job, None
        if job is not None:
            job.close()
        if self._thread is None:
            return NO_LEFTOVERS
        self._closing.set()
        self._awake.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive() and self._watcher is not None:
            self._watcher.kill()  # it was stopped, and its pipe is full
            self._thread.join()
        self._reap(self._rows())
        # A forking chain always has at least a zombie, because only this process reaps it.
        left = kill_until_quiet(self._found) if self._rows() else NO_LEFTOVERS
        self._reap(self._rows())
        if self._cgroup is not None:
            _write_to(os.path.join(self._cgroup, _KILL_FILE), "1")
            with suppress(OSError):
                os.rmdir(self._cgroup)
        # Not reaped from now on, so an escaped process would fill the process table while this process lives.
        current.adopt_orphans(adopt=False)
        self._send(b"bye\n")
        self._end_watcher()
        return left

    # In the thread

    def _run(self) -> None:
        """Look once per tick, because a look takes milliseconds; commands that end within a tick cost nothing."""
        busy = False
        while True:
            if not busy:
                self._awake.wait()
            self._awake.clear()
            if self._closing.wait(TICK_S):
                return
            rows = self._rows()
            if rows or self._watcher is not None:
                self._report(rows)
            self._reap(rows)
            busy = bool(rows) or bool(self._leaders)

    def _rows(self) -> dict[int, ProcessEntry]:
        """Return the processes of commands: all descendants of this process except the reaper and those in its own
        process group. Commands start in sessions of their own, which a process cannot leave for this group; those in
        this group were started, and are waited for, by other code in this process."""
        rows = current.descendants(os.getpid())
        if self._watcher is not None:
            rows.pop(self._watcher.pid, None)
        own = os.getpgrp()
        known, self._known = self._known, {}
        for pid, started in known.items() - {(pid, row.started) for pid, row in rows.items()}:
            row = current.entry_of(pid)  # a look may miss it
            if row is not None and row.started == started:
                rows[pid] = row
        rows = {pid: row for pid, row in rows.items() if row.group != own}
        self._known = {pid: row.started for pid, row in rows.items()}
        return rows

    def _found(self, on_sight: Callable[[int], None]) -> Mapping[int, int]:
        rows = self._rows()
        self._reap(rows)
        live = {pid: row for pid, row in rows.items() if row.alive}
        for pid in live:
            on_sight(pid)
        for group in {row.group for row in live.values()}:
            kill_group(group)
        return {pid: row.started for pid, row in live.items()}

    def _reap(self, rows: Mapping[int, ProcessEntry]) -> None:
        """Reap adopted children that have ended, but not those that other code started and waits for."""
        with self._lock:
            for pid, row in rows.items():
                if not row.alive and row.parent == os.getpid() and pid not in self._leaders:
                    current.reap(pid)

    def _report(self, rows: Mapping[int, ProcessEntry]) -> None:
        """Report the processes to the reaper, including zombies: a look at a forking chain may find nothing else, and a
        zombie shows the group."""
        members = " ".join(f"{pid}:{row.started}:{row.group}" for pid, row in sorted(rows.items()))
        marks = " ".join(mark for mark in self._marks if " " not in mark and "\n" not in mark)
        group = "" if self._cgroup is None else f"cgroup {self._cgroup}\n"
        line = f"{group}marks {marks}\n{f'members {members}'.rstrip()}\n".encode()
        if line == self._reported and self._watcher is not None and self._watcher.poll() is None:
            self._backoff.worked()  # it has lived for at least a tick
            return
        self._reported = line
        sent = self._send(line)
        if not sent:  # it was ended
            self._end_watcher()
            # Without a reaper, as in a program that is no Python interpreter, only a resume looks for leftovers.
            if self._backoff.wait_s == 0:
                self._backoff.failed()
                with suppress(OSError):
                    self._watcher = start_helper(_REAPER, stdin=subprocess.PIPE, own_session=True)
            sent = self._send(line)
        self.has_reported = sent

    def _send(self, line: bytes) -> bool:
        watcher = self._watcher
        if watcher is None or watcher.stdin is None:
            return False
        try:
            watcher.stdin.write(line)
            watcher.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def _end_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            end_helper(watcher)


def make_group(name: str, *, root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> str | None:
    """Create a control group below that of this process, which is found by the file `own`, below `root`. None if this
    user may not create one (it needs version 2 with `cgroup.kill`)."""
    try:
        with open(own, encoding="utf-8") as file:
            within = next((line[3:].strip() for line in file if line.startswith("0::")), None)
        if within is None:
            return None
        parent = os.path.normpath(f"{root}/{within}")
        if not all(os.access(os.path.join(parent, part), os.W_OK) for part in ("", _MEMBERS_FILE, _KILL_FILE)):
            return None  # the root group has no such file: it cannot be killed or delegated
        path = os.path.join(parent, name)
        os.mkdir(path, 0o700)
    except (OSError, UnicodeDecodeError):
        return None
    return path


def _write_to(path: str, value: str) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def main() -> None:
    """Try the guard on this machine, for `agent-host doctor`, in a separate process: leave a process that has its own
    session, no parent and no environment, print its PID, and die like a killed host."""
    guard = ProcessGuard()
    command = guard.start(
        lambda: subprocess.Popen(["/bin/sh", "-c", _LEFT], stdout=subprocess.PIPE, start_new_session=True), "NONE=1"
    )
    if command.stdout is not None:
        sys.stdout.write(command.stdout.readline().decode())
        sys.stdout.flush()
    latest = time.monotonic() + 8 * TICK_S
    while not guard.has_reported and time.monotonic() < latest:  # it reports within a tick
        time.sleep(TICK_S / 25)
    os.kill(os.getpid(), signal.SIGKILL)


# Move bytes between a child's pipes and the event loop, watch for its exit, and end its process tree.
#
# On POSIX, where the loop can watch descriptors, only the exit watch needs a thread, and only without pidfd. On Windows
# each pipe has a daemon thread.

if sys.platform == "linux":
    import fcntl


READ_BYTES: Final = 128 * 1024
"""Maximum bytes of one read: as much as the usual programs write at once."""
_PIPE_BYTES: Final = 256 * 1024
"""Capacity of a pipe. With the default of 64 KiB a program that prints much waits for its reader at every write."""
_F_SETPIPE_SZ: Final = 1031
_AT_ONCE: Final = 4
"""Maximum full-size reads before other tasks on the loop get their turn."""
_AHEAD: Final = 8
"""Maximum chunks that a reading thread may be ahead of the loop."""

Take = Callable[[bytes], None]


class PipeWatch:
    """An operation on the loop that ends with `done`; `close` ends it early and releases its resources."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()

    def finish(self) -> None:
        """Mark it as done. Harmless when repeated."""
        if not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        """End it; harmless if it is already over."""
        self.finish()


def watch_exit(process: subprocess.Popen[bytes]) -> PipeWatch:
    """Watch for the exit of `process`. On POSIX it is not reaped, so that its group ID is not reused."""
    try:
        return _ExitByDescriptor(os.pidfd_open(process.pid))
    except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
        return _ByThread(functools.partial(_await_exit, process))


def read_pipe(pipe: IO[bytes], take: Take, *, threaded: bool) -> PipeWatch:
    """Pass the bytes of `pipe` to `take`, on the loop, until its end. Owns the pipe."""
    return _ReadByThread(pipe, take) if threaded else _ReadByDescriptor(pipe, take)


def feed_pipe(pipe: IO[bytes], data: bytes, *, threaded: bool) -> PipeWatch:
    """Write `data` to `pipe` and close it; it is no error if the child does not read it all. Owns the pipe."""
    return _ByThread(functools.partial(_feed, pipe, data)) if threaded else _FeedByDescriptor(pipe, data)


class _ExitByDescriptor(PipeWatch):
    def __init__(self, pidfd: int) -> None:
        super().__init__()
        self._pidfd = pidfd
        self.loop.add_reader(pidfd, self.close)

    def close(self) -> None:
        if self._pidfd >= 0:
            self.loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.finish()


class _ReadByDescriptor(PipeWatch):
    def __init__(self, pipe: IO[bytes], take: Take) -> None:
        super().__init__()
        self._pipe = pipe
        self._take = take
        self._fd = pipe.fileno()
        if sys.platform == "linux":
            with suppress(OSError):  # the user's limit for pipe memory is reached
                fcntl.fcntl(self._fd, _F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._fd, False)
        self.loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                chunk = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                self.close()
                return
            self._take(chunk)
            if len(chunk) < READ_BYTES or self._pipe.closed:
                return

    def close(self) -> None:
        if not self._pipe.closed:
            self.loop.remove_reader(self._fd)
            self._pipe.close()
        self.finish()


class _FeedByDescriptor(PipeWatch):
    def __init__(self, pipe: IO[bytes], data: bytes) -> None:
        super().__init__()
        self._pipe = pipe
        self._rest = memoryview(data)
        self._fd = pipe.fileno()
        os.set_blocking(self._fd, False)
        self.loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            if self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._rest = self._rest[:0]
        if not self._rest:
            self.close()

    def close(self) -> None:
        if not self._pipe.closed:
            self.loop.remove_writer(self._fd)
            self._pipe.close()
        self.finish()


class _ByThread(PipeWatch):
    """A daemon thread that runs `work`; `close` stops listening to it, and the thread ends with its pipe."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self.closed = False
        threading.Thread(target=self._run, name="tool-pipe", daemon=True).start()

    def call_in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop may be closed by now
            self.loop.call_soon_threadsafe(callback, *arguments)

    def close(self) -> None:
        self.closed = True
        self.finish()

    def _run(self) -> None:
        self._work()
        self.call_in_loop(self.finish)


def _await_exit(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _feed(pipe: IO[bytes], data: bytes) -> None:
    # Closing flushes again, so both may fail with the same broken pipe.
    with suppress(OSError), pipe:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(pipe.fileno(), rest) :]


class _ReadByThread(_ByThread):
    def __init__(self, pipe: IO[bytes], take: Take) -> None:
        self._pipe = pipe
        self._take = take
        self._room = threading.Semaphore(_AHEAD)
        super().__init__(self._read)

    def _read(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), READ_BYTES):
                self._room.acquire()
                if self.closed:
                    return
                self.call_in_loop(self._on_data, chunk)

    def close(self) -> None:
        super().close()
        self._room.release()  # the thread may be waiting for room

    def _on_data(self, chunk: bytes) -> None:
        self._room.release()
        if not self.closed:
            self._take(chunk)


# End a process tree that may be forking at the same time (TR 6.2): used for a timeout, a cancellation, a resume and the
# end of the host.

QUIET_S: Final = 0.2
LONGEST_S: Final = 5.0
_PAUSE_S: Final = 0.002

NO_LEFTOVERS: Final = Leftovers()
Find = Callable[[Callable[[int], None]], "Mapping[int, int]"]


def kill_until_quiet(find: Find, groups: Iterable[int] = ()) -> Leftovers:
    """Send SIGKILL to the process groups `groups` and to all processes that `find` returns, until 0.2 s pass without a
    new process, for 5 s at most.

    One empty look proves nothing, because it may fall between two generations of a forking process. `find` returns live
    processes, each with its start time, and calls its argument with some of them while it is still looking. Blocks.
    """
    started = quiet_since = time.monotonic()
    ended: set[tuple[int, int]] = set()
    pause_s = _PAUSE_S
    while True:
        for group in groups:
            kill_group(group)
        found = find(kill)
        for pid in found:
            kill(pid)
        now = time.monotonic()
        new = found.items() - ended
        if new:
            ended |= new
            quiet_since, pause_s = now, _PAUSE_S
        if now - quiet_since >= QUIET_S or now - started >= LONGEST_S:
            return Leftovers(len(ended), tuple(sorted(found)))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.02)


def kill(pid: int) -> None:
    """Send SIGKILL to one process, which may have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(group: int) -> None:
    """Send SIGKILL to a whole process group at once, so that no member can fork in between. IDs 0 and 1, which a
    process table may contain, are ignored: the kernel treats them as the caller's own group and as every process."""
    if group > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
