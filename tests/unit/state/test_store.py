"""One session on disk: what `append` and `sync` promise, what `open` finds, what `delete` leaves."""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from state import Damaged, NoSuchSession, SessionExists, SessionLocked, StateError, UnknownVersion, WriteFailed
from state.checkpoint import ENDED
from state.disk import LOCAL_DISK, Disk, holder
from state.file_session import LoadReport
from state.journal import frame, parse
from state.records import record_of
from state.snapshot import EncodedSnapshot, encode_head
from tests.support.records import answered
from tests.unit.state.helpers import (
    SESSION,
    USAGE,
    commit,
    create,
    finish,
    fresh_state,
    load,
    message,
    on_disk,
    paths_in,
    reopen,
    start_task,
    turn,
    unnumbered,
    whole_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state.file_session import FileSession


class AnotherBoot(Disk):
    """The machine went down since."""

    def boot_id(self) -> str | None:
        return "another"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileSession]:
    made = create(tmp_path)
    yield made
    made.close()


def worked(directory: Path, **options: Any) -> FileSession:
    """A session in the middle of its second step."""
    made = create(directory, **options)
    start_task(made)
    whole_step(made, 1)
    turn(made, "step_2", "c2", "c3", text="two at once")
    made.sync()
    made.append(record_of("call_started", {"callId": "c2", "intent": {"path": "/f", "before": None, "after": "h"}}))
    finish(made, "c2", "done")
    return made


def large(directory: Path) -> FileSession:
    """A session whose snapshot is too large to stand in the journal."""
    made = worked(directory)
    for _ in range(2):
        made.append(record_of("note", {}, message("system", "n" * 10_000)))
    made.compact()
    return made


def copy_of(directory: Path, target: Path) -> Path:
    """What a process killed now would leave behind."""
    shutil.copytree(directory, target)
    return target


def test_a_new_session_can_be_opened_again(tmp_path: Path) -> None:
    create(tmp_path).close()
    again = reopen(tmp_path)
    assert unnumbered(again.state) == fresh_state()
    assert again.report.torn_bytes == 0
    again.close()


@pytest.mark.parametrize("compact", [False, True])
def test_a_killed_process_leaves_its_whole_state(tmp_path: Path, *, compact: bool) -> None:
    live = worked(tmp_path / "a", min_compact_bytes=0 if compact else 1 << 20)
    if compact:
        live.sync()
    found = load(copy_of(tmp_path / "a", tmp_path / "b"))
    assert found == live.state
    open_step = found.open_step
    assert open_step is not None
    first, second = open_step.calls
    assert (first.started, first.status, first.intent) == (
        True,
        "succeeded",
        {"path": "/f", "before": None, "after": "h"},
    )
    assert (second.started, second.result, second.arguments) == (False, None, {"command": "c3"})
    assert open_step.text == "two at once"
    live.close()


