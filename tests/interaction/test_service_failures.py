"""Services that are away, slow or wrong, once a session is under way: the task goes on, and the end comes soon (AH 7.5,
10.4, 11)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.services import MockServices
from tests.support.backends import NOWHERE, Serving, impatient, resume, run, services_at
from tests.support.process import Host, bundle, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.process import Outcome, Turn

ASKS = {"requiresApproval": True, "approvalRuleId": "ask"}
RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
OBSERVERS = ("APPROVAL", "AUDIT", "TELEMETRY")
SOON_S = 20.0


def write(host: Host, name: str = "a.txt") -> dict[str, Any]:
    return call("WriteFile", path=str(host.workspace / name), content="one\n")


def task(host: Host, env: dict[str, str], turns: Sequence[Turn], policy: Path | None = None) -> Outcome:
    with gateway(*turns) as served:
        return run(host, served.url, env, "--policy", str(policy or host.policy()))


# --- the Workspace Service --------------------------------------------------------------------------------------------

WORKSPACE_FAULTS: dict[str, dict[str, Any]] = {
    "away": {"status": 503, "times": 99},
    "too large for it": {"status": 413, "times": 99},
    "an answer without a URI": {"status": 200, "body": {"artifactUri": 5}, "times": 99},
    "a hostile URI": {"status": 200, "body": {"artifactUri": "a\u001b[31m"}, "times": 99},
    "an empty URI": {"status": 200, "body": {"artifactUri": ""}, "times": 99},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKSPACE_FAULTS)
def test_an_artifact_that_is_not_stored_costs_its_uri(host: Host, kind: str) -> None:
    impatient(host)
    services = MockServices()
    with services.in_thread(), gateway(use(write(host)), say("done")) as served:
        services.fail("/workspaces/", **WORKSPACE_FAULTS[kind])
        outcome = run(host, served.url, services_at(services.url, "WORKSPACE"), "--policy", str(host.policy()))
        (answer,) = served.results()
    assert (outcome.code, outcome.stderr) == (0, "")
    assert (host.workspace / "a.txt").read_text() == "one\n"
    assert not answer.is_error
    events = host.event_log(outcome.result["sessionId"])
    failed = [event["payload"]["artifactName"] for event in events if event["eventType"] == "artifact_upload_failed"]
    assert len(failed) == 2
    assert failed[0].endswith(".diff")
    assert failed[1] == "session_history.json"
    (done,) = (event["payload"] for event in events if event["eventType"] == "tool_completed")
    assert "artifactUris" not in done


@pytest.mark.slow
def test_a_workspace_service_that_never_answers_is_asked_for_one_artifact_at_a_time(host: Host) -> None:
    impatient(host, timeout_s=120.0)
    services = MockServices()
    turns = [use(write(host, f"{number}.txt")) for number in range(5)]
    with services.in_thread():
        services.hang("/workspaces/")
        outcome = task(host, services_at(services.url, "WORKSPACE"), [*turns, say("done")])
    assert outcome.code == 0
    assert [request.body["artifactType"] for request in services.requests] == ["file_diff"]
    missing = [one["artifactType"] for one in outcome.result["notUploaded"]]
    assert missing == ["file_diff"] * 5 + ["session_history"]


@pytest.mark.slow
def test_a_shutdown_does_not_wait_for_a_workspace_service_that_never_answers(host: Host) -> None:
    impatient(host, timeout_s=60.0)
    services = MockServices()
    with (
        services.in_thread(),
        gateway(use(write(host)), say("done")) as served,
        Serving(
            host,
            services_at(services.url, "WORKSPACE"),
            *("--gateway", served.url, "--policy", str(host.policy())),
        ) as client,
    ):
        services.hang("/workspaces/")
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        eventually(lambda: services.requests, "the upload")
        began = time.monotonic()
        client.result("Shutdown")
        assert client.end() == 0
        assert time.monotonic() - began < 12.0  # ten seconds are a desktop's patience; the rest is for this machine
    assert host.checkpoints() == []
    assert (host.workspace / "a.txt").read_text() == "one\n"


# --- those who only watch ---------------------------------------------------------------------------------------------


def steps(number: int) -> list[Turn]:
    return [*(use(shell("true")) for _ in range(number)), say("done")]


@pytest.mark.slow
def test_observers_that_never_answer_hold_up_nothing(host: Host) -> None:
    impatient(host, timeout_s=60.0)
    policy = host.policy(grants={"Shell.Exec": ASKS}, approvalRules=RULES)
    services = MockServices()
    with services.in_thread():
        env = services_at(services.url, *OBSERVERS)
        well = task(host, env, steps(8), policy)
        for path in ("/approvals", "/audit", "/telemetry"):
            services.hang(path)
        began = time.monotonic()
        hanging = task(host, env, steps(8), policy)
        took_s = time.monotonic() - began
    assert (well.code, well.stderr.count("did not reach")) == (4, 0)
    assert hanging.code == 4
    assert hanging.result["durationMs"] < 2 * well.result["durationMs"] + 3000
    assert took_s < SOON_S
    for service, least in (("approval", 8), ("audit", 10), ("telemetry", 10)):
        line = hanging.names_once("did not reach", f"the {service} service ({services.url})")
        assert int(line.split()[1]) >= least


@pytest.mark.slow
def test_observers_that_are_not_there(host: Host) -> None:
    impatient(host)
    began = time.monotonic()
    outcome = task(host, services_at(NOWHERE, *OBSERVERS), steps(2))
    assert outcome.code == 0
    assert time.monotonic() - began < SOON_S
    outcome.names_once("did not reach", "the audit service")
    outcome.names_once("did not reach", "the telemetry service")


@pytest.mark.slow
def test_a_serving_process_says_what_was_not_delivered(host: Host) -> None:
    impatient(host)
    with (
        gateway(say("done")) as served,
        Serving(host, services_at(NOWHERE, "AUDIT"), "--gateway", served.url) as client,
    ):
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        client.event("task_completed")
        client.result("Shutdown")
        assert client.end() == 0
    assert client.stderr.count("did not reach the audit service") == 1


@pytest.mark.slow
def test_observers_that_come_back_get_all_of_it_once(host: Host) -> None:
    impatient(host)
    services = MockServices()
    policy = host.policy(grants={"Shell.Exec": ASKS}, approvalRules=RULES)
    with services.in_thread():
        for path in ("/approvals", "/audit", "/telemetry"):
            services.fail(path, times=2)
        outcome = task(host, services_at(services.url, *OBSERVERS), steps(2), policy)
    assert (outcome.code, "did not reach" in outcome.stderr) == (4, False)
    assert len(services.approvals) == 2
    for told in (services.audit_events, services.telemetry_events):
        numbers = [event["eventId"] for event in told]
        assert numbers == sorted(set(numbers))


@pytest.mark.slow
def test_a_session_service_that_never_answers_the_end(host: Host) -> None:
    impatient(host, timeout_s=60.0)
    services = MockServices(policy_bundle=bundle(host.workspace))
    with services.in_thread(), gateway(use(shell("touch up; while [ ! -e go ]; do sleep 0.02; done")), say("x")) as it:
        process = host.start("run", "Do it.", "--gateway", it.url, env=services_at(services.url))
        eventually((host.workspace / "up").exists, "the command")
        services.hang("/sessions/")
        began = time.monotonic()
        (host.workspace / "go").touch()
        assert process.finish().code == 0
        assert time.monotonic() - began < SOON_S
    assert host.checkpoints() == []


# --- a process that dies in between -----------------------------------------------------------------------------------


def test_an_upload_whose_answer_was_lost_with_the_process_is_not_doubled(host: Host) -> None:
    impatient(host, timeout_s=60.0)
    services = MockServices(policy_bundle=bundle(host.workspace, grants={"Workspace.Upload": {}}))
    upload = call("UploadArtifact", content="of the model", name="note.txt")
    with services.in_thread(), gateway(use(upload), say("done")) as served:
        env = services_at(services.url)
        services.lose_answers("/workspaces/")
        process = host.start("run", "Do it.", "--gateway", served.url, env=env)
        eventually(lambda: services.artifacts, "the upload")
        process.kill()
        outcome = resume(host, env, "--gateway", served.url)
    assert outcome.code == 0
    assert [one["status"] for one in outcome.result["toolCalls"]] == ["succeeded"]
    (stored,) = services.artifacts
    assert stored.data == b"of the model"
    assert len({one.headers["idempotency-key"] for one in services.requests if "note.txt" in str(one.body)}) == 1
    (history,) = services.histories.values()
    assert json.loads(history.data)[-1]["content"] == "done"


@pytest.mark.slow
def test_a_kill_after_any_record_loses_and_doubles_nothing_at_the_services(host: Host) -> None:
    impatient(host)
    granted = bundle(host.workspace, grants={"File.Write": ASKS}, approvalRules=RULES)
    killed = 0
    while True:
        services = MockServices(policy_bundle=granted)
        written = host.workspace / f"{killed}.txt"
        with services.in_thread(), gateway(use(write(host, written.name)), say("done")) as served:
            env = services_at(services.url)
            options = ("run", "Do it.", "--gateway", served.url, "--approve", "ask", "--output", "json")
            crash = ("--after-record", str(killed + 1))
            ended = host.start(*crash, *options, env=env, program="agent_host.faults.crash").finish()
            if ended.code == 0:
                break
            assert ended.code == -9
            assert host.checkpoints()
            outcome = resume(host, env, "--gateway", served.url, "--approve", "ask")
        (session,) = services.sessions.values()
        if session.cursors:
            assert outcome.code == 0, (killed, outcome.stderr)
            result = outcome.result
        else:  # the service knew already that it was over
            assert outcome.code == 1
            kept = host.records(session.session_id) / "result.json"
            assert f"the result is kept in {kept}" in outcome.error
            result = json.loads(kept.read_bytes())
        # A call that was about to start is not started again; the model is told so.
        done = [one.get("code") for one in result["toolCalls"]] != ["TOOL_INTERRUPTED"]
        assert written.exists() == done
        assert (session.status, session.reason) == ("cancelled", "completed")
        assert host.checkpoints() == []
        told = [(approval["decision"], approval["actionSummary"]) for approval in services.approvals]
        assert len(told) == 1, (killed, told)
        assert told[0][0] == "approved"
        assert written.name in told[0][1]
        assert len(services.artifacts) == done, killed
        assert json.loads(services.histories[session.session_id].data)[-1]["content"] == "done"
        killed += 1
    assert killed >= 6
