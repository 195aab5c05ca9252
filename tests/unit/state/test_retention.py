"""What is pruned: the choice by limits, and the removal with real files, real processes and real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import WriteFailed
from state.disk import SessionLock
from state.prune import PruneLimits, SessionPruner, SessionToPrune, Standing, Stored, choose
from state.records import record_of
from state.temporary import BY_DESCRIPTOR, Folder
from tests.unit.state.helpers import SESSION, create, paths_in, start_task

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[3]
NOW = 2_000_000_000.0
DAY = 86_400.0
OLD = NOW - 40 * DAY
ALL = PruneLimits(max_age_s=0)
posix = pytest.mark.skipif(not BY_DESCRIPTOR, reason="names are all there is")

# --- the choice -------------------------------------------------------------------------------------------------------


def row(name: str, age_s: float, size: int = 1, standing: Standing = Standing.ENDED) -> Stored:
    return Stored(name, NOW - age_s, size, standing)


def names(chosen: Sequence[SessionToPrune]) -> list[tuple[str, str]]:
    return [(one.stored.session_id, one.reason.value) for one in chosen]


def test_no_limit_removes_nothing() -> None:
    assert choose([row("a", 1e9, 10**12)], PruneLimits(), now=NOW) == []


def test_the_oldest_goes_first() -> None:
    rows = [row("b", 20), row("c", 10), row("a", 30)]
    assert names(choose(rows, PruneLimits(max_age_s=5), now=NOW)) == [("a", "age"), ("b", "age"), ("c", "age")]


def test_what_is_exactly_at_a_limit_stays() -> None:
    rows = [row("young", 9, 2), row("exact", 10, 3), row("old", 11, 4)]
    assert names(choose(rows, PruneLimits(max_age_s=10), now=NOW)) == [("old", "age")]
    assert names(choose(rows, PruneLimits(max_sessions=2), now=NOW)) == [("old", "count")]
    assert names(choose(rows, PruneLimits(max_bytes=5), now=NOW)) == [("old", "size")]
    assert names(choose(rows, PruneLimits(max_bytes=9), now=NOW)) == []
    assert names(choose(rows, PruneLimits(max_bytes=4), now=NOW)) == [("old", "size"), ("exact", "size")]


def test_an_older_one_never_stays_because_it_is_small() -> None:
    rows = [row("new", 1, 5), row("big", 2, 100), row("small", 3, 0)]
    assert names(choose(rows, PruneLimits(max_bytes=10), now=NOW)) == [("small", "size"), ("big", "size")]


def test_the_first_reason_is_told() -> None:
    rows = [row("a", 30, 9), row("b", 20, 9), row("c", 10, 9)]
    limits = PruneLimits(max_age_s=25, max_sessions=1, max_bytes=0)
    assert names(choose(rows, limits, now=NOW)) == [("a", "age"), ("b", "count"), ("c", "size")]


def test_resumable_ones_only_when_asked() -> None:
    rows = [row(standing.value, 30, 1, standing) for standing in Standing]
    assert names(choose(rows, ALL, now=NOW)) == [("ended", "age")]
    both = choose(rows, ALL, now=NOW, resumable=True)
    assert sorted(names(both)) == [("damaged", "age"), ("ended", "age"), ("resumable", "age")]


def test_what_cannot_go_takes_nobody_s_place() -> None:
    rows = [row("held", 1, 100, Standing.HELD), row("open", 2, 100, Standing.RESUMABLE), row("over", 3, 10)]
    assert choose(rows, PruneLimits(max_sessions=1, max_bytes=10), now=NOW) == []


def test_a_clock_that_was_ahead_makes_nothing_old() -> None:
    assert choose([row("future", -1e6)], ALL, now=NOW) == []


rows_of = st.lists(
    st.builds(
        Stored,
        st.text("abc", min_size=1, max_size=4),
        st.integers(0, 50).map(lambda age: NOW - age),
        st.integers(0, 20),
        st.sampled_from(Standing),
    ),
    unique_by=lambda one: one.session_id,
    max_size=12,
)
limits_of = st.builds(
    PruneLimits, *(st.none() | st.integers(0, high) for high in (50, 12, 60))
)  # so small that each is met exactly now and then


@given(rows_of, limits_of, st.booleans())
def test_the_choice_keeps_its_promises(rows: list[Stored], limits: PruneLimits, resumable: bool) -> None:
    chosen = choose(rows, limits, now=NOW, resumable=resumable)
    gone = [one.stored for one in chosen]
    pool = [one for one in rows if one.standing is Standing.ENDED]
    if resumable:
        pool += [one for one in rows if one.standing in (Standing.RESUMABLE, Standing.DAMAGED)]
    kept = [one for one in pool if one not in gone]
    assert set(gone) <= set(pool), "held, foreign and unasked ones never go"
    assert [one.last_used for one in gone] == sorted(one.last_used for one in gone), "oldest first"
    assert all(new.last_used >= old.last_used for new in kept for old in gone), "the newest stay"
    assert limits.max_age_s is None or all(NOW - one.last_used <= limits.max_age_s for one in kept)
    assert limits.max_sessions is None or len(kept) <= limits.max_sessions
    assert limits.max_bytes is None or sum(one.size_bytes for one in kept) <= limits.max_bytes
    if gone:  # nothing goes that could have stayed
        back = [*kept, gone[-1]]
        assert (
            (limits.max_age_s is not None and NOW - gone[-1].last_used > limits.max_age_s)
            or (limits.max_sessions is not None and len(back) > limits.max_sessions)
            or (limits.max_bytes is not None and sum(one.size_bytes for one in back) > limits.max_bytes)
        )
    assert choose([one for one in rows if one not in gone], limits, now=NOW, resumable=resumable) == [], (
        "once is enough"
    )


# --- what lies there --------------------------------------------------------------------------------------------------


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every name below `directory` with its mode and, of a file, its content."""
    found = {}
    for path in sorted(directory.rglob("*")):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(directory))] = (path.lstat().st_mode, content)
    return found