def test_large_messages_make_a_new_snapshot_and_small_ones_do_not(store: FileSession, tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    start_task(store)
    before = os.stat(paths.snapshot).st_ino
    for number in range(1, 10):
        whole_step(store, number)
    assert os.stat(paths.snapshot).st_ino == before
    whole_step(store, 20, "x" * 300_000)
    assert os.stat(paths.snapshot).st_ino != before
    assert os.path.getsize(paths.journal) < 10_000
    assert load(tmp_path) == store.state


def test_bytes_written_follow_bytes_changed(store: FileSession, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    real = Disk.write

    def count(disk: Disk, fd: int, data: bytes) -> None:
        written.append(len(data))
        real(disk, fd, data)

    monkeypatch.setattr(Disk, "write", count)
    start_task(store)
    for number in range(1, 201):
        whole_step(store, number, "x" * 10_000)
    assert sum(written) < 4 * sum(map(len, store.state.thread))


def test_a_step_costs_two_syncs(store: FileSession, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = Disk.sync

    def count(disk: Disk, fd: int) -> None:
        synced.append(fd)
        real(disk, fd)

    start_task(store)
    store.sync()
    monkeypatch.setattr(Disk, "sync", count)
    turn(store, "step_1", *(f"c{n}" for n in range(8)))
    store.sync()
    for number in range(8):
        store.append(record_of("call_started", {"callId": f"c{number}"}))
        finish(store, f"c{number}")
    commit(store, 1)
    store.sync()
    assert len(synced) == 2


def test_the_snapshot_is_the_json_of_ah_9_2(tmp_path: Path) -> None:
    made = worked(tmp_path)
    raw = orjson.loads(
        b"".join(EncodedSnapshot(encode_head(made.state, "2026-02-21T15:10:00Z"), made.state.thread).chunks())
    )
    made.close()
    assert {key: raw[key] for key in raw if key not in ("thread", "resume", "checksum", "task")} == {
        "checkpointVersion": "1.0",
        "sessionId": SESSION,
        "workspaceId": "ws_1",
        "tenantId": "tenant",
        "userId": "user",
        "sessionStatus": "SESSION_RUNNING",
        "stepCursor": "step_1",
        "sessionTokensUsed": 2 * (USAGE["inputTokens"] + USAGE["outputTokens"]),
        "policyBundleVersion": "v1",
        "checkpointedAt": "2026-02-21T15:10:00Z",
    }
    assert {key: raw["task"][key] for key in ("taskId", "prompt", "status", "stepCount", "maxSteps")} == {
        "taskId": "t1",
        "prompt": "do it",
        "status": "running",
        "stepCount": 1,
        "maxSteps": 40,
    }
    assert [entry["role"] for entry in raw["thread"]] == ["system", "user", "assistant", "tool", "assistant"]


def test_a_snapshot_holds_all_of_an_open_step(store: FileSession, tmp_path: Path) -> None:
    start_task(store)
    turn(store, "step_1", "c1", "c2", gated=True, text="both")
    store.append(
        record_of(
            "call_started",
            {
                "callId": "c1",
                "intent": {"path": "/f", "before": "h", "after": None},
                "baselines": {"/f": "h", "/g": None},
            },
        ),
    )
    answer = {"callId": "c1", "status": "denied", "code": "APPROVAL_REQUIRED", "replay": {"approve": "RunCommand"}}
    store.append(record_of("call_finished", answer, message("tool", "no", toolCallId="c1", isError=True)))
    grant = {"scope": "task", "approvalId": "appr_0", "taskId": "t1"}
    store.append(record_of("grant", grant))
    refused = {"approved": False, "scope": "once", "reason": "nobody is there", "unattended": True}
    store.append(record_of("approval", {"callId": "c1", "approvalId": "appr_c1", **refused}))
    store.append(record_of("session_status", {"status": "SESSION_PAUSED", "policyBundleVersion": "v2", "maxSteps": 9}))
    store.compact()
    found = load(tmp_path)
    assert found == store.state
    assert found.open_step is not None
    first, second = found.open_step.calls
    assert (first.gated, first.started, first.code, first.replay) == (True, True, "APPROVAL_REQUIRED", answer["replay"])
    assert first.result is not None
    assert (first.approval_id, answered(first)) == ("appr_c1", refused)
    assert (second.gated, second.started, second.replay) == (True, False, None)
    assert (second.approval_id, answered(second)) == ("appr_c2", None)
    assert (found.baselines, found.grants) == ({"/f": "h", "/g": None}, [record_of("grant", grant)])
    assert (found.session_status, found.policy_bundle_version) == ("SESSION_PAUSED", "v2")


@pytest.mark.parametrize("compact", [False, True])
def test_an_answer_survives_in_journal_and_snapshot(store: FileSession, tmp_path: Path, *, compact: bool) -> None:
    answer = {"approved": True, "scope": "session", "reason": "go on"}
    start_task(store)
    turn(store, "step_1", "c1", "c2", gated=True)
    store.append(record_of("approval", {"callId": "c1", "approvalId": "appr_c1", **answer}))
    if compact:
        store.compact()
    open_step = load(tmp_path).open_step
    assert open_step is not None
    found = [(call.approval_id, answered(call)) for call in open_step.calls]
    assert found == [("appr_c1", answer), ("appr_c2", None)]


@pytest.mark.parametrize("compact", [False, True])
def test_a_call_that_needs_approval_only_now_is_gated_from_now_on(
    store: FileSession, tmp_path: Path, *, compact: bool
) -> None:
    start_task(store)
    turn(store, "step_1", "c1")
    store.append(record_of("approval", {"callId": "c1", "approvalId": "appr_late"}))
    if compact:
        store.compact()
    open_step = load(tmp_path).open_step
    assert open_step is not None
    (found,) = open_step.calls
    assert (found.gated, found.approval_id, answered(found)) == (True, "appr_late", None)


@pytest.mark.parametrize("compact", [False, True])
def test_a_gated_call_without_an_id_still_loads(store: FileSession, tmp_path: Path, *, compact: bool) -> None:
    """As programs wrote it before calls had the id of their approval."""
    start_task(store)
    fields = {"stepId": "step_1", "stopReason": "tool_use", "boot": "b", "usage": USAGE}
    named = [{"id": "c1", "name": "RunCommand", "arguments": {}}]
    rows = [{"callId": "c1", "sideEffects": True, "gated": True}]
    store.append(record_of("turn", {**fields, "calls": rows}, message("assistant", "", toolCalls=named)))
    if compact:
        store.compact()
    open_step = load(tmp_path).open_step
    assert open_step is not None
    (found,) = open_step.calls
    assert (found.gated, found.approval_id, answered(found)) == (True, None, None)


def test_an_answer_to_no_call_of_the_open_step_is_damage(store: FileSession) -> None:
    start_task(store)
    turn(store, "step_1", "c1", gated=True)
    with pytest.raises(Damaged, match="approval"):
        store.append(
            record_of("approval", {"callId": "c9", "approvalId": "a", "approved": True, "scope": "once", "reason": ""})
        )


def test_the_file_on_disk_is_that_json(store: FileSession, tmp_path: Path) -> None:
    raw = orjson.loads((tmp_path / "checkpoints" / f"{SESSION}.json").read_bytes())
    assert raw["sessionId"] == SESSION
    assert raw["checkpointedAt"].startswith("20")


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("loose_umask")
def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    made = worked(tmp_path)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "checkpoints").iterdir()}
    made.close()
    assert found == dict.fromkeys((f"{SESSION}.json", f"{SESSION}.journal", f"{SESSION}.lock"), 0o600)
    for directory in ("checkpoints", f"sessions/{SESSION}"):
        assert stat.S_IMODE((tmp_path / directory).stat().st_mode) == 0o700


@pytest.mark.usefixtures("loose_umask")
def test_all_directories_that_are_made_are_for_their_owner_alone(tmp_path: Path) -> None:
    create(tmp_path / "share" / "agent-host").close()
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(made) == 5
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in made if path.stat().st_mode & 0o77} == {}


