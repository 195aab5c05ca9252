"""Reader of a workspace's git repository: its index, loose objects, and packs with version 2 indexes.

git itself is never run, so nothing in the repository's configuration can run. Reads are bounded, and contents are
checked against their names. Alternates and objects missing from a partial clone are not read. Names are SHA-1 or
SHA-256 hashes of contents; a repository uses only one kind, which follows from the length.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import sys
import zlib
from typing import BinaryIO, Final, NamedTuple

from agent_host.safe_open import open_regular
from policy.rules.protected_paths import MAX_BYTES as MAX_CONFIG_BYTES
from policy.rules.protected_paths import settings_of

MAX_BLOB_BYTES: Final = 16 * 1024 * 1024
_MAX_PACKS: Final = 64
_MAX_DELTAS: Final = 250
_MAX_CHAIN_BYTES: Final = 64 * 1024 * 1024
_INDEX_HEAD: Final = b"\xfftOc\0\0\0\2"
_FANOUT_AT: Final = 8
_BEYOND: Final = 1 << 62
_NAMES_AT: Final = _FANOUT_AT + 1024
SHA1_BYTES: Final = 20
_HASH_NAMES: Final = {SHA1_BYTES: "sha1", 32: "sha256"}
NAME_BYTES: Final = tuple(_HASH_NAMES)
"""Possible sizes of a repository's object names, in bytes."""
_BLOB, _OFFSET_DELTA, _NAMED_DELTA = 3, 6, 7


class ObjectUnavailable(Exception):
    """The object cannot be read: damaged, too large, of an unsupported kind, or missing."""


class Objects:
    """The blobs below `folder`, the real path of a repository's `objects`. Its files stay open until `close`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._packs: list[_Pack] | None = None
        self._deltas_left = self._room = 0  # for the current blob

    def blob(self, name: bytes) -> bytes | None:
        """Return the content of the blob with this name; None if it cannot be read."""
        self._deltas_left, self._room = _MAX_DELTAS, _MAX_CHAIN_BYTES
        with contextlib.suppress(ObjectUnavailable, OSError, zlib.error, IndexError):
            content = self._content(name)
            if blob_name(content, len(name)) == name:
                return content
        return None

    def close(self) -> None:
        """Close the files."""
        for pack in self._packs or ():
            pack.close()
        self._packs = None

    def _content(self, name: bytes) -> bytes:
        hexed = name.hex()
        folder = os.path.join(self._folder, hexed[:2])
        if is_real_folder(folder):
            with contextlib.suppress(FileNotFoundError), _open(os.path.join(folder, hexed[2:])) as file:
                return _loose(file)
        for pack in self._all_packs():
            at = pack.find(name)
            if at is not None:
                return self._read_packed(pack, at, len(name))
        raise ObjectUnavailable

    def _read_packed(self, pack: _Pack, at: int, name_bytes: int) -> bytes:
        """Read the blob at an offset of a pack: its base with its deltas applied."""
        deltas: list[bytes] = []
        while True:
            kind, base, content = pack.entry(at, name_bytes)
            self._room -= len(content)
            if self._room < 0 or self._deltas_left == 0:
                raise ObjectUnavailable
            if kind == _BLOB:
                break
            self._deltas_left -= 1
            deltas.append(content)
            if isinstance(base, bytes):
                content = self._content(base)
                break
            at = base
        for delta in reversed(deltas):
            content = apply_delta(content, delta)
        return content

    def _all_packs(self) -> list[_Pack]:
        if self._packs is None:
            folder = os.path.join(self._folder, "pack")
            names = sorted(os.listdir(folder)) if is_real_folder(folder) else []
            names = [name for name in names if name.endswith(".idx")]
            self._packs = []
            for name in names[:_MAX_PACKS]:
                with contextlib.suppress(ObjectUnavailable, OSError):
                    self._packs.append(_Pack(os.path.join(folder, name)))
        return self._packs


def blob_name(content: bytes, name_bytes: int = SHA1_BYTES) -> bytes:
    """Return git's name for a blob with this content, in a repository whose names have `name_bytes` bytes."""
    return digest(content, name_bytes, b"blob %d\0" % len(content))


def digest(data: bytes, name_bytes: int, head: bytes = b"") -> bytes:
    """Return the hash of `head` and `data` in a repository whose names have `name_bytes` bytes."""
    found = hashlib.new(_HASH_NAMES[name_bytes], head, usedforsecurity=False)
    found.update(data)
    return found.digest()


