"""Payloads of the events (AH 12, interface section 2): one table, from which docs/events.md is made.

`telemetry` marks what may leave for the Telemetry Service: names from closed sets, ids, counts, latencies and codes.
Words of the user, of the model or of a file, arguments, paths and hashes of content have no mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from agent_host.events import LIVE_ONLY, EventType

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
    fields: tuple[PayloadField, ...] = ()


_STEP_COUNT = PayloadField("stepCount", "integer", "steps of the task so far", telemetry=True)
_MAX_STEPS = PayloadField("maxSteps", "integer", "the task's limit", telemetry=True)
_TOTAL_TOKENS = PayloadField("totalTokens", "integer", "tokens that the session has used", telemetry=True)
_TASK_COUNT = PayloadField("taskCount", "integer", "tasks of the session", telemetry=True)
_DURATION = PayloadField("durationMs", "integer", "life of the session in this process", telemetry=True)
_REASON = PayloadField("reason", "string", "a documented name", telemetry=True)
_WHY = PayloadField("reason", "string", "in the words of the person or program that ended it")
_ANSWERED_BY = PayloadField(
    "answeredBy",
    "string",
    "`client`, `command`, `chat`, `acp` or `view`; missing if nobody was asked, or nobody answered",
    optional=True,
    telemetry=True,
)
_EDITED = PayloadField("edited", "true", "the person who approved the call changed it", optional=True, telemetry=True)
_MESSAGE = PayloadField("message", "string", "one line for a person")
_MODEL = PayloadField("model", "string", "name of the model", telemetry=True)
_CALL = PayloadField("toolCallId", "string", "the call", telemetry=True)
_TOOL = PayloadField("toolName", "string", "as the model named it", telemetry=True)
_COMMAND = PayloadField("commandId", "string", "the command, as the model names it", telemetry=True)
_APPROVAL = PayloadField("approvalId", "string", "the request", telemetry=True)
_REPLAY = PayloadField(
    "replay",
    "object",
    "if nobody answers: how a resume approves exactly this call, {approve, id?, command?, request?}",
    optional=True,
)
_QUESTION = PayloadField(
    "isQuestion",
    "true",
    "a question of an MCP server in the middle of the call: details has {source, question} with {form}, the JSON "
    "Schema of the answers, or {url, host}; the answers are the `arguments` of ApproveAction",
    optional=True,
    telemetry=True,
)
_RISK = PayloadField("riskLevel", "string", "`low`, `medium` or `high`", telemetry=True)
_CODE = PayloadField("code", "string", "name of the error", telemetry=True)

_ITEM = PayloadField("itemId", "string", "if more was cut: the item of GetTranscript that has all of it", optional=True)
_ATTEMPT = PayloadField("attempt", "integer", "the attempt of the model call, from 1", telemetry=True)
_PIECE = PayloadField("text", "string", "a piece of it")

_ARTIFACT = PayloadField("artifactName", "string", "its name")
_REF = PayloadField("storageRef", "string", "its path on this machine, below the session's folder")
_SOURCE = (
    PayloadField("source", "string", "`mcp:NAME`, or `backend`"),
    PayloadField("toolCount", "integer", "number of its tools", telemetry=True),
    _MESSAGE,
)


def _optional(field: PayloadField) -> PayloadField:
    return field._replace(optional=True)


_VERDICT = (
    PayloadField("verdict", "string", "completed, failed, cancelled, paused, denied or interrupted", telemetry=True),
    PayloadField("endedBy", "string", "model, policy, limit, infrastructure or person", telemetry=True),
    PayloadField("retryable", "boolean", "true if a retry of the task can help", telemetry=True),
)
_ENDED = (_STEP_COUNT, _TOTAL_TOKENS, *_VERDICT)
_ENDED_BADLY = (*_ENDED, _optional(_REASON), _optional(_MESSAGE))

_SANDBOX = PayloadField(
    "sandbox",
    "object",
    "the sandbox of commands: {level, wanted, why? (why a stronger level does not work), scope? (what a command may "
    "read, write and reach, in `unheld` each rule that the level cannot enforce, and in `withheld` what it denies "
    "although the scope allows it)}",
    optional=True,
)

PAYLOADS: dict[EventType, EventShape] = {
    EventType.SESSION_STARTED: EventShape(
        "a session is ready",
        (
            PayloadField("executionEnvironment", "string", "`desktop`, `cloud_sandbox` or `ci`", telemetry=True),
            PayloadField("workspace", "string", "the project directory"),
            _MODEL,
            _SANDBOX,
            PayloadField("message", "string", "the reason, if every write in the workspace is denied", optional=True),
        ),
    ),
    EventType.SESSION_RESUMED: EventShape(
        "a task continues, in another process or after a pause",
        (PayloadField("resumedFromStep", "integer", "committed steps", telemetry=True), _SANDBOX),
    ),
    EventType.SESSION_PAUSED: EventShape("the task stopped, and a resume can continue it", _ENDED_BADLY),
    EventType.SESSION_COMPLETED: EventShape(
        "the session ended cleanly", (_TASK_COUNT, _TOTAL_TOKENS, _DURATION, _optional(_WHY))
    ),
    EventType.SESSION_FAILED: EventShape("the session cannot continue", (_REASON, _MESSAGE)),
    EventType.SESSION_CANCELLED: EventShape(
        "the session was ended while a task was open, or in a pause", (_WHY, _TASK_COUNT, _TOTAL_TOKENS, _DURATION)
    ),
    EventType.TASK_QUEUED: EventShape(
        "a prompt was accepted that follows the open task",
        (PayloadField("position", "integer", "its place in the queue, from 1", telemetry=True), _MAX_STEPS),
    ),
    EventType.TASK_STEERED: EventShape(
        "a person sent text to the open task: the model reads it before its next turn",
        (
            PayloadField("text", "string", "the text"),
            PayloadField("position", "integer", "its place among the waiting texts, from 1", telemetry=True),
        ),
    ),
    EventType.MODE_CHANGED: EventShape(
        "a client changed options of the session: those that differ from the launch",
        (
            PayloadField("policy", "string", "the built-in or the file that narrows the launch bundle", optional=True),
            PayloadField("model", "string", "the model of requests", optional=True, telemetry=True),
            PayloadField(
                "sandbox", "string", "the level by which commands are sandboxed", optional=True, telemetry=True
            ),
            PayloadField("approvalMode", "string", "the approval mode of the session", optional=True, telemetry=True),
        ),
    ),
    EventType.TASK_STARTED: EventShape("a prompt was accepted", (_MAX_STEPS,)),
    EventType.TASK_COMPLETED: EventShape("the model is done", _ENDED),
    EventType.TASK_FAILED: EventShape("the task cannot continue", _ENDED_BADLY),
    EventType.TASK_CANCELLED: EventShape("the task was cancelled", _ENDED_BADLY),
    EventType.STEP_STARTED: EventShape(
        "before each model call",
        (
            PayloadField("stepId", "string", "the step", telemetry=True),
            _STEP_COUNT._replace(meaning="number of this step"),
        ),
    ),
    EventType.STEP_COMPLETED: EventShape(
        "all results are there and the step is committed",
        (PayloadField("stepId", "string", "the step", telemetry=True), _STEP_COUNT),
    ),
    EventType.STEP_LIMIT_APPROACHING: EventShape("four fifths of the steps are used", (_STEP_COUNT, _MAX_STEPS)),
    EventType.TEXT_CHUNK: EventShape("text of the model, as it comes", (_PIECE, _ATTEMPT)),
    EventType.THINKING_CHUNK: EventShape(
        "thinking of the model, as it comes; redacted thinking has no text and no event", (_PIECE, _ATTEMPT)
    ),
    EventType.TOOL_OUTPUT_CHUNK: EventShape(
        "output of a tool, as it comes; output of a background command is read with CommandOutput, not streamed",
        (
            _CALL,
            PayloadField("stream", "string", "`stdout` or `stderr`", telemetry=True),
            _PIECE,
        ),
    ),
    EventType.LLM_DIALECT_CHOSEN: EventShape(
        "`--dialect auto` has found the gateway's dialect; with the first request of a process",
        (PayloadField("dialect", "string", "`anthropic`, `openai` or `responses`", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_SERVER_READ: EventShape(
        "a local server's data about its model were adopted, or the first request leaves little room in the model's "
        "window; with the first request of a process",
        (
            _MODEL,
            PayloadField("estimatedInputTokens", "integer", "expected size of the first request", telemetry=True),
            PayloadField("contextTokens", "integer", "the model's window, if known", optional=True, telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.LLM_REQUEST_STARTED: EventShape(
        "before a request to the gateway; again in a step whose request was cut, or goes to another model",
        (
            _MODEL,
            PayloadField("estimatedInputTokens", "integer", "expected size of the request", telemetry=True),
            PayloadField("maxOutputTokens", "integer", "limit of the answer", telemetry=True),
        ),
    ),
    EventType.LLM_REQUEST_COMPLETED: EventShape(
        "the answer is complete",
        (
            _MODEL,
            PayloadField("inputTokens", "integer", "tokens sent, those from the cache included", telemetry=True),
            PayloadField("outputTokens", "integer", "tokens of the answer", telemetry=True),
            PayloadField("cachedInputTokens", "integer", "the part of the input read from the cache", telemetry=True),
            PayloadField("cacheWriteTokens", "integer", "the part written to it, if any", True, telemetry=True),
            PayloadField(
                "cacheWrite1hTokens", "integer", "the part of these kept for an hour, if any", True, telemetry=True
            ),
            PayloadField("cost", "number", "by the prices of the configuration; missing if the model has none", True),
            PayloadField("costCurrency", "string", "the currency of `cost`", True),
            PayloadField("stopReason", "string", "why the model stopped", telemetry=True),
            PayloadField("stopDetail", "string", "which limit cut the answer, or why the model refused", optional=True),
            PayloadField(
                "latencyMs", "integer", "from the request to the answer's end, retries included", telemetry=True
            ),
            PayloadField("responseId", "string", "the gateway's id of the answer", optional=True, telemetry=True),
            PayloadField(
                "responseModel", "string", "the model that answered, as the gateway says", True, telemetry=True
            ),
        ),
    ),
    EventType.CONTEXT_COMPACTED: EventShape(
        "requests contain less of the conversation from now on; the record keeps all of it",
        (
            PayloadField("strategy", "string", "`drop_oldest`, `clear_tool_results` or `summarize`", telemetry=True),
            PayloadField("summary", "string", "the model's notes, if they replace the omitted part", True),
            PayloadField("droppedMessages", "integer", "messages that requests omit", telemetry=True),
            PayloadField(
                "clearedMessages", "integer", "number of first messages without large results", telemetry=True
            ),
            PayloadField(
                "estimatedBefore",
                "integer",
                "expected size of the request before, as `estimatedInputTokens` of `llm_request_started`",
                telemetry=True,
            ),
            PayloadField("estimatedAfter", "integer", "the same after it", telemetry=True),
            PayloadField(
                "inputTokens", "integer", "tokens sent for the summary, those from the cache included", telemetry=True
            ),
            PayloadField("outputTokens", "integer", "tokens of the summary", telemetry=True),
            PayloadField("cachedInputTokens", "integer", "the part of the input read from the cache", telemetry=True),
            PayloadField("cacheWriteTokens", "integer", "the part written to it, if any", True, telemetry=True),
        ),
    ),
    EventType.LLM_ANSWER_REPAIRED: EventShape(
        "the answer contained halves of characters (lone surrogates); once an answer",
        (PayloadField("count", "integer", "number of halves; each is replaced by U+FFFD", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_COUNT_ODD: EventShape(
        "the gateway counts more than four times the estimate; once a process; its count is used",
        (
            _MODEL,
            PayloadField("countedTokens", "integer", "tokens of the request or of the answer", telemetry=True),
            PayloadField("estimatedTokens", "integer", "the estimate", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.LLM_BLOCK_DROPPED: EventShape(
        "blocks of an answer that only its provider reads, such as signed reasoning, cannot be sent back unchanged",
        (PayloadField("count", "integer", "number of blocks omitted from the conversation", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_RETRY: EventShape(
        "the gateway had a temporary failure: discard the text and thinking of this attempt",
        (
            _ATTEMPT._replace(meaning="the attempt that failed, from 1; the next one has the next number"),
            PayloadField("waitMs", "integer", "wait before the next attempt", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.CONTEXT_SUMMARY_RETRY: EventShape(
        "the gateway had a temporary failure when it was asked for a summary; no text is discarded",
        (
            PayloadField("waitMs", "integer", "wait before the next request", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.LLM_WINDOW_CUT: EventShape(
        "requests omit the oldest messages from now on, because they do not fit the model",
        (PayloadField("droppedMessages", "integer", "number of messages omitted this time", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_FALLBACK: EventShape(
        "another model of `llm.fallback_models` is used from now on to the end of the task",
        (
            _MODEL._replace(meaning="the overloaded model"),
            PayloadField("fallbackModel", "string", "the next model", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.TOOL_REQUESTED: EventShape(
        "policy has judged a call, before it runs; again if its arguments were edited",
        (
            _CALL,
            _TOOL,
            PayloadField(
                "capability", "string", "what the tool needs; missing for an unknown tool", True, telemetry=True
            ),
            PayloadField(
                "summary",
                "string",
                "its subject, as in its arguments, with the method of a request; cut",
                optional=True,
            ),
            PayloadField(
                "argumentsSha256",
                "string",
                "of the arguments as JSON, without secrets; missing if they are not JSON",
                optional=True,
            ),
            PayloadField("arguments", "object", "without secrets, up to 8 KiB as JSON", optional=True),
            PayloadField(
                "argumentsHead", "string", "instead of longer arguments: the start of their JSON", optional=True
            ),
            _ITEM,
            PayloadField("decision", "string", "`ALLOWED`, `DENIED` or `APPROVAL_REQUIRED`", True, telemetry=True),
            PayloadField("rule", "string", "the entry of the bundle that decided", optional=True),
            _optional(_RISK),
            PayloadField(
                "grantedBy", "string", "approvalId of an earlier answer that covers the call", True, telemetry=True
            ),
            _EDITED,
        ),
    ),
    EventType.TOOL_COMPLETED: EventShape(
        "a call has its result",
        (
            _CALL,
            _TOOL,
            PayloadField("status", "string", "`succeeded`, `failed` or `denied`", telemetry=True),
            _optional(_CODE),
            PayloadField("message", "string", "why it failed or was denied, in one line", optional=True),
            PayloadField(
                "exitCode",
                "integer",
                "of a command or script; a call of a command with an exit code other than 0 has `succeeded`",
                True,
                telemetry=True,
            ),
            _COMMAND._replace(meaning="of a command that the call left running in the background", optional=True),
            PayloadField("skill", "string", "the skill that the call has loaded, by its name", optional=True),
            PayloadField(
                "denials", "list of strings", "the sandbox's denials to its programs, a line each", optional=True
            ),
            PayloadField("pathsChanged", "list of strings", "files that it is known to have changed", optional=True),
            PayloadField("changesUnseen", "string", "of a command: why some of its changes are unknown", optional=True),
            PayloadField("output", "string", "what the model reads, up to 8 KiB of it"),
            PayloadField(
                "images", "list of strings", "pictures beside it: media type, pixels, bytes of each", optional=True
            ),
            _ITEM,
            PayloadField(
                "startedAt", "string", "when it began to run, RFC 3339; missing if it did not", True, telemetry=True
            ),
            PayloadField("artifactUris", "list of strings", "URIs of the parts stored so far", optional=True),
            PayloadField(
                "storageRefs", "list of strings", "parts of it that are kept below the session's folder", optional=True
            ),
            PayloadField("storedSha256", "object", "hash of each of these, by its reference", optional=True),
            PayloadField(
                "storedParts", "object", "the output of each of these: `stdout`, `stderr`, `body`", optional=True
            ),
            PayloadField("stderr", "string", "of a command or script: the first 1 KiB of it", optional=True),
            PayloadField("outputBytes", "integer", "size of what the model reads", telemetry=True),
            PayloadField("outputSha256", "string", "of what the model reads"),
            PayloadField("latencyMs", "integer", "from the request, waits included", telemetry=True),
        ),
    ),
    EventType.COMMAND_ENDED: EventShape(
        "a background command ended; without an id: processes that commands left were terminated with the session",
        (
            _optional(_COMMAND),
            _CALL._replace(meaning="the call that started it", optional=True),
            PayloadField(
                "reason",
                "string",
                "`exited`, `timed_out`, `stopped` (by StopCommand), `session_ended`, or `interrupted` by a crash",
                telemetry=True,
            ),
            PayloadField("exitCode", "integer", "if known", optional=True, telemetry=True),
            PayloadField(
                "processesLeft", "integer", "number of its processes that still run", optional=True, telemetry=True
            ),
            PayloadField(
                "processesEnded",
                "integer",
                "without an id: number of terminated processes",
                optional=True,
                telemetry=True,
            ),
        ),
    ),
    EventType.TOOLS_LISTED: EventShape(
        "an MCP server or the backend service has listed its tools while the session ran",
        (
            *_SOURCE,
            PayloadField("rejected", "list of strings", "tools that cannot be used, with the reason", optional=True),
        ),
    ),
    EventType.TOOLS_CHANGED: EventShape(
        "a task starts, and the tools of a source differ from those of the task before, in any session",
        (
            *_SOURCE,
            PayloadField("added", "list of strings", "their names", optional=True),
            PayloadField("removed", "list of strings", "their names", optional=True),
            PayloadField("changed", "list of strings", "tools whose new definition needs an approval", optional=True),
        ),
    ),
    EventType.TOOLS_HIDDEN: EventShape(
        "policy admits none of the tools of a source; the message has the line that would admit them", _SOURCE
    ),
    EventType.TOOLS_UNAVAILABLE: EventShape(
        "a source does not list its tools: the stored list is used, and calls may fail", _SOURCE
    ),
    EventType.APPROVAL_REQUESTED: EventShape(
        "a call waits for a person",
        (
            _APPROVAL,
            _CALL,
            PayloadField("title", "string", "of the rule"),
            PayloadField("description", "string", "of the rule, or why policy asks"),
            PayloadField("actionSummary", "string", "the call in one line, cut"),
            _RISK,
            PayloadField("risks", "list of strings", "reasons for the risk"),
            PayloadField("details", "object", "{toolName, capability, ...}: what will happen, by the kind of tool"),
            _REPLAY,
            _QUESTION,
        ),
    ),
    EventType.APPROVAL_RESOLVED: EventShape(
        "the answer is recorded",
        (
            _APPROVAL,
            _CALL,
            PayloadField("decision", "string", "`approved` or `denied`", telemetry=True),
            PayloadField("scope", "string", "`once`, `task` or `session`", telemetry=True),
            PayloadField("reason", "string", "in words"),
            PayloadField("latencyMs", "integer", "the wait; 0 if the answer was recorded already", telemetry=True),
            _ANSWERED_BY,
            _EDITED,
            _REPLAY,
            _QUESTION,
        ),
    ),
    EventType.APPROVAL_TIMEOUT: EventShape(
        "nobody answered in time",
        (_APPROVAL, PayloadField("waitedMs", "integer", "the wait", telemetry=True)),
    ),
    EventType.POLICY_EXPIRED: EventShape("the bundle has expired", (_optional(_CALL),)),
    EventType.ARTIFACT_UPLOADED: EventShape(
        "the Workspace Service has an artifact, or the history of the session",
        (_ARTIFACT, PayloadField("artifactUri", "string", "where it is"), _optional(_REF), _optional(_CALL)),
    ),
    EventType.ARTIFACT_UPLOAD_FAILED: EventShape(
        "an artifact was not stored, or its upload was given up",
        (_ARTIFACT, _MESSAGE, _optional(_REF), _optional(_CALL)),
    ),
    EventType.CHECKPOINT_FAILED: EventShape("the disk did not take a record", (_MESSAGE, _CODE)),
    EventType.STORAGE_LIMIT_REACHED: EventShape("the session has reached its limit of stored data", (_MESSAGE,)),
}


# What the Telemetry Service gets (AH 12): that things happened, how long they took and how they ended, and nothing of
# what they were about. Use: `BatchedSink(post, TELEMETRY_EVENTS, shape=telemetry_line)`.

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
