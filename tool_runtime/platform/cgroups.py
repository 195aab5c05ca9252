"""A control group for commands, on machines that delegate one: the kernel ends all that is in it at once."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_ROOT: Final = "/sys/fs/cgroup"
_OWN: Final = "/proc/self/cgroup"
KILL: Final = "cgroup.kill"
_MEMBERS: Final = "cgroup.procs"


def make(name: str, *, root: str = _ROOT, own: str = _OWN) -> str | None:
    """A new group below that of this process, None where this user may make none there (version 2 with `cgroup.kill`
    only). Found by the file `own`, below `root`."""
    try:
        with open(own, encoding="utf-8") as file:
            within = next((line[3:].strip() for line in file if line.startswith("0::")), None)
        if within is None:
            return None
        parent = os.path.normpath(f"{root}/{within}")
        if not all(os.access(os.path.join(parent, part), os.W_OK) for part in ("", _MEMBERS, KILL)):
            return None  # the root group has no such file: it can't be killed, and is nobody's to divide
        path = os.path.join(parent, name)
        os.mkdir(path, 0o700)
    except (OSError, UnicodeDecodeError):
        return None
    return path


def add(path: str, pid: int) -> None:
    """Put a process into the group; what it starts from then on is in it, too. One that is gone needs no place."""
    _put(os.path.join(path, _MEMBERS), str(pid))


def end(path: str) -> None:
    """Kill all that is in the group, and take the group away once it is empty."""
    _put(os.path.join(path, KILL), "1")
    with suppress(OSError):
        os.rmdir(path)


def _put(path: str, value: str) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
