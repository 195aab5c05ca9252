"""docs/errors.md from the classes of errors: `python -m tests.support.error_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host import errors
from agent_host.errors import INTERRUPTED, MAX_STEPS_EXCEEDED, TIME_LIMIT, AgentHostError, ErrorCode
from agent_host.events import EventType
from agent_host.rpc import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"

_IN_A_TASK: Final = "no method returns it; in a task it is a `reason`, see below"

# Codes that the JSON-RPC layer answers itself, and what they mean.
_PROTOCOL: Final = {
    messages.PARSE_ERROR: "the message is not JSON in UTF-8",
    messages.INVALID_REQUEST: (
        "the message is not a JSON-RPC 2.0 request, or is too large; or the request is not valid now, such as a second "
        "CreateSession, or ResumeSession while a task runs"
    ),
    messages.METHOD_NOT_FOUND: "there is no such method; the message lists the methods",
    messages.INVALID_PARAMS: "a parameter is missing or wrong, or the configuration is invalid; see the message",
}
# What each error of the host means to a client, by (number, name).
_MEANINGS: Final = {
    (-32603, ErrorCode.INTERNAL_ERROR): (
        "a fault of the program, or a backend service that failed or rejected the request; retryable if the service "
        "may answer later"
    ),
    (-32603, ErrorCode.RATE_LIMITED): "a backend service answered 429",
    (-32603, ErrorCode.UNAUTHORIZED): "a backend service rejected the token (401, 403)",
    (-32603, ErrorCode.CHECKPOINT_WRITE_FAILED): "a record could not be written to disk; nothing was started",
    (-32003, ErrorCode.POLICY_BUNDLE_INVALID): "the policy bundle breaks its schema, or belongs to another session",
    (-32003, ErrorCode.POLICY_EXPIRED): "the bundle's `expiresAt` has passed: call ResumeSession with a new one",
    (-32020, ErrorCode.CAPABILITY_DENIED): (
        "the bundle does not allow the model that `--model` names, or one of `llm.fallback_models`"
    ),
    (-32001, ErrorCode.SESSION_NOT_FOUND): "there is no such session on this machine, or this process has another",
    (-32001, ErrorCode.SESSION_NOT_READY): "the session is not created yet, is paused, or has ended",
    (-32002, ErrorCode.SESSION_EXPIRED): "the Session Service has ended the session; nobody can resume it",
    (-32005, ErrorCode.INCOMPATIBLE): (
        "the client and the host have no common version of the protocol (`details.protocolVersions`), or the Session "
        "Service does not support this version of the host"
    ),
    (-32031, ErrorCode.SESSION_HELD): (
        "another live process has the session (`details.pid` if known), or another client is connected"
    ),
    (-32030, ErrorCode.CHECKPOINT_UNREADABLE): (
        "the checkpoint is damaged, too large, or of a newer program; it is not deleted"
    ),
    (-32004, ErrorCode.TASK_ALREADY_RUNNING): "a task is running, or waits to be resumed or cancelled",
    (-32041, ErrorCode.NO_ACTIVE_TASK): "there is no task with that id to cancel",
    (-32012, ErrorCode.LLM_GUARDRAIL_BLOCKED): _IN_A_TASK,
    (-32011, ErrorCode.LLM_BUDGET_EXCEEDED): _IN_A_TASK,
    (-32010, ErrorCode.LLM_GATEWAY_ERROR): _IN_A_TASK,
}
# Names that an error carries in place of its class's own (`details["code"]`).
_OTHER_NAMES: Final = {errors.ServiceUnavailable: ErrorCode.RATE_LIMITED}

# `tool_completed.code`, and what the model reads in front of the message.
OF_CALLS: Final = {
    ErrorCode.TOOL_NOT_FOUND: "there is no tool of that name",
    ErrorCode.INVALID_REQUEST: "the arguments break the tool's schema, or cannot be used (such as a blocked address)",
    ErrorCode.CAPABILITY_DENIED: "policy denies the call; the message names the rule",
    ErrorCode.POLICY_EXPIRED: "the bundle has expired; the session pauses after this step",
    ErrorCode.APPROVAL_REQUIRED: "the call needs an approval, and nobody could give it, or not in time",
    ErrorCode.APPROVAL_DENIED: "the person denied it",
    ErrorCode.TOOL_EXECUTION_FAILED: "the tool failed",
    ErrorCode.TOOL_EXECUTION_TIMEOUT: "the tool did not end in time; its processes were terminated",
    ErrorCode.TOOL_INTERRUPTED: "the call was cut short by a cancellation, a crash or the end of the process",
    ErrorCode.FILE_NOT_FOUND: "there is no such file",
    ErrorCode.FILE_TOO_LARGE: "the file or content exceeds a limit",
    ErrorCode.PERMISSION_DENIED: "the system denied it, or the path changed after policy had judged it",
    ErrorCode.WORKSPACE_UPLOAD_FAILED: "the artifact could not be stored",
    ErrorCode.RATE_LIMITED: "the tool's service takes no more calls for now",
    ErrorCode.UNAUTHORIZED: "the Backend Tool Service rejected the host's token",
    ErrorCode.INTERNAL_ERROR: "a backend tool failed in a way that its service does not explain",
}


class Reason(NamedTuple):
    """A documented `reason` of one event; `goes_on`: the task stays open, and ResumeSession goes on with it."""

    event: EventType
    name: str
    when: str
    goes_on: bool


_FAILED, _PAUSED = EventType.TASK_FAILED, EventType.SESSION_PAUSED
REASONS: Final = (
    Reason(_FAILED, MAX_STEPS_EXCEEDED, "the task used its `maxSteps`", goes_on=False),
    Reason(
        _FAILED,
        ErrorCode.LLM_GUARDRAIL_BLOCKED,
        "a guardrail of the gateway blocked the prompt, or the model refused",
        goes_on=False,
    ),
    Reason(_FAILED, ErrorCode.LLM_REFUSED, "the gateway rejected a request for an unknown reason", goes_on=True),
    Reason(
        _FAILED,
        ErrorCode.LLM_BUDGET_EXCEEDED,
        "`llmPolicy.maxSessionTokens`, or the task's `maxCost`, does not cover the next call",
        False,
    ),
    Reason(
        _FAILED,
        ErrorCode.LLM_BUDGET_EXCEEDED,
        "`--max-cost` (`llm.max_cost`) does not cover the next call; a higher limit lets the session continue",
        goes_on=True,
    ),
    Reason(
        _FAILED,
        ErrorCode.LLM_EMPTY_ANSWER,
        "the model gave two empty answers in a row: no text and no call ([gateways.md](gateways.md))",
        goes_on=True,
    ),
    Reason(
        _FAILED,
        ErrorCode.LLM_CALL_AS_TEXT,
        "the model wrote a tool call as plain text, though it was told how to call tools",
        goes_on=True,
    ),
    Reason(
        _FAILED,
        ErrorCode.LLM_REPEATED_CALL,
        "the model made one call again and again with the same result (`loop.repeat_limit`), or its answer repeated "
        "one piece endlessly",
        goes_on=True,
    ),
    Reason(
        _FAILED,
        ErrorCode.ANSWER_SCHEMA,
        "the final answer did not fit the schema of `run --schema`, twice",
        goes_on=True,
    ),
    Reason(_FAILED, ErrorCode.CAPABILITY_DENIED, "the bundle does not grant LLM.Call", goes_on=False),
    Reason(_FAILED, ErrorCode.UNAUTHORIZED, "the gateway rejected the token (401, 403)", goes_on=True),
    Reason(
        _FAILED,
        ErrorCode.LLM_GATEWAY_ERROR,
        "the gateway rejected the request ([gateway-errors.md](gateway-errors.md) says why, and what to do), its "
        "answer cannot be read, or the model stopped for an unknown reason",
        goes_on=True,
    ),
    Reason(
        _FAILED,
        ErrorCode.INVALID_REQUEST,
        "the trusted certificates or the proxy of the environment are invalid; of a queued task: its model is no "
        "longer allowed (such a task is over)",
        goes_on=True,
    ),
    Reason(
        _FAILED, ErrorCode.CHECKPOINT_WRITE_FAILED, "the start of a queued task could not be written to disk", False
    ),
    Reason(EventType.TASK_CANCELLED, "cancelled", "CancelTask or Shutdown ended it", goes_on=False),
    Reason(
        _PAUSED, ErrorCode.LLM_GATEWAY_ERROR, "the gateway was unreachable or failed after all retries", goes_on=True
    ),
    Reason(_PAUSED, ErrorCode.RATE_LIMITED, "the gateway answered 429 after all retries", goes_on=True),
    Reason(_PAUSED, ErrorCode.POLICY_EXPIRED, "the bundle's `expiresAt` passed while the task ran", goes_on=True),
    Reason(
        _PAUSED, ErrorCode.CHECKPOINT_WRITE_FAILED, "a record could not be written, or the disk is full", goes_on=True
    ),
    Reason(_PAUSED, TIME_LIMIT, "the time of `run --timeout` was over", goes_on=True),
    Reason(_PAUSED, INTERRUPTED, "the client disconnected, or the process ended", goes_on=True),
    Reason(
        _PAUSED,
        ErrorCode.APPROVAL_REQUIRED,
        "`run` only: the task is over, and a resume can approve the calls that nobody could approve",
        goes_on=False,
    ),
    Reason(EventType.SESSION_FAILED, ErrorCode.SESSION_EXPIRED, "the Session Service has ended the session", False),
    Reason(EventType.SESSION_FAILED, ErrorCode.INTERNAL_ERROR, "a fault of the program; exit 1", goes_on=True),
)

_HEAD = """\
# Errors and reasons

