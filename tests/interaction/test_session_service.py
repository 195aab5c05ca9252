"""The Session Service has the first word: whether a session begins, under which policy, and whether it goes on (AH 3.2,
8.6, 9.5, 9.6)."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.services import MockServices
from tests.support.backends import (
    NOWHERE,
    SERVICES_TOKEN,
    Serving,
    impatient,
    new_session,
    nothing_kept,
    only_session,
    resume,
    run,
    services_at,
)
from tests.support.process import Host, bundle, eventually, gateway, say, shell, use
from tests.support.raw_http import answering

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.process import Outcome

DOWN = {"status": 500, "times": "always"}
GOOD: dict[str, Any] = {"sessionId": "s", "workspaceId": "w", "compatibilityStatus": "compatible"}


@pytest.fixture(autouse=True)
def short_waits(host: Host) -> None:
    impatient(host)


def refused(host: Host, services: MockServices, env: dict[str, str], *options: str) -> tuple[Outcome, dict[str, Any]]:
    """What `run` and `serve` make of services that let no session begin; neither leaves anything on disk."""
    with gateway(say("not asked for")) as served:
        outcome = run(host, served.url, env, *options)
        assert nothing_kept(host)
        with Serving(host, env, "--gateway", served.url, *options) as client:
            error = client.error("CreateSession", **new_session())
            assert client.hang_up() == 0
    assert nothing_kept(host)
    assert not services.artifacts
    assert served.count == 0
    return outcome, error


# --- a session begins, or not -----------------------------------------------------------------------------------------


def test_an_incompatible_host(host: Host) -> None:
    services = MockServices(incompatible="this host is too old: 2.0 is needed")
    with services.in_thread():
        outcome, error = refused(host, services, services_at(services.url))
    assert outcome.code == 2
    assert "too old: 2.0 is needed" in outcome.error
    assert (error["code"], error["data"]["code"]) == (-32005, "INCOMPATIBLE")
    assert "too old: 2.0 is needed" in error["message"]


@pytest.mark.slow
def test_a_service_alone_says_which_hosts_commands_reach(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace))
    with services.in_thread():
        outcome, error = refused(host, services, services_at(services.url), "--allow-domain", "pypi.org")
        assert outcome.code == 2
        assert outcome.error.startswith(
            "agent-host: error: --allow-domain needs a built-in policy or a bundle in a file"
        )
        assert (error["code"], error["data"]["code"]) == (-32602, "INVALID_REQUEST")
        session_id = paused(host, services, services_at(services.url))
        again = resume(host, services_at(services.url), "--gateway", "http://127.0.0.1:9", "--allow-domain", "x.org")
        assert (again.code, bool(host.checkpoints())) == (2, True), again.stderr
        assert "--allow-domain needs" in again.error
        assert services.sessions[session_id].status == "active"


def test_a_service_that_is_away(host: Host) -> None:
    services = MockServices()
    with services.in_thread():
        services.fail("/sessions", times=99)
        outcome, error = refused(host, services, services_at(services.url))
    assert outcome.code == 1
    assert "check SESSION_SERVICE_URL, or try again later" in outcome.error
    assert (error["code"], error["data"]["retryable"]) == (-32603, True)
    assert len(services.requests) == 2 * 3  # both tried it three times


def test_nothing_listens(host: Host) -> None:
    services = MockServices()
    outcome, error = refused(host, services, services_at(NOWHERE))
    assert (outcome.code, error["code"]) == (1, -32603)
    assert NOWHERE in outcome.error


def test_a_service_that_comes_back_in_time(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace))
    with services.in_thread(), gateway(say("done")) as served:
        services.fail("/sessions", times=2)
        assert run(host, served.url, services_at(services.url)).code == 0
    assert len(services.sessions) == 1


def test_a_client_that_asks_again_is_still_let_in(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace), token=SERVICES_TOKEN)
    with (
        services.in_thread(),
        gateway(say("done")) as served,
        Serving(host, services_at(services.url), "--gateway", served.url) as client,
    ):
        services.fail("/sessions", times=3)
        assert client.error("CreateSession", **new_session())["data"]["retryable"]
        client.create()
        client.result("Shutdown")
        assert client.end() == 0


def test_a_wrong_token(host: Host) -> None:
    services = MockServices(token="another-token-0123")
    with services.in_thread():
        outcome, error = refused(host, services, services_at(services.url))
    assert outcome.code == 2
    assert "check AGENT_HOST_SERVICES_TOKEN" in outcome.error
    assert error["data"] | {"code": "UNAUTHORIZED", "retryable": False} == error["data"]
    assert SERVICES_TOKEN not in outcome.stderr + json.dumps(error)


BROKEN: dict[str, tuple[Callable[[Host], Any], list[str]]] = {
    "every problem": (
        lambda host: {**bundle(host.workspace), "schemaVersion": "9.9", "surprise": 1, "llmPolicy": {}},
        ["schemaVersion", "surprise", "llmPolicy.allowedModels", "llmPolicy.maxInputTokens"],
    ),
    "another session": (lambda host: lambda _: bundle(host.workspace, sessionId="other"), ["sessionId", "other"]),
    "any session": (lambda host: lambda _: bundle(host.workspace, sessionId="*"), ["sessionId"]),
    "expired": (lambda host: bundle(host.workspace, expires_in_s=-5), ["expired"]),
    "another model": (lambda host: bundle(host.workspace, llm={"allowedModels": []}), ["allowedModels"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN)
def test_a_bundle_that_cannot_be_used(host: Host, kind: str) -> None:
    make, named = BROKEN[kind]
    services = MockServices(policy_bundle=make(host))
    with services.in_thread():
        outcome, error = refused(host, services, services_at(services.url))
    assert outcome.code == 2
    assert error["code"] == -32003
    for word in named:
        assert word in outcome.stderr
        assert word in error["message"]
    # The service does not keep sessions open that never began.
    assert {session.status for session in services.sessions.values()} == {"cancelled"}


@pytest.mark.parametrize("change", [{"sessionId": "../../etc"}, {"sessionId": "a/b"}, {"workspaceId": "w\n"}])
async def test_hostile_ids(host: Host, change: dict[str, str]) -> None:
    async with answering(200, json.dumps({**GOOD, **change}).encode()) as server:
        outcome = await asyncio.to_thread(run, host, NOWHERE, services_at(server.url, "SESSION"))
    assert outcome.code == 1
    assert next(iter(change)) in outcome.error
    assert nothing_kept(host)


def test_a_chosen_id_stands_for_that_of_the_service(host: Host) -> None:
    services = MockServices()
    with services.in_thread(), gateway({"status": 500}, say("Done.")) as served:
        env = services_at(services.url, "SESSION")
        first = run(host, NOWHERE, env, "--session-id", "mine")
        assert (first.code, first.result["sessionId"] in services.sessions) == (3, True)
        second = run(host, served.url, env, "--session-id", "mine")
        assert second.code == 2
        assert "session mine already exists" in second.error
        resumed = resume(host, env, "mine", "--gateway", served.url)
    assert (resumed.code, resumed.result["sessionId"]) == (0, first.result["sessionId"])


# --- a session goes on, or not ----------------------------------------------------------------------------------------


def paused(host: Host, services: MockServices, env: dict[str, str]) -> str:
    """A session that the gateway has paused after one step; its id."""
    with gateway(use(shell("echo ran >> effects")), DOWN) as served:
        assert run(host, served.url, env).code == 3
    return only_session(host.state)


def went_on(host: Host, env: dict[str, str]) -> Outcome:
    with gateway(say("said before"), say("done")) as served:
        return resume(host, env, "--gateway", served.url)


def test_a_resume_under_a_fresh_bundle(host: Host) -> None:
    grants = iter(
        [bundle(host.workspace), bundle(host.workspace, without=["Shell.Exec"], policyBundleVersion="test.2")]
    )
    services = MockServices(policy_bundle=lambda session_id: {**next(grants), "sessionId": session_id})
    with services.in_thread():
        env = services_at(services.url)
        session_id = paused(host, services, env)
        cursor = json.loads((host.state / "checkpoints" / f"{session_id}.json").read_bytes()).get("stepCursor")
        with gateway(say("said before"), use(shell("echo ran >> effects")), say("done")) as served:
            outcome = resume(host, env, "--gateway", served.url)
    assert outcome.code == 0
    assert [one["status"] for one in outcome.result["toolCalls"]] == ["succeeded", "denied"]
    assert (host.workspace / "effects").read_text() == "ran\n"
    (told,) = services.sessions[session_id].cursors
    assert told is not None
    assert cursor in (told, None)


def test_a_session_that_has_expired(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace))
    with services.in_thread():
        env = services_at(services.url)
        session_id = paused(host, services, env)
        services.expire(session_id)
        outcome = went_on(host, env)
        assert outcome.code == 1
        assert "its checkpoint was deleted" in outcome.error
        assert host.checkpoints() == []
        assert went_on(host, env).code == 2  # there is nothing left to resume


@pytest.mark.slow
def test_a_session_that_has_expired_for_a_client(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace))
    with services.in_thread(), gateway(say("done")) as served:
        env = services_at(services.url)
        session_id = paused(host, services, env)
        services.expire(session_id)
        with Serving(host, env, "--gateway", served.url) as client:
            error = client.error("ResumeSession", sessionId=session_id)
            assert (error["code"], error["data"]["code"]) == (-32002, "SESSION_EXPIRED")
            assert host.checkpoints() == []
            client.create()  # the process is free for another one
            client.result("Shutdown")


@pytest.mark.slow
def test_a_service_that_does_not_know_the_session(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace))
    with services.in_thread():
        session_id = paused(host, services, services_at(services.url))
    stranger = MockServices(policy_bundle=bundle(host.workspace))
    with stranger.in_thread():
        outcome = went_on(host, services_at(stranger.url))
    assert outcome.code == 2
    assert session_id in outcome.error
    assert "its files here are kept" in outcome.error
    assert f"{session_id}.json" in host.checkpoints()


@pytest.mark.slow
def test_a_service_that_is_away_at_a_resume(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace))
    with services.in_thread():
        env = services_at(services.url)
        session_id = paused(host, services, env)
        services.fail(f"/sessions/{session_id}/resume", times=3)
        outcome = went_on(host, env)
        assert outcome.code == 3
        assert "stays resumable" in outcome.error
        assert f"agent-host resume {session_id}" in outcome.error
        services.fail(f"/sessions/{session_id}/resume", 401)
        refused = went_on(host, env)
        assert refused.code == 3
        assert "check AGENT_HOST_SERVICES_TOKEN" in refused.error
        assert went_on(host, env).code == 0
    assert (host.workspace / "effects").read_text() == "ran\n"


# --- a policy that expires on the way ---------------------------------------------------------------------------------


def short_then_long(host: Host, *, first_s: float) -> Callable[[str], dict[str, Any]]:
    """Bundles: the first for a moment, all others for long."""
    lives = itertools.chain([first_s], itertools.repeat(3600.0))
    return lambda session_id: bundle(host.workspace, sessionId=session_id, expires_in_s=next(lives))


@pytest.mark.slow
def test_an_expiry_and_a_resume_in_a_new_process(host: Host) -> None:
    services = MockServices(policy_bundle=short_then_long(host, first_s=2.0))
    command = "echo ran >> effects; sleep 2.2"
    with services.in_thread(), gateway(use(shell(command)), use(shell("echo too >> effects")), say("done")) as served:
        env = services_at(services.url)
        stopped = run(host, served.url, env)
        assert (stopped.code, stopped.result["reason"]) == (3, "POLICY_EXPIRED")
        assert stopped.result["status"] == "SESSION_PAUSED"
        outcome = resume(host, env, "--gateway", served.url)
    assert outcome.code == 0
    assert (host.workspace / "effects").read_text() == "ran\ntoo\n"
    assert "policy_expired" in [event["eventType"] for event in services.audit_events]


@pytest.mark.slow
def test_an_expiry_and_a_resume_in_the_same_process(host: Host) -> None:
    services = MockServices(policy_bundle=short_then_long(host, first_s=2.0))
    command = "echo ran >> effects; sleep 2.2"
    turns = [use(shell(command)), use(shell("echo too >> effects")), say("done")]
    with (
        services.in_thread(),
        gateway(*turns) as served,
        Serving(host, services_at(services.url), "--gateway", served.url) as client,
    ):
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        client.event("session_paused")
        assert client.result("GetSessionState", sessionId=session_id)["sessionStatus"] == "SESSION_PAUSED"
        services.fail(f"/sessions/{session_id}/resume", times=3)
        assert client.error("ResumeSession", sessionId=session_id)["data"]["retryable"]
        resumed = client.result("ResumeSession", sessionId=session_id)
        assert resumed["incompleteTask"]["taskId"] == "t"
        client.event("task_completed")
        client.result("Shutdown")
        assert client.end() == 0
    assert (host.workspace / "effects").read_text() == "ran\ntoo\n"
    assert len(services.sessions[session_id].cursors) == 1


def test_a_session_that_expires_while_it_is_paused(host: Host) -> None:
    services = MockServices(policy_bundle=bundle(host.workspace))
    with (
        services.in_thread(),
        gateway(DOWN) as served,
        Serving(host, services_at(services.url), "--gateway", served.url) as client,
    ):
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        client.event("session_paused")
        services.expire(session_id)
        error = client.error("ResumeSession", sessionId=session_id)
        assert (error["code"], error["data"]["code"]) == (-32002, "SESSION_EXPIRED")
        assert client.event("session_failed")["payload"]["reason"] == "SESSION_EXPIRED"
        assert client.end() == 0
    assert host.checkpoints() == []
    assert session_id in services.histories
    eventually(lambda: services.audit_events[-1]["eventType"] == "session_failed", "the end in the audit")
