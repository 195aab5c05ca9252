"""The size of a snapshot: nobody reads a larger one, and nobody writes one."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest

from state import TooLarge, WriteFailed
from state.disk import Disk
from state.file_store import FileCheckpointStore
from state.prune import SessionPruner
from state.records import record_of
from state.snapshot import SNAPSHOT_LIMIT_BYTES
from tests.support.beside import Later
from tests.unit.state.helpers import (
    SESSION,
    commit,
    create,
    finish,
    load,
    message,
    paths_in,
    reopen,
    start_task,
    turn,
    unnumbered,
)

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 16_000
FULL_AT = 15_000


def snapshot_bytes(directory: Path) -> int:
    return os.path.getsize(paths_in(directory).snapshot)


def test_the_limit_is_256_mib() -> None:
    assert SNAPSHOT_LIMIT_BYTES == 268_435_456


def test_a_snapshot_of_the_limit_is_read_and_a_larger_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = create(tmp_path)
    start_task(session)
    session.close()
    size = snapshot_bytes(tmp_path)
    assert FileCheckpointStore(str(tmp_path), snapshot_limit_bytes=size).load(SESSION) == session.state
    small = FileCheckpointStore(str(tmp_path), snapshot_limit_bytes=size - 1)
    read: list[str] = []
    monkeypatch.setattr(Disk, "read", lambda _, path: read.append(path))
    said = f"{SESSION}.json has {size} bytes, and host.max_snapshot_bytes is {size - 1}"
    for refuse in (small.load, small.open):
        with pytest.raises(TooLarge, match=said):
            refuse(SESSION)
    (row,) = small.list()
    assert (row.state, row.problem) == (None, said)
    with SessionPruner(str(tmp_path), now=0.0, snapshot_limit_bytes=size - 1) as pruner:
        assert [row.standing.name for row in pruner.survey()] == ["FOREIGN"]
    assert read == []
    monkeypatch.undo()
    assert load(tmp_path) == session.state


def test_a_session_is_full_before_its_snapshot_is_too_large(tmp_path: Path) -> None:
    """Each step is small against the room that is kept; the disk sees few snapshots on the way."""
    session = create(tmp_path, snapshot_limit_bytes=LIMIT)
    start_task(session)
    seen: set[int] = set()
    for number in range(200):
        if not session.has_room():
            break
        session.commit(record_of("note", {}, message("system", f"{number}" + "x" * 200)))
        seen.add(os.stat(paths_in(tmp_path).snapshot).st_ino)
        assert snapshot_bytes(tmp_path) <= LIMIT
    assert FULL_AT < snapshot_bytes(tmp_path) <= LIMIT
    session.commit(record_of("session_status", {"status": "SESSION_PAUSED"}))
    session.close()
    assert len(seen) < 20
    again = reopen(tmp_path, snapshot_limit_bytes=LIMIT)
    assert not again.has_room()
    assert unnumbered(again.state) == unnumbered(session.state)
    again.close()
    wider = reopen(tmp_path, snapshot_limit_bytes=2 * LIMIT)
    assert wider.has_room()
    wider.close()


def test_what_is_too_large_for_a_snapshot_stays_in_the_journal(tmp_path: Path) -> None:
    session = create(tmp_path, snapshot_limit_bytes=LIMIT)
    start_task(session)
    for _ in range(3):
        session.append(record_of("note", {}, message("system", "x" * 8_000)))
    session.sync()
    assert not session.has_room()
    assert snapshot_bytes(tmp_path) <= LIMIT
    session.commit(record_of("session_status", {"status": "SESSION_PAUSED"}))
    with pytest.raises(WriteFailed, match=f"host.max_snapshot_bytes is {LIMIT}"):
        session.compact()
    session.close()
    with pytest.raises(WriteFailed, match=f"host.max_snapshot_bytes is {LIMIT}"):
        reopen(tmp_path, snapshot_limit_bytes=LIMIT)
    wider = reopen(tmp_path)
    assert unnumbered(wider.state) == unnumbered(session.state)
    wider.close()


def test_results_of_a_step_at_work_count_when_it_is_over(tmp_path: Path) -> None:
    """Large ones have a blob then."""
    session = create(tmp_path, snapshot_limit_bytes=LIMIT)
    start_task(session)
    turn(session, "step_1", "c1")
    finish(session, "c1", "x" * 30_000)
    session.sync()
    assert session.has_room()
    commit(session, 1)
    session.sync()
    assert session.has_room()
    assert snapshot_bytes(tmp_path) < 10_000
    session.close()
    assert unnumbered(load(tmp_path)) == unnumbered(session.state)


def test_a_session_that_begins_too_large_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="max_snapshot_bytes is 100"):
        create(tmp_path, snapshot_limit_bytes=100)
    create(tmp_path).close()


def test_near_the_limit_the_snapshot_that_is_under_way_says_how_much_room_there_is(tmp_path: Path) -> None:
    """However long it would take to be looked at."""
    session = create(tmp_path, snapshot_limit_bytes=LIMIT, start_job=functools.partial(Later, times=10**9))
    start_task(session)
    assert session.has_room()
    session.commit(record_of("note", {}, message("system", "x" * 14_400)))
    before = snapshot_bytes(tmp_path)
    assert not session.has_room()
    assert before < FULL_AT < snapshot_bytes(tmp_path) <= LIMIT
    session.close()
    assert unnumbered(load(tmp_path)) == unnumbered(session.state)


def test_the_snapshot_before_is_not_read_either(tmp_path: Path) -> None:
    """The newest one is damaged, and what stands beside it is too large to be asked."""
    session = create(tmp_path, start_job=Later)
    start_task(session)
    session.append(record_of("note", {}, message("system", "x" * 16_000)))
    session.append(record_of("note", {}, message("system", "y" * 16_000)))
    session.compact()
    session.close()
    paths = paths_in(tmp_path)
    size = snapshot_bytes(tmp_path)
    with open(paths.snapshot, "r+b") as handle:
        handle.write(b"?")
    os.truncate(paths.previous_snapshot, size + 1)
    with pytest.raises(TooLarge, match=f"json.previous has {size + 1} bytes"):
        reopen(tmp_path, snapshot_limit_bytes=size)
