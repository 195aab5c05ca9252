"""The model of a session, from messages and a run log as they lie on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agent_host.session.reports import StoredSession
from agent_host.session.transcript import doubts_of, items_of, pictures_of, read_run_log, steps_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.session.transcript import CallsOfRunLog

TASK, STEP = "task_1", "step_1"


def at(second: float) -> str:
    return f"2026-01-01T00:00:{second:06.3f}Z"


class Log:
    """A run log that is written event by event, each at a second of one minute."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"
        self._number = 0

    def add(self, second: float, kind: str, *, of: dict[str, Any] | None = None, **payload: Any) -> Log:
        self._number += 1
        event = {"eventId": self._number, "eventType": kind, "timestamp": at(second), "taskId": TASK, "stepId": STEP}
        with self.path.open("ab") as file:
            file.write(orjson.dumps({**event, **(of or {}), "payload": payload}) + b"\n")
        return self

    def read(self) -> CallsOfRunLog:
        return read_run_log(str(self.path))


def message(role: str, content: str, second: float = 1, **more: Any) -> bytes:
    return orjson.dumps(
        {
            "messageId": f"msg_{role}_{second}",
            "role": role,
            "content": content,
            "timestamp": at(second),
            "tokenCount": 1,
            "taskId": TASK,
            **more,
        }
    )


