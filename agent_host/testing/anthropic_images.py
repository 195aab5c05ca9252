"""Image blocks of a request, checked as the real endpoint does: kind, encoding, size."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any

from agent_host.testing.dialect import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_BASE64_BYTES = 5 * 1024 * 1024
_BEGINNINGS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


def check_image(block: Mapping[str, Any], where: str) -> None:
    """Raises BadRequest for an image block that would be refused; `where` is its place in the request."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise BadRequest(f"{where}.source: must be an object of type base64")
    kind, data = source.get("media_type"), source.get("data")
    if kind not in _BEGINNINGS:
        raise BadRequest(f"{where}.source.base64.media_type: must be one of {', '.join(_BEGINNINGS)}")
    if not isinstance(data, str) or not data:
        raise BadRequest(f"{where}.source.base64.data: field required")
    if len(data) > _MAX_BASE64_BYTES:
        raise BadRequest(
            f"{where}.source.base64: image exceeds 5 MB maximum: {len(data)} bytes > {_MAX_BASE64_BYTES} bytes"
        )
    try:
        decoded = binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise BadRequest(f"{where}.source.base64.data: is not base64") from error
    if not decoded.startswith(_BEGINNINGS[kind]):
        raise BadRequest(f"{where}.source.base64.data: the image does not appear to be {kind}")


def images_in(content: Any) -> Iterator[str]:
    """The media types of the images in a message's content, those in tool results included."""
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "image":
            yield str(block["source"]["media_type"])
        elif isinstance(block, dict) and block.get("type") == "tool_result":
            yield from images_in(block.get("content"))
