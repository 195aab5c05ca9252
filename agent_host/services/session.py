"""Session Service: provides a session's ids and policy bundle, and decides if it may be resumed (AH 3.2, 9.5, 9.6)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from agent_host.errors import (
    AgentHostError,
    ServiceError,
    ServiceRejected,
    ServiceUnavailable,
    SessionExpired,
    SessionNotFound,
)
from agent_host.http import usable_in_header
from agent_host.safe_open import open_regular
from agent_host.services import BackgroundQueue, check_id, check_line, check_object
from config import json_text
from config.json_text import encodable
from config.lean_typing import NamedTuple
from state.checkpoint import name_in_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.services.http import ServiceClient

Compatibility = Literal["compatible", "incompatible"]
_NOT_FOUND, _CONFLICT = 404, 409
_MAX_GRANT_CHARS = 64 * 1024


class NewSession(NamedTuple):
    """A request for a session. `session_id` is the desired id, which only the embedded service can grant."""

    user_id: str
    tenant_id: str
    execution_environment: str
    local_paths: tuple[str, ...] = ()
    client_info: Mapping[str, Any] = {}
    supported_capabilities: tuple[str, ...] = ()
    session_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the body of POST /sessions."""
        return {
            "userId": self.user_id,
            "tenantId": self.tenant_id,
            "executionEnvironment": self.execution_environment,
            "workspaceHint": {"localPaths": list(self.local_paths)},
            "clientInfo": dict(self.client_info),
            "supportedCapabilities": list(self.supported_capabilities),
        }


class SessionGrant(NamedTuple):
    """The service's grant. An incompatible one grants nothing: the caller raises Incompatible, and the ids may be
    empty. `policy_bundle` is the bundle's JSON, which the caller validates; None if the host's own settings name the
    bundle. `capability_grant` is sent to the Backend Tool Service with each call; None if the host signs its own."""

    session_id: str
    workspace_id: str
    compatibility_status: Compatibility = "compatible"
    incompatibility_reason: str | None = None
    policy_bundle: bytes | None = None
    feature_flags: Mapping[str, bool] = {}
    capability_grant: str | None = None

    @property
    def brings_policy(self) -> bool:
        """True if the service provides the policy bundle."""
        return self.policy_bundle is not None


class SessionService(Protocol):
    """The authority on which sessions exist. Every method raises ServiceUnavailable, ServiceUnauthorized,
    ServiceRejected."""

    async def create(self, new: NewSession) -> SessionGrant:
        """Create a session; the grant is incompatible if this host is too old or too new for one."""

    async def resume(self, session_id: str, *, checkpoint_cursor: str | None) -> SessionGrant:
        """Return a grant for the same session with a fresh bundle; `checkpoint_cursor` is the last completed step.
        Raises SessionNotFound, SessionExpired."""

    async def cancel(self, session_id: str, *, reason: str) -> None:
        """Report that the session has ended (AH 3.4). Raises SessionNotFound, SessionExpired."""


class EmbeddedSessionService:
    """Sessions without a server: ids are made locally, and every session is compatible. `workspace_of` returns the
    workspace of an existing session or raises SessionNotFound; `new_id` makes an id with the given prefix."""

    FLAGS: Mapping[str, bool] = {"approvalUiEnabled": True, "mcpEnabled": True}

    def __init__(self, workspace_of: Callable[[str], str], new_id: Callable[[str], str]) -> None:
        self._workspace_of = workspace_of
        self._new_id = new_id

    async def create(self, new: NewSession) -> SessionGrant:
        """See SessionService. The desired id is granted as it is: the code that uses it in file names checks it."""
        return SessionGrant(new.session_id or self._new_id("sess"), self._new_id("ws"), feature_flags=self.FLAGS)

    async def resume(self, session_id: str, *, checkpoint_cursor: str | None) -> SessionGrant:  # noqa: ARG002
        """See SessionService. The checkpoint alone determines where the session continues."""
        return SessionGrant(session_id, self._workspace_of(session_id), feature_flags=self.FLAGS)

    async def cancel(self, session_id: str, *, reason: str) -> None:
        """See SessionService. Nothing to do: the end is on disk already."""


