"""Who answers when policy wants a person's word (AH 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent_host.approval.request import ApprovalAnswer

if TYPE_CHECKING:
    from agent_host.approval.request import ApprovalRequest


class ApprovalGate(Protocol):
    """Waits for an answer as long as it takes; the loop goes on with the calls that need none."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """The answer to one request."""
        ...


class UnattendedGate:
    """Nobody is there: what was approved in advance is approved, everything else is denied at once (SK 4.2).

    `in_advance` holds approval rule ids, tool names and capability names, as given to `--approve`.
    """

    def __init__(self, in_advance: frozenset[str], *, approve_all: bool = False) -> None:
        self._in_advance = in_advance
        self._approve_all = approve_all

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer from what was said before the run."""
        if self._approve_all:
            return ApprovalAnswer(approved=True, reason="approved in advance by --approve-all")
        for name in (request.rule_id, request.tool_name, request.capability):
            if name is not None and name in self._in_advance:
                return ApprovalAnswer(approved=True, reason=f"approved in advance by --approve {name}")
        return ApprovalAnswer(
            approved=False, reason="it needs an approval, and nobody is there to give one", unattended=True
        )
