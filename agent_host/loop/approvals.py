"""A call that needs an approval, from the question to its start on record (AH 10).

The answer is on record before anything follows from it, so that a crash loses no answer and asks nothing twice.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agent_host.approval.grants import covering, grant_for, move_problem, place_of, same_action
from agent_host.approval.request import ApprovalAnswer, ApprovalRequest, replay_of
from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events.kinds import EventType
from agent_host.ids import now_rfc3339
from agent_host.loop.cancellation import TaskCancelled
from agent_host.loop.journal import holds_secret
from agent_host.loop.prepare import CallState, Refusal, approves_in_advance, bound_to, edit, judge_again, record_start
from policy.facts import NamedToolFacts
from policy.names import SANDBOX_GRANT
from policy.rules.canonical import policy_hash
from state.errors import WriteFailed

if TYPE_CHECKING:
    from agent_host.loop.admission import CallSlot, PathTurn
    from agent_host.loop.context import LoopContext
    from agent_host.loop.prepare import CallRun

_MAX_AUDITED_BYTES = 16 * 1024
_NOT_STARTED = "not started: the task was cancelled first"
_NOT_APPROVED = "not started: the task was cancelled before anybody approved it"


def granted_by(ctx: LoopContext, run: CallRun) -> str | None:
    """The id of an earlier approval that covers the call too; None when there is none or none is needed.

    An answer to this very call takes precedence over what was granted for others like it.
    """
    if not run.needs_approval or run.answer is not None or not ctx.state.grants:
        return None
    return covering(ctx.state.grants, action=_action(ctx, run), task_id=ctx.task.task_id)


def _action(ctx: LoopContext, run: CallRun) -> str:
    """The action that a wider approval of the call is bound to."""
    spec, facts, call = run.spec, run.facts, run.call
    if spec is None or facts is None:
        raise RuntimeError("only a call that policy has judged can be approved")
    # What is written to a file may differ from call to call. What is uploaded leaves the machine: that may not.
    seen: frozenset[str | None] = spec.subjects | ({spec.content} if spec.changes_file else set())
    return same_action(
        call.name,
        call.arguments,
        facts,
        policy_hash(ctx.judge.bundle),
        told_by_facts=seen,
        os=ctx.judge.environment.os_family,
    )


def cancel_before_start(ctx: LoopContext, run: CallRun, why: str = _NOT_STARTED) -> None:
    """Refuse the call since the task was cancelled before its start. Raises TaskCancelled where the task stays open for
    a resume: then so does the call, which is taken up there as it stands on record."""
    if ctx.cancellation.resumable:
        raise TaskCancelled
    run.refuse(Refusal("failed", ErrorCode.TOOL_INTERRUPTED, why))


async def wait_for_start(ctx: LoopContext, run: CallRun, path_turn: PathTurn, slot: CallSlot) -> bool:
    """Wait for the calls before it on its path, then for a slot; False when the call was refused meanwhile, since the
    task was cancelled. A call that waited is judged again: what it finds may be something else.

    Raises CheckpointWriteFailed as `PathTurn.wait` does, TaskCancelled when it is left open for a resume.
    """
    approved = run.state is CallState.APPROVED
    run.state = CallState.WAITING
    waited = not path_turn.is_first
    await path_turn.wait()
    try:
        waited = await slot.take(ctx.cancellation) or waited
    except TaskCancelled:
        cancel_before_start(ctx, run)
        return False
    if approved or (waited and run.may_act):
        judge_again(ctx, run)
    return run.refusal is None


async def settle(
    ctx: LoopContext, step_id: str, run: CallRun, path_turn: PathTurn, slot: CallSlot, *, granted: bool
) -> None:
    """Have a gated call started, with that on record and synced, or refused. Policy has the last word, after the wait.

    `place` is its place on its path, `slot` what it needs to run; `granted`: it need not be asked for. Raises
    CheckpointWriteFailed when it is approved and that or its start cannot be recorded, TaskCancelled when it is left
    open for a resume.
    """
    if not granted:
        answer = await _answer(ctx, step_id, run)
        if answer is None:
            cancel_before_start(ctx, run, _NOT_APPROVED)
        elif not answer.approved:
            run.refuse(_denial(run, answer))
        if run.refusal is not None:
            return
        await path_turn.move(run.paths)
    run.state = CallState.APPROVED
    asked = place_of(run.facts)
    if not await wait_for_start(ctx, run, path_turn, slot):
        return
    elsewhere = move_problem(asked, place_of(run.facts))
    if elsewhere is not None and run.needs_approval:
        run.refuse(Refusal("denied", ErrorCode.APPROVAL_REQUIRED, elsewhere))
    else:
        record_start(ctx, run)


def _denial(run: CallRun, answer: ApprovalAnswer) -> Refusal:
    if not answer.is_denial:
        reason = answer.reason
        if run.decision is not None and isinstance(run.facts, NamedToolFacts) and run.facts.identity is not None:
            reason = f"{reason}: {run.decision.reason}"  # it names what a bundle can list
        return Refusal("denied", ErrorCode.APPROVAL_REQUIRED, reason, _approve(run))
    return Refusal("denied", ErrorCode.APPROVAL_DENIED, answer.reason)


def _approve(run: CallRun) -> str:
    decision = run.decision
    return run.call.name if decision is None else approves_in_advance(decision, run.call.name)


async def _answer(ctx: LoopContext, step_id: str, run: CallRun) -> ApprovalAnswer | None:
    """The answer to the call, on record and reported: the one from before a crash, or a new one. None when the task was
    cancelled while it waited."""
    if run.answer is not None:
        # The process that took the answer may have died before it reported it.
        _emit_answer(ctx, step_id, run, run.answer, 0.0)
        return run.answer
    request = await _request(ctx, step_id, run)
    asked = time.monotonic()
    ctx.emit(EventType.APPROVAL_REQUESTED, step_id, toolCallId=run.call.call_id, **request.to_payload())
    ctx.emitter.flush()  # the wait may be long, and the run log is to show what it is for
    try:
        answer = await ctx.cancellation.interruptible(ctx.questions.ask(ctx.gate, request, _action(ctx, run)))
    except TaskCancelled:
        if not ctx.cancellation.resumable:  # else the question stays open, and a resume asks it again
            _emit_answer(ctx, step_id, run, ApprovalAnswer(False, _NOT_APPROVED), time.monotonic() - asked)
        return None
    await _put_on_record(ctx, step_id, run, request, answer)
    _emit_answer(ctx, step_id, run, answer, time.monotonic() - asked)
    return answer


async def _put_on_record(
    ctx: LoopContext, step_id: str, run: CallRun, request: ApprovalRequest, answer: ApprovalAnswer
) -> None:
    """Nothing is synced here: the start of an approved call is, and carries what stands before it; a denial that is
    lost with the machine had no effect yet."""
    kept = answer._replace(reason=ctx.scrubber.text(answer.reason))
    if answer.approved and answer.arguments is not None:
        edit(ctx, run, answer.arguments)
    call_id, approval_id = run.call.call_id, request.approval_id
    if not answer.approved:
        ctx.journal.checkpoint(step_id, kept.to_record(call_id, approval_id), sync=False)
        return
    if answer.scope == "session":
        _approve_tool(ctx, run)
    if answer.scope != "once" and run.facts is not None:
        # First: a crash between the two leaves a call that its own grant covers, and not an approval without its grant.
        if answer.arguments is not None and run.decision is not None:
            request = await _request(ctx, step_id, run)  # what was granted is what it was changed to
        version = ctx.judge.bundle.policy_bundle_version
        action, at = _action(ctx, run), now_rfc3339()
        ctx.journal.record(
            grant_for(request, answer.scope, action=action, policy_bundle_version=version, granted_at=at)
        )
        ctx.questions.cover(action, approval_id)
    edited = answer.arguments
    if edited is None or ctx.scrubber.value(edited) == edited:  # else a crash before the start asks again
        ctx.journal.record(kept.to_record(call_id, approval_id, bound_to(ctx, run)))


def _approve_tool(ctx: LoopContext, run: CallRun) -> None:
    """Keep the approval of a tool of the workspace, as it is, for later sessions too. Raises CheckpointWriteFailed."""
    facts, approved = run.facts, ctx.judge.approved
    if approved is None or not isinstance(facts, NamedToolFacts) or facts.identity is None or facts.is_approved:
        return
    try:
        approved.approve(facts.tool_name, facts.identity)
    except WriteFailed as error:
        raise CheckpointWriteFailed(f"{error}; nothing was started") from error


def _emit_answer(ctx: LoopContext, step_id: str, run: CallRun, answer: ApprovalAnswer, waited_s: float) -> None:
    waited_ms = int(waited_s * 1000)
    if answer.timed_out:
        ctx.emit(EventType.APPROVAL_TIMEOUT, step_id, approvalId=run.approval_id, waitedMs=waited_ms)
    payload: dict[str, Any] = {
        "approvalId": run.approval_id,
        "toolCallId": run.call.call_id,
        "decision": "approved" if answer.approved else "denied",
        "scope": answer.scope,
        "reason": answer.reason,
        "latencyMs": waited_ms,
    }
    if answer.arguments is not None:
        payload["edited"] = True
    if not (answer.approved or answer.is_denial):
        payload["replay"] = _replay(ctx, run)
    ctx.emit(EventType.APPROVAL_RESOLVED, step_id, **payload)
    ctx.emitter.flush()  # the call that follows may be what the process dies in


_ASKED: dict[str | None, str] = {SANDBOX_GRANT: "more than its sandbox gives"}


def _replay(ctx: LoopContext, run: CallRun) -> dict[str, Any]:
    """The fields by which a resume can approve the call (SK 4.1, 4.2); without its JSON if that is long."""
    call = run.call
    if holds_secret(ctx.scrubber, call):  # what is on record is not the call, so it cannot be run from there
        return {"approve": _approve(run)}
    replay = replay_of(call.name, call.arguments, session_id=ctx.session_id, approve=_approve(run))
    if len(call.arguments_json) > _MAX_AUDITED_BYTES:
        del replay["request"]
    return replay


async def _request(ctx: LoopContext, step_id: str, run: CallRun) -> ApprovalRequest:
    decision, spec, call, facts = run.decision, run.spec, run.call, run.facts
    if decision is None or spec is None or facts is None or run.approval_id is None:
        raise RuntimeError("only a call that policy wants an approval for asks for one")
    # Imported here since most sessions ask for nothing.
    from agent_host.approval.details import Act, describe

    clean = ctx.scrubber.text
    workspace = ctx.judge.environment.workspace
    act = Act(spec, call.arguments, facts, workspace)
    shown = await describe(act, clean)
    rule = ctx.judge.bundle.approval_rule(decision.rule_id) if decision.rule_id is not None else None
    return ApprovalRequest(
        run.approval_id,
        ctx.session_id,
        ctx.task.task_id,
        step_id,
        call.name,
        decision.capability or spec.capability,
        call.arguments,
        rule.title if rule is not None else f"{call.name} wants {_ASKED.get(decision.rule_id, 'to act')}",
        rule.description if rule is not None else clean(decision.reason),
        decision.rule_id,
        decision.risk_level or "medium",
        tuple(map(clean, decision.risks)),
        shown.summary,
        {"toolCallId": call.call_id, **shown.details},
        decision.by_name,
        ctx.judge.bundle.approval_timeout_s,
        replay=_replay(ctx, run),
    )
