"""What the process says when it ends (interface section 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import (
    AgentHostError,
    CheckpointWriteFailed,
    Incompatible,
    PolicyError,
    ServiceUnauthorized,
    SessionHeld,
    SessionNotFound,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.loop.context import EndStatus

COMPLETED = 0
FAILED = 1
USAGE = 2
PAUSED = 3
NEEDED_APPROVAL = 4
HELD = 75
BY_SIGINT = 130
BY_SIGTERM = 143

BY_STATUS: dict[EndStatus, int] = {
    "completed": COMPLETED,
    "failed": FAILED,
    "paused": PAUSED,
    "cancelled": BY_SIGINT,
}

# Errors that keep a session from starting; anything else fails.
_BY_ERROR: dict[type[AgentHostError], int] = {
    UsageError: USAGE,
    PolicyError: USAGE,
    Incompatible: USAGE,
    ServiceUnauthorized: USAGE,
    SessionNotFound: USAGE,
    SessionHeld: HELD,
    CheckpointWriteFailed: PAUSED,
}


def of_end(status: EndStatus, denied: Sequence[object]) -> int:
    """The exit code for a task that ended so; `denied` are the calls that needed an approval nobody could give."""
    return NEEDED_APPROVAL if status == "completed" and denied else BY_STATUS[status]


def of_error(error: AgentHostError) -> int:
    """The exit code for an error that ended the program."""
    return next((code for kind, code in _BY_ERROR.items() if isinstance(error, kind)), FAILED)