def test_the_first_baseline_of_a_path_stays(store: FileSession, tmp_path: Path) -> None:
    start_task(store)
    turn(store, "step_1", "c1", "c2", gated=True)
    store.append(record_of("call_started", {"callId": "c1", "baselines": {"/a": "first", "/b": None}}))
    store.append(
        record_of("call_started", {"callId": "c2", "baselines": {"/a": "second", "/b": "second", "/c": "third"}})
    )
    assert store.state.baselines == {"/a": "first", "/b": None, "/c": "third"}
    assert load(tmp_path).baselines == store.state.baselines


# --- create -----------------------------------------------------------------------------------------------------------


def test_a_session_is_created_once(store: FileSession, tmp_path: Path) -> None:
    with pytest.raises(SessionLocked) as caught:
        create(tmp_path)
    assert caught.value.pid == os.getpid()
    store.close()
    before = (tmp_path / "checkpoints" / f"{SESSION}.json").read_bytes()
    with pytest.raises(SessionExists, match=SESSION):
        create(tmp_path)
    assert (tmp_path / "checkpoints" / f"{SESSION}.json").read_bytes() == before
    reopen(tmp_path).close()  # the refused one holds no lock


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / f"{SESSION}.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises((SessionExists, Damaged)):
        create(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_leftover_temporary_files_are_no_obstacle(tmp_path: Path) -> None:
    live = worked(tmp_path)
    live.close()
    for suffix in ("json", "journal"):
        (tmp_path / "checkpoints" / f"{SESSION}.{suffix}.tmp").write_bytes(b"half a snap")
    (tmp_path / "bystander").write_bytes(b"mine")
    os.unlink(tmp_path / "checkpoints" / f"{SESSION}.json.tmp")
    (tmp_path / "checkpoints" / f"{SESSION}.json.tmp").symlink_to(tmp_path / "bystander")
    again = reopen(tmp_path)
    assert unnumbered(again.state) == unnumbered(live.state)
    again.compact()
    again.close()
    assert (tmp_path / "bystander").read_bytes() == b"mine"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        f"{SESSION}.journal",
        f"{SESSION}.json",
        f"{SESSION}.lock",
    ]


# --- open -------------------------------------------------------------------------------------------------------------


