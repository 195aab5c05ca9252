"""What pruning makes of each file that may lie in a state directory: standing, age, size, and what goes."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

import state.prune
import state.temporary
from state import WriteFailed
from state.disk import SessionLock, holder
from state.prune import SessionPruner, Standing, Stored
from state.records import record_of
from state.temporary import BY_DESCRIPTOR
from tests.unit.state.helpers import create, finish, paths_in, start_task, turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 2_000_000_000.0
OLD = NOW - 1_000_000.0
posix = pytest.mark.skipif(not BY_DESCRIPTOR, reason="names are all there is")


def put(directory: Path, sizes: dict[str, int], when: float = OLD) -> None:
    """Files by their path, each with so many bytes; then nothing has been touched since `when`. A result of two bytes
    or more can be read."""
    for name, size in sizes.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}".ljust(size) if path.name == "result.json" and size > 1 else b"x" * size)
    touch(directory, when)


def touch(directory: Path, when: float = OLD) -> None:
    for path in directory.rglob("*"):
        os.utime(path, (when, when), follow_symlinks=False)


def survey(directory: Path) -> dict[str, Stored]:
    with SessionPruner(str(directory), now=NOW) as pruner:
        rows = pruner.survey()
    assert [row.session_id for row in rows] == sorted(row.session_id for row in rows)
    return {row.session_id: row for row in rows}


def left(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.glob("*/*"))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=[True, False] if BY_DESCRIPTOR else [False], ids=lambda one: "descriptors" if one else "names")
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that platforms have."""
    for module in (state.temporary, state.prune):
        monkeypatch.setattr(module, "BY_DESCRIPTOR", request.param)


def resumable(directory: Path, name: str = "s", *, over: bool = False) -> None:
    """A session in the middle of its first step, or one that waits only for what was denied to be approved."""
    session = create(directory, name)
    start_task(session)
    if over:
        turn(session, "step_1", "c1", gated=True)
        finish(session, "c1", status="denied")
        session.append(record_of("step_committed", {"stepCount": 1, "taskStatus": "completed"}))
        session.append(record_of("session_status", {"status": "SESSION_PAUSED"}))
    session.close()
    touch(directory)


# --- standings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "with_folder", "alone"),
    [
        ("", "ended", None),
        ("lock", "ended", None),
        ("json.tmp", "ended", None),
        ("journal.tmp lock", "ended", None),
        ("blobs.tmp", "ended", None),
        ("json.previous journal.previous", "ended", None),
        ("json.previous.tmp journal.previous.tmp lock", "ended", None),
        ("blobs", "ended", None),
        ("json.being-pruned", "ended", None),
        ("json.being-pruned journal blobs", "ended", None),
        ("json.corrupt-1", "damaged", "damaged"),
        ("journal.corrupt-12", "damaged", "damaged"),
        ("json.previous.corrupt-1", "damaged", "damaged"),
        ("blobs.corrupt-3 lock", "damaged", "damaged"),
        ("json", "damaged", "damaged"),
        ("journal", "damaged", "damaged"),
        ("json json.being-pruned", "damaged", "damaged"),
        ("segments", "foreign", "foreign"),
        ("segments lock", "foreign", "foreign"),
        ("segments json.corrupt-1", "foreign", "foreign"),
        ("json segments", "foreign", "foreign"),
        ("json.corrupt-", "foreign", "foreign"),
        ("json.corrupt-1x", "foreign", "foreign"),
        ("xjson.corrupt-1", "foreign", "foreign"),
        ("lock.corrupt-1", "foreign", "foreign"),
        ("json.tmpx", "foreign", "foreign"),
        ("xjournal.tmp", "foreign", "foreign"),
        ("lock.tmp", "foreign", "foreign"),
        ("blobs.previous", "foreign", "foreign"),
        ("json.previousx", "foreign", "foreign"),
        ("xlock", "foreign", "foreign"),
        ("journal.being-pruned", "foreign", "foreign"),
    ],
)
@pytest.mark.parametrize("folder", [True, False])
def test_what_a_session_is(tmp_path: Path, parts: str, with_folder: str, alone: str | None, folder: bool) -> None:
    put(tmp_path, {f"checkpoints/s.{part}": 7 for part in parts.split()})
    if folder:
        put(tmp_path, {"sessions/s/events.jsonl": 5})
    found = survey(tmp_path)
    expected = with_folder if folder else alone
    sizes = 7 * len([part for part in parts.split() if part != "lock"]) + 5 * folder
    assert found == ({} if expected is None else {"s": Stored("s", OLD, sizes, Standing(expected))})


