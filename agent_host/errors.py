"""All errors of the host as a tree; each class has its documented name, its wire code and a flag for retryable.

    AgentHostError
    ├── UsageError                     exit 2: options, configuration
    ├── OutputRefused                  standard output is full or closed
    ├── PolicyError
    │   ├── PolicyBundleInvalid        exit 2
    │   ├── PolicyExpired              pauses the session (AH 8.6)
    │   └── PolicyDenied               LLM.Call is not granted (AH 8.7)
    ├── SessionError
    │   ├── SessionNotFound
    │   ├── SessionNotReady            not created yet, paused, or over
    │   ├── SandboxWeaker              a resume would use a weaker sandbox than before
    │   ├── SessionExpired             ended by the Session Service (AH 9.6)
    │   ├── Incompatible               no common version with the Session Service (AH 3.2) or the client
    │   ├── SessionHeld                in use by another live process
    │   └── CheckpointUnreadable
    ├── OutOfOrder                     a request that is not valid now
    ├── TaskAlreadyRunning
    ├── NoActiveTask
    ├── CheckpointWriteFailed          pauses before any effect is risked (AH 11)
    ├── GuardrailBlocked               the gateway blocked the prompt (AH 6.4)
    ├── BudgetExceeded                 AH 6.5
    │   └── CostExceeded
    ├── GatewayError                   the gateway could not be used
    │   ├── GatewayUnavailable         network, 5xx, 429, cut stream: worth a retry
    │   │   └── ModelOverloaded        another model may have capacity
    │   └── GatewayRejected            anything else: a retry would fail again
    │       └── ContextTooLong         a shorter request may succeed
    └── ServiceError                   a backend service could not be used (AH 11)
        ├── ServiceUnavailable         still a temporary failure after all retries
        │   └── ServiceUnreachable     nothing of the request was sent
        └── ServiceRejected            the service rejected the request or sent an invalid response
            └── ServiceUnauthorized    401, 403: the services' token was rejected

Names and numbers are those of the external interface's error tables; no other module repeats them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "LLM_GATEWAY_AUTH_TOKEN"  # noqa: S105  the variable's name, not its value
"""The environment variable of the gateway's token; error messages name it."""


class ErrorCode(StrEnum):
    """Error names used in every protocol: tool results, JSON-RPC `error.data.code`, the result object's `reason`."""

    INVALID_REQUEST = "INVALID_REQUEST"
    UNAUTHORIZED = "UNAUTHORIZED"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    POLICY_BUNDLE_INVALID = "POLICY_BUNDLE_INVALID"
    POLICY_EXPIRED = "POLICY_EXPIRED"
    CAPABILITY_DENIED = "CAPABILITY_DENIED"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    APPROVAL_DENIED = "APPROVAL_DENIED"
    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_EXECUTION_FAILED = "TOOL_EXECUTION_FAILED"
    TOOL_EXECUTION_TIMEOUT = "TOOL_EXECUTION_TIMEOUT"
    TOOL_INTERRUPTED = "TOOL_INTERRUPTED"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    LLM_GUARDRAIL_BLOCKED = "LLM_GUARDRAIL_BLOCKED"
    LLM_BUDGET_EXCEEDED = "LLM_BUDGET_EXCEEDED"
    LLM_GATEWAY_ERROR = "LLM_GATEWAY_ERROR"
    LLM_REFUSED = "LLM_REFUSED"
    LLM_EMPTY_ANSWER = "LLM_EMPTY_ANSWER"
    LLM_CALL_AS_TEXT = "LLM_CALL_AS_TEXT"
    LLM_REPEATED_CALL = "LLM_REPEATED_CALL"
    ANSWER_SCHEMA = "ANSWER_SCHEMA"
    CHECKPOINT_WRITE_FAILED = "CHECKPOINT_WRITE_FAILED"
    CHECKPOINT_UNREADABLE = "CHECKPOINT_UNREADABLE"
    SESSION_HELD = "SESSION_HELD"
    SESSION_NOT_READY = "SESSION_NOT_READY"
    TASK_ALREADY_RUNNING = "TASK_ALREADY_RUNNING"
    NO_ACTIVE_TASK = "NO_ACTIVE_TASK"
    INCOMPATIBLE = "INCOMPATIBLE"
    WORKSPACE_UPLOAD_FAILED = "WORKSPACE_UPLOAD_FAILED"
    RATE_LIMITED = "RATE_LIMITED"
    INTERNAL_ERROR = "INTERNAL_ERROR"


MAX_STEPS_EXCEEDED: Final = "max_steps_exceeded"
CANCELLED: Final = "cancelled"
INTERRUPTED: Final = "interrupted"
TIME_LIMIT: Final = "TIME_LIMIT"
"""Reasons why a task ends without an error: the step limit; a cancellation; the client or the process went away; the
time limit that the command line gives a run."""
EndedBy = Literal["model", "policy", "limit", "infrastructure", "person"]


