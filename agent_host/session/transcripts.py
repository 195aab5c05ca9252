"""The transcript of a session: messages, calls with what came of them, and marks such as a resume, in order of time.

It is read from what is on record, so that a session can be shown live, after a crash and after its end.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Artifact
from agent_host.events.kinds import EventType
from agent_host.events.sinks import run_logs
from agent_host.services.workspace import Upload, UploadFailed
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.loop.context import LoopContext

_MARKS = frozenset(
    (
        EventType.SESSION_RESUMED,
        EventType.SESSION_PAUSED,
        EventType.SESSION_COMPLETED,
        EventType.SESSION_FAILED,
        EventType.SESSION_CANCELLED,
        EventType.TASK_COMPLETED,
        EventType.TASK_FAILED,
        EventType.TASK_CANCELLED,
        EventType.CONTEXT_COMPACTED,
        EventType.TASK_STEERED,
        EventType.MODE_CHANGED,
    )
)
_CRASHED = "crashed"
_OF_MARK = (
    "reason", "message", "stepCount", "totalTokens", "strategy", "droppedMessages", "clearedMessages", "summary",
    "sandbox", "verdict", "endedBy", "retryable", "text", "policy",
    "model", "approvalMode",
)  # fmt: skip
_OF_REQUEST = ("decision", "rule", "riskLevel", "grantedBy")
_OF_TURN = (
    "model",
    "inputTokens",
    "outputTokens",
    "cachedInputTokens",
    "cacheWriteTokens",
    "cacheWrite1hTokens",
    "cost",
    "costCurrency",
)
_OF_QUESTION = ("sessionId", "taskId", "stepId")
_OF_RESULT = ("status", "code", "exitCode", "message", "startedAt", "latencyMs", "pathsChanged", "denials")


class CallsOfRunLog(NamedTuple):
    """The run log of a session by calls, marks, and the usage of each turn of the model, by its step; `sandboxes` has
    the sandbox of commands at the start and after each resume: {level, wanted, why?, scope?}; `asked` are the questions
    of the last process that have no answer, by approval, and `denied` the calls that were denied. A log that was cut
    has less."""

    calls: dict[str, dict[str, Any]]
    marks: list[dict[str, Any]]
    turns: dict[str, dict[str, Any]]
    sandboxes: list[dict[str, Any]]
    asked: dict[str, dict[str, Any]]
    denied: dict[str, list[str]]


def read_run_log(path: str) -> CallsOfRunLog:
    """The run log at `path`, with those that were put aside before it. What cannot be read is left out."""
    found = CallsOfRunLog({}, [], {}, [], {}, {})
    for event in _events(path):
        kind, payload = event["eventType"], event["payload"]
        if kind == EventType.TOOL_REQUESTED:
            _take(found.calls, payload, _OF_REQUEST)
        elif kind == EventType.TOOL_COMPLETED:
            _take(found.calls, payload, _OF_RESULT)
        elif kind in (EventType.APPROVAL_REQUESTED, EventType.APPROVAL_RESOLVED):
            _take_approval(found, event)
        elif kind == EventType.LLM_REQUEST_COMPLETED:
            found.turns[str(event.get("stepId"))] = {name: payload[name] for name in _OF_TURN if name in payload}
        elif kind in _MARKS or kind == EventType.SESSION_STARTED:
            if isinstance(payload.get("sandbox"), dict):
                found.sandboxes.append(payload["sandbox"])
            if kind == EventType.SESSION_STARTED:
                continue
            if kind == EventType.SESSION_RESUMED:
                found.asked.clear()  # another process asks again
                if "taskId" in event and not _has_stopped(found.marks, event):
                    found.marks.append(_mark(event, _CRASHED))
            found.marks.append(_mark(event, kind))
    return found


def items_of(messages: Iterable[bytes], log: CallsOfRunLog) -> list[dict[str, Any]]:
    """The items of a transcript, each with `itemId`, `kind` and `timestamp`:

    - `message`: {role `user` or `assistant`, text, taskId?, stepId?, tokenCount}
    - `call`: {toolName, arguments, status `succeeded`, `failed`, `denied` or `open`, code?, exitCode?, message?,
      output?, denials?[], images?[{mediaType, width, height, bytes}], decision?, rule?, riskLevel?,
      approval?{decision, scope, reason, answeredBy?}, editedArguments?, taskId?, stepId?}; its id is the call's
    - `mark`: {mark, reason?, message?, verdict?, endedBy?, retryable?, taskId?}, where the session stopped, crashed,
      went on or ended; and where requests began to show less: {strategy, droppedMessages, clearedMessages, summary?};
      where it went on, with how commands are held from there on: {sandbox?}
    """
    items: list[dict[str, Any]] = []
    open_calls: dict[str, dict[str, Any]] = {}
    for data in messages:
        wire = orjson.loads(data)
        of = {name: wire[name] for name in ("taskId", "stepId") if name in wire}
        if wire["role"] == "tool":
            _answer(open_calls.pop(wire["toolCallId"], None), wire)
        elif wire["role"] in ("user", "assistant") and (wire["content"] or "toolCalls" not in wire):
            said = {"role": wire["role"], "text": wire["content"], "tokenCount": wire["tokenCount"]}
            items.append({**_item(wire["messageId"], "message", wire["timestamp"]), **said, **of})
        for call in wire.get("toolCalls", ()):
            asked = {"toolName": call["name"], "arguments": call["arguments"], "status": "open"}
            item = {**_item(call["id"], "call", wire["timestamp"]), **asked, **of, **log.calls.get(call["id"], {})}
            open_calls[call["id"]] = item
            items.append(item)
    return _merge_marks(items, log.marks)


def _answer(item: dict[str, Any] | None, wire: dict[str, Any]) -> None:
    """Put the result of a call into its item."""
    if item is None:
        return
    if item["status"] == "open":  # the run log was cut: the thread knows less
        item["status"] = "failed" if wire.get("isError") else "succeeded"
    item["output"] = wire["content"]
    if "images" in wire:
        item["images"] = describe(wire)["images"]
    if "editedArguments" in wire:
        item["editedArguments"] = wire["editedArguments"]


def describe(wire: dict[str, Any]) -> dict[str, Any]:
    """A message as it is shown: what its pictures are, and not their bytes."""
    return {**wire, "images": [_drop_data(image) for image in wire["images"]]} if "images" in wire else wire


def _drop_data(image: dict[str, Any]) -> dict[str, Any]:
    return {name: image[name] for name in ("mediaType", "width", "height", "bytes")}


def _merge_marks(items: list[dict[str, Any]], marks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both in order of time. Items keep their order, which is that of the conversation."""
    merged: list[dict[str, Any]] = []
    waiting = iter(marks)
    mark = next(waiting, None)
    for item in items:
        while mark is not None and mark["timestamp"] < item["timestamp"]:
            merged.append(mark)
            mark = next(waiting, None)
        merged.append(item)
    return [*merged, *([] if mark is None else itertools.chain([mark], waiting))]


