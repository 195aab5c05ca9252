"""`agent-host batch` as its users meet it: real sessions against a scripted gateway, workspaces, ends and crashes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import bundle, eventually, gateway, process_exists, say, shell, use

if sys.platform == "win32":
    pytest.skip("shell lines of POSIX systems", allow_module_level=True)

import resource

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Host, Outcome, Process

EFFECT = "echo effect >> effects"


def tasks(host: Host, *rows: dict[str, Any]) -> Path:
    """A file of tasks over `source`, a directory with one file."""
    source = host.root / "source"
    source.mkdir(exist_ok=True)
    (source / "file").write_text("text\n")
    path = host.root / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": "Do it.", "workspace": "source", **row}) + "\n" for row in rows))
    return path


def out(host: Host, *names: str) -> Path:
    return (host.root / "tasks.jsonl.out").joinpath(*names)


def rows(host: Host) -> dict[str, dict[str, Any]]:
    """The last row of each id."""
    found = map(json.loads, out(host, "results.jsonl").read_text().splitlines())
    return {row["id"]: row for row in found}


def run(host: Host, url: str, *options: str, policy: str = "full") -> Outcome:
    return host.run("batch", str(host.root / "tasks.jsonl"), "--gateway", url, "--policy", policy, *options)


def begin(host: Host, url: str, *options: str) -> Process:
    return host.start("batch", str(host.root / "tasks.jsonl"), "--gateway", url, "--policy", "full", *options)


def workspaces(host: Host) -> list[Path]:
    return sorted(path for path in out(host, "workspaces").glob("*") if not path.name.startswith("git-"))


def test_each_task_is_a_session_and_the_same_command_asks_nothing_again(host: Host) -> None:
    tasks(
        host,
        {"id": "one", "setup": "echo prepared > prepared", "check": "test -e effects && test -e prepared"},
        {"id": "two", "check": "test -e nothing"},
    )
    with gateway(use(shell(EFFECT)), say("Done.")) as model:
        outcome = run(host, model.url, "--output", "json", "--jobs", "2")
        assert (outcome.code, model.count) == (0, 4), outcome.stderr
        again = run(host, model.url)
        assert (again.code, model.count) == (0, 4)
        assert "two  check 1" in again.text
        assert "2 of 2 tasks completed; 1 checks passed, 1 failed" in again.text
    one, two = rows(host)["one"], rows(host)["two"]
    batch_id = json.loads(out(host, "batch.json").read_text())["batchId"]
    assert one["sessionId"].startswith(f"b-{batch_id}-")
    assert (one["status"], one["endedBy"], one["retryable"], one["exitCode"]) == ("TASK_COMPLETED", "model", False, 0)
    assert (one["setup"], one["check"], two["check"]) == ({"exitCode": 0}, {"exitCode": 0}, {"exitCode": 1})
    assert one["usage"]["inputTokens"] == 200
    assert "+effect" in out(host, one["patchFile"]).read_text()
    assert "prepared" not in out(host, one["patchFile"]).read_text(), "what the setup made is not the model's"
    predictions = [json.loads(line) for line in out(host, "predictions.jsonl").read_text().splitlines()]
    assert [row["instance_id"] for row in predictions] == ["one", "two"]
    assert predictions[0]["model_patch"] == out(host, one["patchFile"]).read_text()
    assert workspaces(host) == []
    assert not (host.root / "source" / "effects").exists()
    assert outcome.result["completed"] == 2
    assert one["sessionId"] in out(host, "report.html").read_text()


@pytest.mark.slow
def test_a_line_can_only_narrow(host: Host) -> None:
    narrow = host.policy()
    text = json.loads(narrow.read_text())
    text["capabilities"] = [one for one in text["capabilities"] if one["name"] != "Shell.Exec"]
    (host.root / "narrow.json").write_text(json.dumps(text))
    tasks(
        host,
        {"id": "narrow", "policy": "./narrow.json"},
        {"id": "wider", "policy": "full"},
        {"id": "steps", "limits": {"maxSteps": 1}},
    )
    with gateway(use(shell(EFFECT)), say("Done.")) as model:
        outcome = run(host, model.url, "--keep", "--max-steps", "5", policy="read-only")
        assert outcome.code == 1, outcome.stderr
    found = rows(host)
    assert (found["steps"]["reason"], found["steps"]["endedBy"]) == ("max_steps_exceeded", "limit")
    assert not any((path / "effects").exists() for path in workspaces(host))
    (host.root / "tasks.jsonl.out").rename(host.root / "first")
    with gateway(use(shell(EFFECT)), say("Done.")) as model:
        run(host, model.url, "--keep")
    written = {name: (out(host, "patches", f"{name}.patch").read_text() != "") for name in found}
    assert written == {"narrow": False, "wider": True, "steps": True}


@pytest.mark.slow
def test_a_lines_own_policy_decides_after_a_kill_too(host: Host) -> None:
    files = {"allowedPaths": ["${workspace}", str(host.root)]}
    grants = {"Shell.Exec": {"allowedCommands": ["echo", "sleep", "["]}, "File.Read": files, "File.Write": files}
    narrow = bundle(host.workspace, grants=grants)
    (host.root / "narrow.json").write_text(json.dumps(narrow))
    tasks(host, {"id": "narrow", "policy": "./narrow.json"}, {"id": "launch"})
    wait = "echo begun > begun; while [ ! -e ../../go ]; do sleep 0.02; done"
    with gateway(use(shell(wait)), use(shell("touch second")), say("Done.")) as model:
        batch = begin(host, model.url, "--jobs", "2", "--keep")
        eventually(lambda: sum((path / "begun").exists() for path in workspaces(host)) == 2, "both commands")
        batch.kill()
        batch.finish()
        out(host, "go").touch()
        outcome = run(host, model.url, "--keep")
        assert outcome.code == 0, outcome.stderr
    written = {name: "second" in out(host, "patches", f"{name}.patch").read_text() for name in rows(host)}
    assert written == {"narrow": False, "launch": True}


@pytest.mark.slow
def test_a_directory_that_holds_the_batch_and_its_sessions_is_copied_without_them(host: Host) -> None:
    tasks(host, {"id": "one", "workspace": "."}, {"id": "two", "workspace": "."})
    assert host.root.resolve() in host.state.resolve().parents, "the state lies in the workspace"
    with gateway(use(shell("ls > listed")), say("Done.")) as model:
        outcome = run(host, model.url, "--keep", "--jobs", "1")
        assert outcome.code == 0, outcome.stderr
        assert len(workspaces(host)) == 2
    for path in workspaces(host):
        names = (path / "listed").read_text().split()
        assert "tasks.jsonl" in names
        assert not {host.state.name, "tasks.jsonl.out"} & set(names)


@pytest.mark.slow
def test_options_of_a_run_hold_for_each_session(host: Host) -> None:
    tasks(host, {"id": "one"})
    form = host.root / "schema.json"
    form.write_text(json.dumps({"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}))
    with gateway(say('{"count": 3}'), say("Done.")) as model:
        outcome = run(host, model.url, "--schema", str(form), "--no-input")
        assert outcome.code == 0, outcome.stderr
    assert rows(host)["one"]["answer"] == {"count": 3}


@pytest.mark.slow
def test_setup_and_check_pass_the_policy(host: Host) -> None:
    tasks(
        host,
        {"id": "denied", "setup": "touch made"},
        {"id": "failed", "setup": "exit 3"},
        {"id": "checked", "check": "touch made"},
    )
    (host.root / "source" / "sub").mkdir()
    with gateway(say("Done.")) as model:
        outcome = run(host, model.url, "--retries", "1", "--keep", policy="read-only")
        assert outcome.code == 1, outcome.stderr
        assert model.count == 1, "a setup comes before the first call"
    found = rows(host)
    assert (found["denied"]["endedBy"], found["denied"]["retryable"]) == ("policy", False)
    assert found["failed"]["endedBy"] == "policy", "read-only runs no command"
    assert (found["checked"]["status"], found["checked"]["check"]["exitCode"]) == ("TASK_COMPLETED", None)
    assert not any((path / "made").exists() for path in workspaces(host))


@pytest.mark.slow
def test_a_failed_setup_is_no_failure_of_the_model(host: Host) -> None:
    tasks(host, {"id": "failed", "setup": "exit 3"}, {"id": "quoted", "setup": 'printf "%s" "${HOME:+a\\b}" > out'})
    with gateway(say("Done.")) as model:
        outcome = run(host, model.url, "--retries", "1", "--keep")
        assert (outcome.code, model.count) == (3, 1), outcome.stderr
    found = rows(host)["failed"]
    assert (found["reason"], found["endedBy"], found["attempts"]) == ("SETUP_FAILED", "infrastructure", 2)
    assert found["setup"] == {"exitCode": 3}
    assert [(path / "out").read_text() for path in workspaces(host) if (path / "out").exists()] == ["a\\b"]
    ids = [json.loads(line)["instance_id"] for line in out(host, "predictions.jsonl").read_text().splitlines()]
    assert ids == ["quoted"]


@pytest.mark.slow
def test_mistakes_run_nothing(host: Host) -> None:
    path = tasks(host, {"id": "one"}, {"id": "one"})
    with gateway(say("Done.")) as model:
        assert "line 2: id one is that of line 1 as well" in run(host, model.url).error
        tasks(host, {"id": "one", "policy": "nobody"})
        assert "nobody" in run(host, model.url).error
        tasks(host, {"id": "one"})
        assert "has no price" in run(host, model.url, "--max-cost", "1").error
        assert run(host, model.url, "--jobs", "0").code == 2
        assert not out(host).exists()
        assert model.count == 0
        assert run(host, model.url).code == 0
        tasks(host, {"id": "one", "prompt": "Another."})
        changed = run(host, model.url)
        assert (changed.code, model.count) == (2, 1)
        assert "id one: another prompt, workspace or policy than before" in changed.error
    assert host.run("batch", str(path)).code == 2


@pytest.mark.slow
def test_control_c_leaves_sessions_that_the_same_command_goes_on_with(host: Host) -> None:
    tasks(host, {"id": "one"}, {"id": "two"})
    wait = "echo begun >> begun; while [ ! -e ../../go ]; do sleep 0.02; done; " + EFFECT
    with gateway(use(shell(wait)), say("Done.")) as model:
        batch = begin(host, model.url, "--jobs", "2", "--keep")
        eventually(lambda: sum((path / "begun").exists() for path in workspaces(host)) == 2, "both commands")
        second = run(host, model.url)
        assert (second.code, "runs the batch" in second.error) == (75, True)
        batch.interrupt()
        batch.said("stopping: sessions finish their steps")
        out(host, "go").touch()
        assert batch.finish().code == 130
        assert rows(host) == {}
        assert run(host, model.url, "--keep").code == 0
    assert [(path / "effects").read_text() for path in workspaces(host)] == ["effect\n"] * 2
    assert [(path / "begun").read_text() for path in workspaces(host)] == ["begun\n"] * 2


@pytest.mark.slow
def test_a_batch_that_is_killed_leaves_no_session_that_goes_on(host: Host) -> None:
    tasks(host, {"id": "one"}, {"id": "two"})
    wait = "echo $$ > shell; while [ ! -e ../../go ]; do sleep 0.02; done; " + EFFECT
    with gateway(use(shell(wait)), use(shell("echo second >> effects")), say("Done.")) as model:
        batch = begin(host, model.url, "--jobs", "2", "--keep")
        eventually(lambda: sum((path / "shell").exists() for path in workspaces(host)) == 2, "both commands")
        shells = [path / "shell" for path in workspaces(host)]
        eventually(lambda: all(path.read_text().strip() for path in shells), "their numbers")
        batch.kill()
        batch.finish()
        out(host, "go").touch()
        eventually(lambda: not any(process_exists(int(path.read_text())) for path in shells), "the end of the commands")
        assert run(host, model.url, "--keep").code == 0
    assert [(path / "effects").read_text() for path in workspaces(host)] == ["effect\nsecond\n"] * 2
    assert {row["status"] for row in rows(host).values()} == {"TASK_COMPLETED"}


@pytest.mark.slow
def test_what_a_gateway_cannot_answer_is_tried_again_as_its_result_says(host: Host) -> None:
    host.configure(max_retries=0)
    tasks(host, {"id": "one"})
    with gateway({"status": 503}, {"status": 503}, say("Done.")) as model:
        outcome = run(host, model.url, "--retries", "1")
        assert outcome.code == 3, outcome.stderr
        row = rows(host)["one"]
        assert (row["reason"], row["endedBy"], row["retryable"]) == ("LLM_GATEWAY_ERROR", "infrastructure", True)
        assert row["attempts"] == 2
        assert out(host, "predictions.jsonl").read_text() == ""
        assert run(host, model.url).code == 0, "the same command takes it up"
    assert rows(host)["one"]["attempts"] == 3


PRICES = '[models."*"]\nprice_input = 10\nprice_output = 100\nprice_cache_read = 1\nprice_cache_write = 10\n'


@pytest.mark.slow
def test_what_asked_the_model_nothing_takes_nothing_of_the_spending_limit(host: Host) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(PRICES)
    tasks(host, {"id": "failed", "setup": "exit 3"}, {"id": "asks"})
    with gateway(say("Done.")) as model:
        outcome = run(host, model.url, "--max-cost", "0.5", "--jobs", "1", "--retries", "1", "--output", "json")
    assert (outcome.code, model.count) == (3, 1), outcome.stderr
    found = rows(host)
    assert (found["failed"]["reason"], found["failed"]["cost"]) == ("SETUP_FAILED", 0.0)
    assert found["asks"]["status"] == "TASK_COMPLETED"
    assert 0 < outcome.result["cost"] == found["asks"]["cost"] <= 0.5
    assert outcome.result["costCurrency"] == found["asks"]["costCurrency"]


@pytest.mark.slow
def test_a_session_goes_on_with_further_slices_of_what_the_batch_may_cost(host: Host) -> None:
    """The first slices do not even cover the first call; a task's own limit is its end."""
    with (host.root / "user.toml").open("a") as file:
        file.write(PRICES)
    tasks(host, {"id": "one", "check": "test -e effects"}, {"id": "own", "limits": {"maxCost": 0.001}})
    with gateway(use(shell(EFFECT)), say("Done.")) as model:
        outcome = run(host, model.url, "--max-cost", "1", "--jobs", "8", "--output", "json")
        assert (outcome.code, model.count) == (1, 2), outcome.stderr
    one, own = rows(host)["one"], rows(host)["own"]
    assert (one["status"], one["check"], one["attempts"] > 1) == ("TASK_COMPLETED", {"exitCode": 0}, True)
    assert (own["reason"], own["endedBy"], own["retryable"]) == ("LLM_BUDGET_EXCEEDED", "limit", False)