class Ending(NamedTuple):
    """The party that ended a task, and whether a retry of the same task can help. `has_failed` replaces `retryable` for
    a task that failed for a reason that otherwise pauses tasks: only a paused task can be retried."""

    ended_by: EndedBy
    retryable: bool
    has_failed: bool | None = None


DONE: Final = Ending("model", retryable=False)
"""The end of a task that the model completed."""
ENDINGS: Final[Mapping[str, Ending]] = {
    ErrorCode.LLM_EMPTY_ANSWER: Ending("model", retryable=True),
    ErrorCode.LLM_CALL_AS_TEXT: Ending("model", retryable=True),
    ErrorCode.LLM_REPEATED_CALL: Ending("model", retryable=True),
    ErrorCode.ANSWER_SCHEMA: Ending("model", retryable=True),
    ErrorCode.LLM_GUARDRAIL_BLOCKED: Ending("model", retryable=False),
    ErrorCode.LLM_REFUSED: Ending("infrastructure", retryable=False),
    ErrorCode.CAPABILITY_DENIED: Ending("policy", retryable=False),
    ErrorCode.POLICY_EXPIRED: Ending("policy", retryable=False),
    ErrorCode.APPROVAL_REQUIRED: Ending("policy", retryable=False),
    ErrorCode.LLM_BUDGET_EXCEEDED: Ending("limit", retryable=False),
    MAX_STEPS_EXCEEDED: Ending("limit", retryable=False),
    TIME_LIMIT: Ending("limit", retryable=False),
    ErrorCode.UNAUTHORIZED: Ending("infrastructure", retryable=False),
    ErrorCode.INVALID_REQUEST: Ending("infrastructure", retryable=False),
    ErrorCode.LLM_GATEWAY_ERROR: Ending("infrastructure", retryable=True, has_failed=False),
    ErrorCode.RATE_LIMITED: Ending("infrastructure", retryable=True),
    ErrorCode.CHECKPOINT_WRITE_FAILED: Ending("infrastructure", retryable=True),
    ErrorCode.SESSION_EXPIRED: Ending("infrastructure", retryable=False),
    ErrorCode.INTERNAL_ERROR: Ending("infrastructure", retryable=False),
    INTERRUPTED: Ending("infrastructure", retryable=True),
    CANCELLED: Ending("person", retryable=False),
}
"""The ending for each reason that a task's result and events can have."""


def ending_of(reason: str | None, *, has_failed: bool = False) -> Ending:
    """Return the ending for `reason`. None means that the task is done; an unlisted reason counts as infrastructure."""
    if reason is None:
        return DONE
    found = ENDINGS.get(reason, Ending("infrastructure", retryable=False))
    return found if not has_failed or found.has_failed is None else found._replace(retryable=found.has_failed)


class AgentHostError(Exception):
    """Base class of every error that the host raises on purpose; its `str()` is one clear line for the user. If there
    are several `problems`, a client can show each on its own line."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR
    rpc_code: ClassVar[int] = -32603
    retryable: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, code: ErrorCode | None = None, rpc_code: int | None = None, retryable: bool | None = None
    ) -> None:
        super().__init_subclass__()
        given = {"code": code, "rpc_code": rpc_code, "retryable": retryable}
        for name, value in given.items():
            if value is not None:  # else inherited
                setattr(cls, name, value)

    def __init__(self, *problems: str, **details: Any) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.details: dict[str, Any] = details


class UsageError(AgentHostError, code=ErrorCode.INVALID_REQUEST, rpc_code=-32602):
    """Invalid options, configuration or environment."""


class OutputRefused(AgentHostError):
    """The command could not write its output to standard output; `__cause__` has the reason."""


class PolicyError(AgentHostError, code=ErrorCode.POLICY_BUNDLE_INVALID, rpc_code=-32003):
    """The policy bundle is invalid."""


class PolicyBundleInvalid(PolicyError):
    """The bundle breaks its schema, or belongs to another session."""


class PolicyExpired(PolicyError, code=ErrorCode.POLICY_EXPIRED):
    """`expiresAt` has passed; the session continues only with a refreshed bundle (AH 8.6)."""


class PolicyDenied(PolicyError, code=ErrorCode.CAPABILITY_DENIED, rpc_code=-32020):
    """The bundle does not grant LLM.Call, which every session needs."""


class SessionError(AgentHostError, code=ErrorCode.SESSION_NOT_FOUND, rpc_code=-32001):
    """The requested session cannot be used by this process."""


class SessionNotFound(SessionError):
    """There is no such session on this machine."""


class SessionNotReady(SessionError, code=ErrorCode.SESSION_NOT_READY):
    """The session cannot take this request: it is not created yet, is paused, or has ended."""


class SandboxWeaker(SessionError, code=ErrorCode.SESSION_NOT_READY):
    """The session's commands would run in a weaker sandbox than before, and no user has agreed to that."""


