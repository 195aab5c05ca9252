"""Each family's words for a fault: one table a family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.errors import ErrorCode
from tool_runtime.faults import FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

DESKTOP: Final[Mapping[FaultKind, str]] = {
    FaultKind.UNKNOWN_TOOL: ErrorCode.TOOL_NOT_FOUND,
    FaultKind.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    FaultKind.NOT_FOUND: ErrorCode.FILE_NOT_FOUND,
    FaultKind.IS_DIRECTORY: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.NOT_REGULAR: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.TOO_LARGE: ErrorCode.FILE_TOO_LARGE,
    FaultKind.RESPONSE_TOO_LARGE: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.OUT_OF_SCOPE: ErrorCode.PERMISSION_DENIED,
    FaultKind.PATH_CHANGED: ErrorCode.PERMISSION_DENIED,
    FaultKind.CHANGED: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.EXISTS: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.ACCESS_DENIED: ErrorCode.PERMISSION_DENIED,
    FaultKind.ADDRESS_REFUSED: ErrorCode.INVALID_REQUEST,  # TR 8.3 counts it among input validation
    FaultKind.NETWORK: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.SYSTEM: ErrorCode.TOOL_EXECUTION_FAILED,
    FaultKind.TIMED_OUT: ErrorCode.TOOL_EXECUTION_TIMEOUT,
    FaultKind.EXIT_NONZERO: ErrorCode.TOOL_EXECUTION_FAILED,
}
"""TR 7.3."""
ELSEWHERE: Final[Mapping[FaultKind, str]] = {
    **DESKTOP,
    FaultKind.INTERRUPTED: ErrorCode.TOOL_INTERRUPTED,
    FaultKind.RATE_LIMITED: ErrorCode.RATE_LIMITED,
    FaultKind.REFUSED: ErrorCode.CAPABILITY_DENIED,
}
"""Of tools from elsewhere (BT)."""
