"""The native tools (NT): what they are called, take and give, in one catalogue. A call's text is a JSON object of its
output schema; where it was cut to fit in a result, the field `truncated` or one of that ending says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Subject, ToolSpec
from agent_host.errors import ErrorCode
from tool_runtime.families.schemas import flag, integer, items, parameters, text
from tool_runtime.tool import FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

# Ceilings of the native tools (NT): arguments may lower them, never raise them.

MAX_FILE_BYTES: Final = 1024 * 1024
PAGE_SIZE: Final = 200
MAX_PAGE_SIZE: Final = 10_000
MAX_RESULTS: Final = 1000
MAX_FILES_VISITED: Final = 10_000
EXEC_TIMEOUT_MS: Final = 30_000
STDOUT_BYTES: Final = 2 * 1024 * 1024
STDERR_BYTES: Final = 1024
FETCH_TIMEOUT_MS: Final = 5_000
FETCH_REDIRECTS: Final = 5
FETCH_BODY_BYTES: Final = 2 * 1024 * 1024


# The native family's names of errors (NT): by the host's codes, and by kinds of faults where a code has two.

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


_PATH: Final = Subject("path", "path")
_DIRECTORY: Final = "Path of the directory, absolute or relative to the workspace"
_SUCCESS: Final = parameters(["success"], success=flag("Always true: what fails is an error"))
_CUT: Final = flag("True where there is more than a result may hold")
_MODE_PATTERN: Final = "^0?[0-7]{3}$"


def _content_of_write(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    content = arguments.get("content")
    if not isinstance(content, str):
        return None
    data = content.encode("utf-8", "replace")
    return (before or b"") + data if arguments.get("append") is True else data


READ_FILE: Final = ToolSpec(
    "cp__read_file",
    f"Read a text file of at most {MAX_FILE_BYTES} bytes",
    parameters(["path"], path=text("Path of the file, absolute or relative to the workspace", minLength=1)),
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
    output_schema=parameters(
        ["content", "metadata"],
        content=text("What is in the file"),
        metadata=parameters(
            ["path", "size", "mode", "modified"],
            path=text("Real path of the file"),
            size=integer("Bytes"),
            mode=text("Permissions, in octal"),
            modified=text("Time of the last change, RFC 3339, UTC"),
        ),
        truncated=_CUT,
    ),
    error_names=ERROR_NAMES,
)
WRITE_FILE: Final = ToolSpec(
    "cp__write_file",
    "Create a file, replace it, or append to it. Missing directories are made. The whole file has at most "
    f"{MAX_FILE_BYTES} bytes",
    parameters(
        ["path", "content"],
        path=text("Path of the file, absolute or relative to the workspace, with no symbolic link in it", minLength=1),
        content=text("Text to write"),
        append=flag("Write behind what is in the file. Default: false"),
        mode=text("Permissions of the file in octal, such as 0644. Default: as they are", pattern=_MODE_PATTERN),
    ),
    capability="File.Write",
    subject=_PATH,
    effect="replace",
    category="files",
    display="write",
    content="content",
    after=_content_of_write,
    output_schema=_SUCCESS,
    error_names=ERROR_NAMES,
)
DELETE_FILE: Final = ToolSpec(
    "cp__delete_file",
    "Delete a file, or with recursive: true a directory with all that is in it",
    parameters(
        ["path"],
        path=text("Path, absolute or relative to the workspace, with no symbolic link in it", minLength=1),
        recursive=flag("Delete a directory, too. Default: false"),
    ),
    capability="File.Delete",
    subject=_PATH._replace(tree_flag="recursive"),
    effect="delete",
    category="files",
    display="delete",
    output_schema=_SUCCESS,
    error_names=ERROR_NAMES,
)
LIST_FILES: Final = ToolSpec(
    "cp__list_files",
    "List the files of a directory by name, sorted",
    parameters(
        ["dir"],
        dir=text(_DIRECTORY, minLength=1),
        exclude=items(
            "Globs of paths from dir to leave out, such as **/*.{log,tmp}; one that begins with ! takes paths back "
            "that an earlier one left out",
            text("A glob", minLength=1, maxLength=1000),
            maxItems=100,
        ),
        recursive=flag("Look in the directories below as well. Default: false"),
    ),
    capability="File.Read",
    subject=Subject("path", "dir"),
    effect="none",
    category="files",
    display="read",
    output_schema=parameters(
        ["files"],
        files=items("Paths from dir, sorted", text("A path")),
        truncated=_CUT,
        stopped=text("Why not all of the tree was looked at, where that is so"),
    ),
    error_names=ERROR_NAMES,
)
LIST_DIR: Final = ToolSpec(
    "cp__list_dir",
    "List the entries of a directory by name, a page at a time. A page begins behind the name that its token holds, so "
    "entries that come or go meanwhile make none appear twice or be passed over",
    parameters(
        ["path"],
        path=text(_DIRECTORY, minLength=1),
        pattern=text("Only entries whose name, or path from there, fits this glob", minLength=1, maxLength=1000),
        recursive=flag("List the directories below as well. Default: false"),
        include_files=flag("List files. Default: true"),
        include_dirs=flag("List directories. Default: true"),
        page_size=integer(f"Entries of a page. Default: {PAGE_SIZE}", minimum=1, maximum=MAX_PAGE_SIZE),
        page_token=text("next_page_token of the page before", minLength=1, maxLength=16_384),
    ),
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
    output_schema=parameters(
        ["entries"],
        entries=items(
            "In the order of their names, those of a directory before those below it",
            parameters(
                ["path", "type"],
                path=text("Path from the directory that was asked for"),
                type=text("What it is", enum=["file", "directory", "link", "other"]),
            ),
        ),
        next_page_token=text("Gives the next page; missing on the last one"),
        stopped=text("Why the search ended before the page was full, where that is so"),
    ),
    error_names=ERROR_NAMES,
)
GREP: Final = ToolSpec(
    "cp__grep",
    "Search text files for a regular expression, line by line. Binary files are passed over",
    parameters(
        ["pattern", "path"],
        pattern=text("Regular expression in RE2's syntax", minLength=1, maxLength=4000),
        path=text("Path of a file or directory, absolute or relative to the workspace", minLength=1),
        recursive=flag("Search the directories below as well. Default: false"),
        ignore_case=flag("Ignore the case of letters. Default: false"),
        max_results=integer(f"Matches to return. Default: {MAX_RESULTS}", minimum=1, maximum=MAX_RESULTS),
        max_files_visited=integer(
            f"Files to look at. Default: {MAX_FILES_VISITED}", minimum=1, maximum=MAX_FILES_VISITED
        ),
        max_file_bytes=integer(
            f"Larger files are passed over. Default: {MAX_FILE_BYTES}", minimum=1, maximum=MAX_FILE_BYTES
        ),
    ),
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
    output_schema=parameters(
        ["matches"],
        matches=items(
            "One for each line that matches",
            parameters(
                ["file", "line", "column", "text"],
                file=text("Path from the directory that was searched"),
                line=integer("Number of the line, from 1"),
                column=integer("Where the match begins in it, in characters, from 1"),
                text=text("The line, a long one cut"),
            ),
        ),
        truncated=_CUT,
        passed_over=integer("Files that were too large, or could not be read"),
        stopped=text("Why not all files were searched, where that is so"),
    ),
    error_names=ERROR_NAMES,
)
EXEC: Final = ToolSpec(
    "cp__exec",
    "Start a program with arguments, without a shell. Only programs and arguments that a list admits are started",
    parameters(
        ["command"],
        command=text("Absolute path of the program, such as /bin/ls", minLength=1, maxLength=4096),
        args=items("Its arguments", text("An argument", maxLength=4096), maxItems=1000),
        working_dir=text("Directory to start in. Default: the workspace", minLength=1),
        timeout_ms=integer(
            f"Milliseconds until it is ended. Default: {EXEC_TIMEOUT_MS}",
            minimum=1,
            maximum=EXEC_TIMEOUT_MS,
        ),
        env={
            "type": "object",
            "description": "Variables of its environment beside those of every program",
            "additionalProperties": {"type": "string"},
        },
    ),
    capability="Shell.Exec",
    subject=Subject("program", "command"),
    effect="other",
    category="commands",
    display="command",
    output_schema=parameters(
        ["stdout", "stderr", "exit_code", "success", "duration_ms", "timed_out", "stdout_truncated",
         "stderr_truncated"],
        stdout=text(f"Up to {STDOUT_BYTES} bytes of what was printed, the middle of more left out"),
        stderr=text(f"Up to {STDERR_BYTES} bytes"),
        exit_code=integer("As a shell gives it"),
        success=flag("Whether the exit code is 0"),
        duration_ms=integer("Milliseconds"),
        timed_out=flag("Whether it was ended for its time"),
        stdout_truncated=_CUT,
        stderr_truncated=_CUT,
        denials=items("What a sandbox refused, and how to ask for it", text("A line")),
    ),
    error_names=OF_PROGRAMS,
)  # fmt: skip
FETCH: Final = ToolSpec(
    "cp__fetch",
    "Make an HTTP request and return the response",
    parameters(
        ["url"],
        url=text("URL of the request", minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
        headers={
            "type": "object",
            "description": "Headers of the request",
            "additionalProperties": {"type": "string"},
        },
        body={
            "type": ["string", "object"],
            "description": "Body of the request; an object is sent as JSON",
        },
        timeout_ms=integer(
            f"Milliseconds for all of it. Default: {FETCH_TIMEOUT_MS}",
            minimum=1,
            maximum=FETCH_TIMEOUT_MS,
        ),
    ),
    capability="Network.Http",
    subject=Subject("url", "url"),
    effect="other",
    category="requests",
    display="request",
    output_schema=parameters(
        ["status_code", "status_text", "headers", "body", "body_truncated", "duration_ms"],
        status_code=integer("HTTP status of the last response"),
        status_text=text("Its words"),
        headers={
            "type": "object",
            "description": "Its headers, names in lower case",
            "additionalProperties": {"type": "string"},
        },
        body=text(f"Up to {FETCH_BODY_BYTES} bytes of its body"),
        body_truncated=_CUT,
        duration_ms=integer("Milliseconds"),
    ),
    error_names=ERROR_NAMES,
)
SPECS: Final = (READ_FILE, WRITE_FILE, DELETE_FILE, LIST_FILES, LIST_DIR, GREP, EXEC, FETCH)
"""The family, in the order in which the model is shown it."""
