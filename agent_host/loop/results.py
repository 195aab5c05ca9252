"""A call's result: on record, in the words the model reads, and reported to the observers."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson

from agent_host.contracts import Maker, ToolError, ToolResult
from agent_host.errors import ErrorCode
from agent_host.events import EventType
from agent_host.loop.artifacts import add_references, hand_over, keep_artifacts, parts_of, reference_note
from agent_host.loop.background import CommandChanges
from agent_host.loop.context import note_on
from agent_host.loop.progress import is_wait
from agent_host.thread.messages import Message, ToolCall, decode, encodable
from agent_host.thread.thread import RESULTS
from agent_host.thread.tokens import image_tokens, message_tokens
from config import json_text
from config.lean_typing import NamedTuple
from state.blobs import sha256_hex
from state.records import CallFinished

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.contracts import LoadedSkill, ToolSpec
    from agent_host.judging.prepared import PreparedCall, Refusal
    from agent_host.loop.artifacts import LeftArtifact
    from agent_host.loop.context import LoopContext
    from agent_host.services.workspace import ArtifactHome
    from state.checkpoint import Checkpoint, OpenCall, ReplayRow, UsedSkill
    from state.store import OpenSession

SHOWN_BYTES = 8 * 1024
"""Maximum size of a call's arguments, and of its output, in events. The transcript has longer ones."""
STDERR_SHOWN_BYTES: Final = 1024
"""Maximum size of a program's standard error in events (NT)."""
_MAX_WHY_CHARS = 1000
_COLOUR: Final = re.compile("\x1b\\[[0-9;:]*m")
_NOTHING_CHANGED: Final = CommandChanges()


class Observations(NamedTuple):
    """The host's own observations of a call, besides its result. `requested` is when the call was requested, on the
    monotonic clock, `started_at` when it began to run, in RFC 3339, `duration_ms` how long the tool ran. `changed` is
    what a command was seen to change, `paths` are the files that the call is known to have changed, `stamps` those that
    it read or wrote, as `CallFinished.seen` has them.
    """

    requested: float | None = None
    started_at: str | None = None
    duration_ms: int | None = None
    changed: CommandChanges = _NOTHING_CHANGED
    paths: Sequence[str] = ()
    stamps: Mapping[str, str | None] = {}


NOTHING_OBSERVED = Observations()


async def finish(
    ctx: LoopContext,
    step_id: str,
    prepared: PreparedCall,
    result: ToolResult,
    observed: Observations = NOTHING_OBSERVED,
) -> Message:
    """Keep what the call left, put its result on record and emit its event; returns it as it enters the thread.

    Here every result passes, whatever its source, and loses its secrets. What is reported is what is on record.
    """
    call, spec = prepared.call, prepared.spec
    artifacts, left = result.artifacts, []
    if spec is not None and artifacts:
        left = await keep_artifacts(ctx, step_id, Maker(call.name, spec.capabilities_for(call.arguments)), artifacts)
        result = _fail_if_lost(spec, result, [one.row.get("why") for one in left])
    text = add_note(spec, text_of(add_references(result, artifacts, left)), reference_note(artifacts, left))
    if result.skill is not None:
        text = add_note(spec, text, note_on(ctx.judge, result.skill))
    message, clean = _message_of(ctx, step_id, prepared, result, text, observed.duration_ms)
    record = _record_of(ctx, step_id, prepared, result, message, left, observed)
    ctx.journal.checkpoint(step_id, record, sync=False)
    if result.skill is not None:
        ctx.use_skills()
    optional = {
        **_event_fields(ctx, result, record, observed),
        "message": None if record.status == "succeeded" else _why(record.code, clean),
        "storedParts": parts_of(artifacts, left),
        "images": [image.text for image in message.images],
    }
    ctx.emit(
        EventType.TOOL_COMPLETED,
        step_id,
        toolCallId=call.call_id,
        toolName=call.name,
        status=record.status,
        **{name: value for name, value in optional.items() if value not in (None, [], {}, "")},
        **_output_fields(call.call_id, message.content),
        latencyMs=0 if observed.requested is None else ctx.outside.ms_since(observed.requested),
    )
    if result.settle is not None:
        result.settle()
    hand_over(ctx, step_id, call.call_id, left)
    return message


def _message_of(
    ctx: LoopContext, step_id: str, prepared: PreparedCall, result: ToolResult, text: str, duration_ms: int | None
) -> tuple[Message, str]:
    """Return the result as the model reads it, and its text before the host adds its notes. The bytes of pictures are
    not searched for secrets; where pictures are not kept, the text says why."""
    call, spec, images = prepared.call, prepared.spec, result.images
    not_kept = ctx.conversation.keep_images(images)
    if not_kept is not None:
        text, images = f"{text}; {not_kept}", ()
    clean = ctx.scrubber.text(encodable(text))
    text = _rename_code(spec, result.error, clean)
    if prepared.edited:
        text = add_note(spec, text, ctx.scrubber.text(encodable(note_of_edit(ctx, call))), first=True)
    if not is_wait(ctx.state, call, duration_ms):
        text = add_note(spec, text, ctx.progress.note_of_call(step_id, call, text, ctx.judge.tools))
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
    """A result's text with a note of the host, a line in brackets, behind it, or in front of it if it comes `first`.
    The JSON object of a tool that says what its JSON is gets a field for it, and stays one."""
    if not note or spec is None or spec.output_schema is None or not text.startswith("{"):
        return note + text if first else text + note
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # it was cut
        return note + text if first else text + note
    said = note.strip().removeprefix("[").removesuffix("]")
    name = "note" if isinstance(value.get("note", ""), str) else "hostNote"
    if name in value:
        return json_text.dumps({**value, name: f"{value[name]}\n{said}"}).decode()
    field = f'"{name}":{json_text.dumps(said).decode()}'
    return f"{text.rstrip()[:-1].rstrip()}{',' if value else ''}{field}}}"


