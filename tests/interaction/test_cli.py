"""The command line as a stranger tries it: options, files, ids, signals, secrets. An error is one line on stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.version import __version__
from state.checkpoint import ENDED
from state.file_store import FileCheckpointStore
from state.records import record_of
from tests.support.process import MODEL, Host, bundle, call, eventually, gateway, process_exists, say, shell, use
from tool_runtime.platform import posix

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Outcome

NOWHERE = "http://127.0.0.1:1"
DOWN = {"status": 500, "times": "always"}


def refused(outcome: Outcome, *parts: str) -> str:
    """A usage error: exit 2, nothing on stdout, one line that holds `parts`."""
    assert (outcome.code, outcome.stdout) == (2, b""), outcome
    for part in parts:
        assert part in outcome.error
    assert outcome.error.startswith("agent-host: error: ")
    return outcome.error


# Asking for help


def test_version(host: Host) -> None:
    outcome = host.run("--version")
    assert (outcome.code, outcome.text, outcome.stderr) == (0, f"agent-host {__version__}\n", "")


def test_help(host: Host) -> None:
    commands = ["run", "resume", "sessions", "mock-gateway", "doctor"]
    general, *each = [host.start(*command, "--help") for command in ([], *([name] for name in commands))]
    outcome = general.finish()
    assert (outcome.code, outcome.stderr) == (0, "")
    assert all(name in outcome.text for name in commands)
    for name, process in zip(commands, each, strict=True):
        assert f"agent-host {name}" in process.finish().text


def test_without_a_command_all_are_listed(host: Host) -> None:
    for words, names in (
        ([], ("run", "resume", "serve", "replay", "mcp", "doctor")),
        (["policy"], ("check", "rejudge")),
    ):
        outcome = host.run(*words)
        assert (outcome.code, outcome.text) == (2, "")
        assert all(f"\n    {name} " in outcome.stderr for name in names)
        assert outcome.stderr.endswith("error: choose a command of this list\n")


# Mistakes on the command line


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["rum", "Do it."], ["rum", "run"]),
    (["run"], ["PROMPT"]),
    (["run", "Do it.", "--modle", "x"], ["--modle"]),
    (["run", "Do it.", "--pol", "ci"], ["--pol"]),
    (["run", "Do it.", "--gateway"], ["--gateway"]),
    (["run", "Do", "it."], ["it."]),
    (["run", ""], ["prompt is empty"]),
    (["run", " \n\t"], ["prompt is empty"]),
    (["run", "x", "--max-steps", "0"], ["--max-steps", "1", "10,000", "0"]),
    (["run", "x", "--max-steps", "10001"], ["--max-steps", "10001"]),
    (["run", "x", "--max-steps", "-1"], ["--max-steps", "-1"]),
    (["run", "x", "--max-steps", "x"], ["--max-steps", "'x'"]),
    (["run", "x", "--output", "yaml"], ["--output", "json", "yaml"]),
    (["run", "x", "--toolset", "magic"], ["--toolset", "desktop", "magic"]),
    (["run", "x", "--dialect", "latin"], ["--dialect", "anthropic", "latin"]),
    (["run", "x", "--workspace", "no/such"], ["--workspace no/such", "no such directory"]),
    (["run", "x", "--gateway", "ftp://x"], ["ftp://x", "http://"]),
    (["run", "x", "--gateway", "mock:no-such.toml"], ["no-such.toml", "No such file"]),
    (["run", "x", "--gateway", NOWHERE, "--policy", "strict"], ["'strict'", "read-only, workspace, ci, full"]),
    (["run", "x", "--gateway", NOWHERE, "--session-id", "../x"], ["session id", "A-Z"]),
    (["run", "x", "--gateway", NOWHERE, "--session-id", "a" * 200], ["session id", "128"]),
    (["run", "x", "--gateway", NOWHERE, "--session-id", "a\n"], ["session id"]),
    (["run", "x"], ["LLM_GATEWAY_ENDPOINT", "--gateway"]),
    (["resume"], ["no session to resume"]),
    (["resume", "nobody"], ["nobody", "agent-host sessions"]),
    (["resume", "../../etc/passwd"], ["session id"]),
    (["mock-gateway"], ["--script"]),
    (["mock-gateway", "--script", "no-such.toml"], ["no-such.toml"]),
]


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, list[Outcome]]:
    """All of MISTAKES at once, on one machine: none of them may leave anything behind."""
    host = Host(tmp_path_factory.mktemp("mistakes"))
    running = [host.start(*arguments) for arguments, _ in MISTAKES]
    return host, [process.finish() for process in running]


@pytest.mark.parametrize("place", range(len(MISTAKES)), ids=lambda place: " ".join(MISTAKES[place][0])[:50])
def test_a_mistake_is_one_line(mistakes: tuple[Host, list[Outcome]], place: int) -> None:
    refused(mistakes[1][place], *MISTAKES[place][1])


def test_mistakes_leave_nothing_behind(mistakes: tuple[Host, list[Outcome]]) -> None:
    host, _ = mistakes
    assert {path.name for path in host.root.iterdir()} <= {"home", "work", "user.toml", "state", "tmp"}
    assert not [*host.workspace.iterdir(), *host.temporary.iterdir()]
    assert host.checkpoints() == []


def test_an_empty_session_id(host: Host) -> None:
    refused(host.run("run", "x", "--gateway", NOWHERE, "--policy", "ci", "--session-id", ""), "session id")


def test_the_prompt_from_stdin(host: Host) -> None:
    prompt = "Grüße, 世界\nand a second line"
    with gateway(say("Done.", expect={"last_contains": prompt})) as model:
        outcome = host.run("run", "-", "--gateway", model.url, "--output", "json", stdin=prompt.encode())
    assert outcome.code == 0, outcome.stderr
    refused(host.run("run", "-", "--gateway", NOWHERE, stdin=b" \n"), "prompt is empty")


# Files that cannot be used


def test_an_invalid_policy_names_every_problem(host: Host) -> None:
    shape: dict[str, Any] = bundle(host.workspace)
    shape["capabilities"][0]["allowedPaths"] = ["~/relative"]
    shape["capabilities"].append({"name": "File.Raed"})
    shape["llmPolicy"]["maxInputTokens"] = "many"
    shape["approvalRulez"] = []
    del shape["tenantId"]
    path = host.root / "bad.json"
    path.write_text(json.dumps(shape))
    outcome = host.task(NOWHERE, policy=path)
    assert (outcome.code, outcome.stdout, len(outcome.lines)) == (2, b"", 5)
    assert all(line.startswith(f"agent-host: error: --policy {path}: ") for line in outcome.lines)
    for problem in (
        "capabilities[0].allowedPaths[0]",
        "capabilities[5].name",
        "did you mean File.Read?",
        "llmPolicy.maxInputTokens",
        "approvalRulez",
        "did you mean approvalRules?",
        "tenantId: is missing",
    ):
        outcome.names_once(problem)
    assert host.checkpoints() == []


def test_a_policy_that_is_no_bundle(host: Host) -> None:
    contents = [(b"", "is empty"), (b"{", "not JSON"), (b"[]", "not a JSON object"), (b"\xff\xff", "not UTF-8")]
    running = []
    for number, (content, _) in enumerate(contents):
        path = host.root / f"{number}.json"
        path.write_bytes(content)
        running.append(host.start_task(NOWHERE, policy=path))
    for number, (_, said) in enumerate(contents):
        refused(running[number].finish(), f"{number}.json", said)


def test_a_policy_for_another_session(host: Host) -> None:
    refused(host.task(NOWHERE, policy=host.policy(sessionId="other")), "sessionId", "other")


CONFIGURATIONS: list[tuple[str, list[str]]] = [
    ("[llm]\nmax_retrys = 1\n", ["llm.max_retrys", "did you mean llm.max_retries?"]),
    ("[lmm]\nmodel = 'x'\n", ["[lmm]", "did you mean llm?"]),
    ("max_steps = 3\n", ["max_steps"]),
    ("[host]\nmax_steps = 'many'\n", ["host.max_steps", "whole number", '"many"']),
    ("[llm]\nmax_retries = 99\n", ["llm.max_retries", "20", "99"]),
    ("[host\n", ["not valid TOML"]),
]


def test_mistakes_in_the_configuration(host: Host) -> None:
    running = []
    for number, (content, _) in enumerate(CONFIGURATIONS):
        path = host.root / f"{number}.toml"
        path.write_text(content)
        running.append(host.start("run", "x", "--gateway", NOWHERE, env={"AGENT_HOST_CONFIG": str(path)}))
    for number, (_, parts) in enumerate(CONFIGURATIONS):
        refused(running[number].finish(), f"{number}.toml", *parts)


def test_a_configuration_that_is_not_there(host: Host) -> None:
    outcome = host.run("run", "x", "--gateway", NOWHERE, env={"AGENT_HOST_CONFIG": str(host.root / "none.toml")})
    refused(outcome, "none.toml", "No such file")


# The workspace's own configuration


def test_a_workspace_may_tighten(host: Host) -> None:
    (host.workspace / ".agent").mkdir()
    secret = host.workspace / "private" / "notes"
    secret.parent.mkdir()
    secret.write_text("hidden")
    (host.workspace / ".agent" / "config.toml").write_text(
        '[host]\nmax_steps = 3\n[tools]\ndisabled = ["DeleteFile"]\n'
        '[policy]\nblocked_paths = ["private"]\nblocked_commands = ["touch"]\n'
    )
    calls = [call("ReadFile", path=str(secret)), call("DeleteFile", path=str(secret)), shell("touch x")]
    with gateway(use(*calls, repeat=9)) as model:
        outcome = host.task(model.url)
        answers = model.results(1)
        assert "DeleteFile" not in {tool["name"] for tool in model.bodies[0]["tools"]}
    assert (outcome.code, outcome.result["reason"], outcome.result["stepCount"]) == (1, "max_steps_exceeded", 3)
    assert all(answer.text.startswith("CAPABILITY_DENIED: ") for answer in answers)
    assert not any("hidden" in answer.text for answer in answers)
    assert secret.exists()
    assert not (host.workspace / "x").exists()


def test_a_workspace_may_not_widen(host: Host) -> None:
    (host.workspace / ".agent").mkdir()
    (host.workspace / ".agent" / "config.toml").write_text(
        f'[host]\npolicy = "full"\nmax_steps = 1000\n[llm]\ngateway = "{NOWHERE}"\n'
        '[tools]\nenv_passthrough = ["LLM_GATEWAY_AUTH_TOKEN"]\n'
    )
    with gateway(use(shell("touch x")), say("Done.")) as model:
        outcome = host.task(model.url, "--max-steps", "5", policy="read-only")
    assert outcome.code == 0, outcome.stderr
    assert not (host.workspace / "x").exists()
    for key in ("host.policy", "host.max_steps", "llm.gateway", "tools.env_passthrough"):
        assert "is ignored" in outcome.names_once(key, ".agent/config.toml")
    assert len(outcome.lines) == 4


# Sessions


@pytest.mark.slow
def test_a_session_id_is_taken_while_it_can_be_resumed(host: Host) -> None:
    host.configure(max_retries=0)
    with gateway(DOWN) as model:
        assert host.task(model.url, "--session-id", "mine").code == 3
        refused(host.task(model.url, "--session-id", "mine"), "mine")
    with gateway(say("Done.")) as model:
        assert host.resume("--gateway", model.url, "mine").result["text"] == "Done."


def test_a_finished_session_is_not_resumed(host: Host) -> None:
    with gateway(say("Done.")) as model:
        assert host.task(model.url, "--session-id", "mine").code == 0
        refused(host.resume("mine"), "mine", 'for another task in it: agent-host resume mine "PROMPT"')
        outcome = host.run("resume", "none")
        refused(outcome, "there is no session none", "agent-host sessions")
        assert "PROMPT" not in outcome.error
        refused(host.resume(), "no session to resume")


@pytest.mark.slow
def test_event_ids_go_on_after_a_resume(host: Host) -> None:
    host.configure(max_retries=0)
    with gateway(use(shell("true")), {"status": 500}, say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s").code == 3
        assert host.resume("--gateway", model.url).code == 0
    ids = [event["eventId"] for event in host.event_log("s")]
    assert ids == sorted(set(ids))


@pytest.mark.slow
def test_resume_takes_the_newest(host: Host) -> None:
    host.configure(max_retries=0)
    with gateway(DOWN) as model:
        for name in ("first", "second"):
            assert host.task(model.url, "--session-id", name).code == 3
    with gateway(say("Done.", times=2, when={"position": 1})) as model:
        assert host.resume("--gateway", model.url).result["sessionId"] == "second"
        assert host.resume("--gateway", model.url).result["sessionId"] == "first"


@pytest.mark.slow
def test_the_list_of_sessions(host: Host) -> None:
    assert host.run("sessions").text == f"no sessions under {host.state}\n"
    assert json.loads(host.run("sessions", "--output", "json").stdout) == []
    host.configure(max_retries=0)
    with gateway(say("Done.")) as model:
        assert host.task(model.url, "--session-id", "over").code == 0
    with gateway(use(shell("true")), DOWN) as model:
        assert host.task(model.url, "--session-id", "open").code == 3
    text = host.run("sessions").text.splitlines()
    assert [line.split()[0] for line in text] == ["open", "over"], "the newest first"
    assert "completed" in text[1]
    assert any(word in text[0] for word in ("paused", "interrupted"))
    assert all("Do it." in line for line in text)
    rows = {row["sessionId"]: row for row in json.loads(host.run("sessions", "--output", "json").stdout)}
    assert {name: (row["status"], row["resumable"], row["stepCount"], row["pid"]) for name, row in rows.items()} == {
        "open": ("SESSION_PAUSED", True, 1, None),
        "over": ("TASK_COMPLETED", False, 1, None),
    }
    assert {row["workspace"] for row in rows.values()} == {str(host.workspace)}


@pytest.mark.parametrize("content", ["{}", "[]", '{"status": 3}'])
def test_the_list_survives_an_odd_file(host: Host, content: str) -> None:
    (host.records("odd")).mkdir(parents=True)
    (host.records("odd") / "result.json").write_text(content)
    (host.records("fine")).mkdir()
    fine = {"status": "TASK_COMPLETED", "prompt": "x", "stepCount": 1, "endedAt": "2026-01-01", "workspace": "/w"}
    (host.records("fine") / "result.json").write_text(json.dumps(fine))
    outcome = host.run("sessions")
    assert outcome.code == 0
    assert "fine" in outcome.text


@pytest.mark.slow
def test_a_damaged_session_does_not_stand_before_the_others(host: Host) -> None:
    host.configure(max_retries=0)
    with gateway(DOWN) as model:
        for name in ("good", "damaged"):
            assert host.task(model.url, "--session-id", name).code == 3
    snapshot = host.state / "checkpoints" / "damaged.json"
    snapshot.write_bytes(b"x" + snapshot.read_bytes()[1:])
    with gateway(say("Done.")) as model:
        host.resume("--gateway", model.url)  # may tell of the damage, once
        again = host.resume("--gateway", model.url, "good") if not model.count else None
        assert again is None, "the newest session that can be resumed is the good one"


def test_a_session_that_is_at_work(host: Host) -> None:
    with gateway({"hang": True}, say("Done.")) as model:
        running = host.start_task(model.url, "--session-id", "s")
        eventually(lambda: model.count == 1, "the request")
        (row,) = json.loads(host.run("sessions", "--output", "json").stdout)
        assert (row["pid"], row["resumable"], row["status"]) == (running.pid, False, "SESSION_RUNNING")
        second = host.resume("s")
        assert (second.code, second.stdout) == (75, b"")
        assert str(running.pid) in second.error
        assert "no session to resume" in host.resume().error
        running.interrupt()
        assert running.finish().code == 130


# doctor, mock-gateway


def test_doctor(host: Host) -> None:
    with gateway(say("x")) as model:
        healthy = host.run("doctor", "--gateway", model.url)
    assert (healthy.code, healthy.stderr) == (0, "")
    assert "FAIL" not in healthy.text
    for check in ("python", "gateway", "state dir", "tokenizer", "sandbox", "shell", "files"):
        assert check in healthy.text
    assert host.run("doctor", "--gateway", f"mock:{host.script(say('x'))}").code == 0


@pytest.mark.slow
@pytest.mark.many_rows(2)
@pytest.mark.parametrize(
    ("tokenizer", "model", "code", "said"),
    [
        ("estimate", MODEL, 0, "estimate"),
        ("estimate", "gpt-5", 0, 'estimate; gpt-5 counts with o200k_base: llm.tokenizer = "auto" uses it'),
        ("auto", MODEL, 0, f"auto: the estimate, since tiktoken has no encoding for {MODEL}"),
        ("auto", "gpt-5", 0, "auto: the estimate, since TIKTOKEN_CACHE_DIR, which is not set, contains no rank file"),
        ("cl100k_base", MODEL, 1, "cl100k_base: TIKTOKEN_CACHE_DIR, which is not set, contains no rank file"),
    ],
)
def test_doctor_says_what_counts_tokens_and_how_to_count_as_the_model_does(
    host: Host, tokenizer: str, model: str, code: int, said: str
) -> None:
    (host.root / "user.toml").write_text(f'[llm]\ntokenizer = "{tokenizer}"\nmodel = "{model}"\n')
    report = host.run("doctor", "--gateway", f"mock:{host.script(say('x'))}")
    assert report.code == code
    (line,) = [line for line in report.text.splitlines() if line[6:].startswith("tokenizer")]
    assert line[6:].split(maxsplit=1)[1].startswith(said)
    for told in ("tiktoken.get_encoding(", "_base.tiktoken as DIR/", "(SHA-256 ", "keep TIKTOKEN_CACHE_DIR=DIR set"):
        assert (told in line) == ("rank file" in said)


@pytest.mark.slow
def test_doctor_tries_what_becomes_of_a_killed_host_s_processes(host: Host) -> None:
    report = host.run("doctor", "--gateway", f"mock:{host.script(say('x'))}").text
    (line,) = [line for line in report.splitlines() if "leftovers" in line]
    assert line.startswith("ok" if sys.platform == "linux" else "-")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers")
def test_doctor_takes_no_process_that_has_ended_for_one_that_runs(host: Host) -> None:
    """In a container the first process often reaps nobody; here this one adopts what the probe leaves and does not."""
    posix.adopt_orphans()
    try:
        report = host.run("doctor", "--gateway", f"mock:{host.script(say('x'))}").text
    finally:
        posix.adopt_orphans(adopt=False)
    (line,) = [line for line in report.splitlines() if "leftovers" in line]
    assert line.startswith("ok")


@pytest.mark.slow
def test_doctor_asks_the_services_that_are_named(host: Host) -> None:
    mock = f"mock:{host.script(say('x'))}"
    with gateway(say("x")) as there:
        env = {"SESSION_SERVICE_URL": there.url, "AUDIT_SERVICE_URL": NOWHERE}
        sick = host.run("doctor", "--gateway", mock, env=env)
    assert sick.code == 1
    lines = {line[6:].split()[0]: line for line in sick.text.splitlines()}
    assert lines["session"].startswith("ok")
    assert there.url in lines["session"]
    assert lines["audit"].startswith("FAIL")
    assert NOWHERE in lines["audit"]
    assert not {"workspace", "approval", "telemetry"} & set(lines)
    wrong = host.run("doctor", "--gateway", mock, env={"SESSION_SERVICE_URL": "ftp://x"})
    assert (wrong.code, wrong.text.count("$SESSION_SERVICE_URL")) == (1, 1)


@pytest.mark.slow
def test_doctor_finds_what_is_wrong(host: Host) -> None:
    host.state.write_text("a file in the directory's place")
    sick = host.run("doctor", "--gateway", NOWHERE)
    assert sick.code == 1
    failing = [line for line in sick.text.splitlines() if line.startswith("FAIL")]
    assert ["gateway" in failing[0], "state dir" in failing[1], len(failing)] == [True, True, 2]
    assert host.run("doctor").text.count("LLM_GATEWAY_ENDPOINT") == 1


def test_the_mock_gateway_serves_until_it_is_ended(host: Host) -> None:
    served = host.start("mock-gateway", "--script", host.script(say("Done.", expect={"last_contains": "Do it."})))
    served.said("\n", on="stdout")
    url = served.printed().splitlines()[0]
    assert host.task(url).result["text"] == "Done."
    served.interrupt(signal.SIGTERM)
    outcome = served.finish()
    assert (outcome.code, outcome.text, outcome.stderr) == (0, f"{url}\n", "")


def test_the_mock_gateway_tells_what_a_request_lacked(host: Host) -> None:
    served = host.start(
        "mock-gateway", "--script", host.script(say("Done.", expect={"last_contains": "Something else"}))
    )
    served.said("\n", on="stdout")
    assert host.task(served.printed().splitlines()[0]).code == 1
    served.said("Something else")
    served.interrupt(signal.SIGTERM)
    outcome = served.finish()
    assert outcome.code == 1
    assert "Do it." in outcome.names_once("mock-gateway: ", "expect.last_contains")


# Signals

WAITS = "touch began; until [ -e go ]; do sleep 0.01; done; touch ended"


def stop_during_a_command(host: Host, url: str, number: int) -> Outcome:
    """Stop the run while its command runs; the command ends afterwards."""
    running = host.start_task(url, "--session-id", "s")
    eventually((host.workspace / "began").exists, "the command")
    running.interrupt(number)
    running.said("stopping")
    assert running.alive, "a running tool is waited for"
    (host.workspace / "go").touch()
    return running.finish()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_tool_end(host: Host, number: int, code: int) -> None:
    with gateway(use(shell(WAITS)), say("Done.")) as model:
        outcome = stop_during_a_command(host, model.url, number)
        assert model.count == 1
        assert (host.workspace / "ended").exists()
        assert (outcome.code, outcome.result["status"]) == (code, "TASK_CANCELLED")
        assert outcome.result["toolCalls"] == [{"toolName": "RunCommand", "status": "succeeded", "exitCode": 0}]
        outcome.names_once("resume with: agent-host resume s")
        (row,) = json.loads(host.run("sessions", "--output", "json").stdout)
        assert row["resumable"] is True
        again = host.resume("--gateway", model.url)
        (answer,) = model.results()
    assert answer.text.startswith("Exit code: 0")
    assert (again.code, again.result["text"], again.result["stepCount"]) == (0, "Done.", 2)
    assert host.checkpoints() == []


def test_a_signal_does_not_wait_for_the_model(host: Host) -> None:
    with gateway({"hang": True}, say("Done.")) as model:
        running = host.start_task(model.url)
        eventually(lambda: model.count == 1, "the request")
        running.interrupt()
        outcome = running.finish(within_s=5)
        assert (outcome.code, outcome.result["status"], outcome.result["stepCount"]) == (130, "TASK_CANCELLED", 0)
        outcome.names_once("agent-host: cancelled on request")
        assert host.resume("--gateway", model.url).result["text"] == "Done."


def test_a_signal_cuts_a_wait_for_a_retry_short(host: Host) -> None:
    with gateway({"status": 429, "headers": {"retry-after": "60"}}, say("Done.")) as model:
        running = host.start("run", "Do it.", "--gateway", model.url, "--policy", "full")
        running.said("retry")
        running.interrupt()
        assert running.finish(within_s=5).code == 130
        assert host.resume("--gateway", model.url).result["text"] == "Done."


@pytest.mark.slow
def test_a_second_signal_ends_the_tool_and_its_children(host: Host) -> None:
    command = "sh -c 'echo $$ > inner; exec sleep 50' & echo $$ > outer; touch began; wait"
    with gateway(use(shell(command)), say("Done.")) as model:
        running = host.start_task(model.url, "--session-id", "s")
        eventually((host.workspace / "began").exists, "the command")
        eventually(lambda: (host.workspace / "inner").exists() and (host.workspace / "inner").read_text(), "its child")
        pids = [int((host.workspace / name).read_text()) for name in ("inner", "outer")]
        assert all(map(process_exists, pids))
        running.interrupt()
        running.said("stopping")
        running.interrupt()
        outcome = running.finish(within_s=10)
        result = outcome.result
        assert (outcome.code, result["status"], result["reason"]) == (130, "TASK_CANCELLED", "cancelled")
        assert (result["stepCount"], result["toolCalls"]) == (0, []), "the call has no result yet"
        assert result["resumeCommand"].startswith("agent-host resume s")
        outcome.names_once("resume with: agent-host resume s")
        eventually(lambda: not any(map(process_exists, pids)), "the end of the process tree", within_s=5)
        again = host.resume("--gateway", model.url)
        (answer,) = model.results()
    assert answer.is_error
    assert answer.text.startswith("TOOL_INTERRUPTED: ")
    assert (again.code, again.result["text"]) == (0, "Done.")


# Secrets

TOKEN = "tok-9f8e7d6c5b4a"


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("form", ["json", "jsonl", "text"])
def test_the_token_goes_to_the_gateway_and_nowhere_else(host: Host, form: str) -> None:
    host.cold = True
    variables = {"LLM_GATEWAY_AUTH_TOKEN": TOKEN, "MY_API_KEY": "key-" + TOKEN, "HARMLESS": "visible"}
    rejected = {"status": 401, "times": "always"}
    with gateway(use(shell("env; cat /proc/self/environ")), rejected) as model:
        options = ("--gateway", model.url, "--policy", "full", "--output", form)
        outcome = host.run("run", "Show the environment.", *options, env=variables)
        (answer,) = model.results()
        assert {record.headers.get("x-api-key") for record in model.mock.requests} == {TOKEN}
    assert outcome.code == 1
    assert "HARMLESS=visible" in answer.text
    assert TOKEN not in answer.text
    assert TOKEN not in outcome.stderr + outcome.text
    files = [path for path in host.root.rglob("*") if path.is_file()]
    assert any("checkpoints" in str(path) for path in files)
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    "turn",
    [
        {"status": 401, "error": {"type": "authentication_error", "message": f"bad key {TOKEN}"}, "times": "always"},
        {"text": "x", "stream_error": {"type": "authentication_error", "message": f"bad key {TOKEN}"}},
    ],
)
def test_a_gateway_that_quotes_the_token(host: Host, turn: dict[str, Any]) -> None:
    with gateway(turn) as model:
        options = ("--gateway", model.url, "--policy", "full", "--output", "jsonl")
        outcome = host.run("run", "Do it.", *options, env={"LLM_GATEWAY_AUTH_TOKEN": TOKEN})
    assert outcome.code == 1
    assert "bad key [redacted]" in outcome.stderr
    assert TOKEN not in outcome.stderr + outcome.text
    assert [path for path in host.root.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_token_that_no_header_can_carry(host: Host) -> None:
    refused = host.run("run", "x", "--gateway", NOWHERE, env={"LLM_GATEWAY_AUTH_TOKEN": "tab\tand-more"})
    assert refused.code == 2
    assert "no header can carry" in refused.error
    assert host.checkpoints() == []


def test_the_token_is_not_in_the_host_s_own_environment_either(host: Host) -> None:
    """A command is a child of the host, and may read its parent's environment where the system shows it."""
    host.cold = True
    with gateway(use(shell("cat /proc/$PPID/environ"), shell(f"echo {TOKEN}")), say("Done.")) as model:
        options = ("--gateway", model.url, "--policy", "full", "--output", "json")
        outcome = host.run("run", "Look.", *options, env={"LLM_GATEWAY_AUTH_TOKEN": TOKEN})
        environment, echoed = model.results()
    assert outcome.code == 0, outcome.stderr
    assert "LLM_GATEWAY_AUTH_TOKEN=*" in environment.text
    assert TOKEN not in environment.text
    assert "[redacted]" in echoed.text
    assert TOKEN not in echoed.text


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_what_commands_are_not_given_is_not_in_the_host_s_own_environment(host: Host) -> None:
    """Whatever looks like a secret, also where the host's own commands are given it on purpose."""
    host.cold = True
    secrets = {"MY_API_KEY": "very-own-1", "DB_PASSWORD": "very-own-2", "GITHUB_TOKEN": "very-own-3"}
    (host.root / "user.toml").write_text('[sandbox]\nlevel = "none"\n[tools]\nenv_passthrough = ["GITHUB_TOKEN"]\n')
    look = shell("cat /proc/$PPID/environ | tr '\\0' '\\n'; echo own=$(echo $GITHUB_TOKEN | tail -c 6)$DB_PASSWORD")
    with gateway(use(look), say("Done.")) as model:
        outcome = host.run("run", "Look.", "--gateway", model.url, "--policy", "full", env=secrets)
        (answer,) = model.results()
    assert outcome.code == 0, outcome.stderr
    assert "very-own" not in answer.text
    assert "DB_PASSWORD=*" in answer.text
    assert "own=own-3" in answer.text


