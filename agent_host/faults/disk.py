"""A simulated disk in memory for tests of power loss; unsynced data may be lost.

    disk = SimulatedDisk(Faults(cut_before=12))
    with pytest.raises(PowerCut):
        use(FileCheckpointStore("/state", disk))
    for seed in range(100):
        check(FileCheckpointStore("/state", disk.crash(PickedOutcome(random.Random(seed).randrange))))

After `crash`, unsynced data may be present, absent or torn, in any order; `EXTREMES` has the simple cases. A failed
sync drops the data that it should have made durable: a later sync succeeds without it, as on Linux.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from agent_host.faults.crash import NO_FAULTS, FailingDisk, Faults
from state import SessionLocked
from state.disk import Disk, FileStatus, SessionLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PID = 1000


class SimulatedDisk(FailingDisk):
    """A disk in memory, as one process sees it. `misuses` are uses of a descriptor whose sync had failed. A failed sync
    drops the data that it should have made durable, though readers still see it."""

    def __init__(self, faults: Faults = NO_FAULTS, *, names: Names | None = None, boot: int = 1) -> None:
        self._memory = _MemoryDisk(Names() if names is None else names, boot)
        super().__init__(self._memory, faults, kill=None)

    @property
    def misuses(self) -> list[str]:
        """Uses of a descriptor after its sync had failed, each with the name of the call."""
        return self._memory.misuses

    def crash(self, outcome: PowerLossOutcome, faults: Faults = NO_FAULTS) -> SimulatedDisk:
        """Return the disk at the next boot after a power loss now. This disk is unchanged, so that other outcomes of
        the same power loss can be made from it."""
        before = self._memory
        made = SimulatedDisk(faults, names=before.entries.lose_power(outcome), boot=before.boot + 1)
        made.calls.log = [*self.calls.log, f"---- power lost in boot {before.boot} ----"]
        return made

    def kill(self, faults: Faults = NO_FAULTS) -> SimulatedDisk:
        """Return the disk as the next process finds it: with everything that was written, durable or not. This disk is
        unchanged."""
        made = SimulatedDisk(faults, names=self._memory.entries.copy(), boot=self._memory.boot)
        made.calls.log = [*self.calls.log, "---- process killed ----"]
        return made

    def explain(self) -> str:
        """Return every call so far, including those before a crash, for the message of a failed test."""
        return "\n".join(self.calls.log)

    def contents(self) -> dict[str, bytes]:
        """Return the content of every file by path, as a reader sees it now."""
        entries = self._memory.entries
        found = ((path, entries.get(path)) for path in entries.by_path)
        return {path: entry.now for path, entry in found if isinstance(entry, Inode)}

    def _fail_to_sync(self, fd: int) -> None:
        self._memory.fail_to_sync(fd)


@dataclass(slots=True)
class _Descriptor:
    path: str
    inode: Inode
    position: int | None  # None if it appends
    sync_failed: bool = False


class _MemoryDisk(Disk):
    """The files of a SimulatedDisk, without faults."""

    def __init__(self, entries: Names, boot: int) -> None:
        self.entries = entries
        self.boot = boot
        self.misuses: list[str] = []
        self.locked: set[str] = set()
        self._descriptors: dict[int, _Descriptor] = {}
        self._next_fd = 3

    def make_private_dir(self, path: str) -> None:
        missing = []
        while self.entries.get(path) is None:
            missing.append(path)
            path = os.path.dirname(path)
        if not isinstance(self.entries.get(path), Directory):
            raise _error(errno.ENOTDIR, path)
        for directory in reversed(missing):
            self.entries.set(directory, Directory())

    def open_new(self, path: str) -> int:
        self._check_parent(path)
        self.remove(path)
        inode = Inode(modified=time.time())
        self.entries.set(path, inode)
        return self._open(_Descriptor(path, inode, 0))

    def open_append(self, path: str) -> int:
        return self._open(_Descriptor(path, self._file(path), None))

    def write(self, fd: int, data: bytes) -> None:
        descriptor = self._descriptor(fd, "write")
        start = len(descriptor.inode.now) if descriptor.position is None else descriptor.position
        if descriptor.position is not None:
            descriptor.position = start + len(data)
        if data:
            self._change(descriptor.inode, start, data)

    def sync(self, fd: int) -> None:
        self._descriptor(fd, "sync").inode.sync()

    def fail_to_sync(self, fd: int) -> None:
        descriptor = self._descriptor(fd, "sync")
        descriptor.sync_failed = True
        descriptor.inode.fail_to_sync()

    def close(self, fd: int) -> None:
        self._descriptor(fd)
        del self._descriptors[fd]

    def is_named(self, fd: int, path: str) -> bool:
        return self.entries.get(path) is self._descriptor(fd).inode

    def read(self, path: str) -> bytes:
        if isinstance(self.entries.get(path), Directory):
            raise _error(errno.EINVAL, path)
        return self._file(path).now

    def status(self, path: str) -> FileStatus | None:
        entry = self.entries.get(path)
        if entry is None:
            return None
        is_private = (False, False, False)
        if isinstance(entry, Directory):
            return FileStatus("directory", 0, 0.0, 2, *is_private)
        return FileStatus("file", len(entry.now), entry.modified, 1, *is_private)

    def names(self, path: str) -> list[str]:
        return self.entries.inside(path)

    def replace(self, source: str, target: str) -> None:
        self._file(source)
        self._check_parent(target)
        if isinstance(self.entries.get(target), Directory):
            raise _error(errno.EISDIR, target)
        self.entries.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._check_parent(target)
        if self.entries.get(target) is not None:
            raise _error(errno.EEXIST, target)
        self.entries.set(target, self._file(source))

    def remove(self, path: str) -> None:
        entry = self.entries.get(path)
        if isinstance(entry, Directory):
            raise _error(errno.EISDIR, path)
        if entry is not None:
            self.entries.set(path, None)

    def sync_directory(self, path: str) -> None:
        if not isinstance(self.entries.get(path), Directory):
            raise _error(errno.ENOENT, path)
        self.entries.sync(path)

    def lock(self, path: str, session_id: str) -> SessionLock:
        if path in self.locked:
            raise SessionLocked(session_id, _PID)
        self._check_parent(path)
        if self.entries.get(path) is None:
            self.entries.set(path, Inode(modified=time.time()))
        inode = self._file(path)
        self._change(inode, 0, b"%d\n" % _PID)
        inode.sync()  # the content of a dead lock is not needed; so only the store's writes are uncertain
        self.locked.add(path)
        return _MemoryLock(self, path)

    def holder(self, path: str) -> int | None:
        return _PID if path in self.locked else None

    def boot_id(self) -> str | None:
        return f"boot-{self.boot}"

    def _open(self, descriptor: _Descriptor) -> int:
        self._next_fd += 1
        self._descriptors[self._next_fd] = descriptor
        return self._next_fd

    def _change(self, inode: Inode, offset: int, data: bytes) -> None:
        self.entries.changes += 1
        inode.change(self.entries.changes, offset, data)
        inode.modified = time.time()

    def _descriptor(self, fd: int, use: str | None = None) -> _Descriptor:
        """Return the open descriptor; a `use` that relies on its syncs is a misuse after one failed."""
        if fd not in self._descriptors:
            raise _error(errno.EBADF, str(fd))
        descriptor = self._descriptors[fd]
        if use is not None and descriptor.sync_failed:
            self.misuses.append(f"{use}({descriptor.path}) after its sync had failed")
        return descriptor

    def _file(self, path: str) -> Inode:
        entry = self.entries.get(path)
        if not isinstance(entry, Inode):
            raise _error(errno.ENOENT if entry is None else errno.EISDIR, path)
        return entry

    def _check_parent(self, path: str) -> None:
        if not isinstance(self.entries.get(os.path.dirname(path)), Directory):
            raise _error(errno.ENOENT, path)


class _MemoryLock(SessionLock):
    def __init__(self, disk: _MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def still_held(self) -> bool:
        return self._disk.status(self._path) is not None

    def release(self, *, remove: bool, untouched: bool = False) -> None:  # noqa: ARG002  its file has no content
        self._disk.locked.discard(self._path)
        if remove:
            self._disk.remove(self._path)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


# The parts of the simulated disk: its state between two syncs, and the possible outcomes of a power loss.
#
# Every unsynced write may be present, absent or torn at any byte, independent of the writes before and after it. Every
# name has its value from the last sync of its directory or any later one.


@dataclass(frozen=True, slots=True)
class TornWrite:
    """The outcome of one write: its bytes before `head` and from `tail` on are written. Those between keep their old
    values; `grown`: beyond the old end they are zeros."""

    head: int
    tail: int
    grown: bool = True

    @classmethod
    def all_of(cls, size: int) -> TornWrite:
        """Return the outcome of a complete write."""
        return cls(size, size)

    @classmethod
    def nothing_of(cls, size: int) -> TornWrite:
        """Return the outcome of a write that never reached the disk."""
        return cls(0, size, grown=False)


class PowerLossOutcome(Protocol):
    """Decides the outcome of a power loss. Called once for each unsynced name and each unsynced change."""

    def name(self, versions: int) -> int:
        """Choose the version of a name: 0 is the durable one, `versions - 1` the newest."""

    def write(self, size: int, *, first: bool, last: bool) -> TornWrite:
        """Choose the outcome of a write; `first` and `last` mark the first and the last unsynced write of the whole
        disk."""


@dataclass(frozen=True, slots=True)
class PickedOutcome:
    """Leaves every choice to `pick(n)`, which returns a number from 0 to n - 1: `random.Random(7).randrange` or, under
    hypothesis, `lambda n: data.draw(st.integers(0, n - 1))`. 0 is the choice that loses least, and hypothesis shrinks
    to it."""

    pick: Callable[[int], int]

    def name(self, versions: int) -> int:
        """See PowerLossOutcome."""
        return versions - 1 - self.pick(versions)

    def write(self, size: int, *, first: bool, last: bool) -> TornWrite:  # noqa: ARG002  all writes are alike to it
        """See PowerLossOutcome."""
        kind = self.pick(4)
        if kind == 0:
            return TornWrite.all_of(size)
        if kind == 1:
            return TornWrite.nothing_of(size)
        head = self.pick(size + 1)
        tail = size if kind == 2 else head + self.pick(size - head + 1)
        return TornWrite(head, tail, grown=self.pick(2) == 0)


class _Extreme(NamedTuple):
    names: bool
    contents: bool
    tear_last: bool = False
    lose_first: bool = False

    def name(self, versions: int) -> int:
        return versions - 1 if self.names else 0

    def write(self, size: int, *, first: bool, last: bool) -> TornWrite:
        if not self.contents or (self.lose_first and first):
            return TornWrite.nothing_of(size)
        return TornWrite(size // 2, size, grown=False) if self.tear_last and last else TornWrite.all_of(size)


NOTHING_SURVIVES: Final[PowerLossOutcome] = _Extreme(names=False, contents=False)
EVERYTHING_SURVIVES: Final[PowerLossOutcome] = _Extreme(names=True, contents=True)
ONLY_NAMES: Final[PowerLossOutcome] = _Extreme(names=True, contents=False)
ONLY_CONTENTS: Final[PowerLossOutcome] = _Extreme(names=False, contents=True)
LAST_WRITE_TORN: Final[PowerLossOutcome] = _Extreme(names=True, contents=True, tear_last=True)
FIRST_WRITE_LOST: Final[PowerLossOutcome] = _Extreme(names=True, contents=True, lose_first=True)
EXTREMES: Final[dict[str, PowerLossOutcome]] = {
    "nothing unsynced survives": NOTHING_SURVIVES,
    "everything survives": EVERYTHING_SURVIVES,
    "only names survive": ONLY_NAMES,
    "only contents survive": ONLY_CONTENTS,
    "the last write is torn": LAST_WRITE_TORN,
    "the first write is lost": FIRST_WRITE_LOST,
}


@dataclass(slots=True)
class FileWrite:
    """One write of `data` at `offset` of a file. `durable`: a sync has covered it. `lost`: a failed sync has covered
    it, so no later sync will, because the kernel then treats it as written; it may or may not be on the disk."""

    number: int
    offset: int
    data: bytes
    durable: bool = False
    lost: bool = False


@dataclass(slots=True)
class Inode:
    """A file: `now` is what a reader sees; the disk may contain `durable` with any of `changes` applied."""

    durable: bytes = b""
    now: bytes = b""
    modified: float = 0.0
    changes: list[FileWrite] = field(default_factory=list)

    def change(self, number: int, offset: int, data: bytes) -> None:
        """Write `data` at `offset`."""
        self.changes.append(FileWrite(number, offset, data))
        self.now = _apply(self.now, self.changes[-1], TornWrite.all_of(len(data)))

    def sync(self) -> None:
        """Make every change durable, except those that an earlier failure has dropped."""
        for change in self.changes:
            change.durable = change.durable or not change.lost
        while self.changes and self.changes[0].durable:
            change = self.changes.pop(0)
            self.durable = _apply(self.durable, change, TornWrite.all_of(len(change.data)))

    def fail_to_sync(self) -> None:
        """Fail to sync: changes that were not durable are clean in the cache from now on, but perhaps not on the
        disk."""
        for change in self.changes:
            change.lost = change.lost or not change.durable

    def uncertain(self) -> Iterable[FileWrite]:
        """Return the changes that a power loss may undo."""
        return (change for change in self.changes if not change.durable)

    def lose_power(self, outcome: PowerLossOutcome, first: int, last: int) -> Inode:
        """Return the file at the next boot. `first` and `last`: numbers of the first and last uncertain writes of the
        disk."""
        content = self.durable
        for change in self.changes:
            size = len(change.data)
            kept = TornWrite.all_of(size)
            if not change.durable:
                kept = outcome.write(size, first=change.number == first, last=change.number == last)
            content = _apply(content, change, kept)
        return Inode(content, content, self.modified)

    def copy(self) -> Inode:
        """Copy the file for another process."""
        return replace(self, changes=[replace(each) for each in self.changes])


def _apply(content: bytes, change: FileWrite, kept: TornWrite) -> bytes:
    start, data = change.offset, change.data
    end = start + (len(data) if kept.grown or kept.tail < len(data) else kept.head)
    if end == start:
        return content
    old = content.ljust(end, b"\0")
    middle = old[start + kept.head : max(end, start + kept.head)]
    written = data[: kept.head] + middle[: kept.tail - kept.head] + data[kept.tail :]
    return old[:start] + written + old[start + len(written) :]


class Directory:
    """The entry of a directory."""


Entry = Inode | Directory | None


@dataclass(slots=True)
class NameHistory:
    """All entries that a name has had, the newest last; `durable` is the index of the oldest that a power loss can
    restore."""

    parent: str
    versions: list[Entry]
    durable: int = 0


@dataclass(slots=True)
class Names:
    """Every name on the disk, by path, and the renames: the source of a rename vanishes only if its target appears."""

    by_path: dict[str, NameHistory] = field(default_factory=dict)
    renames: list[tuple[str, int, str, int]] = field(default_factory=list)
    changes: int = 0

    def copy(self) -> Names:
        """Copy the names and files for another process."""
        files: dict[int, Inode] = {}
        by_path = {
            path: replace(name, versions=[_map_inode(files, entry, Inode.copy) for entry in name.versions])
            for path, name in self.by_path.items()
        }
        return Names(by_path, list(self.renames), self.changes)

    def lose_power(self, outcome: PowerLossOutcome) -> Names:
        """Return the names at the next boot."""
        numbers = [each.number for inode in self._inodes() for each in inode.uncertain()]
        first, last = min(numbers, default=0), max(numbers, default=0)
        files: dict[int, Inode] = {}
        made = Names(changes=self.changes)
        for path, entry in self._entries_left(outcome).items():
            found = _map_inode(files, entry, lambda inode: inode.lose_power(outcome, first, last))
            made.by_path[path] = NameHistory(self.by_path[path].parent, [found])
        return made

    def get(self, path: str) -> Entry:
        """Return the entry of `path` now."""
        name = self.by_path.get(path)
        if name is not None:
            return name.versions[-1]
        return Directory() if _is_root(path) else None

    def set(self, path: str, entry: Entry) -> int:
        """Set the entry of `path`, not durably; return the index of the new version."""
        name = self.by_path.get(path)
        if name is None:
            name = self.by_path[path] = NameHistory(os.path.dirname(path), [None])
        name.versions.append(entry)
        return len(name.versions) - 1

    def rename(self, source: str, target: str) -> None:
        """Move the entry of `source` to `target`."""
        added = self.set(target, self.get(source))
        self.renames.append((source, self.set(source, None), target, added))

    def sync(self, directory: str) -> None:
        """Make the names in `directory` durable."""
        for name in self.by_path.values():
            if name.parent == directory:
                name.durable = len(name.versions) - 1

    def inside(self, directory: str) -> list[str]:
        """Return the sorted names in `directory`."""
        found = ((path, name) for path, name in self.by_path.items() if name.parent == directory)
        return sorted(os.path.basename(path) for path, name in found if name.versions[-1] is not None)

    def _inodes(self) -> list[Inode]:
        """Return every file that has a name or may get one back, each once."""
        entries = (entry for name in self.by_path.values() for entry in name.versions[name.durable :])
        return list({id(entry): entry for entry in entries if isinstance(entry, Inode)}.values())

    def _entries_left(self, outcome: PowerLossOutcome) -> dict[str, Entry]:
        chosen = {}
        for path, name in self.by_path.items():
            possible = len(name.versions) - name.durable
            chosen[path] = name.durable + (outcome.name(possible) if possible > 1 else 0)
        for source, removed, target, added in reversed(self.renames):
            if chosen[target] < added and chosen[source] == removed and removed > self.by_path[source].durable:
                chosen[source] = removed - 1
        left: dict[str, Entry] = {}
        for path in sorted(chosen, key=len):  # a directory before its contents
            parent = self.by_path[path].parent
            if _is_root(parent) or isinstance(left.get(parent), Directory):
                left[path] = self.by_path[path].versions[chosen[path]]
        return {path: entry for path, entry in left.items() if entry is not None}


def _is_root(path: str) -> bool:
    return os.path.dirname(path) == path


def _map_inode(files: dict[int, Inode], entry: Entry, make: Callable[[Inode], Inode]) -> Entry:
    """Apply `make` to `entry` if it is a file; all names of one file get the same result."""
    if not isinstance(entry, Inode):
        return entry
    if id(entry) not in files:
        files[id(entry)] = make(entry)
    return files[id(entry)]
