"""A compaction beside the loop: what lies on disk at each point of it, and what a damaged snapshot costs then."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.faults.crash import Faults, Killed
from agent_host.faults.disk import SimulatedDisk
from state import Damaged, NoSuchSession, UnknownVersion
from state.disk import Disk, ThreadJob
from state.file_session import LoadReport
from state.file_store import FileCheckpointStore
from state.journal import parse
from state.records import record_of
from tests.support.beside import Later
from tests.unit.state.helpers import (
    SESSION,
    create,
    fresh_state,
    load,
    message,
    on_disk,
    paths_in,
    reopen,
    start_task,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from pathlib import Path

    from state.checkpoint import Checkpoint
    from state.file_session import FileSession

PATHS = paths_in("/state")
LARGE = 20_000


def at_work(disk: SimulatedDisk, lasts: int) -> FileSession:
    store = FileCheckpointStore("/state", disk, min_compact_bytes=0, start_job=functools.partial(Later, times=lasts))
    session = store.create(SESSION, fresh_state())
    start_task(session, "p" * LARGE)
    return session


def grown(session: FileSession, steps: int) -> None:
    for number in range(1, steps + 1):
        whole_step(session, number, f"{number:03}" * 1000 if number % 3 else f"{number:05}" * 5000)


def damage(disk: SimulatedDisk, path: str) -> None:
    """Flip one bit in the middle of a file, for every name that it has."""
    inode = disk._memory._file(path)
    middle = len(inode.now) // 2
    inode.now = inode.now[:middle] + bytes([inode.now[middle] ^ 1]) + inode.now[middle + 1 :]


# --- what a damaged snapshot costs ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("lasts", [0, 1, 3])
def test_a_damaged_snapshot_costs_nothing_at_any_point_of_a_session(lasts: int) -> None:
    """The process is killed before each call to its disk; then the newest snapshot is damaged."""
    whole = SimulatedDisk()
    grown(at_work(whole, lasts), 8)
    compactions = sum(f", {PATHS.previous_journal})" in line for line in whole.calls.log)
    assert compactions >= 2
    made = next(number for number, line in enumerate(whole.calls.log, 1) if f", {PATHS.snapshot})" in line)
    for call in range(made + 1, whole.calls.count + 1):
        disk = SimulatedDisk(Faults(kill_before=call))
        with pytest.raises(Killed):
            grown(at_work(disk, lasts), 8)
        undamaged, damaged = disk.kill(), disk.kill()
        damage(damaged, PATHS.snapshot)
        expected = FileCheckpointStore("/state", undamaged).load(SESSION)
        assert FileCheckpointStore("/state", damaged).load(SESSION) == expected, disk.explain()
        opened = FileCheckpointStore("/state", damaged).open(SESSION)
        assert opened.report.restored
        assert opened.report.lost_blobs == ()
        assert unnumbered(opened.state) == unnumbered(expected)
        damage(damaged, PATHS.snapshot)
        assert unnumbered(FileCheckpointStore("/state", damaged.kill()).load(SESSION)) == unnumbered(expected)


def session_after(directory: Path, *, resumed: bool) -> Checkpoint:
    """A session whose snapshot is too large to stand in its journal, with records behind it; its state."""
    live = create(directory, min_compact_bytes=0)
    start_task(live, "p" * LARGE)
    for number in range(1, 20):
        whole_step(live, number, "r" * 1000)
    if resumed:
        live.close()
        live = reopen(directory, min_compact_bytes=0)
        live.append(record_of("note", {}, message("system", "resumed")))
    live.close()
    return live.state


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_any_byte_of_a_large_snapshot_may_be_damaged(tmp_path: Path, *, resumed: bool) -> None:
    state = session_after(tmp_path, resumed=resumed)
    path = paths_in(tmp_path).snapshot
    with open(path, "rb") as handle:
        data = handle.read()
    assert len(data) > 16 * 1024
    for at in (*range(300), *range(300, len(data) - 300, 97), *range(len(data) - 300, len(data))):
        with open(path, "wb") as handle:
            handle.write(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        assert load(tmp_path) == state, at


def compacted(directory: Path, *, more: int = 0) -> Checkpoint:
    """A session just behind a compaction during which it went on, with `more` steps since; its state."""
    live = create(directory, min_compact_bytes=30_000, start_job=functools.partial(Later, times=3))
    start_task(live, "p" * LARGE)
    number = 0
    while not os.path.exists(paths_in(directory).previous_journal):
        number += 1
        whole_step(live, number, "r" * 3000)
    for each in range(more):
        whole_step(live, 100 + each)
    live.close()
    return live.state


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1])
def test_any_byte_of_the_journal_that_a_compaction_made_may_be_damaged(tmp_path: Path, more: int) -> None:
    state = compacted(tmp_path, more=more)
    path = paths_in(tmp_path).journal
    with open(path, "rb") as handle:
        data = handle.read()
    records = parse(data).records
    durable = orjson.loads(records[0].fields)["durable"]
    end = next(record.end for record in records if record.seq == durable)
    starts = [0, *(record.end for record in records if record.end < end)]
    assert len(starts) > 4
    near = {at for start in starts for at in range(start, start + 60)} | {at - 1 for at in starts[1:]} | {end - 1}
    for at in sorted(near | set(range(0, end, 211))):
        with open(path, "wb") as handle:
            handle.write(data[:at] + bytes([data[at] ^ (1 << at % 7)]) + data[at + 1 :])
        try:
            found = on_disk(tmp_path)
        except UnknownVersion:  # the digit behind the J
            assert at == 1
            continue
        assert (found.damage, found.restored, found.state) == (None, True, state), at
    again = reopen(tmp_path)
    assert again.report.restored
    assert again.report.kept_aside is not None
    again.close()
    assert reopen(tmp_path).report == LoadReport()


def test_what_stands_in_one_journal_alone_is_damage_still(tmp_path: Path) -> None:
    compacted(tmp_path, more=2)
    path = paths_in(tmp_path).journal
    with open(path, "rb") as handle:
        data = handle.read()
    at = data.index(b"c100")
    with open(path, "wb") as handle:
        handle.write(data[:at] + b"C" + data[at + 1 :])
    with pytest.raises(Damaged, match="before its end"):
        load(tmp_path)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_damaged_snapshot_is_kept_and_told_once(tmp_path: Path, *, resumed: bool) -> None:
    state = session_after(tmp_path, resumed=resumed)
    paths = paths_in(tmp_path)
    with open(paths.snapshot, "r+b") as handle:
        handle.seek(5000)
        handle.write(b"\0")
    with open(paths.snapshot, "rb") as handle:
        damaged = handle.read()
    again = reopen(tmp_path)
    assert again.report == LoadReport(kept_aside=f"{paths.snapshot}.corrupt-1", restored=True)
    assert unnumbered(again.state) == unnumbered(state)
    again.close()
    with open(f"{paths.snapshot}.corrupt-1", "rb") as handle:
        assert handle.read() == damaged
    third = reopen(tmp_path)
    assert third.report == LoadReport()
    assert unnumbered(third.state) == unnumbered(state)
    third.close()


def test_a_pair_that_does_not_reach_the_journal_is_no_help(tmp_path: Path) -> None:
    session_after(tmp_path, resumed=False)
    paths = paths_in(tmp_path)
    os.unlink(paths.previous_journal)
    with open(paths.snapshot, "r+b") as handle:
        handle.write(b"X")
    with pytest.raises(Damaged) as caught:
        reopen(tmp_path)
    assert not caught.value.salvaged
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [
        f"{SESSION}.{name}.corrupt-1" for name in ("journal", "json", "json.previous")
    ]


def test_a_snapshot_that_is_gone_is_told_before_it_is_gone_on_without(tmp_path: Path) -> None:
    """Bits flip by themselves; files do not go by themselves."""
    state = session_after(tmp_path, resumed=False)
    os.unlink(paths_in(tmp_path).snapshot)
    with pytest.raises(Damaged) as caught:
        reopen(tmp_path)
    assert caught.value.salvaged
    again = reopen(tmp_path)
    assert again.state.thread == state.thread
    assert not again.report.restored
    again.close()


def test_what_a_journal_took_along_was_durable(tmp_path: Path) -> None:
    """A journal that ends before what it began with is damaged, although nothing is broken in it."""
    live = create(tmp_path, min_compact_bytes=0, start_job=functools.partial(Later, times=2))
    start_task(live, "p" * LARGE)
    for number in range(1, 5):
        whole_step(live, number, "r" * 9000)
    live.close()
    path = paths_in(tmp_path).journal
    with open(path, "rb") as handle:
        data = handle.read()
    first, second = parse(data).records[:2]
    assert b'"durable"' in first.fields
    for end in (first.end, second.end, second.end + 20):
        with open(path, "wb") as handle:
            handle.write(data[:end])
        with pytest.raises(Damaged):
            load(tmp_path)


# --- beside the loop --------------------------------------------------------------------------------------------------


class Held(Disk):
    """A disk that takes no snapshot before it is told to."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked = threading.Event()
        self.full = False

    def open_new(self, path: str) -> int:
        if path.endswith(".json.tmp") and threading.current_thread() is not threading.main_thread():
            self.asked.set()
            assert self.let.wait(60)
            if self.full:
                raise OSError(28, os.strerror(28), path)
        return super().open_new(path)


