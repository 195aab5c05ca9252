"""What every store of sessions promises: one suite, run against each.

A further store joins by a `Home` of its own in `HOMES`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

import pytest

from state import InvalidSessionId, NoSuchSession, SessionExists, SessionLocked
from state.blobs import UNAVAILABLE, sha256_hex
from state.file_store import FileCheckpointStore
from state.records import record_of
from tests.support.memory_store import MemoryCheckpointStore
from tests.unit.state.helpers import (
    USAGE,
    commit,
    finish,
    fresh_state,
    message,
    start_task,
    turn,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state.file_session import FileSession
    from tests.support.memory_store import CheckpointStore

BLOB_LIMIT = 200_000


class Home(Protocol):
    """Where sessions lie: `store` gives the store as a new process would, over what is there already."""

    def store(self) -> CheckpointStore: ...


class OnDisk:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self) -> CheckpointStore:
        return FileCheckpointStore(str(self._folder), blob_limit_bytes=BLOB_LIMIT)


class OnDiskWithSnapshotsAllTheTime(OnDisk):
    def store(self) -> CheckpointStore:
        return FileCheckpointStore(str(self._folder), min_compact_bytes=0, blob_limit_bytes=BLOB_LIMIT)


class OnDiskWithArchive(OnDisk):
    def store(self) -> CheckpointStore:
        return FileCheckpointStore(str(self._folder), min_compact_bytes=0, blob_limit_bytes=BLOB_LIMIT, archives=True)


class InMemory:
    def __init__(self, _: Path) -> None:
        self._store = MemoryCheckpointStore(blob_limit_bytes=BLOB_LIMIT)

    def store(self) -> CheckpointStore:
        return self._store


HOMES: list[Callable[[Path], Home]] = [OnDisk, OnDiskWithSnapshotsAllTheTime, OnDiskWithArchive, InMemory]


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    made: Home = request.param(tmp_path)
    return made


@pytest.fixture
def new(home: Home) -> Callable[[str], FileSession]:
    return lambda session_id: home.store().create(session_id, fresh_state(session_id))


def worked(session: FileSession) -> FileSession:
    """In the middle of its second step."""
    start_task(session)
    whole_step(session, 1)
    turn(session, "step_2", "c2", "c3", gated=True, text="two at once")
    session.sync()
    answer = {"approved": True, "scope": "once", "reason": ""}
    session.append(record_of("approval", {"callId": "c2", "approvalId": "appr_c2", **answer}))
    session.append(record_of("grant", {"scope": "session", "approvalId": "appr_1", "toolName": "RunCommand"}))
    session.append(record_of("call_started", {"callId": "c2"}))
    finish(session, "c2", "done")
    return session


def test_a_session_is_as_it_was_left(home: Home, new: Callable[[str], FileSession]) -> None:
    left = worked(new("s"))
    left.close()
    again = home.store().open("s")
    assert unnumbered(again.state) == unnumbered(left.state)
    assert (again.report.torn_bytes, again.report.lost_blobs) == (0, ())
    finish(again, "c3")
    again.commit(record_of("step_committed", {"stepCount": 2}))
    again.close()
    third = home.store().open("s")
    assert unnumbered(third.state) == unnumbered(again.state)
    assert third.state.open_step is None
    third.close()


def test_a_record_that_is_tried_is_a_record(home: Home, new: Callable[[str], FileSession]) -> None:
    tried, appended = new("tried"), new("appended")
    task = record_of("task_started", {"taskId": "t1", "prompt": "x", "maxSteps": 1}, message("user", "x"))
    tried.try_append(task)
    appended.append(task)
    for session in (tried, appended):
        whole_step(session, 1)
        session.close()
    again, other = home.store().open("tried"), home.store().open("appended")
    assert again.state.thread == other.state.thread
    assert again.state.task == other.state.task == tried.state.task
    again.close()
    other.close()


def test_the_number_of_a_record_is_never_given_twice(home: Home, new: Callable[[str], FileSession]) -> None:
    session = worked(new("s"))
    numbers = [session.state.seq]
    for _ in range(3):
        session.append(record_of("note", {}, message("system", "n")))
        numbers.append(session.state.seq)
    session.close()
    again = home.store().open("s")
    again.append(record_of("note", {}, message("system", "n")))
    numbers.append(again.state.seq)
    again.close()
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("compact", [False, True])
def test_what_is_appended_is_there_for_a_reader(
    home: Home, new: Callable[[str], FileSession], *, compact: bool
) -> None:
    session = worked(new("s"))
    if compact:
        session.compact()
    assert unnumbered(home.store().load("s")) == unnumbered(session.state)
    session.close()


def test_compacting_changes_nothing(home: Home, new: Callable[[str], FileSession]) -> None:
    session = worked(new("s"))
    before = unnumbered(session.state)
    session.compact()
    session.compact()
    assert unnumbered(session.state) == before
    finish(session, "c3")
    commit(session, 2)
    session.close()
    assert unnumbered(home.store().load("s")) == unnumbered(session.state)


def test_a_session_is_made_once(home: Home, new: Callable[[str], FileSession]) -> None:
    session = worked(new("s"))
    with pytest.raises(SessionLocked):
        new("s")
    with pytest.raises(SessionLocked):
        home.store().open("s")
    session.close()
    with pytest.raises(SessionExists, match="s exists"):
        new("s")
    assert unnumbered(home.store().load("s")) == unnumbered(session.state)
    home.store().open("s").close()


def test_there_is_no_such_session(home: Home) -> None:
    for use in (home.store().open, home.store().load):
        with pytest.raises(NoSuchSession, match="nobody"):
            use("nobody")
    assert home.store().list() == []


@pytest.mark.parametrize("session_id", ["", "a/b", "..", "x" * 129, "ä", "a b", "a\n"])
def test_an_id_is_refused_before_anything_else(home: Home, session_id: str) -> None:
    store = home.store()
    for use in (store.open, store.load, functools.partial(store.create, state=fresh_state())):
        with pytest.raises(InvalidSessionId):
            use(session_id)


def test_the_list_tells_who_holds_what(home: Home, new: Callable[[str], FileSession]) -> None:
    held, free = worked(new("held")), new("free")
    free.close()
    first, second = home.store().list()
    assert (first.session_id, first.pid, second.session_id) == ("free", None, "held")
    assert second.pid is not None
    assert second.state is not None
    assert unnumbered(second.state) == unnumbered(held.state)
    assert second.updated_at > 0
    held.close()


def test_the_clean_end_leaves_nothing_to_resume(home: Home, new: Callable[[str], FileSession]) -> None:
    worked(new("s")).delete()
    with pytest.raises(NoSuchSession):
        home.store().open("s")
    assert home.store().list() == []
    again = new("s")  # who keeps the results of sessions knows which ids were used
    assert again.state.task is None
    again.close()


@pytest.mark.parametrize("size", [0, 1, 60_000, 100_000])
def test_what_is_kept_is_there_after_the_record_that_names_it(
    home: Home, new: Callable[[str], FileSession], size: int
) -> None:
    session = new("s")
    start_task(session)
    data = b"\xff" * size
    name = session.keep(data)
    assert name == session.keep(data) == sha256_hex(data)
    assert session.kept(name) == data
    turn(session, "step_1", "c1", gated=True)
    session.commit(record_of("call_started", {"callId": "c1", "baselines": {"/a": name}}))
    session.close()
    for _ in range(2):
        again = home.store().open("s")
        assert again.state.baselines == {"/a": name}
        assert again.kept(name) == data
        assert again.kept("0" * 64) is None
        again.compact()
        again.close()


def test_large_texts_come_back_whole(home: Home, new: Callable[[str], FileSession]) -> None:
    session = new("s")
    start_task(session, "p" * 50_000)
    whole_step(session, 1, "\u2028ü" * 20_000)
    call = {"id": "c2", "name": "WriteFile", "arguments": {"content": "z" * 30_000, "path": "/a"}}
    row = {"callId": "c2", "sideEffects": True}
    fields = {"stepId": "step_2", "stopReason": "tool_use", "boot": "b", "usage": USAGE, "calls": [row]}
    session.append(record_of("turn", fields, message("assistant", "", toolCalls=[call])))
    for _ in range(2):
        session.compact()
        session.close()
        again = home.store().open("s")
        assert unnumbered(again.state) == unnumbered(session.state)
        session = again
    session.close()


def test_the_limit_costs_what_is_beside_the_records_and_no_record(
    home: Home, new: Callable[[str], FileSession]
) -> None:
    session = new("s")
    start_task(session)
    assert session.keep(b"x" * (BLOB_LIMIT - 10)) != UNAVAILABLE
    full = [session.storage_full]
    assert session.keep(b"y" * 11) == UNAVAILABLE
    assert session.keep(b"z" * 100_000) == UNAVAILABLE
    assert [*full, session.storage_full] == [False, True]
    whole_step(session, 1, "t" * 50_000)
    session.compact()
    session.close()
    assert unnumbered(home.store().load("s")) == unnumbered(session.state)


def test_what_is_no_record_changes_nothing(home: Home, new: Callable[[str], FileSession]) -> None:
    session = worked(new("s"))
    before = unnumbered(session.state)
    with pytest.raises(TypeError):
        session.append(record_of("session_status", {"status": object()}))
    assert unnumbered(session.state) == before
    session.close()
    assert unnumbered(home.store().load("s")) == before
