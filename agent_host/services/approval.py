"""The Approval Service keeps who approved what (AH 10.4). Nothing waits for it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from agent_host.errors import ServiceError, ServiceRejected, ServiceUnavailable
from agent_host.safe_open import open_regular
from config import json_text
from config.json_text import encodable
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from agent_host.services.http import ServiceClient


class ApprovalDecision(NamedTuple):
    """One answer of a person, or of the policy in place of one. `client_timestamp` is RFC 3339. `told_again`: a former
    process may have had it kept already."""

    approval_id: str
    session_id: str
    task_id: str
    user_id: str
    tenant_id: str
    workspace_id: str
    decision: Literal["approved", "denied"]
    action_summary: str
    client_timestamp: str
    step_id: str | None = None
    reason: str | None = None
    risk_level: str | None = None
    told_again: bool = False

    def to_wire(self) -> dict[str, Any]:
        """The body of POST /approvals; absent fields are left out."""
        wire = {
            "approvalId": self.approval_id,
            "sessionId": self.session_id,
            "taskId": self.task_id,
            "stepId": self.step_id,
            "userId": self.user_id,
            "tenantId": self.tenant_id,
            "workspaceId": self.workspace_id,
            "decision": self.decision,
            "reason": self.reason,
            "actionSummary": self.action_summary,
            "riskLevel": self.risk_level,
            "clientTimestamp": self.client_timestamp,
        }
        return {name: encodable(value) for name, value in wire.items() if value is not None}


class ApprovalService(Protocol):
    """The home of decisions."""

    async def record(self, decision: ApprovalDecision) -> None:
        """Keep one decision. Raises ServiceUnavailable when it may work later, ServiceRejected when it will not."""
        ...


class EmbeddedApprovalService:
    """Decisions as lines of a file of the session's folder, private to the user."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def record(self, decision: ApprovalDecision) -> None:
        """See ApprovalService."""
        line = json_text.dumps(decision.to_wire(), option=orjson.OPT_APPEND_NEWLINE)
        try:
            if decision.told_again and self._has(decision):
                return
            with os.fdopen(open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as handle:
                handle.write(line)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ServiceUnavailable(f"approval {decision.approval_id} was not kept: {reason}") from error

    def _has(self, decision: ApprovalDecision) -> bool:
        named = orjson.dumps(decision.approval_id)
        with os.fdopen(open_regular(self._path, os.O_RDONLY | os.O_CREAT), "rb") as handle:
            return any(named in line for line in handle)


class HttpApprovalService:
    """POST /approvals; the same decision carries the same Idempotency-Key, also from another process."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def record(self, decision: ApprovalDecision) -> None:
        """See ApprovalService."""
        body = json_text.dumps(decision.to_wire())
        # What was decided: what reports it again after a crash knows neither when that was nor all that was shown.
        known_by = json_text.dumps([decision.session_id, decision.approval_id, decision.decision])
        await self._client.post("/approvals", body, idempotency_key=hashlib.sha256(known_by).hexdigest())


class ApprovalReporter:
    """Takes decisions without waiting and delivers them in the background, in order.

    A decision that finds the service away stays first in line and is tried again after `pause_s`, beyond what the
    service's own client retries. With more than `max_pending` in line the oldest are dropped; so is what the service
    refuses, and what is left when the time of `aclose` is over. `dropped` counts them all. Use it on one event loop.
    """

    def __init__(self, service: ApprovalService, *, max_pending: int = 1000, pause_s: float = 30.0) -> None:
        self._service = service
        self._max_pending = max_pending
        self._pause_s = pause_s
        self._line: deque[ApprovalDecision] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.dropped = 0

    @property
    def pending(self) -> int:
        """Decisions that are not delivered yet."""
        return len(self._line)

    def take(self, decision: ApprovalDecision) -> None:
        """Have the decision delivered. After `aclose` it is dropped."""
        if self._closing.is_set():
            self.dropped += 1
            return
        self._line.append(decision)
        if len(self._line) > self._max_pending:
            self._line.popleft()
            self.dropped += 1
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._deliver())

    async def aclose(self, timeout_s: float) -> None:
        """Give what is pending `timeout_s` seconds, and one more try a decision; then let it go. Leaves no task."""
        self._closing.set()
        worker = self._worker
        try:
            if worker is not None:
                await asyncio.wait({worker}, timeout=timeout_s)
        finally:
            if worker is not None and not worker.done():
                worker.cancel()
                await asyncio.wait({worker})
            self.dropped += len(self._line)
            self._line.clear()

    async def _deliver(self) -> None:
        while self._line:
            decision = self._line[0]
            try:
                await self._service.record(decision)
            except ServiceRejected:
                self._leave(decision, dropped=True)
            except ServiceError:
                if self._closing.is_set():
                    return
                await self._pause()
            else:
                self._leave(decision, dropped=False)

    def _leave(self, decision: ApprovalDecision, *, dropped: bool) -> None:
        """The decision has been dealt with; it may have been pushed out of the line in the meantime."""
        if self._line and self._line[0] is decision:
            self._line.popleft()
            self.dropped += dropped
        elif not dropped:
            self.dropped -= 1

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._pause_s):
                await self._closing.wait()
        except TimeoutError:
            return
