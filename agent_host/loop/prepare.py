"""Each call of a turn before anything is done about it (AH 4.2, phase 1): its facts, policy's decision, its effect on a
file, the id of its approval where it needs one. A call that waited is judged again by the same functions."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from agent_host.approval.grants import exact_call
from agent_host.approval.request import ApprovalAnswer
from agent_host.contracts import ToolConstraints, ToolRequest
from agent_host.errors import CheckpointWriteFailed, ErrorCode
from agent_host.events.kinds import EventType
from agent_host.ids import new_id
from agent_host.judging.judge import NOT_JUDGED, Judged
from agent_host.loop.intents import NO_EFFECT, Versions, capture_intent
from agent_host.loop.journal import placeholder_problem
from config.lean_typing import NamedTuple
from config.shapes import hint_at
from policy.decision import is_of_place
from policy.facts import CommandFacts, OutputFacts, PathFacts, UrlFacts
from policy.names import SANDBOX_GRANT, CapabilityName
from policy.rules.canonical import policy_hash
from policy.rules.grants import scope_of_call
from state.blobs import UNAVAILABLE
from state.records import CallStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent_host.contracts import Category, ToolSpec
    from agent_host.loop.context import LoopContext
    from agent_host.loop.intents import Held
    from agent_host.thread.messages import ToolCall
    from policy.decision import Decision
    from policy.facts import ActionFacts
    from policy.scope import CommandScope
    from state.checkpoint import OpenCall
    from state.records import CallRow, FileEffect, FirstVersions

_MAX_NAME_CHARS = 200


def prepare_calls(
    ctx: LoopContext, calls: Sequence[ToolCall], on_record: Mapping[str, OpenCall] | None = None
) -> tuple[CallRun, ...]:
    """Facts, policy and effects for each call in order (AH 4.2, phase 1), with the ids of their approvals (AH 10.1).

    `on_record` maps the ids of calls that a crash left open to what is on record of them.
    """
    will_hold: dict[str, Held] = {}
    runs = tuple(map(CallRun, calls))
    for run in runs:
        judge(ctx, run)
        if on_record is not None:
            _restore_approval(ctx, run, on_record[run.call.call_id])
        if run.needs_approval:
            run.approval_id = run.approval_id or new_id("appr")
        elif run.decision is not None and run.decision.allowed:
            _find_effect(ctx, run, will_hold)
    return runs


def judge(ctx: LoopContext, run: CallRun) -> None:
    """Find facts and policy's decision on the call; what can never run is refused here."""
    call = run.call
    judged = ctx.judge.decide(call.name, call.arguments)
    problem = call.problem or placeholder_problem(call) or judged.problem
    if judged.spec is None:
        hint = hint_at(call.name, [spec.name for spec in ctx.judge.tools])
        reason = f"there is no tool {call.name[:_MAX_NAME_CHARS]!r}{hint}"
        refusal: Refusal | None = Refusal("failed", ErrorCode.TOOL_NOT_FOUND, reason)
    elif problem is not None:
        code: str = ErrorCode.INVALID_REQUEST
        judged = judged._replace(facts=None, decision=None)
        if problem is judged.problem:  # the tool's schema says more of arguments that name nothing to act on
            wrong = ctx.router.argument_problem(call.name, call.arguments)
            problem, code = (problem, judged.code) if wrong is None else (wrong, code)
        refusal = Refusal("failed", code, problem)
    elif judged.decision is None:
        reason = f"{call.name} is switched off for this session: {judged.withheld}"
        refusal = Refusal("denied", ErrorCode.CAPABILITY_DENIED, reason)
    else:
        refusal = _refusal(call, judged.spec, judged.decision)
        if judged.decision.expired:
            ctx.emit(EventType.POLICY_EXPIRED, None, toolCallId=call.call_id)
    run.take(judged, refusal)


