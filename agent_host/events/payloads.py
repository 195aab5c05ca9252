"""Payloads of the events (AH 12, interface section 2): one table, from which docs/events.md is made.

`telemetry` marks what may leave for the Telemetry Service: names from closed sets, ids, counts, latencies and codes.
Words of the user, of the model or of a file, arguments, paths and hashes of content have no mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from agent_host.events.kinds import LIVE_ONLY, EventType

if TYPE_CHECKING:
    from agent_host.events.emitter import Event

Kind = Literal["string", "integer", "number", "true", "boolean", "list of strings", "object"]


class Field(NamedTuple):
    """One field of a payload."""

    name: str
    kind: Kind
    meaning: str
    optional: bool = False
    telemetry: bool = False


class EventShape(NamedTuple):
    """The occasion of an event, and its fields."""

    when: str
    fields: tuple[Field, ...] = ()


_STEP_COUNT = Field("stepCount", "integer", "steps of the task so far", telemetry=True)
_MAX_STEPS = Field("maxSteps", "integer", "the task's limit", telemetry=True)
_TOTAL_TOKENS = Field("totalTokens", "integer", "tokens that the session has used", telemetry=True)
_TASK_COUNT = Field("taskCount", "integer", "tasks of the session", telemetry=True)
_DURATION = Field("durationMs", "integer", "life of the session in this process", telemetry=True)
_REASON = Field("reason", "string", "a documented name", telemetry=True)
_WHY = Field("reason", "string", "in the words of the person or program that ended it")
_ANSWERED_BY = Field(
    "answeredBy",
    "string",
    "`client`, `command`, `chat`, `acp` or `view`; nothing where nobody was asked, or nobody answered",
    optional=True,
    telemetry=True,
)
_EDITED = Field("edited", "true", "the person who approved the call changed it", optional=True, telemetry=True)
_MESSAGE = Field("message", "string", "one line for a person")
_MODEL = Field("model", "string", "name of the model", telemetry=True)
_CALL = Field("toolCallId", "string", "the call", telemetry=True)
_TOOL = Field("toolName", "string", "as the model named it", telemetry=True)
_COMMAND = Field("commandId", "string", "the command, as the model names it", telemetry=True)
_APPROVAL = Field("approvalId", "string", "the request", telemetry=True)
_REPLAY = Field(
    "replay",
    "object",
    "unless somebody answers: how a resume approves exactly this call, {approve, id?, command?, request?}",
    optional=True,
)
_QUESTION = Field(
    "isQuestion",
    "true",
    "it is a question of an MCP server in the middle of the call: details has {source, question} with {form}, the JSON "
    "Schema of the answers, or {url, host}; the answers are the `arguments` of ApproveAction",
    optional=True,
    telemetry=True,
)
_RISK = Field("riskLevel", "string", "`low`, `medium` or `high`", telemetry=True)
_CODE = Field("code", "string", "name of the error", telemetry=True)

_ITEM = Field("itemId", "string", "where more was cut: the item of GetTranscript that has all of it", optional=True)
_ATTEMPT = Field("attempt", "integer", "the try of the model call that it is of, from 1", telemetry=True)
_PIECE = Field("text", "string", "a piece of it")

_ARTIFACT = Field("artifactName", "string", "its name")
_REF = Field("storageRef", "string", "where it is kept on this machine, below the session's folder")
_SOURCE = (
    Field("source", "string", "`mcp:NAME`, or `backend`"),
    Field("toolCount", "integer", "how many tools it has", telemetry=True),
    _MESSAGE,
)


def _optional(field: Field) -> Field:
    return field._replace(optional=True)


_VERDICT = (
    Field("verdict", "string", "completed, failed, cancelled, paused, denied or interrupted", telemetry=True),
    Field("endedBy", "string", "model, policy, limit, infrastructure or person", telemetry=True),
    Field("retryable", "boolean", "whether a retry of the task can help", telemetry=True),
)
_ENDED = (_STEP_COUNT, _TOTAL_TOKENS, *_VERDICT)
_ENDED_BADLY = (*_ENDED, _optional(_REASON), _optional(_MESSAGE))

_SANDBOX = Field(
    "sandbox",
    "object",
    "how commands are held: {level, wanted, why? (what keeps a stronger level from working), scope? (what a command "
    "may read, write and reach, in `unheld` each rule that the level cannot hold, and in `withheld` what it refuses "
    "although the scope gives it)}",
    optional=True,
)

PAYLOADS: dict[EventType, EventShape] = {
    EventType.SESSION_STARTED: EventShape(
        "a session is ready",
        (
            Field("executionEnvironment", "string", "`desktop`, `cloud_sandbox` or `ci`", telemetry=True),
            Field("workspace", "string", "the project directory"),
            _MODEL,
            _SANDBOX,
            Field("message", "string", "why every write in the workspace is denied, where that is so", optional=True),
        ),
    ),
    EventType.SESSION_RESUMED: EventShape(
        "a task goes on, in another process or after a pause",
        (Field("resumedFromStep", "integer", "steps that were committed", telemetry=True), _SANDBOX),
    ),
    EventType.SESSION_PAUSED: EventShape("the task stopped where a resume can go on", _ENDED_BADLY),
    EventType.SESSION_COMPLETED: EventShape(
        "the session ended cleanly", (_TASK_COUNT, _TOTAL_TOKENS, _DURATION, _optional(_WHY))
    ),
    EventType.SESSION_FAILED: EventShape("the session cannot go on", (_REASON, _MESSAGE)),
    EventType.SESSION_CANCELLED: EventShape(
        "the session was ended while a task was open, or in a pause", (_WHY, _TASK_COUNT, _TOTAL_TOKENS, _DURATION)
    ),
    EventType.TASK_QUEUED: EventShape(
        "a prompt was taken that follows the task that is open",
        (Field("position", "integer", "its place in the queue, from 1", telemetry=True), _MAX_STEPS),
    ),
    EventType.TASK_STEERED: EventShape(
        "a person said something to the task that is open: the model reads it before its next turn",
        (
            Field("text", "string", "what was said"),
            Field("position", "integer", "its place among what waits, from 1", telemetry=True),
        ),
    ),
    EventType.MODE_CHANGED: EventShape(
        "a client set options of the session: those that are not as at the launch",
        (
            Field("policy", "string", "the built-in or the file that narrows the launch bundle", optional=True),
            Field("model", "string", "the model of requests", optional=True, telemetry=True),
            Field("sandbox", "string", "the level by which commands are sandboxed", optional=True, telemetry=True),
            Field("approvalMode", "string", "the approval mode of the session", optional=True, telemetry=True),
        ),
    ),
    EventType.TASK_STARTED: EventShape("a prompt was taken", (_MAX_STEPS,)),
    EventType.TASK_COMPLETED: EventShape("the model is done", _ENDED),
    EventType.TASK_FAILED: EventShape("the task cannot go on", _ENDED_BADLY),
    EventType.TASK_CANCELLED: EventShape("the task was cancelled", _ENDED_BADLY),
    EventType.STEP_STARTED: EventShape(
        "before each model call",
        (Field("stepId", "string", "the step", telemetry=True), _STEP_COUNT._replace(meaning="number of this step")),
    ),
    EventType.STEP_COMPLETED: EventShape(
        "all results are there and the step is committed",
        (Field("stepId", "string", "the step", telemetry=True), _STEP_COUNT),
    ),
    EventType.STEP_LIMIT_APPROACHING: EventShape("four fifths of the steps are used", (_STEP_COUNT, _MAX_STEPS)),
    EventType.TEXT_CHUNK: EventShape("text of the model, as it comes", (_PIECE, _ATTEMPT)),
    EventType.THINKING_CHUNK: EventShape(
        "thinking of the model, as it comes; redacted thinking has no text and no event", (_PIECE, _ATTEMPT)
    ),
    EventType.TOOL_OUTPUT_CHUNK: EventShape(
        "output of a tool, as it comes; what a background command prints is read with CommandOutput and not streamed",
        (
            _CALL,
            Field("stream", "string", "`stdout` or `stderr`", telemetry=True),
            _PIECE,
        ),
    ),
    EventType.LLM_DIALECT_CHOSEN: EventShape(
        "`--dialect auto` has found what the gateway speaks, told with the first request of a process",
        (Field("dialect", "string", "`anthropic`, `openai` or `responses`", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_SERVER_READ: EventShape(
        "what a local server says of its model was taken over, or the first request leaves little room in the model's "
        "window; with the first request of a process",
        (
            _MODEL,
            Field("estimatedInputTokens", "integer", "what the first request is expected to have", telemetry=True),
            Field("contextTokens", "integer", "the model's window, where it is known", optional=True, telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.LLM_REQUEST_STARTED: EventShape(
        "before a request to the gateway; again in a step whose request was cut, or goes to another model",
        (
            _MODEL,
            Field("estimatedInputTokens", "integer", "what the request is expected to cost", telemetry=True),
            Field("maxOutputTokens", "integer", "the most that the model may answer", telemetry=True),
        ),
    ),
    EventType.LLM_REQUEST_COMPLETED: EventShape(
        "the whole answer is there",
        (
            _MODEL,
            Field("inputTokens", "integer", "tokens sent, those from the cache included", telemetry=True),
            Field("outputTokens", "integer", "tokens answered", telemetry=True),
            Field("cachedInputTokens", "integer", "the part of the input read from the cache", telemetry=True),
            Field("cacheWriteTokens", "integer", "the part written to it, if any", True, telemetry=True),
            Field("cacheWrite1hTokens", "integer", "of these the part kept for an hour, if any", True, telemetry=True),
            Field("cost", "number", "by the prices of the configuration; missing where the model has none", True),
            Field("costCurrency", "string", "the currency of `cost`", True),
            Field("stopReason", "string", "why the model stopped", telemetry=True),
            Field("stopDetail", "string", "which limit cut the answer, or why the model refused", optional=True),
            Field("latencyMs", "integer", "from the request to the answer's end, retries included", telemetry=True),
            Field("responseId", "string", "the gateway's id of the answer", optional=True, telemetry=True),
            Field("responseModel", "string", "the model that answered, as the gateway says", True, telemetry=True),
        ),
    ),
    EventType.CONTEXT_COMPACTED: EventShape(
        "requests show less of the conversation from now on; the record keeps it whole",
        (
            Field("strategy", "string", "`drop_oldest`, `clear_tool_results` or `summarize`", telemetry=True),
            Field("summary", "string", "the model's notes, where they stand in place of what is left out", True),
            Field("droppedMessages", "integer", "messages that requests leave out", telemetry=True),
            Field("clearedMessages", "integer", "the first so many show no large results", telemetry=True),
            Field(
                "estimatedBefore",
                "integer",
                "what the request was expected to cost before, as `estimatedInputTokens` of `llm_request_started`",
                telemetry=True,
            ),
            Field("estimatedAfter", "integer", "and behind it", telemetry=True),
            Field(
                "inputTokens", "integer", "tokens sent for the summary, those from the cache included", telemetry=True
            ),
            Field("outputTokens", "integer", "tokens of the summary", telemetry=True),
            Field("cachedInputTokens", "integer", "the part of the input read from the cache", telemetry=True),
            Field("cacheWriteTokens", "integer", "the part written to it, if any", True, telemetry=True),
        ),
    ),
    EventType.LLM_ANSWER_REPAIRED: EventShape(
        "the answer held halves of characters (lone surrogates), reported once an answer",
        (Field("count", "integer", "how many; each is replaced by U+FFFD", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_COUNT_ODD: EventShape(
        "the gateway counts over four times what is estimated, reported once a process; its count stands",
        (
            _MODEL,
            Field("countedTokens", "integer", "tokens of the request or of the answer", telemetry=True),
            Field("estimatedTokens", "integer", "what was expected", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.LLM_BLOCK_DROPPED: EventShape(
        "blocks of an answer that only its provider reads, such as signed reasoning, cannot be sent back unchanged",
        (Field("count", "integer", "how many are left out of the conversation", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_RETRY: EventShape(
        "the gateway failed in a way that may pass: the text and thinking of this attempt are taken back",
        (
            _ATTEMPT._replace(meaning="the try that failed, from 1; the next one has the next number"),
            Field("waitMs", "integer", "until it follows", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.CONTEXT_SUMMARY_RETRY: EventShape(
        "the gateway failed in a way that may pass when it was asked for a summary; no text is taken back",
        (
            Field("waitMs", "integer", "until it is asked again", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.LLM_WINDOW_CUT: EventShape(
        "the oldest messages are left out of requests from here on, since the model does not take that much",
        (Field("droppedMessages", "integer", "how many went this time", telemetry=True), _MESSAGE),
    ),
    EventType.LLM_FALLBACK: EventShape(
        "another model of `llm.fallback_models` is asked from here on to the end of the task",
        (
            _MODEL._replace(meaning="the one that is overloaded"),
            Field("fallbackModel", "string", "the next", telemetry=True),
            _MESSAGE,
        ),
    ),
    EventType.TOOL_REQUESTED: EventShape(
        "policy has judged a call, before anything is done; again for one whose arguments were edited",
        (
            _CALL,
            _TOOL,
            Field("capability", "string", "what the tool needs; missing for an unknown tool", True, telemetry=True),
            Field(
                "summary",
                "string",
                "on what it acts, as its arguments say it, with the method that a request names; cut",
                optional=True,
            ),
            Field(
                "argumentsSha256",
                "string",
                "of the arguments as JSON, without secrets; missing where they are none",
                optional=True,
            ),
            Field("arguments", "object", "without secrets, up to 8 KiB as JSON", optional=True),
            Field("argumentsHead", "string", "in place of longer ones: the start of their JSON", optional=True),
            _ITEM,
            Field("decision", "string", "`ALLOWED`, `DENIED` or `APPROVAL_REQUIRED`", True, telemetry=True),
            Field("rule", "string", "the entry of the bundle that decided", optional=True),
            _optional(_RISK),
            Field("grantedBy", "string", "approvalId of an earlier answer that covers the call", True, telemetry=True),
            _EDITED,
        ),
    ),
    EventType.TOOL_COMPLETED: EventShape(
        "a call has its result",
        (
            _CALL,
            _TOOL,
            Field("status", "string", "`succeeded`, `failed` or `denied`", telemetry=True),
            _optional(_CODE),
            Field("message", "string", "why it failed or was denied, in one line", optional=True),
            Field(
                "exitCode",
                "integer",
                "of a command or script; a command that ends with another than 0 has `succeeded` as a call",
                True,
                telemetry=True,
            ),
            _COMMAND._replace(meaning="of a command that the call left running in the background", optional=True),
            Field("skill", "string", "the skill that the call has loaded, by its name", optional=True),
            Field("denials", "list of strings", "what a sandbox refused to its programs, a line each", optional=True),
            Field("pathsChanged", "list of strings", "files that it is known to have changed", optional=True),
            Field("changesUnseen", "string", "of a command: why not all that it changed is known", optional=True),
            Field("output", "string", "what the model reads, up to 8 KiB of it"),
            Field("images", "list of strings", "pictures beside it: media type, pixels, bytes of each", optional=True),
            _ITEM,
            Field("startedAt", "string", "when it began to run, RFC 3339; missing if it did not", True, telemetry=True),
            Field("artifactUris", "list of strings", "what was stored of it by then", optional=True),
            Field("storageRefs", "list of strings", "what is kept of it below the session's folder", optional=True),
            Field("storedSha256", "object", "the hash of each of these, by its reference", optional=True),
            Field("storedParts", "object", "which of these is which output: `stdout`, `stderr`, `body`", optional=True),
            Field("stderr", "string", "of a command or script: the first 1 KiB that it wrote there", optional=True),
            Field("outputBytes", "integer", "size of what the model reads", telemetry=True),
            Field("outputSha256", "string", "of what the model reads"),
            Field("latencyMs", "integer", "from the request, waits included", telemetry=True),
        ),
    ),
    EventType.COMMAND_ENDED: EventShape(
        "a background command is over; without an id: what else commands had left running was ended with the session",
        (
            _optional(_COMMAND),
            _CALL._replace(meaning="the call that started it", optional=True),
            Field(
                "reason",
                "string",
                "`exited`, `timed_out`, `stopped` (by StopCommand), `session_ended`, or `interrupted` by a crash",
                telemetry=True,
            ),
            Field("exitCode", "integer", "where it was seen", optional=True, telemetry=True),
            Field("processesLeft", "integer", "how many processes of it still run", optional=True, telemetry=True),
            Field("processesEnded", "integer", "without an id: how many were ended", optional=True, telemetry=True),
        ),
    ),
    EventType.TOOLS_LISTED: EventShape(
        "an MCP server or the backend service has said which tools it has, beside the session",
        (
            *_SOURCE,
            Field("rejected", "list of strings", "tools that cannot be used, as it says", optional=True),
        ),
    ),
    EventType.TOOLS_CHANGED: EventShape(
        "a task begins whose tools of a source are not those of the task before, in whichever session",
        (
            *_SOURCE,
            Field("added", "list of strings", "their names", optional=True),
            Field("removed", "list of strings", "their names", optional=True),
            Field("changed", "list of strings", "those that need an approval as they are now", optional=True),
        ),
    ),
    EventType.TOOLS_HIDDEN: EventShape(
        "policy admits none of the tools of a source; the message has the line that would admit them", _SOURCE
    ),
    EventType.TOOLS_UNAVAILABLE: EventShape(
        "a source does not say which tools it has: what is known of it is used, and calls may fail", _SOURCE
    ),
    EventType.APPROVAL_REQUESTED: EventShape(
        "a call waits for a person",
        (
            _APPROVAL,
            _CALL,
            Field("title", "string", "of the rule"),
            Field("description", "string", "of the rule, or why policy asks"),
            Field("actionSummary", "string", "the call in one line, cut"),
            _RISK,
            Field("risks", "list of strings", "why the risk is what it is"),
            Field("details", "object", "{toolName, capability, ...}: what will happen, by the kind of tool"),
            _REPLAY,
            _QUESTION,
        ),
    ),
    EventType.APPROVAL_RESOLVED: EventShape(
        "the answer is on record",
        (
            _APPROVAL,
            _CALL,
            Field("decision", "string", "`approved` or `denied`", telemetry=True),
            Field("scope", "string", "`once`, `task` or `session`", telemetry=True),
            Field("reason", "string", "in words"),
            Field("latencyMs", "integer", "the wait; 0 when the answer was on record already", telemetry=True),
            _ANSWERED_BY,
            _EDITED,
            _REPLAY,
            _QUESTION,
        ),
    ),
    EventType.APPROVAL_TIMEOUT: EventShape(
        "nobody answered in time",
        (_APPROVAL, Field("waitedMs", "integer", "the wait", telemetry=True)),
    ),
    EventType.POLICY_EXPIRED: EventShape("the bundle's time is over", (_optional(_CALL),)),
    EventType.ARTIFACT_UPLOADED: EventShape(
        "the Workspace Service has an artifact, or the history of the session",
        (_ARTIFACT, Field("artifactUri", "string", "where it is"), _optional(_REF), _optional(_CALL)),
    ),
    EventType.ARTIFACT_UPLOAD_FAILED: EventShape(
        "an artifact was not stored, or its upload was given up",
        (_ARTIFACT, _MESSAGE, _optional(_REF), _optional(_CALL)),
    ),
    EventType.CHECKPOINT_FAILED: EventShape("the disk did not take a record", (_MESSAGE, _CODE)),
    EventType.STORAGE_LIMIT_REACHED: EventShape("the session may keep no more", (_MESSAGE,)),
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
