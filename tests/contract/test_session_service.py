"""What the host may expect of every SessionService (AH 3.2, 9.5, 9.6), and of the one over HTTP besides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.errors import (
    ErrorCode,
    ServiceError,
    ServiceRejected,
    ServiceUnauthorized,
    ServiceUnavailable,
    SessionExpired,
    SessionNotFound,
)
from agent_host.ids import MACHINE
from agent_host.services.session import EmbeddedSessionService, HttpSessionService, NewSession, SessionService
from agent_host.testing.services import MockServices
from tests.support.raw_http import answering
from tests.support.rows import each_row
from tests.unit.services.helpers import client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NEW = NewSession(
    "jo", "acme", "desktop", ("/w",), {"name": "test", "version": "1"}, ("File.Read", "Shell.Exec"), session_id="wished"
)


class Embedded:
    """Sessions as the caller's disk has them."""

    def __init__(self) -> None:
        self.service: SessionService = EmbeddedSessionService(self._workspace_of, MACHINE.new_id)
        self.known: dict[str, str] = {}

    def _workspace_of(self, session_id: str) -> str:
        try:
            return self.known[session_id]
        except KeyError:
            raise SessionNotFound(f"no session {session_id}") from None


@pytest.fixture(params=["embedded", "http"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[SessionService]:
    if request.param == "embedded":
        home = Embedded()
        create = home.service.create

        async def remembered(new: NewSession) -> Any:
            grant = await create(new)
            home.known[grant.session_id] = grant.workspace_id
            return grant

        home.service.create = remembered  # type: ignore[method-assign]  # what a host does when it opens the store
        yield home.service
    else:
        async with MockServices() as services, client(services.url) as made:
            yield HttpSessionService(made)


async def test_a_session_gets_ids_that_are_safe_in_paths(service: SessionService) -> None:
    grant = await service.create(NEW)
    assert re.fullmatch("[A-Za-z0-9_-]{1,128}", grant.session_id)
    assert re.fullmatch("[A-Za-z0-9_-]{1,128}", grant.workspace_id)
    assert (grant.compatibility_status, grant.incompatibility_reason) == ("compatible", None)
    assert grant.feature_flags == {"approvalUiEnabled": True, "mcpEnabled": True}
    assert grant.policy_bundle is None


async def test_two_sessions_are_two(service: SessionService) -> None:
    one, two = [await service.create(NEW._replace(session_id=None)) for _ in range(2)]
    assert one.session_id != two.session_id
    assert one.workspace_id != two.workspace_id


@pytest.mark.parametrize("cursor", [None, "step_3"])
async def test_a_resumed_session_is_the_same(service: SessionService, cursor: str | None) -> None:
    created = await service.create(NEW)
    for _ in range(2):
        assert await service.resume(created.session_id, checkpoint_cursor=cursor) == created


async def test_a_session_that_nobody_knows(service: SessionService) -> None:
    with pytest.raises(SessionNotFound):
        await service.resume("nobody", checkpoint_cursor=None)


async def test_cancelling_says_nothing(service: SessionService) -> None:
    created = await service.create(NEW)
    for _ in range(2):
        await service.cancel(created.session_id, reason="completed")


# --- over HTTP --------------------------------------------------------------------------------------------------------


async def test_the_wire_is_the_interface_s() -> None:
    async with MockServices() as services, client(services.url) as made:
        service = HttpSessionService(made)
        grant = await service.create(NEW)
        await service.resume(grant.session_id, checkpoint_cursor="step_3")
        await service.cancel(grant.session_id, reason="done")
    assert [(one.path, one.body) for one in services.requests] == [
        (
            "/sessions",
            {
                "userId": "jo",
                "tenantId": "acme",
                "executionEnvironment": "desktop",
                "workspaceHint": {"localPaths": ["/w"]},
                "clientInfo": {"name": "test", "version": "1"},
                "supportedCapabilities": ["File.Read", "Shell.Exec"],
            },
        ),
        (f"/sessions/{grant.session_id}/resume", {"checkpointCursor": "step_3"}),
        (f"/sessions/{grant.session_id}/cancel", {"reason": "done"}),
    ]
    assert services.sessions[grant.session_id].status == "cancelled"


async def test_the_bundle_comes_as_json_and_the_flags_with_it() -> None:
    flags = {"approvalUiEnabled": False, "mcpEnabled": True, "other": True}
    async with (
        MockServices(policy_bundle={"x": [1, "ä"]}, feature_flags=flags) as services,
        client(services.url) as made,
    ):
        grant = await HttpSessionService(made).create(NEW)
        again = await HttpSessionService(made).resume(grant.session_id, checkpoint_cursor=None)
    assert grant == again
    assert grant.policy_bundle is not None
    assert orjson.loads(grant.policy_bundle) == {"x": [1, "ä"], "sessionId": grant.session_id}
    assert grant.feature_flags == flags


async def test_an_incompatible_host_is_told_why() -> None:
    async with MockServices(incompatible="too old:\n\x1bupdate") as services, client(services.url) as made:
        grant = await HttpSessionService(made).create(NEW)
    assert grant.compatibility_status == "incompatible"
    assert grant.incompatibility_reason == "too old: \N{REPLACEMENT CHARACTER}update"


async def test_a_session_that_has_ended_cannot_be_resumed() -> None:
    async with MockServices() as services, client(services.url) as made:
        service = HttpSessionService(made)
        one, two = await service.create(NEW), await service.create(NEW)
        await service.cancel(one.session_id, reason="user")
        services.expire(two.session_id)
        for grant in (one, two):
            with pytest.raises(SessionExpired) as caught:
                await service.resume(grant.session_id, checkpoint_cursor=None)
            assert (caught.value.rpc_code, caught.value.code) == (-32002, ErrorCode.SESSION_EXPIRED)


async def test_an_expiry_under_another_status() -> None:
    body = orjson.dumps({"code": "SESSION_EXPIRED", "message": "gone"})
    async with answering(410, body) as server, client(server.url) as made:
        with pytest.raises(SessionExpired):
            await HttpSessionService(made).resume("s", checkpoint_cursor=None)


@pytest.mark.parametrize("body", [b"", b"<html>conflict</html>", b"{}"])
async def test_a_conflict_that_nobody_explains_is_no_expiry(body: bytes) -> None:
    async with answering(409, body) as server, client(server.url) as made:
        with pytest.raises(ServiceRejected):
            await HttpSessionService(made).resume("s", checkpoint_cursor=None)


async def test_a_lost_answer_creates_one_session() -> None:
    async with MockServices() as services, client(services.url) as made:
        services.fail("/sessions", 502)
        await HttpSessionService(made).create(NEW)
    assert len(services.sessions) == 1
    assert len({one.headers["idempotency-key"] for one in services.requests}) == 1


async def test_a_wrong_token_and_a_service_that_is_away() -> None:
    async with MockServices(token="other") as services, client(services.url) as made:
        with pytest.raises(ServiceUnauthorized) as caught:
            await HttpSessionService(made).create(NEW)
        assert caught.value.code == ErrorCode.UNAUTHORIZED
        services.fail("/sessions", 503, times=9)
        with pytest.raises(ServiceUnavailable):
            await HttpSessionService(made).resume("s", checkpoint_cursor=None)


GOOD: dict[str, Any] = {"sessionId": "s", "workspaceId": "w", "compatibilityStatus": "compatible"}


@each_row(
    "change",
    [
        {"sessionId": "../../etc"},
        {"sessionId": "s\n"},
        {"sessionId": ""},
        {"sessionId": "x" * 129},
        {"sessionId": 5},
        {"sessionId": None},
        {"workspaceId": "w/../x"},
        {"workspaceId": ["w"]},
        {"workspaceId": "ẃ"},
        {"compatibilityStatus": "perhaps"},
        {"compatibilityStatus": True},
        {"compatibilityStatus": None},
        {"policyBundle": "text"},
        {"policyBundle": [1]},
        {"featureFlags": [1]},
        {"featureFlags": "on"},
    ],
)
async def test_an_answer_of_other_types_is_refused(change: dict[str, Any]) -> None:
    async with answering(200, orjson.dumps({**GOOD, **change})) as server, client(server.url) as made:
        with pytest.raises(ServiceRejected) as caught:
            await HttpSessionService(made).create(NEW)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("answer", [b"", b"null", b"[]", b'"s"', b"<html>"])
async def test_an_answer_that_is_no_object_is_refused(answer: bytes) -> None:
    async with answering(200, answer) as server, client(server.url) as made:
        with pytest.raises(ServiceRejected):
            await HttpSessionService(made).create(NEW)


async def test_flags_that_are_neither_on_nor_off_mean_nothing() -> None:
    flags = {"mcpEnabled": True, "level": 3, "text": "x"}
    async with answering(200, orjson.dumps({**GOOD, "featureFlags": flags})) as server, client(server.url) as made:
        assert (await HttpSessionService(made).create(NEW)).feature_flags == {"mcpEnabled": True}


async def test_a_resume_that_answers_with_another_session_is_refused() -> None:
    async with answering(200, orjson.dumps(GOOD)) as server, client(server.url) as made:
        with pytest.raises(ServiceRejected, match="another session"):
            await HttpSessionService(made).resume("mine", checkpoint_cursor=None)


@pytest.mark.parametrize("session_id", ["../admin", "a/b", "a?b", ""])
async def test_an_id_that_changes_the_path_is_not_sent(session_id: str) -> None:
    async with MockServices() as services, client(services.url) as made:
        with pytest.raises(ServiceError):
            await HttpSessionService(made).cancel(session_id, reason="x")
    assert not services.requests
