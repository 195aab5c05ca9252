"""UploadArtifact: the one tool that the host runs itself, in front of the router that runs all others (AH 7.2)."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.contracts import Artifact, ToolDefinition, ToolError, ToolResult
from agent_host.errors import ErrorCode
from agent_host.routing.capabilities import UPLOAD_ARTIFACT
from agent_host.services.workspace import MAX_ARTIFACT_BYTES, UploadFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent_host.contracts import ToolRequest, ToolRouter
    from agent_host.scrub import Scrubber
    from agent_host.services.workspace import WorkspaceService

    ReadFile = Callable[[ToolRequest, str, int], Awaitable[bytes | ToolError]]
    """(request, path, most bytes) → the file's content within the scope of the request, or why there is none."""

_MAX_NAME = 255
_CONTENT_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}(?:; ?[\w.+-]{1,32}=[\w.+-]{1,64}){0,4}", re.ASCII)
_TEXT, _BYTES = "text/plain", "application/octet-stream"


def _text(description: str, **rules: int) -> Mapping[str, Any]:
    return {"type": "string", "description": description, **rules}


UPLOAD_DEFINITION = ToolDefinition(
    UPLOAD_ARTIFACT,
    "Store a file or a text as an artifact of the session, and return its URI. Give either path or content",
    {
        "type": "object",
        "required": [],
        "properties": {
            "path": _text("Absolute path of the file to upload", minLength=1),
            "content": _text("Text to upload in place of a file"),
            "name": _text("Name of the artifact. Default: the file's own", minLength=1, maxLength=_MAX_NAME),
            "contentType": _text(f"Media type. Default: {_TEXT} for text, else {_BYTES}", minLength=1),
        },
        "additionalProperties": False,
    },
)


class HostTools:
    """The router that the host uses: it answers UploadArtifact and hands on the rest.

    `read` reads a file under the same protection as the runtime's tools; secrets that `scrubber` knows do not leave.
    """

    def __init__(self, router: ToolRouter, workspace: WorkspaceService, read: ReadFile, scrubber: Scrubber) -> None:
        self._router = router
        self._workspace = workspace
        self._read = read
        self._scrubber = scrubber

    def get_available_tools(self) -> Sequence[ToolDefinition]:
        """See ToolRouter."""
        return (*self._router.get_available_tools(), UPLOAD_DEFINITION)

    async def execute(self, request: ToolRequest) -> ToolResult:
        """See ToolRouter."""
        if request.tool_name != UPLOAD_ARTIFACT:
            return await self._router.execute(request)
        wanted = _wanted(request.arguments)
        if isinstance(wanted, str):
            return ToolResult.failure(request, ErrorCode.INVALID_REQUEST, wanted)
        data = await self._data(request, wanted)
        if isinstance(data, ToolError):
            return ToolResult.failure(request, data.code, data.message)
        # A large text that looks like secrets all over takes seconds, and others have to be answered meanwhile.
        clean = await asyncio.to_thread(self._scrubber.data, data)
        return await self._upload(request, wanted, clean)

    async def end_leftovers(self, request: ToolRequest) -> int:
        """See ToolRouter. An upload leaves nothing on this machine."""
        return 0 if request.tool_name == UPLOAD_ARTIFACT else await self._router.end_leftovers(request)

    async def aclose(self) -> None:
        """See ToolRouter; the workspace service is its maker's to close."""
        await self._router.aclose()

    async def _data(self, request: ToolRequest, wanted: _Wanted) -> bytes | ToolError:
        granted = request.constraints.max_file_size_bytes
        limit = MAX_ARTIFACT_BYTES if granted is None else min(granted, MAX_ARTIFACT_BYTES)
        if wanted.path is not None:
            return await self._read(request, wanted.path, limit)
        try:
            data = wanted.content.encode()
        except UnicodeEncodeError:
            return ToolError(ErrorCode.INVALID_REQUEST, "$.content: holds a lone surrogate")
        if len(data) > limit:
            return ToolError(ErrorCode.FILE_TOO_LARGE, f"{len(data)} bytes exceed the limit of {limit} bytes")
        return data

    async def _upload(self, request: ToolRequest, wanted: _Wanted, data: bytes) -> ToolResult:
        content_type = wanted.content_type or (_TEXT if _looks_like_text(data) else _BYTES)
        artifact = Artifact("tool_output", wanted.name, content_type, data)
        try:
            uri = await self._workspace.upload(artifact, task_id=request.task_id, step_id=request.step_id)
        except UploadFailed as error:
            return ToolResult.failure(request, ErrorCode.WORKSPACE_UPLOAD_FAILED, str(error))
        return ToolResult(
            request.tool_name,
            request.session_id,
            request.task_id,
            request.step_id,
            "succeeded",
            output_text=f"Uploaded {wanted.name} ({len(data)} bytes, {content_type}): {uri}",
            artifact_uris=(uri,),
        )


class _Wanted(NamedTuple):
    """Arguments that fit together: `content` counts where `path` is None."""

    path: str | None
    content: str
    name: str
    content_type: str | None


def upload_problem(arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with an upload's arguments in words for the model, None when nothing is."""
    wanted = _wanted(arguments)
    return wanted if isinstance(wanted, str) else None


def _wanted(arguments: Mapping[str, Any]) -> _Wanted | str:
    """The arguments, or what is wrong with them in words for the model."""
    known = UPLOAD_DEFINITION.input_schema["properties"]
    for argument, value in arguments.items():
        if argument not in known:
            return f"$: unknown argument {argument[:80]!r}"
        if not isinstance(value, str):
            return f"$.{argument}: must be a string"
    path, content = arguments.get("path"), arguments.get("content")
    if (path is None) == (content is None):
        return "$: give either path or content"
    name = arguments.get("name") or ("artifact.txt" if path is None else _base_name(path))
    if (
        not name.isprintable()
        or len(name.encode()) > _MAX_NAME
        or "/" in name
        or "\\" in name
        or name in ("", ".", "..")
    ):
        return f"$.name: must be a file name of at most {_MAX_NAME} bytes"
    content_type = arguments.get("contentType")
    if content_type is not None and not _CONTENT_TYPE.fullmatch(content_type):
        return "$.contentType: must be a media type such as text/csv"
    return _Wanted(path, content or "", name, content_type)


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
