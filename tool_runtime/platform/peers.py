"""Processes at the other end of a local socket, and those that they descend from.

A pid says who connected as long as that process lives: it is looked at again before what it says counts. Nobody's word
is taken; a process that cannot be looked at is an error.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tool_runtime.platform import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from tool_runtime.platform.posix import ProcessEntry

MOST_ANCESTORS: Final = 256
_SO_PEERPIDFD: Final = 77
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED, _LOCAL_PEERPID = 1, 2
_ENVIRONMENT_BYTES: Final = 8 * 1024 * 1024


class PeerUnreadable(Exception):
    """The system does not say who a peer is, or what it descends from; `str()` says why."""


class Peer:
    """The process that connected to this end of a Unix socket, or of a named pipe on Windows."""

    def __init__(self, connection: Any) -> None:
        self.pid, self.uid = _credentials(connection)
        self._pidfd = _pidfd(connection)
        entry = current.entry_of(self.pid)
        self._started = None if entry is None else entry.started

    def lineage(self) -> list[ProcessEntry]:
        """The process and those that it descends from, itself first. Raises PeerUnreadable, also once it has ended."""
        chain = lineage(self.pid, current.look_up())
        has_ended = chain[0].started != self._started
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            has_ended = has_ended or bool(poll.poll(0))
        if has_ended:
            raise PeerUnreadable(f"process {self.pid} has ended")
        return chain

    def close(self) -> None:
        """Let go of it."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)


def lineage(pid: int, entry_of: Callable[[int], ProcessEntry | None]) -> list[ProcessEntry]:
    """The process `pid` and those that it descends from, itself first. Raises PeerUnreadable where one is not there
    (any more), is younger than its child, so that another process had that number before, or has too many before it."""
    chain: list[ProcessEntry] = []
    while pid > 0:
        entry = entry_of(pid)
        if entry is None or (chain and entry.started > chain[-1].started):
            raise PeerUnreadable(f"process {pid} cannot be looked at")
        if len(chain) == MOST_ANCESTORS or entry.parent == pid:
            raise PeerUnreadable(f"there are too many processes before {chain[0].pid if chain else pid}")
        chain.append(entry)
        pid = entry.parent
    if not chain:
        raise PeerUnreadable("the process is not of this machine, or of another container")
    return chain


def environment_of(pid: int) -> bytes:
    """The environment that a process was started with. Raises PeerUnreadable."""
    if sys.platform == "win32":
        return b""  # a Job says there what is a command's
    if sys.platform == "darwin":
        argv = ["/bin/ps", "-E", "-ww", "-o", "command=", "-p", str(pid)]
        said = subprocess.run(argv, capture_output=True, check=False, env={})
        if said.returncode != 0:
            raise PeerUnreadable(f"process {pid} cannot be looked at")
        return said.stdout
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.read(_ENVIRONMENT_BYTES)
    except OSError as error:
        raise PeerUnreadable(f"process {pid} cannot be looked at: {error.strerror}") from error


def open_files_of(pid: int) -> list[str]:
    """The names of the files that a process has open; none where the system does not say."""
    found = []
    with suppress(OSError):  # another user's, or ended meanwhile
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


def _credentials(connection: Any) -> tuple[int, int | None]:
    """The pid and the user of the other end. Raises PeerUnreadable."""
    try:
        if sys.platform == "win32":
            return current.client_of_pipe(connection.handle), None
        if sys.platform == "darwin":
            xucred = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
            pid = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)
            return int(pid), struct.unpack_from("=II", xucred)[1]
        pid, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except (OSError, AttributeError, struct.error) as error:
        raise PeerUnreadable(f"the system does not say who connected: {error}") from error
    return pid, uid


def _pidfd(connection: Any) -> int | None:
    """A descriptor of the process itself, whoever gets its number later; None where the kernel has none (before 6.5).
    Raises PeerUnreadable for a process that has ended."""
    if sys.platform != "linux":
        return None
    try:
        return int(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise PeerUnreadable(f"the process that connected has ended: {error.strerror}") from error
