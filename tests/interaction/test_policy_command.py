"""`agent-host policy`: decisions for calls that are never made, and what is wrong with a bundle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from config.policies import BUILT_IN
from tests.support.process import Host, bundle, call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serve_process import Servers


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("machine"))
    yield made
    made.close()


def judge(host: Host, tool: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]:
    outcome = host.run("policy", "check", tool, json.dumps(arguments), "--output", "json", *options)
    assert (outcome.code, outcome.stderr) == (0, "")
    return outcome.result


@pytest.mark.parametrize(
    ("output", "decision"),
    [
        ("/ci/_temp/_runner_file_commands/out", "ALLOWED"), ("/ci/_temp/out", "DENIED"), ("/out", "DENIED"),
        ("/ci/_runner_file_commands/../out", "DENIED"),
    ],
)  # fmt: skip
def test_a_step_of_github_actions_may_leave_its_outputs(host: Host, output: str, decision: str) -> None:
    line = json.dumps({"command": 'echo a=b >> "$GITHUB_OUTPUT"'})
    env = {"GITHUB_OUTPUT": output}
    asked = ("policy", "check", "RunCommand", line, "--output", "json", "--policy")
    assert host.run(*asked, "ci", env=env).result["decision"] == decision
    own = host.root / "own.json"
    own.write_text(json.dumps({"extends": "ci", "capabilities": [{"name": "Shell.Exec", "allowedCommands": ["true"]}]}))
    assert host.run(*asked, own, env=env).result["decision"] == decision


@pytest.mark.parametrize("policy", ["ci", "full"])
def test_under_the_action_a_step_leaves_no_files(host: Host, policy: str) -> None:
    folder = host.root / "_temp" / "_runner_file_commands"
    folder.mkdir(parents=True, exist_ok=True)
    env = {"GITHUB_OUTPUT": str(folder / "out"), "GITHUB_PATH": str(host.root / "path"), "AGENT_HOST_ACTION": "1"}
    for path in (folder / "out", folder / "new", host.root / "path"):
        for tool, arguments in (
            ("RunCommand", {"command": f"echo a=b >> {path}"}),
            ("WriteFile", {"path": str(path), "content": "a=b"}),
            ("DeleteFile", {"path": str(path)}),
        ):
            asked = host.run("policy", "check", tool, json.dumps(arguments), "--exit-code", "--policy", policy, env=env)
            assert asked.code == 1, (path, tool, asked)


@pytest.mark.slow
def test_a_built_in_judges_by_the_disk(host: Host) -> None:
    (host.workspace / "a").mkdir()
    (host.workspace / "out").symlink_to("/etc/passwd")
    write = {"content": "x"}
    inside = judge(host, "WriteFile", {"path": str(host.workspace / "new"), **write})
    assert inside == {
        "decision": "ALLOWED",
        "reason": "granted",
        "capability": "File.Write",
        "rule": f"capabilities[File.Write].allowedPaths: {host.workspace}",
        "sandboxLevel": "none",
    }
    assert judge(host, "ReadFile", {"path": str(host.workspace / "out")})["decision"] == "DENIED"
    assert judge(host, "WriteFile", {"path": str(host.workspace / "a"), **write})["reason"].endswith("is a directory")
    asked = judge(host, "RunCommand", {"command": "make"})
    assert (asked["decision"], asked["ruleId"], asked["riskLevel"]) == ("APPROVAL_REQUIRED", "shell-exec", "medium")
    assert judge(host, "RunCommand", {"command": "make"}, "--policy", "ci")["decision"] == "ALLOWED"
    assert judge(host, "Nothing", {})["reason"] == "there is no tool 'Nothing'"
    assert judge(host, "ReadFile", {"path": "relative"})["decision"] == "ALLOWED"
    assert not (host.workspace / "new").exists()


def test_in_words(host: Host) -> None:
    outcome = host.run("policy", "check", "RunCommand", '{"command": "rm -r x"}', "--policy", "ci")
    assert outcome.code == 0
    assert outcome.text.startswith("ALLOWED: granted\nby capabilities[Shell.Exec].allowedCommands: rm\n")


def test_what_a_command_may_do_is_shown(host: Host) -> None:
    line = json.dumps({"command": "unheard-of"})
    asked = ("policy", "check", "RunCommand", line, "--policy", "ci")
    assert host.run(*asked, "--output", "json").result["decision"] == "DENIED"
    held = ("--sandbox", "landlock", "--allow-domain", "pypi.org")
    scope = host.run(*asked, "--output", "json", *held).result["commandScope"]
    assert (scope["level"], scope["domains"]) == ("landlock", ["pypi.org"])
    assert str(host.workspace) in scope["writes"]
    said = host.run(*asked, *held).text
    assert said.startswith("ALLOWED: granted\n")
    assert "  reaches pypi.org\n" in said
    listed = host.run("policy", "check", "RunCommand", '{"command": "ls"}', "--policy", "ci").text
    assert "commands run without a sandbox" in listed


def test_a_case_names_a_level(host: Host) -> None:
    case = {"toolName": "RunCommand", "arguments": {"command": "make x"}, "cwd": "/srv/p", "home": "/home/u"}
    cases = [
        case,
        case | {"sandbox": "landlock"},
        case | {"sandbox": "namespace", "facts": {}},
        case | {"sandbox": "x"},
    ]
    lines = "".join(json.dumps(one) + "\n" for one in cases).encode()
    outcome = host.run("policy", "check", "--policy", "workspace", "--batch", "-", stdin=lines)
    assert outcome.code == 2
    rows = [json.loads(row) for row in outcome.stdout.splitlines()]
    assert [row["decision"] for row in rows] == ["APPROVAL_REQUIRED", "ALLOWED", "ALLOWED", "DENIED"]
    assert [row["commandScope"]["level"] for row in rows[:3]] == ["none", "landlock", "namespace"]
    assert "/usr" in rows[2]["commandScope"]["reads"]


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        (
            "RunCommand",
            {"command": "ls", "timeout": -1},
            "INVALID_REQUEST: $.timeout: must be a whole number from 1 to 600, not -1",
        ),
        ("RunCommand", {"command": "ls", "bogus": 1}, "INVALID_REQUEST: $.bogus: is not known; known are command"),
        ("UploadArtifact", {"content": "x", "name": "a/b"}, "INVALID_REQUEST: $.name: must be a file name"),
        ("RunCommand", {"command": "ssh x", "bogus": 1}, "command not in allowed commands: ssh"),
    ],
)
def test_arguments_that_the_tool_refuses(host: Host, tool: str, arguments: dict[str, Any], says: str) -> None:
    told = judge(host, tool, arguments, "--policy", "ci")
    assert told["decision"] == "DENIED"
    assert told["reason"].startswith(says)
    assert (told["rule"] == "case") == says.startswith("INVALID_REQUEST")


def test_what_a_case_leaves_out_is_not_held_against_it(host: Host) -> None:
    assert judge(host, "WriteFile", {"path": str(host.workspace / "new")}, "--policy", "ci")["decision"] == "ALLOWED"


@pytest.mark.slow
def test_a_bundle_of_ones_own(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    added = [
        {"name": "Shell.Exec", "allowedCommands": ["mytool"]},
        {"name": "File.Read", "allowedPaths": ["${home}/docs", "../shared"], "blockedPaths": ["secret"]},
    ]
    path.write_text(json.dumps({"extends": "workspace", "capabilities": added}))
    told = host.run("policy", "validate", path)
    assert (told.code, told.stderr.count("does not exist here")) == (0, 3)
    told.names_once("capabilities[1].allowedPaths[0]: '${home}/docs' does not exist here")
    assert told.text.startswith("valid: version builtin.workspace+")
    reads = [
        (str(host.home / "docs" / "a"), "ALLOWED"), (str(host.root / "shared" / "a"), "ALLOWED"),
        (str(host.workspace / "a"), "ALLOWED"), (str(host.workspace / "secret"), "DENIED"),
        (str(host.home / "a"), "DENIED"), (str(host.state / "a"), "DENIED"),
    ]  # fmt: skip
    for place, decision in reads:
        assert judge(host, "ReadFile", {"path": place}, "--policy", str(path))["decision"] == decision, place
    path.write_text(json.dumps({"extends": "ci", "capabilities": added}))
    for line, decision in (("mytool plan", "ALLOWED"), ("ls", "ALLOWED"), ("sudo ls", "DENIED")):
        assert judge(host, "RunCommand", {"command": line}, "--policy", str(path))["decision"] == decision
    path.write_text(json.dumps({"extends": "c", "capabilities": [{"name": "File.Read", "allowedPaths": ["${hom}"]}]}))
    assert host.run("policy", "validate", path).text.splitlines() == [
        "extends: 'c' is not a built-in (did you mean ci?)",
        "capabilities[0].allowedPaths[0]: ${hom} is not a placeholder (did you mean ${home}?)",
    ]
    host.run("run", "x", "--policy", path).names_once("${hom} is not a placeholder")


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_to_start_from(host: Host, tmp_path: Path, name: str) -> None:
    shown = host.run("policy", "show", name)
    assert (shown.code, shown.stderr) == (0, "")
    path = tmp_path / "own.json"
    path.write_text(shown.text)
    assert host.run("policy", "validate", path).text.startswith(f"valid: version local.{name}, ")
    cases = [
        {"toolName": tool, "arguments": {"path": str(place), "content": ""}}
        for tool in ("ReadFile", "WriteFile", "DeleteFile")
        for place in (host.workspace / "a", host.workspace / ".git" / "config", host.home / ".ssh" / "id", "/etc/x",
                      host.state / "x", host.root / "user.toml")
    ] + [
        {"toolName": "RunCommand", "arguments": {"command": line}}
        for line in ("ls", "make", "sudo ls", "echo x > a", "echo x > /etc/x", "cat < ~/.netrc", "$x")
    ] + [{"toolName": "HttpRequest", "arguments": {"url": "https://pypi.org"}}]  # fmt: skip
    lines = "".join(json.dumps(case) + "\n" for case in cases).encode()
    one, other = (
        host.run("policy", "check", "--policy", policy, "--batch", "-", stdin=lines) for policy in (name, str(path))
    )
    assert one.stdout.count(b"\n") == len(cases)
    guarded = f',"{path}"'.encode()  # the file that is the policy, where a command could write it
    assert (one.code, one.stdout) == (other.code, other.stdout.replace(guarded, b""))


def test_a_built_in_that_there_is_not(host: Host) -> None:
    outcome = host.run("policy", "show", "c i")
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "'c i': there is no such built-in; did you mean ci?" in outcome.error
    assert "read-only, workspace, ci or full" in host.run("policy", "show", "--help").text


def test_a_workspace_adds_no_programs(host: Host) -> None:
    folder = host.workspace / ".agent"
    folder.mkdir()
    (folder / "config.toml").write_text('[policy]\nallowed_commands = ["sudo"]\n')
    try:
        outcome = host.run("run", "x", "--policy", "ci")
    finally:
        (folder / "config.toml").unlink()
        folder.rmdir()
    assert outcome.code == 2
    outcome.names_once("policy.allowed_commands = ['sudo'] is ignored", "a workspace may change it not at all")


def test_what_the_lists_of_a_good_bundle_admit(host: Host) -> None:
    commands = ["ls", "make", "npm", "rm", "/usr/bin/python3"]
    path = host.policy(grants={"Shell.Exec": {"allowedCommands": commands}}, without=["File.Delete"])
    told = host.run("policy", "validate", path)
    assert told.code == 0
    admits = [
        "make lets the model run anything in the workspace: the commands of its build files",
        "npm lets the model run anything in the workspace: the scripts of packages",
        "/usr/bin/python3 lets the model run anything in the workspace: any code",
        "there is no File.Delete entry, so what rm removes is not judged",
    ]
    assert told.text.splitlines()[1:] == admits
    found = json.loads(host.run("policy", "validate", path, "--output", "json").stdout)
    assert found == {"valid": True, "problems": [], "admits": admits, "sandboxLevel": "none"}


@pytest.mark.slow
def test_a_session_begins_with_a_line_on_what_its_list_admits(host: Host) -> None:
    path = host.policy(grants={"Shell.Exec": {"allowedCommands": ["ls", "make", "npm", "sh"]}})
    line = "policy: 3 programs may start others (make, npm, …); see agent-host policy validate"
    with gateway(say("Done."), say("Done.")) as model:
        said = [
            host.run("run", "Do it.", "--gateway", model.url, "--policy", policy, "--output", form).stderr.count(line)
            for policy, form in ((path, "text"), (path, "json"), ("ci", "text"))
        ]
        assert said == [1, 0, 0]
        path.write_text(json.dumps({"extends": "ci"}))
        host.run("run", "Do it.", "--gateway", model.url, "--policy", path).names_once("programs may start others")


def test_names_of_a_bundle_do_not_steer_the_terminal(host: Host, tmp_path: Path) -> None:
    steers = "x\x1b[2J\x9b\u202e"
    path = tmp_path / "steers.json"
    rules = [{"approvalRuleId": steers, "title": "t", "description": "d"}]
    grants = {"File.Read": {"approvalRuleId": "x[2J"}, f"File.{steers}": {}}
    path.write_text(json.dumps(bundle(host.workspace, grants=grants, approvalRules=rules) | {steers: 1}))
    for outcome in (host.run("policy", "validate", path), host.run("run", "x", "--policy", path)):
        assert outcome.code == 2
        said = outcome.stdout.decode() + outcome.stderr
        assert "\\x1b[2J\\x9b\\u202e" in said
        assert said.replace("\n", "").isprintable()
    path.write_text(json.dumps(bundle(host.workspace, policyBundleVersion=steers)))
    told = host.run("policy", "validate", path).stdout.decode()
    assert told.startswith("valid: version x\\x1b")


@pytest.mark.slow
def test_rules_for_arguments_from_the_configuration_are_added(host: Host) -> None:
    config = host.root / "policies.toml"
    config.write_text('[[policy.command_policies]]\ncommand = "make"\nsubcommands = ["test"]\n')
    for line, expected in (("make test", "ALLOWED"), ("make install", "DENIED"), ("ls", "ALLOWED")):
        options = (json.dumps({"command": line}), "--policy", "ci", "--output", "json")
        told = host.run("policy", "check", "RunCommand", *options, env={"AGENT_HOST_CONFIG": str(config)}).result
        assert told["decision"] == expected
    config.write_text('[[policy.command_policies]]\ncommand = "make"\nstartsPrograms = true\nmaxArgs = 1\n')
    outcome = host.run("run", "x", "--gateway", "http://127.0.0.1:1", env={"AGENT_HOST_CONFIG": str(config)})
    assert outcome.code == 2
    for said in (
        "command_policies[0].startsPrograms: is true, and configuration only narrows",
        "did you mean maxArguments?",
    ):
        assert said in outcome.stderr


def batch(host: Host, *cases: Any, policy: str = "ci") -> tuple[int, list[dict[str, Any]], list[str]]:
    lines = "".join((case if isinstance(case, str) else json.dumps(case)) + "\n" for case in cases)
    outcome = host.run("policy", "check", "--policy", policy, "--batch", "-", stdin=lines.encode())
    return outcome.code, [json.loads(line) for line in outcome.stdout.splitlines()], outcome.lines


def test_a_batch_answers_each_case_in_order(host: Host) -> None:
    windows = [{"name": "File.Read", "allowedPaths": ["C:\\w"]}]
    linked = {"realPath": "/etc/passwd", "exists": True}
    code, answers, complaints = batch(
        host,
        {"id": 1, "os": "windows", "toolName": "ReadFile", "arguments": {"path": "c:\\W\\a"}, "capabilities": windows},
        {"id": "2", "os": "windows", "toolName": "ReadFile", "arguments": {"path": "C:\\w2"}, "capabilities": windows},
        {
            "toolName": "WriteFile",
            "arguments": {"path": "/w/a", "content": ""},
            "facts": linked,
            "capabilities": [{"name": "File.Write", "allowedPaths": ["/w"]}],
        },
        {
            "toolName": "HttpRequest",
            "arguments": {"url": "https://rebound.example"},
            "facts": {"resolvedAddresses": ["127.0.0.1"]},
            "capabilities": [{"name": "Network.Http"}],
        },
        {"toolName": "RunCommand", "arguments": {"command": "dir"}, "shell": "cmd", "os": "windows"},
        {"toolName": "ReadFile", "arguments": {"path": "/w/a"}, "facts": {"sizeBytes": 9}, "capabilities": [
            {"name": "File.Read", "maxFileSizeBytes": 8}]},
    )  # fmt: skip
    assert (code, complaints) == (0, [])
    assert [(answer.get("id"), answer["decision"]) for answer in answers] == [
        (1, "ALLOWED"),
        ("2", "DENIED"),
        (None, "DENIED"),
        (None, "DENIED"),
        (None, "DENIED"),
        (None, "DENIED"),
    ]
    assert answers[2]["reason"] == "path not in allowed paths: /etc/passwd"
    assert answers[3]["reason"] == "not a public address: rebound.example"
    assert answers[5]["rule"].endswith("maxFileSizeBytes: 8")


@pytest.mark.many_rows(4)
@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("{", "the case cannot be read"),
        ([], "a case is a JSON object"),
        ({"toolName": "ReadFile"}, "arguments is missing"),
        ({"toolName": "ReadFile", "arguments": {}, "os": "mac"}, "os must be one of posix, windows"),
        (
            {"toolName": "ReadFile", "arguments": {}, "facts": {"size": 1}},
            "facts.size is not known; did you mean sizeBytes?",
        ),
        (
            {"toolName": "ReadFile", "arguments": {}, "capability": []},
            "capability is not known; did you mean capabilities?",
        ),
        (
            {"toolName": "ReadFile", "arguments": {"path": "/w"}, "facts": {"realPath": ""}},
            "realPath must not be empty",
        ),
        (
            {"toolName": "ReadFile", "arguments": {"path": "/w"}, "facts": {"sizeBytes": -1}},
            "sizeBytes must be a whole number of at least 0",
        ),
        ('{"toolName": "ReadFile", "arguments": {"path": "/a", "path": "/b"}}', "'path' occurs twice"),
        ('{"toolName": "ReadFile", "arguments": ' + '{"a":' * 1010 + "1" + "}" * 1011, "cannot be read"),
        ('{"toolName": "ReadFile", "toolName": "x", "arguments": {}}', "'toolName' occurs twice"),
        ({"toolName": "ReadFile", "arguments": {}, "capabilities": [{"name": "File.Raed"}]}, "File.Raed"),
    ],
)
def test_a_case_that_cannot_be_read_is_denied_and_told(host: Host, case: Any, says: str) -> None:
    fine = {"toolName": "ReadFile", "arguments": {"path": str(host.workspace)}}
    code, answers, complaints = batch(host, case, fine)
    assert code == 2
    assert [answer["decision"] for answer in answers] == ["DENIED", "ALLOWED"]
    assert says in answers[0]["reason"]
    assert len(complaints) == 1
    assert "line 1: " in complaints[0]


def test_an_expired_bundle_says_so_in_its_decisions(host: Host) -> None:
    file = host.policy(expires_in_s=-5)
    answer = judge(host, "RunCommand", {"command": "ls"}, "--policy", str(file))
    assert (answer["decision"], answer["reason"]) == ("DENIED", "the policy bundle has expired")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ReadFile"], "give a tool and its arguments"),
        (["ReadFile", "nonsense"], "the arguments are not JSON"),
        (["ReadFile", "[]"], "the arguments are a JSON object"),
        (["ReadFile", '{"path": "/a", "path": "/b"}'], "'path' occurs twice"),
        (["ReadFile", "{}", "--batch", "x"], "not both"),
        (["--batch", "/no/such/file"], "--batch /no/such/file: No such file"),
        (["ReadFile", "{}", "--policy", "/no/such/file"], "No such file"),
        (["ReadFile", "{}", "--workspace", "/no/such/folder"], "there is no such directory"),
    ],
)
def test_what_cannot_be_checked(host: Host, arguments: list[str], says: str) -> None:
    outcome = host.run("policy", "check", *arguments)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert says in outcome.error


@pytest.mark.slow
def test_validate(host: Host, tmp_path: Path) -> None:
    good = host.policy()
    assert host.run("policy", "validate", good).text.startswith("valid: version test.1, 5 capabilities, expires ")
    wrong = bundle(host.workspace, grants={"File.Raed": {}}, llm={"allowedModels": []}, colour="red")
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(wrong))
    outcome = host.run("policy", "validate", path, "--output", "json")
    assert outcome.code == 2
    found = json.loads(outcome.stdout)
    assert not found["valid"]
    assert {problem["path"] for problem in found["problems"]} >= {"colour", "llmPolicy.allowedModels"}
    assert len(host.run("policy", "validate", path).text.splitlines()) == len(found["problems"])
    assert host.run("policy", "validate", host.policy(expires_in_s=-1)).code == 2
    assert "No such file" in host.run("policy", "validate", "/no/such/file").error


@pytest.mark.slow
@pytest.mark.parametrize("resumable", [False, True])
def test_rejudge_lists_what_another_policy_would_have_decided(tmp_path: Path, resumable: bool) -> None:
    host = Host(tmp_path)
    read = call("ReadFile", path=str(host.workspace / "a"))
    (host.workspace / "a").write_text("x")
    turns = [use(read, shell("frobnicate x; true")), use(shell("echo hi")), say("Done.")]
    if resumable:
        turns[2] = {"status": 500, "times": "always"}
    with gateway(*turns) as model:
        done = host.task(model.url, "--session-id", "s", policy="full")
    assert done.code == (3 if resumable else 0)
    rows = json.loads(host.run("policy", "rejudge", "s", "--policy", "ci", "--output", "json").stdout)
    assert [(row["toolName"], row["before"], row["now"], row["changed"]) for row in rows] == [
        ("ReadFile", "ALLOWED", "ALLOWED", False),
        ("RunCommand", "ALLOWED", "DENIED", True),
        ("RunCommand", "ALLOWED", "ALLOWED", False),
    ]
    assert rows[1]["reason"].startswith("command not in allowed commands: frobnicate; ")
    text = host.run("policy", "rejudge", "s", "--policy", "ci").text
    assert "ALLOWED → DENIED: command not in allowed commands: frobnicate" in text
    assert text.endswith("3 calls, 1 decided differently\n")
    assert host.run("policy", "rejudge", "s", "--policy", "full").text == "3 calls, 0 decided differently\n"


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("long", [False, True])
def test_rejudge_tells_the_models_form_from_the_one_that_was_approved(
    servers: Servers, *, long: bool, ended: bool
) -> None:
    host = servers.host
    asks = {"Shell.Exec": {"requiresApproval": True, "allowedCommands": ["echo", "rm", "true"]}}
    policy = host.policy(grants=asks)
    approved = "echo é >> effects" + "; true" * (500 if long else 0)
    calls = (shell("rm -r x"), shell("echo b"))
    turns = [use(calls[0]), use(calls[1])] if ended else [use(*calls)]
    with gateway(*turns, say("Done.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task()
        asked = client.event("approval_requested")
        answer = {"approvalId": asked["payload"]["approvalId"], "decision": "approved"}
        client.call("ApproveAction", **answer, arguments={"command": approved})
        client.event("tool_completed")
        asked = client.event("approval_requested", asked["eventId"])
        if ended:
            client.call("ApproveAction", approvalId=asked["payload"]["approvalId"], decision="approved")
            client.event("task_completed")
            client.call("Shutdown")
            serve.ended_well()
        else:
            serve.kill()
    name = client.session_id

    def rows(policy: Any) -> list[tuple[Any, ...]]:
        told = json.loads(host.run("policy", "rejudge", name, "--policy", policy, "--output", "json").stdout)
        # Who kills a process may kill its last events, and with them what policy said to the form that was approved.
        before = [
            asked_for if row["before"] is None and not ended and "edited" in row else row["before"] for row in told
        ]
        found = zip(before, told, strict=True)
        return [(then, row["now"], row["changed"], row.get("edited", False)) for then, row in found]

    asked_for = "APPROVAL_REQUIRED"
    form = (asked_for, asked_for, False, True)
    same = (asked_for, asked_for, False, False)
    assert rows(policy) == [same, form, same]
    told = host.run("policy", "rejudge", name, "--policy", policy).text
    assert told.endswith("2 calls, 1 edited, 0 decided differently\n")
    assert "are not on record" not in told
    other = host.policy(grants={"Shell.Exec": {**asks["Shell.Exec"], "blockedCommands": ["rm"]}})
    assert rows(other) == [(asked_for, "DENIED", True, False), form, same]


def test_rejudge_of_no_session(host: Host) -> None:
    for name, says in (("nobody", "there is no session nobody"), ("../x", "a session id is")):
        outcome = host.run("policy", "rejudge", name, "--policy", "ci")
        assert (outcome.code, outcome.stdout) == (2, b"")
        assert says in outcome.error


@pytest.mark.parametrize("name", ["workspace", "ci", "full"])
def test_the_built_in_bundles_keep_what_steers_programs_from_changing(host: Host, name: str) -> None:
    own = host.workspace / "settings.toml"
    own.write_text("")
    home, elsewhere = host.home, host.state / "checkpoints" / "x.json"
    places = [own, elsewhere, *(home / one for one in (".bashrc", ".ssh/authorized_keys", ".config/agent-host/x"))]
    inside = [".git/config", ".vscode/tasks.json", ".agent/config.toml", "sub/.git/hooks/a"]
    inside += (
        "sub/deep/.vscode/tasks.json",
        "sub/.Claude/settings.json",
        "sub/.envrc",
        "a.code-workspace",
        "sub/.agent/x",
    )
    places += [host.workspace / one for one in inside]
    cases = [{"toolName": "WriteFile", "arguments": {"path": str(place), "content": "x"}} for place in places]
    batch = host.root / "cases.jsonl"
    batch.write_text("".join(json.dumps(case) + "\n" for case in cases))
    outcome = host.run("policy", "check", "--policy", name, "--batch", str(batch), env={"AGENT_HOST_CONFIG": str(own)})
    told = [json.loads(line)["decision"] for line in outcome.stdout.splitlines()]
    assert dict(zip(places, told, strict=True)) == dict.fromkeys(places, "DENIED")
