"""State of sessions on disk (AH 9): errors, which the session layer maps to wire errors, and the paths and modes of all
files of a session (AH 9.4, interface section 1)."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from typing import TYPE_CHECKING

from config.shapes import list_problems

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_LINUX = bool(sys.platform == "linux")
APP_NAME = "agent-host"
STATE_DIR_VARIABLE = "AGENT_HOST_STATE_DIR"
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
PREVIOUS = ".previous"

_SHOWN_CHARS = 40
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class StateError(Exception):
    """Base of errors about the stored state of a session."""


class NoHomeDirectory(StateError):
    """A path begins with `~`, and neither HOME nor the password file names a home directory."""


class InvalidSessionId(StateError):
    """The id is not `[A-Za-z0-9_-]{1,128}`; it was rejected before it was used in a path."""


class NoSuchSession(StateError):
    """There is no checkpoint with this id."""


class SessionExists(StateError):
    """A checkpoint with this id exists already; creating it again would overwrite it."""


class SessionLocked(StateError):
    """A live process holds the session. `pid` is its process id, None if it could not be read."""

    def __init__(self, session_id: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"session {session_id} is in use by {holder}")
        self.pid = pid


class UnknownVersion(StateError):
    """The file was written by a newer version of the program; it was left untouched."""


class OtherShape(UnknownVersion):
    """The checkpoint is intact, but this program could not have written it: another program did. It was left untouched.
    `problems` are all problems, each with its path; the message lists the first ones."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"the checkpoint is whole and of another shape: {list_problems(problems)}")
        self.problems = tuple(problems)


class TooLarge(StateError):
    """A snapshot is larger than the limit; it was not read, and was left untouched."""


class Damaged(StateError):
    """A snapshot or journal fails its checksum in a way that no crash explains. `quarantined` is the path that it was
    moved or copied to. `salvaged`: the part before the damage has replaced it, and can be opened."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.quarantined: str | None = None
        self.salvaged = False


class Untrusted(StateError):
    """Another user owns the files of a session or may write to them; they were left untouched."""


class StorageLimit(StateError):
    """A session's blobs have reached their limit of `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the session's stored content has reached its limit of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class WriteFailed(StateError):
    """A write to disk failed; nothing may be treated as durable until a later write succeeds."""


@contextlib.contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Raise errors of the disk as WriteFailed."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if isinstance(error.filename, str) else ""
        raise WriteFailed(f"{doing} failed: {error.strerror or error}{where}") from error


def default_state_dir() -> str:
    """Return `$AGENT_HOST_STATE_DIR`, else the platform's user data directory. Raises NoHomeDirectory if that needs a
    home directory and there is none."""
    chosen = os.environ.get(STATE_DIR_VARIABLE)
    if chosen:
        return os.path.abspath(expand_home(chosen))
    if _LINUX:  # the same as platformdirs, whose import takes a fortieth of a start
        base = os.environ.get("XDG_DATA_HOME", "")  # the specification ignores a relative one
        return os.path.join(base if os.path.isabs(base) else expand_home("~/.local/share"), APP_NAME)
    import platformdirs

    return expand_home(platformdirs.user_data_dir(APP_NAME, appauthor=False))


def expand_home(path: str) -> str:
    """Replace a leading `~` of `path` by the home directory. Raises NoHomeDirectory if that is unknown: without this
    check a directory with the name `~` would be made."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~") and not os.path.isabs(expanded):
        raise NoHomeDirectory(
            f"{path}: there is no home directory: set HOME, or {STATE_DIR_VARIABLE} to an absolute path for the state"
        )
    return expanded


def is_session_id(name: str) -> bool:
    """True if `name` is safe as a file name."""
    return _SESSION_ID.fullmatch(name) is not None


def check_session_id(session_id: str) -> str:
    """Return `session_id` if it is safe as a file name. Raises InvalidSessionId."""
    if not is_session_id(session_id):
        shown = session_id if len(session_id) <= _SHOWN_CHARS else f"{session_id[:_SHOWN_CHARS]}…"
        raise InvalidSessionId(f"{shown!r}: a session id is 1 to 128 of the characters A-Z a-z 0-9 _ -")
    return session_id


def make_private_dir(path: str, *, parents: bool = True) -> None:
    """Create `path` and its parents with mode 0700. Raises OSError; without `parents` also if the parent does not
    exist, so that the writes of a session do not recreate a state directory that was removed."""
    missing: list[str] = []
    while path and not os.path.isdir(path):
        if missing and not parents:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        # Another process may make it at the same time; anything but a directory is rejected below.
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, DIRECTORY_MODE)
        if not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)


class SessionPaths:
    """All paths of one session under one state directory. Absolute strings; the id is checked on construction.

    In `checkpoints`: `snapshot` (the checkpoint proper, AH 9.2), `journal` (records since the snapshot), the previous
    pair, which is used if the newest is damaged (`previous_journal` has the records from `previous_snapshot` to the
    beginning of `journal`), and `lock`, which the process that has the session holds for its lifetime.

    In `records`, which is kept after the end:

    - `events`: one event a line; `approvals`: decisions of the embedded Approval Service, one a line
    - `trace`: the last span of the process that had the session, if traces are sent
    - `result`: the result object of the session's last task
    - `artifacts`: artifacts of the embedded Workspace Service
    - `questions`: the socket where the process that has the session takes answers to its open questions, from the first
      one to its end; on Windows a file with the name of a pipe
    - `archive`: the records of a session that has ended (`state.journal`)
    - `sandbox`: a directory for each run of a skill's script
    - `kept_folder`: the previous contents of files that are being written in place, by the mark of the call
    - `blobs`: content-addressed files: large texts, first versions of files, artifacts

    If the session's id was chosen by the user, `stub` keeps the result when the session is pruned.
    """

    def __init__(self, state_dir: str, session_id: str) -> None:
        self.state_dir = state_dir
        self.session_id = check_session_id(session_id)
        self.checkpoints = os.path.join(state_dir, "checkpoints")
        self.snapshot = os.path.join(self.checkpoints, f"{session_id}.json")
        self.journal = os.path.join(self.checkpoints, f"{session_id}.journal")
        self.previous_snapshot = f"{self.snapshot}{PREVIOUS}"
        self.previous_journal = f"{self.journal}{PREVIOUS}"
        self.lock = os.path.join(self.checkpoints, f"{session_id}.lock")
        self.records = os.path.join(state_dir, "sessions", session_id)
        self.events = os.path.join(self.records, "events.jsonl")
        self.trace = os.path.join(self.records, "trace.json")
        self.result = os.path.join(self.records, "result.json")
        self.artifacts = os.path.join(self.records, "artifacts")
        self.approvals = os.path.join(self.records, "approvals.jsonl")
        self.questions = os.path.join(self.records, "questions.sock")
        self.archive = os.path.join(self.records, "archive")
        self.sandbox = os.path.join(self.records, "sandbox")
        self.kept_folder = os.path.join(self.records, "kept")
        self.blobs = os.path.join(self.records, "blobs")
        self.stub = os.path.join(state_dir, "stubs", f"{session_id}.json")

    @property
    def checkpoint_files(self) -> tuple[str, str, str, str]:
        """All files that a session may be read from, the newest pair first."""
        return self.snapshot, self.journal, self.previous_snapshot, self.previous_journal
