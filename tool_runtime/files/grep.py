"""Files searched by a regular expression of RE2's syntax, in time that is linear in the text. Blocking: callers run it
in a thread.

A line is the text between line feeds, and a pattern is matched against one line at a time. A return at its end belongs
to it if the pattern names one. A byte order mark determines a file's encoding, as for ReadFile; other files with a null
byte in their first 8 KiB are binary and are skipped. If there are many files and `rg` is installed, it finds those with
a match; the shown lines are read here in any case, so both ways give the same answers in the same order.
"""

from __future__ import annotations

import functools
import math
import os
import re
import stat
import subprocess
import tempfile
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple

from policy.patterns import compile_pattern, problem_of
from tool_runtime.files import Scope, hold_open, open_dir, open_regular, resolve
from tool_runtime.files.listing import (
    Pager,
    find_files,
    glob_below,
    hidden_names,
    list_directory,
    list_files,
    path_bytes,
)
from tool_runtime.files.read import is_near
from tool_runtime.files.tree import MAX_DEPTH, Walk, WalkParams
from tool_runtime.output import is_unprintable, looks_binary, strip_bom
from tool_runtime.platform.directories import BY_DESCRIPTOR
from tool_runtime.platform.environment import find_program
from tool_runtime.tool import FaultKind, NeedsThread, ToolFault, os_faults, smallest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent_host.contracts import ToolRequest
    from policy.patterns import Pattern
    from tool_runtime.files.listing import Listing, Page
    from tool_runtime.files.tree import TreeFolder
    from tool_runtime.tool import Abandoned, CallContext, RuntimeSettings

Mode = Literal["content", "files", "counts"]
MANY_FILES: Final = 500  # from here on `rg` is worth a process
MAX_FILE_BYTES: Final = 64 * 1024 * 1024  # larger files are not searched, and counted
_LONGEST_MARK: Final = 4
_WIDE: Final = ("utf-16-le", "utf-16-be")  # those that `rg` also recognizes by their marks
_NAMES_RETURN: Final = re.compile(r"\r|\\(?:r|x0[dD]|x\{0*[dD]\}|0?15)|cntrl")
_LINE_BREAK: Final = re.compile(r"\n|(?<!\\)(?:\\\\)*\\n")


