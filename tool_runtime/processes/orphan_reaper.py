"""End the leftover processes of a killed host. This is a small separate process, started as a script (see `guard.py`).

Lines of standard input: `members PID:START:GROUP ...` replaces the list of the commands' processes, `marks NAME=VALUE
...` the list of the marks in their environments, `cgroup PATH` is their control group, and `bye` exits without killing
anything. The end of input without a `bye` means that the host is dead: all processes of its commands are killed, until
0.2 s pass without a new process, for 5 s at most.

It imports nothing of the package and nothing large of the standard library, because it must stay below 10 MB.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # the module `typing` would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Iterator

SIGKILL = 9  # the module `signal` would cost a megabyte
Row = tuple[int, int, int, int, bool]  # parent, group, session, start time, alive
QUIET_S = 0.2
LONGEST_S = 5.0


def read(path: str) -> bytes:
    """Read a file of /proc; empty if its process has ended."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 20)
    except OSError:
        return b""
    finally:
        os.close(fd)


def table() -> Iterator[tuple[int, Row]]:
    """Yield each process, youngest first; on systems without /proc by `ps`, in its order."""
    try:
        names = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        for line in os.popen("/bin/ps -axo pid=,ppid=,pgid=,state="):  # noqa: S605  a constant, for systems without /proc
            row = line.split()
            yield int(row[0]), (int(row[1]), int(row[2]), 0, 0, not row[3].startswith("Z"))
        return
    last = int(read("/proc/loadavg").rpartition(b" ")[2] or 0)  # PIDs wrap around
    for pid in sorted(names, key=lambda pid: (pid <= last, pid), reverse=True):
        stat = read(f"/proc/{pid}/stat")
        if stat:
            fields = stat[stat.rindex(b")") + 2 :].split()
            alive = fields[0] not in (b"Z", b"X")
            yield pid, (int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), alive)


def kill(pid: int) -> None:
    """Send SIGKILL to one process, which may have ended."""
    try:
        os.kill(pid, SIGKILL)
    except OSError:
        return


def kill_group(group: int) -> None:
    """Send SIGKILL to a process group. The kernel treats 0 as the caller's own group, and 1 as every process."""
    if group > 1:
        kill(-group)


def belonging(known: dict[int, int], groups: set[int], marks: list[bytes]) -> dict[int, int]:
    """Find live processes with their start times: known ones, those in the groups or sessions or with a mark, and all
    their descendants. All but the descendants are killed immediately, because in a forking chain each lives for
    milliseconds."""
    rows = {}
    members = set()
    for pid, row in table():
        rows[pid] = row
        _, group, session, started, alive = row
        is_near = known.get(pid) == started or group in groups or session in groups
        if pid != os.getpid() and (is_near or _carries(pid, marks)):
            members.add(pid)
            if alive:
                kill(pid)
    queue = list(members)
    while queue:
        parent = queue.pop()
        for pid, row in rows.items():
            if row[0] == parent and pid not in members:
                members.add(pid)
                queue.append(pid)
    members.discard(os.getpid())
    return {pid: rows[pid][3] for pid in members if rows[pid][4]}


def _carries(pid: int, marks: list[bytes]) -> bool:
    return bool(marks) and any(entry in marks for entry in read(f"/proc/{pid}/environ").split(b"\0"))


def end(known: dict[int, int], groups: set[int], marks: list[bytes]) -> None:
    """Send SIGKILL until no new process appears. A group is killed as a whole, so that no member can fork in
    between."""
    rows = dict(table())
    # The ID of an ended group may have been reused, by a new leader; while a group exists, its ID is not reused.
    groups -= {one for one in groups if one in rows and rows[one][4] and rows[one][3] != known.get(one)}
    started = quiet_since = time.monotonic()
    seen: set[tuple[int, int]] = set()
    while True:
        for group in groups:
            kill_group(group)
        found = belonging(known, groups, marks)
        for pid in found:
            kill(pid)
        known.update(found)
        now = time.monotonic()
        new = set(found.items()) - seen
        if new:
            seen |= new
            quiet_since = now
        if now - quiet_since >= QUIET_S or now - started >= LONGEST_S:
            return
        time.sleep(0.002)


def kill_cgroup(path: bytes) -> None:
    """Kill all processes in a control group, and remove it if it is empty."""
    if not path:
        return
    try:
        fd = os.open(path + b"/cgroup.kill", os.O_WRONLY)
        os.write(fd, b"1")
        os.close(fd)
        os.rmdir(path)
    except OSError:
        return


def watch(fd: int) -> None:
    """Read reports until the host sends `bye` or is dead."""
    known: dict[int, int] = {}
    groups: set[int] = set()
    marks: list[bytes] = []
    rest = cgroup = b""
    while True:
        chunk = os.read(fd, 65536)
        if not chunk:
            kill_cgroup(cgroup)
            end(known, groups, marks)
            kill_cgroup(cgroup)  # removes it now that it is empty
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            word, *entries = line.split(b" ")
            if word == b"bye":
                return
            if word == b"cgroup":
                cgroup = b" ".join(entries)
            elif word == b"marks":
                marks = entries
            elif word == b"members":
                rows = [entry.split(b":") for entry in entries]
                known = {int(row[0]): int(row[1]) for row in rows}
                groups = {int(row[2]) for row in rows}


if __name__ == "__main__":
    watch(sys.stdin.fileno())
