"""The calls of a step that a crash left open: reuse what is on record, report what was cut, run what never began.

What was approved is not asked again, and what was denied is not run; a question that was open is put again as it was.
A call that went to another place is asked about there, and is sent again only where policy calls its tool repeatable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_host.contracts import Leftovers
from agent_host.errors import ErrorCode
from agent_host.loop.command_changes import CUT_OFF, CommandChanges, is_watched
from agent_host.loop.edits import call_on_record
from agent_host.loop.intents import hash_on_disk
from agent_host.loop.prepare import prepare_calls, request_for
from agent_host.loop.results import CallEnd, finish
from agent_host.loop.taking import NOTHING_KNOWN, take_result
from policy.rules.named_tools import is_repeatable
from state.boot import boot_id
from state.records import ApprovalAsked
from state.recovery import Outcome, Verdict, compare, judge, paths_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.loop.call_run import CallRun
    from agent_host.loop.context import LoopContext
    from agent_host.thread.messages import Message
    from state.open_step import Call

_LEFT_OPEN = (Verdict.COMPARE, Verdict.INTERRUPTED)
_DONE = "done: a crash cut off the answer, and the file shows that this call took effect"
_NOT_DONE = "interrupted by a crash before it took effect: the file is as it was"
_PUT_BACK = "interrupted by a crash while the file was written: it was put back as it was"
_CHANGED = "the file was half written then and somebody has changed it since: it was left as it is"
_UNKNOWN = "interrupted by a crash; whether it took effect is unknown: inspect before you try again"


async def recover_calls(ctx: LoopContext, step_id: str) -> tuple[CallRun, ...]:
    """What is left to run of the open step, judged by policy again; calls that are not run again get their results.

    Raises CheckpointWriteFailed when a new approval cannot be recorded.
    """
    step = ctx.state.open_step
    if step is None:
        return ()
    same_boot = step.boot is not None and step.boot == boot_id()
    verdicts = {call.call_id: judge(call, same_boot=same_boot) for call in step.calls}
    cut_off = [call for call in step.calls if verdicts[call.call_id] in _LEFT_OPEN]
    left = await asyncio.gather(*(_end_leftovers(ctx, step_id, call) for call in cut_off))  # each looks for a while
    await _settle_recorded(ctx, step_id, step.calls)
    paths = {path for call in cut_off for path in paths_of(call)}
    outcomes = compare(step.calls, {path: hash_on_disk(path) for path in paths}, same_boot=same_boot)
    repeated = {call_id for call_id, outcome in outcomes.items() if outcome is Outcome.REPEAT}
    answers = await asyncio.gather(*(_ask(ctx, step_id, call) for call in cut_off if call.intent is None))
    answered = {result.tool_call_id for result in answers if result is not None}
    repeated |= {call.call_id for call in cut_off if call.call_id not in answered and _may_be_repeated(ctx, call)}
    for call, found in zip(cut_off, left, strict=True):
        if call.call_id not in repeated | answered:
            _report(ctx, step_id, call, outcomes.get(call.call_id, Outcome.UNKNOWN), found)
        if found.settle is not None and found.file != "changed":
            found.settle()
    to_run = {
        call.call_id: call for call in step.calls if verdicts[call.call_id] is Verdict.RUN or call.call_id in repeated
    }
    runs = prepare_calls(ctx, [call_on_record(call) for call in to_run.values()], to_run)
    for run in runs:
        # The next resume is to ask under the same id, also where policy asks only now, or asks again.
        known = to_run[run.call.call_id].approval_id
        if run.gated and run.approval_id is not None and known != run.approval_id:
            ctx.journal.record(ApprovalAsked(run.call.call_id, run.approval_id))
    return runs


async def _end_leftovers(ctx: LoopContext, step_id: str, call: Call) -> Leftovers:
    """What is left of the call could otherwise take effect after the model has read of it and has looked."""
    spec = ctx.judge.tools.get(call.tool_name)
    if spec is None:
        return Leftovers()
    return await ctx.router.end_leftovers(request_for(ctx, step_id, call_on_record(call), spec))


async def _settle_recorded(ctx: LoopContext, step_id: str, calls: Sequence[Call]) -> None:
    """Let go of what calls kept whose results were recorded before the crash. A file that a call has written is left
    alone; one whose call was given up, and the process died in its middle, is put back."""
    for call in calls:
        spec = ctx.judge.tools.get(call.tool_name)
        if spec is None or not (spec.changes_file or spec.subject.kind == "url"):
            continue
        if call.status == "succeeded":
            await ctx.router.settle(request_for(ctx, step_id, call_on_record(call), spec))
        elif call.status == "failed":
            left = await _end_leftovers(ctx, step_id, call)
            if left.settle is not None and left.file != "changed":
                left.settle()


async def _ask(ctx: LoopContext, step_id: str, call: Call) -> Message | None:
    """The result of a call that went to another place, where that place knows it: it is on record then. That place may
    not answer; how long it has is for the tool to say."""
    spec, tool_call = ctx.judge.tools.get(call.tool_name), call_on_record(call)
    if spec is None:
        return None
    result = await ctx.router.outcome(request_for(ctx, step_id, tool_call, spec))
    if result is None:
        return None
    unknown = result.error is not None and result.error.code == ErrorCode.TOOL_INTERRUPTED
    if unknown and _may_be_repeated(ctx, call):
        return None
    known = NOTHING_KNOWN._replace(edited=call.edited_arguments is not None)
    return await take_result(ctx, step_id, tool_call, spec, result, known)


def _may_be_repeated(ctx: LoopContext, call: Call) -> bool:
    """True if policy has said that a call of the tool may be sent again where nobody knows what became of it."""
    spec = ctx.judge.tools.get(call.tool_name)
    return (
        spec is not None and spec.subject.kind == "name" and is_repeatable(ctx.judge.bundle, spec.capability, spec.name)
    )


def _report(ctx: LoopContext, step_id: str, call: Call, outcome: Outcome, left: Leftovers) -> None:
    """Report to the model what became of a call that was cut off."""
    tool_call = call_on_record(call)
    edited = call.edited_arguments is not None
    if outcome is Outcome.DONE or left.file == "done":
        # What it left is what the model asked for, so no later call is to take it for a change by somebody else.
        seen = dict.fromkeys(paths_of(call))
        finish(ctx, step_id, tool_call, CallEnd("succeeded", None, _DONE, edited=edited, seen=seen))
        return
    is_undone = outcome is Outcome.NOT_DONE or left.file == "not_done"
    said = _PUT_BACK if left.file == "put_back" else _NOT_DONE if is_undone else _UNKNOWN
    if left.file == "changed":
        said = f"{said}; {_CHANGED}"
    said = "; ".join(filter(None, (said, left.note())))
    code = ErrorCode.TOOL_INTERRUPTED
    spec = ctx.judge.tools.get(call.tool_name)
    # A deleted file is on record by its name; of a deleted directory nothing is.
    deletes_tree = spec is not None and spec.subject.tree_flag != "" and call.intent is None
    cut_off = is_watched(ctx, spec) or (ctx.command_watch is not None and deletes_tree)
    changed = CommandChanges(unseen=CUT_OFF if cut_off else None)
    finish(ctx, step_id, tool_call, CallEnd("failed", code, f"{code}: {said}", edited=edited, changed=changed))
