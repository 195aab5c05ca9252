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
CHANGING: frozenset[str] = frozenset({"File.Write", "File.Delete"})
FILE_CAPABILITIES: frozenset[str] = frozenset({"File.Read", "File.Write", "File.Delete"})
SIZED_CAPABILITIES: frozenset[str] = FILE_CAPABILITIES | {"Workspace.Upload"}
"""Those that maxFileSizeBytes means something to."""
READS_TOO: frozenset[str] = frozenset({"Workspace.Upload"})
"""Those that take a file from the disk to somewhere else: File.Read has to allow it as well."""
FOLLOW_COMMANDS: frozenset[str] = frozenset({"CommandOutput", "StopCommand"})
READ_SKILLS: frozenset[str] = frozenset({"load_skill"})
"""Tools that act on a command of the session that Shell.Exec was asked about when it started."""
SANDBOX_GRANT = "sandboxGrant"
"""The argument in which a call of a program asks for more than its sandbox gives, and the rule that it is asked by."""
SCHEMA_VERSION = "1.0"
ANY_SESSION = "*"


def words(text: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(text.split())


_GNU = words(
    "[ awk b2sum base32 base64 basename cat chcon chgrp chmod chown chroot cksum comm cp csplit cut date dd df dir "
    "dirname du echo egrep env expand expr factor false fgrep find fmt fold grep head hostid id install join kill "
    "link ln locate logname ls make md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc numfmt od paste patch "
    "pathchk pr printenv printf ptx pwd readlink realpath rm rmdir runcon sed seq sha1sum sha256sum sha512sum shred "
    "shuf sleep sort split stat stdbuf stty sum sync tac tail tar tee test time timeout touch tr true truncate tsort "
    "tty uname unexpand uniq unlink uptime users vdir wc who whoami xargs yes"
)


def strip_g(name: str) -> str:
    """The name of a GNU program (lower case) without the `g` that some systems put in front, as in `gtimeout`."""
    return name[1:] if name[:1] == "g" and name[1:] in _GNU else name
