"""POSIX: the shell and its arguments, resource limits, and the processes of a command, read from /proc on Linux."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from config.lean_typing import NamedTuple
from tool_runtime.platform.environment import find_program, is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO

CRLF: Final = False
_LINUX = bool(sys.platform == "linux")
_PR_SET_CHILD_SUBREAPER: Final = 36
_NO_STARTUP_FILES: Final = {"bash": ("--noprofile", "--norc"), "zsh": ("-f",)}
_M_TRIM_THRESHOLD: Final = -1  # of glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 192 * 1024  # more than one read of a pipe
_UNUSED_BYTES: Final = 1024 * 1024


@functools.cache
def give_back_large_memory() -> None:
    """Return blocks of 192 KiB or more to the system as soon as they are freed.

    glibc starts with a threshold of 128 KiB and raises it with each larger block that is freed, up to 32 MiB, so a
    process that handled large outputs one at a time stays as large as if it held several. Setting the threshold keeps
    it fixed. Reads of a pipe are below it, and 1 MiB of free memory is kept, because getting each such block from the
    system costs more than reading it. Other allocators do this anyway, or have no such setting.
    """
    if sys.platform != "linux":
        return
    import ctypes  # a tenth of the startup time; most sessions have no large blocks

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _UNUSED_BYTES)


def default_shell(environ: Mapping[str, str], outside: Sequence[str] = ()) -> str:
    """Return the user's zsh if $SHELL names it, else bash if it exists, else sh (TR 6.2). A shell inside a place
    `outside`, where commands write, is never used."""
    named = environ.get("SHELL", "")
    is_zsh = os.path.basename(named) == "zsh" and os.path.isabs(named)
    if is_zsh and os.access(named, os.X_OK) and not is_within(named, outside):
        return named
    return find_program("bash", environ.get("PATH", os.defpath), outside) or "/bin/sh"


def shell_argv(shell: str, command: str) -> list[str]:
    """Return the arguments that run `command` without the shell's startup files, which could change the meaning of the
    command that was judged. bash reads one even with `-c` if it treats itself as the child of a remote login."""
    return [shell, *_NO_STARTUP_FILES.get(os.path.basename(shell), ()), "-c", command]


_LIMITED: Final = 'ulimit -v "$1"; ulimit -t "$2"; ulimit -f 0; ulimit -c 0; shift 2; exec "$@"'


def limit_argv(argv: Sequence[str], memory_bytes: int, cpu_s: float) -> list[str]:
    """Return arguments that run `argv` from a shell that first limits memory and CPU time, and forbids writing files.
    Python's own way, a function between fork and exec, may hang in a program with threads. macOS does not enforce the
    memory limit."""
    return ["/bin/sh", "-c", _LIMITED, "sh", str(memory_bytes // 1024), str(math.ceil(cpu_s)), *argv]


def start_limited(
    argv: Sequence[str], *, memory_bytes: int, cpu_s: float, stdin: IO[bytes], cwd: str
) -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
    """Start a process with limits and an empty environment, which reads `stdin` and prints to a pipe. Returns it and a
    function that kills it. Raises OSError."""
    process = subprocess.Popen(
        limit_argv(argv, memory_bytes, cpu_s),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd=cwd,
    )
    return process, process.kill


class ProcessEntry(NamedTuple):
    """One row of the process table. `started` distinguishes a process from a later one with the same PID."""

    pid: int
    parent: int
    group: int
    alive: bool
    started: int = 0


def tree_members(
    leader: int, mark: str, known: Mapping[int, int], on_sight: Callable[[int], None] = lambda _: None
) -> dict[int, int]:
    """Find the live processes of the command whose shell is `leader` (0 if unknown), each with its start time.

    These are its process group, its descendants, those in `known` (an earlier result), and every process with `mark`
    (`NAME=value`, or the start of it) in its environment. The mark also finds a daemon that left the group and whose
    ancestors have ended. `on_sight` is called immediately with each that is not found only as a descendant, youngest
    first, because in a chain of forking processes each lives only for milliseconds.
    """
    table: dict[int, ProcessEntry] = {}
    members: set[int] = set()
    wanted = mark.encode()
    for entry in _processes():
        pid = entry.pid
        table[pid] = entry
        if (leader and leader in (pid, entry.group)) or known.get(pid) == entry.started or _carries(pid, wanted):
            members.add(pid)
            if entry.alive:
                on_sight(pid)
    _add_descendants(members, table)
    return {pid: table[pid].started for pid in members if table[pid].alive}


def descendants(pid: int) -> dict[int, ProcessEntry]:
    """Return all descendants of `pid`, including zombies. A process that just lost its parent may be missed."""
    if children_are_listed():
        return _descendants_listed(pid)
    table = {entry.pid: entry for entry in _processes()}
    members = {pid}
    _add_descendants(members, table)
    return {one: table[one] for one in members - {pid}}


@functools.cache
def children_are_listed() -> bool:
    """True if the kernel lists the children of a process (CONFIG_PROC_CHILDREN). That costs a tenth of reading the
    whole process table, and does not grow with other processes."""
    return os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _descendants_listed(pid: int) -> dict[int, ProcessEntry]:
    found: dict[int, ProcessEntry] = {}
    queue = [pid]
    while queue:
        for child in _children(queue.pop()):
            entry = entry_of(child) if child not in found else None
            if entry is not None:
                found[child] = entry
                queue.append(child)
    return found


def _children(pid: int) -> list[int]:
    """Return the children of a process, which the kernel lists by thread."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def _add_descendants(members: set[int], table: Mapping[int, ProcessEntry]) -> None:
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    queue = list(members)
    while queue:
        new = [child for child in children.get(queue.pop(), ()) if child not in members]
        members.update(new)
        queue += new


