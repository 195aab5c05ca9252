"""A task is begun once, however its process is killed and however often it is asked for (interface section 1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.services import MockServices
from tests.support.backends import Serving, impatient, new_session, services_at
from tests.support.process import MODEL, Host, bundle, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Outcome

CALLS_OF_A_START = 26
"""Calls to the disk until the model is asked; a kill before one of them leaves a session or none."""
EFFECT = use(shell("echo done >> effects.log"))
ONCE = ("--session-id", "s", "--or-resume")


def rows(host: Host) -> list[dict[str, Any]]:
    found = json.loads(host.run("sessions", "--output", "json").stdout)
    assert isinstance(found, list)
    return found


def effects(host: Host) -> str:
    path = host.workspace / "effects.log"
    return path.read_text() if path.exists() else ""


def killed(host: Host, url: str, *plan: str) -> Outcome:
    """A run that dies as the plan says, or ends."""
    task = ("run", "Do it.", "--gateway", url, "--policy", "full", "--output", "json", "--session-id", "s")
    return host.start(*plan, *task, program="agent_host.faults.crash").finish()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, CALLS_OF_A_START + 1))
def test_what_is_listed_as_resumable_has_its_task(host: Host, number: int) -> None:
    with gateway(EFFECT, say("Done.")) as served:
        killed(host, served.url, "--before-call", str(number))
        for row in rows(host):
            assert row["prompt"] == "Do it."
            assert row["resumable"]
        again = host.task(served.url, *ONCE)
    assert again.code == 0
    assert again.result["text"] == "Done."
    assert effects(host) == "done\n"


def test_the_first_record_says_how_the_session_was_started(host: Host) -> None:
    policy = host.policy()
    with gateway(say("Done.")) as served:
        options = ("--session-id", "s", "--approve-all", "--approve", "RunCommand", "--max-steps", "7")
        plan = ("--after-record", "1")
        task = ("run", "Do it.", "--gateway", served.url, "--policy", policy, *options)
        host.start(*plan, *task, program="agent_host.faults.crash").finish()
    snapshot = (host.state / "checkpoints" / "s.json").read_text()
    options_kept = json.loads(snapshot)["resume"]["options"]
    assert options_kept["started"]["model"] == MODEL
    assert options_kept["started"]["policy"] == str(policy)
    assert len(options_kept["started"]["policyHash"]) == 64
    assert options_kept["started"]["toolset"] == ["desktop"]
    task_kept = json.loads(snapshot)["task"]
    assert (task_kept["prompt"], task_kept["maxSteps"]) == ("Do it.", 7)
    assert "approv" not in json.dumps(options_kept).lower()


def test_the_approvals_of_the_command_line_stand_in_the_command_to_resume(host: Host) -> None:
    approved = ("--approve", "shell-exec", "--approve-all")
    outcome = host.run("run", "Do it.", "--gateway", "http://127.0.0.1:9", "--session-id", "s", *approved)
    assert outcome.code == 3
    outcome.names_once("agent-host resume s --approve shell-exec --approve-all")


def test_a_run_that_is_repeated_shows_the_result_again(host: Host) -> None:
    with gateway(EFFECT, say("Done.")) as served:
        first = host.task(served.url, *ONCE)
        second = host.task(served.url, *ONCE)
    assert (first.code, second.code) == (0, 0)
    assert second.result == first.result
    assert effects(host) == "done\n"
    assert served.count == 2


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_run_that_is_repeated_shows_the_result_in_the_form_asked_for(host: Host, form: str) -> None:
    with gateway(EFFECT, say("Done.")) as served:
        first = host.task(served.url, *ONCE)
        second = host.run(
            "run", "Do it.", "--gateway", served.url, "--policy", "full", *ONCE, "--output", form,
        )  # fmt: skip
    assert second.code == 0
    assert "Done." in second.text
    if form == "jsonl":
        assert [json.loads(line) for line in second.text.splitlines()] == [first.result]
    assert served.count == 2


UNREADABLE = [b"", b"{", b"[]", b"null", b"\xff", b'{"status":"TASK_COMPLETED"}', b'{"status":7}']


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(
    "content", [UNREADABLE[0], *(pytest.param(one, marks=pytest.mark.slow) for one in UNREADABLE[1:])]
)
def test_a_session_whose_result_cannot_be_read_is_not_begun_again(host: Host, content: bytes, *, pruned: bool) -> None:
    with gateway(EFFECT, say("Done."), EFFECT, say("Done.")) as served:
        host.task(served.url, *ONCE)
        kept = host.records("s") / "result.json"
        if pruned:
            host.run("sessions", "--prune", "--max-size", "1")
            kept = host.state / "stubs" / "s.json"
        assert kept.exists()
        kept.write_bytes(content)
        outcome = host.task(served.url, *ONCE)
    assert outcome.code == 1
    assert "is damaged" in outcome.error
    assert effects(host) == "done\n"


def test_a_damaged_session_that_is_pruned_is_not_begun_again(host: Host) -> None:
    with gateway(EFFECT, say("Done.")) as served:
        killed(host, served.url, "--after-record", "5")
        assert {"s.json", "s.journal"} <= set(host.checkpoints())
        for name in host.checkpoints():
            (host.state / "checkpoints" / name).write_bytes(b"damaged")
        pruned = host.run("sessions", "--prune", "--resumable", "--max-size", "1")
        assert host.checkpoints() == [], pruned.error
        requests = served.count
        outcome = host.task(served.url, *ONCE)
    assert outcome.code == 2
    assert served.count == requests


def test_a_session_whose_result_could_not_be_read_is_pruned_and_not_begun_again(host: Host) -> None:
    with gateway(EFFECT, say("Done."), EFFECT, say("Done.")) as served:
        host.task(served.url, *ONCE)
        (host.records("s") / "result.json").write_bytes(b"{")
        host.run("sessions", "--prune", "--max-size", "1")
        assert not host.records("s").exists()
        outcome = host.task(served.url, *ONCE)
    assert outcome.code == 2
    assert effects(host) == "done\n"


def test_a_result_that_needed_an_approval_is_repeated_with_its_exit_code(host: Host) -> None:
    policy = host.policy(grants={"Shell.Exec": {"requiresApproval": True}})
    with gateway(EFFECT, say("Denied.")) as served:
        first = host.task(served.url, *ONCE, policy=policy)
        second = host.task(served.url, *ONCE, policy=policy)
    assert (first.code, second.code) == (4, 4)
    assert second.result["deniedApprovals"] == first.result["deniedApprovals"]
    assert effects(host) == ""


def test_a_run_that_is_repeated_goes_on_with_what_was_killed(host: Host) -> None:
    with gateway(EFFECT, say("Done.")) as served:
        killed(host, served.url, "--after-record", "4")
        again = host.task(served.url, *ONCE)
        told_again = host.task(served.url, *ONCE)
    assert (again.code, told_again.code) == (0, 0)
    assert effects(host) == "done\n"


def test_a_failed_result_is_repeated_as_one(host: Host) -> None:
    with gateway({"stop_reason": "refusal", "text": "No."}) as served:
        first = host.task(served.url, *ONCE)
        second = host.task(served.url, *ONCE)
    assert (first.code, second.code) == (1, 1)
    assert second.result == first.result


@pytest.mark.parametrize("ended", [True, False])
def test_another_prompt_or_policy_under_the_id_is_refused(host: Host, *, ended: bool) -> None:
    policy = host.policy()
    with gateway(EFFECT, say("Done.")) as served:
        if ended:
            host.task(served.url, *ONCE, policy=policy)
        else:
            host.start(
                "--after-record", "4", "run", "Do it.", "--gateway", served.url, "--policy", policy, *ONCE,
                program="agent_host.faults.crash",
            ).finish()  # fmt: skip
        other = host.run("run", "Do more.", "--gateway", served.url, "--policy", policy, *ONCE)
        assert other.code == 2
        assert "another prompt" in other.error
        policy.write_text(json.dumps(bundle(host.workspace, without=("File.Delete",))))
        other = host.run("run", "Do it.", "--gateway", served.url, "--policy", policy, *ONCE)
        assert other.code == 2
        assert "another policy" in other.error
        assert host.run("run", "Do it.", "--gateway", served.url, "--policy", "ci", *ONCE).code == 2
        if not ended:
            host.run("resume", "s", "--policy", policy)
    assert effects(host) == "done\n"


def test_a_pruned_session_leaves_its_result(host: Host) -> None:
    with gateway(EFFECT, say("Done.")) as served, gateway(say("Other.")) as other:
        first = host.task(served.url, *ONCE)
        host.task(other.url)
        pruned = host.run("sessions", "--prune", "--max-count", "1", "--output", "json")
        assert [row["sessionId"] for row in json.loads(pruned.stdout)["pruned"]] == ["s"]
        assert not host.records("s").exists()
        second = host.task(served.url, *ONCE)
    assert (second.code, second.result) == (0, first.result)
    assert effects(host) == "done\n"


def test_a_session_that_was_pruned_before_its_end_is_not_begun_again(host: Host) -> None:
    with gateway(EFFECT, say("Done.")) as served:
        killed(host, served.url, "--after-record", "4")
        host.run("sessions", "--prune", "--resumable", "--max-age", "1s")
        if "s.json" in host.checkpoints():  # used within the second
            host.run("sessions", "--prune", "--resumable", "--max-size", "1")
        assert host.checkpoints() == []
        outcome = host.task(served.url, *ONCE)
    assert outcome.code == 2
    assert "before it had ended" in outcome.error


def test_a_damaged_session_is_not_gone_on_with(host: Host) -> None:
    with gateway(EFFECT, say("Done.")) as served:
        killed(host, served.url, "--after-record", "5")
        for name in ("s.json", "s.journal"):
            path = host.state / "checkpoints" / name
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0x55
            path.write_bytes(content)
        for _ in range(2):
            outcome = host.task(served.url, *ONCE)
            assert outcome.code == 1
            assert "is damaged" in outcome.error
    assert served.count <= 2


def test_a_session_that_a_live_process_has(host: Host) -> None:
    with gateway(use(shell("echo begun; sleep 60")), say("Done.")) as served:
        process = host.start_task(served.url, "--session-id", "s", "--output", "jsonl")
        process.said("tool_output_chunk", on="stdout")
        for outcome in (
            host.task(served.url, *ONCE), host.task(served.url, "--session-id", "s"), host.resume("s"),
        ):  # fmt: skip
            assert outcome.code == 75
            assert str(process.pid) in outcome.error
        process.kill()
    assert served.count == 1


def test_the_id_stands_for_the_one_that_the_service_gave(host: Host) -> None:
    impatient(host)
    with MockServices().in_thread() as services, gateway(EFFECT, say("Done.")) as served:
        env = services_at(services, "SESSION")
        first = host.start(
            "run", "Do it.", "--gateway", served.url, "--policy", "full", "--output", "json", *ONCE, env=env
        ).finish()
        assert first.code == 0, first.stderr
        assert first.result["sessionId"] != "s"
        second = host.start(
            "run", "Do it.", "--gateway", served.url, "--policy", "full", "--output", "json", *ONCE, env=env
        ).finish()
        assert second.result == first.result
        plain = host.start("run", "Do it.", "--gateway", served.url, "--session-id", "s", env=env).finish()
        assert plain.code == 2
    assert effects(host) == "done\n"


@pytest.mark.many_rows(1)
@pytest.mark.parametrize("content", [b"{", b'{"sessionId":"../s"}', b'{"sessionId":7}'])
def test_a_record_of_the_service_s_id_that_cannot_be_read_begins_nothing(host: Host, content: bytes) -> None:
    impatient(host)
    with MockServices().in_thread() as services, gateway(EFFECT, say("Done."), EFFECT, say("Done.")) as served:
        env = services_at(services, "SESSION")
        task = ("run", "Do it.", "--gateway", served.url, "--policy", "full", "--output", "json", *ONCE)
        assert host.start(*task, env=env).finish().code == 0
        (host.state / "keys" / "s.json").write_bytes(content)
        for arguments in (task, task[:-1], ("resume", "s")):
            outcome = host.start(*arguments, env=env).finish()
            assert outcome.code == 1
            assert "s.json" in outcome.error
    assert effects(host) == "done\n"


def test_or_resume_needs_an_id(host: Host) -> None:
    outcome = host.run("run", "Do it.", "--gateway", "http://127.0.0.1:9", "--or-resume")
    assert outcome.code == 2
    assert "--session-id" in outcome.error


def test_resume_offers_what_is_listed_as_resumable(host: Host) -> None:
    """A session that a client began and gave no task has nothing to go on with; one that waits for approvals has."""
    policy = host.policy(grants={"Shell.Exec": {"requiresApproval": True}})
    with gateway(EFFECT, say("Denied.")) as served:
        with Serving(host, {}, "--gateway", served.url) as client:
            client.result("CreateSession", **new_session())
            assert client.hang_up() == 0
        assert [row["resumable"] for row in rows(host)] == [False]
        assert "no session to resume" in host.resume().error
        host.task(served.url, "--session-id", "s", policy=policy)
        assert {row["sessionId"] for row in rows(host) if row["resumable"]} == {"s"}
        outcome = host.resume()
    assert (outcome.code, outcome.result["sessionId"]) == (4, "s")
