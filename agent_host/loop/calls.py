"""The tool calls of one step (AH 4.2, 7.3): approvals and execution at once, results in call order.

Each call takes the same steps in order: approval if policy asks for one, its turn on its path, a slot, start record,
execution, result record.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.approval import ApprovalAnswer, ApprovalRequest, covering, replay_of
from agent_host.contracts import ToolResult
from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events import EventType
from agent_host.judging import Refusal
from agent_host.loop import holds_secret
from agent_host.loop.background import CommandChanges, watch_call
from agent_host.loop.prepare import bound_to, edit, file_to_write, judge_again, names_taken, record_start, request_for
from agent_host.loop.progress import TaskCancelled, ToolStopped
from agent_host.loop.results import SHOWN_BYTES, Observations, add_note, finish, head_of, refused_result
from config.json_text import encodable
from policy import SANDBOX_GRANT
from policy.facts import NamedToolFacts, PathFacts, UrlFacts
from policy.rules.canonical import move_problem, place_of, same_action
from policy.rules.toolset import DEFAULT_RISK
from state import WriteFailed
from state.blobs import sha256_hex
from state.checkpoint import ApprovalGranted

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from agent_host.judging import PreparedCall
    from agent_host.loop import LoopContext, Step
    from agent_host.loop.progress import Cancellation
    from agent_host.thread.messages import Message

_STOPPED = "ended by force on request while it ran; its effects so far are unknown: inspect before you retry"


async def run_calls(ctx: LoopContext, step: Step) -> list[Message]:
    """Answer every call of the open step that has no answer yet; on return each has its result on record. Returns the
    results of the calls that were run or refused here, in call order. Calls run at once, as far as their category has
    slots, except that calls on one path run in call order. What fails is the call, not its siblings. Raises
    CheckpointWriteFailed when a call could not be put on record before its start, TaskCancelled when a stop that keeps
    the task open has left calls open too."""
    calls = step.calls
    if calls is None:
        from agent_host.loop.recovery import recover_calls  # only a crash leaves a step open

        calls = await recover_calls(ctx)
    asking = (one for one in calls if one.needs_approval and one.answer is None)
    if ctx.phase.may("execute") and all(granted_by(ctx, prepared) is not None for prepared in asking):
        ctx.phase.fire("execute")
    last: dict[str, CallDone] = {}
    lines = {category: SlotLine(count) for category, count in ctx.max_concurrent.items()}
    running: list[Coroutine[Any, Any, Message]] = [
        _run_one(
            ctx,
            prepared,
            PathTurn(last, prepared.paths),
            CallSlot(None if prepared.spec is None else lines[prepared.spec.category], number),
        )
        for number, prepared in enumerate(calls)
    ]
    if len(running) == 1:
        return [await running[0]]
    # No sibling is cancelled for another's failure: each may have an effect under way that must be recorded.
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    faults = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if faults:
        raise min(faults, key=lambda fault: isinstance(fault, TaskCancelled))  # an error explains more than the stop
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


async def _run_one(ctx: LoopContext, prepared: PreparedCall, path_turn: PathTurn, slot: CallSlot) -> Message:
    still_open = False
    try:
        started = ctx.outside.monotonic()
        is_gated, was_edited = prepared.needs_approval, prepared.edited
        grant = granted_by(ctx, prepared) if is_gated else None
        ctx.emit(EventType.TOOL_REQUESTED, ctx.step_id, **_request_payload(ctx, prepared, grant))
        if is_gated:
            prepared = await settle(ctx, prepared, path_turn, slot, granted=grant is not None)
            if prepared.edited and not was_edited:  # the edited call differs from the requested one
                ctx.emit(EventType.TOOL_REQUESTED, ctx.step_id, **_request_payload(ctx, prepared, None))
        elif prepared.refusal is None:
            prepared = await wait_for_start(ctx, prepared, path_turn, slot)
        if prepared.refusal is None and ctx.cancellation.requested:
            prepared = cancel_before_start(ctx, prepared)
        if prepared.refusal is not None:
            refused = refused_result(ctx, prepared.call, prepared.refusal)
            return await finish(ctx, prepared, refused, Observations(started))
        if not is_gated:
            record_start(ctx, prepared)
        return await _execute(ctx, prepared, started)
    except CheckpointWriteFailed:
        still_open = True
        raise
    finally:
        slot.give_back()
        # A refused call waits for none, and a call that waits for it means those before it too.
        await path_turn.leave(still_open=still_open)


async def _execute(ctx: LoopContext, prepared: PreparedCall, requested: float) -> Message:
    started_at = ctx.outside.stamp()
    names = tuple(names_taken(ctx, prepared.facts))
    request = request_for(ctx, prepared, names)
    result: ToolResult | None = None
    changed, runs_since = CommandChanges(), ctx.outside.monotonic()
    try:
        result = ctx.router.at_once(request)
        duration_ms = ctx.outside.ms_since(runs_since)
        if result is None:
            ctx.emitter.flush()  # it may take long, and the process may die in it
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
        return await finish(ctx, prepared, ToolResult.failure(request, ErrorCode.TOOL_INTERRUPTED, _STOPPED), seen)
    seen = seen._replace(paths=_changes_of(prepared, result), stamps=_stamps_of(ctx, prepared, result))
    if names and result.error is None:
        note = "; ".join(dict.fromkeys(f"{one.requested!r} means {one.absolute!r}" for one in names))
        text = add_note(prepared.spec, result.output_text or "", f"[{note}]\n", first=True)
        result = result._replace(output_text=text)
    return await finish(ctx, prepared, result, seen)


def _download_target(prepared: PreparedCall) -> str | None:
    if prepared.spec is None or not isinstance(prepared.facts, UrlFacts):
        return None
    file = file_to_write(prepared.spec, prepared.facts)
    return None if file is None else file.real_path


def _changes_of(prepared: PreparedCall, result: ToolResult) -> Sequence[str]:
    """The files that the call is known to have changed."""
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
        # Before the cut, because half a secret is not detected.
        payload["summary"] = ctx.scrubber.text(spec.summary(call.arguments))[:160]
    if call.problem is None:
        # Of the redacted text, because a password could be guessed from its hash.
        clean = ctx.scrubber.json(call.arguments_json)
        payload["argumentsSha256"] = sha256_hex(clean)
        if len(clean) <= SHOWN_BYTES:
            payload["arguments"] = call.arguments if clean == call.arguments_json else orjson.loads(clean)
        else:
            payload["argumentsHead"], payload["itemId"] = head_of(clean), call.call_id
    if decision is not None:
        payload["decision"], payload["rule"] = decision.decision, decision.rule
        # Policy assesses only calls that need approval; others have the default risk of their capability (SK 2).
        payload["riskLevel"] = decision.risk_level or DEFAULT_RISK.get(decision.capability, "high")
    if grant is not None:
        payload["grantedBy"] = grant
    if prepared.edited:
        payload["edited"] = True
    return payload


# A call that needs an approval, from the question to its start on record (AH 10).
#
# The answer is recorded before anything follows from it, so a crash loses no answer and asks nothing twice.


_NOT_STARTED = "not started: the task was cancelled first"
_NOT_APPROVED = "not started: the task was cancelled before anybody approved it"


def granted_by(ctx: LoopContext, prepared: PreparedCall) -> str | None:
    """Return the id of an earlier approval that covers the call too; None if there is none or none is needed. An answer
    to this very call takes precedence."""
    if not prepared.needs_approval or prepared.answer is not None or not ctx.state.grants:
        return None
    return covering(ctx.state.grants, action=_action(ctx, prepared), task_id=ctx.task.task_id)


def _action(ctx: LoopContext, prepared: PreparedCall) -> str:
    """The action that a wider approval of the call is bound to."""
    spec, facts, call = prepared.spec, prepared.facts, prepared.call
    if spec is None or facts is None:
        raise RuntimeError("only a call that policy has judged can be approved")
    # Text written to a file may differ from call to call. Uploaded text may not, because it leaves the machine.
    seen: frozenset[str | None] = spec.subjects | ({spec.content} if spec.changes_file else set())
    system, policy = ctx.judge.environment.os_family, ctx.judge.policy_identity
    return same_action(call.name, call.arguments, facts, policy, fact_arguments=seen, os=system)


def cancel_before_start(ctx: LoopContext, prepared: PreparedCall, why: str = _NOT_STARTED) -> PreparedCall:
    """Refuse the call because the task was cancelled before its start. Raises TaskCancelled if the task stays open for
    a resume, which continues the call from its record."""
    if ctx.cancellation.resumable:
        raise TaskCancelled
    return prepared._replace(refusal=Refusal("failed", ErrorCode.TOOL_INTERRUPTED, why))


async def wait_for_start(
    ctx: LoopContext, prepared: PreparedCall, path_turn: PathTurn, slot: CallSlot, *, approved: bool = False
) -> PreparedCall:
    """Wait for the calls before it on its path, then for a slot; refused if the task was cancelled meanwhile. A call
    that waited is judged again, and so is one that was `approved`, because its file may have changed. Raises
    CheckpointWriteFailed as `PathTurn.wait` does, TaskCancelled if it stays open for a resume."""
    waited = await path_turn.wait()
    try:
        waited = await slot.take(ctx.cancellation) or waited
    except TaskCancelled:
        return cancel_before_start(ctx, prepared)
    return judge_again(ctx, prepared) if approved or (waited and prepared.may_act) else prepared


async def settle(
    ctx: LoopContext, prepared: PreparedCall, path_turn: PathTurn, slot: CallSlot, *, granted: bool
) -> PreparedCall:
    """Get a gated call approved, recorded and synced, or refused. Policy judges it again after the wait. `path_turn` is
    its turn on its path, `slot` its slot; `granted`: an earlier approval covers it. Raises CheckpointWriteFailed if its
    approval or start cannot be recorded, TaskCancelled if it stays open for a resume."""
    if not granted:
        prepared = await _ask(ctx, prepared)
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


async def _ask(ctx: LoopContext, prepared: PreparedCall) -> PreparedCall:
    """The call as it was answered, which is on record and reported: with the answer from before a crash, or a new one.
    Refused if it was denied, or the task was cancelled while it waited."""
    if prepared.answer is not None:
        # The process that took the answer may have died before it reported it.
        answer = ApprovalAnswer.from_record(prepared.answer)
        _emit_answer(ctx, prepared, answer, 0.0)
        return prepared if answer.approved else prepared._replace(refusal=_denial(prepared, answer))
    request = await _request(ctx, prepared)
    asked = ctx.outside.monotonic()
    ctx.emit(EventType.APPROVAL_REQUESTED, ctx.step_id, toolCallId=prepared.call.call_id, **request.to_payload())
    ctx.emitter.flush()  # the wait may be long, and the run log must show its reason
    try:
        answer = await ctx.cancellation.interruptible(ctx.questions.ask(ctx.gate, request, _action(ctx, prepared)))
    except TaskCancelled:
        if not ctx.cancellation.resumable:  # else the question stays open, and a resume asks it again
            cancelled = ApprovalAnswer(False, _NOT_APPROVED)
            _emit_answer(ctx, prepared, cancelled, ctx.outside.monotonic() - asked)
        return cancel_before_start(ctx, prepared, _NOT_APPROVED)
    if answer.approved and answer.arguments is not None:
        prepared = edit(ctx, prepared, answer.arguments)
    await _record_answer(ctx, prepared, request, answer)
    _emit_answer(ctx, prepared, answer, ctx.outside.monotonic() - asked)
    return prepared if answer.approved else prepared._replace(refusal=_denial(prepared, answer))


def _denial(prepared: PreparedCall, answer: ApprovalAnswer) -> Refusal:
    reason, facts = answer.reason, prepared.facts
    if answer.is_denial:
        return Refusal("denied", ErrorCode.APPROVAL_DENIED, reason)
    if prepared.decision is not None and isinstance(facts, NamedToolFacts) and facts.identity is not None:
        reason = f"{reason}: {prepared.decision.reason}"  # a name that a bundle can list
    return Refusal("denied", ErrorCode.APPROVAL_REQUIRED, reason, prepared.approve)


async def _record_answer(
    ctx: LoopContext, prepared: PreparedCall, request: ApprovalRequest, answer: ApprovalAnswer
) -> None:
    """Nothing is synced here: the start of an approved call is synced together with this record, and a denial lost with
    the machine had no effect yet."""
    kept = answer._replace(reason=ctx.scrubber.text(answer.reason))
    call_id, approval_id = prepared.call.call_id, request.approval_id
    if not answer.approved:
        ctx.journal.checkpoint(ctx.step_id, kept.to_record(call_id, approval_id), sync=False)
        return
    if answer.scope == "session":
        _approve_tool(ctx, prepared)
    if answer.scope != "once" and prepared.facts is not None:
        # First: a crash between the two leaves a call that its own grant covers, and not an approval without its grant.
        if answer.arguments is not None and prepared.decision is not None:
            request = await _request(ctx, prepared)  # the grant is for the edited call
        action = _action(ctx, prepared)
        grant = ApprovalGranted(
            answer.scope,
            approval_id,
            request.task_id,
            request.tool_name,
            request.capability,
            request.action_summary,
            action,
            ctx.judge.bundle.policy_bundle_version,
            ctx.outside.stamp(),
        )
        ctx.journal.record(grant)
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


def _emit_answer(ctx: LoopContext, prepared: PreparedCall, answer: ApprovalAnswer, waited_s: float) -> None:
    extra: dict[str, Any] = {} if answer.arguments is None else {"edited": True}
    if not (answer.approved or answer.is_denial):
        extra["replay"] = _replay(ctx, prepared)
    emit_answer(ctx, ctx.step_id, prepared.call.call_id, prepared.approval_id, answer, waited_s, **extra)


_ASKED: dict[str | None, str] = {SANDBOX_GRANT: "more than its sandbox gives"}


def _replay(ctx: LoopContext, prepared: PreparedCall) -> dict[str, Any]:
    """The fields by which a resume can approve the call (SK 4.1, 4.2); without its JSON if that is long."""
    call = prepared.call
    if holds_secret(ctx.scrubber, call):  # the record differs from the call, so it cannot be resumed from there
        return {"approve": prepared.approve}
    replay = replay_of(call.name, call.arguments, session_id=ctx.session_id, approve=prepared.approve)
    if len(call.arguments_json) > 16 * 1024:
        del replay["request"]
    return replay


async def _request(ctx: LoopContext, prepared: PreparedCall) -> ApprovalRequest:
    decision, spec, call, facts = prepared.decision, prepared.spec, prepared.call, prepared.facts
    if decision is None or spec is None or facts is None or prepared.approval_id is None:
        raise RuntimeError("only a call that policy wants an approval for asks for one")
    # Imported here since most sessions ask for nothing.
    from agent_host.approval.details import DescribedCall, describe

    clean = ctx.scrubber.text
    workspace = ctx.judge.environment.workspace
    act = DescribedCall(spec, call.arguments, facts, workspace)
    shown = await describe(act, clean)
    rule = ctx.judge.approval_rule(decision.rule_id)
    return ApprovalRequest(
        prepared.approval_id,
        ctx.session_id,
        ctx.task.task_id,
        ctx.step_id,
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


# Admission of a call: after earlier calls on its path, and with a slot of its category (AH 4.2).
#
# Calls of one turn on one path run one after the other, in call order. The number of concurrent calls is limited by
# category; the others wait in call order. A call acquires its slot last, after its approval and its turn on its path: a
# call with a slot waits for no other call, so there is no deadlock, and a question to a person blocks no other call.


class CallDone(asyncio.Event):
    """Set when a call is over. `open`: it, or one before it, is still to be run, by a resume."""

    open = False


class PathTurn:
    """One call's turn on its paths, of which a call has none or many. It is left in the end, whether the call was run
    or not. `last` has the last call of the turn on each path; every call takes its turn before the first one runs."""

    def __init__(self, last: dict[str, CallDone], paths: Sequence[str]) -> None:
        self._last = last
        self._enter(paths)

    def _enter(self, paths: Sequence[str]) -> None:
        self._paths, self._done = tuple(paths), CallDone()
        self._before = [self._last[path] for path in paths if path in self._last]
        self._last.update(dict.fromkeys(paths, self._done))

    async def wait(self) -> bool:
        """Wait for the calls before it; True if there are any. Raises CheckpointWriteFailed when one of them could not
        be put on record and is left to a resume: then so is this one, for they take effect in call order."""
        if await _await_all(self._before):
            raise CheckpointWriteFailed("a call before it on the same path was not recorded; nothing was started")
        return bool(self._before)

    async def leave(self, *, still_open: bool = False) -> None:
        """Let the next call begin, once those before are through. `still_open`: this one is left to a resume."""
        self._done.open = await _await_all(self._before) or still_open
        self._done.set()

    async def move(self, paths: Sequence[str]) -> None:
        """Move to `paths`, which a person chose for the call, after all calls of the turn on them. Call order would be
        too late for later calls: they may have run while the person was thinking. At the end nothing runs concurrently
        on the path, so the call finds what its record says. This cannot deadlock: initial turns wait for earlier calls
        only, and a moved call releases its first turn."""
        if tuple(paths) == self._paths:
            return
        before, done = self._before, self._done
        self._enter(paths)
        try:
            done.open = await _await_all(before)
        finally:
            done.set()


async def _await_all(turns: Sequence[CallDone]) -> bool:
    """Wait for all of `turns` to be over; whether one of them is left to a resume."""
    for turn in turns:
        await turn.wait()
    return any(turn.open for turn in turns)


class SlotLine:
    """The slots of a category: so many are `free`, and calls wait for one, by their numbers."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    def hand_on(self) -> None:
        """One slot is free again: to the first in call order that still waits."""
        while self.waiting:
            _, turn = heapq.heappop(self.waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


class CallSlot:
    """The slot of the turn's call `number`; one that can never run has no line. It is given back in the end, whether it
    was taken or not."""

    def __init__(self, line: SlotLine | None, number: int) -> None:
        self._line = line
        self._number = number
        self._taken = False

    async def take(self, cancellation: Cancellation) -> bool:
        """Have the slot; True when that took a wait. Raises TaskCancelled when the task is to stop first."""
        line = self._line
        if cancellation.requested:
            raise TaskCancelled
        if line is None or self._taken:
            return False
        if line.free:
            line.free -= 1
            self._taken = True
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(line.waiting, (self._number, turn))
        try:
            await cancellation.interruptible(_until(turn))
        except (asyncio.CancelledError, TaskCancelled):
            if not turn.cancel() and not turn.cancelled():  # it was assigned, and is unused now
                line.hand_on()
            raise
        self._taken = True
        return True

    def give_back(self) -> None:
        """Let the next one run; harmless when it was not taken."""
        if self._line is not None and self._taken:
            self._taken = False
            self._line.hand_on()


async def _until(turn: asyncio.Future[None]) -> None:
    await turn


def emit_answer(
    ctx: LoopContext,
    step_id: str,
    call_id: str,
    approval_id: str | None,
    answer: ApprovalAnswer,
    waited_s: float,
    **extra: object,
) -> None:
    """Report the answer to an approval or a question; `extra` are the fields that only some have."""
    waited_ms = int(waited_s * 1000)
    if answer.timed_out:
        ctx.emit(EventType.APPROVAL_TIMEOUT, step_id, approvalId=approval_id, waitedMs=waited_ms)
    ctx.emit(
        EventType.APPROVAL_RESOLVED,
        step_id,
        approvalId=approval_id,
        toolCallId=call_id,
        decision="approved" if answer.approved else "denied",
        scope=answer.scope,
        reason=answer.reason,
        latencyMs=waited_ms,
        **({} if answer.answered_by is None else {"answeredBy": answer.answered_by}),
        **extra,
    )
    ctx.emitter.flush()  # the process may die in the call that follows
