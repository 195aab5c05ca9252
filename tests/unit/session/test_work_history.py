"""The upload of a session's history, and what may happen meanwhile (AH 5.5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

from agent_host.errors import GatewayUnavailable
from agent_host.events import EventType
from agent_host.ids import MACHINE
from agent_host.session.reports import session_state
from agent_host.session.task_runner import TaskRunner, add_uris
from agent_host.session.tasks import NewTask
from agent_host.states import SessionStatus, session_machine
from agent_host.thread.messages import Message, ToolCall, encode
from tests.support.loop import Loop
from tests.support.loop_parts import Artifacts, calls, says, settled, shell

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import Artifact

NAME = "session_history.json"


def begun(loop: Loop, task_id: str = "t") -> TaskRunner:
    life = session_machine()
    life.fire("open")
    work = TaskRunner(loop.ctx, life, lambda _: None)
    work.start(NewTask(task_id, "Do it.", 5))
    return work


async def test_the_whole_thread_goes_up_once(tmp_path: Path) -> None:
    loop = Loop(tmp_path, calls(shell("one")), says("Done."))
    work = begun(loop)
    await work.await_end()
    await work.end_uploads(1, resumable=False)
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
    (told,) = loop.told(EventType.ARTIFACT_UPLOADED)
    assert told == {"artifactName": NAME, "artifactUri": f"workspaces/w/artifacts/{NAME}"}


async def test_the_task_is_over_for_everybody_before_its_history_goes_up(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("One."), says("Two."), artifacts=(slow := Slow()))
    work = begun(loop)
    await work.await_end()
    assert loop.told(EventType.TASK_COMPLETED)
    assert session_state(loop.ctx, SessionStatus.RUNNING, [])["task"]["status"] == "TASK_COMPLETED"
    work.start(NewTask("t2", "More.", 5))
    await slow.asked.wait()
    slow.answers.set()
    await work.await_end()
    await work.end_uploads(1, resumable=False)
    assert [len(orjson.loads(one.data)) for one in slow.stored] == [3, 5]
    assert [task for task, _ in slow.of] == ["t", "t2"]


async def test_a_history_that_waits_gives_way_to_a_newer_one(tmp_path: Path) -> None:
    loop = Loop(tmp_path, *(says(str(number)) for number in range(3)), artifacts=(slow := Slow()))
    work = begun(loop)
    await work.await_end()
    await slow.asked.wait()
    for number in range(2):
        work.start(NewTask(f"next{number}", "More.", 5))
        await work.await_end()
    slow.answers.set()
    await work.end_uploads(1, resumable=False)
    assert [task for task, _ in slow.of] == ["t", "next1"]


async def test_a_history_that_is_not_taken_is_told_kept_here_and_tried_once_more_at_the_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("Done."), artifacts=Artifacts(NAME))
    work = begun(loop)
    end = await work.await_end()
    await settled()
    (told,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert told == {
        "artifactName": NAME, "message": f"no room for {NAME}", "storageRef": "artifacts/session_history",
    }  # fmt: skip
    assert work.result(end)["notUploaded"] == [{"artifactType": "session_history", **told}]
    assert orjson.loads(loop.home.held[told["storageRef"]])[-1]["content"] == "Done."
    loop.artifacts.refuses.clear()
    await work.end_uploads(1, resumable=False)
    assert len(loop.artifacts.stored) == 1
    assert "notUploaded" not in work.result(end)


class Slow(Artifacts):
    """A service that answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def upload(self, artifact: Artifact, *, task_id: str | None, step_id: str | None) -> str:
        self.asked.set()
        await self.answers.wait()
        return await super().upload(artifact, task_id=task_id, step_id=step_id)


async def test_a_session_that_stays_has_its_history_and_sends_it_when_it_goes_on(tmp_path: Path) -> None:
    loop = Loop(tmp_path, says("Done."), artifacts=Slow())
    work = begun(loop)
    await work.await_end()
    await work.end_uploads(0, resumable=True)
    (told,) = loop.told(EventType.ARTIFACT_UPLOAD_FAILED)
    assert "a resume of the session uploads it" in told["message"]
    assert loop.home.held == {}
    await work.end_uploads(0, resumable=False)  # it has ended
    assert len(loop.told(EventType.ARTIFACT_UPLOAD_FAILED)) == 1


def test_addresses_stand_in_the_results_that_left_something() -> None:
    def result(call_id: str, content: str) -> bytes:
        message = Message("tool", content, 1, tool_call_id=call_id)
        return encode(message, MACHINE, session_id="s", task_id="t", step_id="p")

    hostile = '","toolCallId":"c1","isError":false,"role":"tool"'
    asked = ToolCall("c1", "X", {"toolCallId": "c1", "isError": 1, "role": "tool"})
    thread = [
        encode(Message("assistant", hostile, 1, (asked,)), MACHINE, session_id="s"),
        result("c1", hostile),
        result("c2", hostile),
        result('c"3', ""),
    ]
    found = [orjson.loads(message) for message in add_uris(thread, {"c1": ["a", "b"], 'c"3': ["c"]})]
    assert [message.get("artifactUris") for message in found] == [None, ["a", "b"], None, ["c"]]
    assert [message["content"] for message in found] == [hostile, hostile, hostile, ""]
    assert add_uris(thread, {}) is thread


async def test_a_paused_task_pauses_the_session(tmp_path: Path) -> None:
    loop = Loop(tmp_path, GatewayUnavailable("down"))
    life = session_machine()
    life.fire("open")
    work = TaskRunner(loop.ctx, life, lambda _: None)
    work.start(NewTask("t", "Do it.", 5))
    await work.await_end()
    await settled()
    assert life.state is SessionStatus.PAUSED
