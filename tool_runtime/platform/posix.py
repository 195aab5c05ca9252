"""POSIX: the shell, its arguments, path limits; and on Linux the members of a process tree, read from /proc."""

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
_LARGE_BYTES: Final = 192 * 1024  # more than is read of a pipe at once
_UNUSED_BYTES: Final = 1024 * 1024


@functools.cache
def give_back_large_memory() -> None:
    """Have a block of 192 KiB or more go back to the system as soon as it is freed.

    glibc begins with a threshold of 128 KiB and raises it with each larger block that is freed, up to 32 MiB: a process
    that had large outputs in hand, one at a time, stays as large as if it held several. Naming the threshold keeps it
    fixed. What is read of a pipe is below it, and a MiB of free memory stays: to get each such piece from the system
    costs more than to read it. Elsewhere the allocator does it anyway, or has no such setting.
    """
    if sys.platform != "linux":
        return
    import ctypes  # a tenth of a start, and most sessions have nothing large

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _UNUSED_BYTES)


def default_shell(environ: Mapping[str, str], outside: Sequence[str] = ()) -> str:
    """The user's zsh if that is what $SHELL says, else bash where it exists, else sh (TR 6.2); none that lies in a
    place `outside`, which are those that commands write to."""
    named = environ.get("SHELL", "")
    is_zsh = os.path.basename(named) == "zsh" and os.path.isabs(named)
    if is_zsh and os.access(named, os.X_OK) and not is_within(named, outside):
        return named
    return find_program("bash", environ.get("PATH", os.defpath), outside) or "/bin/sh"


def shell_argv(shell: str, command: str) -> list[str]:
    """The shell reads no start-up file: it would change what the command means, which was judged without it. bash reads
    one even for `-c` when it takes itself for the child of a remote login."""
    return [shell, *_NO_STARTUP_FILES.get(os.path.basename(shell), ()), "-c", command]


_LIMITED: Final = 'ulimit -v "$1"; ulimit -t "$2"; ulimit -f 0; ulimit -c 0; shift 2; exec "$@"'


def limit_argv(argv: Sequence[str], memory_bytes: int, cpu_s: float) -> list[str]:
    """`argv` under a shell that gives it bounds first: on its memory, its time on a processor, and files that it may
    write none of. Python's own way, a function between fork and exec, may hang in a program with threads. macOS does
    not hold a bound on memory."""
    return ["/bin/sh", "-c", _LIMITED, "sh", str(memory_bytes // 1024), str(math.ceil(cpu_s)), *argv]


def start_limited(
    argv: Sequence[str], *, memory_bytes: int, cpu_s: float, stdin: IO[bytes], cwd: str
) -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
    """A process that reads `stdin` and prints to a pipe, in bounds, without variables; and its end. Raises OSError."""
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
    """One row of the process table. `started` distinguishes a process from a later one with its number."""

    pid: int
    parent: int
    group: int
    alive: bool
    started: int = 0


def tree_members(
    leader: int, mark: str, known: Mapping[int, int], on_sight: Callable[[int], None] = lambda _: None
) -> dict[int, int]:
    """Live processes that belong to the command whose shell is `leader` (0: not known), each with its start time.

    They are its process group, its descendants, those of `known` (an earlier answer), and whatever carries `mark`
    (`NAME=value`, or the start of it) in its environment. The mark also finds a daemon that left the group and whose
    parents are gone. `on_sight` gets each that is not found as a descendant the moment it is read, the youngest first:
    in a chain of processes that fork and end each lives for milliseconds.
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
    """The children of `pid`, theirs, and so on, with zombies. One look may miss one that just lost its parent."""
    if children_are_listed():
        return _descendants_listed(pid)
    table = {entry.pid: entry for entry in _processes()}
    members = {pid}
    _add_descendants(members, table)
    return {one: table[one] for one in members - {pid}}


@functools.cache
def children_are_listed() -> bool:
    """True if the kernel shows who the children of a process are (CONFIG_PROC_CHILDREN): a tenth of what a look at the
    whole table costs, and it does not grow with what else the machine runs."""
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
    """Each thread has its own."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # ended meanwhile
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
    """Become the parent of descendants whose own parent ends, from now on, or no longer: what leaves its session and
    its group stays a descendant. Linux only; False where the system has no such thing."""
    if not _LINUX:
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0)


def reap(pid: int) -> None:
    """Let go of a child that has ended, if it has, and nobody did so before."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def parse_ps(text: str) -> list[ProcessEntry]:
    """Rows of `ps -axo pid=,ppid=,pgid=,state=`: what a system without /proc (macOS) can show."""
    rows = (line.split() for line in text.splitlines())
    return [ProcessEntry(int(pid), int(above), int(group), state[0] != "Z") for pid, above, group, state in rows]


def _processes() -> Iterator[ProcessEntry]:
    """The process table, the youngest first."""
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
    """Process ids by their age. The last field of /proc/loadavg is the one given last; numbers start again when they
    are used up, so that larger ones are older than all others."""
    last = int(loadavg.rpartition(b" ")[2] or 0)
    return sorted(pids, key=lambda pid: (pid <= last, pid), reverse=True)


def look_up() -> Callable[[int], ProcessEntry | None]:
    """A function that gives the row of a process, or None; of a table read once, where that is all the system has."""
    if _LINUX:
        return entry_of
    return {entry.pid: entry for entry in _processes()}.get


def entry_of(pid: int) -> ProcessEntry | None:
    """The row of one process, None where there is none."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return ProcessEntry(pid, int(fields[1]), int(fields[2]), fields[0] not in (b"Z", b"X"), int(fields[19]))


def _carries(pid: int, mark: bytes) -> bool:
    environment = _read(f"/proc/{pid}/environ")
    return mark in environment and any(entry.startswith(mark) for entry in environment.split(b"\0"))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:  # ended meanwhile, or another user's
        return b""
