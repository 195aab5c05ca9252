"""The Workspace Service keeps artifacts and the session's history (AH 7.5): on this disk, or over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from typing import TYPE_CHECKING, Protocol

import orjson

from agent_host import lenient_json
from agent_host.errors import AgentHostError, ErrorCode, ServiceError, ServiceUnavailable
from agent_host.lenient_json import encodable
from agent_host.regular_files import open_regular
from agent_host.services.answers import as_object, checked_id, checked_uri
from agent_host.stamps import new_id, now_rfc3339
from state.disk import LOCAL_DISK
from state.errors import StorageLimit
from state.files import TEMPORARY, write_new

if TYPE_CHECKING:
    from agent_host.contracts import Artifact
    from agent_host.services.http import ServiceClient
    from state.blobs import BlobFolder

MAX_ARTIFACT_BYTES = 50 * 1024 * 1024
"""What the Workspace Service takes in one piece."""
_INLINE_BYTES = 1024 * 1024
_COOL_DOWN_S = 30.0


class UploadFailed(AgentHostError):
    """The artifact was not stored."""

    code = ErrorCode.WORKSPACE_UPLOAD_FAILED
    retryable = True


class WorkspaceService(Protocol):
    """Where artifacts go."""

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """Store one artifact of at most MAX_ARTIFACT_BYTES and return its URI, such as
        `workspaces/{workspaceId}/artifacts/{artifactId}`; a session has one `session_history`, which each upload
        replaces. The same artifact of the same step uploaded again takes no second place. Raises UploadFailed."""
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
        """See WorkspaceService. Large artifacts are written beside the event loop; a history has no limit here."""
        if artifact.artifact_type != "session_history":
            _refuse_large(artifact)
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
            "artifactName": encodable(artifact.name),
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
            raise UploadFailed(f"storing artifact {_shown(artifact)} failed: {reason}") from error
        return uri


def _append(path: str, line: bytes) -> None:
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as handle:
        handle.write(line)


class HttpWorkspaceService:
    """POST /workspaces/{id}/artifacts. What was stored already is known to the service by its Idempotency-Key, also
    when another process sends it again. Raises ServiceRejected for a workspace id that no URL may hold."""

    def __init__(self, client: ServiceClient, workspace_id: str, session_id: str) -> None:
        self._client = client
        self._path = f"/workspaces/{checked_id(workspace_id, 'workspaceId')}/artifacts"
        self._session_id = session_id
        self._away_until = 0.0

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """See WorkspaceService. What is over the limit is not sent; nor, for half a minute after the service was away
        in spite of all retries, is anything but the history: a call would wait for it."""
        _refuse_large(artifact)
        if artifact.artifact_type != "session_history" and time.monotonic() < self._away_until:
            raise UploadFailed(f"artifact {_shown(artifact)} was not sent: the service was away a moment ago")
        if len(artifact.data) <= _INLINE_BYTES:
            body, key = self._encoded(artifact, task_id, step_id)
        else:
            body, key = await asyncio.to_thread(self._encoded, artifact, task_id, step_id)
        try:
            answer = as_object(await self._client.post(self._path, body, idempotency_key=key), "the answer")
            return checked_uri(answer.get("artifactUri"), "artifactUri")
        except ServiceError as error:
            if isinstance(error, ServiceUnavailable):
                self._away_until = time.monotonic() + _COOL_DOWN_S
            raise UploadFailed(f"storing artifact {_shown(artifact)} failed: {error}") from error

    def _encoded(self, artifact: Artifact, task_id: str | None, step_id: str | None) -> tuple[bytes, str]:
        """(body, Idempotency-Key)."""
        from base64 import b64encode

        fields = {
            "sessionId": self._session_id,
            "taskId": task_id,
            "stepId": step_id,
            "artifactType": artifact.artifact_type,
            "artifactName": encodable(artifact.name),
            "contentType": artifact.content_type,
        }
        head = lenient_json.dumps({name: value for name, value in fields.items() if value is not None})
        # Base64 needs no escaping, so tens of megabytes need not pass a JSON encoder.
        body = b"".join((head[:-1], b',"contentBase64":"', b64encode(artifact.data), b'"}'))
        return body, self._key(artifact, task_id, step_id)

    def _key(self, artifact: Artifact, task_id: str | None, step_id: str | None) -> str:
        """The same for the same artifact of the same step. A history is known by its session and its content: it is
        sent after each task, and by whoever resumes the session."""
        digest = hashlib.sha256(artifact.data).hexdigest()
        parts: list[str | None] = [self._session_id, artifact.artifact_type, digest]
        if artifact.artifact_type != "session_history":
            parts += [task_id, step_id, artifact.name]
        return hashlib.sha256(lenient_json.dumps(parts)).hexdigest()


def _refuse_large(artifact: Artifact) -> None:
    size = len(artifact.data)
    if size > MAX_ARTIFACT_BYTES:
        raise UploadFailed(
            f"artifact {_shown(artifact)} has {size} bytes, and the limit is {MAX_ARTIFACT_BYTES}; it was not sent"
        )


def _shown(artifact: Artifact) -> str:
    """The name as one line may hold it."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in artifact.name)
