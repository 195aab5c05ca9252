"""Content-addressed files of a session: large texts of its thread, and the contents of files before its first write.

In a snapshot each large part of a message is replaced by a reference to a blob, so that the snapshot stays small and
equal texts are stored once. The journal and the memory contain complete messages.

    {"role": "tool", "content": "", ..., "contentBlob": {"sha256": "...", "bytes": 81920}}

The same is done with a call's `arguments` (`argumentsBlob`), a block's `raw` (`rawBlob`), and a picture's `data`, which
is base64: its `dataBlob` names the decoded picture.
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
    from state.disk import Disk, StartJob

# Instead of a blob's name: there was content, but it was not stored. In the first version of a file that a call is
# about to change, "@" and the state of the file follow (`unavailable_at`), because the call may fail.
UNAVAILABLE = "unavailable"
# The same for content that a command changed, and of which no copy exists.
OVERWRITTEN = "overwritten"
_READ_AT_ONCE_BYTES = 1024 * 1024
NOT_KEPT = frozenset((UNAVAILABLE, OVERWRITTEN))

PLAIN_FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""Git's modes of files and links. The content of a link is its target path."""
# Larger parts get a file of their own.
LARGE_BYTES = 16 * 1024
_MARK = b'Blob":{"sha256":"'


class SessionStorage(NamedTuple):
    """Location and limits of a session, and the thresholds of compaction. Below `min_compact_bytes` of journal a new
    snapshot would cost more in syncs than it saves in replay; a snapshot above `snapshot_limit_bytes` is neither
    written nor read. `archives`: the records are kept when the session has ended."""

    disk: Disk
    now: Callable[[], datetime]
    paths: SessionPaths
    blobs: BlobFolder
    min_compact_bytes: int
    start_job: StartJob
    snapshot_limit_bytes: int
    archives: bool


def add_mode(mode: str, version: str) -> str:
    """Add the file's mode to the name of a version of it, a blob's or a word of NOT_KEPT."""
    return f"{mode}:{version}"


def mode_and_blob(version: str) -> tuple[str | None, str]:
    """Split a version into mode and name, the inverse of `add_mode`; the mode is None if it is not recorded, because
    nothing has changed it. The state of `unavailable_at` is left out."""
    mode, _, blob = version.rpartition(":")
    return mode or None, blob.partition("@")[0]


def unavailable_at(path: str) -> str:
    """Return UNAVAILABLE for the file at `path` with its present state (size, times, inode), if it can be examined."""
    try:
        found = os.lstat(path)
    except OSError:
        return UNAVAILABLE
    return f"{UNAVAILABLE}@{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}.{found.st_ino}"


def is_untouched(before: str, after: str | None) -> bool:
    """True if both are versions of a file that was not stored, in the same state."""
    state = before.rpartition(":")[2]
    return "@" in state and after is not None and after.rpartition(":")[2] == state


def git_mode(mode: int) -> str:
    """Return git's mode of a file or a link with these mode bits."""
    return LINK if stat.S_ISLNK(mode) else PROGRAM if mode & stat.S_IXUSR else PLAIN_FILE


def sha256_hex(data: bytes) -> str:
    """Return the name of a blob with the content `data`."""
    return hashlib.sha256(data).hexdigest()


