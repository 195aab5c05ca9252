"""A look at the files of a workspace: how each lies on the disk, within limits. Nothing is opened but folders."""

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.ids import OWN_PREFIX, is_own_name
from agent_host.workspace_changes.repository import read_bounded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_ENTRIES: Final = 20_000
"""Files and folders that one walk looks at. Files that git tracks are looked at besides."""
SKIPPED: Final = frozenset(
    (
        *(".git", ".hg", ".svn", ".jj", "node_modules", "bower_components", ".venv", "venv", ".tox", ".nox"),
        *(
            "__pycache__",
            ".mypy_cache",
            ".pytest_cache",
            ".ruff_cache",
            ".hypothesis",
            ".cache",
            ".gradle",
            ".terraform",
        ),
        *(".next", ".nuxt", ".svelte-kit", ".turbo", ".parcel-cache", ".import_linter_cache"),
    )
)
"""Names of folders that are not walked: of version control, packages and caches."""
_MAX_IGNORE_BYTES: Final = 64 * 1024
_MAX_ENDINGS: Final = 64
_NOT_PLAIN: Final = frozenset("*?[\\!")


class Stamp(NamedTuple):
    """How a file or a link lies on the disk: when it was written, its size, its number (0 on Windows), when anything of
    it changed (on Windows: when it was made), its mode."""

    written_ns: int
    size: int
    inode: int
    changed_ns: int
    mode: int


class Look(NamedTuple):
    """The files of a workspace by their paths there, with slashes. `whole`: the walk did not end at its limit.
    `unread` is how many folders could not be read."""

    files: dict[str, Stamp]
    whole: bool
    unread: int


class Ignored(NamedTuple):
    """What of a .gitignore is read: the plain names of folders and files, those of them that mean the top alone, and
    endings."""

    names: frozenset[str] = frozenset()
    at_top: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()


def ignored_in(workspace: str) -> Ignored:
    """What the .gitignore of the workspace itself says in plain words: `name`, `name/`, `/name` and `*.ending`. Other
    patterns leave nothing out, and a name that is taken back (`!name`) is not left out."""
    try:
        text = read_bounded(os.path.join(workspace, ".gitignore"), _MAX_IGNORE_BYTES).decode("utf-8", "replace")
    except OSError:
        return Ignored()
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    kept = {line[1:].strip("/") for line in lines if line.startswith("!")}
    names: set[str] = set()
    at_top: set[str] = set()
    endings: set[str] = set()
    for line in lines:
        plain = line.rstrip("/").removeprefix("/")
        if line.startswith("*.") and "/" not in line and _NOT_PLAIN.isdisjoint(line[1:]):
            endings.add(line[1:])
        elif plain and "/" not in plain and _NOT_PLAIN.isdisjoint(plain) and plain not in kept:
            (at_top if line.startswith("/") else names).add(plain)
    if kept:  # what is taken back may have any of the endings
        endings.clear()
    return Ignored(frozenset(names), frozenset(at_top), tuple(sorted(endings)[:_MAX_ENDINGS]))


def stamp_of(found: os.stat_result) -> Stamp | None:
    """How a file or a link lies there; None for anything else."""
    mode = found.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return None
    inode = 0 if sys.platform == "win32" else found.st_ino
    return Stamp(found.st_mtime_ns, found.st_size, inode, found.st_ctime_ns, mode)


def look(workspace: str, ignored: Ignored, tracked: Iterable[str], excluded: Collection[str] = ()) -> Look:
    """The files below the real path `workspace`, folders near the top first, and those that are `tracked` wherever
    they are. Links are not followed, and folders in `excluded` (real paths) are not walked."""
    files: dict[str, Stamp] = {}
    whole, unread = _walk(workspace, ignored, excluded, files)
    real: dict[str, bool] = {"": True}
    for path in tracked:
        if path not in files and is_below_folders(workspace, path, real):
            found = stamp_at(workspace, path)
            if found is not None:
                files[path] = found
    return Look(files, whole, unread)


def stamp_at(workspace: str, path: str) -> Stamp | None:
    """How the file of this path below the workspace lies there; None for no file and no link."""
    try:
        return stamp_of(os.lstat(os.path.join(workspace, path)))
    except (OSError, ValueError):
        return None


def is_below_folders(workspace: str, path: str, known: dict[str, bool]) -> bool:
    """True if all folders of this path below the workspace are folders, and no links. `known` has what was found of
    folders, "" among them. From the top down, so that nothing is asked below what is not there."""
    if path.rpartition("/")[0] in known:
        return known[path.rpartition("/")[0]]
    end = path.find("/")
    while end >= 0:
        folder = path[:end]
        if folder not in known:
            known[folder] = _is_folder(os.path.join(workspace, folder))
        if not known[folder]:
            return False
        end = path.find("/", end + 1)
    return True


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _walk(workspace: str, ignored: Ignored, excluded: Collection[str], files: dict[str, Stamp]) -> tuple[bool, int]:
    """Put the files into `files`; whether all were looked at, and how many folders could not be read."""
    folders = deque([("", workspace)])
    room, unread = MAX_ENTRIES, 0
    left_out, endings = SKIPPED | ignored.names, ignored.endings
    while folders:
        prefix, folder = folders.popleft()
        skipped = left_out if prefix else left_out | ignored.at_top
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if room == 0:
                        return False, unread
                    room -= 1
                    name = entry.name
                    if name in skipped or (endings and name.endswith(endings)):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path not in excluded:
                            folders.append((f"{prefix}{name}/", entry.path))
                        continue
                    try:
                        found = stamp_of(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue
                    if found is not None and not (name.startswith(OWN_PREFIX) and is_own_name(name)):
                        files[prefix + name] = found
        except OSError:
            unread += 1
    return True, unread
