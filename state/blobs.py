"""Content-addressed files of a session: large texts of its thread, and what files held before its first write."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from typing import TYPE_CHECKING

from state.errors import StorageLimit
from state.files import TEMPORARY, make_durable_dir, put_in_place, second_name, write_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from state.disk import Disk

# In place of a name: there was content, and it was not kept.
UNAVAILABLE = "unavailable"
# The same of content that a command changed, and that nothing else has.
OVERWRITTEN = "overwritten"
_READ_AT_ONCE_BYTES = 1024 * 1024
NOT_KEPT = frozenset((UNAVAILABLE, OVERWRITTEN))

PLAIN_FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""The modes that git knows of what is no folder. The content of a link is the path that it leads to."""


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
        self._sizes: dict[str, int] | None = None
        self._aside_bytes = 0
        # What an earlier process left may be whole and not durable, so only what this one wrote counts.
        self._durable: set[str] = set()
        self._shared: set[str] = set()  # written by this one as well, and not durable
        self._made = False
        self._guard = threading.Lock()  # large artifacts are shared from another thread

    @property
    def total_bytes(self) -> int:
        """The bytes that the folder holds in all, with what was set aside."""
        return sum(self._read_sizes().values()) + self._aside_bytes

    @property
    def names(self) -> frozenset[str]:
        """The whole blobs that are there."""
        return frozenset(name for name in self._read_sizes() if not name.endswith(TEMPORARY))

    def set_aside(self, size: int) -> None:
        """Count `size` bytes that are stored elsewhere and share the limit."""
        self._aside_bytes += size

    def has_room(self, size: int) -> bool:
        """True if `size` more bytes may be kept."""
        return self.total_bytes + size <= self.limit_bytes

    def holds(self, name: str) -> bool:
        """True if the blob is there, and durable, for all that this process knows."""
        return name in self._durable

    def trust(self, names: AbstractSet[str]) -> None:
        """Take `names` for durable: a checkpoint names them, and they were before it did."""
        self._durable.update(names)

    def put(self, *contents: bytes, limited: bool = True) -> None:
        """Keep each of `contents` under its SHA-256, durable on return; what is there already is not written again.

        Raises StorageLimit, before anything is written, when it is `limited` and the folder may not hold all of them;
        OSError.
        """
        new = {name: data for data in contents if (name := sha256_hex(data)) not in self._durable}
        if not new:
            return
        with self._guard:
            if limited:
                self._check_room({name: len(data) for name, data in new.items()})
            if not self._made:
                make_durable_dir(self._disk, self._directory, within=os.path.dirname(self._directory), is_there=True)
                self._made = True
            for name, data in new.items():
                self._write(name, data, durable=True)
            self._disk.sync_directory(self._directory)
            self._durable.update(new)

    def share(self, pieces: Iterable[bytes], path: str) -> tuple[str, int]:
        """Keep a content that comes in `pieces`, not durably, with `path` as a second name for the same file, and
        return its SHA-256 and its size. `path` is replaced atomically; where the file system knows no second names it
        gets a copy. Raises StorageLimit, OSError, and what `pieces` raise.
        """
        with self._guard:  # what is there is listed before there is anything temporary
            room = self.limit_bytes - self.total_bytes
        if self._disk.status(os.path.dirname(self._directory)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._directory)
        self._disk.make_private_dir(self._directory)
        temporary = self._path(f"{os.path.basename(path)}-{os.urandom(4).hex()}{TEMPORARY}")
        hashed = _Hashed(pieces, room)
        write_new(self._disk, temporary, hashed.pieces_within_room(), durable=False)
        name = hashed.sha256()
        with self._guard:
            if self._is_there(name, hashed.size):
                self._disk.remove(temporary)
            elif hashed.is_whole:
                put_in_place(self._disk, temporary, self._path(name))
                self._read_sizes()[name] = hashed.size
                self._shared.add(name)
            else:
                self._disk.remove(temporary)
                self.refused = True
                raise StorageLimit(self.limit_bytes)
        second_name(self._disk, self._path(name), path)
        return name, hashed.size

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
            self._durable.discard(name)
            self._shared.discard(name)

    def _is_there(self, name: str, size: int) -> bool:
        """True if the blob is there as its name says. A large one is not read for it: what this process has written is
        taken for whole as long as its size is."""
        status = self._disk.status(self._path(name)) if name in self._read_sizes() else None
        if status is None or status.size != size:
            return False
        return self.get(name) is not None if size <= _READ_AT_ONCE_BYTES else name in self._shared | self._durable

    def _check_room(self, sizes: dict[str, int]) -> None:
        needed = sum(size for name, size in sizes.items() if name not in self._read_sizes())
        if needed and not self.has_room(needed):
            self.refused = True
            raise StorageLimit(self.limit_bytes)

    def _write(self, name: str, data: bytes, *, durable: bool) -> None:
        temporary = self._path(name) + TEMPORARY
        write_new(self._disk, temporary, [data], durable=durable)
        put_in_place(self._disk, temporary, self._path(name))
        self._read_sizes()[name] = len(data)

    def _read_sizes(self) -> dict[str, int]:
        if self._sizes is None:
            found = ((name, self._disk.status(self._path(name))) for name in self._disk.names(self._directory))
            self._sizes = {name: status.size for name, status in found if status is not None}
        return self._sizes

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


class _Hashed:
    """Pieces on their way to a file. When `room` bytes have passed the rest is hashed only: what is there already needs
    no room, and only the hash says that it is."""

    def __init__(self, pieces: Iterable[bytes], room: int) -> None:
        self.size = 0
        self._pieces = pieces
        self._room = room
        self._digest = hashlib.sha256()

    def pieces_within_room(self) -> Iterator[bytes]:
        """The pieces."""
        for piece in self._pieces:
            self._digest.update(piece)
            self.size += len(piece)
            if self.size <= self._room:
                yield piece

    @property
    def is_whole(self) -> bool:
        """True if all of it has gone to the file."""
        return self.size <= self._room

    def sha256(self) -> str:
        """Of all pieces."""
        return self._digest.hexdigest()
