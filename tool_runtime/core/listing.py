"""The entries of a directory, and the files whose names fit a pattern. Blocking: callers run these in a thread."""

from __future__ import annotations

import functools
import itertools
import os
from typing import TYPE_CHECKING, NamedTuple

from policy.patterns import compiled, problem_of
from tool_runtime.core.globs import BadGlob, expression
from tool_runtime.core.paths import Scope, open_directory, resolve
from tool_runtime.core.tree import MAX_DEPTH, MAX_ENTRIES, Kind, Walk, WalkParams
from tool_runtime.faults import FaultKind, ToolFault, os_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from policy.patterns import Pattern
    from tool_runtime.core.hidden import HiddenNames
    from tool_runtime.core.tree import Folder
    from tool_runtime.tool import Abandoned


class ListParams(NamedTuple):
    """`depth` 1 is the directory's own entries. `offset` counts entries from 0. After `max_entries` the walk stops.
    What `hidden` names is passed over."""

    path: str
    scope: Scope
    depth: int = 1
    offset: int = 0
    limit: int = 500
    max_entries: int = MAX_ENTRIES
    hidden: HiddenNames | None = None


class FindParams(NamedTuple):
    """`pattern` is as `globs.expression` reads it."""

    path: str
    scope: Scope
    pattern: str
    offset: int = 0
    limit: int = 500
    ignored_too: bool = False


class Listed(NamedTuple):
    """An entry by its path from the directory that was asked for; `target` is where a link leads, `size` a file's in
    bytes."""

    path: str
    kind: Kind
    target: str | None = None
    size: int | None = None


_made: Callable[[tuple[str, Kind, str | None, int | None]], Listed] = functools.partial(tuple.__new__, Listed)
"""What Listed's own constructor makes, in half the time: a page has hundreds."""


class Listing(NamedTuple):
    """A page of entries out of `total`. The counts and `stopped` are those of the walk."""

    root: str
    page: list[Listed]
    total: int
    left_out: int
    ignored: int
    unreadable: int
    stopped: str | None
    hidden: int = 0


def list_directory(params: ListParams, abandoned: Abandoned) -> Listing:
    """A page of a directory's entries, in the order of their paths, directories before what is in them. Nothing is
    ignored. Raises ToolFault."""
    root, opened = open_directory(params.path, params.scope)
    try:
        walk = Walk(
            WalkParams(
                root,
                params.scope,
                params.depth,
                ignored_too=True,
                git_too=True,
                with_sizes=True,
                max_entries=params.max_entries,
                hidden=params.hidden,
                opened=opened,
            ),
            abandoned,
        )
        return _page(walk, root, params.offset, params.limit, params.path, None)
    finally:
        if opened is not None:
            os.close(opened)


def find_files(params: FindParams, abandoned: Abandoned) -> Listing:
    """A page of the files, and links, whose path or name fits the pattern. Raises ToolFault."""
    root = resolve(params.path, params.scope)
    wanted = glob_below(params.pattern, root, params.path)
    walk = Walk(
        WalkParams(root, params.scope, MAX_DEPTH, ignored_too=params.ignored_too, git_too=params.ignored_too), abandoned
    )
    return _page(walk, root, params.offset, params.limit, params.path, wanted)


def glob_below(glob: str, root: str, asked: str) -> Pattern:
    """`glob_pattern` for paths from `root`, which is what `asked` leads to. A glob may begin with either. Raises
    ToolFault(INVALID_ARGUMENT), also for a glob that leads elsewhere: it would fit nothing, without a word."""
    within = glob
    for start in (asked, root):
        above = start.replace(os.sep, "/").rstrip("/") + "/"
        if glob.startswith(above):
            within = f"./{glob[len(above) :]}"
            break
    if os.path.isabs(within) or ".." in within.split("/"):
        why = f"the pattern leads out of {asked}: give one from there, or another directory as path"
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{why}: {glob[:200]!r}")
    return glob_pattern(within)


def glob_pattern(glob: str) -> Pattern:
    """The pattern, compiled. Raises ToolFault(INVALID_ARGUMENT)."""
    try:
        written = expression(glob)
    except BadGlob as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{error}: {glob[:200]!r}") from error
    found = compiled(written)
    if found is None:
        raise ToolFault(
            FaultKind.INVALID_ARGUMENT, f"the pattern cannot be used, {problem_of(written)}: {glob[:200]!r}"
        )
    return found


def _page(walk: Walk, root: str, offset: int, limit: int, asked: str, wanted: Pattern | None) -> Listing:
    page: list[Listed] = []
    total, end = 0, offset + limit
    with os_faults(asked):
        for folder in walk.folders():
            shown = slice(max(0, offset - total), max(0, end - total))
            if wanted is None and not (folder.folders or folder.links or folder.others):
                page += _files(folder, folder.files[shown])
                total += len(folder.files)
                continue
            entries = folder.entries if wanted is None else _fitting(folder, wanted)
            page += _listed(folder, entries[shown])
            total += len(entries)
    return Listing(root, page, total, walk.left_out, walk.ignored, walk.unreadable, walk.stopped, walk.hidden)


def _fitting(folder: Folder, wanted: Pattern) -> list[tuple[str, Kind]]:
    """The entries but directories whose paths fit."""
    above, search = folder.path, wanted.search
    return [
        (name, kind)
        for name, kind in folder.entries
        if kind != "directory" and search(as_bytes(above + name)) is not None
    ]


def _files(folder: Folder, names: Sequence[str]) -> Iterator[Listed]:
    """What `_listed` gives for files."""
    paths = [folder.path + name for name in names] if folder.path else names
    kind: Kind = "file"
    return map(
        _made, zip(paths, itertools.repeat(kind), itertools.repeat(None), map(folder.sizes.get, names), strict=False)
    )


def _listed(folder: Folder, entries: Sequence[tuple[str, Kind]]) -> Iterator[Listed]:
    above, size_of = folder.path, folder.sizes.get
    targets: Iterable[str | None] = itertools.repeat(None)
    if folder.links:
        targets = [_target(os.path.join(folder.real, name)) if kind == "link" else None for name, kind in entries]
    paths = [above + name for name, _ in entries] if above else [name for name, _ in entries]
    kinds, sizes = [kind for _, kind in entries], [size_of(name) for name, _ in entries]
    return map(_made, zip(paths, kinds, targets, sizes, strict=False))


def as_bytes(path: str) -> bytes:
    """A path for a pattern, which works on UTF-8; a name that is none keeps its bytes."""
    return path.encode("utf-8", "surrogateescape")


def _target(link: str) -> str | None:
    try:
        return os.readlink(link)
    except OSError:  # gone meanwhile
        return None
