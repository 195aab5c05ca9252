"""The tool calls of one step (AH 4.2, 7.3): approvals and execution at once, results in call order.

Each call goes in a straight line: approval where policy asks for one, start record, execution, result record.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from agent_host.errors import ErrorCode
from agent_host.events.kinds import EventType
from agent_host.loop.approvals import NOT_STARTED, granted_by, settle
from agent_host.loop.prepare import judged_anew, record_start, request_for
from agent_host.loop.recover import recover_calls
from agent_host.loop.results import finish, text_of
from agent_host.routing.artifacts import store_artifacts
from agent_host.stamps import now_rfc3339
from policy.risk import DEFAULT_RISK
from state.blobs import sha256_hex

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from agent_host.loop.context import LoopContext
    from agent_host.loop.prepare import PreparedCall
    from agent_host.loop.step import Step
    from agent_host.thread.messages import Message

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
        grant = granted_by(ctx, prepared)
        ctx.emit(EventType.TOOL_REQUESTED, step_id, **_request_payload(ctx, prepared, grant))
        if prepared.gated:
            prepared = await settle(ctx, step_id, prepared, before, granted=grant is not None)
        elif before is not None and prepared.refusal is None:
            await before.wait()
            if prepared.may_act and not ctx.cancellation.requested:
                prepared = judged_anew(ctx, prepared)
        if prepared.refusal is None and ctx.cancellation.requested:
            prepared = prepared.refused("failed", ErrorCode.TOOL_INTERRUPTED, NOT_STARTED)
        if prepared.refusal is None:
            return await _execute(ctx, step_id, prepared, started)
        refusal = prepared.refusal
        return finish(ctx, step_id, prepared.call, refusal.status, refusal.code, refusal.text, refusal.approve, started)
    finally:
        if before is not None:  # a refused call waits for none, and who waits for it means those before it too
            await before.wait()
        done.set()


async def _execute(ctx: LoopContext, step_id: str, prepared: PreparedCall, started: float) -> Message:
    row, call = prepared.row, prepared.call
    if row is None:
        raise RuntimeError("only a call with a row in the table is executed")
    if row.side_effects and not prepared.started:
        record_start(ctx, prepared)
    request = request_for(ctx, step_id, call, row)
    started_at = now_rfc3339()
    result = await ctx.router.execute(request)

    def upload_failed(name: str, message: str) -> None:
        ctx.emit(EventType.ARTIFACT_UPLOAD_FAILED, step_id, artifactName=name, message=message)

    clean = [artifact._replace(data=ctx.scrubber.data(artifact.data)) for artifact in result.artifacts]
    result = await store_artifacts(result._replace(artifacts=tuple(clean)), ctx.workspace, upload_failed)
    code = None if result.error is None else result.error.code
    text = ctx.scrubber.text(text_of(result))
    return finish(ctx, step_id, call, result.status, code, text, None, started, started_at, result.artifact_uris)


def _request_payload(ctx: LoopContext, prepared: PreparedCall, grant: str | None) -> dict[str, Any]:
    call, row, decision = prepared.call, prepared.row, prepared.decision
    payload: dict[str, Any] = {"toolCallId": call.call_id, "toolName": call.name}
    if row is not None:
        payload["capability"] = row.capability
        # Before the cut: half a secret is found by nobody.
        payload["summary"] = ctx.scrubber.text(str(call.arguments.get(row.argument, "")))[:_SUMMARY_CHARS]
    if call.problem is None:
        payload["argumentsSha256"] = sha256_hex(call.arguments_json)
    if decision is not None:
        payload["decision"] = decision.decision
        payload["rule"] = decision.rule
        # Policy assesses only what it wants an approval for; the rest has the risk of its kind (SK 2).
        payload["riskLevel"] = decision.risk_level or DEFAULT_RISK.get(decision.capability, "high")
    if grant is not None:
        payload["grantedBy"] = grant
    return payload
