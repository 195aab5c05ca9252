"""A disk that refuses: nothing is taken for durable that is not, and nothing is lost once it takes writes again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from state import Damaged, SessionExists, StateError, WriteFailed
from state.disk import Disk, holder
from state.records import record_of
from tests.unit.state.helpers import (
    SESSION,
    commit,
    create,
    finish,
    load,
    on_disk,
    paths_in,
    reopen,
    start_task,
    turn,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state.file_session import FileSession

SEAMS = ("write", "sync", "sync_directory")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)


class SpoiltDisk:
    """In front of Disk: fails as often as told, and watches that a failed descriptor is not used again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self.seam = ""
        self.code = errno.ENOSPC
        self.calls = 0
        self.skip = 0
        self._held: list[int] = []
        for name in SEAMS:
            monkeypatch.setattr(Disk, name, self._wrapped(name, getattr(Disk, name)))

    def fail(self, seam: str, times: int, code: int = errno.ENOSPC) -> None:
        self.seam, self.failures, self.code = seam, times, code

    def fail_nth(self, seam: str, nth: int) -> None:
        """Only the `nth` call from now."""
        self.fail(seam, 1)
        self.skip = nth - 1

    def heal(self) -> None:
        self.failures = 0

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)

    def _wrapped(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(disk: Disk, target: int | str, *data: bytes) -> None:
            self.calls += 1
            if isinstance(target, int):
                assert not any(os.path.sameopenfile(target, fd) for fd in self._held), "a failed file is used again"
            if self.skip and name == self.seam:
                self.skip -= 1
            elif self.failures and name == self.seam:
                self.failures -= 1
                if data and isinstance(target, int):  # as a disk that fills up: some of it is there
                    os.write(target, data[0][: len(data[0]) // 2])
                if isinstance(target, int):
                    self._held.append(os.dup(target))  # keeps the inode from being given to another file
                raise OSError(self.code, os.strerror(self.code))
            real(disk, target, *data)

        return call


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpoiltDisk]:
    made = SpoiltDisk(monkeypatch)
    yield made
    made.close()


def survivors(tmp_path: Path) -> FileSession:
    """The session as another process would find it now."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    return reopen(tmp_path / "copy")


def durable_turn(store: FileSession) -> None:
    turn(store, "step_1", "c1")
    store.sync()


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("torn_by", ["write", "sync"])
def test_a_write_that_failed_once_is_carried_by_the_next(
    tmp_path: Path, disk: SpoiltDisk, torn_by: str, code: int
) -> None:
    store = create(tmp_path / "live")
    start_task(store)
    store.sync()
    disk.fail(torn_by, 1, code)
    with pytest.raises(WriteFailed, match=os.strerror(code)):
        durable_turn(store)
    assert store.state.open_step is not None
    store.sync()
    again = survivors(tmp_path)
    assert unnumbered(again.state) == unnumbered(store.state)
    again.close()
    finish(store, "c1")
    commit(store, 1)
    store.sync()
    again = survivors(tmp_path)
    assert unnumbered(again.state) == unnumbered(store.state)
    again.close()
    store.close()


def test_an_append_after_a_failure_carries_what_failed(tmp_path: Path, disk: SpoiltDisk) -> None:
    store = create(tmp_path / "live")
    start_task(store)
    disk.fail("sync", 1)
    with pytest.raises(WriteFailed):
        durable_turn(store)
    store.append(record_of("call_started", {"callId": "c1"}))
    again = survivors(tmp_path)
    assert unnumbered(again.state) == unnumbered(store.state)
    again.close()
    store.close()


@pytest.mark.parametrize("seam", SEAMS)
def test_a_disk_that_stays_bad_fails_every_write_and_loses_nothing(tmp_path: Path, disk: SpoiltDisk, seam: str) -> None:
    store = create(tmp_path / "live")
    start_task(store)
    store.sync()
    disk.fail("sync", 1)  # from here on only a new snapshot will do
    with pytest.raises(WriteFailed):
        durable_turn(store)
    disk.fail(seam, 10_000)
    for number in range(3):
        with pytest.raises(WriteFailed):
            finish(store, "c1", str(number))
        with pytest.raises(WriteFailed):
            store.sync()
    assert load(tmp_path / "live").task is not None  # what is there is still readable
    disk.heal()
    store.sync()
    found = load(tmp_path / "live")
    assert found == store.state
    assert found.open_step is not None
    assert found.open_step.calls[0].result is not None
    store.close()


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_compaction_that_fails_keeps_the_old_pair(
    tmp_path: Path, disk: SpoiltDisk, seam: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = create(tmp_path / "live", min_compact_bytes=0)
    start_task(store, "x" * 1000)
    whole_step(store, 1, "y" * 5000)
    turn(store, "step_2", "c2", text="z" * 50_000)
    before = unnumbered(store.state)
    real = getattr(Disk, seam)
    seen = 0

    def nth_time(*arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, seam, nth_time)
        with contextlib.suppress(WriteFailed):  # not raised where the old journal could be synced instead
            store.sync()
    assert seen >= nth
    again = survivors(tmp_path)
    assert unnumbered(again.state) == before
    again.close()
    store.sync()
    finish(store, "c2")
    store.sync()
    again = survivors(tmp_path)
    assert unnumbered(again.state) == unnumbered(store.state)
    again.close()
    store.close()


@pytest.mark.parametrize("seam", SEAMS)
def test_a_session_that_cannot_be_created_says_so_and_holds_no_lock(
    tmp_path: Path, disk: SpoiltDisk, seam: str
) -> None:
    disk.fail(seam, 1)
    with pytest.raises(WriteFailed, match="No space"):
        create(tmp_path)
    assert holder(paths_in(tmp_path).lock) is None


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_session_that_could_not_be_created_can_be_created_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: str, nth: int
) -> None:
    real = getattr(Disk, seam)
    seen = 0

    def nth_time(*arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, seam, nth_time)
        try:
            create(tmp_path).close()
        except WriteFailed:
            pass
        else:
            assert seen < nth
            return
    try:
        create(tmp_path).close()
    except SessionExists:  # all of it is in place, only not known to be durable
        reopen(tmp_path).close()


def test_an_end_that_cannot_be_put_on_record_is_no_end(tmp_path: Path, disk: SpoiltDisk) -> None:
    """Without its word a crash in the middle would leave a journal whose checkpoint is missing."""
    store = create(tmp_path)
    start_task(store)
    disk.fail("write", 10_000)
    with pytest.raises(WriteFailed):
        store.delete()
    disk.heal()
    again = reopen(tmp_path)
    assert again.state.task is not None
    again.delete()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_full_disk_at_resume_leaves_the_session_resumable(tmp_path: Path, disk: SpoiltDisk) -> None:
    store = create(tmp_path)
    start_task(store)
    whole_step(store, 1)
    expected = unnumbered(store.state)
    store.close()
    os.truncate(paths_in(tmp_path).journal, os.path.getsize(paths_in(tmp_path).journal) - 5)
    disk.fail("sync", 1)
    with pytest.raises(WriteFailed):
        reopen(tmp_path)
    assert holder(paths_in(tmp_path).lock) is None
    again = reopen(tmp_path)
    assert again.state.thread == expected.thread[:-1]  # the commit was torn
    assert on_disk(tmp_path).journal.torn_bytes == 0
    again.close()


def test_a_record_that_is_no_json_changes_nothing(tmp_path: Path) -> None:
    store = create(tmp_path)
    start_task(store)
    before, size = unnumbered(store.state), os.path.getsize(paths_in(tmp_path).journal)
    with pytest.raises(TypeError):
        store.append(record_of("session_status", {"status": object()}))
    assert unnumbered(store.state) == before
    assert os.path.getsize(paths_in(tmp_path).journal) == size
    store.close()
    assert load(tmp_path) == store.state


def test_the_lock_is_let_go_by_whatever_keeps_a_session_from_opening(tmp_path: Path) -> None:
    create(tmp_path).close()
    (tmp_path / "checkpoints" / f"{SESSION}.json").write_bytes(b'{"checkpointVersion":"9"}')
    for _ in range(2):
        with pytest.raises(StateError, match="version"):
            reopen(tmp_path)


def test_no_half_of_a_file_is_left_behind(tmp_path: Path, disk: SpoiltDisk) -> None:
    store = create(tmp_path)
    for seam in ("write", "sync"):
        disk.fail(seam, 1)
        with pytest.raises(WriteFailed):
            store.compact()
        assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.suffix == ".tmp"] == []
    store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits")
def test_a_disk_that_takes_only_a_part_is_a_failure(tmp_path: Path) -> None:
    """Real short writes: the kernel takes what fits below the limit and refuses the rest."""
    import resource

    store = create(tmp_path)
    start_task(store)
    before = unnumbered(store.state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(paths_in(tmp_path).journal) + 50, limits[1]))
    try:
        with pytest.raises(WriteFailed, match="File too large"):
            durable_turn(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = on_disk(tmp_path)
    assert found.state is not None
    assert found.journal.torn_bytes == 50
    assert unnumbered(found.state) == before
    store.sync()
    assert load(tmp_path) == store.state
    store.close()


@pytest.mark.parametrize("nth", [1, 2])
def test_copies_of_damaged_files_do_not_fill_a_full_disk(tmp_path: Path, disk: SpoiltDisk, nth: int) -> None:
    store = create(tmp_path)
    start_task(store)
    whole_step(store, 1)
    store.close()
    paths = paths_in(tmp_path)
    with open(paths.journal, "r+b") as handle:
        data = handle.read()
        handle.seek(data.index(b"call_finished"))
        handle.write(b"X")
    for _ in range(3):
        disk.fail_nth("write", nth)
        with pytest.raises(WriteFailed, match="No space"):
            reopen(tmp_path)
        assert [path.name for path in (tmp_path / "checkpoints").iterdir() if "corrupt" in path.name] == []
    disk.heal()
    with pytest.raises(Damaged):
        reopen(tmp_path)
    reopen(tmp_path).close()
