"""What the program prints for a CI runner: nothing in it is a command of the runner's, in any command and form."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.process import Host, Outcome

RUNNERS = [{"GITHUB_ACTIONS": "true"}, {"TF_BUILD": "True"}, {"TEAMCITY_VERSION": "2026.1"}]
SECTION = "section_start:1:x\r\x1b[0Kx section_end:1:x\r\x1b[0K"
GITHUB = RUNNERS[0]
HOSTILE = (
    "::stop-commands::x\n \u00a0::error file=a,line=1::x\nb\r::add-mask::y\r\n\t::warning::z\n"
    "a ##[group]z ##vso[task.setvariable variable=PATH]w ##teamcity[buildStatus]v ###[x"
)
NAME = "::error::a ##[b ##vso[c\r::x"
ARGUMENTS = json.dumps({"path": f"/etc/{NAME}"})
FORMS = [["text"], ["text", "--verbose"], ["json"], ["jsonl"]]


OWN = re.compile(
    r"^::(?:group::step \d+|endgroup::"
    r"|(?:error|warning) (?:title=agent-host%3A [^:,\r\n]*|file=[^:,\r\n]+,line=\d+)::)",
    re.MULTILINE,
)


def obeyed(outcome: Outcome) -> list[str]:
    """What a runner would obey besides the host's own groups and annotations, whose messages count."""
    found = []
    for stream in (outcome.stdout, outcome.stderr.encode()):
        log = OWN.sub("own ", stream.decode())
        found += [line for line in re.split(r"[\r\n\u2028\x85]", log) if line.strip().startswith("::")]
        found += re.findall(r"\s::|##(?:vso|teamcity)?\[|\r(?!\n)", log)
    return found


def worked(host: Host, *options: str, env: Mapping[str, str] = GITHUB) -> Outcome:
    """A session whose model, command and files say what a runner would obey."""
    (host.workspace / NAME).write_text(HOSTILE)
    work = use(
        shell(f"cat '{NAME}'; cat '{NAME}' >&2; printf '::error::no end'; exit 3"),
        call("ReadFile", path=str(host.workspace / NAME)),
        call("ReadFile", path=f"/etc/{NAME}"),
        call(f"No{NAME[:4]}", path=NAME),
        text=HOSTILE,
    )
    with gateway(work, say(HOSTILE)) as model:
        options = ("--gateway", model.url, "--session-id", "s", "--policy", str(host.policy()), *options)
        return host.run("run", HOSTILE, *options, env=env)


