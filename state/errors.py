"""Errors of the store; the session layer turns these into wire errors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from config.shapes import list_problems

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class StateError(Exception):
    """Base: something about the kept state of a session."""


class NoHomeDirectory(StateError):
    """A path begins with `~`, and neither HOME nor the password file names a home directory."""


class InvalidSessionId(StateError):
    """The id is not `[A-Za-z0-9_-]{1,128}`; it was refused before it touched a path."""


class NoSuchSession(StateError):
    """There is no checkpoint under this id."""


class SessionExists(StateError):
    """A checkpoint already lies under this id; creating it again would overwrite it."""


class SessionLocked(StateError):
    """A live process holds the session. `pid` is that process, None where it could not be read."""

    def __init__(self, session_id: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"session {session_id} is held by {holder}")
        self.pid = pid


class UnknownVersion(StateError):
    """Written by a newer version of the program; left untouched."""


class OtherShape(UnknownVersion):
    """Whole, and not of the shape that this program writes: another program wrote it; left untouched. `problems` are
    all that is wrong, each with its path; the message lists the first of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"the checkpoint is whole and of another shape: {list_problems(problems)}")
        self.problems = tuple(problems)


class TooLarge(StateError):
    """A snapshot has more bytes than may be read; it was not read, and left untouched."""


class Damaged(StateError):
    """A snapshot or journal fails its checksum where no crash can have torn it. `quarantined` names where it went.
    `salvaged`: what was whole before the damage has taken its place, and can be opened."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.quarantined: str | None = None
        self.salvaged = False


class Untrusted(StateError):
    """Others than this user own or may write the files of a session; left untouched."""


class StorageLimit(StateError):
    """A session's blobs may not take more room. `limit_bytes` is what they may take."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the session's stored content has reached its limit of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class WriteFailed(StateError):
    """The disk did not take the record; nothing may be taken for durable until a later write succeeds."""


@contextlib.contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Errors of the disk as WriteFailed."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if isinstance(error.filename, str) else ""
        raise WriteFailed(f"{doing} failed: {error.strerror or error}{where}") from error
