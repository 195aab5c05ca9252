"""The tools of the skills family (SK 2, 5): names, arguments, outputs and implementations. A call's text is a JSON
object of its output schema; a text that is too long is stored, and `storage_ref`, or a field with that ending, refers
to it."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from agent_host.contracts import LoadedSkill, Subject, ToolSpec
from agent_host.display_text import name_for_json
from agent_host.errors import ErrorCode
from tool_runtime.families import (
    DESKTOP,
    Family,
    ToolRow,
    answer,
    body_text,
    cut_line,
    excerpt,
    fitting,
    given,
    name_errors,
)
from tool_runtime.families.schemas import (
    DELETES,
    FETCHES,
    READS,
    RUNS,
    SEARCHES,
    WRITES,
    content_of_write,
    flag,
    integer,
    items,
    mapping,
    parameters,
    text,
)
from tool_runtime.files import Scope
from tool_runtime.files.skills import MAX_EXCERPT_CHARS, MAX_RESOURCE_BYTES, body_of, resource_of
from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory, open_parent
from tool_runtime.output import artifacts, decode_body, truncate_characters
from tool_runtime.platform import WINDOWS
from tool_runtime.platform.environment import path_to_trust
from tool_runtime.threads import DaemonPool
from tool_runtime.tool import (
    CallContext,
    FaultKind,
    Provider,
    Tool,
    ToolFault,
    ToolOutput,
    encode,
    os_faults,
    run_in_thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from policy.facts import ScriptFacts
    from tool_runtime.families import MakeOperations
    from tool_runtime.families.operations import Operations
    from tool_runtime.families.schemas import Act
    from tool_runtime.files.skills import Skill, SkillIndex, Skills
    from tool_runtime.processes.scripts import SkillScripts
    from tool_runtime.tool import CallContext, RuntimeSettings

EXCERPT_CHARS: Final = MAX_EXCERPT_CHARS
FILE_BYTES: Final = MAX_RESOURCE_BYTES
ENTRIES: Final = 200
MAX_ENTRIES: Final = 1000
RESULTS: Final = 100
MAX_RESULTS: Final = 1000
OUTPUT_CHARS: Final = 10_000
ARGUMENTS: Final = 100
ARGUMENT_CHARS: Final = 4096
SCRIPT_TIMEOUT_S: Final = 30
BODY_BYTES: Final = 2 * 1024 * 1024  # of the answer to a request

# The skills family's names of errors (SK 8): by the host's codes, and by kinds of faults if a code has two.

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
"""Codes without a name in SK keep the host's: INVALID_REQUEST, TOOL_INTERRUPTED."""
FAULT_NAMES: Final[Mapping[FaultKind, str]] = {
    FaultKind.ACCESS_DENIED: "IOError",
    FaultKind.EXIT_NONZERO: "ExitNonZero",
}

_RUNS_SCRIPTS: Final[Act] = {**RUNS, "subject": Subject("script", "relative_path")}
_CUT: Final = flag("True where there is more than is shown")
_REF: Final = text("Where all of it is stored, for ReadOutput")
_STOPPED: Final = text("Why not all was looked at, where that is so")
_HIDDEN: Final = integer("Entries that are not shown, since their names are those of files with secrets")

READ_FILE: Final = ToolSpec(
    "read_file",
    f"Read a text file of at most {FILE_BYTES} bytes, {EXCERPT_CHARS} characters at a time",
    parameters(
        ["path"],
        path=text("Path of the file, absolute or relative to the workspace", minLength=1),
        offset=integer("Character to start from. Default: 0", minimum=0),
    ),
    **READS,
    output_schema=parameters(
        ["content_excerpt", "size", "sha256", "truncated"],
        content_excerpt=text(f"Up to {EXCERPT_CHARS} characters of the file"),
        size=integer("Bytes of the whole file"),
        sha256=text("SHA-256 of the whole file"),
        truncated=_CUT,
        next_offset=integer("Character that the next excerpt starts from, where there is one"),
        storage_ref=_REF,
    ),
)