@pytest.mark.slow
def test_a_batch_that_was_killed_knows_what_its_sessions_have_cost(host: Host) -> None:
    with (host.root / "user.toml").open("a") as file:
        file.write(PRICES)
    tasks(host, {"id": "one"})
    wait = "echo begun > begun; while [ ! -e ../../go ]; do sleep 0.02; done"
    with gateway(use(shell(wait)), say("Done.")) as model:
        batch = begin(host, model.url, "--keep", "--max-cost", "1")
        eventually(lambda: any((path / "begun").exists() for path in workspaces(host)), "the command")
        batch.kill()
        batch.finish()
        out(host, "go").touch()
        outcome = run(host, model.url, "--keep", "--max-cost", "0.0001")
        assert (outcome.code, model.count) == (3, 1), "the first call has cost more than the new limit"
        assert rows(host)["one"]["reason"] == "SPENDING_LIMIT"
        assert run(host, model.url, "--keep", "--max-cost", "1").code == 0
    assert rows(host)["one"]["status"] == "TASK_COMPLETED"


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_no_failure_of_the_model_and_ends_no_other_task(host: Host) -> None:
    tasks(host, {"id": "one"}, {"id": "two"})
    out(host, "work").mkdir(parents=True)
    key = hashlib.sha256(b"one").hexdigest()[:16]
    blocked = out(host, "work", f"{key}.order.tmp")
    blocked.mkdir()
    with gateway(say("Done.")) as model:
        outcome = run(host, model.url, "--retries", "1")
        assert outcome.code == 3, outcome.stderr
        assert "Traceback" not in outcome.stderr
        found = rows(host)
        assert (found["one"]["reason"], found["one"]["endedBy"]) == ("DISK_FAILED", "infrastructure")
        assert (found["one"]["retryable"], found["two"]["status"]) == (True, "TASK_COMPLETED")
        blocked.rmdir()
        assert run(host, model.url).code == 0
    assert rows(host)["one"]["status"] == "TASK_COMPLETED"


