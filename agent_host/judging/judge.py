"""Everything that calls are judged by, and the tools that the model is offered under it (AH 6.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from policy.rules.case import AS_THE_BUNDLE_SAYS
from policy.rules.toolset import why_not_offered, withheld_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from agent_host.contracts import Maker, ToolSpec
    from agent_host.judging.environment import Environment, Registry
    from agent_host.judging.facts import Scripts
    from agent_host.judging.scoping import Scoping
    from policy.bundle.model import PolicyBundle
    from policy.facts import PathFacts
    from policy.rules.case import Limits, NativeExec, TaskOptions


_READING = "File.Read"


class Approved(Protocol):
    """Tools of the workspace that a person has approved, by what they consist of (`state.tool_lists`)."""

    def knows(self, name: str, identity: str) -> bool:
        """True if this one is."""
        ...

    def approve(self, name: str, identity: str) -> None:
        """Have it approved from now on. Raises WriteFailed."""
        ...


def _no_runs() -> int:
    return 0


def _nothing_stored(_ref: str) -> Maker | None:
    return None


@dataclass(slots=True, eq=False, repr=False)
class Judge:
    """Everything that calls are judged by: the bundle, the limits of the configuration and the options of the task, for
    the tools that there are, in their environment. `expired`: a decision found the bundle to be expired. `outputs`
    gives the call that stored something under a reference, None for no reference of the session; `approved` are the
    tools of the workspace that a person has approved, None for none. `native` is the list of programs that start
    without a shell, None where none does. `scripts` are those of the skills on this machine, and `script_runs` is how
    many have run in the task. `tool_lists` has the SHA-256 of the list that the tools of each source elsewhere are
    from, by its name. `scoping` says how commands are held, None where nobody asks."""

    bundle: PolicyBundle
    environment: Environment
    tools: Registry
    limits: Limits
    clock: Callable[[], datetime]
    options: TaskOptions = AS_THE_BUNDLE_SAYS
    expired: bool = False
    outputs: Callable[[str], Maker | None] = _nothing_stored
    approved: Approved | None = None
    native: NativeExec | None = None
    scripts: Scripts | None = None
    script_runs: Callable[[], int] = _no_runs
    tool_lists: Mapping[str, str] = field(default_factory=dict)
    scoping: Scoping | None = None

    def sandbox(self) -> dict[str, Any]:
        """{sandbox} with how commands are held (`Scoping.report`), for events and results; empty where nothing is to
        be said."""
        said = None if self.scoping is None else self.scoping.report(self.bundle, self.environment)
        return {} if said is None else {"sandbox": said}

    def offered_tools(self) -> list[ToolSpec]:
        """The tools that the model is offered: those that some call could be allowed of."""
        offered = {spec.name for spec in self.tools if spec.subject.kind != "output" and self._is_offered(spec)}
        # What reads outputs needs what the calls needed that left them.
        return [
            spec
            for spec in self.tools
            if spec.name in offered
            or (spec.subject.kind == "output" and offered and withheld_by(self.limits, spec.name, _READING) is None)
        ]

    def _is_offered(self, spec: ToolSpec) -> bool:
        workspace, os = self.environment.workspace, self.environment.os_family
        return not any(
            why_not_offered(
                self.bundle,
                spec.name,
                capability,
                limits=self.limits,
                options=self.options,
                workspace=workspace,
                os=os,
                elsewhere=spec.elsewhere,
            )
            for capability in spec.capabilities
        )

    def may_read(self, place: PathFacts) -> bool:
        """True if the bundle lets anybody read the file, whatever its size."""
        if self.bundle.capability(_READING) is None:
            return True
        from policy.decide import check_tool  # with it comes all that judges a call

        place = place._replace(size_bytes=None)  # one that is too large to show is kept all the same
        verdict = check_tool(self.bundle, _READING, place, now=self.clock(), os=self.environment.os_family)
        return verdict.decision != "DENIED"
