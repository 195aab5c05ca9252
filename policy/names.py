"""Capability names: their one home (AH 8.5 and the capabilities of tool services and projects)."""

from __future__ import annotations

from enum import StrEnum


class CapabilityName(StrEnum):
    """Every capability that a bundle can grant."""

    FILE_READ = "File.Read"
    FILE_WRITE = "File.Write"
    FILE_DELETE = "File.Delete"
    SHELL_EXEC = "Shell.Exec"
    NETWORK_HTTP = "Network.Http"
    WORKSPACE_UPLOAD = "Workspace.Upload"
    BACKEND_TOOL_INVOKE = "BackendTool.Invoke"
    MCP_INVOKE = "Mcp.Invoke"
    TOOL_INVOKE = "Tool.Invoke"
    LLM_CALL = "LLM.Call"


ALL_CAPABILITIES: tuple[str, ...] = tuple(name.value for name in CapabilityName)
FILE_CAPABILITIES: frozenset[str] = frozenset({"File.Read", "File.Write", "File.Delete"})
SIZED_CAPABILITIES: frozenset[str] = FILE_CAPABILITIES | {"Workspace.Upload"}
"""Those that maxFileSizeBytes means something to."""
READS_TOO: frozenset[str] = frozenset({"Workspace.Upload"})
"""Those that take a file from the disk to somewhere else: File.Read has to allow it as well."""
SCHEMA_VERSION = "1.0"
ANY_SESSION = "*"


def words(text: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(text.split())
