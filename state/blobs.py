"""Content-addressed files of a session: large texts of its thread, and what files held before its first write.

In a snapshot large parts of messages stand in a blob of their own, so that it stays small and equal texts are kept
once. Journal and memory hold messages whole.

    {"role": "tool", "content": "", ..., "contentBlob": {"sha256": "...", "bytes": 81920}}

The same goes for a call's `arguments`, beside which `argumentsBlob` stands, for a block's `raw` and its `rawBlob`, and
for a picture's `data`, which is base64: its `dataBlob` names the picture itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
import threading
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from config.lean_typing import NamedTuple
from state import StorageLimit
from state.disk import TEMPORARY, make_durable_dir, put_in_place, second_name, write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from state import SessionPaths
    from state.disk import Beside, Disk

# In place of a name: there was content, and it was not kept.
UNAVAILABLE = "unavailable"
# The same of content that a command changed, and that nothing else has.
OVERWRITTEN = "overwritten"
_READ_AT_ONCE_BYTES = 1024 * 1024
NOT_KEPT = frozenset((UNAVAILABLE, OVERWRITTEN))

PLAIN_FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""The modes that git knows of what is no folder. The content of a link is the path that it leads to."""
# Parts of this size are worth a file of their own.
LARGE_BYTES = 16 * 1024
_MARK = b'Blob":{"sha256":"'


class SessionStorage(NamedTuple):
    """Location and limits of a session, and the thresholds of compaction. Below `min_compact_bytes` of journal a new
    snapshot would cost more in syncs than it saves in replay; one above `snapshot_limit_bytes` is not written, and not
    read. `archives`: the records stay when the session has ended."""

    disk: Disk
    now: Callable[[], datetime]
    paths: SessionPaths
    blobs: BlobFolder
    min_compact_bytes: int
    beside: Beside
    snapshot_limit_bytes: int
    archives: bool


def add_mode(mode: str, version: str) -> str:
    """The name of a version of a file, a blob's or a word of NOT_KEPT, with the mode that the file had."""
    return f"{mode}:{version}"


def mode_and_blob(version: str) -> tuple[str | None, str]:
    """The inverse of `add_mode`; the mode is None where it is not on record, since nothing has changed it."""
    mode, _, blob = version.rpartition(":")
    return mode or None, blob


def git_mode(mode: int) -> str:
    """The one of the three that a file or a link of these bits has."""
    return LINK if stat.S_ISLNK(mode) else PROGRAM if mode & stat.S_IXUSR else PLAIN_FILE


def sha256_hex(data: bytes) -> str:
    """The name of `data`."""
    return hashlib.sha256(data).hexdigest()


