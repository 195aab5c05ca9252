"""The files of a tree without those that a list of globs leaves out. Blocking: callers run it in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tool_runtime.core.listing import as_bytes, glob_pattern
from tool_runtime.core.paths import Scope, resolve
from tool_runtime.core.tree import MAX_DEPTH, Walk, WalkParams
from tool_runtime.faults import os_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.tool import Abandoned


class FilesParams(NamedTuple):
    """`exclude` is as `Excludes` reads it."""

    path: str
    scope: Scope
    exclude: Sequence[str] = ()
    recursive: bool = False


class Files(NamedTuple):
    """`paths` are from the directory, sorted; links are among them. `stopped` says why not all of the tree was looked
    at, `left_out` how many entries policy does not let anybody see."""

    paths: list[str]
    stopped: str | None
    left_out: int


class Excludes:
    """Globs in order: each leaves out what it names and all that is below, and one that begins with `!` takes that back
    in. Raises ToolFault for a glob that means nothing."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._rules = [(glob_pattern(glob.removeprefix("!")), glob.startswith("!")) for glob in globs]

    def leave_out(self, path: str) -> bool:
        """True if a relative path is left out: the last glob that names it, or a directory above it, decides."""
        if not self._rules:
            return False
        parts = path.split("/")
        names = [as_bytes("/".join(parts[:count])) for count in range(1, len(parts) + 1)]
        for pattern, takes_back in reversed(self._rules):
            if any(pattern.search(name) is not None for name in names):
                return not takes_back
        return False


def list_files(params: FilesParams, abandoned: Abandoned) -> Files:
    """The files that are not left out. Raises ToolFault."""
    excludes = Excludes(params.exclude)
    root = resolve(params.path, params.scope)
    depth = MAX_DEPTH if params.recursive else 1
    walk = Walk(WalkParams(root, params.scope, depth, ignored_too=True, git_too=True), abandoned)
    paths: list[str] = []
    with os_faults(params.path):
        for folder in walk.folders():
            found = (folder.path + name for names in (folder.files, folder.links) for name in names)
            paths.extend(path for path in found if not excludes.leave_out(path))
    return Files(sorted(paths), walk.stopped, walk.left_out)