def test_there_is_no_such_session(tmp_path: Path) -> None:
    with pytest.raises(NoSuchSession, match="nobody"):
        reopen(tmp_path, "nobody")
    assert list(tmp_path.iterdir()) == []


def test_a_crash_between_the_two_replacements_of_a_compaction_is_harmless(tmp_path: Path) -> None:
    live = worked(tmp_path / "a")
    old = (tmp_path / "a" / "checkpoints" / f"{SESSION}.journal").read_bytes()
    expected = unnumbered(live.state)
    live.compact()
    copy_of(tmp_path / "a", tmp_path / "b")
    live.close()
    (tmp_path / "b" / "checkpoints" / f"{SESSION}.journal").write_bytes(old)
    assert unnumbered(load(tmp_path / "b")) == expected
    again = reopen(tmp_path / "b")
    assert unnumbered(again.state) == expected
    finish(again, "c3")
    commit(again, 2)
    again.close()
    found = load(tmp_path / "b")
    assert found == again.state
    assert found.task is not None
    assert [row[0] for row in found.task.finished_calls] == ["RunCommand"] * 3


def test_a_crash_in_the_middle_of_a_creation_leaves_no_session(tmp_path: Path) -> None:
    """The journal is made first, so that a checkpoint without one is always damage."""
    create(tmp_path).close()
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    opening = journal.read_bytes()
    for begin_again in (False, True):
        (tmp_path / "checkpoints" / f"{SESSION}.json").unlink(missing_ok=True)
        journal.write_bytes(opening)
        if begin_again:
            create(tmp_path).close()
            assert unnumbered(load(tmp_path)) == fresh_state()
        else:
            with pytest.raises(NoSuchSession):
                reopen(tmp_path)
            assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_torn_record_is_dropped_and_reported(tmp_path: Path) -> None:
    live = worked(tmp_path)
    finish(live, "c3", "never whole")
    live.close()
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    data = journal.read_bytes()
    last = data.rindex(b"\nJ2 ") + 1
    for size in (last + 1, last + 20, len(data) - 1):
        journal.write_bytes(data[:size])
        again = reopen(tmp_path)
        assert again.report.torn_bytes == size - last
        open_step = again.state.open_step
        assert open_step is not None
        assert [call.status for call in open_step.calls] == ["succeeded", None]
        again.close()
        assert not parse(journal.read_bytes()).torn_bytes


