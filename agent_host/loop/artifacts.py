"""Artifacts of calls (AH 7.5, decided by interface section 2): each is kept on this disk before the result is recorded,
and its upload follows in the background. A result enters the thread with the local reference."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.events import EventType
from agent_host.loop.cancellation import ToolStopped
from agent_host.services.workspace import INLINE_BYTES, Upload, UploadFailed
from config.lean_typing import NamedTuple
from state.records import ArtifactGivenUp, ArtifactUploaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent_host.contracts import Artifact, Maker, Spooled, ToolResult
    from agent_host.loop.context import LoopContext
    from agent_host.redaction import Scrubber

_BY_FORCE = "given up: the task was ended by force"
_NOT_KEPT = "it was not kept on this disk, and the process that had it is gone"


class LeftArtifact(NamedTuple):
    """One artifact of a call. `row` is what goes on record: {id, type, name, contentType, bytes, ref?, sha256?}, with
    `uri` where it is stored already and with `why` where it never will be. `data` is held only where no disk has
    it."""

    row: dict[str, Any]
    data: bytes | None = None

    @property
    def ref(self) -> str | None:
        """The local reference, None where the disk did not take it."""
        return self.row.get("ref")


async def keep_artifacts(
    ctx: LoopContext, step_id: str, maker: Maker, artifacts: Sequence[Artifact]
) -> list[LeftArtifact]:
    """Keep the artifacts of a call on this disk, without secrets. By force the task may end before that is done; then
    the artifacts are lost, and their rows say so."""
    if not artifacts:
        return []
    try:
        return await ctx.cancellation.run_until_forced(
            _all_kept(ctx, step_id, [one._replace(maker=maker) for one in artifacts])
        )
    except ToolStopped:  # the call is done; only what it left is not kept
        return [LeftArtifact({**_row(ctx, artifact), "why": _BY_FORCE}) for artifact in artifacts]
    finally:
        for artifact in artifacts:
            artifact.close()


async def _all_kept(ctx: LoopContext, step_id: str, artifacts: Iterable[Artifact]) -> list[LeftArtifact]:
    left: list[LeftArtifact] = []
    for artifact in artifacts:
        # All calls of a turn may leave as much as one can; of that, one at a time is in memory.
        async with ctx.artifacts.one_large if artifact.size > INLINE_BYTES else contextlib.nullcontext():
            left.append(await _keep(ctx, step_id, artifact))
    return left


async def _keep(ctx: LoopContext, step_id: str, artifact: Artifact) -> LeftArtifact:
    try:
        artifact = await asyncio.to_thread(_clean, ctx, artifact)
    except OSError as error:
        return LeftArtifact({**_row(ctx, artifact), "why": _unreadable(error)})
    row = _row(ctx, artifact)
    try:
        kept = await ctx.artifacts.home.keep(artifact, task_id=ctx.task.task_id, step_id=step_id)
    except UploadFailed as error:
        if not ctx.artifacts.elsewhere:
            return LeftArtifact({**row, "why": str(error)})
        try:
            data = await asyncio.to_thread(lambda: artifact.data)
        except OSError as unread:
            return LeftArtifact({**row, "why": _unreadable(unread)})
        return LeftArtifact({**row, "bytes": len(data)}, data)
    row |= {"id": kept.artifact_id, "ref": kept.ref, "sha256": kept.sha256, "bytes": kept.size}
    return LeftArtifact(row if ctx.artifacts.elsewhere else {**row, "uri": kept.uri})


def _clean(ctx: LoopContext, artifact: Artifact) -> Artifact:
    """The artifact without secrets. A large text that looks like secrets all over takes seconds to be read, so this is
    for a thread; what does not fit into memory is cleaned while it is kept. Raises OSError."""
    if artifact.size > INLINE_BYTES:
        return artifact._replace(content=_Cleaned(artifact, ctx.scrubber))
    return artifact._replace(content=ctx.scrubber.data(artifact.data))


class _Cleaned:
    """A large content without secrets, as a `Spooled`: each time that it is read it is cleaned."""

    def __init__(self, artifact: Artifact, scrubber: Scrubber) -> None:
        self._artifact = artifact
        self._scrubber = scrubber
        self.size = artifact.size
        """See Spooled; what is cleaned has another."""

    def pieces(self) -> Iterator[bytes]:
        """See Spooled."""
        return self._scrubber.pieces(self._artifact.pieces())

    def close(self) -> None:
        """See Spooled."""
        self._artifact.close()


def _unreadable(error: OSError) -> str:
    return f"what the call left cannot be read: {error.strerror or error}"


def _row(ctx: LoopContext, artifact: Artifact) -> dict[str, Any]:
    return {
        "id": ctx.outside.new_id("art"),
        "type": artifact.artifact_type,
        "name": artifact.name,
        "contentType": artifact.content_type,
        "bytes": artifact.size,
    }


def add_references(result: ToolResult, artifacts: Sequence[Artifact], left: Sequence[LeftArtifact]) -> ToolResult:
    """The result with the references and hashes of its artifacts in those fields of its JSON that are for them (SK 6).
    What the disk did not take has none."""
    fields: dict[str, Any] = {}
    for artifact, one in zip(artifacts, left, strict=True):
        if one.ref is not None and artifact.ref_field:
            fields[artifact.ref_field] = one.ref
            fields |= {artifact.hash_field: one.row["sha256"]} if artifact.hash_field else {}
    if not fields or result.output_text is None:
        return result
    return result._replace(output_text=orjson.dumps({**orjson.loads(result.output_text), **fields}).decode())


def parts_of(artifacts: Sequence[Artifact], left: Sequence[LeftArtifact]) -> dict[str, str]:
    """The references of a call's outputs that are kept, by which output each is (SK 7)."""
    pairs = zip(artifacts, left, strict=True)
    return {artifact.part: one.ref for artifact, one in pairs if artifact.part and one.ref is not None}