@pytest.mark.longest
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a limit of a process that runs")
def test_many_sessions_whose_processes_and_batch_are_killed_at_random(host: Host) -> None:
    """No effect is done twice, none is forgotten, and each session ends and is reported: also where the gateway fails
    for a while, where it refuses a token that has expired, and where no file may grow as on a full disk."""
    count, chance = int(os.environ.get("AGENT_HOST_TEST_SESSIONS", "60")), random.Random(7)
    host.configure(max_retries=0)
    tasks(host, *({"id": f"t{number}"} for number in range(count)))
    effect = shell("echo effect >> effects", timeout=60)
    more = shell("sleep 0.1; echo more >> effects")
    options = ("--jobs", "6", "--keep", "--retries", "5")
    with (
        gateway(use(effect), use(more), say("Done.")) as model,
        gateway(*[{"status": 503, "times": "always"}, say("Never.")] * 3) as fails,
        gateway(*[{"status": 401, "times": "always"}, say("Never.")] * 3) as refuses,
    ):
        for other, reason in [(fails, "LLM_GATEWAY_ERROR"), (refuses, "UNAUTHORIZED")] * 2:
            batch = begin(host, model.url, *options)
            wanted = completed(host) + 5
            eventually(lambda: completed(host) >= wanted, "some ends")  # noqa: B023  it is called at once
            for lock in (host.state / "checkpoints").glob("b-*.lock"):
                if chance.random() < 0.5:
                    kill(lock)
            batch.kill()
            batch.finish()
            outcome = run(host, other.url, *options)
            assert (outcome.code, "nothing more was started" in outcome.stderr) == (3, True), outcome.stderr
            assert reason in {row["reason"] for row in rows(host).values()}
        batch = begin(host, model.url, *options)
        _, hard = resource.prlimit(batch.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(batch.pid, resource.RLIMIT_FSIZE, (4096, hard))
        outcome = batch.finish()
        assert outcome.code == 3, outcome.stderr
        assert "Traceback" not in outcome.stderr
        assert run(host, model.url, *options).code == 0
    found = rows(host)
    assert {row["status"] for row in found.values()} == {"TASK_COMPLETED"}
    assert len(found) == count
    for path in workspaces(host):
        words = (path / "effects").read_text().split()
        assert words in (["effect", "more"], ["effect"], ["more"], []), "an effect twice"
    whole = sum((path / "effects").exists() for path in workspaces(host))
    assert whole >= count * 0.8, "a command that was killed in the middle is not run again"


def completed(host: Host) -> int:
    """The number of tasks whose sessions have completed."""
    if not out(host, "results.jsonl").exists():
        return 0
    return sum(row["status"] == "TASK_COMPLETED" for row in rows(host).values())


def kill(lock: Path) -> None:
    try:
        os.kill(int(lock.read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        return
