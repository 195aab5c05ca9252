"""docs/tools.md from the specifications of the tools: `python -m tests.support.tool_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.host.environment import BUILT_IN
from tool_runtime.families.catalogue import NATIVE, SKILLS, specs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent_host.contracts import Display, ToolSpec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


class Detail(NamedTuple):
    """A field of an approval's details; `kind` is the type of its value, in the words of JSON."""

    name: str
    kind: str
    meaning: str
    optional: bool = False


class Shown(NamedTuple):
    """How a kind of call is shown: the beginning of `actionSummary`, and the details."""

    title: str
    summary: str
    details: tuple[Detail, ...]


_OTHERS = Detail("otherArguments", "string", "the arguments that no other field shows, as JSON", optional=True)
_PATH = Detail("path", "string", "the real path of the file")
_REQUESTED = Detail("requestedPath", "string", "the path in the call, if that is another one", optional=True)
_BINARY = Detail("binary", "true", "the content is not text and is not shown", optional=True)

SHOWN: Final[Mapping[Display, Shown]] = {
    "command": Shown(
        "A command",
        "Run: {command}` or `Run in the background: {command}",
        (
            Detail("command", "string", "the line, up to 40 KiB of it"),
            Detail("cwd", "string", "the directory it starts in"),
            Detail("shell", "string", "the shell that reads it: `sh`, `bash`, `zsh`, `cmd` or `powershell`"),
            Detail(
                "segments",
                "list of objects",
                "every program that would start: {program, arguments, dynamic}; null stands for a part that is only "
                "known when it runs, and `dynamic` is true if there is one",
            ),
            Detail("segmentsNotShown", "integer", "number of further programs", optional=True),
            Detail("writes", "list of strings", "the files that it writes; null: only known when it runs"),
            Detail("deletes", "list of strings", "the files that it deletes; null as above"),
            Detail("reads", "list of strings", "the files that it reads; null as above"),
            Detail("hosts", "list of strings", "the hosts of URLs and of ssh addresses in it"),
            Detail("dynamic", "boolean", "true if a part of it is only known when it runs"),
            Detail("doubts", "list of strings", "parts that could not be parsed, in words"),
            Detail("skill", "string", "of a skill's script: the name of the skill", optional=True),
            Detail("script", "string", "of a skill's script: the real path of the file", optional=True),
            Detail("scriptSha256", "string", "of a skill's script: the SHA-256 of its content", optional=True),
            Detail("stdinBytes", "integer", "size of the standard input", optional=True),
            Detail("stdin", "string", "up to 8 KiB of the standard input", optional=True),
            _OTHERS,
        ),
    ),
    "write": Shown(
        "A write",
        "Write: {path} (+{additions} −{deletions})`, or the size in place of the counts: `Write: {path} ({size} bytes)",
        (
            _PATH,
            _REQUESTED,
            Detail("action", "string", "`create` or `overwrite`"),
            Detail("sizeBefore", "integer", "in bytes; null for a file that is created"),
            Detail("sizeAfter", "integer", "in bytes; null for edits that do not fit the file"),
            Detail("additions", "integer", "lines added; missing if there is a `note`", optional=True),
            Detail("deletions", "integer", "lines removed; missing if there is a `note`", optional=True),
            Detail("diff", "string", "unified diff, up to 64 KiB of it", optional=True),
            _BINARY,
            Detail("note", "string", "instead of `diff`: why there is none", optional=True),
            _OTHERS,
        ),
    ),
    "delete": Shown(
        "A deletion",
        "Delete: {path}",
        (
            _PATH,
            _REQUESTED,
            Detail("exists", "boolean", "true if there is such a file"),
            Detail("sizeBytes", "integer", "its size; null if there is none"),
            _OTHERS,
        ),
    ),
    "move": Shown(
        "A move",
        "Move: {path} → {newPath}",
        (
            _PATH,
            _REQUESTED,
            Detail("newPath", "string", "the new path, links resolved"),
            Detail("exists", "boolean", "true if the new path exists already, so that the call would fail"),
            Detail("sizeBytes", "integer", "size of the file; null if there is none"),
            _OTHERS,
        ),
    ),
    "read": Shown(
        "A read",
        "Read: {path}",
        (_PATH, _REQUESTED, Detail("sizeBytes", "integer", "its size; null if there is none"), _OTHERS),
    ),
    "request": Shown(
        "A request",
        "{method} {url}",
        (
            Detail("method", "string", "in upper case"),
            Detail("url", "string", "up to 8 KiB of it"),
            Detail("host", "string", "the host, in one spelling", optional=True),
            Detail("note", "string", "instead of `host`: why the URL has none", optional=True),
            Detail("bodyFile", "string", "the real path of the file that is sent", optional=True),
            Detail("saveTo", "string", "the real path of the file that the response is saved to", optional=True),
            Detail("saveToExists", "boolean", "true if that file exists already", optional=True),
            Detail(
                "headers",
                "list of objects",
                "up to 50 of {name, value?}; without the value if the name indicates a secret",
                optional=True,
            ),
            Detail("headersNotShown", "integer", "number of further headers", optional=True),
            Detail("bodyBytes", "integer", "size of the body; missing if there is no such file", optional=True),
            Detail("body", "string", "up to 8 KiB of it", optional=True),
            _BINARY,
            _OTHERS,
        ),
    ),
    "upload": Shown(
        "An upload",
        "Upload: {path or name}",
        (
            _PATH._replace(optional=True, meaning="the real path of the file; missing for text of the model"),
            _REQUESTED,
            Detail("sizeBytes", "integer", "size of the content"),
            Detail("start", "string", "the first 4 KiB", optional=True),
            _BINARY,
            _OTHERS,
        ),
    ),
    "arguments": Shown("Any other call", "{tool} {arguments}", (_OTHERS,)),
}

