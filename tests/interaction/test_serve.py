"""Requests of `agent-host serve` and their results, exactly as the interface has them (interface section 2)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, eventually, gateway, say, shell, use
from tests.support.rpc_client import WHO, Refused, line, request, result

if TYPE_CHECKING:
    from tests.support.process import Host
    from tests.support.serve_process import Servers

NOWHERE = "http://127.0.0.1:1"
NOT_READY = (-32001, "SESSION_NOT_READY", False)
BAD_PARAMS = (-32602, "INVALID_REQUEST", False)
OUT_OF_ORDER = (-32600, "INVALID_REQUEST", False)
WAIT_FOR_GO = shell("touch waits; while [ ! -e go ]; do sleep 0.02; done; echo went")
READY = {"sessionId", "workspaceId", "status", "compatibilityStatus", "featureFlags", "protocolVersion"}


def go(host: Host) -> None:
    """Let WAIT_FOR_GO end."""
    (host.workspace / "go").touch()


def waits(host: Host) -> None:
    """Until WAIT_FOR_GO runs."""
    eventually((host.workspace / "waits").exists, "the command")


# The life of a session


def test_a_session_from_its_creation_to_its_end(servers: Servers) -> None:
    host = servers.host
    (host.workspace / "note").write_text("old\n")
    write = call("WriteFile", path=str(host.workspace / "note"), content="new\n")
    with gateway(use(WAIT_FOR_GO, write), say("Done.")) as model:
        serve, client = servers.client(model.url)
        ready = client.call("CreateSession", **WHO, workspaceHint={"localPaths": [str(host.workspace)]})
        session = client.session_id = ready["sessionId"]
        assert set(ready) == READY
        assert (ready["status"], ready["compatibilityStatus"]) == ("ready", "compatible")
        assert ready["protocolVersion"] == "1.0"
        idle = client.ask("GetSessionState")
        assert set(idle) == {"sessionId", "sessionStatus", "verdict", "tokenUsage", "pendingApprovals"}
        assert (idle["sessionStatus"], idle["pendingApprovals"]) == ("SESSION_RUNNING", [])
        assert client.task("a", taskOptions={"maxSteps": 9}) == {"taskId": "a", "status": "running"}
        waits(host)
        busy = client.ask("GetSessionState")
        assert busy["task"] == {"taskId": "a", "status": "EXECUTING_TOOLS", "stepCount": 0, "maxSteps": 9}
        usage = busy["tokenUsage"]
        assert set(usage) == {"inputTokens", "outputTokens", "totalTokens", "remaining", "maxSessionTokens"}
        assert usage["totalTokens"] + usage["remaining"] == usage["maxSessionTokens"]
        go(host)
        ended = client.event("task_completed")
        assert set(ended) == {
            "eventId", "eventType", "timestamp", "tenantId", "userId", "workspaceId", "sessionId", "taskId",
            "component", "severity", "payload",
        }  # fmt: skip
        assert (ended["sessionId"], ended["taskId"], ended["userId"], ended["tenantId"]) == (session, "a", "u", "t")
        assert client.ask("GetSessionState")["task"]["status"] == "TASK_COMPLETED"
        files = client.ask("GetPatchPreview")["files"]
        *by_the_command, patched = sorted(files, key=lambda file: file["filePath"].endswith("note"))
        assert {file["status"] for file in by_the_command} == {"added"}
        assert set(patched) == {"filePath", "status", "diff", "additions", "deletions"}
        assert (patched["status"], patched["additions"], patched["deletions"]) == ("modified", 1, 1)
        assert client.ask("GetPatchPreview", filePaths=["nothing"]) == {"files": []}
        assert client.ask("GetPatchPreview", taskId="a")["files"] == files
        assert client.refusal("GetPatchPreview", sessionId=session, taskId="z").what == BAD_PARAMS
        told = client.ask("GetEvents", sinceId=0)
        assert set(told) == {"events", "gapDetected", "latestId"}
        assert (told["gapDetected"], told["latestId"]) == (False, told["events"][-1]["eventId"])
        assert told["events"] == client.events
        later = client.ask("GetEvents", sinceId=ended["eventId"])
        assert [event for event in later["events"] if event["eventId"] <= ended["eventId"]] == []
        assert client.call("Shutdown", reason="enough") == {"status": "shutdown", "sessionId": session}
        serve.ended_well()
    assert client.events[-1]["eventType"] == "session_completed"
    assert client.events[-1]["payload"]["reason"] == "enough"
    assert [event["eventId"] for event in client.events] == list(range(1, len(client.events) + 1))
    assert host.checkpoints() == []


def test_tasks_follow_one_another_on_one_thread(servers: Servers) -> None:
    host = servers.host
    with gateway(use(WAIT_FOR_GO), say("First answer."), say("Second answer.")) as model:
        serve, client = servers.session(model.url)
        client.task("a", "First question.")
        waits(host)
        running = client.refusal("StartTask", sessionId=client.session_id, taskId="b", prompt="x")
        assert running.what == (-32004, "TASK_ALREADY_RUNNING", True)
        go(host)
        first = client.event("task_completed")
        assert client.refusal("StartTask", sessionId=client.session_id, taskId="a", prompt="x").what == BAD_PARAMS
        assert client.refusal("StartTask", sessionId=client.session_id, taskId="b", prompt=" ").what == BAD_PARAMS
        client.task("b", "Second question.")
        client.event("task_completed", after=first["eventId"])
        texts = json.dumps(model.bodies[-1]["messages"])
        assert all(text in texts for text in ("First question.", "First answer.", "Second question.", "went"))
        assert client.ask("GetSessionState")["task"]["taskId"] == "b"
        client.call("Shutdown")
        serve.ended_well()
    assert client.events[-1]["payload"]["taskCount"] == 2


def test_task_options(servers: Servers) -> None:
    host = servers.host
    ask = shell("echo x > effect")
    with gateway(use(ask), use(ask), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task("a", taskOptions={"maxSteps": 1, "approvalMode": "never", "allowNetwork": False})
        assert client.event("task_failed")["payload"]["reason"] == "max_steps_exceeded"
        client.task("b", taskOptions={"approvalMode": "always"})
        client.event("approval_requested")
        client.call("Shutdown")
        serve.ended_well()
    assert host.checkpoints() == []


# What is refused


def test_requests_without_a_session(servers: Servers) -> None:
    serve, client = servers.client(NOWHERE)
    cases: dict[str, dict[str, Any]] = {
        "StartTask": {"taskId": "a", "prompt": "x"},
        "CancelTask": {"taskId": "a"},
        "GetSessionState": {},
        "GetPatchPreview": {},
        "GetEvents": {"sinceId": 0},
    }
    for method, params in cases.items():
        assert client.refusal(method, sessionId="s", **params).what == NOT_READY, method
    assert client.refusal("ApproveAction", approvalId="x", decision="approved").what == NOT_READY
    unknown = client.refusal("ResumeSession", sessionId="nobody")
    assert unknown.what == (-32001, "SESSION_NOT_FOUND", False)
    client.refusal("ResumeSession", sessionId="../../etc/passwd")
    missing = client.refusal("CreateSession", **WHO, workspaceHint={"localPaths": ["/does/not/exist"]})
    assert missing.what == BAD_PARAMS
    assert client.create()  # what was refused is no obstacle
    assert client.call("Shutdown") == {"status": "shutdown", "sessionId": client.session_id}
    serve.ended_well()
    assert servers.host.checkpoints() == []


def test_shutdown_before_a_session(servers: Servers) -> None:
    serve, client = servers.client(NOWHERE)
    assert client.call("Shutdown") == {"status": "shutdown", "sessionId": None}
    serve.ended_well()


SESSION_CASES: list[tuple[str, dict[str, Any], tuple[int, str, bool]]] = [
    ("CreateSession", WHO, OUT_OF_ORDER),
    ("ResumeSession", {"sessionId": "other"}, (-32001, "SESSION_NOT_FOUND", False)),
    ("GetSessionState", {"sessionId": "other"}, (-32001, "SESSION_NOT_FOUND", False)),
    ("GetSessionState", {}, BAD_PARAMS),
    ("GetSessionState", {"sessionId": ""}, BAD_PARAMS),
    ("GetSessionState", {"sessionId": 1}, BAD_PARAMS),
    ("GetEvents", {"sessionId": "$"}, BAD_PARAMS),
    ("GetEvents", {"sessionId": "$", "sinceId": -1}, BAD_PARAMS),
    ("GetEvents", {"sessionId": "$", "sinceId": 1.0}, BAD_PARAMS),
    ("GetEvents", {"sessionId": "$", "sinceId": True}, BAD_PARAMS),
    ("GetEvents", {"sessionId": "$", "sinceId": 2**53}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a"}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a" * 129, "prompt": "x"}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a", "prompt": ["x"]}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a", "prompt": "x", "taskOptions": {"maxSteps": 0}}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a", "prompt": "x", "taskOptions": {"maxSteps": 10_001}}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a", "prompt": "x", "taskOptions": {"approvalMode": "?"}}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a", "prompt": 1, "more": 1}, BAD_PARAMS),
    ("StartTask", {"sessionId": "$", "taskId": "a", "prompt": "x", "taskOptions": None}, BAD_PARAMS),
    ("CancelTask", {"sessionId": "$", "taskId": "a"}, (-32041, "NO_ACTIVE_TASK", False)),
    ("CancelTask", {"sessionId": "$", "taskId": "a", "force": "yes"}, BAD_PARAMS),
    ("ApproveAction", {"approvalId": "a", "decision": "maybe"}, BAD_PARAMS),
    ("ApproveAction", {"approvalId": "a", "decision": "denied", "scope": "ever"}, BAD_PARAMS),
    ("Shutdown", {"reason": 1}, BAD_PARAMS),
    ("Nothing", {}, (-32601, "INVALID_REQUEST", False)),
]  # fmt: skip


def test_what_cannot_be_asked_of_a_session(servers: Servers) -> None:
    """Each is refused by its own error, and none of them disturbs the session."""
    serve, client = servers.session(NOWHERE)
    before = client.ask("GetSessionState")
    for method, params, what in SESSION_CASES:
        given = {key: client.session_id if value == "$" else value for key, value in params.items()}
        assert client.refusal(method, **given).what == what, (method, params)
    late = client.call("ApproveAction", approvalId="nobody-asked", decision="approved")
    assert late == {"approvalId": "nobody-asked", "decision": "approved", "status": "not_found"}
    assert client.ask("GetSessionState") == before
    client.call("Shutdown")
    serve.ended_well()


# Clients of another version


def test_what_a_later_client_sends_more_is_listed(servers: Servers) -> None:
    with gateway(say("Done.")) as model:
        serve, client = servers.client(model.url)
        created = client.call(
            "CreateSession",
            **{**WHO, "clientInfo": {"name": "test", "theme": "dark"}, "workspaceHint": {"remote": {"url": "x"}}},
            a=1,
        )
        assert created["ignored"] == ["a", "clientInfo.theme", "workspaceHint.remote"]
        client.session_id = created["sessionId"]
        options = {"maxSteps": 3, "later": {"maxSteps": 1}}
        started = client.task(taskOptions=options, priority="high")
        assert started == {"taskId": "a", "status": "running", "ignored": ["priority", "taskOptions.later"]}
        client.event("task_completed")
        many = {f"x{number:03}": number for number in range(500)}
        assert client.ask("GetSessionState", **many)["ignored"] == list(many)[:100]
        assert "ignored" not in client.ask("GetSessionState")
        assert client.call("Shutdown", force=True)["ignored"] == ["force"]
        serve.ended_well()


@pytest.mark.parametrize(
    "versions", [["1.0"], ["0.9", "1.0", "2.0"], ["1.0", "1.0"], ["10.0", "later", "1.0", ""]], ids=str
)
def test_the_highest_common_version_is_answered(servers: Servers, versions: list[str]) -> None:
    serve, client = servers.client(NOWHERE)
    created = client.call("CreateSession", **WHO, protocolVersions=versions)
    assert created["protocolVersion"] == "1.0"
    assert "ignored" not in created
    client.call("Shutdown")
    serve.ended_well()


def test_no_common_version(servers: Servers) -> None:
    serve, client = servers.client(NOWHERE)
    versions: list[list[str]] = [["2.0", "0.9"], ["1"], ["1.0.0"], []]
    for offered in versions:
        refused = client.refusal("CreateSession", **WHO, protocolVersions=offered)
        assert refused.what == (-32005, "INCOMPATIBLE", False)
        assert refused.details == {"protocolVersions": ["1.0"]}
        assert "1.0" in refused.message
    for wrong in ("1.0", [1.0], None, ["1"] * 101):
        assert client.refusal("CreateSession", **WHO, protocolVersions=wrong).what == BAD_PARAMS
    assert client.create()
    client.call("Shutdown")
    serve.ended_well()


def test_one_workspace_path_is_supported(servers: Servers) -> None:
    paths = [str(servers.host.workspace)] * 2
    serve, client = servers.client(NOWHERE)
    refused = client.refusal("CreateSession", **WHO, workspaceHint={"localPaths": paths})
    assert refused.what == BAD_PARAMS
    assert refused.message == "workspaceHint.localPaths: one workspace path is supported, not 2"
    assert client.create(workspaceHint={"localPaths": []})
    client.call("Shutdown")
    serve.ended_well()


def test_events_after_one_that_there_is_not(servers: Servers) -> None:
    serve, client = servers.session(NOWHERE)
    client.event("session_started")
    latest = client.ask("GetEvents", sinceId=0)["latestId"]
    assert client.ask("GetEvents", sinceId=latest) == {"events": [], "gapDetected": False, "latestId": latest}
    refused = client.refusal("GetEvents", sessionId=client.session_id, sinceId=latest + 1)
    assert refused.what == BAD_PARAMS
    assert refused.details == {"latestId": latest}
    client.call("Shutdown")
    serve.ended_well()


# JSON-RPC 2.0


def test_every_form_of_a_line(servers: Servers) -> None:
    serve, client = servers.session(NOWHERE)
    state = {"sessionId": client.session_id}

    def said(data: bytes, number: Any = None) -> int:
        client.raw(data + b"\n")
        code: int = client.reply(number)["error"]["code"]
        return code

    assert said(b"{") == -32700
    assert said(b"\xff\xfe") == -32700
    assert said(b'{"jsonrpc":"2.0","id":1,"method":"GetSessionState","params":{"x":NaN}}') == -32700
    assert said(b"[" * 100_000) == -32700
    assert said(b"[]") == -32600
    assert said(b"1") == -32600
    assert said(b'{"jsonrpc":"1.0","id":"v","method":"GetSessionState"}', "v") == -32600
    assert said(b'{"jsonrpc":"2.0","id":"p","method":"GetSessionState","params":["s"]}', "p") == -32602
    assert said(b"x" * (33 * 1024 * 1024)) == -32600
    client.raw(b"\r\n\n   \n")
    huge = 2**80
    answers = client.batch(
        request(None, "GetSessionState", **state),
        request(huge, "GetSessionState", **state),
        request('é\u2028"', "GetSessionState", **state),
        {"jsonrpc": "2.0", "method": "GetSessionState", "params": state},
        {"jsonrpc": "2.0", "method": "Nothing"},
        7,
        {},
    )
    assert [answer["id"] for answer in answers] == [None, huge, 'é\u2028"', None, None]
    assert ["result" in answer for answer in answers] == [True, True, True, False, False]
    client.raw(line([{"jsonrpc": "2.0", "method": "GetSessionState", "params": state}]))  # answered by nothing
    client.raw(
        line({"jsonrpc": "2.0", "id": 1, "result": {}}) + line([{"id": None, "error": {"code": 1}}])
    )  # nor these
    client.notify("GetSessionState", **state)
    client.raw(line(request(2.5, "GetSessionState", **state)))
    assert result(client.reply(2.5))["sessionId"] == client.session_id
    client.call("Shutdown")
    serve.ended_well()
    assert [len(batch) for batch in client.batches] == [5]


def test_a_notification_has_its_effect(servers: Servers) -> None:
    with gateway(say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.notify("StartTask", sessionId=client.session_id, taskId="a", prompt="Do it.")
        client.event("task_completed")
        client.notify("Shutdown")
        serve.ended_well()
    assert client.events[-1]["eventType"] == "session_completed"


def test_input_that_ends_at_once_is_answered_whole(servers: Servers) -> None:
    serve, client = servers.client(NOWHERE)
    methods = [line(request(number, "GetSessionState", sessionId="s")) for number in range(500)]
    client.raw(b"".join([line(request("new", "CreateSession", **WHO)), *methods, b'{"jsonrpc":"2.0","id":"last"}']))
    client.done()
    serve.ended_well()
    session = result(client.reply("new"))["sessionId"]
    assert {Refused(client.reply(number)["error"]).code for number in range(500)} == {-32001}
    assert client.reply("last")["error"]["code"] == -32600
    assert session


def test_nothing_else_gets_to_standard_output(servers: Servers) -> None:
    """A command's output goes to its result, whatever it writes to."""
    noisy = shell("echo out; echo err >&2; cat; exit 3")
    with gateway(use(noisy), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()


def test_options_that_cannot_be_used(host: Host) -> None:
    assert "--reconnect-s" in host.run("serve", "--reconnect-s", "5").error
    assert host.run("serve", "--output", "json").code == 2


def test_a_policy_that_cannot_be_used(servers: Servers) -> None:
    serve, client = servers.client(NOWHERE, policy=servers.host.policy(expires_in_s=-5.0))
    assert client.refusal("CreateSession", **WHO).what == (-32003, "POLICY_EXPIRED", False)
    (servers.host.root / "policy.json").write_text("{}")
    assert client.refusal("CreateSession", **WHO).what == (-32003, "POLICY_BUNDLE_INVALID", False)
    servers.host.policy()
    client.create()
    client.call("Shutdown")
    serve.ended_well()
