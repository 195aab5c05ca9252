"""The tool calls of one step (AH 4.2, 7.3): approvals and execution at once, results in call order.

Each call goes in a straight line: approval where policy asks for one, its turn on its path, a slot, start record,
execution, result record.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.contracts import ToolResult
from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events.kinds import EventType
from agent_host.lenient_json import encodable
from agent_host.loop.admission import PathOrder, TurnSlots
from agent_host.loop.approvals import cancel_before_start, granted_by, settle, wait_for_start
from agent_host.loop.background import CommandChanges, watch_call
from agent_host.loop.cancellation import TaskCancelled, ToolStopped
from agent_host.loop.intents import file_to_write
from agent_host.loop.prepare import names_taken, record_start, request_for
from agent_host.loop.recovery import recover_calls
from agent_host.loop.results import SHOWN_BYTES, Observations, add_note, finish, head_of, refused_result
from policy.facts import PathFacts, UrlFacts
from policy.rules.toolset import DEFAULT_RISK
from state.blobs import sha256_hex

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from agent_host.contracts import Category
    from agent_host.judging.prepared import PreparedCall
    from agent_host.loop.admission import CallSlot, PathTurn
    from agent_host.loop.context import LoopContext
    from agent_host.loop.step import Step
    from agent_host.thread.messages import Message

_SUMMARY_CHARS = 160
_STOPPED = "ended by force on request while it ran; what it had done by then is not known: inspect before you retry"


async def run_calls(ctx: LoopContext, step: Step) -> list[Message]:
    """Answer every call of the open step that has no answer yet; on return each has its result on record. Returns the
    results of the calls that were run or refused here, in call order.

    Calls run at once, as far as their category has slots, except that calls on one path run in call order. What fails
    is the call, not its siblings.
    Raises CheckpointWriteFailed when a call could not be put on record before its start, TaskCancelled when a stop that
    keeps the task open has left calls open too.
    """
    calls = step.calls if step.calls is not None else await recover_calls(ctx, step.step_id)
    if ctx.phase.may("execute") and not any(_is_asked(ctx, prepared) for prepared in calls):
        ctx.phase.fire("execute")
    order, slots = PathOrder(), TurnSlots(ctx.at_once)
    running: list[Coroutine[Any, Any, Message]] = [
        _run_one(ctx, step.step_id, prepared, order.turn(prepared.paths), slots.slot(_category(prepared), number))
        for number, prepared in enumerate(calls)
    ]
    if len(running) == 1:
        return [await running[0]]
    results: list[Message] = []
    # No sibling is cancelled for another's failure: each may have an effect under way that must be recorded.
    stopped: TaskCancelled | None = None
    for outcome in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(outcome, TaskCancelled):
            stopped = outcome  # what failed beside it says more
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            results.append(outcome)
    if stopped is not None:
        raise stopped
    return results


def _category(prepared: PreparedCall) -> Category | None:
    return None if prepared.spec is None else prepared.spec.category


def _is_asked(ctx: LoopContext, prepared: PreparedCall) -> bool:
    """True when somebody will be asked about the call."""
    return prepared.needs_approval and prepared.answer is None and granted_by(ctx, prepared) is None


async def _run_one(
    ctx: LoopContext, step_id: str, prepared: PreparedCall, path_turn: PathTurn, slot: CallSlot
) -> Message:
    """One call from policy's decision to its result on record."""
    still_open = False
    try:
        began = ctx.outside.monotonic()
        grant, is_gated, was_edited = granted_by(ctx, prepared), prepared.needs_approval, prepared.edited
        ctx.emit(EventType.TOOL_REQUESTED, step_id, **_request_payload(ctx, prepared, grant))
        if is_gated:
            prepared = await settle(ctx, step_id, prepared, path_turn, slot, granted=grant is not None)
            if prepared.edited and not was_edited:  # what is requested is another call now
                ctx.emit(EventType.TOOL_REQUESTED, step_id, **_request_payload(ctx, prepared, None))
        elif prepared.refusal is None:
            prepared = await wait_for_start(ctx, prepared, path_turn, slot)
        if prepared.refusal is None and ctx.cancellation.requested:
            prepared = cancel_before_start(ctx, prepared)
        if prepared.refusal is not None:
            refused = refused_result(ctx, step_id, prepared.call, prepared.refusal)
            return await finish(ctx, step_id, prepared, refused, Observations(began))
        if not is_gated:
            record_start(ctx, prepared)
        return await _execute(ctx, step_id, prepared, began)
    except CheckpointWriteFailed:
        still_open = True
        raise
    finally:
        slot.give_back()
        # A refused call waits for none, and a call that waits for it means those before it too.
        await path_turn.leave(still_open=still_open)


