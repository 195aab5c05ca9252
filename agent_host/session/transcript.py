"""The transcript: the single model of a session that all displays read.

`show` as text, JSON, Markdown and page, `report`, `view`, GetTranscript, and a client that loads a session again read
`Transcript`, so that an event, a transcript and a page never disagree. It is made from the record, the messages and the
run log, so that a session can be shown live, after a crash and after its end:

- `items`, in order of time: messages, calls with their results, marks such as a resume or a retry (`Item`).
- `steps`: one turn of the model each, with its tokens and its cost, numbered over the session.
- `waits`: the times of waiting for the model, a tool, a person, a slot or a service, and the times without a process;
  derived from the times of events, to the millisecond.
- `doubts`: facts that the record cannot prove: interrupted calls, data that was not stored or not delivered.

If the run log was truncated, some items have no decision and some turns no usage.
"""

from __future__ import annotations

import contextlib
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import orjson

from agent_host.errors import INTERRUPTED, ErrorCode
from agent_host.events import RUN_ENDS, EventType
from agent_host.events.sinks import run_logs
from agent_host.ids import rfc3339
from agent_host.session.reports import MARK_WORDS
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent_host.session.patches import FilePatch
    from agent_host.session.reports import StoredSession

_ENDS: Final = RUN_ENDS | {EventType.SESSION_COMPLETED, EventType.SESSION_FAILED, EventType.SESSION_CANCELLED}
_CRASHED = "crashed"
_OF_MARK = (
    "reason", "message", "stepCount", "totalTokens", "strategy", "droppedMessages", "clearedMessages", "summary",
    "sandbox", "verdict", "endedBy", "retryable", "text", "policy",
    "model", "approvalMode", "attempt", "waitMs", "fallbackModel", "artifactName", "code", "toolCallId",
)  # fmt: skip
_OF_REQUEST = ("capability", "decision", "rule", "riskLevel", "grantedBy", "summary")
_OF_TURN = (
    "model", "inputTokens", "outputTokens", "cachedInputTokens", "cacheWriteTokens", "cacheWrite1hTokens", "cost",
    "costCurrency", "latencyMs", "stopReason",
)  # fmt: skip
_OF_ANSWER = ("approvalId", "decision", "scope", "reason", "edited", "answeredBy", "replay")
_OF_RESULT = (
    "status", "code", "exitCode", "message", "startedAt", "latencyMs", "pathsChanged", "denials", "changesUnseen",
    "commandId",
)  # fmt: skip
_NOT_STORED: Final = frozenset(
    (EventType.CHECKPOINT_FAILED, EventType.STORAGE_LIMIT_REACHED, EventType.ARTIFACT_UPLOAD_FAILED)
)
_OF_SERVICES: Final = frozenset(("Mcp.Invoke", "BackendTool.Invoke", "Network.Http"))
_SHORTEST_SLOT_MS: Final = 50
"""A call that starts sooner than this has not waited for a slot."""

_MARKS = MARK_WORDS.keys() - {_CRASHED}

WaitFor = Literal["model", "tool", "person", "slot", "service", "process"]


