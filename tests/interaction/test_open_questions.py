"""Open questions as one channel of the state: `agent-host approvals`, `approve` and `deny` from anywhere of the same
user's, and never from a session's own commands (decision 0108)."""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.rpc.channels import short_name
from tests.support.process import Host, call, eventually, gateway, say, shell, use

if sys.platform == "win32":
    pytest.skip("a named pipe there", allow_module_level=True)

from tests.support.terminal import AtTerminal
from tool_runtime import sandbox

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


def test_what_a_killed_session_left_is_removed_with_it(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, _ = asking(servers, model)
        serve.kill()
        assert host.run("show", client.session_id).code == 0
        assert host.run("sessions", "rm", client.session_id, "--resumable").code == 0
    assert not host.records(client.session_id).exists()


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


# A model and its own question

ATTACK = """
import json, os, subprocess, sys, time

python, state, work = sys.executable, sys.argv[1], os.getcwd()
RAW = '''
import json, os, socket, sys
out, where, line = sys.argv[1:]
try:
    os.chdir(os.path.dirname(where))
    wire = socket.socket(socket.AF_UNIX)
    wire.settimeout(20)
    wire.connect(os.path.basename(where))
    try:
        wire.sendall(line.encode())
    except BrokenPipeError:  # it has said why already
        pass
    said = wire.recv(65536).decode()
except OSError as error:
    said = f"OSError {error}"
with open(out + ".part", "w") as file:
    file.write(said)
os.rename(out + ".part", out)
'''

while not os.path.exists("question"):
    time.sleep(0.01)
with open("question") as file:
    approval, records, listening = json.load(file)
answer = {"approvalId": approval, "decision": "approved"}
line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ApproveAction", "params": answer}) + "\\n"

words = [python, "-P", "-m", "agent_host", "approve", approval, "--state-dir", state]
done = subprocess.run(words, capture_output=True, text=True)
with open("plain.part", "w") as file:
    json.dump([done.returncode, done.stdout, done.stderr], file)
os.rename("plain.part", "plain")

for out, where in (("daemon", records + "/questions.sock"), ("socket", listening)):
    if where and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(python, [python, "-c", RAW, work + "/" + out, where, line], {})
        os._exit(0)
os.wait()
"""
LEVELS = ["none", *(level for level in sandbox.LEVELS if sandbox.look(level).works)]
GATED = {
    "File.Delete": {"requiresApproval": True, "approvalRuleId": "ask"},
    "File.Read": {},
    "File.Write": {},
    "Shell.Exec": {},
}


@pytest.mark.many_rows(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("away", [False, True], ids=["", "client away"])
def test_no_model_answers_its_own_question(servers: Servers, level: str, *, away: bool) -> None:
    """Plainly, as a daemon without an environment, parents, session or group, and in the place of its client."""
    host = servers.host
    work, listening = host.workspace, host.root / "run" / "s"
    (work / "attack.py").write_text(ATTACK)
    target = work / "gated"
    target.write_text("the person's")
    attack = call("RunCommand", command=f"{sys.executable} attack.py {host.state}")
    with gateway(use(attack, call("DeleteFile", path=str(target))), say("Done.")) as model:
        policy = host.policy(grants=GATED, approvalRules=RULES, sandbox={"reads": "open"})
        options = ("--gateway", model.url, "--policy", str(policy), "--sandbox", level)
        serve = servers.start("--socket", str(listening), "--reconnect-s", "60", *options, piped=False)
        client = serve.on_socket(listening)
        client.create()
        client.task()
        approval = waiting(client)
        if away:
            client.done()
        (work / "question.part").write_text(
            json.dumps([approval, str(host.records(client.session_id)), str(listening)])
        )
        (work / "question.part").rename(work / "question")
        for name in ("plain", "daemon", "socket"):
            eventually((work / name).exists, name)
        plain, daemon, taken = (read(work / name) for name in ("plain", "daemon", "socket"))
        (row,) = listed(host)
        assert (row["approvalId"], target.exists()) == (approval, True)
        assert json.loads(plain)[0] != 0
        if level == "none":
            said = "was started by a session's command, which answers no question"
            assert said in json.loads(plain)[2]
            assert said in daemon
            assert said in taken
        assert "delivered" not in daemon + taken
        other = serve.on_socket(listening) if away else client
        other.session_id = client.session_id
        assert host.run("approve", approval).code == 0
        eventually(lambda: other.ask("GetSessionState")["task"]["status"] == "TASK_COMPLETED", "the end")
        other.call("Shutdown")
        serve.ended_well()
    assert not target.exists()


def read(path: Path) -> str:
    return path.read_text()


def asked_by(host: Host, code: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What a process that the test starts prints."""
    words = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True, cwd=host.root)
    return done.stdout


TALK = """
import os, socket, sys
os.chdir(sys.argv[1])
wire = socket.socket(socket.AF_UNIX)
wire.settimeout(20)
wire.connect("questions.sock")
"""
ASK = """
try:
    wire.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "ListApprovals"}\\n')
except BrokenPipeError:
    pass
print(wire.recv(65536).decode())
"""
FORKED = """
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    pass
"""


def test_a_mark_gives_a_stray_away(servers: Servers) -> None:
    """A process that no session is an ancestor of any more, with the environment of a call."""
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, approval = asking(servers, model)
        records = str(host.records(client.session_id))
        assert approval in asked_by(host, TALK + ASK, records)
        said = asked_by(host, TALK + ASK, records, env={"AGENT_HOST_CALL_MARK": "any#1"})
        assert "carries the mark of a session's call" in said
        host.cold = True  # what is forked shows the environment of what it was forked from
        done = host.run("approve", approval, env={"AGENT_HOST_CALL_MARK": "any#1"})
        assert (done.code, done.text) == (1, "")
        assert done.error.count("\n") == 0
        assert listed(host)
        serve.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_connection_that_was_handed_on_counts_no_more(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client, _ = asking(servers, model)
        code = TALK + FORKED + ASK
        said = asked_by(host, code, str(host.records(client.session_id)))
        assert "refused: process " in said
        assert listed(host)
        serve.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has open is shown there alone")
def test_a_command_of_another_session_elsewhere_is_refused(servers: Servers) -> None:
    host = servers.host
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, _, approval = asking(servers, model)
        there = (sys.executable, "-P", "-m", "agent_host", "approve", approval, "--state-dir", str(host.state))
        command = f"env -u AGENT_HOST_CALL_MARK {shlex.join(there)} 2>&1"
        with gateway(use(shell(command)), say("Done.")) as other:
            host.task(other.url, "--state-dir", str(host.root / "other"))
            (result,) = other.results()
        assert "was started by a session's command" in result.text
        assert listed(host)
        serve.kill()
