"""Tools for a tree of files: ListDirectory, FindFiles, Grep. Each file that they open or name is judged on its own."""

from __future__ import annotations

from typing import Final

from agent_host.contracts import Subject, ToolSpec
from tool_runtime.families.schemas import flag, integer, parameters, text

_TREE: Final = Subject("path", "path", or_workspace=True)
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
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
)
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
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
)
GREP: Final = ToolSpec(
    "Grep",
    "Search the lines of text files by a regular expression (RE2)",
    parameters(
        ["pattern"],
        pattern=text(minLength=1, maxLength=4000),
        path=text("File or directory. Default: the workspace", minLength=1),
        glob=text("Only these files, such as *.py", minLength=1, maxLength=1000),
        mode=text(
            "Default: content, the lines",
            enum=["content", "files", "counts"],
        ),
        before=integer("Lines of context", minimum=0, maximum=100),
        after=integer(minimum=0, maximum=100),
        ignoreCase=flag(),
        literal=flag("Take the pattern as plain text"),
        offset=_OFFSET,
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
)
