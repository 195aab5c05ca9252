"""Changes to a workspace while a command runs: a look before it and a look after it, compared.

    watch = Watch(workspace)
    window = watch.begin()
    ...                                                # the command runs
    changes = watch.end(window, may_keep=lambda path: True)

Both calls read the disk, for some milliseconds, and may run in any thread. No program runs for them. What a file held
before is known only as far as git has it: where the file lay as git's index says.
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
from agent_host.safe_open import SAYS_PATHS, open_there
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
"""Files that one command may have changed; of more the first by path are reported, and how many there are."""
MAX_KEPT: Final = 200
MAX_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Contents, and their bytes, that are taken from git for one command."""
_MAX_HASHED_BYTES: Final = 4 * 1024 * 1024
_MAX_COMPARED_BYTES: Final = 64 * 1024 * 1024
_CLOCK_STEP_NS: Final = 20_000_000  # the clock of a file system is behind by up to one of its steps
_NO_INDEX: Final = Index({}, frozenset())


class Changes(NamedTuple):
    """Changes: the content of files before, by their real paths: None for no file, OVERWRITTEN if that is not known,
    UNAVAILABLE if it may not be kept. `unseen` says in a line what was not looked at; None for nothing. `modes` are
    those that files had (`state.blobs.git_mode`) which have another one now."""

    files: dict[str, bytes | str | None]
    unseen: str | None = None
    modes: Mapping[str, str] = {}


class WatchWindow:
    """The look before one command."""

    def __init__(
        self, began_ns: int, found: Look, ignored: PlainIgnores, index: Index, objects: str | None, problems: list[str]
    ) -> None:
        self.began_ns = began_ns
        self.found = found
        self.ignored = ignored
        self.index = index
        self.objects = objects
        self.problems = problems
        self.same_as_index: frozenset[str] = frozenset()
        """Files that hold what the index says, though they may have changed without a trace, or were written again."""

    def saw(self, path: str) -> bool:
        """True if the look says of the file that it is there, or that it is not."""
        return path in self.found.files or path in self.index.files or (self.found.whole and not self.found.unread)

    def blob_of(self, path: str) -> bytes | None:
        """The name of the blob that the file held, where the index says so."""
        tracked, there = self.index.files.get(path), self.found.files.get(path)
        if tracked is None or there is None:
            return None
        is_clean = path not in self.index.doubtful and _lies_as(tracked, there)
        return tracked.blob if is_clean or path in self.same_as_index else None


