"""UploadArtifact: the one tool that the host runs itself, in front of the router that runs all others (AH 7.2).

What the model uploads is an artifact like any other: it is kept on this disk, the result names its local reference, and
its upload follows in the background (interface section 2).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agent_host.contracts import Artifact, Leftovers, Subject, ToolError, ToolResult, ToolSpec
from agent_host.errors import ErrorCode
from agent_host.services.workspace import MAX_ARTIFACT_BYTES
from config.lean_typing import NamedTuple
from config.shapes import TEXT, Record, first_problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent_host.contracts import ToolRequest, ToolRouter

    ReadFile = Callable[[ToolRequest, str, int], Awaitable[bytes | ToolError]]
    """(request, path, most bytes) → the file's content within the scope of the request, or why there is none."""

_MAX_NAME = 255
_CONTENT_TYPE = r"(?a:[\w.+-]{1,64}/[\w.+-]{1,64}(?:; ?[\w.+-]{1,32}=[\w.+-]{1,64}){0,4})"
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
"""The one tool that the host runs itself (AH 7.2)."""
_ARGUMENTS = Record({}, dict.fromkeys(UPLOAD_ARTIFACT.input_schema["properties"], TEXT), closed=True)


class HostTools:
    """The router that the host uses: it answers UploadArtifact and hands on the rest.

    `read` reads a file under the same protection as the runtime's tools. The code that keeps the artifacts of results
    takes secrets out of them.
    """

    def __init__(self, router: ToolRouter, read: ReadFile, *, has_uploads: bool = True) -> None:
        self._router = router
        self._read = read
        self._own = (UPLOAD_ARTIFACT,) if has_uploads else ()

    async def tools(self) -> Sequence[ToolSpec]:
        """See ToolRouter."""
        return (*await self._router.tools(), *self._own)

    async def fix(self, lists: Mapping[str, str]) -> Mapping[str, str]:
        """See ToolRouter."""
        return await self._router.fix(lists)

    async def outcome(self, request: ToolRequest) -> ToolResult | None:
        """See ToolRouter. An upload has no side effects, and runs again."""
        return None if request.tool_name == UPLOAD_ARTIFACT.name else await self._router.outcome(request)

    async def execute(self, request: ToolRequest) -> ToolResult:
        """See ToolRouter."""
        if request.tool_name != UPLOAD_ARTIFACT.name:
            return await self._router.execute(request)
        wanted = _parse(request.arguments)
        if isinstance(wanted, str):
            return ToolResult.failure(request, ErrorCode.INVALID_REQUEST, wanted)
        data = await self._data(request, wanted)
        if isinstance(data, ToolError):
            return ToolResult.failure(request, data.code, data.message)
        return _artifact_result(request, wanted, data)

    def at_once(self, request: ToolRequest) -> ToolResult | None:
        """See ToolRouter."""
        return None if request.tool_name == UPLOAD_ARTIFACT.name else self._router.at_once(request)

    def argument_problem(self, tool_name: str, arguments: Mapping[str, Any]) -> str | None:
        """See ToolRouter."""
        if tool_name == UPLOAD_ARTIFACT.name:
            return upload_problem(arguments)
        return self._router.argument_problem(tool_name, arguments)

    def usable_arguments(self, tool_name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """See ToolRouter. An empty content is one, unless a path is given."""
        if tool_name != UPLOAD_ARTIFACT.name:
            return self._router.usable_arguments(tool_name, arguments)
        is_content = not arguments.get("path")
        kept = {name: value for name, value in arguments.items() if value or (is_content and name == "content")}
        return {name: value for name, value in kept.items() if value is not None}

    async def end_leftovers(self, request: ToolRequest) -> Leftovers:
        """See ToolRouter. An upload leaves nothing on this machine."""
        return Leftovers() if request.tool_name == UPLOAD_ARTIFACT.name else await self._router.end_leftovers(request)

    async def settle(self, request: ToolRequest) -> None:
        """See ToolRouter."""
        await self._router.settle(request)

    async def end_commands(self) -> Leftovers:
        """See ToolRouter."""
        return await self._router.end_commands()

    async def aclose(self) -> None:
        """See ToolRouter."""
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


class _Wanted(NamedTuple):
    """Arguments that fit together: `content` counts where `path` is None."""

    path: str | None
    content: str
    name: str
    content_type: str | None


def _artifact_result(request: ToolRequest, wanted: _Wanted, data: bytes) -> ToolResult:
    content_type = wanted.content_type or (_TEXT if _looks_like_text(data) else _BYTES)
    return ToolResult(
        request.tool_name,
        request.session_id,
        request.task_id,
        request.step_id,
        "succeeded",
        output_text=f"Stored {wanted.name} ({len(data)} bytes, {content_type})",
        artifacts=(Artifact("tool_output", wanted.name, content_type, data),),
    )


def fail_if_lost(result: ToolResult, lost: Sequence[str | None]) -> ToolResult:
    """`result`, which is a failure where it was for an artifact and that was `lost`: for each artifact why, or None."""
    why = next((message for message in lost if message is not None), None)
    if result.tool_name != UPLOAD_ARTIFACT.name or why is None:
        return result
    error = ToolError(ErrorCode.WORKSPACE_UPLOAD_FAILED, why)
    return result._replace(status="failed", output_text=None, error=error, artifacts=())


def upload_problem(arguments: Mapping[str, Any]) -> str | None:
    """The problem with an upload's arguments in words for the model, None if there is none."""
    wanted = _parse(arguments)
    return wanted if isinstance(wanted, str) else None


def _parse(arguments: Mapping[str, Any]) -> _Wanted | str:
    """The arguments, or what is wrong with them in words for the model."""
    problem = first_problem(_ARGUMENTS, dict(arguments), "$")
    if problem is not None:
        return str(problem)
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
    if content_type is not None and not re.fullmatch(_CONTENT_TYPE, content_type):
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
