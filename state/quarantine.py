"""What is damaged is kept as `.corrupt-N` beside its place: nothing is ever deleted unread."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from state.files import write_new

if TYPE_CHECKING:
    from state.disk import Disk
    from state.locations import SessionPaths

_MARK = ".corrupt-"


def move_aside(disk: Disk, paths: SessionPaths) -> str:
    """Move snapshot and journal aside, and the pair before them, whatever lies in their places, and return the first
    one's new path."""
    suffix = _free_suffix(disk, paths)
    there = [path for path in paths.checkpoint_files if disk.status(path) is not None]
    for path in there:
        disk.replace(path, path + suffix)
    disk.sync_directory(paths.checkpoints)
    return there[0] + suffix


def copy_aside(disk: Disk, paths: SessionPaths) -> str:
    """Copy snapshot and journal aside, durably, and return the first one's path; they stay in their places, to be
    replaced by what was saved of them. What is no plain file is moved. A disk that takes only one of two copies is left
    with none, so that trying again on a full one does not fill it further."""
    suffix = _free_suffix(disk, paths)
    found = {path: disk.status(path) for path in (paths.snapshot, paths.journal)}
    there = {path: status for path, status in found.items() if status is not None}
    copied: list[str] = []
    try:
        for path, status in there.items():
            if status.kind == "file":
                data = disk.read(path)
                copied.append(path + suffix)  # first: one whose close fails is there
                write_new(disk, path + suffix, [data])
            else:
                disk.replace(path, path + suffix)
        disk.sync_directory(paths.checkpoints)
    except OSError:
        for copy in copied:
            with contextlib.suppress(OSError):
                disk.remove(copy)
        raise
    return next(iter(there)) + suffix


def is_quarantined(disk: Disk, paths: SessionPaths) -> bool:
    """True when something of this session was put aside."""
    starts = tuple(os.path.basename(path) + _MARK for path in paths.checkpoint_files)
    return any(name.startswith(starts) for name in disk.names(paths.checkpoints))


def _free_suffix(disk: Disk, paths: SessionPaths) -> str:
    number = 1
    while any(disk.status(f"{path}{_MARK}{number}") is not None for path in paths.checkpoint_files):
        number += 1
    return f"{_MARK}{number}"
