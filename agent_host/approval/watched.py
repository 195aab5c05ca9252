"""The gate as the loop sees it: a call that waits at it is seen in the task's state (AH 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_host.approval.gate import ApprovalGate
    from agent_host.approval.request import ApprovalAnswer, ApprovalRequest
    from agent_host.states import Machine, TaskPhase


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
