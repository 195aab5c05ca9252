"""One session on disk over its whole life: what a power loss leaves at each promise, what stays open or locked."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.faults.crash import Faults
from agent_host.faults.disk import EXTREMES, SimulatedDisk
from state import Damaged, NoSuchSession, SessionExists, UnknownVersion, Untrusted, WriteFailed
from state.disk import LOCAL_DISK, Disk, FileStatus
from state.file_store import FileCheckpointStore
from state.journal import frame
from state.records import record_of
from tests.support.beside import Later
from tests.support.rows import each_row
from tests.unit.state.helpers import (
    SESSION,
    commit,
    create,
    finish,
    fresh_state,
    load,
    message,
    on_disk,
    paths_in,
    reopen,
    start_task,
    turn,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.faults.disk import PowerLossOutcome
    from state.checkpoint import Checkpoint
    from state.file_session import FileSession

SNAPSHOT, JOURNAL = f"/home/state/checkpoints/{SESSION}.json", f"/home/state/checkpoints/{SESSION}.journal"
each_outcome = pytest.mark.parametrize("outcome", EXTREMES.values(), ids=EXTREMES)


def begun(disk: SimulatedDisk, *, min_compact_bytes: int = 1 << 20) -> FileSession:
    store = FileCheckpointStore(
        "/home/state", disk, min_compact_bytes=min_compact_bytes, start_job=Later, archives=True
    )
    return store.create(SESSION, fresh_state())


def after(disk: SimulatedDisk, outcome: PowerLossOutcome) -> Checkpoint:
    """The session as the next process finds it when the machine loses its power now."""
    found = FileCheckpointStore("/home/state", disk.crash(outcome)).open(SESSION)
    assert found.report.lost_blobs == ()
    return unnumbered(found.state)


# --- power ------------------------------------------------------------------------------------------------------------


@each_outcome
def test_every_promise_outlives_a_power_loss(outcome: PowerLossOutcome) -> None:
    disk = SimulatedDisk()
    session = begun(disk)
    assert after(disk, outcome) == unnumbered(session.state)
    start_task(session, "p" * 20_000)
    turn(session, "step_1", "c1", gated=True)
    name = session.keep(b"first version")
    session.commit(record_of("call_started", {"callId": "c1", "baselines": {"/a": name}}))
    assert after(disk, outcome) == unnumbered(session.state)
    session.compact()
    assert after(disk, outcome) == unnumbered(session.state)
    finish(session, "c1", "r" * 20_000)
    commit(session, 1)
    session.sync()
    found = FileCheckpointStore("/home/state", disk.crash(outcome)).open(SESSION)
    assert unnumbered(found.state) == unnumbered(session.state)
    assert found.kept(name) == b"first version"


@each_outcome
def test_a_resume_is_a_promise(outcome: PowerLossOutcome) -> None:
    disk = SimulatedDisk()
    session = begun(disk)
    start_task(session)  # not synced, and the process dies
    second = disk.kill()
    resumed = FileCheckpointStore("/home/state", second).open(SESSION)
    assert resumed.state.task is not None
    assert after(second, outcome) == unnumbered(resumed.state)


@each_outcome
def test_an_end_outlives_a_power_loss(outcome: PowerLossOutcome) -> None:
    disk = SimulatedDisk()
    session = begun(disk)
    start_task(session)
    whole_step(session, 1)
    session.delete()
    again = disk.crash(outcome)
    with pytest.raises(NoSuchSession):
        FileCheckpointStore("/home/state", again).open(SESSION)
    assert SNAPSHOT not in again.contents()


def test_a_journal_is_closed_before_it_is_removed() -> None:
    disk = SimulatedDisk()
    begun(disk).delete()
    calls = [line.split()[1] for line in disk.calls.log if f"{SESSION}.journal)" in line]
    assert [call.partition("(")[0] for call in calls][-3:] == ["sync", "close", "remove"]


def test_the_journal_is_made_before_the_checkpoint() -> None:
    disk = SimulatedDisk()
    begun(disk)
    replaced = [line for line in disk.calls.log if "replace(" in line]
    assert ["journal" in line for line in replaced] == [True, False]
    locked = next(number for number, line in enumerate(disk.calls.log) if "lock(" in line)
    assert not any("open_new" in line for line in disk.calls.log[:locked])


# --- descriptors and locks --------------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def lock_of(directory: Path) -> bool:
    return os.path.exists(paths_in(directory).lock)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_a_session_holds_its_lock_and_its_journal_open_and_nothing_else(tmp_path: Path) -> None:
    before = open_files()
    session = create(tmp_path)
    start_task(session)
    assert open_files() == before + 2
    session.compact()
    session.keep(b"x" * 100_000)
    assert open_files() == before + 2
    session.close()
    assert (open_files(), lock_of(tmp_path)) == (before, True)
    for path in (paths_in(tmp_path).snapshot, paths_in(tmp_path).journal):
        with open(path, "wb") as handle:
            handle.write(b"rubbish\n")
    with pytest.raises(Damaged) as caught:
        reopen(tmp_path)
    assert caught.value.salvaged is False
    assert (open_files(), lock_of(tmp_path)) == (before, False)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_what_was_saved_from_damage_is_let_go(tmp_path: Path) -> None:
    session = create(tmp_path)
    start_task(session)
    whole_step(session, 1)
    turn(session, "step_2", text="do it")
    session.close()
    before = open_files()
    data = LOCAL_DISK.read(paths_in(tmp_path).journal)
    with open(paths_in(tmp_path).journal, "wb") as handle:
        at = data.rindex(b"do it")
        handle.write(data[:at] + b"DO" + data[at + 2 :] + frame(session.state.seq + 1, session.state.seq, b"{}"))
    with pytest.raises(Damaged) as caught:
        reopen(tmp_path)
    assert caught.value.salvaged
    assert (open_files(), lock_of(tmp_path)) == (before, True)
    again = reopen(tmp_path)
    again.close()
    assert open_files() == before


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_a_clean_end_that_fails_lets_go_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    session = create(tmp_path)
    start_task(session)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write", refuse)
        with pytest.raises(WriteFailed):
            session.delete()
    assert (open_files(), lock_of(tmp_path)) == (before, True)
    again = reopen(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "remove", refuse)
        with pytest.raises(WriteFailed, match="removing the checkpoint"):
            again.delete()
    assert (open_files(), lock_of(tmp_path)) == (before, True)


def refuse(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_a_creation_that_fails_takes_its_lock_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write", refuse)
        with pytest.raises(WriteFailed, match="writing the journal"):
            create(tmp_path)
    assert os.listdir(tmp_path / "checkpoints") == []
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "make_private_dir", refuse)
        with pytest.raises(WriteFailed, match="preparing the state directory"):
            create(tmp_path)
    create(tmp_path).close()


def test_a_session_that_is_left_untouched_keeps_its_lock_file(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    with open(paths_in(tmp_path).journal, "wb") as handle:
        handle.write(b"J9 later\n")
    with pytest.raises(UnknownVersion):
        reopen(tmp_path)
    assert lock_of(tmp_path)


# --- what lies there --------------------------------------------------------------------------------------------------


def test_the_time_of_a_checkpoint(tmp_path: Path) -> None:
    create(tmp_path).close()
    at = orjson.loads(LOCAL_DISK.read(paths_in(tmp_path).snapshot))["checkpointedAt"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", at)


def test_the_journal_s_opening(tmp_path: Path) -> None:
    session = create(tmp_path, disk=Boot("b1"))
    session.append(record_of("session_status", {"status": "SESSION_PAUSED"}))
    seq = session.state.seq
    session.compact()
    session.close()
    (record,) = on_disk(tmp_path).journal.records
    fields = orjson.loads(record.fields)
    assert (record.seq, record.synced, record.message) == (seq + 1, seq, None)
    assert fields.pop("snapshot") == LOCAL_DISK.read(paths_in(tmp_path).snapshot).decode()
    assert fields == {"kind": "opened", "sessionId": SESSION, "status": "SESSION_PAUSED", "boot": "b1"}


class Boot(Disk):
    def __init__(self, name: str) -> None:
        self._name = name

    def boot_id(self) -> str:
        return self._name


def test_a_session_that_has_ended_is_told_from_one_that_never_was(tmp_path: Path) -> None:
    store = FileCheckpointStore(str(tmp_path))
    with pytest.raises(NoSuchSession, match=f"no session {SESSION} to resume under {tmp_path}"):
        store.open(SESSION)
    create(tmp_path).delete()
    (tmp_path / "sessions" / SESSION / "result.json").touch()
    for use in (store.open, store.load):
        with pytest.raises(NoSuchSession, match=f"session {SESSION} has ended"):
            use(SESSION)


@pytest.mark.parametrize("byte", [b"K", b"\0"])
def test_one_byte_that_no_record_begins_with_is_kept_aside(tmp_path: Path, byte: bytes) -> None:
    session = create(tmp_path)
    start_task(session)
    turn(session, "step_1", "c1")
    session.close()
    with open(paths_in(tmp_path).journal, "ab") as handle:
        handle.write(byte)
    again = reopen(tmp_path)
    assert (again.report.torn_bytes, again.report.kept_aside is None) == (1, False)
    assert again.state.open_step is not None
    assert again.state.open_step.calls[0].started
    again.close()


@pytest.mark.parametrize("behind", [b"\n", b"\r\n", b" \n\t\n\n"])
def test_white_space_at_the_end_of_both_files_is_no_damage(tmp_path: Path, behind: bytes) -> None:
    """As an editor leaves it in which somebody looked at them."""
    session = create(tmp_path)
    start_task(session)
    turn(session, "step_1", "c1")
    session.close()
    paths = paths_in(tmp_path)
    for path in (paths.snapshot, paths.journal):
        with open(path, "ab") as handle:
            handle.write(behind)
    assert unnumbered(load(tmp_path)) == unnumbered(session.state)
    again = reopen(tmp_path)
    assert (again.report.torn_bytes, again.report.kept_aside) == (0, None)
    assert unnumbered(again.state) == unnumbered(session.state)
    again.close()


def test_a_gap_in_the_records_is_damage_in_any_boot(tmp_path: Path) -> None:
    session = create(tmp_path, disk=Boot("b1"))
    start_task(session)
    seq = session.state.seq
    session.close()
    with open(paths_in(tmp_path).journal, "ab") as handle:
        handle.write(frame(seq + 2, seq, b'{"kind":"note"}'))
    with pytest.raises(Damaged, match="before its end"):
        reopen(tmp_path, disk=Boot("b2"))


class OthersJournal(Disk):
    """The journal belongs to somebody else."""

    def status(self, path: str) -> FileStatus | None:
        found = super().status(path)
        return found._replace(foreign=True) if found and path.endswith(".journal") else found


@pytest.mark.parametrize("instead", ["nothing", "folder"])
def test_a_journal_of_another_user_beside_no_checkpoint(tmp_path: Path, instead: str) -> None:
    create(tmp_path).close()
    os.unlink(paths_in(tmp_path).snapshot)
    if instead == "folder":
        os.mkdir(paths_in(tmp_path).snapshot)
    with pytest.raises(Untrusted):
        FileCheckpointStore(str(tmp_path), OthersJournal()).load(SESSION)


def test_both_problems_and_the_first_of_them_is_told(tmp_path: Path) -> None:
    create(tmp_path).close()
    for path in (paths_in(tmp_path).snapshot, paths_in(tmp_path).journal):
        os.unlink(path)
        os.mkdir(path)
    assert on_disk(tmp_path).damage == f"{SESSION}.json is not a regular file"
    os.rmdir(paths_in(tmp_path).snapshot)
    assert on_disk(tmp_path).damage == f"{SESSION}.journal is not a regular file"
    with pytest.raises(Damaged):
        load(tmp_path)
    with pytest.raises(Damaged) as caught:
        reopen(tmp_path)
    assert caught.value.quarantined == f"{paths_in(tmp_path).journal}.corrupt-1"


def compaction_calls() -> tuple[int, int, int]:
    """The numbers of a compaction's first call, of that which puts the new journal in its place, and of its last."""
    whole = SimulatedDisk()
    start_task(session := begun(whole, min_compact_bytes=0), "p" * 5000)
    before = whole.calls.count
    session.sync()
    named = [number for number, line in enumerate(whole.calls.log, 1) if f"journal.tmp, {JOURNAL})" in line]
    first = next(n for n, line in enumerate(whole.calls.log, 1) if n > before and f"open_new({SNAPSHOT}.tmp)" in line)
    return first, named[-1], whole.calls.count


