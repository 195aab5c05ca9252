"""Whole files and folders through a disk: written durably, or put in place of another atomically (AH 9.3)."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state.disk import Disk
    from state.locations import SessionPaths

# Small pieces are gathered to writes of about this size: a snapshot consists of one piece a message.
_WRITE_BYTES = 256 * 1024
TEMPORARY = ".tmp"


def make_durable_dir(disk: Disk, path: str, *, within: str, is_there: bool = False) -> None:
    """Create `path`, its parents included, for their owner alone; the names below the directory `within` are durable on
    return, and all others that were not there before. Raises OSError; with `is_there` also where `within` is gone."""
    if is_there and disk.status(within) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), within)
    to_sync: list[str] = []
    at = path
    while at != os.path.dirname(at) and (at != within or disk.status(at) is None):
        to_sync.append(os.path.dirname(at))
        at = os.path.dirname(at)
        if len(at) < len(within) and disk.status(at) is not None:
            break
    disk.make_private_dir(path)
    for directory in reversed(to_sync):
        disk.sync_directory(directory)


def write_new(disk: Disk, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> int:
    """Put `chunks` into a new file at `path` and return its size; a file that could not be written whole is taken away
    again. Its name is not durable yet. Raises OSError."""
    size = 0
    fd = disk.open_new(path)
    try:
        for data in _gather(chunks):
            disk.write(fd, data)
            size += len(data)
        if durable:
            disk.sync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.close(fd)
        _take_away(disk, path)
        raise
    try:
        disk.close(fd)
    except OSError:  # a disk that is full may say so only now
        _take_away(disk, path)
        raise
    return size


def _take_away(disk: Disk, path: str) -> None:
    with contextlib.suppress(OSError):
        disk.remove(path)


def replace_atomically(disk: Disk, path: str, chunks: Iterable[bytes]) -> int:
    """Put `chunks` at `path` so that a reader or a crash sees all of the old or all of the new, and return the size.

    Durable on return: temporary file in the same directory, sync, rename, sync of the directory (AH 9.3).
    Raises OSError.
    """
    size = write_new(disk, path + TEMPORARY, chunks)
    put_in_place(disk, path + TEMPORARY, path)
    disk.sync_directory(os.path.dirname(path))
    return size


def put_in_place(disk: Disk, temporary: str, path: str) -> None:
    """Rename `temporary` to `path`, in place of what is there; where the disk refuses that, it is taken away. Not
    durable. Raises OSError."""
    try:
        disk.replace(temporary, path)
    except OSError:
        _take_away(disk, temporary)
        raise


def second_name(disk: Disk, path: str, second: str) -> None:
    """Have `second` lead to the file at `path`, atomically in place of what was there; a copy where the file system
    knows no second names. Not durable. Raises OSError."""
    temporary = second_temporary(disk, path, second)
    put_in_place(disk, temporary, second)
    disk.remove(temporary)  # it stays where both lead to one file already: POSIX then renames nothing


def second_temporary(disk: Disk, path: str, second: str) -> str:
    """The file at `path` under a temporary name that is to be put in place of `second`. Raises OSError."""
    temporary = second + TEMPORARY
    disk.remove(temporary)
    try:
        disk.link(path, temporary)
    except OSError:
        write_new(disk, temporary, [disk.read(path)], durable=False)
    return temporary


def _gather(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """`chunks` in pieces worth a system call each."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _WRITE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


# What is damaged is kept as `.corrupt-N` beside its place: nothing is ever deleted unread.

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