def is_real_folder(path: str) -> bool:
    """True if `path` is a folder and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Apply a delta of a pack to `base`. Raises IndexError, ObjectUnavailable for a delta that is invalid or whose
    result is too large."""
    length, at = _size(delta, 0)
    wanted, at = _size(delta, at)
    if length != len(base) or wanted > MAX_BLOB_BYTES:
        raise ObjectUnavailable
    parts: list[bytes] = []
    made = 0
    while at < len(delta):
        opcode = delta[at]
        at += 1
        if opcode & 0x80:
            numbers = [0, 0]
            for bit in range(7):
                if opcode & 1 << bit:
                    numbers[bit // 4] |= delta[at] << bit % 4 * 8
                    at += 1
            start, count = numbers[0], numbers[1] or 0x10000
            part = base[start : start + count]
        else:
            count = opcode
            part = delta[at : at + count]
            at += count
        made += count
        if not count or len(part) != count or made > wanted:
            raise ObjectUnavailable
        parts.append(part)
    if made != wanted:
        raise ObjectUnavailable
    return b"".join(parts)


class _Pack:
    """One pack, opened with its index, of which each search reads only a few entries. Raises ObjectUnavailable,
    OSError."""

    def __init__(self, index_path: str) -> None:
        self._pack_path = index_path.removesuffix(".idx") + ".pack"
        self._index = _open(index_path)
        self._pack: BinaryIO | None = None
        self._fanout = self._read_index(_FANOUT_AT, 1024)
        if self._read_index(0, len(_INDEX_HEAD)) != _INDEX_HEAD:
            self.close()
            raise ObjectUnavailable
        self._count = self._up_to(255)

    def close(self) -> None:
        self._index.close()
        if self._pack is not None:
            self._pack.close()

    def _read_index(self, at: int, size: int) -> bytes:
        self._index.seek(at)
        return self._index.read(size)

    def _up_to(self, first: int) -> int:
        """Return the number of names whose first byte is at most `first`."""
        return int.from_bytes(self._fanout[first * 4 : first * 4 + 4], "big") if first >= 0 else 0

    def find(self, name: bytes) -> int | None:
        """Return the offset of the object in the pack; None if it is not in it."""
        low, high = self._up_to(name[0] - 1), self._up_to(name[0])
        while low < high:
            middle = (low + high) // 2
            candidate = self._read_index(_NAMES_AT + middle * len(name), len(name))
            if candidate == name:
                return self._offset(middle, len(name))
            if candidate < name:
                low = middle + 1
            else:
                high = middle
        return None

    def _offset(self, number: int, name_bytes: int) -> int:
        offsets_at = _NAMES_AT + self._count * (name_bytes + 4)
        at = int.from_bytes(self._read_index(offsets_at + number * 4, 4), "big")
        if at & 1 << 31:  # in a large pack: an index into the table of 64-bit offsets
            place = offsets_at + self._count * 4 + (at & (1 << 31) - 1) * 8
            at = int.from_bytes(self._read_index(place, 8), "big")
        return at

    def entry(self, at: int, name_bytes: int) -> tuple[int, int | bytes, bytes]:
        """Return kind, base (a delta's: an offset or a name) and content of the entry at this offset."""
        if self._pack is None:
            self._pack = _open(self._pack_path)
        if at >= _BEYOND:
            raise ObjectUnavailable
        self._pack.seek(at)
        head = self._pack.read(64)
        kind, size, place = head[0] >> 4 & 7, head[0] & 15, 1
        if head[0] & 0x80:
            upper_bits, place = _size(head, 1)
            size |= upper_bits << 4
        base: int | bytes = 0
        if kind == _OFFSET_DELTA:
            back, place = _offset(head, place)
            if not 0 < back < at:
                raise ObjectUnavailable
            base = at - back
        elif kind == _NAMED_DELTA:
            base = head[place : place + name_bytes]
            place += name_bytes
        elif kind != _BLOB:
            raise ObjectUnavailable
        if size > MAX_BLOB_BYTES:
            raise ObjectUnavailable
        self._pack.seek(at + place)
        return kind, base, _inflate(self._pack, size)


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number in git's size encoding, the lowest bits first; return it and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ObjectUnavailable


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number in git's offset encoding; return it and the position after it. A number beyond any file size is
    truncated, but is still too large."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80 and value < _BEYOND:
        at += 1
        byte = data[at]
        value = (value + 1) << 7 | byte & 0x7F
    return value, at + 1


def _open(path: str) -> BinaryIO:
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def _loose(file: BinaryIO) -> bytes:
    data = _inflate(file, None)
    head, _, content = data.partition(b"\0")
    if head != b"blob %d" % len(content):
        raise ObjectUnavailable
    return content


def _inflate(file: BinaryIO, size: int | None) -> bytes:
    """Inflate the zlib stream at the file's position: exactly `size` bytes, or for None up to the limit."""
    limit = MAX_BLOB_BYTES + 64 if size is None else size
    inflate = zlib.decompressobj()
    parts: list[bytes] = []
    made = 0
    while not inflate.eof:
        packed = inflate.unconsumed_tail or file.read(64 * 1024)
        part = inflate.decompress(packed, limit - made + 1)
        made += len(part)
        if made > limit or not (packed or part):
            raise ObjectUnavailable
        parts.append(part)
    if size is not None and made != size:
        raise ObjectUnavailable
    return b"".join(parts)


# Reader of git's index: the files that it tracks, with their contents' names and their stat data at that time.
#
# Pure, and bounded by its input. Supports versions 2 to 4 of the format in git's gitformat-index(5), with object names
# in SHA-1 or SHA-256.

MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
MAX_ENTRIES: Final = 50_000
_MAX_NAMES_BYTES: Final = 16 * 1024 * 1024
_MAX_DEPTH: Final = 128

_HEAD = struct.Struct(">4sLL")
# Skips the change time, the device and the owners.
_ENTRIES: Final = {size: struct.Struct(f">8xLL4xLL8xL{size}sH") for size in NAME_BYTES}
_EXTENDED, _STAGE, _NAME_BYTES = 0x4000, 0x3000, 0x0FFF
_SKIP_WORKTREE, _INTENT_TO_ADD = 0x4000, 0x2000
_REGULAR, _SYMLINK = 0o100000, 0o120000
_INVALID_PARTS = frozenset(("", ".", "..", ".git"))


class Unreadable(ValueError):
    """The bytes are not a supported index; the message has the reason."""


class Tracked(NamedTuple):
    """A file's entry in the index: its modification time in seconds and nanoseconds (0 if unknown to the writer), the
    lower 32 bits of its inode number (0 if unknown) and of its size, its mode, and the name of its blob."""

    seconds: int
    nanoseconds: int
    inode: int
    mode: int
    size: int
    blob: bytes


def parse_index(data: bytes, name_bytes: int = SHA1_BYTES) -> dict[str, Tracked]:
    """Return the files that the index tracks, by their paths in the work tree, with slashes. `name_bytes` is the length
    of the repository's object names, one of `NAME_BYTES`; the checksum has the same length.

    Skipped: entries of conflicts, of files that are not checked out or not added yet, submodules, and names that are
    impossible in a work tree (dots, empty parts, `.git`), are not UTF-8 or are deeper than 128 folders. Raises
    Unreadable if the index is incomplete or damaged, is split between files, or has more than 50,000 entries or more
    than 16 MiB of names.
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
    """Put the entries into `found`; return the position after them."""
    at, name, room = _HEAD.size, b"", _MAX_NAMES_BYTES
    for _ in range(count):
        begin = at
        seconds, nanoseconds, inode, mode, size, blob, flags = entry.unpack_from(data, at)
        at += entry.size
        extended_flags = 0
        if flags & _EXTENDED:
            extended_flags = data[at] << 8 | data[at + 1]
            at += 2
        if version == 4:
            strip, at = _offset(data, at)
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
        if at > end or room < 0:  # names share prefixes, so a short file can contain very long ones
            raise Unreadable("it ends in an entry" if at > end else "its names are too long")
        is_skipped = flags & _STAGE or extended_flags & (_SKIP_WORKTREE | _INTENT_TO_ADD)
        if is_skipped or mode & 0o170000 not in (_REGULAR, _SYMLINK):
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


def _path(name: bytes) -> str | None:
    """Return the name as text; None if no file in a work tree can have it."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        return None
    if os.sep == "\\" and ("\\" in path or ":" in path):  # there it would be another path
        return None
    if "\0" in path or path.count("/") > _MAX_DEPTH or not _INVALID_PARTS.isdisjoint(path.lower().split("/")):
        return None
    return path


def _check_extensions(data: bytes, at: int, end: int) -> None:
    """Raise Unreadable for an unknown extension that changes the meaning of entries: the names of those are in lower
    case."""
    while at + 8 <= end:
        if data[at : at + 4] == b"sdir":  # entries of folders instead of their files, which are skipped
            pass
        elif not data[at : at + 1].isupper():
            raise Unreadable("it has an extension that is not known here")
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "big")
    if at != end:
        raise Unreadable("it ends in an extension")


