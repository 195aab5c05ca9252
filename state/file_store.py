"""Store of sessions on the local disk: each is a snapshot, a journal and a folder of blobs in one state directory (AH
9.4)."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from config.lean_typing import NamedTuple
from state import InvalidSessionId, NoSuchSession, SessionPaths, StateError, translate_errors
from state.blobs import BlobFolder, SessionStorage
from state.disk import LOCAL_DISK, ThreadJob, no_such
from state.file_session import FileSession, find_files
from state.journal import read_coloured
from state.snapshot import SNAPSHOT_LIMIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.checkpoint import Checkpoint
    from state.disk import Disk, StartJob

MIN_COMPACT_BYTES = 256 * 1024
BLOB_LIMIT_BYTES = 1024 * 1024 * 1024

_READ_TRIES = 3


class Summary(NamedTuple):
    """A resumable session in a list. `state` is None if it cannot be read; then `problem` is the reason. `pid` is that
    of the live process that holds it (0: unknown); `updated_at` is in seconds since the epoch."""

    session_id: str
    state: Checkpoint | None
    problem: str
    pid: int | None
    updated_at: float


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class FileCheckpointStore:
    """Sessions by their ids (`[A-Za-z0-9_-]{1,128}`, else InvalidSessionId). `now` returns the current time in UTC, and
    `blob_limit_bytes` applies to each session; see SessionStorage for the others."""

    def __init__(
        self,
        state_dir: str,
        disk: Disk = LOCAL_DISK,
        *,
        now: Callable[[], datetime] = utc_now,
        min_compact_bytes: int = MIN_COMPACT_BYTES,
        blob_limit_bytes: int = BLOB_LIMIT_BYTES,
        start_job: StartJob = ThreadJob,
        snapshot_limit_bytes: int = SNAPSHOT_LIMIT_BYTES,
        archives: bool = False,
    ) -> None:
        self._state_dir = state_dir
        self._disk = disk

        def storage_of(session_id: str) -> SessionStorage:
            paths = SessionPaths(state_dir, session_id)
            blobs = BlobFolder(disk, paths.blobs, blob_limit_bytes)
            return SessionStorage(disk, now, paths, blobs, min_compact_bytes, start_job, snapshot_limit_bytes, archives)

        self._storage = storage_of

    def create(self, session_id: str, state: Checkpoint) -> FileSession:
        """Create a session that starts from `state`. Raises SessionExists, SessionLocked, WriteFailed."""
        return FileSession.create(self._storage(session_id), state)

    def open(self, session_id: str, *, ended_too: bool = False) -> FileSession:
        """Open the session as the last process left it; see `claim`. Raises NoSuchSession, SessionLocked,
        UnknownVersion, TooLarge and Untrusted (all three leave it untouched), WriteFailed, and Damaged: damaged files
        are kept as `.corrupt-N`, the intact part before the damage replaces them, and the next `open` reads it."""
        session = self.claim(session_id, ended_too=ended_too)
        session.take_over()
        return session

    def claim(self, session_id: str, *, ended_too: bool = False) -> FileSession:
        """Lock and read the session; its files are unchanged until `take_over`. With `ended_too` also a session that
        has ended, from its archive, with its last task over. Raises the errors of `open`, and NoSuchSession also if the
        records of an ended session were not kept."""
        storage = self._storage(session_id)
        if self.has(session_id):
            return FileSession.claim(storage)
        if ended_too:
            archived = find_files(storage, archived=True)
            state = archived.require_state()
            state.session_status = "SESSION_RUNNING"
            return FileSession.create(storage, state, archived)
        with translate_errors("looking for the session"):
            raise no_such(self._disk, storage.paths)

    def has(self, session_id: str) -> bool:
        """True if there is a snapshot or journal with this id. Raises InvalidSessionId, WriteFailed."""
        paths = SessionPaths(self._state_dir, session_id)
        with translate_errors("looking for the session"):
            return any(self._disk.status(path) is not None for path in (paths.snapshot, paths.journal))

    def load(self, session_id: str, *, salvaged_too: bool = False, ended_too: bool = False) -> Checkpoint:
        """Read the state of a session without changing anything, even if another process holds it. With `salvaged_too`
        Damaged is raised only if nothing is intact; with `ended_too` a session that has ended is read from its archive.
        Raises NoSuchSession, UnknownVersion, TooLarge, Untrusted, Damaged, WriteFailed."""
        found = find_files(self._storage(session_id), archived=ended_too and not self.has(session_id))
        return found.require_state(salvaged_too=salvaged_too)

    def versions(self, session_id: str) -> Callable[[str], bytes | None]:
        """Return a function that returns the content of a blob by name, None if it is missing, for a session that is
        resumable or has ended. Raises the errors of `load`."""
        storage = self._storage(session_id)
        inline = find_files(storage, archived=not self.has(session_id)).stored.inline
        return lambda name: inline[name] if name in inline else storage.blobs.get(name)

    def coloured(self, session_id: str) -> dict[str, dict[str, str]]:
        """Return the output of commands with its colours, by call and stream, as far as records are still kept. Raises
        WriteFailed, UnknownVersion."""
        with translate_errors("reading the journals"):
            return read_coloured(self._disk, SessionPaths(self._state_dir, session_id))

    def list(self) -> list[Summary]:
        """Return every resumable or unreadable session, sorted by id. Changes nothing."""
        with translate_errors("listing the sessions"):
            names = self._disk.names(SessionPaths(self._state_dir, "any").checkpoints)
            ids = {name.partition(".")[0] for name in names if name.endswith((".json", ".journal"))}
            rows = []
            for session_id in sorted(ids):
                with contextlib.suppress(InvalidSessionId, NoSuchSession):  # the latter: an interrupted end
                    rows.append(self._summary(SessionPaths(self._state_dir, session_id)))
            return rows

    def summary(self, session_id: str) -> Summary | None:
        """Return the row of `list` for one session, None if there is none to resume. Raises InvalidSessionId,
        WriteFailed."""
        with translate_errors("looking for the session"):
            if not self.has(session_id):
                return None
            try:
                return self._summary(SessionPaths(self._state_dir, session_id))
            except NoSuchSession:  # an interrupted end
                return None

    def _summary(self, paths: SessionPaths) -> Summary:
        found = [self._disk.status(path) for path in (paths.snapshot, paths.journal)]
        updated = max((status.modified for status in found if status is not None), default=0.0)
        pid = self._disk.holder(paths.lock)
        problem = ""
        for _ in range(_READ_TRIES):  # a live holder may replace the snapshot between our two reads
            try:
                return Summary(paths.session_id, self.load(paths.session_id), "", pid, updated)
            except NoSuchSession:
                raise
            except StateError as error:
                problem = str(error)
        return Summary(paths.session_id, None, problem, pid, updated)
