"""`--toolset skills`: tools that are asked for by their names, scripts of skills, SK's answers and names of errors."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.faults.crash_run import KILLED
from tests.interaction.test_skills import in_workspace, offered, plain, skill
from tests.support.process import Host, call, gateway, say, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Gateway, Outcome

GUARDED = ("run_script", "write_file", "delete_file", "network_request")
READING = {"read_file", "list_dir", "grep"}
# As the skills of public repositories are laid out.
PUBLIC = """\
---
name: pdf-forms
description: >-
  Fill in PDF forms. Use when the user
  names a form.
license: Complete terms in LICENSE.txt
compatibility: Needs Python 3
allowed-tools: Read, Bash(python3 scripts/fill.py:*)
metadata:
  author: example-org
  version: "1.0"
---

# PDF forms

1. Read [the reference](references/FIELDS.md).
2. Run `python3 scripts/fill.py --form assets/form.txt --out OUT`.
"""
FILL = """\
#!/usr/bin/env python3
import argparse
from pathlib import Path

import helper

parser = argparse.ArgumentParser()
parser.add_argument("--form", default=Path(__file__).parent.parent / "assets" / "form.txt", type=Path)
parser.add_argument("--out", required=True, type=Path)
options = parser.parse_args()
options.out.write_text(helper.filled(options.form.read_text()))
print(f"filled {options.out.name}")
"""


def public(folder: Path) -> Path:
    return skill(
        folder,
        "pdf-forms",
        PUBLIC,
        **{
            "LICENSE.txt": "Terms.",
            "references/FIELDS.md": "Fields.",
            "assets/form.txt": "name: ____\n",
            "scripts/fill.py": FILL,
            "scripts/helper.py": "def filled(text):\n    return text.replace('____', 'Ada')\n",
            "scripts/other.py": "open('/tmp/never', 'w')\n",
        },
    )


def scripts(host: Host, **texts: str) -> Path:
    """The skill `s` of the workspace with these scripts, by their names without an ending."""
    return skill(in_workspace(host), "s", plain("s"), **{f"scripts/{name}.py": text for name, text in texts.items()})


def enable(host: Host, *tools: str, more: str = "") -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(f'[host]\ntoolset = ["skills"]\n[skills]\nenabled_tools = {json.dumps(tools)}\n{more}')


def script(name: str, *args: str, **more: Any) -> dict[str, Any]:
    return call("run_script", skill="s", relative_path=f"scripts/{name}.py", args=list(args), **more)


def named(text: str) -> str:
    return text.partition(":")[0]


def codes(outcome: Outcome) -> list[str | None]:
    return [one.get("code") for one in outcome.result["toolCalls"]]


def value_of(text: str) -> dict[str, Any]:
    """The JSON of an answer, behind the name and the words of an error where there is one."""
    found: dict[str, Any] = json.loads(text[text.index("{") :])
    return found


def test_a_skill_of_a_public_repository_runs_unchanged(host: Host) -> None:
    """Listed, read, and then limited to the tools that it names, its script among them as its text writes it."""
    at = public(in_workspace(host))
    enable(host, "run_script", "write_file")
    out = host.workspace / "out.txt"
    run = {"skill": "pdf-forms", "relative_path": "scripts/fill.py", "args": ["--out", str(out)]}
    turns = [
        use(call("load_skill", name="pdf-forms")),
        use(
            call("run_script", **run),
            call("run_script", skill="pdf-forms", relative_path="scripts/other.py"),
            call("read_file", path=str(at / "references" / "FIELDS.md")),
            call("write_file", path="x", content="x"),
        ),
        say("Done."),
    ]
    with gateway(*turns) as model:
        outcome = host.task(model.url, "--approve", "run_script", "--approve", "write_file", policy="workspace")
        assert outcome.code == 0, outcome
        assert set(offered(model.bodies[0])) >= {*READING, "run_script", "write_file", "load_skill", "ReadOutput"}
        assert set(offered(model.bodies[1])) == {"read_file", "run_script", "load_skill", "ReadOutput"}
        ran, other, read, write = [answer.text for answer in model.results()]
    assert out.read_text() == "name: Ada\n"
    answer = json.loads(ran)
    assert (answer["stdout"], answer["exit_code"], answer["timeout"]) == ("filled out.txt\n", 0, False)
    assert json.loads(read)["content_excerpt"] == "Fields."
    assert (named(other), named(write)) == ("ToolNotAllowed", "ToolNotAllowed")
    assert "the skill pdf-forms does not name python3 with these arguments" in other
    assert codes(outcome) == [None, None, "CAPABILITY_DENIED", None, "CAPABILITY_DENIED"]
    assert outcome.result["toolCalls"][1]["exitCode"] == 0
    assert str(out) in outcome.result["filesChanged"]


def test_what_is_guarded_is_off_until_the_user_enables_it(host: Host) -> None:
    """Under `full` as well, and a workspace enables nothing."""
    scripts(host, a="print(1)")
    (host.workspace / ".agent" / "config.toml").write_text(f"[skills]\nenabled_tools = {json.dumps(GUARDED)}\n")
    calls = [
        script("a"),
        call("write_file", path="x", content="x"),
        call("delete_file", path=".agent/config.toml"),
        call("network_request", url="http://127.0.0.1:9/"),
    ]
    approve = [option for name in GUARDED for option in ("--approve", name)]
    with gateway(use(*calls), say("Done.")) as model:
        outcome = host.task(model.url, "--toolset", "skills", "--approve-all", *approve)
        assert {*offered(model.bodies[0])} & {*READING, *GUARDED} == READING
        answers = [answer.text for answer in model.results()]
    assert outcome.code == 0
    assert {named(answer) for answer in answers} == {"ToolNotAllowed"}
    assert all("skills.enabled_tools in the configuration" in answer for answer in answers)
    assert sorted(path.name for path in host.workspace.iterdir()) == [".agent"]


def test_only_the_name_of_the_tool_approves_it_in_advance(host: Host) -> None:
    scripts(host, a="open('/dev/null'); print('ran')")
    enable(host, *GUARDED)
    (host.workspace / "old").write_text("x")
    calls = [script("a"), call("write_file", path="new", content="x"), call("delete_file", path="old")]
    wide = ["--approve-all", "--approve", "shell-exec", "--approve", "File.Write", "--approve", "file-delete"]
    with gateway(use(*calls), say("No.")) as model:
        outcome = host.task(model.url, "--session-id", "s", *wide, policy="workspace")
        answers = [answer.text for answer in model.results()]
    assert outcome.code == 4, outcome
    assert {named(answer) for answer in answers} == {"ApprovalRequired"}
    assert codes(outcome) == ["APPROVAL_REQUIRED"] * 3
    denied = outcome.result["deniedApprovals"]
    assert [row["replay"]["approve"] for row in denied] == ["run_script", "write_file", "delete_file"]
    assert all("command" in row["replay"] and "request" in row["replay"] for row in denied)
    assert "--approve run_script gives it in advance" in answers[0]
    assert (host.workspace / "old").exists()
    assert not (host.workspace / "new").exists()


@pytest.mark.slow
def test_a_denied_call_is_replayed_by_its_name_or_its_id(host: Host) -> None:
    scripts(host, a="import sys; print('ran', *sys.argv[1:])")
    enable(host, *GUARDED)
    calls = use(script("a", "one"), script("a", "two"), call("write_file", path="new", content="x"))
    with gateway(calls, say("No."), say("unused"), say("Now."), say("unused"), say("Then.")) as model:
        first = host.task(model.url, "--session-id", "s")
        one = first.result["deniedApprovals"][0]["replay"]["id"]
        everything = host.resume("s", "--approve-all", "--gateway", model.url)
        assert everything.code == 4, everything
        assert model.count == 2  # nothing was approved, and so nothing runs
        second = host.resume("s", "--approve", one, "--gateway", model.url)
        assert [json.loads(answer.text)["stdout"] for answer in model.results()] == ["ran one\n"]
        third = host.resume("s", "--approve", "run_script", "--approve", "write_file", "--gateway", model.url)
        assert third.code == 0, (second, third)
        two, write = [answer.text for answer in model.results()]
    assert json.loads(two)["stdout"] == "ran two\n"
    assert json.loads(write)["bytes_written"] == 1
    assert (host.workspace / "new").read_text() == "x"


@pytest.mark.slow
def test_a_script_that_has_changed_is_not_what_was_asked_about(host: Host) -> None:
    at = scripts(host, a="print('asked')")
    enable(host, "run_script")
    with gateway(use(script("a")), say("No."), say("unused"), say("Still no.")) as model:
        first = host.task(model.url, "--session-id", "s")
        (at / "scripts" / "a.py").write_text("open('changed', 'w'); print('changed')")
        replay = first.result["deniedApprovals"][0]["replay"]["id"]
        assert host.resume("s", "--approve", replay, "--gateway", model.url).code == 4
        (answer,) = model.results()
    assert named(answer.text) == "ApprovalRequired"
    assert "when that was asked" in answer.text


def person(host: Host, model: Gateway, word: str) -> Outcome:
    host.policy(grants={"Shell.Exec": {}})
    arguments = [word, "0", "Do it.", model.url, str(host.root / "policy.json")]
    return host.start(*arguments, program="tests.support.person").finish()


def asked(host: Host) -> list[dict[str, Any]]:
    return [event["payload"] for event in host.event_log("s") if event["eventType"] == "approval_requested"]


@pytest.mark.slow
@pytest.mark.parametrize(("word", "questions"), [("once", 4), ("task", 3), ("session", 3)])
def test_how_far_an_approval_reaches(host: Host, word: str, questions: int) -> None:
    """Over the same script with the same arguments, as it is."""
    at = scripts(host, a="import sys; print(*sys.argv[1:])")
    change = "import sys; open(sys.argv[1], 'a').write('\\nprint(2)')"
    (at / "scripts" / "change.py").write_text(change)
    enable(host, "run_script")
    mine = str(at / "scripts" / "a.py")
    turns = [use(one) for one in (script("a"), script("a"), script("change", mine), script("a"))]
    with gateway(*turns, say("Done.")) as model:
        outcome = person(host, model, word)
        assert codes(outcome) == [None] * 4
        (last,) = model.results()
    assert json.loads(last.text)["stdout"] == "\n2\n"
    found = asked(host)
    assert len(found) == questions
    assert (found[0]["riskLevel"], found[0]["details"]["skill"]) == ("medium", "s")
    assert found[0]["details"]["scriptSha256"] == hashlib.sha256(b"import sys; print(*sys.argv[1:])").hexdigest()
    assert found[0]["actionSummary"].startswith("Run: python3 ")


@pytest.mark.slow
def test_errors_have_sks_names_for_the_model_and_the_houses_codes_elsewhere(host: Host) -> None:
    at = scripts(host, fails="import sys; sys.exit(3)", hangs="import time; time.sleep(60)")
    (at / "scripts" / "out.py").symlink_to("/etc/hostname")
    enable(host, "run_script", more="script_timeout_s = 3\n")
    (host.workspace / "large").write_bytes(b"x" * 2_000_001)
    calls = [
        (call("delete_file", path="large"), "ToolNotAllowed", "CAPABILITY_DENIED"),
        (script("fails"), "ExitNonZero", "TOOL_EXECUTION_FAILED"),
        (script("hangs"), "Timeout", "TOOL_EXECUTION_TIMEOUT"),
        (script("out"), "PathTraversalBlocked", "CAPABILITY_DENIED"),
        (script("../../x"), "PathTraversalBlocked", "CAPABILITY_DENIED"),
        (call("read_file", path="/etc/passwd"), "PathTraversalBlocked", "CAPABILITY_DENIED"),
        (call("read_file", path="large"), "FileTooLarge", "FILE_TOO_LARGE"),
        (call("read_file", path="missing"), "IOError", "FILE_NOT_FOUND"),
        (script("missing"), "IOError", "FILE_NOT_FOUND"),
    ]
    with gateway(use(*(one for one, *_ in calls)), say("Done.")) as model:
        outcome = host.task(model.url, "--approve", "run_script", policy="workspace")
        answers = [answer.text for answer in model.results()]
    assert outcome.code == 0, outcome
    assert [named(answer) for answer in answers] == [name for _, name, _ in calls]
    assert codes(outcome) == [code for *_, code in calls]
    assert value_of(answers[1])["exit_code"] == outcome.result["toolCalls"][1]["exitCode"] == 3
    assert value_of(answers[2])["timeout"] is True


def test_a_denial_by_a_person_has_its_name(host: Host) -> None:
    scripts(host, a="print(1)")
    enable(host, "run_script")
    with gateway(use(script("a")), say("Done.")) as model:
        person(host, model, "no")
        (answer,) = model.results()
    assert named(answer.text) == "ApprovalDenied"


def test_what_is_long_is_stored_and_its_hash_is_in_the_answer_and_the_record(host: Host) -> None:
    scripts(host, a="print('line ' * 10_000 + 'end')")
    enable(host, "run_script")
    (host.workspace / "long.txt").write_text("word " * 5000)
    turns = [use(script("a"), call("read_file", path="long.txt")), say("Done.")]
    with gateway(*turns) as model:
        assert host.task(model.url, "--session-id", "s", "--approve", "run_script").code == 0
        ran, read = [json.loads(answer.text) for answer in model.results()]
    assert (ran["stdout_truncated"], read["truncated"], read["next_offset"]) == (True, True, 12_000)
    kept = host.records("s")
    whole = (kept / ran["stdout_ref"]).read_bytes()
    assert whole == b"line " * 10_000 + b"end\n"
    assert hashlib.sha256(whole).hexdigest() == ran["stdout_sha256"]
    assert (kept / read["storage_ref"]).read_text() == "word " * 5000
    assert hashlib.sha256(b"word " * 5000).hexdigest() == read["sha256"]
    done = [event["payload"] for event in host.event_log("s") if event["eventType"] == "tool_completed"]
    stored = {ref: sha for one in done for ref, sha in one["storedSha256"].items()}
    assert stored == {ran["stdout_ref"]: ran["stdout_sha256"], read["storage_ref"]: read["sha256"]}


@pytest.mark.slow
def test_no_more_scripts_run_in_a_task_than_are_allowed(host: Host) -> None:
    """All at once, and behind a crash; the next task has its own."""
    scripts(host, a="import sys; open(sys.argv[1], 'a').write('x')")
    enable(host, "run_script", more="max_script_runs = 3\n")
    log = str(host.workspace / "log")
    run = script("a", log)
    turns = [use(run), use(run, run, run, run), say("Done."), use(run), say("Again.")]
    with gateway(*turns) as model:
        options = ["--gateway", model.url, "--approve", "run_script"]
        start = ["run", "Do it.", "--session-id", "s", "--policy", "full", *options]
        # 1 task, 2 turn, 3 approval, 4 start, 5 result, 6 commit
        ended = host.start("--after-record", "6", *start, program="agent_host.faults.crash").finish()
        assert ended.code == KILLED
        outcome = host.resume("s", *options)
        assert outcome.code == 0, outcome
        assert codes(outcome) == [None] * 3 + ["CAPABILITY_DENIED"] * 2
        assert (host.workspace / "log").read_text() == "xxx"
        again = host.run("resume", "s", "Once more.", "--output", "json", *options)
    assert codes(again) == [None]
    assert (host.workspace / "log").read_text() == "xxxx"


@pytest.mark.slow
def test_what_a_script_leaves_in_its_directory_goes_with_the_session(host: Host) -> None:
    scripts(host, a="import os; os.makedirs('d/e'); open('d/e/f', 'w').write('x')")
    enable(host, "run_script")
    with gateway(use(script("a")), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "s", "--approve", "run_script").code == 0
        (answer,) = [json.loads(answer.text) for answer in model.results()]
    (left,) = (host.records("s") / "sandbox").iterdir()
    assert (answer["sandbox"], answer["files"]) == (str(left), ["d"])
    assert (left / "d" / "e" / "f").read_text() == "x"
    assert host.run("sessions", "--prune", "--max-size", "1").code == 0
    assert not host.records("s").exists()


# What policy says of it beforehand


def said(host: Host, *arguments: str) -> Any:
    outcome = host.run("policy", *arguments, "--output", "json")
    assert outcome.code == 0, outcome
    return json.loads(outcome.stdout)


@pytest.mark.slow
def test_policy_tools_says_who_keeps_each_tool(host: Host) -> None:
    public(in_workspace(host))
    enable(host, "run_script", "network_request", more='[tools]\ndisabled = ["grep"]\n')
    policy = host.policy(without=["File.Delete"])
    rows = {row["toolName"]: row for row in said(host, "tools", "--policy", str(policy))}
    kept = {name: row["keptBy"] for name, row in rows.items() if name in {*READING, *GUARDED}}
    assert kept == {
        "read_file": [], "list_dir": [], "grep": ["configuration"], "run_script": [],
        "write_file": ["configuration"], "delete_file": ["bundle", "configuration"], "network_request": ["bundle"],
    }  # fmt: skip
    assert (rows["run_script"]["requiresApproval"], rows["run_script"]["riskLevel"]) == (True, "medium")
    assert rows["write_file"]["riskLevel"] == "high"
    in_use = {row["toolName"]: row for row in said(host, "tools", "--policy", str(policy), "--skill", "pdf-forms")}
    assert in_use["list_dir"]["keptBy"] == ["skill"]
    assert in_use["grep"]["keptBy"] == ["configuration", "skill"]
    assert in_use["run_script"]["commands"] == ["python3 scripts/fill.py:*"]
    assert in_use["read_file"]["offered"]
    unknown = host.run("policy", "tools", "--skill", "none")
    assert (unknown.code, "there is no skill none; there are: pdf-forms" in unknown.stderr) == (2, True)


@pytest.mark.slow
def test_policy_check_knows_the_family(host: Host) -> None:
    scripts(host, a="print(1)")
    enable(host, "run_script")

    def check(tool: str, *more: str, **arguments: Any) -> tuple[str, str]:
        row = said(host, "check", tool, json.dumps(arguments), "--policy", "full", *more)
        return row["decision"], row["rule"]

    assert check("read_file", path="a") == ("ALLOWED", "capabilities[File.Read]")
    asks = check("run_script", skill="s", relative_path="scripts/a.py")
    assert asks == ("APPROVAL_REQUIRED", "builtin.guardedTools")
    assert check("run_script", skill="s", relative_path="../../x.py") == ("DENIED", "builtin.scriptPlaces")
    assert check("write_file", path="a", content="x") == ("DENIED", "skills.enabled_tools in the configuration")
    cases = [
        {"toolName": "run_script", "arguments": {"skill": "any", "relative_path": "scripts\\a.py"}, "os": "windows"},
        {"toolName": "run_script", "arguments": {"skill": "any", "relative_path": "scripts/a.py"},
         "facts": {"realPath": "/etc/a.py"}},
    ]  # fmt: skip
    lines = "".join(json.dumps(case) + "\n" for case in cases).encode()
    found = host.run("policy", "check", "--policy", "full", "--batch", "-", stdin=lines)
    decisions = [json.loads(line)["decision"] for line in found.stdout.splitlines()]
    assert decisions == ["APPROVAL_REQUIRED", "DENIED"], found


@pytest.mark.slow
def test_a_glob_of_hidden_names_that_means_nothing_is_refused(host: Host) -> None:
    enable(host, more='hidden_files = ["/"]\n')
    outcome = host.task("http://127.0.0.1:9")
    assert (outcome.code, "skills.hidden_files" in outcome.stderr) == (2, True), outcome
