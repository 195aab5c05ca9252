"""Sessions in memory, for tests of what is above the store. It keeps what the file store keeps, encoded, and a
session is opened by folding its records again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import orjson

from state import NoSuchSession, SessionExists, SessionLocked, check_session_id
from state.blobs import UNAVAILABLE, sha256_hex
from state.checkpoint import ENDED
from state.disk import boot_id
from state.file_session import FileSession, LoadReport
from state.file_store import Summary
from state.journal import KIND, encode
from state.records import SessionStatusChanged, fold, message_of, record_of
from state.snapshot import EncodedSnapshot, decode_snapshot, encode_head

if TYPE_CHECKING:
    from state.checkpoint import Checkpoint
    from state.records import JournalRecord

BLOB_LIMIT_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class _KeptSession:
    snapshot: bytes
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    held: bool = False
    updated_at: float = 0.0


class CheckpointStore(Protocol):
    """What both stores of sessions offer; see `FileCheckpointStore`."""

    def create(self, session_id: str, state: Checkpoint) -> FileSession: ...

    def open(self, session_id: str) -> FileSession: ...

    def load(self, session_id: str) -> Checkpoint: ...

    def list(self) -> list[Summary]: ...


class MemoryCheckpointStore:
    """See CheckpointStore."""

    def __init__(self, *, blob_limit_bytes: int = BLOB_LIMIT_BYTES) -> None:
        self._kept: dict[str, _KeptSession] = {}
        self._blob_limit_bytes = blob_limit_bytes

    def create(self, session_id: str, state: Checkpoint) -> MemorySession:
        """See CheckpointStore."""
        check_session_id(session_id)
        kept = self._kept.get(session_id)
        if kept is not None and kept.held:
            raise SessionLocked(session_id, None)
        if kept is not None:
            raise SessionExists(f"session {session_id} exists already: resume it, or choose another id")
        kept = self._kept[session_id] = _KeptSession(_snapshot(state))
        return MemorySession(self, session_id, kept, state, self._blob_limit_bytes)

    def open(self, session_id: str) -> MemorySession:
        """See CheckpointStore."""
        state = self.load(session_id)
        kept = self._kept[session_id]
        if kept.held:
            raise SessionLocked(session_id, None)
        return MemorySession(self, session_id, kept, state, self._blob_limit_bytes)

    def load(self, session_id: str) -> Checkpoint:
        """See CheckpointStore."""
        kept = self._kept.get(check_session_id(session_id))
        if kept is None:
            raise NoSuchSession(f"there is no session {session_id} to resume in memory")
        state = decode_snapshot(kept.snapshot, lambda _, message: message)
        for fields, message in kept.records:
            row = orjson.loads(fields)
            fold(state, record_of(row.pop(KIND), row, message))
            state.seq += 1
        return state

    def list(self) -> list[Summary]:
        """See CheckpointStore."""
        return [
            Summary(session_id, self.load(session_id), "", 0 if kept.held else None, kept.updated_at)
            for session_id, kept in sorted(self._kept.items())
        ]

    def forget(self, session_id: str) -> None:
        """A session's clean end."""
        del self._kept[session_id]


class MemorySession(FileSession):
    """One session in memory: all that its owners call of a FileSession."""

    def __init__(
        self, store: MemoryCheckpointStore, session_id: str, kept: _KeptSession, state: Checkpoint, limit_bytes: int
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._row = kept
        self._limit_bytes = limit_bytes
        kept.held = True
        kept.updated_at = time.time()
        self.state = state
        self.report = LoadReport()
        self._is_full = False

    @property
    def storage_full(self) -> bool:
        """See FileSession."""
        return self._is_full

    @property
    def unarchived(self) -> str | None:
        """Nothing is archived in memory."""
        return None

    def boot_id(self) -> str | None:
        """See FileSession."""
        return boot_id()

    def append(self, record: JournalRecord) -> None:
        """See FileSession."""
        fields = encode(record)
        fold(self.state, record)
        self.state.seq += 1
        self._row.records.append((fields, message_of(record)))
        self._row.updated_at = time.time()

    def try_append(self, record: JournalRecord) -> None:
        """See FileSession. Memory refuses nothing."""
        self.append(record)

    def sync(self) -> None:
        """See FileSession."""

    def commit(self, record: JournalRecord) -> None:
        """See FileSession."""
        self.append(record)

    def keep(self, data: bytes) -> str:
        """See FileSession."""
        name, blobs = sha256_hex(data), self._row.blobs
        if name not in blobs and sum(map(len, blobs.values())) + len(data) > self._limit_bytes:
            self._is_full = True
            return UNAVAILABLE
        blobs[name] = data
        return name

    def kept(self, name: str) -> bytes | None:
        """See FileSession."""
        return self._row.blobs.get(name)

    def has_room(self) -> bool:
        """See FileSession. It is in memory as it is."""
        return True

    def compact(self) -> None:
        """See FileSession."""
        self._row.snapshot, self._row.records = _snapshot(self.state), []

    def close(self) -> None:
        """See FileSession."""
        self._row.held = False

    def delete(self) -> None:
        """See FileSession."""
        self.append(SessionStatusChanged(ENDED))
        self._store.forget(self._session_id)


def _snapshot(state: Checkpoint) -> bytes:
    return b"".join(EncodedSnapshot(encode_head(state, ""), state.thread).chunks())
