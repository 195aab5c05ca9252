"""Time limits of calls: their default and maximum are the configuration's, and the schemas of the tools say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tool_runtime.families.desktop.specs import HTTP_REQUEST, RUN_COMMAND
from tool_runtime.families.schemas import integer

if TYPE_CHECKING:
    from agent_host.contracts import ToolSpec
    from tool_runtime.settings import RuntimeSettings

_CHOSEN: Final = frozenset((RUN_COMMAND.name, HTTP_REQUEST.name))


def command_timeout_s(settings: RuntimeSettings) -> float:
    """The seconds of a command that names none."""
    return min(settings.command_timeout_s, settings.command_timeout_max_s)


def request_timeout_s(settings: RuntimeSettings) -> float:
    """The seconds of a request that names none."""
    return min(settings.http_timeout_s, settings.http_timeout_max_s)


def set_timeouts(spec: ToolSpec, settings: RuntimeSettings) -> ToolSpec:
    """`spec` with the default and the maximum of its `timeout` as `settings` have them."""
    if spec.name not in _CHOSEN:
        return spec
    if spec.name == RUN_COMMAND.name:
        default, most = command_timeout_s(settings), settings.command_timeout_max_s
    else:
        default, most = request_timeout_s(settings), settings.http_timeout_max_s
    timeout = integer(f"Seconds. Default: {default:g}", minimum=1, maximum=most)
    schema = spec.input_schema
    if schema["properties"]["timeout"] == timeout:
        return spec
    return spec._replace(input_schema={**schema, "properties": {**schema["properties"], "timeout": timeout}})
