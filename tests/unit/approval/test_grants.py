"""What an approval leaves behind, and which later calls it covers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.approval.grants import covering, grant_for
from agent_host.approval.request import ApprovalAnswer, ApprovalRequest, call_digest, replay_of

if TYPE_CHECKING:
    from agent_host.approval.request import Scope

ARGUMENTS = {"command": "make", "env": {"B": "2", "A": "1"}}


def request(**changes: Any) -> ApprovalRequest:
    values: dict[str, Any] = {
        "approval_id": "appr_1",
        "session_id": "s",
        "task_id": "t1",
        "step_id": "step_1",
        "tool_name": "RunCommand",
        "capability": "Shell.Exec",
        "arguments": ARGUMENTS,
        "title": "Run",
        "description": "Runs it.",
        "rule_id": "shell",
        "risk_level": "medium",
        "risks": (),
    }
    return ApprovalRequest(**{**values, **changes})


def grant(scope: Scope, **changes: Any) -> dict[str, Any]:
    return grant_for(request(**changes), scope, policy_bundle_version="v1", granted_at="2026-02-21T15:10:00.000Z")


def covered_by(*grants: dict[str, Any], **changes: Any) -> str | None:
    call = {"tool_name": "RunCommand", "arguments": ARGUMENTS, "task_id": "t1", "policy_bundle_version": "v1"}
    return covering(grants, **{**call, **changes})


def test_a_grant_says_what_for_how_far_and_since_when() -> None:
    assert grant("task") == {
        "approvalId": "appr_1",
        "scope": "task",
        "toolName": "RunCommand",
        "capability": "Shell.Exec",
        "argumentsHash": call_digest("RunCommand", ARGUMENTS),
        "policyBundleVersion": "v1",
        "taskId": "t1",
        "grantedAt": "2026-02-21T15:10:00.000Z",
    }


def test_the_same_call_is_covered_however_its_arguments_are_ordered() -> None:
    assert covered_by(grant("task")) == "appr_1"
    assert covered_by(grant("task"), arguments={"env": {"A": "1", "B": "2"}, "command": "make"}) == "appr_1"


@pytest.mark.parametrize(
    "other",
    [
        {"tool_name": "WriteFile"},
        {"arguments": {**ARGUMENTS, "command": "make all"}},
        {"arguments": {**ARGUMENTS, "more": None}},
        {"arguments": {"command": "make"}},
        {"policy_bundle_version": "v2"},
    ],
)
def test_another_call_is_not_covered(other: dict[str, Any]) -> None:
    assert covered_by(grant("task"), grant("session"), **other) is None


def test_a_task_grant_ends_with_its_task_and_a_session_grant_does_not() -> None:
    assert covered_by(grant("task"), task_id="t2") is None
    assert covered_by(grant("session"), task_id="t2") == "appr_1"


def test_nothing_is_covered_without_grants() -> None:
    assert covered_by() is None


def test_a_single_approval_covers_no_other_call() -> None:
    assert covered_by(grant("once")) is None


def test_the_first_grant_that_covers_is_named() -> None:
    others = [grant("session", approval_id="appr_0", tool_name="WriteFile"), grant("task", task_id="t0")]
    assert covered_by(*others, grant("session", approval_id="appr_2"), grant("task")) == "appr_2"


def test_the_replay_id_is_of_the_same_digest() -> None:
    replay = replay_of("RunCommand", ARGUMENTS, session_id="s", approve="shell")
    assert replay["id"] == f"replay_{call_digest('RunCommand', ARGUMENTS)[:32]}"
    assert replay["command"] == f"agent-host resume s --approve {replay['id']}"
    assert re.fullmatch(r"[0-9a-f]{64}", call_digest("RunCommand", ARGUMENTS))


@given(
    st.booleans(),
    st.text(),
    st.booleans(),
    st.sampled_from(["once", "task", "session"]),
    st.booleans(),
    st.none() | st.dictionaries(st.text(), st.integers()),
)
def test_an_answer_comes_back_from_its_record(
    approved: bool, reason: str, unattended: bool, scope: Scope, timed_out: bool, arguments: dict[str, int] | None
) -> None:
    answer = ApprovalAnswer(approved, reason, unattended, scope, timed_out, arguments)
    record = answer.to_record()
    assert ApprovalAnswer.from_record(record) == answer
    assert ("unattended" in record, "timedOut" in record) == (unattended, timed_out)
    assert ("arguments" in record) == (arguments is not None)


def test_a_record_from_before_there_were_time_outs() -> None:
    old = {"approved": True, "scope": "once", "reason": "yes"}
    assert ApprovalAnswer.from_record(old) == ApprovalAnswer(True, "yes")
