"""The reasons that docs/errors.md lists, each from a real `agent-host serve`, and whether the task goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.error_page import REASONS
from tests.support.process import eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Servers

HANG = {"hang": True}
LONG = {"input_tokens": 999_999, "output_tokens": 1}


class Tasks:
    """Tasks one after the other; each ends for a documented reason."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: list[tuple[str, str, bool]] = []
        self.last = 0

    def start(self, **options: int) -> str:
        task_id = f"task-{len(self.seen)}"
        self.client.task(task_id, taskOptions=options)
        return task_id

    def ends(self, kind: str) -> None:
        event = self.client.event(kind, after=self.last)
        self.last = event["eventId"]
        goes_on = "incompleteTask" in self.client.ask("ResumeSession", autoContinue=False)
        self.seen.append((kind, event["payload"]["reason"], goes_on))
        assert event["payload"]["message"]


def documented(*found: tuple[str, str, bool]) -> bool:
    return set(found) <= {(reason.event, reason.name, reason.goes_on) for reason in REASONS}


def test_reasons_of_tasks(servers: Servers) -> None:
    host = servers.host
    host.configure(max_retries=0)
    policy = host.policy(llm={"maxSessionTokens": 1_000_000})
    turns = [
        *({"status": status} for status in (400, 401, 404)),
        use(shell("true")),
        HANG,
        *({"status": status} for status in (503, 429)),
        say("Long.", usage=LONG),
    ]
    with gateway(*turns) as model:
        serve, client = servers.session(model.url, policy=policy)
        tasks = Tasks(client)
        for _ in range(3):
            tasks.start()
            tasks.ends("task_failed")
        tasks.start(maxSteps=1)
        tasks.ends("task_failed")
        cancelled = tasks.start()
        eventually(lambda: model.count == 5, "the request that hangs")
        client.ask("CancelTask", taskId=cancelled)
        tasks.ends("task_cancelled")
        for _ in range(2):
            paused = tasks.start()
            tasks.ends("session_paused")
            new = {"sessionId": client.session_id, "taskId": "other", "prompt": "x"}
            assert client.refusal("StartTask", **new).what == (-32001, "SESSION_NOT_READY", False)
            client.ask("CancelTask", taskId=paused)
            client.event("task_cancelled", after=tasks.last)
            assert client.refusal("StartTask", **new).what == (-32001, "SESSION_NOT_READY", False)
            assert "incompleteTask" not in client.ask("ResumeSession")
        client.task("long")
        client.event("task_completed")
        tasks.start()
        tasks.ends("task_failed")
        client.call("Shutdown")
        serve.ended_well()
    assert tasks.seen == [
        ("task_failed", "LLM_REFUSED", True),
        ("task_failed", "UNAUTHORIZED", True),
        ("task_failed", "LLM_REFUSED", True),
        ("task_failed", "max_steps_exceeded", False),
        ("task_cancelled", "cancelled", False),
        ("session_paused", "LLM_GATEWAY_ERROR", True),
        ("session_paused", "RATE_LIMITED", True),
        ("task_failed", "LLM_BUDGET_EXCEEDED", False),
    ]
    assert documented(*tasks.seen)


def test_the_policy_grants_no_model(servers: Servers) -> None:
    policy = servers.host.policy(without=["LLM.Call"])
    with gateway(say("Never.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        tasks = Tasks(client)
        tasks.start()
        tasks.ends("task_failed")
        client.call("Shutdown")
        serve.ended_well()
        assert model.count == 0
    assert tasks.seen == [("task_failed", "CAPABILITY_DENIED", False)]
    assert documented(*tasks.seen)


WHO = {"userId": "u", "tenantId": "t", "executionEnvironment": "ci", "clientInfo": {}, "supportedCapabilities": []}


def test_a_model_that_the_policy_does_not_allow(servers: Servers) -> None:
    serve, client = servers.client("http://127.0.0.1:9", "--model", "another", policy=servers.host.policy())
    assert client.refusal("CreateSession", **WHO).what == (-32020, "CAPABILITY_DENIED", False)
    client.call("Shutdown")
    serve.ended_well()


def test_a_gateway_that_no_network_has_a_name_for(servers: Servers) -> None:
    serve, client = servers.client("http://\u00e9..example/")
    assert client.refusal("CreateSession", **WHO).what == (-32602, "INVALID_REQUEST", False)
    client.call("Shutdown")
    serve.ended_well()


def test_a_proxy_that_cannot_be_used(servers: Servers) -> None:
    where = ("--gateway", "http://gateway.example/", "--policy", "full")
    serve = servers.start(*where, env={"HTTP_PROXY": "http://127.0.0.1:no"})
    client = serve.on_streams()
    client.create()
    tasks = Tasks(client)
    tasks.start()
    tasks.ends("task_failed")
    client.call("Shutdown")
    serve.ended_well()
    assert tasks.seen == [("task_failed", "INVALID_REQUEST", True)]
    assert documented(*tasks.seen)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_client_that_goes_away(servers: Servers) -> None:
    with gateway(HANG) as model:
        serve, client = servers.session(model.url)
        client.task()
        client.event("llm_request_started")
        client.done()
        serve.ended_well()
    assert client.event("session_paused")["payload"]["reason"] == "interrupted"
    assert documented(("session_paused", "interrupted", True))
