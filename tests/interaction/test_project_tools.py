"""A project's own tools: manifests of the workspace, approved as they are, JSON in and out."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

import agent_host
from tests.support.process import call, eventually, gateway, process_exists, say, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host

ADD = """\
import json, sys
given = json.load(sys.stdin)
print(json.dumps({"sum": given["a"] + given["b"]}))
"""
SCHEMAS = """
[input]
type = "object"
required = ["a", "b"]
additionalProperties = false
[input.properties]
a = { type = "integer" }
b = { type = "integer" }
[output]
type = "object"
required = ["sum"]
[output.properties]
sum = { type = "integer" }
"""
TOOLS = [{"name": "File.Read"}, {"name": "LLM.Call"}]


def tool(host: Host, name: str = "add", program: str = ADD, more: str = "", schemas: str = SCHEMAS) -> Path:
    """A tool, and its manifest; returns the program."""
    script = host.workspace / f"{name}.py"
    script.write_text(program)
    folder = host.workspace / ".agent" / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(
        f'name = "{name}"\ndescription = "It adds."\nargv = ["{sys.executable}", "{name}.py"]\nside_effects = true\n'
        f"{more}\n{schemas}"
    )
    return script


def manifest(name: str, argv: str = '["true"]') -> str:
    head = f'name = "{name}"\ndescription = "x"\nargv = {argv}\nside_effects = false\n'
    return f'{head}[input]\ntype = "object"\n'


def policy(host: Host, *names: str, **more: Any) -> str:
    return str(host.policy(capabilities=[*TOOLS, {"name": "Tool.Invoke", "allowedToolNames": list(names), **more}]))


def result_of(host: Host, *arguments: str, name: str = "add", **given: Any) -> str:
    """What the model reads of a call in a session of its own."""
    with gateway(use(call(name, **(given or {"a": 1, "b": 2}))), say("Done.")) as model:
        ended = host.run("run", "Do it.", "--gateway", model.url, *arguments)
        assert ended.code in (0, 4), ended.stderr
        return str(model.bodies[1]["messages"][-1]["content"][0]["content"])


def offered(host: Host, *arguments: str) -> list[str]:
    with gateway(say("Done.")) as model:
        assert host.run("run", "Do it.", "--gateway", model.url, *arguments).code == 0
        return [one["name"] for one in model.bodies[0]["tools"]]


def pinned_of(denied: str) -> str:
    return denied[denied.index("add@sha256:") :].split()[0].rstrip(";")[: len("add@sha256:") + 64]


def test_a_tool_runs_as_somebody_has_approved_it(host: Host) -> None:
    script = tool(host)
    rules = policy(host, "add")
    asked = result_of(host, "--policy", rules)
    assert "APPROVAL_REQUIRED" in asked
    assert "the present version of this tool of the workspace is not approved" in asked
    assert result_of(host, "--policy", rules, "--approve", "add") == '{"sum":3}'
    pinned = policy(host, pinned_of(asked))
    assert result_of(host, "--policy", pinned) == '{"sum":3}'
    script.write_text(ADD.replace("+", "-"))
    changed = result_of(host, "--policy", pinned)
    assert "CAPABILITY_DENIED" in changed
    assert "has changed since" in changed


async def test_an_approval_for_the_session_holds_for_later_ones_until_a_file_changes(host: Host) -> None:
    script = tool(host)
    asked: list[agent_host.ApprovalRequest] = []

    def approve(request: agent_host.ApprovalRequest) -> agent_host.ApprovalAnswer:
        asked.append(request)
        return agent_host.ApprovalAnswer(True, "", scope="session")

    async def run() -> str:
        with gateway(use(call("add", a=1, b=2)), say("Done.")) as model:
            options = agent_host.SessionOptions(
                workspace=host.workspace, state_dir=host.state, gateway=model.url, policy=policy(host, "add")
            )
            await agent_host.run_task("Do it.", options, approve=approve)
            return str(model.bodies[1]["messages"][-1]["content"][0]["content"])

    assert await run() == '{"sum":3}'
    assert asked[0].details["runs"] == [sys.executable, "add.py"]
    assert await run() == '{"sum":3}'
    assert len(asked) == 1
    script.write_text(ADD.replace("+", "*"))
    assert await run() == '{"sum":2}'
    assert len(asked) == 2
    (kept,) = (host.state / "approved-tools").iterdir()
    assert json.loads(kept.read_bytes())["tools"] == {"add": asked[1].details["toolSha256"]}


def test_only_a_bundle_that_lists_it_offers_a_tool(host: Host) -> None:
    tool(host)
    assert "add" not in offered(host, "--policy", "workspace")
    assert "add" not in offered(host, "--policy", policy(host, "other"))
    assert "add" in offered(host, "--policy", policy(host, "add"))
    assert "add" in offered(host, "--policy", policy(host, f"add@sha256:{'0' * 64}"))
    assert "add" in offered(host, "--policy", "full")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("print('no json')", "printed no JSON"),
        ("print('[1]')", "does not fit its output schema"),
        ("import sys; sys.exit('it broke')", "ended with exit code 1: it broke"),
    ],
)
def test_what_a_tool_gives_is_checked(host: Host, program: str, says: str) -> None:
    tool(host, program=program)
    failed = result_of(host, "--policy", "full", "--approve", "add")
    assert failed.startswith("TOOL_EXECUTION_FAILED")
    assert says in failed


@pytest.mark.slow
def test_arguments_are_checked_and_time_is_limited(host: Host) -> None:
    tool(host)
    assert "INVALID_REQUEST" in result_of(host, "--policy", "full", "--approve", "add", a="one", b=2)
    tool(host, "slow", "import time; time.sleep(60)", "timeout_s = 0.3")
    assert "TOOL_EXECUTION_TIMEOUT" in result_of(host, "--policy", "full", "--approve", "slow", name="slow")


def test_a_tool_gets_no_secrets_and_runs_in_the_workspace(host: Host) -> None:
    program = "import json, os; print(json.dumps({'sum': 0, 'cwd': os.getcwd(), 'env': dict(os.environ)}))"
    tool(host, program=program)
    said = json.loads(result_of(host, "--policy", "full", "--approve", "add"))
    assert said["cwd"] == str(host.workspace)
    assert "LLM_GATEWAY_AUTH_TOKEN" not in said["env"]
    assert "GIT_TERMINAL_PROMPT" in said["env"]


@pytest.mark.many_rows(3)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broken", "name = "),
        ("other", manifest("another")),
        ("cp__x", manifest("cp__x")),
        ("ReadFile", manifest("ReadFile")),
        ("noinput", manifest("noinput").partition("[input]")[0]),
        ("more", "shell = true\n" + manifest("more")),
        ("none", manifest("none", argv="[]")),
        ("odd", 'effect = "replace"\n' + manifest("odd")),
        ("bad", manifest("bad") + "properties = 5\n"),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_used_offers_nothing(host: Host, name: str, text: str) -> None:
    tool(host)
    (host.workspace / ".agent" / "tools" / f"{name}.toml").write_text(text)
    with gateway(say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", "full")
        names = [one["name"] for one in model.bodies[0]["tools"]]
    assert outcome.code == 0
    if name != "ReadFile":
        outcome.names_once(f"{name}.toml cannot be used: ")
    assert names.count(name) == (1 if name == "ReadFile" else 0)
    assert "add" in names


@pytest.mark.slow
def test_what_a_link_leads_to_counts(host: Host, tmp_path: Path) -> None:
    script = tool(host)
    real = tmp_path / "real.py"
    real.write_text(ADD)
    script.unlink()
    script.symlink_to(real)
    asked = result_of(host, "--policy", policy(host, "add"))
    pinned = policy(host, pinned_of(asked))
    assert result_of(host, "--policy", pinned) == '{"sum":3}'
    real.write_text(ADD + "# changed\n")
    assert "CAPABILITY_DENIED" in result_of(host, "--policy", pinned)


@pytest.mark.slow
def test_a_killed_host_leaves_nothing_of_a_tool_running(host: Host) -> None:
    program = "import os, sys, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    tool(host, program=program)
    with gateway(use(call("add", a=1, b=2)), say("Done.")) as model:
        run = ["run", "Do it.", "--gateway", model.url, "--session-id", "s", "--policy", "full", "--approve", "add"]
        started = host.start(*run)
        pid = host.workspace / "pid"
        eventually(lambda: pid.exists() and pid.read_text(), "the tool runs")
        started.kill()
        assert host.run("resume", "s", "--gateway", model.url).code == 0
        answer = str(model.bodies[1]["messages"][-1]["content"])
    assert "TOOL_INTERRUPTED" in answer
    eventually(lambda: not process_exists(int(pid.read_text())), "the tool is gone")


@pytest.mark.slow
def test_the_policy_commands_know_the_tools_of_the_workspace(host: Host) -> None:
    """What may be called, why a manifest cannot be used, and how a tool that nobody has approved is approved."""
    tool(host)
    folder = host.workspace / ".agent" / "tools"
    (folder / "add.toml").write_bytes(b"\xef\xbb\xbf" + (folder / "add.toml").read_bytes())
    (folder / "broken.toml").write_text("name = ")
    (folder / "ReadFile.toml").write_text(manifest("ReadFile"))
    (folder / "odd.toml").write_text(manifest("odd") + "properties = 5\n")
    skill = host.workspace / ".agent" / "skills" / "forms"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: forms\ndescription: Fills in forms.\n---\n")

    def check(tool_name: str, rules: str, **arguments: Any) -> dict[str, Any]:
        done = host.run("policy", "check", tool_name, json.dumps(arguments), "--policy", rules, "--output", "json")
        assert done.code == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    listing = policy(host, "add")
    asked = check("add", listing, a=1, b=2)
    assert asked["decision"] == "APPROVAL_REQUIRED"
    assert check("add", policy(host, pinned_of(asked["reason"])), a=1, b=2)["decision"] == "ALLOWED"
    assert check("add", policy(host, "other"), a=1, b=2)["decision"] == "DENIED"
    refused = check("add", policy(host, "add"), a="one", b=2)
    assert (refused["decision"], "INVALID_REQUEST" in refused["reason"]) == ("DENIED", True)
    assert check("load_skill", listing, name="forms")["decision"] == "ALLOWED"

    listed = host.run("policy", "tools", "--policy", policy(host, "add"), "--output", "json")
    rows = {row["toolName"]: row for row in json.loads(listed.stdout)}
    assert (rows["add"]["offered"], rows["add"]["requiresApproval"]) == (True, True)
    assert rows["load_skill"]["offered"]
    for name, why in (("broken", "not valid TOML"), ("ReadFile", "has this name already"), ("odd", "$.input")):
        (line,) = [line for line in listed.stderr.splitlines() if f"{name}.toml cannot be used" in line]
        assert why in line
