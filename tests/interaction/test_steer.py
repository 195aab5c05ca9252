"""SteerTask: what a person says while a task runs reaches the model before its next turn, once."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.interaction.test_serve_stops import HELD
from tests.support.process import eventually, gateway, say, shell, use

if TYPE_CHECKING:
    from tests.support.process import Gateway
    from tests.support.rpc_client import Client
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")

WORDS = "Use the other file instead."


def steer(client: Client, text: str = WORDS, task_id: str = "a") -> dict[str, object]:
    return client.ask("SteerTask", taskId=task_id, text=text)


def said(model: Gateway, request: int) -> int:
    """How often the words stand in a request."""
    return json.dumps(model.bodies[request]["messages"]).count(WORDS)


def test_what_is_said_while_a_tool_runs_is_read_with_its_result(servers: Servers) -> None:
    with gateway(use(HELD), use(shell("echo more")), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        eventually((servers.host.workspace / "waits").exists, "the command")
        assert steer(client) == {"taskId": "a", "status": "accepted"}
        assert client.event("task_steered")["payload"] == {"text": WORDS, "position": 1}
        (servers.host.workspace / "go").touch()
        client.event("task_completed")
        assert [said(model, number) for number in range(model.count)] == [0, 1, 1]
        gone = client.refusal("SteerTask", sessionId=client.session_id, taskId="a", text=WORDS)
        assert (gone.code, gone.name) == (-32041, "NO_ACTIVE_TASK")
        client.call("Shutdown")
        serve.ended_well()


@pytest.mark.slow
def test_a_task_that_is_done_takes_one_more_turn(servers: Servers) -> None:
    with gateway(say("Done.", delay_ms=1500), say("Now it is done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        eventually(lambda: model.count == 1, "the request")
        steer(client)
        client.event("task_completed")
        assert [said(model, number) for number in range(model.count)] == [0, 1]
        assert client.ask("GetTranscript", limit=100)["items"][-2]["text"] == "Now it is done."
        client.call("Shutdown")
        serve.ended_well()


def test_it_is_never_an_answer_to_a_question(servers: Servers) -> None:
    with gateway(use(shell("echo ran >> effects")), say("Done.")) as model:
        serve, client = servers.session(model.url, "--policy", "workspace", "--sandbox", "none")
        client.task()
        question = client.event("approval_requested")["payload"]
        steer(client, "y")
        assert [one["approvalId"] for one in client.ask("GetSessionState")["pendingApprovals"]] == [
            question["approvalId"]
        ]
        client.call("ApproveAction", approvalId=question["approvalId"], decision="denied")
        client.event("task_completed")
        assert not (servers.host.workspace / "effects").exists()
        client.call("Shutdown")
        serve.ended_well()


def test_a_kill_loses_nothing_and_says_nothing_twice(servers: Servers) -> None:
    with gateway(use(HELD), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        eventually((servers.host.workspace / "waits").exists, "the command")
        steer(client)
        serve.kill()
        client.join()
        again, other = servers.client(model.url)
        other.resume(client.session_id)
        other.event("task_completed")
        assert said(model, -1) == 1
        items = other.ask("GetTranscript", limit=100)["items"]
        assert json.dumps(items).count(WORDS) == 1
        other.call("Shutdown")
        again.ended_well()


def test_bounds(servers: Servers) -> None:
    with gateway(use(HELD), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        eventually((servers.host.workspace / "waits").exists, "the command")
        for text in ("", "x" * 65_537, "\u00e9" * 40_000):
            assert client.refusal("SteerTask", sessionId=client.session_id, taskId="a", text=text).code == -32602
        other = client.refusal("SteerTask", sessionId=client.session_id, taskId="b", text="x")
        assert other.code == -32041
        for number in range(16):
            steer(client, f"{number}: {WORDS}")
        full = client.refusal("SteerTask", sessionId=client.session_id, taskId="a", text="x")
        assert (full.code, "16" in str(full)) == (-32602, True)
        (servers.host.workspace / "go").touch()
        client.event("task_completed")
        assert said(model, -1) == 16
        client.call("Shutdown")
        serve.ended_well()
