"""The Session Service gives a session its ids and its bundle, and says whether it may go on (AH 3.2, 9.5, 9.6)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from agent_host.errors import AgentHostError, ServiceRejected, SessionExpired, SessionNotFound
from agent_host.http import usable_in_header
from agent_host.services import check_id, check_line, check_object
from config import json_text
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.services.http import ServiceClient

Compatibility = Literal["compatible", "incompatible"]
_NOT_FOUND, _CONFLICT = 404, 409
_MAX_GRANT_CHARS = 64 * 1024


class NewSession(NamedTuple):
    """The request for a session. `session_id` is an id wished for, which only the embedded home can grant."""

    user_id: str
    tenant_id: str
    execution_environment: str
    local_paths: tuple[str, ...] = ()
    client_info: Mapping[str, Any] = {}
    supported_capabilities: tuple[str, ...] = ()
    session_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """The body of POST /sessions."""
        return {
            "userId": self.user_id,
            "tenantId": self.tenant_id,
            "executionEnvironment": self.execution_environment,
            "workspaceHint": {"localPaths": list(self.local_paths)},
            "clientInfo": dict(self.client_info),
            "supportedCapabilities": list(self.supported_capabilities),
        }


class SessionGrant(NamedTuple):
    """The grant of the service. An incompatible one grants nothing: the caller raises Incompatible, and the ids may be
    empty. `policy_bundle` is the bundle's JSON, which the caller validates; None: the host's own settings name it.
    `capability_grant` is what the Backend Tool Service is to get with each call; None: the host signs its own."""

    session_id: str
    workspace_id: str
    compatibility_status: Compatibility = "compatible"
    incompatibility_reason: str | None = None
    policy_bundle: bytes | None = None
    feature_flags: Mapping[str, bool] = {}
    capability_grant: str | None = None


class SessionService(Protocol):
    """The authority on which sessions exist. Every method raises ServiceUnavailable, ServiceUnauthorized,
    ServiceRejected."""

    async def create(self, new: NewSession) -> SessionGrant:
        """A session, or the word that this host is too old or too new for one."""
        ...

    async def resume(self, session_id: str, *, checkpoint_cursor: str | None) -> SessionGrant:
        """The same session with a bundle that is fresh; `checkpoint_cursor` is the last completed step. Raises
        SessionNotFound, SessionExpired."""
        ...

    async def cancel(self, session_id: str, *, reason: str) -> None:
        """Say that the session has ended (AH 3.4). Raises SessionNotFound, SessionExpired."""
        ...


class EmbeddedSessionService:
    """Sessions without a server: ids are made here, and every one is compatible. `workspace_of` gives the workspace of
    a session that there is, or raises SessionNotFound; `new_id` makes an id with this prefix."""

    FLAGS: Mapping[str, bool] = {"approvalUiEnabled": True, "mcpEnabled": True}

    def __init__(self, workspace_of: Callable[[str], str], new_id: Callable[[str], str]) -> None:
        self._workspace_of = workspace_of
        self._new_id = new_id

    async def create(self, new: NewSession) -> SessionGrant:
        """See SessionService. The wished id is granted as it is: the code that puts files under it checks it."""
        return SessionGrant(new.session_id or self._new_id("sess"), self._new_id("ws"), feature_flags=self.FLAGS)

    async def resume(self, session_id: str, *, checkpoint_cursor: str | None) -> SessionGrant:  # noqa: ARG002
        """See SessionService. Where the session goes on is known from its checkpoint alone."""
        return SessionGrant(session_id, self._workspace_of(session_id), feature_flags=self.FLAGS)

    async def cancel(self, session_id: str, *, reason: str) -> None:
        """See SessionService. What ends here is on disk already."""


class HttpSessionService:
    """POST /sessions, /sessions/{id}/resume and /sessions/{id}/cancel."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def create(self, new: NewSession) -> SessionGrant:
        """See SessionService."""
        return _grant(await self._client.post("/sessions", json_text.dumps(new.to_wire())))

    async def resume(self, session_id: str, *, checkpoint_cursor: str | None) -> SessionGrant:
        """See SessionService. An answer that is about another session is refused."""
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
            # A conflict that the service does not explain may be a proxy's, and what follows cannot be taken back.
            explained = error.status == _CONFLICT and error.service_code is not None
            if explained or error.service_code == SessionExpired.code:
                raise SessionExpired(f"session {session_id} has ended: {error}") from error
            if error.status == _NOT_FOUND:
                raise SessionNotFound(f"the session service knows no session {session_id}: {error}") from error
            raise


async def say_goodbye(service: SessionService, session_id: str, *, reason: str, within_s: float) -> None:
    """Report to the service that a session has ended, as well as that goes: it is over here, whether or not the service
    hears of it."""
    try:
        async with asyncio.timeout(within_s):
            await service.cancel(session_id, reason=reason)
    except (AgentHostError, TimeoutError):
        return


def _grant(answer: Any) -> SessionGrant:
    """The answer of create and resume, every type checked. Raises ServiceRejected."""
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
        # A flag that is neither on nor off is of a later version, and means nothing here.
        feature_flags={
            name: flag
            for name, flag in check_object({} if flags is None else flags, "featureFlags").items()
            if isinstance(flag, bool)
        },
        capability_grant=_capability_grant(fields.get("capabilityGrant")),
    )


def _capability_grant(value: object) -> str | None:
    """Raises ServiceRejected for what no header can carry; what it says is the Backend Tool Service's to judge."""
    if value is None:
        return None
    if isinstance(value, str) and 0 < len(value) <= _MAX_GRANT_CHARS and usable_in_header(value):
        return value
    raise ServiceRejected("the session service's capabilityGrant is no line that a header can carry", status=200)
