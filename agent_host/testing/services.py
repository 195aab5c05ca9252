"""The five backend services over real HTTP on loopback, for tests and CI jobs. docs/services.md describes them.

async with MockServices(policy_bundle=bundle) as services:
    ...  # SESSION_SERVICE_URL=services.url, and likewise for the other services
assert services.sessions["sess_1"].status == "active"
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import orjson

from agent_host.testing.http1 import MockServer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agent_host.testing.http1 import HttpRequest, Reply

__all__ = ["MockServices", "ServiceRequest", "ServiceSession", "StoredArtifact"]

_MAX_RECORDS = 10_000
_MAX_BODY_BYTES = 80 << 20
_JSON = {"content-type": "application/json"}
_ID = "[A-Za-z0-9_-]{1,128}"


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """One received request. Header names are in lower case; `body` is the parsed JSON, None if it is not JSON; `at_ns`
    is of `time.monotonic_ns`."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at_ns: int = field(default_factory=time.monotonic_ns)


class MockServices(MockServer):
    """Session, workspace, approval, audit and telemetry services at one base URL, `url`.

    Answers to create and resume contain the `policy_bundle` (a bundle, whose `sessionId` is set to the session's, or a
    function from the session's id to one), the `feature_flags` and the `capability_grant` for the Backend Tool Service.
    If `incompatible` is set, new sessions are refused as incompatible for this reason; `expired` are ids of sessions
    that cannot be resumed. If `token` is set, each request without that bearer token is refused.
    """

    def __init__(
        self,
        *,
        policy_bundle: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] | None = None,
        feature_flags: Mapping[str, bool] | None = None,
        incompatible: str | None = None,
        expired: Collection[str] = (),
        token: str | None = None,
        capability_grant: str | None = None,
    ) -> None:
        self._bundle = policy_bundle
        self._flags = {"approvalUiEnabled": True, "mcpEnabled": True} if feature_flags is None else dict(feature_flags)
        self._incompatible = incompatible
        self._expired = set(expired)
        self._capability_grant = capability_grant
        self._sessions: dict[str, ServiceSession] = {}
        self._artifacts: dict[str, StoredArtifact] = {}
        self._histories: dict[str, StoredArtifact] = {}
        self._approvals: deque[Mapping[str, Any]] = deque(maxlen=_MAX_RECORDS)
        self._events: dict[str, deque[Mapping[str, Any]]] = {
            path: deque(maxlen=_MAX_RECORDS) for path in ("/audit/events", "/telemetry/events")
        }
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()
        self._token = token
        self._requests: deque[ServiceRequest] = deque(maxlen=_MAX_RECORDS)
        self._faults: list[tuple[str, Refused]] = []
        self._hanging: list[str] = []
        self._losing: list[str] = []
        super().__init__(self._handle, name="mock-services", max_body_bytes=_MAX_BODY_BYTES)

    # Received data, usable from any thread.

    @property
    def requests(self) -> tuple[ServiceRequest, ...]:
        """The last 10,000 requests in order of arrival, including failed ones."""
        return tuple(self._requests)

    def requests_to(self, path_prefix: str) -> list[ServiceRequest]:
        """Return the requests whose path starts with `path_prefix`."""
        return [request for request in self.requests if request.path.startswith(path_prefix)]

    @property
    def sessions(self) -> dict[str, ServiceSession]:
        """The sessions by id."""
        return dict(self._sessions)

    @property
    def artifacts(self) -> tuple[StoredArtifact, ...]:
        """The stored artifacts in order, without histories. A request with a repeated Idempotency-Key stores
        nothing."""
        return tuple(self._artifacts.values())

    @property
    def histories(self) -> dict[str, StoredArtifact]:
        """The last history of each session, by session id."""
        return dict(self._histories)

    @property
    def approvals(self) -> tuple[Mapping[str, Any], ...]:
        """The last 10,000 approval decisions in order, each once."""
        return tuple(self._approvals)

    @property
    def audit_events(self) -> tuple[Mapping[str, Any], ...]:
        """The last 10,000 envelopes that the audit service accepted, in order."""
        return tuple(self._events["/audit/events"])

    @property
    def telemetry_events(self) -> tuple[Mapping[str, Any], ...]:
        """The last 10,000 envelopes that the telemetry service accepted, in order."""
        return tuple(self._events["/telemetry/events"])

    # Faults.

    def fail(
        self,
        path_prefix: str,
        status: int = 503,
        *,
        times: int = 1,
        retry_after: float | str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer the next `times` requests whose path starts with `path_prefix` with an error: `body`, or one generated
        for `status`. They store nothing."""
        after = None if retry_after is None else str(retry_after)
        self._faults += [(path_prefix, Refused(status, "failed on request", retry_after=after, body=body))] * times

    def hang(self, path_prefix: str) -> None:
        """From now on, accept requests whose path starts with `path_prefix` and never answer them."""
        self._hanging.append(path_prefix)

    def lose_answers(self, path_prefix: str, *, times: int = 1) -> None:
        """Process the next `times` requests whose path starts with `path_prefix`, but never answer them."""
        self._losing += [path_prefix] * times

    def heal(self) -> None:
        """Cancel all faults set by `fail`, `hang` and `lose_answers`."""
        self._faults.clear()
        self._hanging.clear()
        self._losing.clear()

    def expire(self, session_id: str) -> None:
        """Make the session impossible to resume from now on."""
        self._expired.add(session_id)

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        body = None
        with contextlib.suppress(orjson.JSONDecodeError):
            body = orjson.loads(request.body or b"null")
        self._requests.append(ServiceRequest(request.method, request.path, request.headers, body))
        if any(request.path.startswith(prefix) for prefix in self._hanging):
            await reply.await_client_end()
            return
        try:
            self._check_request(request)
            status, answer = self._answer(
                request.method, request.path, body, request.headers.get("idempotency-key") or secrets.token_hex(16)
            )
        except Refused as refused:
            headers = _JSON if refused.retry_after is None else {**_JSON, "retry-after": refused.retry_after}
            await reply.send(refused.status, headers, orjson.dumps(refused.body))
            return
        lost = next((prefix for prefix in self._losing if request.path.startswith(prefix)), None)
        if lost is not None:
            self._losing.remove(lost)
            await reply.await_client_end()
            return
        await reply.send(status, _JSON, b"" if answer is None else orjson.dumps(answer))

    def _check_request(self, request: HttpRequest) -> None:
        for index, (path_prefix, refused) in enumerate(self._faults):
            if request.path.startswith(path_prefix):
                del self._faults[index]
                raise refused
        if self._token is not None and request.headers.get("authorization") != f"Bearer {self._token}":
            raise Refused(401, "the bearer token is missing or wrong")
        if request.body is None:
            raise Refused(413, f"a request of {request.body_bytes} bytes is over the limit of {_MAX_BODY_BYTES}")

    def _answer(self, method: str, path: str, body: Any, key: str) -> Answer:
        """Process one request and return status and JSON; a repeated `key` on the same path only gets the same answer
        again. Raises Refused if the answer is an error; then nothing was stored."""
        known = self._answers.get((path, key))
        if known is not None:
            return known
        for pattern, handle in self._ROUTES:
            match = re.fullmatch(pattern, path)
            if match is not None and method == "POST":
                answer = handle(self, body, *match.groups())
                break
        else:
            raise Refused(404, f"{method} {path} is not served here")
        self._answers[path, key] = answer
        if len(self._answers) > _MAX_RECORDS:
            self._answers.popitem(last=False)
        return answer

    def _create(self, body: Any) -> Answer:
        _check(body, _NEW_SESSION)
        if self._incompatible is not None:
            return 201, {"compatibilityStatus": "incompatible", "incompatibilityReason": self._incompatible}
        session = ServiceSession(f"sess_{_random()}", f"ws_{_random()}", body, "active", None, [])
        self._sessions[session.session_id] = session
        return 201, self._grant(session)

    def _resume(self, body: Any, session_id: str) -> Answer:
        _check(body, {})
        session = self._session(session_id)
        if session.status == "cancelled" or session_id in self._expired:
            raise Refused(409, f"session {session_id} is {session.status if session.reason else 'expired'}")
        session.cursors.append(body.get("checkpointCursor"))
        return 200, self._grant(session)

    def _cancel(self, body: Any, session_id: str) -> Answer:
        _check(body, {"reason": str})
        session = self._session(session_id)
        session.status, session.reason = "cancelled", body["reason"]
        return 204, None

    def _store(self, body: Any, workspace_id: str) -> Answer:
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
        before = self._histories.get(session_id) if is_history else None
        artifact_id = before.artifact_id if before is not None else f"art_{_random()}"
        uri = f"workspaces/{workspace_id}/artifacts/{artifact_id}"
        artifact = StoredArtifact(artifact_id, uri, workspace_id, fields, data)
        if is_history:
            self._histories[session_id] = artifact
        else:
            self._artifacts[artifact_id] = artifact
        return 201, {"artifactId": artifact_id, "artifactUri": uri}

    def _approve(self, body: Any) -> Answer:
        _check(body, _APPROVAL)
        if body["decision"] not in ("approved", "denied"):
            raise Refused(400, "decision must be approved or denied")
        self._approvals.append(body)
        return 201, {"approvalId": body["approvalId"]}

    def _take_events(self, body: Any, path: str) -> Answer:
        events = body if isinstance(body, list) else [body]
        for event in events:
            _check(event, _EVENT)
        self._events[path].extend(events)
        return 202, None

    def _session(self, session_id: str) -> ServiceSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise Refused(404, f"no session {session_id}")
        return session

    def _grant(self, session: ServiceSession) -> dict[str, Any]:
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

    _ROUTES: ClassVar[tuple[tuple[str, Callable[..., Answer]], ...]] = (
        ("/sessions", _create),
        (f"/sessions/({_ID})/resume", _resume),
        (f"/sessions/({_ID})/cancel", _cancel),
        (f"/workspaces/({_ID})/artifacts", _store),
        ("/approvals", _approve),
        ("(/audit/events|/telemetry/events)", _take_events),
    )


_MAX_ARTIFACT_BYTES = 50 * 1024 * 1024
_ARTIFACT_TYPES = frozenset({"tool_output", "file_diff", "session_history"})
_NEW_SESSION = {"userId": str, "tenantId": str, "executionEnvironment": str, "clientInfo": dict}
_ARTIFACT = dict.fromkeys(("sessionId", "artifactType", "artifactName", "contentType", "contentBase64"), str)
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
    """The answer is an error with the body {code, message, retryable}, unless `body` is given."""

    def __init__(
        self, status: int, message: str, *, retry_after: str | None = None, body: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        retryable = status in (408, 429) or status >= 500
        self.body = body or {"code": _CODES.get(status, "INTERNAL_ERROR"), "message": message, "retryable": retryable}


@dataclass(slots=True)
class ServiceSession:
    """A session in the service. `status` is active or cancelled, `reason` the reason of its cancellation, `cursors` the
    checkpoint cursors of its resumes."""

    session_id: str
    workspace_id: str
    request: Mapping[str, Any]
    status: str
    reason: str | None
    cursors: list[str | None]


class StoredArtifact(NamedTuple):
    """One stored artifact; `fields` are the fields of the request except the content."""

    artifact_id: str
    artifact_uri: str
    workspace_id: str
    fields: Mapping[str, Any]
    data: bytes


def _check(body: Any, wanted: Mapping[str, type]) -> None:
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object")
    for name, kind in wanted.items():
        if not isinstance(body.get(name), kind):
            raise Refused(400, f"{name} is missing or no {kind.__name__}")


def _random() -> str:
    return secrets.token_hex(8)
