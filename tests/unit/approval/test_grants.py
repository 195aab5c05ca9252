"""What an approval leaves behind, and which later calls it covers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.approval import ApprovalAnswer, ApprovalRequest, call_digest, covering, replay_of
from policy.facts import CommandFacts, PathFacts
from policy.rules.canonical import exact_call, same_action
from state.checkpoint import ApprovalAnswered, ApprovalGranted
from state.records import fields_of, record_of

if TYPE_CHECKING:
    from agent_host.approval import Scope

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


def action(
    command: str = "make", *, cwd: str = "/w", tool_name: str = "RunCommand", policy: str = "p1", **others: Any
) -> str:
    return same_action(
        tool_name,
        {"command": command, "cwd": cwd, **others},
        CommandFacts(command, cwd),
        policy,
        fact_arguments=frozenset({"command", None}),
        os="posix",
    )


ACTION = action()


def grant(scope: Scope, *, of: str = ACTION, **changes: Any) -> ApprovalGranted:
    at = "2026-02-21T15:10:00.000Z"
    for_this = request(**changes)
    said = (for_this.tool_name, for_this.capability, for_this.action_summary)
    return ApprovalGranted(scope, for_this.approval_id, for_this.task_id, *said, of, "v1", at)


def covered_by(*grants: ApprovalGranted, of: str = ACTION, task_id: str = "t1") -> str | None:
    return covering(grants, action=of, task_id=task_id)


def test_a_grant_says_what_for_how_far_and_since_when() -> None:
    assert fields_of(grant("task", summary="run: make")) == {
        "approvalId": "appr_1",
        "scope": "task",
        "toolName": "RunCommand",
        "capability": "Shell.Exec",
        "action": "run: make",
        "actionHash": ACTION,
        "policyBundleVersion": "v1",
        "taskId": "t1",
        "grantedAt": "2026-02-21T15:10:00.000Z",
    }


@pytest.mark.parametrize("same", [action("  make "), action("make\t"), action()])
def test_the_same_action_in_another_spelling_is_covered(same: str) -> None:
    assert covered_by(grant("task"), of=same) == "appr_1"


@pytest.mark.parametrize(
    "other",
    [
        action(tool_name="RunOther"),
        action("make all"),
        action("make;"),
        action(cwd="/x"),
        action(timeout_s=3),
        action(policy="p2"),
    ],
)
def test_another_action_is_not_covered(other: str) -> None:
    assert covered_by(grant("task"), grant("session"), of=other) is None


def test_what_is_written_to_an_approved_file_may_differ() -> None:
    def write(path: str, content: str) -> str:
        facts = PathFacts(path, path, "/w/real")
        arguments = {"path": path, "content": content}
        named = frozenset({"path", "content"})
        return same_action("WriteFile", arguments, facts, "p1", fact_arguments=named, os="posix")

    assert write("/w/a", "one") == write("/w/link", "two")


def test_an_approval_of_one_call_holds_for_these_bytes_there_under_this_policy() -> None:
    def bound(arguments: dict[str, Any], cwd: str, policy: str) -> str:
        return exact_call("RunCommand", arguments, CommandFacts("make", cwd), policy)

    assert bound(ARGUMENTS, "/w", "p") == bound({"env": {"A": "1", "B": "2"}, "command": "make"}, "/w", "p")
    others = [bound({**ARGUMENTS, "more": None}, "/w", "p"), bound(ARGUMENTS, "/x", "p"), bound(ARGUMENTS, "/w", "q")]
    assert bound(ARGUMENTS, "/w", "p") not in others


def test_a_grant_of_an_earlier_version_covers_nothing() -> None:
    old = grant("session")._replace(action_hash=None)
    assert covered_by(old) is None


def test_a_task_grant_ends_with_its_task_and_a_session_grant_does_not() -> None:
    assert covered_by(grant("task"), task_id="t2") is None
    assert covered_by(grant("session"), task_id="t2") == "appr_1"


def test_nothing_is_covered_without_grants() -> None:
    assert covered_by() is None


def test_a_single_approval_covers_no_other_call() -> None:
    assert covered_by(grant("once")) is None


def test_the_first_grant_that_covers_is_named() -> None:
    others = [grant("session", approval_id="appr_0", of=action("make all")), grant("task", task_id="t0")]
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
    record = answer.to_record("c", "a", "bound")
    assert (record.call_id, record.approval_id, record.bound_to) == ("c", "a", "bound")
    assert ApprovalAnswer.from_record(record) == answer
    fields = fields_of(record)
    assert record_of("approval", fields) == record
    assert ("unattended" in fields, "timedOut" in fields) == (unattended, timed_out)
    assert ("arguments" in fields) == (arguments is not None)


def test_a_record_from_before_there_were_time_outs() -> None:
    old = record_of("approval", {"callId": "c", "approvalId": "a", "approved": True, "scope": "once", "reason": "yes"})
    assert isinstance(old, ApprovalAnswered)
    assert ApprovalAnswer.from_record(old) == ApprovalAnswer(True, "yes")
