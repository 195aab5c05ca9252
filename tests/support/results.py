"""A tool's result in the closed JSON schema of BT ("Tool Result Schema")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_host.contracts import ToolResult


def wire_of(result: ToolResult) -> dict[str, Any]:
    """The result; absent fields are left out."""
    wire: dict[str, Any] = {
        "toolName": result.tool_name,
        "sessionId": result.session_id,
        "taskId": result.task_id,
        "stepId": result.step_id,
        "status": result.status,
    }
    if result.output_text is not None:
        wire["outputText"] = result.output_text
    if result.artifact_uris:
        wire["artifactUris"] = list(result.artifact_uris)
    if result.error is not None:
        wire["error"] = {"code": result.error.code, "message": result.error.message}
    return wire
