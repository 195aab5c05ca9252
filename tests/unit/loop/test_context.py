"""What every part of the loop works with: records that must be there, records that may wait, a store that is full."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from agent_host.errors import CheckpointWriteFailed
from agent_host.events import EventType
from agent_host.faults.crash import NO_FAULTS, Faults
from agent_host.faults.disk import NOTHING_SURVIVES, SimulatedDisk
from policy.rules import TaskOptions
from state.blobs import UNAVAILABLE
from state.records import SessionStatusChanged
from tests.support.loop import Loop, sessions_on
from tests.support.loop_parts import SESSION

if TYPE_CHECKING:
    from pathlib import Path

PAUSED = SessionStatusChanged("SESSION_PAUSED")


def full(disk: SimulatedDisk) -> None:
    """The disk takes nothing from here on."""
    disk.calls.faults = Faults(fail_call=disk.calls.count + 1, persistently=True, code=errno.ENOSPC)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def loop(tmp_path: Path, disk: SimulatedDisk) -> Loop:
    return Loop(tmp_path, disk=disk)


def durable(disk: SimulatedDisk) -> str:
    """The session's status after a power loss that takes all that may be lost."""
    return sessions_on(disk.crash(NOTHING_SURVIVES)).load(SESSION).session_status


def test_what_must_be_there_is_an_error_where_it_is_not(loop: Loop, disk: SimulatedDisk) -> None:
    full(disk)
    with pytest.raises(CheckpointWriteFailed, match="nothing was started"):
        loop.ctx.journal.record(PAUSED)
    with pytest.raises(CheckpointWriteFailed, match="nothing was started"):
        loop.ctx.journal.write_ahead()
    assert loop.told(EventType.CHECKPOINT_FAILED) == []


def test_a_record_is_durable_with_the_write_ahead(loop: Loop, disk: SimulatedDisk) -> None:
    loop.ctx.journal.record(PAUSED)
    assert loop.kept().session_status == "SESSION_PAUSED"
    assert durable(disk) == "SESSION_RUNNING"
    loop.ctx.journal.write_ahead()
    assert durable(disk) == "SESSION_PAUSED"


@pytest.mark.parametrize("sync", [True, False])
def test_a_checkpoint_is_durable_unless_more_follows_at_once(loop: Loop, disk: SimulatedDisk, *, sync: bool) -> None:
    loop.ctx.journal.checkpoint(None, PAUSED, sync=sync)
    assert loop.kept().session_status == "SESSION_PAUSED"
    assert durable(disk) == ("SESSION_PAUSED" if sync else "SESSION_RUNNING")


def test_a_checkpoint_that_fails_is_told_and_carried_by_the_next(loop: Loop, disk: SimulatedDisk) -> None:
    full(disk)
    loop.ctx.journal.checkpoint("st", PAUSED)
    (event,) = loop.watcher.events
    assert (event.event_type, event.step_id, event.task_id) == (EventType.CHECKPOINT_FAILED, "st", None)
    assert event.payload["code"] == "CHECKPOINT_WRITE_FAILED"
    assert "No space left on device" in event.payload["message"]
    disk.calls.faults = NO_FAULTS
    loop.ctx.journal.write_ahead()
    assert durable(disk) == "SESSION_PAUSED"


def test_events_carry_the_task_where_there_is_one(loop: Loop) -> None:
    loop.ctx.emit(EventType.TEXT_CHUNK, None, text="a")
    loop.begin()
    loop.ctx.emit(EventType.TEXT_CHUNK, "st", text="b")
    assert [(event.task_id, event.step_id, event.payload) for event in loop.watcher.events] == [
        (None, None, {"text": "a"}),
        ("t", "st", {"text": "b"}),
    ]


def test_the_loop_runs_only_with_a_task(loop: Loop) -> None:
    with pytest.raises(RuntimeError):
        _ = loop.ctx.task
    loop.begin()
    assert (loop.ctx.task.task_id, loop.ctx.session_id, loop.ctx.state) == ("t", SESSION, loop.ctx.journal.store.state)


@pytest.mark.parametrize("way", ["keep", "write_ahead", "checkpoint"])
def test_a_full_store_is_told_once(tmp_path: Path, way: str) -> None:
    loop = Loop(tmp_path, max_stored=3)
    name = loop.ctx.journal.keep(b"abc")
    assert (loop.ctx.journal.store.kept(name), loop.told(EventType.STORAGE_LIMIT_REACHED)) == (b"abc", [])
    if way == "keep":
        assert loop.ctx.journal.keep(b"more") == UNAVAILABLE
    else:
        assert loop.ctx.journal.store.keep(b"more") == UNAVAILABLE
        loop.ctx.journal.write_ahead() if way == "write_ahead" else loop.ctx.journal.checkpoint("st", PAUSED)
    assert loop.ctx.journal.keep(b"again") == UNAVAILABLE
    loop.ctx.journal.write_ahead()
    (told,) = loop.told(EventType.STORAGE_LIMIT_REACHED)
    assert "host.max_stored_bytes (3 bytes)" in told["message"]


def test_the_front_of_requests_follows_the_options(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    made: list[TaskOptions] = []

    def head(ctx: object, _: int) -> bytes:
        made.append(loop.ctx.judge.options)
        return b"one two three"

    loop.ctx.conversation.make_head = head
    loop.ctx.narrow_task(loop.ctx.judge.options)
    assert made == []
    options = TaskOptions(approval_mode="always")
    loop.ctx.narrow_task(options)
    assert (made, loop.ctx.conversation.head, loop.ctx.conversation.head_tokens) == ([options], b"one two three", 3)