def _refusal(call: ToolCall, spec: ToolSpec | None, decision: Decision) -> Refusal | None:
    if decision.expired:
        return Refusal("denied", ErrorCode.POLICY_EXPIRED, decision.reason)
    if decision.unasked:
        approve = approves_in_advance(decision, call.name)
        return Refusal("denied", ErrorCode.APPROVAL_REQUIRED, decision.reason, approve)
    if decision.decision == "DENIED":
        # To a family that has a name for refused programs, a refused place is another thing.
        names = {} if spec is None else spec.error_names
        name = names.get(ErrorCode.PERMISSION_DENIED) if is_of_place(decision) else None
        return Refusal("denied", ErrorCode.CAPABILITY_DENIED, f"{decision.reason} ({decision.rule})", name=name)
    return None


def approves_in_advance(decision: Decision, tool_name: str) -> str:
    """Return the `--approve` value that approves calls of this kind."""
    return tool_name if decision.by_name and decision.rule != SANDBOX_GRANT else decision.rule_id or tool_name


def judge_again(ctx: LoopContext, run: CallRun) -> None:
    """After a wait policy has the last word, and the effect names what the call will really find."""
    judge(ctx, run)
    run.renewed = True
    ask_after_all(run)
    if run.refusal is None:
        _find_effect(ctx, run, {})


def edit(ctx: LoopContext, run: CallRun, arguments: Mapping[str, Any]) -> None:
    """Give the call the arguments that the person who approved it wrote, and judge it with them. They were approved
    with them, so that policy asks for an approval of this form too makes no difference; its denial does."""
    run.call = run.call._replace(arguments=dict(arguments), problem=None)
    run.edited = True
    judge(ctx, run)


def ask_after_all(run: CallRun) -> None:
    """Lift the refusal of a call that was denied for the want of somebody to ask, where a person has approved it since.
    A task that asks nobody may have its denied calls approved afterwards like any other."""
    decision = run.decision
    if run.answer is not None and run.answer.approved and decision is not None and decision.unasked:
        asked = decision._replace(decision="APPROVAL_REQUIRED", unasked=False)
        run.take(run.judged._replace(decision=asked), None)


def bound_to(ctx: LoopContext, run: CallRun) -> str | None:
    """Return the identity that an approval of the call holds for; None for a call without facts."""
    if run.facts is None:
        return None
    return exact_call(run.call.name, run.call.arguments, run.facts, policy_hash(ctx.judge.bundle))


def _restore_approval(ctx: LoopContext, run: CallRun, left: OpenCall) -> None:
    """Give the call what a crash left of its approval. One that was given for another directory or under another policy
    is none for this call: it is asked for again, under an id of its own."""
    run.renewed, run.edited = True, left.edited_arguments is not None
    run.approval_id = left.approval_id or (new_id("appr") if left.gated else None)
    answer = left.answer
    if answer is not None and answer.approved and answer.bound_to not in (None, bound_to(ctx, run)):
        run.approval_id = new_id("appr")
    elif answer is not None:
        run.answer = ApprovalAnswer.from_record(answer)
    ask_after_all(run)


def row_of(run: CallRun) -> CallRow:
    """The call's part of the turn record."""
    row: CallRow = {"callId": run.call.call_id, "sideEffects": run.side_effects}
    if run.needs_approval and run.approval_id is not None:
        row["gated"], row["approvalId"] = True, run.approval_id
    if run.effect.intent is not None:
        row["intent"] = run.effect.intent
    return row


def first_versions(runs: Sequence[CallRun]) -> FirstVersions:
    """The first versions of files that the calls of a turn are about to write."""
    return {path: blob for run in runs for path, blob in run.effect.baselines.items()}


def record_start(ctx: LoopContext, run: CallRun) -> None:
    """Put on record that the call starts, before it does: a missing record is how a resume knows that it did not. That
    of a call with an approval proves it even after the machine went down, and is synced. A call without side effects
    needs no record, and one that is STARTED has it. Raises CheckpointWriteFailed."""
    if run.state is CallState.STARTED:
        return
    if run.side_effects or run.approval_id is not None:
        try:
            ctx.journal.record(CallStarted(run.call.call_id, run.effect if run.renewed else None))
            if run.approval_id is not None:
                ctx.journal.write_ahead()
        except CheckpointWriteFailed:
            ctx.state.take_start_back(run.call.call_id)
            raise
    run.state = CallState.STARTED


