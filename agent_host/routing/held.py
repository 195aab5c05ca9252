"""What is asked about a call that starts a program besides its decision: what it asks for beyond its sandbox, and the
scope that holds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agent_host.routing.scope_facts import places_of_program
from policy.facts import CommandFacts, NamedToolFacts
from policy.names import SANDBOX_GRANT
from policy.rules.command_scope import NO_WIDENING, is_hidden, with_own_places
from policy.rules.sandbox import widened, widening_of
from policy.scope import Widening

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.contracts import ToolSpec
    from agent_host.routing.environment import Environment
    from agent_host.routing.judge import Judge
    from agent_host.routing.scoping import Scoping
    from policy.decision import Decision
    from policy.facts import ActionFacts


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
