"""The calls of a step that a crash left open: reuse what is on record, report what was cut, run what never began.

What was approved is not asked again, and what was denied is not run; a question that was open is put again as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import ErrorCode
from agent_host.loop.intents import outcome_on_disk
from agent_host.loop.prepare import prepare_calls, request_for
from agent_host.loop.results import finish
from agent_host.routing.capabilities import TOOLS
from agent_host.thread.messages import ToolCall
from state.boot import boot_id
from state.recovery import Verdict, judge

if TYPE_CHECKING:
    from agent_host.loop.context import LoopContext
    from agent_host.loop.prepare import PreparedCall
    from state.open_step import Call

_DONE = "done: a crash cut off the answer, and the file is as this call was to leave it"
_NOT_DONE = "interrupted by a crash before it took effect: the file is as it was"
_UNKNOWN = "interrupted by a crash; whether it took effect is unknown: inspect before you try again"


async def recover_calls(ctx: LoopContext, step_id: str) -> tuple[PreparedCall, ...]:
    """What is left to run of the open step, judged by policy anew; calls that are not run again get their results.

    Raises CheckpointWriteFailed when a new approval cannot be recorded.
    """
    step = ctx.state.open_step
    if step is None:
        return ()
    same_boot = step.boot is not None and step.boot == boot_id()
    to_run: dict[str, Call] = {}
    for call in step.calls:
        verdict = judge(call, same_boot=same_boot)
        if verdict is Verdict.RUN:
            to_run[call.call_id] = call
        elif verdict is not Verdict.REUSE:
            await _report(ctx, step_id, call, verdict)
    calls = [ToolCall(call.call_id, call.tool_name, call.arguments, call.problem) for call in to_run.values()]
    prepared = prepare_calls(ctx, calls, to_run)
    for ready in prepared:
        # The next resume is to ask under the same id, also where policy asks only now.
        if ready.gated and to_run[ready.call.call_id].approval_id is None:
            ctx.record("approval", {"callId": ready.call.call_id, "approvalId": ready.approval_id})
    return prepared


async def _report(ctx: LoopContext, step_id: str, call: Call, verdict: Verdict) -> None:
    """Tell the model what became of a call that was cut off. What is left of it is ended first: it could otherwise
    take effect after the model has looked."""
    tool_call = ToolCall(call.call_id, call.tool_name, call.arguments)
    row = TOOLS.get(call.tool_name)
    if row is not None and verdict is Verdict.INTERRUPTED:
        await ctx.router.end_leftovers(request_for(ctx, step_id, tool_call, row))
    outcome = outcome_on_disk(call.intent) if verdict is Verdict.COMPARE and call.intent is not None else "unknown"
    if outcome == "done":
        finish(ctx, step_id, tool_call, "succeeded", None, _DONE)
        return
    said = _NOT_DONE if outcome == "not done" else _UNKNOWN
    code = ErrorCode.TOOL_INTERRUPTED
    finish(ctx, step_id, tool_call, "failed", code, f"{code}: {said}")