_HEAD = """\
# Tools

Made from the specifications of the tools by `python -m tests.support.tool_page`.

The tools that the model can call, and the content of an approval request. A session offers the tools that its policy
could allow: `agent-host policy tools` lists them. The arguments of a call are in `tool_requested`, the outcome is in
`tool_completed` ([events.md](events.md)), the codes of failures are in [errors.md](errors.md#calls-of-tools).

The model reads each description, and the arguments as a JSON Schema without the rules below, because every request pays
for them; the error of a call that breaks a rule names it. An argument with `?` is optional; one that is not listed is
rejected. Paths are absolute, or relative to the workspace. `path` of ReadFile may also be a `storage_ref`. Arguments
that a client edits (`ApproveAction`) are checked by the same schema.
"""
_NATIVE = """
## The slim family

`--toolset slim` has six of these tools with short definitions, for models with small windows: ReadFile, WriteFile,
EditFile, ListDirectory, Grep and RunCommand. Names, capabilities and arguments are the same, except `background`.
The first request has about 850 tokens; that of the desktop family has about 1,750. ReadFile reads the rest of a cut
result. The slim family is the default if no toolset was chosen and the model's window is known to be below 16,000
tokens; a session keeps it.

## The native family

`--toolset native` selects it instead of the desktop family, or together with it if `--toolset desktop` is given as
well. Its tools run in the process of the host, and the text of an answer is a JSON object. Content that does not fit in
a result is cut, and a field says so. The tools are limited to `native.root_dir` of the user's configuration, by default
the workspace, and `native.additional_roots`. Arguments can only lower the limits.

An answer has at most `tools.max_output_bytes` (100 KiB) of JSON, less than a file of `cp__read_file` (1 MiB) or a body
of `cp__fetch` (2 MiB) may have. If one does not fit, four fifths of the answer are its beginning and one fifth its end,
with a line between them that gives the number of missing bytes. `truncated` or `body_truncated` is then true, `note`
names the stored full text, and `ReadOutput` reads it.

For the model an error begins with InvalidArgument, PermissionDenied, FileNotFound, CommandNotAllowed, DeadlineExceeded
or Internal. Events and results have the host's codes, as for any other tool: `tool_requested` has the id of the call
and the command, or the method and the URL, without secrets; `tool_completed` the exit code, the first 1 KiB of stderr
and the stored part of each stream. With the extra `otel`, `cp_tool_success_total` and `cp_tool_error_total` count the
calls of each tool ([opentelemetry.md](opentelemetry.md)).

`cp__exec` starts `ls`, `pwd`, `cat`, `grep`, `find`, `head`, `tail`, `echo`, `stat`, `wc` and `sleep` of `/bin` and
`/usr/bin`, with at most 12 arguments of letters, digits and `_-./@=+:,`; paths in them must be in the roots, with links
resolved. Options that start programs, change files or follow links (`find -delete`, `find -exec`, `grep -f`,
`grep -R`) are denied. Without a sandbox this list is guidance, not enforcement. Entries of `[[native.exec]]` in the
user's configuration add programs:

```toml
[[native.exec]]
command = "/usr/bin/git"      # absolute; on Windows it ends in .exe or .com
arguments = [{ index = 0, enum = ["status", "log", "diff"] }, { index = 1, pattern = '[\\w.-]+', optional = true }]
maxArguments = 2              # additionalArguments = false: no argument without a rule
```

Shell.Exec of the bundle also judges the call, as the line that would start it: both must allow it.
"""
_SKILLS = """
## The skills family

`--toolset skills` selects it, alone or with others. The text of an answer is a JSON object. It has an excerpt of long
content, and a field names the stored full text for `ReadOutput`. `list_dir` and `grep` skip and count files whose names
indicate secrets (`skills.hidden_files`).

`run_script`, `write_file`, `delete_file` and `network_request` are off until `skills.enabled_tools` of the user's
configuration names them; a workspace can only remove some. Each call of them needs an approval, whatever the policy
grants: from a person, for this call, the task or the session, or in advance by `--approve` with the name of the tool.
`--approve-all`, and the name of a rule or a capability, do not cover them.

`run_script` runs files of a skill's folder `scripts`, with links resolved. The first line of the script (`#!`), else
its file extension, selects the program that runs it; policy judges this program with its arguments as a command of
Shell.Exec, and an approval applies to the current content of the script. The script gets PATH, HOME, USER, LANG and
LC_ALL, and starts in an empty directory of its own in the session's folder, or in the skill's folder. A task may run
six (`skills.max_script_runs`), each for 30 seconds at most (`skills.script_timeout_s`).

For the model an error begins with ToolNotAllowed, ApprovalRequired, ApprovalDenied, PathTraversalBlocked, FileTooLarge,
Timeout, ExitNonZero or IOError; wrong arguments are INVALID_REQUEST, and a call that a crash interrupted is
TOOL_INTERRUPTED. Events and results have the host's codes.
"""
_APPROVALS = """
## What an approval shows

`details` of `approval_requested` and of each of `pendingApprovals` in `GetSessionState` is {toolName, capability,
toolCallId, ...}; the other fields depend on the tool. `actionSummary` is the call in one line, with paths relative to
the workspace. All of it is safe to show: secrets of the process are redacted, control and bidirectional characters are
escaped, and the total is below 140 KiB. Cut text is marked: a line ends with `…`, a longer text with a line
`[… N more characters are not shown]`, a list with an entry `[… N more]`. A field with `?` may be missing.
"""