def held_session(directory: Path) -> tuple[FileSession, Held]:
    disk = Held()
    live = create(directory, disk=disk, start_job=ThreadJob, min_compact_bytes=10_000)
    start_task(live)
    number = 0
    while not disk.asked.is_set():
        number += 1
        whole_step(live, number, "r" * 3000)
        if number > 4:
            assert disk.asked.wait(60)
    return live, disk


@pytest.mark.parametrize("full", [False, True])
def test_the_session_goes_on_while_a_snapshot_is_written(tmp_path: Path, *, full: bool) -> None:
    live, disk = held_session(tmp_path)
    before = os.stat(paths_in(tmp_path).snapshot).st_ino
    for number in range(100, 110):
        whole_step(live, number, "while it is written")
    assert load(tmp_path) == live.state
    assert os.stat(paths_in(tmp_path).snapshot).st_ino == before
    disk.full = full
    disk.let.set()
    live._end_compaction()
    whole_step(live, 110, "behind it")
    assert load(tmp_path) == live.state
    assert (os.stat(paths_in(tmp_path).snapshot).st_ino == before) is full
    live.close()
    assert unnumbered(reopen(tmp_path).state) == unnumbered(live.state)


def ends(session: FileSession, how: str) -> None:
    if how == "delete":
        session.delete()
    elif how == "compact":
        session.compact()
    else:
        session.close()


