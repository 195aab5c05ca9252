"""What somebody who builds on `agent-host serve` runs into on the first day: odd values, and a kill at a bad moment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.interaction.test_serve_stops import HANG
from tests.support.process import eventually, gateway, say, shell, use
from tests.support.rpc_client import WHO

if TYPE_CHECKING:
    from tests.support.serve_process import Servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")


@pytest.mark.parametrize("path", ["/nowhere/at/all", "nowhere"])
def test_a_workspace_that_is_not_there_is_refused_in_the_clients_words(servers: Servers, path: str) -> None:
    _, client = servers.client("http://127.0.0.1:9")
    refused = client.refusal("CreateSession", **{**WHO, "workspaceHint": {"localPaths": [path]}})
    assert refused.what == (-32602, "INVALID_REQUEST", False)
    assert refused.message == f"workspaceHint.localPaths[0]: {path}: there is no such directory"


def test_the_command_lines_workspace_that_is_not_there_is_named_as_such(servers: Servers) -> None:
    _, client = servers.client("http://127.0.0.1:9", "--workspace", "nowhere")
    assert client.refusal("CreateSession", **WHO).message == "--workspace nowhere: there is no such directory"


@pytest.mark.slow
def test_a_session_whose_workspace_is_gone_says_so(servers: Servers) -> None:
    host = servers.host
    folder = host.root / "gone"
    folder.mkdir()
    with gateway(say("Done."), say("Again.")) as model:
        serve, client = servers.client(model.url)
        session_id = client.create(workspaceHint={"localPaths": [str(folder)]})
        client.task()
        client.event("task_completed")
        client.done()
        serve.ended_well()
        folder.rmdir()
        said = f"the session's workspace {folder}: there is no such directory"
        _, other = servers.client(model.url)
        assert other.refusal("ResumeSession", sessionId=session_id).message == said
        assert host.run("resume", session_id).error == f"agent-host: error: {said}"
        assert host.run("resume", session_id, "--workspace", host.workspace).code == 0


def test_a_nul_is_no_part_of_a_name(servers: Servers) -> None:
    with gateway(say("Done.")) as model:
        serve, client = servers.client(model.url)
        refused = client.refusal("CreateSession", **{**WHO, "workspaceHint": {"localPaths": ["/tmp/a\0b"]}})
        assert refused.what == (-32602, "INVALID_REQUEST", False)
        assert refused.message == "workspaceHint.localPaths[0] must not contain a NUL character"
        session_id = client.create()
        refused = client.refusal("StartTask", sessionId=session_id, taskId="a\0b", prompt="x")
        assert refused.message == "taskId must not contain a NUL character"
        client.task(prompt="What is a\0b?")
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()


def test_the_model_is_told_what_is_wrong_with_a_directory(servers: Servers) -> None:
    with gateway(use(shell("pwd", cwd="/tmp/\0")), say("Done.")) as model:
        _, client = servers.session(model.url)
        client.task()
        client.event("task_completed")
        (answer,) = model.results()
        assert answer.text == "INVALID_REQUEST: argument 'cwd' must not contain a null byte"


@pytest.mark.parametrize("call_id", ["toolu\0", "t" * 200_000], ids=["nul", "long"])
def test_a_command_runs_whatever_id_the_gateway_gives_its_call(servers: Servers, call_id: str) -> None:
    with gateway(use({**shell("echo it ran"), "id": call_id}), say("Done.")) as model:
        serve, client = servers.session(model.url)
        client.task()
        assert client.event("tool_completed")["payload"]["status"] == "succeeded"
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()


@pytest.mark.slow
def test_numbers_of_events_rise_however_soon_a_process_is_killed(servers: Servers) -> None:
    with gateway(HANG, HANG, say("Done.")) as model:
        serve, client = servers.session(model.url)
        session_id = client.session_id
        client.task()
        for requests in (1, 2):
            eventually(lambda n=requests: model.count == n, "a request")  # type: ignore[misc]  # a default of a lambda
            client.ask("GetSessionState")  # what was told before is here
            last = client.events[-1]["eventId"]
            serve.kill()
            serve, client = servers.client(model.url)
            client.resume(session_id)
            assert client.event("session_resumed")["eventId"] > last
        client.event("task_completed")
        client.call("Shutdown")
        serve.ended_well()
    numbers = [event["eventId"] for event in servers.host.event_log(session_id)]
    assert numbers == sorted(set(numbers))
