"""A call's result: on record, in the words the model reads, and reported to the observers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import re
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson

from agent_host.contracts import Maker, ToolError, ToolResult
from agent_host.errors import ErrorCode
from agent_host.events import EventType
from agent_host.loop.background import CommandChanges
from agent_host.loop.progress import ToolStopped, is_wait
from agent_host.services.workspace import INLINE_BYTES, Upload, UploadFailed
from agent_host.thread import RESULTS
from agent_host.thread.messages import Message, ToolCall, decode, encodable, image_tokens, message_tokens
from config import json_text
from config.lean_typing import NamedTuple
from state.blobs import sha256_hex
from state.records import ArtifactGivenUp, ArtifactUploaded, CallFinished

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.contracts import Artifact, LoadedSkill, Spooled, ToolSpec
    from agent_host.judging import PreparedCall, Refusal
    from agent_host.loop import LoopContext
    from agent_host.redaction import Scrubber
    from agent_host.services.workspace import EmbeddedWorkspaceService
    from state.checkpoint import Checkpoint, OpenCall, ReplayRow, UsedSkill
    from state.file_session import FileSession

SHOWN_BYTES = 8 * 1024
"""Maximum size of a call's arguments, and of its output, in events. The transcript has longer ones."""
STDERR_SHOWN_BYTES: Final = 1024
"""Maximum size of a program's standard error in events (NT)."""
_COLOUR: Final = re.compile("\x1b\\[[0-9;:]*m")
_NOTHING_CHANGED: Final = CommandChanges()
_BY_FORCE = "given up: the task was ended by force"


class Observations(NamedTuple):
    """The host's own observations of a call. `requested` is the time of the request on the monotonic clock,
    `started_at` the start in RFC 3339, `duration_ms` the run time of the tool. `changed` are the detected changes of a
    command, `paths` the files that the call is known to have changed, `stamps` the files that it read or wrote, as in
    `CallFinished.seen`."""

    requested: float | None = None
    started_at: str | None = None
    duration_ms: int | None = None
    changed: CommandChanges = _NOTHING_CHANGED
    paths: Sequence[str] = ()
    stamps: Mapping[str, str | None] = {}


NOTHING_OBSERVED = Observations()


async def finish(
    ctx: LoopContext,
    prepared: PreparedCall,
    result: ToolResult,
    observed: Observations = NOTHING_OBSERVED,
) -> Message:
    """Store the call's artifacts, record its result and emit its event; returns the result as it enters the thread.
    Every result passes here, whatever its source, and is redacted. The event reports what is recorded."""
    call, spec = prepared.call, prepared.spec
    artifacts, left = result.artifacts, []
    if spec is not None and artifacts:
        left = await keep_artifacts(ctx, Maker(call.name, spec.capabilities_for(call.arguments)), artifacts)
        lost = next((one.row["why"] for one in left if "why" in one.row), None)
        if spec.category == "uploads" and lost is not None:  # other calls did their work
            error = ToolError(ErrorCode.WORKSPACE_UPLOAD_FAILED, lost)
            result = result._replace(status="failed", output_text=None, error=error, artifacts=())
    text = add_note(spec, text_of(add_references(result, artifacts, left)), reference_note(artifacts, left))
    if result.skill is not None:
        text = add_note(spec, text, _note_on_skill(ctx, result.skill))
    message, clean = _message_of(ctx, prepared, result, text, observed.duration_ms)
    record = _record_of(ctx, prepared, result, message, left, observed)
    ctx.journal.checkpoint(ctx.step_id, record, sync=False)
    if result.skill is not None:
        ctx.use_skills()
    is_done, refs = record.status == "succeeded", [one.ref for one in left]
    optional = {
        **_event_fields(ctx, result, record, observed),
        # In one line: the first one that the model reads, without the code.
        "message": None if is_done else clean.partition("\n")[0].removeprefix(f"{record.code}: ")[:1000],
        "storedParts": {
            artifact.part: ref for artifact, ref in zip(artifacts, refs, strict=True) if artifact.part and ref
        },
        "images": [image.text for image in message.images],
    }
    ctx.emit(
        EventType.TOOL_COMPLETED,
        ctx.step_id,
        toolCallId=call.call_id,
        toolName=call.name,
        status=record.status,
        **{name: value for name, value in optional.items() if value not in (None, [], {}, "")},
        **_output_fields(call.call_id, message.content),
        latencyMs=0 if observed.requested is None else ctx.outside.ms_since(observed.requested),
    )
    if result.settle is not None:
        result.settle()
    hand_over(ctx, call.call_id, left)
    return message


