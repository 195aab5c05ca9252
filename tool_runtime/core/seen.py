"""What a call saw of a file, so that a later call can tell whether the file has changed since."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os


class Seen(NamedTuple):
    """A file as it was seen. `stamp` is its size, time of change and number on the disk; `sha256` that of its content,
    empty where not all of it was read."""

    stamp: str
    sha256: str = ""

    @classmethod
    def of(cls, status: os.stat_result, content: bytes | None = None) -> Seen:
        """A file with this status; `content` is all that it holds, where that is known."""
        stamp = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
        return cls(stamp, "" if content is None else hashlib.sha256(content).hexdigest())

    @classmethod
    def parse(cls, text: str) -> Seen:
        """The inverse of `str()`."""
        stamp, _, digest = text.partition(" ")
        return cls(stamp, digest)

    def __str__(self) -> str:
        return f"{self.stamp} {self.sha256}" if self.sha256 else self.stamp
