"""Detect changes to a workspace while a command runs, by comparing its files before and after.

    watch = Watch(workspace)
    window = watch.begin()
    ...                                                # the command runs
    changes = watch.end(window, may_keep=lambda path: True)

Both calls read the disk, for some milliseconds, and may run in any thread. No program is started. A file's previous
content is known only if git has it: if the file's stat data matched git's index.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.ids import OWN_PREFIX, is_own_name
from agent_host.safe_open import REPORTS_PATHS, open_exact
from agent_host.workspace_changes import (
    MAX_BLOB_BYTES,
    Index,
    IndexReader,
    Objects,
    Tracked,
    Unreadable,
    blob_name,
    find_repository,
    is_real_folder,
    read_bounded,
)
from state.blobs import LINK, OVERWRITTEN, PLAIN_FILE, UNAVAILABLE, git_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from agent_host.workspace_changes import Repository

MAX_CHANGES: Final = 500
"""Maximum number of changed files reported per command, the first by path; the number of the others is reported."""
MAX_KEPT: Final = 200
MAX_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of contents, and of their bytes, taken from git per command."""
_MAX_HASHED_BYTES: Final = 4 * 1024 * 1024
_MAX_COMPARED_BYTES: Final = 64 * 1024 * 1024
_CLOCK_STEP_NS: Final = 20_000_000  # a file system's clock may lag by up to one of its steps
_NO_INDEX: Final = Index({}, frozenset())


class Changes(NamedTuple):
    """Changes of files. `files` has the previous contents by real path: None for no file, OVERWRITTEN if the content is
    unknown, UNAVAILABLE if it may not be stored. `unseen` describes in one line what was not examined; None if
    everything was. `modes` has the previous modes (`state.blobs.git_mode`) of files whose mode has changed."""

    files: dict[str, bytes | str | None]
    unseen: str | None = None
    modes: Mapping[str, str] = {}


class WatchWindow:
    """The state of the workspace before one command."""

    def __init__(
        self, start_ns: int, found: Look, ignored: PlainIgnores, index: Index, objects: str | None, problems: list[str]
    ) -> None:
        self.start_ns = start_ns
        self.found = found
        self.ignored = ignored
        self.index = index
        self.objects = objects
        self.problems = problems
        self.same_as_index: frozenset[str] = frozenset()
        """Files whose content was compared and equals the index's, although it may have changed undetected or was
        rewritten."""

    def covers(self, path: str) -> bool:
        """True if it is known that the file existed or did not exist."""
        found = self.found
        return path in found.files or path in self.index.files or (found.is_complete and not found.unread)

    def blob_of(self, path: str) -> bytes | None:
        """Return the name of the blob that was the file's content, if the index has it."""
        tracked, stamp = self.index.files.get(path), self.found.files.get(path)
        if tracked is None or stamp is None:
            return None
        is_clean = path not in self.index.doubtful and _matches_index(tracked, stamp)
        return tracked.blob if is_clean or path in self.same_as_index else None


