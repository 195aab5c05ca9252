"""How the families write the JSON Schemas of their tools' arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import ToolSpec

# What a call is checked against, and its error then says: requests do not pay for it.
_CHECKED: Final = frozenset({"minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"})


def parameters(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def text(description: str = "", **rules: Any) -> Mapping[str, Any]:
    """A string; without a description where its name says all."""
    return _described("string", description, rules)


def integer(description: str = "", **rules: int) -> Mapping[str, Any]:
    """An integer."""
    return _described("integer", description, rules)


def flag(description: str = "") -> Mapping[str, Any]:
    """A boolean."""
    return _described("boolean", description, {})


def _described(kind: str, description: str, rules: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": kind, **({"description": description} if description else {}), **rules}


def items(description: str, member: Mapping[str, Any], **rules: int) -> Mapping[str, Any]:
    """A list of such members."""
    return {"type": "array", "description": description, "items": member, **rules}


def definition_of(spec: ToolSpec) -> ToolSpec:
    """The tool as requests define it: without the bounds of arguments, which the error of a call that breaks one names.
    A schema that another program wrote stays as it is."""
    if spec.foreign_schema:
        return spec
    return spec._replace(input_schema=_without_bounds(spec.offered or spec.input_schema))


def _without_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key not in _CHECKED}
    if kept.get("additionalProperties") is False:
        del kept["additionalProperties"]
    if kept.get("required") == []:
        del kept["required"]
    if "properties" in kept:
        kept["properties"] = {name: _without_bounds(one) for name, one in kept["properties"].items()}
    if isinstance(kept.get("items"), dict):
        kept["items"] = _without_bounds(kept["items"])
    return kept
