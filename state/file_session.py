"""One open session on the local disk: a snapshot, a journal and a folder of blobs (AH 9, design section 6).

A session is a state and the records that change it. They are made durable at two points of each step:

    write-ahead   turn (assistant message, its calls)            append, sync
    meanwhile     call_started, call_finished                    append
    commit        step_committed                                 append, sync

A new snapshot is made when the journal has outgrown the last one, so that the bytes written are proportional to the
bytes changed; it is written in the background. Until then everything new is in the journal, including blobs, and is
covered by its two syncs per step. A journal whose descriptor failed is never written again: the next write puts
everything into a new snapshot and a new journal.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import orjson

from config.lean_typing import NamedTuple
from state import Damaged, NoSuchSession, SessionExists, WriteFailed, translate_errors
from state.blobs import LargeValues
from state.checkpoint import ENDED
from state.disk import (
    TEMPORARY,
    copy_aside,
    is_quarantined,
    make_durable_dir,
    move_aside,
    replace_atomically,
    second_name,
    second_temporary,
    write_new,
)
from state.journal import KIND, OPENED, REOPENED, SNAPSHOT, Archive, JournalFile, encode
from state.records import SessionStatusChanged, fold, message_of
from state.snapshot import EncodedSnapshot, encode_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from state.blobs import SessionStorage, SnapshotThread
    from state.checkpoint import Checkpoint
    from state.disk import SessionLock
    from state.loading import LoadedFiles
    from state.records import JournalRecord


class LoadReport(NamedTuple):
    """Findings of a load apart from the state. `torn_bytes` of an unfinished last record were dropped; `lost_blobs` are
    the names of damaged large texts; `made_private`: others could read the files, and no longer can; `kept_aside` is
    the path that the files were copied to before an apparently once intact part was dropped; `restored`: the newest
    checkpoint was damaged, but the same state was rebuilt from other files."""

    torn_bytes: int = 0
    lost_blobs: tuple[str, ...] = ()
    made_private: bool = False
    kept_aside: str | None = None
    restored: bool = False


def find_files(storage: SessionStorage, *, archived: bool = False) -> LoadedFiles:
    """Read the session, or the archive of one that has ended, without changing anything. Raises the errors of `find`
    and `find_archived` in `state.loading`."""
    from state import loading  # a new session reads nothing

    return loading.find_archived(storage) if archived else loading.find(storage)


class FileSession:
    """One session, locked from `create` or `claim` to `close` or `delete`. `state` is the current state: every record
    goes through `append`, which writes it and applies it to `state`."""

    def __init__(self, storage: SessionStorage, lock: SessionLock, state: Checkpoint) -> None:
        self._storage = storage
        self._disk = storage.disk
        self._paths = storage.paths
        self._lock = lock
        self._journal: JournalFile | None = None
        self._snapshot_bytes = 0
        self._room = SnapshotRoom(storage.snapshot_limit_bytes)
        self._compaction: JournalCompaction | None = None
        self._retry_bytes = 0  # growth of the journal at which a failed compaction is retried
        self._kept = LargeValues(storage.blobs)
        self._archive = Archive(storage.disk, storage.paths, storage.blobs)
        self._first_seq: int | None = None  # of the current journal
        self._is_base_previous = False  # the journal continues from the previous snapshot
        self._to_do: Callable[[], None] | None = None  # the work of `take_over`
        self.state = state
        self.report = LoadReport()
        self.blobs = storage.blobs

    @property
    def storage_full(self) -> bool:
        """True if a large value could not be stored, because the session has reached its limit."""
        return self._kept.full

    @property
    def unarchived(self) -> str | None:
        """The reason, in one line, why records will not be kept when the session has ended; None if they will, or if
        archiving is off."""
        return self._archive.problem

    @classmethod
    def create(cls, storage: SessionStorage, state: Checkpoint, archived: LoadedFiles | None = None) -> Self:
        """Create a session; with `archived` reopen one that had ended and continue its archive, which starts only with
        `take_over`. Raises SessionExists, SessionLocked, WriteFailed."""
        disk, paths = storage.disk, storage.paths
        with translate_errors("preparing the state directory"):
            for directory in (paths.checkpoints, paths.records):
                make_durable_dir(disk, directory, within=paths.state_dir, must_exist=archived is not None)
        lock = disk.lock(paths.lock, paths.session_id)
        try:
            with translate_errors("looking for a session of this id"):
                _refuse_existing(storage, again=archived is not None)
        except BaseException:
            lock.release(remove=False, untouched=archived is not None)
            raise
        session = cls(storage, lock, state)
        session._to_do = functools.partial(session._begin, archived)
        if archived is None:
            session.take_over()
        return session

    @classmethod
    def claim(cls, storage: SessionStorage) -> Self:
        """Lock and read an existing session, without changing it until `take_over`. Raises the errors of the store's
        `open`. If nothing is intact, the files are moved aside; if the session is over, its leftovers are removed."""
        lock = storage.disk.lock(storage.paths.lock, storage.paths.session_id)
        try:
            found = find_files(storage)
            if found.state is None:
                raise _move_aside(storage, found)
            session = cls(storage, lock, found.state)
            session._to_do = functools.partial(session._take_over, found)
        except NoSuchSession:
            with contextlib.suppress(OSError):
                for path in reversed(storage.paths.checkpoint_files):  # the journal last: it records the end
                    storage.disk.remove(path)
            lock.release(remove=True)
            raise
        except Damaged:
            lock.release(remove=True)
            raise
        except BaseException:
            lock.release(remove=False, untouched=True)
            raise
        return session

    def take_over(self) -> None:
        """Put the state into files of this process; `claim` has written nothing. Does nothing the second time. Raises
        the errors of the store's `open`, and then releases the session."""
        to_do, self._to_do = self._to_do, None
        if to_do is None:
            return
        try:
            to_do()
        except Damaged as error:
            self._lock.release(remove=not error.salvaged)
            raise
        except BaseException:
            self._lock.release(remove=False)
            raise

    def append(self, record: JournalRecord) -> None:
        """Apply one record to the state and write it; on return it survives a crash of this process, and after `sync`
        one of the machine. If it raises WriteFailed, the state has the record anyway, and the next successful write
        includes it."""
        fields = encode(record, self._kept.to_record)
        fold(self.state, record)
        self.state.seq += 1
        self._kept.to_record = {}
        if self._journal is None or self._journal.broken:
            self.compact()
        else:
            self._journal.append(fields, message_of(record))

    def try_append(self, record: JournalRecord) -> None:
        """Append a record or nothing: if it raises WriteFailed, the state is unchanged, and a later process does not
        find the record either. It is written before it is applied to the state, so a snapshot that has to replace a
        broken journal does not contain it."""
        if self._journal is None or self._journal.broken:
            self.compact()
        journal = self._journal
        if journal is None:
            raise WriteFailed("the journal was not renewed")
        fields = encode(record, self._kept.to_record)
        self.state.seq += 1
        try:
            journal.append(fields, message_of(record))
            fold(self.state, record)
        except (WriteFailed, Damaged):
            # The whole record may be in the file; a snapshot with its number makes a load skip it.
            with contextlib.suppress(WriteFailed):
                self.compact()
            raise
        self._kept.to_record = {}

    def sync(self) -> None:
        """Make everything appended so far durable: with one sync, apart from those of a compaction. A failed journal is
        replaced by a new snapshot and journal. Raises WriteFailed."""
        compaction = self._compaction
        if compaction is not None and compaction.job.done():
            self._check_lock()
            if self._take_next_journal(compaction):
                return
        self._sync_journal()
        self._compact_when_due()

    def _sync_journal(self) -> None:
        self._check_lock()
        if self._journal is None or self._journal.broken:
            self.compact()
        else:
            self._journal.sync()

    def commit(self, record: JournalRecord) -> None:
        """`append` and `sync`. Raises WriteFailed."""
        self.append(record)
        self.sync()

    def keep(self, data: bytes) -> str:
        """Store a large value and return its name, to be put into the next record, with which it becomes durable.
        Returns `UNAVAILABLE` if the limit is reached or the disk failed."""
        return self._kept.put(data)

    def kept(self, name: str) -> bytes | None:
        """Return the value stored under `name`; None if it is missing or damaged. May be called from another thread
        while the session is in use."""
        return self._kept.get(name)

    def boot_id(self) -> str | None:
        """Return the boot id of the session's machine, None if unknown; see `Disk`."""
        return self._disk.boot_id()

    def has_room(self) -> bool:
        """True if a snapshot of the session has room for another step; otherwise the session must not continue, because
        a larger snapshot would not be read again. Call it between two steps. Only an actual snapshot shows the exact
        size, so near the limit this waits for the one that the last sync started. Raises WriteFailed."""
        journal, compaction = self._journal, self._compaction
        if journal is not None and compaction is not None and self._is_near_limit(journal):
            with contextlib.suppress(OSError, WriteFailed):  # the sync handles its outcome
                compaction.job.wait()
            self.sync()
        return not self._room.is_full

    def close(self) -> None:
        """Release the session, which stays resumable, after waiting for a running compaction."""
        if self._to_do is not None:
            self._to_do = None
            self._lock.release(remove=False, untouched=True)
            return
        try:
            self._end_compaction()
        finally:
            self._close_journal()
            self._lock.release(remove=False)

    def delete(self) -> None:
        """End the session cleanly (AH 9.6): nothing to resume is left. Raises WriteFailed if the disk fails; the
        session is released anyway, and a resume of it reports its end again.

        The snapshot is removed first, because without the journal it would be an older state that a resume could
        mistake for the current one. The journal, if a crash leaves it, records that the session is over; if that record
        cannot be written, both stay.
        """
        is_removed = False
        try:
            self._end_compaction()
            self._record_end()
            self._close_journal()
            has_begun = self.state.task is not None or bool(self.state.earlier_tasks)
            archives = self._storage.archives and has_begun
            if archives:
                self._archive_journal()
                self._archive.seal()
            with translate_errors("removing the checkpoint"):
                if not archives:
                    self._archive.clear()
                self._disk.remove(self._paths.snapshot)
                self._disk.sync_directory(self._paths.checkpoints)
                self._remove_previous()
                self._disk.remove(self._paths.journal)
                is_removed = True
                self._remove_leftovers(self.blobs.names if archives else frozenset())
        finally:
            self._close_journal()
            self._lock.release(remove=is_removed)

    def _archive_journal(self) -> None:
        if self._storage.archives and self._first_seq is not None:
            base = self._paths.previous_snapshot if self._is_base_previous else self._paths.snapshot
            self._archive.add(self._first_seq, base)

    def _record_end(self) -> None:
        try:
            self.append(SessionStatusChanged(ENDED))
            self._sync_journal()
        except WriteFailed:  # perhaps of the journal only; the state has the record, and new files may succeed
            self._sync_journal()

    def _begin(self, archived: LoadedFiles | None) -> None:
        # The journal first, so that a checkpoint without a journal cannot come from a crash and is always damage.
        try:
            if archived is not None:  # before the checkpoint that names them
                with translate_errors("keeping what the archived records hold"):
                    self.blobs.put(*archived.stored.inline.values(), limited=False)
            with translate_errors("writing the journal"):
                self._remove_previous()
                if archived is None:
                    self._archive.clear()
                first = self._encode()
                self._take_room(first.size)
                self._start_journal(first, again=archived is not None)
                self._put_snapshot(self._encode())
        except WriteFailed:
            self._lock.release(remove=True)
            raise

    def _take_over(self, found: LoadedFiles) -> None:
        """Write the last process's state to new files: it may have died because a sync failed, and syncing the same
        file again would then report success for lost pages. Damaged files, and those with a once intact part that is
        dropped, are copied aside first. Raises Damaged if there is damage."""
        if found.unusable:
            raise _move_aside(self._storage, found)
        self._kept.take_over(found.stored, found.lost, self.state.first_version_blobs())
        aside = None
        with translate_errors("taking the session over"):
            if found.damage is not None or found.suspect or found.restored:
                aside = copy_aside(self._disk, self._paths)
            if found.journal.records:
                self._first_seq = found.journal.records[0].seq
            if self._disk.status(self._paths.records) is None:
                make_durable_dir(self._disk, self._paths.records, within=self._paths.state_dir, must_exist=True)
            self._renew()
            if found.damage is None:
                # An archive also needs versions of files that only journals name.
                named = self._kept.blobs_to_keep(self.state.first_version_blobs())
                self._remove_leftovers(self.blobs.names if self._storage.archives else named)
        if found.damage is not None:
            self._close_journal()
            error = Damaged(found.damage)
            error.quarantined, error.salvaged = aside, True
            raise error
        torn = found.journal.torn_bytes
        self.report = LoadReport(
            torn, tuple(found.lost), made_private=found.readable, kept_aside=aside, restored=found.restored
        )

    def _remove_leftovers(self, named: frozenset[str]) -> None:
        """Remove files that a crash left incomplete, and blobs that nothing names, unless files were put aside, which
        may name any."""
        for path in self._paths.checkpoint_files:
            self._disk.remove(path + TEMPORARY)
        if not is_quarantined(self._disk, self._paths):
            self._storage.blobs.sweep(named)

    def _is_due(self, journal: JournalFile) -> bool:
        """True if a new snapshot is worth its cost, or is needed to find out if there is room for more. Near the limit
        that is one snapshot per sixteenth of it, until it is full."""
        if self._room.is_full or journal.grown_bytes <= self._retry_bytes:
            return False
        worth = journal.grown_bytes > max(self._storage.min_compact_bytes, self._snapshot_bytes)
        return worth or self._is_near_limit(journal)

    def _is_near_limit(self, journal: JournalFile) -> bool:
        return self._snapshot_bytes + journal.grown_bytes > self._room.full_at_bytes

    def _compact_when_due(self) -> None:
        """Start a compaction if the journal has outgrown the snapshot: all its data is collected now."""
        journal = self._journal
        if journal is None or journal.broken or self._compaction is not None or not self._is_due(journal):
            return
        thread, head, opening = self._kept.collect_for_snapshot(self.state.thread), self._head(), self._opening()
        try:
            seq = journal.mark()
        except WriteFailed:  # the sync itself succeeded; the next write puts everything into new files
            return
        self.state.seq = seq
        between_steps = self.state.open_step is None
        self._compaction = JournalCompaction(
            self._storage, self._lock, self._room, head, thread, seq, opening, between_steps
        )
        if self._compaction.job.done():
            self._take_next_journal(self._compaction)

    def _take_next_journal(self, compaction: JournalCompaction) -> bool:
        """Switch to the journal that follows the new snapshot; together they contain all that must be durable. Return
        False if the current journal has to continue, because a full disk is not a failure yet. Raises WriteFailed."""
        self._compaction = None
        journal = self._journal
        if journal is None or journal.broken:
            return False
        try:
            compaction.job.wait()
            self._is_base_previous = True
            self._kept.mark_moved(compaction.thread)
            self._snapshot_bytes = compaction.size
            journal.write_next(compaction.seq, compaction.opening)
            self._archive_journal()
            second_name(self._disk, self._paths.journal, self._paths.previous_journal)
        except (OSError, WriteFailed):
            journal.forget_mark()
            # A snapshot that was too large is retried when its step is over; if no step was open, the session is full.
            is_too_large = compaction.size > self._room.limit_bytes
            self._retry_bytes = 0 if is_too_large else journal.grown_bytes * 2
            if is_too_large:
                self._room.note(compaction.size, between_steps=compaction.between_steps)
            return False
        self._room.note(compaction.size, between_steps=compaction.between_steps)
        self._journal, self._retry_bytes = None, 0
        with translate_errors("putting the new journal in place"):
            self._journal = journal.switch_to_next()
        self._first_seq, self._is_base_previous = compaction.seq, False
        return True

    def _end_compaction(self) -> None:
        """Wait for a running compaction. Its snapshot is consistent with the current journal."""
        compaction, self._compaction = self._compaction, None
        if compaction is not None:
            with contextlib.suppress(OSError, WriteFailed):
                compaction.job.wait()
                self._is_base_previous = True

    def compact(self) -> None:
        """Replace all records so far by a snapshot of the state. Raises WriteFailed."""
        self._check_lock()
        with translate_errors("writing the checkpoint"):
            self._renew()

    def _check_lock(self) -> None:
        with translate_errors("looking at the session's lock"):
            is_held = self._lock.still_held()
        if is_held:
            return
        if self._disk.status(self._paths.checkpoints) is None:
            raise WriteFailed(
                f"the state directory {self._paths.state_dir} was removed or moved: if it is put back, the "
                "session can be resumed; without it the task has to be started again, and its changes of the workspace "
                "remain"
            )
        raise WriteFailed("the session's lock was removed or replaced: another process may have the session")

    def _renew(self) -> None:
        """Write a new snapshot, and then a new journal. A crash between the two is harmless, because records up to the
        snapshot's number are skipped on load."""
        self._end_compaction()
        snapshot = self._encode()
        self._take_room(snapshot.size)
        self._archive_journal()
        is_copied = self._put_snapshot(snapshot)
        self._start_journal(snapshot)
        with contextlib.suppress(OSError):  # leftovers of an older pair are ignored
            self._remove_previous(but_snapshot=is_copied)

    def _take_room(self, size: int) -> None:
        """Record the size of a snapshot of the current state. Raises WriteFailed if it is too large to be read
        again."""
        self._room.note(size, between_steps=self.state.open_step is None)
        self._room.refuse(size)

    def _put_snapshot(self, snapshot: EncodedSnapshot) -> bool:
        """Replace the current snapshot; return True if a second copy was written. Raises OSError. A small snapshot
        needs no copy, because the journal repeats it. The copy of a large one replaces the previous snapshot, from
        which the state may have been read; so the copy is written first."""
        is_copied = False
        if not part_in_opening(snapshot):
            with contextlib.suppress(OSError):  # the session can continue without it
                write_new(self._disk, self._paths.previous_snapshot + TEMPORARY, snapshot.chunks())
                self._disk.replace(self._paths.previous_snapshot + TEMPORARY, self._paths.previous_snapshot)
                is_copied = True
        self._snapshot_bytes = replace_atomically(self._disk, self._paths.snapshot, snapshot.chunks())
        return is_copied

    def _remove_previous(self, *, but_snapshot: bool = False) -> None:
        self._disk.remove(self._paths.previous_journal)
        if not but_snapshot:
            self._disk.remove(self._paths.previous_snapshot)

    def _encode(self) -> EncodedSnapshot:
        """Encode a snapshot of the state, after writing its large values to blobs. Raises OSError."""
        thread = self._kept.collect_for_snapshot(self.state.thread)
        snapshot = EncodedSnapshot(self._head(), thread.write())
        self._kept.mark_moved(thread)
        return snapshot

    def _head(self) -> bytes:
        return encode_head(self.state, self._storage.now().isoformat(timespec="milliseconds"))

    def _start_journal(self, snapshot: EncodedSnapshot, *, again: bool = False) -> None:
        """Start a journal that has only its opening, in place of the old one. `again`: the session had ended."""
        self._close_journal()
        opening = self._opening() | part_in_opening(snapshot) | ({REOPENED: True} if again else {})
        self.state.seq += 1
        self._retry_bytes = 0
        self._journal = JournalFile.create(self._disk, self._paths.journal, self.state.seq, orjson.dumps(opening))
        self._first_seq, self._is_base_previous = self.state.seq, False

    def _opening(self) -> dict[str, Any]:
        return {
            KIND: OPENED,
            "sessionId": self._paths.session_id,
            "status": self.state.session_status,
            "boot": self._disk.boot_id(),
        }

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def _move_aside(storage: SessionStorage, found: LoadedFiles) -> Damaged:
    error = Damaged(found.damage or "the checkpoint is empty")
    with translate_errors("putting damaged files aside"):
        error.quarantined = move_aside(storage.disk, storage.paths)
    return error