FIRST, NAMED, LAST = compaction_calls()


@pytest.mark.slow
@each_row("call", range(FIRST, NAMED - 1))  # the last of them closes a file, which cannot fail
def test_a_compaction_that_cannot_be_is_a_sync_all_the_same(call: int) -> None:
    """A disk too full for a new snapshot: the journal goes on."""
    disk = SimulatedDisk(Faults(fail_call=call))
    session = begun(disk, min_compact_bytes=0)
    start_task(session, "p" * 5000)
    session.sync()
    for outcome in EXTREMES.values():
        assert after(disk, outcome) == unnumbered(session.state)
    for _ in range(3):
        session.commit(record_of("note", {}, message("system", "n" * 5000)))
        for outcome in EXTREMES.values():
            assert after(disk, outcome) == unnumbered(session.state)
    assert disk.misuses == []
    assert [path for path in disk.contents() if path.endswith(".tmp")] == []


@pytest.mark.parametrize("call", range(NAMED, LAST + 1))
def test_a_journal_that_could_not_take_its_place_is_told(call: int) -> None:
    disk = SimulatedDisk(Faults(fail_call=call))
    session = begun(disk, min_compact_bytes=0)
    start_task(session, "p" * 5000)
    with pytest.raises(WriteFailed, match="putting the new journal in place"):
        session.sync()
    session.sync()
    assert FileCheckpointStore("/home/state", disk.kill()).load(SESSION) == session.state
    for outcome in EXTREMES.values():
        assert after(disk, outcome) == unnumbered(session.state)


