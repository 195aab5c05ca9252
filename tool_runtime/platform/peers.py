"""Identify the process at the other end of a local socket, and its ancestors.

A PID identifies the peer only while that process lives, so this is checked again before the result is used. Nothing
that the peer claims is trusted, and a process that cannot be inspected is an error.
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
    """The system does not report who a peer is, or its ancestors; `str()` is the reason."""


class Peer:
    """The process that connected to this end of a Unix socket, or of a named pipe on Windows."""

    def __init__(self, connection: Any) -> None:
        self.pid, self.uid = _credentials(connection)
        self._pidfd = _pidfd(connection)
        entry = current.entry_of(self.pid)
        self._started = None if entry is None else entry.started

    def lineage(self) -> list[ProcessEntry]:
        """Return the process and its ancestors, itself first. Raises PeerUnreadable, also if it has ended."""
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
        """Close the descriptor of the process."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)


def lineage(pid: int, entry_of: Callable[[int], ProcessEntry | None]) -> list[ProcessEntry]:
    """Return the process `pid` and its ancestors, itself first. Raises PeerUnreadable if one does not exist (any more),
    if one is younger than its child (its PID was reused), or if there are more than 256."""
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
    """Return the environment that a process was started with; empty on Windows. Raises PeerUnreadable."""
    if sys.platform == "win32":
        return b""  # a Job identifies a command's processes there
    if sys.platform == "darwin":
        argv = ["/bin/ps", "-E", "-ww", "-o", "command=", "-p", str(pid)]
        result = subprocess.run(argv, capture_output=True, check=False, env={})
        if result.returncode != 0:
            raise PeerUnreadable(f"process {pid} cannot be looked at")
        return result.stdout
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.read(_ENVIRONMENT_BYTES)
    except OSError as error:
        raise PeerUnreadable(f"process {pid} cannot be looked at: {error.strerror}") from error


def open_files_of(pid: int) -> list[str]:
    """Return the names of a process's open files; none if the system does not report them."""
    found = []
    with suppress(OSError):  # another user's process, or it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


def _credentials(connection: Any) -> tuple[int, int | None]:
    """Return the PID and the user ID of the other end. Raises PeerUnreadable."""
    try:
        if sys.platform == "win32":
            return current.client_of_pipe(connection.handle), None
        if sys.platform == "darwin":
            xucred = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
            pid = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)
            return int(pid), struct.unpack_from("=II", xucred)[1]
        pid, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except (OSError, AttributeError, struct.error) as error:
        raise PeerUnreadable(f"the system does not report who connected: {error}") from error
    return pid, uid


def _pidfd(connection: Any) -> int | None:
    """Return a pidfd of the peer, which stays valid if the PID is reused; None before Linux 6.5. Raises PeerUnreadable
    if the process has ended."""
    if sys.platform != "linux":
        return None
    try:
        return int(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise PeerUnreadable(f"the process that connected has ended: {error.strerror}") from error