def _find_effect(ctx: LoopContext, run: CallRun, will_hold: dict[str, Held]) -> None:
    """Find what the call is about to do to its file, where it changes one; the file's first version is kept."""
    if run.spec is not None:
        run.effect = capture_intent(
            run.spec,
            run.facts,
            run.call.arguments,
            Versions(functools.partial(_keep_version, ctx), ctx.task.baselines, ctx.journal.keeps_versions),
            will_hold,
        )


def _keep_version(ctx: LoopContext, facts: PathFacts, data: bytes) -> str:
    """Keep what a file holds, without secrets; not of a file that the bundle does not let anybody read."""
    if not ctx.judge.may_read(facts):
        return UNAVAILABLE
    return ctx.journal.keep(ctx.scrubber.data(data))


def request_for(
    ctx: LoopContext,
    step_id: str,
    call: ToolCall,
    spec: ToolSpec,
    facts: ActionFacts | None = None,
    command_scope: CommandScope | None = None,
) -> ToolRequest:
    """The call as it crosses to the runtime, with the scope that the bundle gives it. `facts` are what policy judged it
    by, where it is to run; `command_scope` is what a sandbox holds the program to that it starts."""
    needed = (spec.capability, *(need.capability for need in spec.needs(call.arguments)))
    scopes = {name: _constraints(ctx, name) for name in needed}
    if spec.changes_file and _is_readable(ctx, facts):
        scopes[CapabilityName.FILE_READ] = _constraints(ctx, CapabilityName.FILE_READ)
    arguments = dict(spec.complete(call.arguments, ctx.judge.environment.workspace))
    taken = {one.requested: one.absolute for one in names_taken(ctx, facts)}
    # Relative to the workspace, where this machine runs the call; its tools take absolute ones.
    is_place = not spec.elsewhere and not isinstance(facts, OutputFacts)
    for argument in spec.paths & arguments.keys() if is_place else frozenset():
        path = arguments[argument]
        if isinstance(path, str):
            arguments[argument] = taken.get(path) or ctx.judge.environment.absolute(path)
    return ToolRequest(
        call.name,
        arguments,
        ctx.session_id,
        ctx.task.task_id,
        step_id,
        call.call_id,
        spec.capability,
        scopes.pop(spec.capability)._replace(command_scope=command_scope),
        scopes,
        _last_seen(ctx, facts),
        facts.script.identity if isinstance(facts, CommandFacts) and facts.script is not None else None,
    )


def names_taken(ctx: LoopContext, facts: ActionFacts | None) -> Iterator[PathFacts]:
    """The paths of a call that mean others than they say: as a name was shown, or that look like them."""
    also = facts.also if isinstance(facts, PathFacts | UrlFacts) else ()
    for one in (facts, *(other for _, other in also)):
        if isinstance(one, PathFacts) and one.absolute != os.path.normpath(
            ctx.judge.environment.absolute(one.requested)
        ):
            yield one


def _is_readable(ctx: LoopContext, facts: ActionFacts | None) -> bool:
    """True if the bundle grants reading the file, so that a call which changes it may be told what it holds."""
    granted = ctx.judge.bundle.capability(CapabilityName.FILE_READ) is not None
    return granted and isinstance(facts, PathFacts) and ctx.judge.may_read(facts)


def _last_seen(ctx: LoopContext, facts: ActionFacts | None) -> str | None:
    return ctx.state.seen.get(facts.real_path) if isinstance(facts, PathFacts) else None


