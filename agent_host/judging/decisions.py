"""Decisions on calls: the facts, what policy says to them, and what options and limits take away (AH 6.1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agent_host.judging.facts import UnusableArguments, gather
from agent_host.judging.judge import NOT_JUDGED, Judged
from agent_host.judging.scoping import places_of_program
from policy.decide import check_tool
from policy.decision import strictest
from policy.facts import CommandFacts, NamedToolFacts, OutputFacts, PathFacts, UrlFacts
from policy.names import SANDBOX_GRANT
from policy.rules.command_scope import NO_WIDENING, is_hidden, with_own_places
from policy.rules.narrowing import asked_by_name, narrowed, under_ceiling
from policy.rules.sandbox import widened, widening_of
from policy.rules.skills import within_skills
from policy.rules.toolset import not_here, withheld_by
from policy.scope import Widening

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolSpec
    from agent_host.judging.environment import Environment
    from agent_host.judging.facts import World
    from agent_host.judging.judge import Judge
    from agent_host.judging.scoping import Scoping
    from policy.decision import Decision
    from policy.facts import ActionFacts

_REFERENCES = ("artifacts/", "results/")


def decide(judge: Judge, name: str, arguments: Mapping[str, Any], world: World | None) -> Judged:
    """See `Judge.decide`."""
    spec = judge.tools.get(name)
    if spec is None:
        return NOT_JUDGED
    if spec.subject.kind == "output" or (spec.reads_outputs and _names_output(judge, spec, arguments)):
        return _reading_again(judge, spec, arguments)
    for capability in (spec.capability, *(need.capability for need in spec.needs(arguments))):
        withheld = withheld_by(judge.limits, name, capability)
        if withheld is not None:
            return Judged(spec, withheld=withheld)
    try:
        facts = gather(spec, arguments, judge.environment, world, judge.scripts, judge.bundle)
    except UnusableArguments as error:
        return Judged(spec, problem=str(error), code=error.code)
    if isinstance(facts, NamedToolFacts) and (spec.identity is not None or spec.elsewhere):
        approved, identity = judge.approved, spec.identity
        is_approved = identity is None or (approved is not None and approved.knows(spec.name, identity))
        facts = NamedToolFacts(spec.name, spec.identity, is_approved, spec.elsewhere, facts.also)
    if judge.scoping is not None and spec.starts_program:
        problem = grant_problem(arguments)
        if problem is not None:
            return Judged(spec, problem=problem)
        facts = with_widening(judge.scoping, facts, arguments, judge.environment)
    here = None if spec.elsewhere else not_here(judge.bundle, spec.needed(arguments))
    decision = here or _listed(judge, spec, spec.capability, facts)
    if isinstance(facts, PathFacts | UrlFacts | NamedToolFacts) and facts.also and here is None:
        decision = strictest([decision, *(_listed(judge, spec, needed, other) for needed, other in facts.also)])
    judge.expired = judge.expired or decision.expired
    if judge.scoping is not None and spec.starts_program:
        decision = _as_held(judge, judge.scoping, spec, facts, decision)
    return Judged(spec, facts, decision)


def _as_held(judge: Judge, scoping: Scoping, spec: ToolSpec, facts: ActionFacts, decision: Decision) -> Decision:
    """The decision on a call that starts a program, with the scope that holds it. What asks for more is narrowed by
    options and limits as any other call that needs an approval."""
    decision = held(scoping, decision, spec, facts, judge)
    if decision.rule != SANDBOX_GRANT:
        return decision
    bundle, workspace, os = judge.bundle, judge.environment.workspace, judge.environment.os_family
    decision = narrowed(decision, judge.options, bundle, facts, side_effects=True, workspace=workspace, os=os)
    return under_ceiling(decision, judge.limits, bundle, facts, workspace=workspace, os=os)


def _listed(judge: Judge, spec: ToolSpec, capability: str, facts: ActionFacts) -> Decision:
    """The decision under one capability; a program without a shell has to be on the list of such programs as well."""
    decision = _refused(judge, spec, facts) or _decision(judge, spec, capability, facts)
    if not isinstance(facts, CommandFacts) or not facts.argv or facts.script is not None:
        return decision
    from policy.rules.native_exec import DEFAULT, NativeExec, within_list

    native = judge.native or NativeExec(DEFAULT, (judge.environment.workspace,))
    return within_list(decision, facts, native, judge.environment.os_family)


def _refused(judge: Judge, spec: ToolSpec, facts: ActionFacts) -> Decision | None:
    """The denial of a script for what it is, whatever program runs it; None for every other call."""
    if not isinstance(facts, CommandFacts) or facts.script is None:
        return None
    from policy.rules.native_exec import refused_script  # with the first such call

    most = None if judge.scripts is None else judge.scripts.max_runs
    return refused_script(spec.capability, facts.script, judge.script_runs(), most, judge.environment.os_family)


def _names_output(judge: Judge, spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    """True if the path of the call is a reference to what an earlier one left."""
    ref = arguments.get(spec.subject.argument)
    return isinstance(ref, str) and ref.startswith(_REFERENCES) and judge.outputs(ref) is not None


def _reading_again(judge: Judge, spec: ToolSpec, arguments: Mapping[str, Any]) -> Judged:
    """A call that reads what an earlier one stored: it needs every capability that that one needed."""
    ref = arguments.get(spec.subject.argument)
    maker = judge.outputs(ref) if isinstance(ref, str) else None
    made_by = None if maker is None else judge.tools.get(maker.tool_name)
    if maker is None or made_by is None:
        return Judged(spec, problem=f"this session has stored nothing under {ref!r}: results name it as storage_ref")
    # An older version did not record what the call needed: then all that it may have needed.
    recorded = maker.capabilities or [need.capability for need in made_by.also]
    needed = tuple(dict.fromkeys((*made_by.capabilities, *recorded)))
    for capability in needed:
        withheld = withheld_by(judge.limits, spec.name, capability)
        if withheld is not None:
            return Judged(spec, withheld=withheld)
    facts = OutputFacts(made_by.name)
    decision = strictest([_decision(judge, spec, capability, facts) for capability in needed])
    judge.expired = judge.expired or decision.expired
    return Judged(spec, facts, decision)


def _decision(judge: Judge, spec: ToolSpec, capability: str, facts: ActionFacts) -> Decision:
    """What policy, options and limits say to one of the capabilities that a call needs."""
    bundle, limits = judge.bundle, judge.limits
    if bundle.held and spec.elsewhere:  # what runs there is held by nothing
        bundle = bundle.memo.setdefault("unheld", bundle.known(bundle, held=False, lines_ask=True))
    workspace, os = judge.environment.workspace, judge.environment.os_family
    decision = check_tool(bundle, capability, facts, now=judge.clock(), os=os, workspace=workspace)
    decision = asked_by_name(decision, spec.name, bundle, facts, workspace=workspace, os=os)
    decision = narrowed(
        decision, judge.options, bundle, facts, side_effects=spec.side_effects, workspace=workspace, os=os
    )
    decision = within_skills(decision, limits, facts)
    return under_ceiling(decision, limits, bundle, facts, workspace=workspace, os=os)


def may_read(judge: Judge, place: PathFacts) -> bool:
    """See `Judge.may_read`."""
    reading = "File.Read"
    if judge.bundle.capability(reading) is None:
        return True
    place = place._replace(size_bytes=None)  # one that is too large to show is kept all the same
    verdict = check_tool(judge.bundle, reading, place, now=judge.clock(), os=judge.environment.os_family)
    return verdict.decision != "DENIED"


# What is asked about a call that starts a program besides its decision: what it asks for beyond its sandbox, and the
# scope that holds it.


def grant_problem(arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with what a call asks for beyond its scope, None where nothing is."""
    asked = widening_of(arguments.get(SANDBOX_GRANT))
    return asked if isinstance(asked, str) else None


