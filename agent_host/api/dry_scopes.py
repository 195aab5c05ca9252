"""How commands are held in a dry run: at the level of a case, on this machine or on one that somebody states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.app.sandboxing import withheld
from agent_host.routing.scoping import Scoping, nothing_withheld, stated_machine, this_machine
from policy.names import SANDBOX_GRANT
from policy.rules.command_scope import NO_WIDENING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.app.sandboxing import Level
    from agent_host.routing.environment import Environment
    from policy.scope import Widening


class Held(NamedTuple):
    """What commands may do beside what the bundle says: the hosts that the user opens, those that the configuration
    blocks, and where the host keeps its own: its records, temporary directory and steering files."""

    opened: Widening = NO_WIDENING
    blocked_domains: tuple[str, ...] = ()
    records: str = ""
    temporary: str | None = None
    steering: tuple[str, ...] = ()

    def scoping(self, level: Level, environment: Environment, is_here: bool) -> Scoping:
        """How commands are held at a level; `is_here`: the environment is this machine's."""
        gather = stated_machine(environment)
        if is_here:
            gather = this_machine(environment, temporary=self.temporary, records=self.records, steering=self.steering)
        return Scoping(
            level.level,
            level.wanted,
            gather,
            level.why,
            self.opened,
            self.blocked_domains,
            unheld=level.unheld,
            withheld=withheld if is_here and level.level != "none" else nothing_withheld,
            is_untried=level.is_untried,
            always=True,
            is_here=is_here,
        )


def without_grant(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments but for what the call asks for beyond its sandbox, which policy has read."""
    return {name: value for name, value in arguments.items() if name != SANDBOX_GRANT}
