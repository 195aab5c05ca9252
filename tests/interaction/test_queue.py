"""Tasks that wait for the one before them: `taskOptions.queue` of StartTask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.process import eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Host
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Servers

WAIT = shell("while [ ! -e go ]; do sleep 0.02; done")


def queued(client: Client, task: str, prompt: str = "Next.", **options: Any) -> str:
    reply = client.task(task, prompt, taskOptions={"queue": True, **options})
    assert reply["taskId"] == task
    return str(reply["status"])


def go(host: Host) -> None:
    (host.workspace / "go").touch()


def ended(client: Client) -> list[tuple[str, str]]:
    kinds = ("task_completed", "task_cancelled", "task_failed")
    return [(event["taskId"], event["eventType"]) for event in client.events if event["eventType"] in kinds]


def test_queued_tasks_follow_in_order(servers: Servers) -> None:
    with gateway(use(WAIT), say("One."), say("Two."), say("Three.")) as model:
        serve, client = servers.session(model.url)
        assert queued(client, "a", "First.") == "running"
        assert [queued(client, "b", "Second."), queued(client, "c", "Third.")] == ["queued", "queued"]
        assert [client.event("task_queued", position=n)["taskId"] for n in (1, 2)] == ["b", "c"]
        waiting = [{"taskId": "b", "prompt": "Second."}, {"taskId": "c", "prompt": "Third."}]
        assert client.ask("GetSessionState")["queuedTasks"] == waiting
        assert client.refusal("StartTask", sessionId=client.session_id, taskId="d", prompt="x").code == -32004
        again = {"sessionId": client.session_id, "taskId": "b", "prompt": "x", "taskOptions": {"queue": True}}
        assert client.refusal("StartTask", **again).code == -32602
        go(servers.host)
        eventually(lambda: len(ended(client)) == 3, "three ends")
        assert ended(client) == [("a", "task_completed"), ("b", "task_completed"), ("c", "task_completed")]
        prompts = [str(body["messages"][-1]["content"]) for body in model.bodies[2:]]
        assert ["Second." in prompts[0], "Third." in prompts[1]] == [True, True]
        assert "queuedTasks" not in client.ask("GetSessionState")
        client.call("Shutdown")
        serve.ended_well()


def test_a_task_that_waits_can_be_cancelled(servers: Servers) -> None:
    with gateway(use(WAIT), say("One."), say("Three.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        queued(client, "b")
        queued(client, "c")
        client.call("CancelTask", sessionId=client.session_id, taskId="b")
        assert client.event("task_cancelled")["taskId"] == "b"
        go(servers.host)
        eventually(lambda: len(ended(client)) == 3, "three ends")
        assert ended(client) == [("b", "task_cancelled"), ("a", "task_completed"), ("c", "task_completed")]
        client.call("Shutdown")
        serve.ended_well()


def test_sixteen_may_wait(servers: Servers) -> None:
    with gateway(use(WAIT), say("One.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        assert {queued(client, f"q{number}") for number in range(16)} == {"queued"}
        more = {"sessionId": client.session_id, "taskId": "q16", "prompt": "x", "taskOptions": {"queue": True}}
        assert "16" in client.refusal("StartTask", **more).message
        go(servers.host)
        client.call("Shutdown")
        serve.ended_well()


def test_what_waits_outlives_a_kill(servers: Servers) -> None:
    with gateway(use(WAIT), say("One."), say("Two."), say("Three.")) as model:
        serve, client = servers.session(model.url)
        session_id = client.session_id
        client.task("a")
        queued(client, "b", "Second.", maxSteps=7)
        queued(client, "c", "Third.")
        serve.kill()
        go(servers.host)
        serve, client = servers.client(model.url)
        reply = client.resume(session_id)
        assert reply["queuedTasks"] == [{"taskId": "b", "prompt": "Second."}, {"taskId": "c", "prompt": "Third."}]
        eventually(lambda: len(ended(client)) == 3, "three ends")
        assert ended(client) == [("a", "task_completed"), ("b", "task_completed"), ("c", "task_completed")]
        starts = [event for event in client.events if event["eventType"] == "task_started"]
        assert [(event["taskId"], event["payload"]["maxSteps"]) for event in starts] == [("b", 7), ("c", 40)]
        client.call("Shutdown")
        serve.ended_well()


def test_the_command_line_goes_on_with_what_waits(servers: Servers) -> None:
    with gateway(use(WAIT), say("One."), say("Two.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        queued(client, "b")
        serve.kill()
        go(servers.host)
        outcome = servers.host.resume(client.session_id)
    assert (outcome.code, outcome.result["taskId"], outcome.result["text"]) == (0, "b", "Two.")
    assert servers.host.checkpoints() == []


def test_a_clean_end_cancels_what_waits(servers: Servers) -> None:
    with gateway(use(WAIT), say("One.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        queued(client, "b")
        go(servers.host)
        client.call("Shutdown")
        serve.ended_well()
    log = servers.host.event_log(client.session_id)
    assert ("b", "task_cancelled") in [(event.get("taskId"), event["eventType"]) for event in log]
    assert "b" not in [event.get("taskId") for event in log if event["eventType"] == "task_started"]


def test_what_waits_behind_a_paused_task_waits_for_its_resume(servers: Servers) -> None:
    with gateway(use(WAIT), {"status": 500, "times": 4}, say("One."), say("Two.")) as model:
        serve, client = servers.session(model.url)
        client.task("a")
        queued(client, "b")
        go(servers.host)
        paused = client.event("session_paused")
        assert client.ask("GetSessionState")["queuedTasks"] == [{"taskId": "b", "prompt": "Next."}]
        assert queued(client, "c") == "queued"
        client.ask("CancelTask", taskId="c")
        assert [event["taskId"] for event in client.events if event["eventType"] == "task_started"] == ["a"]
        client.resume(client.session_id)
        client.event("session_resumed", paused["eventId"])
        eventually(lambda: ("b", "task_completed") in ended(client), "the end of the queued task")
        assert ended(client) == [("c", "task_cancelled"), ("a", "task_completed"), ("b", "task_completed")]
        client.call("Shutdown")
        serve.ended_well()
