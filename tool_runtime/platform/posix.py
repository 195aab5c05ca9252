"""POSIX: the shell, its arguments, path limits; and on Linux the members of a process tree, read from /proc."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

CRLF: Final = False
_NO_STARTUP_FILES: Final = {"bash": ("--noprofile", "--norc"), "zsh": ("-f",)}


def default_shell(environ: Mapping[str, str]) -> str:
    """The user's zsh if that is what $SHELL says, else bash where it exists, else sh (TR 6.2)."""
    named = environ.get("SHELL", "")
    if os.path.basename(named) == "zsh" and os.access(named, os.X_OK):
        return named
    directories = environ.get("PATH", os.defpath).split(os.pathsep)
    candidates = (os.path.join(directory, "bash") for directory in directories if os.path.isabs(directory))
    return next((path for path in candidates if os.access(path, os.X_OK)), "/bin/sh")


def shell_argv(shell: str, command: str) -> list[str]:
    """The shell reads no start-up file: it would change what the command means, which was judged without it. bash reads
    one even for `-c` when it takes itself for the child of a remote login."""
    return [shell, *_NO_STARTUP_FILES.get(os.path.basename(shell), ()), "-c", command]


class ProcessEntry(NamedTuple):
    """One row of the process table. `started` tells a process from a later one with its number."""

    pid: int
    parent: int
    group: int
    alive: bool
    started: int = 0


def tree_members(leader: int, mark: str, known: Mapping[int, int]) -> dict[int, int]:
    """Live processes that belong to the command whose shell is `leader` (0: not known), each with its start time.

    They are its process group, its descendants, those of `known` (an earlier answer), and whatever carries `mark`
    (`NAME=value`, or the start of it) in its environment. The mark also finds a daemon that left the group and whose
    parents are gone, and needs no subreaper, which would make this process inherit everybody's orphans.
    """
    table = {entry.pid: entry for entry in _processes()}
    wanted = mark.encode()
    members = {
        pid
        for pid, entry in table.items()
        if (leader and leader in (pid, entry.group)) or known.get(pid) == entry.started or _carries(pid, wanted)
    }
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    queue = list(members)
    while queue:
        new = [child for child in children.get(queue.pop(), ()) if child not in members]
        members.update(new)
        queue += new
    return {pid: table[pid].started for pid in members if table[pid].alive}


def parse_ps(text: str) -> list[ProcessEntry]:
    """Rows of `ps -axo pid=,ppid=,pgid=,state=`: what a system without /proc (macOS) can tell."""
    rows = (line.split() for line in text.splitlines())
    return [
        ProcessEntry(int(pid), int(parent), int(group), not state.startswith("Z")) for pid, parent, group, state in rows
    ]


def _processes() -> list[ProcessEntry]:
    try:
        names = os.listdir("/proc")
    except OSError:
        import subprocess

        listing = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid=,state="], capture_output=True, text=True, check=False)
        return parse_ps(listing.stdout)
    entries = (_entry(name) for name in names if name.isdigit())
    return [entry for entry in entries if entry is not None]


def _entry(pid: str) -> ProcessEntry | None:
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return ProcessEntry(int(pid), int(fields[1]), int(fields[2]), fields[0] not in (b"Z", b"X"), int(fields[19]))


def _carries(pid: int, mark: bytes) -> bool:
    environment = _read(f"/proc/{pid}/environ")
    return mark in environment and any(entry.startswith(mark) for entry in environment.split(b"\0"))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:  # ended meanwhile, or another user's
        return b""
