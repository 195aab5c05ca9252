"""Which file systems answer at once: those on disks of this machine. A server or a program behind one may never."""

from __future__ import annotations

import functools
import os
import sys
from typing import Final

_LOCAL: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "xfs", "zfs"})
_TABLE: Final = "/proc/self/mountinfo"


@functools.lru_cache(maxsize=64)
def is_local(device: int) -> bool:
    """True if the file system with this device number (`st_dev`) is one on a disk, or in the memory, of this machine.
    False where the system does not say, as outside of Linux."""
    if sys.platform != "linux":
        return False
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            return kind_of(f"{os.major(device)}:{os.minor(device)}", table.read()) in _LOCAL
    except OSError:
        return False


def kind_of(device: str, table: str) -> str | None:
    """The type of the file system with the number `device` (`8:1`) in the text of a mountinfo; None where it is not in
    there."""
    for line in table.splitlines():
        place, _, rest = line.partition(" - ")
        if place.split(" ")[2:3] == [device]:
            return rest.split(" ")[0]
    return None
