"""What stays of a session's records when it has ended: all of them, whatever happened on the way."""

from __future__ import annotations

import base64
import os
import stat
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.faults.crash import Faults, Killed
from agent_host.faults.disk import SimulatedDisk
from state import NoSuchSession
from state.blobs import sha256_hex
from state.checkpoint import ENDED
from state.file_store import FileCheckpointStore
from state.journal import JournalLine, frame, parse
from state.records import record_of
from tests.support.beside import Later

from .helpers import SESSION, commit, fresh_state, message, paths_in, start_task, turn, unnumbered, whole_step

if TYPE_CHECKING:
    from pathlib import Path

    from state.checkpoint import Checkpoint
    from state.disk import Disk
    from state.file_session import FileSession

STEPS = 6


def store_at(directory: Path | str, **options: Any) -> FileCheckpointStore:
    return FileCheckpointStore(
        str(directory), **{"archives": True, "min_compact_bytes": 0, "start_job": Later, **options}
    )


def worked(session: FileSession, steps: range = range(1, STEPS + 1)) -> None:
    for number in steps:
        whole_step(session, number, f"{number:03}" * 700)


def archived(disk: Disk, directory: Path | str) -> tuple[bytes, list[JournalLine]]:
    """The first snapshot, and each record once, in order."""
    folder = paths_in(directory).archive
    names = sorted(disk.names(folder))
    (base,) = [name for name in names if name.endswith(".json")]
    records: dict[int, JournalLine] = {}
    for name in names:
        if name.endswith(".journal"):
            found = parse(disk.read(os.path.join(folder, name)))
            assert not found.damaged
            assert int(name.partition(".")[0]) == found.records[0].seq
            records |= {record.seq: record for record in found.records if record.seq not in records}
    return disk.read(os.path.join(folder, base)), [records[seq] for seq in sorted(records)]


def rebuilt(disk: Disk, directory: Path | str, tmp_path: Path) -> Checkpoint:
    """The session as it was before its end, from the archive and the folder of blobs."""
    base, records = archived(disk, directory)
    assert [record.seq for record in records] == list(range(records[0].seq, records[-1].seq + 1))
    assert ENDED.encode() in records[-1].fields
    paths = paths_in(tmp_path / "again")
    os.makedirs(paths.checkpoints, mode=0o700)
    os.makedirs(paths.blobs, mode=0o700)
    kept = paths_in(directory).blobs
    for path, data in (
        *((os.path.join(paths.blobs, name), disk.read(os.path.join(kept, name))) for name in disk.names(kept)),
        (paths.snapshot, base),
        (paths.journal, b"".join(frame(one.seq, one.synced, one.fields, one.message) for one in records[:-1])),
    ):
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as handle:
            handle.write(data)
    return FileCheckpointStore(str(tmp_path / "again")).load(SESSION)


def test_an_ended_session_leaves_every_record(tmp_path: Path) -> None:
    session = store_at(tmp_path).create(SESSION, fresh_state())
    start_task(session, "p" * 20_000)
    worked(session)
    session.close()
    session = store_at(tmp_path).open(SESSION)
    worked(session, range(STEPS + 1, 2 * STEPS + 1))
    before = unnumbered(session.state)
    disk = session._storage.disk
    session.delete()
    assert session.unarchived is None
    assert os.listdir(paths_in(tmp_path).checkpoints) == []
    journals = [name for name in os.listdir(paths_in(tmp_path).archive) if name.endswith(".journal")]
    assert len(journals) >= 3
    after = unnumbered(rebuilt(disk, tmp_path, tmp_path))
    assert (after.thread, after.task, after.usage) == (before.thread, before.task, before.usage)


def test_an_ended_session_leaves_what_a_page_shows(tmp_path: Path) -> None:
    """The tree of its messages, colours of what commands printed, and pictures of any size."""
    coloured, data = {"stdout": "\x1b[31mred\x1b[0m\n"}, base64.b64encode(os.urandom(100_000)).decode()
    picture = {"mediaType": "image/png", "width": 1, "height": 1, "bytes": 100_000, "data": data}
    session = store_at(tmp_path).create(SESSION, fresh_state())
    start_task(session)
    turn(session, "step_1", "c1")
    result = message("tool", "red", toolCallId="c1", images=[picture], parentId="msg_1", branch="main")
    session.append(record_of("call_finished", {"callId": "c1", "status": "succeeded", "coloured": coloured}, result))
    commit(session, 1)
    worked(session, range(2, STEPS))
    disk = session._storage.disk
    session.delete()
    _, records = archived(disk, tmp_path)
    (found,) = (one for one in records if b'"coloured"' in one.fields)
    assert orjson.loads(found.fields)["coloured"] == coloured
    assert found.message == result
    assert result in rebuilt(disk, tmp_path, tmp_path).thread


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_the_archive_is_for_its_owner_alone(tmp_path: Path) -> None:
    session = store_at(tmp_path).create(SESSION, fresh_state())
    start_task(session)
    session.delete()
    folder = paths_in(tmp_path).archive
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert {stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) for name in os.listdir(folder)} == {0o600}


