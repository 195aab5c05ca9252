"""The desktop family (TR 4 and 5, AH 7.2): tools for one file, for a tree of files, commands and HTTP requests;
ReadOutput for stored outputs by their storage_ref, and UploadArtifact."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact, Need, Subject, ToolSpec
from agent_host.display_text import count_noun, escape
from agent_host.safe_open import look_alikes
from policy import CapabilityName
from tool_runtime.families import ToolRow, cut_line, given
from tool_runtime.families.schemas import (
    DELETES,
    EDITS,
    FETCHES,
    MOVES,
    READS,
    RUNS,
    SEARCHES,
    WRITES,
    content_of_write,
    flag,
    integer,
    mapping,
    parameters,
    text,
)
from tool_runtime.output import artifacts, charset_of, decode_body, truncate_text
from tool_runtime.tool import FaultKind, ToolFault, ToolOutput, encode, smallest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent_host.contracts import ToolRequest
    from tool_runtime.families.operations import Operations
    from tool_runtime.files.grep import MatchLine
    from tool_runtime.files.listing import ListedEntry, Listing
    from tool_runtime.files.tree import Walk
    from tool_runtime.files.write import WriteOutcome
    from tool_runtime.tool import CallContext, RuntimeSettings
    from tool_runtime.web.http import HttpOutcome

_MAX_NAMES: Final = 5
_PATH: Final = Subject("path", "path")
_FILE: Final = text(minLength=1)
_EXPECTED = text(
    "SHA-256 of the file's present content, only needed where it has changed since it was read: the error gives it",
    minLength=64,
    maxLength=64,
)

READ_OUTPUT: Final = ToolSpec(
    "ReadOutput",
    "Read what an earlier call left, such as all output of a command: its result names it as storage_ref",
    parameters(
        ["ref"],
        ref=text("The storage_ref", minLength=1, maxLength=200),
        offset=integer("First line, from 1; with a pattern the number of the match", minimum=1),
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        pattern=text("Only lines that match (RE2)", minLength=1, maxLength=4000),
    ),
    capability="Shell.Exec",
    subject=Subject("output", "ref"),
    effect="none",
    category="files",
)
"""It needs all that the call needed that left the output, which is a command's mostly."""
READ_FILE: Final = ToolSpec(
    "ReadFile",
    "Read a file. Pictures are shown as such, a notebook as its cells, a PDF as its text",
    parameters(
        ["path"],
        path=_FILE,
        offset=integer("Number of the first line. Default: 1", minimum=1),
        limit=integer("Maximum number of lines. Default: the whole file", minimum=1),
        encoding=text("Default: utf-8", minLength=1),
        raw=flag("Show a notebook's JSON"),
    ),
    **READS,
    reads_outputs=True,
)
WRITE_FILE: Final = ToolSpec(
    "WriteFile",
    "Create or overwrite a file, and the directories to it",
    parameters(["path", "content"], path=_FILE, content=text(), createDirectories=flag("Default: true")),
    **WRITES,
    content="content",
    after=content_of_write,
    rare={"expectedSha256": _EXPECTED},
)


def _write(operations: Operations, call: CallContext) -> ToolOutput:
    path = call.arguments["path"]
    outcome, output = operations.write(call, create_directories=call.arguments.get("createDirectories", True))
    message = f"Wrote {len(outcome.after)} bytes to {path}"
    if outcome.before_bytes:  # a small model takes "wrote" for "appended"
        message += f", in place of the {outcome.before_bytes} bytes that it had"
    look_alikes = "" if outcome.existed else _look_alikes(path)
    if look_alikes:
        message += f", a new file beside one whose name looks the same: {look_alikes}"
    return _written(message, outcome, output)


def _look_alikes(path: str) -> str:
    """The files beside a new one that could be taken for it: a name may have spaces and accents of several kinds."""
    name = os.path.basename(path)
    if name.isascii() and " " not in name:
        return ""
    return ", ".join(look_alikes(path))


def _written(message: str, outcome: WriteOutcome, output: Mapping[str, Any]) -> ToolOutput:
    text = f"{message}; it is the same file as {', '.join(outcome.also[:_MAX_NAMES])}" if outcome.also else message
    return ToolOutput(text, **output)