def aged(directory: Path, when: float = OLD) -> None:
    """As if nothing below `directory` had been touched since `when`."""
    for path in directory.rglob("*"):
        os.utime(path, (when, when), follow_symlinks=False)


def ended(directory: Path, name: str = SESSION, *, at: str | None = "2020-01-02T03:04:05.678Z") -> Path:
    """The records of a session that is over: 3 files with 100 bytes beside the result."""
    folder = directory / "sessions" / name
    (folder / "artifacts").mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"e" * 60)
    (folder / "artifacts" / "a1").write_bytes(b"a" * 40)
    result: dict[str, Any] = {"sessionId": name} | ({"endedAt": at} if at is not None else {})
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def resumable(directory: Path, name: str = SESSION) -> None:
    store = create(directory, name)
    start_task(store)
    store.sync()
    store.close()
    (directory / "sessions" / name / "blobs").mkdir()
    (directory / "sessions" / name / "blobs" / "b1").write_bytes(b"b" * 10)


def survey(directory: Path) -> dict[str, Stored]:
    with SessionPruner(str(directory), now=NOW) as pruner:
        return {one.session_id: one for one in pruner.survey()}


def standing_of(directory: Path, name: str = SESSION) -> Standing:
    return survey(directory)[name].standing


def prune(directory: Path, limits: PruneLimits = ALL, *, resumable: bool = False) -> list[str]:
    """What the command does; the ids that went."""
    with SessionPruner(str(directory), now=NOW) as pruner:
        for session_id in pruner.remains():
            pruner.clear(session_id)
        chosen = choose(pruner.survey(), limits, now=NOW, resumable=resumable)
        return [one.stored.session_id for one in chosen if pruner.remove(one.stored)]


def left(directory: Path) -> list[str]:
    """What lies under the two folders."""
    return sorted(f"{folder}/{name}" for folder in ("checkpoints", "sessions") for name in listed(directory / folder))


