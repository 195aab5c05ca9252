"""The native family's names of errors (NT): by the host's codes, and by kinds of faults where a code has two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.errors import ErrorCode
from tool_runtime.faults import FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

ERROR_NAMES: Final[Mapping[str, str]] = {
    ErrorCode.INVALID_REQUEST: "InvalidArgument",
    ErrorCode.FILE_TOO_LARGE: "InvalidArgument",
    ErrorCode.TOOL_NOT_FOUND: "InvalidArgument",
    ErrorCode.PERMISSION_DENIED: "PermissionDenied",
    ErrorCode.CAPABILITY_DENIED: "PermissionDenied",
    ErrorCode.APPROVAL_REQUIRED: "PermissionDenied",
    ErrorCode.APPROVAL_DENIED: "PermissionDenied",
    ErrorCode.POLICY_EXPIRED: "PermissionDenied",
    ErrorCode.FILE_NOT_FOUND: "FileNotFound",
    ErrorCode.TOOL_EXECUTION_TIMEOUT: "DeadlineExceeded",
    ErrorCode.TOOL_EXECUTION_FAILED: "Internal",
    ErrorCode.TOOL_INTERRUPTED: "Internal",
    ErrorCode.INTERNAL_ERROR: "Internal",
}
FAULT_NAMES: Final[Mapping[FaultKind, str]] = dict.fromkeys(
    (FaultKind.IS_DIRECTORY, FaultKind.NOT_REGULAR), "InvalidArgument"
)
OF_PROGRAMS: Final[Mapping[str, str]] = {**ERROR_NAMES, ErrorCode.CAPABILITY_DENIED: "CommandNotAllowed"}
"""For the tool that starts programs: what a list does not admit. A refusal by place keeps its name, see
`agent_host.loop.prepare`."""
