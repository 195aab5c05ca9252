"""The snapshot file: the format of AH 9.2, with the data for a resume under `resume`, and a checksum at its end.

It is one JSON object. Each message of the thread is on its own line, so that it is written and read in its original
encoding. Large parts of messages are in blobs (`state.blobs`).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from state import Damaged, OtherShape, UnknownVersion
from state.checkpoint import (
    CALL_FIELDS,
    FIELDS,
    ApprovalAnswered,
    Checkpoint,
    EarlierTask,
    OpenCall,
    OpenStep,
    SessionIdentity,
    Task,
    TokenUsage,
    name_in_files,
    open_step_from,
)
from state.records import OF_THE_CALL, fields_of, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SNAPSHOT_LIMIT_BYTES = 256 * 1024 * 1024
"""Default limit for a snapshot; parts of messages above 16 KiB are in blobs and do not count."""
CHECKPOINT_VERSION = "1.0"
# Version 1, which had no number, was on one line with complete messages; version 2 had one task per session, which
# shared its first versions of files with the session.
RESUME_VERSION = 3
_READABLE_VERSIONS = (1, 2, RESUME_VERSION)

_BLANK: Final = {Checkpoint: Checkpoint(SessionIdentity("", "", "", "", {})), Task: Task("", "", 0)}
T = TypeVar("T")
_THREAD_KEY = b',"thread":['
_THREAD_END = b"\n]"
_CHECKSUM_KEY = b',"checksum":"crc32:'
# Large enough that checksum and write of a chunk let other threads run, and small enough that joining it does not block
# them.
_MESSAGES_A_CHUNK = 64
_TRAILER_BYTES = len(_CHECKSUM_KEY) + 8 + len(b'"}\n')
_WHITE_SPACE = frozenset(b" \t\r\n")


def encode_head(state: Checkpoint, checkpointed_at: str) -> bytes:
    """Encode the snapshot without its messages: the part that must be encoded while nothing changes."""
    return orjson.dumps(_head(state, checkpointed_at), _value_to_json, orjson.OPT_PASSTHROUGH_DATACLASS)


class EncodedSnapshot:
    """A snapshot file that is not assembled yet: the result of `encode_head`, and the messages in their snapshot form.
    It is never in memory as a whole."""

    def __init__(self, head: bytes, thread: Sequence[bytes]) -> None:
        self._start = head[:-1] + _THREAD_KEY
        self._thread = thread

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        separators = 2 * len(self._thread) - 1 if self._thread else 0
        return len(self._start) + separators + sum(map(len, self._thread)) + len(_THREAD_END) + _TRAILER_BYTES

    def chunks(self) -> Iterator[bytes]:
        """Yield the file from its beginning to its end."""
        checksum = 0
        for chunk in self._pieces_to_sum():
            checksum = zlib.crc32(chunk, checksum)
            yield chunk
        yield _CHECKSUM_KEY + b'%08x"}\n' % checksum

    def _pieces_to_sum(self) -> Iterator[bytes]:
        yield self._start
        separator = b"\n"
        for start in range(0, len(self._thread), _MESSAGES_A_CHUNK):
            yield separator + b",\n".join(self._thread[start : start + _MESSAGES_A_CHUNK])
            separator = b",\n"
        yield _THREAD_END


def decode_snapshot(data: bytes, restore: Callable[[int, bytes], bytes]) -> Checkpoint:
    """Decode the state in `data`. `restore` gets the position and the snapshot form of each message, and returns the
    complete message. White space after the checksum, as an editor leaves it, is not damage. Raises Damaged,
    UnknownVersion, and OtherShape with every problem of a file with a valid checksum."""
    end = _end(data)
    body = max(0, end + len(b"\n") - _TRAILER_BYTES)
    trailer = data[body:end]
    is_complete = trailer == _CHECKSUM_KEY + b'%08x"}' % zlib.crc32(memoryview(data)[:body])
    if not is_complete and trailer.startswith(_CHECKSUM_KEY):  # even if the version was changed
        raise Damaged("the checkpoint's checksum does not match its content")
    raw, short = _split(data)
    _refuse_unknown(raw)
    if not is_complete:
        raise Damaged("the checkpoint has no checksum")
    from state.record_shapes import snapshot_problems  # a new session reads no snapshot

    problems = snapshot_problems(raw, _resume_version(raw), short)
    if problems:
        raise OtherShape(problems)
    return _state_from(raw, short or [], restore)


def _end(data: bytes) -> int:
    """Return the position of the white space at the end of `data`."""
    end = len(data)
    while end and data[end - 1] in _WHITE_SPACE:
        end -= 1
    return end


def _state_from(raw: dict[str, Any], short: list[bytes], restore: Callable[[int, bytes], bytes]) -> Checkpoint:
    resume = raw["resume"]
    thread = [restore(place, message) for place, message in enumerate(short)]
    task, step, counted = raw["task"], resume["openStep"], resume.get("tokensKnown")
    return _read(
        Checkpoint,
        resume,
        identity=SessionIdentity(
            raw["sessionId"], raw["workspaceId"], raw["tenantId"], raw["userId"], resume["options"]
        ),
        session_status=raw["sessionStatus"],
        policy_bundle_version=raw["policyBundleVersion"],
        thread=thread,
        task=None if task is None else _read_task(task, resume["baselines"]),
        step_cursor=raw["stepCursor"],
        open_step=None if step is None else read_open_step(step, thread[step["position"]]),
        earlier_tasks=[_read(EarlierTask, earlier) for earlier in resume.get("earlierTasks", ())],
        grants=[record_of("grant", grant) for grant in resume["grants"]],
        seq=resume["journalSeq"],
        tokens_known=None if counted is None else tuple(counted),
        queue=[record_of("task_queued", queued) for queued in resume.get("queue", ())],
        **_read_usage(resume),
    )


def _read(of: type[T], raw: dict[str, Any], **given: Any) -> T:
    """Make an object of the class `of` from the fields in `raw` and those `given`."""
    always, others = FIELDS[of]
    names = {attribute: name_in_files(attribute) for attribute in (*always, *others)}
    return of(**{**{attribute: raw[name] for attribute, name in names.items() if name in raw}, **given})


def _read_usage(raw: dict[str, Any]) -> dict[str, Any]:
    by_model = {model: TokenUsage.from_record(used) for model, used in raw.get("usageByModel", {}).items()}
    return {"usage": TokenUsage.from_record(raw["usage"]), "usage_by_model": by_model}


def _read_task(raw: dict[str, Any], of_session: dict[str, str | None]) -> Task:
    return _read(
        Task,
        raw,
        finished_calls=[(name, status, code) for name, status, code in raw["finishedCalls"]],
        baselines=dict(raw.get("baselines", of_session)),
        exit_codes={int(place): code for place, code in raw.get("exitCodes", {}).items()},
        **_read_usage(raw),
    )


def _split(data: bytes) -> tuple[dict[str, Any], list[bytes] | None]:
    """Return the object without its messages, and the messages; None if it has no list of them. Raises Damaged."""
    first = data.find(b"\n")
    last = data.rfind(b"\n]", first)
    try:
        if 0 <= first < last and data[first - len(_THREAD_KEY) : first] == _THREAD_KEY:
            raw = orjson.loads(data[: first - len(_THREAD_KEY)] + b"}")
            return raw, _lines(data, first + 1, last)
        raw = orjson.loads(data)
        if not isinstance(raw, dict):
            raise Damaged("the checkpoint is not a JSON object")
        thread = raw.pop("thread", None)
        return raw, [orjson.dumps(message) for message in thread] if isinstance(thread, list) else None
    except (orjson.JSONDecodeError, TypeError) as error:
        raise Damaged("the checkpoint is not readable as JSON") from error


def _lines(data: bytes, start: int, end: int) -> list[bytes]:
    """Return the messages between `start` and `end`, with a comma after each but the last."""
    messages: list[bytes] = []
    while start < end:
        stop = data.find(b",\n", start, end)
        if stop < 0:
            stop = end
        messages.append(data[start:stop])
        start = stop + 2
    return messages


def _refuse_unknown(raw: dict[str, Any]) -> None:
    if "checkpointVersion" not in raw:
        raise Damaged("the checkpoint has no version")
    version = raw["checkpointVersion"]
    if version != CHECKPOINT_VERSION:
        raise UnknownVersion(f"checkpoint version {version!r} is not known to this program ({CHECKPOINT_VERSION})")
    if _resume_version(raw) not in _READABLE_VERSIONS:
        raise UnknownVersion(
            f"checkpoint version {version!r} with resume version {_resume_version(raw)!r} is not known to this program "
            f"({RESUME_VERSION})"
        )


def _resume_version(raw: dict[str, Any]) -> Any:
    """Return the version of `resume`; 1 if it has none."""
    resume = raw.get("resume")
    return resume.get("version", 1) if isinstance(resume, dict) else 1


def _head(state: Checkpoint, checkpointed_at: str) -> dict[str, Any]:
    identity = state.identity
    return {
        "checkpointVersion": CHECKPOINT_VERSION,
        "sessionId": identity.session_id,
        "workspaceId": identity.workspace_id,
        "tenantId": identity.tenant_id,
        "userId": identity.user_id,
        "sessionStatus": state.session_status,
        "task": None if state.task is None else _task_to_json(state.task, state.baselines),
        "stepCursor": state.step_cursor,
        "sessionTokensUsed": state.usage.total,
        "policyBundleVersion": state.policy_bundle_version,
        "checkpointedAt": checkpointed_at,
        "resume": {
            "version": RESUME_VERSION,
            "journalSeq": state.seq,
            "options": identity.options,
            **_fields_to_json(state),
        },
    }


def _fields_to_json(value: Checkpoint | Task | EarlierTask) -> dict[str, Any]:
    always, others = FIELDS[type(value)]
    blank = _BLANK.get(type(value))
    changed = (one for one in others if getattr(value, one) != getattr(blank, one))
    return {name_in_files(attribute): getattr(value, attribute) for attribute in (*always, *changed)}


def _value_to_json(value: Any) -> Any:
    """Return the JSON of a value in a checkpoint's fields that orjson cannot encode."""
    if isinstance(value, TokenUsage):
        return value.to_record()
    if isinstance(value, EarlierTask):
        return _fields_to_json(value)
    return _step_to_json(value) if isinstance(value, OpenStep) else fields_of(value)


