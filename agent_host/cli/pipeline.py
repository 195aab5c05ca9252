"""A run as a pipeline shows it: a summary in Markdown, and a test report in JUnit's form.

All text of a model, a command or a file is inert in both: it is code in Markdown, and text in XML.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from agent_host.clients.markdown import code_span, fenced
from agent_host.display_text import count_noun, one_line, tokens_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent_host.host.records import Result, WholePatch

_LINE_BYTES = 200
_TEXT_CHARS = 20_000
_LISTED = 100
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def title_of_end(details: Mapping[str, Any]) -> str:
    """The verdict, why and who ended it: `failed: LLM_GATEWAY_ERROR, by infrastructure`."""
    why = f": {details['reason']}" if details.get("reason") not in (None, details["verdict"].upper()) else ""
    by = f", by {details['endedBy']}" if details.get("endedBy") else ""
    return f"{details['verdict']}{why}{by}"


def summary_of(
    result: Result, items: Sequence[Mapping[str, Any]], patch: WholePatch | None, *, prompt: str, resume: str | None
) -> str:
    """The summary in Markdown. `items` are those of the task's transcript, `resume` is the command that continues the
    session."""
    details = result.details
    took = f"{count_noun(result.step_count, 'step')}, {tokens_in_words({**details, **details['usage']})}"
    spent = f"{details['durationMs'] / 1000:.1f} s"
    lines = [
        f"## agent-host: {code_span(title_of_end(details))}",
        "",
        f"{code_span(one_line(prompt, _LINE_BYTES))}",
        "",
        f"{code_span(str(details['model']))}, {took}, {spent}, session `{result.session_id}`",
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
    """The report in JUnit's form: a case for the task, failed where the exit code is not 0, one for each command, and
    a skipped one for each call that was denied. A command's exit code is text: a test that is red on the way to green
    fails nothing."""
    details = result.details
    cases: list[Element] = []
    task = _case("agent-host", f"task: {one_line(prompt, _LINE_BYTES)}", details["durationMs"])
    if exit_code:
        how = "" if resume is None else f"\ncontinue with: {resume}"
        failure = SubElement(task, "failure", message=_xml(f"exit code {exit_code}: {title_of_end(details)}"))
        failure.text = _xml(f"{result.message or ''}{how}")
    SubElement(task, "system-out").text = _xml(result.text[:_TEXT_CHARS])
    cases.append(task)
    for item in items:
        if item.get("status") == "denied":
            case = _case("agent-host.denied", f"{item['toolName']} {_subject(item)}", item.get("latencyMs", 0))
            SubElement(case, "skipped", message=_xml(one_line(_why(item), _TEXT_CHARS)))
            cases.append(case)
        elif is_command(item):
            case = _case("agent-host.command", _subject(item), item.get("latencyMs", 0))
            SubElement(case, "system-out").text = _xml(f"{_outcome(item)}\n{item.get('output', '')[:_TEXT_CHARS]}")
            cases.append(case)
    return _document("agent-host", cases, details["durationMs"], id=result.session_id)


class Tested(NamedTuple):
    """A case of a test of a policy: `problem` is what is not as expected, "" for nothing; `error`: it is unusable."""

    name: str
    problem: str = ""
    error: bool = False


def junit_of_policy(policy: str, cases: Iterable[Tested]) -> bytes:
    """The report on tests of a policy in JUnit's form."""
    rows = []
    for one in cases:
        row = _case("agent-host.policy", one.name, 0)
        if one.problem:
            SubElement(row, "error" if one.error else "failure", message=_xml(one.problem))
        rows.append(row)
    return _document(f"policy {policy}", rows, 0)


def _document(name: str, cases: Sequence[Element], duration_ms: int, **more: str) -> bytes:
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{duration_ms / 1000:.3f}",
    }
    suites = Element("testsuites", {"name": _xml(name), **counts})
    suite = SubElement(suites, "testsuite", {"name": _xml(name), **more, **counts})
    suite.extend(cases)
    indent(suites)
    return bytes(tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(classname: str, name: str, duration_ms: int) -> Element:
    return Element("testcase", classname=classname, name=_xml(name), time=f"{duration_ms / 1000:.3f}")


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


def is_command(item: Mapping[str, Any]) -> bool:
    """True for a call that ran a command, or was to."""
    return item.get("kind") == "call" and item.get("status") != "denied" and command_line_of(item) is not None


def command_line_of(item: Mapping[str, Any]) -> str | None:
    """The line of a call that runs a command; None for any other call."""
    given = item.get("editedArguments", item.get("arguments"))
    if not isinstance(given, dict):
        return None
    line = given.get("command", given.get("script"))
    if not isinstance(line, str):
        return None
    words = given.get("args")
    more = [shlex.quote(word) for word in words if isinstance(word, str)] if isinstance(words, list) else []
    return " ".join([line, *more])


def _subject(item: Mapping[str, Any]) -> str:
    """The command, path or URL of a call, in one line."""
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