Made from `agent_host/errors.py` by `python -m tests.support.error_page`. The limits behind some of them are in
[limits.md](limits.md).

## Error responses

The error object of a response is {code, message, data: {code, retryable, details?}}. `message` is one line for a
person, `data.code` the name, and `retryable` says whether the same request may succeed later. Decide by the name: a
number may stand for several.

| code | `data.code` | retryable | meaning |
| --- | --- | --- | --- |
"""
_CALLS = """
## Calls of tools

`tool_completed` with the status `failed` or `denied` has one of these in `code` and the words in `message`. The model
reads both. A command that ends with a code other than 0 has the status `succeeded` and the code in `exitCode`.

| `code` | meaning |
| --- | --- |
"""
_REASONS = """
## Reasons

`reason` is in the events that end a task, pause a session, or report that it cannot continue; `message` has the words.
A task that goes on is still open: `ResumeSession` requests the policy again and continues it, `CancelTask` ends it.
After a `task_failed` of such a task, `StartTask` may also start another task. After a `session_paused`, `StartTask` is
rejected (-32001) until `ResumeSession`, even if `CancelTask` has ended the task.

`endedBy` says who ended the task, and `retryable` whether a retry of the same task can help; both are in the events,
in the result object and in lists of sessions, with one `verdict`: completed, failed, cancelled, paused, denied,
interrupted or running. A completed task is ended by the model and is not retryable; one with calls that nobody could
approve (exit code 4) is denied, and ended by policy.

