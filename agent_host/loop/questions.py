"""Questions of one turn that wait for an answer at the same time: one answer may cover several of them (AH 10.2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_host.approval.request import ApprovalAnswer

if TYPE_CHECKING:
    from agent_host.approval.gate import ApprovalGate
    from agent_host.approval.request import ApprovalRequest


class Questions:
    """What waits at the gate, with the action that an approval for a task or a session would be bound to."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, asyncio.Future[ApprovalAnswer]]] = {}

    async def ask(self, gate: ApprovalGate, request: ApprovalRequest, action: str) -> ApprovalAnswer:
        """The gate's answer, or that of an equal question that was answered for both, whichever comes first."""
        covered: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[request.approval_id] = action, covered
        asking = asyncio.ensure_future(gate.ask(request))
        try:
            await asyncio.wait({asking, covered}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else covered.result()
        finally:
            del self._waiting[request.approval_id]
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
                if not asking.cancelled():
                    asking.result()  # a fault of the gate is not swallowed

    def cover(self, action: str, approval_id: str) -> None:
        """Answer every other question about the `action`, which the approval `approval_id` covers from now on."""
        for other, (waiting_for, covered) in self._waiting.items():
            if other != approval_id and waiting_for == action and not covered.done():
                covered.set_result(ApprovalAnswer(True, f"covered by the answer to {approval_id}"))
