"""The JSON Schema of a bundle file, made from `policy.bundle`: for editors and for programs that write bundles.

It never refuses what `policy.bundle.validate` accepts. What only that can say: that names and ids stand once, and
each once in an object; that an approvalRuleId is one of the bundle's; that domains and patterns can be read, and no
pattern fits the empty text; that a day is in the calendar; that an index is within maxArguments.
"""

from __future__ import annotations

from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from policy import ALL_CAPABILITIES, ANY_SESSION, SCHEMA_VERSION
from policy.bundle import (
    NO_DEFAULT,
    PARTS,
    ApprovalRule,
    ArgumentRule,
    Capability,
    CommandPolicy,
    LlmPolicy,
    McpServer,
    PolicyBundle,
    RedactionRule,
    ToolPolicy,
    members,
)
from policy.bundle.builtin import GROUP_NAMES, PLACEHOLDERS
from policy.bundle.meaning import (
    APPROVAL_TIMEOUT_S,
    HARMLESS_EMPTY,
    NO_PROGRAM,
    RFC3339,
    SCOPE_FIELDS,
    SCOPES,
    SENT_ELSEWHERE,
    SERVER_NAME,
    SESSION_ID,
    VARIABLE_NAME,
)
from policy.patterns import MAX_CHARACTERS

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}
_CONTROLS = r"\u0000-\u001f\u007f-\u009f"
_ABSENT: dict[str, Any] = {"type": "null"}
_EMPTY: dict[str, Any] = {"anyOf": [{"type": "null"}, {"maxItems": 0}]}
_ROOT = r"(?:/|[A-Za-z]:[/\\]|\\[/\\])"
_ABSOLUTE = rf"{_ROOT}(?!(?:[^{_CONTROLS}]*[/\\])?\*\*?(?:[/\\]|$))[^{_CONTROLS}]*"
_ABSOLUTE_OR_NESTED = rf"{_ROOT}(?!(?:[^{_CONTROLS}]*[/\\])?\*\*?[/\\]*$)[^{_CONTROLS}]*"
_PLACEHOLDER = rf"\$\{{(?:{'|'.join(PLACEHOLDERS)})\}}(?=/|$)"
_RELATIVE = rf"(?![@~$%\\/]|[A-Za-z]:)(?=[^{_CONTROLS}])"
_NO_STARS = rf"[^{_CONTROLS}*]*"
_AT_ANY_DEPTH = rf"(?:{_NO_STARS}/)?\*\*/\*?[^{_CONTROLS}*/\\]+"
_BELOW = f"(?:{_PLACEHOLDER}|{_RELATIVE})"
_GROUP = f"@(?:{'|'.join(GROUP_NAMES)})"
_PATHS = {"items": {"pattern": f"^(?:{_ABSOLUTE}|{_BELOW}{_NO_STARS})$"}}
_BLOCKED = {"items": {"pattern": f"^(?:{_ABSOLUTE_OR_NESTED}|{_BELOW}(?:{_NO_STARS}|{_AT_ANY_DEPTH})|{_GROUP})$"}}
_NAME = rf"\[\[?|\]\]|[^{_CONTROLS} \[\]{NO_PROGRAM}]+"
_PROGRAM = {"pattern": f"^(?:{_NAME})$"}
_PROGRAMS = {"items": {"pattern": rf"^(?:{_NAME}|\$\{{workspace\}}/(?:[^{_CONTROLS}*?$\\]*/)?\*\*?)$"}}
_DOMAINS = {"items": {"pattern": rf"^(?:\*\.)?[^{_CONTROLS} *]+$"}}
_PATTERN = {"maxLength": MAX_CHARACTERS}
_NAMED = {"minLength": 1}
_TOOL = {"pattern": rf"^[^{_CONTROLS}\s]+$"}
# What the types do not say, by class and JSON name.
_MORE: dict[tuple[type, str], dict[str, Any]] = {
    (PolicyBundle, "policyBundleVersion"): _NAMED,
    (PolicyBundle, "schemaVersion"): {"const": SCHEMA_VERSION},
    (PolicyBundle, "sessionId"): {
        "pattern": rf"^(?:\{ANY_SESSION}|{SESSION_ID})$",
        "description": "`*`, in a file only, stands for any session.",
    },
    (PolicyBundle, "expiresAt"): {
        "pattern": f"^{RFC3339}$",
        "description": "Left out: as long as a built-in, from each start on.",
    },
    (PolicyBundle, "capabilities"): {"uniqueItems": True},
    (PolicyBundle, "approvalRules"): {"uniqueItems": True},
    (PolicyBundle, "mcpServers"): {"uniqueItems": True},
    (PolicyBundle, "redactionRules"): {"uniqueItems": True},
    (PolicyBundle, "approvalTimeoutS"): {
        "minimum": APPROVAL_TIMEOUT_S[0],
        "maximum": APPROVAL_TIMEOUT_S[1],
        "description": "In place of approvals.timeout_s of the configuration.",
    },
    (Capability, "name"): {"enum": list(ALL_CAPABILITIES)},
    (Capability, "allowedPaths"): _PATHS,
    (Capability, "blockedPaths"): _BLOCKED,
    (Capability, "allowedCommands"): _PROGRAMS,
    (Capability, "blockedCommands"): {"items": _PROGRAM},
    (Capability, "allowedDomains"): _DOMAINS,
    (Capability, "blockedDomains"): _DOMAINS,
    (Capability, "maxFileSizeBytes"): {"minimum": 0},
    (Capability, "maxOutputBytes"): {"minimum": 0},
    (Capability, "allowedToolNames"): {"items": _TOOL},
    (Capability, "allowedVariables"): {"items": {"pattern": f"^{VARIABLE_NAME}$"}},
    (Capability, "insteadOf"): {"items": {"enum": list(SENT_ELSEWHERE)}},
    (ToolPolicy, "tool"): _TOOL,
    (McpServer, "name"): {"pattern": f"^(?:{SERVER_NAME})$"},
    (CommandPolicy, "command"): _PROGRAM,
    (CommandPolicy, "maxArguments"): {"minimum": 0},
    (ArgumentRule, "index"): {"minimum": 0},
    (ArgumentRule, "pattern"): _PATTERN,
    (LlmPolicy, "allowedModels"): {"minItems": 1, "items": {"type": "string", **_NAMED}},
    (LlmPolicy, "maxInputTokens"): {"minimum": 1},
    (LlmPolicy, "maxOutputTokens"): {"minimum": 1},
    (LlmPolicy, "maxSessionTokens"): {"minimum": 1},
    (ApprovalRule, "approvalRuleId"): {**_NAMED, "description": "What a capability's approvalRuleId refers to."},
    (RedactionRule, "redactionRuleId"): _NAMED,
    (RedactionRule, "pattern"): {**_NAMED, **_PATTERN},
}


