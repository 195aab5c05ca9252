"""Moves bytes between a child's pipes and the event loop, watches for its exit, and ends its process tree.

Where the loop can watch descriptors (POSIX) nothing here costs a thread, except the exit watch on systems without
pidfd. Elsewhere (Windows) each pipe has a daemon thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, Protocol

from agent_host.contracts import Leftovers

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Mapping

READ_BYTES: Final = 128 * 1024
"""Bytes of one read: as much as the usual programs write."""
_PIPE_BYTES: Final = 256 * 1024
"""Capacity of a pipe. With the system's 64 KiB a program that prints much waits for its reader at every write."""
_F_SETPIPE_SZ: Final = 1031
_AT_ONCE: Final = 4
"""Pieces that are read before others on the loop have their turn, as long as there are whole ones."""
_AHEAD: Final = 8
"""Chunks that a reading thread may be ahead of the loop."""

Take = Callable[[bytes], None]


class PipeWatch(Protocol):
    """Something under way until `done` is; `close` ends it early and releases what it holds."""

    done: asyncio.Future[None]

    def close(self) -> None:
        """End; harmless when it is over."""


def watch_exit(process: subprocess.Popen[bytes]) -> PipeWatch:
    """Done when `process` has exited. On POSIX it is not reaped yet, so its group keeps its number."""
    try:
        return _ExitByDescriptor(os.pidfd_open(process.pid))
    except (AttributeError, OSError):  # not Linux, an old kernel, or no descriptor left
        return _ExitByThread(process)


def read_pipe(pipe: IO[bytes], take: Take, *, threaded: bool) -> PipeWatch:
    """Hands what `pipe` brings to `take`, on the loop, until the pipe's end. Owns the pipe."""
    return _ReadByThread(pipe, take) if threaded else _ReadByDescriptor(pipe, take)


def feed_pipe(pipe: IO[bytes], data: bytes, *, threaded: bool) -> PipeWatch:
    """Writes `data` to `pipe` and closes it; a child that does not want it all is no error. Owns the pipe."""
    return _FeedByThread(pipe, data) if threaded else _FeedByDescriptor(pipe, data)


class _OnLoop:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _ExitByDescriptor(_OnLoop):
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


class _ReadByDescriptor(_OnLoop):
    def __init__(self, pipe: IO[bytes], take: Take) -> None:
        super().__init__()
        self._pipe = pipe
        self._take = take
        self._fd = pipe.fileno()
        _widen(self._fd)
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


def _widen(fd: int) -> None:
    """Give a pipe more room, where the system lets a program have that."""
    if sys.platform == "linux":
        with suppress(OSError):  # the user's pipes have all the room that they may have
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)


class _FeedByDescriptor(_OnLoop):
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


class _ByThread(_OnLoop):
    """A daemon thread that runs `work`; `close` stops listening to it, the thread ends with its pipe."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="tool-pipe", daemon=True).start()

    def work(self) -> None:
        raise NotImplementedError

    def say(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop may be closed by now
            self.loop.call_soon_threadsafe(callback, *arguments)

    def close(self) -> None:
        self._closed = True
        self.finish()

    def _run(self) -> None:
        self.work()
        self.say(self.finish)


class _ExitByThread(_ByThread):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self._process = process
        self.start()

    def work(self) -> None:
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()


class _ReadByThread(_ByThread):
    def __init__(self, pipe: IO[bytes], take: Take) -> None:
        super().__init__()
        self._pipe = pipe
        self._take = take
        self._room = threading.Semaphore(_AHEAD)
        self.start()

    def work(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), READ_BYTES):
                self._room.acquire()
                if self._closed:
                    return
                self.say(self._on_data, chunk)

    def close(self) -> None:
        super().close()
        self._room.release()  # the thread may be waiting for room that nobody would make

    def _on_data(self, chunk: bytes) -> None:
        self._room.release()
        if not self._closed:
            self._take(chunk)


class _FeedByThread(_ByThread):
    def __init__(self, pipe: IO[bytes], data: bytes) -> None:
        super().__init__()
        self._pipe = pipe
        self._data = data
        self.start()

    def work(self) -> None:
        # Closing flushes again, so both meet the same broken pipe.
        with suppress(OSError), self._pipe:
            rest = memoryview(self._data)
            while rest:
                rest = rest[os.write(self._pipe.fileno(), rest) :]


# The end of a process tree that may be forking while it is ended (TR 6.2): shared by a time-out, a cancellation, a
# resume and the end of the host.


QUIET_S: Final = 0.2
LONGEST_S: Final = 5.0
_PAUSE_S: Final = 0.002
_PAUSE_MAX_S: Final = 0.02


NOBODY: Final = Leftovers()


def kill_until_quiet(
    find: Callable[[Callable[[int], None]], Mapping[int, int]], groups: Iterable[int] = ()
) -> Leftovers:
    """SIGKILL to the process groups `groups` and to all that `find` finds, until 0.2 s pass without a new process, for
    5 s at most.

    One empty look proves nothing: a process that forks and ends may lie between two generations. `find` gives live
    processes, each with its start time, and calls its argument with some of them while it still looks. Blocks.
    """
    began = quiet_since = time.monotonic()
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
        if now - quiet_since >= QUIET_S or now - began >= LONGEST_S:
            return Leftovers(len(ended), tuple(sorted(found)))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)


def kill(pid: int) -> None:
    """SIGKILL to one process, which may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(group: int) -> None:
    """SIGKILL to a process group, all of it at once: none of it can fork meanwhile. Not to the numbers 0 and 1, which a
    process table may show: the kernel takes them for the caller's own group and for every process there is."""
    if group <= 1:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
