"""A call's result: on record, in the words the model reads, and reported to the observers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from agent_host.events.kinds import EventType
from agent_host.loop.command_changes import CommandChanges
from agent_host.loop.edits import kept_arguments, note_of_edit
from agent_host.thread.messages import Message, ToolCall, encodable, encode
from agent_host.thread.tokens import image_tokens, message_tokens
from state.blobs import sha256_hex
from state.records import CallFinished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Image, LoadedSkill, ToolResult
    from agent_host.loop.context import LoopContext
    from state.records import ReplayRow, UsedSkill

SHOWN_BYTES = 8 * 1024
"""What events carry of a call's arguments, and of its output. What is longer is in the transcript."""
_MAX_WHY_CHARS = 1000
_NOTHING_CHANGED: Final = CommandChanges()


def finish(
    ctx: LoopContext,
    step_id: str,
    call: ToolCall,
    status: str,
    code: str | None,
    text: str,
    approve: str | None = None,
    started: float | None = None,
    started_at: str | None = None,
    artifact_uris: Sequence[str] = (),
    place: str | None = None,
    artifacts: Sequence[Mapping[str, Any]] = (),
    *,
    edited: bool = False,
    exit_code: int | None = None,
    paths: Sequence[str] = (),
    seen: Mapping[str, str | None] = {},
    command_id: str | None = None,
    images: Sequence[Image] = (),
    changed: CommandChanges = _NOTHING_CHANGED,
    duration_ms: int | None = None,
    skill: LoadedSkill | None = None,
    name: str | None = None,
) -> Message:
    """Put the call's result on record and emit its event; returns it as it enters the thread.

    `text` may hold secrets and what cannot be encoded; here every result passes, whatever its source. `approve` marks a
    call that was denied since nobody was there, and `place` is where it would have acted; the rest of how to replay it
    stands in the thread. `started` is when the call was requested, on the monotonic clock, `started_at` when it began
    to run, in RFC 3339. `artifacts` are rows of what the call left (`loop.artifacts`).
    `edited`: the person who approved it wrote the arguments of `call`, which the model reads first. `exit_code` is a
    command's, `paths` are the files that the call is known to have changed, `seen` those that it read or wrote, as
    `CallFinished` has them, `command_id` is that of a command that runs on in the background. `changed` is what a
    command was seen to change. `images` are the pictures that `text` describes; where they are not kept, it says why.
    Their bytes are not searched for secrets. `duration_ms` is how long the tool ran. `skill` is one that the call has
    put to use: it limits the tools from now on. `name` is what the model reads in place of the `code`, where that is
    not the family's name for it (`ToolSpec.error_names`).
    """
    not_kept = ctx.conversation.keep_images(images)
    if not_kept is not None:
        text, images = f"{text}; {not_kept}", ()
    said = ctx.scrubber.text(encodable(text))
    text = (ctx.scrubber.text(encodable(note_of_edit(ctx, call))) if edited else "") + _named(
        ctx, call, code, said, name
    )
    message = Message(
        "tool",
        text,
        message_tokens(ctx.conversation.count, text) + sum(image_tokens(one.width, one.height) for one in images),
        tool_call_id=call.call_id,
        is_error=status != "succeeded",
        edited_arguments=kept_arguments(ctx, call) if edited else None,
        images=tuple(images),
    )
    encoded = encode(message, session_id=ctx.session_id, task_id=ctx.task.task_id, step_id=step_id)
    replay = _replay_row(call, approve, place)
    record = CallFinished(
        call.call_id,
        status,
        encoded,
        code,
        replay,
        artifacts,
        exit_code,
        seen,
        changed.files,
        changed.unseen,
        duration_ms,
        None if skill is None else _used(skill),
    )
    ctx.journal.checkpoint(step_id, record, sync=False)
    if skill is not None:
        ctx.use_skills()
    optional = {
        "code": code,
        "startedAt": started_at,
        "message": None if status == "succeeded" else _why(code, said),
        "exitCode": exit_code,
        "commandId": command_id,
        "pathsChanged": [*paths, *changed.files],
        "changesUnseen": changed.unseen,
        "images": [image.text for image in images],
        "artifactUris": [*artifact_uris, *(row["uri"] for row in artifacts if "uri" in row)],
        "storageRefs": [row["ref"] for row in artifacts if "ref" in row],
        "storedSha256": {row["ref"]: row["sha256"] for row in artifacts if "ref" in row} or None,
    }
    ctx.emit(
        EventType.TOOL_COMPLETED,
        step_id,
        toolCallId=call.call_id,
        toolName=call.name,
        status=status,
        **{name: value for name, value in optional.items() if value is not None and value != []},
        **_shown(call, text),
        latencyMs=0 if started is None else int((time.monotonic() - started) * 1000),
    )
    return message


def _named(ctx: LoopContext, call: ToolCall, code: str | None, text: str, name: str | None) -> str:
    """The text with the family's name of the code at its start, which the model reads in place of the host's."""
    spec = ctx.judge.tools.get(call.name)
    if code is None or spec is None or not text.startswith(f"{code}: "):
        return text
    return f"{name or spec.error_names.get(code, code)}: {text.removeprefix(f'{code}: ')}"


def _used(skill: LoadedSkill) -> UsedSkill:
    return {"name": skill.name, "allowedTools": None if skill.allowed_tools is None else list(skill.allowed_tools)}


def _replay_row(call: ToolCall, approve: str | None, place: str | None) -> ReplayRow | None:
    if approve is None:
        return None
    row: ReplayRow = {"callId": call.call_id, "approve": approve}
    return row if place is None else {**row, "place": place}


def _shown(call: ToolCall, text: str) -> dict[str, Any]:
    """What the event carries of the text that the model reads: its size and hash, so that it is found again in the
    history (SK 7), and its start."""
    content = text.encode()
    shown = {"outputBytes": len(content), "outputSha256": sha256_hex(content)}
    if len(content) <= SHOWN_BYTES:
        return {**shown, "output": text}
    return {**shown, "output": head_of(content), "itemId": call.call_id}


def head_of(content: bytes) -> str:
    """The start of a text in UTF-8 that events carry of it, in whole characters."""
    return content[:SHOWN_BYTES].decode("utf-8", "ignore")


def _why(code: str | None, text: str) -> str:
    """Why a call failed or was denied, in one line: the first one that the model reads, without the code."""
    line = text.partition("\n")[0]
    return line.removeprefix(f"{code}: ")[:_MAX_WHY_CHARS]


def text_of(result: ToolResult) -> str:
    """What the model reads: the output, behind the error's code and message where there is one."""
    parts = [] if result.error is None else [f"{result.error.code}: {result.error.message}"]
    if result.output_text:
        parts.append(result.output_text)
    return "\n".join(parts)