def _read(operations: Operations, call: CallContext) -> ToolOutput:
    """The requested excerpt. A text of more than one excerpt is stored with the first."""
    found = operations.read_whole(call, call.arguments["path"], FILE_BYTES)
    content, seen = decode_body(found.data), str(found.stamp)
    size, digest = len(found.data), hashlib.sha256(found.data).hexdigest()
    fields: dict[str, Any] = {"content_excerpt": f"[{size} bytes that are no text]", "size": size, "sha256": digest}
    fields["truncated"] = False
    if content is None:
        return answer(fields, seen=seen)
    start = call.arguments.get("offset", 0)
    end = excerpt(call, fields, "content_excerpt", content, start, EXCERPT_CHARS)
    if end >= len(content):
        return answer(fields, seen=seen)
    fields |= {"truncated": True, "next_offset": end}
    if start:
        return answer(fields, seen=seen)
    stored = artifacts.tool_output(call.request, found.data, part="content")._replace(ref_field="storage_ref")
    return answer(fields, artifacts=(stored,), seen=seen)


LIST_DIR: Final = ToolSpec(
    "list_dir",
    "List the entries of a directory by name. Files whose names say that they hold secrets are not listed",
    parameters(
        [],
        path=text("Path of the directory. Default: the workspace", minLength=1),
        offset=integer("Entries to pass over, for the next ones. Default: 0", minimum=0),
        max_entries=integer(f"Entries to return. Default: {ENTRIES}", minimum=1, maximum=MAX_ENTRIES),
    ),
    **SEARCHES,
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
)


def _list(operations: Operations, call: CallContext) -> ToolOutput:
    fields = {"offset": 0, "limit": ENTRIES} | given(call, "offset", limit="max_entries")
    listing = operations.trees.list_entries(call, hidden=operations.trees.hidden, **fields)
    rows: list[dict[str, Any]] = [
        {"name": name_for_json(one.path), "type": one.kind, **({} if one.size is None else {"size": one.size})}
        for one in listing.page
    ]
    totals: dict[str, Any] = {"total": listing.total, "hidden": listing.walk.hidden, "truncated": False}
    if listing.walk.stopped is not None:
        totals["stopped"] = listing.walk.stopped
    count = fitting(call, totals, rows)
    totals["truncated"] = fields["offset"] + count < listing.total
    return answer({"entries": rows[:count], **totals})


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
    **SEARCHES,
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
)  # fmt: skip


def _grep(operations: Operations, call: CallContext) -> ToolOutput:
    limit = call.arguments.get("max_results", RESULTS)
    wanted = given(call, "pattern", "glob", "mode", "ignore_case")
    outcome = operations.trees.grep(call, FILE_BYTES, limit=limit, hidden=operations.trees.hidden, **wanted)
    passed_over = outcome.large + outcome.unreadable
    counts = {"hidden": outcome.walk.hidden, "ignored": outcome.walk.ignored, "passed_over": passed_over}
    fields: dict[str, Any] = {"truncated": False, **{name: count for name, count in counts.items() if count}}
    if outcome.stopped is not None:
        fields["stopped"] = outcome.stopped
    name, rows = "matches", list[Any]()
    if call.arguments.get("mode") == "files":
        name, rows = "files", [name_for_json(hit.path) for hit in outcome.hits]
    else:
        rows = [
            {"path": name_for_json(hit.path), "line": line.number, "text": cut_line(line.text, line.start or 0)}
            for hit in outcome.hits
            for line in hit.lines
        ]
    count = fitting(call, fields, rows)
    fields["truncated"] = outcome.has_more or count < len(rows)
    return answer({name: rows[:count], **fields})