def _take(calls: dict[str, dict[str, Any]], payload: dict[str, Any], names: tuple[str, ...]) -> None:
    call = calls.setdefault(str(payload["toolCallId"]), {})
    call.update((name, payload[name]) for name in names if name in payload)


def _has_stopped(marks: Sequence[Mapping[str, Any]], resumed: Mapping[str, Any]) -> bool:
    """True if the log says that the process before was to stop: the session was paused, or the task had an end."""
    last: Mapping[str, Any] = marks[-1] if marks else {}
    ends = (EventType.TASK_FAILED, EventType.TASK_CANCELLED)
    return last.get("mark") == EventType.SESSION_PAUSED or (
        last.get("mark") in ends and last.get("taskId") == resumed["taskId"]
    )


_OF_ANSWER = ("decision", "scope", "reason", "edited", "answeredBy")


def _take_approval(found: CallsOfRunLog, event: dict[str, Any]) -> None:
    payload, approval_id = event["payload"], str(event["payload"]["approvalId"])
    if event["eventType"] == EventType.APPROVAL_REQUESTED:
        found.asked[approval_id] = payload | {name: event[name] for name in _OF_QUESTION if name in event}
        return
    asked = found.asked.pop(approval_id, {})
    if payload["decision"] == "denied":
        found.denied.setdefault(str(event.get("taskId")), []).append(asked.get("actionSummary", approval_id))
    if "isQuestion" not in payload:
        said = {name: payload[name] for name in _OF_ANSWER if name in payload}
        found.calls.setdefault(str(payload["toolCallId"]), {})["approval"] = said


def _mark(event: dict[str, Any], mark: str) -> dict[str, Any]:
    payload = event["payload"]
    said = {name: payload[name] for name in _OF_MARK if name in payload}
    of = {"taskId": event["taskId"]} if "taskId" in event else {}
    return {**_item(f"{mark}-{event['eventId']}", "mark", event["timestamp"]), "mark": mark, **said, **of}


