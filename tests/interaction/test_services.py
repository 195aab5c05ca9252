"""The program with real services around it: what each of them is told, and what none of them may learn (AH 3, 12)."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.services import MockServices
from tests.support.backends import GATEWAY_TOKEN, SERVICES_TOKEN, Serving, impatient, resume, run, services_at
from tests.support.process import Host, bundle, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = "the-prompt-of-a-user"
ASKS = {"requiresApproval": True, "approvalRuleId": "ask"}
RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]


@contextmanager
def serving(host: Host, changes: dict[str, Any] | None = None, **options: Any) -> Iterator[MockServices]:
    """All services, with a bundle for the host's workspace."""
    impatient(host)
    mock = MockServices(policy_bundle=bundle(host.workspace, **(changes or {})), token=SERVICES_TOKEN, **options)
    with mock.in_thread():
        yield mock


def types(events: tuple[Any, ...]) -> list[str]:
    return [event["eventType"] for event in events]


def sent(services: MockServices, prefix: str) -> str:
    """All bodies that came to a path."""
    return json.dumps([request.body for request in services.requests_to(prefix)])


def test_a_run_with_all_services(host: Host) -> None:
    (host.workspace / "report.txt").write_text(f"the-content-of-a-file {SERVICES_TOKEN} {GATEWAY_TOKEN}\n")
    grants = {"Shell.Exec": {"blockedCommands": ["curl"]}, "Workspace.Upload": {}}
    turns = [
        use(
            shell("curl http://example.org"),
            call("WriteFile", path=str(host.workspace / "a.txt"), content="the-text-of-a-model\n"),
        ),
        use(call("UploadArtifact", path=str(host.workspace / "report.txt")), shell("env; cat /proc/$PPID/environ")),
        use(call("ReadFile", path=str(host.workspace / "report.txt"))),
        say("the-answer-of-a-model"),
    ]
    with serving(host, {"grants": grants}) as services, gateway(*turns) as served:
        outcome = run(host, served.url, services_at(services.url), prompt=PROMPT)
    assert (outcome.code, outcome.stderr) == (0, "")
    (session,) = services.sessions.values()
    assert outcome.result["sessionId"] == session.session_id
    assert [one["status"] for one in outcome.result["toolCalls"]] == ["denied"] + ["succeeded"] * 4
    assert session.request.items() >= {"executionEnvironment": "desktop"}.items()
    assert session.request["workspaceHint"] == {"localPaths": [str(host.workspace)]}
    assert session.request["clientInfo"]["localAgentHostVersion"]
    assert {"File.Read", "Shell.Exec", "LLM.Call"} <= set(session.request["supportedCapabilities"])
    # Everybody is asked in the session's name, and with the token.
    assert all(request.headers["authorization"] == f"Bearer {SERVICES_TOKEN}" for request in services.requests)
    events = host.event_log(session.session_id)
    assert {event["workspaceId"] for event in events} == {session.workspace_id}
    # What is kept.
    diff, upload, *_ = services.artifacts
    assert (diff.fields["artifactType"], diff.workspace_id) == ("file_diff", session.workspace_id)
    assert upload.data == b"the-content-of-a-file [redacted] [redacted]\n"
    history = json.loads(services.histories[session.session_id].data)
    assert [message["role"] for message in history][:3] == ["system", "user", "assistant"]
    uploads = services.requests_to("/workspaces/")
    assert [request.body["artifactType"] for request in uploads].count("session_history") == 1
    # What is told of it.
    assert "tool_completed" in types(services.audit_events)
    assert types(services.audit_events)[-1] == "session_completed"
    assert {"session_started", "step_started", "llm_request_completed"} <= set(types(services.telemetry_events))
    for content in (PROMPT, "the-content-of-a-file", "the-text-of-a-model", "the-answer-of-a-model"):
        assert content not in sent(services, "/telemetry/") + sent(services, "/audit/")
    assert (session.status, session.reason) == ("cancelled", "completed")
    assert host.checkpoints() == []
    no_token_anywhere(host, services, served.results())


