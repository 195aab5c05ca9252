"""Git's index, read by ourselves: which files it tracks, with what they held and how they lay on the disk then.

Pure, and bounded by its input. Versions 2 to 4 of the format in git's gitformat-index(5), with names of objects by
SHA-1 or SHA-256.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from agent_host.workspace_changes.git_objects import NAME_BYTES, SHA1_BYTES, digest

MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
MAX_ENTRIES: Final = 50_000
_MAX_NAMES_BYTES: Final = 16 * 1024 * 1024
_MAX_DEPTH: Final = 128

_HEAD = struct.Struct(">4sLL")
# Without the change time, the device and the owners.
_ENTRIES: Final = {size: struct.Struct(f">8xLL4xLL8xL{size}sH") for size in NAME_BYTES}
_EXTENDED, _STAGE, _NAME_BYTES = 0x4000, 0x3000, 0x0FFF
_SKIP_WORKTREE, _INTENT_TO_ADD = 0x4000, 0x2000
_REGULAR, _SYMLINK = 0o100000, 0o120000
_ODD = frozenset(("", ".", "..", ".git"))


class Unreadable(ValueError):
    """The bytes are no index of a kind that is read here; the message says why."""


class Tracked(NamedTuple):
    """A file as the index has it: when it was last written, as seconds and nanoseconds (0 where the writer did not
    know), the lower 32 bits of its number (0: not known) and of its size, its mode, and the name of its blob."""

    seconds: int
    nanoseconds: int
    inode: int
    mode: int
    size: int
    blob: bytes


def parse_index(data: bytes, name_bytes: int = SHA1_BYTES) -> dict[str, Tracked]:
    """The files that the index tracks, by their paths in the work tree, with slashes. `name_bytes` is the length of the
    repository's names of objects, one of `git_objects.NAME_BYTES`; the checksum has the same.

    Left out: entries of a conflict, of files that are not checked out or not added yet, submodules, and names that
    no file of a work tree has (dots, empty parts, `.git`), that are no UTF-8 or lie deeper than 128 folders. Raises
    Unreadable for anything else than a whole index, for one that is split between files, for more than 50,000 entries,
    and for more than 16 MiB of names.
    """
    if len(data) < _HEAD.size + name_bytes:
        raise Unreadable("it is too short")
    magic, version, count = _HEAD.unpack_from(data)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise Unreadable("it is of no known version")
    if count > MAX_ENTRIES:
        raise Unreadable(f"it has more than {MAX_ENTRIES} entries")
    end = len(data) - name_bytes
    checksum = data[end:]
    # A writer that skips the checksum leaves zeros.
    if any(checksum) and digest(data[:end], name_bytes) != checksum:
        raise Unreadable("its checksum is another")
    found: dict[str, Tracked] = {}
    try:
        at = _read_entries(data, end, version, count, found, _ENTRIES[name_bytes])
        _check_extensions(data, at, end)
    except (struct.error, IndexError) as error:
        raise Unreadable("it ends in an entry") from error
    return found


def _read_entries(
    data: bytes, end: int, version: int, count: int, found: dict[str, Tracked], entry: struct.Struct
) -> int:
    """Put the entries into `found`; returns where they end."""
    at, name, room = _HEAD.size, b"", _MAX_NAMES_BYTES
    for _ in range(count):
        begin = at
        seconds, nanoseconds, inode, mode, size, blob, flags = entry.unpack_from(data, at)
        at += entry.size
        more = 0
        if flags & _EXTENDED:
            more = data[at] << 8 | data[at + 1]
            at += 2
        if version == 4:
            strip, at = _varint(data, at)
            stop = _end_of_name(data, at, end)
            if strip > len(name):
                raise Unreadable("a name takes more from the one before than that has")
            name = name[: len(name) - strip] + data[at:stop]
            at = stop + 1
        else:
            length = flags & _NAME_BYTES
            stop = at + length if length < _NAME_BYTES else _end_of_name(data, at, end)
            name = data[at:stop]
            at = begin + ((stop - begin) // 8 + 1) * 8
        room -= len(name)
        if at > end or room < 0:  # a name may repeat the one before, so a short file can have endless ones
            raise Unreadable("it ends in an entry" if at > end else "its names are too long")
        if flags & _STAGE or more & (_SKIP_WORKTREE | _INTENT_TO_ADD) or mode & 0o170000 not in (_REGULAR, _SYMLINK):
            continue
        path = _path(name)
        if path is not None:
            found[path] = Tracked(seconds, nanoseconds, inode, mode, size, blob)
    return at


def _end_of_name(data: bytes, at: int, end: int) -> int:
    stop = data.find(b"\0", at, end)
    if stop < 0:
        raise Unreadable("it ends in an entry")
    return stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number as git writes offsets, and where it ends. A longer one than any name raises Unreadable."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = (value + 1) << 7 | byte & 0x7F
        if value > MAX_INDEX_BYTES:
            raise Unreadable("a name takes more from the one before than that has")
    return value, at + 1


def _path(name: bytes) -> str | None:
    """The name as text; None for one that no file in a work tree has."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        return None
    if os.sep == "\\" and ("\\" in path or ":" in path):  # it would lead elsewhere there
        return None
    if "\0" in path or path.count("/") > _MAX_DEPTH or not _ODD.isdisjoint(path.lower().split("/")):
        return None
    return path


def _check_extensions(data: bytes, at: int, end: int) -> None:
    """Raises Unreadable for an extension that changes what the entries mean: those are written in lower case."""
    while at + 8 <= end:
        if data[at : at + 4] == b"sdir":  # folders stand for their files; these are left out like what is not there
            pass
        elif not data[at : at + 1].isupper():
            raise Unreadable("it has an extension that is not known here")
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "big")
    if at != end:
        raise Unreadable("it ends in an extension")
