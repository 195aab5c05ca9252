"""Uploads beside the session (AH 7.5, interface section 2): with a Workspace Service that hangs or is away, the model,
the client and the task go on, and what was not stored is told."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.testing.services import MockServices
from tests.support.backends import NOWHERE, Serving, impatient, resume, run, services_at
from tests.support.process import Host, bundle, call, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The service's own time limit is far above it, so that whatever waits for the service is found out.
pytestmark = pytest.mark.slow


SERVICE_S = 120.0
GUARD_S = 20.0


def write(host: Host, name: str = "a.txt") -> dict[str, Any]:
    return call("WriteFile", path=str(host.workspace / name), content="one\n")


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["eventType"] for event in events]


def reference(text: str) -> str:
    """The local reference that the model was told."""
    found = re.search(r"^\[storage_ref: (artifacts/art_[0-9a-f]+)\]$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def test_a_service_that_hangs_holds_up_neither_the_model_nor_the_client(host: Host) -> None:
    impatient(host, timeout_s=SERVICE_S)
    services = MockServices()
    began = time.monotonic()
    with (
        services.in_thread(),
        gateway(use(write(host)), say("one"), say("two")) as served,
        Serving(
            host,
            services_at(services.url, "WORKSPACE"),
            *("--gateway", served.url, "--policy", str(host.policy())),
        ) as client,
    ):
        services.hang("/workspaces/")
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t1", prompt="Do it.")
        client.event("task_completed")
        (answer,) = served.results()
        state = client.result("GetSessionState", sessionId=session_id)
        assert state["task"]["status"] == "TASK_COMPLETED"
        # What the state says is what StartTask does.
        client.result("StartTask", sessionId=session_id, taskId="t2", prompt="More.")
        client.event("task_completed", 2)
        kept = host.records(session_id) / reference(answer.text)
        assert b"+one" in kept.read_bytes()
        client.result("Shutdown")
        assert client.end() == 0
        told = client.events
    assert time.monotonic() - began < GUARD_S
    (done,) = (event["payload"] for event in told if event["eventType"] == "tool_completed")
    assert done["storageRefs"] == [reference(answer.text)]
    failed = [event["payload"] for event in told if event["eventType"] == "artifact_upload_failed"]
    assert [one["artifactName"].rpartition(".")[2] for one in failed] == ["diff", "json"]
    assert failed[0]["storageRef"] == reference(answer.text)
    assert failed[0]["toolCallId"] == done["toolCallId"]
    result = json.loads((host.records(session_id) / "result.json").read_bytes())
    assert [one["artifactName"] for one in result["notUploaded"]] == [failed[1]["artifactName"]]
    # The history stays on this machine, since the service did not take it.
    assert json.loads((host.records(session_id) / failed[1]["storageRef"]).read_bytes())[-1]["content"] == "two"


def test_the_address_follows_and_stands_in_the_history(host: Host) -> None:
    impatient(host)
    services = MockServices()
    with services.in_thread(), gateway(use(write(host)), say("done")) as served:
        outcome = run(host, served.url, services_at(services.url, "WORKSPACE"), "--policy", str(host.policy()))
        (answer,) = served.results()
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "notUploaded" not in outcome.result
    (stored,) = services.artifacts
    events = host.event_log(outcome.result["sessionId"])
    done, uploaded, history = (
        event["payload"] for event in events if event["eventType"] in ("tool_completed", "artifact_uploaded")
    )
    assert "artifactUris" not in done
    assert uploaded == {
        "artifactName": stored.fields["artifactName"],
        "artifactUri": stored.artifact_uri,
        "storageRef": reference(answer.text),
        "toolCallId": done["toolCallId"],
    }
    assert history["artifactName"] == "session_history.json"
    order = kinds(events)
    assert order.index("task_completed") < len(order) - 1 - order[::-1].index("artifact_uploaded")
    (kept,) = services.histories.values()
    (result,) = (message for message in json.loads(kept.data) if message["role"] == "tool")
    assert result["artifactUris"] == [stored.artifact_uri]
    assert (host.records(outcome.result["sessionId"]) / reference(answer.text)).read_bytes() == stored.data


def test_on_this_disk_the_address_is_there_at_once(host: Host) -> None:
    with gateway(use(write(host)), say("done")) as served:
        outcome = host.task(served.url, policy=host.policy())
        (answer,) = served.results()
    events = host.event_log(outcome.result["sessionId"])
    (done,) = (event["payload"] for event in events if event["eventType"] == "tool_completed")
    (uri,) = done["artifactUris"]
    assert uri.endswith(reference(answer.text))
    assert "notUploaded" not in outcome.result
    (result,) = (one for one in host.history(outcome.result["sessionId"]) if one["role"] == "tool")
    assert result["artifactUris"] == [uri]


def test_a_cancelled_task_is_over_while_the_service_hangs(host: Host) -> None:
    impatient(host, timeout_s=SERVICE_S)
    services = MockServices()
    upload = call("UploadArtifact", content="of the model", name="note.txt")
    policy = host.policy(grants={"Workspace.Upload": {}})
    with (
        services.in_thread(),
        gateway(use(upload), say("never all of it", chunk_delay_ms=60_000)) as served,
        Serving(
            host, services_at(services.url, "WORKSPACE"), "--gateway", served.url, "--policy", str(policy)
        ) as client,
    ):
        services.hang("/workspaces/")
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        client.event("llm_request_started", 2)
        eventually(lambda: services.requests, "the upload")
        began = time.monotonic()
        client.result("CancelTask", sessionId=session_id, taskId="t")
        client.event("task_cancelled")
        assert time.monotonic() - began < GUARD_S
        assert client.result("GetSessionState", sessionId=session_id)["task"]["status"] == "TASK_CANCELLED"
        (answer,) = served.results()
        assert not answer.is_error
        assert reference(answer.text)
        client.result("Shutdown")
        assert client.end() == 0


def test_what_was_not_uploaded_is_told_and_stands_in_the_result(host: Host) -> None:
    impatient(host)
    with gateway(use(write(host)), say("done")) as served:
        env = services_at(NOWHERE, "WORKSPACE")
        outcome = run(host, served.url, env, "--policy", str(host.policy()))
    assert outcome.code == 0
    diff, history = outcome.result["notUploaded"]
    assert (diff["artifactType"], history["artifactType"]) == ("file_diff", "session_history")
    assert diff["message"]
    records = host.records(outcome.result["sessionId"])
    assert b"+one" in (records / diff["storageRef"]).read_bytes()
    assert json.loads((records / history["storageRef"]).read_bytes())[-1]["content"] == "done"
    events = host.event_log(outcome.result["sessionId"])
    failed = [event["payload"] for event in events if event["eventType"] == "artifact_upload_failed"]
    assert [one["artifactName"] for one in failed] == [diff["artifactName"], history["artifactName"]]


def test_what_is_too_far_behind_is_given_up_in_order(host: Host) -> None:
    impatient(host, timeout_s=SERVICE_S, upload_max_pending_bytes=1024 * 1024)
    services = MockServices()
    large = [call("UploadArtifact", content=str(number) * 400_000, name=f"{number}.txt") for number in range(4)]
    policy = host.policy(grants={"Workspace.Upload": {}})
    with services.in_thread(), gateway(*map(use, large), say("done")) as served:
        services.hang("/workspaces/")
        outcome = run(host, served.url, services_at(services.url, "WORKSPACE"), "--policy", str(policy))
    assert [one["status"] for one in outcome.result["toolCalls"]] == ["succeeded"] * 4
    missing = {one["artifactName"]: one["message"] for one in outcome.result["notUploaded"]}
    assert missing.keys() == {"0.txt", "1.txt", "2.txt", "3.txt", "session_history.json"}
    assert "upload_max_pending_bytes" in missing["2.txt"]
    assert "upload_max_pending_bytes" in missing["3.txt"]
    assert "upload_max_pending_bytes" not in missing["1.txt"]


def test_an_upload_that_takes_too_long_makes_room_for_the_next(host: Host) -> None:
    impatient(host, timeout_s=SERVICE_S, upload_max_behind_s=0.5)
    services = MockServices()
    upload = call("UploadArtifact", content="of the model", name="note.txt")
    policy = host.policy(grants={"Workspace.Upload": {}})
    with (
        services.in_thread(),
        gateway(use(upload), say("done")) as served,
        Serving(
            host, services_at(services.url, "WORKSPACE"), "--gateway", served.url, "--policy", str(policy)
        ) as client,
    ):
        services.hang("/workspaces/")
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        failed = client.event("artifact_upload_failed")["payload"]
        assert failed["artifactName"] == "note.txt"
        assert "upload_max_behind_s" in failed["message"]
        client.event("artifact_upload_failed", 2)
        services.heal()
        client.result("Shutdown")
        assert client.end() == 0
    assert session_id in services.histories


@contextlib.contextmanager
def died_before_its_upload(host: Host) -> Iterator[tuple[MockServices, dict[str, str]]]:
    """A run that wrote a file and was killed in its second step, with the services and the environment that name them,
    which take uploads again. The last answer waits for a resume."""
    impatient(host, timeout_s=SERVICE_S)
    services = MockServices(policy_bundle=bundle(host.workspace))
    wait = shell("touch up; while [ ! -e go ]; do sleep 0.02; done")
    with services.in_thread(), gateway(use(write(host)), use(wait), say("done")) as served:
        env = services_at(services.url)
        services.hang("/workspaces/")
        process = host.start("run", "Do it.", "--gateway", served.url, "--output", "json", env=env)
        eventually((host.workspace / "up").exists, "the second step")
        process.kill()
        (host.workspace / "go").touch()
        services.heal()
        yield services, env


def test_what_a_dead_process_had_not_uploaded_is_uploaded_by_the_next(host: Host) -> None:
    with died_before_its_upload(host) as (services, env):
        outcome = resume(host, env)
    assert outcome.code == 0, outcome.stderr
    (stored,) = services.artifacts
    assert stored.fields["artifactType"] == "file_diff"
    assert "notUploaded" not in outcome.result
    (history,) = services.histories.values()
    written, _ = (message for message in json.loads(history.data) if message["role"] == "tool")
    assert written["artifactUris"] == [stored.artifact_uri]


def test_an_artifact_that_the_next_process_does_not_find_is_told(host: Host) -> None:
    with died_before_its_upload(host) as (services, env):
        (kept,) = (host.state / "sessions").glob("*/artifacts/art_*")
        kept.write_bytes(b"")  # as after a power loss
        outcome = resume(host, env)
    assert outcome.code == 0, outcome.stderr
    assert services.artifacts == ()
    (lost,) = outcome.result["notUploaded"]
    assert lost["artifactType"] == "file_diff"
    assert "damaged" in lost["message"]


@pytest.mark.parametrize("task", ["done", "cancelled"])
def test_the_client_is_told_what_observers_did_not_get(host: Host, task: str) -> None:
    impatient(host)
    turn = say("done") if task == "done" else say("never all of it", chunk_delay_ms=60_000)
    with (
        gateway(turn) as served,
        Serving(host, services_at(NOWHERE, "AUDIT", "TELEMETRY"), "--gateway", served.url) as client,
    ):
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        client.event("task_completed" if task == "done" else "llm_request_started")
        ended = client.result("Shutdown")
        assert client.end() == 0
    audit, telemetry = ended["undelivered"]
    assert "audit service" in audit["observer"]
    assert "telemetry service" in telemetry["observer"]
    assert audit["records"] >= 3
    assert client.stderr.splitlines() == [f"agent-host: {one['message']}" for one in (audit, telemetry)]


def test_a_client_is_told_of_a_loss_while_the_session_goes_on(host: Host) -> None:
    impatient(host)
    services = MockServices()
    policy = host.policy(
        grants={"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}},
        approvalRules=[{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}],
    )
    with (
        services.in_thread(),
        gateway(use(shell("true")), use(shell("true # again")), say("done")) as served,
        Serving(
            host,
            services_at(services.url, "APPROVAL"),
            *("--gateway", served.url, "--policy", str(policy)),
        ) as client,
    ):
        services.fail("/approvals", 400, times=99)
        session_id = client.create()["sessionId"]
        client.result("StartTask", sessionId=session_id, taskId="t", prompt="Do it.")
        first = client.event("approval_requested")["payload"]
        client.result("ApproveAction", approvalId=first["approvalId"], decision="approved")
        second = client.event("approval_requested", 2)["payload"]
        eventually(lambda: services.requests_to("/approvals"), "the refused decision")
        client.result("ApproveAction", approvalId=second["approvalId"], decision="approved")
        client.event("task_completed")
        client.result("Shutdown")
        assert client.end() == 0
        told = [event["undelivered"] for event in client.events if "undelivered" in event]
    ((loss,),) = told  # once within its interval, however much is lost
    assert "approval service" in loss["observer"]
    assert loss["records"] >= 1