class Watch:
    """Examines one workspace, a real path, before and after the commands of a session. Folders in `excluded` are
    skipped."""

    def __init__(self, workspace: str, excluded: Collection[str] = ()) -> None:
        self._workspace = workspace
        self._excluded = frozenset(excluded)
        self._reader = IndexReader()
        self._open: list[WatchWindow] = []
        self._guard = threading.Lock()
        # Stamps of files whose content was compared and equals the index's, so that it is read only once.
        self._read: dict[str, tuple[Stamp, bytes]] = {}
        self._touched: set[str] = set()  # files that a command rewrote without a change

    def begin(self) -> WatchWindow:
        """Examine the files before a command. Call `end` or `give_up` afterwards."""
        problems: list[str] = []
        start_ns = time.time_ns() - _CLOCK_STEP_NS
        repository, index = self._index(problems)
        ignored = read_ignored(self._workspace)
        found = look(self._workspace, ignored, index.files, self._excluded)
        objects = None if repository is None else repository.objects
        window = WatchWindow(start_ns, found, ignored, index, objects, problems)
        window.same_as_index = frozenset(self._same_as_index(window))
        with self._guard:
            self._open.append(window)
        return window

    def give_up(self, window: WatchWindow) -> None:
        """Discard `window` without examining changes. Harmless if repeated."""
        with self._guard, contextlib.suppress(ValueError):
            self._open.remove(window)

    def end(self, window: WatchWindow, may_keep: Callable[[str], bool]) -> Changes:
        """Return the changes since `window` began. `may_keep` returns True if the content of the file at a real path
        may be stored.

        A change while several commands ran counts for each. A file's previous content is that before the first of them.
        """
        try:
            return self._changes(window, may_keep)
        finally:
            self.give_up(window)

    def _index(self, problems: list[str]) -> tuple[Repository | None, Index]:
        repository = find_repository(self._workspace)
        if repository is None:
            return None, _NO_INDEX
        try:
            return repository, self._reader.read(repository)
        except FileNotFoundError:  # nothing has been added yet
            return None, _NO_INDEX
        except (Unreadable, OSError) as error:
            why = str(error) if isinstance(error, Unreadable) else (error.strerror or "it cannot be read")
            problems.append(f"git's index is not used: {why}")
            return None, _NO_INDEX

    def _same_as_index(self, window: WatchWindow) -> list[str]:
        room = _MAX_HASHED_BYTES
        same: list[str] = []
        for path in sorted(window.index.doubtful | self._touched):
            tracked, stamp = window.index.files.get(path), window.found.files.get(path)
            if tracked is None or stamp is None or not stat.S_ISREG(stamp.mode):
                continue
            if path not in self._touched and not _matches_index(tracked, stamp):
                continue
            if self._read.get(path) != (stamp, tracked.blob):
                room -= stamp.size
                if room < 0:
                    break
                if not _has_content(os.path.join(self._workspace, path), stamp.size, tracked.blob):
                    continue
                self._read[path] = stamp, tracked.blob
            same.append(path)
        return same

    def _changes(self, window: WatchWindow, may_keep: Callable[[str], bool]) -> Changes:
        problems = list(window.problems)
        after = look(self._workspace, window.ignored, window.index.files, self._excluded)
        changed = sorted(self._compare(window, after))
        if not (window.found.is_complete and after.is_complete):
            problems.append(f"the workspace has more than {MAX_ENTRIES} files and folders: not all were looked at")
        if after.unread:
            problems.append(f"{after.unread} folder(s) could not be read")
        files: dict[str, bytes | str | None] = {}
        modes: dict[str, str] = {}
        left_out = not_utf8 = 0
        folders: dict[str, bool] = {"": True}
        with contextlib.closing(_Contents()) as contents:
            for path in changed:
                first = self._first_open(window, path)
                real = os.path.join(self._workspace, *path.split("/"))
                now, then = after.files.get(path), first.found.files.get(path)
                mode = _other_mode(then, now)
                if mode is None and contents.is_only_touched(first, path, real, now):
                    self._touched.add(path)
                    continue
                # A folder that was replaced by a link during the walk leads to another place.
                if path in after.files and not is_below_folders(self._workspace, path, folders):
                    continue
                if not _is_text(path):
                    not_utf8 += 1
                elif len(files) >= MAX_CHANGES:
                    left_out += 1
                else:
                    files[real] = contents.content_before(first, path, real, now) if may_keep(real) else UNAVAILABLE
                    if mode is not None:
                        modes[real] = mode
        if left_out:
            problems.append(f"{left_out} more file(s) changed")
        if not_utf8:
            problems.append(f"{not_utf8} file(s) changed whose names are not UTF-8")
        return Changes(files, "; ".join(problems) or None, modes)

    def _compare(self, window: WatchWindow, after: Look) -> list[str]:
        """Return the paths of files that are new, gone or changed."""
        before = window.found.files
        changed: list[str] = []
        for path, now in after.files.items():
            then = before.get(path)
            if then is None:
                if window.covers(path) or max(now.written_ns, now.changed_ns) >= window.start_ns:
                    changed.append(path)
            elif then != now and (not _only_mode(then, now) or _other_mode(then, now) is not None):
                changed.append(path)
        # A missing file may be in a place that the walk did not reach this time.
        for path in before.keys() - after.files.keys():
            known = {"": True}
            if stamp_at(self._workspace, path) is None or not is_below_folders(self._workspace, path, known):
                changed.append(path)
        return changed

    def _first_open(self, window: WatchWindow, path: str) -> WatchWindow:
        """Return the earliest open window that knows if the file existed; else `window`."""
        with self._guard:
            others = list(self._open)
        return next((one for one in others if one is window or one.covers(path)), window)