def with_widening(
    scoping: Scoping, facts: ActionFacts, arguments: Mapping[str, Any], environment: Environment
) -> ActionFacts:
    """The facts with what the call asks for, its paths where they really lead."""
    asked = widening_of(arguments.get(SANDBOX_GRANT)) if scoping.holds else None
    if not isinstance(asked, Widening) or not isinstance(facts, CommandFacts | NamedToolFacts):
        return facts
    real = (os.path.realpath(environment.absolute(one)) for one in asked.write)
    return facts._replace(widening=asked._replace(write=tuple(dict.fromkeys(real))))


def held(scoping: Scoping, decision: Decision, spec: ToolSpec, facts: ActionFacts, judge: Judge) -> Decision:
    """The decision on a call that starts a program, with its scope; denied where nothing holds it as it has to be
    held. A tool of the workspace reads the program that it names, which a person has approved."""
    if decision.decision == "DENIED":
        return decision
    bundle, system = judge.bundle, judge.environment.os_family
    denial = scoping.refused(bundle, decision.capability)
    if denial is not None or not (scoping.holds or scoping.always):
        return denial or decision
    asked = facts.widening if isinstance(facts, CommandFacts | NamedToolFacts) else None
    network = judge.options.allow_network is not False
    scope = scoping.scope(bundle, judge.environment, asked or NO_WIDENING, network=network)
    script = facts.script if isinstance(facts, CommandFacts) else None
    if script is not None:
        own = () if scoping.scripts is None else (scoping.scripts,)
        scope = with_own_places(scope, system, reads=(script.folder,), writes=own)
    if spec.runs:
        reads = places_of_program(spec.runs[0], judge.environment.home)
        scope = with_own_places(scope, system, reads=tuple(one for one in reads if not is_hidden(scope, one, system)))
    if asked is not None:
        decision = widened(decision, asked, scope, bundle, system)
    if decision.decision == "DENIED" or (asked is not None and asked.off):
        return decision
    return decision._replace(command_scope=scope)