def test_a_resume_clears_up_a_clean_end_that_was_cut_off(host: Host) -> None:
    with gateway({"status": 500, "times": "always"}) as model:
        host.configure(max_retries=0)
        assert host.task(model.url, "--session-id", "mine").code == 3
    store = FileCheckpointStore(str(host.state)).open("mine")
    store.append(record_of("session_status", {"status": ENDED}))
    store.close()
    (host.state / "checkpoints" / "mine.json").unlink()  # as far as the dead process came
    assert host.resume("mine").code == 2
    assert host.checkpoints() == []


def test_a_result_that_cannot_be_kept_keeps_the_session(host: Host) -> None:
    with gateway(say("Done.")) as model:
        (host.state / "sessions" / "mine" / "result.json.tmp").mkdir(parents=True)
        outcome = host.task(model.url, "--session-id", "mine")
        assert (outcome.code, outcome.result["text"]) == (0, "Done.")
        assert "mine.json" in host.checkpoints()
        (host.state / "sessions" / "mine" / "result.json.tmp").rmdir()
        again = host.resume("mine")
    assert (again.code, again.result["text"]) == (0, "Done.")
    assert host.checkpoints() == []


# Where it writes


@pytest.mark.parametrize("command", [("run", "x", "--gateway", NOWHERE, "--policy", "ci"), ("resume", "s")])
def test_a_state_directory_that_is_a_file(host: Host, command: tuple[str, ...]) -> None:
    host.state.write_text("")
    outcome = host.run(*command)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert str(host.state) in outcome.error


