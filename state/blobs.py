"""Content-addressed files of a session: large texts of its thread, and what files held before its first write."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from state.disk import TEMPORARY, write_new
from state.errors import StorageLimit

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from state.disk import Disk

# In place of a name: there was content, and it was not kept.
UNAVAILABLE = "unavailable"


def sha256_hex(data: bytes) -> str:
    """The name of `data`."""
    return hashlib.sha256(data).hexdigest()


class BlobFolder:
    """Blobs as files of one directory, which is made with the first of them; `limit_bytes` is what it may hold."""

    def __init__(self, disk: Disk, directory: str, limit_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self.limit_bytes = limit_bytes
        self._sizes: dict[str, int] | None = None
        # What an earlier process left may be whole and not durable, so only what this one wrote counts.
        self._durable: set[str] = set()

    @property
    def used_bytes(self) -> int:
        """What the folder holds in all."""
        return sum(self._known().values())

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be kept."""
        return self.used_bytes + size <= self.limit_bytes

    def put(self, *contents: bytes) -> None:
        """Keep each of `contents` under its SHA-256, durable on return; what is there already is not written again.

        Raises StorageLimit, before anything is written, when the folder may not hold all of them; OSError.
        """
        new = {name: data for data in contents if (name := sha256_hex(data)) not in self._durable}
        if not new:
            return
        sizes = self._known()
        needed = sum(len(data) for name, data in new.items() if name not in sizes)
        if needed and not self.has_room(needed):
            raise StorageLimit(self.limit_bytes)
        self._disk.make_private_dir(self._directory)
        for name, data in new.items():
            temporary = self._path(name) + TEMPORARY
            write_new(self._disk, temporary, [data])
            self._disk.replace(temporary, self._path(name))
            sizes[name] = len(data)
        self._disk.sync_directory(self._directory)
        self._durable.update(new)

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
        sizes = self._known()
        for name in self._disk.names(self._directory):
            status = self._disk.status(self._path(name))
            if name in named or status is None or status.kind != "file" or status.links > 1:
                continue
            self._disk.remove(self._path(name))
            sizes.pop(name, None)
            self._durable.discard(name)

    def _known(self) -> dict[str, int]:
        if self._sizes is None:
            found = ((name, self._disk.status(self._path(name))) for name in self._disk.names(self._directory))
            self._sizes = {name: status.size for name, status in found if status is not None}
        return self._sizes

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
