"""The tools of the skills family (SK 2, 5): what they are called, take and give. A call's text is a JSON object of its
output schema; what is too long for it is stored, and `storage_ref`, or a field of that ending, names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Subject, ToolSpec
from agent_host.errors import ErrorCode
from tool_runtime.families.schemas import flag, integer, items, parameters, text
from tool_runtime.files.skills import MAX_EXCERPT_CHARS as EXCERPT_CHARS
from tool_runtime.files.skills import MAX_RESOURCE_BYTES as FILE_BYTES
from tool_runtime.tool import FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

# Limits of the skills family (SK 5, 6).

__all__ = [
    "ARGUMENTS",
    "ARGUMENT_CHARS",
    "BODY_BYTES",
    "ENTRIES",
    "EXCERPT_CHARS",
    "FILE_BYTES",
    "MAX_ENTRIES",
    "MAX_RESULTS",
    "OUTPUT_CHARS",
    "RESULTS",
    "SCRIPT_TIMEOUT_S",
]

ENTRIES: Final = 200
MAX_ENTRIES: Final = 1000
RESULTS: Final = 100
MAX_RESULTS: Final = 1000
OUTPUT_CHARS: Final = 10_000
ARGUMENTS: Final = 100
ARGUMENT_CHARS: Final = 4096
SCRIPT_TIMEOUT_S: Final = 30
BODY_BYTES: Final = 2 * 1024 * 1024
"""Of the answer to a request."""


# The skills family's names of errors (SK 8): by the host's codes, and by kinds of faults where a code has two.

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


_PATH: Final = Subject("path", "path")
_TREE: Final = _PATH._replace(or_workspace=True)
_CUT: Final = flag("True where there is more than is shown")
_REF: Final = text("Where all of it is stored, for ReadOutput")
_STOPPED: Final = text("Why not all was looked at, where that is so")
_HIDDEN: Final = integer("Entries that are not shown, since their names are those of files with secrets")


def _content_of_write(arguments: Mapping[str, Any], _before: bytes | None) -> bytes | None:
    content = arguments.get("content")
    return content.encode("utf-8", "replace") if isinstance(content, str) else None


READ_FILE: Final = ToolSpec(
    "read_file",
    f"Read a text file of at most {FILE_BYTES} bytes, {EXCERPT_CHARS} characters at a time",
    parameters(
        ["path"],
        path=text("Path of the file, absolute or relative to the workspace", minLength=1),
        offset=integer("Character to start from. Default: 0", minimum=0),
    ),
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
    output_schema=parameters(
        ["content_excerpt", "size", "sha256", "truncated"],
        content_excerpt=text(f"Up to {EXCERPT_CHARS} characters of the file"),
        size=integer("Bytes of the whole file"),
        sha256=text("SHA-256 of the whole file"),
        truncated=_CUT,
        next_offset=integer("Character that the next excerpt starts from, where there is one"),
        storage_ref=_REF,
    ),
    error_names=ERROR_NAMES,
)
LIST_DIR: Final = ToolSpec(
    "list_dir",
    "List the entries of a directory by name. Files whose names say that they hold secrets are not listed",
    parameters(
        [],
        path=text("Path of the directory. Default: the workspace", minLength=1),
        offset=integer("Entries to pass over, for the next ones. Default: 0", minimum=0),
        max_entries=integer(f"Entries to return. Default: {ENTRIES}", minimum=1, maximum=MAX_ENTRIES),
    ),
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    output_schema=parameters(
        ["entries", "total", "hidden", "truncated"],
        entries=items(
            "In the order of their names",
            parameters(
                ["name", "type"],
                name=text("Its name"),
                type=text("What it is", enum=["file", "directory", "link", "other"]),
                size=integer("Bytes of a file"),
            ),
        ),
        total=integer("Entries that could be listed"),
        hidden=_HIDDEN,
        truncated=_CUT,
        stopped=_STOPPED,
    ),
    error_names=ERROR_NAMES,
)
GREP: Final = ToolSpec(
    "grep",
    "Search text files for a regular expression, line by line. Binary files, those that .gitignore names, and those "
    "whose names say that they hold secrets are passed over",
    parameters(
        ["pattern"],
        pattern=text("Regular expression in RE2's syntax", minLength=1, maxLength=4000),
        path=text("Path of a file, or of the directory to search. Default: the workspace", minLength=1),
        glob=text("Only files whose path fits this glob, such as *.py", minLength=1, maxLength=1000),
        mode=text("What to return: matching lines, or the names of files alone. Default: content",
                  enum=["content", "files"]),
        ignore_case=flag("Ignore the case of letters. Default: false"),
        max_results=integer(
            f"Lines or files to return. Default: {RESULTS}", minimum=1, maximum=MAX_RESULTS
        ),
    ),
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
    output_schema=parameters(
        ["truncated"],
        matches=items(
            "The lines that match; with mode files missing",
            parameters(
                ["path", "line", "text"],
                path=text("Path from the directory that was searched"),
                line=integer("Number of the line, from 1"),
                text=text("The line, a long one cut"),
            ),
        ),
        files=items("With mode files: their paths from the directory that was searched", text("A path")),
        truncated=_CUT,
        hidden=_HIDDEN,
        ignored=integer("Entries that .gitignore names"),
        passed_over=integer("Files that were too large, or could not be read"),
        stopped=_STOPPED,
    ),
    error_names=ERROR_NAMES,
)  # fmt: skip
WRITE_FILE: Final = ToolSpec(
    "write_file",
    f"Create a file or replace it, with at most {FILE_BYTES} bytes. Missing directories are made. Each call is "
    "asked about",
    parameters(
        ["path", "content"],
        path=text("Path of the file, absolute or relative to the workspace", minLength=1),
        content=text("Text to write"),
    ),
    capability="File.Write",
    subject=_PATH,
    effect="replace",
    category="files",
    display="write",
    content="content",
    after=_content_of_write,
    output_schema=parameters(
        ["path", "bytes_written", "sha256"],
        path=text("The file"),
        bytes_written=integer("Its size"),
        sha256=text("SHA-256 of what is in it"),
        diff_ref=text("Where the change is stored as a diff"),
    ),
    error_names=ERROR_NAMES,
)
DELETE_FILE: Final = ToolSpec(
    "delete_file",
    "Delete a file. Each call is asked about",
    parameters(["path"], path=text("Path of the file, absolute or relative to the workspace", minLength=1)),
    capability="File.Delete",
    subject=_PATH,
    effect="delete",
    category="files",
    display="delete",
    output_schema=parameters(
        ["path", "deleted"], path=text("The file"), deleted=flag("Always true: what fails is an error")
    ),
    error_names=ERROR_NAMES,
)
NETWORK_REQUEST: Final = ToolSpec(
    "network_request",
    "Make an HTTP request and return the response. Each call is asked about",
    parameters(
        ["url"],
        url=text("URL of the request", minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
        headers={
            "type": "object",
            "description": "Headers of the request",
            "additionalProperties": {"type": "string"},
        },
        body=text("Body of the request"),
        timeout_s=integer("Seconds for all of it", minimum=1, maximum=3600),
    ),
    capability="Network.Http",
    subject=Subject("url", "url"),
    effect="other",
    category="requests",
    display="request",
    output_schema=parameters(
        ["status", "headers", "content_excerpt", "sha256", "truncated"],
        status=integer("HTTP status of the last response"),
        headers={
            "type": "object",
            "description": "Its headers, names in lower case",
            "additionalProperties": {"type": "string"},
        },
        content_excerpt=text(f"Up to {EXCERPT_CHARS} characters of its body"),
        sha256=text(f"SHA-256 of its body, or of the first {BODY_BYTES} bytes of it"),
        truncated=_CUT,
        storage_ref=_REF,
    ),
    error_names=ERROR_NAMES,
)


def script_spec(timeout_s: float) -> ToolSpec:
    """The tool that runs scripts, with `timeout_s` for the default and the longest time of a run."""
    return ToolSpec(
        "run_script",
        "Run a script of a skill with arguments, without a shell. It starts in an empty directory of its own, so give "
        "files of the workspace by absolute paths. Each call is asked about",
        parameters(
            ["skill", "relative_path"],
            skill=text("Name of the skill", minLength=1, maxLength=64),
            relative_path=text("Path in the skill's folder, such as scripts/fill.py", minLength=1, maxLength=1024),
            args=items("Its arguments", text("An argument", maxLength=ARGUMENT_CHARS),
                       maxItems=ARGUMENTS),
            timeout_s=integer(
                f"Seconds until it is ended. Default, and at most: {timeout_s:g}", minimum=1, maximum=3600
            ),
            cwd=text("Directory to start in: one of its own, or the skill's folder. Default: sandbox",
                     enum=["sandbox", "skill"]),
        ),
        capability="Shell.Exec",
        subject=Subject("script", "relative_path"),
        effect="other",
        category="commands",
        display="command",
        output_schema=parameters(
            ["exit_code", "timeout", "duration_ms", "stdout", "stdout_truncated", "stderr", "stderr_truncated"],
            exit_code=integer("As a shell gives it"),
            timeout=flag("Whether it was ended for its time"),
            duration_ms=integer("Milliseconds"),
            stdout=text(f"Up to {OUTPUT_CHARS} characters of what was printed, the middle of more left out"),
            stdout_truncated=_CUT,
            stdout_ref=_REF,
            stdout_sha256=text("SHA-256 of what is stored"),
            stderr=text(f"Up to {OUTPUT_CHARS} characters"),
            stderr_truncated=_CUT,
            stderr_ref=_REF,
            stderr_sha256=text("SHA-256 of what is stored"),
            sandbox=text("The directory that it started in, where it has left files there"),
            files=items("Their names, 50 at most", text("A name")),
            denials=items("What a sandbox refused, and how to ask for it", text("A line")),
        ),
        error_names=ERROR_NAMES,
    )  # fmt: skip


RUN_SCRIPT: Final = script_spec(SCRIPT_TIMEOUT_S)
SPECS: Final = (READ_FILE, LIST_DIR, GREP, RUN_SCRIPT, WRITE_FILE, DELETE_FILE, NETWORK_REQUEST)
"""The family, in the order in which the model is shown it."""
