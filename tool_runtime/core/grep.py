"""Files searched by a regular expression of RE2's syntax, in time that is linear in the text. Blocking: callers run it
in a thread.

A line is what stands between line feeds, and a pattern is held against one line at a time. A return at its end belongs
to it where the pattern names one. A byte order mark says how a file is read, as for ReadFile; other files with a null
byte in their first 8 KiB are binary and are passed over. Where there are many files and `rg` is there, it finds those
that have a match; what is shown is read here all the same, so both ways give the same answers in the same order.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from policy.patterns import compiled, problem_of
from tool_runtime.core.files import refuse_abandoned
from tool_runtime.core.listing import as_bytes, glob_below
from tool_runtime.core.paths import Scope, open_dir, open_regular, resolve
from tool_runtime.core.ripgrep import Question, Search, for_ripgrep
from tool_runtime.core.tree import MAX_DEPTH, Walk, WalkParams
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.output.text import is_unprintable, looks_binary, strip_bom
from tool_runtime.platform.directories import BY_DESCRIPTOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policy.patterns import Pattern
    from tool_runtime.core.hidden import HiddenNames
    from tool_runtime.core.ripgrep import Ripgrep
    from tool_runtime.core.tree import Folder
    from tool_runtime.tool import Abandoned

Mode = Literal["content", "files", "counts"]
MANY_FILES: Final = 500
"""From here on `rg` is worth a process."""
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Larger files are not searched, and counted."""
_LONGEST_MARK: Final = 4
_WIDE: Final = ("utf-16-le", "utf-16-be")  # the ones that `rg` knows by their marks, too
_NAMES_RETURN: Final = re.compile(r"\r|\\(?:r|x0[dD]|x\{0*[dD]\}|0?15)|cntrl")
_LINE_BREAK: Final = re.compile(r"\n|(?<!\\)(?:\\\\)*\\n")


class GrepParams(NamedTuple):
    """`glob` limits the files by name, `before` and `after` are lines of context. `limit` counts matching lines in
    content, else files, and so many of `offset` are passed over. `literal`: the pattern is a text. `rg`: to be used.
    What `hidden` names is passed over. `depth`: 1 is the directory's own files; after `max_files` the search ends.
    `printable_only`: files of which more than 30% cannot be printed are binary, too (NT)."""

    path: str
    scope: Scope
    pattern: str
    glob: str | None = None
    mode: Mode = "content"
    before: int = 0
    after: int = 0
    ignore_case: bool = False
    literal: bool = False
    limit: int = 200
    offset: int = 0
    ignored_too: bool = False
    max_file_size_bytes: int | None = None
    rg: Ripgrep | None = None
    depth: int = MAX_DEPTH
    max_files: int | None = None
    printable_only: bool = False
    hidden: HiddenNames | None = None


class Line(NamedTuple):
    """A line of a file, from 1, without its end; `start` is where the match begins in it, None for context."""

    number: int
    text: bytes
    start: int | None


class Hit(NamedTuple):
    """A file with matches: its path from the root, how many lines match (0 where nobody counted), and in content the
    lines to show in order."""

    path: str
    matches: int = 0
    lines: Sequence[Line] = ()


class GrepOutcome(NamedTuple):
    """`hits` in the order of the walk. `files` were searched, `large` and `unreadable` could not be; the others are the
    walk's. `more`: there are matches beyond the limit."""

    root: str
    hits: list[Hit]
    files: int
    more: bool
    large: int
    unreadable: int
    left_out: int
    ignored: int
    stopped: str | None
    hidden: int = 0


class _Files(NamedTuple):
    """Files to be searched: names in a directory, which is `path` from the root and `real` itself."""

    path: str
    real: str
    names: Sequence[str]


def grep(params: GrepParams, abandoned: Abandoned) -> GrepOutcome:
    """Search a file, or the files of a directory. Raises ToolFault: INVALID_ARGUMENT for a pattern that RE2 refuses."""
    wanted = _pattern(params)
    root = resolve(params.path, params.scope)
    search = _Search(params, wanted, abandoned)
    with os_faults(params.path):
        if not os.path.isdir(root):
            directory, name = os.path.split(root)
            hits = search.through([_Files("", directory, [name])], strictly=True)
            return GrepOutcome(directory, hits, 1, search.more, search.large, 0, 0, 0, None)
        walk = Walk(
            WalkParams(
                root,
                params.scope,
                params.depth,
                params.ignored_too,
                git_too=False,
                with_sizes=search.limited,
                hidden=params.hidden,
            ),
            abandoned,
        )
        candidates, narrowed = search.candidates(root, walk)
        hits = search.through(candidates if narrowed is None else narrowed)
    return GrepOutcome(
        root,
        hits,
        sum(len(files.names) for files in candidates),
        search.more,
        search.large,
        search.unreadable + walk.unreadable,
        walk.left_out,
        walk.ignored,
        search.stopped or walk.stopped,
        walk.hidden,
    )


