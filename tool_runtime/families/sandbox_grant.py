"""The argument by which a call that starts a program asks for more than its sandbox gives. The host reads it, and its
policy decides; no tool sees it, and no definition has it: the result of a call that was refused something introduces it
(`core.refusals`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policy.names import SANDBOX_GRANT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolSpec


def takes_grant(spec: ToolSpec) -> bool:
    """True if a call of the tool may ask: it starts a program, and its own arguments leave the name free."""
    return spec.starts_program and SANDBOX_GRANT not in spec.accepted.get("properties", {})


def without_grant(spec: ToolSpec, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the tool itself takes them."""
    if SANDBOX_GRANT not in arguments or not takes_grant(spec):
        return arguments
    return {name: value for name, value in arguments.items() if name != SANDBOX_GRANT}