Decide by `verdict`, not by `status`: in `sessions` and `show --output json`, in ListSessions and, as `sessionStatus`,
in GetSessionState that is the recorded status, and a session that can be resumed stays `SESSION_RUNNING` there. After
`LLM_EMPTY_ANSWER` it is `SESSION_RUNNING` with the verdict failed, and after a process died, with the verdict
interrupted.

| event | `reason` | when | goes on | `endedBy` | retryable |
| --- | --- | --- | --- | --- | --- |
"""
_TAIL = """
`task_cancelled` of a queued task that had not started has a `message` and no `reason`. If a process died between the
end of a task and its clean-up, a resume emits that end again, and `message` is then the same as `reason`. `reason` of
`session_completed` and `session_cancelled` is the one of `Shutdown`, or `shutdown`; that of `approval_resolved` is free
text, too.
"""


def classes() -> Iterator[type[AgentHostError]]:
    """Every class of errors that has a name and a number on the wire."""
    for one in vars(errors).values():
        # Standard output is the command line's alone.
        if isinstance(one, type) and issubclass(one, AgentHostError) and one is not errors.OutputRefused:
            yield one


def responses() -> dict[tuple[int, ErrorCode], tuple[set[bool], str]]:
    """For each (number, name) whether it is retryable (both where that depends), and what it means."""
    rows: dict[tuple[int, ErrorCode], tuple[set[bool], str]] = {
        (number, ErrorCode.INVALID_REQUEST): ({False}, meaning) for number, meaning in _PROTOCOL.items()
    }
    for one in classes():
        for name in [one.code, *([_OTHER_NAMES[one]] if one in _OTHER_NAMES else [])]:
            key = (one.rpc_code, name)
            if key not in rows:
                rows[key] = (set(), _MEANINGS[key])
            rows[key][0].add(one.retryable)
    return rows


def page() -> str:
    """The page as it should be."""
    parts = [_HEAD]
    standard_last = sorted(responses().items(), key=lambda row: (-row[0][0], row[0][1]))
    for (number, name), (retryable, meaning) in standard_last:
        shown = "depends" if len(retryable) > 1 else "yes" if True in retryable else ""
        parts.append(f"| {number} | `{name}` | {shown} | {meaning} |\n")
    parts.append(_CALLS)
    parts.extend(f"| `{code}` | {means} |\n" for code, means in OF_CALLS.items())
    parts.append(_REASONS)
    for one in REASONS:
        ending = errors.ending_of(one.name, has_failed=one.event is _FAILED)
        said = f"{'yes' if one.goes_on else ''} | {ending.ended_by} | {'yes' if ending.retryable else ''}"
        parts.append(f"| `{one.event}` | `{one.name}` | {one.when} | {said} |\n")
    parts.append(_TAIL)
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
