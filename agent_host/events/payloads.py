"""Payloads of the events (AH 12, interface section 2): one table, from which docs/events.md is generated.

`telemetry` marks fields for the Telemetry Service: names from closed sets, ids, counts, latencies and codes. Text of
the user, of the model or of a file, arguments, paths and hashes of content are never marked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from agent_host.events import LIVE_ONLY, RUN_ENDS, EventType
from agent_host.ids import rfc3339

if TYPE_CHECKING:
    from agent_host.events.emitter import Event

Kind = Literal["string", "integer", "number", "true", "boolean", "list of strings", "object"]


class PayloadField(NamedTuple):
    """One field of a payload."""

    name: str
    kind: Kind
    meaning: str
    optional: bool = False
    telemetry: bool = False


class EventShape(NamedTuple):
    """The occasion of an event, and its fields."""

    when: str
    fields: tuple[PayloadField, ...]


def _field(name: str, kind: Kind, meaning: str, *, telemetry: bool = False) -> PayloadField:
    """A field; one whose `name` ends with `?` may be missing."""
    return PayloadField(name.removesuffix("?"), kind, meaning, name.endswith("?"), telemetry)


_metric = partial(_field, telemetry=True)
"""A field that may leave for the Telemetry Service."""
_STEP_COUNT = _metric("stepCount", "integer", "steps of the task so far")
_MAX_STEPS = _metric("maxSteps", "integer", "the task's limit")
_TOTAL_TOKENS = _metric("totalTokens", "integer", "tokens that the session has used")
_TASK_COUNT = _metric("taskCount", "integer", "tasks of the session")
_DURATION = _metric("durationMs", "integer", "life of the session in this process")
_REASON = _metric("reason", "string", "a documented name")
_WHY = _field("reason", "string", "in the words of the person or program that ended it")
_ANSWERED_BY = _metric(
    "answeredBy?",
    "string",
    "`client`, `command`, `chat`, `acp` or `view`; missing if nobody was asked, or nobody answered",
)
_EDITED = _metric("edited?", "true", "the person who approved the call changed it")
_MESSAGE = _field("message", "string", "one line for a person")
_MODEL = _metric("model", "string", "name of the model")
_CALL = _metric("toolCallId", "string", "the call")
_TOOL = _metric("toolName", "string", "as the model named it")
_COMMAND = _metric("commandId", "string", "the command, as the model names it")
_APPROVAL = _metric("approvalId", "string", "the request")
_REPLAY = _field(
    "replay?",
    "object",
    "if nobody answers: how a resume approves exactly this call, {approve, id?, command?, request?}",
)
_QUESTION = _metric(
    "isQuestion?",
    "true",
    "a question of an MCP server in the middle of the call: details has {source, question} with {form}, the JSON "
    "Schema of the answers, or {url, host}; the answers are the `arguments` of ApproveAction",
)
_RISK = _metric("riskLevel", "string", "`low`, `medium` or `high`")
_CODE = _metric("code", "string", "name of the error")

_ITEM = _field("itemId?", "string", "if more was cut: the item of GetTranscript that has all of it")
_ATTEMPT = _metric("attempt", "integer", "the attempt of the model call, from 1")
_PIECE = _field("text", "string", "a piece of it")

_ARTIFACT = _field("artifactName", "string", "its name")
_REF = _field("storageRef", "string", "its path on this machine, below the session's folder")
_SOURCE = (
    _field("source", "string", "`mcp:NAME`, or `backend`"),
    _metric("toolCount", "integer", "number of its tools"),
    _MESSAGE,
)


def _shape(when: str, *fields: PayloadField) -> EventShape:
    return EventShape(when, fields)


def _optional(field: PayloadField) -> PayloadField:
    return field._replace(optional=True)


_VERDICT = (
    _metric("verdict", "string", "completed, failed, cancelled, paused, denied or interrupted"),
    _metric("endedBy", "string", "model, policy, limit, infrastructure or person"),
    _metric("retryable", "boolean", "true if a retry of the task can help"),
)
_ENDED = (_STEP_COUNT, _TOTAL_TOKENS, *_VERDICT)
_ENDED_BADLY = (*_ENDED, _optional(_REASON), _optional(_MESSAGE))

_SANDBOX = _field(
    "sandbox?",
    "object",
    "the sandbox of commands: {level, wanted, why? (why a stronger level does not work), scope? (what a command may "
    "read, write and reach, in `unheld` each rule that the level cannot enforce, and in `withheld` what it denies "
    "although the scope allows it)}",
)

PAYLOADS: dict[EventType, EventShape] = {
    EventType.SESSION_STARTED: _shape(
        "a session is ready",
        _metric("executionEnvironment", "string", "`desktop`, `cloud_sandbox` or `ci`"),
        _field("workspace", "string", "the project directory"),
        _MODEL,
        _SANDBOX,
        _field("message?", "string", "the reason, if every write in the workspace is denied"),
    ),
    EventType.SESSION_RESUMED: _shape(
        "a task continues, in another process or after a pause",
        _metric("resumedFromStep", "integer", "committed steps"),
        _SANDBOX,
    ),
    EventType.SESSION_PAUSED: _shape("the task stopped, and a resume can continue it", *_ENDED_BADLY),
    EventType.SESSION_COMPLETED: _shape(
        "the session ended cleanly", _TASK_COUNT, _TOTAL_TOKENS, _DURATION, _optional(_WHY)
    ),
    EventType.SESSION_FAILED: _shape("the session cannot continue", _REASON, _MESSAGE),
    EventType.SESSION_CANCELLED: _shape(
        "the session was ended while a task was open, or in a pause", _WHY, _TASK_COUNT, _TOTAL_TOKENS, _DURATION
    ),
    EventType.TASK_QUEUED: _shape(
        "a prompt was accepted that follows the open task",
        _metric("position", "integer", "its place in the queue, from 1"),
        _MAX_STEPS,
    ),
    EventType.TASK_STEERED: _shape(
        "a person sent text to the open task: the model reads it before its next turn",
        _field("text", "string", "the text"),
        _metric("position", "integer", "its place among the waiting texts, from 1"),
    ),
    EventType.MODE_CHANGED: _shape(
        "a client changed options of the session: those that differ from the launch",
        _field("policy?", "string", "the built-in or the file that narrows the launch bundle"),
        _metric("model?", "string", "the model of requests"),
        _metric("sandbox?", "string", "the level by which commands are sandboxed"),
        _metric("approvalMode?", "string", "the approval mode of the session"),
    ),
    EventType.TASK_STARTED: _shape("a prompt was accepted", _MAX_STEPS),
    EventType.TASK_COMPLETED: _shape("the model is done", *_ENDED),
    EventType.TASK_FAILED: _shape("the task cannot continue", *_ENDED_BADLY),
    EventType.TASK_CANCELLED: _shape("the task was cancelled", *_ENDED_BADLY),
    EventType.STEP_STARTED: _shape(
        "before each model call",
        _metric("stepId", "string", "the step"),
        _STEP_COUNT._replace(meaning="number of this step"),
    ),
    EventType.STEP_COMPLETED: _shape(
        "all results are there and the step is committed", _metric("stepId", "string", "the step"), _STEP_COUNT
    ),
    EventType.STEP_LIMIT_APPROACHING: _shape("four fifths of the steps are used", _STEP_COUNT, _MAX_STEPS),
    EventType.TEXT_CHUNK: _shape("text of the model, as it comes", _PIECE, _ATTEMPT),
    EventType.THINKING_CHUNK: _shape(
        "thinking of the model, as it comes; redacted thinking has no text and no event", _PIECE, _ATTEMPT
    ),
    EventType.TOOL_OUTPUT_CHUNK: _shape(
        "output of a tool, as it comes; output of a background command is read with CommandOutput, not streamed",
        _CALL,
        _metric("stream", "string", "`stdout` or `stderr`"),
        _PIECE,
    ),
    EventType.LLM_DIALECT_CHOSEN: _shape(
        "`--dialect auto` has found the gateway's dialect; with the first request of a process",
        _metric("dialect", "string", "`anthropic`, `openai` or `responses`"),
        _MESSAGE,
    ),
    EventType.LLM_SERVER_READ: _shape(
        "a local server's data about its model were adopted, or the first request leaves little room in the model's "
        "window; with the first request of a process",
        _MODEL,
        _metric("estimatedInputTokens", "integer", "expected size of the first request"),
        _metric("contextTokens?", "integer", "the model's window, if known"),
        _MESSAGE,
    ),
    EventType.LLM_REQUEST_STARTED: _shape(
        "before a request to the gateway; again in a step whose request was cut, or goes to another model",
        _MODEL,
        _metric("estimatedInputTokens", "integer", "expected size of the request"),
        _metric("maxOutputTokens", "integer", "limit of the answer"),
    ),
    EventType.LLM_REQUEST_COMPLETED: _shape(
        "the answer is complete",
        _MODEL,
        _metric("inputTokens", "integer", "tokens sent, those from the cache included"),
        _metric("outputTokens", "integer", "tokens of the answer"),
        _metric("cachedInputTokens", "integer", "the part of the input read from the cache"),
        _metric("cacheWriteTokens?", "integer", "the part written to it, if any"),
        _metric("cacheWrite1hTokens?", "integer", "the part of these kept for an hour, if any"),
        _field("cost?", "number", "by the prices of the configuration; missing if the model has none"),
        _field("costCurrency?", "string", "the currency of `cost`"),
        _metric("stopReason", "string", "why the model stopped"),
        _field("stopDetail?", "string", "which limit cut the answer, or why the model refused"),
        _metric("latencyMs", "integer", "from the request to the answer's end, retries included"),
        _metric("responseId?", "string", "the gateway's id of the answer"),
        _metric("responseModel?", "string", "the model that answered, as the gateway says"),
    ),
    EventType.CONTEXT_COMPACTED: _shape(
        "requests contain less of the conversation from now on; the record keeps all of it",
        _metric("strategy", "string", "`drop_oldest`, `clear_tool_results` or `summarize`"),
        _field("summary?", "string", "the model's notes, if they replace the omitted part"),
        _metric("droppedMessages", "integer", "messages that requests omit"),
        _metric("clearedMessages", "integer", "number of first messages without large results"),
        _metric(
            "estimatedBefore",
            "integer",
            "expected size of the request before, as `estimatedInputTokens` of `llm_request_started`",
        ),
        _metric("estimatedAfter", "integer", "the same after it"),
        _metric("inputTokens", "integer", "tokens sent for the summary, those from the cache included"),
        _metric("outputTokens", "integer", "tokens of the summary"),
        _metric("cachedInputTokens", "integer", "the part of the input read from the cache"),
        _metric("cacheWriteTokens?", "integer", "the part written to it, if any"),
    ),
    EventType.LLM_ANSWER_REPAIRED: _shape(
        "the answer contained halves of characters (lone surrogates); once an answer",
        _metric("count", "integer", "number of halves; each is replaced by U+FFFD"),
        _MESSAGE,
    ),
    EventType.LLM_COUNT_ODD: _shape(
        "the gateway counts more than four times the estimate; once a process; its count is used",
        _MODEL,
        _metric("countedTokens", "integer", "tokens of the request or of the answer"),
        _metric("estimatedTokens", "integer", "the estimate"),
        _MESSAGE,
    ),
    EventType.LLM_BLOCK_DROPPED: _shape(
        "blocks of an answer that only its provider reads, such as signed reasoning, cannot be sent back unchanged",
        _metric("count", "integer", "number of blocks omitted from the conversation"),
        _MESSAGE,
    ),
    EventType.LLM_RETRY: _shape(
        "the gateway had a temporary failure: discard the text and thinking of this attempt",
        _ATTEMPT._replace(meaning="the attempt that failed, from 1; the next one has the next number"),
        _metric("waitMs", "integer", "wait before the next attempt"),
        _MESSAGE,
    ),
    EventType.CONTEXT_SUMMARY_RETRY: _shape(
        "the gateway had a temporary failure when it was asked for a summary; no text is discarded",
        _metric("waitMs", "integer", "wait before the next request"),
        _MESSAGE,
    ),
    EventType.LLM_WINDOW_CUT: _shape(
        "requests omit the oldest messages from now on, because they do not fit the model",
        _metric("droppedMessages", "integer", "number of messages omitted this time"),
        _MESSAGE,
    ),
    EventType.LLM_FALLBACK: _shape(
        "another model of `llm.fallback_models` is used from now on to the end of the task",
        _MODEL._replace(meaning="the overloaded model"),
        _metric("fallbackModel", "string", "the next model"),
        _MESSAGE,
    ),
    EventType.TOOL_REQUESTED: _shape(
        "policy has judged a call, before it runs; again if its arguments were edited",
        _CALL,
        _TOOL,
        _metric("capability?", "string", "what the tool needs; missing for an unknown tool"),
        _field("summary?", "string", "its subject, as in its arguments, with the method of a request; cut"),
        _field("argumentsSha256?", "string", "of the arguments as JSON, without secrets; missing if they are not JSON"),
        _field("arguments?", "object", "without secrets, up to 8 KiB as JSON"),
        _field("argumentsHead?", "string", "instead of longer arguments: the start of their JSON"),
        _ITEM,
        _metric("decision?", "string", "`ALLOWED`, `DENIED` or `APPROVAL_REQUIRED`"),
        _field("rule?", "string", "the entry of the bundle that decided"),
        _optional(_RISK),
        _metric("grantedBy?", "string", "approvalId of an earlier answer that covers the call"),
        _EDITED,
    ),
    EventType.TOOL_COMPLETED: _shape(
        "a call has its result",
        _CALL,
        _TOOL,
        _metric("status", "string", "`succeeded`, `failed` or `denied`"),
        _optional(_CODE),
        _field("message?", "string", "why it failed or was denied, in one line"),
        _metric(
            "exitCode?",
            "integer",
            "of a command or script; a call of a command with an exit code other than 0 has `succeeded`",
        ),
        _COMMAND._replace(meaning="of a command that the call left running in the background", optional=True),
        _field("skill?", "string", "the skill that the call has loaded, by its name"),
        _field("denials?", "list of strings", "the sandbox's denials to its programs, a line each"),
        _field("pathsChanged?", "list of strings", "files that it is known to have changed"),
        _field("changesUnseen?", "string", "of a command: why some of its changes are unknown"),
        _field("output", "string", "what the model reads, up to 8 KiB of it"),
        _field("images?", "list of strings", "pictures beside it: media type, pixels, bytes of each"),
        _ITEM,
        _metric("startedAt?", "string", "when it began to run, RFC 3339; missing if it did not"),
        _field("artifactUris?", "list of strings", "URIs of the parts stored so far"),
        _field("storageRefs?", "list of strings", "parts of it that are kept below the session's folder"),
        _field("storedSha256?", "object", "hash of each of these, by its reference"),
        _field("storedParts?", "object", "the output of each of these: `stdout`, `stderr`, `body`"),
        _field("stderr?", "string", "of a command or script: the first 1 KiB of it"),
        _metric("outputBytes", "integer", "size of what the model reads"),
        _field("outputSha256", "string", "of what the model reads"),
        _metric("latencyMs", "integer", "from the request, waits included"),
    ),
    EventType.COMMAND_ENDED: _shape(
        "a background command ended; without an id: processes that commands left were terminated with the session",
        _optional(_COMMAND),
        _CALL._replace(meaning="the call that started it", optional=True),
        _metric(
            "reason",
            "string",
            "`exited`, `timed_out`, `stopped` (by StopCommand), `session_ended`, or `interrupted` by a crash",
        ),
        _metric("exitCode?", "integer", "if known"),
        _metric("processesLeft?", "integer", "number of its processes that still run"),
        _metric("processesEnded?", "integer", "without an id: number of terminated processes"),
    ),
    EventType.TOOLS_LISTED: _shape(
        "an MCP server or the backend service has listed its tools while the session ran",
        *_SOURCE,
        _field("rejected?", "list of strings", "tools that cannot be used, with the reason"),
    ),
    EventType.TOOLS_CHANGED: _shape(
        "a task starts, and the tools of a source differ from those of the task before, in any session",
        *_SOURCE,
        _field("added?", "list of strings", "their names"),
        _field("removed?", "list of strings", "their names"),
        _field("changed?", "list of strings", "tools whose new definition needs an approval"),
    ),
    EventType.TOOLS_HIDDEN: _shape(
        "policy admits none of the tools of a source; the message has the line that would admit them", *_SOURCE
    ),
    EventType.TOOLS_UNAVAILABLE: _shape(
        "a source does not list its tools: the stored list is used, and calls may fail", *_SOURCE
    ),
    EventType.APPROVAL_REQUESTED: _shape(
        "a call waits for a person",
        _APPROVAL,
        _CALL,
        _field("title", "string", "of the rule"),
        _field("description", "string", "of the rule, or why policy asks"),
        _field("actionSummary", "string", "the call in one line, cut"),
        _RISK,
        _field("risks", "list of strings", "reasons for the risk"),
        _field("details", "object", "{toolName, capability, ...}: what will happen, by the kind of tool"),
        _REPLAY,
        _QUESTION,
    ),
    EventType.APPROVAL_RESOLVED: _shape(
        "the answer is recorded",
        _APPROVAL,
        _CALL,
        _metric("decision", "string", "`approved` or `denied`"),
        _metric("scope", "string", "`once`, `task` or `session`"),
        _field("reason", "string", "in words"),
        _metric("latencyMs", "integer", "the wait; 0 if the answer was recorded already"),
        _ANSWERED_BY,
        _EDITED,
        _REPLAY,
        _QUESTION,
    ),
    EventType.APPROVAL_TIMEOUT: _shape(
        "nobody answered in time", _APPROVAL, _metric("waitedMs", "integer", "the wait")
    ),
    EventType.POLICY_EXPIRED: _shape("the bundle has expired", _optional(_CALL)),
    EventType.ARTIFACT_UPLOADED: _shape(
        "the Workspace Service has an artifact, or the history of the session",
        _ARTIFACT,
        _field("artifactUri", "string", "where it is"),
        _optional(_REF),
        _optional(_CALL),
    ),
    EventType.ARTIFACT_UPLOAD_FAILED: _shape(
        "an artifact was not stored, or its upload was given up", _ARTIFACT, _MESSAGE, _optional(_REF), _optional(_CALL)
    ),
    EventType.CHECKPOINT_FAILED: _shape("the disk did not take a record", _MESSAGE, _CODE),
    EventType.STORAGE_LIMIT_REACHED: _shape("the session has reached its limit of stored data", _MESSAGE),
}


# Records for the Telemetry Service (AH 12): kinds, durations and outcomes of events, without their contents. Use:
# `BatchedSink(post, TELEMETRY_EVENTS, shape=telemetry_line)`.

TELEMETRY_EVENTS = frozenset(EventType) - LIVE_ONLY
"""Pieces of streams are content, and not sent at all."""

_FIELDS = {
    event_type: tuple(field.name for field in shape.fields if field.telemetry) for event_type, shape in PAYLOADS.items()
}
# A model may call a tool by any name, however long.
_MAX_CHARS = 128


def telemetry_line(event: Event) -> bytes:
    """The event's envelope with only those fields of its payload that are marked for telemetry in `payloads.py`."""
    payload = event.payload
    sent = {name: payload[name] for name in _FIELDS[event.event_type] if name in payload}
    cut = {name: value[:_MAX_CHARS] if isinstance(value, str) else value for name, value in sent.items()}
    return event.encode(event.envelope_of(cut))