def _rules(schema: Mapping[str, Any]) -> str:
    """Everything that a schema asks for beside the type. Raises KeyError for a keyword that this page does not know."""
    words: dict[str, Callable[[Any], str]] = {
        "minLength": lambda least: "not empty" if least == 1 else f"at least {least} characters",
        "maxLength": lambda most: f"at most {most} characters",
        "minimum": lambda least: f"at least {least}",
        "maximum": lambda most: f"at most {most}",
        "enum": lambda values: "one of " + ", ".join(f"`{value}`" for value in values),
        "additionalProperties": lambda member: f"values: {member['type']}",
        "minItems": lambda least: f"at least {least}",
        "items": lambda member: f"of {_member(member)}",
        "maxItems": lambda most: f"at most {most}",
        "pattern": lambda pattern: f"matches `{pattern}`",
    }
    rest = {key: value for key, value in schema.items() if key not in ("type", "description", "properties", "required")}
    if "properties" in schema:
        del rest["additionalProperties"]
    return ", ".join(words[key](value) for key, value in rest.items())


def _member(schema: Mapping[str, Any]) -> str:
    return _object(schema) if schema["type"] == "object" else f"{schema['type']}s"


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema["type"]
    return kind if isinstance(kind, str) else " or ".join(kind)


def _object(schema: Mapping[str, Any]) -> str:
    """A closed object in one line: its properties with their types."""
    marked = {name: f"{name}{'' if name in schema['required'] else '?'}" for name in schema["properties"]}
    return "{" + ", ".join(f"{marked[name]}: {_type(one)}" for name, one in schema["properties"].items()) + "}"


