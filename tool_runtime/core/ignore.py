"""Which files .gitignore leaves out: pathspec reads the patterns, RE2 matches them, so that no file of a workspace can
make a search slow."""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import re2
from pathspec import GitIgnoreSpec

from agent_host.workspace_changes.git_config import last_value
from tool_runtime.core.paths import open_parent, open_regular
from tool_runtime.faults import ToolFault

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME: Final = ".gitignore"
_MAX_BYTES: Final = 256 * 1024
_MAX_PATTERNS: Final = 5000
_MAX_MEMORY_BYTES: Final = 16 * 1024 * 1024
_FOLDER_MARK: Final = re.compile(r"\(\?P<[^>]*>/\)")
"""The slash behind a folder's name, as pathspec marks it: the only group that it names."""


class _Pattern:
    """One line of a file. `ignores` is False for one that begins with `!`."""

    def __init__(self, written: str, *, ignores: bool) -> None:
        self.written = written
        self.ignores = ignores
        self._marks_folder = _FOLDER_MARK.search(written) is not None

    @functools.cached_property
    def _compiled(self) -> Any:
        """Without what lies in a folder that the pattern means: each folder on the way has been asked for."""
        return re2.compile(_FOLDER_MARK.sub("(?:/$)", self.written), _options())

    def names(self, path: str, *, is_folder: bool) -> bool:
        """True if it means the path itself. A pattern that ends in `/**` means what is in a folder, not the folder."""
        return self._compiled.search(f"{path}/" if is_folder and self._marks_folder else path) is not None


class _File(NamedTuple):
    """One file of patterns, the last one first. It lies in `directory`, a path from the root of the search, empty or
    with a slash behind it, or above, with the root at `prefix` from there. `any_of` finds a line of paths that it may
    ignore; None: any may be."""

    patterns: Sequence[_Pattern]
    any_of: Any
    directory: str
    prefix: str

    def from_here(self, directory: str) -> str:
        """A directory of the search as the patterns are read, from the directory of this file."""
        return self.prefix + directory[len(self.directory) :]

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """True if the path is ignored; None where no pattern names it."""
        return next((one.ignores for one in self.patterns if one.names(path, is_folder=is_folder)), None)


class Ignored:
    """The patterns that hold in a directory: those of its own file and of the files above it. Immutable."""

    def __init__(self, files: tuple[_File, ...] = ()) -> None:
        self._files = files

    def within(self, directory: str, lines: Sequence[str], *, prefix: str = "") -> Ignored:
        """With the lines of one more file of patterns; `directory` and `prefix` as in `_File`."""
        read = GitIgnoreSpec.from_lines(lines[:_MAX_PATTERNS], backend="simple").patterns
        patterns = [
            _Pattern(one.regex.pattern, ignores=one.include)
            for one in reversed(list(read))
            if one.include is not None and one.regex is not None
        ]
        if not any(one.ignores for one in patterns) and not self._files:
            return self
        return Ignored((*self._files, _File(patterns, _any_of(patterns), directory, prefix)))

    def among(self, directory: str, files: Sequence[str], folders: Sequence[str]) -> frozenset[str]:
        """Which names of a directory are ignored; `directory` is empty or ends in a slash."""
        # One look at all names of a directory: in most there is nothing to ignore.
        if not any(_may_ignore(file, file.from_here(directory), files, folders) for file in self._files):
            return frozenset()
        ignored = [name for name in files if self._is_ignored(directory, name)]
        return frozenset([*ignored, *(name for name in folders if self._is_ignored(directory, name, is_folder=True))])

    def _is_ignored(self, directory: str, name: str, *, is_folder: bool = False) -> bool:
        """The nearest file that has a pattern for the path decides."""
        for file in reversed(self._files):
            verdict: bool | None = file.verdict(_as_text(file.from_here(directory) + name), is_folder=is_folder)
            if verdict is not None:
                return verdict
        return False


def read_patterns(directory: str, name: str = NAME) -> list[str]:
    """The lines of the file of patterns in a directory, a real path; none where there is no regular file. Reads 256 KiB
    at most."""
    try:
        with open_parent(os.path.join(directory, name)) as (parent, entry):
            opened, _ = open_regular(parent, entry, os.O_RDONLY)
        with open(opened, "rb", buffering=0) as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ToolFault):
        return []


def users_patterns() -> list[str]:
    """The lines of the user's own file of patterns, which hold in every repository (gitignore(5)): that of
    core.excludesFile in the user's configuration, else `git/ignore` where configuration lies."""
    home = os.path.expanduser("~")
    folder = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "git")
    named = None
    for file in (os.path.join(folder, "config"), os.path.join(home, ".gitconfig")):
        text = "\n".join(_lines_of(file)).encode("utf-8", "surrogateescape")
        named = last_value(text, b"core", b"excludesfile") or named
    path = os.path.join(folder, "ignore") if not named else os.path.expanduser(os.fsdecode(named))
    return _lines_of(path) if os.path.isabs(path) else []


def _lines_of(path: str) -> list[str]:
    """The lines of a file of the user's, who may have it elsewhere and a link in its place."""
    return [] if "\0" in path else read_patterns(*os.path.split(os.path.realpath(path)))


def _may_ignore(file: _File, directory: str, files: Sequence[str], folders: Sequence[str]) -> bool:
    """False only where the file ignores none of the names."""
    if file.any_of is None:
        return True
    between = f"\n{directory}"
    lines = f"{directory}{between.join(files)}\n{directory}{f'/{between}'.join(folders)}/"
    return bool(file.any_of.search(_as_text(lines)))


def _as_text(path: str) -> str:
    """A path as patterns can be held against it: bytes that are no text become question marks."""
    return path if path.isascii() else path.encode("utf-8", "replace").decode()


def _any_of(patterns: Sequence[_Pattern]) -> Any:
    """An expression that finds a line which one of `patterns` ignores; None where it would be too large."""
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