def _when(field: str, value: str, then: dict[str, Any]) -> dict[str, Any]:
    """A rule for objects whose `field` is `value`."""
    return {"if": {"properties": {field: {"const": value}}, "required": [field]}, "then": then}


def _scope(name: str) -> dict[str, Any]:
    """The lists that restrict nothing in this capability."""
    other = {one: _EMPTY if one in HARMLESS_EMPTY else _ABSENT for one in SCOPE_FIELDS if one not in SCOPES[name]}
    return _when("name", name, {"properties": other})


def _server(transport: str, needed: str, other: str, text: dict[str, Any]) -> dict[str, Any]:
    has = {"properties": {needed: {"type": "string", **text}, other: _ABSENT}, "required": [needed]}
    return _when("transport", transport, has)


# What holds for several fields of an object together.
_TOGETHER: dict[type, dict[str, Any]] = {
    Capability: {"allOf": [_scope(name) for name in ALL_CAPABILITIES]},
    ToolPolicy: {
        "anyOf": [
            {"properties": {name: {"type": "boolean"}}, "required": [name]}
            for name in ("requiresApproval", "repeatable")
        ]
    },
    ArgumentRule: {
        "anyOf": [
            {"properties": {"pattern": {"type": "string"}}, "required": ["pattern"]},
            {"properties": {"enum": {"type": "array"}}, "required": ["enum"]},
        ]
    },
    McpServer: {
        "allOf": [
            _server("stdio", "command", "url", _NAMED),
            _server("http", "url", "command", {"pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"}),
        ]
    },
}


def bundle_schema(built_ins: tuple[str, ...]) -> dict[str, Any]:
    """The schema, draft 2020-12. Objects are closed; every class of the bundle stands once, under `$defs`. `built_ins`
    are the names that `extends` may have."""
    definitions: dict[str, Any] = {}
    _define(PolicyBundle, definitions)
    bundle = definitions.pop(PolicyBundle.__name__)
    text = "The built-in that this file starts from; what it leaves out is as there."
    bundle["properties"] = {"extends": {"enum": list(built_ins), "description": text}, **bundle["properties"]}
    needed = [name for name in bundle.pop("required") if name != "expiresAt"]
    of_llm = {"required": definitions[LlmPolicy.__name__].pop("required")}
    bundle["if"] = {"required": ["extends"]}
    bundle["else"] = {"required": needed, "properties": {"llmPolicy": of_llm}}
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
    shape["properties"] = {
        json_name: {**_of(hints[member.name], definitions), **_MORE.get((cls, json_name), {})}
        for json_name, member in members(cls).items()
    }
    shape["required"] = [json_name for json_name, member in members(cls).items() if member.default is NO_DEFAULT]
    shape["additionalProperties"] = False
    shape.update(_TOGETHER.get(cls, {}))


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Raises TypeError for an annotation that no bundle class has so far."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[1:] == (...,):
        return {"type": "array", "items": _of(inner[0], definitions)}
    if origin in (Union, UnionType) and inner[1:] == (NoneType,):
        return {"anyOf": [_of(inner[0], definitions), {"type": "null"}]}
    if hint in PARTS.values():
        if hint.__name__ not in definitions:
            _define(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    raise TypeError(f"a bundle's field is annotated with {hint!r}, which has no schema yet")


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).partition(". ")[0].rstrip(".") + "."
