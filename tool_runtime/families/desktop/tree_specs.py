"""Tools for a tree of files: ListDirectory, FindFiles, Grep. Each file that they open or name is judged on its own."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Subject, ToolSpec
from tool_runtime.families.schemas import flag, integer, parameters, text

_TREE: Final = Subject("path", "path", or_workspace=True)
_OFFSET: Final = integer("How many to pass over, for the next page. Default: 0", minimum=0)
_INCLUDE_IGNORED: Final = flag("Look at files that .gitignore names too. Default: false")

LIST_DIRECTORY: Final = ToolSpec(
    "ListDirectory",
    "List the entries of a directory with their kinds and sizes, in the order of their names",
    parameters(
        [],
        path=text("Path of the directory, absolute or relative to the workspace. Default: the workspace", minLength=1),
        depth=integer("How many levels to list. Default: 1", minimum=1, maximum=100),
        offset=_OFFSET,
        limit=integer("Maximum number of entries. Default: 500", minimum=1, maximum=10_000),
    ),
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
)
FIND_FILES: Final = ToolSpec(
    "FindFiles",
    "Find files by name. The pattern is a glob such as **/*.py or src/{a,b}/*.ts; one without a slash means a name in "
    "any directory",
    parameters(
        ["pattern"],
        pattern=text("Glob: * and ? within a name, ** across directories, [...], {a,b}", minLength=1, maxLength=1000),
        path=text("Path of the directory to look in. Default: the workspace", minLength=1),
        offset=_OFFSET,
        limit=integer("Maximum number of files. Default: 500", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
)
GREP: Final = ToolSpec(
    "Grep",
    "Search the content of files by a regular expression, line by line. Binary files are passed over",
    parameters(
        ["pattern"],
        pattern=text("Regular expression in RE2's syntax", minLength=1, maxLength=4000),
        path=text("Path of a file, or of the directory to search. Default: the workspace", minLength=1),
        glob=text("Only files whose path fits this glob, such as *.py", minLength=1, maxLength=1000),
        mode=text(
            "What to show: matching lines, names of files, or how many lines match in each. Default: content",
            enum=["content", "files", "counts"],
        ),
        before=integer("Lines to show before each match. Default: 0", minimum=0, maximum=100),
        after=integer("Lines to show after each match. Default: 0", minimum=0, maximum=100),
        ignoreCase=flag("Ignore the case of letters. Default: false"),
        literal=flag("Take the pattern as a text. Default: false"),
        offset=_OFFSET,
        limit=integer("Maximum number of matching lines, or of files. Default: 200", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
)
