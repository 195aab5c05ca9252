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
from tool_runtime.files.read import is_near
from tool_runtime.tool import CallContext, NeedsThread, Tool, ToolOutput, run_at_once, run_in_thread

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
        within = functools.partial(run_in_thread, pool=self._pool, timeout_s=self._settings.file_timeout_s)
        return (
            Tool(LIST_DIRECTORY, within(self._list), DESKTOP, run_at_once(self._list)),
            Tool(FIND_FILES, within(self._find), DESKTOP),
            Tool(GREP, within(self._grep), DESKTOP, run_at_once(self._grep)),
        )

    @functools.cached_property
    def _rg(self) -> Ripgrep | None:
        return find_ripgrep(os.environ.get("PATH", ""), self._settings.writable_places)

    def _list(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = ListParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments.get("depth", 1),
            arguments.get("offset", 0),
            arguments.get("limit", 500),
        )
        listing = list_entries(call, params)
        return ToolOutput(render_directory(listing, params, self._settings.workspace))

    def _find(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = FindParams(
            arguments.get("path", self._settings.workspace),
            scope_of(call.request),
            arguments["pattern"],
            arguments.get("offset", 0),
            arguments.get("limit", 500),
            arguments.get("includeIgnored", False),
        )
        listing = find_files(params, call.abandoned)
        return ToolOutput(found_files(listing, params, self._settings.workspace))

    def _grep(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        params = GrepParams(
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
        return ToolOutput(grep_output(search(call, params, lambda: self._rg), params, self._settings.workspace))


def list_entries(call: CallContext, params: ListParams) -> Listing:
    """The entries of a directory. Raises ToolFault, and NeedsThread for more than is listed at once."""
    if call.at_once:
        if params.depth > 1:
            call.need_thread()
        refuse_far(params.path, stat.S_ISDIR)
        params = params._replace(max_entries=_AT_ONCE_ENTRIES)
    listing = list_directory(params, call.abandoned)
    if listing.stopped is not None:
        call.need_thread()
    return listing


def search(call: CallContext, params: GrepParams, find_rg: Callable[[], Ripgrep | None]) -> GrepOutcome:
    """Search one file or the files of a tree. Raises ToolFault, and NeedsThread for what is not searched at once."""
    if call.at_once:
        refuse_far(params.path, stat.S_ISREG)
        return grep(params, call.abandoned)
    return grep(params._replace(rg=find_rg()), call.abandoned)


def refuse_far(path: str, is_kind: Callable[[int], bool]) -> None:
    """Raises NeedsThread unless what is at the path is of the kind, small, and on a disk of this machine."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # the call itself says what is wrong
        raise NeedsThread from None
    if not is_kind(status.st_mode) or not is_near(status):
        raise NeedsThread


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
