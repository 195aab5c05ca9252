"""Open questions as one channel of the state: `agent-host approvals`, `approve` and `deny` from anywhere of the same
user's, and never from a session's own commands (decision 0108)."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.rpc.sockets import short_name
from tests.support.process import Host, eventually, gateway, say, shell, use

if sys.platform == "win32":
    pytest.skip("a named pipe there", allow_module_level=True)

from tests.support.terminal import AtTerminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Gateway
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Serve, Servers

RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
EFFECT = shell("echo model >> effects")


def effects(host: Host) -> str:
    path = host.workspace / "effects"
    return path.read_text() if path.exists() else ""


def asking(servers: Servers, model: Gateway, *options: str) -> tuple[Serve, Client, str]:
    """A session whose command waits for an approval."""
    serve, client = servers.session(model.url, *options, policy=servers.host.policy(grants=ASKS, approvalRules=RULES))
    client.task()
    return serve, client, waiting(client)


def waiting(client: Client) -> str:
    asked = client.event("approval_requested")
    eventually(lambda: client.ask("GetSessionState")["pendingApprovals"], "a call that waits")
    return str(asked["payload"]["approvalId"])


def listed(host: Host) -> list[dict[str, Any]]:
    rows = json.loads(host.run("approvals", "--output", "json").text)
    assert isinstance(rows, list)
    return rows


def ended(serve: Serve, client: Client) -> dict[str, Any]:
    client.event("task_completed")
    client.call("Shutdown")
    serve.ended_well()
    payload = client.event("approval_resolved")["payload"]
    assert isinstance(payload, dict)
    return payload


def test_another_command_approves_and_the_client_sees_it(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), use(EFFECT), say("Done.")) as model:
        serve, client, approval = asking(servers, model)
        (row,) = listed(host)
        (state,) = client.ask("GetSessionState")["pendingApprovals"]
        assert row == state
        text = host.run("approvals").text
        assert text.startswith(f"{approval}  medium  Act: ")
        assert f"\n  session {client.session_id}, task a\n" in text
        done = host.run("approve", approval, "--scope", "task")
        assert (done.code, done.text, done.stderr) == (0, f"approved {approval}\n", "")
        again = host.run("deny", approval)
        assert (again.code, again.text) == (1, "")
        assert again.error == f"agent-host: error: {approval} is approved already: by a command"
        told = client.call("ApproveAction", approvalId=approval, decision="denied")
        assert told["status"] == "not_found"
        payload = ended(serve, client)
    assert (payload["decision"], payload["scope"], payload["answeredBy"]) == ("approved", "task", "command")
    assert effects(host) == "model\nmodel\n"
    assert "approval: approved (task, by command): " in host.run("show", client.session_id).text
    assert listed(host) == []
    assert not (host.records(client.session_id) / "questions.sock").exists()


def test_a_denial_reaches_the_model_with_its_reason(servers: Servers) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, approval = asking(servers, model)
        assert servers.host.run("deny", approval, "--reason", "not \udcff today").code == 0
        payload = ended(serve, client)
        (told,) = model.results()
    assert told.text == "APPROVAL_DENIED: not ? today"
    assert (payload["decision"], payload["answeredBy"]) == ("denied", "command")


@pytest.mark.parametrize("face", ["client", "chat", "acp", "view"])
def test_faces_over_serve_name_themselves(servers: Servers, face: str) -> None:
    host = servers.host
    named = {} if face == "client" else {"answeredBy": face}
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, approval = asking(servers, model)
        client.refusal("ApproveAction", approvalId=approval, decision="approved", answeredBy="command")
        assert listed(host)
        assert client.call("ApproveAction", approvalId=approval, decision="approved", **named)["status"] == "delivered"
        late = host.run("approve", approval)
        payload = ended(serve, client)
    assert payload["answeredBy"] == face
    assert late.code == 1
    assert f"{approval} is approved already: by " in late.error


def test_what_nobody_asks_is_unknown(servers: Servers) -> None:
    host = servers.host
    assert host.run("approvals").text == f"no open questions under {host.state}\n"
    with gateway(use(EFFECT), say("Done.")) as model:
        _, client, approval = asking(servers, model)
        for words in (("approve", "nobody"), ("deny", "nobody")):
            done = host.run(*words)
            assert (done.code, done.text) == (1, "")
            assert "no live session" in done.error
        elsewhere = host.run("approve", approval, "--state-dir", str(host.root / "other"))
        assert elsewhere.code == 1
        assert [row["approvalId"] for row in client.ask("GetSessionState")["pendingApprovals"]] == [approval]


def test_a_killed_session_asks_nothing_and_its_resume_asks_again(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, approval = asking(servers, model)
        path = host.records(client.session_id) / "questions.sock"
        assert (stat.S_IMODE(path.stat().st_mode), stat.S_ISSOCK(path.stat().st_mode)) == (0o600, True)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        serve.kill()
        assert path.exists()
        assert listed(host) == []
        assert host.run("approve", approval).code == 1
        second, other = servers.client(model.url, policy=host.root / "policy.json")
        other.resume(client.session_id)
        assert waiting(other) == approval
        assert host.run("approve", approval).code == 0
        assert ended(second, other)["answeredBy"] == "command"
    assert effects(host) == "model\n"


def test_a_state_directory_with_a_long_path(servers: Servers) -> None:
    """A socket's own path has 107 bytes at most."""
    host = servers.host
    deep = host.root / ("d" * 100) / ("e" * 100)
    options = ("--state-dir", str(deep))
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, approval = asking(servers, model, *options)
        assert f"{approval}  " in host.run("approvals", *options).text
        assert host.run("approve", approval, *options).code == 0
        ended(serve, client)
    assert effects(host) == "model\n"
    assert not list(deep.rglob("questions.sock"))