class GrepParams(NamedTuple):
    """`glob` limits the files by name, `before` and `after` are lines of context. `limit` counts matching lines in
    content, else files, and `offset` of them are passed over. `literal`: the pattern is a text. `rg` is to be used.
    What `hidden` names is passed over. `depth` 1 is the directory's own files; after `max_files` the search ends.
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
    hidden: Callable[[str], bool] | None = None


class MatchLine(NamedTuple):
    """A line of a file, from 1, without its end; `start` is the start of the match in it, None for context."""

    number: int
    text: bytes
    start: int | None


class Hit(NamedTuple):
    """A file with matches, by its path from the root; `matches` is 0 if not counted, `lines` are for content."""

    path: str
    matches: int = 0
    lines: Sequence[MatchLine] = ()


class GrepOutcome(NamedTuple):
    """`hits` in the order of the walk, which has counted the omitted entries. `files` were searched, `large` and
    `unreadable` could not be. `has_more`: there are matches beyond the limit; `stopped` is the reason for an incomplete
    search."""

    hits: list[Hit]
    files: int
    has_more: bool
    large: int
    unreadable: int
    stopped: str | None
    walk: Walk


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
        is_file = not os.path.isdir(root)
        directory, name = os.path.split(root) if is_file else (root, "")
        sized = params.max_file_size_bytes is not None
        walked = WalkParams(directory, params.scope, params.depth, params.ignored_too, hidden=params.hidden)
        walk = Walk(walked._replace(with_sizes=sized), abandoned)
        found = ([_Files("", directory, [name])], None) if is_file else search.candidates(root, walk)
        hits = search.search_all(*found, strictly=is_file)
    files, unreadable = sum(len(files.names) for files in found[0]), search.unreadable + walk.unreadable
    return GrepOutcome(hits, files, search.has_more, search.large, unreadable, search.stopped or walk.stopped, walk)


def _pattern(params: GrepParams) -> Pattern:
    flags = "(?mi)" if params.ignore_case else "(?m)"
    written = flags + (quote(params.pattern) if params.literal else f"(?:{params.pattern})")
    if not params.literal and compile_pattern(params.pattern) is None:  # a bracket could close the group around it
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.pattern: {problem_of(params.pattern)} (RE2's syntax)")
    found = compile_pattern(written)
    if found is None:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.pattern: {problem_of(written)}")
    if _LINE_BREAK.search(params.pattern) is not None:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.pattern: lines are searched one by one, so it has no line break")
    return found


def quote(text: str) -> str:
    """An expression that matches the text and nothing else."""
    return "".join(char if char.isalnum() or not char.isascii() else f"\\x{ord(char):02x}" for char in text)


class _Search:
    def __init__(self, params: GrepParams, wanted: Pattern, abandoned: Abandoned) -> None:
        self._params = params
        self._wanted = wanted
        self._abandoned = abandoned
        self._with_returns = _NAMES_RETURN.search(params.pattern) is not None
        limit = params.max_file_size_bytes
        self._most = MAX_FILE_BYTES if limit is None else min(limit, MAX_FILE_BYTES)
        self._passed = self._shown = 0
        self.large = self.unreadable = 0
        self.has_more = False
        self.stopped: str | None = None

    def candidates(self, root: str, walk: Walk) -> tuple[list[_Files], Mapping[str, set[str]] | None]:
        """The files of the walk to be searched; and the names, by folder, of those in which `rg` finds the pattern,
        None if it is not used, or does not support the pattern."""
        params = self._params
        glob = None if params.glob is None else glob_below(params.glob, root, params.path)
        rg: Search | None = None
        if params.rg is not None:
            pattern = quote(params.pattern) if params.literal else params.pattern
            written = translate_pattern(pattern, with_returns=self._with_returns)
            if written is not None:
                rg = Search(params.rg, root, written, MANY_FILES, self._most, ignore_case=params.ignore_case)
        found: list[_Files] = []
        left = params.max_files
        try:
            for folder in walk.folders():
                names = self._names_to_search(folder, glob)
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
            return found, None if rg is None else rg.answer(self._abandoned)
        finally:
            if rg is not None:
                rg.close()

    def _names_to_search(self, folder: TreeFolder, glob: Pattern | None) -> list[str]:
        names = folder.files
        if glob is not None:
            names = [name for name in names if glob.search(path_bytes(folder.path + name)) is not None]
        if folder.sizes:
            small = [name for name in names if folder.sizes.get(name, math.inf) <= self._most]
            self.large += len(names) - len(small)
            names = small
        return names

    def search_all(
        self, candidates: Sequence[_Files], with_match: Mapping[str, set[str]] | None, *, strictly: bool = False
    ) -> list[Hit]:
        """The hits in order, until there are as many as wanted. Raises ToolFault for a call that has been given up, and
        with `strictly` what keeps a file from being read."""
        hits: list[Hit] = []
        for one in candidates:
            matching = one.names if with_match is None else with_match.get(one.path, ())
            files = one if with_match is None else one._replace(names=[name for name in one.names if name in matching])
            if not files.names:
                continue
            try:
                with hold_open(open_dir(files.real)) if BY_DESCRIPTOR else nullcontext() as fd:
                    hits += self._search_folder(fd, files, strictly=strictly)
            except (OSError, ToolFault):  # of the directory itself; problems with a file are handled there
                if strictly or self._abandoned.flag:
                    raise
                self.unreadable += len(files.names)
            if self.has_more:
                break
        return hits

    def _search_folder(self, fd: int | None, files: _Files, *, strictly: bool) -> Iterator[Hit]:
        for name in files.names:
            self._abandoned.refuse()
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
            if self.has_more:
                return

    def _content(self, fd: int | None, name: str) -> bytes | None:
        """The content as UTF-8, without returns at the ends of lines that the pattern does not name; None for a file
        that is binary or too large. Raises OSError and ToolFault."""
        opened, status = open_regular(fd, name)
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
        if self._passed < self._params.offset:
            self._passed += 1
            return False
        if self._shown == self._params.limit:
            self.has_more = True
            return False
        self._shown += 1
        return True

    def _matching(self, content: bytes) -> Iterator[tuple[int, int, int]]:
        """Each matching line: its start, its end, and the start of the match in it."""
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
            if start == size:  # there is no line after the last line feed
                return
            alone = search(content[start:end])  # the match may extend beyond the end of the line
            if alone is not None:
                yield start, end, alone.span()[0]
            at = end + 1

    def _lines(self, path: str, content: bytes) -> Hit | None:
        shown: dict[int, MatchLine] = {}
        count, number, counted_to = 0, 1, 0
        for start, end, match in self._matching(content):
            if not self._takes():
                if self.has_more:
                    break
                continue
            count += 1
            number += content.count(b"\n", counted_to, start)
            counted_to = start
            for line in _context_before(content, start, number, self._params.before):
                shown.setdefault(line.number, line)
            shown[number] = MatchLine(number, content[start:end], match)
            for line in _context_after(content, end, number, self._params.after):
                shown.setdefault(line.number, line)
        return Hit(path, count, [shown[number] for number in sorted(shown)]) if count else None


def _context_before(content: bytes, start: int, number: int, wanted: int) -> Iterator[MatchLine]:
    while wanted and start > 0:
        end = start - 1
        start = content.rfind(b"\n", 0, end) + 1
        number, wanted = number - 1, wanted - 1
        yield MatchLine(number, content[start:end], None)


def _context_after(content: bytes, end: int, number: int, wanted: int) -> Iterator[MatchLine]:
    while wanted and end + 1 < len(content):
        start = end + 1
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        number, wanted = number + 1, wanted - 1
        yield MatchLine(number, content[start:end], None)


# `rg`, if installed, finds which of many files have a match, equal to RE2's. The two engines differ in their syntax
# and, for a few constructs, in its meaning: a pattern that `translate_pattern` cannot express with the same meaning for
# both is used with RE2 alone.

_MAX_BATCH_BYTES: Final = 512 * 1024
# The first process begins soon; the others are few, since each costs some milliseconds.
_FIRST_FILES, _LATER_FILES = 2000, 20_000
_POLL_S: Final = 0.05
_OPTIONS: Final = (
    "--no-config", "--no-ignore", "--no-ignore-dot", "--no-ignore-global", "--hidden", "--text", "--encoding=auto",
    "--no-messages", "--color=never", "--no-heading", "--files-with-matches", "--null", "--sort=none",
    "--max-depth=1",
)  # fmt: skip
_NO_MATCH, _FAILED = 1, 2

# What RE2 means by them: ASCII, and no vertical tab. No line has a line feed, and `rg` takes none in a pattern.
_CLASSES: Final = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]", "s": r"[\t\f\r ]",
                   "S": r"[^\t\f\r ]", "b": r"(?-u:\b)"}  # fmt: skip
_IN_CLASS: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\f\r "}
_END: Final = r"(?:\r?$)"
_SAME: Final = frozenset("tfra")
_TOKEN: Final = re.compile(
    r"""
      (?P<escape>\\x[0-7][0-9a-fA-F]|\\[A-Za-wyz])
    | \\(?P<mark>[^\w\s])
    | (?P<repeat>\{[0-9]{1,3}(?:,[0-9]{0,3})?\})
    | (?P<group>\(\?i\)(?![*+?{])|\(\?i:|\(\?:|\((?!\?))
    | (?P<class>\[\^?(?:\[:\^?[a-z]+:\]|\\.|[^\]\[\\&~\n])+\])
    | (?P<plain>[A-Za-z0-9 _"'#%,:;<=>@`~/!&\-] | [.^$|)*+?])
    """,
    re.VERBOSE,
)
_MEMBER: Final = re.compile(
    r"""
      (?P<posix>\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|upper|word|xdigit):\])
    | \\(?P<known>[dws])
    | \\(?P<same>[tfra])
    | \\(?P<mark>[^\w\s])
    | (?P<plain>[A-Za-z0-9 _"'\#%,:;<=>@`/!.^$|()*+?{}])
    """,
    re.VERBOSE,
)


class Ripgrep(NamedTuple):
    """The program at the real path `program`; `environment` is all that it is given."""

    program: str
    environment: dict[str, str]


class Search:
    """One question, asked of files while they are found, by a process for some thousands of them. `pattern` is in the
    words of `translate_pattern`; of fewer than `least_files` nothing is asked."""

    def __init__(
        self, rg: Ripgrep, root: str, pattern: str, least_files: int, max_file_bytes: int, *, ignore_case: bool
    ) -> None:
        options = [*_OPTIONS, f"--max-filesize={max_file_bytes}", f"--regexp={pattern}"]
        self._argv = [rg.program, *options, *(["--ignore-case"] if ignore_case else []), "--"]
        self._environment = rg.environment
        self._root = root
        self._least_files = least_files
        self._waiting: list[str] = []
        self._waiting_bytes = self._waiting_files = self._files = 0
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def add(self, folder: str, names: Sequence[str], *, complete: bool) -> None:
        """Ask of the files `names` of a folder, a path from the root, empty or with a slash at its end. `complete`:
        these are all files that are in it, so that the folder stands for them."""
        if not names:
            return
        paths = [folder or "./"] if complete else [f"./{folder}{name}" for name in names]
        for path in paths:
            self._waiting.append(path)
            self._waiting_bytes += len(path) * 4 + 8
            if self._waiting_bytes > _MAX_BATCH_BYTES:
                self._ask()
        self._files += len(names)
        self._waiting_files += len(names)
        enough = _LATER_FILES if self._running else max(_FIRST_FILES, self._least_files)
        if self._waiting_files >= enough:
            self._ask()

    def answer(self, abandoned: Abandoned) -> dict[str, set[str]] | None:
        """The names of the files with a match, by folder; None if there are too few files, or if `rg` does not support
        the pattern. Raises ToolFault for an abandoned call."""
        try:
            if self._files < self._least_files:
                return None
            self._ask()
            outputs = [_read_output(process, stdout, abandoned) for process, stdout in self._running]
        finally:
            self.close()
        found: dict[str, set[str]] = {}
        for output in outputs:
            if output is None:
                return None
            for path in output.split(b"\0")[:-1]:
                folder, _, name = os.fsdecode(path).removeprefix("./").rpartition("/")
                found.setdefault(f"{folder}/" if folder else "", set()).add(name)
        return found

    def close(self) -> None:
        """End what runs."""
        for process, stdout in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stderr is not None:
                process.stderr.close()
            stdout.close()
        self._running = []

    def _ask(self) -> None:
        if not self._waiting:
            return
        stdout = tempfile.TemporaryFile()  # noqa: SIM115  closed with its process
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE}
        argv = [*self._argv, *self._waiting]
        process = subprocess.Popen(argv, cwd=self._root, env=self._environment, **streams)
        self._running.append((process, stdout))
        self._waiting, self._waiting_bytes, self._waiting_files = [], 0, 0


def _read_output(process: subprocess.Popen[bytes], stdout: IO[bytes], abandoned: Abandoned) -> bytes | None:
    """The output; None if it fails for any reason but unreadable files, which it does not report."""
    while True:
        try:
            _, complaint = process.communicate(timeout=_POLL_S)
            break
        except subprocess.TimeoutExpired:
            abandoned.refuse()
    if complaint or process.returncode not in (0, _NO_MATCH, _FAILED):
        return None
    stdout.seek(0)
    return stdout.read()


def find_ripgrep(search_path: str, outside: Sequence[str]) -> Ripgrep | None:
    """The real path of `rg` on PATH; None if there is none outside of the places `outside`."""
    program = find_program("rg", search_path, outside)
    if program is None:
        return None
    kept = {name: os.environ[name] for name in ("SYSTEMROOT", "TMPDIR", "TEMP") if name in os.environ}
    return Ripgrep(os.path.realpath(program), kept)


def translate_pattern(pattern: str, *, with_returns: bool = True) -> str | None:
    """A pattern of RE2's syntax in the form with the same meaning for `rg`, None if there is no known one. Unless
    `with_returns`, it also finds lines that match without the return before their end."""
    written: list[str] = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        part = None if token is None else _translate_token(token)
        if token is None or part is None:
            return None
        written.append(_END if part == "$" and not with_returns else part)
        at = token.end()
    return "".join(written)


def _translate_token(token: re.Match[str]) -> str | None:
    if token["escape"] is not None:
        name = token["escape"][1:]
        return token["escape"] if name in _SAME or len(name) > 1 else _CLASSES.get(name)
    if token["mark"] is not None:
        return f"\\x{ord(token['mark']):02x}" if token["mark"].isascii() else None
    return _class(token["class"]) if token["class"] is not None else token[0]


def _class(text: str) -> str | None:
    inside = text[2:-1] if text.startswith("[^") else text[1:-1]
    written: list[str] = []
    at, last = 0, ""
    while at < len(inside):
        char = inside[at]
        if char == "-":  # a range of two plain characters, or a hyphen at either end
            following = inside[at + 1 : at + 2]
            if not (last.isalnum() and following.isalnum()) and 0 < at < len(inside) - 1:
                return None
            written.append("-" if 0 < at < len(inside) - 1 else r"\x2d")
            at, last = at + 1, ""
            continue
        member = _MEMBER.match(inside, at)
        if member is None:
            return None
        last = ""
        if member["known"] is not None:
            written.append(_IN_CLASS[member["known"]])
        elif member["mark"] is not None:
            written.append(f"\\x{ord(member['mark']):02x}")
        elif member["plain"] is not None:
            last = member["plain"]
            written.append(last if last.isalnum() else f"\\x{ord(last):02x}")
        else:
            written.append(member[0])
        at = member.end()
    return f"[{'^' if text.startswith('[^') else ''}{''.join(written)}]"


# Listings and searches of the tools of all families. They block; small and near ones run at once.

_LISTED_AT_ONCE: Final = 200
_PAGED_AT_ONCE: Final = 500
_MAX_NAMES: Final = 2_000_000  # entries of one directory that pages are made of


class Trees:
    """Each operation takes more fields of its parameters by name, and raises ToolFault and NeedsThread."""

    def __init__(self, settings: RuntimeSettings, scope: Callable[[ToolRequest], Scope]) -> None:
        self._settings = settings
        self._scope = scope
        self._pager = Pager()

    @functools.cached_property
    def hidden(self) -> Callable[[str], bool]:
        """True for a path that the settings hide."""
        return hidden_names(self._settings.hidden_files)

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return find_ripgrep(os.environ.get("PATH", ""), self._settings.writable_places)

    def list_entries(self, call: CallContext, **given: Any) -> Listing:
        """A page of a directory's entries, by default the workspace's."""
        path = self._path(call)
        if call.at_once:
            if given.get("depth", 1) > 1:
                raise NeedsThread
            _refuse_far(path, stat.S_ISDIR)
            given["max_entries"] = _LISTED_AT_ONCE
        listing = list_directory(path, self._scope(call.request), call.abandoned, **given)
        if listing.walk.stopped is not None:
            call.need_thread()
        return listing

    def page(self, call: CallContext, *, size: int, **given: Any) -> Page:
        """Entries after the previous page."""
        path, is_recursive = self._path(call), given.get("recursive", False)
        if not is_recursive:
            given["max_entries"] = _MAX_NAMES
        if call.at_once:
            if is_recursive or size > _PAGED_AT_ONCE:
                raise NeedsThread
            if not self._pager.has_current(path):
                _refuse_far(path, stat.S_ISDIR)
                given["max_entries"] = _PAGED_AT_ONCE
        page = self._pager.page(path, self._scope(call.request), call.abandoned, size=size, **given)
        if page.stopped is not None:
            call.need_thread()
        return page

    def list_files(self, call: CallContext, path: str, **given: Any) -> tuple[list[str], str | None]:
        """The files of a directory or tree, but for those that globs leave out; and why not all were found."""
        return list_files(path, self._scope(call.request), call.abandoned, **given)

    def find(self, call: CallContext, **given: Any) -> Listing:
        """Files by a glob."""
        return find_files(self._path(call), self._scope(call.request), call.abandoned, **given)

    def grep(self, call: CallContext, max_bytes: int | None = None, **given: Any) -> GrepOutcome:
        """Lines that match, in files of `max_bytes` at most."""
        most = smallest(max_bytes, call.max_file_size_bytes)
        params = GrepParams(self._path(call), self._scope(call.request), max_file_size_bytes=most, **given)
        if call.at_once:
            _refuse_far(params.path, stat.S_ISREG)
            return grep(params, call.abandoned)
        return grep(params._replace(rg=self._rg), call.abandoned)

    def _path(self, call: CallContext) -> str:
        return str(call.arguments.get("path", self._settings.workspace))


def _refuse_far(path: str, is_kind: Callable[[int], bool]) -> None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # the call itself reports the problem
        raise NeedsThread from None
    if not is_kind(status.st_mode) or not is_near(status):
        raise NeedsThread
