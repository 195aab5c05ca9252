"""What is kept of a session that ends, and what follows where the disk or the service refuses (AH 3.4, 9.6)."""

from __future__ import annotations

import errno
import json
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from agent_host.errors import ServiceUnavailable
from agent_host.events import EventType
from agent_host.faults.crash import Faults
from agent_host.faults.disk import SimulatedDisk
from agent_host.states import TaskEnd
from tests.support.loop_parts import NOW, Artifacts, says
from tests.support.sessions import Opened

if TYPE_CHECKING:
    from pathlib import Path


async def done(folder: Path, **more: object) -> tuple[Opened, TaskEnd]:
    """A session whose task is complete."""
    opened = Opened(folder, says("Done."), **more)  # type: ignore[arg-type]  # a loop's
    opened.session.start_task("t", "Do it.")
    return opened, await opened.session.tasks.await_end()


async def test_the_result_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    opened, end = await done(tmp_path)
    ending = opened.session.ending
    assert (ending.kept_at, ending.unkept, ending.stays) == (None, None, False)
    await ending.end("complete", end, None)
    path = tmp_path / "state/sessions/s/result.json"
    assert (ending.kept_at, ending.unkept, ending.stays) == (str(path), None, False)
    kept = json.loads(path.read_text())
    assert kept == opened.session.result(end) | {
        "prompt": "Do it.", "title": "Do it.", "workspace": opened.loop.folder, "resumable": False,
        "tenantId": "tenant", "userId": "user", "totalTokens": 110,
        "sessionUsage": {"inputTokens": 100, "outputTokens": 10, "cachedInputTokens": 0},
        "startedAt": kept["startedAt"], "endedAt": kept["endedAt"],
    }  # fmt: skip
    assert kept["startedAt"] <= kept["endedAt"]
    assert kept["startedAt"] > NOW.isoformat()[:4]
    assert path.read_text().startswith("{\n  "), "a person may read it"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("end", "reason", "said"),
    [("ended", None, "completed"), ("ended", "bye", "bye"), (None, None, "completed"), ("failed", None, "failed")],
)
async def test_the_service_is_told_why(tmp_path: Path, end: str | None, reason: str | None, said: str) -> None:
    opened, real = await done(tmp_path)
    given = None if end is None else real if end == "ended" else TaskEnd("failed")
    await opened.session.ending.end("complete", given, reason)
    assert opened.service.ends == [said]
    (told,) = opened.loop.told(EventType.SESSION_COMPLETED)
    assert told.get("reason") == reason
    assert 0 <= told["durationMs"] < 3_600_000


async def test_a_service_that_is_away_keeps_nobody(tmp_path: Path) -> None:
    opened, end = await done(tmp_path)
    opened.service.fault = ServiceUnavailable("down")
    await opened.session.ending.end("complete", end, None)
    assert (opened.released, opened.loop.sessions.list()) == (True, [])


async def test_a_result_that_the_disk_refuses_keeps_the_session(tmp_path: Path) -> None:
    opened, end = await done(tmp_path)
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").write_text("in the way")
    ending = opened.session.ending
    await ending.end("complete", end, "bye")
    assert (ending.stays, ending.kept_at, opened.is_kept, opened.released) == (True, None, True, True)
    assert ending.unkept == "the result could not be kept: Not a directory"
    (told,) = opened.loop.told(EventType.CHECKPOINT_FAILED)
    assert told == {"message": ending.unkept, "code": "CHECKPOINT_WRITE_FAILED"}
    (event,) = [one for one in opened.loop.watcher.events if one.event_type is EventType.CHECKPOINT_FAILED]
    assert event.task_id == "t"
    assert (opened.service.ends, opened.loop.told(EventType.SESSION_COMPLETED)) == ([], [])
    (tmp_path / "state").unlink()
    following = opened.again()
    following.session.continue_task()
    assert (await following.session.tasks.await_end()).text == "Done."


async def test_a_checkpoint_that_cannot_be_removed_is_told(tmp_path: Path) -> None:
    """A resume tells the end again."""
    disk = SimulatedDisk()
    opened, end = await done(tmp_path, disk=disk)
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.EROFS)
    ending = opened.session.ending
    await ending.end("complete", end, None)
    assert ending.kept_at is not None
    assert ending.unkept is not None
    assert opened.loop.told(EventType.CHECKPOINT_FAILED)[-1]["message"] == ending.unkept
    assert (ending.stays, opened.released) == (False, True), "the local disk has no checkpoint of it"


async def test_a_checkpoint_that_is_still_there_can_be_resumed(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    opened, end = await done(tmp_path, disk=disk)
    (tmp_path / "state/checkpoints").mkdir(parents=True)
    (tmp_path / "state/checkpoints/s.json").touch()
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.EROFS)
    await opened.session.ending.end("complete", end, None)
    assert opened.session.ending.stays


async def test_the_history_goes_up_before_the_end(tmp_path: Path) -> None:
    artifacts = Artifacts("session_history.json")
    opened, end = await done(tmp_path, artifacts=artifacts)
    artifacts.refuses.clear()
    opened.loop.ctx.state.thread.append(b"{}")
    await opened.session.ending.end("complete", end, None)
    assert [artifact.name for artifact in artifacts.stored] == ["session_history.json"]


async def test_a_session_that_can_be_resumed_is_left_as_it_is(tmp_path: Path) -> None:
    opened, _ = await done(tmp_path)
    before = opened.loop.kept()
    await opened.session.ending.detach()
    assert opened.loop.kept() == before
    assert (opened.is_kept, opened.released, opened.service.ends) == (True, True, [])
