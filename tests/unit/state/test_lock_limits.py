"""The lock's patience, its descriptors, and file systems that know no locks."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import pytest

from state import SessionLocked, WriteFailed
from state import disk as lock
from state.disk import SessionLock, holder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="flock")

DEAD = 999_999_999


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.lock")


@pytest.fixture
def held(path: str) -> Iterator[SessionLock]:
    made = SessionLock.acquire(path, "s")
    yield made
    made.release(remove=False)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the lock slept, without the sleep."""
    slept: list[float] = []
    monkeypatch.setattr(lock.time, "sleep", slept.append)  # type: ignore[attr-defined]  # the module's own import
    return slept


def write(path: str, content: bytes) -> None:
    with open(path, "wb") as handle:
        handle.write(content)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.usefixtures("held")
def test_a_live_holder_ends_the_wait_at_once(path: str, naps: list[float]) -> None:
    with pytest.raises(SessionLocked) as caught:
        SessionLock.acquire(path, "s")
    assert (caught.value.pid, naps) == (os.getpid(), [])
    assert str(caught.value) == f"session s is in use by process {os.getpid()}"


@pytest.mark.usefixtures("held")
def test_a_look_does_not_follow_a_link_to_a_held_lock(path: str) -> None:
    os.symlink(path, f"{path}.link")
    assert (holder(f"{path}.link"), holder(path)) == (None, os.getpid())


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("content", "pid", "who"),
    [
        (b"", None, "another process"),
        (b"12x\n", None, "another process"),
        (b"-5\n", None, "another process"),
        (b"%d\n" % DEAD, DEAD, f"process {DEAD}"),
        (b" %d \n" % DEAD, DEAD, f"process {DEAD}"),
    ],
)
def test_a_holder_that_may_only_be_looking_is_waited_for(
    path: str, naps: list[float], content: bytes, pid: int | None, who: str
) -> None:
    write(path, content)
    with pytest.raises(SessionLocked, match=f"in use by {who}$") as caught:
        SessionLock.acquire(path, "s")
    assert caught.value.pid == pid
    assert naps == [0.005] * 19
    assert holder(path) == (pid or 0)


@pytest.mark.usefixtures("held")
def test_a_process_of_another_user_is_alive(path: str, naps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), 0)
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(SessionLocked):
        SessionLock.acquire(path, "s")
    assert naps == []


def test_the_wait_ends_when_the_other_lets_go(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SessionLock.acquire(path, "s")
    write(path, b"%d\n" % DEAD)
    monkeypatch.setattr(lock.time, "sleep", lambda _: other.release(remove=True))  # type: ignore[attr-defined]  # as above
    mine = SessionLock.acquire(path, "s")
    assert mine.still_held()
    assert holder(path) == os.getpid()
    mine.release(remove=False)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_no_descriptor_is_left_open(path: str, naps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    first = SessionLock.acquire(path, "s")
    for content in (b"%d\n" % os.getpid(), b"%d\n" % DEAD):
        write(path, content)
        with pytest.raises(SessionLocked):
            SessionLock.acquire(path, "s")
        holder(path)
        assert open_files() == before + 1
    first.release(remove=False)
    assert open_files() == before
    with monkeypatch.context() as patch:
        patch.setattr(lock, "is_named", refuse)
        with pytest.raises(WriteFailed, match="cannot be looked at: Input/output error"):
            SessionLock.acquire(path, "s")
    assert open_files() == before
    seen = iter((False, True))  # somebody removes the file between the open and the lock
    with monkeypatch.context() as patch:
        patch.setattr(lock, "is_named", lambda *_: next(seen))
        SessionLock.acquire(path, "s").release(remove=False)
    assert open_files() == before
    assert naps == [0.005] * 19


def refuse(*_: object) -> bool:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_lock_without_its_name_is_held_no_more(path: str) -> None:
    made = SessionLock.acquire(path, "s")
    assert made.still_held()
    os.rename(path, f"{path}.moved")
    assert not made.still_held()
    os.rename(f"{path}.moved", path)
    assert made.still_held()
    made.release(remove=False)
    assert not made.still_held()
    other = SessionLock.acquire(path, "s")
    made.release(remove=True)
    assert other.still_held()
    other.release(remove=True)


def test_a_lock_that_cannot_be_looked_at_is_let_go_all_the_same(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SessionLock.acquire(path, "s")
    with monkeypatch.context() as patch:
        patch.setattr(lock, "is_named", refuse)
        with pytest.raises(OSError, match="Input"):
            made.still_held()
        made.release(remove=True)
    assert os.path.exists(path)
    SessionLock.acquire(path, "s").release(remove=True)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_the_descriptor_0_is_one_like_others(path: str) -> None:
    """A host that was started without a standard input may get it for its lock."""
    kept = os.dup(0)
    try:
        os.close(0)
        made = SessionLock.acquire(path, "s")
        assert os.readlink("/proc/self/fd/0") == path
        assert made.still_held()
        made.release(remove=True)
        assert not os.path.exists("/proc/self/fd/0")
        assert not os.path.exists(path)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_file_system_without_locks(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(WriteFailed, match="the lock cannot be taken: No locks available"):
        SessionLock.acquire(path, "s")
    assert holder(path) is None


def test_nobody_holds_what_is_not_there(path: str) -> None:
    assert holder(path) is None
    assert not os.path.exists(path)
    os.mkdir(path)
    assert holder(path) is None
    with pytest.raises(WriteFailed, match="cannot be opened: Is a directory"):
        SessionLock.acquire(path, "s")


def test_the_pid_is_put_in_the_place_of_a_longer_one(path: str) -> None:
    write(path, b"123456789012345678901234567890\nand more\n")
    made = SessionLock.acquire(path, "s")
    with open(path, "rb") as handle:
        assert handle.read() == b"%d\n" % os.getpid()
    assert holder(path) == os.getpid()
    made.release(remove=False)


def test_on_a_full_disk_the_lock_is_held_without_its_pid(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        made = SessionLock.acquire(path, "s")
    assert made.still_held()
    assert holder(path) == 0
    made.release(remove=False)
