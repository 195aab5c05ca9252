"""Exit codes of the process (interface section 1), and the lines of an error that ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host import errors
from agent_host.cli import notice
from agent_host.states import SessionStatus, TaskPhase

if TYPE_CHECKING:
    from agent_host import Result

COMPLETED = 0
FAILED = 1
USAGE = 2
PAUSED = 3
NEEDED_APPROVAL = 4
HELD = 75
BY_SIGINT = 130
BY_SIGTERM = 143

_BY_STATUS: dict[str, int] = {
    TaskPhase.COMPLETED: COMPLETED,
    TaskPhase.FAILED: FAILED,
    SessionStatus.PAUSED: PAUSED,
    TaskPhase.CANCELLED: BY_SIGINT,
}

# Errors that keep a session from starting; all others mean failure.
_BY_ERROR: dict[type[errors.AgentHostError], int] = {
    errors.UsageError: USAGE,
    errors.SandboxWeaker: PAUSED,
    errors.PolicyError: USAGE,
    errors.Incompatible: USAGE,
    errors.ServiceUnauthorized: USAGE,
    errors.SessionNotFound: USAGE,
    errors.SessionHeld: HELD,
    errors.CheckpointWriteFailed: PAUSED,
}


def code_of_result(result: Result) -> int:
    """The exit code for a result; a completed task may have calls that no approver was present for."""
    return NEEDED_APPROVAL if result.completed and result.details["deniedApprovals"] else _BY_STATUS[result.status]


def code_of_error(error: errors.AgentHostError) -> int:
    """The exit code for an error that ended the program."""
    return next((code for kind, code in _BY_ERROR.items() if isinstance(error, kind)), FAILED)


def report(error: Exception) -> int:
    """Print the error, and return the exit code."""
    if isinstance(error, errors.OutputRefused) and isinstance(error.__cause__, BrokenPipeError):  # no reader is left
        return FAILED
    if isinstance(error, errors.AgentHostError):
        lines, code = error.problems or (type(error).__name__,), code_of_error(error)
    else:
        line = f"internal error: {type(error).__name__}: {error} (set AGENT_HOST_DEBUG=1 for the traceback)"
        lines, code = (line,), FAILED
    for line in lines:
        notice(f"error: {line}")
    return code
