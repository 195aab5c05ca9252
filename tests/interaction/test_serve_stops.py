"""How a task or a whole `agent-host serve` comes to its end before the model is done, and how the session goes on."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.process import eventually, gateway, process_exists, say, shell, use
from tests.support.rpc_client import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.process import Gateway, Host
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Serve, Servers

NO_TASK = (-32041, "NO_ACTIVE_TASK", False)
RULES = [{"approvalRuleId": "ask", "title": "Act", "description": "Does something."}]
ASKS = {"Shell.Exec": {"requiresApproval": True, "approvalRuleId": "ask"}}
EFFECT = shell("echo ran >> effects")
ENDLESS = shell("sleep 600 & echo $! > grandchild; echo $$ > child; wait", timeout=600)
STUBBORN = shell("trap '' TERM; echo $$ > child; while :; do sleep 0.05; done", timeout=600)
HELD = shell("touch waits; while [ ! -e go ]; do sleep 0.02; done; echo ran >> effects")
HANG = {"hang": True, "times": 1}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and a POSIX shell")


def effects(host: Host) -> int:
    path = host.workspace / "effects"
    return path.read_text().count("ran") if path.exists() else 0


def number_in(host: Host, name: str) -> int:
    """The process id that a command has written there."""
    path = host.workspace / name
    eventually(lambda: path.exists() and path.read_text().endswith("\n"), name)
    return int(path.read_text())


def endless(host: Host) -> list[int]:
    """The processes of ENDLESS, once they run."""
    return [number_in(host, "grandchild"), number_in(host, "child")]


def gone(pids: list[int]) -> None:
    eventually(lambda: not any(map(process_exists, pids)), "the end of the command's processes", within_s=10)


def phase(client: Client, status: str) -> None:
    """Until the task is there."""
    eventually(lambda: client.ask("GetSessionState")["task"]["status"] == status, status)


def asked(model: Gateway, client: Client) -> None:
    """Until the model has a request that it will not answer."""
    phase(client, "WAITING_FOR_LLM")
    eventually(lambda: model.count == 1, "a request")


# CancelTask


def test_cancel_in_the_middle_of_an_answer(servers: Servers) -> None:
    with gateway(HANG, say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        asked(model, client)
        assert client.refusal("CancelTask", sessionId=client.session_id, taskId="z").what == NO_TASK
        assert client.ask("CancelTask", taskId="a") == {"taskId": "a", "status": "cancelling"}
        cancelled = client.event("task_cancelled")
        assert client.ask("GetSessionState")["task"]["status"] == "TASK_CANCELLED"
        assert client.refusal("CancelTask", sessionId=client.session_id, taskId="a").what == NO_TASK
        client.task("b")
        client.event("task_completed", after=cancelled["eventId"])
        client.call("Shutdown")
        serve.ended_well()
    assert client.events[-1]["eventType"] == "session_completed"


def test_cancel_lets_a_tool_finish(servers: Servers) -> None:
    host = servers.host
    with gateway(use(HELD), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        eventually((host.workspace / "waits").exists, "the command")
        client.ask("CancelTask", taskId="a")
        client.ask("CancelTask", taskId="a")
        assert client.ask("GetSessionState")["task"]["status"] == "EXECUTING_TOOLS"
        running = client.refusal("StartTask", sessionId=client.session_id, taskId="b", prompt="x")
        assert running.what == (-32004, "TASK_ALREADY_RUNNING", True)
        (host.workspace / "go").touch()
        client.event("task_cancelled")
        assert (effects(host), model.count) == (1, 1)
        client.call("Shutdown")
        serve.ended_well()


@pytest.mark.slow
def test_force_ends_a_tool_with_all_that_it_started(servers: Servers) -> None:
    host = servers.host
    with gateway(use(ENDLESS), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        pids = endless(host)
        client.ask("CancelTask", taskId="a")
        client.ask("CancelTask", taskId="a", force=True)
        cancelled = client.event("task_cancelled")
        gone(pids)
        client.task("b")
        client.event("task_completed", after=cancelled["eventId"])
        assert "TOOL_INTERRUPTED" in json.dumps(model.bodies[-1]["messages"])
        client.call("Shutdown")
        serve.ended_well()


def test_cancel_in_the_middle_of_an_approval(servers: Servers) -> None:
    policy = servers.host.policy(grants=ASKS, approvalRules=RULES)
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task("a")
        question = client.event("approval_requested")["payload"]["approvalId"]
        client.ask("CancelTask", taskId="a")
        client.event("task_cancelled")
        assert client.call("ApproveAction", approvalId=question, decision="approved")["status"] == "not_found"
        state = client.ask("GetSessionState")
        assert (state["task"]["status"], state["pendingApprovals"]) == ("TASK_CANCELLED", [])
        client.call("Shutdown")
        serve.ended_well()
    assert effects(servers.host) == 0


# The process is told to end, or its client is gone


def close(serve: Serve, client: Client) -> None:
    client.done()


def terminate(serve: Serve, client: Client) -> None:
    serve.signal(signal.SIGTERM)


def refuses(client: Client) -> bool:
    """Whether the session takes no more requests: it is about to end."""
    try:
        client.ask("GetSessionState")
    except Refused as error:
        return error.what == (-32001, "SESSION_NOT_READY", False)
    return False


BOTH_ENDS = pytest.mark.parametrize("end", [close, terminate])


@BOTH_ENDS
def test_the_end_before_a_session(servers: Servers, end: Callable[[Serve, Client], None]) -> None:
    serve, client = servers.client("http://127.0.0.1:1")
    client.refusal("GetSessionState", sessionId="s")
    end(serve, client)
    serve.ended_well()
    assert servers.host.checkpoints() == []


@BOTH_ENDS
def test_the_end_in_the_middle_of_an_answer(servers: Servers, end: Callable[[Serve, Client], None]) -> None:
    with gateway(HANG, say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        asked(model, client)
        end(serve, client)
        serve.ended_well(within_s=5)
        goes_on_headless(servers.host, client.session_id)


@pytest.mark.slow
@BOTH_ENDS
def test_the_end_in_the_middle_of_a_tool(servers: Servers, end: Callable[[Serve, Client], None]) -> None:
    """The step is finished first."""
    host = servers.host
    with gateway(use(HELD), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        eventually((host.workspace / "waits").exists, "the command")
        end(serve, client)
        if end is terminate:
            eventually(lambda: refuses(client), "the process that knows of the signal")
        (host.workspace / "go").touch()
        serve.ended_well()
        assert model.count == 1
        told = [event for event in host.event_log(client.session_id) if event["eventType"] == "session_paused"]
        assert [event["payload"]["reason"] for event in told] == ["interrupted"]
        goes_on_in_another_process(servers, model, client.session_id, step=1)
    assert effects(host) == 1


@pytest.mark.slow
@BOTH_ENDS
def test_the_end_in_the_middle_of_an_approval(servers: Servers, end: Callable[[Serve, Client], None]) -> None:
    """It is asked again under the same id."""
    policy = servers.host.policy(grants=ASKS, approvalRules=RULES)
    with gateway(use(EFFECT), say("Done.")) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task()
        question = client.event("approval_requested")["payload"]
        end(serve, client)
        serve.ended_well(within_s=5)
        again, other = servers.client(model.url, policy=policy)
        told = other.resume(client.session_id)
        assert told["incompleteTask"] == {"taskId": "a", "prompt": "Do it.", "stepCount": 0, "maxSteps": 40}
        assert other.event("approval_requested")["payload"] == question
        assert (
            other.call("ApproveAction", approvalId=question["approvalId"], decision="approved")["status"] == "delivered"
        )
        other.event("task_completed")
        other.call("Shutdown")
        again.ended_well()
    assert effects(servers.host) == 1


@pytest.mark.slow
@BOTH_ENDS
def test_the_end_between_two_tasks(servers: Servers, end: Callable[[Serve, Client], None]) -> None:
    with gateway(say("One."), say("Two.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        client.event("task_completed")
        last = client.ask("GetEvents", sinceId=0)["latestId"]
        end(serve, client)
        serve.ended_well(within_s=5)
        again, other = servers.client(model.url)
        told = other.resume(client.session_id)
        assert "incompleteTask" not in told
        assert other.ask("GetEvents", sinceId=0)["gapDetected"]
        assert other.ask("GetEvents", sinceId=last)["latestId"] > last  # numbers go on behind a gap, and never back
        other.task("b")
        other.event("task_completed")
        assert "One." in json.dumps(model.bodies[-1]["messages"])
        other.call("Shutdown")
        again.ended_well()


@BOTH_ENDS
def test_the_end_of_a_session_without_a_task(servers: Servers, end: Callable[[Serve, Client], None]) -> None:
    with gateway(say("Done.")) as model:
        serve, client = servers.session(model.url)
        end(serve, client)
        serve.ended_well(within_s=5)
        again, other = servers.client(model.url)
        assert other.resume(client.session_id)["resumedFromStep"] == 0
        other.task()
        other.event("task_completed")
        other.call("Shutdown")
        again.ended_well()


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(servers: Servers) -> None:
    """The tool's processes with it; the session can still be resumed."""
    host = servers.host
    with gateway(use(ENDLESS), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        pids = endless(host)
        serve.signal(signal.SIGTERM)
        eventually(lambda: "error" in client.reply(client.send("GetSessionState", sessionId=client.session_id)), "end")
        serve.signal(signal.SIGTERM)
        serve.finish(within_s=10)
        gone(pids)
        goes_on_headless(host, client.session_id)
        assert "TOOL_INTERRUPTED" in json.dumps(model.bodies[-1]["messages"])


def goes_on_headless(host: Host, session_id: str) -> None:
    resumed = host.resume(session_id)
    assert (resumed.code, resumed.result["status"]) == (0, "TASK_COMPLETED")
    assert host.checkpoints() == []


def goes_on_in_another_process(servers: Servers, model: Gateway, session_id: str, *, step: int) -> None:
    serve, client = servers.client(model.url)
    told = client.resume(session_id)
    assert (told["resumedFromStep"], told["incompleteTask"]["stepCount"]) == (step, step)
    client.event("session_resumed")
    client.event("task_completed")
    client.call("Shutdown")
    serve.ended_well()
    assert servers.host.checkpoints() == []


# Shutdown


@pytest.mark.slow
def test_shutdown_in_the_middle_of_a_tool_that_does_not_end(servers: Servers) -> None:
    host = servers.host
    with gateway(use(ENDLESS)) as model:
        serve, client = servers.session(model.url)
        client.task()
        pids = endless(host)
        first, second = client.send("Shutdown", reason="enough"), client.send("Shutdown")
        for number in (first, second):
            assert client.reply(number)["result"] == {"status": "shutdown", "sessionId": client.session_id}
        serve.ended_well(within_s=10)
        gone(pids)
    assert client.kinds[-1] == "session_cancelled"
    assert "task_cancelled" in client.kinds
    assert host.checkpoints() == []
    assert "TOOL_INTERRUPTED" in json.dumps(host.history(client.session_id))


@pytest.mark.slow
def test_shutdown_records_a_tool_that_does_not_obey(servers: Servers) -> None:
    """The command ignores SIGTERM, and is killed long after the host has stopped waiting for it."""
    host = servers.host
    with gateway(use(STUBBORN)) as model:
        serve, client = servers.session(model.url)
        client.task()
        pids = [number_in(host, "child")]
        client.call("Shutdown", reason="enough")
        serve.ended_well(within_s=15)
        gone(pids)
    ends = [event for event in client.events if event["eventType"] in ("tool_completed", "task_cancelled")]
    assert [event["eventType"] for event in ends] == ["tool_completed", "task_cancelled"]
    assert "TOOL_INTERRUPTED" in json.dumps(ends[0])
    kept = [event["eventType"] for event in host.event_log(client.session_id)]
    assert kept.index("tool_completed") < kept.index("task_cancelled") < kept.index("session_cancelled")
    assert host.checkpoints() == []
    assert "TOOL_INTERRUPTED" in json.dumps(host.history(client.session_id))


@pytest.mark.slow
def test_shutdown_lets_a_short_tool_finish(servers: Servers) -> None:
    host = servers.host
    with gateway(use(shell("touch waits; sleep 0.5; echo ran >> effects"))) as model:
        serve, client = servers.session(model.url)
        client.task()
        eventually((host.workspace / "waits").exists, "the command")
        shutdown = client.send("Shutdown")
        client.done()
        serve.ended_well()
        assert client.reply(shutdown)["result"]["status"] == "shutdown"
    assert (effects(host), host.checkpoints()) == (1, [])


def test_shutdown_in_the_middle_of_an_approval(servers: Servers) -> None:
    policy = servers.host.policy(grants=ASKS, approvalRules=RULES)
    with gateway(use(EFFECT)) as model:
        serve, client = servers.session(model.url, policy=policy)
        client.task()
        client.event("approval_requested")
        client.call("Shutdown")
        serve.ended_well(within_s=5)
    assert (effects(servers.host), servers.host.checkpoints()) == (0, [])


@pytest.mark.slow
def test_a_signal_during_a_shutdown_lets_it_finish(servers: Servers) -> None:
    with gateway(use(ENDLESS)) as model:
        serve, client = servers.session(model.url)
        client.task()
        pids = endless(servers.host)
        shutdown = client.send("Shutdown")
        client.refusal("GetSessionState", sessionId=client.session_id)
        serve.signal(signal.SIGTERM)
        assert client.reply(shutdown)["result"]["status"] == "shutdown"
        serve.ended_well(within_s=10)
        gone(pids)
    assert client.kinds[-1] == "session_cancelled"
    assert servers.host.checkpoints() == []
