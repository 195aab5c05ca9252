"""Which tools the model is shown, as they stand in the gateway's request (SK 3.1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Host, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway
    from tests.support.serve_process import Servers

RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
READS = {"ReadFile", "ListDirectory", "FindFiles", "Grep", "ReadOutput"}
COMMANDS = {"RunCommand", "CommandOutput", "StopCommand"}
FILES = {*READS, "WriteFile", "EditFile", "DeleteFile", "MoveFile"}
ALL_LOCAL = {*FILES, *COMMANDS}


def shown(model: Gateway, request: int = -1) -> set[str]:
    return {tool["name"] for tool in model.bodies[request].get("tools", [])}


def said_by_the_command(host: Host, *options: str) -> set[str]:
    """What `policy tools` lists as offered."""
    outcome = host.run("policy", "tools", "--output", "json", *options)
    assert outcome.code == 0, outcome
    return {row["toolName"] for row in json.loads(outcome.stdout) if row["offered"]}


@pytest.mark.parametrize("policy", ["read-only", "workspace", "ci", "full"])
def test_the_built_in_policies(host: Host, policy: str) -> None:
    with gateway(say("Done.")) as model:
        assert host.task(model.url, policy=policy).code == 0
    assert shown(model) == said_by_the_command(host, "--policy", policy)
    assert "ReadFile" in shown(model)
    assert ("WriteFile" in shown(model)) == (policy != "read-only")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, ALL_LOCAL),
        ({"without": ["Shell.Exec"]}, FILES),
        ({"grants": {"Shell.Exec": {"allowedCommands": []}}}, FILES),
        ({"grants": {"File.Write": {"allowedPaths": []}}}, {*READS, "DeleteFile", *COMMANDS}),
        ({"grants": {"File.Read": {"blockedPaths": ["/"]}}}, {"ReadOutput", "WriteFile", "DeleteFile", *COMMANDS}),
        ({"grants": {"Network.Http": {"allowedDomains": []}}}, ALL_LOCAL),
        ({"grants": {"Network.Http": {}}}, {*ALL_LOCAL, "HttpRequest"}),
        ({"grants": {"Workspace.Upload": {"allowedToolNames": ["UploadArtifact"]}}}, {*ALL_LOCAL, "UploadArtifact"}),
        ({"grants": {"Workspace.Upload": {"allowedToolNames": []}}}, ALL_LOCAL),
    ],
)
def test_what_a_bundle_grants(host: Host, changes: dict[str, Any], left: set[str]) -> None:
    policy = host.policy(**changes)
    with gateway(say("Done.")) as model:
        assert host.task(model.url, policy=policy).code == 0
    assert shown(model) == left == said_by_the_command(host, "--policy", str(policy))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, {*ALL_LOCAL, "HttpRequest"}),
        ({"allowNetwork": False}, ALL_LOCAL),
        ({"approvalMode": "never"}, {*FILES, "HttpRequest"}),
        ({"approvalMode": "always"}, {*ALL_LOCAL, "HttpRequest"}),
        ({"approvalMode": "never", "allowNetwork": False}, FILES),
    ],
)
def test_what_a_task_leaves(servers: Servers, options: dict[str, Any], left: set[str]) -> None:
    """And the next task of the session has all of it again."""
    asks = {"requiresApproval": True, "approvalRuleId": "ask"}
    policy = servers.host.policy(grants={"Network.Http": {}, "Shell.Exec": asks}, approvalRules=RULES)
    with gateway(say("One."), say("Two.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task(taskOptions=options)
        done = client.event("task_completed")
        client.task("b")
        client.event("task_completed", done["eventId"])
        client.call("Shutdown")
        serve.ended_well()
    assert shown(model, 0) == left
    assert shown(model, 1) == {*ALL_LOCAL, "HttpRequest"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("user", "workspace", "left"),
    [
        ('[tools]\nallowed = ["ReadFile", "RunCommand"]', "", {"ReadFile", "RunCommand"}),
        ('[tools]\nallowed = ["ReadFile"]', '[tools]\nallowed = ["RunCommand", "ReadFile"]', {"ReadFile"}),
        ("", '[tools]\nallowed = ["ReadFile"]', {"ReadFile"}),
        ("[tools]\nallowed = []", '[tools]\nallowed = ["*"]', set()),
        ('[tools]\ndisabled = ["RunCommand"]', "[tools]\ndisabled = []", ALL_LOCAL - {"RunCommand"}),
        ('[policy]\nrisk_ceiling = "low"', '[policy]\nrisk_ceiling = "high"', READS),
        ("", '[policy]\nrisk_ceiling = "medium"', {*READS, "WriteFile", "EditFile", *COMMANDS}),
    ],
)
def test_what_the_configuration_takes_away(host: Host, user: str, workspace: str, left: set[str]) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(user + "\n")
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / "config.toml").write_text(workspace + "\n")
    policy = host.policy()
    with gateway(say("Done.")) as model:
        assert host.task(model.url, policy=policy).code == 0
    assert shown(model) == left == said_by_the_command(host, "--policy", str(policy))


def test_a_tool_that_is_not_shown_is_not_run_either(host: Host) -> None:
    """A model may ask for what it was never shown."""
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / "config.toml").write_text('[tools]\nallowed = ["ReadFile"]\n')
    write = call("WriteFile", path=str(host.workspace / "a"), content="x")
    with gateway(use(write, shell("echo x > b")), say("Done.")) as model:
        outcome = host.task(model.url, "--approve-all")
        answers = [answer.text for answer in model.results()]
    assert [one["code"] for one in outcome.result["toolCalls"]] == ["CAPABILITY_DENIED"] * 2
    assert all("tools.allowed in the configuration does not list it" in answer for answer in answers)
    assert not (host.workspace / "a").exists()
    assert not (host.workspace / "b").exists()


def test_a_riskier_call_of_a_tool_that_is_shown_is_denied(host: Host) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write('[policy]\nrisk_ceiling = "medium"\n')
    with gateway(use(shell("ls"), shell("frobnicate --all")), say("Done.")) as model:
        outcome = host.task(model.url, "--approve-all")
        answers = [answer.text for answer in model.results()]
    assert [one.get("code") for one in outcome.result["toolCalls"]] == [None, "CAPABILITY_DENIED"]
    assert "its risk is high, and policy.risk_ceiling in the configuration admits medium at most" in answers[1]


def test_the_native_family_in_place_of_the_desktop_one(host: Host) -> None:
    """Its names, its errors for the model and the house's codes beside them; the same decisions."""
    (host.workspace / "in.txt").write_text("needle\n")
    calls = [
        call("cp__read_file", path="in.txt"),
        call("cp__grep", pattern="need", path="."),
        call("cp__write_file", path="out.txt", content="one"),
        call("cp__exec", command="/bin/cat", args=["in.txt"]),
        call("cp__exec", command="/usr/bin/touch", args=["made"]),
        call("cp__exec", command="/bin/cat", args=["/etc/passwd"]),
        call("cp__read_file", path="/etc/passwd"),
        call("cp__read_file", path="missing.txt"),
        call("ReadFile", path="in.txt"),
        call("cp__delete_file", path="in.txt"),
    ]
    with gateway(use(*calls), say("Done.")) as model:
        outcome = host.task(model.url, "--toolset", "native", "--approve", "shell-exec", policy="workspace")
        answers = [answer.text for answer in model.results()]
    assert outcome.code == 4, outcome  # nobody was there to approve the last one
    assert {"cp__list_dir", "cp__fetch", "ReadOutput"} <= shown(model, 0)
    assert "ReadFile" not in shown(model, 0)
    assert json.loads(answers[0])["content"] == "needle\n"
    assert json.loads(answers[1])["matches"] == [{"file": "in.txt", "line": 1, "column": 1, "text": "needle"}]
    assert json.loads(answers[3])["stdout"] == "needle\n"
    assert (host.workspace / "out.txt").read_text() == "one"
    names = [answer.partition(":")[0] for answer in answers[4:]]
    codes = [one.get("code") for one in outcome.result["toolCalls"][4:]]
    assert list(zip(names, codes, strict=True)) == [
        ("CommandNotAllowed", "CAPABILITY_DENIED"),
        ("PermissionDenied", "CAPABILITY_DENIED"),
        ("PermissionDenied", "CAPABILITY_DENIED"),
        ("FileNotFound", "FILE_NOT_FOUND"),
        ("TOOL_NOT_FOUND", "TOOL_NOT_FOUND"),
        ("PermissionDenied", "APPROVAL_REQUIRED"),
    ]
    assert not (host.workspace / "made").exists()


