"""One session on disk: snapshot plus journal, committed at two points a step (design section 6).

    write-ahead   turn (assistant message, its calls)            append, sync
    meanwhile     call_started, call_finished                    append
    commit        step_committed                                 append, sync

The snapshot is rewritten when the journal has outgrown it, so that bytes written follow bytes changed. A journal whose
descriptor failed is never written again: the next write puts everything into a fresh snapshot and a fresh journal.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import orjson

from state import files
from state.boot import boot_id
from state.errors import Damaged, NoSuchSession, SessionExists, UnknownVersion, WriteFailed
from state.journal import Journal, JournalContent, parse
from state.locations import SessionPaths, make_private_dir
from state.lock import SessionLock
from state.snapshot import decode_snapshot, encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state.checkpoint import Checkpoint

# Below this a rewrite of the snapshot costs more in syncs than it saves in replay.
_MIN_COMPACT_BYTES = 256 * 1024

ENDED = "SESSION_COMPLETED"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was found besides the state itself. `torn_bytes` of an unfinished last record were dropped."""

    torn_bytes: int = 0


class SessionStore:
    """The open store of one session; holds the session's lock from `create` or `open` to `close` or `delete`.

    `state` is the present state: every record goes through `append`, which writes it and folds it over `state`.
    """

    def __init__(self, paths: SessionPaths, lock: SessionLock, state: Checkpoint, report: LoadReport) -> None:
        self._paths = paths
        self._lock = lock
        self._journal: Journal | None = None
        self._snapshot_bytes = 0
        self.state = state
        self.report = report

    @classmethod
    def create(cls, paths: SessionPaths, state: Checkpoint) -> Self:
        """A new session that starts from `state`. Raises SessionExists, SessionLocked, WriteFailed."""
        with _as_write_failure("preparing the state directory"):
            make_private_dir(paths.checkpoints)
            make_private_dir(paths.records)
        lock = SessionLock.acquire(paths.lock, paths.session_id)
        try:
            _refuse_existing(paths)
            store = cls(paths, lock, state, LoadReport())
            # The journal first: so a checkpoint without one is never the trace of a crash, and always damage.
            with _as_write_failure("writing the journal"):
                store._start_journal()
                store._replace_snapshot()
        except (SessionExists, Damaged, UnknownVersion):
            lock.release(remove=False)
            raise
        except BaseException:
            lock.release(remove=True)
            raise
        return store

    @classmethod
    def open(cls, paths: SessionPaths) -> Self:
        """The session as the last process left it: the snapshot and the journal's whole records over it.

        Raises NoSuchSession, SessionLocked, UnknownVersion (files untouched), Damaged (files moved aside as
        `.corrupt-N`), WriteFailed.
        """
        if not (os.path.lexists(paths.snapshot) or os.path.lexists(paths.journal)):
            raise _no_such(paths)
        lock = SessionLock.acquire(paths.lock, paths.session_id)
        try:
            loaded = load(paths)
            store = cls(paths, lock, loaded.state, loaded.report)
            store._snapshot_bytes = loaded.snapshot_bytes
            with _as_write_failure("opening the journal"):
                if loaded.journal.records[-1][0] == store.state.seq:
                    store._journal = Journal.reopen(paths.journal, loaded.journal)
                else:
                    store._write_snapshot()
        except Damaged as error:
            error.quarantined = _quarantine(paths)
            lock.release(remove=True)
            raise
        except NoSuchSession:
            _unlink(paths.journal)
            lock.release(remove=True)
            raise
        except BaseException:
            lock.release(remove=False)
            raise
        return store

    def append(self, kind: str, fields: dict[str, Any], message: bytes | None = None) -> None:
        """Fold one record over the state and write it; on return it survives the death of this process, and after
        `sync` that of the machine. Raises WriteFailed, and then the state has the record all the same: the next
        write that succeeds carries it."""
        if "kind" in fields or "message" in fields:
            raise ValueError("`kind` and `message` are the record's own")
        record: dict[str, Any] = {"kind": kind, **fields}
        if message is not None:
            record["message"] = orjson.Fragment(message)
        payload = orjson.dumps(record)
        self.state.apply(kind, fields, message)
        self.state.seq += 1
        if self._journal is None or self._journal.broken:
            self._write_snapshot()
        else:
            self._journal.append(payload)

    def sync(self) -> None:
        """Make everything appended so far durable: one sync, or a new snapshot when the journal failed or has
        outgrown the last one. Raises WriteFailed."""
        journal = self._journal
        if journal is None or journal.broken:
            self._write_snapshot()
        elif self._outgrown(journal):
            self._compact(journal)
        else:
            journal.sync()

    def _compact(self, journal: Journal) -> None:
        """A new snapshot in place of a sync; on a disk too full for it the journal that is there goes on."""
        try:
            self._write_snapshot()
        except WriteFailed:
            if self._journal is not journal or journal.broken:
                raise
            journal.sync()

    def close(self) -> None:
        """Let go of the session; it stays resumable."""
        self._close_journal()
        self._lock.release(remove=False)

    def delete(self) -> None:
        """The clean end (AH 9.6): snapshot, journal and lock go.

        The snapshot goes first: alone it would be an older state that a resume could take for the present one. The
        journal that a crash leaves behind says by its last record that the session is over. Raises WriteFailed when
        the disk refuses; the session is let go all the same, and a resume of it tells its end again.
        """
        with contextlib.suppress(WriteFailed):
            self.append("session_status", {"status": ENDED})
            self.sync()
        self._close_journal()
        gone = False
        try:
            with _as_write_failure("removing the checkpoint"):
                _unlink(self._paths.snapshot)
                _unlink(self._paths.journal)
            gone = True
        finally:
            self._lock.release(remove=gone)

    def _outgrown(self, journal: Journal) -> bool:
        return journal.size > max(_MIN_COMPACT_BYTES, self._snapshot_bytes)

    def _write_snapshot(self) -> None:
        with _as_write_failure("writing the checkpoint"):
            self._replace_snapshot()
            self._start_journal()

    def _replace_snapshot(self) -> None:
        chunks = encode_snapshot(self.state, datetime.now(UTC).isoformat(timespec="milliseconds"))
        files.replace_atomically(self._paths.snapshot, chunks)
        self._snapshot_bytes = sum(map(len, chunks))

    def _start_journal(self) -> None:
        """An empty journal in place of the old one, whose records the snapshot now holds. A crash between the two
        is harmless: records up to the snapshot's sequence number are skipped on load."""
        self._close_journal()
        opening = orjson.dumps({"kind": "opened", "sessionId": self._paths.session_id})
        self.state.seq += 1
        self._journal = Journal.create(self._paths.journal, self.state.seq, opening)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A session read from disk."""

    state: Checkpoint
    report: LoadReport
    journal: JournalContent
    snapshot_bytes: int


def load(paths: SessionPaths) -> Loaded:
    """Read a session without changing anything. Raises NoSuchSession, UnknownVersion, Damaged."""
    data, journal_data = _read(paths.snapshot), _read(paths.journal)
    content = parse(journal_data or b"")
    if data is None:
        if journal_data is None or _never_begun(content) or _says_ended(content):
            raise _no_such(paths)
        raise Damaged("the journal is there and its checkpoint is missing")
    state = decode_snapshot(data)
    if state.identity.session_id != paths.session_id:
        raise Damaged(f"the checkpoint belongs to session {state.identity.session_id!r}")
    if not content.records:
        raise Damaged("the checkpoint is there and its journal is missing or empty")
    _replay(state, content, paths.session_id)
    if content.damaged and not _lost_with_power(state, content):
        raise Damaged(f"the journal is damaged {content.valid_bytes} bytes in, before its end")
    if content.damaged or (content.torn_bytes and journal_data is not None and journal_data.endswith(b"\n")):
        _suspect_starts(state)
    return Loaded(state, LoadReport(content.torn_bytes), content, len(data))


def _replay(state: Checkpoint, content: JournalContent, session_id: str) -> None:
    """Fold the journal's records over the snapshot. Records that the snapshot already holds are skipped."""
    opening = orjson.loads(content.records[0][1])
    if opening.get("sessionId") != session_id:
        raise Damaged(f"the journal belongs to session {opening.get('sessionId')!r}")
    for seq, payload in content.records:
        if seq <= state.seq:
            continue
        if seq != state.seq + 1:
            raise Damaged(f"records {state.seq + 1} to {seq - 1} are missing between checkpoint and journal")
        fields = orjson.loads(payload)
        kind = fields.pop("kind")
        state.seq = seq
        if kind == "opened":
            continue
        message = fields.pop("message", None)
        state.apply(kind, fields, None if message is None else orjson.dumps(message))


