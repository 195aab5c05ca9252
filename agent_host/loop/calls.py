"""The tool calls of one step (AH 4.2, 7.3): approvals and execution at once, results in call order.

Each call goes in a straight line: approval where policy asks for one, start record, execution, result record.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from agent_host.approval.request import ApprovalRequest
from agent_host.errors import ErrorCode
from agent_host.events.kinds import EventType
from agent_host.loop.cancellation import TaskCancelled
from agent_host.loop.prepare import PreparedCall, check_call, request_for, with_intent
from agent_host.loop.recover import recover_calls
from agent_host.loop.results import finish, text_of
from agent_host.routing.artifacts import store_artifacts
from agent_host.stamps import new_id

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from agent_host.loop.context import LoopContext
    from agent_host.loop.step import Step
    from agent_host.thread.messages import Message

_NOT_STARTED = "not started: the task was cancelled first"
_SUMMARY_CHARS = 160


async def run_calls(ctx: LoopContext, step: Step) -> list[Message]:
    """Answer every call of the open step that has no answer yet; on return each has its result on record. Returns the
    results of the calls that were run or refused here, in call order.

    Calls run at once, except that calls on one path run in call order. What fails is the call, not its siblings.
    Raises CheckpointWriteFailed when a call could not be put on record before its start.
    """
    prepared = step.prepared if step.prepared is not None else await recover_calls(ctx, step.step_id)
    last_on_path: dict[str, asyncio.Event] = {}
    running: list[Coroutine[Any, Any, Message]] = []
    for call in prepared:
        done = asyncio.Event()
        before = last_on_path.get(call.path) if call.path is not None else None
        if call.path is not None:
            last_on_path[call.path] = done
        running.append(_run_one(ctx, step.step_id, call, before, done))
    if len(running) == 1:
        return [await running[0]]
    results: list[Message] = []
    # No sibling is cancelled for another's failure: each may have an effect under way that must be recorded.
    for outcome in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def _run_one(
    ctx: LoopContext, step_id: str, prepared: PreparedCall, before: asyncio.Event | None, done: asyncio.Event
) -> Message:
    """One call from policy's word to its result on record."""
    try:
        started = time.monotonic()
        ctx.emit(EventType.TOOL_REQUESTED, step_id, **_request_payload(prepared))
        if prepared.gated:
            prepared = await _approved(ctx, step_id, prepared, before)
        if before is not None and prepared.refusal is None:
            await before.wait()
        if prepared.refusal is None and ctx.cancellation.requested:
            prepared = prepared.refused("failed", ErrorCode.TOOL_INTERRUPTED, _NOT_STARTED)
        if prepared.refusal is None:
            return await _execute(ctx, step_id, prepared, started)
        refusal = prepared.refusal
        return finish(ctx, step_id, prepared.call, refusal.status, refusal.code, refusal.text, refusal.replay, started)
    finally:
        done.set()


async def _approved(
    ctx: LoopContext, step_id: str, prepared: PreparedCall, before: asyncio.Event | None
) -> PreparedCall:
    """The call as it may be started once it is approved, or refused. Policy has the last word, after the wait."""
    request = _approval_request(ctx, step_id, prepared)
    asked = time.monotonic()
    ctx.emit(EventType.APPROVAL_REQUESTED, step_id, **request.to_payload())
    try:
        answer = await ctx.cancellation.interruptible(ctx.gate.ask(request))
    except TaskCancelled:
        return prepared.refused("failed", ErrorCode.TOOL_INTERRUPTED, _NOT_STARTED)
    ctx.emit(
        EventType.APPROVAL_RESOLVED,
        step_id,
        approvalId=request.approval_id,
        decision="approved" if answer.approved else "denied",
        reason=answer.reason,
        latencyMs=int((time.monotonic() - asked) * 1000),
    )
    if not answer.approved:
        code = ErrorCode.APPROVAL_REQUIRED if answer.unattended else ErrorCode.APPROVAL_DENIED
        replay = request.replay() if answer.unattended else None
        return prepared.refused("denied", code, answer.reason, replay)
    if before is not None:  # what it will find, and what its record says of it, is what the call before it leaves
        await before.wait()
    checked = check_call(ctx, prepared.call)
    if checked.refusal is not None:
        return checked
    checked = with_intent(ctx, checked, {})
    _record_start(ctx, checked)
    ctx.write_ahead()
    return dataclasses.replace(checked, started=True)


async def _execute(ctx: LoopContext, step_id: str, prepared: PreparedCall, started: float) -> Message:
    row, call = prepared.row, prepared.call
    if row is None:
        raise RuntimeError("only a call with a row in the table is executed")
    if row.side_effects and not prepared.started:
        _record_start(ctx, prepared)
    request = request_for(ctx, step_id, call, row)
    result = await ctx.router.execute(request)

    def upload_failed(name: str, message: str) -> None:
        ctx.emit(EventType.ARTIFACT_UPLOAD_FAILED, step_id, artifactName=name, message=message)

    clean = [artifact._replace(data=ctx.scrubber.data(artifact.data)) for artifact in result.artifacts]
    result = await store_artifacts(result._replace(artifacts=tuple(clean)), ctx.workspace, upload_failed)
    code = None if result.error is None else result.error.code
    text = ctx.scrubber.text(text_of(result))
    return finish(ctx, step_id, call, result.status, code, text, None, started, result.artifact_uris)


def _record_start(ctx: LoopContext, prepared: PreparedCall) -> None:
    """Say that the call starts, before it does: a missing record is how a resume knows that it did not."""
    fields: dict[str, Any] = {"callId": prepared.call.call_id}
    if prepared.gated or prepared.recovered:  # otherwise the turn's record has them
        fields |= {"intent": prepared.intent, "baselines": prepared.baselines}
    ctx.record("call_started", fields)


def _request_payload(prepared: PreparedCall) -> dict[str, Any]:
    call, row, decision = prepared.call, prepared.row, prepared.decision
    payload: dict[str, Any] = {"toolCallId": call.call_id, "toolName": call.name}
    if row is not None:
        payload["capability"] = row.capability
        payload["summary"] = str(call.arguments.get(row.argument, ""))[:_SUMMARY_CHARS]
    if decision is not None:
        payload["decision"] = decision.decision
        payload["rule"] = decision.rule
    return payload


def _approval_request(ctx: LoopContext, step_id: str, prepared: PreparedCall) -> ApprovalRequest:
    decision, row, call = prepared.decision, prepared.row, prepared.call
    if decision is None or row is None:
        raise RuntimeError("only a call that policy has judged asks for approval")
    rule = ctx.bundle.approval_rule(decision.rule_id) if decision.rule_id is not None else None
    return ApprovalRequest(
        new_id("appr"),
        ctx.session_id,
        ctx.task.task_id,
        step_id,
        call.name,
        row.capability,
        call.arguments,
        rule.title if rule is not None else f"{call.name} wants to act",
        rule.description if rule is not None else decision.reason,
        decision.rule_id,
        decision.risk_level or "medium",
        decision.risks,
        ctx.task.prompt,
    )
