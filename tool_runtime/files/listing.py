"""The entries of a directory, and the files whose names fit a pattern. Blocking: callers run these in a thread."""

from __future__ import annotations

import functools
import hashlib
import heapq
import os
import re
import time
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from policy.patterns import MAX_CHARACTERS, compile_pattern, problem_of
from tool_runtime.files import Scope, open_directory, resolve
from tool_runtime.files.tree import MAX_DEPTH, MAX_ENTRIES, Kind, Walk, WalkParams
from tool_runtime.platform.directories import is_local
from tool_runtime.tool import FaultKind, ToolFault, os_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from policy.patterns import Pattern
    from tool_runtime.files.tree import Names, TreeFolder
    from tool_runtime.tool import Abandoned


class ListedEntry(NamedTuple):
    """An entry by its path from the directory; `target` is a link's target, `size` a file's in bytes."""

    path: str
    kind: Kind
    target: str | None = None
    size: int | None = None


class Listing(NamedTuple):
    """A page of entries out of `total`, and the walk, which has counted the omitted entries."""

    page: list[ListedEntry]
    total: int
    walk: Walk


def list_directory(
    path: str, scope: Scope, abandoned: Abandoned, *, offset: int = 0, limit: int = 500, depth: int = 1, **walk: Any
) -> Listing:
    """A page of a directory's entries, in the order of their paths, directories before their contents. Nothing is
    ignored. `depth` 1 is the directory's own entries; `walk` are more of WalkParams. Raises ToolFault."""
    root, opened = open_directory(path, scope)
    try:
        wanted = WalkParams(root, scope, depth, True, True, True, opened=opened, **walk)
        return _page(Walk(wanted, abandoned), path, offset=offset, limit=limit)
    finally:
        if opened is not None:
            os.close(opened)


def find_files(
    path: str, scope: Scope, abandoned: Abandoned, pattern: str, *, ignored_too: bool = False, **page: int
) -> Listing:
    """A page of the files, and links, whose path or name fits the pattern; `page` is as of `list_directory`. Raises
    ToolFault."""
    root = resolve(path, scope)
    wanted = glob_below(pattern, root, path)
    walk = Walk(WalkParams(root, scope, MAX_DEPTH, ignored_too, ignored_too), abandoned)
    return _page(walk, path, wanted, **page)


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
    found = compile_pattern(written)
    if found is None:
        why = f"the pattern cannot be used, {problem_of(written)}"
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{why}: {glob[:200]!r}")
    return found


def _page(walk: Walk, path: str, wanted: Pattern | None = None, *, offset: int = 0, limit: int = 500) -> Listing:
    page: list[ListedEntry] = []
    total, end = 0, offset + limit
    with os_faults(path):
        for folder in walk.folders():
            shown = slice(max(0, offset - total), max(0, end - total))
            if wanted is None and not (folder.folders or folder.links or folder.others):
                page += _list_entries(folder, ((name, "file") for name in folder.files[shown]))
                total += len(folder.files)
                continue
            entries = folder.entries
            if wanted is not None:
                entries = [
                    (name, kind)
                    for name, kind in entries
                    if kind != "directory" and wanted.search(path_bytes(folder.path + name)) is not None
                ]
            page += _list_entries(folder, entries[shown])
            total += len(entries)
    return Listing(page, total, walk)


def _list_entries(folder: TreeFolder, entries: Iterable[tuple[str, Kind]]) -> Iterator[ListedEntry]:
    for name, kind in entries:
        target = None
        if kind == "link":
            with suppress(OSError):  # gone meanwhile
                target = os.readlink(os.path.join(folder.real, name))
        yield ListedEntry(folder.path + name, kind, target, folder.sizes.get(name))


def path_bytes(path: str) -> bytes:
    """A path for a pattern, which works on UTF-8; a name that is none keeps its bytes."""
    return path.encode("utf-8", "surrogateescape")


