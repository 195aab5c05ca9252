"""The skills family's names of errors (SK 8): by the host's codes, and by kinds of faults where a code has two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.errors import ErrorCode
from tool_runtime.faults import FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

ERROR_NAMES: Final[Mapping[str, str]] = {
    ErrorCode.CAPABILITY_DENIED: "ToolNotAllowed",
    ErrorCode.POLICY_EXPIRED: "ToolNotAllowed",
    ErrorCode.APPROVAL_REQUIRED: "ApprovalRequired",
    ErrorCode.APPROVAL_DENIED: "ApprovalDenied",
    ErrorCode.PERMISSION_DENIED: "PathTraversalBlocked",
    ErrorCode.FILE_TOO_LARGE: "FileTooLarge",
    ErrorCode.TOOL_EXECUTION_TIMEOUT: "Timeout",
    ErrorCode.FILE_NOT_FOUND: "IOError",
    ErrorCode.TOOL_EXECUTION_FAILED: "IOError",
    ErrorCode.INTERNAL_ERROR: "IOError",
}
"""What SK has no name for keeps the host's: INVALID_REQUEST, TOOL_INTERRUPTED."""
FAULT_NAMES: Final[Mapping[FaultKind, str]] = {
    FaultKind.ACCESS_DENIED: "IOError",
    FaultKind.EXIT_NONZERO: "ExitNonZero",
}
