"""The native tools (NT): names, arguments, outputs and implementations. A call's text is a JSON object of its output
schema; if it was cut to fit in a result, the field `truncated` or one with that ending is true."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Subject, ToolSpec
from agent_host.display_text import name_for_json
from agent_host.errors import ErrorCode
from tool_runtime.families import Family, ToolRow, answer, body_text, cut_line, fit_texts, fitting, given, name_errors
from tool_runtime.families.schemas import (
    DELETES,
    FETCHES,
    READS,
    RUNS,
    WRITES,
    content_of_write,
    flag,
    integer,
    items,
    mapping,
    parameters,
    text,
)
from tool_runtime.output import decode_body
from tool_runtime.tool import FaultKind, ToolFault, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tool_runtime.families import MakeOperations
    from tool_runtime.families.operations import Operations
    from tool_runtime.families.schemas import Act
    from tool_runtime.tool import CallContext, RuntimeSettings, ToolOutput

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

# The native family's names of errors (NT): by the host's codes, and by kinds of faults if a code has two.

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
_NO_FILE: Final = (FaultKind.IS_DIRECTORY, FaultKind.NOT_REGULAR)
FAULT_NAMES: Final[Mapping[FaultKind, str]] = dict.fromkeys(_NO_FILE, "InvalidArgument")
OF_PROGRAMS: Final[Mapping[str, str]] = {**ERROR_NAMES, ErrorCode.CAPABILITY_DENIED: "CommandNotAllowed"}
"""For the tool that starts programs: programs that no list admits. A denial by path keeps its name, see
`agent_host.loop.prepare`."""

_DELETES_TREES: Final[Act] = {**DELETES, "subject": Subject("path", "path", tree_flag="recursive")}
_LISTS: Final[Act] = {**READS, "subject": Subject("path", "dir")}
_EXECUTES: Final[Act] = {**RUNS, "subject": Subject("program", "command")}
_DIRECTORY: Final = "Path of the directory, absolute or relative to the workspace"
_SUCCESS: Final = parameters(["success"], success=flag("Always true: what fails is an error"))
_CUT: Final = flag("True where there is more than a result may hold")
READ_FILE: Final = ToolSpec(
    "cp__read_file",
    f"Read a text file of at most {MAX_FILE_BYTES} bytes",
    parameters(["path"], path=text("Path of the file, absolute or relative to the workspace", minLength=1)),
    **READS,
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
)


def _read(operations: Operations, call: CallContext) -> ToolOutput:
    path = call.arguments["path"]
    found = operations.read_whole(call, path, MAX_FILE_BYTES)
    status, content = found.status, decode_body(found.data)
    if content is None:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"is no text, but {len(found.data)} bytes of a binary file: {path}")
    modified = datetime.fromtimestamp(status.st_mtime, UTC).isoformat().replace("+00:00", "Z")
    mode = f"{status.st_mode & 0o7777:04o}"
    metadata = {"path": name_for_json(found.real), "size": len(found.data), "mode": mode, "modified": modified}
    fields = {"content": content, "metadata": metadata}
    return fit_texts(call, fields, cut={"content": "truncated"}, stored="content", seen=str(found.stamp))


def _content_of_write(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    data = content_of_write(arguments, before)
    return data if data is None or arguments.get("append") is not True else (before or b"") + data


WRITE_FILE: Final = ToolSpec(
    "cp__write_file",
    "Create a file, replace it, or append to it. Missing directories are made. The whole file has at most "
    f"{MAX_FILE_BYTES} bytes",
    parameters(
        ["path", "content"],
        path=text("Path of the file, absolute or relative to the workspace, with no symbolic link in it", minLength=1),
        content=text("Text to write"),
        append=flag("Write behind what is in the file. Default: false"),
        mode=text("Permissions of the file in octal, such as 0644. Default: as they are", pattern="^0?[0-7]{3}$"),
    ),
    **WRITES,
    content="content",
    after=_content_of_write,
    output_schema=_SUCCESS,
)


def _write(operations: Operations, call: CallContext) -> ToolOutput:
    mode = call.arguments.get("mode")
    bits = None if mode is None else int(mode, 8)
    _, output = operations.write(call, MAX_FILE_BYTES, mode=bits, through_links=False, **given(call, "append"))
    return answer({"success": True}, **output)


DELETE_FILE: Final = ToolSpec(
    "cp__delete_file",
    "Delete a file, or with recursive: true a directory with all that is in it",
    parameters(
        ["path"],
        path=text("Path, absolute or relative to the workspace, with no symbolic link in it", minLength=1),
        recursive=flag("Delete a directory, too. Default: false"),
    ),
    **_DELETES_TREES,
    output_schema=_SUCCESS,
)


def _delete(operations: Operations, call: CallContext) -> ToolOutput:
    operations.delete(call, tree=call.arguments.get("recursive", False), through_links=False)
    return answer({"success": True})


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
    **_LISTS,
    output_schema=parameters(
        ["files"],
        files=items("Paths from dir, sorted", text("A path")),
        truncated=_CUT,
        stopped=text("Why not all of the tree was looked at, where that is so"),
    ),
)


def _list_files(operations: Operations, call: CallContext) -> ToolOutput:
    wanted = given(call, "exclude", "recursive")
    found, stopped = operations.trees.list_files(call, call.arguments["dir"], **wanted)
    fields: dict[str, Any] = {} if stopped is None else {"stopped": stopped}
    paths = list(map(name_for_json, found))
    count = fitting(call, fields, paths)
    if count < len(paths):
        fields["truncated"] = True
    return answer({"files": paths[:count], **fields})


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
    **READS,
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
)


def _list_dir(operations: Operations, call: CallContext) -> ToolOutput:
    renamed = {"token": "page_token", "files": "include_files", "folders": "include_dirs"}
    size = call.arguments.get("page_size", PAGE_SIZE)
    page = operations.trees.page(call, size=size, **given(call, "pattern", "recursive", **renamed))
    rows = [{"path": name_for_json(path), "type": kind} for path, kind in page.entries]
    fields: dict[str, Any] = {} if page.stopped is None else {"stopped": page.stopped}
    count = fitting(call, fields, rows)
    if count < len(rows) or page.has_more:
        fields["next_page_token"] = page.token(count)
    return answer({"entries": rows[:count], **fields})


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
    **READS,
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
)


def _grep(operations: Operations, call: CallContext) -> ToolOutput:
    wanted = {"limit": MAX_RESULTS, "max_files": MAX_FILES_VISITED, "ignored_too": True, "printable_only": True}
    wanted |= given(call, "pattern", "ignore_case", limit="max_results", max_files="max_files_visited")
    if not call.arguments.get("recursive", False):
        wanted["depth"] = 1
    outcome = operations.trees.grep(call, call.arguments.get("max_file_bytes", MAX_FILE_BYTES), **wanted)
    rows = []
    for path, line in ((name_for_json(hit.path), line) for hit in outcome.hits for line in hit.lines):
        column = len(line.text[: line.start].decode("utf-8", "replace")) + 1
        shown = cut_line(line.text, line.start or 0)
        rows.append({"file": path, "line": line.number, "column": column, "text": shown})
    fields: dict[str, Any] = {} if outcome.stopped is None else {"stopped": outcome.stopped}
    passed_over = outcome.large + outcome.unreadable
    if passed_over:
        fields["passed_over"] = passed_over
    count = fitting(call, fields, rows)
    if count < len(rows) or outcome.has_more:
        fields["truncated"] = True
    return answer({"matches": rows[:count], **fields})


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
        env=mapping("Variables of its environment beside those of every program"),
    ),
    **_EXECUTES,
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


async def _exec(operations: Operations, call: CallContext) -> ToolOutput:
    """Run a program with its arguments, never a shell. Policy has judged both."""
    argv = [call.arguments["command"], *call.arguments.get("args", ())]
    variables: Mapping[str, str] = call.arguments.get("env", {})
    if any(
        "\0" in word or word != word.encode("utf-8", "replace").decode()
        for word in (*argv, *variables, *variables.values())
    ):
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$: a word contains a NUL character or a lone surrogate")
    if any("=" in name or not name for name in variables):
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.env: a name is empty or contains =")
    commands = operations.commands
    cwd = operations.directory(call, call.arguments.get("working_dir"))
    timeout_s = min(call.arguments.get("timeout_ms", EXEC_TIMEOUT_MS), EXEC_TIMEOUT_MS) / 1000
    environment = {**commands.environment, **variables, "PWD": cwd}
    done = await commands.run(call, argv, cwd, environment, timeout_s=timeout_s, most_bytes=STDOUT_BYTES)
    stdout, stdout_cut = done.text("stdout", STDOUT_BYTES)
    stderr, stderr_cut = done.text("stderr", STDERR_BYTES)
    code, is_late = done.outcome.exit_code, done.outcome.timed_out
    fields: dict[str, Any] = {"stdout": stdout, "stderr": stderr, "exit_code": code}
    fields |= {"success": code == 0 and not is_late, "duration_ms": done.duration_ms, "timed_out": is_late}
    fields |= {"stdout_truncated": stdout_cut, "stderr_truncated": stderr_cut}
    least = operations.settings.artifact_threshold_bytes  # a longer text is also stored
    return done.answer(fields, {name: {} for name, one in done.streams.items() if one.ends.total > least})


FETCH: Final = ToolSpec(
    "cp__fetch",
    "Make an HTTP request and return the response",
    parameters(
        ["url"],
        url=text("URL of the request", minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
        headers=mapping("Headers of the request"),
        body={"type": ["string", "object"], "description": "Body of the request; an object is sent as JSON"},
        timeout_ms=integer(
            f"Milliseconds for all of it. Default: {FETCH_TIMEOUT_MS}", minimum=1, maximum=FETCH_TIMEOUT_MS
        ),
    ),
    **FETCHES,
    output_schema=parameters(
        ["status_code", "status_text", "headers", "body", "body_truncated", "duration_ms"],
        status_code=integer("HTTP status of the last response"),
        status_text=text("Its words"),
        headers=mapping("Its headers, names in lower case"),
        body=text(f"Up to {FETCH_BODY_BYTES} bytes of its body"),
        body_truncated=_CUT,
        duration_ms=integer("Milliseconds"),
    ),
)


async def _fetch(operations: Operations, call: CallContext) -> ToolOutput:
    """An HTTP error status is no failure of the call."""
    sent, headers = _encode_body(call.arguments.get("body", ""), call.arguments.get("headers", {}))
    timeout_s = min(call.arguments.get("timeout_ms", FETCH_TIMEOUT_MS), FETCH_TIMEOUT_MS) / 1000
    client = await operations.http_client()  # made before the clock runs
    started, most = operations.settings.outside.monotonic(), operations.settings.http_max_body_bytes
    outcome = await client.fetch(call.request, sent, headers, timeout_s=timeout_s, cut_body_bytes=most)
    fields: dict[str, Any] = {"status_code": outcome.status, "status_text": outcome.reason}
    fields["headers"] = dict(outcome.headers)
    fields |= {"body": body_text(outcome), "body_truncated": outcome.body_cut}
    fields["duration_ms"] = operations.settings.outside.ms_since(started)
    return fit_texts(call, fields, cut={"body": "body_truncated"}, stored="body")


def _encode_body(body: str | Mapping[str, object], headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    if isinstance(body, str):
        return encode(body, "body"), headers
    try:
        data = orjson.dumps(body)
    except TypeError as error:  # what JSON cannot hold, such as a lone surrogate
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"$.body: {error}") from error
    named = {name.lower() for name in headers}
    return data, headers if "content-type" in named else {**headers, "content-type": "application/json"}


ROWS: Final = name_errors(
    ERROR_NAMES,
    ToolRow(READ_FILE, work=_read, near=True),
    ToolRow(WRITE_FILE, work=_write, leftover=lambda operations, request: operations.remove_temporary(request)),
    ToolRow(DELETE_FILE, work=_delete),
    ToolRow(LIST_FILES, work=_list_files),
    ToolRow(LIST_DIR, work=_list_dir, near=True),
    ToolRow(GREP, work=_grep, near=True),
    ToolRow(EXEC, run=_exec),
    ToolRow(FETCH, run=_fetch),
)
SPECS: Final = tuple(row.spec for row in ROWS)  # the family, in the order in which the model is shown it


def family_under(settings: RuntimeSettings, make: MakeOperations) -> Family:
    """The family without the tools that others take the place of. Its roots are resolved with the first call."""
    limited = settings._replace(
        http_max_redirects=min(settings.http_max_redirects, FETCH_REDIRECTS),
        http_max_body_bytes=min(settings.http_max_body_bytes, FETCH_BODY_BYTES),
    )
    rows = [row for row in ROWS if row.spec.name not in settings.native_shadowed]
    places, checks = settings.native_roots or (settings.workspace,), settings.native_tls_checks
    return Family(
        rows, lambda: make(limited, roots=tuple(map(os.path.realpath, places)), tls_checks=checks), FAULT_NAMES
    )
