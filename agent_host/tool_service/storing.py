"""Where the large outputs of a call go (BT, "Data Store"): the Workspace Service, the tenant's bucket for what is
larger than it takes, or a directory of this machine where no service is named."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from typing import TYPE_CHECKING, Final, Protocol

from agent_host.contracts import Artifact
from agent_host.errors import ErrorCode, ServiceError
from agent_host.ids import new_id
from agent_host.services.workspace import MAX_ARTIFACT_BYTES, HttpWorkspaceService, UploadFailed
from agent_host.tool_service.tool import ToolFault

if TYPE_CHECKING:
    from agent_host.services.http import ServiceClient
    from agent_host.tool_service.buckets import Bucket
    from agent_host.tool_service.tool import Call

_URI_LIST: Final = "text/uri-list"
_DIRECTORY_MODE: Final = 0o700


class Storage(Protocol):
    """Stores what calls of one tenant leave."""

    async def store(self, call: Call, artifact: Artifact) -> str:
        """The URI of the artifact, once it is stored. Raises ToolFault."""
        ...


class ServiceStorage:
    """The Workspace Service. What is larger than 50 MiB goes to the tenant's `bucket`, and the service gets an artifact
    of type text/uri-list that says where it lies: the URI of that one is returned."""

    def __init__(self, client: ServiceClient, bucket: Bucket | None) -> None:
        self._client = client
        self._bucket = bucket

    async def store(self, call: Call, artifact: Artifact) -> str:
        """See Storage."""
        stored = artifact
        if artifact.size > MAX_ARTIFACT_BYTES:
            if self._bucket is None:
                raise ToolFault(
                    ErrorCode.WORKSPACE_UPLOAD_FAILED,
                    f"the output has {artifact.size:,} bytes; the Workspace Service takes {MAX_ARTIFACT_BYTES:,}, "
                    f"and the "
                    "tenant has no bucket for more",
                )
            key = f"{call.workspace_id}/{call.session_id}/{secrets.token_hex(8)}-{_file_name(artifact.name)}"
            uri = await self._bucket.upload(key, artifact.content_type, artifact.pieces())
            stored = Artifact("tool_output", f"{artifact.name}.uri", _URI_LIST, f"{uri}\r\n".encode())
        try:
            service = HttpWorkspaceService(self._client, call.workspace_id, call.session_id)
            return await service.upload(stored, task_id=call.task_id, step_id=call.step_id)
        except (UploadFailed, ServiceError) as error:
            raise ToolFault(ErrorCode.WORKSPACE_UPLOAD_FAILED, "the output could not be stored") from error


class LocalStorage:
    """Files below `directory`: TENANT/WORKSPACE/ARTIFACT, each written whole or not at all."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    async def store(self, call: Call, artifact: Artifact) -> str:
        """See Storage."""
        artifact_id = new_id("art")
        folder = os.path.join(self._directory, _file_name(call.tenant), call.workspace_id)
        try:
            await asyncio.to_thread(_write, folder, artifact_id, artifact)
        except OSError as error:
            raise ToolFault(
                ErrorCode.WORKSPACE_UPLOAD_FAILED, f"the output could not be stored ({error.strerror})"
            ) from error
        return f"workspaces/{call.workspace_id}/artifacts/{artifact_id}"


def _write(folder: str, name: str, artifact: Artifact) -> None:
    os.makedirs(folder, _DIRECTORY_MODE, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".being-written-", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(artifact.pieces())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _file_name(name: str) -> str:
    """A name that is one part of a path: other characters than letters, digits, dot, minus and underscore stand as
    _."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)
    return safe.lstrip(".")[:120] or "_"
