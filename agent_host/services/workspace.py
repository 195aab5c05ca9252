"""The Workspace Service keeps artifacts and the session's history (AH 7.5); here is its embedded home."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Protocol

import orjson

from agent_host.errors import AgentHostError, ErrorCode
from agent_host.stamps import new_id, now_rfc3339

if TYPE_CHECKING:
    from agent_host.contracts import Artifact

_INLINE_BYTES = 1024 * 1024
_FILE_MODE = 0o600


class UploadFailed(AgentHostError):
    """The artifact was not stored."""

    code = ErrorCode.WORKSPACE_UPLOAD_FAILED
    retryable = True


class WorkspaceService(Protocol):
    """Where artifacts go."""

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """Store one artifact and return its URI, `workspaces/{workspaceId}/artifacts/{artifactId}`; a session has one
        `session_history`, which each upload replaces. Raises UploadFailed."""
        ...


class EmbeddedWorkspaceService:
    """Artifacts as files of the session's own folder: `{artifactId}` holds the bytes, `index.jsonl` names them."""

    def __init__(self, directory: str, *, workspace_id: str) -> None:
        self._directory = directory
        self._workspace_id = workspace_id

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """See WorkspaceService. Large artifacts are written beside the event loop."""
        if len(artifact.data) <= _INLINE_BYTES:
            return self._store(artifact, task_id, step_id)
        return await asyncio.to_thread(self._store, artifact, task_id, step_id)

    def _store(self, artifact: Artifact, task_id: str | None, step_id: str | None) -> str:
        is_history = artifact.artifact_type == "session_history"
        artifact_id = "session_history" if is_history else new_id("art")
        path = os.path.join(self._directory, artifact_id)
        uri = f"workspaces/{self._workspace_id}/artifacts/{artifact_id}"
        entry = {
            "artifactId": artifact_id,
            "artifactUri": uri,
            "artifactType": artifact.artifact_type,
            "artifactName": artifact.name,
            "contentType": artifact.content_type,
            "sizeBytes": len(artifact.data),
            "taskId": task_id,
            "stepId": step_id,
            "storedAt": now_rfc3339(),
        }
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            temporary = f"{path}.tmp"
            _write(temporary, os.O_TRUNC, artifact.data)
            os.replace(temporary, path)
            line = orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
            _write(os.path.join(self._directory, "index.jsonl"), os.O_APPEND, line)
        except OSError as error:
            raise UploadFailed(f"storing artifact {artifact.name} failed: {error.strerror}") from error
        return uri


def _write(path: str, how: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | how | getattr(os, "O_NOFOLLOW", 0), _FILE_MODE)
    with os.fdopen(fd, "wb") as handle:
        handle.write(data)
