"""How the families write the JSON Schemas of their tools' arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def parameters(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def text(description: str, **rules: Any) -> Mapping[str, Any]:
    """A string."""
    return {"type": "string", "description": description, **rules}


def integer(description: str, **rules: int) -> Mapping[str, Any]:
    """An integer."""
    return {"type": "integer", "description": description, **rules}


def flag(description: str) -> Mapping[str, Any]:
    """A boolean."""
    return {"type": "boolean", "description": description}


def items(description: str, member: Mapping[str, Any], **rules: int) -> Mapping[str, Any]:
    """A list of such members."""
    return {"type": "array", "description": description, "items": member, **rules}
