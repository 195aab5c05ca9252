"""SetMode: options of a session that a client changes while it lives. A mode narrows, and the way back is open."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.interaction.test_sandbox import WORKING
from tests.interaction.test_serve_stops import HELD
from tests.support.process import MODEL, bundle, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Gateway
    from tests.support.rpc_client import Client, Refused
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")

UNHELD = ("--sandbox", "none")
OTHER = "other-model"


def write(name: str) -> dict[str, Any]:
    return call("WriteFile", path=name, content="x")


def refusal(client: Client, **options: Any) -> Refused:
    return client.refusal("SetMode", sessionId=client.session_id, **options)


def results(model: Gateway, request: int = -1) -> list[str]:
    """The results of calls in a request, in order."""
    found = []
    for message in model.bodies[request]["messages"]:
        content = message["content"] if isinstance(message["content"], list) else []
        found += [json.dumps(block["content"]) for block in content if block["type"] == "tool_result"]
    return found


def policy_file(servers: Servers, name: str, **top: Any) -> Path:
    path = servers.host.workspace.parent / name
    path.write_text(json.dumps(bundle(servers.host.workspace, sessionId="*", **top)))
    return path


def test_a_policy_holds_from_the_next_decision_on_and_the_way_back_is_open(servers: Servers) -> None:
    workspace = servers.host.workspace
    turns = (use(write("one")), use(HELD), use(write("two")), use(shell("touch go; echo go")), say("Done."))
    with gateway(*turns, use(write("three")), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD)
        client.task()
        eventually((workspace / "waits").exists, "the command")
        told = client.ask("SetMode", policy="read-only")
        assert (told["policy"], told["sandbox"]) == ("read-only", "none")
        assert client.event("mode_changed")["payload"] == {"policy": "read-only", "sandbox": "none"}
        assert client.ask("GetSessionState")["mode"] == {"policy": "read-only"}
        (workspace / "go").touch()  # the command that runs keeps what it was given
        client.event("task_completed")
        assert [(workspace / name).exists() for name in ("one", "two")] == [True, False]
        assert "CAPABILITY_DENIED" in results(model, 4)[2]
        assert "RunCommand" not in {tool["name"] for tool in model.bodies[-1]["tools"]}
        assert client.ask("SetMode", policy="launch")["policy"] == "full"
        assert "mode" not in client.ask("GetSessionState")
        client.task("b")
        client.event("task_completed", after=client.events[-1]["eventId"])
        assert (workspace / "three").exists()
        marks = [item for item in client.ask("GetTranscript", limit=100)["items"] if item.get("mark") == "mode_changed"]
        assert [mark.get("policy") for mark in marks] == ["read-only", None]
        client.call("Shutdown")
        serve.ended_well()
    again = servers.host.run("replay", client.session_id, "--workspace", str(workspace))
    assert (again.code, "SetMode" in again.stderr) == (2, True)


def test_a_wider_policy_widens_nothing(servers: Servers) -> None:
    with gateway(use(write("one"), shell("echo x > two")), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD, policy="read-only")
        client.ask("SetMode", policy="full", approvalMode="on_risky_actions")
        client.task()
        client.event("task_completed")
        assert [name for name in ("one", "two") if (servers.host.workspace / name).exists()] == []
        client.call("Shutdown")
        serve.ended_well()


def test_limits_of_two_bundles_hold_together_where_the_call_runs(servers: Servers) -> None:
    host = servers.host
    for folder in ("src", "docs"):
        (host.workspace / folder).mkdir()
    launch = policy_file(
        servers, "launch.json", grants={"File.Write": {"allowedPaths": ["${workspace}/src", "${workspace}/docs"]}}
    )
    mode = policy_file(servers, "mode.json", grants={"File.Write": {"allowedPaths": ["${workspace}/docs", "/nowhere"]}})
    with gateway(use(*(write(f"{folder}/new") for folder in ("src", "docs", "."))), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD, policy=launch)
        assert client.ask("SetMode", policy=str(mode))["policy"] == str(mode)
        client.task()
        client.event("task_completed")
        assert sorted(path.name for path in host.workspace.rglob("new")) == ["new"]
        assert (host.workspace / "docs" / "new").exists()
        client.call("Shutdown")
        serve.ended_well()


def test_an_approval_of_another_mode_does_not_count_until_it_is_back(servers: Servers) -> None:
    command = shell("echo ran >> effects")
    turns = [turn for _ in range(3) for turn in (use(command), say("Done."))]
    with gateway(*turns) as model:
        serve, client = servers.session(model.url, *UNHELD, policy="workspace")
        client.task("a")
        first = client.event("approval_requested")["payload"]["approvalId"]
        client.call("ApproveAction", approvalId=first, decision="approved", scope="session")
        client.event("task_completed")
        client.ask("SetMode", approvalMode="always")
        client.task("b")
        here = client.events[-1]["eventId"]
        asked = client.event("approval_requested", after=here)["payload"]["approvalId"]
        assert asked != first
        client.call("ApproveAction", approvalId=asked, decision="denied")
        end = client.event("task_completed", after=here)["eventId"]
        client.ask("SetMode", approvalMode="launch")
        client.task("c")
        client.event("task_completed", after=end)
        assert (servers.host.workspace / "effects").read_text() == "ran\nran\n"
        client.call("Shutdown")
        serve.ended_well()


def test_a_session_that_asks_nobody(servers: Servers) -> None:
    with gateway(use(shell("echo ran >> effects")), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD, policy="workspace")
        assert client.ask("SetMode", approvalMode="never")["approvalMode"] == "never"
        client.task()
        client.event("task_completed")
        assert "APPROVAL_REQUIRED" in results(model)[0]
        assert "approval_requested" not in client.kinds
        client.call("Shutdown")
        serve.ended_well()


def test_a_question_that_waits_is_judged_by_the_mode_of_its_answer(servers: Servers) -> None:
    with gateway(use(shell("echo ran >> effects")), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD, policy="workspace")
        client.task()
        asked = client.event("approval_requested")["payload"]["approvalId"]
        client.ask("SetMode", policy="read-only")
        client.call("ApproveAction", approvalId=asked, decision="approved")
        client.event("task_completed")
        assert not (servers.host.workspace / "effects").exists()
        client.call("Shutdown")
        serve.ended_well()


def test_a_model_is_one_that_the_launch_bundle_allows(servers: Servers) -> None:
    launch = policy_file(servers, "launch.json", llm={"allowedModels": [MODEL, OTHER]})
    with gateway(use(HELD), use(shell("echo more")), say("Done."), say("Again.")) as model:
        serve, client = servers.session(model.url, *UNHELD, policy=launch)
        client.task(taskOptions={"model": MODEL})
        eventually((servers.host.workspace / "waits").exists, "the command")
        wrong = refusal(client, model="unknown")
        assert (wrong.code, wrong.name) == (-32602, "INVALID_REQUEST")
        assert OTHER in wrong.message
        assert client.ask("SetMode", model=OTHER)["model"] == OTHER
        (servers.host.workspace / "go").touch()
        client.event("task_completed")
        client.ask("SetMode", model="launch")
        client.task("b")
        client.event("task_completed", after=client.events[-1]["eventId"])
        assert [body["model"] for body in model.bodies] == [MODEL, OTHER, OTHER, MODEL]
        client.call("Shutdown")
        serve.ended_well()


@pytest.mark.skipif("landlock" not in WORKING, reason="no level of the sandbox works here")
def test_the_sandbox_is_never_weaker_than_at_the_launch(servers: Servers) -> None:
    outside = servers.host.workspace.parent / "outside"
    attempt = shell(f"echo ran > {outside} || echo kept inside")
    with gateway(use(attempt), say("Done."), use(attempt), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD)
        assert client.ask("SetMode", sandbox="landlock")["sandbox"] == "landlock"
        client.task()
        end = client.event("task_completed")["eventId"]
        assert not outside.exists()
        assert "kept inside" in results(model)[0]
        client.ask("SetMode", sandbox="none")  # the level of the launch
        client.task("b")
        client.event("task_completed", after=end)
        assert outside.exists()
        client.call("Shutdown")
        serve.ended_well()
        again, other = servers.session(model.url, "--sandbox", "landlock")
        wrong = refusal(other, sandbox="none")
        assert (wrong.code, "weaker than landlock" in wrong.message) == (-32602, True)
        other.call("Shutdown")
        again.ended_well()


@pytest.mark.slow
@pytest.mark.skipif("landlock" not in WORKING, reason="no level of the sandbox works here")
def test_a_command_is_sandboxed_by_the_scopes_of_both_bundles(servers: Servers) -> None:
    workspace = servers.host.workspace
    for folder in ("src", "docs"):
        (workspace / folder).mkdir()
    mode = policy_file(servers, "mode.json", grants={"File.Write": {"allowedPaths": ["${workspace}/docs"]}})
    line = "for one in src docs .; do python3 -c \"open('$one/new', 'w')\"; done; true"
    with gateway(use(shell(line)), say("Done.")) as model:
        serve, client = servers.session(model.url, "--sandbox", "landlock")
        client.ask("SetMode", policy=str(mode))
        client.task()
        client.event("task_completed")
        assert [str(path.relative_to(workspace)) for path in workspace.rglob("new")] == ["docs/new"]
        client.call("Shutdown")
        serve.ended_well()


def test_a_kill_leaves_the_mode(servers: Servers) -> None:
    mode = policy_file(servers, "mode.json", grants={"File.Write": {"blockedPaths": ["${workspace}/one"]}})
    with gateway(use(HELD), use(write("one")), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD)
        client.ask("SetMode", policy=str(mode))
        client.task()
        eventually((servers.host.workspace / "waits").exists, "the command")
        serve.kill()
        client.join()
        kept = mode.read_bytes()
        mode.unlink()
        broken, other = servers.client(model.url, *UNHELD)
        wrong = other.refusal("ResumeSession", sessionId=client.session_id)
        assert (wrong.code, str(mode) in wrong.message) == (-32602, True)
        other.done()
        broken.ended_well()
        mode.write_bytes(kept)
        again, other = servers.client(model.url, *UNHELD)
        other.resume(client.session_id)
        other.event("task_completed")
        assert other.ask("GetSessionState")["mode"] == {"policy": str(mode)}
        assert not (servers.host.workspace / "one").exists()
        other.call("Shutdown")
        again.ended_well()


def test_what_cannot_be_set(servers: Servers) -> None:
    bad = servers.host.workspace.parent / "bad.json"
    bad.write_text("{}")
    with gateway(say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD)
        for options, code, word in (
            ({"policy": "workspac"}, -32602, "did you mean workspace"),
            ({"policy": "./nowhere.json"}, -32602, "nowhere.json"),
            ({"policy": str(bad)}, -32003, "policyBundleVersion"),
            ({"plan": True}, -32602, "read-only"),
            ({"sandbox": "chroot"}, -32602, "landlock"),
            ({"approvalMode": "sometimes"}, -32602, "on_risky_actions"),
        ):
            wrong = refusal(client, **options)
            assert (wrong.code, word in wrong.message) == (code, True), wrong.message
        assert "mode" not in client.ask("GetSessionState")
        assert "mode_changed" not in client.kinds
        assert client.ask("SetMode")["policy"] == "full"
        client.call("Shutdown")
        serve.ended_well()


def test_the_file_of_the_policy_is_changed_by_nobody(servers: Servers) -> None:
    mode = servers.host.workspace / "mode.json"
    mode.write_text(json.dumps(bundle(servers.host.workspace, sessionId="*")))
    with gateway(use(write("mode.json")), say("Done.")) as model:
        serve, client = servers.session(model.url, *UNHELD)
        client.ask("SetMode", policy=str(mode))
        client.task()
        client.event("task_completed")
        assert mode.read_text() != "x"
        client.call("Shutdown")
        serve.ended_well()
