"""Writes the golden session in the present format: `python -m tests.golden.make FOLDER`.

It holds something of everything: a large result, two kept first versions of a file, a task that is over and was opened
again in between, a grant, and an open step with a call that started, one that waits for its approval, one that was
denied and one that was approved with other arguments.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from state.checkpoint import ApprovalAnswered, ApprovalGranted, Checkpoint, EarlierTask, SessionIdentity, TokenUsage
from state.file_store import FileCheckpointStore
from state.records import fields_of, record_of

if TYPE_CHECKING:
    from state.file_session import FileSession

SESSION = "golden"
_USAGE = {"inputTokens": 100, "outputTokens": 20, "cachedInputTokens": 50}
_OPTIONS = {"flags": {"host.policy": "ci"}, "workspace": "/project", "approvals": [], "approveAll": False}


_OF_THE_CALL = ("callId", "approvalId", "arguments")


def plain(value: object) -> object:
    """Any value of the state as JSON has it; encoded messages as objects; without the number of the last record."""
    if isinstance(value, Checkpoint):
        fields = dataclasses.asdict(value)
        del fields["seq"]
        return plain(fields)
    if isinstance(value, EarlierTask | SessionIdentity):
        return plain(value._asdict())
    if isinstance(value, bytes):
        return orjson.loads(value)
    if isinstance(value, ApprovalGranted):
        return fields_of(value)
    if isinstance(value, TokenUsage):
        names = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_tokens", "cache_write_1h_tokens")
        return dict(zip(names, value[: len(names)], strict=True))
    if isinstance(value, dict) and isinstance(answer := value.get("answer"), ApprovalAnswered):
        decision = {key: said for key, said in fields_of(answer).items() if key not in _OF_THE_CALL}
        return plain({**value, "answer": None, "decision": decision, "edited_arguments": answer.arguments})
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _message(number: int, role: str, content: str, **more: Any) -> bytes:
    return orjson.dumps(
        {
            "messageId": f"msg_{number}",
            "sessionId": SESSION,
            "role": role,
            "content": content,
            "timestamp": "2026-11-22T10:00:00.000Z",
            "tokenCount": len(content) // 4 + 4,
            **more,
        }
    )


def _call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "name": name, "arguments": arguments}


def _turn(step: str, calls: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"stepId": step, "stopReason": "tool_use", "boot": "boot-1", "usage": _USAGE, "calls": calls, **more}


def write(folder: Path) -> None:
    """Write the session's files, its blobs and the expected state into `folder`."""
    with tempfile.TemporaryDirectory() as work:
        identity = SessionIdentity(SESSION, "ws_1", "tenant", "user", _OPTIONS)
        first = _message(0, "system", "Be careful.")
        state = Checkpoint(identity, policy_bundle_version="2026-11-22.1", thread=[first])
        session = FileCheckpointStore(work).create(SESSION, state)
        prompt = "Do it.\nÄ"
        session.append(
            record_of(
                "task_started", {"taskId": "task_1", "prompt": prompt, "maxSteps": 12}, _message(1, "user", prompt)
            )
        )
        before = session.keep(b"first version\n")
        intent = {"path": "/project/a", "before": before, "after": "0" * 64}
        rows = [{"callId": "c1", "sideEffects": True, "intent": intent}, {"callId": "c2", "sideEffects": False}]
        named = [_call("c1", "WriteFile", path="/project/a", content="x"), _call("c2", "ReadFile", path="/project/b")]
        baselines = {"/project/a": before, "/project/new": None}
        turn = _message(2, "assistant", "Two at once.", toolCalls=named)
        session.commit(record_of("turn", _turn("step_1", rows, baselines=baselines), turn))
        session.append(record_of("call_started", {"callId": "c1"}))
        missing = {"callId": "c2", "status": "failed", "code": "FILE_NOT_FOUND"}
        session.append(
            record_of(
                "call_finished", missing, _message(3, "tool", "FILE_NOT_FOUND: no", toolCallId="c2", isError=True)
            )
        )
        large = _message(4, "tool", "large \u2028 " + "y" * 20_000, toolCallId="c1", isError=False)
        session.append(record_of("call_finished", {"callId": "c1", "status": "succeeded"}, large))
        session.commit(record_of("step_committed", {"stepCount": 1}))
        session.append(record_of("grant", {"scope": "session", "toolName": "RunCommand", "approvalId": "appr_0"}))
        status = {"status": "SESSION_RUNNING", "policyBundleVersion": "2026-11-22.2", "maxSteps": 30}
        session.append(record_of("session_status", status))
        _second_task(session)
        session.compact()
        rows = [
            {"callId": "c3", "sideEffects": True},
            {"callId": "c4", "sideEffects": True, "gated": True, "approvalId": "appr_1"},
            {"callId": "c5", "sideEffects": True, "gated": True, "approvalId": "appr_2"},
            {"callId": "c6", "sideEffects": True, "gated": True, "approvalId": "appr_3"},
        ]
        named = [
            _call("c3", "RunCommand", command="make"),
            _call("c4", "RunCommand", command="rm x"),
            {**_call("c5", "RunCommand"), "problem": "cut off"},
            _call("c6", "RunCommand", command="rm -r ."),
        ]
        session.commit(record_of("turn", _turn("step_2", rows), _message(5, "assistant", "", toolCalls=named)))
        answer = {"approved": False, "scope": "once", "reason": "nobody is there", "unattended": True}
        session.append(record_of("approval", {"callId": "c5", "approvalId": "appr_2", **answer}))
        edited = {"approved": True, "scope": "once", "reason": "", "arguments": {"command": "rm -r build"}}
        session.append(record_of("approval", {"callId": "c6", "approvalId": "appr_3", **edited}))
        session.append(record_of("call_started", {"callId": "c3"}))
        replay = {"id": "replay_1", "approve": "RunCommand"}
        denied = {"callId": "c5", "status": "denied", "code": "APPROVAL_REQUIRED", "replay": replay}
        session.append(record_of("call_finished", denied, _message(6, "tool", "no", toolCallId="c5", isError=True)))
        session.close()
        _take(Path(work), folder, session.state)


