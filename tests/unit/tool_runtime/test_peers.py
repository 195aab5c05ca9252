"""Who is at the other end of a socket, and what that process descends from."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.host.peers import PeerCheck
from state.disk import SessionLock
from tool_runtime.platform.peers import MOST_ANCESTORS, Peer, PeerUnreadable, environment_of, lineage, open_files_of
from tool_runtime.platform.posix import ProcessEntry
from tool_runtime.platform.windows import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def entry(pid: int, parent: int, started: int = 0) -> ProcessEntry:
    return ProcessEntry(pid, parent, 0, True, started)


def table(*entries: ProcessEntry) -> dict[int, ProcessEntry]:
    return {one.pid: one for one in entries}


def test_a_lineage_goes_to_the_first_process() -> None:
    known = table(entry(1, 0, 0), entry(7, 1, 5), entry(9, 7, 5), entry(8, 1, 3))
    assert [one.pid for one in lineage(9, known.get)] == [9, 7, 1]
    assert [one.pid for one in lineage(1, known.get)] == [1]


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (table(), "process 9 cannot be looked at"),
        (table(entry(9, 7, 5)), "process 7 cannot be looked at"),
        (table(entry(9, 7, 5), entry(7, 1, 6), entry(1, 0)), "process 7 cannot be looked at"),
        (table(entry(9, 9, 5)), "too many processes before 9"),
        (table(entry(9, 7), entry(7, 9)), "too many processes before 9"),
    ],
    ids=["gone", "its parent is gone", "its parent is younger", "its own parent", "a circle"],
)
def test_a_process_that_cannot_be_looked_at_has_no_lineage(known: dict[int, ProcessEntry], why: str) -> None:
    with pytest.raises(PeerUnreadable, match=why):
        lineage(9, known.get)


@pytest.mark.parametrize("pid", [0, -1])
def test_who_is_not_of_this_machine_has_no_lineage(pid: int) -> None:
    with pytest.raises(PeerUnreadable, match="another container"):
        lineage(pid, table().get)


@given(
    st.dictionaries(st.integers(1, 12), st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=12),
    st.integers(-1, 12),
)
def test_a_lineage_is_short_and_grows_older_whatever_the_table_says(rows: dict[int, tuple[int, int]], pid: int) -> None:
    known = {one: entry(one, parent, started) for one, (parent, started) in rows.items()}
    try:
        chain = lineage(pid, known.get)
    except PeerUnreadable:
        return
    assert 1 <= len(chain) <= MOST_ANCESTORS
    assert [one.started for one in chain] == sorted((one.started for one in chain), reverse=True)
    assert all(child.parent == parent.pid for child, parent in itertools.pairwise(chain))
    assert (chain[0].pid, chain[-1].parent) == (pid, 0)


def test_a_chain_that_is_too_long_is_refused() -> None:
    known = {pid: entry(pid, pid - 1) for pid in range(1, MOST_ANCESTORS + 2)}
    assert len(lineage(MOST_ANCESTORS, known.get)) == MOST_ANCESTORS
    with pytest.raises(PeerUnreadable, match="too many"):
        lineage(MOST_ANCESTORS + 1, known.get)


def row(pid: int, parent: int) -> bytes:
    """A PROCESSENTRY32W."""
    return struct.pack("<III4xQIIIiI", 568, 0, pid, 0, 0, 1, parent, 8, 0).ljust(568, b"\0")


def test_the_process_table_of_windows() -> None:
    """A parent that is gone is nobody; what is in a job of ours is ours, whoever started it."""
    rows = [row(0, 0), row(4, 0), row(100, 4), row(200, 100), row(300, 77), row(400, 77)]
    known = table_of(rows, {400}, own=200)
    assert {pid: one.parent for pid, one in known.items()} == {4: 0, 100: 4, 200: 100, 300: 0, 400: 200}
    assert [one.pid for one in lineage(400, known.get)] == [400, 200, 100, 4]


if sys.platform != "win32":
    CONNECT = """
import os, socket, sys
wire = socket.socket(socket.AF_UNIX)
wire.connect(sys.argv[1])
sys.stdin.read()
"""

    @pytest.fixture
    def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
        monkeypatch.chdir(tmp_path)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("s")
            bound.listen()
            yield bound

    def connected(listener: socket.socket, *before: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        process = subprocess.Popen([*before, sys.executable, "-c", CONNECT, "s"], stdin=subprocess.PIPE)
        listener.settimeout(60)
        return process, listener.accept()[0]

    @LINUX
    def test_a_peer_counts_as_long_as_it_lives(listener: socket.socket) -> None:
        process, wire = connected(listener)
        with process, wire:
            peer = Peer(wire)
            assert (peer.pid, peer.uid) == (process.pid, os.geteuid())
            assert [one.pid for one in peer.lineage()][:2] == [process.pid, os.getpid()]
            assert b"PATH=" in environment_of(peer.pid)
            process.communicate()
            with pytest.raises(PeerUnreadable):
                peer.lineage()
            with pytest.raises(PeerUnreadable):
                environment_of(process.pid)
            peer.close()
            with pytest.raises(PeerUnreadable):
                Peer(wire).lineage()

    def test_a_process_of_this_one_is_refused(listener: socket.socket, tmp_path: Path) -> None:
        process, wire = connected(listener, "/usr/bin/env", "-i")
        with process, wire:
            check = PeerCheck(os.fspath(tmp_path), wire)
            assert check.refusal() == (
                f"process {process.pid} was started by a session's command, which answers no question"
            )
            check.close()
            process.communicate()

    def test_what_is_no_socket_is_refused(tmp_path: Path) -> None:
        check = PeerCheck(os.fspath(tmp_path), object())
        assert "the system does not report who connected" in str(check.refusal())
        check.close()

    @LINUX
    def test_the_lock_of_a_session_is_seen_in_any_state_directory(tmp_path: Path) -> None:
        folder = tmp_path / "checkpoints"
        folder.mkdir()
        lock = SessionLock.acquire(os.fspath(folder / "s.lock"), "s")
        assert os.fspath(folder / "s.lock") in open_files_of(os.getpid())
        lock.release(remove=True)
        assert os.fspath(folder / "s.lock") not in open_files_of(os.getpid())
        assert open_files_of(2**22 + 1) == []
