"""Several tasks on one thread: what each keeps, and what is opened again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state import Damaged
from state.checkpoint import EarlierTask
from state.records import record_of
from tests.support.records import answered
from tests.unit.state.helpers import commit, create, finish, load, message, paths_in, reopen, start_task, turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state.file_session import FileSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileSession]:
    made = create(tmp_path)
    yield made
    made.close()


def test_each_task_has_first_versions_of_its_own(store: FileSession, tmp_path: Path) -> None:
    start_task(store, "p" * 300)
    turn(store, "step_1", "c1", gated=True)
    store.append(record_of("call_started", {"callId": "c1", "baselines": {"/a": "first", "/b": None}}))
    finish(store, "c1")
    store.append(record_of("step_committed", {"stepCount": 1, "taskStatus": "failed", "taskReason": "MAX_STEPS"}))
    store.append(record_of("task_started", {"taskId": "t2", "prompt": "more", "maxSteps": 4}, message("user", "more")))
    turn(store, "step_2", "c2", gated=True)
    store.append(record_of("call_started", {"callId": "c2", "baselines": {"/a": "second", "/c": "third"}}))
    for compacted in (False, True):
        if compacted:
            store.compact()
        found = load(tmp_path)
        assert found == store.state
        assert found.baselines == {"/a": "first", "/b": None, "/c": "third"}
        assert found.task is not None
        assert found.task.baselines == {"/a": "second", "/c": "third"}
        first = {"/a": "first", "/b": None}
        assert found.earlier_tasks == [EarlierTask("t1", "p" * 200, "failed", "MAX_STEPS", 1, first)]
        assert (found.has_task("t1"), found.has_task("t2"), found.has_task("t3")) == (True, True, False)
        assert sorted(found.first_version_blobs()) == ["first", "first", "second", "third", "third"]


def test_a_session_of_one_task_names_its_first_versions_once(store: FileSession, tmp_path: Path) -> None:
    start_task(store)
    turn(store, "step_1", "c1", gated=True)
    store.append(record_of("call_started", {"callId": "c1", "baselines": {"/only/once": "first"}}))
    store.compact()
    with open(paths_in(tmp_path).snapshot, "rb") as handle:
        assert handle.read().count(b"/only/once") == 1
    assert load(tmp_path) == store.state


def test_blobs_that_an_earlier_task_names_stay(tmp_path: Path) -> None:
    store = create(tmp_path)
    names: list[str] = []
    for number in range(3):
        fields = {"taskId": f"t{number}", "prompt": "go", "maxSteps": 4}
        store.append(record_of("task_started", fields, message("user", "go")))
        turn(store, f"step_{number}", f"c{number}", gated=True)
        names.append(store.keep(b"version %d" % number))
        store.append(record_of("call_started", {"callId": f"c{number}", "baselines": {"/a": names[-1]}}))
        finish(store, f"c{number}")
        commit(store, 1)
    stray = store.keep(b"named by nobody")
    store.compact()
    for _ in range(2):
        store.close()
        store = reopen(tmp_path)
        assert [store.kept(name) for name in names] == [b"version 0", b"version 1", b"version 2"]
    assert store.kept(stray) is None
    store.close()


def test_a_task_that_is_over_is_opened_again(store: FileSession, tmp_path: Path) -> None:
    start_task(store)
    turn(store, "step_1", "c1", "c2", gated=True)
    for call in ("c1", "c2"):
        replay = {"callId": call, "approve": "RunCommand"}
        fields = {"callId": call, "status": "denied", "code": "APPROVAL_REQUIRED", "replay": replay}
        store.append(record_of("call_finished", fields, message("tool", "no", toolCallId=call)))
    with pytest.raises(Damaged):
        store.append(record_of("task_reopened", {"maxSteps": 9}))
    commit(store, 1)
    store.append(record_of("task_ended", {"status": "failed", "reason": "MAX_STEPS"}))
    store.append(record_of("session_status", {"status": "SESSION_PAUSED"}))
    store.append(record_of("task_reopened", {"maxSteps": 9}))
    turn(store, "step_2", "c3", gated=True, settled=["c2", "unknown"])
    found = load(tmp_path)
    assert found == store.state
    assert found.session_status == "SESSION_RUNNING"
    assert found.task is not None
    assert (found.task.status, found.task.reason, found.task.max_steps) == ("running", None, 9)
    assert found.task.step_count == 1
    assert [row["replay"]["callId"] for row in found.task.denied] == ["c1"]


@pytest.mark.parametrize("compact", [False, True])
def test_arguments_that_a_person_has_edited_stay_with_the_call(
    store: FileSession, tmp_path: Path, *, compact: bool
) -> None:
    start_task(store)
    turn(store, "step_1", "c1", "c2", gated=True)
    given = {"approved": True, "scope": "once", "reason": "but there"}
    store.append(record_of("approval", {"callId": "c1", "approvalId": "a1", **given, "arguments": {"command": "ls"}}))
    store.append(record_of("approval", {"callId": "c2", "approvalId": "a2", **given}))
    if compact:
        store.compact()
    found = load(tmp_path)
    assert found.open_step is not None
    first, second = found.open_step.calls
    assert (first.arguments, first.edited_arguments) == ({"command": "c1"}, {"command": "ls"})
    assert (answered(first), answered(second), second.edited_arguments) == (given, given, None)


def test_the_next_task_is_not_taken_for_one_that_waits_to_be_approved(store: FileSession, tmp_path: Path) -> None:
    start_task(store)
    turn(store, "step_1", "c1", gated=True)
    finish(store, "c1")
    store.append(record_of("step_committed", {"stepCount": 1, "taskStatus": "completed"}))
    store.append(record_of("session_status", {"status": "SESSION_PAUSED", "reason": "APPROVAL_REQUIRED"}))
    assert store.state.awaits_approval
    store.append(record_of("task_started", {"taskId": "t2", "prompt": "more", "maxSteps": 4}, message("user", "more")))
    store.append(record_of("task_ended", {"status": "completed"}))
    assert not load(tmp_path).awaits_approval