def _message_of(
    ctx: LoopContext, prepared: PreparedCall, result: ToolResult, text: str, duration_ms: int | None
) -> tuple[Message, str]:
    """Return the result as the model reads it, and its text before the host adds notes. Bytes of pictures are not
    searched for secrets; if pictures are not kept, the text says why."""
    call, spec, images = prepared.call, prepared.spec, result.images
    not_kept = ctx.conversation.keep_images(images)
    if not_kept is not None:
        text, images = f"{text}; {not_kept}", ()
    clean = ctx.scrubber.text(encodable(text))
    text, error = clean, result.error
    if error is not None and spec is not None and text.startswith(f"{error.code}: "):  # the family's name is read
        name = error.name or spec.error_names.get(error.code, error.code)
        text = f"{name}: {text.removeprefix(f'{error.code}: ')}"
    if prepared.edited:
        text = add_note(spec, text, ctx.scrubber.text(encodable(note_of_edit(ctx, call))), first=True)
    if not is_wait(ctx.state, call, duration_ms):
        text = add_note(spec, text, ctx.progress.note_of_call(ctx.step_id, call, text, ctx.judge.tools))
    message = Message(
        "tool",
        text,
        message_tokens(ctx.conversation.count, text) + sum(image_tokens(one.width, one.height) for one in images),
        tool_call_id=call.call_id,
        is_error=result.status != "succeeded",
        edited_arguments=arguments_to_keep(ctx, call) if prepared.edited else None,
        images=tuple(images),
    )
    return message, clean


def add_note(spec: ToolSpec | None, text: str, note: str, *, first: bool = False) -> str:
    """Append the host's note, a line in brackets, to a result's text, or put it before the text if `first`. The JSON
    object of a tool with an output schema gets a field for it, and stays JSON."""
    if not note or spec is None or spec.output_schema is None or not text.startswith("{"):
        return note + text if first else text + note
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # it was cut
        return note + text if first else text + note
    content = note.strip().removeprefix("[").removesuffix("]")
    name = "note" if isinstance(value.get("note", ""), str) else "hostNote"
    if name in value:
        return json_text.dumps({**value, name: f"{value[name]}\n{content}"}).decode()
    field = f'"{name}":{json_text.dumps(content).decode()}'
    return f"{text.rstrip()[:-1].rstrip()}{',' if value else ''}{field}}}"


def _record_of(
    ctx: LoopContext,
    prepared: PreparedCall,
    result: ToolResult,
    message: Message,
    left: Sequence[LeftArtifact],
    observed: Observations,
) -> CallFinished:
    used: UsedSkill | None = None
    if result.skill is not None:
        allowed = result.skill.allowed_tools
        used = {"name": result.skill.name, "allowedTools": None if allowed is None else list(allowed)}
    return CallFinished(
        prepared.call.call_id,
        result.status,
        ctx.encode(message, ctx.step_id),
        None if result.error is None else result.error.code,
        _replay_row(prepared),
        [one.row for one in left],
        result.exit_code,
        observed.stamps,
        observed.changed.files,
        observed.changed.unseen,
        observed.duration_ms,
        used,
        tuple(ctx.scrubber.text(encodable(uri)) for uri in result.artifact_uris),
        dict(_coloured(ctx, result.coloured)),
    )