def _constraints(ctx: LoopContext, capability_name: str) -> ToolConstraints:
    """The scope that the bundle gives a call under one capability."""
    capability = scope_of_call(ctx.judge.bundle, capability_name, ctx.judge.environment.os_family)
    if capability is None:
        return ToolConstraints()
    return ToolConstraints(
        capability.max_file_size_bytes,
        capability.max_output_bytes,
        capability.allowed_paths,
        capability.blocked_paths,
        capability.allowed_domains,
        capability.blocked_domains,
    )


# One tool call of a step and the states that it has, from policy's decision to its start or its refusal.


class Refusal(NamedTuple):
    """Why a call ends without being run: `status` failed or denied, a documented code, and words for the model.
    `approve` is what `--approve` would have taken, where nobody was there to be asked. `name` is what the model reads
    in place of the code, where that is not what the tool's family calls it otherwise."""

    status: str
    code: str
    message: str
    approve: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The text for the model."""
        return f"{self.code}: {self.message}"


class CallState(Enum):
    """The states of a call. Only a call that is STARTED is executed, and a REFUSED one never is."""

    JUDGED = "policy has decided on it, and it may be asked for"
    APPROVED = "an approval or a grant lets it go on"
    WAITING = "it waits for the calls before it on its path, then for a slot"
    STARTED = "its start is on record, or needs no record"
    REFUSED = "it has come to its end without being run"


@dataclass(slots=True)
class CallRun:
    """One call of the current step. `judged` has its tool, its facts and policy's decision; `effect` is that of a call
    that changes one file and may start. `renewed`: its effect is newer than the turn's record, and is in the record
    of its start.

    `approval_id`: policy wants an approval for it, or wanted one when its turn was recorded, and so its start record
    is synced (see `state.recovery.judge`). `answer` is what was answered before a crash. `edited`: the person who
    approved it wrote other arguments, and `call` has these."""

    call: ToolCall
    judged: Judged = NOT_JUDGED
    refusal: Refusal | None = None
    effect: FileEffect = NO_EFFECT
    state: CallState = CallState.JUDGED
    renewed: bool = False
    approval_id: str | None = None
    answer: ApprovalAnswer | None = None
    edited: bool = False

    def take(self, judged: Judged, refusal: Refusal | None) -> None:
        """Replace what was found of the call before; its effect is to be found again."""
        self.judged, self.refusal, self.effect = judged, refusal, NO_EFFECT
        self.state = CallState.JUDGED if refusal is None else CallState.REFUSED

    def refuse(self, refusal: Refusal) -> None:
        """End the call without running it."""
        self.refusal, self.state = refusal, CallState.REFUSED

    @property
    def spec(self) -> ToolSpec | None:
        """Its tool, None for a name that no tool has."""
        return self.judged.spec

    @property
    def facts(self) -> ActionFacts | None:
        """The facts that policy judged it by, None for a call that policy did not see."""
        return self.judged.facts

    @property
    def decision(self) -> Decision | None:
        """Policy's decision, None for a call that policy did not see."""
        return self.judged.decision

    @property
    def needs_approval(self) -> bool:
        """True when an approval decides about it: policy asks for one, or a person has said no before a crash.

        That nobody was there, or answered in time, counts only as long as policy asks.
        """
        if self.refusal is not None or self.decision is None:
            return False
        said_no = self.answer is not None and self.answer.is_denial
        return said_no or self.decision.decision == "APPROVAL_REQUIRED"

    @property
    def side_effects(self) -> bool:
        """True if it may change anything; an unknown tool might."""
        return self.spec is None or self.spec.side_effects

    @property
    def may_act(self) -> bool:
        """True when it may have an effect before anything else is put on record."""
        return self.refusal is None and not self.needs_approval and self.spec is not None and self.spec.side_effects

    @property
    def category(self) -> Category | None:
        """The category whose slots it shares, None for a name that is no tool's."""
        return None if self.spec is None else self.spec.category

    @property
    def paths(self) -> tuple[str, ...]:
        """The real paths that it acts on, none for what has no files."""
        return self.facts.real_paths if isinstance(self.facts, PathFacts | UrlFacts) else ()