WRITE_FILE: Final = ToolSpec(
    "write_file",
    f"Create a file or replace it, with at most {FILE_BYTES} bytes. Missing directories are made. Each call is "
    "asked about",
    parameters(
        ["path", "content"],
        path=text("Path of the file, absolute or relative to the workspace", minLength=1),
        content=text("Text to write"),
    ),
    **WRITES,
    content="content",
    after=content_of_write,
    output_schema=parameters(
        ["path", "bytes_written", "sha256"],
        path=text("The file"),
        bytes_written=integer("Its size"),
        sha256=text("SHA-256 of what is in it"),
        diff_ref=text("Where the change is stored as a diff"),
    ),
)


def _write(operations: Operations, call: CallContext) -> ToolOutput:
    outcome, output = operations.write(call, FILE_BYTES)
    path, digest = name_for_json(call.arguments["path"]), hashlib.sha256(outcome.after).hexdigest()
    fields = {"path": path, "bytes_written": len(outcome.after), "sha256": digest}
    diffs = tuple(one._replace(ref_field="diff_ref") for one in output["artifacts"])
    return answer(fields, **{**output, "artifacts": diffs})


DELETE_FILE: Final = ToolSpec(
    "delete_file",
    "Delete a file. Each call is asked about",
    parameters(["path"], path=text("Path of the file, absolute or relative to the workspace", minLength=1)),
    **DELETES,
    output_schema=parameters(
        ["path", "deleted"], path=text("The file"), deleted=flag("Always true: what fails is an error")
    ),
)


def _delete(operations: Operations, call: CallContext) -> ToolOutput:
    return answer({"path": name_for_json(operations.delete(call)), "deleted": True})


NETWORK_REQUEST: Final = ToolSpec(
    "network_request",
    "Make an HTTP request and return the response. Each call is asked about",
    parameters(
        ["url"],
        url=text("URL of the request", minLength=1),
        method=text("Default: GET", enum=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
        headers=mapping("Headers of the request"),
        body=text("Body of the request"),
        timeout_s=integer("Seconds for all of it", minimum=1, maximum=3600),
    ),
    **FETCHES,
    output_schema=parameters(
        ["status", "headers", "content_excerpt", "sha256", "truncated"],
        status=integer("HTTP status of the last response"),
        headers=mapping("Its headers, names in lower case"),
        content_excerpt=text(f"Up to {EXCERPT_CHARS} characters of its body"),
        sha256=text(f"SHA-256 of its body, or of the first {BODY_BYTES} bytes of it"),
        truncated=_CUT,
        storage_ref=_REF,
    ),
)


async def _request(operations: Operations, call: CallContext) -> ToolOutput:
    """An HTTP error status is no failure of the call."""
    arguments, settings = call.arguments, operations.settings
    body, headers = encode(arguments.get("body", ""), "body"), arguments.get("headers", {})
    timeout_s = min(arguments.get("timeout_s", settings.default_request_s), settings.http_timeout_max_s)
    most = settings.http_max_body_bytes
    client = await operations.http_client()
    outcome = await client.fetch(call.request, body, headers, timeout_s, cut_body_bytes=most)
    shown = body_text(outcome)
    fields: dict[str, Any] = {"status": outcome.status, "headers": dict(outcome.headers)}
    fields |= {"sha256": hashlib.sha256(outcome.body).hexdigest(), "truncated": False}
    end = excerpt(call, fields, "content_excerpt", shown, 0, EXCERPT_CHARS)
    if end == len(shown) and not outcome.body_cut:
        return answer(fields)
    fields["truncated"] = True
    stored = artifacts.tool_output(call.request, outcome.body, part="body")._replace(ref_field="storage_ref")
    return answer(fields, artifacts=(stored,))


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
        **_RUNS_SCRIPTS,
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
    )  # fmt: skip