@pytest.mark.slow
def test_a_tree_that_is_deleted_is_in_the_patch_and_a_root_beside_the_workspace_is_open(host: Host) -> None:
    other = host.root / "other"
    other.mkdir()
    (other / "f").write_text("beside")
    for name in ("a", "b"):
        (host.workspace / "tree" / name).mkdir(parents=True)
        (host.workspace / "tree" / name / "f").write_text(f"{name}\n")
    with (host.root / "user.toml").open("a") as file:
        file.write(f"[native]\nadditional_roots = [{json.dumps(str(other))}]\n")
    calls = [
        call("cp__read_file", path=str(other / "f")),
        call("cp__delete_file", path="tree"),
        call("cp__delete_file", path="tree", recursive=True),
    ]
    with gateway(*(use(one) for one in calls), say("Done.")) as model:
        outcome = host.task(model.url, "--toolset", "native")
        answers = [model.results(request)[-1].text for request in (1, 2, 3)]
    assert outcome.code == 0, outcome
    assert json.loads(answers[0])["content"] == "beside"
    assert answers[1].startswith("PermissionDenied: ")
    assert json.loads(answers[2]) == {"success": True}
    assert not (host.workspace / "tree").exists()
    gone = [str(host.workspace / "tree" / name / "f") for name in ("a", "b")]
    assert sorted(outcome.result["filesChanged"]) == gone


