"""`agent-host replay`: a recorded session run again (a regression test for bundles, prompts and upgrades)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import call, gateway, say, shell, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host, Outcome


@pytest.fixture
def copy(host: Host) -> Path:
    folder = host.root / "copy"
    folder.mkdir()
    return folder


def replay(host: Host, copy: Path, *options: str | Path) -> tuple[Outcome, dict[str, Any]]:
    outcome = host.run("replay", "one", "--workspace", copy, "--output", "json", *options)
    assert outcome.stdout, outcome.stderr
    return outcome, json.loads(outcome.stdout)


def test_the_same_calls_are_made_again_in_another_place(host: Host, copy: Path) -> None:
    path = str(host.workspace / "notes.txt")
    write, read = call("WriteFile", path=path, content="a\n"), call("ReadFile", path=path)
    broken = {"name": "ReadFile", "raw_arguments": "{"}
    paused = say("Let me see.", stop_reason="pause_turn")
    with gateway(use(write, text="Now."), paused, use(read, shell("cat notes.txt"), broken), say("Done.")) as model:
        assert host.task(model.url, "--session-id", "one").code == 0
    outcome, report = replay(host, copy)
    assert (outcome.code, report) == (0, {"calls": 3, "difference": None, "ended": None})
    assert (copy / "notes.txt").read_text() == "a\n"
    assert outcome.stderr == ""
    text = host.run("replay", "one", "--workspace", copy)
    assert (text.code, text.text) == (0, "3 calls, all as on record\n")
    for key in ("latest", "on"):
        assert host.run("replay", key, "--workspace", copy).text == text.text
        assert host.run("policy", "rejudge", key, "--policy", "full").text == "3 calls, 0 decided differently\n"
    assert [entry.name for entry in (host.state / "sessions").iterdir()] == ["one"], "it keeps no records of its own"


def test_another_policy_is_the_first_difference(host: Host, copy: Path) -> None:
    with gateway(use(shell("true")), use(call("WriteFile", path="x", content="y")), say("Done.")) as model:
        host.task(model.url, "--session-id", "one")
    policy = host.policy(without=["File.Write"])
    outcome, report = replay(host, copy, "--policy", policy)
    assert outcome.code == 1
    assert report["difference"] == {
        "call": 2, "toolName": "WriteFile", "what": "decision", "before": "ALLOWED", "now": "DENIED"
    }  # fmt: skip
    text = host.run("replay", "one", "--workspace", copy, "--policy", policy)
    assert "the first difference is call 2, WriteFile\n  decision: ALLOWED on record, DENIED now" in text.text
    assert not (copy / "x").exists()


def test_people_are_taken_from_the_record(host: Host, copy: Path) -> None:
    rules = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
    anywhere = {name: {"allowedPaths": ["${workspace}"]} for name in ("File.Read", "File.Write")}
    asks = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
    policy = host.policy(grants={**anywhere, **asks}, approvalRules=rules)
    with gateway(use(shell("echo ran >> effects")), say("Done.")) as model:
        host.task(model.url, "--session-id", "one", "--approve", "ask", policy=policy)
    outcome, report = replay(host, copy)
    assert (outcome.code, report["difference"]) == (0, None)
    assert (copy / "effects").read_text() == "ran\n"


def test_a_task_that_ends_otherwise_is_said(host: Host, copy: Path) -> None:
    with gateway(use(shell("true"), repeat=4), say("Done.")) as model:
        host.task(model.url, "--session-id", "one")
    (host.root / "user.toml").write_text("[host]\nmax_steps = 2\n")
    outcome, report = replay(host, copy)
    assert outcome.code == 1
    assert report["difference"] == {"call": 3, "toolName": "RunCommand", "what": "call", "before": "RunCommand",
                                    "now": None}  # fmt: skip
    assert report["ended"].startswith("max_steps_exceeded")


def test_several_tasks_follow_one_another(host: Host, copy: Path) -> None:
    with gateway(use(shell("echo one >> log")), say("Done."), use(shell("echo two >> log")), say("Done.")) as model:
        host.task(model.url, "--session-id", "one")
        again = host.run("resume", "one", "Go on.", "--gateway", model.url, "--output", "json")
        assert again.code == 0, again.stderr
    outcome, report = replay(host, copy)
    assert (outcome.code, report["calls"], report["difference"]) == (0, 2, None)
    assert (copy / "log").read_text() == "one\ntwo\n"


@pytest.mark.many_rows(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one"], "name the directory for that with --workspace"),
        (["nothing", "--workspace", "."], "there is no session nothing"),
        (["a/b", "--workspace", "."], "session id"),
        (["one", "--workspace", "missing"], "there is no such directory"),
    ],
)
def test_what_cannot_be_replayed(host: Host, arguments: list[str], said: str) -> None:
    with gateway(say("Done.")) as model:
        host.task(model.url, "--session-id", "one")
    outcome = host.run("replay", *arguments)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert said in outcome.error