class BlobFolder:
    """Blobs as files of one directory, which is made with the first of them; `limit_bytes` is what it may hold."""

    def __init__(self, disk: Disk, directory: str, limit_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self.limit_bytes = limit_bytes
        self.refused = False  # something, for want of room
        self.aside_bytes = 0  # stored elsewhere, and sharing the limit
        self._sizes: dict[str, int] | None = None
        # What an earlier process left may be whole and not durable, so only what this one wrote counts, and what a
        # checkpoint names, since it was durable before that did.
        self.durable: set[str] = set()
        self._shared: set[str] = set()  # written by this one as well, and not durable
        self._made = False
        self._aside = itertools.count(1)  # of what is not whole yet; the folder is one process's
        self._guard = threading.Lock()  # large artifacts are shared from another thread

    @property
    def total_bytes(self) -> int:
        """The bytes that the folder holds in all, with what was set aside."""
        return sum(self._read_sizes().values()) + self.aside_bytes

    @property
    def names(self) -> frozenset[str]:
        """The whole blobs that are there."""
        return frozenset(name for name in self._read_sizes() if not name.endswith(TEMPORARY))

    def has_room(self, size: int) -> bool:
        """True if `size` more bytes may be kept."""
        return self.total_bytes + size <= self.limit_bytes

    def put(self, *contents: bytes, limited: bool = True) -> None:
        """Keep each of `contents` under its SHA-256, durable on return; what is there already is not written again.
        Raises StorageLimit, before anything is written, when it is `limited` and the folder may not hold all of them;
        OSError."""
        new = {name: data for data in contents if (name := sha256_hex(data)) not in self.durable}
        if not new:
            return
        with self._guard:
            if limited:
                needed = sum(len(data) for name, data in new.items() if name not in self._read_sizes())
                if needed and not self.has_room(needed):
                    self.refused = True
                    raise StorageLimit(self.limit_bytes)
            if not self._made:
                make_durable_dir(self._disk, self._directory, within=os.path.dirname(self._directory), is_there=True)
                self._made = True
            for name, data in new.items():
                write_new(self._disk, self._path(name) + TEMPORARY, [data])
                put_in_place(self._disk, self._path(name) + TEMPORARY, self._path(name))
                self._read_sizes()[name] = len(data)
            self._disk.sync_directory(self._directory)
            self.durable.update(new)

    def share(self, pieces: Iterable[bytes], path: str) -> tuple[str, int]:
        """Keep a content that comes in `pieces`, not durably, with `path` as a second name for the same file, and
        return its SHA-256 and its size. `path` is replaced atomically; where the file system knows no second names it
        gets a copy. Raises StorageLimit, OSError, and what `pieces` raise."""
        with self._guard:  # what is there is listed before there is anything temporary
            room = self.limit_bytes - self.total_bytes
        if self._disk.status(os.path.dirname(self._directory)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._directory)
        self._disk.make_private_dir(self._directory)
        temporary = self._path(f"{os.path.basename(path)}-{next(self._aside)}{TEMPORARY}")
        digest, size = hashlib.sha256(), 0

        def within_room() -> Iterator[bytes]:
            # The rest is hashed only: what is there already needs no room, and only the hash says that it is.
            nonlocal size
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                if size <= room:
                    yield piece

        write_new(self._disk, temporary, within_room(), durable=False)
        name = digest.hexdigest()
        with self._guard:
            if self._is_there(name, size):
                self._disk.remove(temporary)
            elif size <= room:
                put_in_place(self._disk, temporary, self._path(name))
                self._read_sizes()[name] = size
                self._shared.add(name)
            else:
                self._disk.remove(temporary)
                self.refused = True
                raise StorageLimit(self.limit_bytes)
        second_name(self._disk, self._path(name), path)
        return name, size

    def get(self, name: str) -> bytes | None:
        """The content called `name`; None when it is missing or no longer what its name says."""
        try:
            data = self._disk.read(self._path(name))
        except OSError:
            return None
        return data if sha256_hex(data) == name else None

    def sweep(self, named: AbstractSet[str]) -> None:
        """Remove what is not among `named`, and what a crash left half written. A blob with a second name (an artifact
        of the same content) is still in use. Raises OSError."""
        sizes = self._read_sizes()
        for name in self._disk.names(self._directory):
            status = self._disk.status(self._path(name))
            if name in named or status is None or status.kind != "file" or status.links > 1:
                continue
            self._disk.remove(self._path(name))
            sizes.pop(name, None)
            self.durable.discard(name)
            self._shared.discard(name)

    def _is_there(self, name: str, size: int) -> bool:
        """True if the blob is there as its name says. A large one is not read for it: what this process has written is
        taken for whole as long as its size is."""
        status = self._disk.status(self._path(name)) if name in self._read_sizes() else None
        if status is None or status.size != size:
            return False
        return self.get(name) is not None if size <= _READ_AT_ONCE_BYTES else name in self._shared | self.durable

    def _read_sizes(self) -> dict[str, int]:
        if self._sizes is None:
            found = ((name, self._disk.status(self._path(name))) for name in self._disk.names(self._directory))
            self._sizes = {name: status.size for name, status in found if status is not None}
        return self._sizes

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


# The parts of a message that may be large, besides its `content`: lists of objects, and the field of each.
_LARGE_FIELDS = (("toolCalls", "arguments"), ("blocks", "raw"), ("images", "data"))


def _large_fields(wire: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    yield wire, "content"
    for name, key in _LARGE_FIELDS:
        for holder in wire.get(name, ()):
            yield holder, key


def shorten(message: bytes) -> tuple[bytes, list[bytes]]:
    """The message with its large parts named, and these parts."""
    if len(message) <= LARGE_BYTES:
        return message, []
    wire = orjson.loads(message)
    parts: list[bytes] = []
    for holder, key in _large_fields(wire):
        value = holder[key]
        part = orjson.dumps(value) if key == "arguments" else b64decode(value) if key == "data" else value.encode()
        # A picture whose base64 has another form would come back changed.
        if len(part) > LARGE_BYTES and (key != "data" or b64encode(part).decode() == value):
            holder |= {
                key: {} if key == "arguments" else "",
                f"{key}Blob": {"sha256": sha256_hex(part), "bytes": len(part)},
            }
            parts.append(part)
    return (orjson.dumps(wire), parts) if parts else (message, [])


def restore(message: bytes, get: Callable[[str], bytes | None]) -> tuple[bytes, list[str]]:
    """The whole message again, and the names of the parts that `get` no longer has: in their place stands a word about
    it, so that the thread can still be sent; a lost block or picture stays empty. A blob that is put back is found
    again."""
    if _MARK not in message:
        return message, []
    wire = orjson.loads(message)
    lost: list[str] = []
    for holder, key in _holders(wire):
        reference = holder.pop(f"{key}Blob")
        part = _part(key, get(reference["sha256"]))
        if part is None:
            lost.append(reference["sha256"])
            said = f"{reference['bytes']} bytes here were damaged on disk and are lost"
            if key == "content":
                holder[key] = f"[{said}]"
            elif key == "arguments":  # a call that cannot be made any more
                holder["problem"] = said
            elif key == "data":
                wire["content"] += f"\n[A picture of {said}]"
        else:
            holder[key] = part
    # In a buffer of its own size: orjson's can be ten times as large, and the message is kept for the session's life.
    return bytes(memoryview(orjson.dumps(wire))), lost


def _part(key: str, data: bytes | None) -> str | dict[str, Any] | None:
    """The stored part for `key`; None when it is gone, or is the blob of something else."""
    try:
        if data is None:
            return None
        if key == "data":
            return b64encode(data).decode()
        if key != "arguments":
            return data.decode()
        arguments = orjson.loads(data)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def blobs_in(message: bytes) -> list[str]:
    """The blobs that a shortened message names."""
    if _MARK not in message:
        return []
    return [holder[f"{key}Blob"]["sha256"] for holder, key in _holders(orjson.loads(message))]


def _holders(wire: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    return [(holder, key) for holder, key in _large_fields(wire) if f"{key}Blob" in holder]


# Large values of a session: first versions of files, and the large parts of its messages. What is new waits in the
# journal, whose syncs it shares, and gets a file of its own with the next snapshot.

# Larger ones cost a file and its syncs at once; smaller ones wait in the journal for the next snapshot.
_MAX_INLINE_BYTES = 64 * 1024


@dataclass(slots=True)
class StoredValues:
    """The large things of a session as its files have them: `inline` are blobs that stand in the journal alone, by
    name, `short` the messages that name blobs in the snapshot, by their place in the thread. All messages before
    `examined` are known."""

    inline: dict[str, bytes] = field(default_factory=dict)
    short: dict[int, bytes] = field(default_factory=dict)
    examined: int = 0


@dataclass(slots=True)
class SnapshotThread:
    """The messages of one snapshot and what they name; another thread may write it while the session goes on. `thread`
    are the whole messages, `stored` what is known of them."""

    blobs: BlobFolder
    thread: list[bytes]
    stored: StoredValues

    def write(self) -> list[bytes]:
        """The messages as they are to stand in the snapshot; what they name has a file, durable on return. Raises
        OSError."""
        stored = self.stored
        self.blobs.put(*stored.inline.values(), limited=False)  # there was room when they were taken
        new = {place: shorten(self.thread[place]) for place in range(stored.examined, len(self.thread))}
        large = {place: (short, parts) for place, (short, parts) in new.items() if parts}
        with contextlib.suppress(StorageLimit):  # then they stay where they are
            self.blobs.put(*(part for _, parts in large.values() for part in parts))
            stored.short |= {place: short for place, (short, _) in large.items()}
        if not stored.short:
            return self.thread
        return [stored.short.get(place, message) for place, message in enumerate(self.thread)]


class LargeValues:
    """The large things of one session, in `blobs` or on their way there."""

    def __init__(self, blobs: BlobFolder) -> None:
        self.blobs = blobs
        self._stored = StoredValues()
        self.to_record: dict[str, str] = {}  # what the next record takes into the journal: base64 by name
        self._full = False

    @property
    def full(self) -> bool:
        """True if something could not be kept for want of room."""
        return self._full or self.blobs.refused

    def put(self, data: bytes) -> str:
        """See `FileSession.keep`."""
        name = sha256_hex(data)
        if name in self._stored.inline or name in self.blobs.durable:
            return name
        try:
            if len(data) > _MAX_INLINE_BYTES:
                self.blobs.put(data)
                return name
            if not self.blobs.has_room(len(data) + sum(map(len, self._stored.inline.values()))):
                raise StorageLimit(self.blobs.limit_bytes)
        except StorageLimit:
            self._full = True
            return UNAVAILABLE
        except OSError:
            return UNAVAILABLE
        self._stored.inline[name] = data
        self.to_record[name] = b64encode(data).decode()
        return name

    def get(self, name: str) -> bytes | None:
        """See `FileSession.kept`."""
        inline = self._stored.inline.get(name)
        return self.blobs.get(name) if inline is None else inline

    def take_over(self, stored: StoredValues, lost: Iterable[str], first_versions: Iterable[str]) -> None:
        """Continue with what is on disk, where blobs are `lost`. Whatever a checkpoint names was durable before it
        did."""
        self._stored = stored
        self.blobs.durable |= self.blobs_to_keep(first_versions) - frozenset(lost) - stored.inline.keys()

    def blobs_to_keep(self, first_versions: Iterable[str]) -> frozenset[str]:
        """The blobs that the session needs: those of its messages and its `first_versions` of files."""
        in_thread = {name for message in self._stored.short.values() for name in blobs_in(message)}
        return frozenset(in_thread.union(first_versions))

    def collect_for_snapshot(self, thread: Sequence[bytes]) -> SnapshotThread:
        """Collect the messages and blobs that a snapshot of now needs, for `SnapshotThread.write`; `moved` takes over
        what that did."""
        stored = self._stored
        copied = StoredValues(dict(stored.inline), dict(stored.short), stored.examined)
        return SnapshotThread(self.blobs, list(thread), copied)

    def mark_moved(self, written: SnapshotThread) -> None:
        """The snapshot that was made with `written` is in place: go on from it."""
        for name in written.stored.inline:
            self._stored.inline.pop(name, None)
            self.to_record.pop(name, None)
        self._stored.short, self._stored.examined = written.stored.short, len(written.thread)
