"""The slim family: six tools of the desktop family in the shortest definitions that work, for models with small windows.

They are the same tools: names, capabilities and arguments, of which requests define the few that work needs. There are
no commands in the background, and ReadFile reads on what was cut of a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tool_runtime.families.desktop.command_specs import RUN_COMMAND
from tool_runtime.families.desktop.file_specs import EDIT_FILE, READ_FILE, WRITE_FILE
from tool_runtime.families.desktop.tree_specs import GREP, LIST_DIRECTORY
from tool_runtime.families.schemas import integer, parameters, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolSpec


def _slim(spec: ToolSpec, description: str, offered: Mapping[str, Any]) -> ToolSpec:
    return spec._replace(description=description, offered=offered)


def _in_foreground(spec: ToolSpec) -> ToolSpec:
    properties = {name: one for name, one in spec.input_schema["properties"].items() if name != "background"}
    return spec._replace(input_schema={**spec.input_schema, "properties": properties})


_EDIT: Final = parameters(["oldText", "newText"], oldText=text(), newText=text())
SPECS: Final = (
    _slim(
        READ_FILE,
        "Read a file, or a storage_ref that a result names",
        parameters(["path"], path=text(), offset=integer("First line, from 1"), limit=integer("Most lines")),
    ),
    _slim(WRITE_FILE, "Create or overwrite a file", parameters(["path", "content"], path=text(), content=text())),
    _slim(
        EDIT_FILE,
        "Replace exact texts in a file, each in it once",
        parameters(["path", "edits"], path=text(), edits={"type": "array", "items": _EDIT}),
    ),
    _slim(LIST_DIRECTORY, "List a directory", parameters([], path=text(), depth=integer())),
    _slim(
        GREP, "Search files by a regular expression", parameters(["pattern"], pattern=text(), path=text(), glob=text())
    ),
    _slim(
        _in_foreground(RUN_COMMAND),
        "Run a shell command",
        parameters(["command"], command=text(), timeout=integer("Seconds")),
    ),
)
"""The family, in the order in which the model is shown it."""
