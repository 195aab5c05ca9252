"""Tools of the Backend Tool Service in real sessions, over real HTTP: what the model is offered, what it reads, what
the records say, and what none of them may hold."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.capability_grants import GRANT_HEADER, grant_key, verify
from agent_host.testing.services import MockServices
from tests.support.backends import SERVICES_TOKEN, impatient, only_session, services_at
from tests.support.process import bundle, call, gateway, say, use
from tests.support.tool_server import KEY, LOSE, TOKEN, ToolServer, echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Gateway, Host, Outcome
    from tests.support.serve_process import Servers

NAME = "BackendTool.Invoke"
ASKS = {"requiresApproval": True, "approvalRuleId": "ask"}
RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]


@contextlib.contextmanager
def serving(**tools: Any) -> Iterator[ToolServer]:
    server = ToolServer(tools or None)
    with server.in_thread():
        yield server


def variables(server: ToolServer, **more: str) -> dict[str, str]:
    return {
        "BACKEND_TOOL_SERVICE_URL": server.url,
        "BACKEND_TOOL_SERVICE_TOKEN": TOKEN,
        "AGENT_HOST_GRANT_KEY": KEY,
        **more,
    }


def policy(host: Host, *names: str, **more: Any) -> str:
    entry = {"allowedToolNames": list(names), **more}
    return str(host.policy(grants={NAME: entry}, approvalRules=RULES, tenantId="acme"))


def run(host: Host, model: Gateway, server: ToolServer, named: str, *options: str, **env: str) -> Outcome:
    impatient(host)
    arguments = ("run", "Do it.", "--gateway", model.url, "--policy", named, "--output", "json", *options)
    return host.run(*arguments, env=variables(server, **env))


def offered(model: Gateway, request: int = 0) -> list[str]:
    return [tool["name"] for tool in model.bodies[request].get("tools", [])]


def test_a_backend_tool_is_offered_called_and_recorded_like_a_local_one(host: Host) -> None:
    async def stored(_: dict[str, Any]) -> dict[str, Any]:
        uri = "workspaces/ws/artifacts/art_789"
        return {"status": "succeeded", "outputText": "Row count: 142", "artifactUris": [uri]}

    turns = [use(call("Query", text="SELECT 1")), say("There are 142.")]
    with serving(Query=stored, Other=echo) as server, gateway(*turns) as model:
        outcome = run(host, model, server, policy(host, "Query"))
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "Query" in offered(model)
    assert "Other" not in offered(model)
    (answer,) = model.results()
    assert (answer.text, answer.is_error) == ("Row count: 142\n[stored: workspaces/ws/artifacts/art_789]", False)
    assert [(one["toolName"], one["status"]) for one in outcome.result["toolCalls"]] == [("Query", "succeeded")]
    (ran,) = server.ran
    assert (ran.tool, ran.arguments) == ("Query", {"text": "SELECT 1"})
    assert ran.key == answer.call_id
    events = host.event_log(outcome.result["sessionId"])
    (requested,) = [one["payload"] for one in events if one["eventType"] == "tool_requested"]
    assert (requested["capability"], requested["decision"], requested["riskLevel"]) == (NAME, "ALLOWED", "medium")
    (completed,) = [one["payload"] for one in events if one["eventType"] == "tool_completed"]
    assert completed["artifactUris"] == ["workspaces/ws/artifacts/art_789"]
    (kept,) = [one for one in host.history(outcome.result["sessionId"]) if one["role"] == "tool"]
    assert kept["artifactUris"] == completed["artifactUris"]


def test_the_grant_names_tenant_session_and_the_one_tool_and_ends_with_the_bundle(host: Host) -> None:
    grants = {NAME: {"allowedToolNames": ["Query", "Other"]}}
    named = host.policy(grants=grants, tenantId="acme", expires_in_s=300)
    with serving(Query=echo, Other=echo) as server, gateway(use(call("Query", text="x")), say("Done.")) as model:
        outcome = run(host, model, server, str(named))
    (sent,) = [headers for method, _, headers, _ in server.requests if method == "POST"]
    grant = verify(sent[GRANT_HEADER], grant_key({"AGENT_HOST_GRANT_KEY": KEY}) or b"")
    assert (grant.tenant_id, grant.session_id) == ("acme", outcome.result["sessionId"])
    assert grant.tool_names == ("Query",)
    ends = datetime.fromisoformat(json.loads(named.read_text())["expiresAt"])
    assert grant.expires_at == int(ends.timestamp()), "and not when the host's own 15 minutes are over"


def test_no_secret_of_the_service_is_anywhere(host: Host) -> None:
    host.cold = True

    async def leaks(_: dict[str, Any]) -> dict[str, Any]:
        return {"status": "failed", "error": {"code": "TOOL_EXECUTION_FAILED", "message": f"token {TOKEN} key {KEY}"}}

    async def says(_: dict[str, Any]) -> dict[str, Any]:
        return {"status": "succeeded", "outputText": f"{TOKEN} {KEY}"}

    shell = call("RunCommand", command="env; cat /proc/$PPID/environ | tr '\\0' '\\n'; echo end", timeout=60)
    turns = [use(call("Leak"), call("Say"), shell), say("Done.")]
    with serving(Leak=leaks, Say=says) as server, gateway(*turns) as model:
        outcome = run(host, model, server, policy(host, "Leak", "Say"))
    assert outcome.code == 0
    assert "end" in model.results()[2].text
    written = b"".join(path.read_bytes() for path in host.state.rglob("*") if path.is_file())
    for text in (json.dumps(model.bodies), outcome.text, outcome.stderr, written.decode(errors="replace")):
        assert TOKEN not in text
        assert KEY not in text
        assert "v1.ey" not in text  # a grant


def test_without_the_capability_the_service_is_not_even_asked(host: Host) -> None:
    with serving() as server, gateway(use(call("Echo")), say("Done.")) as model:
        outcome = run(host, model, server, str(host.policy()))
    assert outcome.code == 0
    assert server.requests == []
    assert "TOOL_NOT_FOUND" in model.results()[0].text


@pytest.mark.slow
def test_a_tool_that_asks_waits_for_a_person(host: Host) -> None:
    with serving() as server, gateway(use(call("Echo", text="hi")), say("Done.")) as model:
        outcome = run(host, model, server, policy(host, "Echo", **ASKS))
    assert outcome.code == 4
    assert server.ran == []
    with serving() as server, gateway(use(call("Echo", text="hi")), say("Done.")) as model:
        outcome = run(host, model, server, policy(host, "Echo", **ASKS), "--approve", "ask")
    assert outcome.code == 0
    assert model.results()[0].text == "hi"
    with serving() as server, gateway(use(call("Echo", text="hi")), say("Done.")) as model:
        assert run(host, model, server, policy(host, "Ech*", **ASKS), "--approve", "Echo").code == 0
        refused = run(host, model, server, policy(host, "Ech*", **ASKS), "--approve", "Other")
        assert refused.code == 2
        assert "--approve Other" in refused.error


@pytest.mark.parametrize("tool_policies", [[{"tool": "Ec*", "requiresApproval": True}]])
def test_a_bundle_asks_for_some_tools_only(host: Host, tool_policies: list[dict[str, Any]]) -> None:
    turns = [use(call("Echo", text="asked"), call("Other", text="free")), say("Done.")]
    with serving(Echo=echo, Other=echo) as server, gateway(*turns) as model:
        outcome = run(host, model, server, policy(host, "*", toolPolicies=tool_policies))
    assert outcome.code == 4
    assert [one.tool for one in server.ran] == ["Other"]


def test_a_lost_answer_costs_nothing_but_time(host: Host) -> None:
    with serving() as server, gateway(use(call("Echo", text="once")), say("Done.")) as model:
        server.faults.append(LOSE)
        outcome = run(host, model, server, policy(host, "Echo"))
    assert outcome.code == 0
    assert model.results()[0].text == "once"
    assert len(server.ran) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"BACKEND_TOOL_SERVICE_TOKEN": "wrong-token-0123"}, ""),
        ({"AGENT_HOST_GRANT_KEY": "ff" * 32}, "CAPABILITY_DENIED"),
    ],
)
def test_what_the_service_refuses_is_a_result_that_the_model_reads(
    host: Host, changes: dict[str, str], said: str
) -> None:
    with serving() as server, gateway(use(call("Echo", text="x")), say("Done.")) as model:
        outcome = run(host, model, server, policy(host, "Echo"), **changes)
    assert outcome.code == 0
    assert server.ran == []
    (answer,) = model.results()
    assert answer.is_error
    assert said in answer.text


def test_a_key_that_is_none_is_told_at_once(host: Host) -> None:
    with serving() as server, gateway(say("Done.")) as model:
        outcome = run(host, model, server, policy(host, "Echo"), AGENT_HOST_GRANT_KEY="not hex")
        assert model.count == 0
    assert outcome.code == 2
    assert "AGENT_HOST_GRANT_KEY" in outcome.error
    assert "not hex" not in outcome.error


def test_a_service_that_is_down_keeps_its_tools_and_calls_fail_clearly(host: Host) -> None:
    named = policy(host, "Echo")
    with serving() as server, gateway(say("Done.")) as model:
        run(host, model, server, named)
    with gateway(use(call("Echo", text="x")), say("Done.")) as model:
        outcome = run(host, model, server, named)
    assert outcome.code == 0
    assert "Echo" in offered(model)
    (answer,) = model.results()
    assert answer.text.startswith("TOOL_EXECUTION_FAILED: the tool did not run: ")


def test_a_session_service_may_give_the_grant(host: Host) -> None:
    granted = bundle(host.workspace, grants={NAME: {"allowedToolNames": ["Echo"]}}, tenantId="acme")
    services = MockServices(policy_bundle=granted, token=SERVICES_TOKEN, capability_grant="v1.given.grant")
    with (
        services.in_thread(),
        serving() as server,
        gateway(use(call("Echo", text="x")), say("Done.")) as model,
    ):
        impatient(host)
        env = {**variables(server), **services_at(services.url, "SESSION")}
        host.run("run", "Do it.", "--gateway", model.url, "--output", "json", env=env)
    (sent,) = [headers for method, _, headers, _ in server.requests if method == "POST"]
    assert sent[GRANT_HEADER] == "v1.given.grant"
    assert "v1.given.grant" not in (host.records(only_session(host.state)) / "events.jsonl").read_text()


# Kinds of tools that a tenant has run there.


def sent(host: Host, *kinds: str, **shell: Any) -> str:
    entry = {"allowedToolNames": ["RunCommand"], "insteadOf": list(kinds)}
    return str(host.policy(grants={NAME: entry, "Shell.Exec": shell}, approvalRules=RULES))


async def sandboxed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"status": "succeeded", "outputText": f"ran elsewhere: {arguments['command']}"}


def test_a_kind_of_tool_that_is_sent_runs_there_and_is_judged_as_here(host: Host) -> None:
    turns = [
        use(
            call("RunCommand", command="touch made-here"),
            call("RunCommand", command="curl http://example.org"),
            call("WriteFile", path="kept-here.txt", content="x"),
        ),
        say("Done."),
    ]
    with serving(RunCommand=sandboxed) as server, gateway(*turns) as model:
        outcome = run(host, model, server, sent(host, "Shell.Exec", blockedCommands=["curl"]))
    assert outcome.code == 0
    first, second, third = model.results()
    assert first.text == "ran elsewhere: touch made-here"
    assert second.text.startswith("CAPABILITY_DENIED: ")
    assert "curl" in second.text
    assert not third.is_error
    assert [one.arguments for one in server.ran] == [{"command": "touch made-here"}]
    assert sorted(path.name for path in host.workspace.iterdir()) == ["kept-here.txt"]


def test_a_kind_of_tool_that_is_sent_never_runs_here(host: Host) -> None:
    turns = [use(call("RunCommand", command="touch made-here"), call("CommandOutput", id="x")), say("Done.")]
    with serving(Other=echo) as server, gateway(*turns) as model:
        outcome = run(host, model, server, sent(host, "Shell.Exec"))
    assert outcome.code == 0
    assert not {"RunCommand", "CommandOutput", "StopCommand"} & set(offered(model))
    assert all(answer.is_error for answer in model.results())
    with gateway(*turns) as model:  # also where no service is named
        outcome = host.run(
            "run", "Do it.", "--gateway", model.url, "--policy", sent(host, "Shell.Exec"), "--output", "json"
        )
    assert all(answer.is_error for answer in model.results())
    assert list(host.workspace.iterdir()) == []


def test_an_approval_of_a_command_that_is_sent_is_the_command_s(host: Host) -> None:
    turns = [use(call("RunCommand", command="make"), call("RunCommand", command="make clean")), say("Done.")]
    asks = {"requiresApproval": True, "approvalRuleId": "ask"}
    with serving(RunCommand=sandboxed) as server, gateway(*turns) as model:
        outcome = run(host, model, server, sent(host, "Shell.Exec", **asks))
        assert (outcome.code, server.ran) == (4, [])
        assert [one["toolName"] for one in outcome.result["deniedApprovals"]] == ["RunCommand", "RunCommand"]


def test_a_task_without_the_network_has_no_backend_tools(host: Host, servers: Servers) -> None:
    with serving() as server, gateway(use(call("Echo", text="x")), say("Done.")) as model:
        options = ("--gateway", model.url, "--policy", policy(host, "Echo"))
        client = servers.start(*options, env=variables(server)).on_streams()
        client.create()
        client.task("a", taskOptions={"allowNetwork": False})
        client.event("task_completed")
    assert "Echo" not in offered(model)
    assert server.ran == []


# What is said without a session.


def row_of(host: Host, server: ToolServer, named: str, tool: str) -> dict[str, Any] | None:
    told = host.run("policy", "tools", "--policy", named, "--output", "json", env=variables(server))
    assert told.code == 0, told.stderr
    found = [row for row in json.loads(told.text) if row["toolName"] == tool]
    return found[0] if found else None


def decided(host: Host, server: ToolServer, named: str, tool: str, **arguments: Any) -> dict[str, Any]:
    told = host.run(
        "policy", "check", "--policy", named, "--output", "json", tool, json.dumps(arguments), env=variables(server)
    )
    decision = json.loads(told.text)
    assert isinstance(decision, dict)
    return decision


def test_policy_knows_the_tools_that_a_session_has_seen(host: Host) -> None:
    with serving(Echo=echo, Other=echo) as server:
        named = policy(host, "Echo", "Named", **ASKS)
        assert row_of(host, server, named, "Echo") is None  # nobody has asked the service yet
        assert decided(host, server, named, "Named", text="x")["decision"] == "APPROVAL_REQUIRED"
        assert decided(host, server, named, "Nobody")["decision"] == "DENIED"
        with gateway(say("Done.")) as model:
            run(host, model, server, named)
        row = row_of(host, server, named, "Echo")
        assert row is not None
        assert (row["capability"], row["offered"], row["requiresApproval"]) == (NAME, True, True)
        other = row_of(host, server, named, "Other")
        assert other is not None
        assert (other["offered"], other["keptBy"]) == (False, ["bundle"])
        assert decided(host, server, named, "Echo", text="x")["ruleId"] == "ask"
        assert "INVALID_REQUEST" in decided(host, server, named, "Echo", text=7)["reason"]
        sends = sent(host, "Shell.Exec")
        run_command = row_of(host, server, sends, "RunCommand")
        assert run_command is not None
        assert (run_command["offered"], run_command["keptBy"]) == (False, ["bundle"])
        assert decided(host, server, sends, "RunCommand", command="ls")["rule"].endswith(".insteadOf: Shell.Exec")


# What the machine has.


@pytest.mark.slow
def test_doctor_says_whether_the_service_answers(host: Host) -> None:
    def doctor(**env: str) -> str:
        outcome = host.run("doctor", "--gateway", "mock:none", env=env)
        (line,) = [line for line in outcome.text.splitlines() if "backend tools" in line]
        return line

    with serving() as server:
        assert f"{server.url} lists Echo" in doctor(**variables(server))
        assert "check BACKEND_TOOL_SERVICE_TOKEN" in doctor(**variables(server, BACKEND_TOOL_SERVICE_TOKEN="x"))
        assert "set BACKEND_TOOL_SERVICE_TOKEN" in doctor(**variables(server, BACKEND_TOOL_SERVICE_TOKEN=""))
        assert "runs none of them" in doctor(**variables(server, AGENT_HOST_GRANT_KEY=""))
        assert "AGENT_HOST_GRANT_KEY" in doctor(**variables(server, AGENT_HOST_GRANT_KEY="zz"))
    assert "Connection refused" in doctor(**variables(server)) or "failed" in doctor(**variables(server))
