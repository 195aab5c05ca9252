"""The state of a session: how it begins, what each record does to it, and which records cannot follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from state import Damaged, UnknownVersion
from state.checkpoint import ApprovalGranted, Checkpoint, OpenCall, SessionIdentity, Task, TokenUsage
from state.records import TaskStarted, record_of
from tests.support.memory_store import MemoryCheckpointStore
from tests.unit.state.helpers import USAGE, commit, finish, fresh_state, message, start_task, turn

if TYPE_CHECKING:
    from state.file_session import FileSession


@pytest.fixture
def session() -> FileSession:
    return MemoryCheckpointStore().create("s", fresh_state("s"))


def task_of(session: FileSession) -> Task:
    assert session.state.task is not None
    return session.state.task


def calls_of(session: FileSession) -> list[OpenCall]:
    assert session.state.open_step is not None
    return session.state.open_step.calls


def test_a_session_begins_with_nothing() -> None:
    state = Checkpoint(SessionIdentity("s", "w", "t", "u", {}))
    assert state.identity.options == {}
    assert (state.session_status, state.policy_bundle_version) == ("SESSION_RUNNING", "")
    assert (state.thread, state.task, state.step_cursor, state.open_step) == ([], None, None, None)
    assert (state.usage, state.usage.to_wire()) == (
        TokenUsage(),
        {"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0},
    )
    assert (state.baselines, state.earlier_tasks, state.grants) == ({}, [], [])
    assert (state.seq, state.salvaged, state.dropped_messages, state.tokens_known) == (0, None, 0, None)
    assert (state.usage.total, state.awaits_approval, state.has_task("t")) == (0, False, False)
    assert list(state.first_version_blobs()) == []


def test_a_task_begins_with_nothing(session: FileSession) -> None:
    start_task(session)
    assert session.state.task == Task("t1", "do it", 40)
    task = task_of(session)
    assert (task.status, task.reason, task.step_count, task.options) == ("running", None, 0, {})
    assert (task.finished_calls, task.denied, task.baselines, task.usage.to_wire()) == (
        [],
        [],
        {},
        TokenUsage().to_wire(),
    )


def test_a_call_begins_with_nothing() -> None:
    call = OpenCall("c", "T", {}, side_effects=True)
    assert (call.gated, call.started) == (False, False)
    assert {call.problem, call.result, call.status, call.code, call.approval_id} == {None}
    assert (call.intent, call.replay, call.answer, call.edited_arguments) == (None, None, None, None)


def test_what_a_gateway_does_not_count_is_nothing(session: FileSession) -> None:
    usage = TokenUsage(1, 2, 3)
    usage = usage.plus(TokenUsage.from_record({}))
    assert usage == TokenUsage(1, 2, 3)
    usage = usage.plus(TokenUsage.from_record(USAGE))
    assert usage == TokenUsage(11, 5, 4)
    usage = usage.plus(TokenUsage.from_record({"cachedInputTokens": 5, "cacheWriteTokens": 2, "cacheWrite1hTokens": 1}))
    assert usage == TokenUsage(11, 5, 9, 2, 1)
    assert TokenUsage.from_record(usage.to_record()) == usage
    assert usage.total == 16


def test_tokens_are_counted_for_the_session_and_for_the_task(session: FileSession) -> None:
    start_task(session)
    turn(session, "step_1")
    commit(session, 1)
    session.append(record_of("task_ended", {"status": "completed"}))
    session.append(TaskStarted("t2", "p", 3, message("user", "p")))
    turn(session, "step_2")
    assert session.state.usage == TokenUsage(20, 6, 2)
    assert task_of(session).usage == TokenUsage(10, 3, 1)
    assert session.state.usage.total == 26


def test_tokens_are_counted_by_model_where_their_turn_names_one(session: FileSession) -> None:
    start_task(session)
    fields: dict[str, Any] = {"stopReason": "end_turn", "boot": None, "usage": USAGE, "calls": []}
    for number, model in enumerate(("m", "n", "m", None)):
        named = {} if model is None else {"model": model}
        session.append(record_of("turn", {**fields, "stepId": f"s{number}", **named}, message("assistant", "hi")))
        commit(session, number + 1)
    by_model = {"m": TokenUsage(20, 6, 2), "n": TokenUsage(10, 3, 1)}
    assert session.state.usage == TokenUsage(40, 12, 4)
    assert session.state.usage_by_model == task_of(session).usage_by_model == by_model
    session.append(record_of("task_ended", {"status": "completed"}))
    session.append(TaskStarted("t2", "p", 3, message("user", "p")))
    assert (session.state.usage_by_model, task_of(session).usage_by_model) == (by_model, {})


def test_options_of_a_task(session: FileSession) -> None:
    session.append(TaskStarted("t1", "p", 3, message("user", "p"), {"allowNetwork": False}))
    assert task_of(session).options == {"allowNetwork": False}
    assert len(session.state.thread) == 2


def test_what_the_gateway_counted_goes_with_the_estimate(session: FileSession) -> None:
    start_task(session)
    turn(session, "step_1")
    assert (session.state.dropped_messages, session.state.tokens_known) == (0, None)
    commit(session, 1)
    fields: dict[str, Any] = {"stepId": "s2", "stopReason": "end_turn", "boot": None, "usage": USAGE, "calls": []}
    session.append(record_of("turn", {**fields, "window": {"dropped": 4, "estimated": 9}}, message("assistant", "hi")))
    assert (session.state.dropped_messages, session.state.tokens_known) == (4, (10, 9))
    step = session.state.open_step
    assert step is not None
    assert (step.step_id, step.stop_reason, step.boot, step.position, step.text) == ("s2", "end_turn", None, 3, "hi")


def test_grants_for_a_task_end_with_it(session: FileSession) -> None:
    start_task(session)
    kept = [ApprovalGranted("session", "a", tool_name="A"), ApprovalGranted("session", "b", tool_name="B")]
    for grant in (ApprovalGranted("task", "c", "t1", "C"), *kept):
        session.append(grant)
    assert len(session.state.grants) == 3
    session.append(TaskStarted("t2", "p", 3, message("user", "p")))
    assert session.state.grants == kept


def test_a_step_that_ends_leaves_its_results_in_call_order(session: FileSession) -> None:
    start_task(session)
    turn(session, "step_1", "c1", "c2", text="both")
    finish(session, "c2", "second")
    session.append(
        record_of("call_finished", {"callId": "c1", "status": "failed", "code": "FILE_NOT_FOUND"}, message("tool", "1"))
    )
    session.append(record_of("step_committed", {"stepCount": 7}, message("system", "mind the steps")))
    assert [orjson.loads(one)["content"] for one in session.state.thread[2:]] == [
        "both",
        "1",
        "second",
        "mind the steps",
    ]
    task = task_of(session)
    assert task.finished_calls == [("RunCommand", "failed", "FILE_NOT_FOUND"), ("RunCommand", "succeeded", None)]
    assert (task.step_count, task.status, task.reason, task.denied) == (7, "running", None, [])
    assert (session.state.step_cursor, session.state.open_step) == ("step_1", None)


def test_a_step_may_move_the_window(session: FileSession) -> None:
    start_task(session)
    for number, dropped in enumerate((5, None, 0)):
        turn(session, f"step_{number}")
        fields = {"stepCount": number + 1} | ({} if dropped is None else {"dropped": dropped})
        session.append(record_of("step_committed", fields))
        assert session.state.dropped_messages == (5, 5, 0)[number]


def test_options_of_a_turn_replace_those_of_the_task(session: FileSession) -> None:
    fields = {"taskId": "t1", "prompt": "p", "maxSteps": 4, "options": {"allow_network": False, "model": "m"}}
    session.append(record_of("task_started", fields, message("user", "p")))
    first = task_of(session).options
    session.append(record_of("turn", {**NO_TURN, "usage": USAGE, "options": {"model": "n"}}, message("assistant", "")))
    assert task_of(session).options == {"allow_network": False, "model": "n"}
    assert first == {"allow_network": False, "model": "m"}


def test_a_turn_may_name_first_versions(session: FileSession) -> None:
    start_task(session)
    fields = {**NO_TURN, "usage": USAGE, "baselines": {"/a": "h", "/b": None}}
    session.append(record_of("turn", fields, message("assistant", "hi")))
    assert session.state.baselines == task_of(session).baselines == {"/a": "h", "/b": None}


def test_a_result_without_a_status_is_a_failure(session: FileSession) -> None:
    start_task(session)
    turn(session, "step_1", "c1")
    session.append(record_of("call_finished", {"callId": "c1", "status": None}, message("tool", "?")))
    commit(session, 1)
    assert task_of(session).finished_calls == [("RunCommand", "failed", None)]


def test_a_denied_call_can_be_approved_later(session: FileSession) -> None:
    start_task(session)
    turn(session, "step_1", "c1", "c2")
    for call in ("c1", "c2"):
        replay = {"callId": call} if call == "c2" else {"approve": "R"}  # as programs wrote it before rows had the id
        fields = {"callId": call, "status": "denied", "code": "APPROVAL_REQUIRED", "replay": replay}
        session.append(record_of("call_finished", fields, message("tool", "no")))
    commit(session, 1)
    denied = [
        {"toolName": "RunCommand", "replay": {"approve": "R"}},
        {"toolName": "RunCommand", "replay": {"callId": "c2"}},
    ]
    assert task_of(session).denied == denied
    turn(session, "step_2")
    assert task_of(session).denied == denied
    commit(session, 2)
    turn(session, "step_3", settled=["c2"])
    assert task_of(session).denied == denied[:1]


@pytest.mark.parametrize(
    ("status", "session_status", "awaits"),
    [
        ("running", "SESSION_PAUSED", False),
        ("completed", "SESSION_PAUSED", True),
        ("failed", "SESSION_PAUSED", True),
        ("completed", "SESSION_RUNNING", False),
    ],
)
def test_what_waits_only_to_be_approved(session: FileSession, status: str, session_status: str, awaits: bool) -> None:
    start_task(session)
    session.append(record_of("task_ended", {"status": status, "reason": "why"}))
    session.append(record_of("session_status", {"status": session_status}))
    assert session.state.awaits_approval is awaits
    assert (task_of(session).status, task_of(session).reason) == (status, "why")
    session.append(record_of("task_ended", {"status": status}))
    assert task_of(session).reason is None


def test_the_session_s_status_may_change_its_policy_and_its_limit(session: FileSession) -> None:
    session.append(record_of("session_status", {"status": "SESSION_PAUSED", "maxSteps": 3}))  # there is no task yet
    start_task(session)
    session.append(record_of("session_status", {"status": "SESSION_PAUSED"}))
    assert (session.state.policy_bundle_version, task_of(session).max_steps) == ("v1", 40)
    session.append(
        record_of("session_status", {"status": "SESSION_RUNNING", "policyBundleVersion": "v2", "maxSteps": 41})
    )
    assert (session.state.policy_bundle_version, task_of(session).max_steps) == ("v2", 41)


def test_a_note_of_damage_is_told_once(session: FileSession) -> None:
    session.state.salvaged = "a record"
    session.append(record_of("note", {}, message("system", "by the way")))
    said = [session.state.salvaged]
    session.append(record_of("note", {"ofDamage": True}, message("system", "a record is lost")))
    assert [*said, session.state.salvaged] == ["a record", None]
    assert len(session.state.thread) == 3


def test_a_background_command_stays_until_the_model_knows_of_its_end(session: FileSession) -> None:
    start_task(session)
    turn(session, "step_1", "c1", "c2")
    for number, call in ((1, "c1"), (2, "c2")):
        session.append(record_of("command_started", {"id": f"cmd_{number}", "callId": call}))
        finish(session, call)
    row = {"callId": "c1", "taskId": "t1", "stepId": "step_1", "line": "c1"}
    assert session.state.commands == {"cmd_1": row, "cmd_2": {**row, "callId": "c2", "line": "c2"}}
    session.append(record_of("command_ended", {"id": "cmd_2", "reason": "stopped", "exitCode": 143}))
    assert session.state.commands == {"cmd_1": row}, "the answer to the stop says so"
    commit(session, 1)
    session.append(record_of("command_ended", {"id": "cmd_1", "reason": "exited", "exitCode": 0, "left": 2}))
    ended = {"reason": "exited", "exitCode": 0, "left": 2}
    assert session.state.commands == {"cmd_1": {**row, "ended": ended}}
    session.append(record_of("note", {"ofCommands": ["cmd_1"]}, message("system", "over")))
    assert (session.state.commands, session.state.commands_started) == ({}, 2)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("command_started", {"id": "cmd_1", "callId": "c1"}),
        ("command_started", {"id": "cmd_2", "callId": "c9"}),
        ("command_ended", {"id": "cmd_2", "reason": "exited"}),
    ],
)
def test_records_of_commands_that_cannot_follow(session: FileSession, kind: str, fields: dict[str, str]) -> None:
    start_task(session)
    turn(session, "step_1", "c1")
    session.append(record_of("command_started", {"id": "cmd_1", "callId": "c1"}))
    with pytest.raises(Damaged):
        session.append(record_of(kind, fields))


def test_starts_that_may_have_been_lost_and_one_that_did_not_happen(session: FileSession) -> None:
    session.state.suspect_starts()
    start_task(session)
    turn(session, "step_1", "c1", "c2", "c3")
    session.append(record_of("call_started", {"callId": "c1", "intent": {"path": "/a"}}))
    assert [call.started for call in calls_of(session)] == [True, False, False]
    session.append(record_of("call_started", {"callId": "c1"}))
    assert calls_of(session)[0].intent == {"path": "/a"}, "what is said once stays"
    session.state.open_call("c1").started = False
    session.append(record_of("call_started", {"callId": "c1"}))
    finish(session, "c2")
    session.state.suspect_starts()
    assert [call.started for call in calls_of(session)] == [True, False, True]


NO_TURN: dict[str, Any] = {"stepId": "s", "stopReason": "end_turn", "boot": None, "usage": {}, "calls": []}


@pytest.mark.parametrize(
    ("before", "kind", "fields"),
    [
        ("", "turn", NO_TURN),
        ("", "task_ended", {"status": "failed"}),
        ("", "task_reopened", {"maxSteps": 3}),
        ("", "call_started", {"callId": "c1"}),
        ("", "step_committed", {"stepCount": 1}),
        ("task", "step_committed", {"stepCount": 1}),
        ("task", "task_reopened", {"maxSteps": 3}),
        ("task", "task_started", {"taskId": "t2"}),
        ("task", "turn", NO_TURN),
        ("task call", "turn", NO_TURN),
        ("task call", "step_committed", {"stepCount": 1}),
        ("task call", "call_started", {"callId": "c9"}),
        ("task call", "call_finished", {"callId": "c1"}),
        ("task call", "task_started", {"taskId": "t2", "prompt": "p", "maxSteps": 3}),
        ("task call", "session_status", {}),
    ],
)
def test_what_cannot_follow_is_damage(session: FileSession, before: str, kind: str, fields: dict[str, Any]) -> None:
    if "task" in before:
        start_task(session)
    if "call" in before:
        turn(session, "step_1", "c1")
    data = message("assistant", "") if kind == "turn" and before != "task" else None
    with pytest.raises(Damaged, match=f"'{kind}'"):
        session.append(record_of(kind, fields, data))


def test_a_kind_that_is_not_known_is_no_damage(session: FileSession) -> None:
    with pytest.raises(UnknownVersion, match="'segment'"):
        session.append(record_of("segment", {}))


def test_artifacts_of_a_call_wait_until_their_upload_is_over(session: FileSession) -> None:
    start_task(session)
    turn(session, "step_1", "c1")
    rows = [
        {"id": "a", "name": "here", "uri": "uri of here"},
        {"id": "b", "name": "lost", "why": "no room"},
        *({"id": one, "name": f"waits {one}"} for one in "cde"),
    ]
    session.append(
        record_of(
            "call_finished",
            {"callId": "c1", "status": "succeeded", "artifacts": rows, "uris": ["uri elsewhere"]},
            message("tool", "ok"),
        )
    )
    of_call = {"callId": "c1", "taskId": "t1", "stepId": "step_1"}
    assert session.state.uploads == {one: {"id": one, "name": f"waits {one}", **of_call} for one in "cde"}
    commit(session, 1)
    session.append(record_of("artifact_uploaded", {"id": "c", "uri": "uri of c"}))
    session.append(record_of("artifact_given_up", {"id": "d", "why": "too late"}))
    assert list(session.state.uploads) == ["e"]
    assert session.state.artifact_uris == {"c1": ["uri elsewhere", "uri of here", "uri of c"]}
    task = task_of(session)
    assert [(row["name"], row["why"]) for row in task.not_uploaded] == [("lost", "no room"), ("waits d", "too late")]
    session.append(record_of("task_ended", {"status": "completed"}))
    session.append(TaskStarted("t2", "p", 3, message("user", "p")))
    session.append(record_of("artifact_given_up", {"id": "e", "why": "too late"}))
    assert (session.state.uploads, task_of(session).not_uploaded) == ({}, [])
    for kind in ("artifact_uploaded", "artifact_given_up"):
        with pytest.raises(Damaged):
            session.append(record_of(kind, {"id": "e", "uri": "", "why": ""}))


def test_a_null_in_a_turn_is_no_result_of_its_call(session: FileSession) -> None:
    start_task(session)
    named = [{"id": "c1", "name": "RunCommand", "arguments": {}}]
    fields = {
        "stepId": "step_1", "stopReason": "tool_use", "boot": "b", "usage": USAGE,
        "calls": [{"callId": "c1", "sideEffects": True, "result": None}],
    }  # fmt: skip
    session.append(record_of("turn", fields, message("assistant", "", toolCalls=named)))
    assert [call.result for call in calls_of(session)] == [None]
