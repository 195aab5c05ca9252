"""Tools for one file: ReadFile, WriteFile, EditFile, DeleteFile, MoveFile (TR 4.1 to 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Need, Subject, ToolSpec
from tool_runtime.families.schemas import flag, integer, parameters, text

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH: Final = Subject("path", "path")
_FILE: Final = text(minLength=1)


def _written(arguments: Mapping[str, Any], _before: bytes | None) -> bytes | None:
    content = arguments.get("content")
    return content.encode("utf-8", "replace") if isinstance(content, str) else None


def _edited(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    from tool_runtime.core.edits import EditProblem, edited_file, edits_from  # with the first edit

    try:
        return None if before is None else edited_file(arguments["path"], before, edits_from(arguments["edits"])).data
    except (EditProblem, KeyError, TypeError):  # the arguments have not been compared with the schema yet
        return None


_EXPECTED = text(
    "SHA-256 of the file's present content, only needed where it has changed since it was read: the error gives it",
    minLength=64,
    maxLength=64,
)

READ_FILE: Final = ToolSpec(
    "ReadFile",
    "Read a file. Pictures are shown as such, a notebook as its cells, a PDF as its text",
    parameters(
        ["path"],
        path=_FILE,
        offset=integer("Number of the first line. Default: 1", minimum=1),
        limit=integer("Maximum number of lines. Default: the whole file", minimum=1),
        encoding=text("Default: utf-8", minLength=1),
        raw=flag("Show a notebook's JSON"),
    ),
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
    reads_outputs=True,
)
WRITE_FILE: Final = ToolSpec(
    "WriteFile",
    "Create or overwrite a file, and the directories to it",
    parameters(
        ["path", "content"],
        path=_FILE,
        content=text(),
        createDirectories=flag("Default: true"),
    ),
    capability="File.Write",
    subject=_PATH,
    effect="replace",
    category="files",
    display="write",
    content="content",
    after=_written,
    rare={"expectedSha256": _EXPECTED},
)
EDIT_FILE: Final = ToolSpec(
    "EditFile",
    "Replace exact texts in a file: all edits, in order, or none. Each oldText must be in it exactly once, unless "
    "replaceAll is true",
    parameters(
        ["path", "edits"],
        path=_FILE,
        edits={
            "type": "array",
            "minItems": 1,
            "items": parameters(
                ["oldText", "newText"],
                oldText=text("Text of the file, with its spaces and line breaks", minLength=1),
                newText=text(),
                replaceAll=flag("Replace every occurrence"),
            ),
        },
    ),
    capability="File.Write",
    subject=_PATH,
    effect="edit",
    category="files",
    display="write",
    content="edits",
    after=_edited,
    also=(Need("File.Read", _PATH),),
    rare={"expectedSha256": _EXPECTED},
)
DELETE_FILE: Final = ToolSpec(
    "DeleteFile",
    "Delete a file",
    parameters(["path"], path=_FILE),
    capability="File.Delete",
    subject=_PATH,
    effect="delete",
    category="files",
    display="delete",
)
MOVE_FILE: Final = ToolSpec(
    "MoveFile",
    "Move or rename a file; newPath must not exist",
    parameters(
        ["path", "newPath"],
        path=_FILE,
        newPath=text("Its new path, name included", minLength=1),
    ),
    capability="File.Delete",
    subject=_PATH,
    effect="move",
    category="files",
    display="move",
    also=(Need("File.Read", _PATH), Need("File.Write", Subject("path", "newPath"))),
)
