"""What the mock services know, and how they answer: no network here."""

from __future__ import annotations

import re
import secrets
from base64 import b64decode
from binascii import Error as NotBase64
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_MAX_KEPT = 10_000
_MAX_ARTIFACT_BYTES = 50 * 1024 * 1024
_ARTIFACT_TYPES = frozenset({"tool_output", "file_diff", "session_history"})
_NEW_SESSION = {"userId": str, "tenantId": str, "executionEnvironment": str, "clientInfo": dict}
_ARTIFACT = {
    "sessionId": str,
    "artifactType": str,
    "artifactName": str,
    "contentType": str,
    "contentBase64": str,
}
_APPROVAL = dict.fromkeys(
    ("approvalId", "sessionId", "taskId", "userId", "tenantId", "workspaceId", "decision", "actionSummary"), str
)
_EVENT = {"eventType": str, "timestamp": str, "sessionId": str, "component": str, "severity": str, "payload": dict}
_CODES = {
    400: "INVALID_REQUEST",
    401: "UNAUTHORIZED",
    403: "UNAUTHORIZED",
    404: "SESSION_NOT_FOUND",
    409: "SESSION_EXPIRED",
    413: "WORKSPACE_UPLOAD_FAILED",
    429: "RATE_LIMITED",
}

Answer = tuple[int, Any]