def _lost_with_power(state: Checkpoint, content: JournalContent) -> bool:
    """True when the break can be what a machine's sudden end made of records that were not synced yet.

    They may reach the disk in any order. It takes another boot, and behind the break nothing but records of the one
    step: whatever stands before a turn was synced.
    """
    if state.boot is None or state.boot == boot_id():
        return False
    return all(
        orjson.loads(payload).get("kind") not in ("turn", "task_started", "opened") for payload in content.behind
    )


def _suspect_starts(state: Checkpoint) -> None:
    """The last record is whole to its end and fails its checksum. No dying process leaves that, so it was whole once,
    and it may have said that a call of the open step started."""
    if state.open_step is not None:
        for call in state.open_step.calls:
            call.started = call.started or call.result is None


def _refuse_existing(paths: SessionPaths) -> None:
    """Raise SessionExists unless nothing of a session lies here, or only what a cut-off end or start left behind."""
    if os.path.lexists(paths.snapshot) or os.path.lexists(paths.journal):
        try:
            load(paths)
        except NoSuchSession:
            _unlink(paths.journal)
        else:
            raise SessionExists(f"session {paths.session_id} exists already: resume it, or choose another id")
    if os.path.lexists(paths.result):
        raise SessionExists(f"session {paths.session_id} has ended earlier: choose another id")


