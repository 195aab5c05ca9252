"""The argument by which a call that starts a program asks for more than its sandbox gives. The host reads it, and its
policy decides; no tool sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from policy.names import SANDBOX_GRANT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolSpec

_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": (
        "What this call needs beyond its sandbox. A person has to approve it. Use it only after a result has said what "
        "the sandbox refused, and only for that"
    ),
    "properties": {
        "write": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Directories or files outside of the workspace that it has to write to",
        },
        "domains": {"type": "array", "items": {"type": "string"}, "description": "Hosts that it has to reach"},
        "off": {"type": "boolean", "description": "Run without any sandbox, where the policy allows that at all"},
        "reason": {"type": "string", "description": "Why, in a sentence for the person who approves it"},
    },
    "required": ["reason"],
    "additionalProperties": False,
}


def with_grant(spec: ToolSpec) -> ToolSpec:
    """The tool with that argument, where it starts a program whose own arguments leave the name free."""
    if not spec.starts_program or _has_its_own(spec):
        return spec
    properties = {**spec.input_schema.get("properties", {}), SANDBOX_GRANT: _SCHEMA}
    return spec._replace(input_schema={**spec.input_schema, "properties": properties})


def without_grant(spec: ToolSpec, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the tool itself takes them."""
    if SANDBOX_GRANT not in arguments or not spec.starts_program or _has_its_own(spec):
        return arguments
    return {name: value for name, value in arguments.items() if name != SANDBOX_GRANT}


def _has_its_own(spec: ToolSpec) -> bool:
    return SANDBOX_GRANT in spec.input_schema.get("properties", {})