def test_a_question_at_a_terminal_is_answered_from_another(host: Host) -> None:
    with gateway(use(EFFECT), use(shell("echo two >> effects")), say("Done.")) as model:
        policy = str(host.policy(grants=ASKS, approvalRules=RULES))
        terminal = AtTerminal(host, "run", "Do it.", "--gateway", model.url, "--policy", policy, "--output", "json")
        terminal.said("Allow this?")
        (row,) = listed(host)
        assert host.run("approve", row["approvalId"]).code == 0
        terminal.said("approved elsewhere: approved by the user\n")
        terminal.said("Allow this?", times=2)
        (other,) = listed(host)
        terminal.type("y\n")
        code, out = terminal.finish()
    assert code == 0, terminal.shown
    assert effects(host) == "model\ntwo\n"
    resolved = [one["payload"] for one in host.event_log(row["sessionId"]) if one["eventType"] == "approval_resolved"]
    assert [one["answeredBy"] for one in resolved] == ["command", "client"]
    assert [one["approvalId"] for one in resolved] == [row["approvalId"], other["approvalId"]]
    assert [one["status"] for one in json.loads(out)["toolCalls"]] == ["succeeded", "succeeded"]


def test_what_nobody_can_answer_opens_nothing(host: Host) -> None:
    with gateway(use(EFFECT), say("Done.")) as model:
        outcome = host.task(model.url, policy=host.policy(grants=ASKS, approvalRules=RULES))
    assert outcome.code == 4
    (resolved,) = [
        one["payload"] for one in host.event_log(outcome.result["sessionId"]) if one["eventType"] == "approval_resolved"
    ]
    assert "answeredBy" not in resolved
    assert not (host.records(outcome.result["sessionId"]) / "questions.sock").exists()


def connection(path: Path) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX)
    wire.settimeout(30)
    with short_name(os.fspath(path)) as name:
        wire.connect(name)
    return wire


def read_all(wire: socket.socket) -> bytes:
    said = b""
    try:
        while piece := wire.recv(65536):
            said += piece
    except ConnectionResetError:
        pass
    return said


def test_the_channel_is_bounded(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, approval = asking(servers, model)
        path = host.records(client.session_id) / "questions.sock"
        with connection(path) as wire:
            wire.sendall(b"x" * 100_000 + b"\n")
            wire.shutdown(socket.SHUT_WR)
            assert b"longer than 65536 bytes" in read_all(wire)
        with connection(path) as wire:
            request = {"jsonrpc": "2.0", "id": 1, "method": "StartTask", "params": {}}
            wire.sendall(json.dumps(request).encode())
            wire.shutdown(socket.SHUT_WR)
            assert b"known are: ListApprovals, ApproveAction" in read_all(wire)
        silent = [connection(path) for _ in range(8)]
        with connection(path) as one_more:
            assert read_all(one_more) == b""
        assert client.ask("GetSessionState")["pendingApprovals"]
        for wire in silent:
            wire.close()
        eventually(lambda: host.run("approve", approval).code == 0, "room for the next client")
        ended(serve, client)
