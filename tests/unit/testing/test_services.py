"""The mock services as a user's test meets them: by plain HTTP."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from agent_host.testing.services import MockServices
from tests.support.rows import each_row

NEW = {"userId": "u", "tenantId": "t", "executionEnvironment": "ci", "clientInfo": {}}


def upload(data: bytes, kind: str = "tool_output", **fields: Any) -> dict[str, Any]:
    return {
        "sessionId": "s", "taskId": "t", "artifactType": kind, "artifactName": "n", "contentType": "text/plain",
        "contentBase64": base64.b64encode(data).decode(), **fields,
    }  # fmt: skip


def test_it_serves_code_without_an_event_loop() -> None:
    services = MockServices()
    with services.in_thread() as url:
        made = httpx.post(f"{url}/sessions", json=NEW)
        assert made.status_code == 201
        session_id = made.json()["sessionId"]
        assert httpx.post(f"{url}/sessions/{session_id}/cancel", json={"reason": "x"}).status_code == 204
    assert services.url == url
    assert services.sessions[session_id].reason == "x"
    assert [one.path for one in services.requests_to("/sessions/")] == [f"/sessions/{session_id}/cancel"]


async def post(
    services: MockServices, path: str, body: Any, key: str | None = None, within_s: float = 5.0
) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    async with httpx.AsyncClient(trust_env=False, timeout=within_s) as client:
        return await client.post(services.url + path, json=body, headers=headers)


async def test_a_repeated_key_gives_the_same_answer_and_stores_nothing() -> None:
    async with MockServices() as services:
        first = await post(services, "/workspaces/w/artifacts", upload(b"a"), "k")
        again = await post(services, "/workspaces/w/artifacts", upload(b"other"), "k")
        other = await post(services, "/workspaces/w/artifacts", upload(b"other"), "k2")
    assert first.json() == again.json() != other.json()
    assert [one.data for one in services.artifacts] == [b"a", b"other"]


async def test_a_request_that_failed_is_not_remembered_by_its_key() -> None:
    async with MockServices() as services:
        services.fail("/workspaces", 500)
        assert (await post(services, "/workspaces/w/artifacts", upload(b"a"), "k")).status_code == 500
        assert (await post(services, "/workspaces/w/artifacts", {}, "k")).status_code == 400
        assert (await post(services, "/workspaces/w/artifacts", upload(b"a"), "k")).status_code == 201
    assert len(services.artifacts) == 1


async def test_one_history_a_session() -> None:
    async with MockServices() as services:
        for data in (b"1", b"2"):
            await post(services, "/workspaces/w/artifacts", upload(data, "session_history"))
        await post(services, "/workspaces/w/artifacts", upload(b"3", "session_history", sessionId="s2"))
    assert {key: one.data for key, one in services.histories.items()} == {"s": b"2", "s2": b"3"}
    assert services.artifacts == ()


@pytest.mark.parametrize("shape", ["dict", "function"])
async def test_bundles_are_the_session_s(shape: str) -> None:
    bundle: Any = (
        {"v": 1, "sessionId": "*"} if shape == "dict" else lambda session_id: {"v": 1, "sessionId": session_id}
    )
    async with MockServices(policy_bundle=bundle) as services:
        made = (await post(services, "/sessions", NEW)).json()
    assert made["policyBundle"] == {"v": 1, "sessionId": made["sessionId"]}


async def test_sessions_that_cannot_be_resumed() -> None:
    async with MockServices() as services:
        one, two = [(await post(services, "/sessions", NEW)).json()["sessionId"] for _ in range(2)]
        await post(services, f"/sessions/{one}/cancel", {"reason": "x"})
        services.expire(two)
        answers = [await post(services, f"/sessions/{each}/resume", {}) for each in (one, two, "nobody")]
    assert [answer.status_code for answer in answers] == [409, 409, 404]
    assert [answer.json()["code"] for answer in answers] == ["SESSION_EXPIRED", "SESSION_EXPIRED", "SESSION_NOT_FOUND"]


async def test_a_lost_answer_is_given_to_who_asks_again() -> None:
    async with MockServices() as services:
        services.lose_answers("/sessions")
        with pytest.raises(httpx.ReadTimeout):
            await post(services, "/sessions", NEW, key="k", within_s=0.2)
        (session_id,) = services.sessions
        assert (await post(services, "/sessions", NEW, key="k")).json()["sessionId"] == session_id
        assert len(services.sessions) == 1


async def test_faults_are_for_their_path_and_can_be_taken_back() -> None:
    async with MockServices() as services:
        services.fail("/approvals", 429, times=2, retry_after=3)
        services.hang("/audit")
        assert (await post(services, "/sessions", NEW)).status_code == 201
        answer = await post(services, "/approvals", {})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
        assert answer.json() == {"code": "RATE_LIMITED", "message": "failed on request", "retryable": True}
        services.heal()
        assert (await post(services, "/approvals", {})).status_code == 400
        assert (await post(services, "/audit/events", [])).status_code == 202


@each_row(
    ("path", "body"),
    [
        ("/sessions", {}),
        ("/sessions", [NEW]),
        ("/sessions", {**NEW, "userId": 5}),
        ("/workspaces/w/artifacts", upload(b"", "other")),
        ("/workspaces/w/artifacts", upload(b"", contentBase64="***")),
        ("/workspaces/w/artifacts", upload(b"", contentBase64="ä")),
        ("/approvals", {"approvalId": "a"}),
        ("/telemetry/events", {"eventType": "x"}),
        ("/telemetry/events", [5]),
    ],
)
async def test_a_request_that_is_not_the_interface_s_is_refused(path: str, body: Any) -> None:
    async with MockServices() as services:
        answer = await post(services, path, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


async def test_other_places_and_methods_are_not_served() -> None:
    async with MockServices() as services, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{services.url}/sessions")).status_code == 404
        assert (await client.post(f"{services.url}/sessions/../x", json={})).status_code == 404
