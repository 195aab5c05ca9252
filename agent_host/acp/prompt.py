"""The prompt of an editor for the model: text, names of resources, the content of those that came along, and pictures.

A `resource_link` is a name: the model may read what it names with its tools, under the policy; the host opens none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.acp.peer import AcpError
from agent_host.display_text import one_line
from agent_host.rpc.messages import INVALID_PARAMS
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_BLOCKS: Final = 1000
_NAME_BYTES: Final = 4096
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_FENCE: Final = re.compile(r"`{3,}")


class Prompt(NamedTuple):
    """A prompt as `serve` takes it: text, and pictures, which are {mediaType, data}."""

    text: str
    pictures: Sequence[Mapping[str, str]] = ()


def prompt_in(blocks: Sequence[Mapping[str, Any]], *, takes_pictures: bool) -> Prompt:
    """The prompt that the blocks are. Raises AcpError for a block that is none, or is not advertised."""
    parts: list[str] = []
    pictures: list[dict[str, str]] = []
    is_text = False
    for place, block in enumerate(blocks):
        if takes_pictures and (picture := _picture(block, f"prompt[{place}]")) is not None:
            pictures.append(picture)
            block = {"type": "text", "text": f"[picture {len(pictures)}]"}  # noqa: PLW2901  its place in the text
        was_text, is_text = is_text, block.get("type") == "text"
        part = _part(block, f"prompt[{place}]")
        if was_text and is_text:  # editors cut one text at its mentions
            parts[-1] += part
        else:
            parts.append(part)
    text = "\n\n".join(part.strip("\n") for part in parts if part)
    if not text.strip():
        raise AcpError(INVALID_PARAMS, "prompt: is empty")
    return Prompt(text, pictures)


def _picture(block: Mapping[str, Any], path: str) -> dict[str, str] | None:
    """The picture of a block, or of a resource that came along; None for any other block."""
    if block.get("type") == "image":
        return {"mediaType": _text(block, "mimeType", path), "data": _text(block, "data", path)}
    resource = block.get("resource") if block.get("type") == "resource" else None
    if isinstance(resource, dict) and resource.get("mimeType") in _PICTURES and "blob" in resource:
        return {"mediaType": resource["mimeType"], "data": _text(resource, "blob", f"{path}.resource")}
    return None


def _part(block: Mapping[str, Any], path: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return _text(block, "text", path)
    if kind == "resource_link":
        return f"[{one_line(_text(block, 'name', path))}]({one_line(_text(block, 'uri', path), _NAME_BYTES)})"
    if kind == "resource":
        return _resource(block.get("resource"), f"{path}.resource")
    if kind in ("image", "audio"):
        raise AcpError(INVALID_PARAMS, f"{path}: this agent takes no {kind} (promptCapabilities)")
    raise AcpError(INVALID_PARAMS, f"{path}.type: must be text, resource_link or resource")


def _resource(resource: Any, path: str) -> str:
    if not isinstance(resource, dict):
        raise AcpError(INVALID_PARAMS, f"{path}: must be an object")
    uri = one_line(_text(resource, "uri", path), _NAME_BYTES)
    if "text" not in resource:
        _text(resource, "blob", path)
        return f"{uri} (binary, its content is not shown)"
    text = _text(resource, "text", path)
    fence = "`" * max([3, *(len(one) + 1 for one in _FENCE.findall(text))])  # no text can end its own block
    end = "" if text.endswith("\n") else "\n"
    return f"{uri}:\n{fence}\n{text}{end}{fence}"


def _text(block: Mapping[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise AcpError(INVALID_PARAMS, f"{path}.{name}: must be a string")
    return value