def test_waits_are_those_between_the_events(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(0, "llm_request_started", model="m")
    log.add(2, "llm_retry", attempt=1, waitMs=3000, message="503")
    log.add(6, "llm_request_completed", model="m", inputTokens=5, outputTokens=1)
    log.add(6, "tool_requested", toolCallId="c1", toolName="RunCommand", capability="Shell.Exec", decision="ALLOWED")
    log.add(6, "tool_requested", toolCallId="c2", toolName="x/y", capability="Mcp.Invoke", decision="APPROVAL_REQUIRED")
    log.add(6, "approval_requested", approvalId="a", toolCallId="c2", title="Ask y")
    log.add(9, "approval_resolved", approvalId="a", toolCallId="c2", decision="approved", scope="once", reason="",
            latencyMs=3000, answeredBy="client")  # fmt: skip
    log.add(10, "tool_completed", toolCallId="c1", toolName="RunCommand", status="succeeded", startedAt=at(8))
    log.add(12, "tool_completed", toolCallId="c2", toolName="x/y", status="succeeded", startedAt=at(9.01))
    found = [(wait.on, wait.started_at, wait.ended_at, wait.item_id) for wait in log.read().waits]
    assert found == [
        ("model", at(0), at(2), None),
        ("service", at(2), at(5), None),
        ("model", at(5), at(6), None),
        ("person", at(6), at(9), "c2"),
        ("slot", at(6), at(8), "c1"),
        ("tool", at(8), at(10), "c1"),
        ("service", at(9.01), at(12), "c2"),
    ]


def test_what_a_crash_cut_ends_with_its_process(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(0, "tool_requested", toolCallId="c1", toolName="RunCommand", capability="Shell.Exec", decision="ALLOWED")
    log.add(1, "step_started")
    with log.path.open("ab") as file:
        file.write(b'{"eventId":3,"eventTy\n')
    log.add(30, "session_resumed", resumedFromStep=0)
    read = log.read()
    found = [(wait.on, wait.started_at, wait.ended_at) for wait in read.waits]
    assert found == [("tool", at(0), at(1)), ("process", at(1), at(30))]
    assert [mark["mark"] for mark in read.marks] == ["crashed", "session_resumed"]
    log.add(31, "llm_request_started", model="m")
    assert log.read().waits[-1].ended_at is None, "it is still waited for"


def test_an_item_has_all_that_is_on_record_of_a_call(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(0, "session_started", sandbox={"level": "landlock", "wanted": "auto"})
    log.add(1, "llm_request_completed", model="m", inputTokens=5, outputTokens=1, cost=0.5)
    log.add(1, "tool_requested", toolCallId="c1", toolName="RunCommand", capability="Shell.Exec",
            decision="APPROVAL_REQUIRED", rule="r", riskLevel="high")  # fmt: skip
    log.add(1, "approval_requested", approvalId="a", toolCallId="c1", title="Run a command")
    log.add(2, "approval_resolved", approvalId="a", toolCallId="c1", decision="approved", scope="task", reason="ok",
            latencyMs=1000, answeredBy="command")  # fmt: skip
    log.add(2, "approval_requested", approvalId="q", toolCallId="c1", title="Which?", isQuestion=True)
    log.add(3, "approval_resolved", approvalId="q", toolCallId="c1", decision="denied", scope="once", reason="",
            latencyMs=900, isQuestion=True)  # fmt: skip
    log.add(4, "tool_completed", toolCallId="c1", toolName="RunCommand", status="failed", code="TOOL_INTERRUPTED",
            startedAt=at(2), storageRefs=["artifacts/art_1"])  # fmt: skip
    log.add(4, "artifact_uploaded", artifactName="x.diff", artifactUri="u", storageRef="artifacts/art_1",
            toolCallId="c1")  # fmt: skip
    read = log.read()
    call = {"id": "c1", "name": "RunCommand", "arguments": {"command": "make"}}
    messages = [
        message("user", "Go."),
        message("assistant", "", 2, toolCalls=[call], stepId=STEP, parentId="msg_user_1", branch="main"),
        message("tool", "red", 4, toolCallId="c1", stepId=STEP),
    ]
    items = items_of(messages, read, {"c1": {"stdout": "\x1b[31mred"}})
    (item,) = (one for one in items if one["kind"] == "call")
    assert (item["step"], item["parentId"], item["branch"]) == (1, "msg_user_1", "main")
    assert (item["sandboxLevel"], item["diffRef"], item["coloured"]) == (
        "landlock", "artifacts/art_1", {"stdout": "\x1b[31mred"},
    )  # fmt: skip
    assert item["approval"] == {
        "approvalId": "a", "decision": "approved", "scope": "task", "reason": "ok", "answeredBy": "command",
        "waitedMs": 1000, "title": "Run a command",
    }  # fmt: skip
    assert item["questions"][0] == {
        "approvalId": "q", "title": "Which?", "decision": "denied", "scope": "once", "reason": "", "waitedMs": 900,
    }  # fmt: skip
    assert (item["turn"]["cost"], steps_of(items, read)[0]["cost"]) == (0.5, 0.5)


def test_what_cannot_be_proved_is_named(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(1, "tool_requested", toolCallId="c1", toolName="RunCommand", decision="ALLOWED")
    log.add(2, "tool_completed", toolCallId="c1", toolName="RunCommand", status="failed", code="TOOL_INTERRUPTED")
    log.add(3, "artifact_upload_failed", artifactName="a.txt", message="503")
    log.add(4, "checkpoint_failed", message="no space", code="CHECKPOINT_WRITE_FAILED")
    loss = {"observer": "the Audit Service", "records": 2, "message": "2 records did not reach the Audit Service"}
    log.add(5, "step_completed", of={"undelivered": [loss]})
    read = log.read()
    call = {"id": "c1", "name": "RunCommand", "arguments": {}}
    items = items_of([message("assistant", "", toolCalls=[call], stepId=STEP)], read)
    row = StoredSession("s", "TASK_RUNNING", "", "", 1, None, at(5), "", None)
    assert [(one.kind, one.message.split(":")[0]) for one in doubts_of(row, items, read)] == [
        ("interrupted", "RunCommand was interrupted"),
        ("not_stored", "a.txt"),
        ("not_stored", "no space"),
        ("interrupted", "no process has the session, and it did not come to its end"),
        ("not_delivered", "2 records did not reach the Audit Service"),
    ]


def test_a_retry_stands_in_its_step(tmp_path: Path) -> None:
    log = Log(tmp_path).add(1, "llm_retry", attempt=1, waitMs=0, message="503")
    items = items_of([message("user", "Go.", 0), message("assistant", "Done.", 2, stepId=STEP)], log.read())
    assert [(item["kind"], item.get("step")) for item in items] == [("message", None), ("mark", 1), ("message", 1)]


def test_pictures_are_those_whose_bytes_are_there() -> None:
    image = {"mediaType": "image/png", "width": 4, "height": 3, "bytes": 2}
    messages = [message("tool", "", toolCallId="c", images=[{**image, "data": "QUI="}, {**image, "data": ""}])]
    assert [(one.item_id, one.base64) for one in pictures_of(messages)] == [("c", "QUI=")]


KINDS = ["llm_request_started", "llm_request_completed", "llm_retry", "tool_requested", "tool_completed",
         "approval_requested", "approval_resolved", "session_resumed", "task_failed"]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("ab")), max_size=30))
def test_any_log_gives_waits_with_ends_in_order(tmp_path_factory: Any, events: list[tuple[str, str]]) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    fields: dict[str, Any] = {
        "decision": "denied",
        "scope": "once",
        "reason": "",
        "status": "failed",
        "model": "m",
        "waitMs": 0,
    }
    for second, (kind, name) in enumerate(events):
        log.add(second, kind, toolCallId=name, toolName="t", approvalId=f"ap-{name}", **fields)
    if events:
        for wait in log.read().waits:
            assert wait.ended_at is None or wait.started_at <= wait.ended_at