@pytest.mark.parametrize("how", ["close", "delete", "compact"])
def test_nobody_goes_on_before_the_snapshot_is_written(tmp_path: Path, how: str) -> None:
    live, disk = held_session(tmp_path)
    threads = threading.active_count()
    waker = threading.Timer(0.05, disk.let.set)
    waker.start()
    ends(live, how)
    waker.join()
    assert threading.active_count() == threads - 1
    left = sorted(name.partition(".")[2] for name in os.listdir(tmp_path / "checkpoints"))
    if how == "delete":
        assert left == []
        with pytest.raises(NoSuchSession):
            load(tmp_path)
    else:
        assert load(tmp_path) == live.state
        live.close()


@pytest.mark.parametrize("lasts", [0, 2])
def test_a_step_costs_two_syncs_while_a_snapshot_is_written(lasts: int) -> None:
    """And those that a compaction has of its own, of which one file and one folder wait for the loop."""
    disk = SimulatedDisk()
    session = at_work(disk, lasts)
    syncs: list[int] = []
    for number in range(1, 13):
        before = len(disk.calls.log)
        whole_step(session, number, "r" * 1000)
        lines = disk.calls.log[before:]
        syncs.append(
            sum(f" sync({PATHS.journal}" in line or f"sync_directory({PATHS.checkpoints}" in line for line in lines)
        )
        if any(f", {PATHS.snapshot})" in line for line in lines):
            syncs[-1] -= 1  # the folder's that is the snapshot's
    assert set(syncs) <= ({2, 3} if lasts else {2, 4})
    assert syncs.count(2) >= 6


def test_work_in_a_thread() -> None:
    let = threading.Event()
    job = ThreadJob(lambda: wait_for(let))
    assert not job.done()
    let.set()
    job.wait()
    assert job.done()
    failed = ThreadJob(fail)
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            failed.wait()
    assert failed.done()


def wait_for(event: threading.Event) -> None:
    assert event.wait(60)


def fail() -> None:
    raise OSError(28, "full")


def test_without_a_thread_the_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    job = ThreadJob(lambda: done.append(1))
    assert (job.done(), done) == (True, [1])
    job.wait()


# --- what a clean end and a start leave -------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["delete", "create"])
def test_nothing_of_the_previous_pair_outlives_its_session(tmp_path: Path, again: str) -> None:
    session_after(tmp_path, resumed=False)
    paths = paths_in(tmp_path)
    assert os.path.exists(paths.previous_snapshot)
    assert os.path.exists(paths.previous_journal)
    if again == "delete":
        reopen(tmp_path).delete()
        assert os.listdir(tmp_path / "checkpoints") == []
    else:  # as an older program ends a session
        os.unlink(paths.snapshot)
        os.unlink(paths.journal)
        create(tmp_path).close()
        assert sorted(name.partition(".")[2] for name in os.listdir(tmp_path / "checkpoints")) == [
            "journal", "json", "lock"
        ]  # fmt: skip


def test_blobs_of_the_previous_pair_stay(tmp_path: Path) -> None:
    live = create(tmp_path, min_compact_bytes=0)
    start_task(live, "p" * LARGE)
    for number in range(1, 12):
        whole_step(live, number, f"{number:05}" * 5000)
    live.close()
    with open(paths_in(tmp_path).snapshot, "r+b") as handle:
        handle.write(b"X")
    again = reopen(tmp_path)
    assert again.report.lost_blobs == ()
    assert again.state.thread == live.state.thread
    again.close()


def test_a_file_system_without_second_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Disk, source: str, target: str) -> None:
        raise OSError(1, "Operation not permitted", source, None, target)

    monkeypatch.setattr(Disk, "link", refuse)
    state = session_after(tmp_path, resumed=False)
    with open(paths_in(tmp_path).snapshot, "r+b") as handle:
        handle.write(b"X")
    assert load(tmp_path) == state