def _never_begun(content: JournalContent) -> bool:
    """True when the process died between the first journal and the first checkpoint."""
    return len(content.records) == 1 and content.torn_bytes == 0 and content.records[0][0] == 1


def _says_ended(content: JournalContent) -> bool:
    last = orjson.loads(content.records[-1][1]) if content.records else {}
    return last.get("kind") == "session_status" and last.get("status") == ENDED


def _no_such(paths: SessionPaths) -> NoSuchSession:
    return NoSuchSession(f"there is no session {paths.session_id} to resume under {paths.state_dir}")


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _read(path: str) -> bytes | None:
    try:
        return files.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = f"{os.path.basename(path)} cannot be read: {error.strerror}"
        # What is no plain file is not ours. Anything else is a trouble of the machine, and the file may be well.
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            raise Damaged(problem) from error
        raise WriteFailed(problem) from error


def _quarantine(paths: SessionPaths) -> str:
    """Move snapshot and journal aside under the first free `.corrupt-N`; nothing is deleted unread."""
    number = 1
    while any(os.path.lexists(f"{path}.corrupt-{number}") for path in (paths.snapshot, paths.journal)):
        number += 1
    for path in (paths.snapshot, paths.journal):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, f"{path}.corrupt-{number}")
    return f"{paths.snapshot}.corrupt-{number}"


@contextlib.contextmanager
def _as_write_failure(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if isinstance(error.filename, str) else ""
        raise WriteFailed(f"{doing} failed: {error.strerror or error}{where}") from error