def _task_to_json(task: Task, of_session: dict[str, str | None]) -> dict[str, Any]:
    """Return the task's JSON. `of_session` are the session's baselines; equal ones of the task are left out, so that
    they are in the file only once."""
    fields = _fields_to_json(task)
    if task.exit_codes:
        fields["exitCodes"] = {str(place): code for place, code in task.exit_codes.items()}
    return fields if task.baselines == of_session else {**fields, "baselines": task.baselines}


def read_open_step(raw: dict[str, Any], message: bytes) -> OpenStep:
    """Return the open step of a snapshot, with the answers to its approvals; see `open_step_from`."""
    step = open_step_from(raw, message)
    for call, row in zip(step.calls, raw["calls"], strict=True):
        if row.get("decision") is not None:  # without the fields in the call's row
            of_the_call = {"callId": row["callId"], "approvalId": row.get("approvalId", "")}
            fields = {**row["decision"], **of_the_call, "arguments": row.get("editedArguments")}
            answer = record_of("approval", fields)
            call.answer = answer if isinstance(answer, ApprovalAnswered) else None
    return step


def call_to_json(call: OpenCall) -> dict[str, Any]:
    """Return the row of a call in records and snapshots, which complements the message with the call; defaults are left
    out."""
    answer = {} if call.answer is None else fields_of(call.answer)
    optional: dict[str, Any] = {
        **{attribute: getattr(call, attribute) for attribute in CALL_FIELDS},
        "result": None if call.result is None else orjson.Fragment(call.result),
        "approval_id": call.approval_id,
        "decision": {name: one for name, one in answer.items() if name not in OF_THE_CALL} or None,
        "edited_arguments": call.edited_arguments,
    }
    given = {name_in_files(one): value for one, value in optional.items() if value is not None and value is not False}
    return {"callId": call.call_id, "sideEffects": call.side_effects, **given}


def _step_to_json(step: OpenStep) -> dict[str, Any]:
    return {
        "stepId": step.step_id,
        "stopReason": step.stop_reason,
        **({} if step.meaning is None else {"meaning": step.meaning}),
        "boot": step.boot,
        "position": step.position,
        "calls": [call_to_json(call) for call in step.calls],
    }
