"""A call that nobody was there to approve, approved after all: `agent-host resume ID --approve REPLAY_ID` (SK 4.3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import Serving
from tests.support.process import Host, bundle, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


MADE = shell("echo made >> effects")
OTHER = shell("echo other >> effects")
# The scripted gateway counts the assistant's messages: this place is taken by the turn that the host makes.
HOSTS_TURN = say("never asked for")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    rules = [{"approvalRuleId": "shell", "title": "Commands", "description": "Runs a command."}]
    made.policy(grants={"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "shell"}}, approvalRules=rules)
    yield made
    made.close()


def run(host: Host, url: str, *options: str) -> Any:
    return host.task(url, "--session-id", "s", *options, policy=host.root / "policy.json")


def effects(host: Host) -> list[str]:
    path = host.workspace / "effects"
    return path.read_text().split() if path.exists() else []


def replay_ids(result: dict[str, Any]) -> list[str]:
    return [row["replay"]["id"] for row in result["deniedApprovals"]]


def test_the_call_runs_once_and_the_task_goes_on(host: Host) -> None:
    with gateway(use(MADE, OTHER), say("Could not."), HOSTS_TURN, say("Done now.")) as model:
        first = run(host, model.url)
        assert (first.code, first.result["status"], effects(host)) == (4, "TASK_COMPLETED", [])
        made, other = replay_ids(first.result)
        first.names_once("resume s", f"--approve {made}")
        replay = first.result["deniedApprovals"][0]["replay"]
        assert replay["command"] == f"agent-host resume s --approve {made}"
        (answer,) = [e["payload"] for e in host.event_log("s") if e["eventType"] == "approval_resolved"][:1]
        assert answer["replay"] == replay
        assert replay["request"] == {"toolName": "RunCommand", "arguments": MADE["arguments"]}

        second = host.resume("s", "--approve", made)
        assert (second.code, second.result["text"], effects(host)) == (4, "Done now.", ["made"])
        assert (second.result["taskId"], replay_ids(second.result)) == (first.result["taskId"], [other])
        assert (second.result["resumedFromStep"], second.result["stepCount"]) == (2, 4)
        assert model.count == 3
        (answer,) = model.results()
        assert not answer.is_error
        told = json.dumps(model.bodies[-1]["messages"])
        assert "approved them now" in told
        assert MADE["arguments"]["command"] in json.dumps(model.bodies[-1]["messages"][-2])


def test_with_the_last_call_the_session_is_over(host: Host) -> None:
    with gateway(use(MADE, OTHER, MADE), say("Could not."), HOSTS_TURN, say("Done now.")) as model:
        ids = replay_ids(run(host, model.url).result)
        assert ids[0] == ids[2]
        done = host.resume("s", "--approve", ids[0], "--approve", ids[1])
    assert (done.code, sorted(effects(host)), done.result["deniedApprovals"]) == (0, ["made", "other"], [])
    assert host.checkpoints() == []
    kinds = [event["eventType"] for event in host.event_log("s")]
    assert kinds.count("session_paused") == 1
    assert kinds[-1] == "session_completed"


def test_until_then_a_resume_tells_the_end_again(host: Host) -> None:
    with gateway(use(MADE), say("Could not.")) as model:
        first = run(host, model.url)
        again = host.resume("s")
    assert (again.code, again.result["text"]) == (4, "Could not.")
    assert again.result["deniedApprovals"] == first.result["deniedApprovals"]
    assert "s.json" in host.checkpoints()
    rows = json.loads(host.run("sessions", "--output", "json").stdout)
    assert [(row["sessionId"], row["resumable"], row["status"]) for row in rows] == [("s", True, "SESSION_PAUSED")]


def test_without_an_id_it_comes_behind_what_has_work_to_do(host: Host) -> None:
    with gateway(use(MADE), say("Could not.")) as model, gateway({"status": 500, "times": "always"}) as away:
        host.configure(max_retries=0)
        (known,) = replay_ids(run(host, model.url).result)
        told = host.run("resume", "--output", "json")
        host.task(away.url, "--session-id", "paused")
        host.run("resume", "s")  # which makes it the newest
        assert host.run("resume", "--output", "json").result["sessionId"] == "paused"
    assert (told.code, told.result["sessionId"], replay_ids(told.result)) == (4, "s", [known])


@pytest.mark.slow
def test_pruning_takes_it_like_one_that_has_ended(host: Host) -> None:
    with gateway(use(MADE), say("Could not.")) as model:
        run(host, model.url)
        host.task(model.url, policy="read-only")
    pruned = json.loads(host.run("sessions", "--prune", "--max-count", "1", "--output", "json").stdout)
    assert [row["sessionId"] for row in pruned["pruned"]] == ["s"]
    assert host.checkpoints() == []


def test_ids_that_cannot_be_used(host: Host) -> None:
    with gateway(use(MADE), say("Could not.")) as model:
        (known,) = replay_ids(run(host, model.url).result)
    unknown = host.run("resume", "s", "--approve", "replay_0")
    assert unknown.code == 2
    unknown.names_once("--approve replay_0", known)
    refused = host.run("run", "x", "--gateway", "http://127.0.0.1:9", "--approve", known)
    assert refused.code == 2
    assert "`resume` runs it" in refused.error
    assert effects(host) == []


def test_policy_has_the_last_word(host: Host) -> None:
    with gateway(use(MADE), say("Could not."), HOSTS_TURN, say("Still not.")) as model:
        (known,) = replay_ids(run(host, model.url).result)
        blocked = bundle(host.workspace, grants={"Shell.Exec": {"blockedCommands": ["echo"]}})
        (host.root / "policy.json").write_text(json.dumps(blocked))
        done = host.resume("s", "--approve", known)
        (answer,) = model.results()
    assert (effects(host), done.result["text"]) == ([], "Still not.")
    assert answer.text.startswith("CAPABILITY_DENIED")


def test_a_link_that_leads_elsewhere_by_then_is_another_directory(host: Host) -> None:
    link = host.workspace / "link"
    for name in ("one", "two"):
        (host.workspace / name).mkdir()
    link.symlink_to("one")
    wanted = shell("echo made >> effects", cwd="link")
    with gateway(use(wanted), say("Could not."), HOSTS_TURN, say("Still not."), HOSTS_TURN, say("Done now.")) as model:
        (known,) = replay_ids(run(host, model.url).result)
        link.unlink()
        link.symlink_to("two")
        refused = host.resume("s", "--approve", known)
        (answer,) = model.results()
        assert (refused.code, replay_ids(refused.result), answer.is_error) == (4, [known], True)
        assert all(str(host.workspace / name) in answer.text for name in ("one", "two"))
        assert not list(host.workspace.glob("*/effects"))
        done = host.resume("s", "--approve", known)
    assert (done.code, done.result["text"]) == (0, "Done now.")
    assert [path.parent.name for path in host.workspace.glob("*/effects")].count("one") == 0
    assert (host.workspace / "two" / "effects").read_text() == "made\n"


def test_a_paused_session_can_be_helped_as_well(host: Host) -> None:
    down = {"status": 503}
    with gateway(use(MADE), *[down] * 4, complains=False) as model:
        paused = run(host, model.url)
        assert paused.code == 3
        (known,) = replay_ids(paused.result)
    with gateway(use(MADE), HOSTS_TURN, say("Done now.")) as model:
        done = host.resume("s", "--approve", known, "--gateway", model.url)
    assert (done.code, done.result["text"], effects(host)) == (0, "Done now.", ["made"])


@pytest.mark.slow
def test_a_task_that_was_to_ask_nobody(host: Host) -> None:
    with gateway(use(MADE), say("Could not."), HOSTS_TURN, say("Done now.")) as model:
        with Serving(host, {}, "--gateway", model.url, "--policy", str(host.root / "policy.json")) as serving:
            session_id = serving.create()["sessionId"]
            options = {"approvalMode": "never"}
            serving.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.", taskOptions=options)
            serving.event("task_completed")
            assert serving.hang_up() == 0
        first = host.resume(session_id)
        (known,) = replay_ids(first.result)
        second = host.resume(session_id, "--approve", known)
        (answer,) = model.results()
    assert not answer.is_error, answer
    assert (second.code, second.result["text"], effects(host)) == (0, "Done now.", ["made"])


@pytest.mark.slow
def test_stopped_before_it_ran_and_resumed_without_it(host: Host) -> None:
    """The thread ends with the model's own answer then; a gateway takes no request that ends so."""
    with gateway(use(MADE), say("Could not."), say("Not yet.")) as model:
        (known,) = replay_ids(run(host, model.url).result)
        crash = ["--after-record", "1"]  # the task is open again, and no more
        ended = host.start(*crash, "resume", "s", "--approve", known, program="agent_host.faults.crash").finish()
        assert ended.code == -9
        again = host.resume("s")
        assert model.bodies[-1]["messages"][-1]["role"] == "user"
    assert (again.code, again.result["text"], replay_ids(again.result)) == (4, "Not yet.", [known])


@pytest.mark.parametrize("option", [("--approve", "shell"), ("--approve", "RunCommand"), ("--approve-all",)])
def test_a_rule_a_tool_or_everything_approves_the_calls_of_a_task_that_is_over(
    host: Host, option: tuple[str, ...]
) -> None:
    with gateway(use(MADE, OTHER), say("Could not."), HOSTS_TURN, say("Done now.")) as model:
        assert run(host, model.url).code == 4
        second = host.resume("s", *option)
    assert (second.code, second.result["text"], sorted(effects(host))) == (0, "Done now.", ["made", "other"])


def test_what_names_none_of_the_calls_approves_none(host: Host) -> None:
    with gateway(use(MADE), say("Could not.")) as model:
        assert run(host, model.url).code == 4
        assert host.resume("s", "--approve", "File.Write").code == 4
    assert effects(host) == []
