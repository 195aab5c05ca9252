"""The ends of a session: what each leaves, and who is told (AH 3.4)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from agent_host.errors import GatewayUnavailable
from agent_host.events import EventType
from agent_host.session import lifecycle
from agent_host.session.task_runner import TaskRunner
from tests.support.loop_parts import Person, Tools, bundle, calls, says, settled, shell, succeeded
from tests.support.sessions import Opened

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.states import TaskEnd

DOWN = GatewayUnavailable("down")


async def over(opened: Opened) -> TaskEnd:
    async with asyncio.timeout(20):
        return await opened.session.tasks.await_end()


def status(opened: Opened) -> str:
    return str(opened.session.state()["sessionStatus"])


async def paused(folder: Path) -> Opened:
    """A session whose task cannot go on for now."""
    opened = Opened(folder, DOWN)
    opened.session.start_task("t", "Do it.")
    await over(opened)
    assert status(opened) == "SESSION_PAUSED"
    return opened


def hanging() -> tuple[Tools, asyncio.Event]:
    """Tools that end when the test says so."""
    let_go = asyncio.Event()

    async def hang(request: ToolRequest) -> ToolResult:
        await let_go.wait()
        return succeeded(request)

    return Tools(hang), let_go


async def test_a_clean_end_after_a_task(tmp_path: Path) -> None:
    opened = Opened(tmp_path, says("Done."))
    opened.session.start_task("t", "Do it.")
    await over(opened)
    await opened.session.shut_down("bye")
    assert (status(opened), opened.session.has_ended) == ("SESSION_COMPLETED", True)
    (told,) = opened.loop.told(EventType.SESSION_COMPLETED)
    assert (told["taskCount"], told["totalTokens"], told["reason"]) == (1, 110, "bye")
    assert (opened.service.ends, opened.released, opened.loop.sessions.list()) == (["bye"], True, [])
    kept = json.loads((tmp_path / "state/sessions/s/result.json").read_text())
    assert (kept["status"], kept["text"], kept["prompt"], kept["resumable"]) == (
        "TASK_COMPLETED", "Done.", "Do it.", False,
    )  # fmt: skip


async def test_a_clean_end_without_any_task(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    await opened.session.shut_down("bye")
    assert (status(opened), opened.session.ending.kept_at) == ("SESSION_COMPLETED", None)
    assert opened.loop.sessions.list() == []


async def test_an_end_while_a_task_is_at_work_cancels_it(tmp_path: Path) -> None:
    tools, let_go = hanging()
    opened = Opened(tmp_path, calls(shell("one")), tools=tools)
    opened.session.start_task("t", "Do it.")
    await settled()
    ending = asyncio.ensure_future(opened.session.shut_down("bye"))
    await settled()
    assert opened.session.has_ended
    let_go.set()
    await ending
    assert (status(opened), opened.loop.sessions.list()) == ("SESSION_CANCELLED", [])
    assert opened.loop.told(EventType.SESSION_CANCELLED)[0]["reason"] == "bye"
    assert json.loads((tmp_path / "state/sessions/s/result.json").read_text())["status"] == "TASK_CANCELLED"


async def test_an_end_in_a_pause_gives_the_task_up(tmp_path: Path) -> None:
    opened = await paused(tmp_path)
    await opened.session.shut_down("bye")
    assert (status(opened), opened.loop.ctx.task.status) == ("SESSION_CANCELLED", "cancelled")
    assert opened.loop.sessions.list() == []


async def test_a_session_that_broke_is_left_for_a_resume(tmp_path: Path) -> None:
    opened = Opened(tmp_path, ZeroDivisionError("oops"))
    opened.session.start_task("t", "Do it.")
    with pytest.raises(ZeroDivisionError):
        await over(opened)
    await settled(2)
    assert (status(opened), [type(error) for error in opened.broken]) == ("SESSION_FAILED", [ZeroDivisionError])
    (told,) = opened.loop.told(EventType.SESSION_FAILED)
    assert told == {"reason": "INTERNAL_ERROR", "message": "ZeroDivisionError: oops"}
    await opened.session.shut_down("bye")
    assert (opened.is_kept, opened.released, opened.service.ends) == (True, True, [])
    assert (await opened.again(says("Done.")).loop.run()).text == "Done."


async def test_a_session_that_its_service_ended_is_gone(tmp_path: Path) -> None:
    tools, let_go = hanging()
    opened = Opened(tmp_path, calls(shell("one")), tools=tools)
    opened.session.start_task("t", "Do it.")
    await settled()
    ending = asyncio.ensure_future(opened.session.expire("it is over"))
    await settled()
    let_go.set()
    await ending
    assert (status(opened), opened.loop.sessions.list(), opened.released) == ("SESSION_FAILED", [], True)
    (told,) = opened.loop.told(EventType.SESSION_FAILED)
    assert told == {"reason": "SESSION_EXPIRED", "message": "it is over"}
    assert opened.loop.ctx.task.status == "cancelled"
    await opened.session.expire("again")
    assert len(opened.loop.told(EventType.SESSION_FAILED)) == 1


async def test_a_session_that_is_left_can_be_resumed_with_its_question(tmp_path: Path) -> None:
    person = Person(lambda _: None)
    policy = bundle(tmp_path / "ws", asks=["Shell.Exec"])
    opened = Opened(tmp_path, calls(shell("one")), gate=person, policy=policy)
    opened.session.start_task("t", "Do it.")
    await settled()
    (pending,) = opened.session.state()["pendingApprovals"]
    await opened.session.detach()
    assert (opened.is_kept, opened.released, opened.session.has_ended) == (True, True, True)
    assert opened.loop.told(EventType.SESSION_PAUSED)[0]["reason"] == "interrupted"
    following = opened.again(says("Done."), gate=(person := Person(lambda _: {"approved": True})))
    following.session.continue_task()
    assert (await over(following)).text == "Done."
    assert [question.approval_id for question in person.asked] == [pending["approvalId"]]


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_session_of_one_task_ends_with_it(tmp_path: Path, *, resumable: bool) -> None:
    opened = Opened(tmp_path, DOWN if resumable else says("Done."))
    opened.session.start_task("t", "Do it.")
    await opened.session.conclude(await over(opened))
    assert (opened.is_kept, opened.session.has_ended, opened.released) == (resumable, True, True)
    assert opened.service.ends == ([] if resumable else ["completed"])


async def test_a_session_whose_task_has_no_end_is_left(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    await opened.session.conclude(None)
    assert opened.is_kept


async def test_calls_that_nobody_approved_keep_a_session(tmp_path: Path) -> None:
    policy = bundle(tmp_path / "ws", asks=["Shell.Exec"])
    opened = Opened(tmp_path, calls(shell("make")), says("Could not."), policy=policy)
    opened.session.start_task("t", "Do it.")
    records = opened.loop.watch_records()
    await opened.session.conclude(await over(opened))
    assert records[-1] == ("session_status", {"status": "SESSION_PAUSED", "reason": "APPROVAL_REQUIRED"})
    assert (opened.is_kept, status(opened), opened.service.ends) == (True, "SESSION_PAUSED", [])
    assert opened.loop.kept().awaits_approval
    (told,) = opened.loop.told(EventType.SESSION_PAUSED)
    assert (told["reason"], told["stepCount"]) == ("APPROVAL_REQUIRED", 2)
    assert opened.session.ending.kept_at == opened.paths.result


async def test_a_task_whose_end_cannot_be_recorded_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken away that a resume would need."""
    monkeypatch.setattr(lifecycle, "_STEP_PATIENCE_S", 0.01)
    monkeypatch.setattr(lifecycle, "_FORCE_PATIENCE_S", 0.01)
    monkeypatch.setattr(lifecycle, "_RECORD_PATIENCE_S", 0.01)

    async def stuck(*_: object) -> bool:
        return False

    tools, _ = hanging()
    opened = Opened(tmp_path, calls(shell("one")), tools=tools)
    opened.session.start_task("t", "Do it.")
    await settled()
    monkeypatch.setattr(TaskRunner, "idle", stuck)
    await opened.session.shut_down("bye")
    assert opened.is_kept
    assert not (tmp_path / "state/sessions/s/result.json").exists()
