"""Checks a value against the subset of JSON Schema that our own tool definitions use.

Known keywords: type (one or several), required, properties, additionalProperties (false or a schema), enum, const,
anyOf, minimum, maximum, minLength, maxLength, pattern (RE2's syntax), items. Other keywords are taken as annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": (list, tuple),
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def problems(schema: Mapping[str, Any], value: object, path: str = "$") -> list[str]:
    """Everything about `value` that breaks `schema`, each with its JSON path; empty when it conforms."""
    return list(_problems(schema, value, path))


def _problems(schema: Mapping[str, Any], value: object, path: str) -> Iterator[str]:
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(_is_a(kind, value) for kind in kinds):
        yield f"{path}: expected {' or '.join(kinds)}, got {_name(value)}"
        return
    if "enum" in schema and not any(_is_same(value, one) for one in schema["enum"]):
        yield f"{path}: must be one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema and not _is_same(value, schema["const"]):
        yield f"{path}: must be {schema['const']}"
    if "anyOf" in schema:
        tried = [problems(one, value, path) for one in schema["anyOf"]]
        if all(tried):
            yield f"{path}: fits none of the {len(tried)} forms that it may have ({tried[0][0]})"
    if isinstance(value, Mapping):
        yield from _object_problems(schema, value, path)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _problems(schema.get("items", {}), item, f"{path}[{index}]")
    elif isinstance(value, str):
        yield from _range_problems(schema, len(value), ("minLength", "maxLength"), path, "length")
        if "pattern" in schema and not _fits(schema["pattern"], value):
            yield f"{path}: must match {schema['pattern']}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _range_problems(schema, value, ("minimum", "maximum"), path, "value")


def _object_problems(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: is required"
    for name, item in value.items():
        if name in properties:
            yield from _problems(properties[name], item, f"{path}.{name}")
        elif extra is False:
            yield f"{path}.{name}: is not an argument of this tool"
        else:
            yield from _problems(extra, item, f"{path}.{name}")


def _range_problems(
    schema: Mapping[str, Any], amount: float, keywords: tuple[str, str], path: str, what: str
) -> Iterator[str]:
    low, high = (schema.get(keyword) for keyword in keywords)
    if low is not None and amount < low:
        yield f"{path}: {what} must be at least {low}"
    if high is not None and amount > high:
        yield f"{path}: {what} must be at most {high}"


def _is_same(value: object, other: object) -> bool:
    """Whether they are equal in JSON, where true is no 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _fits(pattern: str, text: str) -> bool:
    import re2  # rarely needed

    return re2.search(pattern, text) is not None


def _is_a(kind: str, value: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"  # Python's bool is an int, JSON's is not
    return isinstance(value, _TYPES[kind])


def _name(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, kind in _TYPES.items() if isinstance(value, kind)), type(value).__name__)
