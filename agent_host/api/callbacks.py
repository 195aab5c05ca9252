"""What an embedding program hands in: who approves, and who gets the events."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_host.approval.gate import InAdvance, UnattendedGate
from agent_host.approval.request import ApprovalAnswer, ApprovalRequest

if TYPE_CHECKING:
    from agent_host.approval.gate import ApprovalGate
    from agent_host.events.emitter import Event
    from agent_host.session.opening import ResolvedOptions

Decision = bool | ApprovalAnswer
Approve = Callable[[ApprovalRequest], Decision | Awaitable[Decision]]
"""Answers one request for approval, as long as it takes. True approves this call once."""
OnEvent = Callable[[Mapping[str, Any]], object]
"""Takes one event as docs/events.md has it, without secrets. It is called from the event loop and never waited for."""


def gate_of(resolved: ResolvedOptions, approve: Approve | None) -> ApprovalGate:
    """The gate of a session: `approve` is asked for what was not approved in advance; without it that is denied."""
    if approve is None:
        return UnattendedGate(resolved.approvals, approve_all=resolved.approve_all)
    return _Callback(resolved, approve)


def sinks_of(on_event: OnEvent | None) -> list[_EventCallback]:
    """The sinks of a session whose events `on_event` takes."""
    return [] if on_event is None else [_EventCallback(on_event)]


class _Callback:
    """A gate that asks the embedding program for what was not approved in advance."""

    def __init__(self, resolved: ResolvedOptions, approve: Approve) -> None:
        self._in_advance = InAdvance(resolved.approvals, resolved.approve_all)
        self._approve = approve

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See ApprovalGate."""
        answer = self._in_advance.answer(request)
        if answer is not None:
            return answer
        decided = self._approve(request)
        if inspect.isawaitable(decided):
            decided = await decided
        return decided if isinstance(decided, ApprovalAnswer) else ApprovalAnswer(bool(decided), "")


class _EventCallback:
    """A sink that hands events to the embedding program in the next turn of the event loop, where a fault of the
    callback is that program's and stops nothing here."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def take(self, event: Event) -> None:
        """See Sink."""
        asyncio.get_running_loop().call_soon(self._on_event, json.loads(event.line()))

    def flush(self) -> None:
        """See Sink."""
