"""Workspace Service: stores artifacts and the session's history (AH 7.5), on the local disk or over HTTP. With an HTTP
service every artifact is also stored on the local disk, under its local reference.

Uploads run in order, in the background, and nothing waits for them. The queue is bounded in bytes and in time. An
upload that does not fit, is too late, or is rejected is dropped and reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import threading
from base64 import b64encode
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact, Maker
from agent_host.errors import AgentHostError, ErrorCode, ServiceError, ServiceUnavailable
from agent_host.safe_open import open_regular
from agent_host.services import BackgroundQueue, check_id, check_object, check_uri, printable
from config import json_text
from config.json_text import encodable
from config.lean_typing import NamedTuple
from state import StorageLimit, make_private_dir
from state.disk import LOCAL_DISK, TEMPORARY, write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, BinaryIO

    from agent_host.contracts import ArtifactType, Spooled
    from agent_host.ids import Outside
    from agent_host.services.http import ServiceClient
    from state.blobs import BlobFolder

INLINE_BYTES = 1024 * 1024
"""Larger artifacts are read, written and encoded in a thread."""
_REFERENCES = "artifacts/"
_INDEX = "index.jsonl"
_RETRY_S = (0.5, 10.0)  # the first wait for an unavailable service, and the longest
_RESUMED = "was not stored before the process ended; a resume of the session uploads it"
_ENDED = "was not stored before the session ended"


class UploadFailed(AgentHostError):
    """The artifact was not stored. `passing`: the service was unavailable; a retry may succeed."""

    code = ErrorCode.WORKSPACE_UPLOAD_FAILED
    retryable = True

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class ArtifactOnDisk(NamedTuple):
    """An artifact on the local disk. `ref` is its local reference (SK 6, `storage_ref`): a path below the session's
    folder. `uri` is its address if no HTTP service is configured. `size` is in bytes."""

    artifact_id: str
    ref: str
    uri: str
    sha256: str
    size: int


class WorkspaceService(Protocol):
    """Storage of artifacts."""

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """Store one artifact of at most MAX_ARTIFACT_BYTES and return its URI, such as
        `workspaces/{workspaceId}/artifacts/{artifactId}`; a session has one `session_history`, which each upload
        replaces. Uploading the same artifact of the same step again stores no second copy. Raises UploadFailed."""


class EmbeddedWorkspaceService:
    """Stores a session's artifacts locally, as files in the session's own folder: `{artifactId}` contains the bytes,
    `index.jsonl` lists them.

    Equal contents share one file in `blobs`, which limits the bytes a session stores; only the history is stored
    separately.
    """

    def __init__(self, directory: str, blobs: BlobFolder, *, workspace_id: str, outside: Outside) -> None:
        self._directory = directory
        self._blobs = blobs
        self._workspace_id = workspace_id
        self._outside = outside
        self._checked: dict[str, tuple[int, ...]] = {}  # references whose hash was checked, with the file's state then

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """See WorkspaceService. Large artifacts are written in a thread; a history has no size limit here."""
        if artifact.artifact_type != "session_history":
            _refuse_large(artifact)
        return (await self.keep(artifact, task_id=task_id, step_id=step_id)).uri

    async def keep(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> ArtifactOnDisk:
        """Store one artifact of any size, a piece at a time. It survives the end of this process. Raises
        UploadFailed."""
        if artifact.size <= INLINE_BYTES:
            return self._store(artifact, task_id, step_id)
        return await asyncio.to_thread(self._store, artifact, task_id, step_id)

    def keep_history(self, artifact: Artifact, *, task_id: str | None) -> ArtifactOnDisk:
        """Store the session's history, of any size, in place of the previous one. Raises UploadFailed."""
        return self._store(artifact, task_id, None)

    def read_kept(self, row: Mapping[str, Any]) -> Spooled:
        """Return the artifact stored under the row's `ref` with its `sha256`; the caller closes it. Raises UploadFailed
        if it is missing or damaged."""
        try:
            return StoredFile(self._open(row["ref"], row["sha256"]))
        except OSError as error:
            raise UploadFailed(f"{row['ref']} cannot be read: {error.strerror}") from error

    def uri_of(self, ref: str) -> str:
        """Return the address of the artifact under `ref` if no HTTP service is configured."""
        return f"workspaces/{self._workspace_id}/{ref}"

    def maker_of(self, ref: str) -> Maker | None:
        """Return the tool call that made the artifact under `ref`; None if no call of this session made it. Entries of
        older versions have no capabilities."""
        entry = self._entry(ref)
        return None if entry is None else Maker(entry["toolName"], tuple(entry.get("capabilities", ())))

    def open(self, ref: str) -> BinaryIO | None:
        """Open the artifact under `ref`; the caller closes it. None if no call of this session made it. Raises OSError,
        also if its content has changed."""
        entry = self._entry(ref)
        return None if entry is None else self._open(ref, entry.get("sha256"))

    def _entry(self, ref: str) -> Mapping[str, Any] | None:
        wanted = ref.removeprefix(_REFERENCES)
        if wanted == ref:
            return None
        try:
            with os.fdopen(open_regular(os.path.join(self._directory, _INDEX), os.O_RDONLY), "rb") as lines:
                for line in lines:
                    entry: dict[str, Any] = orjson.loads(line) if wanted.encode("utf-8", "replace") in line else {}
                    if entry.get("artifactId") == wanted:
                        of_a_call = entry.get("toolName") and entry.get("artifactType") != "session_history"
                        return entry if of_a_call else None
        except (OSError, orjson.JSONDecodeError):
            return None
        return None

    def _open(self, ref: str, sha256: str | None) -> BinaryIO:
        """Open the file under `ref`. Its hash is checked once per process, and again if its stat has changed. Raises
        OSError."""
        path = os.path.join(self._directory, ref.removeprefix(_REFERENCES))
        file = os.fdopen(open_regular(path, os.O_RDONLY), "rb")
        try:
            status = os.fstat(file.fileno())
            state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if self._checked.get(ref) != state:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise OSError(errno.EIO, "it was damaged on disk", path)
                self._checked[ref] = state
                file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def _store(self, artifact: Artifact, task_id: str | None, step_id: str | None) -> ArtifactOnDisk:
        is_history = artifact.artifact_type == "session_history"
        artifact_id = "session_history" if is_history else self._outside.new_id("art")
        path = os.path.join(self._directory, artifact_id)
        ref = _REFERENCES + artifact_id
        uri, sha256, size = self.uri_of(ref), "", artifact.size
        entry = {
            "artifactId": artifact_id,
            "artifactUri": uri,
            "artifactType": artifact.artifact_type,
            "artifactName": encodable(artifact.name),
            "contentType": artifact.content_type,
            "sizeBytes": size,
            "toolName": "" if artifact.maker is None else artifact.maker.tool_name,
            "capabilities": [] if artifact.maker is None else artifact.maker.capabilities,
            "taskId": task_id,
            "stepId": step_id,
            "storedAt": self._outside.stamp(),
        }
        try:
            make_private_dir(self._directory, parents=False)
            if is_history:
                write_new(LOCAL_DISK, path + TEMPORARY, artifact.pieces(), durable=False)
                LOCAL_DISK.replace(path + TEMPORARY, path)
            else:
                sha256, size = self._blobs.share(artifact.pieces(), path)
                entry |= {"sha256": sha256, "sizeBytes": size}
            index = open_regular(os.path.join(self._directory, _INDEX), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(index, "wb") as handle:
                handle.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
        except (OSError, StorageLimit) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UploadFailed(f"storing artifact {printable(artifact.name)} failed: {reason}") from error
        return ArtifactOnDisk(artifact_id, ref, uri, sha256, size)


class HttpWorkspaceService:
    """POST /workspaces/{id}/artifacts. The service recognizes an artifact that it has already by its Idempotency-Key,
    even if another process sends it again. Raises ServiceRejected for a workspace id that a URL must not contain."""

    def __init__(self, client: ServiceClient, workspace_id: str, session_id: str) -> None:
        self._client = client
        self._path = f"/workspaces/{check_id(workspace_id, 'workspaceId')}/artifacts"
        self._session_id = session_id

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        """See WorkspaceService. An artifact over the limit is not sent."""
        _refuse_large(artifact)
        fields = {
            "sessionId": self._session_id,
            "taskId": task_id,
            "stepId": step_id,
            "artifactType": artifact.artifact_type,
            "artifactName": encodable(artifact.name),
            "contentType": artifact.content_type,
        }
        body = UploadBody({name: value for name, value in fields.items() if value is not None}, artifact)
        try:
            if artifact.size <= INLINE_BYTES:
                key = self._key(artifact, task_id, step_id)
            else:
                key = await asyncio.to_thread(self._key, artifact, task_id, step_id)
            answer = check_object(await self._client.post(self._path, body, idempotency_key=key), "the answer")
            return check_uri(answer.get("artifactUri"), "artifactUri")
        except (ServiceError, OSError) as error:
            reason = (error.strerror or error) if isinstance(error, OSError) else error
            message = f"storing artifact {printable(artifact.name)} failed: {reason}"
            raise UploadFailed(message, passing=isinstance(error, ServiceUnavailable)) from error

    def _key(self, artifact: Artifact, task_id: str | None, step_id: str | None) -> str:
        """Return the Idempotency-Key, which is equal for the same artifact of the same step. The key of a history
        depends only on its session and content, because it is sent after each task, and again by the process that
        resumes the session."""
        digest = hashlib.sha256()
        for piece in artifact.pieces():
            digest.update(piece)
        parts: list[str | None] = [self._session_id, artifact.artifact_type, digest.hexdigest()]
        if artifact.artifact_type != "session_history":
            parts += [task_id, step_id, artifact.name]
        return hashlib.sha256(json_text.dumps(parts)).hexdigest()


def _refuse_large(artifact: Artifact) -> None:
    size = artifact.size
    if size > MAX_ARTIFACT_BYTES:
        raise UploadFailed(
            f"artifact {printable(artifact.name)} has {size} bytes, and the limit is {MAX_ARTIFACT_BYTES}; "
            "it was not sent"
        )


# Artifacts that do not fit into memory are read from disk and sent a piece at a time (AH 7.5).

_PIECE_BYTES: Final = 384 * 1024


class StoredFile:
    """An artifact's open file on the local disk, as a `Spooled`. It owns the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._guard = threading.Lock()  # a thread may be reading while its caller closes
        self.size = os.fstat(file.fileno()).st_size
        """See Spooled."""

    def pieces(self) -> Iterator[bytes]:
        """See Spooled."""
        for at in range(0, self.size, _PIECE_BYTES):
            with self._guard:
                if self._file.closed:
                    raise OSError(errno.EBADF, "the file was closed")
                self._file.seek(at)
                piece = self._file.read(_PIECE_BYTES)
            yield piece

    def close(self) -> None:
        """See Spooled."""
        with self._guard:
            self._file.close()


class UploadBody:
    """The JSON of an upload, encoded a piece at a time; base64 needs no escaping, so no JSON encoder sees it."""

    def __init__(self, fields: Mapping[str, str], artifact: Artifact) -> None:
        self._head = json_text.dumps(fields)[:-1] + b',"contentBase64":"'
        self._artifact = artifact

    def __len__(self) -> int:
        return len(self._head) + (self._artifact.size + 2) // 3 * 4 + 2

    def pieces(self) -> Iterator[bytes]:
        """See `services.http.StreamedBody`. Raises OSError."""
        yield self._head
        rest = b""
        for piece in _split(self._artifact.pieces()):
            rest += piece
            end = len(rest) // 3 * 3
            yield b64encode(rest[:end])
            rest = rest[end:]
        yield b64encode(rest) + b'"}'


def _split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), _PIECE_BYTES):
            yield piece[start : start + _PIECE_BYTES]


class UploadLimits(NamedTuple):
    """Limits on pending uploads: at most `max_pending_bytes` of data, each for at most `max_behind_s` seconds. The
    clean end of a headless run waits `end_s` seconds for them (`services.upload_*` in the settings)."""

    max_pending_bytes: int = 64 * 1024 * 1024
    max_behind_s: float = 60.0
    end_s: float = 5.0


class Upload(NamedTuple):
    """One artifact to upload.

    `data` returns its content, of about `size` bytes, when its turn comes, and may raise UploadFailed; it is called in
    a thread if the content is large, and a file that it returns is closed by the queue. `on_stored` gets the URI.
    `on_missed` gets the reason, and True if a resume of the session retries. Each upload ends with one call of one of
    the two, on the event loop, except for a history that a newer one replaces before its turn.
    """

    artifact_type: ArtifactType
    name: str
    content_type: str
    size: int
    data: Callable[[], bytes | Spooled]
    on_stored: Callable[[str], None]
    on_missed: Callable[[str, bool], None]
    task_id: str | None
    step_id: str | None = None


class UploadQueue(BackgroundQueue[tuple[Upload, float]]):
    """Uploads to `service`, one after the other, each with its deadline on the loop's clock. `close` it before the
    service is closed."""

    def __init__(self, service: WorkspaceService, limits: UploadLimits) -> None:
        super().__init__()
        self._service = service
        self.limits = limits
        self._pending_bytes = 0
        self._at_work: Upload | None = None

    def put(self, upload: Upload) -> None:
        """Add `upload` at the end of the queue. Never waits."""
        limits = self.limits
        if self.is_closed:
            upload.on_missed(_describe(upload, _ENDED), False)
            return
        if upload.artifact_type == "session_history":
            self._replace_history()
        if self._pending_bytes + upload.size > limits.max_pending_bytes:
            waits = f"{self._pending_bytes} bytes wait already, and {upload.size} more would exceed"
            bound = f"services.upload_max_pending_bytes ({limits.max_pending_bytes})"
            upload.on_missed(_describe(upload, f"was not uploaded: {waits} {bound}"), False)
            return
        self._pending_bytes += upload.size
        self._add((upload, asyncio.get_running_loop().time() + limits.max_behind_s))

    async def close(self, within_s: float, *, resumable: bool) -> None:
        """Give pending uploads `within_s` seconds, and one more attempt each if the service is unavailable. The rest is
        reported as missed; `resumable`: a resume of the session retries it. Leaves no task running."""
        await self._finish(within_s)
        left, self._line = self._line, deque()
        self._pending_bytes = 0
        for upload, _ in left:
            upload.on_missed(_describe(upload, _RESUMED if resumable else _ENDED), resumable)

    def _replace_history(self) -> None:
        """Drop pending histories, because a session has only one and the newest replaces the others."""
        waiting = [one for one in self._line if one[0].artifact_type == "session_history"]
        for one in waiting:
            if one[0] is not self._at_work:
                self._line.remove(one)
                self._pending_bytes -= one[0].size

    async def _work(self) -> None:
        while self._line:
            upload, until = self._line[0]
            self._at_work = upload
            missed = uri = ""
            try:
                uri = await self._upload(upload, until)
            except UploadFailed as error:
                missed = str(error)
            self._at_work = None
            self._line.popleft()
            self._pending_bytes -= upload.size
            if uri:
                upload.on_stored(uri)
            else:
                upload.on_missed(missed, False)

    async def _upload(self, upload: Upload, until: float) -> str:
        """Upload and return the URI. An unavailable service is retried until the deadline `until`. Raises
        UploadFailed."""
        reason = "the service did not answer"
        wait_s, longest_s = _RETRY_S
        try:
            async with asyncio.timeout_at(until):
                data = await asyncio.to_thread(upload.data) if upload.size > INLINE_BYTES else upload.data()
                with contextlib.closing(
                    Artifact(upload.artifact_type, upload.name, upload.content_type, data)
                ) as artifact:
                    while True:
                        try:
                            return await self._service.upload(artifact, task_id=upload.task_id, step_id=upload.step_id)
                        except UploadFailed as error:
                            if not error.passing or self.is_closed:
                                raise
                            reason = str(error)
                        await self._pause(wait_s)
                        wait_s = min(2 * wait_s, longest_s)
        except TimeoutError:
            limit = f"services.upload_max_behind_s ({self.limits.max_behind_s:g} s)"
            raise UploadFailed(_describe(upload, f"was not stored within {limit}: {reason}")) from None


def _describe(upload: Upload, what: str) -> str:
    return f"artifact {printable(upload.name)} {what}"