def _record_of(
    ctx: LoopContext,
    step_id: str,
    prepared: PreparedCall,
    result: ToolResult,
    message: Message,
    left: Sequence[LeftArtifact],
    observed: Observations,
) -> CallFinished:
    return CallFinished(
        prepared.call.call_id,
        result.status,
        ctx.encode(message, step_id),
        None if result.error is None else result.error.code,
        _replay_row(prepared),
        [one.row for one in left],
        result.exit_code,
        observed.stamps,
        observed.changed.files,
        observed.changed.unseen,
        observed.duration_ms,
        None if result.skill is None else _skill_row(result.skill),
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
    """The fields of the event that a call may do without, from its record and from what only observers are told.
    `message` has its place here, and is filled in by the caller."""
    kept = [row for row in record.artifacts if "ref" in row]
    stderr = ctx.scrubber.text(encodable(result.stderr))  # before the cut: half a secret is found by nobody
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


def _rename_code(spec: ToolSpec | None, error: ToolError | None, text: str) -> str:
    """The text with the family's name of the code at its start, which the model reads in place of the host's."""
    if error is None or spec is None or not text.startswith(f"{error.code}: "):
        return text
    return f"{error.name or spec.error_names.get(error.code, error.code)}: {text.removeprefix(f'{error.code}: ')}"


def _skill_row(skill: LoadedSkill) -> UsedSkill:
    return {"name": skill.name, "allowedTools": None if skill.allowed_tools is None else list(skill.allowed_tools)}


def _replay_row(prepared: PreparedCall) -> ReplayRow | None:
    """The means to approve a call that was denied since nobody was there, and where it would have acted."""
    if prepared.refusal is None or prepared.refusal.approve is None:
        return None
    from agent_host.approval.grants import place_of  # a start imports this module, and no policy

    row: ReplayRow = {"callId": prepared.call.call_id, "approve": prepared.refusal.approve}
    place = place_of(prepared.facts)
    return row if place is None else {**row, "place": place}


def _output_fields(call_id: str, text: str) -> dict[str, Any]:
    """The fields of an event about the text that the model reads: its size and hash, so that it is found again in the
    history (SK 7), and its start."""
    content = text.encode()
    shown = {"outputBytes": len(content), "outputSha256": sha256_hex(content)}
    if len(content) <= SHOWN_BYTES:
        return {**shown, "output": text}
    return {**shown, "output": head_of(content), "itemId": call_id}


def head_of(content: bytes, most_bytes: int = SHOWN_BYTES) -> str:
    """The start of a text in UTF-8 that events carry of it, in whole characters."""
    return content[:most_bytes].decode("utf-8", "ignore")


def _why(code: str | None, text: str) -> str:
    """Why a call failed or was denied, in one line: the first one that the model reads, without the code."""
    line = text.partition("\n")[0]
    return line.removeprefix(f"{code}: ")[:_MAX_WHY_CHARS]


def refused_result(ctx: LoopContext, step_id: str, call: ToolCall, refusal: Refusal) -> ToolResult:
    """The result of a call that was not run."""
    error = ToolError(refusal.code, refusal.message, refusal.name)
    return ToolResult(call.name, ctx.session_id, ctx.task.task_id, step_id, refusal.status, error=error)


def text_of(result: ToolResult) -> str:
    """Return the text for the model: the output, after the error's code and message if there is one."""
    parts = [] if result.error is None else [f"{result.error.code}: {result.error.message}"]
    if result.output_text:
        parts.append(result.output_text)
    return "\n".join(parts)


# Arguments that the person who approved a call wrote in place of the model's: what runs, and what the model reads.

_MAX_SHOWN_CHARS = 2000
_MAX_KEPT_BYTES = 16 * 1024
# As earlier versions began it; what they kept has the arguments nowhere else.
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
    """The arguments of an edited call as they stay on record beside its result, without secrets; None where they are
    longer than a message holds itself (`state.blobs`)."""
    clean = ctx.scrubber.value(call.arguments)
    return clean if len(json_text.dumps(clean)) <= _MAX_KEPT_BYTES else None


def arguments_in_note(text: str) -> dict[str, Any] | None:
    """The arguments that `note_of_edit` put in front of the result `text`, without their secrets; None where they were
    too long for it. For records of earlier versions, which have them nowhere else, and only for the result of a call
    that is known to be edited: any tool may print the like."""
    line = text.partition("\n")[0]
    start = next((one for one in (_START, _OLD_START) if line.startswith(one)), None)
    if start is None or not line.endswith(_END):
        return None
    try:
        arguments = orjson.loads(line[len(start) : -len(_END)])
    except orjson.JSONDecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _fail_if_lost(spec: ToolSpec, result: ToolResult, lost: Sequence[str | None]) -> ToolResult:
    """The result of an upload, failed if its artifact was lost: why, or None, for each. Other calls did their work."""
    why = next((message for message in lost if message is not None), None)
    if spec.category != "uploads" or why is None:
        return result
    error = ToolError(ErrorCode.WORKSPACE_UPLOAD_FAILED, why)
    return result._replace(status="failed", output_text=None, error=error, artifacts=())


# What ReadOutput reads: artifacts of calls, and results of the conversation that requests leave out.


class RecordedResults:
    """References of one session: `home` has its artifacts, the record of `store` the results in the conversation."""

    def __init__(self, store: OpenSession, home: ArtifactHome) -> None:
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
    """The messages that hold the id, as they are on record."""
    wanted = call_id.encode("utf-8", "replace")
    return [decode(data) for data in state.thread if wanted in data]
