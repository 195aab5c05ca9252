"""The host and the real Backend Tool Service, each a process of its own: a query is run, refused, interrupted and asked
for."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.backends import impatient
from tests.support.process import call, eventually, gateway, say, use
from tests.support.tool_service import ACME, KEY_ENVIRONMENT, ServiceProcess, process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Gateway, Host, Outcome

pytestmark = pytest.mark.slow
COUNT = {"query": "SELECT COUNT(*) AS pending FROM orders WHERE status = 'pending'", "connectionName": "reference"}
SLOW = {
    "query": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n",
    "connectionName": "reference",
}


@pytest.fixture
def tenants(tmp_path: Path) -> dict[str, Any]:
    """A tenant with one database."""
    database = tmp_path / "reference.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE orders (status TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?)", [("pending",)] * 142 + [("done",)] * 8)
    connection.close()
    connections = {"reference": {"url": f"sqlite:///{database}", "timeoutS": 5}}
    return {"tenants": {"acme": {"token": ACME, "tools": {"CloudDbQuery": {"connections": connections}}}}}


@pytest.fixture
def service(tmp_path: Path, tenants: dict[str, Any]) -> Iterator[ServiceProcess]:
    folder = tmp_path / "service"
    folder.mkdir()
    with process(folder, tenants) as running:
        yield running


def variables(service: ServiceProcess, url: str | None = None, **more: str) -> dict[str, str]:
    return {
        "BACKEND_TOOL_SERVICE_URL": url or service.url,
        "BACKEND_TOOL_SERVICE_TOKEN": ACME,
        **KEY_ENVIRONMENT,
        **more,
    }


def policy(host: Host, **more: Any) -> str:
    grants = {"BackendTool.Invoke": {"allowedToolNames": ["CloudDbQuery"], **more}}
    return str(host.policy(grants=grants, tenantId="acme"))


def options(host: Host, model: Gateway) -> tuple[str, ...]:
    impatient(host, max_retries=1)
    return ("--gateway", model.url, "--policy", policy(host), "--output", "json", "--session-id", "sess_1")


def run(host: Host, model: Gateway, service: ServiceProcess, **env: str) -> Outcome:
    return host.run("run", "How many are pending?", *options(host, model), env=variables(service, **env))


def running_calls(service: ServiceProcess) -> float:
    """How many calls run at the service, by its own metrics."""
    text = httpx.get(f"{service.url}/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if "running" in line and not line.startswith("#")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_query_from_the_model_to_the_database_and_back(host: Host, service: ServiceProcess) -> None:
    with gateway(use(call("CloudDbQuery", **COUNT)), say("142.")) as model:
        outcome = run(host, model, service)
    assert (outcome.code, outcome.stderr) == (0, "")
    (tool,) = [one for one in model.bodies[0]["tools"] if one["name"] == "CloudDbQuery"]
    assert "query" in tool["input_schema"]["properties"]
    (answer,) = model.results()
    assert not answer.is_error
    assert json.loads(answer.text)["rows"] == [[142]]


def test_what_the_database_refuses_is_read_by_the_model(host: Host, service: ServiceProcess) -> None:
    writes = {"query": "DELETE FROM orders", "connectionName": "reference"}
    with gateway(use(call("CloudDbQuery", **writes)), say("No.")) as model:
        outcome = run(host, model, service)
    assert outcome.code == 0
    (answer,) = model.results()
    assert answer.is_error


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"AGENT_HOST_GRANT_KEY": "ff" * 32}, "CAPABILITY_DENIED"),
        ({"AGENT_HOST_GRANT_KEY": ""}, "CAPABILITY_DENIED"),
    ],
)
def test_a_grant_that_does_not_hold_is_a_denial(
    host: Host, service: ServiceProcess, changes: dict[str, str], code: str
) -> None:
    with gateway(use(call("CloudDbQuery", **COUNT)), say("No.")) as model:
        outcome = run(host, model, service, **changes)
    assert outcome.code == 0
    (answer,) = model.results()
    assert answer.text.startswith(f"{code}: ")


def test_a_host_that_was_killed_gets_the_answer_that_came_meanwhile(host: Host, service: ServiceProcess) -> None:
    with gateway(use(call("CloudDbQuery", **SLOW)), say("Done.")) as model:
        started = host.start("run", "Count.", *options(host, model), env=variables(service))
        eventually(lambda: running_calls(service) == 1, "the call at the service")
        started.kill()
        arguments = ("resume", "sess_1", "--gateway", model.url, "--output", "json")
        outcome = host.run(*arguments, env=variables(service))
    assert outcome.code == 0
    (answer,) = model.results()
    # The query ends by its own time-out; the host asked by the id of the call, and sent nothing again.
    assert answer.text.startswith("TOOL_EXECUTION_TIMEOUT: ")
    assert [one["status"] for one in outcome.result["toolCalls"]] == ["failed"]


def test_a_service_that_was_killed_does_not_run_the_call_again(
    host: Host, service: ServiceProcess, tmp_path: Path, tenants: dict[str, Any]
) -> None:
    port = service.url.rpartition(":")[2]
    with gateway(use(call("CloudDbQuery", **SLOW)), say("Done.")) as model:
        started = host.start("run", "Count.", *options(host, model), env=variables(service))
        eventually(lambda: running_calls(service) == 1, "the call at the service")
        service.kill()
        folder = tmp_path / "again"
        folder.mkdir()
        with process(folder, tenants, "--port", port) as again:
            outcome = started.finish()
            assert running_calls(again) == 0
    assert outcome.code == 0
    (answer,) = model.results()
    assert answer.text.startswith("TOOL_INTERRUPTED: ")