def reference_note(artifacts: Sequence[Artifact], left: Sequence[LeftArtifact]) -> str:
    """The line behind a result that names its artifacts on this disk, empty where there are none, or the result itself
    names them."""
    refs = [
        one for artifact, one in zip(artifacts, left, strict=True) if one.ref is not None and not artifact.ref_field
    ]
    if not refs:
        return ""
    if len(refs) == 1:
        return f"\n[storage_ref: {refs[0].ref}]"
    named = ", ".join(f"{one.ref} ({one.row['name']})" for one in refs)
    return f"\n[storage_ref: {named}]"


def hand_over(ctx: LoopContext, step_id: str, call_id: str, left: Iterable[LeftArtifact]) -> None:
    """Have the artifacts of a recorded result uploaded, and report those that need no upload or get none."""
    for one in left:
        row = {**one.row, "callId": call_id, "taskId": ctx.task.task_id, "stepId": step_id}
        if "uri" in row:
            _report(ctx, EventType.ARTIFACT_UPLOADED, row, artifactUri=row["uri"])
        elif "why" in row:
            _report(ctx, EventType.ARTIFACT_UPLOAD_FAILED, row, message=row["why"])
        else:
            ctx.artifacts.queue.put(_upload_of(ctx, row, one.data))


def take_up_uploads(ctx: LoopContext) -> None:
    """Queue what former processes had not uploaded (AH 9.5). The service knows what it has already by its key."""
    for row in list(ctx.state.uploads.values()):
        if not ctx.artifacts.elsewhere and "ref" in row:
            _record_upload(ctx, row, ctx.artifacts.home.uri_of(row["ref"]))
        else:
            ctx.artifacts.queue.put(_upload_of(ctx, row, None))


def _upload_of(ctx: LoopContext, row: Mapping[str, Any], data: bytes | None) -> Upload:
    return Upload(
        artifact_type=row["type"],
        name=row["name"],
        content_type=row["contentType"],
        size=row["bytes"],
        data=_content(ctx, row) if data is None else lambda: data,
        on_stored=functools.partial(_record_upload, ctx, row),
        on_missed=functools.partial(_record_missed_upload, ctx, row),
        task_id=row["taskId"],
        step_id=row["stepId"],
    )


def _content(ctx: LoopContext, row: Mapping[str, Any]) -> Callable[[], bytes | Spooled]:
    def read() -> bytes | Spooled:
        if "ref" not in row:
            raise UploadFailed(_NOT_KEPT)
        return ctx.artifacts.home.read_kept(row)

    return read


def _record_upload(ctx: LoopContext, row: Mapping[str, Any], uri: str) -> None:
    ctx.journal.checkpoint(row["stepId"], ArtifactUploaded(row["id"], uri), sync=False)
    _report(ctx, EventType.ARTIFACT_UPLOADED, row, artifactUri=uri)


def _record_missed_upload(ctx: LoopContext, row: Mapping[str, Any], message: str, again: bool) -> None:
    if not again:
        ctx.journal.checkpoint(row["stepId"], ArtifactGivenUp(row["id"], message), sync=False)
    _report(ctx, EventType.ARTIFACT_UPLOAD_FAILED, row, message=message)


def _report(ctx: LoopContext, kind: EventType, row: Mapping[str, Any], **more: str) -> None:
    payload: dict[str, Any] = {"artifactName": row["name"], **more, "toolCallId": row["callId"]}
    if "ref" in row:
        payload["storageRef"] = row["ref"]
    ctx.emitter.emit(kind, payload, task_id=row["taskId"], step_id=row["stepId"])