def listed(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.exists() else []


def test_nothing_there(tmp_path: Path) -> None:
    assert survey(tmp_path / "none") == {}
    assert prune(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_an_ended_session_goes_with_all_its_files(tmp_path: Path) -> None:
    folder = ended(tmp_path)
    size = 100 + (folder / "result.json").stat().st_size
    assert survey(tmp_path) == {SESSION: Stored(SESSION, 1577934245.678, size, Standing.ENDED)}
    assert prune(tmp_path) == [SESSION]
    assert left(tmp_path) == []


@pytest.mark.parametrize("at", [None, "yesterday", 5])
def test_without_an_end_the_files_tell_the_time(tmp_path: Path, at: Any) -> None:
    folder = ended(tmp_path, at=at)
    aged(tmp_path)
    os.utime(folder / "events.jsonl", (OLD + 5, OLD + 5))
    assert survey(tmp_path)[SESSION].last_used == OLD + 5


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"endedAt": null}'])
def test_an_odd_result_is_a_session_all_the_same(tmp_path: Path, content: bytes) -> None:
    (ended(tmp_path) / "result.json").write_bytes(content)
    aged(tmp_path)
    assert prune(tmp_path) == [SESSION]


def test_a_session_that_is_just_being_made_is_as_good_as_held(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / SESSION
    folder.mkdir(parents=True)
    os.utime(folder, (NOW - 1, NOW - 1))
    assert standing_of(tmp_path) is Standing.HELD
    os.utime(folder, (NOW - 61, NOW - 61))
    assert prune(tmp_path) == [SESSION]


def test_a_resumable_session(tmp_path: Path) -> None:
    resumable(tmp_path)
    aged(tmp_path)
    before = tree(tmp_path)
    files = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock")
    assert survey(tmp_path) == {SESSION: Stored(SESSION, OLD, files, Standing.RESUMABLE)}
    assert prune(tmp_path) == []
    assert tree(tmp_path) == before
    assert prune(tmp_path, resumable=True) == [SESSION]
    assert left(tmp_path) == []


@pytest.mark.parametrize("with_folder", [True, False])
def test_quarantined_files_belong_to_their_session(tmp_path: Path, with_folder: bool) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    for name in ("json.corrupt-1", "journal.corrupt-1", "journal.corrupt-12", "blobs.corrupt-2"):
        (checkpoints / f"{SESSION}.{name}").write_bytes(b"x" * 10)
    if with_folder:
        (tmp_path / "sessions" / SESSION).mkdir(parents=True)
    aged(tmp_path)
    assert survey(tmp_path) == {SESSION: Stored(SESSION, OLD, 40, Standing.DAMAGED)}
    assert prune(tmp_path) == []
    assert len(listed(checkpoints)) == 4
    assert prune(tmp_path, resumable=True) == [SESSION]
    assert left(tmp_path) == []


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    resumable(tmp_path)
    for name in (f"{SESSION}.json", f"{SESSION}.journal"):
        path = tmp_path / "checkpoints" / name
        path.write_bytes(b"x" + path.read_bytes())
    aged(tmp_path)
    assert standing_of(tmp_path) is Standing.DAMAGED
    assert prune(tmp_path) == []
    assert prune(tmp_path, resumable=True) == [SESSION]
    assert left(tmp_path) == []


def test_a_checkpoint_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").touch()
    state_dir = tmp_path / "state"
    (state_dir / "checkpoints" / f"{SESSION}.json" / "deep").mkdir(parents=True)
    (state_dir / "checkpoints" / f"{SESSION}.journal").symlink_to(tmp_path / "outside")
    aged(state_dir)
    assert prune(state_dir, resumable=True) == [SESSION]
    assert left(state_dir) == []
    assert (tmp_path / "outside" / "x").exists()


def test_a_newer_program_s_session_is_never_touched(tmp_path: Path) -> None:
    for name in ("version", "extra", "shape"):
        resumable(tmp_path, name)
    checkpoints = tmp_path / "checkpoints"
    version = checkpoints / "version.json"
    body = version.read_bytes().rpartition(b',"checksum"')[0]
    version.write_bytes(with_checksum(body.replace(b'"checkpointVersion":"1.0"', b'"checkpointVersion":"9.0"')))
    (checkpoints / "extra.segments").touch()
    (checkpoints / "shape.json").write_bytes(with_checksum(b'{"checkpointVersion":"1.0"'))
    aged(tmp_path)
    before = tree(tmp_path)
    assert {one.standing for one in survey(tmp_path).values()} == {Standing.FOREIGN}
    assert prune(tmp_path, resumable=True) == []
    assert tree(tmp_path) == before


def with_checksum(body: bytes) -> bytes:
    return body + b',"checksum":"crc32:%08x"}\n' % zlib.crc32(body)


def test_what_is_not_ours_is_ignored(tmp_path: Path) -> None:
    for name in ("not an id", "a.b", "x" * 129, ".hidden", "a.b.being-pruned"):
        (tmp_path / "sessions" / name).mkdir(parents=True)
    (tmp_path / "sessions" / "file").touch()
    (tmp_path / "checkpoints").mkdir()
    for name in ("README", "not an id.json", ".json"):
        (tmp_path / "checkpoints" / name).touch()
    aged(tmp_path)
    before = tree(tmp_path)
    assert survey(tmp_path) == {}
    assert prune(tmp_path, resumable=True) == []
    assert tree(tmp_path) == before


def test_leftovers_go_with_their_session_and_no_other(tmp_path: Path) -> None:
    ended(tmp_path, "a")
    resumable(tmp_path, "b")
    checkpoints = tmp_path / "checkpoints"
    for name in ("a.json.tmp", "a.journal.tmp", "a.lock", "b.json.tmp", "ab.json.tmp"):
        (checkpoints / name).write_bytes(b"12345")
    aged(tmp_path)
    assert prune(tmp_path) == ["a"]
    # What is nobody's goes too, like the lock that a kill leaves behind.
    assert sorted(listed(checkpoints)) == ["b.journal", "b.json", "b.json.tmp", "b.lock"]


def test_a_journal_that_says_ended_makes_an_ended_session(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.append(record_of("session_status", {"status": "SESSION_COMPLETED"}))
    store.close()
    (tmp_path / "checkpoints" / f"{SESSION}.json").unlink()
    aged(tmp_path)
    assert standing_of(tmp_path) is Standing.ENDED
    assert prune(tmp_path) == [SESSION]
    assert left(tmp_path) == []


# --- who holds it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ended, resumable])
def test_a_held_session_is_never_touched(tmp_path: Path, make: Any) -> None:
    make(tmp_path)
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    paths = paths_in(tmp_path)
    lock = SessionLock.acquire(paths.lock, SESSION)
    aged(tmp_path)
    before = tree(tmp_path)
    assert standing_of(tmp_path) is Standing.HELD
    assert prune(tmp_path, resumable=True) == []
    assert tree(tmp_path) == before
    lock.release(remove=False)
    assert prune(tmp_path, resumable=True) == [SESSION]
    assert left(tmp_path) == []


@pytest.mark.parametrize("make", [ended, resumable])
def test_a_session_that_becomes_held_in_between_is_skipped(tmp_path: Path, make: Any) -> None:
    make(tmp_path)
    aged(tmp_path)
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        (found,) = pruner.survey()
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        lock = SessionLock.acquire(paths_in(tmp_path).lock, SESSION)
        before = tree(tmp_path)
        assert not pruner.remove(found)
        assert tree(tmp_path) == before
        lock.release(remove=False)


def test_a_session_that_went_on_in_between_is_skipped(tmp_path: Path) -> None:
    resumable(tmp_path)
    aged(tmp_path)
    with SessionPruner(str(tmp_path), now=NOW) as pruner:
        (found,) = pruner.survey()
        aged(tmp_path, NOW)
        before = tree(tmp_path)
        assert not pruner.remove(found)
        after = tree(tmp_path)
    lock = f"checkpoints/{SESSION}.lock"
    assert {**after, lock: before[lock]} == before


def test_remains_of_a_held_id_wait(tmp_path: Path) -> None:
    ended(tmp_path)
    (tmp_path / "sessions" / SESSION).rename(tmp_path / "sessions" / f"{SESSION}.being-pruned")
    store = create(tmp_path)
    assert prune(tmp_path) == []
    assert (tmp_path / "sessions" / f"{SESSION}.being-pruned").exists()
    store.close()
    aged(tmp_path)
    assert prune(tmp_path) == []
    assert listed(tmp_path / "sessions") == [SESSION], "the new session of the same id stays"
    assert standing_of(tmp_path) is Standing.RESUMABLE


def test_a_marker_beside_a_later_session_condemns_nothing(tmp_path: Path) -> None:
    resumable(tmp_path)
    (tmp_path / "checkpoints" / f"{SESSION}.json.being-pruned").touch()
    aged(tmp_path)
    assert prune(tmp_path) == []
    assert standing_of(tmp_path) is Standing.RESUMABLE
    assert not (tmp_path / "checkpoints" / f"{SESSION}.json.being-pruned").exists()


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Something that is no business of ours; its content must never change."""
    folder = tmp_path / "outside"
    ended(folder)
    return folder


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    ended(folder)
    aged(folder)
    return folder


def test_a_link_in_place_of_the_folder_goes_and_its_target_stays(inside: Path, outside: Path) -> None:
    before = tree(outside)
    link = inside / "sessions" / "linked"
    link.symlink_to(outside / "sessions" / SESSION)
    aged(inside)
    assert survey(inside)["linked"] == Stored("linked", OLD, 0, Standing.ENDED)
    assert sorted(prune(inside)) == ["linked", SESSION]
    assert left(inside) == []
    assert tree(outside) == before


def test_links_below_the_folder_are_not_followed(inside: Path, outside: Path) -> None:
    before = tree(outside)
    size = survey(inside)[SESSION].size_bytes
    (inside / "sessions" / SESSION / "artifacts" / "link").symlink_to(outside)
    (inside / "sessions" / SESSION / "file").symlink_to(outside / "sessions" / SESSION / "result.json")
    assert survey(inside)[SESSION].size_bytes == size
    assert prune(inside) == [SESSION]
    assert tree(outside) == before


@pytest.mark.parametrize("name", ["sessions", "checkpoints"])
def test_a_link_in_place_of_a_whole_part_is_refused(inside: Path, outside: Path, name: str) -> None:
    (outside / "checkpoints").mkdir()
    before = tree(outside)
    if (inside / name).exists():
        (inside / name).rename(inside / "aside")
    (inside / name).symlink_to(outside / name)
    with pytest.raises(OSError, match="link"):
        prune(inside)
    assert tree(outside) == before


def test_the_state_directory_itself_may_be_a_link(inside: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(inside)
    assert prune(tmp_path / "link") == [SESSION]
    assert left(inside) == []


def test_a_link_in_place_of_the_lock(inside: Path, outside: Path) -> None:
    (inside / "checkpoints").mkdir()
    (inside / "checkpoints" / f"{SESSION}.lock").symlink_to(outside / "sessions" / SESSION / "result.json")
    before = tree(outside), tree(inside)
    with pytest.raises(WriteFailed, match="lock"):
        prune(inside)
    assert (tree(outside), tree(inside)) == before


@posix
@pytest.mark.parametrize("name", ["sessions", "checkpoints"])
def test_a_part_swapped_for_a_link_meanwhile(inside: Path, outside: Path, name: str) -> None:
    (inside / "checkpoints").mkdir()
    (outside / "checkpoints").mkdir()
    (outside / "checkpoints" / f"{SESSION}.lock").touch()
    before = tree(outside)
    with SessionPruner(str(inside), now=NOW) as pruner:
        (found,) = pruner.survey()
        (inside / name).rename(inside / "aside")
        (inside / name).symlink_to(outside / name)
        if name == "checkpoints":
            with pytest.raises(OSError, match="replaced"):
                pruner.remove(found)
            assert (inside / "sessions" / SESSION / "result.json").exists()
        else:
            assert pruner.remove(found)
            assert listed(inside / "aside") == [], "the folder that was opened is the one that is emptied"
    assert tree(outside) == before


@posix
@pytest.mark.parametrize("moment", ["rename", "rmtree"])
def test_a_folder_swapped_for_a_link_meanwhile(
    inside: Path, outside: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(outside)

    def swap(path: Path) -> None:
        path.rename(inside / "aside")
        path.symlink_to(outside / "sessions" / SESSION)

    real_rename, real_rmtree = Folder.rename, shutil.rmtree

    def rename(self: Folder, name: str, new: str) -> None:
        if moment == "rename":
            swap(inside / "sessions" / name)
        real_rename(self, name, new)

    def rmtree(path: str, **more: Any) -> None:
        if moment == "rmtree":
            swap(inside / "sessions" / path)
        real_rmtree(path, **more)

    monkeypatch.setattr(Folder, "rename", rename)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    if moment == "rmtree":
        with pytest.raises(OSError, match="symbolic link"):
            prune(inside)
    else:
        assert prune(inside) == [SESSION]
    assert tree(outside) == before
    monkeypatch.undo()
    assert prune(inside) == []
    assert left(inside) == [], "the next prune takes the link away"
    assert tree(outside) == before


# --- when it is cut off -----------------------------------------------------------------------------------------------

_PRUNE = """
import os, signal, sys
from state.prune import PruneLimits, choose
from state.prune import SessionPruner
state_dir, now, fatal = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
changes = 0
def count(event, _):
    global changes
    if event in ("os.remove", "os.rename", "os.rmdir"):
        changes += 1
        if changes == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
with SessionPruner(state_dir, now=now) as pruner:
    for session_id in pruner.remains():
        pruner.clear(session_id)
    for chosen in choose(pruner.survey(), PruneLimits(max_age_s=0), now=now, resumable=True):
        pruner.remove(chosen.stored)
"""


def killed_prune(directory: Path, fatal: int) -> bool:
    """Prune in a process that is killed just before its change number `fatal`; False when it came to its end."""
    command = [sys.executable, "-c", _PRUNE, str(directory), str(NOW), str(fatal)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.slow
@posix
@pytest.mark.parametrize("make", [ended, resumable])
def test_the_next_prune_finishes_what_a_kill_cut_off(tmp_path: Path, make: Any) -> None:
    whole = tmp_path / "whole"
    make(whole)
    aged(whole)
    before = survey(whole)[SESSION]
    fatal, seen = 1, set()
    while True:
        cut = tmp_path / f"cut-{fatal}"
        shutil.copytree(whole, cut)
        if not killed_prune(cut, fatal):
            break
        assert prune(cut, PruneLimits()) == [], "without limits only remains are cleared"
        now = survey(cut).get(SESSION)
        assert now is None or now == before or now.standing is Standing.ENDED, (fatal, left(cut))
        assert not [name for name in left(cut) if "being-pruned" in name], (fatal, left(cut))
        seen.add(now and now.standing)
        if now is None:
            assert left(cut) == [], fatal
        else:
            assert now.last_used == before.last_used, "so the next prune finds it over the same limits"
            prune(cut, resumable=now.standing is Standing.RESUMABLE)
            assert left(cut) == [], fatal
        fatal += 1
    assert left(cut) == []
    assert fatal > 6
    assert seen == {None, Standing.ENDED, *({Standing.RESUMABLE} if make is resumable else ())}


@pytest.mark.slow
@posix
def test_a_cut_off_prune_may_be_cut_off_again(tmp_path: Path) -> None:
    resumable(tmp_path)
    aged(tmp_path)
    kills = 0
    while killed_prune(tmp_path, 2):
        kills += 1
        assert kills < 50
    assert kills > 5
    assert left(tmp_path) == []


@pytest.mark.slow
@posix
def test_a_start_under_the_same_id_after_a_cut_off_prune(tmp_path: Path) -> None:
    """The remains of an earlier session never take a later one with them."""
    whole = tmp_path / "whole"
    resumable(whole)
    aged(whole)
    for fatal in range(1, 20):
        cut = tmp_path / f"cut-{fatal}"
        shutil.copytree(whole, cut)
        if not killed_prune(cut, fatal):
            break
        if (cut / "checkpoints" / f"{SESSION}.journal").exists():
            continue  # the id is still taken
        create(cut).close()
        aged(cut)
        assert prune(cut) == []
        assert standing_of(cut) is Standing.RESUMABLE
    else:
        raise AssertionError("never through")


# --- what refuses -----------------------------------------------------------------------------------------------------

_AS_NOBODY = """
import importlib, os, pkgutil, shutil, sys
import state
for module in pkgutil.iter_modules(state.__path__, "state."):
    importlib.import_module(module.name)  # while this user may still read them
from state.prune import PruneLimits, choose
from state.prune import SessionPruner
if os.geteuid() == 0:
    os.setuid(int(sys.argv[3]))
now = float(sys.argv[2])
with SessionPruner(sys.argv[1], now=now) as pruner:
    for chosen in choose(pruner.survey(), PruneLimits(max_age_s=0), now=now):
        try:
            print(chosen.stored.session_id, pruner.remove(chosen.stored))
        except OSError as error:
            print(chosen.stored.session_id, error.strerror)
"""


@posix
def test_a_folder_that_may_not_be_changed(tmp_path: Path) -> None:
    nobody = 65534
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        ended(directory, "a", at="2020-01-01T00:00:00Z")
        ended(directory, "b")
        aged(directory)
        (directory / "sessions" / "a" / "artifacts").chmod(0o500)
        if os.geteuid() == 0:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, nobody, nobody)
        command = [sys.executable, "-c", _AS_NOBODY, name, str(NOW), str(nobody)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.stdout == "a Permission denied\nb True\n", done.stderr
        (directory / "sessions" / "a.being-pruned" / "artifacts").chmod(0o700)
        assert prune(directory) == []
        assert left(directory) == []