def _content_of_edit(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    from tool_runtime.files.edits import EditProblem, edit_content, edits_from  # with the first edit

    try:
        return None if before is None else edit_content(arguments["path"], before, edits_from(arguments["edits"])).data
    except (EditProblem, KeyError, TypeError):  # the arguments have not been compared with the schema yet
        return None


EDIT_FILE: Final = ToolSpec(
    "EditFile",
    "Replace exact texts in a file: all edits, in order, or none. Each oldText must be in it exactly once, unless "
    "replaceAll is true",
    parameters(
        ["path", "edits"],
        path=_FILE,
        edits={
            "type": "array",
            "minItems": 1,
            "items": parameters(
                ["oldText", "newText"],
                oldText=text("Text of the file, with its spaces and line breaks", minLength=1),
                newText=text(),
                replaceAll=flag("Replace every occurrence"),
            ),
        },
    ),
    **EDITS,
    content="edits",
    after=_content_of_edit,
    also=(Need("File.Read", _PATH),),
    rare={"expectedSha256": _EXPECTED},
)


def _edit(operations: Operations, call: CallContext) -> ToolOutput:
    outcome, output = operations.edit(call)
    places = count_noun(outcome.places, "place")
    return _written(f"Replaced {places} in {call.arguments['path']}", outcome, output)


DELETE_FILE: Final = ToolSpec("DeleteFile", "Delete a file", parameters(["path"], path=_FILE), **DELETES)
MOVE_FILE: Final = ToolSpec(
    "MoveFile",
    "Move or rename a file; newPath must not exist",
    parameters(["path", "newPath"], path=_FILE, newPath=text("Its new path, name included", minLength=1)),
    **MOVES,
    also=(Need("File.Read", _PATH), Need("File.Write", Subject("path", "newPath"))),
)


def _move(operations: Operations, call: CallContext) -> ToolOutput:
    operations.move(call)
    return ToolOutput(f"Moved {call.arguments['path']} to {call.arguments['newPath']}")


# A file uploaded by the model is an ordinary artifact (AH 7.2): it is stored on this disk, the result contains its
# local reference, and its upload follows in the background (interface section 2).

_MAX_NAME: Final = 255
_CONTENT_TYPE: Final = r"(?a:[\w.+-]{1,64}/[\w.+-]{1,64}(?:; ?[\w.+-]{1,32}=[\w.+-]{1,64}){0,4})"
_TEXT, _BYTES = "text/plain", "application/octet-stream"


UPLOAD_ARTIFACT = ToolSpec(
    "UploadArtifact",
    "Store a file (path) or a text (content) as an artifact of the session, for the user to keep",
    parameters(
        [],
        path=text(minLength=1),
        content=text(),
        name=text(minLength=1, maxLength=_MAX_NAME),
        contentType=text("Media type", minLength=1),
    ),
    capability="Workspace.Upload",
    subject=Subject("path", "path", by_name=True),
    # A repeated call stores nothing twice: a service recognizes the artifact of a step by its Idempotency-Key, and the
    # embedded home stores equal contents once.
    effect="none",
    category="uploads",
    display="upload",
    content="content",
)


def _upload(operations: Operations, call: CallContext) -> ToolOutput:
    """The code that keeps the artifacts of results takes secrets out of them."""
    if "path" in call.arguments:
        data = operations.read_whole(call, call.arguments["path"], MAX_ARTIFACT_BYTES).data
    else:
        data = encode(call.arguments["content"], "content")
        limit = smallest(call.request.constraints.max_file_size_bytes, MAX_ARTIFACT_BYTES) or 0
        if len(data) > limit:
            raise ToolFault(FaultKind.TOO_LARGE, f"{len(data)} bytes exceed the limit of {limit} bytes")
    name = _name_of(call.arguments)
    kind = call.arguments.get("contentType") or (_TEXT if _is_text(data) else _BYTES)
    message = f"Stored {name} ({len(data)} bytes, {kind})"
    return ToolOutput(message, artifacts=(Artifact("tool_output", name, kind, data),))


def upload_problem(arguments: Mapping[str, Any]) -> str | None:
    """The problem with arguments that fit the schema, in words for the model; None if there is none."""
    if ("path" in arguments) == ("content" in arguments):
        return "$: give either path or content"
    name = _name_of(arguments)
    parts = ("", ".", "..")
    if not name.isprintable() or len(name.encode()) > _MAX_NAME or re.search(r"[/\\]", name) or name in parts:
        return f"$.name: must be a file name of at most {_MAX_NAME} bytes"
    kind = arguments.get("contentType")
    if kind is not None and not re.fullmatch(_CONTENT_TYPE, kind):
        return "$.contentType: must be a media type such as text/csv"
    return None


def _name_of(arguments: Mapping[str, Any]) -> str:
    path, name = arguments.get("path"), arguments.get("name")
    if name or path is None:
        return name or "artifact.txt"
    # An odd file name must not keep a file from going: what cannot be printed is replaced.
    base = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    shown = "".join(char if char.isprintable() else "_" for char in base)
    return shown.encode()[:_MAX_NAME].decode(errors="ignore") or "artifact"


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


RUN_COMMAND: Final = ToolSpec(
    "RunCommand",
    "Run a shell command; returns stdout, stderr and exit code. There is no terminal",
    parameters(
        ["command"],
        command=text(minLength=1),
        cwd=text("Default: the workspace", minLength=1),
        timeout=integer("Seconds. Default: 300", minimum=1, maximum=600),
        stdin=text("Default: empty"),
        background=flag(
            "Return an id for CommandOutput and StopCommand at once, and let it run on, as a server does, until the "
            "session ends"
        ),
    ),
    **RUNS,
)
_ID: Final = text(minLength=1)
COMMAND_OUTPUT: Final = ToolSpec(
    "CommandOutput",
    "Read what a background command printed since the last read, and whether it still runs",
    parameters(["id"], id=_ID, offset=integer("Byte to start from", minimum=0), limit=integer("Most bytes", minimum=1)),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="none",
    category="files",
)
STOP_COMMAND: Final = ToolSpec(
    "StopCommand",
    "End a background command and all that it started",
    parameters(["id"], id=_ID),
    capability="Shell.Exec",
    subject=Subject("name"),
    effect="other",
    # A slot of its own kind: commands that wait for the one that is to end would keep it from those of commands.
    category="files",
)
HTTP_REQUEST: Final = ToolSpec(
    "HttpRequest",
    "Make an HTTP request",
    parameters(
        ["url"],
        url=text(minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        headers=mapping(),
        body=text(),
        bodyFile=text("File to send in place of body", minLength=1),
        saveTo=text("File for the body of a 2xx response; replaced if it exists", minLength=1),
        timeout=integer("Seconds. Default: 60", minimum=1, maximum=60),
    ),
    **FETCHES,
    also=(
        Need("File.Read", Subject("path", "bodyFile"), optional=True),
        Need("File.Write", Subject("path", "saveTo"), optional=True),
    ),
)


async def _request(operations: Operations, call: CallContext) -> ToolOutput:
    arguments, save_to = call.arguments, call.arguments.get("saveTo")
    client = await operations.http_client()
    timeout_s = arguments.get("timeout", operations.settings.default_request_s)
    most = None if save_to is None else operations.most_sent(call, CapabilityName.FILE_WRITE)
    body, headers = await _body(operations, call), arguments.get("headers", {})
    outcome = await client.fetch(call.request, body, headers, timeout_s, max_saved_bytes=most)
    if save_to is None:
        return _response(call, outcome)
    if not 200 <= outcome.status < 300:
        return _response(call, outcome, f"[Nothing was saved to {save_to}: the status is {outcome.status}]\n")
    output = await operations.save(call, save_to, outcome.body)
    size = len(outcome.body)
    return ToolOutput(f"{_head(outcome, size)}Saved {size} bytes to {save_to}", **output)


def _remove_download(operations: Operations, request: ToolRequest) -> bool:
    is_saved = "saveTo" in request.arguments
    return is_saved and operations.remove_temporary(request, "saveTo", CapabilityName.FILE_WRITE)


async def _body(operations: Operations, call: CallContext) -> bytes:
    path = call.arguments.get("bodyFile")
    if path is None:
        return encode(call.arguments.get("body", ""), "body")
    if "body" in call.arguments:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.bodyFile: give body or bodyFile, not both")
    return await operations.read_to_send(call, path)


def _response(call: CallContext, outcome: HttpOutcome, note: str = "") -> ToolOutput:
    """TR 4.5; `note` precedes the text."""
    packed = "content-encoding" in outcome.headers
    length = len(outcome.body) if packed else outcome.headers.get("content-length", len(outcome.body))
    content_type = outcome.headers.get("content-type", "unknown")
    text = decode_body(outcome.body, charset_of(content_type))
    if text is None:
        text = f"Binary body, {len(outcome.body)} bytes"
    kept: tuple[Artifact, ...] = ()
    if len(outcome.body) > call.settings.artifact_threshold_bytes:
        kept = (artifacts.tool_output(call.request, outcome.body, part="body", content_type=content_type),)
    return ToolOutput(note + _head(outcome, length) + truncate_text(text, call.max_output_bytes), kept, capped=True)


def _head(outcome: HttpOutcome, length: int | str) -> str:
    kind = outcome.headers.get("content-type", "unknown")
    return f"HTTP {outcome.status} {outcome.reason}\nContent-Type: {kind}\nContent-Length: {length}\n\n"


def set_timeouts(spec: ToolSpec, settings: RuntimeSettings) -> ToolSpec:
    """`spec` with the default and the maximum of its `timeout` as `settings` have them."""
    if spec.name == RUN_COMMAND.name:
        default, most = settings.default_command_s, settings.command_timeout_max_s
    elif spec.name == HTTP_REQUEST.name:
        default, most = settings.default_request_s, settings.http_timeout_max_s
    else:
        return spec
    timeout = integer(f"Seconds. Default: {default:g}", minimum=1, maximum=most)
    schema = spec.input_schema
    if schema["properties"]["timeout"] == timeout:
        return spec
    return spec._replace(input_schema={**schema, "properties": {**schema["properties"], "timeout": timeout}})


# Each file that tools for a tree open or name is judged separately. Answers contain paths that the model can use again,
# then the omissions with reasons.
_OFFSET: Final = integer("Results to skip", minimum=0)
_INCLUDE_IGNORED: Final = flag("Also files that .gitignore names")

LIST_DIRECTORY: Final = ToolSpec(
    "ListDirectory",
    "List a directory, by default the workspace: names, kinds, sizes",
    parameters(
        [],
        path=text(minLength=1),
        depth=integer("Levels. Default: 1", minimum=1, maximum=100),
        offset=_OFFSET,
        limit=integer("Default: 500", minimum=1, maximum=10_000),
    ),
    **SEARCHES,
)


def _list(operations: Operations, call: CallContext) -> ToolOutput:
    listing = operations.trees.list_entries(call, **given(call, "depth", "offset", "limit"))
    where = escape(_prefix_of(listing.walk.root, operations).rstrip("/") or ".", "")
    head = f"{where}: {_count_entries(listing.total)}"
    return _text_lines(head, *map(_entry, listing.page), *_notes(listing, call))


FIND_FILES: Final = ToolSpec(
    "FindFiles",
    "Find files by a glob such as src/**/*.{ts,js}; one without a slash is a name in any directory",
    parameters(
        ["pattern"],
        pattern=text(minLength=1, maxLength=1000),
        path=text("Directory", minLength=1),
        offset=_OFFSET,
        limit=integer("Default: 500", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    **SEARCHES,
    sought="pattern",
)


def _find(operations: Operations, call: CallContext) -> ToolOutput:
    fields = given(call, "pattern", "offset", "limit", ignored_too="includeIgnored")
    listing = operations.trees.find(call, **fields)
    prefix = _prefix_of(listing.walk.root, operations)
    lines = [escape(prefix + one.path, "") for one in listing.page]
    if not listing.total:
        lines = [f"No file fits {fields['pattern']}"]
    return _text_lines(*lines, *_notes(listing, call))


GREP: Final = ToolSpec(
    "Grep",
    "Search the lines of text files by a regular expression (RE2)",
    parameters(
        ["pattern"],
        pattern=text(minLength=1, maxLength=4000),
        path=text("File or directory. Default: the workspace", minLength=1),
        glob=text("Only these files, such as *.py", minLength=1, maxLength=1000),
        mode=text("Default: content, the lines", enum=["content", "files", "counts"]),
        before=integer("Lines of context", minimum=0, maximum=100),
        after=integer(minimum=0, maximum=100),
        ignoreCase=flag(),
        literal=flag("Take the pattern as plain text"),
        offset=_OFFSET,
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    **SEARCHES,
    sought="pattern",
)


def _grep(operations: Operations, call: CallContext) -> ToolOutput:
    """Each file's path above its lines, `12: text` for a match and `13- text` for context; or names or counts alone."""
    names = ("pattern", "glob", "mode", "before", "after", "literal", "limit", "offset")
    fields: dict[str, Any] = {"mode": "content", "limit": 200, "offset": 0}
    fields |= given(call, *names, ignore_case="ignoreCase", ignored_too="includeIgnored")
    outcome = operations.trees.grep(call, **fields)
    prefix, limit, offset = _prefix_of(outcome.walk.root, operations), fields["limit"], fields["offset"]
    lines: list[str] = []
    for hit in outcome.hits:
        path = escape(prefix + hit.path, "")
        if fields["mode"] == "content":
            lines += [*([""] if lines else []), path, *_matches(hit.lines)]
        else:
            lines.append(path if fields["mode"] == "files" else f"{path}: {hit.matches}")
    if not outcome.hits:
        lines = [f"No {'more matches' if offset else 'match'} in {count_noun(outcome.files, 'file')}"]
    if outcome.has_more:
        lines.append(f"[Stopped at the limit of {limit}; offset: {offset + limit} goes on]")
    lines += _omissions(outcome.walk)
    if outcome.large:
        lines.append(f"[Not searched for their size: {count_noun(outcome.large, 'file')}]")
    return _text_lines(*lines, *_failures(outcome.unreadable, outcome.stopped))


def _entry(listed: ListedEntry) -> str:
    path, kind, target, size = listed
    if not path.isprintable():
        path = escape(path, "")
    if size is not None:
        return f"file  {path} ({size} bytes)" if size != 1 else f"file  {path} (1 byte)"
    if kind == "directory":
        return f"dir   {path}/"
    if kind == "link":
        return f"link  {path} -> {escape(target or '?', '')}"
    return f"{kind:<5} {path}"


def _notes(listing: Listing, call: CallContext) -> Iterator[str]:
    offset = call.arguments.get("offset", 0)
    end = offset + len(listing.page)
    if listing.total > end:
        yield f"[{offset + 1} to {end} of {listing.total} shown; offset: {end} goes on]"
    elif offset and not listing.page:
        yield f"[There are only {listing.total}]"
    yield from _omissions(listing.walk)
    yield from _failures(listing.walk.unreadable, listing.walk.stopped)


def _omissions(walk: Walk) -> Iterator[str]:
    if walk.left_out:
        yield f"[Left out by policy: {_count_entries(walk.left_out)}]"
    if walk.ignored:
        yield f"[Left out by .gitignore: {_count_entries(walk.ignored)}; includeIgnored: true shows them]"


def _failures(unreadable: int, stopped: str | None) -> Iterator[str]:
    if unreadable:
        yield f"[Could not be read: {unreadable}]"
    if stopped:
        yield f"[{stopped}]"


def _matches(lines: Iterable[MatchLine]) -> Iterator[str]:
    last: int | None = None
    for line in lines:
        if last is not None and line.number > last + 1:
            yield "--"
        yield f"{line.number}{'-' if line.start is None else ':'} {cut_line(line.text, line.start or 0)}"
        last = line.number


def _text_lines(*lines: str) -> ToolOutput:
    return ToolOutput("\n".join(lines) + "\n")


def _prefix_of(root: str, operations: Operations) -> str:
    workspace = operations.settings.workspace
    if root == workspace:
        return ""
    return root.removeprefix(workspace.rstrip(os.sep) + os.sep).rstrip(os.sep) + "/"


def _count_entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def _remove_temporary(operations: Operations, request: ToolRequest) -> bool:
    return operations.remove_temporary(request)


ROWS: Final = (
    ToolRow(READ_FILE, lambda operations, call: operations.read(call), near=True),
    ToolRow(LIST_DIRECTORY, _list, near=True),
    ToolRow(FIND_FILES, _find),
    ToolRow(GREP, _grep, near=True),
    ToolRow(WRITE_FILE, _write, leftover=_remove_temporary),
    ToolRow(EDIT_FILE, _edit, leftover=_remove_temporary),
    ToolRow(DELETE_FILE, lambda operations, call: ToolOutput(f"Deleted {operations.delete(call)}")),
    ToolRow(MOVE_FILE, _move, leftover=lambda operations, request: operations.take_back_move(request)),
    ToolRow(RUN_COMMAND, run=lambda operations, call: operations.commands.run_command(call, operations.directory)),
    ToolRow(COMMAND_OUTPUT, run=lambda operations, call: operations.commands.read_output(call)),
    ToolRow(STOP_COMMAND, run=lambda operations, call: operations.commands.stop(call)),
    ToolRow(HTTP_REQUEST, run=_request, leftover=_remove_download),
    ToolRow(READ_OUTPUT, lambda operations, call: operations.read_output(call)),
    ToolRow(UPLOAD_ARTIFACT, _upload, check=upload_problem),
)
"""In the order in which the model is shown them; what uploads is offered with every family but the slim one."""