class Watch:
    """Looks at one workspace, a real path, around the commands of a session. Folders in `excluded` are left out."""

    def __init__(self, workspace: str, excluded: Collection[str] = ()) -> None:
        self._workspace = workspace
        self._excluded = frozenset(excluded)
        self._reader = IndexReader()
        self._open: list[WatchWindow] = []
        self._guard = threading.Lock()
        # Stamps of files whose content was found to be that of the index, so that it is read once.
        self._read: dict[str, tuple[Stamp, bytes]] = {}
        self._touched: set[str] = set()  # files that a command wrote again as they were

    def begin(self) -> WatchWindow:
        """Look at the files before a command. `end` or `give_up` follows."""
        problems: list[str] = []
        began_ns = time.time_ns() - _CLOCK_STEP_NS
        repository, index = self._index(problems)
        ignored = read_ignored(self._workspace)
        found = look(self._workspace, ignored, index.files, self._excluded)
        objects = None if repository is None else repository.objects
        window = WatchWindow(began_ns, found, ignored, index, objects, problems)
        window.same_as_index = frozenset(self._same_as_index(window))
        with self._guard:
            self._open.append(window)
        return window

    def give_up(self, window: WatchWindow) -> None:
        """Nobody asks what changed since `window` began. Harmless when repeated."""
        with self._guard, contextlib.suppress(ValueError):
            self._open.remove(window)

    def end(self, window: WatchWindow, may_keep: Callable[[str], bool]) -> Changes:
        """Return the changes since `window` began. `may_keep`: whether what the file of this real path held may be
        kept.

        A change while several commands ran is one of each. What a file held is what the first of them found.
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
        except FileNotFoundError:  # nothing was added yet
            return None, _NO_INDEX
        except (Unreadable, OSError) as error:
            why = str(error) if isinstance(error, Unreadable) else (error.strerror or "it cannot be read")
            problems.append(f"git's index is not used: {why}")
            return None, _NO_INDEX

    def _same_as_index(self, window: WatchWindow) -> list[str]:
        room = _MAX_HASHED_BYTES
        same: list[str] = []
        for path in sorted(window.index.doubtful | self._touched):
            tracked, there = window.index.files.get(path), window.found.files.get(path)
            if tracked is None or there is None or not stat.S_ISREG(there.mode):
                continue
            if path not in self._touched and not _lies_as(tracked, there):
                continue
            if self._read.get(path) != (there, tracked.blob):
                room -= there.size
                if room < 0:
                    break
                if not _holds(os.path.join(self._workspace, path), there.size, tracked.blob):
                    continue
                self._read[path] = there, tracked.blob
            same.append(path)
        return same

    def _changes(self, window: WatchWindow, may_keep: Callable[[str], bool]) -> Changes:
        problems = list(window.problems)
        after = look(self._workspace, window.ignored, window.index.files, self._excluded)
        changed = sorted(self._compare(window, after))
        if not (window.found.whole and after.whole):
            problems.append(f"the workspace has more than {MAX_ENTRIES} files and folders: not all were looked at")
        if after.unread:
            problems.append(f"{after.unread} folder(s) could not be read")
        files: dict[str, bytes | str | None] = {}
        modes: dict[str, str] = {}
        left_out = odd = 0
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
                # A folder that was exchanged for a link during the walk leads to names of another place.
                if path in after.files and not is_below_folders(self._workspace, path, folders):
                    continue
                if not _is_text(path):
                    odd += 1
                elif len(files) >= MAX_CHANGES:
                    left_out += 1
                else:
                    files[real] = contents.content_before(first, path, real, now) if may_keep(real) else UNAVAILABLE
                    if mode is not None:
                        modes[real] = mode
        if left_out:
            problems.append(f"{left_out} more file(s) changed")
        if odd:
            problems.append(f"{odd} file(s) changed whose names are no UTF-8")
        return Changes(files, "; ".join(problems) or None, modes)

    def _compare(self, window: WatchWindow, after: Look) -> list[str]:
        """The paths of files that are new, gone or other ones than before."""
        before = window.found.files
        changed: list[str] = []
        for path, there in after.files.items():
            then = before.get(path)
            if then is None:
                if window.saw(path) or max(there.written_ns, there.changed_ns) >= window.began_ns:
                    changed.append(path)
            elif then != there and (not _only_mode(then, there) or _other_mode(then, there) is not None):
                changed.append(path)
        # What is not among the files may lie where the walk did not come this time.
        for path in before.keys() - after.files.keys():
            known = {"": True}
            if stamp_at(self._workspace, path) is None or not is_below_folders(self._workspace, path, known):
                changed.append(path)
        return changed

    def _first_open(self, window: WatchWindow, path: str) -> WatchWindow:
        """The window that began first, of those that are open and know whether the file was there."""
        with self._guard:
            others = list(self._open)
        return next((one for one in others if one is window or one.saw(path)), window)


class _Contents:
    """The content of files before one command, as far as git has it and within the limits for one command."""

    def __init__(self) -> None:
        self._compared_bytes = _MAX_COMPARED_BYTES
        self._left, self._left_bytes = MAX_KEPT, MAX_KEPT_BYTES
        self._stores: dict[str, Objects] = {}

    def close(self) -> None:
        """Let go of git's files."""
        for store in self._stores.values():
            store.close()

    def is_only_touched(self, first: WatchWindow, path: str, real: str, now: Stamp | None) -> bool:
        """True if the file at the real path `real` holds what it held, for all that git knows."""
        blob, then = first.blob_of(path), first.found.files.get(path)
        if blob is None or then is None or now is None or not stat.S_ISREG(now.mode):
            return False
        if then.size != now.size or now.size > self._compared_bytes:
            return False
        self._compared_bytes -= now.size
        return _holds(real, now.size, blob)

    def content_before(self, first: WatchWindow, path: str, real: str, now: Stamp | None) -> bytes | str | None:
        """Return what the file at the real path `real` held when the window `first` began, as `Changes` has it."""
        then = first.found.files.get(path)
        if then is None:
            return None if first.saw(path) else OVERWRITTEN
        if not self._left or then.size > min(self._left_bytes, MAX_BLOB_BYTES):
            return OVERWRITTEN
        blob = first.blob_of(path)
        if now is not None and stat.S_ISREG(now.mode) and _only_mode(then, now):
            content = _content_of(real, then.size)
        elif blob is None or first.objects is None:
            return OVERWRITTEN
        else:
            content = self._stores.setdefault(first.objects, Objects(first.objects)).blob(blob)
        # Another size: git keeps another form of the file, such as other line ends, or a pointer to it.
        if content is None or len(content) != then.size:
            return OVERWRITTEN
        self._left, self._left_bytes = self._left - 1, self._left_bytes - len(content)
        return content