@pytest.mark.many_rows(2)
@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_reader_that_leaves_does_not_lose_the_task(host: Host, form: str) -> None:
    """`agent-host run … | head -1`, with work to do after the first line."""
    first = "until [ -e gone ]; do sleep 0.01; done"
    turns = (use(shell(first), text="One.\n"), use(shell("touch done"), text="Two.\n" * 90), say("Three."))
    with gateway(*turns) as model:
        read, write = os.pipe()
        command = [sys.executable, "-P", "-m", "agent_host", "run", "Do it.", "--gateway", model.url]
        running = subprocess.Popen(
            [*command, "--policy", "full", "--output", form],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            env=host.environment(),
            cwd=host.workspace,
        )
        os.close(write)
        assert form == "json" or os.read(read, 1)
        os.close(read)
        (host.workspace / "gone").touch()
        _, said = running.communicate(timeout=30)
    assert (host.workspace / "done").exists(), said
    assert host.checkpoints() == []
    assert b"Exception" not in said
    assert running.returncode == 0


@pytest.mark.parametrize("form", ["json", "text"])
def test_without_a_standard_output(host: Host, form: str) -> None:
    with gateway(use(shell("touch done")), say("Done.")) as model:
        command = [sys.executable, "-P", "-m", "agent_host", "run", "Do it.", "--gateway", model.url]
        ran = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", *command, "--policy", "full", "--output", form],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=host.environment(),
            cwd=host.workspace,
            timeout=30,
        )
    assert b"Traceback" not in ran.stderr
    assert b"internal error" not in ran.stderr
    assert (host.workspace / "done").exists()
    assert ran.returncode == 0