RUN_SCRIPT: Final = script_spec(SCRIPT_TIMEOUT_S)
_VARIABLES: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL")
"""All variables in a script's environment, if the host has them."""
_ON_WINDOWS: Final = ("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "TEMP", "TMP")
"""Without these programs do not start there."""
_CAPTURED_BYTES: Final = 4 * OUTPUT_CHARS
_MAX_LISTED: Final = 50


async def _run_script(operations: Operations, call: CallContext) -> ToolOutput:
    """A skill's script by its interpreter, never a shell. Policy has judged both as a command."""
    settings, commands, arguments = operations.settings, operations.commands, call.arguments
    if operations.scripts is None:
        raise ToolFault(FaultKind.NOT_FOUND, f"there is no skill {arguments['skill']}")
    scripts, args = operations.scripts, arguments.get("args", ())
    for word in args:
        encode(word, "args")
        if "\0" in word:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, "$.args: a word contains a NUL character")
    script, cwd = await operations.pool.run(lambda: _prepare(scripts, call, operations.settings.outside.random_bytes))
    timeout_s = min(arguments.get("timeout_s", settings.script_timeout_s), settings.script_timeout_s)
    argv = [*script.argv, script.path, *args]
    try:
        environment = _environment(operations)
        done = await commands.run(call, argv, cwd, environment, timeout_s=timeout_s, most_bytes=_CAPTURED_BYTES)
    finally:
        left = [] if cwd == script.folder else await operations.pool.run(lambda: _files_left(cwd))
    code = done.outcome.exit_code
    fields: dict[str, Any] = {"exit_code": code, "timeout": done.outcome.timed_out, "duration_ms": done.duration_ms}
    stored: dict[str, dict[str, str]] = {}
    for name in ("stdout", "stderr"):
        text, is_cut = done.text(name, _CAPTURED_BYTES)
        shown = truncate_characters(text, OUTPUT_CHARS)
        is_cut = is_cut or shown is not text
        fields |= {name: shown, f"{name}_truncated": is_cut}
        if is_cut:
            stored[name] = {"ref_field": f"{name}_ref", "hash_field": f"{name}_sha256"}
    output = done.answer(fields | ({"sandbox": cwd, "files": left} if left else {}), stored)
    if code:
        message = f"{script.relative_path} of the skill {script.skill} ended with exit code {code}"
        raise ToolFault(FaultKind.EXIT_NONZERO, message, partial=output)
    return output


def _environment(operations: Operations) -> Mapping[str, str]:
    wanted = (*_VARIABLES, *_ON_WINDOWS) if WINDOWS else _VARIABLES
    shown = {name: value for name, value in operations.commands.environment.items() if name.upper() in wanted}
    # An interpreter may be a script of `env` itself, as pyenv's are.
    return shown | {"PATH": path_to_trust(shown.get("PATH", os.defpath), operations.settings.writable_places)}


def _prepare(scripts: SkillScripts, call: CallContext, random_bytes: Callable[[int], bytes]) -> tuple[ScriptFacts, str]:
    script = scripts.find(call.arguments["skill"], call.arguments["relative_path"])
    if not script.argv:
        raise ToolFault(FaultKind.OUT_OF_SCOPE, f"it is no script of the skill {script.skill}: {script.path}")
    if call.request.judged not in (None, script.identity):
        raise ToolFault(FaultKind.PATH_CHANGED, f"the script has changed since it was judged: {script.path}")
    if call.arguments.get("cwd") == "skill":
        return script, script.folder
    name = f"run-{random_bytes(8).hex()}"
    with os_faults(scripts.sandbox), open_directory(scripts.sandbox, create=PRIVATE_DIRECTORY) as directory:
        directory.make_directory(name, PRIVATE_DIRECTORY)
    return script, os.path.join(scripts.sandbox, name)


def _files_left(sandbox: str) -> list[str]:
    """The files that a script left in its directory, by name. An empty one goes."""
    try:
        with open_directory(sandbox) as directory:
            names = directory.names()
    except OSError:  # the script took it away, or put a link there
        return []
    if not names:
        with suppress(OSError), open_parent(sandbox) as (directory, name):
            directory.remove_directory(name)
    return list(map(name_for_json, names[:_MAX_LISTED]))


