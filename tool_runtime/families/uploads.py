"""UploadArtifact: a file or a text that the model keeps for the user (AH 7.2).

What the model uploads is an artifact like any other: it is kept on this disk, the result names its local reference, and
its upload follows in the background (interface section 2). Every family has this tool beside its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact, Subject, ToolSpec
from tool_runtime.families.family import Row, encode
from tool_runtime.families.schemas import parameters, text
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput, smallest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tool_runtime.families.operations import Operations
    from tool_runtime.tool import CallContext

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


ROW: Final = Row(UPLOAD_ARTIFACT, _upload, check=upload_problem)
