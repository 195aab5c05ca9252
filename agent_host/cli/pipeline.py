"""Output of a run for a pipeline: a summary in Markdown, a test report in JUnit's form, and marks in a CI runner's log.

All text of a model, a command or a file is inert in each: it is code in Markdown, text in XML, and `runner_log` escapes
it in marks.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import stat
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from agent_host.cli import GITHUB, notice, runner_log
from agent_host.clients.markdown import code_span, fenced
from agent_host.display_text import count_noun, one_line, tokens_in_words
from agent_host.events import RUN_ENDS, EventType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

    from agent_host.events.emitter import Event
    from agent_host.host.records import Result, WholePatch

_LINE_BYTES = 200
_TEXT_CHARS = 20_000
_LISTED = 100
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def title_of_end(details: Mapping[str, Any]) -> str:
    """The verdict, its reason and the party that ended the task: `failed: LLM_GATEWAY_ERROR, by infrastructure`."""
    why = f": {details['reason']}" if details.get("reason") not in (None, details["verdict"].upper()) else ""
    by = f", by {details['endedBy']}" if details.get("endedBy") else ""
    return f"{details['verdict']}{why}{by}"


def summary_of(
    result: Result, items: Sequence[Mapping[str, Any]], patch: WholePatch | None, *, prompt: str, resume: str | None
) -> str:
    """The summary in Markdown. `items` are those of the task's transcript, `resume` is the command that continues the
    session."""
    details = result.details
    usage = f"{count_noun(result.step_count, 'step')}, {tokens_in_words({**details, **details['usage']})}"
    spent = f"{details['durationMs'] / 1000:.1f} s"
    lines = [
        f"## agent-host: {code_span(title_of_end(details))}",
        "",
        f"{code_span(one_line(prompt, _LINE_BYTES))}",
        "",
        f"{code_span(str(details['model']))}, {usage}, {spent}, session `{result.session_id}`",
    ]
    if not result.completed and result.message:
        lines += ["", code_span(one_line(result.message, _TEXT_CHARS))]
    if result.unfinished and resume is not None:
        lines += ["", f"It continues with {code_span(resume)}."]
    lines += _changes(patch, details.get("changesUnseen"))
    lines += _commands(items)
    lines += _denials(result, items, resume)
    if result.text:
        lines += ["", "### Answer", "", *fenced(result.text[:_TEXT_CHARS])]
    return "\n".join(lines) + "\n"


def _changes(patch: WholePatch | None, unseen: str | None) -> Iterator[str]:
    if patch is None:
        return
    yield from ("", "### Changes", "")
    if not patch.files and not patch.omitted and unseen is None:
        yield "No file was changed."
    for file in patch.files[:_LISTED]:
        yield f"- {code_span(file.name)} {file.status}, +{file.additions} -{file.deletions}"
    if len(patch.files) > _LISTED:
        yield f"- and {len(patch.files) - _LISTED} more"
    for row in patch.omitted:
        yield f"- {code_span(row['path'])} is **not in the patch**: {code_span(row['why'])}"
    if unseen is not None:
        yield f"- **not all changes** by commands are known: {code_span(unseen)}"


def _commands(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    commands = [item for item in items if is_command(item)]
    if not commands:
        return
    yield from ("", "### Commands", "", "| exit code | command |", "| --- | --- |")
    for item in commands[:_LISTED]:
        yield f"| {_outcome(item)} | {code_span(_subject(item))} |"
    if len(commands) > _LISTED:
        yield f"| | and {len(commands) - _LISTED} more |"


def _denials(result: Result, items: Sequence[Mapping[str, Any]], resume: str | None) -> Iterator[str]:
    denied = [item for item in items if item.get("status") == "denied"]
    if not denied:
        return
    yield from ("", "### Denied", "")
    for item in denied[:_LISTED]:
        call = f"{item['toolName']} {_subject(item)}"
        yield f"- {code_span(call)}: {code_span(one_line(_why(item), _LINE_BYTES))}"
    if resume is not None:
        for row in result.details["deniedApprovals"]:
            replay = row["replay"]
            if "id" in replay:
                allow = f"{resume} --approve {replay['id']}"
                yield f"- to have that call of {code_span(row['toolName'])} run after all: {code_span(allow)}"


def junit_of(
    result: Result, items: Sequence[Mapping[str, Any]], exit_code: int, *, prompt: str, resume: str | None
) -> bytes:
    """The report in JUnit's form: a case for the task, failed if the exit code is not 0, one for each command, and a
    skipped one for each denied call. A command's exit code is only text, because a test that fails on the way to
    success must fail nothing."""
    details = result.details
    task = _case("agent-host", f"task: {one_line(prompt, _LINE_BYTES)}", details["durationMs"])
    if exit_code:
        failure = _add(task, "failure", message=f"exit code {exit_code}: {title_of_end(details)}")
        failure.text = _xml((result.message or "") + ("" if resume is None else f"\ncontinue with: {resume}"))
    _add(task, "system-out", result.text[:_TEXT_CHARS])
    cases = [task]
    for item in items:
        duration_ms = item.get("latencyMs", 0)
        if item.get("status") == "denied":
            cases.append(_case("agent-host.denied", f"{item['toolName']} {_subject(item)}", duration_ms))
            _add(cases[-1], "skipped", message=one_line(_why(item), _TEXT_CHARS))
        elif is_command(item):
            cases.append(_case("agent-host.command", _subject(item), duration_ms))
            _add(cases[-1], "system-out", f"{_outcome(item)}\n{item.get('output', '')[:_TEXT_CHARS]}")
    return _document("agent-host", cases, details["durationMs"], id=result.session_id)


class Tested(NamedTuple):
    """A case of a test of a policy: `problem` describes the difference from the expectation, "" if there is none;
    `error`: the case is invalid."""

    name: str
    problem: str = ""
    error: bool = False


def junit_of_policy(policy: str, cases: Iterable[Tested]) -> bytes:
    """The report on tests of a policy in JUnit's form."""
    rows = []
    for one in cases:
        row = _case("agent-host.policy", one.name, 0)
        if one.problem:
            _add(row, "error" if one.error else "failure", message=one.problem)
        rows.append(row)
    return _document(f"policy {policy}", rows, 0)


