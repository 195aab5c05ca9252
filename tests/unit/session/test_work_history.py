"""The upload of a session's history, and what may happen meanwhile (AH 5.5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.errors import GatewayUnavailable
from agent_host.events.kinds import EventType
from agent_host.session import work as work_module
from agent_host.session.new_task import NewTask
from agent_host.session.work import Work
from agent_host.states import SessionStatus, session_machine
from tests.support.loop import Loop
from tests.support.loop_parts import Artifacts, calls, says, settled, shell

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import Artifact

NAME = "session_history.json"


def begun(loop: Loop, task_id: str = "t") -> Work:
    life = session_machine()
    life.fire("open")
    work = Work(loop.ctx, life, lambda _: None)
    work.start(NewTask(task_id, "Do it.", 5))
    return work


async def test_the_whole_thread_goes_up_once(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), says("Done."))
    work = begun(loop)
    await work.ended()
    await work.upload_history()
    (artifact,) = loop.artifacts.stored
    assert artifact[:3] == ("session_history", NAME, "application/json")
    assert loop.artifacts.of == [("t", None)]
    assert [message["role"] for message in orjson.loads(artifact.data)] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    loop.ctx.state.thread.append(b"{}")
    await work.upload_history()
    assert len(loop.artifacts.stored) == 2


@pytest.mark.parametrize("soon", [True, False])
async def test_a_history_that_is_not_taken_is_told_and_not_sent_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, soon: bool
) -> None:
    monkeypatch.setattr(work_module, "_AGAIN_AFTER_S", 3600.0 if soon else 0.0)
    loop = Loop(tmp_path, says("Done."), artifacts=Artifacts(NAME))
    work = begun(loop)
    assert (await work.ended()).status == "completed"
    told = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert told == [{"artifactName": NAME, "message": f"no room for {NAME}"}] * (1 if soon else 2)
    loop.artifacts.refuses.clear()
    await work.upload_history()
    assert len(loop.artifacts.stored) == (0 if soon else 1)
    loop.ctx.state.thread.append(b"{}")  # what is new is worth a try
    await work.upload_history()
    assert len(loop.artifacts.stored) == (1 if soon else 2)


class Slow(Artifacts):
    """A service that answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        self.asked.set()
        await self.answers.wait()
        return await super().upload(artifact, task_id=task_id, step_id=step_id)


async def test_an_upload_is_given_up_when_its_time_is_over(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("Done."), artifacts=(slow := Slow()))
    work = begun(loop)
    work.hurry(0)  # none is under way yet
    await slow.asked.wait()
    work.hurry(0)
    assert (await work.ended()).status == "completed"
    assert loop.told(EventType.ARTIFACT_UPLOAD_FAILED) == [{"artifactName": NAME, "message": "it took too long"}]


async def test_a_task_that_is_cancelled_while_its_history_goes_up_is_over(tmp_path: Path) -> None:
    """It was paused, and could have been resumed."""
    loop = Loop(tmp_path, GatewayUnavailable("down"), artifacts=(slow := Slow()))
    work = begun(loop)
    await slow.asked.wait()
    work.cancel("t", force=False, grace_s=0)
    slow.answers.set()
    end = await work.ended()
    assert (end.status, end.resumable, loop.on_record()[0]) == ("cancelled", False, "cancelled")
    assert loop.told(EventType.SESSION_PAUSED) == []


async def test_a_paused_task_pauses_the_session(tmp_path: Path) -> None:
    loop = Loop(tmp_path, GatewayUnavailable("down"))
    life = session_machine()
    life.fire("open")
    work = Work(loop.ctx, life, lambda _: None)
    work.start(NewTask("t", "Do it.", 5))
    await work.ended()
    await settled()
    assert life.state is SessionStatus.PAUSED
