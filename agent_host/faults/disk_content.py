"""What a disk holds between two syncs, and what of it a power loss may leave: the parts of the simulated disk.

Every write that was not synced may be there, not be there or be torn at any byte, whatever became of the writes before
and after it. Every name is what it was at the last sync of its directory or at any time since.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What came of one write: its bytes before `head` and from `tail` on. Those between are as they were; `grown`:
    where nothing was, they are zeros."""

    head: int
    tail: int
    grown: bool = True

    @classmethod
    def all_of(cls, size: int) -> WriteOutcome:
        """The whole write is there."""
        return cls(size, size)

    @classmethod
    def nothing_of(cls, size: int) -> WriteOutcome:
        """The write never came to the disk."""
        return cls(0, size, grown=False)


class Outcome(Protocol):
    """Decides what a power loss leaves. Asked once about each name and each change that was not synced."""

    def name(self, versions: int) -> int:
        """Which of its versions a name has: 0 is the durable one, `versions - 1` the newest."""
        ...

    def write(self, size: int, *, first: bool, last: bool) -> WriteOutcome:
        """What is left of a write; `first` and `last` of those on the whole disk that were not synced."""
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """Leaves everything to `pick(n)`, a number from 0 to n - 1: `random.Random(7).randrange` or, under hypothesis,
    `lambda n: data.draw(st.integers(0, n - 1))`. 0 is the choice that loses least, and hypothesis shrinks to it."""

    pick: Callable[[int], int]

    def name(self, versions: int) -> int:
        """See Outcome."""
        return versions - 1 - self.pick(versions)

    def write(self, size: int, *, first: bool, last: bool) -> WriteOutcome:  # noqa: ARG002  all writes are alike to it
        """See Outcome."""
        kind = self.pick(4)
        if kind == 0:
            return WriteOutcome.all_of(size)
        if kind == 1:
            return WriteOutcome.nothing_of(size)
        head = self.pick(size + 1)
        tail = size if kind == 2 else head + self.pick(size - head + 1)
        return WriteOutcome(head, tail, grown=self.pick(2) == 0)