def test_a_session_killed_at_any_call_and_gone_on_with_leaves_every_record(tmp_path: Path) -> None:
    def task(disk: SimulatedDisk) -> None:
        session = store_at("/state", disk=disk).create(SESSION, fresh_state())
        start_task(session, "p" * 20_000)
        session.sync()
        worked(session)

    whole = SimulatedDisk()
    task(whole)
    begun = next(
        number for number, line in enumerate(whole.calls.log, 1) if f", {paths_in('/state').snapshot})" in line
    )
    for call in range(begun + 2, whole.calls.count + 1):
        disk = SimulatedDisk(Faults(kill_before=call))
        with pytest.raises(Killed):
            task(disk)
        killed = disk.kill()
        session = store_at("/state", disk=killed).open(SESSION)
        session.append(record_of("session_status", {"status": "SESSION_RUNNING"}))
        before = unnumbered(session.state)
        has_begun = session.state.task is not None or bool(session.state.earlier_tasks)
        session.delete()
        assert session.unarchived is None, disk.explain()
        if has_begun:
            after = unnumbered(rebuilt(killed, "/state", tmp_path / str(call)))
            assert (after.thread, after.task) == (before.thread, before.task), disk.explain()


def test_an_end_that_is_cut_off_loses_nothing(tmp_path: Path) -> None:
    """Killed before each call of `delete`: the session can be resumed, or its archive is whole."""

    def prepared(disk: SimulatedDisk) -> FileSession:
        session = store_at("/state", disk=disk).create(SESSION, fresh_state())
        start_task(session, "p" * 20_000)
        worked(session)
        return session

    whole = SimulatedDisk()
    session = prepared(whole)
    first = whole.calls.count + 1
    expected = unnumbered(session.state)
    session.delete()
    for call in range(first, whole.calls.count + 1):
        disk = SimulatedDisk(Faults(kill_before=call))
        session = prepared(disk)
        with pytest.raises(Killed):
            session.delete()
        killed = disk.kill()
        try:
            again = store_at("/state", disk=killed).open(SESSION)
        except NoSuchSession:
            pass
        else:
            again.delete()
        after = unnumbered(rebuilt(killed, "/state", tmp_path / str(call)))
        assert (after.thread, after.task) == (expected.thread, expected.task), disk.explain()


def test_versions_of_files_stay(tmp_path: Path) -> None:
    session = store_at(tmp_path).create(SESSION, fresh_state())
    start_task(session)
    large, later = b"l" * 100_000, b"m" * 100_000
    name = session.keep(large)
    session.commit(record_of("session_status", {"status": "SESSION_RUNNING"}))
    session.close()
    session = store_at(tmp_path).open(SESSION)  # which sweeps what no record names, but not versions
    session.keep(later)
    session.commit(record_of("session_status", {"status": "SESSION_RUNNING"}))
    session.delete()
    for data in (large, later):
        with open(os.path.join(paths_in(tmp_path).blobs, sha256_hex(data)), "rb") as handle:
            assert handle.read() == data
    assert name == sha256_hex(large)


def test_without_an_archive_nothing_of_it_stays(tmp_path: Path) -> None:
    session = store_at(tmp_path, archives=False).create(SESSION, fresh_state())
    start_task(session)
    session.keep(b"l" * 100_000)
    worked(session)
    session.delete()
    assert not os.path.exists(paths_in(tmp_path).archive)
    assert os.listdir(paths_in(tmp_path).blobs) == []


def test_a_session_without_a_task_leaves_nothing(tmp_path: Path) -> None:
    store_at(tmp_path).create(SESSION, fresh_state()).delete()
    assert not os.path.exists(paths_in(tmp_path).archive)


