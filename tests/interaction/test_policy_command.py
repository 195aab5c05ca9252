"""`agent-host policy`: decisions for calls that are never made, and what is wrong with a bundle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Host, bundle, call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("machine"))
    yield made
    made.close()


def judge(host: Host, tool: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]:
    outcome = host.run("policy", "check", tool, json.dumps(arguments), "--output", "json", *options)
    assert (outcome.code, outcome.stderr) == (0, "")
    return outcome.result


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
    }
    assert judge(host, "ReadFile", {"path": str(host.workspace / "out")})["decision"] == "DENIED"
    assert judge(host, "WriteFile", {"path": str(host.workspace / "a"), **write})["reason"].endswith("is a directory")
    asked = judge(host, "RunCommand", {"command": "make"})
    assert (asked["decision"], asked["ruleId"], asked["riskLevel"]) == ("APPROVAL_REQUIRED", "shell-exec", "medium")
    assert judge(host, "RunCommand", {"command": "make"}, "--policy", "ci")["decision"] == "ALLOWED"
    assert judge(host, "Nothing", {})["reason"] == "there is no tool 'Nothing'"
    assert judge(host, "ReadFile", {"path": "relative"})["rule"] == "case"
    assert not (host.workspace / "new").exists()


def test_in_words(host: Host) -> None:
    outcome = host.run("policy", "check", "RunCommand", '{"command": "rm -r x"}', "--policy", "ci")
    assert outcome.code == 0
    assert outcome.text.startswith("ALLOWED: granted\nby capabilities[Shell.Exec].allowedCommands: rm\n")


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
    for said in ("command_policies[0].startsPrograms: is not for configuration", "did you mean maxArguments?"):
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


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("{", "the case cannot be read"),
        ([], "a case is a JSON object"),
        ({"toolName": "ReadFile"}, "arguments must be an object"),
        ({"toolName": "ReadFile", "arguments": {}, "os": "mac"}, "os must be one of posix, windows"),
        ({"toolName": "ReadFile", "arguments": {}, "facts": {"size": 1}}, "facts.size is no fact"),
        ({"toolName": "ReadFile", "arguments": {}, "capability": []}, "capability is no field"),
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


@pytest.mark.parametrize("resumable", [False, True])
def test_rejudge_lists_what_another_policy_would_have_decided(tmp_path: Path, resumable: bool) -> None:
    host = Host(tmp_path)
    read = call("ReadFile", path=str(host.workspace / "a"))
    (host.workspace / "a").write_text("x")
    turns = [use(read, shell("curl x; true")), use(shell("echo hi")), say("Done.")]
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
    assert rows[1]["reason"] == "command not in allowed commands: curl"
    text = host.run("policy", "rejudge", "s", "--policy", "ci").text
    assert "ALLOWED → DENIED: command not in allowed commands: curl" in text
    assert text.endswith("3 calls, 1 decided differently\n")
    assert host.run("policy", "rejudge", "s", "--policy", "full").text == "3 calls, 0 decided differently\n"


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
    inside = (".git/config", ".vscode/tasks.json", ".agent/config.toml", "sub/.git/hooks/a")
    places += [host.workspace / one for one in inside]
    cases = [{"toolName": "WriteFile", "arguments": {"path": str(place), "content": "x"}} for place in places]
    batch = host.root / "cases.jsonl"
    batch.write_text("".join(json.dumps(case) + "\n" for case in cases))
    outcome = host.run("policy", "check", "--policy", name, "--batch", str(batch), env={"AGENT_HOST_CONFIG": str(own)})
    told = [json.loads(line)["decision"] for line in outcome.stdout.splitlines()]
    assert dict(zip(places, told, strict=True)) == dict.fromkeys(places, "DENIED")