class Item(TypedDict, total=False):
    """An item of a transcript; all have `itemId`, `kind` and `timestamp`. `branch` and `parentId`, the message before,
    are the recorded ones; `step` counts the turns of the model over the session, from 1.

    - `message`: {role `user` or `assistant`, text, tokenCount}
    - `call`: {toolName, arguments, status `succeeded`, `failed`, `denied` or `open`, code?, exitCode?, message?,
      output?, coloured? (by stream, with its colours), denials?, images?[{mediaType, width, height, bytes}],
      capability?, decision?, rule?, riskLevel?, sandboxLevel?, approval?{approvalId, decision, scope, reason,
      answeredBy?, waitedMs, replay?}, questions?[{approvalId, title, decision?, waitedMs?}], editedArguments?,
      diffRef?}; its id is the call's
    - `mark`: {mark, reason?, message?, verdict?, endedBy?, retryable?}: the session stopped, crashed, continued or
      ended, requests began to contain less, something was retried, or something was not stored
    """

    itemId: str
    kind: Literal["message", "call", "mark"]
    timestamp: str
    taskId: str
    stepId: str
    step: int
    parentId: str
    branch: str
    turn: dict[str, Any]
    role: Literal["user", "assistant"]
    text: str
    tokenCount: int
    toolName: str
    arguments: Any
    editedArguments: Any
    status: Literal["succeeded", "failed", "denied", "open"]
    code: str
    exitCode: int
    message: str
    output: str
    coloured: dict[str, str]
    images: list[dict[str, Any]]
    capability: str
    summary: str
    decision: str
    rule: str
    riskLevel: str
    grantedBy: str
    sandboxLevel: str
    denials: list[str]
    approval: dict[str, Any]
    questions: list[dict[str, Any]]
    startedAt: str
    endedAt: str
    latencyMs: int
    pathsChanged: list[str]
    changesUnseen: str
    commandId: str
    diffRef: str
    mark: str
    reason: str | None
    verdict: str
    endedBy: str
    retryable: bool
    sandbox: Any
    policy: str
    model: str
    approvalMode: str
    strategy: str
    droppedMessages: int
    clearedMessages: int
    attempt: int
    waitMs: int
    fallbackModel: str
    artifactName: str
    stepCount: int
    totalTokens: int
    toolCallId: str


class Wait(NamedTuple):
    """A wait for `on` between two times in RFC 3339; `ended_at` is None while it lasts, and if the process died during
    it. `what` names the model or the tool. `on` is `process` if no process had the session."""

    on: WaitFor
    started_at: str
    ended_at: str | None
    what: str = ""
    item_id: str | None = None
    step_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return {on, startedAt, endedAt?, what?, itemId?, stepId?}."""
        rows = {"endedAt": self.ended_at, "what": self.what or None, "itemId": self.item_id, "stepId": self.step_id}
        optional = {name: value for name, value in rows.items() if value is not None}
        return {"on": self.on, "startedAt": self.started_at, **optional}


class Doubt(NamedTuple):
    """A statement that the record cannot prove, in words; `item_id` is its item."""

    kind: Literal["interrupted", "not_stored", "not_delivered", "not_seen"]
    message: str
    item_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return {kind, message, itemId?}."""
        return {
            "kind": self.kind,
            "message": self.message,
            **({} if self.item_id is None else {"itemId": self.item_id}),
        }


class Picture(NamedTuple):
    """A picture of a call's result."""

    item_id: str
    media_type: str
    width: int
    height: int
    base64: str


class Transcript(NamedTuple):
    """One session in a form for display. `row` is its row in lists; `sandbox` is the current sandbox of its commands.
    `questions` are the open questions, with the payload of `approval_requested`. `pictures` yields those of all
    results, oldest first, `diff` returns the text of a `diffRef`, None if it was not kept, and `files` the changes of
    the session, as in GetPatchPreview; it raises UsageError if they were not kept."""

    row: StoredSession
    items: list[Item]
    steps: list[dict[str, Any]]
    waits: list[Wait]
    doubts: list[Doubt]
    sandbox: Mapping[str, Any] | None
    questions: list[dict[str, Any]]
    pictures: Callable[[], Iterator[Picture]]
    diff: Callable[[str], str | None]
    files: Callable[[], list[FilePatch]]