@dataclass(frozen=True, slots=True)
class _Extreme:
    names: bool
    contents: bool
    tear_last: bool = False
    lose_first: bool = False

    def name(self, versions: int) -> int:
        return versions - 1 if self.names else 0

    def write(self, size: int, *, first: bool, last: bool) -> WriteOutcome:
        if not self.contents or (self.lose_first and first):
            return WriteOutcome.nothing_of(size)
        return WriteOutcome(size // 2, size, grown=False) if self.tear_last and last else WriteOutcome.all_of(size)


NOTHING_SURVIVES: Final[Outcome] = _Extreme(names=False, contents=False)
EVERYTHING_SURVIVES: Final[Outcome] = _Extreme(names=True, contents=True)
ONLY_NAMES: Final[Outcome] = _Extreme(names=True, contents=False)
ONLY_CONTENTS: Final[Outcome] = _Extreme(names=False, contents=True)
LAST_WRITE_TORN: Final[Outcome] = _Extreme(names=True, contents=True, tear_last=True)
FIRST_WRITE_LOST: Final[Outcome] = _Extreme(names=True, contents=True, lose_first=True)
EXTREMES: Final[dict[str, Outcome]] = {
    "nothing unsynced survives": NOTHING_SURVIVES,
    "everything survives": EVERYTHING_SURVIVES,
    "only names survive": ONLY_NAMES,
    "only contents survive": ONLY_CONTENTS,
    "the last write is torn": LAST_WRITE_TORN,
    "the first write is lost": FIRST_WRITE_LOST,
}


@dataclass(slots=True)
class Change:
    """One write of `data` at `offset` of a file.

    `durable`: a sync has covered it. `lost`: a sync that failed has, so no later one will: the kernel took it for
    written, and only the disk knows whether it was.
    """

    number: int
    offset: int
    data: bytes
    durable: bool = False
    lost: bool = False


@dataclass(slots=True)
class Inode:
    """A file: `now` is what a reader sees, `durable` with `changes` over it is what the disk may hold."""

    durable: bytes = b""
    now: bytes = b""
    modified: float = 0.0
    changes: list[Change] = field(default_factory=list)

    def change(self, number: int, offset: int, data: bytes) -> None:
        """Write `data` at `offset`."""
        self.changes.append(Change(number, offset, data))
        self.now = _applied(self.now, self.changes[-1], WriteOutcome.all_of(len(data)))

    def sync(self) -> None:
        """Make every change durable, but those that an earlier failure has dropped."""
        for change in self.changes:
            change.durable = change.durable or not change.lost
        while self.changes and self.changes[0].durable:
            change = self.changes.pop(0)
            self.durable = _applied(self.durable, change, WriteOutcome.all_of(len(change.data)))

    def fail_to_sync(self) -> None:
        """What was not durable is clean in the cache from now on, and perhaps not on the disk."""
        for change in self.changes:
            change.lost = change.lost or not change.durable

    def uncertain(self) -> Iterable[Change]:
        """Changes that a power loss may undo."""
        return (change for change in self.changes if not change.durable)

    def after_power_loss(self, outcome: Outcome, first: int, last: int) -> Inode:
        """The file as the next boot finds it. `first` and `last`: numbers of the disk's uncertain writes."""
        content = self.durable
        for change in self.changes:
            size = len(change.data)
            if change.durable:
                content = _applied(content, change, WriteOutcome.all_of(size))
            else:
                kept = outcome.write(size, first=change.number == first, last=change.number == last)
                content = _applied(content, change, kept)
        return Inode(content, content, self.modified)

    def copy(self) -> Inode:
        """The same file for another process."""
        changes = [Change(each.number, each.offset, each.data, each.durable, each.lost) for each in self.changes]
        return Inode(self.durable, self.now, self.modified, changes)


def _applied(content: bytes, change: Change, kept: WriteOutcome) -> bytes:
    start, data = change.offset, change.data
    end = start + (len(data) if kept.grown or kept.tail < len(data) else kept.head)
    if end == start:
        return content
    old = content.ljust(end, b"\0")
    middle = old[start + kept.head : max(end, start + kept.head)]
    written = data[: kept.head] + middle[: kept.tail - kept.head] + data[kept.tail :]
    return old[:start] + written + old[start + len(written) :]


class Directory:
    """What stands under the name of a directory."""


Entry = Inode | Directory | None


@dataclass(slots=True)
class Name:
    """All that a name stood for, the newest last; `durable` is the first of it that a power loss can go back to."""

    parent: str
    versions: list[Entry]
    durable: int = 0


@dataclass(slots=True)
class Names:
    """Every name on the disk, by its path, and the renames: the source of one goes only when its target came."""

    by_path: dict[str, Name] = field(default_factory=dict)
    renames: list[tuple[str, int, str, int]] = field(default_factory=list)
    changes: int = 0

    def copy(self) -> Names:
        """The same names and files for another process."""
        files: dict[int, Inode] = {}
        made = Names(renames=list(self.renames), changes=self.changes)
        for path, name in self.by_path.items():
            made.by_path[path] = Name(
                name.parent, [_once(files, entry, Inode.copy) for entry in name.versions], name.durable
            )
        return made

    def after_power_loss(self, outcome: Outcome) -> Names:
        """What is there at the next boot."""
        numbers = [each.number for inode in self._inodes() for each in inode.uncertain()]
        first, last = min(numbers, default=0), max(numbers, default=0)
        files: dict[int, Inode] = {}
        made = Names(changes=self.changes)
        for path, entry in self._left(outcome).items():
            found = _once(files, entry, lambda inode: inode.after_power_loss(outcome, first, last))
            made.by_path[path] = Name(self.by_path[path].parent, [found])
        return made

    def get(self, path: str) -> Entry:
        """What `path` stands for now."""
        name = self.by_path.get(path)
        if name is not None:
            return name.versions[-1]
        return Directory() if _is_root(path) else None

    def set(self, path: str, entry: Entry) -> int:
        """Let `path` stand for something else, not durably; returns which version of it that is."""
        name = self.by_path.get(path)
        if name is None:
            name = self.by_path[path] = Name(os.path.dirname(path), [None])
        name.versions.append(entry)
        return len(name.versions) - 1

    def rename(self, source: str, target: str) -> None:
        """Move what `source` stands for to `target`."""
        came = self.set(target, self.get(source))
        self.renames.append((source, self.set(source, None), target, came))

    def sync(self, directory: str) -> None:
        """Make the names in `directory` durable."""
        for name in self.by_path.values():
            if name.parent == directory:
                name.durable = len(name.versions) - 1

    def inside(self, directory: str) -> list[str]:
        """Sorted names in `directory`."""
        found = ((path, name) for path, name in self.by_path.items() if name.parent == directory)
        return sorted(os.path.basename(path) for path, name in found if name.versions[-1] is not None)

    def _inodes(self) -> list[Inode]:
        """Every file that has or may get back a name, each once."""
        entries = (entry for name in self.by_path.values() for entry in name.versions[name.durable :])
        return list({id(entry): entry for entry in entries if isinstance(entry, Inode)}.values())

    def _left(self, outcome: Outcome) -> dict[str, Entry]:
        """What each path stands for at the next boot."""
        chosen = {}
        for path, name in self.by_path.items():
            possible = len(name.versions) - name.durable
            chosen[path] = name.durable + (outcome.name(possible) if possible > 1 else 0)
        for source, went, target, came in reversed(self.renames):
            if chosen[target] < came and chosen[source] == went and went > self.by_path[source].durable:
                chosen[source] = went - 1
        left: dict[str, Entry] = {}
        for path in sorted(chosen, key=len):  # a directory before what is in it
            parent = self.by_path[path].parent
            if _is_root(parent) or isinstance(left.get(parent), Directory):
                left[path] = self.by_path[path].versions[chosen[path]]
        return {path: entry for path, entry in left.items() if entry is not None}


def _is_root(path: str) -> bool:
    return os.path.dirname(path) == path


def _once(files: dict[int, Inode], entry: Entry, make: Callable[[Inode], Inode]) -> Entry:
    """What `make` makes of `entry`, if that is a file; the same for all names of one file."""
    if not isinstance(entry, Inode):
        return entry
    if id(entry) not in files:
        files[id(entry)] = make(entry)
    return files[id(entry)]