class _Contents:
    """Contents of files before one command, as far as git has them, within the limits per command."""

    def __init__(self) -> None:
        self._compared_bytes = _MAX_COMPARED_BYTES
        self._left, self._left_bytes = MAX_KEPT, MAX_KEPT_BYTES
        self._stores: dict[str, Objects] = {}

    def close(self) -> None:
        """Close git's files."""
        for store in self._stores.values():
            store.close()

    def is_only_touched(self, first: WatchWindow, path: str, real: str, now: Stamp | None) -> bool:
        """True if git has the previous content of the file at the real path `real`, and it is the same now."""
        blob, then = first.blob_of(path), first.found.files.get(path)
        if blob is None or then is None or now is None or not stat.S_ISREG(now.mode):
            return False
        if then.size != now.size or now.size > self._compared_bytes:
            return False
        self._compared_bytes -= now.size
        return _has_content(real, now.size, blob)

    def content_before(self, first: WatchWindow, path: str, real: str, now: Stamp | None) -> bytes | str | None:
        """Return the content of the file at the real path `real` when the window `first` began, in the form of
        `Changes.files`."""
        then = first.found.files.get(path)
        if then is None:
            return None if first.covers(path) else OVERWRITTEN
        if not self._left or then.size > min(self._left_bytes, MAX_BLOB_BYTES):
            return OVERWRITTEN
        blob = first.blob_of(path)
        if now is not None and stat.S_ISREG(now.mode) and _only_mode(then, now):
            content = _content_of(real, then.size)
        elif blob is None or first.objects is None:
            return OVERWRITTEN
        else:
            content = self._stores.setdefault(first.objects, Objects(first.objects)).blob(blob)
        # A different size: git stores another form of the file, such as other line endings, or a pointer to it.
        if content is None or len(content) != then.size:
            return OVERWRITTEN
        self._left, self._left_bytes = self._left - 1, self._left_bytes - len(content)
        return content


def _matches_index(tracked: Tracked, stamp: Stamp) -> bool:
    """True if the file's stamp matches the index; a writer that does not know some fields leaves them zero."""
    seconds, nanoseconds = divmod(stamp.written_ns, 1_000_000_000)
    return (
        tracked.seconds == seconds & 0xFFFFFFFF
        and tracked.nanoseconds in (0, nanoseconds)
        and tracked.size == stamp.size & 0xFFFFFFFF
        and (tracked.inode == stamp.inode & 0xFFFFFFFF or 0 in (tracked.inode, stamp.inode))
        and stat.S_IFMT(tracked.mode) == stat.S_IFMT(stamp.mode)
    )


def _only_mode(then: Stamp, now: Stamp) -> bool:
    return then.mode != now.mode and then[:3] == now[:3] and stat.S_IFMT(then.mode) == stat.S_IFMT(now.mode)


def _other_mode(then: Stamp | None, now: Stamp | None) -> str | None:
    """Return the previous mode of a file, as git has it, if it has changed, if the file is gone and was not plain, or
    if it was a link."""
    if then is None:
        return None
    before = git_mode(then.mode)
    is_same = before == (PLAIN_FILE if now is None else git_mode(now.mode))
    return None if is_same and before != LINK else before


def _content_of(path: str, size: int) -> bytes | None:
    try:
        return read_bounded(path, size)
    except OSError:
        return None


def _has_content(path: str, size: int, blob: bytes) -> bool:
    """True if the file has this size and git's name for its content is `blob`; False if it cannot be read."""
    content = _content_of(path, size)
    return content is not None and len(content) == size and blob_name(content, len(blob)) == blob


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


# The files of a workspace with their stat data, within limits. Only folders are opened.

_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
MAX_ENTRIES: Final = 20_000
"""Maximum number of files and folders in one walk. Files that git tracks are examined in addition."""
SKIPPED: Final = frozenset(
    (
        ".git", ".hg", ".svn", ".jj", "node_modules", "bower_components", ".venv", "venv", ".tox", ".nox",
        "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache", ".gradle", ".terraform",
        ".next", ".nuxt", ".svelte-kit", ".turbo", ".parcel-cache", ".import_linter_cache",
    )
)  # fmt: skip
"""Names of folders that are not walked: version control, packages and caches."""
_MAX_IGNORE_BYTES: Final = 64 * 1024
_MAX_ENDINGS: Final = 64
_NOT_PLAIN: Final = frozenset("*?[\\!")


class Stamp(NamedTuple):
    """The stamp of a file or a link on disk: its modification time, size, inode number (0 on Windows), change time (on
    Windows: creation time) and mode."""

    written_ns: int
    size: int
    inode: int
    changed_ns: int
    mode: int


