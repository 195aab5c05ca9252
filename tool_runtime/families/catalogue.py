"""The families of tools, by the names that `--toolset` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tool_runtime.families import desktop
from tool_runtime.families.desktop import (
    EDIT_FILE,
    GREP,
    LIST_DIRECTORY,
    READ_FILE,
    READ_OUTPUT,
    RUN_COMMAND,
    UPLOAD_ARTIFACT,
    WRITE_FILE,
)
from tool_runtime.families.schemas import flag, integer, parameters, text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from agent_host.contracts import ToolSpec
    from tool_runtime.families import Family, MakeOperations
    from tool_runtime.tool import RuntimeSettings

    OpenFamily = Callable[[RuntimeSettings, MakeOperations], Family]

DESKTOP: Final = "desktop"
NATIVE: Final = "native"
SKILLS: Final = "skills"
SLIM: Final = "slim"  # six of the desktop tools in short definitions; nothing beside the desktop family itself
ROWS: Final = {row.spec.name: row for row in desktop.ROWS}
SPECS: Final = tuple(spec for spec in (row.spec for row in desktop.ROWS) if spec is not UPLOAD_ARTIFACT)
"""The desktop family, in the order in which the model is shown it."""
RESERVED: Final = "cp__"
"""The prefix of the native family's names. A tool of an embedding program may have such a name if the user's
configuration allows it (`native.allow_shadow`), and then replaces the family's tool."""
FAMILIES: Final = (DESKTOP, NATIVE, SKILLS, SLIM)
"""All of them. A further family adds its name here, and its records and rows to `other_families`."""


def specs_of(families: Collection[str]) -> tuple[ToolSpec, ...]:
    """The tools of these families. Raises KeyError for a name that is no family's."""
    unknown = set(families).difference(FAMILIES)
    if unknown:
        raise KeyError(min(unknown))
    others = (spec for specs, _ in other_families(families) for spec in specs)
    return (*others, *desktop_specs(families))


def other_families(families: Collection[str]) -> Iterator[tuple[Sequence[ToolSpec], OpenFamily]]:
    """The tools of these families beside the desktop one, and what opens each; of others nothing is imported."""
    if NATIVE in families:
        from tool_runtime.families import native

        yield native.SPECS, native.family_under
    if SKILLS in families:
        from tool_runtime.families import skills

        yield skills.SPECS, skills.family_under


def desktop_specs(families: Collection[str]) -> tuple[ToolSpec, ...]:
    """The tools of these families that the desktop one has as well: what reads stored outputs belongs to every one, and
    what uploads to all but the slim one."""
    if DESKTOP in families:
        return (*SPECS, UPLOAD_ARTIFACT)
    return SLIM_SPECS if SLIM in families else (READ_OUTPUT, UPLOAD_ARTIFACT)


# The slim family: six tools of the desktop family in the shortest definitions that work, for small windows.
#
# They are the same tools, with their names, capabilities and arguments, of which requests define the most useful ones.
# There are no background commands, and ReadFile reads the rest of a cut result.


def _slim(spec: ToolSpec, description: str, offered: Mapping[str, Any]) -> ToolSpec:
    properties = {name: one for name, one in spec.input_schema["properties"].items() if name != "background"}
    schema = {**spec.input_schema, "properties": properties}
    return spec._replace(description=description, input_schema=schema, offered=offered)


_EDIT: Final = parameters(
    ["oldText", "newText"],
    oldText=text("Text of the file, with its spaces and line breaks"),
    newText=text("Text to put in its place"),
    replaceAll=flag("Replace every occurrence"),
)
SLIM_SPECS: Final = (
    _slim(
        READ_FILE,
        "Read a file, or what a result names as its storage_ref. With a limit it says which lines were shown",
        parameters(
            ["path"],
            path=text("A path, or a storage_ref such as artifacts/art_0123"),
            offset=integer("Number of the first line. Default: 1"),
            limit=integer("Maximum number of lines. Default: the whole file"),
        ),
    ),
    _slim(
        WRITE_FILE,
        "Create a file, or replace its whole content",
        parameters(["path", "content"], path=text(), content=text("The whole new content")),
    ),
    _slim(
        EDIT_FILE,
        "Replace exact texts in a file: all edits, in order, or none. Each oldText must be in the file exactly once, "
        "unless replaceAll is true",
        parameters(["path", "edits"], path=text(), edits={"type": "array", "items": _EDIT}),
    ),
    _slim(
        LIST_DIRECTORY,
        "List the entries of a directory with their kinds and sizes",
        parameters([], path=text("Default: the workspace"), depth=integer("Levels. Default: 1")),
    ),
    _slim(
        GREP,
        "Search the lines of files by a regular expression",
        parameters(
            ["pattern"],
            pattern=text("Regular expression (RE2)"),
            path=text("File or directory. Default: the workspace"),
            glob=text("Only these files, such as *.py"),
            ignoreCase=flag(),
        ),
    ),
    _slim(
        RUN_COMMAND,
        "Run a shell command; returns stdout, stderr and exit code. There is no terminal",
        parameters(
            ["command"], command=text(), cwd=text("Default: the workspace"), timeout=integer("Seconds. Default: 300")
        ),
    ),
)
"""The family, in the order in which the model is shown it."""
