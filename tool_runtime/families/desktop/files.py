"""Tools for one file: ReadFile, WriteFile, EditFile, DeleteFile, MoveFile (TR 4.1 to 4.3); ReadOutput for what a result
names by its storage_ref, and UploadArtifact."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact, Need, Subject, ToolSpec
from tool_runtime.families.family import ToolRow
from tool_runtime.families.schemas import DELETES, READS, WRITES, content_of_write, flag, integer, parameters, text
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput, encode, smallest

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


# UploadArtifact: a file or a text that the model keeps for the user (AH 7.2). What the model uploads is an artifact
# like any other: it is kept on this disk, the result names its local reference, and its upload follows in the
# background (interface section 2). Every family has this tool beside its own.

_MAX_NAME: Final = 255
_CONTENT_TYPE: Final = r"(?a:[\w.+-]{1,64}/[\w.+-]{1,64}(?:; ?[\w.+-]{1,32}=[\w.+-]{1,64}){0,4})"
_TEXT, _BYTES = "text/plain", "application/octet-stream"


UPLOAD_ARTIFACT = ToolSpec(
    "UploadArtifact",
    "Store a file (path) or a text (content) as an artifact of the session, for the user to keep",
    parameters(
        [],
        path=text(minLength=1),
        content=text(),
        name=text(minLength=1, maxLength=_MAX_NAME),
        contentType=text("Media type", minLength=1),
    ),
    capability="Workspace.Upload",
    subject=Subject("path", "path", by_name=True),
    # One that runs again stores nothing twice: a service knows the artifact of a step by its Idempotency-Key, and the
    # embedded home keeps equal contents once.
    effect="none",
    category="uploads",
    display="upload",
    content="content",
)


def _upload(operations: Operations, call: CallContext) -> ToolOutput:
    """The code that keeps the artifacts of results takes secrets out of them."""
    arguments = call.request.arguments
    if "path" in arguments:
        data = operations.read_whole(call, arguments["path"], MAX_ARTIFACT_BYTES).data
    else:
        data = encode(arguments["content"], "content")
        limit = smallest(call.request.constraints.max_file_size_bytes, MAX_ARTIFACT_BYTES) or 0
        if len(data) > limit:
            raise ToolFault(FaultKind.TOO_LARGE, f"{len(data)} bytes exceed the limit of {limit} bytes")
    name = _name_of(arguments)
    kind = arguments.get("contentType") or (_TEXT if _is_text(data) else _BYTES)
    said = f"Stored {name} ({len(data)} bytes, {kind})"
    return ToolOutput(said, artifacts=(Artifact("tool_output", name, kind, data),))


def upload_problem(arguments: Mapping[str, Any]) -> str | None:
    """The problem with arguments that fit the schema, in words for the model; None if there is none."""
    if ("path" in arguments) == ("content" in arguments):
        return "$: give either path or content"
    name = _name_of(arguments)
    parts = ("", ".", "..")
    if not name.isprintable() or len(name.encode()) > _MAX_NAME or re.search(r"[/\\]", name) or name in parts:
        return f"$.name: must be a file name of at most {_MAX_NAME} bytes"
    kind = arguments.get("contentType")
    if kind is not None and not re.fullmatch(_CONTENT_TYPE, kind):
        return "$.contentType: must be a media type such as text/csv"
    return None


def _name_of(arguments: Mapping[str, Any]) -> str:
    path, name = arguments.get("path"), arguments.get("name")
    return name or ("artifact.txt" if path is None else _base_name(path))


def _base_name(path: str) -> str:
    """The last part of the path, what cannot be printed replaced; an odd file name must not keep a file from going."""
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    shown = "".join(char if char.isprintable() else "_" for char in name)
    return shown.encode()[:_MAX_NAME].decode(errors="ignore") or "artifact"


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


ROWS: Final = (
    ToolRow(READ_FILE, lambda operations, call: operations.read(call), near=True),
    ToolRow(WRITE_FILE, _write, leftover=lambda operations, request: operations.remove_temporary(request)),
    ToolRow(EDIT_FILE, _edit, leftover=lambda operations, request: operations.remove_temporary(request)),
    ToolRow(DELETE_FILE, lambda operations, call: ToolOutput(f"Deleted {operations.delete(call)}")),
    ToolRow(MOVE_FILE, _move, leftover=lambda operations, request: operations.take_back_move(request)),
    ToolRow(READ_OUTPUT, lambda operations, call: operations.read_output(call)),
    ToolRow(UPLOAD_ARTIFACT, _upload, check=upload_problem),
)