class BlobFolder:
    """Blobs as files of one directory, which is made with the first blob and may contain `limit_bytes`."""

    def __init__(self, disk: Disk, directory: str, limit_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self.limit_bytes = limit_bytes
        self.refused = False  # something was rejected because the limit was reached
        self.aside_bytes = 0  # stored in other places, but subject to the same limit
        self._sizes: dict[str, int] | None = None
        # A blob left by an earlier process may be complete but not durable. So only blobs count that this process
        # wrote, or that a checkpoint names, because those were durable before the checkpoint was.
        self.durable: set[str] = set()
        self._shared: set[str] = set()  # written by this process too, but not durable
        self._made = False
        self._aside = itertools.count(1)  # numbers temporary files; only one process uses the folder
        self._guard = threading.Lock()  # another thread shares large artifacts

    @property
    def total_bytes(self) -> int:
        """The number of bytes in the folder, plus `aside_bytes`."""
        return sum(self._read_sizes().values()) + self.aside_bytes

    @property
    def names(self) -> frozenset[str]:
        """The names of the complete blobs in the folder."""
        return frozenset(name for name in self._read_sizes() if not name.endswith(TEMPORARY))

    def has_room(self, size: int) -> bool:
        """True if `size` more bytes are within the limit."""
        return self.total_bytes + size <= self.limit_bytes

    def put(self, *contents: bytes, limited: bool = True) -> None:
        """Store each of `contents` under its SHA-256, durable on return; a blob that is durable already is not written
        again. Raises StorageLimit, before anything is written, if `limited` and not all of them fit; OSError."""
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
                make_durable_dir(self._disk, self._directory, within=os.path.dirname(self._directory), must_exist=True)
                self._made = True
            for name, data in new.items():
                write_new(self._disk, self._path(name) + TEMPORARY, [data])
                put_in_place(self._disk, self._path(name) + TEMPORARY, self._path(name))
                self._read_sizes()[name] = len(data)
            self._disk.sync_directory(self._directory)
            self.durable.update(new)

    def share(self, pieces: Iterable[bytes], path: str) -> tuple[str, int]:
        """Store a content that comes in `pieces`, not durably, with `path` as a hard link to the same file; return its
        SHA-256 and its size. `path` is replaced atomically; on a file system without hard links it is a copy. Raises
        StorageLimit, OSError, and any exception of `pieces`."""
        with self._guard:  # the folder is listed before there is a temporary file
            room = self.limit_bytes - self.total_bytes
        if self._disk.status(os.path.dirname(self._directory)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._directory)
        self._disk.make_private_dir(self._directory)
        temporary = self._path(f"{os.path.basename(path)}-{next(self._aside)}{TEMPORARY}")
        digest, size = hashlib.sha256(), 0

        def within_room() -> Iterator[bytes]:
            # The rest is only hashed: content that is stored already needs no space, and only the hash can tell.
            nonlocal size
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                if size <= room:
                    yield piece

        write_new(self._disk, temporary, within_room(), durable=False)
        name = digest.hexdigest()
        with self._guard:
            if self._is_stored(name, size):
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
        """Return the content of the blob `name`; None if it is missing or does not match its name."""
        try:
            data = self._disk.read(self._path(name))
        except OSError:
            return None
        return data if sha256_hex(data) == name else None

    def sweep(self, named: AbstractSet[str]) -> None:
        """Remove blobs that are not in `named`, and files that a crash left incomplete. A blob with a second hard link
        (an artifact with the same content) is still in use. Raises OSError."""
        sizes = self._read_sizes()
        for name in self._disk.names(self._directory):
            status = self._disk.status(self._path(name))
            if name in named or status is None or status.kind != "file" or status.links > 1:
                continue
            self._disk.remove(self._path(name))
            sizes.pop(name, None)
            self.durable.discard(name)
            self._shared.discard(name)

    def _is_stored(self, name: str, size: int) -> bool:
        """True if the blob exists and is intact. A large blob is not read: it is treated as intact if this process has
        written it and its size matches."""
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


# The parts of a message that may be large, apart from its `content`: lists of objects, and the field of each.
_LARGE_FIELDS = (("toolCalls", "arguments"), ("blocks", "raw"), ("images", "data"))


def _large_fields(wire: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    yield wire, "content"
    for name, key in _LARGE_FIELDS:
        for holder in wire.get(name, ()):
            yield holder, key


def shorten(message: bytes) -> tuple[bytes, list[bytes]]:
    """Replace the large parts of a message by references; return the short message and the parts."""
    if len(message) <= LARGE_BYTES:
        return message, []
    wire = orjson.loads(message)
    parts: list[bytes] = []
    for holder, key in _large_fields(wire):
        value = holder[key]
        part = orjson.dumps(value) if key == "arguments" else b64decode(value) if key == "data" else value.encode()
        # A picture whose base64 is not canonical would be changed by the round trip.
        if len(part) > LARGE_BYTES and (key != "data" or b64encode(part).decode() == value):
            holder |= {
                key: {} if key == "arguments" else "",
                f"{key}Blob": {"sha256": sha256_hex(part), "bytes": len(part)},
            }
            parts.append(part)
    return (orjson.dumps(wire), parts) if parts else (message, [])


def restore(message: bytes, get: Callable[[str], bytes | None]) -> tuple[bytes, list[str]]:
    """Return the complete message, and the names of the parts that `get` could not find: each is replaced by a note, so
    that the thread can still be sent; a lost block or picture stays empty. If a lost blob is put back, it is found
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
            note = f"{reference['bytes']} bytes here were damaged on disk and are lost"
            if key == "content":
                holder[key] = f"[{note}]"
            elif key == "arguments":  # a call that can no longer be made
                holder["problem"] = note
            elif key == "data":
                wire["content"] += f"\n[A picture of {note}]"
        else:
            holder[key] = part
    # Copied to a buffer of the exact size: orjson's can be ten times as large, and the message is kept as long as the
    # session.
    return bytes(memoryview(orjson.dumps(wire))), lost


def _part(key: str, data: bytes | None) -> str | dict[str, Any] | None:
    """Decode the stored part for `key`; None if it is missing or invalid."""
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
    """Return the names of the blobs in a shortened message."""
    if _MARK not in message:
        return []
    return [holder[f"{key}Blob"]["sha256"] for holder, key in _holders(orjson.loads(message))]


def _holders(wire: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    return [(holder, key) for holder, key in _large_fields(wire) if f"{key}Blob" in holder]


# Large values of a session: first versions of files, and the large parts of its messages. New ones are first in the
# journal, so that they need no syncs of their own, and get a file with the next snapshot.

# Larger values get a file with its own syncs at once; smaller ones are in the journal until the next snapshot.
_MAX_INLINE_BYTES = 64 * 1024


@dataclass(slots=True)
class StoredValues:
    """The large values in a session's files: `inline` are blobs that are only in the journal, by name; `short` are the
    messages with references to blobs as in the snapshot, by position in the thread. Messages before `examined` have
    been checked for large parts."""

    inline: dict[str, bytes] = field(default_factory=dict)
    short: dict[int, bytes] = field(default_factory=dict)
    examined: int = 0


@dataclass(slots=True)
class SnapshotThread:
    """The messages of one snapshot and their blobs; another thread may write them while the session continues. `thread`
    are the complete messages, `stored` a copy of the large values known so far."""

    blobs: BlobFolder
    thread: list[bytes]
    stored: StoredValues

    def write(self) -> list[bytes]:
        """Return the messages in their snapshot form; the blobs that they name are durable on return. Raises
        OSError."""
        stored = self.stored
        self.blobs.put(*stored.inline.values(), limited=False)  # the limit was checked when they were stored
        new = {place: shorten(self.thread[place]) for place in range(stored.examined, len(self.thread))}
        large = {place: (short, parts) for place, (short, parts) in new.items() if parts}
        with contextlib.suppress(StorageLimit):  # then the messages stay complete
            self.blobs.put(*(part for _, parts in large.values() for part in parts))
            stored.short |= {place: short for place, (short, _) in large.items()}
        if not stored.short:
            return self.thread
        return [stored.short.get(place, message) for place, message in enumerate(self.thread)]


class LargeValues:
    """The large values of one session, in `blobs` or still in the journal."""

    def __init__(self, blobs: BlobFolder) -> None:
        self.blobs = blobs
        self._stored = StoredValues()
        self.to_record: dict[str, str] = {}  # for the next record in the journal: base64 by name
        self._full = False

    @property
    def full(self) -> bool:
        """True if something could not be stored because the limit was reached."""
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
        """Continue with the values on disk, except for `lost` blobs. A blob that a checkpoint names was durable before
        the checkpoint."""
        self._stored = stored
        self.blobs.durable |= self.blobs_to_keep(first_versions) - frozenset(lost) - stored.inline.keys()

    def blobs_to_keep(self, first_versions: Iterable[str]) -> frozenset[str]:
        """Return the blobs that the session needs: those of its messages and its `first_versions` of files."""
        in_thread = {name for message in self._stored.short.values() for name in blobs_in(message)}
        return frozenset(in_thread.union(first_versions))

    def collect_for_snapshot(self, thread: Sequence[bytes]) -> SnapshotThread:
        """Collect the messages and blobs for a snapshot of the current state, for `SnapshotThread.write`; call
        `mark_moved` afterwards."""
        stored = self._stored
        copied = StoredValues(dict(stored.inline), dict(stored.short), stored.examined)
        return SnapshotThread(self.blobs, list(thread), copied)

    def mark_moved(self, written: SnapshotThread) -> None:
        """Continue from `written`, whose snapshot is in place now."""
        for name in written.stored.inline:
            self._stored.inline.pop(name, None)
            self.to_record.pop(name, None)
        self._stored.short, self._stored.examined = written.stored.short, len(written.thread)
