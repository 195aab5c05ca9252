"""A result that the runtime gave for a call: what it left is kept, and it goes on record and to the observers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.contracts import Maker
from agent_host.loop.artifacts import hand_over, keep_artifacts, parts_of, reference_note, with_references
from agent_host.loop.results import CallEnd, finish, text_of, with_note
from agent_host.loop.skills import note_on
from agent_host.routing.host_tools import unless_lost

if TYPE_CHECKING:
    from agent_host.contracts import ToolResult, ToolSpec
    from agent_host.loop.context import LoopContext
    from agent_host.thread.messages import Message, ToolCall

NOTHING_KNOWN = CallEnd("", None, "")
"""Of a call of which nothing is known but its result."""


async def take_result(
    ctx: LoopContext, step_id: str, call: ToolCall, spec: ToolSpec, result: ToolResult, known: CallEnd = NOTHING_KNOWN
) -> Message:
    """Put what the runtime gave for a call on record; returns it as it enters the thread. `known` is what is known of
    the call besides."""
    maker = Maker(call.name, spec.needed(call.arguments))
    artifacts = result.artifacts
    left = await keep_artifacts(ctx, step_id, maker, artifacts)
    result = unless_lost(result, [one.row.get("why") for one in left])
    text = with_note(spec, text_of(with_references(result, artifacts, left)), reference_note(artifacts, left))
    if result.skill is not None:
        text = with_note(spec, text, note_on(ctx.judge, result.skill))
    end = known._replace(
        status=result.status,
        code=None if result.error is None else result.error.code,
        text=text,
        result=result,
        name=None if result.error is None else result.error.name,
        left=[one.row for one in left],
        parts=parts_of(artifacts, left),
    )
    message = finish(ctx, step_id, call, end)
    if result.settle is not None:
        result.settle()
    hand_over(ctx, step_id, call.call_id, left)
    return message
