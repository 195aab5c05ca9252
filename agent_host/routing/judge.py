"""Policy's word on one call, the same for the loop and for a dry run: the tool, its facts, the decision (AH 6.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_host.routing.facts import UnusableArguments, gather
from policy.check import check_tool
from policy.rules.options import AS_THE_BUNDLE_SAYS, narrowed
from policy.rules.toolset import under_ceiling, why_not_offered, withheld_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from agent_host.contracts import ToolSpec
    from agent_host.routing.facts import Environment, World
    from agent_host.routing.registry import Registry
    from policy.bundle.model import PolicyBundle
    from policy.decision import Decision
    from policy.facts import ActionFacts, PathFacts
    from policy.rules.options import TaskOptions
    from policy.rules.toolset import Limits


class Judged(NamedTuple):
    """What was found of a call. `spec` is None for a name that no tool has. Without a `decision`, either the limits
    withhold the tool, and `withheld` names the setting, or the arguments cannot be used, and `problem` says why."""

    spec: ToolSpec | None = None
    facts: ActionFacts | None = None
    decision: Decision | None = None
    withheld: str | None = None
    problem: str | None = None


NOT_JUDGED = Judged()


@dataclass(slots=True)
class Judge:
    """What calls are judged by: the bundle, the limits of the configuration and the options of the task, for the tools
    that there are, in their environment. `expired`: a decision found the bundle to be expired."""

    bundle: PolicyBundle
    environment: Environment
    tools: Registry
    limits: Limits
    clock: Callable[[], datetime]
    options: TaskOptions = AS_THE_BUNDLE_SAYS
    expired: bool = False

    def decide(self, name: str, arguments: Mapping[str, Any], world: World | None = None) -> Judged:
        """The decision on a call of the tool `name`. Facts come from this disk, or from `world`; nothing is run."""
        spec = self.tools.get(name)
        if spec is None:
            return NOT_JUDGED
        withheld = withheld_by(self.limits, name, spec.capability)
        if withheld is not None:
            return Judged(spec, withheld=withheld)
        try:
            facts = gather(spec, arguments, self.environment, world)
        except UnusableArguments as error:
            return Judged(spec, problem=str(error))
        workspace, os = self.environment.workspace, self.environment.os_family
        decision = check_tool(self.bundle, spec.capability, facts, now=self.clock(), os=os, workspace=workspace)
        decision = narrowed(
            decision, self.options, self.bundle, facts, side_effects=spec.side_effects, workspace=workspace, os=os
        )
        decision = under_ceiling(decision, self.limits, self.bundle, facts, workspace=workspace, os=os)
        self.expired = self.expired or decision.expired
        return Judged(spec, facts, decision)

    def offered(self) -> list[ToolSpec]:
        """The tools that the model is offered: those that some call could be allowed of."""
        workspace, os = self.environment.workspace, self.environment.os_family
        return [
            spec
            for spec in self.tools
            if why_not_offered(
                self.bundle,
                spec.name,
                spec.capability,
                limits=self.limits,
                options=self.options,
                workspace=workspace,
                os=os,
            )
            is None
        ]

    def may_read(self, place: PathFacts) -> bool:
        """Whether the bundle lets anybody read the file, whatever its size."""
        reading = "File.Read"
        if self.bundle.capability(reading) is None:
            return True
        place = place._replace(size_bytes=None)  # one that is too large to show is kept all the same
        verdict = check_tool(self.bundle, reading, place, now=self.clock(), os=self.environment.os_family)
        return verdict.decision != "DENIED"