@pytest.mark.many_rows(3)
@pytest.mark.parametrize("env", RUNNERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_task_gives_the_runner_no_command(host: Host, form: list[str], env: Mapping[str, str]) -> None:
    outcome = worked(host, "--output", *form, env=env)
    assert outcome.code == 0, outcome.stderr
    assert obeyed(outcome) == []
    assert "stop-commands" in outcome.text
    if "json" in form:
        assert outcome.result["text"] == HOSTILE
    if "jsonl" in form:
        shown = [event["payload"]["text"] for event in outcome.events if event["eventType"] == "text_chunk"]
        assert "".join(shown) == HOSTILE * 2


def test_without_a_runner_text_and_files_are_as_they_were(host: Host) -> None:
    outcome = worked(host, env={"CI": "true"})
    assert HOSTILE in outcome.stdout.decode()
    assert host.history("s")[-1]["content"] == HOSTILE


def test_files_for_a_runner_are_as_they_were(host: Host) -> None:
    worked(host)
    assert host.history("s")[-1]["content"] == HOSTILE


@pytest.mark.many_rows(4)
@pytest.mark.many_rows(5)
@pytest.mark.parametrize(
    "words",
    [
        ("show", "s"),
        ("show", "s", "--step", "1"),
        ("show", "s", "--output", "json"),
        ("sessions",),
        ("sessions", "--output", "json"),
        ("sessions", "--prune", "--max-age", "0s", "--dry-run"),
        ("replay", "s"),
        ("policy", "rejudge", "s", "--policy", "ci"),
        ("policy", "check", "--policy", "ci", "ReadFile", ARGUMENTS),
        (
            "policy",
            "check",
            "--policy",
            "ci",
            "ReadFile",
            ARGUMENTS,
            "--output",
            "json",
        ),
        ("policy", "check", "--policy", "ci", "--batch", "cases"),
        ("policy", "validate", "bundle ##[x.json"),
        ("policy", "check", "--policy", "./::a ##vso[b", "ReadFile", "{}"),
        ("doctor", "--gateway", "http://127.0.0.1:9/##[a"),
        ("run", "x", "--gateway", "mock:no ##[x"),
        ("mock-gateway", "no ::x ##[y"),
        ("::error::x",),
        ("run", "--no ::x ##[y"),
        ("resume", "::x"),
    ],
    ids=" ".join,
)
def test_no_command_gives_the_runner_one(host: Host, words: tuple[str, ...]) -> None:
    if "s" in words or words[0] == "sessions":
        worked(host)
    case = {"id": HOSTILE, "toolName": NAME, "arguments": {"path": NAME}}
    (host.workspace / "cases").write_text(f"{json.dumps(case)}\n{{\n")
    bundle = {f"a{HOSTILE}": NAME, "capabilities": [{"name": NAME}]}
    (host.workspace / "bundle ##[x.json").write_text(json.dumps(bundle))
    outcome = host.run(*words, env=GITHUB)
    assert obeyed(outcome) == [], outcome
    assert outcome.stdout or outcome.stderr
    plain = host.run(*words)
    if "json" in words:
        assert json.loads(outcome.stdout) == json.loads(plain.stdout)


def test_a_gateway_says_nothing_to_the_runner(host: Host) -> None:
    with gateway({"status": 400, "error": {"message": HOSTILE}}) as model:
        outcome = host.run("run", "Do it.", "--gateway", model.url, "--policy", host.policy(), env=GITHUB)
    assert outcome.code != 0
    assert obeyed(outcome) == []


def test_a_step_is_a_group_and_the_end_an_annotation(host: Host) -> None:
    with gateway(use(shell("true")), {"status": 400, "error": {"message": HOSTILE}}) as model:
        outcome = host.run("run", "x", "--gateway", model.url, "--policy", host.policy(), env=GITHUB)
    assert outcome.code != 0
    commands = [line for line in outcome.lines if line.startswith("::")]
    assert commands[:-1] == ["::group::step 1", "::endgroup::", "::group::step 2", "::endgroup::"]
    assert re.match(r"::error title=agent-host%3A \w+%3A LLM_\w+%2C by infrastructure::", commands[-1]), commands
    assert re.search(r"; resume with: agent-host resume sess_\w+( |$)", commands[-1])


def test_a_section_of_gitlab_is_the_hosts_alone(host: Host) -> None:
    with gateway(use(shell("true"), text=SECTION), say(SECTION)) as model:
        options = ("--gateway", model.url, "--policy", str(host.policy()))
        outcome = host.run("run", "x", *options, env={"GITLAB_CI": "true"})
    log = outcome.text + outcome.stderr
    own = re.findall(r"^\x1b\[0Ksection_(start|end):(\d{10,}):(step_\d)\r\x1b\[0K(step \d)?$", log, re.MULTILINE)
    assert [(kind, name, title) for kind, _, name, title in own] == [
        ("start", "step_1", "step 1"), ("end", "step_1", ""), ("start", "step_2", "step 2"), ("end", "step_2", ""),
    ]  # fmt: skip
    assert len(re.findall(r"section_\w+:", log)) == len(own)
    assert outcome.text.count("section_start :1:x\\r") == 2


def test_the_summary_of_a_step_is_added_to(host: Host) -> None:
    summary, outputs = host.root / "summary", host.root / "outputs"
    step = {**GITHUB, "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(outputs)}
    summary.write_text("before\n")
    options = ("--policy", str(host.policy()), "--patch", str(host.root / "x.patch"))
    with gateway(say(HOSTILE), say("two")) as model:
        assert host.run("run", "x", "--gateway", model.url, *options, env=step).code == 0
        assert host.run("run", "x", "--gateway", model.url, *options, "--no-summary", env=step).code == 0
    text = summary.read_text()
    assert text.startswith("before\n## agent-host: ` completed")
    assert text.count("## agent-host") == 1
    names = re.findall(r"^([a-z-]+)<<", outputs.read_text(), re.MULTILINE)
    assert names == ["patch-file", "session-id", "exit-code", "verdict", "resume-command"] * 2
    plain = host.run("run", "x", "--gateway", "mock:none", env={**step, "GITHUB_ACTIONS": ""})
    assert plain.code == 2
    assert summary.read_text() == text
