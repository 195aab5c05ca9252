"""The store on disk as a list tells it, and what keeps it from reading."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.faults.crash import FailingDisk, Faults
from agent_host.faults.disk import SimulatedDisk
from state import Damaged, NoSuchSession, SessionExists, WriteFailed
from state.disk import Disk, FileStatus
from state.file_session import LoadReport
from state.file_store import FileCheckpointStore
from state.journal import frame
from state.records import record_of
from tests.unit.state.helpers import (
    SESSION,
    create,
    fresh_state,
    load,
    message,
    paths_in,
    reopen,
    start_task,
    turn,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from pathlib import Path


class FlakyDisk(Disk):
    """A disk on which the first `bad` reads of a journal find one that is new since the snapshot was read."""

    def __init__(self, bad: int) -> None:
        self.bad = bad
        self.tried = 0

    def read(self, path: str) -> bytes:
        if path.endswith(".journal"):
            self.tried += 1
            if self.tried <= self.bad:
                return frame(90, 89, b'{"kind":"opened","sessionId":"%s"}' % SESSION.encode())
        return super().read(path)


class OddDisk(Disk):
    """Reading a checkpoint fails with `code`."""

    def __init__(self, code: int) -> None:
        self._code = code

    def read(self, path: str) -> bytes:
        raise OSError(self._code, os.strerror(self._code), path)


@pytest.mark.parametrize(("bad", "found", "tried"), [(0, True, 1), (2, True, 3), (3, False, 3)])
def test_a_list_looks_again_at_what_a_live_session_is_just_replacing(
    tmp_path: Path, bad: int, found: bool, tried: int
) -> None:
    session = create(tmp_path)
    disk = FlakyDisk(bad)
    (summary,) = FileCheckpointStore(str(tmp_path), disk).list()
    assert (summary.session_id, summary.pid, summary.state is not None) == (SESSION, os.getpid(), found)
    assert (summary.problem == "", disk.tried) == (found, tried)
    session.close()


def test_a_list_tells_the_newest_change_of_both_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        create(tmp_path, name).close()
    times = {"a": (5.5, 7.5), "b": (9.5, 3.5)}
    for name, both in times.items():
        for path, when in zip((paths_in(tmp_path, name).snapshot, paths_in(tmp_path, name).journal), both, strict=True):
            os.utime(path, (1, when))
    (tmp_path / "checkpoints" / "c.json").unlink()  # an end that was cut off
    (tmp_path / "checkpoints" / "d.journal").write_bytes(b"")
    (tmp_path / "checkpoints" / "e.lock").touch()
    (tmp_path / "checkpoints" / "f.json").write_bytes(b"")
    (tmp_path / "checkpoints" / "not an id.json").touch()
    found = FileCheckpointStore(str(tmp_path)).list()
    assert [(one.session_id, one.updated_at) for one in found[:2]] == [("a", 7.5), ("b", 9.5)]
    assert [one.session_id for one in found[2:]] == ["d", "f"]


class QuickDisk(Disk):
    """A disk on which a session ended just after its name was seen."""

    def names(self, path: str) -> list[str]:
        return [*super().names(path), "gone.journal"]


def test_a_session_that_ends_while_the_list_is_made_is_not_listed(tmp_path: Path) -> None:
    create(tmp_path).close()
    assert [one.session_id for one in FileCheckpointStore(str(tmp_path), QuickDisk()).list()] == [SESSION]


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    store = FileCheckpointStore(str(tmp_path / "state"))
    assert store.list() == []
    for use in (store.open, store.load):
        with pytest.raises(NoSuchSession, match=SESSION):
            use(SESSION)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("code", [errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EMLINK])
def test_what_is_put_in_a_file_s_place_meanwhile_is_damage(tmp_path: Path, code: int) -> None:
    create(tmp_path).close()
    with pytest.raises(Damaged, match=f"{SESSION}.json cannot be read: {os.strerror(code)}"):
        FileCheckpointStore(str(tmp_path), OddDisk(code)).load(SESSION)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOMEM])
def test_a_trouble_of_the_machine_is_no_damage(tmp_path: Path, code: int) -> None:
    create(tmp_path).close()
    before = sorted(os.listdir(tmp_path / "checkpoints"))
    store = FileCheckpointStore(str(tmp_path), OddDisk(code))
    for use in (store.load, store.open):
        with pytest.raises(WriteFailed, match=f"{SESSION}.json cannot be read: {os.strerror(code)}"):
            use(SESSION)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == before
    (summary,) = store.list()
    assert (summary.state, os.strerror(code) in summary.problem) == (None, True)


def test_files_that_vanish_while_they_are_read_are_none(tmp_path: Path) -> None:
    create(tmp_path).close()
    with pytest.raises(NoSuchSession):
        FileCheckpointStore(str(tmp_path), OddDisk(errno.ENOENT)).load(SESSION)


class BlindDisk(Disk):
    """A disk that cannot say what lies under a name."""

    def status(self, path: str) -> FileStatus | None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def names(self, path: str) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def test_a_disk_that_says_nothing_is_an_error_of_ours(tmp_path: Path) -> None:
    create(tmp_path).close()
    store = FileCheckpointStore(str(tmp_path), BlindDisk())
    with pytest.raises(WriteFailed, match="looking for the session"):
        store.open(SESSION)
    with pytest.raises(WriteFailed, match="reading the checkpoint"):
        store.load(SESSION)
    with pytest.raises(WriteFailed, match="listing the sessions"):
        store.list()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_journal_gives_way_above_256_kib(tmp_path: Path) -> None:
    session = create(tmp_path)
    start_task(session)
    journal = paths_in(tmp_path).journal
    opening = os.path.getsize(journal)
    room = 256 * 1024 - (os.path.getsize(journal) - _opening_bytes(tmp_path))
    session.append(record_of("note", {}, message("system", "x" * (room - _overhead(session, tmp_path)))))
    assert os.path.getsize(journal) - _opening_bytes(tmp_path) == 256 * 1024
    session.sync()
    assert os.path.getsize(journal) > opening + 200_000, "what is exactly at the limit stays"
    session.commit(record_of("note", {}, message("system", "one more")))
    assert os.path.getsize(journal) < 20_000
    assert load(tmp_path) == session.state
    session.close()


def _opening_bytes(directory: Path) -> int:
    with open(paths_in(directory).journal, "rb") as handle:
        return len(handle.readline())


def _overhead(session: object, directory: Path) -> int:
    """The bytes of a record with a note of about 256 KiB beside its text."""
    from state.journal import frame

    assert session is not None
    size = 260_000
    return len(frame(3, 2, b'{"kind":"note"}', message("system", "x" * size))) - size


def test_a_large_snapshot_lets_the_journal_grow_as_large(tmp_path: Path) -> None:
    session = create(tmp_path, min_compact_bytes=0)
    for _ in range(10):
        session.append(record_of("note", {}, message("system", "x" * 10_000)))
    session.compact()
    size = os.path.getsize(paths_in(tmp_path).snapshot)
    inode = os.stat(paths_in(tmp_path).snapshot).st_ino
    for _ in range(9):
        session.commit(record_of("note", {}, message("system", "x" * 10_000)))
    assert os.stat(paths_in(tmp_path).snapshot).st_ino == inode
    while os.path.getsize(paths_in(tmp_path).journal) < size:
        session.commit(record_of("note", {}, message("system", "x" * 10_000)))
    session.commit(record_of("note", {}, message("system", "x" * 10_000)))
    assert os.stat(paths_in(tmp_path).snapshot).st_ino != inode
    session.close()


@pytest.mark.parametrize(("more", "in_the_journal"), [(0, True), (1, False)])
def test_a_snapshot_of_16_kib_stands_in_the_journal(tmp_path: Path, more: int, in_the_journal: bool) -> None:
    session = create(tmp_path)
    session.append(record_of("note", {}, message("system", "")))
    session.compact()
    # The next snapshot's number has as many digits.
    room = 16 * 1024 - os.path.getsize(paths_in(tmp_path).snapshot) - len(b",\n") - len(message("system", ""))
    session.append(record_of("note", {}, message("system", "x" * (room + more))))
    session.compact()
    assert os.path.getsize(paths_in(tmp_path).snapshot) == 16 * 1024 + more
    with open(paths_in(tmp_path).journal, "rb") as handle:
        fields = orjson.loads(b"{" + handle.readline().partition(b"{")[2])
    assert ("snapshot" in fields) is in_the_journal
    assert (fields["kind"], fields["sessionId"], fields["status"]) == ("opened", SESSION, "SESSION_RUNNING")
    session.close()


def test_without_limits_of_its_own_a_store_has_these(tmp_path: Path) -> None:
    session = create(tmp_path)
    assert session.blobs.limit_bytes == 1024**3
    assert session.report == LoadReport(0, (), made_private=False, kept_aside=None)
    session.close()


# --- the life of one session ------------------------------------------------------------------------------------------


def test_a_session_that_is_let_go_twice(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    session.close()
    again = reopen(tmp_path)
    session.close()
    with pytest.raises(WriteFailed, match="lock"):
        session.sync()
    again.sync()
    again.close()


@pytest.mark.parametrize("name", ["lock", "journal"])
def test_what_is_written_to_a_file_without_a_name_is_told(tmp_path: Path, name: str) -> None:
    session = create(tmp_path)
    start_task(session)
    os.unlink(getattr(paths_in(tmp_path), name))
    with pytest.raises(WriteFailed, match="removed or replaced"):
        session.sync()
    if name == "journal":
        session.sync()  # a new one
        assert load(tmp_path) == session.state
    else:
        with pytest.raises(WriteFailed, match="removed or replaced"):
            session.compact()
    session.close()


def test_an_id_with_a_result_is_taken(tmp_path: Path) -> None:
    (tmp_path / "sessions" / SESSION).mkdir(parents=True)
    (tmp_path / "sessions" / SESSION / "result.json").write_bytes(b"{}")
    with pytest.raises(SessionExists, match="has ended earlier"):
        create(tmp_path)
    (tmp_path / "sessions" / SESSION / "result.json").unlink()
    create(tmp_path).close()


def test_a_creation_that_failed_leaves_no_lock_and_one_that_was_refused_leaves_the_other_s(tmp_path: Path) -> None:
    create(tmp_path).close()
    assert os.path.exists(paths_in(tmp_path).lock)
    with pytest.raises(SessionExists):
        create(tmp_path)
    assert os.path.exists(paths_in(tmp_path).lock)
    disk = FailingDisk(Disk(), Faults(fail_call=8, code=errno.ENOSPC))
    with pytest.raises(WriteFailed):
        FileCheckpointStore(str(tmp_path / "second"), disk).create(SESSION, fresh_state())
    assert disk.calls.count > 8
    assert list((tmp_path / "second").rglob("*.lock")) == []


def test_what_a_crash_left_is_told_once(tmp_path: Path) -> None:
    session = create(tmp_path)
    start_task(session)
    whole_step(session, 1)
    turn(session, "step_2", "c2")
    session.close()
    journal = paths_in(tmp_path).journal
    with open(journal, "r+b") as handle:
        handle.seek(-3, os.SEEK_END)
        handle.write(b"!")  # whole once, and so kept aside
    os.chmod(journal, 0o640)
    again = reopen(tmp_path)
    assert again.report.torn_bytes > 100
    assert again.report.made_private
    assert again.report.kept_aside == f"{paths_in(tmp_path).snapshot}.corrupt-1"
    assert again.state.step_cursor == "step_1"
    assert stat.S_IMODE(os.stat(journal).st_mode) == 0o600
    stray = tmp_path / "sessions" / SESSION / "blobs" / "stray"
    stray.parent.mkdir(exist_ok=True)
    stray.touch()
    again.close()
    third = reopen(tmp_path)
    assert third.report == LoadReport()
    assert unnumbered(third.state) == unnumbered(again.state)
    assert stray.exists(), "what was put aside may name it"
    third.close()


def test_a_clean_end_takes_the_blobs_and_what_was_left_half_written(tmp_path: Path) -> None:
    session = create(tmp_path)
    start_task(session, "p" * 20_000)
    session.compact()
    for path in (paths_in(tmp_path).snapshot, paths_in(tmp_path).journal):
        with open(f"{path}.tmp", "wb") as handle:
            handle.write(b"half")
    session.delete()
    assert os.listdir(tmp_path / "checkpoints") == []
    assert os.listdir(tmp_path / "sessions" / SESSION / "blobs") == []


def test_an_end_that_the_journal_refuses_is_carried_by_new_files() -> None:
    """The end is told by whatever the disk takes; then everything goes."""
    whole = SimulatedDisk()
    FileCheckpointStore("/", whole).create(SESSION, fresh_state())
    made = whole.calls.count
    disk = SimulatedDisk(Faults(fail_call=made + 1))
    FileCheckpointStore("/", disk).create(SESSION, fresh_state()).delete()
    assert disk.contents() == {}
    assert any("replace" in line for line in disk.calls.log[made + 1 :])