def _coloured(ctx: LoopContext, streams: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the streams with their colours and without secrets. One that colours cut a secret in two is left out."""
    for name, text in streams.items():
        clean = ctx.scrubber.text(encodable(text))
        if _COLOUR.sub("", clean) == ctx.scrubber.text(encodable(_COLOUR.sub("", text))):
            yield name, clean


def _event_fields(ctx: LoopContext, result: ToolResult, record: CallFinished, observed: Observations) -> dict[str, Any]:
    """Optional fields of the event, from the call's record and from data for observers only. `message` is a placeholder
    that the caller fills in."""
    kept = [row for row in record.artifacts if "ref" in row]
    stderr = ctx.scrubber.text(encodable(result.stderr))  # before the cut, because half a secret is not detected
    return {
        "code": record.code,
        "startedAt": observed.started_at,
        "message": None,
        "exitCode": record.exit_code,
        "commandId": result.command_id,
        "skill": None if result.skill is None else ctx.scrubber.text(result.skill.name),
        "stderr": head_of(stderr.encode(), STDERR_SHOWN_BYTES),
        "denials": [ctx.scrubber.text(encodable(denial.note())) for denial in result.denials],
        "pathsChanged": [*observed.paths, *record.changed],
        "changesUnseen": record.unseen,
        "artifactUris": [*result.artifact_uris, *(row["uri"] for row in record.artifacts if "uri" in row)],
        "storageRefs": [row["ref"] for row in kept],
        "storedSha256": {row["ref"]: row["sha256"] for row in kept},
    }


def _note_on_skill(ctx: LoopContext, skill: LoadedSkill) -> str:
    if skill.allowed_tools is None:
        return ""
    unknown = ctx.judge.skill_tools(skill.name, skill.allowed_tools).unknown
    named = f", of which these name no tool here: {', '.join(unknown)}" if unknown else ""
    return f"\n[Until the task ends only the tools of its allowed-tools can be used{named}]"


def _replay_row(prepared: PreparedCall) -> ReplayRow | None:
    """The row by which a call denied for lack of an approver can be approved later, and where it would have acted."""
    if prepared.refusal is None or prepared.refusal.approve is None:
        return None
    from policy.rules.canonical import place_of  # a start imports this module, and no policy

    row: ReplayRow = {"callId": prepared.call.call_id, "approve": prepared.refusal.approve}
    place = place_of(prepared.facts)
    return row if place is None else {**row, "place": place}


def _output_fields(call_id: str, text: str) -> dict[str, Any]:
    """An event's fields about the text that the model reads: its size, hash (SK 7) and start."""
    content = text.encode()
    shown = {"outputBytes": len(content), "outputSha256": sha256_hex(content)}
    if len(content) <= SHOWN_BYTES:
        return {**shown, "output": text}
    return {**shown, "output": head_of(content), "itemId": call_id}


def head_of(content: bytes, most_bytes: int = SHOWN_BYTES) -> str:
    """The start of a text in UTF-8 that events carry of it, in whole characters."""
    return content[:most_bytes].decode("utf-8", "ignore")


def refused_result(ctx: LoopContext, call: ToolCall, refusal: Refusal) -> ToolResult:
    """The result of a call that was not run."""
    error = ToolError(refusal.code, refusal.message, refusal.name)
    return ToolResult(call.name, ctx.session_id, ctx.task.task_id, ctx.step_id, refusal.status, error=error)


def text_of(result: ToolResult) -> str:
    """Return the text for the model: the output, after the error's code and message if there is one."""
    parts = [] if result.error is None else [f"{result.error.code}: {result.error.message}"]
    if result.output_text:
        parts.append(result.output_text)
    return "\n".join(parts)


# Arguments that the approving person wrote in place of the model's: the call runs with them, and the model reads a
# note.

_MAX_SHOWN_CHARS = 2000
# The note's start in earlier versions, whose records have the arguments nowhere else.
_OLD_START = "[Whoever approved this call changed its arguments. It was run, or refused, with: "
_START = "[The person who approved this call changed its arguments. It was run, or refused, with: "
_END = "]"


def call_on_record(call: OpenCall) -> ToolCall:
    """`call` as it is run, or was."""
    if call.edited_arguments is None:
        return ToolCall(call.call_id, call.tool_name, call.arguments, call.problem)
    return ToolCall(call.call_id, call.tool_name, call.edited_arguments)


def note_of_edit(ctx: LoopContext, call: ToolCall) -> str:
    """Return the line in front of the result of an edited call; it ends in a newline."""
    shown = json_text.dumps(ctx.scrubber.value(call.arguments)).decode()
    if len(shown) > _MAX_SHOWN_CHARS:
        shown = f"{shown[:_MAX_SHOWN_CHARS]}… ({len(shown) - _MAX_SHOWN_CHARS} more characters)"
    return f"{_START}{shown}{_END}\n"


def arguments_to_keep(ctx: LoopContext, call: ToolCall) -> Any | None:
    """The redacted arguments of an edited call for the record; None if they are too long for a message."""
    clean = ctx.scrubber.value(call.arguments)
    return clean if len(json_text.dumps(clean)) <= 16 * 1024 else None


def arguments_in_note(text: str) -> dict[str, Any] | None:
    """The redacted arguments that `note_of_edit` put before the result `text`; None if they were too long for it. For
    records of earlier versions, which have them nowhere else, and only for the result of a call known to be edited,
    because any tool may print similar text."""
    line = text.partition("\n")[0]
    start = next((one for one in (_START, _OLD_START) if line.startswith(one)), None)
    if start is None or not line.endswith(_END):
        return None
    try:
        arguments = orjson.loads(line[len(start) : -len(_END)])
    except orjson.JSONDecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None


# What ReadOutput reads: artifacts of calls, and results of the conversation that requests leave out.


class RecordedResults:
    """References of one session: `home` has its artifacts, the record of `store` the results in the conversation."""

    def __init__(self, store: FileSession, home: EmbeddedWorkspaceService) -> None:
        self._store = store
        self._home = home

    def maker_of(self, ref: str) -> Maker | None:
        """The call that left what `ref` names; None for no reference of this session."""
        call_id = _call_id(ref)
        if call_id is None:
            return self._home.maker_of(ref)
        for message in _messages_with(self._store.state, call_id):
            for call in message.tool_calls:
                if call.call_id == call_id:
                    return Maker(call.name, ())
        return None

    def open(self, ref: str) -> BinaryIO | None:
        """Open what `ref` names, to be closed by the caller; None for no reference of this session. Raises OSError."""
        call_id = _call_id(ref)
        if call_id is None:
            return self._home.open(ref)
        for message in _messages_with(self._store.state, call_id):
            if message.tool_call_id == call_id:
                return io.BytesIO(message.content.encode("utf-8", "replace"))
        return None


def _call_id(ref: str) -> str | None:
    return ref.removeprefix(RESULTS) if ref.startswith(RESULTS) else None


def _messages_with(state: Checkpoint, call_id: str) -> list[Message]:
    wanted = call_id.encode("utf-8", "replace")
    return [decode(data) for data in state.thread if wanted in data]


class LeftArtifact(NamedTuple):
    """One artifact of a call. `row` is its record: {id, type, name, contentType, bytes, ref?, sha256?}, with `uri` if
    it is stored already and with `why` if it never will be. `data` is None unless it is only in memory."""

    row: dict[str, Any]
    data: bytes | None = None

    @property
    def ref(self) -> str | None:
        """The local reference, None if the disk failed."""
        return self.row.get("ref")


async def keep_artifacts(ctx: LoopContext, maker: Maker, artifacts: Sequence[Artifact]) -> list[LeftArtifact]:
    """Store the redacted artifacts of a call. A forced end may lose them; their rows say so."""
    if not artifacts:
        return []
    try:
        return await ctx.cancellation.run_until_forced(_all_kept(ctx, [one._replace(maker=maker) for one in artifacts]))
    except ToolStopped:  # the call is done; only its artifacts are lost
        return [LeftArtifact({**_row(ctx, artifact), "why": _BY_FORCE}) for artifact in artifacts]
    finally:
        for artifact in artifacts:
            artifact.close()


async def _all_kept(ctx: LoopContext, artifacts: Iterable[Artifact]) -> list[LeftArtifact]:
    left: list[LeftArtifact] = []
    for artifact in artifacts:
        # All calls of a turn may leave as much as one can; of that, one at a time is in memory.
        async with ctx.artifacts.one_large if artifact.size > INLINE_BYTES else contextlib.nullcontext():
            left.append(await _keep(ctx, artifact))
    return left


async def _keep(ctx: LoopContext, artifact: Artifact) -> LeftArtifact:
    try:
        artifact = await asyncio.to_thread(_clean, ctx, artifact)
    except OSError as error:
        return LeftArtifact({**_row(ctx, artifact), "why": _unreadable(error)})
    row = _row(ctx, artifact)
    try:
        kept = await ctx.artifacts.home.keep(artifact, task_id=ctx.task.task_id, step_id=ctx.step_id)
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
        """See Spooled; redacted data has another hash."""

    def pieces(self) -> Iterator[bytes]:
        """See Spooled."""
        return self._scrubber.pieces(self._artifact.pieces())

    def close(self) -> None:
        """See Spooled."""
        self._artifact.close()


def _unreadable(error: OSError) -> str:
    return f"the call's artifacts cannot be read: {error.strerror or error}"


def _row(ctx: LoopContext, artifact: Artifact) -> dict[str, Any]:
    return {
        "id": ctx.outside.new_id("art"),
        "type": artifact.artifact_type,
        "name": artifact.name,
        "contentType": artifact.content_type,
        "bytes": artifact.size,
    }


def add_references(result: ToolResult, artifacts: Sequence[Artifact], left: Sequence[LeftArtifact]) -> ToolResult:
    """The result with the references and hashes of its artifacts in the fields of its JSON for them (SK 6)."""
    fields: dict[str, Any] = {}
    for artifact, one in zip(artifacts, left, strict=True):
        if one.ref is not None and artifact.ref_field:
            fields[artifact.ref_field] = one.ref
            fields |= {artifact.hash_field: one.row["sha256"]} if artifact.hash_field else {}
    if not fields or result.output_text is None:
        return result
    return result._replace(output_text=orjson.dumps({**orjson.loads(result.output_text), **fields}).decode())


def reference_note(artifacts: Sequence[Artifact], left: Sequence[LeftArtifact]) -> str:
    """The line that names the artifacts of a result, to be appended to it; empty if there are none, or the result names
    them."""
    refs = [
        one for artifact, one in zip(artifacts, left, strict=True) if one.ref is not None and not artifact.ref_field
    ]
    if not refs:
        return ""
    if len(refs) == 1:
        return f"\n[storage_ref: {refs[0].ref}]"
    named = ", ".join(f"{one.ref} ({one.row['name']})" for one in refs)
    return f"\n[storage_ref: {named}]"


def hand_over(ctx: LoopContext, call_id: str, left: Iterable[LeftArtifact]) -> None:
    """Have the artifacts of a recorded result uploaded, and report those that need no upload or get none."""
    for one in left:
        row = {**one.row, "callId": call_id, "taskId": ctx.task.task_id, "stepId": ctx.step_id}
        if "uri" in row:
            _report(ctx, EventType.ARTIFACT_UPLOADED, row, artifactUri=row["uri"])
        elif "why" in row:
            _report(ctx, EventType.ARTIFACT_UPLOAD_FAILED, row, message=row["why"])
        else:
            ctx.artifacts.queue.put(_upload_of(ctx, row, one.data))


def take_up_uploads(ctx: LoopContext) -> None:
    """Queue the uploads that earlier processes did not finish (AH 9.5). The service recognizes repeated uploads by
    their key."""
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
        data=functools.partial(_content, ctx, row) if data is None else lambda: data,
        on_stored=functools.partial(_record_upload, ctx, row),
        on_missed=functools.partial(_record_missed_upload, ctx, row),
        task_id=row["taskId"],
        step_id=row["stepId"],
    )


