"""Count of what a run has on the machine while it runs, and what it leaves there: processes, descriptors, temporary
files and sockets. Linux, by /proc; elsewhere only files are looked at."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tool_runtime.platform import current

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_SCRIPTS = (b"/tool_runtime/sandbox/launcher.py", b"/tool_runtime/processes/orphan_reaper.py")
_PATIENCE_S = 10.0
_ROOM = 4
"""How many more there may be in the second half of a session than in the first: one ends while another begins."""


class Count(NamedTuple):
    """The descriptors and the descendants of a process, those that nobody has reaped included."""

    descriptors: int
    processes: int


def count(pid: int) -> Count | None:
    """Count what a process has; None where it has ended."""
    try:
        return Count(len(os.listdir(f"/proc/{pid}/fd")), len(current.descendants(pid)))
    except OSError:
        return None


def growth(counts: Sequence[Count]) -> list[str]:
    """The counts that grew from the first half of a session to the second, one line each."""
    half = len(counts) // 2
    if not half:
        return []
    problems = []
    for kind in Count._fields:
        before, after = (max(getattr(one, kind) for one in part) for part in (counts[:half], counts[half:]))
        if after > before + _ROOM:
            problems.append(f"{before} {kind} became {after}")
    return problems


def idle_helpers(pid: int) -> list[int]:
    """The helper processes of a host that hold no command: none in whose namespace another program runs."""
    rows = [one for one, row in current.descendants(pid).items() if row.alive]
    helpers = {one for one in rows if _is_helper(one)}
    own = _namespace(pid)
    busy = {_namespace(one) for one in rows if one not in helpers} - {own}
    return sorted(one for one in helpers if _namespace(one) not in busy)


def leftovers_of(folder: Path, temporary: Path) -> list[str]:
    """The leftovers of a run in `folder`, one line each; processes may take a moment to end."""
    problems = [f"left in the temporary directory: {name}" for name in sorted(os.listdir(temporary))]
    problems += [f"left a socket: {path}" for path in _sockets(folder)]
    until = time.monotonic() + _PATIENCE_S
    while (processes := _processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.02)
    return problems + [f"process {pid} still runs: {line.decode(errors='replace')}" for pid, line in processes]


def _is_helper(pid: int) -> bool:
    return any(word.endswith(_SCRIPTS) for word in _command_line(pid).split(b"\0"))


def _command_line(pid: int) -> bytes:
    return _read(pid, "cmdline")


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _processes_of(folder: Path) -> list[tuple[int, bytes]]:
    if not os.path.isdir("/proc/self/fd"):
        return []
    home = b"HOME=%b" % os.fsencode(folder)
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    return [(pid, _command_line(pid)) for pid in pids if home in _read(pid, "environ").split(b"\0")]


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # it has ended
        return b""


def _sockets(folder: Path) -> Iterator[str]:
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            with suppress(OSError):
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    yield path
