"""The five backend services over real HTTP on loopback, for tests and CI jobs. docs/services.md describes them.

async with MockServices(policy_bundle=bundle) as services:
    ...  # SESSION_SERVICE_URL=services.url, and the same for its siblings
assert services.sessions["sess_1"].status == "active"
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agent_host.testing.mock_server import MockServer
from agent_host.testing.service_state import Artifact, Refused, ServiceState, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agent_host.testing.http1 import HttpRequest, Reply

__all__ = ["Artifact", "MockServices", "ServiceRequest", "Session"]

_MAX_RECORDS = 10_000
_MAX_BODY_BYTES = 80 << 20
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """One request as it came. Header names are in lower case; `body` is the JSON, None for what is none; `at_ns` is of
    `time.monotonic_ns`."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at_ns: int = field(default_factory=time.monotonic_ns)


class _Fault(NamedTuple):
    path_prefix: str
    status: int
    retry_after: str | None
    body: Mapping[str, Any] | None


class MockServices(MockServer):
    """Session, workspace, approval, audit and telemetry service at one base URL, `url`.

    Args:
        policy_bundle: what create and resume send along: a bundle, whose `sessionId` becomes the session's, or a
            function from the session's id to one.
        feature_flags: sent along too.
        incompatible: the reason why no host is served, if none is.
        expired: ids of sessions that cannot be resumed.
        token: refuse every request without this bearer token.
        capability_grant: sent along with each session, for the Backend Tool Service.
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
        self._state = ServiceState(policy_bundle, feature_flags, incompatible, expired, capability_grant)
        self._token = token
        self._requests: deque[ServiceRequest] = deque(maxlen=_MAX_RECORDS)
        self._faults: list[_Fault] = []
        self._hanging: list[str] = []
        self._losing: list[str] = []
        super().__init__(self._handle, name="mock-services", max_body_bytes=_MAX_BODY_BYTES)

    # What has come in; any thread may ask.

    @property
    def requests(self) -> tuple[ServiceRequest, ...]:
        """All requests in order of arrival, failed ones included; the last 10,000."""
        return tuple(self._requests)

    def requests_to(self, path_prefix: str) -> list[ServiceRequest]:
        """Those whose path starts with `path_prefix`."""
        return [request for request in self.requests if request.path.startswith(path_prefix)]

    @property
    def sessions(self) -> dict[str, Session]:
        """Sessions by id."""
        return dict(self._state.sessions)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What was stored, in order, histories apart. A repeated Idempotency-Key stores nothing."""
        return tuple(self._state.artifacts.values())

    @property
    def histories(self) -> dict[str, Artifact]:
        """The last history of each session, by session id."""
        return dict(self._state.histories)

    @property
    def approvals(self) -> tuple[Mapping[str, Any], ...]:
        """Approval decisions in order, each once; the last 10,000."""
        return tuple(self._state.approvals)

    @property
    def audit_events(self) -> tuple[Mapping[str, Any], ...]:
        """Envelopes that the audit service took, in order; the last 10,000."""
        return tuple(self._state.events["/audit/events"])

    @property
    def telemetry_events(self) -> tuple[Mapping[str, Any], ...]:
        """Envelopes that the telemetry service took, in order; the last 10,000."""
        return tuple(self._state.events["/telemetry/events"])

    # What goes wrong.

    def fail(
        self,
        path_prefix: str,
        status: int = 503,
        *,
        times: int = 1,
        retry_after: float | str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer the next `times` requests whose path starts with `path_prefix` with an error: `body`, or one made up
        for `status`. Nothing is stored for them."""
        after = None if retry_after is None else str(retry_after)
        self._faults += [_Fault(path_prefix, status, after, body)] * times

    def hang(self, path_prefix: str) -> None:
        """From here on, accept requests whose path starts with `path_prefix` and never answer them."""
        self._hanging.append(path_prefix)

    def lose_answers(self, path_prefix: str, *, times: int = 1) -> None:
        """Do what the next `times` requests whose path starts with `path_prefix` ask for, and never say so."""
        self._losing += [path_prefix] * times

    def heal(self) -> None:
        """Take back what `fail`, `hang` and `lose_answers` have set up."""
        self._faults.clear()
        self._hanging.clear()
        self._losing.clear()

    def expire(self, session_id: str) -> None:
        """From here on the session cannot be resumed."""
        self._state.expired.add(session_id)

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        body = _parsed(request.body)
        self._requests.append(ServiceRequest(request.method, request.path, request.headers, body))
        if any(request.path.startswith(prefix) for prefix in self._hanging):
            await reply.until_client_leaves()
            return
        try:
            self._let_in(request)
            status, answer = self._state.answer(
                request.method, request.path, body, request.headers.get("idempotency-key") or secrets.token_hex(16)
            )
        except Refused as refused:
            headers = _JSON if refused.retry_after is None else {**_JSON, "retry-after": refused.retry_after}
            await reply.send(refused.status, headers, orjson.dumps(refused.body))
            return
        lost = next((prefix for prefix in self._losing if request.path.startswith(prefix)), None)
        if lost is not None:
            self._losing.remove(lost)
            await reply.until_client_leaves()
            return
        await reply.send(status, _JSON, b"" if answer is None else orjson.dumps(answer))

    def _let_in(self, request: HttpRequest) -> None:
        for index, fault in enumerate(self._faults):
            if request.path.startswith(fault.path_prefix):
                del self._faults[index]
                raise Refused(fault.status, "failed on request", retry_after=fault.retry_after, body=fault.body)
        if self._token is not None and request.headers.get("authorization") != f"Bearer {self._token}":
            raise Refused(401, "the bearer token is missing or wrong")
        if request.body is None:
            raise Refused(413, f"a request of {request.body_bytes} bytes is over the limit of {_MAX_BODY_BYTES}")


def _parsed(body: bytes | None) -> Any:
    try:
        return orjson.loads(body or b"null")
    except orjson.JSONDecodeError:
        return None
