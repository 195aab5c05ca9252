"""The specifications of the desktop family (TR 4, 5; AH 7.2).

Apart from the tools themselves, because a session's first request needs these and none of those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Subject, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _schema(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def _text(description: str, **rules: Any) -> Mapping[str, Any]:
    return {"type": "string", "description": description, **rules}


def _integer(description: str, **rules: int) -> Mapping[str, Any]:
    return {"type": "integer", "description": description, **rules}


_PATH: Final = Subject("path", "path")


def _written(arguments: Mapping[str, Any], _before: bytes | None) -> bytes | None:
    content = arguments.get("content")
    return content.encode("utf-8", "replace") if isinstance(content, str) else None


READ_FILE: Final = ToolSpec(
    "ReadFile",
    "Read the contents of a file at the given path",
    _schema(
        ["path"],
        path=_text("Absolute file path to read", minLength=1),
        offset=_integer("Line number to start reading from (1-based). Default: 1", minimum=1),
        limit=_integer("Maximum number of lines to return. Default: all", minimum=1),
        encoding=_text("File encoding. Default: utf-8", minLength=1),
    ),
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
)
WRITE_FILE: Final = ToolSpec(
    "WriteFile",
    "Create or overwrite a file with the given content",
    _schema(
        ["path", "content"],
        path=_text("Absolute file path to write", minLength=1),
        content=_text("File content to write"),
        createDirectories={
            "type": "boolean",
            "description": "Create parent directories if they don't exist. Default: true",
        },
    ),
    capability="File.Write",
    subject=_PATH,
    effect="replace",
    category="files",
    display="write",
    content="content",
    after=_written,
)
DELETE_FILE: Final = ToolSpec(
    "DeleteFile",
    "Delete a file at the given path",
    _schema(["path"], path=_text("Absolute file path to delete", minLength=1)),
    capability="File.Delete",
    subject=_PATH,
    effect="delete",
    category="files",
    display="delete",
)
RUN_COMMAND: Final = ToolSpec(
    "RunCommand",
    "Execute a shell command and return stdout, stderr, and exit code",
    _schema(
        ["command"],
        command=_text("Shell command to execute", minLength=1),
        cwd=_text("Working directory. Default: workspace root", minLength=1),
        timeout=_integer("Timeout in seconds. Default: 300", minimum=1, maximum=600),
        stdin=_text("Standard input to pipe to the command"),
    ),
    capability="Shell.Exec",
    subject=Subject("command", "command"),
    effect="other",
    category="commands",
    display="command",
)
HTTP_REQUEST: Final = ToolSpec(
    "HttpRequest",
    "Make an HTTP request and return the response",
    _schema(
        ["url"],
        url=_text("Request URL", minLength=1),
        method=_text("HTTP method. Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        headers={
            "type": "object",
            "description": "Request headers",
            "additionalProperties": {"type": "string"},
        },
        body=_text("Request body"),
        timeout=_integer("Timeout in seconds. Default: 30", minimum=1, maximum=60),
    ),
    capability="Network.Http",
    subject=Subject("url", "url"),
    effect="other",
    category="requests",
    display="request",
)
SPECS: Final = (READ_FILE, WRITE_FILE, DELETE_FILE, RUN_COMMAND, HTTP_REQUEST)
"""The family, in the order in which the model is shown it."""
