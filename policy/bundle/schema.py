"""The schema that pydantic's validator gets for a bundle, made from the annotations of `policy.bundle.model`.

Only the validator itself is used, `pydantic_core`. The library around it would make the same of the classes, and takes
longer for that than the rest of a session's start.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from datetime import datetime
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from pydantic_core import SchemaValidator

from policy.bundle.model import CommandPolicy, PolicyBundle, camel

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 1.0 is a whole one, as JSON Schema has it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "str"},
    int: {"type": "function-before", "function": {"type": "no-info", "function": _whole}, "schema": {"type": "int"}},
    bool: {"type": "bool"},
    datetime: {"type": "datetime"},
}


@lru_cache(maxsize=1)
def bundle_validator() -> SchemaValidator:
    """Checks JSON text strictly and makes a PolicyBundle of it; unknown fields are errors."""
    schema: CoreSchema = _of_class(PolicyBundle)
    return SchemaValidator(schema)


@lru_cache(maxsize=1)
def command_policies_validator() -> SchemaValidator:
    """The same for a list of commandPolicies alone."""
    schema: CoreSchema = _of_hint(tuple[CommandPolicy, ...])
    return SchemaValidator(schema)


def _of_class(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    members = [item for item in fields(cls) if item.init]
    return {
        "type": "dataclass",
        "cls": cls,
        "fields": [item.name for item in members],
        "slots": True,
        "post_init": hasattr(cls, "__post_init__"),
        "config": {"strict": True, "extra_fields_behavior": "forbid"},
        "schema": {
            "type": "dataclass-args",
            "dataclass_name": cls.__name__,
            "fields": [_of_field(item.name, hints[item.name], item.default) for item in members],
        },
    }


def _of_field(name: str, hint: Any, default: Any) -> dict[str, Any]:
    schema = _of_hint(hint)
    if default is not MISSING:
        schema = {"type": "default", "schema": schema, "default": default}
    return {"type": "dataclass-field", "name": name, "validation_alias": camel(name), "schema": schema}


def _of_hint(hint: Any) -> dict[str, Any]:
    """Raises TypeError for an annotation that no bundle class has so far."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"type": "literal", "expected": list(inner)}
    if origin is tuple and inner[1:] == (...,):
        return {"type": "tuple", "items_schema": [_of_hint(inner[0])], "variadic_item_index": 0}
    if origin is UnionType and inner[1:] == (NoneType,):
        return {"type": "nullable", "schema": _of_hint(inner[0])}
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return _of_class(hint)
    raise TypeError(f"a bundle's field is annotated with {hint!r}, which has no schema yet")