def test_a_new_journal_that_cannot_be_made_is_made_by_the_next_write() -> None:
    """The snapshot is new by then, and the old journal closed."""
    whole = SimulatedDisk()
    begun(whole).compact()
    renamed = [
        number for number, line in enumerate(whole.calls.log, 1) if "replace(" in line and f"{SESSION}.journal)" in line
    ]
    for use in ("append", "sync", "compact"):
        disk = SimulatedDisk(Faults(fail_call=renamed[-1]))
        session = begun(disk)
        with pytest.raises(WriteFailed, match="writing the checkpoint"):
            session.compact()
        if use == "append":
            session.append(record_of("note", {}, message("system", "n")))
        elif use == "sync":
            session.sync()
        else:
            session.compact()
        found = FileCheckpointStore("/home/state", disk.kill()).load(SESSION)
        assert found == session.state
        assert disk.misuses == []


def test_a_session_that_was_let_go_takes_no_records(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    with pytest.raises(WriteFailed, match="lock"):
        session.append(record_of("note", {}, message("system", "n")))
    assert load(tmp_path).thread == fresh_state().thread


def test_a_damaged_journal_alone_is_not_overwritten(tmp_path: Path) -> None:
    create(tmp_path).close()
    os.unlink(paths_in(tmp_path).snapshot)
    with open(paths_in(tmp_path).journal, "wb") as handle:
        handle.write(frame(4, 3, b'{"kind":"opened"}'))
    with pytest.raises(SessionExists):
        create(tmp_path)
    assert LOCAL_DISK.read(paths_in(tmp_path).journal) == frame(4, 3, b'{"kind":"opened"}')