class CallsOfRunLog(NamedTuple):
    """The content of a session's run log: calls, marks, and the usage of each turn of the model by its step.
    `sandboxes` has the sandbox of commands at the start and after each resume: {level, wanted, why?, scope?}; `asked`
    has the unanswered questions of the last process, by approval; `denied` has summaries of denied calls, by task;
    `undelivered` has, by observer, a message about the events that it missed. A truncated log has less."""

    calls: dict[str, dict[str, Any]]
    marks: list[dict[str, Any]]
    turns: dict[str, dict[str, Any]]
    sandboxes: list[dict[str, Any]]
    asked: dict[str, dict[str, Any]]
    denied: dict[str, list[str]]
    waits: list[Wait]
    undelivered: dict[str, str]


def read_run_log(path: str) -> CallsOfRunLog:
    """Read the run log at `path` and the rotated ones before it. Unreadable lines are left out."""
    reader = _RunLogReader()
    for event in events_on_record(path):
        reader.take(event)
    return reader.end()


class _RunLogReader:
    """A reader that takes the events of a run log in order."""

    def __init__(self) -> None:
        self._found = CallsOfRunLog({}, [], {}, [], {}, {}, [], {})
        self._open: dict[str, Wait] = {}  # by the id of the step, call or approval that ends them
        self._ready: dict[str, str] = {}  # the time when a call could have started, by its id
        self._last = ""

    def take(self, event: dict[str, Any]) -> None:
        """Take the next event."""
        kind, payload, at = event["eventType"], event["payload"], event["timestamp"]
        for loss in event.get("undelivered", ()):
            self._found.undelivered[str(loss["observer"])] = str(loss["message"])
        if kind in _MARKS or kind == EventType.SESSION_STARTED:
            self._take_mark(event)
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, event, payload)
        for key in list(self._open) if kind in _ENDS else ():
            self._close(key, at)
        self._last = at

    def end(self) -> CallsOfRunLog:
        """Return all that was found; a wait that is not over has no end."""
        self._found.waits.extend(self._open.values())
        self._found.waits.sort(key=lambda wait: wait.started_at)
        return self._found

    def _take_mark(self, event: dict[str, Any]) -> None:
        found, kind, payload = self._found, event["eventType"], event["payload"]
        if isinstance(payload.get("sandbox"), dict):
            found.sandboxes.append(payload["sandbox"])
        if kind == EventType.SESSION_STARTED:
            return
        if kind == EventType.SESSION_RESUMED:
            found.asked.clear()  # the new process asks again
            if "taskId" in event and not _has_stopped(found.marks, event):
                found.marks.append(_mark(event, _CRASHED))
            found.waits.extend(wait._replace(ended_at=self._last) for wait in self._open.values())
            self._open.clear()
            if self._last:
                found.waits.append(Wait("process", self._last, event["timestamp"]))
        found.marks.append(_mark(event, kind))

    def _request_started(self, event: dict[str, Any], payload: dict[str, Any]) -> None:
        step_id = str(event.get("stepId"))
        self._close(step_id, event["timestamp"])
        self._open[step_id] = Wait("model", event["timestamp"], None, str(payload.get("model")), step_id=step_id)

    def _request_completed(self, event: dict[str, Any], payload: dict[str, Any]) -> None:
        step_id = str(event.get("stepId"))
        self._close(step_id, event["timestamp"])
        self._found.turns[step_id] = {name: payload[name] for name in _OF_TURN if name in payload}

    def _retried(self, event: dict[str, Any], payload: dict[str, Any]) -> None:
        """Split the wait for the model: one until now, and one from the end of the pause before the retry."""
        step_id, at, wait_ms = str(event.get("stepId")), event["timestamp"], payload.get("waitMs", 0)
        wait = self._open.get(step_id)
        if wait is None or not wait_ms:
            return
        self._close(step_id, at)
        until = rfc3339(datetime.fromisoformat(at).timestamp() + wait_ms / 1000)
        self._found.waits.append(Wait("service", at, until, "retry of the model's gateway", step_id=step_id))
        self._open[step_id] = wait._replace(started_at=until)

    def _tool_requested(self, event: dict[str, Any], payload: dict[str, Any]) -> None:
        call_id = str(payload["toolCallId"])
        _take(self._found.calls, payload, _OF_REQUEST)
        self._ready[call_id] = event["timestamp"]
        if payload.get("capability") == "Shell.Exec" and self._found.sandboxes:
            self._found.calls[call_id]["sandboxLevel"] = self._found.sandboxes[-1].get("level")
        if payload.get("decision") != "DENIED":
            what, step_id = str(payload.get("toolName")), event.get("stepId")
            on: WaitFor = "service" if payload.get("capability") in _OF_SERVICES else "tool"
            self._open[call_id] = Wait(on, event["timestamp"], None, what, call_id, step_id)

    def _tool_completed(self, event: dict[str, Any], payload: dict[str, Any]) -> None:
        call_id, at = str(payload["toolCallId"]), event["timestamp"]
        _take(self._found.calls, payload, _OF_RESULT)
        call = self._found.calls[call_id]
        call["endedAt"] = at
        diff = [ref for ref in payload.get("storageRefs", ()) if isinstance(ref, str)]
        if diff and len(diff) == 1:
            call.setdefault("diffRef", diff[0])
        wait, started = self._open.pop(call_id, None), payload.get("startedAt")
        if wait is None or started is None:  # the call did not run
            return
        ready = self._ready.get(call_id, wait.started_at)
        waited = datetime.fromisoformat(started) - datetime.fromisoformat(ready)
        if waited.total_seconds() * 1000 >= _SHORTEST_SLOT_MS:
            self._found.waits.append(wait._replace(on="slot", started_at=ready, ended_at=started))
        self._found.waits.append(wait._replace(started_at=max(started, wait.started_at), ended_at=at))

    def _artifact(self, event: dict[str, Any], payload: dict[str, Any]) -> None:  # noqa: ARG002
        """Set `diffRef` by the artifact's name, the only sign that it is a diff."""
        call = self._found.calls.get(str(payload.get("toolCallId")), {})
        if not str(payload.get("artifactName")).endswith(".diff"):
            if call.get("diffRef") == payload.get("storageRef"):
                call.pop("diffRef", None)
        elif "storageRef" in payload:
            call["diffRef"] = payload["storageRef"]

    def _approval_requested(self, event: dict[str, Any], payload: dict[str, Any]) -> None:
        approval_id, call_id, at = str(payload["approvalId"]), str(payload["toolCallId"]), event["timestamp"]
        self._found.asked[approval_id] = payload | {
            name: event[name] for name in ("sessionId", "taskId", "stepId") if name in event
        }
        what = str(payload.get("title", ""))
        self._open[approval_id] = Wait("person", at, None, what, call_id, event.get("stepId"))
        if "isQuestion" in payload:
            questions = self._found.calls.setdefault(call_id, {}).setdefault("questions", [])
            questions.append({"approvalId": approval_id, "title": what})

    def _approval_resolved(self, event: dict[str, Any], payload: dict[str, Any]) -> None:
        found, approval_id, call_id = self._found, str(payload["approvalId"]), str(payload["toolCallId"])
        self._close(approval_id, event["timestamp"])
        self._ready[call_id] = event["timestamp"]
        asked = found.asked.pop(approval_id, {})
        if payload["decision"] == "denied":
            found.denied.setdefault(str(event.get("taskId")), []).append(asked.get("actionSummary", approval_id))
        answer = {name: payload[name] for name in _OF_ANSWER if name in payload}
        answer["waitedMs"] = payload.get("latencyMs", 0)
        call = found.calls.setdefault(call_id, {})
        if "isQuestion" not in payload:
            if call_id in self._open:  # the call starts to run now
                self._open[call_id] = self._open[call_id]._replace(started_at=event["timestamp"])
            call["approval"] = {**answer, **({"title": asked["title"]} if "title" in asked else {})}
            return
        for question in call.get("questions", ()):
            if question["approvalId"] == approval_id:
                question.update(answer)

    def _close(self, key: str, at: str) -> None:
        wait = self._open.pop(key, None)
        if wait is not None and wait.started_at < at:
            self._found.waits.append(wait._replace(ended_at=at))

    _HANDLERS: Final = {
        EventType.LLM_REQUEST_STARTED: _request_started,
        EventType.LLM_REQUEST_COMPLETED: _request_completed,
        EventType.LLM_RETRY: _retried,
        EventType.TOOL_REQUESTED: _tool_requested,
        EventType.TOOL_COMPLETED: _tool_completed,
        EventType.ARTIFACT_UPLOADED: _artifact,
        EventType.ARTIFACT_UPLOAD_FAILED: _artifact,
        EventType.APPROVAL_REQUESTED: _approval_requested,
        EventType.APPROVAL_RESOLVED: _approval_resolved,
    }


