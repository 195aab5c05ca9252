"""One process per session, for as long as it lives."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from state import SessionLocked, WriteFailed
from state.disk import SessionLock, holder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_HOLD = (
    "import sys; from state.disk import SessionLock; l = SessionLock.acquire(sys.argv[1], 's');"
    "print('held', flush=True); sys.stdin.read()"
)
_CHILD = (
    "import subprocess, sys; from state.disk import SessionLock; l = SessionLock.acquire(sys.argv[1], 's');"
    "c = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=sys.stdin);"
    "print(c.pid, flush=True); sys.stdin.read()"
)


@contextmanager
def process(path: str, code: str = _HOLD) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds the lock until its stdin is closed; with the line that it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", code, path], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()
            if child.stdin is not None:
                child.stdin.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.lock")


def test_a_second_process_is_refused_with_the_pid_of_the_first(path: str) -> None:
    with process(path) as (child, _):
        with pytest.raises(SessionLocked, match=f"session s is in use by process {child.pid}") as caught:
            SessionLock.acquire(path, "s")
        assert caught.value.pid == child.pid
        assert holder(path) == child.pid


def test_the_lock_of_a_killed_process_is_taken_over(path: str) -> None:
    with process(path) as (child, _):
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert os.path.exists(path)
        assert holder(path) is None
        lock = SessionLock.acquire(path, "s")
    assert holder(path) == os.getpid()
    with open(path) as handle:
        assert handle.read() == f"{os.getpid()}\n"
    lock.release(remove=True)


def test_a_child_of_the_killed_process_does_not_keep_the_lock(path: str) -> None:
    """Commands that a host has started must not hold its session after it is gone."""
    with process(path, _CHILD) as (host, grandchild):
        host.kill()
        host.wait()
        os.kill(int(grandchild), 0)  # still there
        SessionLock.acquire(path, "s").release(remove=True)


def test_release_keeps_or_removes_the_file(path: str) -> None:
    lock = SessionLock.acquire(path, "s")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    lock.release(remove=False)
    lock.release(remove=True)  # let go already: the file may be another's by now
    assert os.path.exists(path)
    assert holder(path) is None
    SessionLock.acquire(path, "s").release(remove=True)
    assert not os.path.exists(path)
    assert holder(path) is None


def test_a_link_in_place_of_the_lock_is_not_followed(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path / "target", path)
    with pytest.raises(WriteFailed, match="symbolic links"):
        SessionLock.acquire(path, "s")
    assert not (tmp_path / "target").exists()


def test_a_look_at_a_link_finds_nobody(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path / "target", path)
    assert holder(path) is None


@pytest.mark.parametrize("content", [b"", b"garbage\n", b"999999999\n"])
def test_what_stands_in_a_stale_file_does_not_matter(path: str, content: bytes) -> None:
    with open(path, "wb") as handle:
        handle.write(content)
    lock = SessionLock.acquire(path, "s")
    with open(path, "rb") as handle:
        assert handle.read() == b"%d\n" % os.getpid()
    lock.release(remove=False)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_the_file_is_removed_while_it_is_still_held(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the close the name may be another process's lock."""
    lock = SessionLock.acquire(path, "s")
    real, seen = os.unlink, []

    def watch(name: str) -> None:
        seen.append(holder(name))
        real(name)

    monkeypatch.setattr(os, "unlink", watch)
    lock.release(remove=True)
    assert seen == [os.getpid()]


def test_a_look_at_the_lock_does_not_turn_its_owner_away(path: str) -> None:
    """`holder` takes the lock for an instant; a process that starts then must get it all the same."""
    with open(path, "wb") as handle:
        handle.write(b"999999999\n")  # a stale file, as the process that comes next finds it
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            holder(path)

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(100):
            lock = SessionLock.acquire(path, "s")
            os.pwrite(lock._fd, b"999999999\n", 0)
            lock.release(remove=False)
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()


def test_only_one_holds_it_while_others_release_and_remove(path: str) -> None:
    inside: list[int] = []
    overlaps: list[int] = []
    taken = [0] * 4

    def work(number: int) -> None:
        while taken[number] < 60:
            try:
                lock = SessionLock.acquire(path, "s")
            except SessionLocked:
                continue
            inside.append(number)
            if len(inside) != 1 or holder(path) != os.getpid():
                overlaps.append(number)
            inside.remove(number)
            taken[number] += 1
            lock.release(remove=taken[number] % 3 != 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert taken == [60] * 4
    assert overlaps == []


def test_another_process_s_file_under_the_name_stays(path: str) -> None:
    lock = SessionLock.acquire(path, "s")
    os.unlink(path)
    other = SessionLock.acquire(path, "s")
    lock.release(remove=True)
    assert other.still_held()
    other.release(remove=True)
    assert not os.path.exists(path)