@pytest.mark.slow
def test_no_changed_byte_of_either_file_gives_another_state(tmp_path: Path) -> None:
    live = worked(tmp_path)
    live.close()
    paths = paths_in(tmp_path)
    dropped_tail = restored = 0
    opening_bytes = LOCAL_DISK.read(paths.journal).index(b"\n") + 1
    for path in (paths.snapshot, paths.journal):
        data = LOCAL_DISK.read(path)
        for at in range(len(data)):
            for flip in (0x01, 0x80):
                with open(path, "wb") as handle:
                    handle.write(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
                try:
                    found = on_disk(tmp_path)
                except UnknownVersion:
                    continue
                if found.damage is not None:
                    continue
                if found.restored:
                    assert path == paths.snapshot or at < opening_bytes, f"journal byte {at}"
                    assert found.state == live.state
                    restored += 1
                    continue
                assert path == paths.journal, f"snapshot byte {at}"
                assert found.journal.torn_bytes, f"journal byte {at}"
                dropped_tail += 1
        with open(path, "wb") as handle:
            handle.write(data)
    assert load(tmp_path) == live.state
    assert dropped_tail
    assert restored >= 2 * (
        os.path.getsize(paths.snapshot) + opening_bytes - 2
    )  # another first digit is another format


def test_a_damaged_last_record_does_not_make_a_started_call_unstarted(tmp_path: Path) -> None:
    """A process that dies leaves a record without its end. One that has its end was whole once, and so was its word."""
    live = create(tmp_path)
    start_task(live)
    turn(live, "step_1", "c1")
    live.sync()
    live.append(record_of("call_started", {"callId": "c1"}))
    live.close()
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    data = bytearray(journal.read_bytes())
    data[-5] ^= 1
    journal.write_bytes(data)
    try:
        found = load(tmp_path)
    except Damaged:
        return
    assert found.open_step is not None
    assert found.open_step.calls[0].started


def test_damage_is_moved_aside_and_never_deleted(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    snapshot, journal = checkpoints / f"{SESSION}.json", checkpoints / f"{SESSION}.journal"
    large(tmp_path).close()
    whole = snapshot.read_bytes(), journal.read_bytes()
    damaged = whole[0].replace(b"be careful", b"be careless"[:10])
    before = checkpoints / f"{SESSION}.json.previous"
    for number in (1, 2):
        snapshot.write_bytes(damaged)
        journal.write_bytes(whole[1])
        before.write_bytes(damaged)
        for path in (snapshot, journal, before):
            path.chmod(0o600)
        with pytest.raises(Damaged, match="checksum") as caught:
            reopen(tmp_path)
        assert (caught.value.quarantined, caught.value.salvaged) == (f"{snapshot}.corrupt-{number}", False)
        assert (checkpoints / f"{SESSION}.json.corrupt-{number}").read_bytes() == damaged
        assert (checkpoints / f"{SESSION}.journal.corrupt-{number}").read_bytes() == whole[1]
        assert (checkpoints / f"{SESSION}.json.previous.corrupt-{number}").read_bytes() == damaged
    assert len(list(checkpoints.iterdir())) == 6
    with pytest.raises(SessionExists, match="damaged files of an earlier session"):
        create(tmp_path)


def test_a_small_snapshot_that_is_missing_stands_in_the_journal_too(tmp_path: Path) -> None:
    live = worked(tmp_path)
    live.close()
    (tmp_path / "checkpoints" / f"{SESSION}.json").unlink()
    with pytest.raises(Damaged) as caught:
        reopen(tmp_path)
    assert caught.value.salvaged
    again = reopen(tmp_path)
    assert again.state.thread == live.state.thread
    assert again.state.open_step is not None
    assert [call.started for call in again.state.open_step.calls] == [True, True]
    again.close()


def test_what_is_whole_before_the_damage_can_be_resumed(tmp_path: Path) -> None:
    live = worked(tmp_path)
    turn_two = next(at for at, data in enumerate(live.state.thread) if b"two at once" in data)
    live.close()
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    data = journal.read_bytes()
    broken = data.replace(b"two at once", b"two at ONCE", 1)
    journal.write_bytes(broken)
    with pytest.raises(Damaged, match="before its end") as caught:
        reopen(tmp_path)
    assert caught.value.salvaged
    assert caught.value.quarantined == str(tmp_path / "checkpoints" / f"{SESSION}.json.corrupt-1")
    assert (tmp_path / "checkpoints" / f"{SESSION}.journal.corrupt-1").read_bytes() == broken
    again = reopen(tmp_path)
    assert again.state.thread == live.state.thread[:turn_two]
    assert again.state.task is not None
    assert again.state.task.step_count == 1
    assert again.state.salvaged is not None
    again.append(record_of("note", {"ofDamage": True}, message("system", "it was damaged")))
    again.close()
    assert load(tmp_path).salvaged is None


def test_calls_of_a_step_that_was_saved_count_as_started(tmp_path: Path) -> None:
    """What said that they started may be what is damaged."""
    live = worked(tmp_path)
    live.close()
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    started = b'"kind":"call_started","callId":"c'
    journal.write_bytes(journal.read_bytes().replace(started + b"2", started + b"X"))
    with pytest.raises(Damaged):
        reopen(tmp_path)
    step = load(tmp_path).open_step
    assert step is not None
    assert [call.started for call in step.calls] == [True, True]


@pytest.mark.parametrize("kind", ["json", "journal"])
def test_a_link_in_place_of_a_file_is_refused_and_its_target_left_alone(tmp_path: Path, kind: str) -> None:
    worked(tmp_path).close()
    path = tmp_path / "checkpoints" / f"{SESSION}.{kind}"
    target = tmp_path / "target"
    path.rename(target)
    path.symlink_to(target)
    data = target.read_bytes()
    with pytest.raises(Damaged, match="not a regular file"):
        reopen(tmp_path)
    assert target.read_bytes() == data
    assert not target.is_symlink()
    assert (tmp_path / "checkpoints" / f"{SESSION}.{kind}.corrupt-1").is_symlink()


def test_a_lock_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    worked(tmp_path).close()
    lock = tmp_path / "checkpoints" / f"{SESSION}.lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError):
        reopen(tmp_path)


def test_the_checkpoint_of_another_session_is_refused(tmp_path: Path) -> None:
    worked(tmp_path).close()
    for suffix in ("json", "journal"):
        source = tmp_path / "checkpoints" / f"{SESSION}.{suffix}"
        shutil.copy(source, tmp_path / "checkpoints" / f"other.{suffix}")
    with pytest.raises(Damaged, match=SESSION):
        reopen(tmp_path, "other")
    reopen(tmp_path).close()


def test_the_journal_of_another_session_is_refused(tmp_path: Path) -> None:
    worked(tmp_path).close()
    create(tmp_path, "other").close()
    shutil.copy(tmp_path / "checkpoints" / f"{SESSION}.journal", tmp_path / "checkpoints" / "other.journal")
    with pytest.raises(Damaged, match=SESSION):
        reopen(tmp_path, "other")


@pytest.mark.parametrize("version", ["1.1", "2.0", 2, None])
def test_an_unknown_version_is_left_untouched(tmp_path: Path, version: object) -> None:
    worked(tmp_path).close()
    snapshot, journal = (tmp_path / "checkpoints" / f"{SESSION}.{suffix}" for suffix in ("json", "journal"))
    newer = orjson.dumps({**orjson.loads(snapshot.read_bytes()), "checkpointVersion": version, "new": 1})
    snapshot.write_bytes(newer)
    before = journal.read_bytes()
    with pytest.raises(UnknownVersion):
        reopen(tmp_path)
    assert (snapshot.read_bytes(), journal.read_bytes()) == (newer, before)
    assert holder(paths_in(tmp_path).lock) is None


def test_a_newer_journal_is_left_untouched(tmp_path: Path) -> None:
    worked(tmp_path).close()
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    newer = journal.read_bytes().replace(b"J2 ", b"J3 ")
    journal.write_bytes(newer)
    with pytest.raises(UnknownVersion):
        reopen(tmp_path)
    assert journal.read_bytes() == newer


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"text"', b'{"a":1}', b"\xff\xfe", b"[" * 5000])
@pytest.mark.parametrize("small", [True, False])
def test_what_is_no_checkpoint_is_kept_and_costs_nothing(tmp_path: Path, data: bytes, *, small: bool) -> None:
    live = worked(tmp_path) if small else large(tmp_path)
    live.close()
    (tmp_path / "checkpoints" / f"{SESSION}.json").write_bytes(data)
    again = reopen(tmp_path)
    assert again.report == LoadReport(kept_aside=f"{paths_in(tmp_path).snapshot}.corrupt-1", restored=True)
    assert unnumbered(again.state) == unnumbered(live.state)
    again.close()
    assert reopen(tmp_path).report == LoadReport()
    assert (tmp_path / "checkpoints" / f"{SESSION}.json.corrupt-1").read_bytes() == data


def test_records_missing_between_checkpoint_and_journal_are_damage(tmp_path: Path) -> None:
    snapshot = tmp_path / "checkpoints" / f"{SESSION}.json"
    live = create(tmp_path)
    older = snapshot.read_bytes()
    start_task(live)
    live.compact()
    live.close()
    snapshot.write_bytes(older)
    with pytest.raises(Damaged, match="missing"):
        reopen(tmp_path)


def test_a_record_that_cannot_follow_is_damage(tmp_path: Path) -> None:
    live = create(tmp_path)
    seq = live.state.seq
    live.close()
    with open(paths_in(tmp_path).journal, "ab") as handle:
        handle.write(frame(seq + 1, seq, b'{"kind":"call_started","callId":"nobody"}'))
    with pytest.raises(Damaged, match="call_started"):
        reopen(tmp_path)


def test_a_journal_alone_is_damage_unless_it_says_that_the_session_is_over(tmp_path: Path) -> None:
    worked(tmp_path).close()
    os.unlink(tmp_path / "checkpoints" / f"{SESSION}.json")
    with pytest.raises(Damaged, match="missing"):
        reopen(tmp_path)
    assert (tmp_path / "checkpoints" / f"{SESSION}.journal.corrupt-1").exists()


@pytest.mark.parametrize("left", [None, b"", b"J2 9"])
def test_a_journal_that_vanished_is_damage(tmp_path: Path, left: bytes | None) -> None:
    """No crash leaves this: a journal is put in place whole, with its first record, and stays until the next one."""
    live = worked(tmp_path)
    live.compact()
    finish(live, "c3")
    live.close()
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    if left is None:
        journal.unlink()
    else:
        journal.write_bytes(left)
    with pytest.raises(Damaged):
        reopen(tmp_path)


def test_a_note_in_an_open_step_does_not_spoil_the_snapshot(tmp_path: Path) -> None:
    live = worked(tmp_path)
    try:
        live.append(record_of("note", {}, message("system", "by the way")))
    except Damaged:  # refusing it would do as well
        live.close()
        return
    live.compact()
    live.close()
    assert load(tmp_path) == live.state


# --- delete -----------------------------------------------------------------------------------------------------------


def test_the_clean_end_leaves_only_the_records_folder(tmp_path: Path) -> None:
    made = worked(tmp_path)
    (tmp_path / "sessions" / SESSION / "events.jsonl").write_bytes(b"{}\n")
    made.delete()
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert (tmp_path / "sessions" / SESSION / "events.jsonl").exists()
    with pytest.raises(NoSuchSession):
        reopen(tmp_path)
    create(tmp_path).close()


def ended_journal(directory: Path) -> None:
    """What a process leaves that was killed between the two removals of a clean end."""
    made = worked(directory)
    made.append(record_of("session_status", {"status": ENDED}))
    made.close()
    os.unlink(directory / "checkpoints" / f"{SESSION}.json")


def test_a_crash_in_the_middle_of_the_clean_end_finishes_it(tmp_path: Path) -> None:
    ended_journal(tmp_path)
    with pytest.raises(NoSuchSession):
        reopen(tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_snapshot_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it would be an older state; the journal alone says that the session is over."""
    made = worked(tmp_path)
    gone: list[str] = []
    real = os.unlink

    def watch(path: str) -> None:
        assert parse(LOCAL_DISK.read(paths_in(tmp_path).journal)).records[-1].fields.endswith(b'"SESSION_COMPLETED"}')
        gone.append(os.path.basename(path))
        real(path)
        if path.endswith(".journal"):
            monkeypatch.undo()

    monkeypatch.setattr(os, "unlink", watch)
    made.delete()
    assert [gone[0], gone[-1]] == [f"{SESSION}.json", f"{SESSION}.journal"]


def test_an_id_whose_clean_end_was_cut_off_can_be_used_again(tmp_path: Path) -> None:
    ended_journal(tmp_path)
    create(tmp_path).close()


def test_a_clean_end_that_the_disk_refuses_lets_go_of_the_lock(tmp_path: Path) -> None:
    made = worked(tmp_path)
    journal = tmp_path / "checkpoints" / f"{SESSION}.journal"
    journal.unlink()
    journal.mkdir()  # what cannot be unlinked, even by root
    with pytest.raises(WriteFailed):
        made.delete()
    assert holder(paths_in(tmp_path).lock) is None


def broken_in_the_middle(directory: Path) -> None:
    """A journal in which the first of two unsynced results is broken and the second is whole."""
    store = create(directory)
    start_task(store)
    turn(store, "step_1", "c1", "c2")
    store.sync()
    for call in ("c1", "c2"):
        store.append(record_of("call_started", {"callId": call}))
    finish(store, "c1", "x" * 100)
    finish(store, "c2")
    store.close()
    path = paths_in(directory).journal
    with open(path, "r+b") as handle:
        at = handle.read().index(b"x" * 100)
        handle.seek(at)
        handle.write(b"\0" * 100)


def test_records_that_a_power_loss_took_out_of_order_are_a_torn_tail(tmp_path: Path) -> None:
    """What was not synced may be there in part, in any order."""
    broken_in_the_middle(tmp_path)
    store = reopen(tmp_path, disk=AnotherBoot())
    assert store.report.torn_bytes > 0
    assert store.state.open_step is not None
    assert [call.started for call in store.state.open_step.calls] == [True, True]
    store.close()


def test_the_same_break_within_one_boot_is_damage(tmp_path: Path) -> None:
    broken_in_the_middle(tmp_path)
    with pytest.raises(Damaged):
        reopen(tmp_path)


def test_a_break_before_what_was_synced_is_damage_in_any_boot(tmp_path: Path) -> None:
    store = create(tmp_path)
    start_task(store)
    whole_step(store, 1, "x" * 100)
    turn(store, "step_2", "c2")
    store.sync()
    store.close()
    with open(paths_in(tmp_path).journal, "r+b") as handle:
        at = handle.read().index(b"x" * 100)
        handle.seek(at)
        handle.write(b"\0" * 100)
    with pytest.raises(Damaged):
        reopen(tmp_path, disk=AnotherBoot())
