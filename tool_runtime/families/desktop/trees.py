"""Tools for a tree of files: ListDirectory, FindFiles, Grep. Each file that they open or name is judged on its own.

Answers have paths as the model can give them back, then what was left out and why.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import ToolSpec
from agent_host.display_text import escape
from tool_runtime.families.answers import cut_line
from tool_runtime.families.family import ToolRow, given
from tool_runtime.families.schemas import SEARCHES, flag, integer, parameters, text
from tool_runtime.tool import ToolOutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tool_runtime.families.operations import Operations
    from tool_runtime.files.grep import MatchLine
    from tool_runtime.files.listing import ListedEntry, Listing
    from tool_runtime.tool import CallContext

_OFFSET: Final = integer("Results to skip", minimum=0)
_INCLUDE_IGNORED: Final = flag("Also files that .gitignore names")

LIST_DIRECTORY: Final = ToolSpec(
    "ListDirectory",
    "List a directory, by default the workspace: names, kinds, sizes",
    parameters(
        [],
        path=text(minLength=1),
        depth=integer("Levels. Default: 1", minimum=1, maximum=100),
        offset=_OFFSET,
        limit=integer("Default: 500", minimum=1, maximum=10_000),
    ),
    **SEARCHES,
)


def _list(operations: Operations, call: CallContext) -> ToolOutput:
    """A line for each entry: kind, path, size or target."""
    listing = operations.trees.list_entries(call, **given(call, "depth", "offset", "limit"))
    where = escape(_prefix(listing.root, operations).rstrip("/") or ".", "")
    head = f"{where}: {_count(listing.total, 'entry', 'entries')}"
    return _lines(head, *map(_entry, listing.page), *_notes(listing, call))


FIND_FILES: Final = ToolSpec(
    "FindFiles",
    "Find files by a glob such as src/**/*.{ts,js}; one without a slash is a name in any directory",
    parameters(
        ["pattern"],
        pattern=text(minLength=1, maxLength=1000),
        path=text("Directory", minLength=1),
        offset=_OFFSET,
        limit=integer("Default: 500", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    **SEARCHES,
    sought="pattern",
)


def _find(operations: Operations, call: CallContext) -> ToolOutput:
    """A path a line."""
    fields = given(call, "pattern", "offset", "limit", ignored_too="includeIgnored")
    listing = operations.trees.find(call, **fields)
    prefix = _prefix(listing.root, operations)
    lines = [escape(prefix + one.path, "") for one in listing.page]
    if not listing.total:
        lines = [f"No file fits {fields['pattern']}"]
    return _lines(*lines, *_notes(listing, call))


GREP: Final = ToolSpec(
    "Grep",
    "Search the lines of text files by a regular expression (RE2)",
    parameters(
        ["pattern"],
        pattern=text(minLength=1, maxLength=4000),
        path=text("File or directory. Default: the workspace", minLength=1),
        glob=text("Only these files, such as *.py", minLength=1, maxLength=1000),
        mode=text("Default: content, the lines", enum=["content", "files", "counts"]),
        before=integer("Lines of context", minimum=0, maximum=100),
        after=integer(minimum=0, maximum=100),
        ignoreCase=flag(),
        literal=flag("Take the pattern as plain text"),
        offset=_OFFSET,
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    **SEARCHES,
    sought="pattern",
)


def _grep(operations: Operations, call: CallContext) -> ToolOutput:
    """Each file's path above its lines, `12: text` for a match and `13- text` for context; or names or counts alone."""
    names = ("pattern", "glob", "mode", "before", "after", "literal", "limit", "offset")
    fields: dict[str, Any] = {"mode": "content", "limit": 200, "offset": 0}
    fields |= given(call, *names, ignore_case="ignoreCase", ignored_too="includeIgnored")
    outcome = operations.trees.grep(call, **fields)
    prefix, limit, offset = _prefix(outcome.root, operations), fields["limit"], fields["offset"]
    lines: list[str] = []
    for hit in outcome.hits:
        path = escape(prefix + hit.path, "")
        if fields["mode"] == "content":
            lines += [*([""] if lines else []), path, *_matches(hit.lines)]
        else:
            lines.append(path if fields["mode"] == "files" else f"{path}: {hit.matches}")
    if not outcome.hits:
        lines = [f"No {'more matches' if offset else 'match'} in {_count(outcome.files, 'file', 'files')}"]
    if outcome.more:
        lines.append(f"[Stopped at the limit of {limit}; offset: {offset + limit} goes on]")
    lines += _omissions(outcome.left_out, outcome.ignored)
    if outcome.large:
        lines.append(f"[Not searched for their size: {_count(outcome.large, 'file', 'files')}]")
    return _lines(*lines, *_failures(outcome.unreadable, outcome.stopped))


ROWS: Final = (ToolRow(LIST_DIRECTORY, _list, near=True), ToolRow(FIND_FILES, _find), ToolRow(GREP, _grep, near=True))


def _lines(*lines: str) -> ToolOutput:
    return ToolOutput("\n".join(lines) + "\n")


def _prefix(root: str, operations: Operations) -> str:
    """The prefix of a path from the root: empty for the workspace, else the way to the root from there."""
    workspace = operations.settings.workspace
    if root == workspace:
        return ""
    return root.removeprefix(workspace.rstrip(os.sep) + os.sep).rstrip(os.sep) + "/"


def _entry(listed: ListedEntry) -> str:
    path, kind, target, size = listed
    if not path.isprintable():
        path = escape(path, "")
    if size is not None:
        return f"file  {path} ({size} bytes)" if size != 1 else f"file  {path} (1 byte)"
    if kind == "directory":
        return f"dir   {path}/"
    if kind == "link":
        return f"link  {path} -> {escape(target or '?', '')}"
    return f"{kind:<5} {path}"


def _notes(listing: Listing, call: CallContext) -> Iterator[str]:
    """Lines on what a page does not show, and why."""
    offset = call.request.arguments.get("offset", 0)
    end = offset + len(listing.page)
    if listing.total > end:
        yield f"[{offset + 1} to {end} of {listing.total} shown; offset: {end} goes on]"
    elif offset and not listing.page:
        yield f"[There are only {listing.total}]"
    yield from _omissions(listing.left_out, listing.ignored)
    yield from _failures(listing.unreadable, listing.stopped)


def _omissions(left_out: int, ignored: int) -> Iterator[str]:
    if left_out:
        yield f"[Left out by policy: {_count(left_out, 'entry', 'entries')}]"
    if ignored:
        yield f"[Left out by .gitignore: {_count(ignored, 'entry', 'entries')}; includeIgnored: true shows them]"


def _failures(unreadable: int, stopped: str | None) -> Iterator[str]:
    if unreadable:
        yield f"[Could not be read: {unreadable}]"
    if stopped:
        yield f"[{stopped}]"


def _matches(lines: Iterable[MatchLine]) -> Iterator[str]:
    last: int | None = None
    for line in lines:
        if last is not None and line.number > last + 1:
            yield "--"
        yield f"{line.number}{'-' if line.start is None else ':'} {cut_line(line.text, line.start or 0)}"
        last = line.number


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
