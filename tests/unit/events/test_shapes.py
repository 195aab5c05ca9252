"""What the services are told: the audit record of a call, and telemetry that says nothing of contents."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agent_host.events import LIVE_ONLY, EventType
from agent_host.events.payloads import AUDIT_EVENTS, PAYLOADS, TELEMETRY_EVENTS, AuditRecords, telemetry_line
from tests.support.events import Watcher, emitter

REQUESTED = {
    "toolCallId": "c1", "toolName": "WriteFile", "capability": "File.Write", "summary": "notes.txt",
    "argumentsSha256": "ab", "decision": "APPROVAL_REQUIRED", "rule": "capabilities[File.Write]", "riskLevel": "medium",
}  # fmt: skip
COMPLETED = {
    "toolCallId": "c1", "toolName": "WriteFile", "status": "succeeded", "startedAt": "2026-01-01T00:00:00.000Z",
    "outputBytes": 2, "outputSha256": "cd", "latencyMs": 7,
}  # fmt: skip
RESOLVED = {
    "approvalId": "a1", "toolCallId": "c1", "decision": "approved", "scope": "session", "reason": "fine",
    "latencyMs": 9,
}  # fmt: skip


def audited(*events: tuple[EventType, dict[str, Any]]) -> list[dict[str, Any]]:
    shape, watcher = AuditRecords(), Watcher()
    made = emitter(watcher)
    for event_type, payload in events:
        made.emit(event_type, payload, task_id="t", step_id="s")
    lines = [shape(event) for event in watcher.events if event.event_type in AUDIT_EVENTS]
    return [orjson.loads(line) for line in lines if line is not None]


def test_the_record_of_a_call_that_was_approved() -> None:
    answer, done = audited(
        (EventType.TOOL_REQUESTED, REQUESTED),
        (EventType.APPROVAL_RESOLVED, RESOLVED),
        (EventType.TOOL_COMPLETED, COMPLETED),
    )
    assert answer["payload"] == RESOLVED
    assert (done["eventType"], done["taskId"], done["stepId"]) == ("tool_completed", "t", "s")
    assert done["payload"] == {
        "toolCallId": "c1",
        "tool": "WriteFile",
        "capability": "File.Write",
        "risk": "medium",
        "ts_start": "2026-01-01T00:00:00.000Z",
        "ts_end": done["timestamp"],
        "params": {"summary": "notes.txt", "sha256": "ab"},
        "result": {"ok": True, "status": "succeeded", "bytes": 2},
        "policy": {
            "decision": "APPROVAL_REQUIRED",
            "rule": "capabilities[File.Write]",
            "approved": True,
            "approval_scope": "session",
            "approval_id": "a1",
        },
        "hashes": {"output_sha256": "cd"},
    }


def test_the_record_of_a_script_has_its_exit_code_and_what_was_stored() -> None:
    done = {
        **COMPLETED,
        "toolName": "run_script",
        "status": "failed",
        "code": "TOOL_EXECUTION_FAILED",
        "exitCode": 3,
        "storageRefs": ["artifacts/art_1"],
        "storedSha256": {"artifacts/art_1": "ef"},
        "storedParts": {"stdout": "artifacts/art_1"},
    }
    (record,) = audited((EventType.TOOL_COMPLETED, done))
    assert record["payload"]["result"] == {
        "ok": False, "status": "failed", "code": "TOOL_EXECUTION_FAILED", "exit_code": 3, "bytes": 2,
        "stdout_ref": "artifacts/art_1", "storage_refs": ["artifacts/art_1"],
    }  # fmt: skip
    assert record["payload"]["hashes"] == {
        "output_sha256": "cd", "stdout_sha256": "ef", "stored_sha256": {"artifacts/art_1": "ef"},
    }  # fmt: skip


@pytest.mark.parametrize(("scope", "told"), [("once", "once"), ("task", "run"), ("session", "session")])
def test_how_far_an_approval_reaches_is_in_the_words_of_the_specification(scope: str, told: str) -> None:
    for decision, expected in (("approved", told), ("denied", None)):
        answer = {**RESOLVED, "decision": decision, "scope": scope}
        record = audited((EventType.APPROVAL_RESOLVED, answer), (EventType.TOOL_COMPLETED, COMPLETED))[-1]
        policy = record["payload"]["policy"]
        assert (policy["approved"], policy.get("approval_scope")) == (decision == "approved", expected)


def test_a_call_under_an_earlier_approval_names_it() -> None:
    later = {**REQUESTED, "toolCallId": "c2", "grantedBy": "a1"}
    done = {**COMPLETED, "toolCallId": "c2"}
    known = audited(
        (EventType.APPROVAL_RESOLVED, RESOLVED), (EventType.TOOL_REQUESTED, later), (EventType.TOOL_COMPLETED, done)
    )[-1]  # fmt: skip
    assert (
        known["payload"]["policy"].items()
        >= {"approved": True, "approval_scope": "session", "approval_id": "a1"}.items()
    )
    (unknown,) = audited((EventType.TOOL_REQUESTED, later), (EventType.TOOL_COMPLETED, done))
    assert unknown["payload"]["policy"].items() >= {"approved": True, "approval_id": "a1"}.items()
    assert "approval_scope" not in unknown["payload"]["policy"]


def test_a_call_that_was_refused_did_not_start_and_has_its_code() -> None:
    denied = {**COMPLETED, "status": "denied", "code": "CAPABILITY_DENIED"}
    del denied["startedAt"]
    (record,) = audited(
        (EventType.TOOL_REQUESTED, {**REQUESTED, "decision": "DENIED"}), (EventType.TOOL_COMPLETED, denied)
    )
    payload = record["payload"]
    assert payload["result"] == {"ok": False, "status": "denied", "code": "CAPABILITY_DENIED", "bytes": 2}
    assert payload["policy"]["decision"] == "DENIED"
    assert "approved" not in payload["policy"]
    assert payload["ts_start"] <= payload["ts_end"]


def test_a_call_that_another_process_requested_has_what_its_end_says() -> None:
    cut_off = {**COMPLETED, "status": "failed", "code": "TOOL_INTERRUPTED"}
    (record,) = audited((EventType.TOOL_COMPLETED, cut_off))
    assert record["payload"]["params"] == {}
    assert record["payload"]["policy"] == {}
    assert record["payload"]["result"]["code"] == "TOOL_INTERRUPTED"


def test_audit_gets_sessions_and_approvals_as_they_are_and_nothing_of_the_model() -> None:
    assert {event_type for event_type in EventType if event_type.startswith(("session_", "approval_"))} <= AUDIT_EVENTS
    assert not AUDIT_EVENTS & (LIVE_ONLY | {EventType.LLM_REQUEST_COMPLETED, EventType.STEP_STARTED})


def test_what_audit_remembers_is_bounded() -> None:
    shape, watcher = AuditRecords(), Watcher()
    made = emitter(watcher)
    for number in range(10_000):
        made.emit(EventType.TOOL_REQUESTED, {**REQUESTED, "toolCallId": f"c{number}"})
        assert shape(watcher.events.pop()) is None
    assert len(shape._requested) < 5_000


def test_telemetry_carries_no_more_than_its_fields() -> None:
    watcher = Watcher()
    made = emitter(watcher, scrub=lambda line: line.replace(b"token", b"*"))
    canary = "canary of a person"
    for event_type in TELEMETRY_EVENTS:
        payload = {
            field.name: (1 if field.kind == "integer" else "name-token") if field.telemetry else canary
            for field in PAYLOADS[event_type].fields
        }
        made.emit(event_type, {**payload, "unknown": canary})
    for event in watcher.events:
        line = telemetry_line(event)
        assert canary.encode() not in line
        assert b"token" not in line.replace(b"Token", b"")
        told = orjson.loads(line)
        assert told["sessionId"] == "s"
        fields = {field.name for field in PAYLOADS[event.event_type].fields if field.telemetry}
        assert told["payload"].keys() == fields
    assert not TELEMETRY_EVENTS & LIVE_ONLY


def test_a_name_that_a_model_made_up_is_cut() -> None:
    watcher = Watcher()
    emitter(watcher).emit(EventType.TOOL_COMPLETED, {**COMPLETED, "toolName": "x" * 5_000})
    assert len(telemetry_line(watcher.events[0])) < 700