def test_a_session_that_waits_only_for_approvals_has_ended(tmp_path: Path) -> None:
    resumable(tmp_path, "open")
    resumable(tmp_path, "over", over=True)
    assert {name: row.standing for name, row in survey(tmp_path).items()} == {
        "open": Standing.RESUMABLE,
        "over": Standing.ENDED,
    }


@pytest.mark.parametrize(
    ("age", "result", "standing"),
    [
        (59.0, False, "held"),
        (60.0, False, "ended"),
        (61.0, False, "ended"),
        (1.0, True, "ended"),
        (-5.0, False, "held"),
    ],
)
def test_a_folder_may_be_one_of_a_session_that_starts(tmp_path: Path, age: float, result: bool, standing: str) -> None:
    put(tmp_path, {"sessions/s/events.jsonl": 5} | ({"sessions/s/result.json": 1} if result else {}), NOW - age)
    assert survey(tmp_path)["s"].standing is Standing(standing)


@pytest.mark.parametrize(
    ("events", "standing"),
    [
        ('{"eventType":"session_started"}\n{"eventType":"session_completed"}\n', "ended"),
        ('{"eventType":"session_cancelled"}\n', "ended"),
        ('{"eventType":"session_completed"}\n{"eventType":"session_resumed"}\n', "held"),
        ('{"eventType":"session_started"}\n{"eventType":"session_compl', "held"),
        ("[]\n", "held"),
    ],
)
def test_a_session_without_a_task_ends_with_its_run_log(tmp_path: Path, events: str, standing: str) -> None:
    folder = tmp_path / "sessions" / "s"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(events)
    touch(tmp_path, NOW - 1)
    assert survey(tmp_path)["s"].standing is Standing(standing)


def test_a_link_in_a_folder_s_place_is_no_start(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "s").symlink_to("nowhere")
    touch(tmp_path, NOW - 1)
    assert survey(tmp_path)["s"] == Stored("s", NOW - 1, 0, Standing.ENDED)


def test_a_resumable_session_is_none_that_starts(tmp_path: Path) -> None:
    resumable(tmp_path)
    touch(tmp_path, NOW - 1)
    assert survey(tmp_path)["s"].standing is Standing.RESUMABLE


@pytest.mark.parametrize("parts", ["", "json"])
def test_who_holds_the_lock_has_the_session(tmp_path: Path, parts: str) -> None:
    put(
        tmp_path,
        {"sessions/s/result.json": 1, "checkpoints/s.lock": 0} | {f"checkpoints/s.{p}": 2 for p in parts.split()},
    )
    lock = SessionLock.acquire(paths_in(tmp_path, "s").lock, "s")
    assert survey(tmp_path)["s"].standing is Standing.HELD
    lock.release(remove=False)
    assert survey(tmp_path)["s"].standing is not Standing.HELD


def test_a_checkpoint_of_a_newer_program_is_not_ours(tmp_path: Path) -> None:
    put(tmp_path, {"sessions/s/result.json": 1, "checkpoints/s.journal": 0})
    (tmp_path / "checkpoints" / "s.json").write_bytes(b'{"checkpointVersion":"9"}')
    assert survey(tmp_path)["s"].standing is Standing.FOREIGN


def test_what_vanishes_meanwhile_was_just_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"checkpoints/s.json.corrupt-1": 5})
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        monkeypatch.setattr(state.temporary.Folder, "stat", lambda *_: None)
        assert pruner.survey() == [Stored("s", NOW, 0, Standing.DAMAGED)]


# --- ages -------------------------------------------------------------------------------------------------------------


def age(directory: Path, name: str, when: float) -> None:
    os.utime(directory / name, (when, when), follow_symlinks=False)