def _lies_as(tracked: Tracked, there: Stamp) -> bool:
    """True if the file lies as the index says: a writer that does not know parts of that leaves zeros."""
    seconds, nanoseconds = divmod(there.written_ns, 1_000_000_000)
    return (
        tracked.seconds == seconds & 0xFFFFFFFF
        and tracked.nanoseconds in (0, nanoseconds)
        and tracked.size == there.size & 0xFFFFFFFF
        and (tracked.inode == there.inode & 0xFFFFFFFF or 0 in (tracked.inode, there.inode))
        and stat.S_IFMT(tracked.mode) == stat.S_IFMT(there.mode)
    )


def _only_mode(then: Stamp, there: Stamp) -> bool:
    return then.mode != there.mode and then[:3] == there[:3] and stat.S_IFMT(then.mode) == stat.S_IFMT(there.mode)


def _other_mode(then: Stamp | None, there: Stamp | None) -> str | None:
    """The mode that a file had, as git has it, if it is another now, or the file is gone and was not plain; or a
    link."""
    if then is None:
        return None
    before = git_mode(then.mode)
    is_same = before == (PLAIN_FILE if there is None else git_mode(there.mode))
    return None if is_same and before != LINK else before


def _content_of(path: str, size: int) -> bytes | None:
    try:
        return read_bounded(path, size)
    except OSError:
        return None


def _holds(path: str, size: int, blob: bytes) -> bool:
    """True if the file has this size and git's name for what it holds is `blob`; not where it cannot be read."""
    content = _content_of(path, size)
    return content is not None and len(content) == size and blob_name(content, len(blob)) == blob


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


# A look at the files of a workspace: how each lies on the disk, within limits. Nothing is opened but folders.

_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
MAX_ENTRIES: Final = 20_000
"""Files and folders that one walk looks at. Files that git tracks are looked at besides."""
SKIPPED: Final = frozenset(
    (
        ".git", ".hg", ".svn", ".jj", "node_modules", "bower_components", ".venv", "venv", ".tox", ".nox",
        "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache", ".gradle", ".terraform",
        ".next", ".nuxt", ".svelte-kit", ".turbo", ".parcel-cache", ".import_linter_cache",
    )
)  # fmt: skip
"""Names of folders that are not walked: of version control, packages and caches."""
_MAX_IGNORE_BYTES: Final = 64 * 1024
_MAX_ENDINGS: Final = 64
_NOT_PLAIN: Final = frozenset("*?[\\!")


class Stamp(NamedTuple):
    """The stamp of a file or a link on the disk: when it was written, its size, its number (0 on Windows), when
    anything of it changed (on Windows: when it was made), its mode."""

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


class PlainIgnores(NamedTuple):
    """The part of a .gitignore that is read: plain names, those that mean the top alone, and endings."""

    names: frozenset[str] = frozenset()
    at_top: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()


def read_ignored(workspace: str) -> PlainIgnores:
    """Read the plain words of the workspace's own .gitignore: `name`, `name/`, `/name` and `*.ending`. Other patterns
    leave nothing out, and a name that is taken back (`!name`) is not left out."""
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
    if kept:  # what is taken back may have any of the endings
        endings.clear()
    return PlainIgnores(frozenset(names), frozenset(at_top), tuple(sorted(endings)[:_MAX_ENDINGS]))


def stamp_of(found: os.stat_result) -> Stamp | None:
    """The stamp of a file or a link; None for anything else."""
    mode = found.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return None
    inode = 0 if sys.platform == "win32" else found.st_ino
    return Stamp(found.st_mtime_ns, found.st_size, inode, found.st_ctime_ns, mode)


def look(workspace: str, ignored: PlainIgnores, tracked: Iterable[str], excluded: Collection[str] = ()) -> Look:
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
    """The stamp of the file of this path below the workspace; None for no file and no link."""
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
            known[folder] = is_real_folder(os.path.join(workspace, folder))
        if not known[folder]:
            return False
        end = path.find("/", end + 1)
    return True


def _walk(
    workspace: str, ignored: PlainIgnores, excluded: Collection[str], files: dict[str, Stamp]
) -> tuple[bool, int]:
    """Put the files into `files`; whether all were looked at, and how many folders could not be read."""
    folders = deque([("", workspace)])
    room, unread = MAX_ENTRIES, 0
    left_out, endings = SKIPPED | ignored.names, ignored.endings
    while folders:
        prefix, folder = folders.popleft()
        skipped = left_out if prefix else left_out | ignored.at_top
        opened = open_there(folder, _DIRECTORY) if SAYS_PATHS else None
        if opened is None and SAYS_PATHS:
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