def adopt_orphans(*, adopt: bool = True) -> bool:
    """Become the parent of orphaned descendants from now on (or, with `adopt` false, stop that), so that a process that
    leaves its session and its group remains a descendant. Linux only; returns False on other systems."""
    if not _LINUX:
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0)


def reap(pid: int) -> None:
    """Reap a child if it has ended and was not reaped before."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def parse_ps(text: str) -> list[ProcessEntry]:
    """Parse `ps -axo pid=,ppid=,pgid=,state=`, for systems without /proc (macOS)."""
    rows = (line.split() for line in text.splitlines())
    return [ProcessEntry(int(pid), int(above), int(group), state[0] != "Z") for pid, above, group, state in rows]


def _processes() -> Iterator[ProcessEntry]:
    """Yield the process table, youngest first (on Linux)."""
    try:
        names = os.listdir("/proc")
    except OSError:
        argv = ["/bin/ps", "-axo", "pid=,ppid=,pgid=,state="]
        listing = subprocess.run(argv, capture_output=True, text=True, check=False, env={})
        yield from parse_ps(listing.stdout)
        return
    for pid in youngest_first([int(name) for name in names if name.isdigit()], _read("/proc/loadavg")):
        entry = entry_of(pid)
        if entry is not None:
            yield entry


def youngest_first(pids: list[int], loadavg: bytes) -> list[int]:
    """Sort PIDs by age. The last field of /proc/loadavg is the most recent PID; PIDs wrap around, so larger ones are
    older than all others."""
    last = int(loadavg.rpartition(b" ")[2] or 0)
    return sorted(pids, key=lambda pid: (pid <= last, pid), reverse=True)


def look_up() -> Callable[[int], ProcessEntry | None]:
    """Return a function that returns the row of a process, or None. On systems without /proc it uses a table that is
    read once."""
    if _LINUX:
        return entry_of
    return {entry.pid: entry for entry in _processes()}.get


def entry_of(pid: int) -> ProcessEntry | None:
    """Return the row of one process, None if there is none."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may contain anything
    return ProcessEntry(pid, int(fields[1]), int(fields[2]), fields[0] not in (b"Z", b"X"), int(fields[19]))


def _carries(pid: int, mark: bytes) -> bool:
    environment = _read(f"/proc/{pid}/environ")
    return mark in environment and any(entry.startswith(mark) for entry in environment.split(b"\0"))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:  # it has ended, or is another user's
        return b""
