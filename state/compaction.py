"""A new snapshot beside the loop, while the session goes on with its journal (design section 6).

    on the loop     take what the snapshot is made of; the journal gets a mark (`state.journal.Journal.mark`)
    beside it       write the snapshot; the one before gets the name of the previous one, the new one its place
    on the loop     at the next sync: the journal before gets the name of the previous one, and the next journal, of the
                    records behind the mark, its place

At each point in between the files are whole: the journal that is there goes with either snapshot, since records that a
snapshot holds are skipped on load, and its records are those that the previous snapshot goes on with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from config.lean_typing import NamedTuple
from state.errors import WriteFailed
from state.files import TEMPORARY, second_temporary, write_new
from state.snapshot import EncodedSnapshot
from state.store import SNAPSHOT

if TYPE_CHECKING:
    from state.disk import Lock
    from state.file_session import SessionStorage
    from state.large_values import SnapshotThread
    from state.room import Room

# A snapshot of this size stands in the journal as well.
_SMALL_SNAPSHOT_BYTES = 16 * 1024


class Content(NamedTuple):
    """What a snapshot is made of: all but its messages as `encode_head` gave it, and these; `room` is what it may take,
    and `between_steps` whether it is of a session without an open step."""

    head: bytes
    thread: SnapshotThread
    room: Room
    between_steps: bool


class Compaction:
    """One compaction, from the moment that its snapshot is of. `seq` and `opening` are of the next journal's first
    record; `size` is the snapshot's in bytes once it is encoded."""

    def __init__(
        self, storage: SessionStorage, lock: Lock, content: Content, seq: int, opening: dict[str, Any]
    ) -> None:
        self._storage = storage
        self._lock = lock
        self.content = content
        self.seq = seq
        self.opening = opening
        self.size = 0
        self._job = storage.beside(self._write)

    def done(self) -> bool:
        """True if the snapshot is in its place, or could not be put there. Never waits."""
        return self._job.done()

    def wait(self) -> None:
        """Return when the snapshot is durable in its place. Raises OSError, WriteFailed."""
        self._job.wait()

    def _write(self) -> None:
        disk, paths = self._storage.disk, self._storage.paths
        snapshot = EncodedSnapshot(self.content.head, self.content.thread.write())
        self.size = snapshot.size
        self.content.room.refuse(self.size)
        write_new(disk, paths.snapshot + TEMPORARY, snapshot.chunks())
        if not self._lock.still_held():
            raise WriteFailed("the session's lock was removed or replaced")
        before = second_temporary(disk, paths.snapshot, paths.previous_snapshot)
        disk.replace(paths.snapshot + TEMPORARY, paths.snapshot)
        disk.replace(before, paths.previous_snapshot)  # last: never are the two the same file
        disk.sync_directory(paths.checkpoints)
        self.opening |= in_opening(snapshot)


def in_opening(snapshot: EncodedSnapshot) -> dict[str, str]:
    """What of a snapshot stands in the first record of its journal: all of a small one, so that the journal can do
    without its file."""
    if snapshot.size > _SMALL_SNAPSHOT_BYTES:
        return {}
    return {SNAPSHOT: b"".join(snapshot.chunks()).decode()}