# Records for the Audit Service (SK 7): one for each tool call, with its approval and approver. Use: `BatchedSink(post,
# AUDIT_EVENTS, shape=AuditRecords())`.

_AS_THEY_ARE = RUN_ENDS | {
    EventType.TASK_STARTED,
    *(one for one in EventType if one.component in ("session", "approval", "policy")),
}
AUDIT_EVENTS = _AS_THEY_ARE | {EventType.TOOL_REQUESTED, EventType.TOOL_COMPLETED, EventType.ARTIFACT_UPLOADED}
"""Events that are audit records or that audit records are made from."""
# The fields of a record from the request: a hash and a summary of the arguments, but not the arguments.
_ASKED = ("capability", "riskLevel", "summary", "argumentsSha256", "decision", "rule", "grantedBy")
# How far an approval reaches, in the words of SK 3.3.
_SCOPES: Final = {"once": "once", "task": "run", "session": "session"}
# Calls that are under way, and answers that later calls may refer to. A host has far fewer of both.
_MAX_REMEMBERED = 4096


class AuditRecords:
    """The shape of audit events. `tool_requested` and the answer are stored until the call's `tool_completed`, whose
    payload is then the record of SK 7:

        {toolCallId, tool, capability?, risk?, ts_start, ts_end, params, result, policy, hashes}

    docs/events.md has all of it. All fields except `toolCallId`, which other events share, are named as in SK 7.
    `approval_scope` is `once`, `run` (the task) or `session`. Outputs other than stdout and stderr are named in the
    same way (`body_ref`, `body_sha256`).

    `ts_start` is the start of the call, or its request if it did not run. The record of a call requested by another
    process has only the fields of its end. An artifact uploaded later has a separate record: `artifact_uploaded` with
    {toolCallId, artifactUri, storageRef?}. The session's history has none, because it belongs to no action.
    """

    def __init__(self) -> None:
        self._requested: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, dict[str, Any]] = {}

    def __call__(self, event: Event) -> bytes | None:
        """The event as the Audit Service gets it; None for what only goes into a later record."""
        payload = event.payload
        if event.event_type is EventType.TOOL_REQUESTED:
            asked = {name: payload[name] for name in _ASKED if name in payload}
            _remember(self._requested, payload["toolCallId"], {**asked, "at": rfc3339(event.at)})
            return None
        if event.event_type is EventType.TOOL_COMPLETED:
            return event.encode(event.envelope_of(self._record(event)))
        if event.event_type is EventType.ARTIFACT_UPLOADED:
            fields: dict[str, Any] = {
                name: payload[name] for name in ("toolCallId", "artifactUri", "storageRef") if name in payload
            }
            return event.encode(event.envelope_of(fields)) if "toolCallId" in payload else None
        if event.event_type is EventType.APPROVAL_RESOLVED and "isQuestion" not in payload:
            policy = _policy(payload["decision"] == "approved", payload["scope"], payload["approvalId"])
            _remember(self._answers, payload["approvalId"], policy)
            _remember(self._answers, payload["toolCallId"], policy)
        return event.line()

    def _record(self, event: Event) -> dict[str, Any]:
        done = event.payload
        call_id = done["toolCallId"]
        asked = self._requested.pop(call_id, {})
        ended = rfc3339(event.at)
        granted = asked.get("grantedBy")
        answer = self._answers.pop(call_id, None)
        parts, hashes = done.get("storedParts", {}), done.get("storedSha256", {})
        if answer is None and granted is not None:  # a grant from before a crash has no other fields
            answer = self._answers.get(granted, _policy(True, None, granted))
        return {
            "toolCallId": call_id,
            "tool": done["toolName"],
            **_some(capability=asked.get("capability"), risk=asked.get("riskLevel")),
            "ts_start": done.get("startedAt") or asked.get("at") or ended,
            "ts_end": ended,
            "params": _some(summary=asked.get("summary"), sha256=asked.get("argumentsSha256")),
            "result": {
                "ok": done["status"] == "succeeded",
                "status": done["status"],
                **_some(code=done.get("code"), exit_code=done.get("exitCode")),
                "bytes": done["outputBytes"],
                **{f"{part}_ref": ref for part, ref in parts.items()},
                **_some(storage_refs=done.get("storageRefs"), artifact_uris=done.get("artifactUris")),
            },
            "policy": {**_some(decision=asked.get("decision"), rule=asked.get("rule")), **(answer or {})},
            "hashes": {
                "output_sha256": done["outputSha256"],
                **{f"{part}_sha256": hashes[ref] for part, ref in parts.items()},
                **_some(stored_sha256=hashes or None),
            },
        }


def _policy(approved: bool, scope: str | None, approval_id: str) -> dict[str, Any]:
    reach = None if scope is None or not approved else _SCOPES[scope]
    return {"approved": approved, **_some(approval_scope=reach), "approval_id": approval_id}


def _some(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _remember(memory: dict[str, dict[str, Any]], key: str, value: dict[str, Any]) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _MAX_REMEMBERED:
        del memory[next(iter(memory))]
