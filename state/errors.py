"""What can go wrong with what is kept on disk; the session layer turns these into wire errors."""

from __future__ import annotations


class StateError(Exception):
    """Base: something about the kept state of a session."""


class InvalidSessionId(StateError):
    """The id is not `[A-Za-z0-9_-]{1,128}`; it was refused before it touched a path."""


class NoSuchSession(StateError):
    """There is no checkpoint under this id."""


class SessionExists(StateError):
    """A checkpoint already lies under this id; creating it anew would overwrite it."""


class SessionLocked(StateError):
    """A live process holds the session. `pid` is that process, None where it could not be read."""

    def __init__(self, session_id: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"session {session_id} is held by {holder}")
        self.pid = pid


class UnknownVersion(StateError):
    """Written by a newer version of the program; left untouched."""


class Damaged(StateError):
    """A snapshot or journal fails its checksum where no crash can have torn it. `quarantined` names where it went."""

    def __init__(self, message: str, quarantined: str | None = None) -> None:
        super().__init__(message)
        self.quarantined = quarantined


class WriteFailed(StateError):
    """The disk did not take the record; nothing may be taken for durable until a later write succeeds."""