# The git repository of a workspace, and its index. git is not run, and only the object format is read from its
# configuration, so no program that it names can start (decision 0039).


_MAX_LINE_BYTES: Final = 4096
_BYTES_OF_FORMAT: Final = {"sha1": SHA1_BYTES, "sha256": 32}


class Repository(NamedTuple):
    """A repository. `prefix` is the workspace's path in its work tree, with slashes and a trailing one ("" for the
    root); `objects` is a real path; `name_bytes` is the length of object names, None if unknown."""

    prefix: str
    index_path: str
    objects: str
    name_bytes: int | None


class Index(NamedTuple):
    """An index at one time: the tracked files below the workspace, by their paths relative to it. A file is `doubtful`
    if it was last written at the same time as the index, or later: it may have changed undetected."""

    files: dict[str, Tracked]
    doubtful: frozenset[str]


def find_repository(workspace: str) -> Repository | None:
    """Find the repository that contains the real path `workspace`. None unless it belongs to the same user and has the
    usual layout: a `.git` folder, or a `.git` file that names a work tree's folder, which in turn names the file."""
    place = workspace
    for _ in range(64):  # at most so many parents
        marker = os.path.join(place, ".git")
        if os.path.lexists(marker):
            prefix = "" if place == workspace else os.path.relpath(workspace, place).replace(os.sep, "/") + "/"
            return _repository(marker, prefix)
        parent = os.path.dirname(place)
        if parent == place:
            return None
        place = parent
    return None


