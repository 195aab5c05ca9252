"""The specifications of the desktop family (TR 5, AH 7.2), a file for each kind of tool.

Apart from the tools themselves, because a session's first request needs these and none of those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import Need, Subject, ToolSpec
from tool_runtime.families.schemas import flag, integer, parameters, text

if TYPE_CHECKING:
    from collections.abc import Mapping

# Tools for a tree of files: ListDirectory, FindFiles, Grep. Each file that they open or name is judged on its own.

_TREE: Final = Subject("path", "path", or_workspace=True)
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
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
)
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
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
)
GREP: Final = ToolSpec(
    "Grep",
    "Search the lines of text files by a regular expression (RE2)",
    parameters(
        ["pattern"],
        pattern=text(minLength=1, maxLength=4000),
        path=text("File or directory. Default: the workspace", minLength=1),
        glob=text("Only these files, such as *.py", minLength=1, maxLength=1000),
        mode=text(
            "Default: content, the lines",
            enum=["content", "files", "counts"],
        ),
        before=integer("Lines of context", minimum=0, maximum=100),
        after=integer(minimum=0, maximum=100),
        ignoreCase=flag(),
        literal=flag("Take the pattern as plain text"),
        offset=_OFFSET,
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        includeIgnored=_INCLUDE_IGNORED,
    ),
    capability="File.Read",
    subject=_TREE,
    effect="none",
    category="files",
    display="read",
    sought="pattern",
)


# HttpRequest (TR 4.5).

HTTP_REQUEST: Final = ToolSpec(
    "HttpRequest",
    "Make an HTTP request",
    parameters(
        ["url"],
        url=text(minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        headers={
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
        body=text(),
        bodyFile=text("File to send in place of body", minLength=1),
        saveTo=text(
            "File for the body of a 2xx response; replaced if it exists",
            minLength=1,
        ),
        timeout=integer("Seconds. Default: 60", minimum=1, maximum=60),
    ),
    capability="Network.Http",
    subject=Subject("url", "url"),
    effect="other",
    category="requests",
    display="request",
    also=(
        Need("File.Read", Subject("path", "bodyFile"), optional=True),
        Need("File.Write", Subject("path", "saveTo"), optional=True),
    ),
)


# ReadOutput: what a result names by its storage_ref.

READ_OUTPUT: Final = ToolSpec(
    "ReadOutput",
    "Read what an earlier call left, such as all output of a command: its result names it as storage_ref",
    parameters(
        ["ref"],
        ref=text("The storage_ref", minLength=1, maxLength=200),
        offset=integer(
            "First line, from 1; with a pattern the number of the match",
            minimum=1,
        ),
        limit=integer("Default: 200", minimum=1, maximum=10_000),
        pattern=text("Only lines that match (RE2)", minLength=1, maxLength=4000),
    ),
    capability="Shell.Exec",
    subject=Subject("output", "ref"),
    effect="none",
    category="files",
)
"""It needs all that the call needed that left the output, which is a command's mostly."""


# Tools for one file: ReadFile, WriteFile, EditFile, DeleteFile, MoveFile (TR 4.1 to 4.3).

_PATH: Final = Subject("path", "path")
_FILE: Final = text(minLength=1)


def _content_of_write(arguments: Mapping[str, Any], _before: bytes | None) -> bytes | None:
    content = arguments.get("content")
    return content.encode("utf-8", "replace") if isinstance(content, str) else None


def _content_of_edit(arguments: Mapping[str, Any], before: bytes | None) -> bytes | None:
    from tool_runtime.files.edits import EditProblem, edit_content, edits_from  # with the first edit

    try:
        return None if before is None else edit_content(arguments["path"], before, edits_from(arguments["edits"])).data
    except (EditProblem, KeyError, TypeError):  # the arguments have not been compared with the schema yet
        return None