class Excludes:
    """Globs in order: each excludes its matches and everything below, and one that begins with `!` includes them again.
    Raises ToolFault for a meaningless glob."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._rules = [(glob_pattern(glob.removeprefix("!")), glob.startswith("!")) for glob in globs]

    def leave_out(self, path: str) -> bool:
        """True if a relative path is left out: the last glob that names it, or a directory above it, decides."""
        if not self._rules:
            return False
        parts = path.split("/")
        names = [path_bytes("/".join(parts[:count])) for count in range(1, len(parts) + 1)]
        for pattern, takes_back in reversed(self._rules):
            if any(pattern.search(name) is not None for name in names):
                return not takes_back
        return False


def list_files(
    path: str, scope: Scope, abandoned: Abandoned, exclude: Sequence[str] = (), *, recursive: bool = False
) -> tuple[list[str], str | None]:
    """The sorted paths of the files, and links, that are not left out; and why the walk stopped. Raises ToolFault."""
    excludes = Excludes(exclude)
    root = resolve(path, scope)
    walk = Walk(WalkParams(root, scope, MAX_DEPTH if recursive else 1, True, True), abandoned)
    paths: list[str] = []
    with os_faults(path):
        for folder in walk.folders():
            found = (folder.path + name for names in (folder.files, folder.links) for name in names)
            paths.extend(one for one in found if not excludes.leave_out(one))
    return sorted(paths), walk.stopped


# A page of a directory's entries begins after a name, so entries added or removed between two pages cause no other
# entry to be repeated or skipped. A large directory is read and sorted once: its names, but nothing else of its
# entries, are cached until it changes.

_BEFORE_CHECK: Final = "~"  # a name may hold it, too
_SETTLED_NS: Final = 100_000_000
"""A directory that changed so lately may change again without another time of change: its names are not kept."""


class Page(NamedTuple):
    """`entries` are paths from the directory at the real path `root`, with their kinds. `has_more`: others follow.
    `stopped` is the reason for an incomplete search."""

    root: str
    entries: list[tuple[str, Kind]]
    has_more: bool
    stopped: str | None

    def token(self, count: int) -> str:
        """The token of the page after the first `count` entries of this one."""
        return token_of(self.entries[count - 1][0], self.root)


class Pager:
    """Gives pages, and keeps the names of the last directory, replaced as a whole: several threads may use it."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[str, int, int, int, int], Names] | None = None

    def page(
        self,
        path: str,
        scope: Scope,
        abandoned: Abandoned,
        *,
        size: int,
        token: str | None = None,
        pattern: str | None = None,
        recursive: bool = False,
        files: bool = True,
        folders: bool = True,
        max_entries: int = MAX_ENTRIES,
    ) -> Page:
        """One page, after that of the `token`. Raises ToolFault."""
        wanted = None if pattern is None else glob_pattern(pattern)
        root = resolve(path, scope)
        after = "" if token is None else path_of(token, root)
        depth = MAX_DEPTH if recursive else 1
        walk = Walk(WalkParams(root, scope, depth, ignored_too=True, git_too=True, max_entries=max_entries), abandoned)
        found: list[tuple[str, Kind]] = []
        with os_faults(path):
            for entry, kind in _entries_after(walk, after) if recursive else self._inside(walk, root, after, size):
                if not (folders if kind == "directory" else files):
                    continue
                if wanted is not None and wanted.search(path_bytes(entry)) is None:
                    continue
                if len(found) == size:
                    return Page(root, found, has_more=True, stopped=None)
                found.append((entry, kind))
        return Page(root, found, has_more=False, stopped=walk.stopped)

    def has_current(self, directory: str) -> bool:
        """True if the names of the directory are kept, so that a page costs no look at all of it."""
        kept = self._kept
        try:
            return kept is not None and kept[0] == _key(directory)
        except (OSError, ValueError):  # the call itself says what is wrong
            return False

    def _inside(self, walk: Walk, root: str, after: str, size: int) -> Iterator[tuple[str, Kind]]:
        """The entries after `after`, in parts: policy decides only about those that are read."""
        names = self._names(walk, root)
        while True:
            part = _part(names, after, size + 1)
            if not part:
                return
            yield from walk.admit(root, part)
            after = part[-1][0]

    def _names(self, walk: Walk, root: str) -> Names:
        key = _key(root)
        kept = self._kept
        if kept is not None and kept[0] == key:
            return kept[1]
        started_ns = time.time_ns()
        names = walk.names(root)
        _, device, _, modified_ns, changed_ns = key
        settled = max(modified_ns, changed_ns) < started_ns - _SETTLED_NS
        self._kept = (key, names) if settled and walk.stopped is None and is_local(device) else None
        return names


def _key(directory: str) -> tuple[str, int, int, int, int]:
    status = os.stat(directory)
    return directory, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _part(names: Names, after: str, count: int) -> list[tuple[str, Kind]]:
    parts = []
    for kind, of_kind in names:
        begin = bisect_right(of_kind, after) if after else 0
        parts.append([(name, kind) for name in of_kind[begin : begin + count]])
    return list(heapq.merge(*parts))[:count]


def _entries_after(walk: Walk, after: str) -> Iterator[tuple[str, Kind]]:
    above, _, name = after.rpartition("/")
    parent = above.split("/") if above else []
    for folder in walk.folders(after=after):
        at = folder.path.split("/")[:-1]
        if at < parent:
            continue  # its entries come before, and some of what is below it does not
        for entry, kind in folder.entries:
            if at != parent or entry > name:
                yield folder.path + entry, kind


def token_of(path: str, root: str) -> str:
    """The token of the page after an entry of the directory at `root`: its name, with `%` and bytes that JSON cannot
    represent as `%XX`, and a check that detects invalid tokens and those of other directories."""
    check = _check(path, root)
    if not path.isascii() or "%" in path or not path.isprintable():
        shown = (
            char if char != "%" and char.isprintable() else quote_from_bytes(os.fsencode(char), "") for char in path
        )
        path = "".join(shown)
    return f"{path}{_BEFORE_CHECK}{check}"


