"""The interface of a store of sessions, wherever it keeps them (AH 9): `CheckpointStore` has many, `OpenSession` is
one.

A session is a state and the records that change it. At two points a step they are made durable (design section 6):

    write-ahead   turn (assistant message, its calls)            append, sync
    meanwhile     call_started, call_finished                    append
    commit        step_committed                                 append, sync

`state.file_store` keeps sessions on the local disk, `state.memory_store` in memory. Their rules are held by one suite
of tests, which a further store has to pass as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import orjson

from config.lean_typing import NamedTuple
from state.records import fields_of, kind_of

if TYPE_CHECKING:
    from state.checkpoint import Checkpoint
    from state.records import JournalRecord

ENDED = "SESSION_COMPLETED"
SNAPSHOT_LIMIT_BYTES = 256 * 1024 * 1024
"""Default limit for a snapshot; messages above 16 KiB are in blobs and do not count."""
# Fields of a record that are the store's own.
KIND, MESSAGE, BLOBS, SNAPSHOT, DURABLE = "kind", "message", "blobs", "snapshot", "durable"
# The kind of a journal's first record, which changes nothing.
OPENED = "opened"
# In the opening of a session that had ended: its archive has all that was before.
REOPENED = "reopened"


class LoadReport(NamedTuple):
    """Findings of a load besides the state itself. `torn_bytes` of an unfinished last record were dropped; `lost_blobs`
    are the names of large texts that are damaged; `made_private`: others could read the files, and no longer can;
    `kept_aside` is where the files were copied to before something was dropped that had been whole once; `restored`:
    the newest checkpoint was damaged, and what stands beside it gave the same state."""

    torn_bytes: int = 0
    lost_blobs: tuple[str, ...] = ()
    made_private: bool = False
    kept_aside: str | None = None
    restored: bool = False


class Summary(NamedTuple):
    """A resumable session in a list. `state` is None where it cannot be read, and then `problem` says why; `pid` is
    that of the live process that holds it (0: unknown); `updated_at` is in seconds since the epoch."""

    session_id: str
    state: Checkpoint | None
    problem: str
    pid: int | None
    updated_at: float


class OpenSession(Protocol):
    """One session, held from `create` or `open` to `close` or `delete`.

    `state` is the present state: every record goes through `append`, which writes it and folds it over `state`.
    """

    state: Checkpoint
    report: LoadReport

    @property
    def storage_full(self) -> bool:
        """True if something large could not be kept apart, since the session has reached its limit."""
        ...

    @property
    def unarchived(self) -> str | None:
        """Why records of the session will not stay when it has ended, in one line; None where they will, or where
        nothing is archived."""
        ...

    def boot_id(self) -> str | None:
        """An id of the boot of the machine that the session is kept on, None where none is known; see `Disk`."""
        ...

    def has_room(self) -> bool:
        """True if a snapshot of the session has room for another step; otherwise it is to go no further, since nobody
        reads a larger one again. Asked between two steps. Raises WriteFailed."""
        ...

    def append(self, record: JournalRecord) -> None:
        """Fold one record over the state and write it; on return it survives the death of this process, and after
        `sync` that of the machine. Raises WriteFailed, and then the state has the record all the same: the next
        write that succeeds carries it."""
        ...

    def try_append(self, record: JournalRecord) -> None:
        """`append`, or nothing: where it raises WriteFailed, the state is as it was, and a later process does not find
        the record either."""
        ...

    def sync(self) -> None:
        """Make everything appended so far durable: one sync, but for what a compaction adds. Raises WriteFailed."""
        ...

    def commit(self, record: JournalRecord) -> None:
        """`append` and `sync`. Raises WriteFailed."""
        ...

    def keep(self, data: bytes) -> str:
        """Keep a large thing beside the records and return its name, to be put into the next record, with which it
        becomes durable. `UNAVAILABLE` when there is no room for it or the disk refused."""
        ...

    def kept(self, name: str) -> bytes | None:
        """Return what was kept under `name`; None when it is gone or damaged. Another thread may ask while the session
        is at work."""
        ...

    def compact(self) -> None:
        """Put the state in place of all records so far. Raises WriteFailed."""
        ...

    def close(self) -> None:
        """Let go of the session; it stays resumable."""
        ...

    def delete(self) -> None:
        """The clean end (AH 9.6): nothing to resume is left. Raises WriteFailed when the disk refuses; the session is
        let go all the same, and a resume of it reports its end again."""
        ...


class CheckpointStore(Protocol):
    """Sessions by their ids (`[A-Za-z0-9_-]{1,128}`, else InvalidSessionId)."""

    def create(self, session_id: str, state: Checkpoint) -> OpenSession:
        """A new session that starts from `state`. Raises SessionExists, SessionLocked, WriteFailed."""
        ...

    def open(self, session_id: str) -> OpenSession:
        """The session as the last process left it. Raises NoSuchSession, SessionLocked, UnknownVersion, TooLarge and
        Untrusted (all three leave it untouched), WriteFailed, and Damaged, which says what became of it."""
        ...

    def load(self, session_id: str) -> Checkpoint:
        """The state of a session, changing nothing, also where another process holds it. Raises NoSuchSession,
        UnknownVersion, TooLarge, Untrusted, Damaged, WriteFailed."""
        ...

    def list(self) -> list[Summary]:
        """Every resumable session, and what cannot be read, in the order of their ids. Changes nothing."""
        ...


def encode(record: JournalRecord, blobs: dict[str, str] | None = None) -> bytes:
    """The kind and the fields of one record as JSON, with the blobs that it brings along. Raises TypeError (of which
    orjson's error is one) for what is no JSON."""
    return orjson.dumps({KIND: kind_of(record), **fields_of(record), **({BLOBS: blobs} if blobs else {})})
