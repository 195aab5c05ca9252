"""Artifacts (TR 7.2): what is too long for the thread, for the host to store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.contracts import Artifact, ToolRequest

if TYPE_CHECKING:
    from agent_host.contracts import Spooled

PLAIN: Final = "text/plain; charset=utf-8"
DIFF: Final = "text/x-diff; charset=utf-8"


def tool_output(request: ToolRequest, content: bytes | Spooled, *, part: str, content_type: str = PLAIN) -> Artifact:
    """The full output of a call; `part` says which output, as `stdout` or `body`."""
    name = f"{request.tool_name}-{request.tool_call_id}-{part}.txt"
    return Artifact("tool_output", name, content_type, content, part=part)


def file_diff(request: ToolRequest, data: bytes) -> Artifact:
    """The unified diff that a write made."""
    return Artifact("file_diff", f"{request.tool_name}-{request.tool_call_id}.diff", DIFF, data)