def items_of(
    messages: Iterable[bytes], log: CallsOfRunLog, coloured: Mapping[str, dict[str, str]] | None = None
) -> list[Item]:
    """Build the items of a transcript; `coloured` has output with its colours, by call and stream."""
    items: list[Any] = []
    open_calls: dict[str, dict[str, Any]] = {}
    for data in messages:
        wire = orjson.loads(data)
        of = {name: wire[name] for name in ("taskId", "stepId", "parentId", "branch") if name in wire}
        if wire["role"] == "tool":
            _answer(open_calls.pop(wire["toolCallId"], None), wire)
        elif wire["role"] in ("user", "assistant") and (wire["content"] or "toolCalls" not in wire):
            fields = {"role": wire["role"], "text": wire["content"], "tokenCount": wire["tokenCount"]}
            items.append({**_item(wire["messageId"], "message", wire["timestamp"]), **fields, **of})
        for call in wire.get("toolCalls", ()):
            asked = {"toolName": call["name"], "arguments": call["arguments"], "status": "open"}
            item = {**_item(call["id"], "call", wire["timestamp"]), **asked, **of, **log.calls.get(call["id"], {})}
            if coloured and call["id"] in coloured:
                item["coloured"] = coloured[call["id"]]
            open_calls[call["id"]] = item
            items.append(item)
    return _number_steps(_merge_marks(items, log.marks), log)