def _tool(spec: ToolSpec) -> Iterator[str]:
    schema = spec.input_schema
    if schema["additionalProperties"] is not False or set(schema) != {
        "type", "required", "properties", "additionalProperties",
    }:  # fmt: skip
        raise ValueError(f"{spec.name}: the page says that the schema is a closed object of properties")
    shown = SHOWN[spec.display].title
    again = "yes" if spec.side_effects else "no"
    yield f"\n## {spec.name}\n\n{spec.description}.\n\n"
    yield f"{_capabilities(spec)} Side effects: {again}. Approval: [{shown.lower()}](#{_anchor(shown)}).\n\n"
    yield from _table("argument", spec.schema_to_check)
    if spec.output_schema is not None:
        yield "\n"
        yield from _table("of the answer", spec.output_schema)


def _table(what: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"| {what} | type | rules | meaning |\n| --- | --- | --- | --- |\n"
    for name, one in schema["properties"].items():
        marked = f"`{name}`" + ("" if name in schema["required"] else "?")
        kind = _object(one) if one["type"] == "object" and "properties" in one else _type(one)
        yield f"| {marked} | {kind} | {_rules(one)} | {one.get('description', '')} |\n"


def _capabilities(spec: ToolSpec) -> str:
    """What policy judges a call by; of which argument, where there are several."""
    if not spec.also:
        return f"Capability: `{spec.capability}`."
    needed = [(spec.capability, spec.subject.argument), *((one.capability, one.subject.argument) for one in spec.also)]
    given = {one.subject.argument for one in spec.also if one.optional}
    said = (f"`{name}` of `{argument}`{' where it is given' * (argument in given)}" for name, argument in needed)
    return f"Capabilities: {', '.join(said)}."


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def page() -> str:
    """The page as it should be."""
    parts = [_HEAD]
    for spec in BUILT_IN:
        parts.extend(_tool(spec))
    parts.append(_NATIVE)
    for spec in specs_of((NATIVE,)):
        if BUILT_IN.get(spec.name) is None:
            parts.extend(_tool(spec))
    parts.append(_SKILLS)
    for spec in specs_of((SKILLS,)):
        if BUILT_IN.get(spec.name) is None:
            parts.extend(_tool(spec))
    parts.append(_APPROVALS)
    for title, summary, details in SHOWN.values():
        parts.append(f"\n### {title}\n\n`actionSummary`: `{summary}`\n\n")
        parts.append("| field | kind | meaning |\n| --- | --- | --- |\n")
        for name, kind, meaning, optional in details:
            parts.append(f"| `{name}`{'?' if optional else ''} | {kind} | {meaning} |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
