"""How a session's commands are held: the level, and for each command its scope (design, invariant 11)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_host.routing.scope_facts import repository_of, scope_facts, usual_facts
from policy.facts import CommandFacts, NamedToolFacts, ScopeFacts
from policy.names import SANDBOX_GRANT, CapabilityName
from policy.rules.command_scope import NO_WIDENING, command_scope, with_own_places
from policy.rules.sandbox import refused, widened, widening_of
from policy.scope import Widening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.routing.environment import Environment
    from agent_host.routing.judge import Judge
    from policy.bundle.model import PolicyBundle
    from policy.decision import Decision
    from policy.facts import ActionFacts
    from policy.scope import CommandScope, SandboxLevel

_STARTING = (CapabilityName.SHELL_EXEC, CapabilityName.TOOL_INVOKE)
"""What starts programs."""


@dataclass(slots=True, eq=False, repr=False)
class Scoping:
    """How commands are held. `level` is the one that works, `wanted` the one that was asked for, and `why` says what
    keeps a stronger one from working. `gather` gives the facts of this machine, once. `opened` is what the user opens
    for all commands, `blocked_domains` what the configuration blocks. `scripts` is where scripts of skills run.
    `unheld` is what the level cannot hold of any scope. `always`: decisions have the scope also where nothing holds
    it. `is_here`: the facts are of this machine."""

    level: SandboxLevel
    wanted: str
    gather: Callable[[], ScopeFacts]
    why: str = ""
    opened: Widening = NO_WIDENING
    blocked_domains: tuple[str, ...] = ()
    scripts: str | None = None
    unheld: tuple[str, ...] = ()
    always: bool = False
    is_here: bool = True
    _facts: ScopeFacts | None = field(default=None, init=False)

    @property
    def holds(self) -> bool:
        """Whether commands are held at all."""
        return self.level != "none"

    def facts(self) -> ScopeFacts:
        """What is to be known of this machine; its repository is looked at anew each time."""
        if self._facts is None:
            self._facts = self.gather()
        return self._facts._replace(repository=repository_of(self._facts.workspace)) if self.is_here else self._facts

    def scope(
        self, bundle: PolicyBundle, environment: Environment, grant: Widening = NO_WIDENING, *, network: bool = True
    ) -> CommandScope:
        """The scope of a command that is granted this. Without `network` it reaches nobody."""
        found = command_scope(
            bundle,
            self.facts(),
            environment.os_family,
            opened=self.opened,
            blocked_domains=self.blocked_domains,
            grant=grant,
        )
        found = found._replace(unheld=(*found.unheld, *self.unheld))
        return found if network else found._replace(domains=())

    def report(self, bundle: PolicyBundle, environment: Environment) -> dict[str, Any] | None:
        """How commands are held, for the start of a session: {level, wanted, why?, scope?}; None where nobody wants
        them held, and where the bundle lets nothing start a program."""
        if self.wanted == "none" and bundle.sandbox is None:
            return None
        if (
            bundle.capability(CapabilityName.SHELL_EXEC) is None
            and bundle.capability(CapabilityName.TOOL_INVOKE) is None
        ):
            return None
        said: dict[str, Any] = {"level": self.level, "wanted": self.wanted}
        if self.why:
            said["why"] = self.why
        if self.holds:
            said["scope"] = self.row(bundle, environment)
        return said

    def row(self, bundle: PolicyBundle, environment: Environment) -> dict[str, Any]:
        """How commands are held, in JSON: the level with the scope of a command that is granted nothing more, and why
        it is not a stronger one."""
        if not self.holds:
            return {"level": self.level}
        return self.scope(bundle, environment).to_wire(self.level)

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with what a call asks for beyond its scope, None where nothing is."""
        asked = widening_of(arguments.get(SANDBOX_GRANT))
        return asked if isinstance(asked, str) else None

    def with_widening(self, facts: ActionFacts, arguments: Mapping[str, Any], environment: Environment) -> ActionFacts:
        """The facts with what the call asks for, its paths where they really lead."""
        asked = widening_of(arguments.get(SANDBOX_GRANT)) if self.holds else None
        if not isinstance(asked, Widening) or not isinstance(facts, CommandFacts | NamedToolFacts):
            return facts
        real = (os.path.realpath(environment.absolute(one)) for one in asked.write)
        return facts._replace(widening=asked._replace(write=tuple(dict.fromkeys(real))))

    def held(self, decision: Decision, facts: ActionFacts, judge: Judge) -> Decision:
        """The decision on a call that starts a program, with its scope; denied where nothing holds it as it has to be
        held."""
        if decision.decision == "DENIED":
            return decision
        bundle, system = judge.bundle, judge.environment.os_family
        denial = refused(bundle, decision.capability, self.level, self.wanted, self.why)
        if denial is not None:
            return denial
        if not (self.holds or self.always):
            return decision
        asked = facts.widening if isinstance(facts, CommandFacts | NamedToolFacts) else None
        network = judge.options.allow_network is not False
        scope = self.scope(bundle, judge.environment, asked or NO_WIDENING, network=network)
        script = facts.script if isinstance(facts, CommandFacts) else None
        if script is not None:
            own = () if self.scripts is None else (self.scripts,)
            scope = with_own_places(scope, system, reads=(script.folder,), writes=own)
        if asked is not None:
            decision = widened(decision, asked, scope, bundle, system)
            if decision.decision == "DENIED":
                return decision
            if asked.off:
                return decision
        return decision._replace(command_scope=scope)


def this_machine(
    environment: Environment, *, temporary: str | None, records: str, steering: tuple[str, ...]
) -> Callable[[], ScopeFacts]:
    """What gathers the facts of commands in this workspace, when the first of them is judged."""

    def gather() -> ScopeFacts:
        return scope_facts(
            environment.workspace,
            home=environment.home,
            tmp=None if temporary is None else os.path.realpath(temporary),
            environment=environment.environment or os.environ,
            records=(os.path.realpath(records),),
            steering=steering,
        )

    return gather


def stated_machine(environment: Environment) -> Callable[[], ScopeFacts]:
    """The facts of a machine that somebody states: its system has the usual places, and no program besides."""
    return lambda: usual_facts(environment.workspace, environment.home)
