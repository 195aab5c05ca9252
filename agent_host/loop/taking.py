"""A result that the runtime gave for a call: what it left is kept, and it goes on record and to the observers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.contracts import Maker
from agent_host.loop.artifacts import hand_over, keep_artifacts, reference_note, with_references
from agent_host.loop.command_changes import CommandChanges
from agent_host.loop.results import finish, text_of
from agent_host.loop.skills import note_on
from agent_host.routing.host_tools import unless_lost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import ToolResult, ToolSpec
    from agent_host.loop.context import LoopContext
    from agent_host.thread.messages import Message, ToolCall

_NOTHING_CHANGED = CommandChanges()


async def take_result(
    ctx: LoopContext,
    step_id: str,
    call: ToolCall,
    spec: ToolSpec,
    result: ToolResult,
    *,
    started: float | None = None,
    started_at: str | None = None,
    edited: bool = False,
    paths: Sequence[str] = (),
    seen: Mapping[str, str | None] = {},
    changed: CommandChanges = _NOTHING_CHANGED,
    duration_ms: int | None = None,
) -> Message:
    """Put what the runtime gave for a call on record; returns it as it enters the thread. Arguments as of `finish`."""
    maker = Maker(call.name, spec.needed(call.arguments))
    artifacts = result.artifacts
    left = await keep_artifacts(ctx, step_id, maker, artifacts)
    result = unless_lost(result, [one.row.get("why") for one in left])
    code = None if result.error is None else result.error.code
    text = text_of(with_references(result, artifacts, left)) + reference_note(artifacts, left)
    if result.skill is not None:
        text += note_on(ctx.judge, result.skill)
    message = finish(
        ctx,
        step_id,
        call,
        result.status,
        code,
        text,
        None,
        started,
        started_at,
        result.artifact_uris,
        artifacts=[one.row for one in left],
        edited=edited,
        exit_code=result.exit_code,
        command_id=result.command_id,
        paths=paths,
        seen=seen,
        changed=changed,
        images=result.images,
        duration_ms=duration_ms,
        skill=result.skill,
        name=None if result.error is None else result.error.name,
    )
    hand_over(ctx, step_id, call.call_id, left)
    return message