class Refused(Exception):
    """The answer is an error: {code, message, retryable}, unless `body` is another."""

    def __init__(
        self, status: int, message: str, *, retry_after: str | None = None, body: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        retryable = status in (408, 429) or status >= 500
        self.body = body or {
            "code": _CODES.get(status, "INTERNAL_ERROR"),
            "message": message,
            "retryable": retryable,
        }


@dataclass(slots=True)
class Session:
    """A session as the service has it. `status` is active or cancelled, `reason` why it is cancelled, `cursors` the
    checkpoint cursors of its resumes."""

    session_id: str
    workspace_id: str
    request: Mapping[str, Any]
    status: str
    reason: str | None
    cursors: list[str | None]


class Artifact(NamedTuple):
    """One stored artifact; `fields` are those of the request without the content."""

    artifact_id: str
    artifact_uri: str
    workspace_id: str
    fields: Mapping[str, Any]
    data: bytes


class ServiceState:
    """Sessions, artifacts, approvals and events. See MockServices for the arguments."""

    def __init__(
        self,
        policy_bundle: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] | None,
        feature_flags: Mapping[str, bool] | None,
        incompatible: str | None,
        expired: Collection[str],
        capability_grant: str | None = None,
    ) -> None:
        self._capability_grant = capability_grant
        self._bundle = policy_bundle
        self._flags = {"approvalUiEnabled": True, "mcpEnabled": True} if feature_flags is None else dict(feature_flags)
        self._incompatible = incompatible
        self.expired = set(expired)
        self.sessions: dict[str, Session] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.histories: dict[str, Artifact] = {}
        self.approvals: deque[Mapping[str, Any]] = deque(maxlen=_MAX_KEPT)
        self.events: dict[str, deque[Mapping[str, Any]]] = {
            path: deque(maxlen=_MAX_KEPT) for path in ("/audit/events", "/telemetry/events")
        }
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()

    def answer(self, method: str, path: str, body: Any, key: str) -> Answer:
        """(status, JSON) of one request; the same `key` on the same path gives the same answer and does nothing.

        Raises:
            Refused: the answer is an error, and nothing was stored.
        """
        known = self._answers.get((path, key))
        if known is not None:
            return known
        for pattern, handle in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match is not None and method == "POST":
                answer = handle(self, body, *match.groups())
                break
        else:
            raise Refused(404, f"{method} {path} is not served here")
        self._answers[path, key] = answer
        if len(self._answers) > _MAX_KEPT:
            self._answers.popitem(last=False)
        return answer

    def create(self, body: Any) -> Answer:
        """POST /sessions."""
        _check(body, _NEW_SESSION)
        if self._incompatible is not None:
            return 201, {"compatibilityStatus": "incompatible", "incompatibilityReason": self._incompatible}
        session = Session(f"sess_{_random()}", f"ws_{_random()}", body, "active", None, [])
        self.sessions[session.session_id] = session
        return 201, self._grant(session)

    def resume(self, body: Any, session_id: str) -> Answer:
        """POST /sessions/{id}/resume."""
        _check(body, {})
        session = self._session(session_id)
        if session.status == "cancelled" or session_id in self.expired:
            raise Refused(409, f"session {session_id} is {session.status if session.reason else 'expired'}")
        session.cursors.append(body.get("checkpointCursor"))
        return 200, self._grant(session)

    def cancel(self, body: Any, session_id: str) -> Answer:
        """POST /sessions/{id}/cancel."""
        _check(body, {"reason": str})
        session = self._session(session_id)
        session.status, session.reason = "cancelled", body["reason"]
        return 204, None

    def store(self, body: Any, workspace_id: str) -> Answer:
        """POST /workspaces/{id}/artifacts."""
        _check(body, _ARTIFACT)
        if body["artifactType"] not in _ARTIFACT_TYPES:
            raise Refused(400, f"artifactType must be one of {', '.join(sorted(_ARTIFACT_TYPES))}")
        try:
            data = b64decode(body["contentBase64"], validate=True)
        except (NotBase64, ValueError) as error:
            raise Refused(400, f"contentBase64 is not base64: {error}") from None
        if len(data) > _MAX_ARTIFACT_BYTES:
            raise Refused(413, f"{len(data)} bytes are over the limit of {_MAX_ARTIFACT_BYTES}")
        fields = {name: value for name, value in body.items() if name != "contentBase64"}
        session_id, is_history = body["sessionId"], body["artifactType"] == "session_history"
        before = self.histories.get(session_id) if is_history else None
        artifact_id = before.artifact_id if before is not None else f"art_{_random()}"
        uri = f"workspaces/{workspace_id}/artifacts/{artifact_id}"
        artifact = Artifact(artifact_id, uri, workspace_id, fields, data)
        if is_history:
            self.histories[session_id] = artifact
        else:
            self.artifacts[artifact_id] = artifact
        return 201, {"artifactId": artifact_id, "artifactUri": uri}

    def approve(self, body: Any) -> Answer:
        """POST /approvals."""
        _check(body, _APPROVAL)
        if body["decision"] not in ("approved", "denied"):
            raise Refused(400, "decision must be approved or denied")
        self.approvals.append(body)
        return 201, {"approvalId": body["approvalId"]}

    def take_events(self, body: Any, path: str) -> Answer:
        """POST /audit/events and /telemetry/events: one envelope, or an array of them."""
        events = body if isinstance(body, list) else [body]
        for event in events:
            _check(event, _EVENT)
        self.events[path].extend(events)
        return 202, None

    def _session(self, session_id: str) -> Session:
        session = self.sessions.get(session_id)
        if session is None:
            raise Refused(404, f"no session {session_id}")
        return session

    def _grant(self, session: Session) -> dict[str, Any]:
        grant: dict[str, Any] = {
            "sessionId": session.session_id,
            "workspaceId": session.workspace_id,
            "compatibilityStatus": "compatible",
            "featureFlags": self._flags,
        }
        if self._capability_grant is not None:
            grant["capabilityGrant"] = self._capability_grant
        if callable(self._bundle):
            grant["policyBundle"] = self._bundle(session.session_id)
        elif self._bundle is not None:
            grant["policyBundle"] = {**self._bundle, "sessionId": session.session_id}
        return grant


_ID = "[A-Za-z0-9_-]{1,128}"
_ROUTES: tuple[tuple[str, Callable[..., Answer]], ...] = (
    ("/sessions", ServiceState.create),
    (f"/sessions/({_ID})/resume", ServiceState.resume),
    (f"/sessions/({_ID})/cancel", ServiceState.cancel),
    (f"/workspaces/({_ID})/artifacts", ServiceState.store),
    ("/approvals", ServiceState.approve),
    ("(/audit/events|/telemetry/events)", ServiceState.take_events),
)


def _check(body: Any, wanted: Mapping[str, type]) -> None:
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object")
    for name, kind in wanted.items():
        if not isinstance(body.get(name), kind):
            raise Refused(400, f"{name} is missing or no {kind.__name__}")


def _random() -> str:
    return secrets.token_hex(8)