class HttpSessionService:
    """POST /sessions, /sessions/{id}/resume and /sessions/{id}/cancel."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def create(self, new: NewSession) -> SessionGrant:
        """See SessionService."""
        return _grant(await self._client.post("/sessions", json_text.dumps(new.to_wire())))

    async def resume(self, session_id: str, *, checkpoint_cursor: str | None) -> SessionGrant:
        """See SessionService. A response about another session is rejected."""
        grant = _grant(await self._post(session_id, "resume", {"checkpointCursor": checkpoint_cursor}))
        if grant.compatibility_status == "compatible" and grant.session_id != session_id:
            raise ServiceRejected("the session service answered a resume with another session", status=200)
        return grant

    async def cancel(self, session_id: str, *, reason: str) -> None:
        """See SessionService."""
        await self._post(session_id, "cancel", {"reason": reason})

    async def _post(self, session_id: str, verb: str, body: dict[str, Any]) -> Any:
        path = f"/sessions/{check_id(session_id, 'sessionId')}/{verb}"
        try:
            return await self._client.post(path, json_text.dumps(body))
        except ServiceRejected as error:
            # A conflict without a service code may come from a proxy, and ending a session cannot be undone.
            explained = error.status == _CONFLICT and error.service_code is not None
            if explained or error.service_code == SessionExpired.code:
                raise SessionExpired(f"session {session_id} has ended: {error}") from error
            if error.status == _NOT_FOUND:
                raise SessionNotFound(f"the session service has no session {session_id}: {error}") from error
            raise


async def report_end(service: SessionService, session_id: str, *, reason: str, within_s: float) -> None:
    """Report to the service that a session has ended. Errors and timeouts are ignored, because the session is over
    locally in any case."""
    with contextlib.suppress(AgentHostError, TimeoutError):
        async with asyncio.timeout(within_s):
            await service.cancel(session_id, reason=reason)


def _grant(answer: Any) -> SessionGrant:
    fields = check_object(answer, "the session service's answer")
    status = fields.get("compatibilityStatus")
    if status == "incompatible":
        reason = check_line(fields.get("incompatibilityReason"))
        return SessionGrant("", "", "incompatible", reason)
    if status != "compatible":
        raise ServiceRejected("the session service's answer has no compatibilityStatus that is known", status=200)
    bundle = fields.get("policyBundle")
    flags = fields.get("featureFlags")
    return SessionGrant(
        session_id=check_id(fields.get("sessionId"), "sessionId"),
        workspace_id=check_id(fields.get("workspaceId"), "workspaceId"),
        policy_bundle=None if bundle is None else orjson.dumps(check_object(bundle, "policyBundle")),
        # A flag that is not a boolean is from a later version, and is ignored.
        feature_flags={
            name: flag
            for name, flag in check_object({} if flags is None else flags, "featureFlags").items()
            if isinstance(flag, bool)
        },
        capability_grant=_capability_grant(fields.get("capabilityGrant")),
    )


def _capability_grant(value: object) -> str | None:
    """Check that a header can carry the grant. Raises ServiceRejected; the Backend Tool Service judges its content."""
    if value is None:
        return None
    if isinstance(value, str) and 0 < len(value) <= _MAX_GRANT_CHARS and usable_in_header(value):
        return value
    raise ServiceRejected("the session service's capabilityGrant is not a line that a header can carry", status=200)


# The Approval Service stores approval decisions (AH 10.4). Nothing waits for it.


class ApprovalDecision(NamedTuple):
    """A decision of a user, or of the policy in place of one. `client_timestamp` is RFC 3339. `is_retry`: an earlier
    process may have stored it already."""

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
    is_retry: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the body of POST /approvals; absent fields are left out."""
        fields = {name_in_files(name): value for name, value in self._asdict().items() if name != "is_retry"}
        return {name: encodable(value) for name, value in fields.items() if value is not None}


class ApprovalService(Protocol):
    """Storage of approval decisions."""

    async def record(self, decision: ApprovalDecision) -> None:
        """Store one decision. Raises ServiceUnavailable if a retry may succeed, ServiceRejected if not."""


class EmbeddedApprovalService:
    """Decisions as lines of a file in the session's folder, private to the user."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def record(self, decision: ApprovalDecision) -> None:
        """See ApprovalService."""
        line = json_text.dumps(decision.to_wire(), option=orjson.OPT_APPEND_NEWLINE)
        try:
            if decision.is_retry and self._has(decision):
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
    """POST /approvals; the same decision has the same Idempotency-Key, even if another process sends it."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def record(self, decision: ApprovalDecision) -> None:
        """See ApprovalService."""
        body = json_text.dumps(decision.to_wire())
        # Only the decision itself, because a process that reports it again after a crash knows neither the time nor the
        # whole summary.
        known_by = json_text.dumps([decision.session_id, decision.approval_id, decision.decision])
        await self._client.post("/approvals", body, idempotency_key=hashlib.sha256(known_by).hexdigest())


class ApprovalReporter(BackgroundQueue[ApprovalDecision]):
    """Accept decisions without waiting and deliver them in the background, in order.

    If the service is unavailable, the decision stays first in the queue and is retried after `pause_s`, in addition to
    the retries of the service's client. If the queue exceeds `max_pending`, the oldest are dropped; so are decisions
    that the service rejects, and those that remain when the time of `aclose` is over. `dropped` counts them all.
    """

    def __init__(self, service: ApprovalService, *, max_pending: int = 1000, pause_s: float = 30.0) -> None:
        super().__init__()
        self._service = service
        self._max_pending = max_pending
        self._pause_s = pause_s
        self.dropped = 0

    @property
    def pending(self) -> int:
        """The number of decisions that are not delivered yet."""
        return len(self._line)

    def take(self, decision: ApprovalDecision) -> None:
        """Queue the decision for delivery. After `aclose` it is dropped."""
        if self.is_closed:
            self.dropped += 1
            return
        self._add(decision)
        if len(self._line) > self._max_pending:
            self._line.popleft()
            self.dropped += 1

    async def aclose(self, timeout_s: float) -> None:
        """Give pending decisions `timeout_s` seconds and one more attempt each, then drop them. Leaves no task
        running."""
        try:
            await self._finish(timeout_s)
        finally:
            self.dropped += len(self._line)
            self._line.clear()

    async def _work(self) -> None:
        while self._line:
            decision, is_refused = self._line[0], False
            try:
                await self._service.record(decision)
            except ServiceRejected:
                is_refused = True
            except ServiceError:
                if self.is_closed:
                    return
                await self._pause(self._pause_s)
                continue
            if self._line and self._line[0] is decision:
                self._line.popleft()
                self.dropped += is_refused
            elif not is_refused:  # it was dropped meanwhile, but delivered after all
                self.dropped -= 1