class SessionExpired(SessionError, code=ErrorCode.SESSION_EXPIRED, rpc_code=-32002):
    """The Session Service has ended the session; it cannot be resumed (AH 9.6)."""


class Incompatible(SessionError, code=ErrorCode.INCOMPATIBLE, rpc_code=-32005):
    """The Session Service does not support this version of the host (AH 3.2), or client and host share no protocol
    version; no session starts."""


class SessionHeld(SessionError, code=ErrorCode.SESSION_HELD, rpc_code=-32031, retryable=True):
    """Another live process is using the session; `details["pid"]` is its process id if known."""


class CheckpointUnreadable(SessionError, code=ErrorCode.CHECKPOINT_UNREADABLE, rpc_code=-32030):
    """The checkpoint is damaged or has an unknown newer version; it was left in place or moved aside, never deleted."""


class OutOfOrder(AgentHostError, code=ErrorCode.INVALID_REQUEST, rpc_code=-32600):
    """The request cannot follow what came before it, such as a second CreateSession."""


class TaskAlreadyRunning(AgentHostError, code=ErrorCode.TASK_ALREADY_RUNNING, rpc_code=-32004, retryable=True):
    """A task is running, or is waiting to be resumed or cancelled; a session has one task at a time."""


class NoActiveTask(AgentHostError, code=ErrorCode.NO_ACTIVE_TASK, rpc_code=-32041):
    """There is no task with this id to cancel."""


class CheckpointWriteFailed(AgentHostError, code=ErrorCode.CHECKPOINT_WRITE_FAILED, retryable=True):
    """A record that must be durable before an effect may start could not be written to disk."""


class GuardrailBlocked(AgentHostError, code=ErrorCode.LLM_GUARDRAIL_BLOCKED, rpc_code=-32012):
    """The gateway blocked the prompt, according to the body of its response (AH 6.4)."""


class BudgetExceeded(AgentHostError, code=ErrorCode.LLM_BUDGET_EXCEEDED, rpc_code=-32011):
    """The session's token budget does not cover another call (AH 6.5)."""


class CostExceeded(BudgetExceeded):
    """The limit on the session's cost (`--max-cost`) does not cover another call. With a higher limit the session can
    continue."""


class RequestTooLong(BudgetExceeded):
    """The next request is larger than `llmPolicy.maxInputTokens`, or than any gateway accepts, although everything
    optional has been left out. With a higher limit the session can continue."""


class GatewayError(AgentHostError, code=ErrorCode.LLM_GATEWAY_ERROR, rpc_code=-32010):
    """The LLM gateway could not be used."""


class GatewayUnavailable(GatewayError, retryable=True):
    """A temporary failure: network, timeout, 429, 5xx, a stream cut before its end. Worth a retry (AH 6.4).
    `retry_after_s` is the wait that the gateway asked for. `again` is False if the gateway asked not to repeat the
    request. `gets_ready`: the gateway is loading its model or is overloaded; retries are then limited by time
    (`llm.max_wait_s`)."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        again: bool = True,
        gets_ready: bool = False,
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s
        self.again = again
        self.gets_ready = gets_ready


class ModelOverloaded(GatewayUnavailable):
    """The gateway has no capacity for this model at the moment; another model may have some."""


class GatewayRejected(GatewayError):
    """A permanent failure: wrong credentials, unknown model or path, or a response that does not follow the
    protocol."""


class ContextTooLong(GatewayRejected):
    """The request has more tokens than the model accepts; `limit` is the maximum, None if unknown."""

    def __init__(self, message: str, *, limit: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.limit = limit


class ServiceError(AgentHostError):
    """A backend service (session, workspace, approval, audit, telemetry) could not be used."""


class ServiceUnavailable(ServiceError):
    """A temporary failure: network, timeout, 429, 5xx, or an error that the service marks as retryable. `status` is the
    HTTP status, None if there was no response; `retry_after_s` is the wait that the service asked for."""

    retryable = True
    again: ClassVar[bool] = True
    gets_ready: ClassVar[bool] = False

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None, **details: Any
    ) -> None:
        super().__init__(message, **details)
        self.status = status
        self.retry_after_s = retry_after_s


class ServiceUnreachable(ServiceUnavailable):
    """No connection: no part of the request was sent, so it had no effect."""


class ServiceRejected(ServiceError):
    """A permanent failure. `status` is the HTTP status; `service_code` is the service's name for the error, None if it
    gave none."""

    def __init__(self, message: str, *, status: int, service_code: str | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.status = status
        self.service_code = service_code


class ServiceUnauthorized(ServiceRejected, code=ErrorCode.UNAUTHORIZED):
    """The service rejected the token."""