def _item(item_id: str, kind: str, timestamp: str) -> dict[str, Any]:
    return {"itemId": item_id, "kind": kind, "timestamp": timestamp}


def _events(path: str) -> Iterator[dict[str, Any]]:
    for one in run_logs(path):
        with contextlib.suppress(OSError), open(one, "rb") as handle:
            yield from filter(None, map(_event, handle))


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of a line, None for one that a crash has cut."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    is_whole = isinstance(event, dict) and {"eventType", "eventId", "timestamp"} <= event.keys()
    return event if is_whole and isinstance(event.get("payload"), dict) else None


# The history of a session: its whole thread as one artifact, uploaded after each task (AH 5.5, interface 2).

NAME = "session_history.json"
_KIND: Final = "session_history"
_CONTENT_TYPE = "application/json"
_CALL_ID = b',"toolCallId":'
# `encode` writes the role behind two ids of at most 128 characters.
_ROLE, _ROLE_WITHIN = b'"role":"tool"', 400


class History:
    """Has the thread of one session uploaded. `missed` says what became of the last one where it was not stored, as a
    row of the result's `notUploaded`."""

    def __init__(self, ctx: LoopContext) -> None:
        self._ctx = ctx
        self._queued = 0  # messages of the last one that was stored, or is on its way
        self.missed: dict[str, Any] | None = None

    def queue(self) -> None:
        """Have the thread as it is now uploaded behind the artifacts that wait, unless that is done or under way. Never
        waits."""
        ctx, count = self._ctx, len(self._ctx.state.thread)
        if count == self._queued and self.missed is None:
            return
        self._queued, self.missed = count, None
        task_id = None if ctx.state.task is None else ctx.state.task.task_id

        def data() -> bytes:
            return b"".join((b"[", *_join(add_uris(ctx.state.thread[:count], ctx.state.artifact_uris)), b"]"))

        def stored(uri: str) -> None:
            if not ctx.artifacts.elsewhere:  # it lies where everybody finds the session's records
                return
            payload = {"artifactName": NAME, "artifactUri": uri}
            ctx.emitter.emit(EventType.ARTIFACT_UPLOADED, payload, task_id=task_id)

        def missed(message: str, again: bool) -> None:
            payload: dict[str, Any] = {"artifactName": NAME, "message": message}
            if not again:  # else the checkpoint stays, and has all of it
                payload |= self._keep_here(data(), task_id)
            if self._queued == count:
                self.missed = {"artifactType": _KIND, **payload}
            ctx.emitter.emit(EventType.ARTIFACT_UPLOAD_FAILED, payload, task_id=task_id)

        size = sum(map(len, ctx.state.thread))
        ctx.artifacts.queue.put(Upload(_KIND, NAME, _CONTENT_TYPE, size, data, stored, missed, task_id))

    def _keep_here(self, data: bytes, task_id: str | None) -> dict[str, str]:
        """Keep on this disk what another place did not take: {storageRef}, empty where the disk refuses too."""
        if not self._ctx.artifacts.elsewhere:
            return {}
        try:
            artifact = Artifact(_KIND, NAME, _CONTENT_TYPE, data)
            return {"storageRef": self._ctx.artifacts.home.keep_history(artifact, task_id=task_id).ref}
        except UploadFailed:
            return {}


def add_uris(messages: Sequence[bytes], uris: Mapping[str, Sequence[str]]) -> Sequence[bytes]:
    """Encoded `messages`; results of the calls in `uris` say where their artifacts are, in `artifactUris`."""
    if not uris:
        return messages
    known = {orjson.dumps(call_id): orjson.dumps(found) for call_id, found in uris.items()}
    return [_add_uris(message, known) for message in messages]


def _add_uris(message: bytes, known: Mapping[bytes, bytes]) -> bytes:
    """No JSON is parsed: within a text the quotes of the key would be escaped, and behind the id stands `isError`."""
    if message.find(_ROLE, 0, _ROLE_WITHIN) < 0:
        return message
    at = message.rfind(_CALL_ID)
    end = message.find(b',"isError"', at)
    found = known.get(message[at + len(_CALL_ID) : end]) if 0 <= at < end else None
    return message if found is None else b'%s,"artifactUris":%s}' % (message[:-1], found)


def _join(messages: Iterable[bytes]) -> Iterator[bytes]:
    separator = b""
    for message in messages:
        yield separator
        yield message
        separator = b","