def no_token_anywhere(host: Host, services: MockServices, answers: list[Any]) -> None:
    """Neither told nor written nor inherited."""
    said = sent(services, "/") + json.dumps([answer.text for answer in answers])
    said += "".join(path.read_bytes().decode(errors="replace") for path in host.state.rglob("*") if path.is_file())
    assert SERVICES_TOKEN not in said
    assert GATEWAY_TOKEN not in said


def test_the_limits_of_the_granted_bundle_hold(host: Host) -> None:
    changes = {"llm": {"allowedModels": ["the-services-model"], "maxOutputTokens": 77}, "without": ["Shell.Exec"]}
    with serving(host, changes) as services, gateway(use(shell("true")), say("no")) as served:
        outcome = run(host, served.url, services_at(services.url), "--policy", "full")
    assert [one["code"] for one in outcome.result["toolCalls"]] == ["CAPABILITY_DENIED"]
    first = served.bodies[0]
    assert (first["model"], first["max_tokens"]) == ("the-services-model", 77)
    assert "RunCommand" not in [tool["name"] for tool in first["tools"]]


@pytest.mark.parametrize("options", [(), ("--approve", "ask")])
def test_what_is_said_in_advance_reaches_the_approval_service(host: Host, options: tuple[str, ...]) -> None:
    changes = {"grants": {"Shell.Exec": ASKS}, "approvalRules": RULES}
    with serving(host, changes) as services, gateway(use(shell("true")), say("done")) as served:
        outcome = run(host, served.url, services_at(services.url), *options)
    (decision,) = services.approvals
    assert outcome.code == (0 if options else 4)
    assert decision["decision"] == ("approved" if options else "denied")
    assert decision["sessionId"] == outcome.result["sessionId"]
    assert decision["taskId"] == outcome.result["taskId"]
    assert decision["actionSummary"]
    assert decision["riskLevel"]
    assert decision["reason"]


def test_a_session_of_two_tasks_over_rpc(host: Host) -> None:
    changes = {"grants": {"Shell.Exec": ASKS}, "approvalRules": RULES}
    turns = [use(shell("echo ran >> effects")), say("one"), say("two")]
    with (
        serving(host, changes) as services,
        gateway(*turns) as served,
        Serving(host, services_at(services.url), "--gateway", served.url) as client,
    ):
        created = client.create()
        (session,) = services.sessions.values()
        assert (created["sessionId"], created["workspaceId"]) == (session.session_id, session.workspace_id)
        assert created["featureFlags"] == {"approvalUiEnabled": True, "mcpEnabled": True}
        assert session.request["userId"] == "jo"
        assert session.request["clientInfo"].items() >= {"name": "test", "version": "1"}.items()
        assert session.request["supportedCapabilities"] == ["File.Read", "Shell.Exec"]
        client.result("StartTask", sessionId=session.session_id, taskId="t1", prompt=PROMPT)
        asked = client.event("approval_requested")["payload"]
        client.result("ApproveAction", approvalId=asked["approvalId"], decision="approved", reason="go on")
        client.event("task_completed")
        eventually(lambda: services.approvals, "the decision")
        (decision,) = services.approvals
        assert decision["approvalId"] == asked["approvalId"]
        assert (decision["decision"], decision["reason"], decision["userId"]) == ("approved", "go on", "jo")
        eventually(lambda: services.histories, "the history")
        assert services.histories[session.session_id].fields["taskId"] == "t1"
        client.result("StartTask", sessionId=session.session_id, taskId="t2", prompt="More.")
        client.event("task_completed", 2)
        eventually(lambda: services.histories[session.session_id].fields["taskId"] == "t2", "the next history")
        assert session.status == "active"
        client.result("Shutdown", reason="the window was closed")
        assert client.end() == 0
    histories = [one for one in services.requests_to("/workspaces/") if one.body["artifactType"] == "session_history"]
    assert len(histories) == 2
    assert (session.status, session.reason) == ("cancelled", "the window was closed")
    assert types(services.audit_events)[-1] == "session_completed"
    assert {event["userId"] for event in services.audit_events} == {"jo"}
    no_token_anywhere(host, services, [])
    assert host.checkpoints() == []