def _number_steps(items: list[Any], log: CallsOfRunLog) -> list[Item]:
    """Add `step` to each item of a step, and the usage of the step's turn to its first message or call. A step without
    messages and calls, because its turn never came, has no number."""
    numbers: dict[str, int] = {}
    for item in items:
        step_id = item.get("stepId")
        if step_id is None or step_id in numbers or item["kind"] == "mark":
            continue
        numbers[step_id] = len(numbers) + 1
        if step_id in log.turns:
            item["turn"] = log.turns[step_id]
    for item in items:
        if item.get("stepId") in numbers:
            item["step"] = numbers[item["stepId"]]
    return items


def steps_of(items: Iterable[Item], log: CallsOfRunLog) -> list[dict[str, Any]]:
    """Return {step, stepId} of each step in `items`, with the usage of its turn of the model if known."""
    found = {item["stepId"]: item["step"] for item in items if "step" in item}
    return [{"step": step, "stepId": step_id, **log.turns.get(step_id, {})} for step_id, step in found.items()]


def doubts_of(row: StoredSession, items: Iterable[Item], log: CallsOfRunLog) -> list[Doubt]:
    """List the facts that the record of a session cannot prove."""
    found = []
    for item in items:
        if item["kind"] == "call" and item.get("code") == ErrorCode.TOOL_INTERRUPTED:
            words = f"{item['toolName']} was interrupted: its effects so far are unknown"
            found.append(Doubt("interrupted", words, item["itemId"]))
        elif item["kind"] == "mark" and item["mark"] in _NOT_STORED:
            name = f"{item['artifactName']}: " if "artifactName" in item else ""
            found.append(Doubt("not_stored", f"{name}{item.get('message', '')}", item["itemId"]))
        elif item["kind"] == "call" and item.get("changesUnseen"):
            found.append(Doubt("not_seen", f"not all changes are known: {item['changesUnseen']}", item["itemId"]))
    if row.verdict == INTERRUPTED:
        found.append(Doubt("interrupted", "no process has the session, and it did not come to its end"))
    found += [Doubt("not_delivered", message) for message in log.undelivered.values()]
    return found


