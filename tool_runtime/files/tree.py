"""A walk through a tree, for the tools that list and search. Blocking: callers run it in a thread.

Policy's rule for trees decides about every entry before it is opened or named: denied entries are omitted and counted.
No link is followed; directories are opened by descriptor from the root on.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import re2
from pathspec import GitIgnoreSpec

from agent_host.ids import OWN_PREFIX, is_own_name
from agent_host.workspace_changes import last_value
from policy.rules.paths import TreeRule
from tool_runtime.files import Scope, hold_open, open_dir, open_parent, open_regular
from tool_runtime.platform import OS_FAMILY
from tool_runtime.platform.directories import BY_DESCRIPTOR
from tool_runtime.tool import ToolFault

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from policy.rules.paths import Below
    from tool_runtime.tool import Abandoned

Kind = Literal["file", "directory", "link", "other"]
Names = tuple[tuple["Kind", list[str]], ...]  # the names of a directory, by kind, sorted
MAX_ENTRIES: Final = 200_000  # entries of one walk; then it stops and reports that
MAX_DEPTH: Final = 100
GIT: Final = ".git"


class WalkParams(NamedTuple):
    """`root` is a real path in the scope; `depth` 1 is its own entries. `ignored_too`: what .gitignore names is walked
    as well, `git_too`: so are directories called .git. `with_sizes`: files have theirs. What `hidden` names is passed
    over. `opened` is a descriptor of the root to read its entries by, if the caller has one."""

    root: str
    scope: Scope
    depth: int = MAX_DEPTH
    ignored_too: bool = False
    git_too: bool = False
    with_sizes: bool = False
    max_entries: int = MAX_ENTRIES
    hidden: Callable[[str], bool] | None = None
    opened: int | None = None


class TreeFolder:
    """A directory of a walk. `path` is from the root, empty or with a slash at its end; `real` is absolute. Names are
    sorted; `others` are neither regular files nor directories nor links. `sizes` has the size of each file in bytes, if
    requested. `complete`: no file was omitted. `to_walk` are directories that are named, or contain visible entries."""

    def __init__(self, path: str, real: str) -> None:
        self.path = path
        self.real = real
        self.files: list[str] = []
        self.folders: list[str] = []
        self.links: list[str] = []
        self.others: list[str] = []
        self.to_walk: list[str] = []
        self.sizes: dict[str, int] = {}
        self.complete = True

    @property
    def names(self) -> Names:
        """All names, by kind."""
        return ("directory", self.folders), ("file", self.files), ("link", self.links), ("other", self.others)

    @property
    def entries(self) -> list[tuple[str, Kind]]:
        """All names with their kinds, sorted."""
        return sorted((name, kind) for kind, names in self.names for name in names)

    def take(self, entries: Iterable[os.DirEntry[str]], *, with_sizes: bool) -> int:
        """Add the entries by their kinds; how many there were."""
        count, files, sizes = 0, self.files, self.sizes
        for entry in entries:
            count += 1
            if entry.is_file(follow_symlinks=False):
                name = entry.name
                files.append(name)
                if with_sizes:
                    try:
                        sizes[name] = entry.stat(follow_symlinks=False).st_size
                    except OSError:  # gone meanwhile
                        continue
            elif entry.is_dir(follow_symlinks=False):
                self.folders.append(entry.name)
            elif entry.is_symlink():
                self.links.append(entry.name)
            else:
                self.others.append(entry.name)
        return count

    def hide(self, name: str) -> None:
        """Take the name out, uncounted."""
        for names in (self.files, self.folders, self.links):
            if name in names:
                names.remove(name)
                self.complete = self.complete and names is not self.files

    def keep(self, is_kept: Callable[[str], bool]) -> int:
        """Keep the files and others for whose names `is_kept` is true; how many go."""
        before = len(self.files) + len(self.others)
        self.files = [name for name in self.files if is_kept(name)]
        self.others = [name for name in self.others if is_kept(name)]
        return before - len(self.files) - len(self.others)

    def leave_out(self, removed: Collection[str]) -> int:
        """Take out all entries of these names; how many there are."""
        if removed:
            self.files, self.folders, self.links, self.others, self.to_walk = (
                [name for name in names if name not in removed]
                for names in (self.files, self.folders, self.links, self.others, self.to_walk)
            )
        return len(removed)


class Walk:
    """One walk. `left_out` counts entries that policy denies, `ignored` those in .gitignore, `hidden` those with hidden
    names, `unreadable` directories that could not be opened. `stopped` is the reason for an incomplete walk."""

    def __init__(self, params: WalkParams, abandoned: Abandoned) -> None:
        self.root = params.root
        self._params = params
        self._abandoned = abandoned
        self._rule = _tree_rule(params.scope.allowed, params.scope.blocked)
        self._left = params.max_entries
        self.left_out = self.ignored = self.hidden = self.unreadable = 0
        self.stopped: str | None = None

    def names(self, real: str) -> Names:
        """The names in the directory at a real path, without policy. Raises OSError."""
        return self._list("", real).names

    def admit(self, real: str, entries: Sequence[tuple[str, Kind]]) -> list[tuple[str, Kind]]:
        """Those of the entries of a directory that policy lets anybody see; the others are counted."""
        found = TreeFolder("", real)
        lists = dict(found.names)
        for name, kind in entries:
            lists[kind].append(name)
        before = self.left_out
        self._admit(found, self._rule.judge_below(real))
        if self.left_out == before:
            return list(entries)
        kept = {name for _, names in found.names for name in names}
        return [entry for entry in entries if entry[0] in kept]

    def folders(self, after: str = "") -> Iterator[TreeFolder]:
        """The directories, each before those in it, by name; with `after` those that may contain an entry after this
        path. Raises OSError if the root cannot be opened, ToolFault for an abandoned call."""
        passed = after.split("/")[:-1] if after else []
        params = self._params
        known = IgnorePatterns() if params.ignored_too else _inherited_patterns(params.root, self._rule)
        waiting: list[tuple[str, str, int, Below, IgnorePatterns]] = [
            ("", params.root, 1, self._rule.judge_below(params.root), known)
        ]
        while waiting and self.stopped is None:
            path, real, depth, below, ignored = waiting.pop()
            self._abandoned.refuse()
            try:
                found = self._list(path, real, None if path else params.opened)
            except (OSError, ToolFault):
                if not path:
                    raise
                self.unreadable += 1
                continue
            count = len(found.files)
            self._admit(found, below)
            if params.hidden is not None:
                hides = params.hidden
                names = {*found.files, *found.folders, *found.others, *found.links, *found.to_walk}
                self.hidden += found.leave_out({name for name in names if hides(path + name)})
            if not params.ignored_too:
                if NAME in found.files:
                    ignored = ignored.add_file(path, read_patterns(real))
                others = [*found.files, *found.links, *found.others]
                self.ignored += found.leave_out(ignored.ignored_names(path, others, found.to_walk))
            found.complete = found.complete and len(found.files) == count
            yield found
            if depth >= params.depth:
                continue
            for name in reversed(found.to_walk):
                if passed and [*path.split("/")[:-1], name] < passed[:depth]:
                    continue  # all that is below comes before
                inside = os.path.join(real, name)
                waiting.append((f"{path}{name}/", inside, depth + 1, self._judge_below(inside, below, name), ignored))

    def _list(self, path: str, real: str, opened: int | None = None) -> TreeFolder:
        """All entries; of too many those that came first."""
        found = TreeFolder(path, real)
        with _scan(real) if opened is None else os.scandir(opened) as entries:
            self._left -= found.take(itertools.islice(entries, self._left), with_sizes=self._params.with_sizes)
            if self._left == 0 and next(entries, None) is not None:
                self.stopped = f"stopped after {self._params.max_entries} entries: name a directory further down"
        if not self._params.git_too:
            found.hide(GIT)
        for _, names in found.names:
            names.sort()
        for name in [name for name in found.files if name.startswith(OWN_PREFIX) and is_own_name(name)]:
            found.hide(name)
        return found

    def _admit(self, found: TreeFolder, below: Below) -> None:
        """Take out what policy keeps from being named, links that lead to such a place included."""
        found.to_walk = found.folders
        if found.links:
            admits, above = self._rule.admits, found.real
            kept = [
                name
                for name in found.links
                if admits(inside := os.path.join(above, name)) and admits(os.path.realpath(inside))
            ]
            self.left_out += len(found.links) - len(kept)
            found.links = kept
        if below == "all":
            return
        if below == "named" and not self._rule.some_named([*found.files, *found.folders, *found.others]):
            return

        def is_admitted(name: str) -> bool:
            if below == "named" and not self._rule.is_named(name):
                return True
            return self._rule.admits(os.path.join(found.real, name))

        admitted = [name for name in found.folders if is_admitted(name)]
        leading = [
            name
            for name in found.folders
            if name in admitted or self._rule.judge_below(os.path.join(found.real, name)) != "none"
        ]
        self.left_out += len(found.folders) - len(leading)
        found.folders, found.to_walk = admitted, leading
        self.left_out += found.keep(is_admitted)

    def _judge_below(self, inside: str, below: Below, name: str) -> Below:
        if below == "all" or (below == "named" and not self._rule.is_named(name)):
            return below
        return self._rule.judge_below(inside)


@functools.lru_cache(maxsize=16)
def _tree_rule(allowed: tuple[str, ...] | None, blocked: tuple[str, ...] | None) -> TreeRule:
    return TreeRule(allowed, blocked, OS_FAMILY)


def _inherited_patterns(root: str, rule: TreeRule) -> IgnorePatterns:
    """The patterns that hold at the root from above: those of the files up to the repository that it is in, as far as
    policy lets anybody read them. A root that is ignored itself was asked for all the same, and they do not count."""
    found: list[tuple[str, list[str]]] = []
    at = root
    while True:
        git = os.path.join(at, GIT)
        if os.path.lexists(git):
            found += [(at, _lines(git, os.path.join("info", "exclude"), rule)), (at, users_patterns())]
            break
        above = os.path.dirname(at)
        if above == at or not rule.admits(above):
            break
        at = above
        found.append((at, _lines(at, NAME, rule)))
    ignored = IgnorePatterns()
    for directory, lines in reversed(found):
        prefix = os.path.relpath(root, directory).replace(os.sep, "/") + "/" if directory != root else ""
        ignored = ignored.add_file("", lines, prefix=prefix)
    name = os.path.basename(root)
    above_root = IgnorePatterns()
    for directory, lines in reversed(found):
        if directory != root:
            parent = os.path.relpath(os.path.dirname(root), directory).replace(os.sep, "/")
            above_root = above_root.add_file("", lines, prefix="" if parent == "." else parent + "/")
    return IgnorePatterns() if above_root.ignored_names("", [], [name]) else ignored


def _lines(directory: str, name: str, rule: TreeRule) -> list[str]:
    return read_patterns(directory, name) if rule.admits(os.path.join(directory, name)) else []


@contextmanager
def _scan(real: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    if not BY_DESCRIPTOR or os.scandir not in os.supports_fd:
        with os.scandir(real) as entries:
            yield entries
        return
    with hold_open(open_dir(real, to_list=True)) as fd, os.scandir(fd) as entries:
        yield entries


# Which files .gitignore leaves out: pathspec reads the patterns, RE2 matches them, so that no file of a workspace can
# make a search slow.

NAME: Final = ".gitignore"
_MAX_BYTES: Final = 256 * 1024
_MAX_PATTERNS: Final = 5000
_MAX_MEMORY_BYTES: Final = 16 * 1024 * 1024
_FOLDER_MARK: Final = re.compile(r"\(\?P<[^>]*>/\)")
"""The slash after a folder's name, marked by pathspec's only named group."""


class _Pattern:
    """One line of a file. `ignores` is False for one that begins with `!`."""

    def __init__(self, written: str, *, ignores: bool) -> None:
        self.written = written
        self.ignores = ignores
        self._marks_folder = _FOLDER_MARK.search(written) is not None

    @functools.cached_property
    def _compiled(self) -> Any:
        """Without the contents of a folder that matches: each folder on the way has been checked."""
        return re2.compile(_FOLDER_MARK.sub("(?:/$)", self.written), _options())

    def names(self, path: str, *, is_folder: bool) -> bool:
        """True if it matches the path itself. A pattern that ends in `/**` matches the contents of a folder, not the
        folder."""
        return self._compiled.search(f"{path}/" if is_folder and self._marks_folder else path) is not None


class _File(NamedTuple):
    """One file of patterns, the last one first. It is in `directory`, a path from the root of the search, empty or with
    a slash at its end, or above, with the root at `prefix` from there. `any_of` matches a line of paths that it may
    ignore; None: it may ignore any."""

    patterns: Sequence[_Pattern]
    any_of: Any
    directory: str
    prefix: str

    def relative_path(self, directory: str) -> str:
        """A directory of the search as the patterns are read, from the directory of this file."""
        return self.prefix + directory[len(self.directory) :]

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """True if the path is ignored; None if no pattern matches it."""
        return next((one.ignores for one in self.patterns if one.names(path, is_folder=is_folder)), None)


class IgnorePatterns:
    """The patterns that hold in a directory: those of its own file and of the files above it. Immutable."""

    def __init__(self, files: tuple[_File, ...] = ()) -> None:
        self._files = files

    def add_file(self, directory: str, lines: Sequence[str], *, prefix: str = "") -> IgnorePatterns:
        """With the lines of one more file of patterns; `directory` and `prefix` as in `_File`."""
        read = GitIgnoreSpec.from_lines(lines[:_MAX_PATTERNS], backend="simple").patterns
        patterns = [
            _Pattern(one.regex.pattern, ignores=one.include)
            for one in reversed(list(read))
            if one.include is not None and one.regex is not None
        ]
        if not any(one.ignores for one in patterns) and not self._files:
            return self
        return IgnorePatterns((*self._files, _File(patterns, _any_of(patterns), directory, prefix)))

    def ignored_names(self, directory: str, files: Sequence[str], folders: Sequence[str]) -> frozenset[str]:
        """The names of a directory that are ignored; `directory` is empty or ends in a slash."""
        # One look at all names of a directory: in most there is nothing to ignore.
        if not any(_may_ignore(file, file.relative_path(directory), files, folders) for file in self._files):
            return frozenset()
        ignored = [name for name in files if self._is_ignored(directory, name)]
        return frozenset([*ignored, *(name for name in folders if self._is_ignored(directory, name, is_folder=True))])

    def _is_ignored(self, directory: str, name: str, *, is_folder: bool = False) -> bool:
        """The nearest file that has a pattern for the path decides."""
        for file in reversed(self._files):
            verdict: bool | None = file.verdict(_path_text(file.relative_path(directory) + name), is_folder=is_folder)
            if verdict is not None:
                return verdict
        return False


def read_patterns(directory: str, name: str = NAME) -> list[str]:
    """The lines of the file of patterns in a directory, a real path; none if there is no regular file. 256 KiB at
    most."""
    try:
        with open_parent(os.path.join(directory, name)) as (parent, entry):
            opened, _ = open_regular(parent, entry)
        with open(opened, "rb", buffering=0) as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ToolFault):
        return []


def users_patterns() -> list[str]:
    """The lines of the user's own file of patterns, which apply in every repository (gitignore(5)): core.excludesFile
    of the user's configuration, else `git/ignore` in the directory of configurations."""
    home = os.path.expanduser("~")
    folder = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "git")
    named = ""
    for file in (os.path.join(folder, "config"), os.path.join(home, ".gitconfig")):
        text = "\n".join(_lines_of(file)).encode("utf-8", "surrogateescape")
        named = last_value(text, "core", "excludesfile", "") or named
    path = os.path.join(folder, "ignore") if not named else os.path.expanduser(named)
    return _lines_of(path) if os.path.isabs(path) else []


def _lines_of(path: str) -> list[str]:
    """The lines of a user's file, which may be a link."""
    return [] if "\0" in path else read_patterns(*os.path.split(os.path.realpath(path)))


def _may_ignore(file: _File, directory: str, files: Sequence[str], folders: Sequence[str]) -> bool:
    if file.any_of is None:
        return True
    between = f"\n{directory}"
    lines = f"{directory}{between.join(files)}\n{directory}{f'/{between}'.join(folders)}/"
    return bool(file.any_of.search(_path_text(lines)))


def _path_text(path: str) -> str:
    """A path in matchable form: bytes that are not text become question marks."""
    return path if path.isascii() else path.encode("utf-8", "replace").decode()


def _any_of(patterns: Sequence[_Pattern]) -> Any:
    """An expression that matches a line which one of `patterns` ignores; None if it would be too large."""
    wanted = [f"(?:{_FOLDER_MARK.sub('/', one.written)})" for one in patterns if one.ignores]
    try:
        return re2.compile(f"(?m){'|'.join(wanted)}" if wanted else r"[^\x{0}-\x{10FFFF}]", _options())
    except re2.error:
        return None


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    return options
