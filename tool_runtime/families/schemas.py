"""Helpers to write the JSON Schemas of tool arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Subject
from tool_runtime.schema import target_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypedDict

    from agent_host.contracts import Category, Display, Effect, ToolSpec

    class Act(TypedDict):
        """The fields of a record that say what calls do."""

        capability: str
        subject: Subject
        effect: Effect
        category: Category
        display: Display


_FILE: Final = Subject("path", "path")
READS: Final[Act] = {
    "capability": "File.Read", "subject": _FILE, "effect": "none", "category": "files", "display": "read",
}  # fmt: skip
SEARCHES: Final[Act] = {**READS, "subject": Subject("path", "path", or_workspace=True)}
WRITES: Final[Act] = {**READS, "capability": "File.Write", "effect": "replace", "display": "write"}
DELETES: Final[Act] = {**READS, "capability": "File.Delete", "effect": "delete", "display": "delete"}
FETCHES: Final[Act] = {
    "capability": "Network.Http", "subject": Subject("url", "url"),
    "effect": "other", "category": "requests", "display": "request",
}  # fmt: skip
RUNS: Final[Act] = {
    "capability": "Shell.Exec", "subject": Subject("command", "command"),
    "effect": "other", "category": "commands", "display": "command",
}  # fmt: skip


# What a call is checked against, and its error then says: requests do not pay for it.
_CHECKED: Final = frozenset({"minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"})
_NOT_AT_TOP: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const", "if", "then", "else")
_MAX_NESTED: Final = 4


def parameters(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def text(description: str = "", **rules: Any) -> Mapping[str, Any]:
    """A string; without a description where its name says all."""
    return _describe("string", description, rules)


def integer(description: str = "", **rules: int) -> Mapping[str, Any]:
    """An integer."""
    return _describe("integer", description, rules)


def flag(description: str = "") -> Mapping[str, Any]:
    """A boolean."""
    return _describe("boolean", description, {})


def _describe(kind: str, description: str, rules: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": kind, **({"description": description} if description else {}), **rules}


def mapping(description: str = "") -> Mapping[str, Any]:
    """An object of strings by any names."""
    return {**_describe("object", description, {}), "additionalProperties": {"type": "string"}}


def content_of_write(arguments: Mapping[str, Any], _before: bytes | None) -> bytes | None:
    """The file's content after a write of the argument `content`, see `ToolSpec.after`."""
    content = arguments.get("content")
    return content.encode("utf-8", "replace") if isinstance(content, str) else None


def items(description: str, member: Mapping[str, Any], **rules: int) -> Mapping[str, Any]:
    """A list of such members."""
    return {"type": "array", "description": description, "items": member, **rules}


def definition_of(spec: ToolSpec) -> ToolSpec:
    """The tool as requests define it: without the bounds of arguments, which the error of a call that breaks one names.
    A schema that another program wrote stays as it is, but for what gateways refuse at its top."""
    if spec.foreign_schema:
        return spec._replace(input_schema=one_object(spec.input_schema))
    return spec._replace(input_schema=_drop_bounds(spec.offered or spec.input_schema))


def _drop_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key not in _CHECKED}
    if kept.get("additionalProperties") is False:
        del kept["additionalProperties"]
    if kept.get("required") == []:
        del kept["required"]
    if "properties" in kept:
        kept["properties"] = {name: _drop_bounds(one) for name, one in kept["properties"].items()}
    if isinstance(kept.get("items"), dict):
        kept["items"] = _drop_bounds(kept["items"])
    return kept


def one_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of arguments without references and choices between schemas at its top, for which gateways refuse the
    whole request. The properties of all of them stay, and none is required that one choice does without. Calls are
    judged by the schema as it was."""
    if schema.keys().isdisjoint(_NOT_AT_TOP):
        return schema
    return {"type": "object", **_flat(schema, schema, _MAX_NESTED)}


def _flat(schema: Mapping[str, Any], root: Mapping[str, Any], levels: int) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key not in _NOT_AT_TOP}
    properties = {name: [one] for name, one in kept.get("properties", {}).items()}
    required = set(kept.get("required", ()))
    for keyword in _NOT_AT_TOP if levels else ():
        branches = _branches(schema, keyword, root)
        flat = [_flat(one, root, levels - 1) for one in branches if isinstance(one, dict)]
        for branch in () if kept.get("additionalProperties") is False else flat:
            for name, one in branch.get("properties", {}).items():
                known = properties.setdefault(name, [])
                if one not in known:
                    known.append(one)
        needed = [set(branch.get("required", ())) for branch in flat]
        if needed:
            required |= set.union(*needed) if keyword in ("$ref", "allOf") else set.intersection(*needed)
    if properties:
        kept["properties"] = {name: one[0] if len(one) == 1 else {"anyOf": one} for name, one in properties.items()}
    if required:
        kept["required"] = sorted(required)
    return kept


def _branches(schema: Mapping[str, Any], keyword: str, root: Mapping[str, Any]) -> Sequence[Any]:
    if keyword not in schema or keyword == "not":
        return ()
    if keyword == "$ref":
        return (target_of(root, schema[keyword]),)
    return schema[keyword] if keyword in ("allOf", "anyOf", "oneOf") else ()
