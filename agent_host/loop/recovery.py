"""The calls of a step that a crash left open: reuse recorded results, report interrupted calls, run calls that never
started.

An approved call is not asked about again, and a denied call does not run; an open question is repeated unchanged. The
outcome of a remote call is requested from the remote side, and the call is sent again only if policy declares its tool
repeatable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_host.contracts import Leftovers, ToolResult
from agent_host.errors import ErrorCode
from agent_host.judging import PreparedCall, Refusal
from agent_host.loop.background import CUT_OFF, CommandChanges, is_watched
from agent_host.loop.prepare import hash_on_disk, prepare_calls, request_for
from agent_host.loop.results import Observations, call_on_record, finish, refused_result
from policy.rules.toolset import is_repeatable
from state.loading import CallOutcome, ResumeVerdict, compare, judge, paths_of
from state.records import ApprovalAsked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.loop import LoopContext
    from agent_host.thread.messages import Message
    from state.checkpoint import OpenCall

_LEFT_OPEN = (ResumeVerdict.COMPARE, ResumeVerdict.INTERRUPTED)
_DONE = "done: the process ended before the answer, and the file shows that this call took effect"
_NOT_DONE = "the process ended before it took effect: the file is as it was"
_PUT_BACK = "the process ended while the file was written: it was put back as it was"
_CHANGED = "the file was half written then and somebody has changed it since: it was left unchanged"
_UNKNOWN = "the process ended; whether it took effect is unknown: inspect before you try again"


async def recover_calls(ctx: LoopContext) -> tuple[PreparedCall, ...]:
    """Return the calls of the open step that are left to run, judged by policy again; calls that are not run again get
    their results. Raises CheckpointWriteFailed when a new approval cannot be recorded."""
    step = ctx.state.open_step
    if step is None:
        return ()
    same_boot = step.boot is not None and step.boot == ctx.journal.store.boot_id()
    verdicts = {call.call_id: judge(call, same_boot=same_boot) for call in step.calls}
    cut_off = [call for call in step.calls if verdicts[call.call_id] in _LEFT_OPEN]
    left = await asyncio.gather(*(_end_leftovers(ctx, call) for call in cut_off))  # each looks for a while
    await _settle_recorded(ctx, step.calls)
    paths = {path for call in cut_off for path in paths_of(call)}
    outcomes = compare(step.calls, {path: hash_on_disk(path) for path in paths}, same_boot=same_boot)
    repeated = {call_id for call_id, outcome in outcomes.items() if outcome is CallOutcome.REPEAT}
    answers = await asyncio.gather(*(_ask(ctx, call) for call in cut_off if call.intent is None))
    answered = {result.tool_call_id for result in answers if result is not None}
    repeated |= {call.call_id for call in cut_off if call.call_id not in answered and _may_be_repeated(ctx, call)}
    for call, found in zip(cut_off, left, strict=True):
        if call.call_id not in repeated | answered:
            await _report(ctx, call, outcomes.get(call.call_id, CallOutcome.UNKNOWN), found)
        if found.settle is not None and found.file != "changed":
            found.settle()
    to_run = {
        call.call_id: call
        for call in step.calls
        if verdicts[call.call_id] is ResumeVerdict.RUN or call.call_id in repeated
    }
    calls = prepare_calls(ctx, [call_on_record(call) for call in to_run.values()], to_run)
    for prepared in calls:
        # The next resume is to ask under the same id, also where policy asks only now, or asks again.
        call_id, approval_id = prepared.call.call_id, prepared.approval_id
        if prepared.needs_approval and approval_id is not None and to_run[call_id].approval_id != approval_id:
            ctx.journal.record(ApprovalAsked(call_id, approval_id))
    return calls


def _on_record(ctx: LoopContext, call: OpenCall) -> PreparedCall:
    """The call as it ran, without another decision of policy."""
    edited = call.edited_arguments is not None
    return PreparedCall(call_on_record(call), ctx.judge.tools.get(call.tool_name), edited=edited)


async def _end_leftovers(ctx: LoopContext, call: OpenCall) -> Leftovers:
    """Terminate the processes that the call has left, because they could take effect after the model has looked."""
    prepared = _on_record(ctx, call)
    return Leftovers() if prepared.spec is None else await ctx.router.end_leftovers(request_for(ctx, prepared))


async def _settle_recorded(ctx: LoopContext, calls: Sequence[OpenCall]) -> None:
    """Release what calls retained whose results were recorded before the crash. A written file is left alone; the file
    of an abandoned call that died in the middle is restored."""
    for call in calls:
        prepared = _on_record(ctx, call)
        spec = prepared.spec
        if spec is None or not (spec.changes_file or spec.subject.kind == "url"):
            continue
        if call.status == "succeeded":
            await ctx.router.settle(request_for(ctx, prepared))
        elif call.status == "failed":
            left = await _end_leftovers(ctx, call)
            if left.settle is not None and left.file != "changed":
                left.settle()


async def _ask(ctx: LoopContext, call: OpenCall) -> Message | None:
    """Record and return the result of a remote call, if the remote side knows it."""
    prepared = _on_record(ctx, call)
    if prepared.spec is None:
        return None
    result = await ctx.router.outcome(request_for(ctx, prepared))
    unknown = result is None or (result.error is not None and result.error.code == ErrorCode.TOOL_INTERRUPTED)
    if result is None or (unknown and _may_be_repeated(ctx, call)):
        return None
    return await finish(ctx, prepared, result)


def _may_be_repeated(ctx: LoopContext, call: OpenCall) -> bool:
    """True if policy lets a call of the tool be sent again when its outcome is unknown."""
    spec = ctx.judge.tools.get(call.tool_name)
    if spec is None or spec.subject.kind != "name":
        return False
    return all(is_repeatable(bundle, spec.capability, spec.name) for bundle in ctx.judge.bundles)


async def _report(ctx: LoopContext, call: OpenCall, outcome: CallOutcome, left: Leftovers) -> None:
    prepared = _on_record(ctx, call)
    if outcome is CallOutcome.DONE or left.file == "done":
        # The file is as the model wanted it, so no later call may take it for a change by another program.
        done = ToolResult(call.tool_name, ctx.session_id, ctx.task.task_id, ctx.step_id, "succeeded", _DONE)
        await finish(ctx, prepared, done, Observations(stamps=dict.fromkeys(paths_of(call))))
        return
    is_undone = outcome is CallOutcome.NOT_DONE or left.file == "not_done"
    text = _PUT_BACK if left.file == "put_back" else _NOT_DONE if is_undone else _UNKNOWN
    if left.file == "changed":
        text = f"{text}; {_CHANGED}"
    text = "; ".join(filter(None, (text, left.note())))
    spec = prepared.spec
    # A deleted file is on record by its name; of a deleted directory nothing is.
    deletes_tree = spec is not None and spec.subject.tree_flag != "" and call.intent is None
    cut_off = is_watched(ctx, spec) or (ctx.command_watch is not None and deletes_tree)
    refusal = Refusal("failed", ErrorCode.TOOL_INTERRUPTED, text)
    interrupted = refused_result(ctx, prepared.call, refusal)
    changed = CommandChanges(unseen=CUT_OFF if cut_off else None)
    await finish(ctx, prepared, interrupted, Observations(changed=changed))
