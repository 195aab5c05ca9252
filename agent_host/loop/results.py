"""A call's result: on record, in the words the model reads, and reported to the observers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agent_host.events.kinds import EventType
from agent_host.loop.edits import kept_arguments, note_of_edit
from agent_host.thread.messages import Message, ToolCall, encodable, encode
from agent_host.thread.tokens import message_tokens
from state.blobs import sha256_hex
from state.records import CallFinished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import ToolResult
    from agent_host.loop.context import LoopContext
    from state.records import ReplayRow


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
) -> Message:
    """Put the call's result on record and emit its event; returns it as it enters the thread.

    `text` may hold secrets and what cannot be encoded; here every result passes, whatever its source. `approve` marks a
    call that was denied since nobody was there, and `place` is where it would have acted; the rest of how to replay it
    stands in the thread. `started` is when the call was requested, on the monotonic clock, `started_at` when it began
    to run, in RFC 3339. `artifacts` are rows of what the call left (`loop.artifacts`).
    `edited`: the person who approved it wrote the arguments of `call`, which the model reads first.
    """
    note = note_of_edit(ctx, call) if edited else ""
    text = ctx.scrubber.text(encodable(note + text))
    message = Message(
        "tool",
        text,
        message_tokens(ctx.conversation.count, text),
        tool_call_id=call.call_id,
        is_error=status != "succeeded",
        edited_arguments=kept_arguments(ctx, call) if edited else None,
    )
    replay: ReplayRow | None = None
    if approve is not None:
        replay = {"callId": call.call_id, "approve": approve}
        if place is not None:
            replay["place"] = place
    encoded = encode(message, session_id=ctx.session_id, task_id=ctx.task.task_id, step_id=step_id)
    ctx.journal.checkpoint(step_id, CallFinished(call.call_id, status, encoded, code, replay, artifacts), sync=False)
    payload: dict[str, Any] = {"toolCallId": call.call_id, "toolName": call.name, "status": status}
    if code is not None:
        payload["code"] = code
    if started_at is not None:
        payload["startedAt"] = started_at
    uris = [*artifact_uris, *(row["uri"] for row in artifacts if "uri" in row)]
    refs = [row["ref"] for row in artifacts if "ref" in row]
    if uris:
        payload["artifactUris"] = uris
    if refs:
        payload["storageRefs"] = refs
    # What was observed can be distinguished and found again: the whole text stands in the history (SK 7).
    content = text.encode()
    payload |= {"outputBytes": len(content), "outputSha256": sha256_hex(content)}
    payload["latencyMs"] = 0 if started is None else int((time.monotonic() - started) * 1000)
    ctx.emit(EventType.TOOL_COMPLETED, step_id, **payload)
    return message


def text_of(result: ToolResult) -> str:
    """What the model reads: the output, behind the error's code and message where there is one."""
    parts = [] if result.error is None else [f"{result.error.code}: {result.error.message}"]
    if result.output_text:
        parts.append(result.output_text)
    return "\n".join(parts)
