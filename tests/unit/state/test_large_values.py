"""Large things at their limits: what waits in the journal, what has a file, and what is named in a snapshot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from state.blobs import LARGE_BYTES, UNAVAILABLE, blobs_in, restore, sha256_hex, shorten
from state.disk import Disk
from state.file_store import FileCheckpointStore
from state.records import record_of
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
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from state.file_session import FileSession

INLINE = 64 * 1024
KIB_16 = 16 * 1024


def files(directory: Path) -> set[str]:
    folder = directory / "sessions" / SESSION / "blobs"
    return set(os.listdir(folder)) if folder.exists() else set()


def use(session: FileSession, name: str, call: str = "c1") -> None:
    """A record that names what was kept."""
    session.append(record_of("call_started", {"callId": call, "baselines": {f"/{call}": name}}))


@pytest.fixture
def session(tmp_path: Path) -> FileSession:
    made = create(tmp_path)
    start_task(made)
    turn(made, "step_1", "c1", "c2", "c3", gated=True)
    return made


@pytest.mark.parametrize(("size", "in_a_file"), [(0, False), (INLINE, False), (INLINE + 1, True)])
def test_what_is_small_waits_in_the_journal(tmp_path: Path, session: FileSession, size: int, in_a_file: bool) -> None:
    name = session.keep(b"x" * size)
    assert files(tmp_path) == ({name} if in_a_file else set())
    use(session, name)
    assert session.kept(name) == b"x" * size
    assert set(on_disk(tmp_path).stored.inline) == (set() if in_a_file else {name})
    session.compact()
    assert files(tmp_path) == {name}
    assert on_disk(tmp_path).stored.inline == {}
    assert session.kept(name) == b"x" * size
    session.close()


def test_what_waits_is_recorded_once(tmp_path: Path, session: FileSession) -> None:
    names = [session.keep(b"first"), session.keep(b"second"), session.keep(b"first")]
    before = os.path.getsize(paths_in(tmp_path).journal)
    for name, call in zip(names, ("c1", "c2", "c3"), strict=True):
        use(session, name, call)
    with open(paths_in(tmp_path).journal, "rb") as handle:
        records = handle.read()[before:].splitlines()
    assert [sorted(orjson.loads(b"{" + line.partition(b"{")[2]).get("blobs", {})) for line in records] == [
        sorted({names[0], names[1]}), [], []
    ]  # fmt: skip
    session.keep(b"first")
    use(session, names[0])
    assert set(on_disk(tmp_path).stored.inline) == {names[0], names[1]}
    session.compact()
    session.close()


def test_what_waits_counts_for_the_limit(tmp_path: Path) -> None:
    session = create(tmp_path, blob_limit_bytes=100)
    assert session.keep(b"a" * 60) != UNAVAILABLE
    assert session.keep(b"b" * 41) == "unavailable"
    assert session.storage_full
    session.close()
    session = create(tmp_path / "second", blob_limit_bytes=100)
    assert UNAVAILABLE not in (session.keep(b"a" * 60), session.keep(b"b" * 40), session.keep(b"a" * 60))
    assert not session.storage_full
    assert session.keep(b"c") == UNAVAILABLE
    session.close()


def test_above_the_limit_there_is_no_file(tmp_path: Path) -> None:
    session = create(tmp_path, blob_limit_bytes=INLINE)
    assert session.keep(b"a" * (INLINE + 1)) == UNAVAILABLE
    assert session.storage_full
    assert files(tmp_path) == set()
    session.close()


def test_what_the_disk_refuses_is_unavailable_and_no_limit(
    tmp_path: Path, session: FileSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "open_new", refuse)
        assert session.keep(b"a" * (INLINE + 1)) == UNAVAILABLE
    assert not session.storage_full
    assert files(tmp_path) == set()
    session.close()


def refuse(*_: object) -> int:
    raise OSError(5, "Input/output error")


def test_a_file_that_is_named_is_not_written_again_after_a_resume(
    tmp_path: Path, session: FileSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small, lost = b"l" * (INLINE + 1), b"small", b"d" * (INLINE + 2)
    names = [session.keep(data) for data in (large, small, lost)]
    for name, call in zip(names, ("c1", "c2", "c3"), strict=True):
        use(session, name, call)
    session.close()
    again = reopen(tmp_path)
    assert files(tmp_path) == set(names)
    inode = os.stat(tmp_path / "sessions" / SESSION / "blobs" / names[0]).st_ino
    assert again.keep(large) == names[0]
    assert os.stat(tmp_path / "sessions" / SESSION / "blobs" / names[0]).st_ino == inode
    assert [again.kept(name) for name in names] == [large, small, lost]
    again.close()


# --- parts of messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count"), [(KIB_16, 0), (KIB_16 + 1, 1)])
def test_a_text_is_large_above_16_kib(size: int, count: int) -> None:
    assert LARGE_BYTES == KIB_16
    whole = message("tool", "x" * size)
    short, parts = shorten(whole)
    assert [len(part) for part in parts] == [size] * count
    assert blobs_in(short) == [sha256_hex(part) for part in parts]
    if parts:
        named = {"content": "", "contentBlob": {"sha256": sha256_hex(parts[0]), "bytes": size}}
        assert orjson.loads(short) == orjson.loads(whole) | named


@pytest.mark.parametrize(("size", "count"), [(KIB_16, 0), (KIB_16 + 1, 1)])
def test_arguments_are_large_above_16_kib(size: int, count: int) -> None:
    given = {"content": "x" * (size - len('{"content":""}'))}
    whole = message("assistant", "hi", toolCalls=[{"id": "c1", "name": "T", "arguments": given}])
    short, parts = shorten(whole)
    assert [len(part) for part in parts] == [size] * count
    assert blobs_in(short) == [sha256_hex(part) for part in parts]


def test_two_halves_make_no_large_text() -> None:
    half = "x" * (KIB_16 // 2 + 100)
    whole = message("assistant", half, toolCalls=[{"id": "c", "name": "T", "arguments": {"content": half}}])
    assert len(whole) > KIB_16
    short, parts = shorten(whole)
    assert short is whole
    assert parts == []


@pytest.mark.parametrize("size", [KIB_16 - 5, KIB_16])
def test_a_message_of_16_kib_is_not_taken_apart(size: int) -> None:
    whole = message("tool", "x" * (size - len(message("tool", ""))))
    assert len(whole) == size
    assert shorten(whole) is not None
    assert shorten(whole)[0] is whole


def test_each_lost_part_is_told_where_it_stood() -> None:
    calls: list[dict[str, Any]] = [
        {"id": f"c{number}", "name": "T", "arguments": {"content": str(number) * 20_000}} for number in range(3)
    ]
    short, parts = shorten(message("assistant", "t" * 20_000, toolCalls=calls))
    assert len(parts) == 4
    kept = {sha256_hex(part): part for part in parts}
    gone = [sha256_hex(parts[0]), sha256_hex(parts[2])]
    whole, lost = restore(short, {name: part for name, part in kept.items() if name not in gone}.get)
    assert lost == gone
    wire = orjson.loads(whole)
    said = "bytes here were damaged on disk and are lost"
    assert wire["content"] == f"[20000 {said}]"
    assert [call["arguments"] for call in wire["toolCalls"]] == [calls[0]["arguments"], {}, calls[2]["arguments"]]
    assert [call.get("problem") for call in wire["toolCalls"]] == [None, f"{len(parts[2])} {said}", None]
    assert "Blob" not in whole.decode()


def test_at_the_limit_messages_stand_in_the_snapshot_as_they_are(tmp_path: Path) -> None:
    session = create(tmp_path, blob_limit_bytes=25_000)
    session.append(record_of("note", {}, message("system", "a" * 20_000)))
    session.compact()
    full = [session.storage_full]
    assert len(files(tmp_path)) == 1
    session.append(record_of("note", {}, message("system", "b" * 20_000)))
    session.compact()
    assert [*full, session.storage_full] == [False, True]
    assert len(files(tmp_path)) == 1
    with open(paths_in(tmp_path).snapshot, "rb") as handle:
        snapshot = handle.read()
    assert (b"a" * 20_000 in snapshot, b"b" * 20_000 in snapshot) == (False, True)
    assert load(tmp_path) == session.state
    session.close()
    again = reopen(tmp_path, blob_limit_bytes=25_000)
    assert again.state.thread == session.state.thread
    assert len(files(tmp_path)) == 1
    again.close()


def test_a_session_may_begin_with_a_large_message(tmp_path: Path) -> None:
    state = fresh_state()
    state.thread[0] = message("system", "s" * 20_000)
    FileCheckpointStore(str(tmp_path)).create(SESSION, state).close()
    assert files(tmp_path) == {sha256_hex(b"s" * 20_000)}
    assert os.path.getsize(paths_in(tmp_path).snapshot) < 5000
    assert load(tmp_path) == state


def test_what_was_taken_has_its_room_even_if_others_took_it_since(tmp_path: Path) -> None:
    session = create(tmp_path, blob_limit_bytes=100)
    start_task(session)
    turn(session, "step_1", "c1", gated=True)
    name = session.keep(b"a" * 60)
    use(session, name)
    session.blobs.share([b"b" * 50], str(tmp_path / "artifact"))
    session.compact()
    assert files(tmp_path) == {name, sha256_hex(b"b" * 50)}
    assert session.kept(name) == b"a" * 60
    session.close()


def test_a_message_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = create(tmp_path)
    start_task(session, "a" * 20_000)
    session.compact()
    looked: list[bytes] = []

    def watch(data: bytes) -> tuple[bytes, list[bytes]]:
        looked.append(data)
        return shorten(data)

    monkeypatch.setattr("state.blobs.shorten", watch)
    session.compact()
    session.append(record_of("note", {}, message("system", "by the way")))
    session.compact()
    session.close()
    again = reopen(tmp_path)
    assert looked == [message("system", "by the way")]
    assert len(files(tmp_path)) == 1
    again.close()