def _pattern(params: GrepParams) -> Pattern:
    flags = "(?mi)" if params.ignore_case else "(?m)"
    written = flags + (quoted(params.pattern) if params.literal else f"(?:{params.pattern})")
    if not params.literal and compiled(params.pattern) is None:  # by itself: a bracket could close the group around it
        why = problem_of(params.pattern)
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.pattern: {why} (RE2's syntax)")
    found = compiled(written)
    if found is None:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.pattern: {problem_of(written)}")
    if _LINE_BREAK.search(params.pattern) is not None:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.pattern: lines are searched one by one, so it has no line break")
    return found


def quoted(text: str) -> str:
    """An expression that matches the text and nothing else."""
    return "".join(char if char.isalnum() or not char.isascii() else f"\\x{ord(char):02x}" for char in text)


class _Search:
    """One search: what is looked for, and what was counted on the way."""

    def __init__(self, params: GrepParams, wanted: Pattern, abandoned: Abandoned) -> None:
        self._params = params
        self._wanted = wanted
        self._abandoned = abandoned
        self._with_returns = _NAMES_RETURN.search(params.pattern) is not None
        limit = params.max_file_size_bytes
        self.limited = limit is not None
        self._most = MAX_FILE_BYTES if limit is None else min(limit, MAX_FILE_BYTES)
        self._passed = self._shown = 0
        self.large = self.unreadable = 0
        self.more = False
        self.stopped: str | None = None

    def candidates(self, root: str, walk: Walk) -> tuple[list[_Files], list[_Files] | None]:
        """The files of the walk that are to be searched; and those of them in which `rg` finds the pattern, None where
        it is not asked, or does not take the question."""
        params = self._params
        glob = None if params.glob is None else glob_below(params.glob, root, params.path)
        rg = self._ripgrep(root)
        found: list[_Files] = []
        left = params.max_files
        try:
            for folder in walk.folders():
                names = self._wanted_names(folder, glob)
                if left is not None:
                    if len(names) > left:
                        self.stopped = f"stopped after {params.max_files} files"
                        names = names[:left]
                    left -= len(names)
                found.append(_Files(folder.path, folder.real, names))
                if rg is not None:
                    rg.add(folder.path, names, complete=folder.complete and len(names) == len(folder.files))
                if self.stopped is not None:
                    break
            answer = None if rg is None else rg.answer(self._abandoned)
        finally:
            if rg is not None:
                rg.close()
        if answer is None:
            return found, None
        narrowed: list[_Files] = []
        for files in found:
            told = answer.get(files.path)
            names = [name for name in files.names if name in told] if told else []
            if names:
                narrowed.append(files._replace(names=names))
        return found, narrowed

    def _ripgrep(self, root: str) -> Search | None:
        params = self._params
        if params.rg is None:
            return None
        pattern = quoted(params.pattern) if params.literal else params.pattern
        written = for_ripgrep(pattern, with_returns=self._with_returns)
        if written is None:
            return None
        return Search(Question(params.rg, root, written, params.ignore_case, self._most), MANY_FILES)

    def _wanted_names(self, folder: Folder, glob: Pattern | None) -> list[str]:
        names = folder.files
        if glob is not None:
            names = [name for name in names if glob.search(as_bytes(folder.path + name)) is not None]
        if folder.sizes:
            small = [name for name in names if folder.sizes.get(name, math.inf) <= self._most]
            self.large += len(names) - len(small)
            names = small
        return names

    def through(self, candidates: Sequence[_Files], *, strictly: bool = False) -> list[Hit]:
        """The hits in order, until there are as many as wanted. Raises ToolFault for a call that has been given up, and
        with `strictly` what keeps a file from being read."""
        hits: list[Hit] = []
        for files in candidates:
            if not files.names:
                continue
            try:
                with _entered(files.real) as fd:
                    hits += self._through_folder(fd, files, strictly=strictly)
            except (OSError, ToolFault):  # of the directory itself: what is wrong with a file is dealt with there
                if strictly or self._abandoned.flag:
                    raise
                self.unreadable += len(files.names)
            if self.more:
                break
        return hits

    def _through_folder(self, fd: int | None, files: _Files, *, strictly: bool) -> Iterator[Hit]:
        for name in files.names:
            refuse_abandoned(self._abandoned)
            try:
                content = self._content(fd, name if fd is not None else os.path.join(files.real, name))
            except (OSError, ToolFault):
                if strictly:
                    raise
                self.unreadable += 1
                continue
            hit = None if content is None else self._hit(files.path + name, content)
            if hit is not None:
                yield hit
            if self.more:
                return

    def _content(self, fd: int | None, name: str) -> bytes | None:
        """What is in the file, as UTF-8 where a byte order mark names another encoding, and without the returns at the
        ends of lines that the pattern does not name; None for one that is binary or too large. Raises OSError and
        ToolFault."""
        opened, status = open_regular(fd, name, os.O_RDONLY)
        with open(opened, "rb", buffering=0) as file:
            content = file.read(min(status.st_size, self._most) + 1)
            skip, marked = strip_bom(content[:_LONGEST_MARK])
            wide = marked if marked in _WIDE else None
            if wide is None and (looks_binary(content) or (self._params.printable_only and is_unprintable(content))):
                return None
            if status.st_size <= self._most and len(content) > status.st_size:  # it grows
                content += file.read(self._most + 1 - len(content))
        if max(len(content), status.st_size) > self._most:
            self.large += 1
            return None
        text = content[skip:] if wide is None else content[skip:].decode(wide, "replace").encode()
        if wide is not None and looks_binary(text):
            return None
        if self._with_returns or b"\r" not in text:
            return text
        return text.replace(b"\r\n", b"\n")

    def _hit(self, path: str, content: bytes) -> Hit | None:
        if self._params.mode == "files":
            found = next(self._matching(content), None)
            return Hit(path) if found is not None and self._takes() else None
        if self._params.mode == "counts":
            count = sum(1 for _ in self._matching(content))
            return Hit(path, count) if count and self._takes() else None
        return self._lines(path, content)

    def _takes(self) -> bool:
        """True if one more match is to be shown: behind the offset, within the limit."""
        if self._passed < self._params.offset:
            self._passed += 1
            return False
        if self._shown == self._params.limit:
            self.more = True
            return False
        self._shown += 1
        return True

    def _matching(self, content: bytes) -> Iterator[tuple[int, int, int]]:
        """Each matching line: where it begins and ends, and where the match begins in it."""
        at, size = 0, len(content)
        search = self._wanted.search
        while at < size:
            found = search(content, at)
            if found is None:
                return
            place = found.span()[0]
            start = content.rfind(b"\n", at, place) + 1 or at
            end = content.find(b"\n", place)
            end = size if end < 0 else end
            if start == size:  # behind the last line feed there is no line
                return
            alone = search(content[start:end])  # what was found may reach over the end of the line
            if alone is not None:
                yield start, end, alone.span()[0]
            at = end + 1

    def _lines(self, path: str, content: bytes) -> Hit | None:
        shown: dict[int, Line] = {}
        count, number, counted_to = 0, 1, 0
        for start, end, match in self._matching(content):
            if not self._takes():
                if self.more:
                    break
                continue
            count += 1
            number += content.count(b"\n", counted_to, start)
            counted_to = start
            for line in _context(content, start, number, self._params.before):
                shown.setdefault(line.number, line)
            shown[number] = Line(number, content[start:end], match)
            for line in _context_behind(content, end, number, self._params.after):
                shown.setdefault(line.number, line)
        return Hit(path, count, [shown[number] for number in sorted(shown)]) if count else None


def _context(content: bytes, start: int, number: int, wanted: int) -> Iterator[Line]:
    """Up to `wanted` lines before the line `number` at `start`."""
    while wanted and start > 0:
        end = start - 1
        start = content.rfind(b"\n", 0, end) + 1
        number, wanted = number - 1, wanted - 1
        yield Line(number, content[start:end], None)


def _context_behind(content: bytes, end: int, number: int, wanted: int) -> Iterator[Line]:
    while wanted and end + 1 < len(content):
        start = end + 1
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        number, wanted = number + 1, wanted - 1
        yield Line(number, content[start:end], None)


@contextmanager
def _entered(directory: str) -> Iterator[int | None]:
    """A descriptor of the directory, None where the system does not work with such. Raises OSError and ToolFault."""
    fd = open_dir(directory) if BY_DESCRIPTOR else None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