def _second_task(session: FileSession) -> None:
    """The first task ends, is opened again and ends; another follows and finds a file that the first has written."""
    session.append(record_of("task_ended", {"status": "failed", "reason": "MAX_STEPS"}))
    session.append(record_of("task_reopened", {"maxSteps": 31}))
    session.append(record_of("task_ended", {"status": "cancelled", "reason": None}))
    prompt = "And now the rest. " + "x" * 200
    options = {"approval_mode": "always", "allow_network": None}
    fields = {"taskId": "task_2", "prompt": prompt, "maxSteps": 9, "options": options}
    session.append(record_of("task_started", fields, _message(7, "user", prompt)))
    found = session.keep(b"as the first task left it\n")
    rows = [{"callId": "c0", "sideEffects": True}]
    turn = _message(8, "assistant", "", toolCalls=[_call("c0", "DeleteFile", path="/project/a")])
    session.commit(record_of("turn", _turn("step_a", rows, baselines={"/project/a": found}), turn))
    gone = _message(9, "tool", "gone", toolCallId="c0", isError=False)
    session.append(record_of("call_finished", {"callId": "c0", "status": "succeeded"}, gone))
    session.commit(record_of("step_committed", {"stepCount": 1}))


def _take(state_dir: Path, folder: Path, state: Checkpoint) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("json", "journal"):
        shutil.copy(state_dir / "checkpoints" / f"{SESSION}.{suffix}", folder)
    shutil.copytree(state_dir / "sessions" / SESSION / "blobs", folder / "blobs", dirs_exist_ok=True)
    expected = orjson.dumps(plain(state), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    (folder / "expected.json").write_bytes(expected)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