def _content(ctx: LoopContext, row: Mapping[str, Any]) -> bytes | Spooled:
    if "ref" not in row:
        raise UploadFailed("it was not kept on this disk, and the process that had it is gone")
    return ctx.artifacts.home.read_kept(row)


def _record_upload(ctx: LoopContext, row: Mapping[str, Any], uri: str) -> None:
    ctx.journal.checkpoint(row["stepId"], ArtifactUploaded(row["id"], uri), sync=False)
    _report(ctx, EventType.ARTIFACT_UPLOADED, row, artifactUri=uri)


def _record_missed_upload(ctx: LoopContext, row: Mapping[str, Any], message: str, again: bool) -> None:
    if not again:
        ctx.journal.checkpoint(row["stepId"], ArtifactGivenUp(row["id"], message), sync=False)
    _report(ctx, EventType.ARTIFACT_UPLOAD_FAILED, row, message=message)


def _report(ctx: LoopContext, kind: EventType, row: Mapping[str, Any], **extra: str) -> None:
    payload: dict[str, Any] = {"artifactName": row["name"], **extra, "toolCallId": row["callId"]}
    if "ref" in row:
        payload["storageRef"] = row["ref"]
    ctx.emitter.emit(kind, payload, task_id=row["taskId"], step_id=row["stepId"])