_EXPECTED = text(
    "SHA-256 of the file's present content, only needed where it has changed since it was read: the error gives it",
    minLength=64,
    maxLength=64,
)

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
    capability="File.Read",
    subject=_PATH,
    effect="none",
    category="files",
    display="read",
    reads_outputs=True,
)
WRITE_FILE: Final = ToolSpec(
    "WriteFile",
    "Create or overwrite a file, and the directories to it",
    parameters(
        ["path", "content"],
        path=_FILE,
        content=text(),
        createDirectories=flag("Default: true"),
    ),
    capability="File.Write",
    subject=_PATH,
    effect="replace",
    category="files",
    display="write",
    content="content",
    after=_content_of_write,
    rare={"expectedSha256": _EXPECTED},
)
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
    capability="File.Write",
    subject=_PATH,
    effect="edit",
    category="files",
    display="write",
    content="edits",
    after=_content_of_edit,
    also=(Need("File.Read", _PATH),),
    rare={"expectedSha256": _EXPECTED},
)
DELETE_FILE: Final = ToolSpec(
    "DeleteFile",
    "Delete a file",
    parameters(["path"], path=_FILE),
    capability="File.Delete",
    subject=_PATH,
    effect="delete",
    category="files",
    display="delete",
)
MOVE_FILE: Final = ToolSpec(
    "MoveFile",
    "Move or rename a file; newPath must not exist",
    parameters(
        ["path", "newPath"],
        path=_FILE,
        newPath=text("Its new path, name included", minLength=1),
    ),
    capability="File.Delete",
    subject=_PATH,
    effect="move",
    category="files",
    display="move",
    also=(Need("File.Read", _PATH), Need("File.Write", Subject("path", "newPath"))),
)


# RunCommand (TR 4.4), and what follows a command that runs on in the background (decision 0036).

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
    capability="Shell.Exec",
    subject=Subject("command", "command"),
    effect="other",
    category="commands",
    display="command",
)
_ID: Final = text(minLength=1)
COMMAND_OUTPUT: Final = ToolSpec(
    "CommandOutput",
    "Read what a background command printed since the last read, and whether it still runs",
    parameters(
        ["id"],
        id=_ID,
        offset=integer("Byte to start from", minimum=0),
        limit=integer("Most bytes", minimum=1),
    ),
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


SPECS: Final = (
    READ_FILE,
    LIST_DIRECTORY,
    FIND_FILES,
    GREP,
    WRITE_FILE,
    EDIT_FILE,
    DELETE_FILE,
    MOVE_FILE,
    RUN_COMMAND,
    COMMAND_OUTPUT,
    STOP_COMMAND,
    HTTP_REQUEST,
    READ_OUTPUT,
)
"""The family, in the order in which the model is shown it."""


# The slim family: six tools of the desktop family in the shortest definitions that work, for small windows.
#
# They are the same tools, with their names, capabilities and arguments, of which requests define those that most work
# needs. There are no commands in the background, and ReadFile reads on what was cut of a result.


def _slim(spec: ToolSpec, description: str, offered: Mapping[str, Any]) -> ToolSpec:
    return spec._replace(description=description, offered=offered)


def _keep_in_foreground(spec: ToolSpec) -> ToolSpec:
    properties = {name: one for name, one in spec.input_schema["properties"].items() if name != "background"}
    return spec._replace(input_schema={**spec.input_schema, "properties": properties})


_EDIT: Final = parameters(
    ["oldText", "newText"],
    oldText=text("Text of the file, with its spaces and line breaks"),
    newText=text("Text to put in its place"),
    replaceAll=flag("Replace every occurrence"),
)
SLIM_SPECS: Final = (
    _slim(
        READ_FILE,
        "Read a file, or what a result names as its storage_ref. With a limit it says which lines were shown",
        parameters(
            ["path"],
            path=text("A path, or a storage_ref such as artifacts/art_0123"),
            offset=integer("Number of the first line. Default: 1"),
            limit=integer("Maximum number of lines. Default: the whole file"),
        ),
    ),
    _slim(
        WRITE_FILE,
        "Create a file, or replace its whole content",
        parameters(["path", "content"], path=text(), content=text("The whole new content")),
    ),
    _slim(
        EDIT_FILE,
        "Replace exact texts in a file: all edits, in order, or none. Each oldText must be in the file exactly once, "
        "unless replaceAll is true",
        parameters(["path", "edits"], path=text(), edits={"type": "array", "items": _EDIT}),
    ),
    _slim(
        LIST_DIRECTORY,
        "List the entries of a directory with their kinds and sizes",
        parameters([], path=text("Default: the workspace"), depth=integer("Levels. Default: 1")),
    ),
    _slim(
        GREP,
        "Search the lines of files by a regular expression",
        parameters(
            ["pattern"],
            pattern=text("Regular expression (RE2)"),
            path=text("File or directory. Default: the workspace"),
            glob=text("Only these files, such as *.py"),
            ignoreCase=flag(),
        ),
    ),
    _slim(
        _keep_in_foreground(RUN_COMMAND),
        "Run a shell command; returns stdout, stderr and exit code. There is no terminal",
        parameters(
            ["command"],
            command=text(),
            cwd=text("Default: the workspace"),
            timeout=integer("Seconds. Default: 300"),
        ),
    ),
)
"""The family, in the order in which the model is shown it."""
