"""Find places of a workspace that start programs, at any depth: git directories, and names that are guarded everywhere.

They are found by one walk with a session's first command. After that the kernel reports new names (inotify), so no
later command waits for a walk. This module reads the entries of git directories, and `policy.rules.protected_paths`
judges them. Folders that commands may change freely are only searched for links, which git never makes there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from policy.paths import covering, is_under, key, roots
from policy.rules import protected_paths as rules
from policy.rules.protected_paths import GitDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from policy import CommandScope
    from policy.paths import Roots
    from policy.rules.protected_paths import LeftEntry, Role


_SET_IDS: Final = stat.S_ISUID | stat.S_ISGID


class Entry(NamedTuple):
    """The state of one file, folder or link. `content` is the SHA-256 of a file's content or the target of a link; None
    if the content is too large to be kept, or unreadable."""

    mode: int
    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    content: str | None

    def same_as(self, other: Entry) -> bool:
        """True if mode and content are the same, regardless of times. If a content is None, all other fields are
        compared."""
        if self.content is None or other.content is None:
            return self[:5] == other[:5]
        # The host never sets a set-user-id bit, so it could not restore one.
        return (self.mode & ~_SET_IDS, self.content) == (other.mode & ~_SET_IDS, other.content)


Look = dict[str, Entry]
"""All existing entries of the guarded places, by path."""


MAX_NESTED: Final = 200
"""Maximum guarded names below the top directory that are checked around each command."""
_MAX_FOLDERS: Final = 20_000
_PACKAGES: Final = frozenset({"node_modules", "site-packages", ".venv", "venv", ".tox", ".nox"})
"""Package folders. They contain editor settings that nobody opens there and that installers replace."""
_SHALLOW: Final = "objects"
_GIT: Final = ".git"
_INNER: Final[dict[str, Role]] = {"worktrees": "worktree", "modules": "module"}


def writable_roots(scope: CommandScope, workspace: str) -> tuple[str, ...]:
    """Return the outermost parts of the workspace that a command may write: real directories, never `/`."""
    if workspace == "/":
        found = [one for one in scope.writes if one != "/" and not one.startswith("/dev/") and os.path.isdir(one)]
    elif any(is_under(workspace, one, "posix") for one in scope.writes):
        found = [workspace]
    else:
        found = [one for one in scope.writes if is_under(one, workspace, "posix") and os.path.isdir(one)]
    return tuple(one for one in found if not any(one != other and is_under(one, other, "posix") for other in found))


class WorkspacePlaces:
    """The places of one session's `workspace`, a real path. Not thread-safe."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._scope: CommandScope | None = None
        self._elsewhere: list[str] = []
        self._trees: dict[str, TreeWatch | None] = {}
        self._nested: Roots | None = None
        self._names: frozenset[str] = frozenset()
        self._endings: tuple[str, ...] = ()
        self._of: dict[str, GitDirectory] = {}
        self._folders: dict[str, tuple[tuple[int, int, int], list[str], list[str]]] = {}
        self._inner: dict[str, GitDirectory] = {}
        self._reported: set[str] = set()
        self.users: set[str] = set()
        """Git directories of the user."""
        self.made: set[str] = set()
        self.repositories: dict[str, GitDirectory] = {}
        self.git_files: dict[str, None] = {}
        self.nested: dict[str, None] = {}
        self.at_top: dict[str, None] = {}

    @classmethod
    def restore(cls, workspace: str, repositories: Sequence[tuple[str, bool]]) -> WorkspacePlaces:
        """Create an object with the git directories that an earlier process had found, as (path, is_strict). It finds
        nothing new."""
        found = cls(workspace)
        found.repositories = {path: GitDirectory(path, is_strict=is_strict) for path, is_strict in repositories}
        found._trees, found._reported = {"/": None}, {"/"}
        return found

    def refresh(self, scope: CommandScope) -> None:
        """Find places created since the last call, where `scope` lets a command write."""
        if scope is not self._scope:
            if self._scope is None or self._scope.nested != scope.nested:
                entries = scope.nested
                self._nested = roots(entries, "posix", "wide") if entries else None
                names = [key(one.rpartition("/")[2], "posix", "wide") for one in entries]
                self._names = frozenset(one for one in names if not one.startswith("*"))
                self._endings = tuple(one[1:] for one in names if one.startswith("*"))
            self._scope = scope
            self._watch(scope)
        for tree in self._trees.values():
            if tree is not None:
                tree.refresh()
        for place in self._elsewhere:
            if place not in self.repositories:
                self._see_repository(place)

    def _watch(self, scope: CommandScope) -> None:
        for root in writable_roots(scope, self._workspace):
            if root in self._trees or any(is_under(root, one, "posix") for one in self._trees):
                continue
            self._trees[root] = None
            try:
                self._trees[root] = TreeWatch(root, self._see, self._is_passed_over)
            except OSError:  # no watches here: look at least at its direct entries
                self._see(root, _list(root))
        # The repository of a linked working tree is outside of the workspace; devices and temporary directories are
        # none.
        workspace = self._workspace
        outside = [one for one in scope.writes if one not in self._trees and not is_under(one, workspace, "posix")]
        self._elsewhere = [one for one in outside if rules.is_laid_out(_list(one))]

    def count_watched_unwatched(self) -> dict[str, int]:
        """Return the number of unwatched directories by root; each root is returned once."""
        found = {root: 1 if tree is None else tree.unwatched for root, tree in self._trees.items()}
        new = {root: count for root, count in found.items() if count and root not in self._reported}
        self._reported.update(new)
        return new

    def close(self) -> None:
        """Close the watches."""
        for tree in self._trees.values():
            if tree is not None:
                tree.close()
        self._trees = dict.fromkeys(self._trees)

    def directories_to_judge(self, scope: CommandScope) -> list[GitDirectory]:
        """Return the git directories that `scope` lets a command write, except the user's if they are granted as a
        whole."""
        for path in list(self.repositories):
            if not (os.path.lexists(path) if _is_named_git(path) else rules.is_laid_out(_list(path))):
                del self.repositories[path]
                for tree in self._trees.values():
                    if tree is not None:
                        tree.walk_again(path)
        return [
            one
            for path, one in self.repositories.items()
            if any(is_under(path, place, "posix") for place in scope.writes)
            and not (path in self.users and rules.names_directory(path, scope.given, "posix"))
        ]

    def repository_of(self, path: str) -> str | None:
        """Return the git directory that `path` is or is inside, within the workspace; None if there is none."""
        while is_under(path, self._workspace, "posix") and path != self._workspace:
            if path in self.repositories or _is_named_git(path):
                return path
            path = os.path.dirname(path)
        return None

    # Finding

    def _is_passed_over(self, path: str) -> bool:
        """True for a folder whose entries `entries` yields, so that it need not be walked. Other folders are walked,
        because a single file makes a directory a git directory, or an ordinary one again."""
        parent, name = os.path.split(path)
        return name.lower() == _GIT or (parent in self.repositories and name.lower() in rules.CONTAINERS)

    def _see(self, directory: str, names: Sequence[str]) -> None:
        in_packages = None
        may_be_repository = False
        for name in names:
            folded = name.lower() if name.isascii() else key(name, "posix", "wide")
            if folded == _GIT:
                self._see_git(f"{directory}/{name}")
            elif folded in rules.SHAPE:
                may_be_repository = True
            if folded in self._names or folded.endswith(self._endings or ("\0",)):
                if in_packages is None:
                    in_packages = not _PACKAGES.isdisjoint(directory[len(self._workspace) :].split("/"))
                if not in_packages:
                    self._see_nested(f"{directory}/{name}")
        if may_be_repository:
            self._see_repository(directory)

    def _see_git(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            self.git_files.pop(path, None)
            self.repositories.setdefault(path, GitDirectory(path))
        elif os.path.lexists(path):
            self.repositories.pop(path, None)
            self.git_files[path] = None

    def _see_repository(self, directory: str) -> None:
        names = _list(directory) if directory not in self.repositories else ()
        if rules.is_laid_out(names) and not os.path.isdir(head_of(directory, names)):
            is_strict = directory.lower().endswith(_GIT) or f"/{_GIT}/" in directory
            self.repositories[directory] = GitDirectory(directory, is_strict=is_strict)

    def _see_nested(self, path: str) -> None:
        if self._nested is None or covering(path, self._nested, "posix", "wide") is None:
            return
        if os.path.dirname(path) == self._workspace:
            self.at_top[path] = None
        elif len(self.nested) < MAX_NESTED:
            self.nested[path] = None

    # Looking at a git directory

    def entries(self, of: GitDirectory, excluded: frozenset[str]) -> Iterator[tuple[str, bool]]:
        """Yield (path, deep) for each entry of a git directory that must be judged; `deep` includes everything below
        it. Entries in `excluded` are left out, because they are guarded separately."""
        yield of.path, False
        yield from self._entries_of(of, excluded)

    def _entries_of(self, of: GitDirectory, excluded: frozenset[str]) -> Iterator[tuple[str, bool]]:
        try:
            with os.scandir(of.path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:  # it is gone
            return
        for entry in found:
            if entry.path in excluded:
                continue
            name = entry.name.lower()
            is_folder = entry.is_dir(follow_symlinks=False)
            if name in rules.FREE_FOLDERS and is_folder:
                alternates = os.path.join(of.path, *rules.ALTERNATES)
                if name == _SHALLOW and alternates not in excluded and os.path.lexists(alternates):
                    yield self._note(of, alternates), False
                yield from ((self._note(of, path), False) for path in self._irregular(entry.path, name == _SHALLOW))
            elif name in _INNER and is_folder:
                yield from self._inner_of(of, entry.path, _INNER[name], excluded)
            elif rules.is_free(name) and not is_folder:
                if not entry.is_file(follow_symlinks=False):
                    yield self._note(of, entry.path), True
            elif of.is_strict or name in rules.STEERING or name in rules.STATE_FOLDERS:
                yield self._note(of, entry.path), True

    def _note(self, of: GitDirectory, path: str) -> str:
        self._of[path] = of
        return path

    def _inner_of(
        self, of: GitDirectory, folder: str, role: Role, excluded: frozenset[str]
    ) -> Iterator[tuple[str, bool]]:
        """Yield the entries of `worktrees` or `modules`. Names of submodules may contain slashes, so a folder without
        any part of a git directory is part of a name."""
        yield self._note(of, folder), False
        for name in _list(folder):
            path = f"{folder}/{name}"
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            names = {one.lower() for one in _list(path)} if is_folder and role == "module" else ()
            if is_folder and role == "module" and not (rules.STEERING | rules.SHAPE).intersection(names):
                yield from self._inner_of(of, path, role, excluded)
                continue
            yield self._note(of, path), False
            if is_folder:
                inner = self._inner.setdefault(path, GitDirectory(path, role))
                yield from self._entries_of(inner, excluded)

    def _irregular(self, top: str, is_shallow: bool) -> Iterator[str]:
        """Yield links, devices and other special files in a folder whose files are free. A folder is listed again only
        after a change."""
        waiting, looked = [top], 0
        while waiting and looked < _MAX_FOLDERS:
            folder, looked = waiting.pop(), looked + 1
            try:
                at = os.lstat(folder)
                stamp = (at.st_mtime_ns, at.st_ctime_ns, at.st_ino)
                known = self._folders.get(folder)
                if known is None or known[0] != stamp:
                    with os.scandir(folder) as entries:
                        found = list(entries)
                    folders = [one.path for one in found if one.is_dir(follow_symlinks=False)]
                    plain = (one for one in found if not one.is_dir(follow_symlinks=False))
                    irregular = [one.path for one in plain if not one.is_file(follow_symlinks=False)]
                    known = self._folders[folder] = stamp, folders, irregular
            except OSError:
                continue
            yield from known[2]
            if not is_shallow:
                waiting += known[1]

    # Judging

    def problem(
        self, path: str, left: LeftEntry | None, before: LeftEntry | None, known: Look, scope: CommandScope
    ) -> str | None:
        """Return the reason why a command may not leave an entry of a git directory, or a file `.git`, in the state
        `left`; None if it may. `known` is the look before the command: a git directory that is not in it was made by
        the command."""
        if path in self.git_files:
            if left is None:
                return None
            paths = [*self.repositories, *(one.path for one in self._inner.values())]
            return rules.git_file_problem(_leading(left, os.path.dirname(path), rules.target_of), paths)
        of = self._home(path)
        if of is None or (left is None and not os.path.lexists(of.path)):
            return None
        if of.role != "own" and of.path not in known:
            self.made.add(of.path)
        inside = path[len(of.path) + 1 :].split("/")
        if left is not None:
            left = _leading(left, of.path, rules.tree_of if inside[0].lower() in rules.CONFIGS else rules.target_of)
        is_new = any(is_under(of.path, one, "posix") for one in self.made)
        # Working trees may also be made in the temporary directory; git only writes one name there.
        trees = scope.writes if inside[0] == "gitdir" else writable_roots(scope, self._workspace)
        return rules.find_left_problem(of._replace(is_new=is_new), inside, left, before, trees)

    def _home(self, path: str) -> GitDirectory | None:
        while path not in self._of:
            parent = os.path.dirname(path)
            if parent == path:
                return None
            path = parent
        return self._of[path]


def head_of(directory: str, names: Sequence[str]) -> str:
    """Return the path of the file `HEAD`, by which git recognizes a git directory, given the names in it."""
    return os.path.join(directory, next((name for name in names if name.lower() == "head"), "HEAD"))


def _is_named_git(path: str) -> bool:
    return os.path.basename(path).lower() == _GIT


def _leading(left: LeftEntry, directory: str, named_by: Callable[[bytes, str], str | None]) -> LeftEntry:
    """Add the real path that the content of a file refers to: another file, or the working tree of a configuration."""
    target = named_by(left.content, directory) if left.kind == "file" and left.content is not None else None
    return left if target is None else left._replace(target=os.path.realpath(target))


def _list(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


# Report new names in a tree of directories by inotify: one walk at the start, then work only for new names.
#
# tree = TreeWatch(root, see, is_passed_over) tree.refresh() # calls `see` for the directories with new names since the
# last call
#
# A directory that is new, or was moved here, is walked by the next `refresh`. If the kernel lost events (a full queue),
# the whole tree is walked again. Directories that cannot be watched are counted in `unwatched`.

MAX_DIRECTORIES: Final = 50_000
"""Maximum watched directories; each takes about a kilobyte in the kernel."""
_CREATE: Final = 0x100
_MOVED_TO: Final = 0x80
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_DIRECTORY: Final = 0x0100_0000
_NO_LINKS: Final = 0x0200_0000
_IS_DIRECTORY: Final = 0x4000_0000
_MASK: Final = _CREATE | _MOVED_TO | _ONLY_DIRECTORY | _NO_LINKS
_LIKELY: Final = (".git", "HEAD")
"""Names that are tried in a directory that cannot be listed."""
_HEAD: Final = struct.Struct("iIII")


class TreeWatch:
    """A watch of the directories below `root`, a real path. `see(directory, names)` is called with new entries,
    including those of the first walk. Directories for which `is_passed_over(path)` is true are skipped. Links are not
    followed. Raises OSError if inotify is not available."""

    def __init__(
        self, root: str, see: Callable[[str, Sequence[str]], None], is_passed_over: Callable[[str], bool]
    ) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._root = root
        self._see = see
        self._is_passed_over = is_passed_over
        self._paths: dict[int, str] = {}
        self.unwatched = 0
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._unread: set[str] = set()
        self._at: tuple[int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Call `see` with new names."""
        new: dict[str, list[str]] = {}
        folders: dict[str, None] = {}
        while self._read(new, folders):
            pass
        at = None
        with suppress(OSError):
            found = os.stat(self._root)
            at = found.st_dev, found.st_ino
        if at is not None and at != self._at:  # the root was replaced by another directory
            self._at, folders = at, {self._root: None}
        for directory, names in new.items():
            self._see(directory, names)
        unread, self._unread = self._unread, set()
        for folder in (*folders, *unread):
            self._walk(folder)

    def walk_again(self, directory: str) -> None:
        """Walk a directory that was skipped, with the next `refresh`. Does nothing if it is outside of the root."""
        if directory == self._root or directory.startswith(f"{self._root.rstrip('/')}/"):
            self._unread.add(directory)

    def close(self) -> None:
        """Close the watches."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, new: dict[str, list[str]], folders: dict[str, None]) -> bool:
        try:
            data = os.read(self._fd, 1 << 18)
        except BlockingIOError:
            return False
        at = 0
        while at < len(data):
            descriptor, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                self.unwatched = 0
                folders[self._root] = None
            elif mask & _IGNORED:
                if self._paths.pop(descriptor, None) == self._root:
                    self._at = None
            elif descriptor in self._paths:
                name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                directory = self._paths[descriptor]
                new.setdefault(directory, []).append(name)
                if mask & _IS_DIRECTORY:
                    folders[os.path.join(directory, name)] = None
        return True

    def _walk(self, top: str) -> None:
        waiting = deque([top])
        while waiting:
            directory = waiting.popleft()
            if directory != self._root and self._is_passed_over(directory):
                continue
            # Watch it before listing it, so that no name is missed in between.
            self._watch(directory)
            try:
                with os.scandir(directory) as entries:
                    found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            except PermissionError:  # its entries may be reachable by name, and it may become readable later
                self._unread.add(directory)
                self._see(directory, [name for name in _LIKELY if os.path.lexists(f"{directory}/{name}")])
                continue
            except OSError:  # it is gone
                continue
            self._see(directory, [name for name, _ in found])
            waiting.extend(os.path.join(directory, name) for name, is_directory in found if is_directory)

    def _watch(self, directory: str) -> None:
        if len(self._paths) >= MAX_DIRECTORIES:
            self.unwatched += 1
            return
        descriptor = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), _MASK)
        if descriptor >= 0:
            self._paths[descriptor] = directory
        elif ctypes.get_errno() not in (errno.ENOENT, errno.EACCES, errno.ENOTDIR):
            self.unwatched += 1
