"""UploadArtifact: a file or a text that the model keeps for the user (AH 7.2).

What the model uploads is an artifact like any other: it is kept on this disk, the result names its local reference, and
its upload follows in the background (interface section 2). Every family has this tool beside its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact, Leftovers, Subject, ToolSpec
from tool_runtime.families.answers import DESKTOP
from tool_runtime.tool import FaultKind, Tool, ToolFault, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent_host.contracts import ToolRequest
    from tool_runtime.tool import CallContext

    ReadFile = Callable[[CallContext, str, int], Awaitable[bytes]]
    """(call, path, most bytes) → the file's content within the scope of the call. Raises ToolFault."""

_MAX_NAME: Final = 255
_CONTENT_TYPE: Final = r"(?a:[\w.+-]{1,64}/[\w.+-]{1,64}(?:; ?[\w.+-]{1,32}=[\w.+-]{1,64}){0,4})"
_TEXT, _BYTES = "text/plain", "application/octet-stream"


def _text(description: str = "", **rules: int) -> Mapping[str, Any]:
    return {"type": "string", **({"description": description} if description else {}), **rules}


UPLOAD_ARTIFACT = ToolSpec(
    "UploadArtifact",
    "Store a file (path) or a text (content) as an artifact of the session, for the user to keep",
    {
        "type": "object",
        "required": [],
        "properties": {
            "path": _text(minLength=1),
            "content": _text(),
            "name": _text(minLength=1, maxLength=_MAX_NAME),
            "contentType": _text("Media type", minLength=1),
        },
        "additionalProperties": False,
    },
    capability="Workspace.Upload",
    subject=Subject("path", "path", by_name=True),
    # One that runs again stores nothing twice: a service knows the artifact of a step by its Idempotency-Key, and the
    # embedded home keeps equal contents once.
    effect="none",
    category="uploads",
    display="upload",
    content="content",
)


class Uploads:
    """See Provider. `read` reads a file under the same protection as the tools of the families. The code that keeps the
    artifacts of results takes secrets out of them."""

    def __init__(self, read: ReadFile) -> None:
        self._read = read
        self._tool = Tool(UPLOAD_ARTIFACT, self._run, DESKTOP, check=upload_problem)

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return (UPLOAD_ARTIFACT,)

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        return self._tool if name == UPLOAD_ARTIFACT.name else None

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See Provider. An upload leaves nothing on this machine."""
        del request
        return Leftovers()

    async def aclose(self) -> None:
        """See Provider. Nothing is held."""

    async def _run(self, call: CallContext) -> ToolOutput:
        arguments = call.request.arguments
        granted = call.request.constraints.max_file_size_bytes
        limit = MAX_ARTIFACT_BYTES if granted is None else min(granted, MAX_ARTIFACT_BYTES)
        path = arguments.get("path")
        data = _encode(arguments["content"], limit) if path is None else await self._read(call, path, limit)
        name = _name_of(arguments)
        kind = arguments.get("contentType") or (_TEXT if _looks_like_text(data) else _BYTES)
        text = f"Stored {name} ({len(data)} bytes, {kind})"
        return ToolOutput(text, artifacts=(Artifact("tool_output", name, kind, data),))


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


def _looks_like_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encode(content: str, limit: int) -> bytes:
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.content: holds a lone surrogate") from None
    if len(data) > limit:
        raise ToolFault(FaultKind.TOO_LARGE, f"{len(data)} bytes exceed the limit of {limit} bytes")
    return data