def test_the_archive_counts_as_stored(tmp_path: Path) -> None:
    session = store_at(tmp_path, blob_limit_bytes=8_000).create(SESSION, fresh_state())
    start_task(session)
    worked(session, range(1, 30))
    assert session.storage_full
    session.delete()
    folder = paths_in(tmp_path).archive
    assert 0 < sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)) <= 8_000


def test_what_finds_no_room_ends_the_archive_and_leaves_no_gap(tmp_path: Path) -> None:
    """Also where a later process has room for what it records itself."""
    session = store_at(tmp_path, blob_limit_bytes=8_000).create(SESSION, fresh_state())
    start_task(session)
    worked(session, range(1, 30))
    assert session.storage_full
    session.close()
    session = store_at(tmp_path).open(SESSION)
    whole_step(session, 30)
    disk = session._storage.disk
    session.delete()
    _, records = archived(disk, tmp_path)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert ENDED.encode() not in records[-1].fields


def test_an_archive_that_is_switched_off_goes(tmp_path: Path) -> None:
    session = store_at(tmp_path).create(SESSION, fresh_state())
    start_task(session)
    worked(session)
    session.close()
    assert os.listdir(paths_in(tmp_path).archive)
    store_at(tmp_path, archives=False).open(SESSION).delete()
    assert os.listdir(paths_in(tmp_path).archive) == []


def test_a_disk_that_takes_no_archive_ends_the_session_all_the_same(tmp_path: Path) -> None:
    session = store_at(tmp_path).create(SESSION, fresh_state())
    start_task(session)
    with open(paths_in(tmp_path).archive, "wb"):  # where the folder should be
        session.delete()
    assert session.unarchived is not None
    assert session.unarchived.startswith("the session's records could not be archived")
    assert os.listdir(paths_in(tmp_path).checkpoints) == []


def test_a_new_session_of_the_id_begins_its_own_archive(tmp_path: Path) -> None:
    for prompt in ("first", "second"):
        session = store_at(tmp_path).create(SESSION, fresh_state())
        start_task(session, prompt)
        before = unnumbered(session.state)
        session.delete()
    after = unnumbered(rebuilt(session._storage.disk, tmp_path, tmp_path))
    assert (after.thread, after.task) == (before.thread, before.task)


def test_a_session_that_has_ended_is_reopened_as_it_was(tmp_path: Path) -> None:
    for times in range(1, 3):
        store = store_at(tmp_path)
        session = store.create(SESSION, fresh_state()) if times == 1 else store.open(SESSION, ended_too=True)
        if times == 1:
            start_task(session, "p" * 20_000)
        first, last = (1, STEPS) if times == 1 else (STEPS + 1, 2 * STEPS)
        worked(session, range(first, last + 1))
        kept = session.keep(b"kept" * 10_000)
        before = unnumbered(session.state)
        session.delete()
        again = store.open(SESSION, ended_too=True)
        after = unnumbered(again.state)
        assert (after.thread, after.task, after.usage) == (before.thread, before.task, before.usage)
        assert again.kept(kept) == b"kept" * 10_000
        again.delete()


def test_a_reopening_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    def ended() -> SimulatedDisk:
        disk = SimulatedDisk()
        session = store_at("/state", disk=disk).create(SESSION, fresh_state())
        start_task(session, "p" * 20_000)
        worked(session)
        session.delete()
        return disk

    whole = ended()
    before = whole.calls.count
    state = unnumbered(store_at("/state", disk=whole).open(SESSION, ended_too=True).state)
    for call in range(before + 1, whole.calls.count + 1):
        disk = ended()
        disk.calls.faults = Faults(kill_before=call)
        with pytest.raises(Killed):
            store_at("/state", disk=disk).open(SESSION, ended_too=True)
        killed = disk.kill()
        store = store_at("/state", disk=killed)
        try:
            session = store.open(SESSION)
        except NoSuchSession:
            session = store.open(SESSION, ended_too=True)
        assert (session.state.thread, session.state.task) == (state.thread, state.task), disk.explain()


def test_what_was_not_archived_is_not_reopened(tmp_path: Path) -> None:
    session = store_at(tmp_path, archives=False).create(SESSION, fresh_state())
    start_task(session)
    session.delete()
    with pytest.raises(NoSuchSession, match="were not kept"):
        store_at(tmp_path).open(SESSION, ended_too=True)