def test_a_shutdown_in_the_middle_of_a_task(host: Host) -> None:
    with (
        serving(host) as services,
        gateway(say("never all of it", chunk_delay_ms=60_000)) as served,
        Serving(host, services_at(services.url), "--gateway", served.url) as client,
    ):
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        client.event("llm_request_started")
        client.result("Shutdown", reason="enough")
        assert client.end() == 0
    assert services.sessions[session_id].reason == "enough"
    assert session_id in services.histories
    assert types(services.audit_events)[-2:] == ["task_cancelled", "session_cancelled"]
    assert host.checkpoints() == []


def test_a_task_that_fails_for_good_ends_its_session(host: Host) -> None:
    changes = {"llm": {"maxSessionTokens": 1}}
    with serving(host, changes) as services, gateway(say("not asked for")) as served:
        outcome = run(host, served.url, services_at(services.url))
    assert (outcome.code, outcome.result["reason"]) == (1, "LLM_BUDGET_EXCEEDED")
    (session,) = services.sessions.values()
    assert (session.status, session.reason) == ("cancelled", "failed")
    assert session.session_id in services.histories
    assert "task_failed" in types(services.audit_events)


def test_a_pause_keeps_the_session_for_a_resume(host: Host) -> None:
    with serving(host) as services, gateway(use(shell("true")), {"status": 500, "times": "always"}) as served:
        paused = run(host, served.url, services_at(services.url))
    (session,) = services.sessions.values()
    assert (paused.code, session.status) == (3, "active")
    assert types(services.audit_events)[-1] == "session_paused"


def test_a_signal_leaves_the_session_for_a_resume(host: Host) -> None:
    with serving(host) as services, gateway(say("never all of it", chunk_delay_ms=60_000)) as served:
        process = host.start("run", PROMPT, "--gateway", served.url, env=services_at(services.url))
        eventually(lambda: served.count, "the model's turn")
        process.interrupt()
        assert process.finish().code == 130
    (session,) = services.sessions.values()
    assert session.status == "active"
    assert types(services.audit_events)[-1] == "task_cancelled"


def test_a_task_that_is_cancelled_leaves_the_session_active(host: Host) -> None:
    with (
        serving(host) as services,
        gateway(say("never all of it", chunk_delay_ms=60_000)) as served,
        Serving(host, services_at(services.url), "--gateway", served.url) as client,
    ):
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt=PROMPT)
        client.event("llm_request_started")
        client.result("CancelTask", sessionId=session_id, taskId="t")
        client.event("task_cancelled")
        eventually(lambda: services.histories, "the history")
        assert services.histories[session_id].fields["taskId"] == "t"
        assert services.sessions[session_id].status == "active"
        assert client.hang_up() == 0
    # Nobody said that it was over: another process may go on with it.
    assert services.sessions[session_id].status == "active"
    assert f"{session_id}.json" in host.checkpoints()


def test_a_killed_process_goes_on_under_the_services_word(host: Host) -> None:
    wait = "echo ran >> effects; touch up; while [ ! -e go ]; do sleep 0.02; done"
    first = use(call("WriteFile", path=str(host.workspace / "a.txt"), content="one\n"), shell(wait))
    with serving(host) as services, gateway(first, say("done")) as served:
        env = services_at(services.url)
        process = host.start("run", PROMPT, "--gateway", served.url, "--output", "json", env=env)
        eventually(lambda: (host.workspace / "up").exists() and services.artifacts, "the first call's diff")
        process.kill()
        (host.workspace / "go").touch()
        outcome = resume(host, env)
        assert outcome.code == 0, outcome.stderr
    (session,) = services.sessions.values()
    assert outcome.result["sessionId"] == session.session_id
    assert len(session.cursors) == 1
    assert (host.workspace / "effects").read_text() == "ran\n"
    assert [artifact.fields["artifactType"] for artifact in services.artifacts] == ["file_diff"]
    assert session.session_id in services.histories
    assert (session.status, session.reason) == ("cancelled", "completed")
    no_token_anywhere(host, services, served.results())


def test_the_example_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "services.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("PATH", os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])))
    for variable in ("AGENT_HOST_CONFIG", "LLM_GATEWAY_ENDPOINT"):
        monkeypatch.delenv(variable, raising=False)
    found: dict[str, Any] = {}
    exec(compile(example, "docs/services.md", "exec"), found)
    found["test_what_my_services_would_see"](tmp_path)