def _document(name: str, cases: Sequence[Element], duration_ms: int, **attributes: str) -> bytes:
    kinds = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    found = {name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in kinds}
    counts = {"tests": str(len(cases)), **found, "time": f"{duration_ms / 1000:.3f}"}
    suites = Element("testsuites", {"name": _xml(name), **counts})
    suite = SubElement(suites, "testsuite", {"name": _xml(name), **attributes, **counts})
    suite.extend(cases)
    indent(suites)
    return bytes(tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(classname: str, name: str, duration_ms: int) -> Element:
    return Element("testcase", classname=classname, name=_xml(name), time=f"{duration_ms / 1000:.3f}")


def _add(case: Element, tag: str, text: str | None = None, **attributes: str) -> Element:
    child = SubElement(case, tag, {name: _xml(value) for name, value in attributes.items()})
    child.text = None if text is None else _xml(text)
    return child


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def is_command(item: Mapping[str, Any]) -> bool:
    """True for a call that ran a command, or would have."""
    return item.get("kind") == "call" and item.get("status") != "denied" and command_line_of(item) is not None


def command_line_of(item: Mapping[str, Any]) -> str | None:
    """The command line of a call that runs a command; None for any other call."""
    given = item.get("editedArguments", item.get("arguments"))
    if not isinstance(given, dict):
        return None
    line = given.get("command", given.get("script"))
    if not isinstance(line, str):
        return None
    words = given.get("args")
    arguments = [shlex.quote(word) for word in words if isinstance(word, str)] if isinstance(words, list) else []
    return " ".join([line, *arguments])


def _subject(item: Mapping[str, Any]) -> str:
    given = item.get("editedArguments", item.get("arguments"))
    line = command_line_of(item)
    if line is None and isinstance(given, dict):
        line = next((given[name] for name in ("path", "url", "from") if isinstance(given.get(name), str)), "")
    return one_line(line or "", _LINE_BYTES)


def _outcome(item: Mapping[str, Any]) -> str:
    if "exitCode" in item:
        return f"exit code {item['exitCode']}"
    return str(item["status"]) + (f" {item['code']}" if "code" in item else "")


def _why(item: Mapping[str, Any]) -> str:
    return str(item.get("message") or item.get("output") or item.get("code") or "")


# Marks for the CI runner of this run: a group per step, annotations, the step's summary and outputs.
#
# Annotations come from failed commands: a line of their output that names a file of the workspace and a position in it,
# in the forms of compilers, linters and test programs. Of a command that was run again only the last run counts.

MOST_ANNOTATIONS: Final = 10
"""Maximum of each kind; GitHub's runner shows no more per step."""
MAX_SUMMARY_BYTES: Final = 1024 * 1024
"""Maximum size of a step's summary; the runner rejects a larger one."""
_MESSAGE_BYTES: Final = 1000
_MOST_REPLAYS: Final = 10
_MAX_LINES: Final = 20_000
_MAX_LINE_CHARS: Final = 1000
_CUT: Final = "\n\nThe rest of the summary is left out: it was too long for this page.\n"


class StepMarks:
    """A sink that makes the runner fold the output of each step of the task. `flush` ends an open line of prose."""

    def __init__(self, flush: Callable[[], None], stream: TextIO | None = None) -> None:
        self._flush = flush
        self._stream = sys.stderr if stream is None else stream
        self._open: str | None = None
        self._is_github = bool(os.environ.get(GITHUB))

    def take(self, event: Event) -> None:
        """Begin a group at each step, and end the previous one."""
        if event.event_type is EventType.STEP_STARTED:
            self.end()
            self._flush()
            self._open = title = f"step {event.payload['stepCount']}"
            if self._is_github:
                runner_log.write_github_command(self._stream, "group", title)
            else:
                runner_log.mark_gitlab_section(self._stream, "start", title, title, int(time.time()))
        elif event.event_type in RUN_ENDS:
            self.end()

    def flush(self) -> None:
        """Do nothing: marks are printed at once."""

    def end(self) -> None:
        """End the open group."""
        if self._open is None:
            return
        self._flush()
        if self._is_github:
            runner_log.write_github_command(self._stream, "endgroup")
        else:
            runner_log.mark_gitlab_section(self._stream, "end", self._open, "", int(time.time()))
        self._open = None

    def annotate(
        self,
        result: Result,
        items: Callable[[], Sequence[Mapping[str, Any]]],
        workspace: str,
        *,
        code: int,
        resume: str | None,
    ) -> None:
        """Print the annotations of a run that will exit with `code`, if the runner is GitHub's: the end of the task
        with the command that resumes it, then the findings of its failed commands about files. `items` returns those of
        the task's transcript."""
        if not self._is_github:
            return
        self._flush()
        rows: list[tuple[Kind, str, dict[str, str | int]]] = []
        if code:
            kind: Kind = "warning" if result.completed else "error"
            rows.append((kind, _words_of_end(result, resume), {"title": f"agent-host: {title_of_end(result.details)}"}))
        for one in findings_of(items(), workspace):
            place: dict[str, str | int] = {"file": one.file, "line": one.line}
            place |= {"col": one.column} if one.column else {}
            rows.append((one.kind, one_line(one.message, _MESSAGE_BYTES), place))
        given = Counter[Kind]()
        for kind, message, properties in rows:
            given[kind] += 1
            if given[kind] <= MOST_ANNOTATIONS:
                runner_log.write_github_command(self._stream, kind, message, **properties)


def _words_of_end(result: Result, resume: str | None) -> str:
    parts = [one_line(result.message or title_of_end(result.details), _MESSAGE_BYTES)]
    if resume is not None and result.unfinished:
        parts.append(f"resume with: {resume}")
    elif resume is not None:
        denied = (row["replay"] for row in result.details["deniedApprovals"])
        replays = dict.fromkeys(replay["id"] for replay in denied if "id" in replay)
        parts += [f"to have that call run after all: {resume} --approve {one}" for one in list(replays)[:_MOST_REPLAYS]]
    return "; ".join(parts)


# Findings of failed commands about files.

Kind = Literal["error", "warning"]


class Finding(NamedTuple):
    """A position in a file, relative to the repository, and a command's message about it; `column` 0 is unknown."""

    kind: Kind
    file: str
    line: int
    column: int
    message: str


def findings_of(items: Sequence[Mapping[str, Any]], workspace: str) -> list[Finding]:
    """The findings of failed commands, in order and without duplicates. `items` are those of a transcript, `workspace`
    is a real path."""
    last: dict[tuple[str | None, Any], Mapping[str, Any]] = {}
    for item in items:
        if is_command(item):
            key = (command_line_of(item), _folder_of(item))
            last.pop(key, None)
            last[key] = item
    found: dict[Finding, None] = {}
    places = _WorkspaceFiles(workspace)
    for item in last.values():
        if item.get("exitCode"):
            folder = os.path.join(workspace, _folder_of(item))
            reader = _OutputReader()
            for line in str(item.get("output", "")).splitlines()[:_MAX_LINES]:
                one = reader.read(_COLOUR.sub("", line).rstrip()) if len(line) <= _MAX_LINE_CHARS else None
                file = None if one is None else places.relative(one.file, folder)
                if one is not None and file is not None:
                    found[one._replace(file=file)] = None
    return list(found)


def _folder_of(item: Mapping[str, Any]) -> str:
    given = item.get("editedArguments", item.get("arguments"))
    folder = given.get("cwd") if isinstance(given, dict) else None
    return folder if isinstance(folder, str) else ""


class _WorkspaceFiles:
    """Files of the workspace by the runner's names: relative to the root of the repository, if that is known."""

    def __init__(self, workspace: str) -> None:
        self._workspace = os.path.realpath(workspace)
        root = os.path.realpath(os.environ.get("GITHUB_WORKSPACE") or self._workspace)
        self._root = root if _is_below(self._workspace, root) else self._workspace
        self._known: dict[tuple[str, str], str | None] = {}

    def relative(self, name: str, folder: str) -> str | None:
        """The name from the root of a file that a command, running in `folder`, named; None if the file does not exist
        or is not in the workspace."""
        key = (name, folder)
        if key not in self._known:
            self._known[key] = None
            for place in (folder, self._workspace):
                with contextlib.suppress(OSError, ValueError):
                    path = os.path.realpath(os.path.join(place, name))
                    if _is_below(path, self._workspace) and os.path.isfile(path):
                        self._known[key] = os.path.relpath(path, self._root).replace(os.sep, "/")
                        break
        return self._known[key]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


_FILE: Final = r"(?P<file>(?:[A-Za-z]:)?[^\s:()\"'<>|*?][^:()\"'<>|*?\n]*?)"
_WORD: Final = r"(?P<kind>fatal error|error|warning|note|info|help)"
# gcc, clang, go, mypy, ruff, flake8, pytest, eslint's unix form and their like; tsc without and with colours.
_COLONS: Final = re.compile(
    rf"{_FILE}:(?P<line>\d{{1,7}})(?::(?P<column>\d{{1,5}}))?(?::| -)\s+(?:{_WORD}\b:?\s*)?(?P<message>\S.*)"
)
_BRACKETS: Final = re.compile(
    rf"{_FILE}\((?P<line>\d{{1,7}})(?:,(?P<column>\d{{1,5}}))?\)\s*:\s+(?:{_WORD}\b:?\s*)?(?P<message>\S.*)"
)
_PYTHON_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"\n]+)", line (?P<line>\d{1,7})(?:, in .*)?')
_PYTHON_END: Final = re.compile(r"(?P<message>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Failure)\b.*)")
_RUST_HEAD: Final = re.compile(r"(?P<kind>error|warning)(?:\[\w+\])?: (?P<message>.+)")
_RUST_PLACE: Final = re.compile(rf"\s*--> {_FILE}:(?P<line>\d{{1,7}}):(?P<column>\d{{1,5}})")
_RUST_PANIC: Final = re.compile(rf"thread '[^']*'[^']* panicked at {_FILE}:(?P<line>\d{{1,7}}):(?P<column>\d{{1,5}}):?")
_ESLINT_ROW: Final = re.compile(
    r"\s+(?P<line>\d{1,7}):(?P<column>\d{1,5})\s+(?P<kind>error|warning)\s+(?P<message>\S.*)"
)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*[mK]")


class _OutputReader:
    """Reads output line by line; some forms name the file on another line than the message."""

    def __init__(self) -> None:
        self._frame: re.Match[str] | None = None
        self._head: re.Match[str] | None = None
        self._panic: re.Match[str] | None = None
        self._eslint = ""

    def read(self, line: str) -> Finding | None:
        """Return the finding that `line` completes."""
        if self._panic is not None:
            panic, self._panic = self._panic, None
            return _finding(panic, message=line.strip() or "panicked")
        return self._read_traceback(line) or self._read_rust(line) or self._read_eslint(line) or self._read_one(line)

    def _read_traceback(self, line: str) -> Finding | None:
        frame = _PYTHON_FRAME.fullmatch(line)
        if frame is not None:
            self._frame = frame
            return None
        end = _PYTHON_END.fullmatch(line)
        if end is None or self._frame is None:
            return None
        frame, self._frame = self._frame, None
        return _finding(frame, message=end["message"])

    def _read_rust(self, line: str) -> Finding | None:
        self._panic = _RUST_PANIC.fullmatch(line)
        head = _RUST_HEAD.fullmatch(line)
        if head is not None:
            self._head = head
            return None
        place = _RUST_PLACE.fullmatch(line)
        if place is None or self._head is None:
            return None
        head, self._head = self._head, None
        return _finding(place, message=head["message"], kind=head["kind"])

    def _read_eslint(self, line: str) -> Finding | None:
        row = _ESLINT_ROW.fullmatch(line)
        if row is not None and self._eslint:
            return Finding(_kind_of(row["kind"]), self._eslint, int(row["line"]), int(row["column"]), row["message"])
        if line and not line.startswith(" "):
            self._eslint = line if "/" in line or "\\" in line or "." in line else ""
        return None

    def _read_one(self, line: str) -> Finding | None:
        found = _COLONS.fullmatch(line) or _BRACKETS.fullmatch(line)
        if found is None or found["kind"] in ("note", "info", "help"):
            return None
        return _finding(found, message=found["message"], kind=found["kind"])


def _finding(found: re.Match[str], *, message: str, kind: str | None = None) -> Finding:
    column = int(found.groupdict().get("column") or 0)
    return Finding(_kind_of(kind), found["file"].strip(), int(found["line"]), column, message)


def _kind_of(word: str | None) -> Kind:
    return "warning" if word == "warning" else "error"


# The files of the step.


def append_summary(path: str, text: str) -> None:
    """Add `text` to the step's summary, up to the runner's limit. A failure is only reported."""
    data = text.encode("utf-8", "replace")

    def cut(size: int) -> bytes:
        room = MAX_SUMMARY_BYTES - size
        if len(data) <= room:
            return data
        kept = data[: max(0, room - len(_CUT))]
        return kept[: kept.rfind(b"\n") + 1] + (_CUT.encode() if kept else b"")

    _append(path, cut)


def append_outputs(path: str, values: Mapping[str, str]) -> None:
    """Add outputs of the step. The delimiter is random, so no value can contain it."""
    text = ""
    for name, value in values.items():
        word = f"agent-host-{secrets.token_hex(16)}"
        text += f"{name}<<{word}\n{value}\n{word}\n"
    _append(path, lambda _: text.encode("utf-8", "replace"))


def _append(path: str, make: Callable[[int], bytes]) -> None:
    """Append to a regular file the bytes that `make` returns for its size."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with os.fdopen(os.open(path, flags, 0o644), "ab", buffering=0) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(0, "it is not a regular file")
            data = memoryview(make(found.st_size))
            while data:
                data = data[file.write(data) or 0 :]
    except OSError as error:
        notice(f"{path} was not written: {error.strerror}")
