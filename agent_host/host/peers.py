"""Access to a session's sockets: any process of the same user but those of sessions, so that no model answers its own
question or takes the place of a disconnected client.

Commands of a session descend from its process, which adopts those that lose their parents, and carry the mark of their
call. So a peer is refused that has a session's process among its ancestors or such a mark in its environment or theirs,
and one that cannot be looked at. Another program of the user's that a command has start something for it is not seen
here: that is for the sandbox to deny.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from state import SessionPaths
from state.disk import holder, named_pid
from tool_runtime.platform.peers import Peer, PeerUnreadable, environment_of, open_files_of
from tool_runtime.processes.command import MARK_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.platform.posix import ProcessEntry

_LOCK: Final = re.compile(r"/checkpoints/[A-Za-z0-9_-]{1,128}\.lock( \(deleted\))?")


class PeerCheck:
    """The check of one peer. `connection` is its socket or pipe; `state_dir` is the state directory of this process's
    session."""

    def __init__(self, state_dir: str, connection: Any) -> None:
        self._state_dir = state_dir
        self._peer: Peer | None = None
        self._unreadable = ""
        self._admitted: list[ProcessEntry] = []
        try:
            self._peer = Peer(connection)
        except PeerUnreadable as error:
            self._unreadable = str(error)

    def refusal(self) -> str | None:
        """The reason to refuse the peer now; None if there is none."""
        if self._peer is None:
            return self._unreadable
        if self._peer.uid is not None and self._peer.uid != os.geteuid():
            return f"process {self._peer.pid} is another user's"
        try:
            lineage = self._peer.lineage()
            if lineage == self._admitted:  # the same processes, so the rest has the same result
                return None
            chain = [entry.pid for entry in lineage]
            if os.getpid() in chain or _hold_sessions(self._state_dir, chain[1:]):  # a program may embed one
                return f"process {self._peer.pid} was started by a session's command, which answers no question"
            marked = self._marked(chain)
        except PeerUnreadable as error:
            return str(error)
        if marked is not None:
            return f"process {marked} carries the mark of a session's call"
        self._admitted = lineage
        return None

    def _marked(self, chain: Sequence[int]) -> int | None:
        """The process that carries a mark. Raises PeerUnreadable for a peer that hides; others may be another
        user's."""
        mark = f"{MARK_NAME}=".encode()
        for pid in chain:
            try:
                if mark in environment_of(pid):
                    return pid
            except PeerUnreadable:
                if pid == chain[0]:
                    raise
        return None

    def close(self) -> None:
        """Let go of the peer."""
        if self._peer is not None:
            self._peer.close()


def _hold_sessions(state_dir: str, chain: Sequence[int]) -> bool:
    """True if one of these processes has a session: one of the state directory by its lock, or, if the system shows the
    open files of a process, one of any state directory. The oldest is checked first, because the processes that a
    session started may have a great many files open."""
    folder = os.path.dirname(SessionPaths(state_dir, "any").lock)
    try:
        locks = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".lock")]
    except FileNotFoundError:  # no session has started yet
        locks = []
    except OSError as error:
        raise PeerUnreadable(f"{folder} cannot be looked at: {error.strerror}") from error
    if any(named_pid(lock) in chain and holder(lock) is not None for lock in locks):
        return True
    return any(_LOCK.search(name) for pid in reversed(chain) for name in open_files_of(pid))
