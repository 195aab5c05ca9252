"""Storage of a call's large outputs (BT, "Data Store"): the Workspace Service, the tenant's bucket for outputs above
that service's limit, or a local directory if no service is configured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact
from agent_host.errors import ErrorCode, ServiceError
from agent_host.ids import MACHINE
from agent_host.services.workspace import HttpWorkspaceService, UploadFailed
from agent_host.tool_service.tool import BucketSettings, ToolFault
from config.shapes import FLAG, TEXT, Record, Text
from state.disk import LOCAL_DISK, replace_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.services.http import ServiceClient
    from agent_host.tool_service.tool import Call


class ServiceStorage(NamedTuple):
    """The Workspace Service. An artifact above 50 MiB is uploaded to the tenant's `bucket`, and the service gets an
    artifact of type text/uri-list that contains its URI; the URI of the latter is returned."""

    client: ServiceClient
    bucket: Bucket | None

    async def store(self, call: Call, artifact: Artifact) -> str:
        """Store the artifact and return its URI. Raises ToolFault."""
        stored = artifact
        if artifact.size > MAX_ARTIFACT_BYTES:
            if self.bucket is None:
                message = (
                    f"the output has {artifact.size:,} bytes; the Workspace Service takes {MAX_ARTIFACT_BYTES:,}, "
                    "and the tenant has no bucket for more"
                )
                raise ToolFault(ErrorCode.WORKSPACE_UPLOAD_FAILED, message)
            key = f"{call.workspace_id}/{call.session_id}/{secrets.token_hex(8)}-{_file_name(artifact.name)}"
            uri = await self.bucket.upload(key, artifact.content_type, artifact.pieces())
            stored = Artifact("tool_output", f"{artifact.name}.uri", "text/uri-list", f"{uri}\r\n".encode())
        try:
            service = HttpWorkspaceService(self.client, call.workspace_id, call.session_id)
            return await service.upload(stored, task_id=call.task_id, step_id=call.step_id)
        except (UploadFailed, ServiceError) as error:
            raise ToolFault(ErrorCode.WORKSPACE_UPLOAD_FAILED, "the output could not be stored") from error


class LocalStorage(NamedTuple):
    """Files below `directory`: TENANT/WORKSPACE/ARTIFACT, each written atomically."""

    directory: str

    async def store(self, call: Call, artifact: Artifact) -> str:
        """See ServiceStorage."""
        artifact_id = MACHINE.new_id("art")
        folder = os.path.join(self.directory, _file_name(call.tenant), call.workspace_id)

        def write() -> None:
            os.makedirs(folder, 0o700, exist_ok=True)
            replace_atomically(LOCAL_DISK, os.path.join(folder, artifact_id), artifact.pieces())

        try:
            await asyncio.to_thread(write)
        except OSError as error:
            message = f"the output could not be stored ({error.strerror})"
            raise ToolFault(ErrorCode.WORKSPACE_UPLOAD_FAILED, message) from error
        return f"workspaces/{call.workspace_id}/artifacts/{artifact_id}"


Storage = ServiceStorage | LocalStorage
"""The storage for outputs of one tenant's calls."""


def _file_name(name: str) -> str:
    """Return a name that is a single part of a path: characters other than ASCII letters, digits, dot, minus and
    underscore become _."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)
    return safe.lstrip(".")[:120] or "_"


# Buckets of S3 and compatible services, through boto3 in threads (decision 0062).
#
# A bucket is accessed only with the credentials of the tenant's configuration: credentials that boto3 would find in the
# environment, in files or in the machine's role belong to the operator of the service.

PART_BYTES: Final = 8 * 1024 * 1024
"""Size of a part of a multipart upload. S3 accepts up to 10,000 parts, each of at least 5 MiB except the last."""
_FORBIDDEN: Final = frozenset({"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_MISSING: Final = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})

BUCKET_SHAPE = Record(
    {"bucket": Text(1, 255)},
    {
        "endpoint": TEXT,
        "region": TEXT,
        "accessKeyId": TEXT,
        "secretAccessKey": TEXT,
        "sessionToken": TEXT,
        "prefix": TEXT,
        "pathStyle": FLAG,
    },
    closed=True,
)


class Bucket:
    """One bucket. Connects at the first use; its methods may be called from any task."""

    def __init__(self, settings: BucketSettings) -> None:
        self.settings = settings
        self._client: Any = None  # boto3 has no types
        self._making = threading.Lock()

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Run an S3 operation on the bucket. Raises ToolFault."""
        return await asyncio.to_thread(self._ask, operation, arguments)

    async def upload(self, key: str, content_type: str, pieces: Iterator[bytes]) -> str:
        """Upload `pieces` under `key`, in parts, and return the `s3://` URI. Raises ToolFault, and exceptions of
        `pieces`; the upload is then aborted."""
        name = self.settings.prefix + key
        started = await self.ask("create_multipart_upload", Key=name, ContentType=content_type)
        upload_id = started["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            while part := await asyncio.to_thread(_next_part, pieces):
                number = len(parts) + 1
                sent = await self.ask("upload_part", Key=name, UploadId=upload_id, PartNumber=number, Body=part)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            await self.ask("complete_multipart_upload", Key=name, UploadId=upload_id, MultipartUpload={"Parts": parts})
        except BaseException:
            # If this fails too, the bucket's lifecycle rules remove the parts; the first error is the one to report.
            with contextlib.suppress(ToolFault):
                await self.ask("abort_multipart_upload", Key=name, UploadId=upload_id)
            raise
        return f"s3://{self.settings.bucket}/{name}"

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)

    def _ask(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: dict[str, Any] = getattr(self._make(), operation)(Bucket=self.settings.bucket, **arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _MISSING:
                raise ToolFault(ErrorCode.FILE_NOT_FOUND, "the bucket has no such object") from None
            if code in _FORBIDDEN:
                raise ToolFault(ErrorCode.PERMISSION_DENIED, "the bucket refuses this") from None
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, f"the bucket answered with an error ({code})") from None
        except (BotoCoreError, ValueError) as error:  # their text may contain the endpoint, which is configuration
            message = f"the bucket cannot be reached ({type(error).__name__})"
            raise ToolFault(ErrorCode.TOOL_EXECUTION_FAILED, message) from None
        return answer

    def _make(self) -> Any:
        with self._making:
            if self._client is None:
                self._client = _client_of(self.settings)
            return self._client


def _client_of(settings: BucketSettings) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    signature = UNSIGNED if settings.access_key_id is None else "s3v4"
    config = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"total_max_attempts": 3, "mode": "standard"},
        signature_version=signature,
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        max_pool_connections=32,
    )
    return boto3.session.Session().client(
        "s3",
        region_name=settings.region,
        endpoint_url=settings.endpoint,
        # A placeholder key keeps boto3 from looking for credentials; without a configured key, requests are not signed.
        aws_access_key_id=settings.access_key_id or "none",
        aws_secret_access_key=settings.secret_access_key or "none",
        aws_session_token=settings.session_token,
        config=config,
    )


def _next_part(pieces: Iterator[bytes]) -> bytes:
    """Read at least PART_BYTES from `pieces`, or fewer at its end."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= PART_BYTES:
            break
    return bytes(buffer)
