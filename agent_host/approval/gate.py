"""Approvers: who answers when policy requires a person's approval (AH 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent_host.approval.request import ApprovalAnswer
from config.lean_typing import NamedTuple
from policy.names import SANDBOX_GRANT

if TYPE_CHECKING:
    from agent_host.approval.request import ApprovalRequest
    from agent_host.states import Machine, TaskPhase


class ApprovalGate(Protocol):
    """Waits for an answer as long as it takes; the loop goes on with the calls that need none."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """The answer to one request."""
        ...


class InAdvance(NamedTuple):
    """Approvals that were given before anybody was asked. `names` holds approval rule ids, tool names and capability
    names, as given to `--approve`; `everything` is `--approve-all`. A call of a guarded tool is approved by the name of
    its tool alone (SK 3.2), one that asks for more than its sandbox gives by the name of that alone."""

    names: frozenset[str] = frozenset()
    everything: bool = False

    def answer(self, request: ApprovalRequest) -> ApprovalAnswer | None:
        """The approval of `request`, None where nothing was said about it. A form has no answer in advance."""
        if request.form is not None:
            return None
        if self.everything and not request.by_name:
            return ApprovalAnswer(approved=True, reason="approved in advance by --approve-all")
        names: tuple[str | None, ...] = (request.tool_name, request.rule_id, request.capability)
        if request.rule_id == SANDBOX_GRANT:
            names = (SANDBOX_GRANT,) if not request.by_name or request.tool_name in self.names else ()
        elif request.by_name:
            names = (request.tool_name,)
        for name in names:
            if name is not None and name in self.names:
                return ApprovalAnswer(approved=True, reason=f"approved in advance by --approve {name}")
        return None


class UnattendedGate:
    """Nobody is there: what was approved in advance is approved, everything else is denied at once (SK 4.2)."""

    def __init__(self, in_advance: frozenset[str], *, approve_all: bool = False) -> None:
        self._in_advance = InAdvance(in_advance, approve_all)

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer from what was said before the run."""
        answer = self._in_advance.answer(request)
        if answer is not None:
            return answer
        if request.form is not None:
            return ApprovalAnswer(approved=False, reason="nobody is there to answer it", unattended=True)
        reason = "it needs an approval, and nobody is there to give one"
        if request.by_name:
            reason += f"; only --approve {request.tool_name} gives it in advance"
        elif request.rule_id == SANDBOX_GRANT:
            reason += f"; only --approve {SANDBOX_GRANT} gives it in advance"
        return ApprovalAnswer(approved=False, reason=reason, unattended=True)


# The gate as the loop sees it: a call that waits at it is seen in the task's state (AH 3.3).


class WatchedGate:
    """An `ApprovalGate` in front of another. The task waits for approval as long as any of its calls does."""

    def __init__(self, gate: ApprovalGate, phase: Machine[TaskPhase]) -> None:
        self._gate = gate
        self._phase = phase
        self._waiting = 0

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """The answer to one request."""
        if self._waiting == 0:
            self._phase.fire("ask")
        self._waiting += 1
        try:
            return await self._gate.ask(request)
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._phase.fire("execute")
