"""Tools for a tree of files, over `files.listing` and `files.grep`."""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING, Final

from agent_host.display_text import escape
from tool_runtime.families.answers import DESKTOP
from tool_runtime.families.desktop.calls import scope_of
from tool_runtime.families.desktop.specs import FIND_FILES, GREP, LIST_DIRECTORY
from tool_runtime.files.grep import GrepParams, find_ripgrep, grep
from tool_runtime.files.listing import FindParams, ListParams, find_files, list_directory
from tool_runtime.files.read import AT_ONCE_BYTES
from tool_runtime.platform.directories import is_local
from tool_runtime.tool import CallContext, Tool, ToolOutput, add_timeout, cap, cap_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tool_runtime.files.grep import GrepOutcome, MatchLine, Ripgrep
    from tool_runtime.files.listing import ListedEntry, Listing
    from tool_runtime.settings import RuntimeSettings
    from tool_runtime.threads import DaemonPool

_AT_ONCE_ENTRIES: Final = 200


class TreeTools:
    """See `families.desktop.runner`."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool) -> None:
        self._settings = settings
        self._pool = pool

    def tools(self) -> Sequence[Tool]:
        """The tools, ready to run."""
        within = functools.partial(add_timeout, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(LIST_DIRECTORY, cap(within(self._list)), DESKTOP, self._list_at_once),
            Tool(FIND_FILES, cap(within(self._find)), DESKTOP),
            Tool(GREP, cap(within(self._grep)), DESKTOP, self._grep_at_once),
        )

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return find_ripgrep(os.environ.get("PATH", ""), self._settings.writable_places)

    def _list_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._listing(call)._replace(max_entries=_AT_ONCE_ENTRIES)
        if params.depth > 1 or not is_near(params.path, stat.S_ISDIR):
            return None
        listing = list_directory(params, call.abandoned)
        return None if listing.stopped is not None else self._render_listing(call, listing, params)

    async def _list(self, call: CallContext) -> ToolOutput:
        params = self._listing(call)
        return self._render_listing(call, await self._pool.run(lambda: list_directory(params, call.abandoned)), params)

    def _listing(self, call: CallContext) -> ListParams:
        arguments = call.request.arguments
        return ListParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments.get("depth", 1),
            arguments.get("offset", 0),
            arguments.get("limit", 500),
        )

    def _render_listing(self, call: CallContext, listing: Listing, params: ListParams) -> ToolOutput:
        return cap_output(ToolOutput(render_directory(listing, params, self._settings.workspace)), call)

    async def _find(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = FindParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments["pattern"],
            arguments.get("offset", 0),
            arguments.get("limit", 500),
            arguments.get("includeIgnored", False),
        )
        listing = await self._pool.run(lambda: find_files(params, call.abandoned))
        return ToolOutput(found_files(listing, params, self._settings.workspace))

    def _grep_at_once(self, call: CallContext) -> ToolOutput | None:
        params = self._search(call)
        if not is_near(params.path, stat.S_ISREG):
            return None
        outcome = grep(params, call.abandoned)
        return cap_output(ToolOutput(grep_output(outcome, params, self._settings.workspace)), call)

    async def _grep(self, call: CallContext) -> ToolOutput:
        params = self._search(call)._replace(rg=self._rg)
        outcome = await self._pool.run(lambda: grep(params, call.abandoned))
        return ToolOutput(grep_output(outcome, params, self._settings.workspace))

    def _search(self, call: CallContext) -> GrepParams:
        arguments = call.request.arguments
        return GrepParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments["pattern"],
            arguments.get("glob"),
            arguments.get("mode", "content"),
            arguments.get("before", 0),
            arguments.get("after", 0),
            arguments.get("ignoreCase", False),
            arguments.get("literal", False),
            arguments.get("limit", 200),
            arguments.get("offset", 0),
            arguments.get("includeIgnored", False),
            call.max_file_size_bytes,
        )


def is_near(path: str, is_kind: Callable[[int], bool]) -> bool:
    """True if what is at the path is of the kind, small, and on a disk of this machine: then it is looked at where it
    is asked for, in less time than a thread takes to begin."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # the call itself says what is wrong
        return False
    return is_kind(status.st_mode) and status.st_size <= AT_ONCE_BYTES and is_local(status.st_dev)


# What listings and searches look like to the model: paths as it can give them back, then what was left out and why.

_MAX_LINE_CHARS: Final = 500
_WORDS: Final = {"file": "file ", "other": "other"}