def _repository(marker: str, prefix: str) -> Repository | None:
    folder = common = marker
    if not is_real_folder(marker):
        named = _line(marker, b"gitdir: ", os.path.dirname(marker))
        if named is None or _line(os.path.join(named, "gitdir"), b"", named) != os.path.realpath(marker):
            return None
        folder, common = named, _line(os.path.join(named, "commondir"), b"", named) or ""
    objects = os.path.join(os.path.realpath(common), "objects")
    if not common or not is_real_folder(objects) or not (_is_own(folder) and _is_own(common)):
        return None
    return Repository(prefix, os.path.join(folder, "index"), objects, _name_bytes(os.path.join(common, "config")))


def _name_bytes(config_path: str) -> int | None:
    """Return the length of object names by the repository's configuration; without one, git's default."""
    try:
        return _BYTES_OF_FORMAT.get(object_format(read_bounded(config_path, MAX_CONFIG_BYTES)) or "")
    except FileNotFoundError:
        return SHA1_BYTES
    except OSError:
        return None


def _line(path: str, start: bytes, relative_to: str) -> str | None:
    """Return the real path after `start` in the only line of a file."""
    try:
        data = read_bounded(path, _MAX_LINE_BYTES)
    except OSError:
        return None
    line = data.rstrip(b"\r\n")
    if not line.startswith(start) or len(line) == len(start) or b"\n" in line or b"\0" in line:
        return None
    return os.path.realpath(os.path.join(relative_to, os.fsdecode(line[len(start) :])))


def _is_own(path: str) -> bool:
    return sys.platform == "win32" or os.lstat(path).st_uid == os.geteuid()


def read_bounded(path: str, most: int) -> bytes:
    """Read a regular file of at most `most` bytes. Raises OSError, also for a larger one."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path} is too large")
    return data


class IndexReader:
    """Reads the index of a repository, again only if its file has changed."""

    def __init__(self) -> None:
        self._known: tuple[object, Index] | None = None

    def read(self, repository: Repository) -> Index:
        """Return the current index. Raises OSError, Unreadable."""
        found = os.lstat(repository.index_path)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("it is no file")
        if repository.name_bytes is None:
            raise Unreadable("its configuration has an unknown object format")
        key = (repository, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        known = self._known
        if known is None or known[0] != key:
            files = parse_index(read_bounded(repository.index_path, MAX_INDEX_BYTES), repository.name_bytes)
            if repository.prefix:
                cut = len(repository.prefix)
                files = {path[cut:]: one for path, one in files.items() if path.startswith(repository.prefix)}
            written = found.st_mtime_ns
            doubtful = frozenset(path for path, one in files.items() if _may_have_changed(one, written))
            known = self._known = key, Index(files, doubtful)
        return known[1]


def _may_have_changed(tracked: Tracked, index_written_ns: int) -> bool:
    """True if the file was last written so late that a write after the index's would not be visible."""
    if tracked.nanoseconds == 0:
        return tracked.seconds >= index_written_ns // 1_000_000_000
    return tracked.seconds * 1_000_000_000 + tracked.nanoseconds >= index_written_ns


def object_format(config: bytes) -> str | None:
    """Return `extensions.objectFormat` of a repository's configuration in lower case: the last value counts, and the
    default is `sha1`. None if git would reject the configuration. The workspace controls its content, so no file that
    it names is opened; git itself follows no `include` for this value either."""
    found = last_value(config, "extensions", "objectformat", "sha1")
    return None if found is None else found.lower()


def last_value(config: bytes, section: str, key: str, default: str) -> str | None:
    """Return the last value of `section.key`; `default` if it is not set, None if git would reject the configuration.
    `section` and `key` are given in lower case."""
    found = settings_of(config)
    if found is None:
        return None
    return next((one.value or "" for one in reversed(found) if one[:3] == (section, None, key)), default)