@pytest.mark.slow
def test_policy_check_judges_native_calls_and_policy_tools_lists_the_chosen_families(host: Host) -> None:
    assert "cp__exec" in said_by_the_command(host, "--policy", "full", "--toolset", "native")
    assert "cp__exec" not in said_by_the_command(host, "--policy", "full")
    for argv, decision in ((["/bin/ls"], "ALLOWED"), (["/usr/bin/make"], "DENIED"), (["/bin/cat", "/etc/x"], "DENIED")):
        arguments = json.dumps({"command": argv[0], "args": argv[1:]})
        found = host.run("policy", "check", "cp__exec", arguments, "--policy", "full", "--output", "json")
        assert json.loads(found.stdout)["decision"] == decision, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('additional_roots = ["relative"]', "is not an absolute path of a directory"),
        ('exec = [{command = "ls"}]', "is not an absolute path"),
        ('exec = [{command = "/bin/ls", arguments = [{index = 0, pattern = "("}]}]', "native.exec[0]"),
    ],
)
def test_a_configuration_of_native_tools_that_cannot_be_used(host: Host, text: str, says: str) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(f"[native]\n{text}\n")
    outcome = host.task("http://127.0.0.1:9", "--toolset", "native")
    assert (outcome.code, says in outcome.stderr) == (2, True), outcome


@pytest.mark.slow
@pytest.mark.parametrize(("options", "native"), [((), True), (("--toolset", "desktop"), False)])
def test_a_resumed_session_keeps_its_families_unless_asked_otherwise(
    host: Host, options: tuple[str, ...], native: bool
) -> None:
    """Also where the configuration chose them and says something else by now."""
    configuration = host.root / "user.toml"
    before = configuration.read_text()
    configuration.write_text(before + '[host]\ntoolset = ["native"]\n')
    with gateway({"hang": True, "times": 1}, say("Done.")) as model:
        process = host.start_task(model.url, "--session-id", "s")
        eventually(lambda: model.count == 1, "the first request")
        process.kill()
        configuration.write_text(before)
        assert host.resume("s", *options).code == 0
    assert ("cp__read_file" in shown(model), "ReadFile" in shown(model)) == (native, not native)
