"""Sessions of `agent-host serve` that go on: after another process, and after a pause (AH 3.3, 8.6, 9.5)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.interaction.test_serve_stops import EFFECT, HANG, asked, effects, goes_on_in_another_process
from tests.support.process import bundle, eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Serve, Servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")


def test_a_resume_that_waits(servers: Servers) -> None:
    host = servers.host
    with gateway(HANG, say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        asked(model, client)
        client.done()
        serve.ended_well()
        again, other = servers.client(model.url)
        other.resume(client.session_id, autoContinue=False)
        assert other.ask("GetSessionState")["task"]["status"] == "TASK_RUNNING"
        open_task = other.refusal("StartTask", sessionId=client.session_id, taskId="b", prompt="x")
        assert open_task.what == (-32004, "TASK_ALREADY_RUNNING", True)
        assert model.count == 1
        other.resume(client.session_id)
        other.event("task_completed")
        assert other.resume(client.session_id)["resumedFromStep"] == 1  # nothing is left to go on with
        other.call("Shutdown")
        again.ended_well()
    assert host.checkpoints() == []


def test_a_task_that_is_cancelled_after_a_resume(servers: Servers) -> None:
    with gateway(HANG, say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        asked(model, client)
        client.done()
        serve.ended_well()
        again, other = servers.client(model.url)
        other.resume(client.session_id, autoContinue=False)
        other.ask("CancelTask", taskId="a")
        other.event("task_cancelled")
        other.task("b")
        other.event("task_completed")
        other.call("Shutdown")
        again.ended_well()


def test_a_session_is_resumed_by_one_process_only(servers: Servers) -> None:
    serve, client = servers.session("http://127.0.0.1:1")
    other_serve, other = servers.client("http://127.0.0.1:1")
    held = other.refusal("ResumeSession", sessionId=client.session_id)
    assert held.what == (-32031, "SESSION_HELD", True)
    client.done()
    serve.ended_well()
    other.resume(client.session_id)
    other.call("Shutdown")
    other_serve.ended_well()


def test_one_snapshot_with_its_journal_is_all_that_a_killed_session_leaves(servers: Servers) -> None:
    """AH 9.2, 9.4: the snapshot is as it was at `checkpointedAt`; with its journal it says where the session stands."""
    with gateway(use(EFFECT), HANG) as model:
        serve, client = servers.session(model.url)
        client.task()
        last = client.event("step_completed")
        eventually(lambda: model.count == 2, "a request that stays without an answer")
        serve.kill()
    name = client.session_id
    assert servers.host.checkpoints() == [f"{name}.journal", f"{name}.json", f"{name}.lock"]
    snapshot = json.loads((servers.host.state / "checkpoints" / f"{name}.json").read_bytes())
    assert (snapshot["checkpointVersion"], snapshot["sessionId"], snapshot["userId"]) == ("1.0", name, "u")
    assert snapshot["checkpointedAt"] < last["timestamp"]
    assert (snapshot["task"], len(snapshot["thread"])) == (None, 1)
    _, other = servers.client("http://127.0.0.1:1")
    task = other.call("GetSessionState", sessionId=name)["task"]
    assert task == {"taskId": "a", "status": "TASK_RUNNING", "stepCount": 1, "maxSteps": 40}


@pytest.mark.slow
def test_a_refused_resume_leaves_the_files_as_they_were(servers: Servers) -> None:
    """Whoever it is refused to, and however often; and then the session goes on where it was killed."""
    host = servers.host
    mine = host.policy(tenantId="t", userId="u")
    with gateway(use(EFFECT), HANG, say("Done.")) as model:
        serve, client = servers.session(model.url, policy=mine)
        client.task()
        client.event("step_completed")
        eventually(lambda: model.count == 2, "a request that stays without an answer")
        serve.kill()
        before = host.state_files()
        for change, code in (({"tenantId": "x"}, -32003), ({"userId": "x"}, -32003), ({"expires_in_s": -5}, -32003)):
            theirs = mine.with_name("theirs.json")
            names: dict[str, Any] = {"tenantId": "t", "userId": "u", **change}
            theirs.write_text(json.dumps(bundle(host.workspace, **names)))
            other_serve, other = servers.client(model.url, policy=theirs)
            for _ in range(2):
                assert other.refusal("ResumeSession", sessionId=client.session_id).code == code
            other.done()
            other_serve.ended_well()
            refused = host.resume(client.session_id, "--policy", theirs, "--gateway", model.url)
            assert (refused.code, host.state_files()) == (2, before), refused
        assert host.resume(client.session_id, "--workspace", host.root / "gone").code == 2
        again, other = servers.client(model.url, policy=mine)
        open_step = client.events[-1]["stepId"]
        for cursor in ("garbage", open_step, "a", "Do it."):
            error = other.refusal("ResumeSession", sessionId=client.session_id, checkpointCursor=cursor)
            assert error.what == (-32602, "INVALID_REQUEST", False)
            assert error.message.startswith(f"checkpointCursor {cursor!r} is not a completed step of session")
        assert host.state_files() == before
        (step,) = {event["stepId"] for event in client.events if event["eventType"] == "step_completed"}
        assert other.resume(client.session_id, checkpointCursor=step)["resumedFromStep"] == 1
        other.event("task_completed")
        assert other.refusal("ResumeSession", sessionId=client.session_id, checkpointCursor="x").code == -32602
        other.call("Shutdown")
        again.ended_well()
        ended = host.state_files()
        refused = host.run("resume", client.session_id, "And now?", "--policy", theirs, "--gateway", model.url)
        assert (refused.code, host.state_files()) == (2, ended), "an ended session is not opened again for them either"
    assert effects(host) == 1


def test_a_gateway_that_is_down_pauses_the_session(servers: Servers) -> None:
    """And a resume in the same process goes on."""
    with gateway(use(EFFECT), {"status": 503, "times": 4}, say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        assert client.event("session_paused")["payload"]["reason"] == "LLM_GATEWAY_ERROR"
        state = client.ask("GetSessionState")
        assert (state["sessionStatus"], state["task"]["stepCount"]) == ("SESSION_PAUSED", 1)
        paused = client.refusal("StartTask", sessionId=client.session_id, taskId="b", prompt="x")
        assert paused.what == (-32001, "SESSION_NOT_READY", False)
        assert client.resume(client.session_id)["incompleteTask"]["stepCount"] == 1
        client.event("task_completed")
        assert client.ask("GetSessionState")["sessionStatus"] == "SESSION_RUNNING"
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == 1


def paused(servers: Servers, model: Gateway) -> tuple[Serve, Client]:
    serve, client = servers.session(model.url)
    client.task()
    client.event("session_paused")
    return serve, client


def test_shutdown_of_a_paused_session(servers: Servers) -> None:
    with gateway({"status": 503, "times": "always"}) as model:
        serve, client = paused(servers, model)
        assert client.call("Shutdown")["status"] == "shutdown"
        serve.ended_well(within_s=10)
    assert client.kinds[-1] == "session_cancelled"
    assert servers.host.checkpoints() == []


def test_a_paused_session_whose_task_is_cancelled(servers: Servers) -> None:
    with gateway({"status": 503, "times": 4}, say("Done.")) as model:
        serve, client = paused(servers, model)
        client.ask("CancelTask", taskId="a")
        cancelled = client.event("task_cancelled")
        client.resume(client.session_id)
        client.task("b")
        client.event("task_completed", after=cancelled["eventId"])
        client.call("Shutdown")
        serve.ended_well(within_s=10)
    assert servers.host.checkpoints() == []


@pytest.mark.slow
def test_shutdown_behind_the_cancelled_task_of_a_paused_session(servers: Servers) -> None:
    with gateway({"status": 503, "times": "always"}) as model:
        serve, client = paused(servers, model)
        client.ask("CancelTask", taskId="a")
        client.event("task_cancelled")
        assert client.call("Shutdown")["status"] == "shutdown"
        serve.ended_well(within_s=10)
    assert servers.host.checkpoints() == []


@pytest.mark.slow
def test_a_paused_session_goes_on_in_another_process(servers: Servers) -> None:
    with gateway({"status": 503, "times": 4}, say("Done.")) as model:
        serve, client = paused(servers, model)
        client.done()
        serve.ended_well(within_s=5)
        goes_on_in_another_process(servers, model, client.session_id, step=0)


@pytest.mark.slow
def test_a_policy_that_expires_in_the_middle(servers: Servers) -> None:
    host = servers.host
    policy = host.policy(expires_in_s=1.5)
    hold = shell("sleep 1.7; echo ran >> effects")
    with gateway(use(hold), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task()
        assert client.event("session_paused")["payload"]["reason"] == "POLICY_EXPIRED"
        expired = client.refusal("ResumeSession", sessionId=client.session_id)
        assert expired.what == (-32003, "POLICY_EXPIRED", False)
        host.policy(policyBundleVersion="fresh.1")
        client.resume(client.session_id)
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    assert effects(host) == 1
