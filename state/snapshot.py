"""The snapshot file: the form of AH 9.2 with what a resume needs beside it, ended by a checksum over itself."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import orjson

from state.checkpoint import Checkpoint, OpenStep, SessionIdentity, Task, Usage, call_to_json, open_step_from
from state.errors import Damaged, UnknownVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

CHECKPOINT_VERSION = "1.0"

_CHECKSUM_KEY = b',"checksum":"crc32:'
_TRAILER_BYTES = len(_CHECKSUM_KEY) + 8 + len(b'"}\n')


def encode_snapshot(state: Checkpoint, checkpointed_at: str) -> list[bytes]:
    """The snapshot file in chunks: JSON in the form of AH 9.2 with what a resume needs under `resume`, ended by a
    checksum over everything before it. Messages go in as they were encoded when they were made."""
    task, step = state.task, state.open_step
    identity = state.identity
    head = orjson.dumps(
        {
            "checkpointVersion": CHECKPOINT_VERSION,
            "sessionId": identity.session_id,
            "workspaceId": identity.workspace_id,
            "tenantId": identity.tenant_id,
            "userId": identity.user_id,
            "sessionStatus": state.session_status,
            "task": None if task is None else _task_to_json(task),
            "stepCursor": state.step_cursor,
            "sessionTokensUsed": state.session_tokens_used,
            "policyBundleVersion": state.policy_bundle_version,
            "checkpointedAt": checkpointed_at,
            "resume": {
                "journalSeq": state.seq,
                "options": identity.options,
                "boot": state.boot,
                "usage": state.usage.to_wire(),
                "baselines": state.baselines,
                "grants": state.grants,
                "openStep": None if step is None else _step_to_json(step),
            },
        }
    )
    body = [head[:-1] + b',"thread":[', *_separated(state.thread), b"]"]
    checksum = 0
    for chunk in body:
        checksum = zlib.crc32(chunk, checksum)
    return [*body, _CHECKSUM_KEY + b'%08x"}\n' % checksum]


def decode_snapshot(data: bytes) -> Checkpoint:
    """The state that `data` holds. Raises Damaged or UnknownVersion."""
    body, trailer = data[:-_TRAILER_BYTES], data[-_TRAILER_BYTES:]
    whole = trailer == _CHECKSUM_KEY + b'%08x"}\n' % zlib.crc32(body)
    try:
        raw = orjson.loads(data)
        version = raw["checkpointVersion"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise Damaged("the checkpoint is not readable as JSON") from error
    if version != CHECKPOINT_VERSION:
        raise UnknownVersion(f"checkpoint version {version!r} is not known to this program ({CHECKPOINT_VERSION})")
    if not whole:
        raise Damaged("the checkpoint's checksum does not match its content")
    resume = raw["resume"]
    step = resume["openStep"]
    thread = [orjson.dumps(message) for message in raw["thread"]]
    return Checkpoint(
        SessionIdentity(raw["sessionId"], raw["workspaceId"], raw["tenantId"], raw["userId"], resume["options"]),
        session_status=raw["sessionStatus"],
        policy_bundle_version=raw["policyBundleVersion"],
        thread=thread,
        task=None if raw["task"] is None else _task_from_json(raw["task"]),
        step_cursor=raw["stepCursor"],
        open_step=None if step is None else open_step_from(step, thread[step["position"]]),
        usage=_usage_from(resume["usage"]),
        baselines=resume["baselines"],
        grants=resume["grants"],
        seq=resume["journalSeq"],
        boot=resume["boot"],
    )


def _separated(messages: Iterable[bytes]) -> Iterable[bytes]:
    first = True
    for message in messages:
        if not first:
            yield b","
        first = False
        yield message


def _step_to_json(step: OpenStep) -> dict[str, Any]:
    return {
        "stepId": step.step_id,
        "stopReason": step.stop_reason,
        "boot": step.boot,
        "position": step.position,
        "calls": [call_to_json(call) for call in step.calls],
    }


def _task_to_json(task: Task) -> dict[str, Any]:
    return {
        "taskId": task.task_id,
        "prompt": task.prompt,
        "status": task.status,
        "reason": task.reason,
        "stepCount": task.step_count,
        "maxSteps": task.max_steps,
        "usage": task.usage.to_wire(),
        "finishedCalls": task.finished_calls,
        "denied": task.denied,
    }


def _task_from_json(raw: dict[str, Any]) -> Task:
    return Task(
        raw["taskId"],
        raw["prompt"],
        raw["maxSteps"],
        raw["status"],
        raw["reason"],
        raw["stepCount"],
        _usage_from(raw["usage"]),
        [(name, status, code) for name, status, code in raw["finishedCalls"]],
        raw["denied"],
    )


def _usage_from(raw: dict[str, int]) -> Usage:
    return Usage(raw["inputTokens"], raw["outputTokens"], raw["cachedInputTokens"])
