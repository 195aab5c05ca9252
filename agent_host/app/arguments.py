"""What a tool would say to a call's arguments, without a session: nothing is started for it (TR 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.routing.capabilities import UPLOAD_ARTIFACT
from agent_host.routing.host_tools import upload_problem
from tool_runtime.families.desktop_definitions import DEFINITIONS
from tool_runtime.schema import problems

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMAS = {definition.tool_name: definition.input_schema for definition in DEFINITIONS}


def argument_problem(tool_name: str, arguments: Mapping[str, Any]) -> str | None:
    """Why the tool refuses the arguments that are there, in the host's words; None when it does not, or is not known.
    What is left out is no problem: a case need only say what it is judged by."""
    if tool_name == UPLOAD_ARTIFACT:
        return upload_problem(arguments)
    return "; ".join(problems({**_SCHEMAS.get(tool_name, {}), "required": ()}, arguments)) or None
