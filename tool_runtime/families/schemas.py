"""Helpers to write the JSON Schemas of tool arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Subject
from policy import SANDBOX_GRANT
from tool_runtime.schema import target_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypedDict

    from agent_host.contracts import Category, Display, Effect, ToolSpec

    class Act(TypedDict):
        """The fields of a record about the effects of calls."""

        capability: str
        subject: Subject
        effect: Effect
        category: Category
        display: Display

    from tool_runtime.schema import Judge


_FILE: Final = Subject("path", "path")
READS: Final[Act] = {
    "capability": "File.Read", "subject": _FILE, "effect": "none", "category": "files", "display": "read",
}  # fmt: skip
SEARCHES: Final[Act] = {**READS, "subject": Subject("path", "path", or_workspace=True)}
WRITES: Final[Act] = {**READS, "capability": "File.Write", "effect": "replace", "display": "write"}
EDITS: Final[Act] = {**WRITES, "effect": "edit"}
DELETES: Final[Act] = {**READS, "capability": "File.Delete", "effect": "delete", "display": "delete"}
MOVES: Final[Act] = {**DELETES, "effect": "move", "display": "move"}
FETCHES: Final[Act] = {
    "capability": "Network.Http", "subject": Subject("url", "url"),
    "effect": "other", "category": "requests", "display": "request",
}  # fmt: skip
RUNS: Final[Act] = {
    "capability": "Shell.Exec", "subject": Subject("command", "command"),
    "effect": "other", "category": "commands", "display": "command",
}  # fmt: skip

INVOKES: Final[Mapping[str, Any]] = {"capability": "Tool.Invoke", "subject": Subject("name"), "foreign_schema": True}


# Parts of a schema for checks and error messages only: requests omit them to save tokens.
_CHECKED: Final = frozenset({"minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"})
_NOT_AT_TOP: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const", "if", "then", "else")
_MAX_NESTED: Final = 4


def parameters(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def text(description: str = "", **rules: Any) -> Mapping[str, Any]:
    """A string; without a description if its name is sufficient."""
    return {"type": "string", **({"description": description} if description else {}), **rules}


def integer(description: str = "", **rules: int) -> Mapping[str, Any]:
    """An integer."""
    return {**text(description, **rules), "type": "integer"}


def flag(description: str = "") -> Mapping[str, Any]:
    """A boolean."""
    return {**text(description), "type": "boolean"}


def mapping(description: str = "") -> Mapping[str, Any]:
    """An object of strings by any names."""
    return {**text(description), "type": "object", "additionalProperties": {"type": "string"}}


def items(description: str, member: Mapping[str, Any], **rules: int) -> Mapping[str, Any]:
    """A list of such members."""
    return {"type": "array", "description": description, "items": member, **rules}


def content_of_write(arguments: Mapping[str, Any], _before: bytes | None) -> bytes | None:
    """The file's content after a write of the argument `content`, see `ToolSpec.after`."""
    content = arguments.get("content")
    return content.encode("utf-8", "replace") if isinstance(content, str) else None


def definition_of(spec: ToolSpec) -> ToolSpec:
    """The tool as requests define it, without the bounds of arguments: the error of a call that breaks one names it. A
    schema that another program wrote stays as it is, but for what gateways refuse at its top."""
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
    whole request. The properties of all of them stay; none is required that one choice does without."""
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


# Models send `null`, `{}` or an empty text for unused arguments, and 3.0 for 3. For the tools of this program these
# mean an omitted argument, and the whole number. For a tool of another program they may have a meaning: its arguments
# are changed only if its schema rejects them unchanged and accepts the change. No other repair is made.

_ASKS = ("write", "domains", "off")


def usable_arguments(spec: ToolSpec, arguments: Mapping[str, Any], judge: Judge) -> Mapping[str, Any]:
    """The arguments of a call in the form of its tool, `arguments` itself if nothing changes."""
    if spec.foreign_schema and judge(arguments) is None:
        return arguments
    usable = _mend(spec.schema_to_check, dict(arguments))
    content = spec.content or ""
    if arguments.get(content) == "" and not arguments.get(spec.subject.argument):
        usable[content] = ""  # an empty content is one if no file is named in its place
    if SANDBOX_GRANT in usable and takes_grant(spec):
        grant = _grant(usable.pop(SANDBOX_GRANT))
        usable |= {} if grant is None else {SANDBOX_GRANT: grant}
    if usable == arguments and _types(usable) == _types(arguments):
        return arguments
    return arguments if spec.foreign_schema and judge(usable) is not None else usable


def _mend(schema: Any, value: Any) -> Any:
    if not isinstance(schema, dict):
        return value
    if isinstance(value, dict):
        members, needed = schema.get("properties", {}), schema.get("required", ())
        mended = {name: _mend(members.get(name), one) for name, one in value.items()}
        return {name: one for name, one in mended.items() if name in needed or name not in members or not _is_left(one)}
    if isinstance(value, list):
        return [_mend(schema.get("items"), one) for one in value]
    if isinstance(value, float) and schema.get("type") == "integer" and value.is_integer():
        return int(value)
    return value


def _is_left(value: Any) -> bool:
    return value is None or value == "" or value == {}


def _types(value: Any) -> Any:
    """The kinds of all values, since 3.0 equals 3."""
    if isinstance(value, dict):
        return {name: _types(one) for name, one in value.items()}
    return [_types(one) for one in value] if isinstance(value, list) else type(value)


def _grant(grant: Any) -> Any:
    if not isinstance(grant, dict):
        return None if _is_left(grant) else grant
    asked = {name: one for name, one in grant.items() if not _is_left(one)}
    return asked if any(asked.get(name) for name in _ASKS) or asked.keys() - {*_ASKS, "reason"} else None


# The argument by which a call that starts a program asks for more than its sandbox gives. The host reads it, and its
# policy decides; no tool sees it, and no definition has it: the result of a call that was refused something
# introduces it (`processes.command`).


def takes_grant(spec: ToolSpec) -> bool:
    """True if a call of the tool may ask: it starts a program, and its own arguments leave the name free."""
    return spec.starts_program and SANDBOX_GRANT not in spec.schema_to_check.get("properties", {})


def drop_grant(spec: ToolSpec, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the tool itself takes them."""
    if SANDBOX_GRANT not in arguments or not takes_grant(spec):
        return arguments
    return {name: value for name, value in arguments.items() if name != SANDBOX_GRANT}