ROWS: Final = name_errors(
    ERROR_NAMES,
    ToolRow(READ_FILE, work=_read, near=True),
    ToolRow(LIST_DIR, work=_list, near=True),
    ToolRow(GREP, work=_grep, near=True),
    ToolRow(RUN_SCRIPT, run=_run_script),
    ToolRow(WRITE_FILE, work=_write, leftover=lambda operations, request: operations.remove_temporary(request)),
    ToolRow(DELETE_FILE, work=_delete),
    ToolRow(NETWORK_REQUEST, run=_request),
)
SPECS: Final = tuple(row.spec for row in ROWS)  # the family, in the order in which the model is shown it


def family_under(settings: RuntimeSettings, make: MakeOperations) -> Family:
    """The family, for scripts with the time that the settings give them."""
    limited = settings._replace(http_max_body_bytes=min(settings.http_max_body_bytes, BODY_BYTES))
    timed = script_spec(settings.script_timeout_s)._replace(error_names=ERROR_NAMES)
    rows = [row._replace(spec=timed) if row.spec.name == timed.name else row for row in ROWS]
    return Family(rows, lambda: make(limited), FAULT_NAMES)


_MAX_LISTED_CHARS: Final = 32_000
_DESCRIPTION: Final = (
    "Read a skill before doing what it is for: instructions for one kind of task. It holds until the task ends, and "
    "the tools may be limited to those that it names. With file, read a file of the skill instead."
)
LOAD_SKILL: Final = ToolSpec(
    "load_skill",
    _DESCRIPTION,
    parameters(
        ["name"],
        name=text("Name of the skill", minLength=1),
        file=text("Path of a file in the skill's folder, to be read in place of its instructions", minLength=1),
        offset=integer("Character to start from in that file. Default: 0", minimum=0),
    ),
    capability="File.Read",
    subject=Subject("name"),
    effect="none",
    category="files",
)


class SkillLoading(Provider):
    """The provider of `load_skill`, which every family has, over the skills of the index, read again for each task;
    without skills it provides nothing."""

    def __init__(self, index: SkillIndex, settings: RuntimeSettings) -> None:
        self._index = index
        self._settings = settings
        self._pool = DaemonPool(1)

    async def tools(self) -> Sequence[ToolSpec]:
        """See Provider."""
        return loading_spec(await self._pool.run(self._index.skills))

    def get(self, name: str) -> Tool | None:
        """See Provider."""
        if name != LOAD_SKILL.name:
            return None
        return Tool(LOAD_SKILL, run_in_thread(self._load, self._pool, self._settings.file_timeout_s), DESKTOP)

    async def aclose(self) -> None:
        """See Provider."""
        self._pool.close()

    def _load(self, call: CallContext) -> ToolOutput:
        arguments, limits = call.arguments, call.request.constraints
        skill = self._index.find(arguments["name"])
        scope = Scope(limits.allowed_paths, limits.blocked_paths)
        if "file" in arguments:
            return ToolOutput(resource_of(skill, arguments["file"], arguments.get("offset", 0), scope, call.abandoned))
        body = body_of(skill, scope, call.abandoned)
        return ToolOutput(body, skill=LoadedSkill(skill.name, skill.allowed_tools))


def loading_spec(skills: Skills) -> Sequence[ToolSpec]:
    """The tool that reads one of these skills, which its description lists; none if no skill is usable."""
    usable = skills.usable
    return (LOAD_SKILL._replace(description=_list_skills(usable.values())),) if usable else ()


def _list_skills(skills: Iterable[Skill]) -> str:
    lines, room, left_out = [_DESCRIPTION, "Skills:"], _MAX_LISTED_CHARS, 0
    for skill in skills:
        line = f"- {skill.name}: {skill.description}"
        room -= len(line)
        if room < 0:
            left_out += 1
        else:
            lines.append(line)
    return "\n".join(lines) + (f"\n({left_out} more skills are not listed)" if left_out else "")