async def _execute(ctx: LoopContext, step_id: str, prepared: PreparedCall, requested: float) -> Message:
    """Run a call whose start is on record."""
    started_at = ctx.outside.stamp()
    request = request_for(ctx, step_id, prepared)
    result: ToolResult | None = None
    changed, runs_since = CommandChanges(), ctx.outside.monotonic()
    try:
        result = ctx.router.at_once(request)
        duration_ms = ctx.outside.ms_since(runs_since)
        if result is None:
            async with watch_call(ctx, prepared.spec, prepared.facts) as changed:
                runs_since = ctx.outside.monotonic()
                try:
                    result = await ctx.cancellation.run_until_forced(ctx.router.execute(request))
                    changed.runs_on = result.command_id is not None
                finally:
                    duration_ms = ctx.outside.ms_since(runs_since)
    except ToolStopped:
        pass
    finally:
        ctx.live_output.end(prepared.call.call_id)  # before the call is reported to be over, however it ended
    seen = Observations(requested, started_at, duration_ms, changed)
    if result is None:
        return await finish(
            ctx, step_id, prepared, ToolResult.failure(request, ErrorCode.TOOL_INTERRUPTED, _STOPPED), seen
        )
    seen = seen._replace(paths=_changes_of(prepared, result), stamps=_stamps_of(ctx, prepared, result))
    return await finish(ctx, step_id, prepared, _add_names(ctx, prepared, result), seen)


def _add_names(ctx: LoopContext, prepared: PreparedCall, result: ToolResult) -> ToolResult:
    """The result with what it says of a name that stands for another."""
    notes = [f"{one.requested!r} means {one.absolute!r}" for one in names_taken(ctx, prepared.facts)]
    if not notes or result.error is not None:
        return result
    note = f"[{'; '.join(dict.fromkeys(notes))}]\n"
    return result._replace(output_text=add_note(prepared.spec, result.output_text or "", note, first=True))


def _download_target(prepared: PreparedCall) -> str | None:
    """The file that a request saves what it gets to."""
    if prepared.spec is None or not isinstance(prepared.facts, UrlFacts):
        return None
    file = file_to_write(prepared.spec, prepared.facts)
    return None if file is None else file.real_path


def _changes_of(prepared: PreparedCall, result: ToolResult) -> Sequence[str]:
    """The files that the call is known to have changed. What a request did not save it did not see."""
    if prepared.spec is None or result.status != "succeeded":
        return ()
    saved = _download_target(prepared)
    if saved is not None:
        return () if result.seen is None else (saved,)
    is_tree = isinstance(prepared.facts, PathFacts) and prepared.facts.tree  # what went of it was watched
    return prepared.paths if prepared.spec.changes_file and not is_tree else ()


def _stamps_of(ctx: LoopContext, prepared: PreparedCall, result: ToolResult) -> dict[str, str | None]:
    """The files that the call read or wrote, as the next one on them is to find them; None for one that is gone."""
    saved = _download_target(prepared)
    path = saved or next(iter(prepared.paths), "")
    if not path or encodable(path) != path:  # a name that cannot be put on record
        return {}
    effect = None if prepared.spec is None else prepared.spec.effect
    if result.seen is not None:
        return {path: result.seen}
    if result.status != "succeeded" or effect not in ("delete", "move"):
        return {}
    return {**dict.fromkeys(prepared.paths[1:], ctx.state.seen.get(path)), path: None}


def _request_payload(ctx: LoopContext, prepared: PreparedCall, grant: str | None) -> dict[str, Any]:
    call, spec, decision = prepared.call, prepared.spec, prepared.decision
    payload: dict[str, Any] = {"toolCallId": call.call_id, "toolName": call.name}
    if spec is not None:
        payload["capability"] = spec.capability if decision is None else decision.capability
        # Before the cut: half a secret is found by nobody.
        payload["summary"] = ctx.scrubber.text(spec.summary(call.arguments))[:_SUMMARY_CHARS]
    if call.problem is None:
        # Of what is kept: a hash of a password could be tried out.
        clean = ctx.scrubber.json(call.arguments_json)
        payload["argumentsSha256"] = sha256_hex(clean)
        if len(clean) <= SHOWN_BYTES:
            payload["arguments"] = call.arguments if clean == call.arguments_json else orjson.loads(clean)
        else:
            payload["argumentsHead"], payload["itemId"] = head_of(clean), call.call_id
    if decision is not None:
        payload["decision"] = decision.decision
        payload["rule"] = decision.rule
        # Policy assesses only what it wants an approval for; the rest has the risk of its kind (SK 2).
        payload["riskLevel"] = decision.risk_level or DEFAULT_RISK.get(decision.capability, "high")
    if grant is not None:
        payload["grantedBy"] = grant
    if prepared.edited:
        payload["edited"] = True
    return payload
