"""How a session's commands are held: the level, and for each command its scope (design, invariant 11)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_host.routing.scope_facts import repository_of, scope_facts, usual_facts
from policy.names import CapabilityName
from policy.rules.command_scope import NO_WIDENING, command_scope, server_scope
from policy.rules.sandbox import refused
from policy.scope import STRONGEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.routing.environment import Environment
    from policy.bundle.model import PolicyBundle
    from policy.decision import Decision
    from policy.scope import CommandScope, SandboxLevel, ScopeFacts, Widening

_STARTING = (CapabilityName.SHELL_EXEC, CapabilityName.TOOL_INVOKE)
"""What starts programs."""


def nothing_withheld(_scope: CommandScope, _level: SandboxLevel) -> tuple[str, ...]:
    """For a machine whose disk cannot be looked at."""
    return ()


@dataclass(slots=True, eq=False, repr=False)
class Scoping:
    """How commands are held. `level` is the one that works, `wanted` the one that was asked for, and `why` says what
    keeps a stronger one from working. `gather` gives the facts of this machine, once. `opened` is what the user opens
    for all commands, `blocked_domains` what the configuration blocks. `scripts` is where scripts of skills run.
    `unheld` is what the level cannot hold of any scope, `withheld` says what it refuses although a scope gives it.
    `always`: decisions have the scope also where nothing holds it. `is_here`: the facts are of this machine.
    `is_untried`: no level works, and a trial of one failed for a reason of its own."""

    level: SandboxLevel
    wanted: str
    gather: Callable[[], ScopeFacts]
    why: str = ""
    opened: Widening = NO_WIDENING
    blocked_domains: tuple[str, ...] = ()
    scripts: str | None = None
    unheld: tuple[str, ...] = ()
    withheld: Callable[[CommandScope, SandboxLevel], tuple[str, ...]] = nothing_withheld
    always: bool = False
    is_here: bool = True
    is_untried: bool = False
    _facts: ScopeFacts | None = field(default=None, init=False)
    _told: tuple[CommandScope, dict[str, Any]] | None = field(default=None, init=False)
    _plain: tuple[PolicyBundle, ScopeFacts, CommandScope] | None = field(default=None, init=False)

    @property
    def holds(self) -> bool:
        """True if commands are held at all."""
        return self.level != "none"

    def refused(self, bundle: PolicyBundle, capability: str) -> Decision | None:
        """The denial of what starts a program where nothing holds it as it has to be held; None where it may run."""
        return refused(bundle, capability, self.level, self.wanted, self.why, is_untried=self.is_untried)

    def facts(self) -> ScopeFacts:
        """What is to be known of this machine; its repository is looked at anew each time."""
        if self._facts is None:
            self._facts = self.gather()
        return self._facts._replace(repository=repository_of(self._facts.workspace)) if self.is_here else self._facts

    def scope(
        self, bundle: PolicyBundle, environment: Environment, grant: Widening = NO_WIDENING, *, network: bool = True
    ) -> CommandScope:
        """The scope of a command that is granted this. Without `network` it reaches nobody."""
        facts, plain = self.facts(), self._plain
        if grant == NO_WIDENING and plain is not None and plain[0] is bundle and plain[1] == facts:
            found = plain[2]  # as for nearly every command
        else:
            found = command_scope(
                bundle,
                facts,
                environment.os_family,
                opened=self.opened,
                blocked_domains=self.blocked_domains,
                grant=grant,
            )
            found = found._replace(unheld=(*found.unheld, *self.unheld))
            if grant == NO_WIDENING:
                self._plain = (bundle, facts, found)
        return found if network else found._replace(domains=())

    def server_scope(
        self, bundle: PolicyBundle, environment: Environment, *, write: tuple[str, ...], domains: tuple[str, ...]
    ) -> CommandScope:
        """The scope of an MCP server of the user's configuration, with what its entry says: real places that it writes
        to, and hosts that it reaches."""
        found = server_scope(
            bundle,
            self.facts(),
            environment.os_family,
            write=write,
            domains=domains,
            blocked_domains=self.blocked_domains,
        )
        return found._replace(unheld=(*found.unheld, *self.unheld))

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

    def notice(self, bundle: PolicyBundle, environment: Environment) -> str | None:
        """That nothing holds commands, and what follows from that, in a line for the user; None where something does,
        and where nobody wants it."""
        if self.holds or self.report(bundle, environment) is None:
            return None
        required = self.wanted not in ("none", STRONGEST) or (bundle.sandbox is not None and bundle.sandbox.required)
        follows = "commands run under the policy's lists and approvals alone"
        if self.is_untried or required:
            follows = f"commands are refused{'; --sandbox none runs them without one' if self.is_untried else ''}"
        why = f" ({self.why})" if self.why else ""
        return f"no sandbox holds commands here{why}: {follows}"

    def row(self, bundle: PolicyBundle, environment: Environment) -> dict[str, Any]:
        """How commands are held, in JSON: the level with the scope of a command that is granted nothing more, and why
        it is not a stronger one."""
        if not self.holds:
            return {"level": self.level}
        scope = self.scope(bundle, environment)
        if self._told is None or self._told[0] is not scope:
            self._told = scope, scope.to_wire(self.level, self.withheld(scope, self.level))
        return self._told[1]


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
