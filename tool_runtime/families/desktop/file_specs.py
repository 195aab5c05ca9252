"""Tools for one file: ReadFile, WriteFile, EditFile, DeleteFile, MoveFile (TR 4.1 to 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Need, Subject, ToolSpec
from tool_runtime.families.schemas import flag, integer, parameters, text

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH: Final = Subject("path", "path")


def _written(arguments: Mapping[str, Any], _before: bytes | None) -> bytes | None:
    content = arguments.get("content")
    return content.encode("utf-8", "replace") if isinstance(content, str) else None


def _edited(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    from tool_runtime.core.edits import EditProblem, edited, edits_from  # with the first edit

    try:
        return None if before is None else edited(before, edits_from(arguments["edits"])).data
    except (EditProblem, KeyError, TypeError):  # the arguments have not been compared with the schema yet
        return None


_EXPECTED = text(
    "SHA-256 of the file's present content, only needed where it has changed since it was read: the error gives it",
    minLength=64,
    maxLength=64,
)

READ_FILE: Final = ToolSpec(
    "ReadFile",
    "Read the contents of a file at the given path. A PNG, JPEG, GIF or WebP file is shown as an image to models that "
    "take images, a Jupyter notebook as its cells, a PDF as the text of its pages",
    parameters(
        ["path"],
        path=text("Path of the file to read, absolute or relative to the workspace", minLength=1),
        offset=integer("Line number to start reading from (1-based). Default: 1", minimum=1),
        limit=integer("Maximum number of lines to return. Default: all", minimum=1),
        encoding=text("File encoding. Default: utf-8", minLength=1),
        raw=flag("Show a notebook as the text that its file holds. Default: false"),
    ),
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
)
WRITE_FILE: Final = ToolSpec(
    "WriteFile",
    "Create or overwrite a file with the given content",
    parameters(
        ["path", "content"],
        path=text("Path of the file to write, absolute or relative to the workspace", minLength=1),
        content=text("File content to write"),
        createDirectories=flag("Create parent directories if they don't exist. Default: true"),
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
    "Replace exact texts in a file. All edits are made, one after the other, or none. Each oldText must be in the file "
    "exactly once, unless replaceAll is true. Line ends and encoding are kept",
    parameters(
        ["path", "edits"],
        path=text("Path of the file to edit, absolute or relative to the workspace", minLength=1),
        edits={
            "type": "array",
            "description": "The replacements, in order",
            "minItems": 1,
            "items": parameters(
                ["oldText", "newText"],
                oldText=text("Text that is in the file, with its spaces and line breaks", minLength=1),
                newText=text("Text to put in its place"),
                replaceAll=flag("Replace every occurrence. Default: false"),
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
    "Delete a file at the given path",
    parameters(["path"], path=text("Path of the file to delete, absolute or relative to the workspace", minLength=1)),
    capability="File.Delete",
    subject=_PATH,
    effect="delete",
    category="files",
    display="delete",
)
MOVE_FILE: Final = ToolSpec(
    "MoveFile",
    "Move or rename a file. Nothing is replaced: newPath must not exist",
    parameters(
        ["path", "newPath"],
        path=text("Path of the file to move, absolute or relative to the workspace", minLength=1),
        newPath=text("Path that the file is to have, its name included. Missing directories are made", minLength=1),
    ),
    capability="File.Delete",
    subject=_PATH,
    effect="move",
    category="files",
    display="move",
    also=(Need("File.Read", _PATH), Need("File.Write", Subject("path", "newPath"))),
)