def test_the_newest_file_that_counts_tells_the_age(tmp_path: Path) -> None:
    names = ("json.corrupt-1", "journal.corrupt-1", "lock", "json.tmp", "json.being-pruned", "json.previous")
    put(tmp_path, {f"checkpoints/s.{name}": 1 for name in names} | {"sessions/s/events.jsonl": 1})
    for later, name in enumerate(names[2:], 20):
        age(tmp_path, f"checkpoints/s.{name}", OLD + later)
    age(tmp_path, "checkpoints/s.journal.corrupt-1", OLD + 5)
    age(tmp_path, "sessions/s/events.jsonl", OLD + 30)
    assert survey(tmp_path)["s"].last_used == OLD + 5
    age(tmp_path, "checkpoints/s.json.corrupt-1", OLD + 6)
    assert survey(tmp_path)["s"].last_used == OLD + 6


def test_without_a_checkpoint_its_records_tell_the_age(tmp_path: Path) -> None:
    put(tmp_path, {"sessions/s/events.jsonl": 1, "sessions/s/other": 1, "checkpoints/s.json.tmp": 1})
    for later, name in enumerate(("sessions/s/other", "sessions/s", "checkpoints/s.json.tmp"), 20):
        age(tmp_path, name, OLD + later)
    age(tmp_path, "sessions/s/events.jsonl", OLD + 3)
    assert survey(tmp_path)["s"].last_used == OLD + 3
    put(tmp_path, {"sessions/s/result.json": 1}, OLD + 3)
    age(tmp_path, "sessions/s/result.json", OLD + 4)
    assert survey(tmp_path)["s"].last_used == OLD + 4
    for name in ("events.jsonl", "result.json"):
        (tmp_path / "sessions" / "s" / name).unlink()
    age(tmp_path, "sessions/s", OLD + 21)
    assert survey(tmp_path)["s"].last_used == OLD + 21


def test_a_link_tells_its_own_age(tmp_path: Path) -> None:
    put(tmp_path, {"elsewhere/new": 1}, NOW)
    (tmp_path / "sessions" / "s").mkdir(parents=True)
    (tmp_path / "sessions" / "s" / "events.jsonl").symlink_to(tmp_path / "elsewhere" / "new")
    age(tmp_path, "sessions/s/events.jsonl", OLD)
    age(tmp_path, "sessions/s", OLD)
    assert survey(tmp_path)["s"].last_used == OLD


def ended(directory: Path, result: Any, *, pad: int = 0) -> None:
    put(directory, {"sessions/s/events.jsonl": 1})
    (directory / "sessions" / "s" / "result.json").write_text(json.dumps(result) + " " * pad)
    touch(directory)


@pytest.fixture
def _far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_far_from_greenwich")
@pytest.mark.parametrize(
    ("at", "seconds"),
    [
        ("2020-01-01T00:00:00Z", 1577836800.0),
        ("2020-01-01T02:00:00+02:00", 1577836800.0),
        ("2020-01-01T00:00:00.5", 1577836800.5),
        ("2020-01-01", 1577836800.0),
    ],
)
def test_the_result_tells_the_end(tmp_path: Path, at: str, seconds: float) -> None:
    ended(tmp_path, {"endedAt": at})
    assert survey(tmp_path)["s"].last_used == seconds


@pytest.mark.parametrize("result", [{}, [], 5, {"endedAt": 5}, {"endedAt": None}, {"endedAt": "soon"}])
def test_a_result_that_tells_no_end(tmp_path: Path, result: Any) -> None:
    ended(tmp_path, result)
    assert survey(tmp_path)["s"].last_used == OLD


def test_a_result_may_be_long(tmp_path: Path) -> None:
    ended(tmp_path, {"endedAt": "2020-01-01"}, pad=100_000)
    assert survey(tmp_path)["s"].last_used == 1577836800.0


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_tells_no_end(tmp_path: Path, kind: str) -> None:
    ended(tmp_path, {"endedAt": "2020-01-01"})
    path = tmp_path / "sessions" / "s" / "result.json"
    path.rename(tmp_path / "result.json")
    if kind == "link":
        path.symlink_to(tmp_path / "result.json")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    touch(tmp_path)
    assert survey(tmp_path)["s"].last_used == OLD


