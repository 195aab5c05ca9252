"""What a call gave, as the model and the host take it (TR 9.5). All of it is what another program says."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import orjson

from agent_host.contracts import Artifact, Image
from config import json_text
from tool_runtime.core.images import judged
from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.schema import UnusableSchema, judge_of
from tool_runtime.tool import ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolRequest

_MAX_PARTS: Final = 200
_MAX_LINE: Final = 500


def output_of(
    result: types.CallToolResult, request: ToolRequest, output_schema: Mapping[str, Any] | None, threshold_bytes: int
) -> ToolOutput:
    """The output of a call: text joined, everything else as artifacts that the text names; a text of more than
    `threshold_bytes` is an artifact as well. Raises ToolFault for a result that says of itself that the call failed,
    with what there was as partial output, and for structured content that is not what was promised."""
    parts = _Parts(request)
    for block in result.content[:_MAX_PARTS]:
        parts.add(block)
    if len(result.content) > _MAX_PARTS:
        parts.lines.append(f"[{len(result.content) - _MAX_PARTS} more parts of the result are left out]")
    if not result.is_error:
        _check(result, output_schema)
    parts.add_structured(result.structured_content)
    text = "\n".join(parts.lines)
    content = text.encode("utf-8", "replace")
    if len(content) > threshold_bytes:
        parts.keep("text", "text/plain; charset=utf-8", content)
    output = ToolOutput(text, tuple(parts.artifacts), images=tuple(parts.images))
    if result.is_error:
        first = next((line for line in text.splitlines() if line.strip()), "the tool failed and says nothing of it")
        raise ToolFault(FaultKind.SYSTEM, first[:_MAX_LINE], partial=output)
    return output


def _check(result: types.CallToolResult, schema: Mapping[str, Any] | None) -> None:
    if schema is None:
        return
    value = result.structured_content
    if value is None:
        raise ToolFault(FaultKind.SYSTEM, "the result has no structured content, which the tool promises")
    try:
        wrong = judge_of(schema, foreign=True)(value)
    except UnusableSchema as error:
        raise ToolFault(FaultKind.SYSTEM, f"the tool's output schema cannot be used: {error}") from error
    if wrong is not None:
        raise ToolFault(FaultKind.SYSTEM, f"the result does not fit the tool's output schema: {wrong}")


class _Parts:
    def __init__(self, request: ToolRequest) -> None:
        self._request = request
        self.lines: list[str] = []
        self.artifacts: list[Artifact] = []
        self.images: list[Image] = []

    def add(self, block: types.ContentBlock) -> None:
        if isinstance(block, types.TextContent):
            self.lines.append(block.text)
        elif isinstance(block, types.ImageContent):
            self._image(block.data, block.mime_type)
        elif isinstance(block, types.AudioContent):
            self._bytes("audio", block.data, block.mime_type)
        elif isinstance(block, types.ResourceLink):
            said = " ".join(filter(None, (block.mime_type, block.description)))
            self.lines.append(f"[resource {block.name}: {block.uri}{f' ({said})' if said else ''}]"[:_MAX_LINE])
        elif isinstance(block.resource, types.TextResourceContents):
            self.lines.append(f"[resource {block.resource.uri}]"[:_MAX_LINE])
            self.lines.append(block.resource.text)
        else:
            self.lines.append(f"[resource {block.resource.uri}]"[:_MAX_LINE])
            self._bytes("resource", block.resource.blob, block.resource.mime_type or "application/octet-stream")

    def add_structured(self, value: Any) -> None:
        """The structured content, unless a text says the same."""
        if value is None:
            return
        if any(_says(line, value) for line in self.lines):
            return
        self.lines.append(orjson.dumps(value).decode())

    def _image(self, data: str, media_type: str) -> None:
        content = self._bytes("image", data, media_type)
        picture = None if content is None else judged(content)
        if picture is None or picture.data is None:
            self.lines.append(f"[the image is not shown: {'it is none' if picture is None else picture.problem}]")
        else:
            header = picture.header
            self.images.append(Image(header.media_type, header.width, header.height, picture.data))

    def _bytes(self, part: str, data: str, media_type: str) -> bytes | None:
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            self.lines.append(f"[{part}: not valid base64]")
            return None
        self.keep(part, media_type, content)
        self.lines.append(f"[{part}: {media_type}, {len(content)} bytes]"[:_MAX_LINE])
        return content

    def keep(self, part: str, media_type: str, content: bytes) -> None:
        """Have a part stored."""
        plain = media_type if media_type.isascii() and media_type.isprintable() else "application/octet-stream"
        suffix = mimetypes.guess_extension(plain.partition(";")[0]) or ".bin"
        tool = self._request.tool_name.replace("/", "_")
        number = f"-{len(self.artifacts) + 1}" if self.artifacts else ""
        name = f"{tool}-{self._request.tool_call_id}-{part}{number}{suffix}"
        self.artifacts.append(Artifact("tool_output", name, plain[:128], content))


def _says(text: str, value: Any) -> bool:
    """True if a text is the JSON of a structured content, or of the one thing that is in it."""
    inner = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else None
    try:
        said = json_text.loads(text)
    except orjson.JSONDecodeError:
        said = text
    return bool(said == value) or (inner is not None and (bool(said == inner) or text == inner))
