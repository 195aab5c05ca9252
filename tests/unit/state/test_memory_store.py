"""What the store in memory has of its own: no disk and no process, but limits, holders and times."""

from __future__ import annotations

import time

import pytest

from state import NoSuchSession, SessionExists, SessionLocked
from state.blobs import UNAVAILABLE
from state.file_session import LoadReport
from state.journal import encode
from state.records import NoteAdded, record_of
from tests.support.memory_store import MemoryCheckpointStore
from tests.unit.state.helpers import fresh_state, message, start_task


def test_the_list_tells_who_holds_what_and_since_when() -> None:
    store = MemoryCheckpointStore()
    before = time.time()
    second, first = store.create("b", fresh_state("b")), store.create("a", fresh_state("a"))
    first.close()
    rows = store.list()
    assert [(row.session_id, row.problem, row.pid) for row in rows] == [("a", "", None), ("b", "", 0)]
    assert all(before <= row.updated_at <= time.time() for row in rows)
    made = rows[1].updated_at
    while time.time() == made:
        pass
    start_task(second)
    assert store.list()[1].updated_at > made
    assert store.list()[1].state == second.state


def test_an_opened_session_is_held_until_it_is_let_go() -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(NoSuchSession, match="no session s to resume in memory"):
        store.open("s")
    session = store.create("s", fresh_state("s"))
    assert (session.report, session.storage_full) == (LoadReport(), False)
    for use in (store.open, lambda session_id: store.create(session_id, fresh_state())):
        with pytest.raises(SessionLocked, match="another process") as caught:
            use("s")
        assert caught.value.pid is None
    session.close()
    with pytest.raises(SessionExists, match="session s exists already"):
        store.create("s", fresh_state("s"))
    again = store.open("s")
    with pytest.raises(SessionLocked):
        store.open("s")
    again.close()


def test_records_are_counted_on() -> None:
    store = MemoryCheckpointStore()
    session = store.create("s", fresh_state("s"))
    start_task(session)
    session.commit(record_of("note", {}, message("system", "n")))
    session.sync()
    assert session.state.seq == 2
    assert store.load("s") == session.state
    session.compact()
    session.append(NoteAdded(message("system", "n")))
    assert session.state.seq == 3
    assert store.load("s") == session.state


def test_what_is_kept_has_a_limit() -> None:
    session = MemoryCheckpointStore(blob_limit_bytes=10).create("s", fresh_state("s"))
    first = session.keep(b"123456")
    assert session.keep(b"123456") == first
    assert session.keep(b"78901") == UNAVAILABLE
    full = [session.storage_full]
    assert session.keep(b"7890") != UNAVAILABLE
    assert (session.kept(first), session.kept(UNAVAILABLE), full) == (b"123456", None, [True])
    assert session.keep(b"123456") == first
    roomy = MemoryCheckpointStore().create("s", fresh_state("s"))
    assert roomy.keep(b"x" * 1_000_000) != UNAVAILABLE
    assert not roomy.storage_full


def test_an_end_leaves_nothing() -> None:
    store = MemoryCheckpointStore()
    session = store.create("s", fresh_state("s"))
    session.delete()
    assert session.state.session_status == "SESSION_COMPLETED"
    assert store.list() == []
    store.create("s", fresh_state("s")).close()


def test_a_record_s_fields() -> None:
    note = NoteAdded(b"{}", of_damage=True)
    assert encode(note) == b'{"kind":"note","ofDamage":true}'
    assert encode(note, {}) == encode(note)
    assert encode(NoteAdded(b"{}"), {"n": "ZGF0YQ=="}) == b'{"kind":"note","blobs":{"n":"ZGF0YQ=="}}'