def pictures_of(messages: Iterable[bytes]) -> Iterator[Picture]:
    """Yield the pictures of all results; a picture whose bytes were lost is left out."""
    for data in messages:
        if b'"images"' not in data:
            continue
        wire = orjson.loads(data)
        for image in wire.get("images", ()):
            if image.get("data"):
                shown = (image["mediaType"], image["width"], image["height"], image["data"])
                yield Picture(str(wire.get("toolCallId")), *shown)


def _answer(item: dict[str, Any] | None, wire: dict[str, Any]) -> None:
    if item is None:
        return
    if item["status"] == "open":  # the run log was truncated; the thread has less information
        item["status"] = "failed" if wire.get("isError") else "succeeded"
    item["output"] = wire["content"]
    if "images" in wire:
        item["images"] = describe(wire)["images"]
    if "editedArguments" in wire:
        item["editedArguments"] = wire["editedArguments"]


def describe(wire: dict[str, Any]) -> dict[str, Any]:
    """Return a message for display: with the properties of its pictures, but not their bytes."""
    names = ("mediaType", "width", "height", "bytes")
    images = [{name: image[name] for name in names} for image in wire.get("images", ())]
    return {**wire, "images": images} if "images" in wire else wire


def _merge_marks(items: list[dict[str, Any]], marks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    waiting = deque(marks)
    for item in items:
        while waiting and waiting[0]["timestamp"] < item["timestamp"]:
            merged.append(waiting.popleft())
        merged.append(item)
    return [*merged, *waiting]


def _take(calls: dict[str, dict[str, Any]], payload: dict[str, Any], names: tuple[str, ...]) -> None:
    call = calls.setdefault(str(payload["toolCallId"]), {})
    call.update((name, payload[name]) for name in names if name in payload)


def _has_stopped(marks: Sequence[Mapping[str, Any]], resumed: Mapping[str, Any]) -> bool:
    """True if the log shows that the process before stopped on purpose: the session was paused, or the task had an
    end."""
    last: Mapping[str, Any] = marks[-1] if marks else {}
    ends = (EventType.TASK_FAILED, EventType.TASK_CANCELLED)
    return last.get("mark") == EventType.SESSION_PAUSED or (
        last.get("mark") in ends and last.get("taskId") == resumed["taskId"]
    )


def _mark(event: dict[str, Any], mark: str) -> dict[str, Any]:
    payload = event["payload"]
    fields = {name: payload[name] for name in _OF_MARK if name in payload}
    of: dict[str, Any] = {name: event[name] for name in ("taskId", "stepId") if name in event}
    return {**_item(f"{mark}-{event['eventId']}", "mark", event["timestamp"]), "mark": mark, **fields, **of}


def _item(item_id: str, kind: str, timestamp: str) -> dict[str, Any]:
    return {"itemId": item_id, "kind": kind, "timestamp": timestamp}


def events_on_record(path: str) -> Iterator[dict[str, Any]]:
    """Yield the events of the run log at `path`, oldest first. Unreadable lines and files are left out."""
    for one in run_logs(path):
        with contextlib.suppress(OSError), open(one, "rb") as handle:
            yield from filter(None, map(_event, handle))


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, None for a line that a crash has cut."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    is_whole = isinstance(event, dict) and {"eventType", "eventId", "timestamp"} <= event.keys()
    return event if is_whole and isinstance(event.get("payload"), dict) else None
