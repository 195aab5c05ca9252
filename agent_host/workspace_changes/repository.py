"""The git repository of a workspace, and its index. No program of git runs, and of its configuration nothing is read
but how objects are named: nothing that it names can start (decision 0039)."""

from __future__ import annotations

import os
import stat
import sys
from typing import Final, NamedTuple

from agent_host.safe_open import open_regular
from agent_host.workspace_changes.git_objects import (
    MAX_INDEX_BYTES,
    SHA1_BYTES,
    Tracked,
    Unreadable,
    is_real_folder,
    parse_index,
)
from policy.rules.git_directory import MAX_BYTES as MAX_CONFIG_BYTES
from policy.rules.git_directory import settings_of

_MAX_PARENTS: Final = 64
_MAX_LINE_BYTES: Final = 4096
_NAME_BYTES: Final = {"sha1": SHA1_BYTES, "sha256": 32}


class Repository(NamedTuple):
    """A repository: the folder of its work tree that the workspace is, with slashes and one at the end ("" for all of
    it), its index, the real path of its objects, and how many bytes their names have: None where that is not known."""

    prefix: str
    index_path: str
    objects: str
    name_bytes: int | None


class Index(NamedTuple):
    """An index as it was at one time: the tracked files below the workspace by their paths there. A file that was last
    written when the index was, or later, is `doubtful`: it may have changed unseen."""

    files: dict[str, Tracked]
    doubtful: frozenset[str]


def find_repository(workspace: str) -> Repository | None:
    """The repository that the real path `workspace` is in; None where there is none of the same user whose layout is
    the usual one: a `.git` folder, or a file that names the folder of a work tree which names the file in turn."""
    place = workspace
    for _ in range(_MAX_PARENTS):
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
        if named is None or not _is_same(_line(os.path.join(named, "gitdir"), b"", named), marker):
            return None
        folder, common = named, _line(os.path.join(named, "commondir"), b"", named) or ""
    objects = os.path.join(os.path.realpath(common), "objects")
    if not common or not is_real_folder(objects) or not (_is_own(folder) and _is_own(common)):
        return None
    return Repository(prefix, os.path.join(folder, "index"), objects, _name_bytes(os.path.join(common, "config")))


def _name_bytes(config_path: str) -> int | None:
    """Of a repository with this configuration. Without one it is of the kind that git makes by default."""
    try:
        return _NAME_BYTES.get(object_format(read_bounded(config_path, MAX_CONFIG_BYTES)) or "")
    except FileNotFoundError:
        return SHA1_BYTES
    except OSError:
        return None


def _line(path: str, start: bytes, relative_to: str) -> str | None:
    """The real path that the only line of a file names behind `start`."""
    try:
        data = read_bounded(path, _MAX_LINE_BYTES)
    except OSError:
        return None
    line = data.rstrip(b"\r\n")
    if not line.startswith(start) or len(line) == len(start) or b"\n" in line or b"\0" in line:
        return None
    return os.path.realpath(os.path.join(relative_to, os.fsdecode(line[len(start) :])))


def _is_same(path: str | None, other: str) -> bool:
    return path is not None and path == os.path.realpath(other)


def _is_own(path: str) -> bool:
    return sys.platform == "win32" or os.lstat(path).st_uid == os.geteuid()


def read_bounded(path: str, most: int) -> bytes:
    """The content of a regular file that has at most so many bytes. Raises OSError, also for a larger one."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path} is too large")
    return data


class IndexReader:
    """Reads the index of a repository, once for as long as its file is the same."""

    def __init__(self) -> None:
        self._known: tuple[object, Index] | None = None

    def read(self, repository: Repository) -> Index:
        """Read the index as it is now. Raises OSError, Unreadable."""
        found = os.lstat(repository.index_path)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("it is no file")
        if repository.name_bytes is None:
            raise Unreadable("its configuration does not say in a known way how objects are named")
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
    """True if the file was last written so late that a write behind the index's would not show."""
    if tracked.nanoseconds == 0:
        return tracked.seconds >= index_written_ns // 1_000_000_000
    return tracked.seconds * 1_000_000_000 + tracked.nanoseconds >= index_written_ns


def object_format(config: bytes) -> str | None:
    """`extensions.objectFormat` of a repository's configuration, in small letters: the last value counts, and `sha1`
    stands for none. None where git would not read the configuration. It is the workspace's own and may hold anything:
    nothing that it names is opened, and git itself follows no `include` for this value either."""
    found = last_value(config, "extensions", "objectformat", "sha1")
    return None if found is None else found.lower()


def last_value(config: bytes, section: str, key: str, default: str) -> str | None:
    """The last value of `section.key`, both in small letters, and `default` for none; None where git would not read the
    configuration."""
    found = settings_of(config)
    if found is None:
        return None
    return next((one.value or "" for one in reversed(found) if one[:3] == (section, None, key)), default)
