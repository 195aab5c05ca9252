"""One open session on the local disk: a snapshot, a journal and a folder of blobs (AH 9, design section 6).

A session is a state and the records that change it. At two points a step they are made durable:

    write-ahead   turn (assistant message, its calls)            append, sync
    meanwhile     call_started, call_finished                    append
    commit        step_committed                                 append, sync

The snapshot is made again when the journal has outgrown it, so that bytes written follow bytes changed; that runs
beside the loop. Until then all that is new stands in the journal, blobs included, and shares its
two syncs a step. A journal whose descriptor failed is never written again: the next write puts everything into a fresh
snapshot and a fresh journal.
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
    """Findings of a load besides the state itself. `torn_bytes` of an unfinished last record were dropped; `lost_blobs`
    are the names of large texts that are damaged; `made_private`: others could read the files, and no longer can;
    `kept_aside` is where the files were copied to before something was dropped that had been whole once; `restored`:
    the newest checkpoint was damaged, and what stands beside it gave the same state."""

    torn_bytes: int = 0
    lost_blobs: tuple[str, ...] = ()
    made_private: bool = False
    kept_aside: str | None = None
    restored: bool = False


def find_files(storage: SessionStorage, *, archived: bool = False) -> LoadedFiles:
    """Read the session, or the archive of one that has ended, without changing anything. Raises what `find` and
    `find_archived` of `state.loading` raise."""
    from state import loading  # a new session reads nothing

    return loading.find_archived(storage) if archived else loading.find(storage)


class FileSession:
    """One session, held from `create` or `claim` to `close` or `delete`. `state` is the present state: every record
    goes through `append`, which writes it and folds it over `state`."""

    def __init__(self, storage: SessionStorage, lock: SessionLock, state: Checkpoint) -> None:
        self._storage = storage
        self._disk = storage.disk
        self._paths = storage.paths
        self._lock = lock
        self._journal: JournalFile | None = None
        self._snapshot_bytes = 0
        self._room = SnapshotRoom(storage.snapshot_limit_bytes)
        self._compaction: JournalCompaction | None = None
        self._retry_bytes = 0  # of journal: what it takes to try again after a compaction that failed
        self._kept = LargeValues(storage.blobs)
        self._archive = Archive(storage.disk, storage.paths, storage.blobs)
        self._first_seq: int | None = None  # of the journal that is there
        self._is_base_previous = False  # the journal goes on from the snapshot before the newest
        self._to_do: Callable[[], None] | None = None  # what `take_over` does
        self.state = state
        self.report = LoadReport()
        self.blobs = storage.blobs

    @property
    def storage_full(self) -> bool:
        """True if something large could not be kept apart, since the session has reached its limit."""
        return self._kept.full

    @property
    def unarchived(self) -> str | None:
        """Why records of the session will not stay when it has ended, in one line; None where they will, or where
        nothing is archived."""
        return self._archive.problem

    @classmethod
    def create(cls, storage: SessionStorage, state: Checkpoint, archived: LoadedFiles | None = None) -> Self:
        """A new session; with `archived` one that had ended, whose archive goes on, not begun until `take_over`. Raises
        SessionExists, SessionLocked, WriteFailed."""
        disk, paths = storage.disk, storage.paths
        with translate_errors("preparing the state directory"):
            for directory in (paths.checkpoints, paths.records):
                make_durable_dir(disk, directory, within=paths.state_dir, is_there=archived is not None)
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
        """An existing session, held and read, and left as it lies until `take_over`. Raises what `open` of the store
        does; where nothing is whole it is moved aside, and where the session is over what is left of it goes."""
        lock = storage.disk.lock(storage.paths.lock, storage.paths.session_id)
        try:
            found = find_files(storage)
            if found.state is None:
                raise _move_aside(storage, found)
            session = cls(storage, lock, found.state)
            session._to_do = functools.partial(session._take_over, found)
        except NoSuchSession:
            with contextlib.suppress(OSError):
                for path in reversed(storage.paths.checkpoint_files):  # the journal says that the session is over: last
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
        """Make the files this process's own, which `claim` has left as they were: only then is anything written. Does
        nothing the second time. Raises what `open` of the store does; the session is let go then."""
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
        """Fold one record over the state and write it; on return it survives the death of this process, and after
        `sync` that of the machine. Raises WriteFailed, and then the state has the record all the same: the next
        write that succeeds carries it."""
        fields = encode(record, self._kept.to_record)
        fold(self.state, record)
        self.state.seq += 1
        self._kept.to_record = {}
        if self._journal is None or self._journal.broken:
            self.compact()
        else:
            self._journal.append(fields, message_of(record))

    def try_append(self, record: JournalRecord) -> None:
        """`append`, or nothing: where it raises WriteFailed, the state is as it was, and a later process does not find
        the record either. It is written before the state has it, so a snapshot that has to replace a broken journal is
        made without it."""
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
            # All of it may be in the file: a snapshot that names its number has it passed over.
            with contextlib.suppress(WriteFailed):
                self.compact()
            raise
        self._kept.to_record = {}

    def sync(self) -> None:
        """Make everything appended so far durable: one sync, but for what a compaction adds. A journal that failed
        gives way to a new snapshot. Raises WriteFailed."""
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
        """Keep a large thing beside the records and return its name, to be put into the next record, with which it
        becomes durable. `UNAVAILABLE` when there is no room for it or the disk refused."""
        return self._kept.put(data)

    def kept(self, name: str) -> bytes | None:
        """Return what was kept under `name`; None when it is gone or damaged. Another thread may ask while the session
        is at work."""
        return self._kept.get(name)

    def boot_id(self) -> str | None:
        """An id of the boot of the machine that the session is kept on, None where none is known; see `Disk`."""
        return self._disk.boot_id()

    def has_room(self) -> bool:
        """True if a snapshot of the session has room for another step; otherwise it is to go no further, since nobody
        reads a larger one again. Asked between two steps. Only a snapshot says for certain, so near the limit the one
        that the last sync began is waited for. Raises WriteFailed."""
        journal, compaction = self._journal, self._compaction
        if journal is not None and compaction is not None and self._is_near_limit(journal):
            with contextlib.suppress(OSError, WriteFailed):  # the sync looks at what came of it
                compaction.job.wait()
            self.sync()
        return not self._room.is_full

    def close(self) -> None:
        """Let go of the session, which stays resumable, after a compaction that is under way."""
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
        """The clean end (AH 9.6): nothing to resume is left. Raises WriteFailed when the disk refuses; the session is
        let go all the same, and a resume of it reports its end again.

        The snapshot goes first: alone it would be an older state that a resume could take for the present one. The
        journal that a crash leaves behind says that the session is over; where it cannot be made to, both stay.
        """
        gone = False
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
                gone = True
                self._remove_leftovers(self.blobs.names if archives else frozenset())
        finally:
            self._close_journal()
            self._lock.release(remove=gone)

    def _archive_journal(self) -> None:
        if self._storage.archives and self._first_seq is not None:
            base = self._paths.previous_snapshot if self._is_base_previous else self._paths.snapshot
            self._archive.add(self._first_seq, base)

    def _record_end(self) -> None:
        try:
            self.append(SessionStatusChanged(ENDED))
            self._sync_journal()
        except WriteFailed:  # of the journal, perhaps; the state has it, and new files may carry it
            self._sync_journal()

    def _begin(self, archived: LoadedFiles | None) -> None:
        # The journal first: so a checkpoint without one is never the trace of a crash, and always damage.
        try:
            if archived is not None:  # before the checkpoint that names it
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
        """Put what the last process left into files of our own: it may have died of a disk that failed to sync it, and
        syncing the same file again would then report success for pages that are gone. What is damaged, or was whole
        once, is put aside first. Raises Damaged when it is damage."""
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
                make_durable_dir(self._disk, self._paths.records, within=self._paths.state_dir, is_there=True)
            self._renew()
            if found.damage is None:
                # An archive keeps versions of files that only journals name.
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
        """Take away what a crash left half written, and blobs that no record names; what was put aside may name any."""
        for path in self._paths.checkpoint_files:
            self._disk.remove(path + TEMPORARY)
        if not is_quarantined(self._disk, self._paths):
            self._storage.blobs.sweep(named)

    def _is_due(self, journal: JournalFile) -> bool:
        """True if a new snapshot is worth its cost, or has to show whether there is room for more. Near the limit that
        is a snapshot for each sixteenth of it, until it is full."""
        if self._room.is_full or journal.grown_bytes <= self._retry_bytes:
            return False
        worth = journal.grown_bytes > max(self._storage.min_compact_bytes, self._snapshot_bytes)
        return worth or self._is_near_limit(journal)

    def _is_near_limit(self, journal: JournalFile) -> bool:
        return self._snapshot_bytes + journal.grown_bytes > self._room.full_at_bytes

    def _compact_when_due(self) -> None:
        """Start a compaction where the journal has outgrown the snapshot: all that it is made of is taken now."""
        journal = self._journal
        if journal is None or journal.broken or self._compaction is not None or not self._is_due(journal):
            return
        thread, head, opening = self._kept.collect_for_snapshot(self.state.thread), self._head(), self._opening()
        try:
            seq = journal.mark()
        except WriteFailed:  # what was to be synced is; the next write puts all into new files
            return
        self.state.seq = seq
        between_steps = self.state.open_step is None
        self._compaction = JournalCompaction(
            self._storage, self._lock, self._room, head, thread, seq, opening, between_steps
        )
        if self._compaction.job.done():
            self._take_next_journal(self._compaction)

    def _take_next_journal(self, compaction: JournalCompaction) -> bool:
        """Go on with the journal that follows the new snapshot, which holds all that is to be durable; False where the
        one that is there has to go on: a disk that is full is no failure yet. Raises WriteFailed."""
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
            # One that was too large is tried again when its step is over; where there was none, it is full.
            is_too_large = compaction.size > self._room.limit_bytes
            self._retry_bytes = 0 if is_too_large else journal.grown_bytes * 2
            if is_too_large:
                self._room.note(compaction.size, between_steps=compaction.between_steps)
            return False
        self._room.note(compaction.size, between_steps=compaction.between_steps)
        self._journal, self._retry_bytes = None, 0
        with translate_errors("putting the new journal in place"):
            self._journal = journal.give_way()
        self._first_seq, self._is_base_previous = compaction.seq, False
        return True

    def _end_compaction(self) -> None:
        """Wait for a compaction that is under way. What it has made is whole with the journal that is there."""
        compaction, self._compaction = self._compaction, None
        if compaction is not None:
            with contextlib.suppress(OSError, WriteFailed):
                compaction.job.wait()
                self._is_base_previous = True

    def compact(self) -> None:
        """Put the state in place of all records so far. Raises WriteFailed."""
        self._check_lock()
        with translate_errors("writing the checkpoint"):
            self._renew()

    def _check_lock(self) -> None:
        with translate_errors("looking at the session's lock"):
            held = self._lock.still_held()
        if held:
            return
        if self._disk.status(self._paths.checkpoints) is None:
            raise WriteFailed(
                f"the state directory {self._paths.state_dir} was removed or moved: put back as it was, the session "
                "can be resumed; without it the task has to be started again, and what it did to the workspace is there"
            )
        raise WriteFailed("the session's lock was removed or replaced: another process may have the session")

    def _renew(self) -> None:
        """A new snapshot, and behind it a new journal. A crash between the two is harmless: records up to the number
        that the snapshot names are skipped on load."""
        self._end_compaction()
        snapshot = self._encode()
        self._take_room(snapshot.size)
        self._archive_journal()
        is_copied = self._put_snapshot(snapshot)
        self._start_journal(snapshot)
        with contextlib.suppress(OSError):  # what is left of an older pair is passed over
            self._remove_previous(but_snapshot=is_copied)

    def _take_room(self, size: int) -> None:
        """Take note of the size of a snapshot of now. Raises WriteFailed for one that nobody would read again."""
        self._room.note(size, between_steps=self.state.open_step is None)
        self._room.refuse(size)

    def _put_snapshot(self, snapshot: EncodedSnapshot) -> bool:
        """Put a snapshot in place of the one that is there; whether there is a second copy. Raises OSError. The journal
        can do without a small snapshot. A copy of a large one takes the place of the one before, which may be what the
        state was read from: so it comes first."""
        is_copied = False
        if not part_in_opening(snapshot):
            with contextlib.suppress(OSError):  # the session can go on without
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
        """The snapshot of the state, what is large in it put into blobs first. Raises OSError."""
        thread = self._kept.collect_for_snapshot(self.state.thread)
        snapshot = EncodedSnapshot(self._head(), thread.write())
        self._kept.mark_moved(thread)
        return snapshot

    def _head(self) -> bytes:
        return encode_head(self.state, self._storage.now().isoformat(timespec="milliseconds"))

    def _start_journal(self, snapshot: EncodedSnapshot, *, again: bool = False) -> None:
        """A journal with nothing but its opening in place of the old one. `again`: the session had ended."""
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
    """Raise SessionExists unless nothing of a session lies here, or only what a cut-off end or start left behind; with
    `again` also what an end leaves."""
    disk, paths = storage.disk, storage.paths
    taken = SessionExists(f"session {paths.session_id} exists already: resume it, or choose another id")
    if disk.status(paths.snapshot) is not None or disk.status(paths.journal) is not None:
        with contextlib.suppress(NoSuchSession):  # the journal of a cut-off end or start, which a new one replaces
            find_files(storage)
            raise taken
    if is_quarantined(disk, paths):
        raise SessionExists(f"damaged files of an earlier session {paths.session_id} are kept: choose another id")
    if not again and disk.status(paths.result) is not None:
        raise SessionExists(f"session {paths.session_id} has ended earlier: choose another id")


# A new snapshot beside the loop, while the session goes on with its journal (design section 6).
#
#     on the loop     take what the snapshot is made of; the journal gets a mark (`state.journal.JournalFile.mark`)
#     beside it       write the snapshot; the one before gets the name of the previous one, the new one its place
#     on the loop     at the next sync: the journal before gets the name of the previous one, the next journal, of the
#                     records behind the mark, its place
#
# At each point in between the files are whole: the journal that is there goes with either snapshot, since records
# that a snapshot holds are skipped on load, and its records are those that the previous snapshot goes on with.

# A snapshot of this size stands in the journal as well.
_SMALL_SNAPSHOT_BYTES = 16 * 1024


@dataclass(eq=False)
class JournalCompaction:
    """One compaction. The snapshot is of the moment that this is made: `head` is all of it but its messages, as
    `encode_head` gave it, and `between_steps` says that no step was open. `seq` and `opening` are of the next journal's
    first record; `size` is the snapshot's in bytes once it is encoded. `job` puts it in place, durably."""

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
        self.job = self.storage.beside(self._write)

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
        disk.replace(before, paths.previous_snapshot)  # last: never are the two the same file
        disk.sync_directory(paths.checkpoints)
        self.opening |= part_in_opening(snapshot)


def part_in_opening(snapshot: EncodedSnapshot) -> dict[str, str]:
    """The part of a snapshot that is repeated in the first record of its journal: all of a small one, so that the
    journal can do without its file."""
    if snapshot.size > _SMALL_SNAPSHOT_BYTES:
        return {}
    return {SNAPSHOT: b"".join(snapshot.chunks()).decode()}


class SnapshotRoom:
    """The room in the snapshot of one session: nobody reads one above the limit, so nobody writes one (decision 0026).
    It is full at fifteen sixteenths; the rest is for the current step, and for the session to be opened again."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.full_at_bytes = limit_bytes - limit_bytes // 16
        self.is_full = False

    def note(self, size: int, *, between_steps: bool) -> None:
        """Take note of a snapshot's size. One of an open step says nothing: results stand in it whole, and large ones
        no longer when the step is over."""
        self.is_full = between_steps and size > self.full_at_bytes

    def refuse(self, size: int) -> None:
        """Raises WriteFailed for a snapshot of `size` bytes where that is above the limit."""
        if size > self.limit_bytes:
            raise WriteFailed(
                f"the snapshot would have {size} bytes, and host.max_snapshot_bytes is {self.limit_bytes}"
            )
