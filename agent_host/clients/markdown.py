"""A session as Markdown, for a pull request or an issue: what came of it, what it cost, what it did, in folds.

The text of a session is hostile here as well: all of it is code, in a span or a fence that it cannot end, so that it
makes no link, no picture, no mention and no HTML.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.display_text import count_noun, escape, one_line, tokens_in_words
from agent_host.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host import Item, Transcript

MOST_BYTES: Final = 60_000
"""Of the whole: a comment of GitHub has at most 65,536 characters."""
_MOST_OF_ONE: Final = 2000
_LINE_BYTES: Final = 300
_LISTED: Final = 20
_NAMED: Final = ("command", "path", "url", "pattern", "query")


def code_span(text: str) -> str:
    """Text as code in a line of Markdown, where it means nothing, also in a table."""
    text = " ".join(text.split()).replace("|", "\u2502")
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if text else ""


def fenced(text: str) -> list[str]:
    """Lines of text in a fence that they do not end."""
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return [f"{ticks}text", *text.splitlines(), ticks]


def session_markdown(transcript: Transcript, *, option: str = "") -> str:
    """The session in Markdown, cut where it becomes too long for a comment; `option` is what its commands need to find
    the state directory."""
    head, end = "".join(_head(transcript, option)), "".join(_end(transcript))
    steps, parts = list[str](), list(_steps(transcript))
    room = MOST_BYTES - len(head.encode()) - len(end.encode())
    for number, part in enumerate(parts):
        room -= len(part.encode())
        if room < _LINE_BYTES:
            steps.append(f"\n{count_noun(len(parts) - number, 'more step')} are not shown.\n")
            break
        steps.append(part)
    return "".join([head, *steps, end])


def _line(text: object) -> str:
    return code_span(one_line(str(text), _LINE_BYTES))


def _block(text: str) -> str:
    shown = escape(text).rstrip("\n")
    if len(shown) > _MOST_OF_ONE:
        half = _MOST_OF_ONE // 2
        shown = f"{shown[:half]}\n[… {len(shown) - 2 * half:,} more characters …]\n{shown[-half:]}"
    return "\n".join(["", *fenced(shown), "", ""])


def _head(transcript: Transcript, option: str) -> Iterator[str]:
    row, items = transcript.row, transcript.items
    yield f"### {_line(row.title or row.session_id)}\n\n"
    calls = [item for item in items if item["kind"] == "call"]
    counts = {name: sum(item["status"] == name for item in calls) for name in ("failed", "denied", "open")}
    said = "".join(f", {count} {name}" for name, count in counts.items() if count)
    yield f"**{row.verdict}** {_line(row.description)}: {count_noun(len(transcript.steps), 'step')}, "
    yield f"{count_noun(len(calls), 'call')}{said}"
    yield f"; {tokens_in_words(row.usage)}\n\n" if row.usage else "\n\n"
    if row.prompt.strip() not in ("", row.title):
        yield f"<details><summary>Prompt</summary>\n{_block(row.prompt)}</details>\n\n"
    last = next((one for one in reversed(items) if one["kind"] == "message" and one["role"] == "assistant"), None)
    if last is not None and last["text"].strip():
        yield _block(last["text"])
    waiting = list(_waiting(transcript, calls, option))
    if waiting:
        yield f"**What needs a person**\n\n{''.join(waiting[:_LISTED])}\n"


def _waiting(transcript: Transcript, calls: list[Item], option: str) -> Iterator[str]:
    for asked in transcript.questions:
        command = f"agent-host approve {asked['approvalId']}{option}"
        yield f"- {_line(asked.get('actionSummary', ''))} waits for an approval: {_line(command)}\n"
    if transcript.row.resumable:
        yield f"- it can go on: {_line(f'agent-host resume {transcript.row.session_id}{option}')}\n"
    for item in calls:
        replay: Mapping[str, Any] = item.get("approval", {}).get("replay", {})
        if item["status"] == "denied" and "command" in replay:
            yield f"- {_line(item['toolName'])} was not approved: {_line(str(replay['command']) + option)}\n"


def _steps(transcript: Transcript) -> Iterator[str]:
    usage = {step["step"]: step for step in transcript.steps}
    by_step: dict[int, list[Item]] = {}
    for item in transcript.items:
        if "step" in item:
            by_step.setdefault(item["step"], []).append(item)
    for step, items in by_step.items():
        turn = usage.get(step, {})
        words = f", {tokens_in_words(turn)}" if "inputTokens" in turn else ""
        count = sum(item["kind"] == "call" for item in items)
        yield f"<details><summary>Step {step}: {count_noun(count, 'call')}{words}</summary>\n\n"
        yield f"{''.join(map(_item, items))}\n</details>\n"


def _item(item: Item) -> str:
    if item["kind"] == "message":
        return _block(item["text"]) if item["text"].strip() else ""
    if item["kind"] == "mark":
        return f"- {_line(item['mark'].replace('_', ' '))} {_line(item.get('message') or '')}\n"
    given = item.get("editedArguments", item["arguments"])
    subject = next((given[name] for name in _NAMED if name in given), "") if isinstance(given, dict) else ""
    outcome = item.get("code") or (f"exit code {item['exitCode']}" if item.get("exitCode") else item["status"])
    rule = f", {_line(item['decision'] + ' by ' + item.get('rule', ''))}" if "decision" in item else ""
    shows = item["status"] != "succeeded" or item.get("exitCode")
    output = _block(item["output"]) if shows and item.get("output") else ""
    return f"- {_line(item['toolName'])} {_line(subject)}: {_line(outcome)}{rule}\n{output}"


def _end(transcript: Transcript) -> Iterator[str]:
    words = {"crashed": "the process ended without a word", "session_resumed": "resumed"}
    marks = [item for item in transcript.items if item["kind"] == "mark" and item["mark"] in words]
    if marks:
        yield "\n" + "".join(f"- {_line(item['timestamp'])} {words[item['mark']]}\n" for item in marks)
    if transcript.doubts:
        yield "\n**What is not proved**\n\n"
        yield "".join(f"- {_line(doubt.message)}\n" for doubt in transcript.doubts[:_LISTED])
    try:
        files = transcript.files()
    except UsageError as error:
        yield f"\nThe changes are not known: {_line(error)}\n"
        return
    if files:
        rows = [f"- {_line(one.file_path)} {one.status}, +{one.additions} -{one.deletions}\n" for one in files[:50]]
        yield f"\n**{count_noun(len(files), 'file')} changed**\n\n{''.join(rows)}"
