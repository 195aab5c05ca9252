"""Artifacts of a tool result go to the Workspace Service, and their URIs into the result (AH 7.5). Best effort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.services.workspace import UploadFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.contracts import ToolResult
    from agent_host.services.workspace import WorkspaceService


async def store_artifacts(
    result: ToolResult, workspace: WorkspaceService, on_failure: Callable[[str, str], None]
) -> ToolResult:
    """`result` with URIs in place of data. An artifact that could not be stored costs its URI only: `on_failure` gets
    its name and the reason, and the model still has the text."""
    if not result.artifacts:
        return result
    uris: list[str] = list(result.artifact_uris)
    for artifact in result.artifacts:
        try:
            uris.append(await workspace.upload(artifact, task_id=result.task_id, step_id=result.step_id))
        except UploadFailed as error:
            on_failure(artifact.name, str(error))
    return result._replace(artifact_uris=tuple(uris), artifacts=())
