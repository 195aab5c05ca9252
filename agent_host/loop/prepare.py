"""Each call of a turn before anything is done about it (AH 4.2, phase 1): its facts, policy's word, its intent, the id
of its approval where it needs one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_host.approval.grants import exact_call
from agent_host.approval.request import ApprovalAnswer
from agent_host.contracts import ToolConstraints, ToolRequest
from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events.kinds import EventType
from agent_host.ids import new_id
from agent_host.loop.intents import NO_EFFECT, capture_intent
from agent_host.loop.secrets import placeholder_problem
from policy.canonical import policy_hash
from policy.facts import PathFacts
from policy.grants import scope_of_call
from state.blobs import UNAVAILABLE
from state.records import CallStarted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.contracts import Category, ToolSpec
    from agent_host.loop.context import LoopContext
    from agent_host.loop.intents import Held
    from agent_host.thread.messages import ToolCall
    from policy.decision import Decision
    from policy.facts import ActionFacts
    from state.open_step import Call
    from state.records import CallRow, FileEffect, FirstVersions


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that ends without being run: `status` failed or denied, a documented code, and words for the model.
    `approve` is what `--approve` would have taken, where nobody was there to be asked."""

    status: str
    code: str
    message: str
    approve: str | None = None

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call with its facts and policy's decision; `refusal` where it has come to its end already. `effect` is that of
    a call that changes one file and may start; `started`: its start is on record; `renewed`: its effect is newer than
    the turn's record, and stands in the record of its start.

    `approval_id`: policy wants an approval for it, or wanted one when its turn was recorded, and so its start record
    is synced (see `state.recovery.judge`). `answer` is what was answered before a crash. `edited`: whoever approved it
    wrote other arguments, and they are those of `call`."""

    call: ToolCall
    spec: ToolSpec | None = None
    facts: ActionFacts | None = None
    decision: Decision | None = None
    refusal: Refusal | None = None
    effect: FileEffect = NO_EFFECT
    started: bool = False
    renewed: bool = False
    approval_id: str | None = None
    answer: ApprovalAnswer | None = None
    edited: bool = False

    @property
    def gated(self) -> bool:
        """True when an approval decides about it: policy asks for one, or a person has said no before a crash.

        That nobody was there, or answered in time, counts only as long as policy asks.
        """
        if self.refusal is not None or self.decision is None:
            return False
        said_no = self.answer is not None and self.answer.said_no
        return said_no or self.decision.decision == "APPROVAL_REQUIRED"

    @property
    def may_act(self) -> bool:
        """True when it may have an effect before anything else is put on record."""
        return self.refusal is None and not self.gated and self.spec is not None and self.spec.side_effects

    def refused(self, status: str, code: str, message: str, approve: str | None = None) -> PreparedCall:
        """The same call, come to its end."""
        return dataclasses.replace(self, refusal=Refusal(status, code, message, approve))

    @property
    def category(self) -> Category | None:
        """Which calls it shares slots with, None for a name that is no tool's."""
        return None if self.spec is None else self.spec.category

    @property
    def path(self) -> str | None:
        """The real path it acts on, None for what is no file call."""
        return self.facts.real_path if isinstance(self.facts, PathFacts) else None


def prepare_calls(
    ctx: LoopContext, calls: Sequence[ToolCall], on_record: Mapping[str, Call] | None = None
) -> tuple[PreparedCall, ...]:
    """Facts, policy and intents for each call in order (AH 4.2, phase 1), with the ids of their approvals (AH 10.1).

    `on_record` maps the ids of calls that a crash left open to what is on record of them.
    """
    prepared: list[PreparedCall] = []
    will_hold: dict[str, Held] = {}
    for call in calls:
        checked = check_call(ctx, call)
        if on_record is not None:
            checked = _taken_up(ctx, checked, on_record[call.call_id])
        if checked.gated:
            checked = dataclasses.replace(checked, approval_id=checked.approval_id or new_id("appr"))
        elif checked.decision is not None and checked.decision.allowed:
            checked = with_intent(ctx, checked, will_hold)
        prepared.append(checked)
    return tuple(prepared)


def bound_to(ctx: LoopContext, prepared: PreparedCall) -> str | None:
    """What an approval of the call holds for and nothing else; None for a call without facts."""
    if prepared.facts is None:
        return None
    call = prepared.call
    return exact_call(call.name, call.arguments, prepared.facts, policy_hash(ctx.judge.bundle))


def _taken_up(ctx: LoopContext, prepared: PreparedCall, left: Call) -> PreparedCall:
    """The call with what a crash left of its approval. One that was given for another directory or under another policy
    is none for this call: it is asked for anew, under an id of its own."""
    answer = None if left.answer is None else ApprovalAnswer.from_record(left.answer)
    approval_id = left.approval_id or (new_id("appr") if left.gated else None)
    if left.answer is not None and left.answer.approved:
        bound = left.answer.bound_to
        if bound is not None and bound != bound_to(ctx, prepared):
            answer, approval_id = None, new_id("appr")
    edited = left.edited_arguments is not None
    return asked_after_all(
        dataclasses.replace(prepared, renewed=True, approval_id=approval_id, answer=answer, edited=edited)
    )


def asked_after_all(prepared: PreparedCall) -> PreparedCall:
    """The call, no longer denied for the want of somebody to ask where a person has approved it since. A task that asks
    nobody may have its denied calls approved afterwards like any other."""
    decision = prepared.decision
    if prepared.answer is None or not prepared.answer.approved or decision is None or not decision.unasked:
        return prepared
    asked = decision._replace(decision="APPROVAL_REQUIRED", unasked=False)
    return dataclasses.replace(prepared, decision=asked, refusal=None)


