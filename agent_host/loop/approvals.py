"""A call that needs an approval, from the question to its start on record (AH 10).

The answer is on record before anything follows from it, so that a crash loses no answer and asks nothing twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.approval.grants import covering, grant_for, move_problem, place_of, same_action
from agent_host.approval.request import ApprovalAnswer, ApprovalRequest, replay_of
from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events.kinds import EventType
from agent_host.judging.prepared import Refusal
from agent_host.loop.cancellation import TaskCancelled
from agent_host.loop.journal import holds_secret
from agent_host.loop.prepare import bound_to, edit, judge_again, record_start
from policy.facts import NamedToolFacts
from policy.names import SANDBOX_GRANT
from state.errors import WriteFailed

if TYPE_CHECKING:
    from agent_host.judging.prepared import PreparedCall
    from agent_host.loop.admission import CallSlot, PathTurn
    from agent_host.loop.context import LoopContext

_MAX_AUDITED_BYTES = 16 * 1024
_NOT_STARTED = "not started: the task was cancelled first"
_NOT_APPROVED = "not started: the task was cancelled before anybody approved it"


def granted_by(ctx: LoopContext, prepared: PreparedCall) -> str | None:
    """The id of an earlier approval that covers the call too; None when there is none or none is needed.

    An answer to this very call takes precedence over what was granted for others like it.
    """
    if not prepared.needs_approval or prepared.answer is not None or not ctx.state.grants:
        return None
    return covering(ctx.state.grants, action=_action(ctx, prepared), task_id=ctx.task.task_id)


def _action(ctx: LoopContext, prepared: PreparedCall) -> str:
    """The action that a wider approval of the call is bound to."""
    spec, facts, call = prepared.spec, prepared.facts, prepared.call
    if spec is None or facts is None:
        raise RuntimeError("only a call that policy has judged can be approved")
    # What is written to a file may differ from call to call. What is uploaded leaves the machine: that may not.
    seen: frozenset[str | None] = spec.subjects | ({spec.content} if spec.changes_file else set())
    return same_action(
        call.name,
        call.arguments,
        facts,
        ctx.judge.policy_identity,
        told_by_facts=seen,
        os=ctx.judge.environment.os_family,
    )


def cancel_before_start(ctx: LoopContext, prepared: PreparedCall, why: str = _NOT_STARTED) -> PreparedCall:
    """Refuse the call since the task was cancelled before its start. Raises TaskCancelled where the task stays open for
    a resume: then so does the call, which is taken up there as it stands on record."""
    if ctx.cancellation.resumable:
        raise TaskCancelled
    return prepared._replace(refusal=Refusal("failed", ErrorCode.TOOL_INTERRUPTED, why))


async def wait_for_start(
    ctx: LoopContext, prepared: PreparedCall, path_turn: PathTurn, slot: CallSlot, *, approved: bool = False
) -> PreparedCall:
    """Wait for the calls before it on its path, then for a slot; refused if the task was cancelled meanwhile. A call
    that waited is judged again, and so is one that was `approved`: what it finds may be something else.

    Raises CheckpointWriteFailed as `PathTurn.wait` does, TaskCancelled when it is left open for a resume.
    """
    waited = not path_turn.is_first
    await path_turn.wait()
    try:
        waited = await slot.take(ctx.cancellation) or waited
    except TaskCancelled:
        return cancel_before_start(ctx, prepared)
    return judge_again(ctx, prepared) if approved or (waited and prepared.may_act) else prepared


async def settle(
    ctx: LoopContext, step_id: str, prepared: PreparedCall, path_turn: PathTurn, slot: CallSlot, *, granted: bool
) -> PreparedCall:
    """Have a gated call started, with that on record and synced, or refused. Policy has the last word, after the wait.

    `path_turn` is its place on its path, `slot` what it needs to run; `granted`: it need not be asked for. Raises
    CheckpointWriteFailed when it is approved and that or its start cannot be recorded, TaskCancelled when it is left
    open for a resume.
    """
    if not granted:
        prepared = await _ask(ctx, step_id, prepared)
        if prepared.refusal is not None:
            return prepared
        await path_turn.move(prepared.paths)
    asked = place_of(prepared.facts)
    prepared = await wait_for_start(ctx, prepared, path_turn, slot, approved=True)
    if prepared.refusal is not None:
        return prepared
    elsewhere = move_problem(asked, place_of(prepared.facts))
    if elsewhere is not None and prepared.needs_approval:
        return prepared._replace(refusal=Refusal("denied", ErrorCode.APPROVAL_REQUIRED, elsewhere))
    record_start(ctx, prepared)
    return prepared


async def _ask(ctx: LoopContext, step_id: str, prepared: PreparedCall) -> PreparedCall:
    """The call as it was answered, which is on record and reported: with the answer from before a crash, or a new one.
    Refused if it was denied, or the task was cancelled while it waited."""
    if prepared.answer is not None:
        # The process that took the answer may have died before it reported it.
        answer = ApprovalAnswer.from_record(prepared.answer)
        _emit_answer(ctx, step_id, prepared, answer, 0.0)
        return prepared if answer.approved else prepared._replace(refusal=_denial(prepared, answer))
    request = await _request(ctx, step_id, prepared)
    asked = ctx.outside.monotonic()
    ctx.emit(EventType.APPROVAL_REQUESTED, step_id, toolCallId=prepared.call.call_id, **request.to_payload())
    ctx.emitter.flush()  # the wait may be long, and the run log is to show what it is for
    try:
        answer = await ctx.cancellation.interruptible(ctx.questions.ask(ctx.gate, request, _action(ctx, prepared)))
    except TaskCancelled:
        if not ctx.cancellation.resumable:  # else the question stays open, and a resume asks it again
            cancelled = ApprovalAnswer(False, _NOT_APPROVED)
            _emit_answer(ctx, step_id, prepared, cancelled, ctx.outside.monotonic() - asked)
        return cancel_before_start(ctx, prepared, _NOT_APPROVED)
    if answer.approved and answer.arguments is not None:
        prepared = edit(ctx, prepared, answer.arguments)
    await _record_answer(ctx, step_id, prepared, request, answer)
    _emit_answer(ctx, step_id, prepared, answer, ctx.outside.monotonic() - asked)
    return prepared if answer.approved else prepared._replace(refusal=_denial(prepared, answer))


def _denial(prepared: PreparedCall, answer: ApprovalAnswer) -> Refusal:
    if not answer.is_denial:
        reason = answer.reason
        if (
            prepared.decision is not None
            and isinstance(prepared.facts, NamedToolFacts)
            and prepared.facts.identity is not None
        ):
            reason = f"{reason}: {prepared.decision.reason}"  # it names what a bundle can list
        return Refusal("denied", ErrorCode.APPROVAL_REQUIRED, reason, prepared.approve)
    return Refusal("denied", ErrorCode.APPROVAL_DENIED, answer.reason)


async def _record_answer(
    ctx: LoopContext, step_id: str, prepared: PreparedCall, request: ApprovalRequest, answer: ApprovalAnswer
) -> None:
    """Nothing is synced here: the start of an approved call is, and carries what stands before it; a denial that is
    lost with the machine had no effect yet."""
    kept = answer._replace(reason=ctx.scrubber.text(answer.reason))
    call_id, approval_id = prepared.call.call_id, request.approval_id
    if not answer.approved:
        ctx.journal.checkpoint(step_id, kept.to_record(call_id, approval_id), sync=False)
        return
    if answer.scope == "session":
        _approve_tool(ctx, prepared)
    if answer.scope != "once" and prepared.facts is not None:
        # First: a crash between the two leaves a call that its own grant covers, and not an approval without its grant.
        if answer.arguments is not None and prepared.decision is not None:
            request = await _request(ctx, step_id, prepared)  # what was granted is what it was changed to
        version = ctx.judge.bundle.policy_bundle_version
        action, at = _action(ctx, prepared), ctx.outside.stamp()
        ctx.journal.record(
            grant_for(request, answer.scope, action=action, policy_bundle_version=version, granted_at=at)
        )
        ctx.questions.cover(action, approval_id)
    edited = answer.arguments
    if edited is None or ctx.scrubber.value(edited) == edited:  # else a crash before the start asks again
        ctx.journal.record(kept.to_record(call_id, approval_id, bound_to(ctx, prepared)))


def _approve_tool(ctx: LoopContext, prepared: PreparedCall) -> None:
    """Keep the approval of a tool of the workspace, as it is, for later sessions too. Raises CheckpointWriteFailed."""
    facts, approved = prepared.facts, ctx.judge.approved
    if approved is None or not isinstance(facts, NamedToolFacts) or facts.identity is None or facts.is_approved:
        return
    try:
        approved.approve(facts.tool_name, facts.identity)
    except WriteFailed as error:
        raise CheckpointWriteFailed(f"{error}; nothing was started") from error


def _emit_answer(
    ctx: LoopContext, step_id: str, prepared: PreparedCall, answer: ApprovalAnswer, waited_s: float
) -> None:
    waited_ms = int(waited_s * 1000)
    if answer.timed_out:
        ctx.emit(EventType.APPROVAL_TIMEOUT, step_id, approvalId=prepared.approval_id, waitedMs=waited_ms)
    payload: dict[str, Any] = {
        "approvalId": prepared.approval_id,
        "toolCallId": prepared.call.call_id,
        "decision": "approved" if answer.approved else "denied",
        "scope": answer.scope,
        "reason": answer.reason,
        "latencyMs": waited_ms,
    }
    if answer.answered_by is not None:
        payload["answeredBy"] = answer.answered_by
    if answer.arguments is not None:
        payload["edited"] = True
    if not (answer.approved or answer.is_denial):
        payload["replay"] = _replay(ctx, prepared)
    ctx.emit(EventType.APPROVAL_RESOLVED, step_id, **payload)
    ctx.emitter.flush()  # the call that follows may be what the process dies in


_ASKED: dict[str | None, str] = {SANDBOX_GRANT: "more than its sandbox gives"}


def _replay(ctx: LoopContext, prepared: PreparedCall) -> dict[str, Any]:
    """The fields by which a resume can approve the call (SK 4.1, 4.2); without its JSON if that is long."""
    call = prepared.call
    if holds_secret(ctx.scrubber, call):  # what is on record is not the call, so it cannot be run from there
        return {"approve": prepared.approve}
    replay = replay_of(call.name, call.arguments, session_id=ctx.session_id, approve=prepared.approve)
    if len(call.arguments_json) > _MAX_AUDITED_BYTES:
        del replay["request"]
    return replay


async def _request(ctx: LoopContext, step_id: str, prepared: PreparedCall) -> ApprovalRequest:
    decision, spec, call, facts = prepared.decision, prepared.spec, prepared.call, prepared.facts
    if decision is None or spec is None or facts is None or prepared.approval_id is None:
        raise RuntimeError("only a call that policy wants an approval for asks for one")
    # Imported here since most sessions ask for nothing.
    from agent_host.approval.details import Act, describe

    clean = ctx.scrubber.text
    workspace = ctx.judge.environment.workspace
    act = Act(spec, call.arguments, facts, workspace)
    shown = await describe(act, clean)
    rule = ctx.judge.approval_rule(decision.rule_id)
    return ApprovalRequest(
        prepared.approval_id,
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
        ctx.judge.approval_timeout_s,
        replay=_replay(ctx, prepared),
    )