FAILS = shell("for i in 1 2 3 4 5 6 7; do echo line $i; done; echo oops >&2; exit 3")


@pytest.mark.parametrize("form", ["json", "jsonl", "text"])
def test_all_output_of_commands_where_it_is_wanted(host: Host, form: str) -> None:
    with gateway(use(FAILS), say("Done.")) as model:
        options = ("--policy", "full", "--verbose", "--output", form)
        outcome = host.run("run", "Do it.", "--gateway", model.url, *options)
    printed = [line.strip() for line in outcome.lines if line.startswith("             | ")]
    assert sorted(printed) == [*(f"| line {number}" for number in range(1, 8)), "| oops"]
    assert outcome.names_once("  output  RunCommand for i in 1 2 3").startswith("[")
    if form == "json":
        assert outcome.result["toolCalls"] == [{"toolName": "RunCommand", "status": "succeeded", "exitCode": 3}]


def test_the_last_lines_of_a_command_that_failed(host: Host) -> None:
    flood = shell("seq 1 100000; echo 2 tests failed; exit 1")
    with gateway(use(flood), use(FAILS), use(shell("echo fine")), say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", "full")
    printed = [line.strip() for line in outcome.lines if line.startswith("             | ")]
    assert printed[:5] == [*(f"| {number}" for number in range(99_997, 100_001)), "| 2 tests failed"]
    assert len(printed) == 10
    assert "| oops" in printed
    assert "| fine" not in printed


def test_a_short_run_with_json_prints_nothing_else(host: Host) -> None:
    with gateway(use(FAILS), say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", "full", "--output", "json")
    assert (outcome.code, outcome.stderr) == (0, "")


def test_a_configuration_that_never_ends(host: Host) -> None:
    """The workspace is somebody else's: a pipe in place of a file must not hold the program up."""
    (host.workspace / ".agent").mkdir()
    os.mkfifo(host.workspace / ".agent" / "config.toml")
    process = host.start("run", "x", "--gateway", NOWHERE)
    refused(process.finish(within_s=10), ".agent/config.toml")


# The patch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("feeds", "a\x0b1\x0cz\nb\u20281\nc\x851\n", "a\x0b2\x0cz\nb\u20282\nc\x852\n"),
        ("carriage returns", "a\r\nb\rc\r\n", "a\r\nb\rd\r\n"),
        ("no end", "a", "b"),
        ("added and empty", None, ""),
        ("two\nlines", "a\n", "b\n"),
    ],
    ids=["feeds", "carriage-returns", "no-end", "added-and-empty", "two-lines"],
)
def test_the_patch_applies(host: Host, name: str, before: str | None, after: str) -> None:
    original = host.root / "original"
    original.mkdir()
    if before is not None:
        for folder in (original, host.workspace):
            (folder / name).write_bytes(before.encode())
    turn = use(call("WriteFile", path=str(host.workspace / name), content=after))
    with gateway(turn, say("Done.")) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", "full")
    raw = outcome.stderr.encode()
    patch = raw[raw.index(b"\n\ndiff --git ") + 2 : raw.rindex(b"\n\n2 steps") + 1]
    applied = subprocess.run(["git", "apply", "-"], input=patch, cwd=original, capture_output=True)
    assert applied.returncode == 0, (patch, applied.stderr)
    assert (original / name).read_bytes() == after.encode()


def test_a_workspace_with_spaces(host: Host) -> None:
    odd: Path = host.root / "my own 'project' ü"
    odd.mkdir()
    turn = use(shell("pwd > here"), call("WriteFile", path=str(odd / "a b"), content="x"))
    with gateway(turn, say("Done.")) as model:
        outcome = host.task(model.url, "--workspace", odd, policy="full")
        answers = model.results()
    assert [answer.is_error for answer in answers] == [False, False], answers
    assert (odd / "here").read_text() == f"{odd}\n"
    assert (outcome.code, (odd / "a b").read_text()) == (0, "x")
