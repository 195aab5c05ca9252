"""Gather the facts of a call, have policy decide, and give a program its sandbox (AH 6.1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from agent_host.errors import ErrorCode
from agent_host.judging import PreparedCall, Refusal
from agent_host.judging.facts import UnusableArguments, gather
from agent_host.judging.scoping import places_of_program
from config.shapes import hint_at
from policy import SANDBOX_GRANT, is_of_place, strictest
from policy.decide import case_of
from policy.decide import decide as decide_call
from policy.facts import CommandFacts, NamedToolFacts, OutputFacts, PathFacts, UrlFacts
from policy.rules import CallTerms, NativeExec
from policy.rules.narrowing import apply_risk_ceiling, apply_task_options
from policy.rules.native_exec import DEFAULT
from policy.rules.sandbox import NO_WIDENING, add_own_places, apply_widening, is_hidden, widening_of
from policy.rules.toolset import withheld_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent_host.contracts import ToolSpec
    from agent_host.judging import Judge
    from agent_host.judging.facts import World
    from agent_host.judging.scoping import Scoping
    from agent_host.thread.messages import ToolCall
    from policy import Decision
    from policy.bundle import PolicyBundle
    from policy.facts import ActionFacts


def decide(judge: Judge, call: ToolCall, world: World | None = None) -> PreparedCall:
    """Evaluate one call, for the loop and `policy check`, by facts of this disk or of `world`; nothing is run."""
    name, arguments, spec = call.name, call.arguments, judge.tools.get(call.name)
    if spec is None:
        message = f"there is no tool {name[:200]!r}{hint_at(name, [spec.name for spec in judge.tools])}"
        return PreparedCall(call, refusal=Refusal("failed", ErrorCode.TOOL_NOT_FOUND, message))
    ref = arguments.get(spec.subject.argument) if spec.reads_outputs else None
    is_output = isinstance(ref, str) and ref.startswith(("artifacts/", "results/")) and judge.outputs(ref) is not None
    if spec.subject.kind == "output" or is_output:
        return _reading_again(judge, call, spec)
    withheld = _withheld(judge, name, (spec.capability, *(need.capability for need in spec.needs(arguments))))
    if withheld is not None:
        return _refuse_withheld(call, spec, withheld)
    try:
        facts = gather(spec, arguments, judge.environment, world, judge.scripts, judge.bundle)
    except UnusableArguments as error:
        return PreparedCall(call, spec, refusal=Refusal("failed", error.code, str(error)))
    if isinstance(facts, NamedToolFacts) and (spec.identity is not None or spec.elsewhere):
        approved, identity = judge.approved, spec.identity
        is_approved = identity is None or (approved is not None and approved.is_approved(spec.name, identity))
        facts = NamedToolFacts(spec.name, spec.identity, is_approved, spec.elsewhere, facts.also)
    if judge.scoping is not None and spec.starts_program:
        asked = widening_of(arguments.get(SANDBOX_GRANT))
        if isinstance(asked, str):
            return PreparedCall(call, spec, refusal=Refusal("failed", ErrorCode.INVALID_REQUEST, asked))
        if judge.scoping.holds and asked is not None and isinstance(facts, CommandFacts | NamedToolFacts):
            real = (os.path.realpath(judge.environment.absolute(one)) for one in asked.write)
            facts = facts._replace(widening=asked._replace(write=tuple(dict.fromkeys(real))))
    also = facts.also if isinstance(facts, PathFacts | UrlFacts | NamedToolFacts) else ()
    decision = _decision(judge, spec, ((spec.capability, facts), *also))
    if judge.scoping is not None and spec.starts_program:
        decision = _apply_sandbox(judge, judge.scoping, spec, facts, decision)
    return _apply_decision(call, spec, facts, decision)


def _apply_decision(call: ToolCall, spec: ToolSpec, facts: ActionFacts, decision: Decision) -> PreparedCall:
    prepared = PreparedCall(call, spec, facts, decision)
    if decision.decision != "DENIED":
        return prepared
    if decision.expired:
        refusal = Refusal("denied", ErrorCode.POLICY_EXPIRED, decision.reason)
    elif decision.no_approver:
        refusal = Refusal("denied", ErrorCode.APPROVAL_REQUIRED, decision.reason, prepared.approve)
    else:
        # To a family that has a name for refused programs, a refused place is another thing.
        name = spec.error_names.get(ErrorCode.PERMISSION_DENIED) if is_of_place(decision) else None
        refusal = Refusal("denied", ErrorCode.CAPABILITY_DENIED, f"{decision.reason} ({decision.rule})", name=name)
    return prepared._replace(refusal=refusal)


def _refuse_withheld(call: ToolCall, spec: ToolSpec, setting: str) -> PreparedCall:
    message = f"{call.name} is switched off for this session: {setting}"
    return PreparedCall(call, spec, refusal=Refusal("denied", ErrorCode.CAPABILITY_DENIED, message, withheld=setting))


def _withheld(judge: Judge, name: str, capabilities: Iterable[str]) -> str | None:
    return next(filter(None, (withheld_by(judge.limits, name, capability) for capability in capabilities)), None)


def _reading_again(judge: Judge, call: ToolCall, spec: ToolSpec) -> PreparedCall:
    """A call that reads an earlier call's output needs every capability of the earlier call."""
    ref = call.arguments.get(spec.subject.argument)
    maker = judge.outputs(ref) if isinstance(ref, str) else None
    made_by = None if maker is None else judge.tools.get(maker.tool_name)
    if maker is None or made_by is None:
        problem = f"this session has stored nothing under {ref!r}: results name it as storage_ref"
        return PreparedCall(call, spec, refusal=Refusal("failed", ErrorCode.INVALID_REQUEST, problem))
    # An older version did not record the call's capabilities: then all that it may have needed.
    recorded = maker.capabilities or [need.capability for need in made_by.also]
    needed = tuple(dict.fromkeys((*made_by.capabilities, *recorded)))
    withheld = _withheld(judge, spec.name, needed)
    if withheld is not None:
        return _refuse_withheld(call, spec, withheld)
    facts = OutputFacts(made_by.name)
    return _apply_decision(call, spec, facts, _decision(judge, spec, tuple((name, facts) for name in needed)))