def test_the_result_of_an_earlier_task_does_not_make_a_resumable_session_old(tmp_path: Path) -> None:
    for name in ("open", "over"):
        resumable(tmp_path, name, over=name == "over")
        (tmp_path / "sessions" / name / "result.json").write_text(json.dumps({"endedAt": "2020-01-01"}))
    touch(tmp_path)
    found = survey(tmp_path)
    assert (found["open"].last_used, found["over"].last_used) == (OLD, 1577836800.0)


# --- remains ----------------------------------------------------------------------------------------------------------

REMAINS = {
    # nothing of a session is left
    "checkpoints/a.json.being-pruned": 5,
    "checkpoints/a.journal": 7,
    "checkpoints/a.lock": 100,
    "sessions/a.being-pruned/deep/file": 10,
    # its records are to stay
    "sessions/b/result.json": 50,
    "checkpoints/b.json.being-pruned": 5,
    "checkpoints/b.journal": 7,
    "checkpoints/b.blobs": 3,
    "checkpoints/b.json.tmp": 1000,
    "checkpoints/b.lock": 100,
    # nobody's
    "checkpoints/c.lock": 100,
    "checkpoints/d.journal.tmp": 2,
    "sessions/e.being-pruned/file": 11,
    # no remains
    "checkpoints/f.journal.corrupt-1": 13,
    "checkpoints/g.segments": 17,
    "sessions/h/result.json": 19,
    "sessions/not an id.being-pruned/file": 23,
    "sessions/i.being-pruned.not/file": 29,
    "sessions/being-pruned/file": 31,
}


@pytest.mark.usefixtures("_both_ways")
def test_what_an_interrupted_removal_left_goes(tmp_path: Path) -> None:
    put(tmp_path, REMAINS)
    resumable(tmp_path, "z")
    put(tmp_path, {"checkpoints/z.json.being-pruned": 3})
    before = left(tmp_path)
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        assert pruner.remains() == {"a": 22, "b": 15, "c": 0, "d": 2, "e": 11, "z": 3}
        assert left(tmp_path) == before
        assert [pruner.clear(name) for name in "abcdez"] == [True] * 6
        assert pruner.remains() == {}
    gone = set(before) - set(left(tmp_path))
    assert gone == {
        *("checkpoints/a.json.being-pruned", "checkpoints/a.journal", "checkpoints/a.lock", "sessions/a.being-pruned"),
        *("checkpoints/b.json.being-pruned", "checkpoints/b.journal", "checkpoints/b.blobs"),
        *(
            "checkpoints/c.lock",
            "checkpoints/d.journal.tmp",
            "sessions/e.being-pruned",
            "checkpoints/z.json.being-pruned",
        ),
    }
    assert holder(paths_in(tmp_path, "z").lock) is None


def test_remains_that_are_held_wait(tmp_path: Path) -> None:
    put(tmp_path, REMAINS)
    lock = SessionLock.acquire(paths_in(tmp_path, "a").lock, "a")
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        assert pruner.clear("a") is False
        assert (tmp_path / "sessions" / "a.being-pruned").exists()
        lock.release(remove=False)
        assert pruner.clear("a") is True
    assert not (tmp_path / "sessions" / "a.being-pruned").exists()


def test_a_session_that_is_being_made_leaves_no_remains(tmp_path: Path) -> None:
    """Before its journal is there it has a lock and perhaps a folder."""
    put(tmp_path, {"checkpoints/s.lock": 0})
    lock = SessionLock.acquire(paths_in(tmp_path, "s").lock, "s")
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        assert pruner.remains() == {}
        lock.release(remove=False)
        assert pruner.remains() == {"s": 0}


@pytest.mark.usefixtures("_both_ways")
def test_a_lock_stays_where_it_cannot_be_told_what_it_protects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"sessions/s.being-pruned/file": 5})
    real = state.temporary.Folder.remove

    def refuse(_: object) -> list[str]:
        raise OSError(5, "Input/output error")

    def remove(folder: state.temporary.Folder, name: str) -> None:
        real(folder, name)
        monkeypatch.setattr(state.temporary.Folder, "names", refuse)

    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        monkeypatch.setattr(state.temporary.Folder, "remove", remove)
        with pytest.raises(OSError, match="Input"):
            pruner.clear("s")
    lock = paths_in(tmp_path, "s").lock
    assert os.path.exists(lock)
    assert holder(lock) is None