def row_of(prepared: PreparedCall) -> CallRow:
    """The call's part of the turn record."""
    side_effects = prepared.spec is None or prepared.spec.side_effects
    row: CallRow = {"callId": prepared.call.call_id, "sideEffects": side_effects}
    if prepared.gated and prepared.approval_id is not None:
        row["gated"], row["approvalId"] = True, prepared.approval_id
    if prepared.effect.intent is not None:
        row["intent"] = prepared.effect.intent
    return row


def first_versions(calls: Sequence[PreparedCall]) -> FirstVersions:
    """The first versions of files that the calls of a turn are about to write."""
    return {path: blob for call in calls for path, blob in call.effect.baselines.items()}


def record_start(ctx: LoopContext, prepared: PreparedCall) -> None:
    """Say that the call starts, before it does: a missing record is how a resume knows that it did not. That of a call
    with an approval proves it even after the machine went down, and is synced. Raises CheckpointWriteFailed."""
    try:
        ctx.journal.record(CallStarted(prepared.call.call_id, prepared.effect if prepared.renewed else None))
        if prepared.approval_id is not None:
            ctx.journal.write_ahead()
    except CheckpointWriteFailed:
        ctx.state.take_start_back(prepared.call.call_id)
        raise


def check_call(ctx: LoopContext, call: ToolCall) -> PreparedCall:
    """Facts and policy's decision on one call; what can never run is refused here."""
    problem = call.problem or placeholder_problem(call)
    if problem is not None and (known := ctx.judge.tools.get(call.name)) is not None:
        return PreparedCall(call, known, refusal=_invalid(problem))
    spec, facts, decision, withheld, problem = ctx.judge.decide(call.name, call.arguments)
    if spec is None:
        refusal: Refusal | None = Refusal("failed", ErrorCode.TOOL_NOT_FOUND, f"there is no tool {call.name!r}")
    elif withheld is not None:
        reason = f"{call.name} is switched off for this session: {withheld}"
        refusal = Refusal("denied", ErrorCode.CAPABILITY_DENIED, reason)
    elif decision is None:
        refusal = _invalid(str(problem))
    else:
        refusal = _refusal(call, decision)
        if decision.expired:
            ctx.emit(EventType.POLICY_EXPIRED, None, toolCallId=call.call_id)
    return PreparedCall(call, spec, facts, decision, refusal)


def _invalid(problem: str) -> Refusal:
    return Refusal("failed", ErrorCode.INVALID_REQUEST, problem)


def _refusal(call: ToolCall, decision: Decision) -> Refusal | None:
    if decision.expired:
        return Refusal("denied", ErrorCode.POLICY_EXPIRED, decision.reason)
    if decision.unasked:
        return Refusal("denied", ErrorCode.APPROVAL_REQUIRED, decision.reason, decision.rule_id or call.name)
    if decision.decision == "DENIED":
        return Refusal("denied", ErrorCode.CAPABILITY_DENIED, f"{decision.reason} ({decision.rule})")
    return None


def edited_by_person(ctx: LoopContext, prepared: PreparedCall, arguments: Mapping[str, Any]) -> PreparedCall:
    """The call with the arguments that whoever approved it wrote, judged as they are. They were approved with them, so
    that policy asks for an approval of this form too makes no difference; its denial does."""
    call = prepared.call._replace(arguments=dict(arguments), problem=None)
    now = check_call(ctx, call)
    return dataclasses.replace(
        prepared, call=call, spec=now.spec, facts=now.facts, decision=now.decision, refusal=now.refusal, edited=True
    )


def judged_anew(ctx: LoopContext, prepared: PreparedCall) -> PreparedCall:
    """The call after a wait: policy has the last word, and the intent names what the call will really find."""
    now = check_call(ctx, prepared.call)
    prepared = asked_after_all(
        dataclasses.replace(
            prepared,
            spec=now.spec,
            facts=now.facts,
            decision=now.decision,
            refusal=now.refusal,
            effect=NO_EFFECT,
            renewed=True,
        )
    )
    return prepared if prepared.refusal is not None else with_intent(ctx, prepared, {})


def with_intent(ctx: LoopContext, prepared: PreparedCall, will_hold: dict[str, Held]) -> PreparedCall:
    """The call with what it is about to do to its file, where it changes one; the file's first version is kept."""
    if prepared.spec is None:
        return prepared
    effect = capture_intent(
        prepared.spec,
        prepared.facts,
        prepared.call.arguments,
        keep=lambda data: _kept(ctx, prepared.facts, data),
        known=ctx.task.baselines,
        will_hold=will_hold,
        versions=ctx.journal.versions,
    )
    return prepared if effect == NO_EFFECT else dataclasses.replace(prepared, effect=effect)


def _kept(ctx: LoopContext, facts: ActionFacts | None, data: bytes) -> str:
    """Keep what a file holds, without secrets; not of a file that the bundle does not let anybody read."""
    if isinstance(facts, PathFacts) and not ctx.judge.may_read(facts):
        return UNAVAILABLE
    return ctx.journal.keep(ctx.scrubber.data(data))


def request_for(ctx: LoopContext, step_id: str, call: ToolCall, spec: ToolSpec) -> ToolRequest:
    """The call as it crosses to the runtime, with the scope that the bundle gives it."""
    capability = scope_of_call(ctx.judge.bundle, spec.capability, ctx.judge.environment.os_family)
    constraints = (
        ToolConstraints()
        if capability is None
        else ToolConstraints(
            capability.max_file_size_bytes,
            capability.max_output_bytes,
            capability.allowed_paths,
            capability.blocked_paths,
            capability.allowed_domains,
            capability.blocked_domains,
        )
    )
    return ToolRequest(
        call.name, call.arguments, ctx.session_id, ctx.task.task_id, step_id, call.call_id, spec.capability, constraints
    )