def _decision(judge: Judge, spec: ToolSpec, needs: Sequence[tuple[str, ActionFacts]]) -> Decision:
    environment, terms = judge.environment, _terms(judge, spec)
    if any(isinstance(facts, OutputFacts) for _, facts in needs):
        terms = terms._replace(runs_here=False)
    if any(isinstance(facts, CommandFacts) and facts.argv for _, facts in needs):
        terms = terms._replace(
            programs=judge.native or NativeExec(DEFAULT, (environment.workspace,)),
            script_runs=judge.script_runs(),
            max_script_runs=None if judge.scripts is None else judge.scripts.max_runs,
        )
    bundles = judge.bundles
    if spec.elsewhere:  # our sandbox does not apply to remote programs
        bundles = tuple(map(_without_sandbox, bundles))
    now = judge.clock()
    decision = strictest(
        [
            decide_call(bundle, needs, now=now, os=environment.os_family, workspace=environment.workspace, terms=terms)
            for bundle in bundles
        ]
    )
    judge.expired = judge.expired or decision.expired
    return decision


def _without_sandbox(bundle: PolicyBundle) -> PolicyBundle:
    if bundle.sandboxed and "unheld" not in bundle.memo:
        bundle.memo["unheld"] = bundle.keep_known(bundle, sandboxed=False, lines_ask=True)
    return cast("PolicyBundle", bundle.memo["unheld"]) if bundle.sandboxed else bundle


def _terms(judge: Judge, spec: ToolSpec) -> CallTerms:
    terms = CallTerms(spec.name, spec.side_effects, not spec.elsewhere, judge.options, judge.limits)
    return terms if judge.mode.approval_mode is None else terms._replace(session_mode=judge.mode.approval_mode)


# Sandbox checks for calls that start a program.


def _apply_sandbox(judge: Judge, scoping: Scoping, spec: ToolSpec, facts: ActionFacts, decision: Decision) -> Decision:
    """The decision on a call that starts a program, with the scope of its sandbox. A call that asks for more than the
    scope gives is narrowed by options and limits as any other call that needs an approval."""
    decision = _add_scope(judge, scoping, spec, facts, decision)
    if decision.rule != SANDBOX_GRANT or decision.decision == "DENIED":
        return decision
    environment, terms = judge.environment, _terms(judge, spec)
    case = case_of(
        judge.bundle, decision.capability, facts,
        now=judge.clock(), os=environment.os_family, workspace=environment.workspace, terms=terms,
    )  # fmt: skip
    decision = apply_task_options(case, decision)
    return decision if decision.decision == "DENIED" else apply_risk_ceiling(case, decision)


def _add_scope(judge: Judge, scoping: Scoping, spec: ToolSpec, facts: ActionFacts, decision: Decision) -> Decision:
    """The decision with the scope of the program; denied if the sandbox that policy requires does not work here. A
    tool of the workspace reads the program that it names, which a person has approved."""
    if decision.decision == "DENIED":
        return decision
    bundle, system = judge.bundle, judge.environment.os_family
    denials = (scoping.denial(one, decision.capability) for one in judge.bundles)
    denial = next(filter(None, denials), None)
    if denial is not None or not (scoping.holds or scoping.always):
        return denial or decision
    asked = facts.widening if isinstance(facts, CommandFacts | NamedToolFacts) else None
    network = judge.options.allow_network is not False
    scope = scoping.scope(bundle, judge.environment, asked or NO_WIDENING, network=network)
    script = facts.script if isinstance(facts, CommandFacts) else None
    if script is not None:
        own = () if scoping.scripts is None else (scoping.scripts,)
        scope = add_own_places(scope, system, reads=(script.folder,), writes=own)
    if spec.runs:
        reads = places_of_program(spec.runs[0], judge.environment.home, judge.environment.workspace)
        scope = add_own_places(scope, system, reads=tuple(one for one in reads if not is_hidden(scope, one, system)))
    if asked is not None:
        for one in judge.bundles:
            decision = apply_widening(decision, asked, scope, one, system)
    if decision.decision == "DENIED" or (asked is not None and asked.off):
        return decision
    return decision._replace(command_scope=scope)