# --- removal ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("marker", ["none", "file", "folder"])
def test_a_session_goes_with_what_an_earlier_removal_left(tmp_path: Path, marker: str) -> None:
    resumable(tmp_path)
    put(
        tmp_path,
        {
            "sessions/s/blobs/b": 3,
            "sessions/s.being-pruned/file": 5,
            "checkpoints/s.json.corrupt-1": 1,
            "checkpoints/s.journal.tmp": 1,
            "checkpoints/s.blobs": 1,
            "checkpoints/other.journal.corrupt-1": 1,
        },
    )
    path = tmp_path / "checkpoints" / "s.json.being-pruned"
    if marker == "file":
        path.touch()
    elif marker == "folder":
        (path / "deep").mkdir(parents=True)
    touch(tmp_path)
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        (row,) = [row for row in pruner.survey() if row.session_id == "s"]
        assert pruner.remove(row) is True
        assert pruner.remove(row) is False
    assert left(tmp_path) == ["checkpoints/other.journal.corrupt-1"]


def test_a_session_is_not_removed_for_what_it_was(tmp_path: Path) -> None:
    put(tmp_path, {"sessions/s/result.json": 5})
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        (row,) = pruner.survey()
        put(tmp_path, {"sessions/s/more": 1})
        assert pruner.remove(row) is False
        assert left(tmp_path) == ["sessions/s"]
        (row,) = pruner.survey()
        assert pruner.remove(row) is True
    assert left(tmp_path) == []


def test_a_checkpoint_without_records_goes(tmp_path: Path) -> None:
    put(tmp_path, {"checkpoints/s.json.corrupt-1": 5, "sessions/s": 9})
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        (row,) = pruner.survey()
        assert row == Stored("s", OLD, 5, Standing.DAMAGED)
        assert pruner.remove(row)
    assert left(tmp_path) == ["sessions/s", "stubs/s.json"], "a file in the folder's place is not ours"
    stub = json.loads((tmp_path / "stubs/s.json").read_text())
    assert stub == {"sessionId": "s", "started": {"key": "s"}}, "its id may have been chosen"


@posix
def test_folders_that_are_replaced_while_the_lock_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"sessions/s/result.json": 5, "checkpoints/s.json.corrupt-1": 5})
    real = SessionLock.acquire

    def acquire(path: str, session_id: str) -> SessionLock:
        (tmp_path / "checkpoints").rename(tmp_path / "aside")
        (tmp_path / "checkpoints").mkdir()
        return real(path, session_id)

    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        (row,) = pruner.survey()
        monkeypatch.setattr(SessionLock, "acquire", acquire)
        with pytest.raises(OSError, match="replaced in the meantime"):
            pruner.remove(row)
    assert (tmp_path / "sessions" / "s" / "result.json").exists()
    assert os.listdir(tmp_path / "aside") == ["s.json.corrupt-1"]
    lock = paths_in(tmp_path, "s").lock
    assert os.path.exists(lock), "another's folder is left as it is"
    assert holder(lock) is None


@pytest.mark.usefixtures("_both_ways")
def test_a_lock_that_cannot_be_taken(tmp_path: Path) -> None:
    put(tmp_path, {"sessions/s/result.json": 5})
    (tmp_path / "checkpoints" / "s.lock").mkdir(parents=True)
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        (row,) = pruner.survey()
        with pytest.raises(WriteFailed):
            pruner.remove(row)
    assert (tmp_path / "sessions" / "s").exists()


@posix
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_a_shelf_lets_go_of_its_folders(tmp_path: Path) -> None:
    put(tmp_path, {"sessions/s/result.json": 5, "checkpoints/s.lock": 5})
    before = open_files()
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        assert open_files() == before + 3
        (row,) = pruner.survey()
        pruner.remove(row)
    assert open_files() == before
    (tmp_path / "checkpoints").rename(tmp_path / "aside")
    (tmp_path / "checkpoints").symlink_to("aside")
    with pytest.raises(OSError, match="link"):
        SessionPruner(str(tmp_path), now=NOW)
    assert open_files() == before
