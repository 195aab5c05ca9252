"""`agent-host replay` of a session with backend calls: judged again, answered from the record, and sent nowhere."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.services import MockServices
from tests.support.backends import SERVICES_TOKEN, impatient, services_at
from tests.support.process import call, gateway, say, shell, use
from tests.support.tool_server import KEY, TOKEN, ToolServer, echo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Host, Outcome

NAME = "BackendTool.Invoke"
TURNS = [
    use(call("Echo", text="one"), call("Breaks"), call("Secret", text="no")),
    use(shell("true"), call("Echo", text=7)),
    say("Done."),
]


async def breaks(_: dict[str, Any]) -> dict[str, Any]:
    return {"status": "failed", "error": {"code": "TOOL_EXECUTION_FAILED", "message": "the disk is full"}}


async def sandboxed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"status": "succeeded", "outputText": f"ran elsewhere: {arguments['command']}"}


def policy(host: Host, *names: str) -> str:
    entry = {"allowedToolNames": list(names), "insteadOf": ["Shell.Exec"]}
    return str(host.policy(grants={NAME: entry, "Shell.Exec": {}}, tenantId="acme"))


@pytest.fixture
def server() -> Iterator[ToolServer]:
    server = ToolServer({"Echo": echo, "Breaks": breaks, "Secret": echo, "RunCommand": sandboxed})
    with server.in_thread():
        yield server


@pytest.fixture
def copy(host: Host, server: ToolServer) -> Path:
    """A directory to replay in, once the session `one` has been."""
    impatient(host)
    env = variables(server)
    with gateway(*TURNS) as model:
        options = ("--policy", policy(host, "Echo", "Breaks", "RunCommand"), "--session-id", "one", "--output", "json")
        ended = host.run("run", "Do it.", "--gateway", model.url, *options, env=env)
    assert (ended.code, ended.stderr) == (0, "")
    assert [one.tool for one in server.ran] == ["Echo", "Breaks", "RunCommand"]
    server.requests.clear()
    folder = host.root / "copy"
    folder.mkdir()
    return folder


def variables(server: ToolServer) -> dict[str, str]:
    return {
        "BACKEND_TOOL_SERVICE_URL": server.url,
        "BACKEND_TOOL_SERVICE_TOKEN": TOKEN,
        "AGENT_HOST_GRANT_KEY": KEY,
    }


def replay(host: Host, copy: Path, server: ToolServer, *options: str, **more: str) -> Outcome:
    return host.run("replay", "one", "--workspace", copy, *options, env={**variables(server), **more})


@pytest.mark.slow
def test_calls_are_judged_again_and_answered_from_the_record_and_reported_to_nobody(
    host: Host, server: ToolServer, copy: Path
) -> None:
    watchers = MockServices(token=SERVICES_TOKEN)
    with watchers.in_thread() as url:
        observers = services_at(url, "APPROVAL", "AUDIT", "TELEMETRY", "WORKSPACE")
        traces = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        outcome = replay(host, copy, server, "--output", "json", **observers, **traces)
    assert watchers.requests == ()
    assert json.loads(outcome.text) == {"calls": 5, "difference": None, "ended": None}
    assert (outcome.code, outcome.stderr) == (0, "")
    assert server.requests == []
    assert list(copy.iterdir()) == []


@pytest.mark.slow
def test_another_policy_is_a_difference_and_what_is_not_kept_is_told(
    host: Host, server: ToolServer, copy: Path
) -> None:
    outcome = replay(host, copy, server, "--policy", policy(host, "Echo", "RunCommand"))
    assert outcome.code == 1
    assert "the first difference is call 2, Breaks" in outcome.text
    assert "ALLOWED on record, not judged: there is no such tool now" in outcome.text
    for path in (host.state / "tool-lists").glob("*/source.json"):
        path.write_bytes(b"{")
    outcome = replay(host, copy, server)
    shutil.rmtree(host.state / "tool-lists")
    assert replay(host, copy, server).error == outcome.error
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "called Breaks, Echo, RunCommand of the Backend Tool Service" in outcome.error
    assert "cannot be run again" in outcome.error
