"""A disk that fills up under a running session, and has room again: paused, resumed in the same process, done once."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.approval.gate import UnattendedGate
from agent_host.errors import CheckpointWriteFailed, SessionNotReady
from agent_host.host.opening import SessionOpener
from agent_host.services.session import NewSession
from state import WriteFailed
from state.file_session import FileSession
from tests.support.events import Watcher
from tests.support.person import resolved_options
from tests.support.process import Host, gateway, say, shell, use

if sys.platform == "linux":
    import resource

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.serve_process import Servers

EFFECT = shell("echo ran >> effects")


class Disk:
    """Whether the session's disk takes what is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        for name in ("append", "sync"):
            monkeypatch.setattr(FileSession, name, self._guarded(getattr(FileSession, name)))

    def _guarded(self, method: Any) -> Any:
        def guarded(store: FileSession, *arguments: Any) -> Any:
            if self.full and method.__name__ == "sync":
                raise WriteFailed("no space left on device")
            return method(store, *arguments)

        return guarded


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


async def test_paused_and_gone_on_with(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, watcher = Disk(monkeypatch), Watcher()
    with gateway(say("First."), use(EFFECT), say("Second.")) as model:
        start = resolved_options(model.url, "full", workspace=str(host.workspace), state_dir=str(host.state))
        opener = SessionOpener(start, gate=lambda _: UnattendedGate(frozenset()), watch=lambda _: [watcher])
        session = (await opener.create(NewSession("u", "t", "ci"))).session
        async with asyncio.timeout(20):
            session.start_task("t1", "Do it.")
            assert (await session.tasks.await_end()).status == "completed"

            session.start_task("t2", "Do more.")
            disk.full = True
            end = await session.tasks.await_end()
            assert (end.status, end.reason, end.resumable) == ("paused", CheckpointWriteFailed.code, True)
            assert session.state()["sessionStatus"] == "SESSION_PAUSED"
            assert not (host.workspace / "effects").exists()
            with pytest.raises(SessionNotReady, match="ResumeSession"):
                session.start_task("t3", "And more.")

            disk.full = False
            await opener.refresh(session, cursor=None)
            session.continue_task()
            assert session.state()["sessionStatus"] == "SESSION_RUNNING"
            end = await session.tasks.await_end()
            assert (end.status, end.text) == ("completed", "Second.")
            await session.shut_down("done")
    assert (host.workspace / "effects").read_text() == "ran\n"
    kinds = [str(event.event_type) for event in watcher.events]
    assert kinds.count("session_paused") == kinds.count("session_resumed") == 1
    assert kinds[-1] == "session_completed"
    assert watcher.events[-1].payload["taskCount"] == 2  # however often they were gone on with
    assert host.checkpoints() == []


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process's files")
@pytest.mark.parametrize("killed", [False, True])
def test_a_task_that_the_disk_refuses_is_none(servers: Servers, *, killed: bool) -> None:
    """Files of the process cannot grow, which is what a full disk is to it."""
    with gateway(say("First."), say("Second."), say("Third.")) as model:
        serve, client = servers.session(model.url)
        client.task("a", "One.")
        client.event("task_completed")
        before = client.ask("GetSessionState")
        _, hard = resource.prlimit(serve.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(serve.pid, resource.RLIMIT_FSIZE, (1, hard))
        for _ in range(2):
            refused = client.refusal("StartTask", sessionId=client.session_id, taskId="b", prompt="Two.")
            assert refused.what == (-32603, "CHECKPOINT_WRITE_FAILED", True)
        assert client.ask("GetSessionState") == before
        assert client.kinds.count("task_started") == 1
        if killed:
            serve.kill()
            serve, other = servers.client(model.url)
            resumed = other.resume(client.session_id)
            assert "incompleteTask" not in resumed
            client = other
        else:
            resource.prlimit(serve.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert client.ask("GetSessionState").get("task", {})["taskId"] == "a"
        so_far = max((event["eventId"] for event in client.events), default=0)
        client.task("b", "Three.")
        client.event("task_completed", after=so_far)
        texts = [part["text"] for message in model.bodies[-1]["messages"] for part in message["content"]]
        assert texts == ["One.", "First.", "Three."]
        client.call("Shutdown")
        serve.finish()
