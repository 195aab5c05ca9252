"""The Workspace Service keeps artifacts and the session's history (AH 7.5); here is its embedded home."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Protocol

import orjson

from agent_host.errors import AgentHostError, ErrorCode
from agent_host.regular_files import open_regular
from agent_host.stamps import new_id, now_rfc3339
from state.disk import LOCAL_DISK
from state.errors import StorageLimit
from state.files import TEMPORARY, write_new

if TYPE_CHECKING:
    from agent_host.contracts import Artifact
    from state.blobs import BlobFolder

_INLINE_BYTES = 1024 * 1024


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
    """Artifacts as files of the session's own folder: `{artifactId}` holds the bytes, `index.jsonl` names them.

    Equal contents are one file in `blobs`, which limits what a session keeps; only the history counts for itself.
    """

    def __init__(self, directory: str, blobs: BlobFolder, *, workspace_id: str) -> None:
        self._directory = directory
        self._blobs = blobs
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
            LOCAL_DISK.make_private_dir(self._directory)
            if is_history:
                write_new(LOCAL_DISK, path + TEMPORARY, [artifact.data], durable=False)
                LOCAL_DISK.replace(path + TEMPORARY, path)
            else:
                entry["sha256"] = self._blobs.share(artifact.data, path)
            _append(os.path.join(self._directory, "index.jsonl"), orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
        except (OSError, StorageLimit) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UploadFailed(f"storing artifact {artifact.name} failed: {reason}") from error
        return uri


def _append(path: str, line: bytes) -> None:
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as handle:
        handle.write(line)