def render_directory(listing: Listing, params: ListParams, workspace: str) -> str:
    """A line for each entry: kind, path, size or target."""
    where = _one_line(_prefix(listing.root, workspace).rstrip("/") or ".")
    head = f"{where}: {_count(listing.total, 'entry', 'entries')}"
    return "\n".join([head, *map(_entry, listing.page), *_notes(listing, params.offset)]) + "\n"


def found_files(listing: Listing, params: FindParams, workspace: str) -> str:
    """A path a line."""
    prefix = _prefix(listing.root, workspace)
    lines = [_one_line(prefix + one.path) for one in listing.page]
    if not listing.total:
        lines = [f"No file fits {params.pattern}"]
    return "\n".join([*lines, *_notes(listing, params.offset)]) + "\n"


def grep_output(outcome: GrepOutcome, params: GrepParams, workspace: str) -> str:
    """Each file's path above its lines, `12: text` for a match and `13- text` for context; or names or counts alone."""
    prefix = _prefix(outcome.root, workspace)
    lines: list[str] = []
    for hit in outcome.hits:
        path = _one_line(prefix + hit.path)
        if params.mode == "content":
            lines += [*([""] if lines else []), path, *_lines(hit.lines)]
        else:
            lines.append(path if params.mode == "files" else f"{path}: {hit.matches}")
    if not outcome.hits:
        searched = _count(outcome.files, "file", "files")
        lines = [f"No {'more matches' if params.offset else 'match'} in {searched}"]
    notes = [
        f"[Stopped at the limit of {params.limit}; offset: {params.offset + params.limit} goes on]"
        if outcome.more
        else "",
        _describe_omitted(outcome.left_out),
        _describe_ignored(outcome.ignored),
        f"[Not searched for their size: {_count(outcome.large, 'file', 'files')}]" if outcome.large else "",
        _unreadable(outcome.unreadable),
        f"[{outcome.stopped}]" if outcome.stopped else "",
    ]
    return "\n".join([*lines, *filter(None, notes)]) + "\n"


def _prefix(root: str, workspace: str) -> str:
    """The prefix of a path from the root: empty for the workspace, else the way to the root from there."""
    inside = workspace.rstrip(os.sep) + os.sep
    if root == workspace:
        return ""
    shown = root.removeprefix(inside)
    return shown.rstrip(os.sep) + "/"


def _entry(listed: ListedEntry) -> str:
    path, kind, target, size = listed
    if not path.isprintable():
        path = _one_line(path)
    if size is not None:
        return f"file  {path} ({size} bytes)" if size != 1 else f"file  {path} (1 byte)"
    if kind == "directory":
        return f"dir   {path}/"
    if kind == "link":
        return f"link  {path} -> {_one_line(target or '?')}"
    return f"{_WORDS[kind]} {path}"


def _notes(listing: Listing, offset: int) -> Iterator[str]:
    """Lines on what a page does not show, and why."""
    end = offset + len(listing.page)
    if listing.total > end:
        yield f"[{offset + 1} to {end} of {listing.total} shown; offset: {end} goes on]"
    elif offset and not listing.page:
        yield f"[There are only {listing.total}]"
    notes = (_describe_omitted(listing.left_out), _describe_ignored(listing.ignored), _unreadable(listing.unreadable))
    yield from filter(None, notes)
    if listing.stopped:
        yield f"[{listing.stopped}]"


def _lines(lines: Iterable[MatchLine]) -> Iterator[str]:
    last: int | None = None
    for line in lines:
        if last is not None and line.number > last + 1:
            yield "--"
        yield f"{line.number}{'-' if line.start is None else ':'} {cut_line(line.text, line.start or 0)}"
        last = line.number


def cut_line(line: bytes, start: int) -> str:
    """The line, or of a long one what is around the match."""
    text = line.rstrip(b"\r").decode("utf-8", "replace")
    if len(text) <= _MAX_LINE_CHARS:
        return text
    at = len(line[:start].decode("utf-8", "replace"))
    begin = max(0, min(at - _MAX_LINE_CHARS // 4, len(text) - _MAX_LINE_CHARS))
    end = begin + _MAX_LINE_CHARS
    left, right = ("…" if begin else ""), ("…" if end < len(text) else "")
    return f"{left}{text[begin:end]}{right} [{len(text)} characters]"


def _one_line(path: str) -> str:
    return escape(path, "")


def _describe_omitted(count: int) -> str:
    return f"[Left out by policy: {_count(count, 'entry', 'entries')}]" if count else ""


def _describe_ignored(count: int) -> str:
    if not count:
        return ""
    return f"[Left out by .gitignore: {_count(count, 'entry', 'entries')}; includeIgnored: true shows them]"


def _unreadable(count: int) -> str:
    return f"[Could not be read: {count}]" if count else ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
