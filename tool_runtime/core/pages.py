"""Pages of a directory's entries. A page begins behind a name, so what comes or goes between two pages makes no other
entry appear twice or be passed over. Blocking: callers run these in a thread.

A large directory is read and sorted once for its pages: as long as it has not changed, the names of the last one are
kept, with nothing else of its entries.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tool_runtime.core.listing import as_bytes, glob_pattern
from tool_runtime.core.paths import Scope, resolve
from tool_runtime.core.tree import MAX_DEPTH, MAX_ENTRIES, Kind, Walk, WalkParams
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.platform.disks import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policy.patterns import Pattern
    from tool_runtime.core.tree import Names
    from tool_runtime.tool import Abandoned

_BEFORE_CHECK: Final = "~"  # a name may hold it, too
_SETTLED_NS: Final = 100_000_000
"""A directory that changed so lately may change again without another time of change: its names are not kept."""


class PageParams(NamedTuple):
    """`token` is that of the page before, None for the first page."""

    path: str
    scope: Scope
    size: int
    token: str | None = None
    pattern: str | None = None
    recursive: bool = False
    files: bool = True
    folders: bool = True
    max_entries: int = MAX_ENTRIES


class Page(NamedTuple):
    """`entries` are paths from the directory at the real path `root`, with their kinds. `more`: others follow.
    `stopped` says why the search ended before it was through. `left_out` are entries that policy does not let anybody
    see."""

    root: str
    entries: list[tuple[str, Kind]]
    more: bool
    stopped: str | None
    left_out: int


class _Kept(NamedTuple):
    key: tuple[str, int, int, int, int]
    names: Names


class Pager:
    """Gives pages, and keeps the names of the directory that it read last. For one thread at a time or several: what is
    kept is replaced as a whole."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def page(self, params: PageParams, abandoned: Abandoned) -> Page:
        """One page. Raises ToolFault."""
        wanted = None if params.pattern is None else glob_pattern(params.pattern)
        root = resolve(params.path, params.scope)
        after = "" if params.token is None else path_of(params.token, root)
        walk = Walk(
            WalkParams(
                root,
                params.scope,
                MAX_DEPTH if params.recursive else 1,
                ignored_too=True,
                git_too=True,
                max_entries=params.max_entries,
            ),
            abandoned,
        )
        found: list[tuple[str, Kind]] = []
        with os_faults(params.path):
            entries = _below(walk, after) if params.recursive else self._inside(walk, root, after, params.size)
            for path, kind in entries:
                if not _is_wanted(path, kind, params, wanted):
                    continue
                if len(found) == params.size:
                    return Page(root, found, more=True, stopped=None, left_out=walk.left_out)
                found.append((path, kind))
        return Page(root, found, more=False, stopped=walk.stopped, left_out=walk.left_out)

    def knows(self, params: PageParams) -> bool:
        """True if the names of the directory are kept, so that a page costs no look at all of it."""
        kept = self._kept
        try:
            return kept is not None and kept.key == _key(params.path)
        except (OSError, ValueError):  # the call itself says what is wrong
            return False

    def _inside(self, walk: Walk, root: str, after: str, size: int) -> Iterator[tuple[str, Kind]]:
        """The entries of the directory itself behind `after`, a part at a time: policy is asked for those that are
        looked at and no others."""
        names = self._names(walk, root)
        while True:
            part = _part(names, after, size + 1)
            if not part:
                return
            yield from walk.admitted(root, part)
            after = part[-1][0]

    def _names(self, walk: Walk, root: str) -> Names:
        key = _key(root)
        kept = self._kept
        if kept is not None and kept.key == key:
            return kept.names
        begun_ns = time.time_ns()
        names = walk.names(root)
        _, device, _, modified_ns, changed_ns = key
        settled = max(modified_ns, changed_ns) < begun_ns - _SETTLED_NS
        self._kept = _Kept(key, names) if settled and walk.stopped is None and is_local(device) else None
        return names


def _key(directory: str) -> tuple[str, int, int, int, int]:
    """What changes with the names in a directory."""
    status = os.stat(directory)
    return directory, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _part(names: Names, after: str, count: int) -> list[tuple[str, Kind]]:
    """The next `count` names behind `after`, at most, of all kinds together."""
    parts = []
    for kind, of_kind in names:
        begin = bisect_right(of_kind, after) if after else 0
        parts.append([(name, kind) for name in of_kind[begin : begin + count]])
    return list(heapq.merge(*parts))[:count]


def _below(walk: Walk, after: str) -> Iterator[tuple[str, Kind]]:
    """The entries of the tree behind `after`, those of a directory before those below it."""
    above, _, name = after.rpartition("/")
    parent = above.split("/") if above else []
    for folder in walk.folders(behind=after):
        at = folder.path.split("/")[:-1]
        if at < parent:
            continue  # its entries come before, and some of what is below it does not
        for entry, kind in folder.entries:
            if at != parent or entry > name:
                yield folder.path + entry, kind


def _is_wanted(path: str, kind: Kind, params: PageParams, wanted: Pattern | None) -> bool:
    if not (params.folders if kind == "directory" else params.files):
        return False
    return wanted is None or wanted.search(as_bytes(path)) is not None


def token_of(path: str, root: str) -> str:
    """The token of the page behind an entry of the directory at `root`: its name, with what JSON cannot hold, and `%`,
    as `%XX`, and a check by which a token of another directory, or of none, is known."""
    check = _check(path, root)
    if not path.isascii() or "%" in path or not path.isprintable():
        path = "".join(
            char if char != "%" and char.isprintable() else quote_from_bytes(os.fsencode(char), "") for char in path
        )
    return f"{path}{_BEFORE_CHECK}{check}"


def path_of(token: str, root: str) -> str:
    """The inverse of `token_of`. Raises ToolFault(INVALID_ARGUMENT) for what is no token of this directory."""
    name, _, check = token.rpartition(_BEFORE_CHECK)
    try:
        path = os.fsdecode(unquote_to_bytes(name))
    except UnicodeEncodeError as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.page_token: holds a lone surrogate") from error
    if check != _check(path, root):
        said = "is no next_page_token of this directory; the first page needs none"
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.page_token: {said}: {token[:200]!r}")
    return path


def _check(path: str, root: str) -> str:
    return hashlib.sha256(os.fsencode(f"{root}\0{path}")).hexdigest()[:8]
