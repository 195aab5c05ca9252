"""Tools for one file: ReadFile, WriteFile, EditFile, DeleteFile, MoveFile (TR 4.1 to 4.3); ReadOutput for what a result
names by its storage_ref."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Need, Subject, ToolSpec
from tool_runtime.families.family import Row
from tool_runtime.families.schemas import DELETES, READS, WRITES, content_of_write, flag, integer, parameters, text
from tool_runtime.tool import ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tool_runtime.families.operations import Operations
    from tool_runtime.files.write import WriteOutcome
    from tool_runtime.tool import CallContext

_MAX_NAMES: Final = 5
_PATH: Final = Subject("path", "path")
_FILE: Final = text(minLength=1)
_EXPECTED = text(
    "SHA-256 of the file's present content, only needed where it has changed since it was read: the error gives it",
    minLength=64,
    maxLength=64,
)

READ_OUTPUT: Final = ToolSpec(
    "ReadOutput",
    "Read what an earlier call left, such as all output of a command: its result names it as storage_ref",
    parameters(
        ["ref"],
        ref=text("The storage_ref", minLength=1, maxLength=200),
        offset=integer("First line, from 1; with a pattern the number of the match", minimum=1),
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        pattern=text("Only lines that match (RE2)", minLength=1, maxLength=4000),
    ),
    capability="Shell.Exec",
    subject=Subject("output", "ref"),
    effect="none",
    category="files",
)
"""It needs all that the call needed that left the output, which is a command's mostly."""
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
    **READS,
    reads_outputs=True,
)
WRITE_FILE: Final = ToolSpec(
    "WriteFile",
    "Create or overwrite a file, and the directories to it",
    parameters(["path", "content"], path=_FILE, content=text(), createDirectories=flag("Default: true")),
    **WRITES,
    content="content",
    after=content_of_write,
    rare={"expectedSha256": _EXPECTED},
)


def _write(operations: Operations, call: CallContext) -> ToolOutput:
    arguments = call.request.arguments
    path = arguments["path"]
    outcome, output = operations.write(call, create_directories=arguments.get("createDirectories", True))
    said = f"Wrote {len(outcome.after)} bytes to {path}"
    if outcome.before_bytes:  # a small model takes "wrote" for "appended"
        said += f", in place of the {outcome.before_bytes} bytes that it had"
    alike = "" if outcome.existed else _look_alikes(path)
    if alike:
        said += f", a new file beside one whose name looks the same: {alike}"
    return _written(said, outcome, output)


def _look_alikes(path: str) -> str:
    """The files beside a new one that could be taken for it: a name may have spaces and accents of several kinds."""
    name = os.path.basename(path)
    if name.isascii() and " " not in name:
        return ""
    from agent_host.file_names import look_alikes

    return ", ".join(look_alikes(path))


def _written(said: str, outcome: WriteOutcome, output: Mapping[str, Any]) -> ToolOutput:
    text = f"{said}; it is the same file as {', '.join(outcome.also[:_MAX_NAMES])}" if outcome.also else said
    return ToolOutput(text, **output)


def _content_of_edit(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    from tool_runtime.files.edits import EditProblem, edit_content, edits_from  # with the first edit

    try:
        return None if before is None else edit_content(arguments["path"], before, edits_from(arguments["edits"])).data
    except (EditProblem, KeyError, TypeError):  # the arguments have not been compared with the schema yet
        return None


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
    after=_content_of_edit,
    also=(Need("File.Read", _PATH),),
    rare={"expectedSha256": _EXPECTED},
)


def _edit(operations: Operations, call: CallContext) -> ToolOutput:
    outcome, output = operations.edit(call)
    places = f"{outcome.places} place{'' if outcome.places == 1 else 's'}"
    return _written(f"Replaced {places} in {call.request.arguments['path']}", outcome, output)


DELETE_FILE: Final = ToolSpec("DeleteFile", "Delete a file", parameters(["path"], path=_FILE), **DELETES)
MOVE_FILE: Final = ToolSpec(
    "MoveFile",
    "Move or rename a file; newPath must not exist",
    parameters(["path", "newPath"], path=_FILE, newPath=text("Its new path, name included", minLength=1)),
    capability="File.Delete",
    subject=_PATH,
    effect="move",
    category="files",
    display="move",
    also=(Need("File.Read", _PATH), Need("File.Write", Subject("path", "newPath"))),
)


def _move(operations: Operations, call: CallContext) -> ToolOutput:
    ends = operations.move(call)
    return ToolOutput(f"Moved {ends.path} to {ends.new_path}")


ROWS: Final = (
    Row(READ_FILE, lambda operations, call: operations.read(call), near=True),
    Row(WRITE_FILE, _write, leftover=lambda operations, request: operations.remove_temporary(request)),
    Row(EDIT_FILE, _edit, leftover=lambda operations, request: operations.remove_temporary(request)),
    Row(DELETE_FILE, lambda operations, call: ToolOutput(f"Deleted {operations.delete(call)}")),
    Row(MOVE_FILE, _move, leftover=lambda operations, request: operations.take_back_move(request)),
    Row(READ_OUTPUT, lambda operations, call: operations.read_output(call)),
)
