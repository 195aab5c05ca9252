"""`agent-host serve --socket`: the same protocol, with clients that come and go (interface section 2)."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import eventually, gateway, say, shell, use
from tests.support.rpc_client import WHO, line, request, result

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.serve_process import Serve, Servers

RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
EFFECT = shell("echo ran >> effects")
NOWHERE = "http://127.0.0.1:1"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a named pipe there")


@pytest.fixture
def path(servers: Servers) -> Path:
    """Where to listen: in a directory that is not there yet."""
    return servers.host.root / "run" / "s"


def listen(servers: Servers, path: Path, gateway: str = NOWHERE, *options: str) -> Serve:
    policy = servers.host.root / "policy.json"
    named = os.fspath(policy) if policy.exists() else "full"
    return servers.start("--socket", os.fspath(path), "--gateway", gateway, "--policy", named, *options, piped=False)


def test_one_client_at_a_time(servers: Servers, path: Path) -> None:
    with gateway(say("Done.")) as model:
        serve = listen(servers, path, model.url)
        first = serve.on_socket(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        first.create()
        second = serve.on_socket(path)
        assert second.reply(None)["error"]["code"] == -32031
        second.until_over()
        first.task()
        first.event("task_completed")
        assert first.call("Shutdown")["status"] == "shutdown"
        serve.ended_well()
    assert not path.exists()


def test_a_client_that_leaves_without_a_session(servers: Servers, path: Path) -> None:
    serve = listen(servers, path)
    for _ in range(3):
        client = serve.on_socket(path)
        client.refusal("GetSessionState", sessionId="s")
        client.done()
    serve.on_socket(path).done()
    # One client may come before the process has seen the last one go.
    eventually(lambda: "result" in tried(serve, path), "a session for the next client")
    serve.ended_well()
    assert servers.host.checkpoints() != []


def tried(serve: Serve, path: Path) -> dict[str, object]:
    client = serve.on_socket(path)
    with contextlib.suppress(BrokenPipeError):  # it is turned away already
        client.raw(line(request(1, "CreateSession", **WHO)))
    client.wait(lambda: client._replies, "any answer")
    answers = dict(client._replies)
    client.done()
    return next(iter(answers.values()))


@pytest.mark.slow
def test_a_client_that_is_gone_ends_the_process(servers: Servers, path: Path) -> None:
    """And the session can be resumed, its open question under the same id."""
    servers.host.policy(grants=ASKS, approvalRules=RULES)
    with gateway(use(EFFECT), say("Done.")) as model:
        serve = listen(servers, path, model.url)
        client = serve.on_socket(path)
        client.create()
        client.task()
        asked = client.event("approval_requested")["payload"]
        client.done()
        serve.ended_well(within_s=5)
        again = listen(servers, path, model.url)
        other = again.on_socket(path)
        other.resume(client.session_id)
        assert other.event("approval_requested")["payload"] == asked
        other.call("ApproveAction", approvalId=asked["approvalId"], decision="approved")
        other.event("task_completed")
        other.call("Shutdown")
        again.ended_well()
    assert (servers.host.workspace / "effects").read_text() == "ran\n"


def test_a_client_that_comes_back(servers: Servers, path: Path) -> None:
    """Within the time the session goes on: the next client gets what it missed, and can answer what waits."""
    servers.host.policy(grants=ASKS, approvalRules=RULES)
    with gateway(use(shell("ls")), use(EFFECT), say("Done.")) as model:
        serve = listen(servers, path, model.url, "--reconnect-s", "30", "--approve", "DeleteFile")
        client = serve.on_socket(path)
        client.create()
        client.task()
        first = client.event("approval_requested")
        client.raw(line(request(99, "ApproveAction", approvalId=first["payload"]["approvalId"], decision="approved")))
        client.done()  # the rest happens while nobody is there
        eventually(lambda: model.count == 2, "the next request to the model")
        other = serve.on_socket(path)
        other.session_id = client.session_id
        eventually(lambda: other.ask("GetSessionState")["pendingApprovals"], "the second question")
        told = other.ask("GetEvents", sinceId=first["eventId"])
        assert not told["gapDetected"]
        assert "approval_resolved" in [event["eventType"] for event in told["events"]]
        (waiting,) = other.ask("GetSessionState")["pendingApprovals"]
        decided = other.call("ApproveAction", approvalId=waiting["approvalId"], decision="approved")
        assert decided["status"] == "delivered"
        other.event("task_completed")
        other.call("Shutdown")
        serve.ended_well()
    assert (servers.host.workspace / "effects").read_text() == "ran\n"


def test_nobody_comes_back(servers: Servers, path: Path) -> None:
    serve = listen(servers, path, NOWHERE, "--reconnect-s", "0.2")
    client = serve.on_socket(path)
    client.create()
    client.done()
    serve.ended_well(within_s=10)
    assert servers.host.checkpoints() != []


@pytest.mark.slow
def test_a_shutdown_whose_client_does_not_wait_for_it(servers: Servers, path: Path) -> None:
    servers.host.policy()
    with gateway(use(shell("touch runs; sleep 1; echo ran >> effects"))) as model:
        serve = listen(servers, path, model.url, "--reconnect-s", "30")
        client = serve.on_socket(path)
        client.create()
        client.task()
        eventually((servers.host.workspace / "runs").exists, "the command")
        client.send("Shutdown")
        client.done()
        serve.ended_well(within_s=10)
    assert servers.host.checkpoints() == []
    assert (servers.host.workspace / "effects").read_text() == "ran\n"
    kinds = [event["eventType"] for event in servers.host.event_log(client.session_id)]
    assert kinds[-1] == "session_cancelled"


def test_a_client_that_closes_only_its_own_side_gets_its_answers(servers: Servers, path: Path) -> None:
    with gateway(say("Done.")) as model:
        script = servers.host.script(say("Done."))
        serve = listen(servers, path, f"mock:{script}")
        client = serve.on_socket(path)
        client.raw(line(request(1, "CreateSession", **WHO)) + line(request(2, "Nothing")))
        client.half_close()
        assert result(client.reply(1))["status"] == "ready"
        assert client.reply(2)["error"]["code"] == -32601
        serve.ended_well(within_s=5)
        assert model.count == 0


def test_a_signal_ends_a_process_that_listens(servers: Servers, path: Path) -> None:
    serve = listen(servers, path)
    eventually(path.exists, "the socket")
    serve.on_socket(path)
    serve.signal()
    serve.ended_well(within_s=5)
    assert not path.exists()


@pytest.mark.slow
def test_paths_that_cannot_be_used(servers: Servers, path: Path) -> None:
    host = servers.host
    held = listen(servers, path)
    held.on_socket(path)
    assert "another process listens" in host.run("serve", "--socket", path).error
    assert "something else" in host.run("serve", "--socket", host.root / "user.toml").error
    assert "at most" in host.run("serve", "--socket", host.root / ("x" * 120)).error
    held.kill()
    again = listen(servers, path)  # the socket of the one that was killed is in nobody's way
    client = again.on_socket(path)
    client.call("Shutdown")
    again.ended_well()