class Look(NamedTuple):
    """The files of a workspace by their relative paths, with slashes. `is_complete`: the walk did not reach its limit.
    `unread` is the number of folders that could not be read."""

    files: dict[str, Stamp]
    is_complete: bool
    unread: int


class PlainIgnores(NamedTuple):
    """The supported part of a .gitignore: plain names, names that apply only at the top, and suffixes."""

    names: frozenset[str] = frozenset()
    at_top: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()


def read_ignored(workspace: str) -> PlainIgnores:
    """Read the plain patterns of the workspace's own .gitignore: `name`, `name/`, `/name` and `*.ending`. Other
    patterns have no effect, and a negated name (`!name`) is not ignored."""
    try:
        text = read_bounded(os.path.join(workspace, ".gitignore"), _MAX_IGNORE_BYTES).decode("utf-8", "replace")
    except OSError:
        return PlainIgnores()
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
    if kept:  # a negated name may have any of the suffixes
        endings.clear()
    return PlainIgnores(frozenset(names), frozenset(at_top), tuple(sorted(endings)[:_MAX_ENDINGS]))


def stamp_of(found: os.stat_result) -> Stamp | None:
    """Return the stamp of a file or a link; None for anything else."""
    mode = found.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return None
    inode = 0 if sys.platform == "win32" else found.st_ino
    return Stamp(found.st_mtime_ns, found.st_size, inode, found.st_ctime_ns, mode)


def look(workspace: str, ignored: PlainIgnores, tracked: Iterable[str], excluded: Collection[str] = ()) -> Look:
    """Return the files below the real path `workspace`, walked breadth first, and all `tracked` files even if they are
    in skipped folders. Links are not followed, and folders in `excluded` (real paths) are not walked."""
    files: dict[str, Stamp] = {}
    is_complete, unread = _walk(workspace, ignored, excluded, files)
    real: dict[str, bool] = {"": True}
    for path in tracked:
        if path not in files and is_below_folders(workspace, path, real):
            found = stamp_at(workspace, path)
            if found is not None:
                files[path] = found
    return Look(files, is_complete, unread)


def stamp_at(workspace: str, path: str) -> Stamp | None:
    """Return the stamp of the file at this path below the workspace; None if it is not a file or a link."""
    try:
        return stamp_of(os.lstat(os.path.join(workspace, path)))
    except (OSError, ValueError):
        return None


def is_below_folders(workspace: str, path: str, known: dict[str, bool]) -> bool:
    """True if all folders of this path below the workspace are folders and not links. `known` caches the findings by
    folder and contains "". Checked from the top down, so that nothing is looked up below a missing folder."""
    if path.rpartition("/")[0] in known:
        return known[path.rpartition("/")[0]]
    end = path.find("/")
    while end >= 0:
        folder = path[:end]
        if folder not in known:
            known[folder] = is_real_folder(os.path.join(workspace, folder))
        if not known[folder]:
            return False
        end = path.find("/", end + 1)
    return True


def _walk(
    workspace: str, ignored: PlainIgnores, excluded: Collection[str], files: dict[str, Stamp]
) -> tuple[bool, int]:
    """Put the files into `files`; return True if all were examined, and the number of folders that could not be
    read."""
    folders = deque([("", workspace)])
    room, unread = MAX_ENTRIES, 0
    left_out, endings = SKIPPED | ignored.names, ignored.endings
    while folders:
        prefix, folder = folders.popleft()
        skipped = left_out if prefix else left_out | ignored.at_top
        opened = open_exact(folder, _DIRECTORY) if REPORTS_PATHS else None
        if opened is None and REPORTS_PATHS:
            unread += 1
            continue
        try:
            with os.scandir(folder if opened is None else opened) as entries:
                for entry in entries:
                    if room == 0:
                        return False, unread
                    room -= 1
                    name = entry.name
                    if name in skipped or (endings and name.endswith(endings)):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        path = os.path.join(folder, name)
                        if path not in excluded:
                            folders.append((f"{prefix}{name}/", path))
                        continue
                    try:
                        found = stamp_of(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue
                    if found is not None and not (name.startswith(OWN_PREFIX) and is_own_name(name)):
                        files[prefix + name] = found
        except OSError:
            unread += 1
        finally:
            if opened is not None:
                os.close(opened)
    return True, unread
