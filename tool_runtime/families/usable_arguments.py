"""Arguments as models write them: what stands for an optional argument that is left out, and whole numbers as floats.

Models send `null`, `{}` or an empty text for what they do not use, and 3.0 for 3. For the tools of this program these
mean the argument left out, and the whole number. A tool of another program may mean something by them: its arguments
are changed only where its schema refuses them as they are and takes them so. No other repair is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policy.names import SANDBOX_GRANT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolSpec
    from tool_runtime.schema import Judge

_ASKS = ("write", "domains", "off")


def usable_arguments(spec: ToolSpec, arguments: Mapping[str, Any], judge: Judge) -> Mapping[str, Any]:
    """The arguments of a call as its tool takes them, `arguments` itself where nothing changes; `judge` is that of the
    tool's schema."""
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
    """The grant that a call asks for beyond its sandbox, None if it asks for nothing."""
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