def path_of(token: str, root: str) -> str:
    """The inverse of `token_of`. Raises ToolFault(INVALID_ARGUMENT) if it is not a token of this directory."""
    name, _, check = token.rpartition(_BEFORE_CHECK)
    try:
        path = os.fsdecode(unquote_to_bytes(name))
    except UnicodeEncodeError as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.page_token: contains a lone surrogate") from error
    if check != _check(path, root):
        problem = "is not a next_page_token of this directory; the first page needs none"
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.page_token: {problem}: {token[:200]!r}")
    return path


def _check(path: str, root: str) -> str:
    return hashlib.sha256(os.fsencode(f"{root}\0{path}")).hexdigest()[:8]


_MAX_ALTERNATIVES: Final = 1000
_CLASS: Final = re.compile(r"\[(!|\^)?(\]?[^\]/]*)\]")
_RANGE: Final = re.compile(r"(?s)(.)-(.)")
_MEMBER: Final = re.compile(r"(?s)(.)(?:-(.))?")
_TOKEN: Final = re.compile(rf"(?s)\\.|{_CLASS.pattern}")


class BadGlob(ValueError):
    """A meaningless pattern; the message is the reason."""


def expression(pattern: str) -> str:
    """Return the expression that matches a whole relative path with slashes. `*` and `?` stay within a name, `**` goes
    across directories, `[...]` is one character, `{a,b}` is either. Without a slash it means a name at any depth. A
    part between slashes also matches the name that is equal to it, such as a directory `[locale]`. Raises BadGlob."""
    anywhere = "/" not in pattern.strip("/")
    inside = pattern.removeprefix("./").strip("/")
    if not inside:
        raise BadGlob("the pattern names nothing")
    *above, last = _parts(inside)
    written = "".join("(?:.*/)?" if part == "**" else f"{_either(part)}/" for part in above) + _either(last)
    if written.count("|") > _MAX_ALTERNATIVES:
        raise BadGlob(f"it has more than {_MAX_ALTERNATIVES} alternatives")
    return f"(?s)^(?:.*/)?{written}$" if anywhere else f"(?s)^{written}$"


def _parts(pattern: str) -> list[str]:
    parts, depth, at = [""], 0, 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        text = pattern[at] if token is None else token[0]
        if text == "{" and "}" in pattern[at:]:
            depth += 1
        elif text == "}" and depth:
            depth -= 1
        if text == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += text
        at += len(text)
    return parts


def _either(part: str) -> str:
    written = _write(part)
    return f"(?:{written}|{re.escape(part)})" if any(mark in part for mark in "[{\\") else written


def _write(pattern: str) -> str:
    out: list[str] = []
    depth = at = 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at) and at and pattern[at - 1] == "/":  # in braces
            out.append("(?:.*/)?")
            at += 3
            continue
        if pattern.startswith("**", at):
            out.append(".*")
            at += 2
            continue
        if char == "[" and (found := _CLASS.match(pattern, at)) is not None:
            out.append(_class(found[1], found[2]))
            at = found.end()
            continue
        if char == "\\" and at + 1 < len(pattern):
            out.append(re.escape(pattern[at + 1]))
            at += 2
            continue
        if char == "{" and "}" in pattern[at:]:
            depth += 1
            out.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            out.append(")")
        elif char == "," and depth:
            out.append("|")
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)))
        at += 1
    if depth:
        raise BadGlob("a brace is not closed")
    return "".join(out)


def _class(negated: str | None, members: str) -> str:
    if any(low > high for low, high in _RANGE.findall(members)):  # no class then, as in [user-id]
        return re.escape(f"[{negated or ''}{members}]")
    inner = _MEMBER.sub(lambda found: "-".join(map(re.escape, filter(None, found.groups()))), members)
    return f"[^/{inner}]" if negated else f"[{inner}]"


def hidden_names(globs: Sequence[str]) -> Callable[[str], bool]:
    """True for the relative path of an entry that listings and searches skip with everything below, because files with
    such names tend to contain secrets (SK 5.2). A glob without a slash means a name at any depth; case does not count.
    Raises BadGlob."""
    patterns = _compile(tuple(globs))
    return lambda path: any(pattern.search(path_bytes(path)) is not None for pattern in patterns)


@functools.lru_cache(maxsize=4)
def _compile(globs: tuple[str, ...]) -> tuple[Pattern, ...]:
    """Few patterns for many globs, because each entry of a walk is matched against all of them."""
    together: list[list[str]] = [[]]
    for glob in globs:
        written = f"(?:{expression(glob)})"
        last = together[-1]
        if last and sum(map(len, last)) + len(last) + len(written) > MAX_CHARACTERS - 10:
            together.append([])
        together[-1].append(written)
    return tuple(_pattern(alternatives) for alternatives in together if alternatives)


def _pattern(alternatives: list[str]) -> Pattern:
    found = compile_pattern(f"(?i)(?:{'|'.join(alternatives)})")
    if found is None:
        raise BadGlob(f"cannot be used: {alternatives[0][:200]}")
    return found