def _refuse_existing(storage: SessionStorage, *, again: bool) -> None:
    """Raise SessionExists unless there is no trace of a session, or only that of an interrupted end or start; with
    `again` also that of a completed end."""
    disk, paths = storage.disk, storage.paths
    taken = SessionExists(f"session {paths.session_id} exists already: resume it, or choose another id")
    if disk.status(paths.snapshot) is not None or disk.status(paths.journal) is not None:
        with contextlib.suppress(NoSuchSession):  # the journal of an interrupted end or start, which is replaced
            find_files(storage)
            raise taken
    if is_quarantined(disk, paths):
        raise SessionExists(f"damaged files of an earlier session {paths.session_id} are kept: choose another id")
    if not again and disk.status(paths.result) is not None:
        raise SessionExists(f"session {paths.session_id} has ended earlier: choose another id")


# Writing of a new snapshot in the background, while the session continues with its journal (design section 6).
#
#     on the loop     collect the snapshot's data; the journal gets a mark (`state.journal.JournalFile.mark`)
#     in background   write the snapshot; rename the current one to the previous one, and the new one to the current one
#     on the loop     at the next sync: rename the journal to the previous one, and put the next journal in its place,
#                     which has the records after the mark
#
# The files are consistent at each point in between: the current journal fits both snapshots, because records that a
# snapshot contains are skipped on load, and its records are those that follow the previous snapshot.

