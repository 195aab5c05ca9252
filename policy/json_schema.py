"""The JSON Schema of a bundle, made from `policy.bundle`: for editors and for those who write bundles by program.

It says what a schema can say. That names are unique, rules exist and entries can be read is told by `policy.validate`.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from policy.bundle import ApprovalRule, Capability, CommandPolicy, LlmPolicy, PolicyBundle, camel
from policy.names import ALL_CAPABILITIES, SCHEMA_VERSION

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}
# What the types do not say, by class and JSON name.
_MORE: dict[tuple[type, str], dict[str, Any]] = {
    (PolicyBundle, "schemaVersion"): {"const": SCHEMA_VERSION},
    (PolicyBundle, "sessionId"): {"minLength": 1, "description": "`*`, in a file only, stands for any session."},
    (Capability, "name"): {"enum": list(ALL_CAPABILITIES)},
    (Capability, "maxFileSizeBytes"): {"minimum": 0},
    (Capability, "maxOutputBytes"): {"minimum": 0},
    (CommandPolicy, "maxArguments"): {"minimum": 0},
    (LlmPolicy, "allowedModels"): {"minItems": 1},
    (LlmPolicy, "maxInputTokens"): {"minimum": 1},
    (LlmPolicy, "maxOutputTokens"): {"minimum": 1},
    (LlmPolicy, "maxSessionTokens"): {"minimum": 1},
    (ApprovalRule, "approvalRuleId"): {"description": "What a capability's approvalRuleId refers to."},
}


def bundle_schema() -> dict[str, Any]:
    """The schema, draft 2020-12. Objects are closed; every class of the bundle stands once, under `$defs`."""
    definitions: dict[str, Any] = {}
    _define(PolicyBundle, definitions)
    bundle = definitions.pop(PolicyBundle.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy bundle of agent-host",
        **bundle,
        "$defs": definitions,
    }


def _define(cls: Any, definitions: dict[str, Any]) -> None:
    shape: dict[str, Any] = {"type": "object", "description": _first_sentence(cls.__doc__)}
    definitions[cls.__name__] = shape
    hints = get_type_hints(cls)
    members = [item for item in fields(cls) if item.init]
    shape["properties"] = {
        camel(item.name): {**_of(hints[item.name], definitions), **_MORE.get((cls, camel(item.name)), {})}
        for item in members
    }
    shape["required"] = [camel(item.name) for item in members if item.default is MISSING]
    shape["additionalProperties"] = False


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Raises TypeError for an annotation that no bundle class has so far."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[1:] == (...,):
        return {"type": "array", "items": _of(inner[0], definitions)}
    if origin is UnionType and inner[1:] == (NoneType,):
        return {"anyOf": [_of(inner[0], definitions), {"type": "null"}]}
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        if hint.__name__ not in definitions:
            _define(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    raise TypeError(f"a bundle's field is annotated with {hint!r}, which has no schema yet")


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).partition(". ")[0].rstrip(".") + "."