# Snapshots up to this size are repeated in the journal.
_SMALL_SNAPSHOT_BYTES = 16 * 1024


@dataclass(eq=False)
class JournalCompaction:
    """One compaction. The snapshot is of the state when this object is made: `head` is everything except its messages,
    from `encode_head`; `between_steps` is True if no step was open. `seq` and `opening` are those of the next journal's
    first record; `size` is the snapshot's size in bytes once it is encoded. `job` puts the snapshot in place,
    durably."""

    storage: SessionStorage
    lock: SessionLock
    room: SnapshotRoom
    head: bytes
    thread: SnapshotThread
    seq: int
    opening: dict[str, Any]
    between_steps: bool
    size: int = 0

    def __post_init__(self) -> None:
        self.job = self.storage.start_job(self._write)

    def _write(self) -> None:
        disk, paths = self.storage.disk, self.storage.paths
        snapshot = EncodedSnapshot(self.head, self.thread.write())
        self.size = snapshot.size
        self.room.refuse(self.size)
        write_new(disk, paths.snapshot + TEMPORARY, snapshot.chunks())
        if not self.lock.still_held():
            raise WriteFailed("the session's lock was removed or replaced")
        before = second_temporary(disk, paths.snapshot, paths.previous_snapshot)
        disk.replace(paths.snapshot + TEMPORARY, paths.snapshot)
        disk.replace(before, paths.previous_snapshot)  # last, so that the two are never the same file
        disk.sync_directory(paths.checkpoints)
        self.opening |= part_in_opening(snapshot)


def part_in_opening(snapshot: EncodedSnapshot) -> dict[str, str]:
    """Return the part of a snapshot that is repeated in the first record of its journal: all of a small one, so that
    the session can be restored without the snapshot's file."""
    if snapshot.size > _SMALL_SNAPSHOT_BYTES:
        return {}
    return {SNAPSHOT: b"".join(snapshot.chunks()).decode()}


class SnapshotRoom:
    """The quota of a session's snapshot: one over the limit is not read, so it is not written either (decision 0026).
    It is full at fifteen sixteenths; the rest is reserved for the current step, and for opening the session again."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.full_at_bytes = limit_bytes - limit_bytes // 16
        self.is_full = False

    def note(self, size: int, *, between_steps: bool) -> None:
        """Record a snapshot's size. A snapshot with an open step never makes it full, because it contains complete
        results; when the step is over, large ones are in blobs."""
        self.is_full = between_steps and size > self.full_at_bytes

    def refuse(self, size: int) -> None:
        """Raise WriteFailed if a snapshot of `size` bytes is over the limit."""
        if size > self.limit_bytes:
            raise WriteFailed(
                f"the snapshot would have {size} bytes, and host.max_snapshot_bytes is {self.limit_bytes}"
            )
