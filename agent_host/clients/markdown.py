"""A session as Markdown: its result, cost and actions, in folds, short enough for a pull request or an issue; or
complete, as chat writes it to a file.

The text of a session is hostile here as well: all of it is code, in a span or a fence that it cannot end, so that it
makes no link, picture, mention or HTML.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from agent_host.display_text import count_noun, escape, one_line, tokens_in_words
from agent_host.errors import UsageError
from agent_host.host.records import MARK_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host import Item, Transcript

MOST_BYTES: Final = 60_000
"""Maximum of the whole, because a GitHub comment has at most 65,536 characters."""
_MOST_OF_ONE: Final = 2000
_LINE_BYTES: Final = 300
_LISTED: Final = 20
_NAMED: Final = ("command", "path", "url", "pattern", "query")


def code_span(text: str) -> str:
    """Text as inert code in a line of Markdown, also in a table."""
    text = " ".join(text.split()).replace("|", "\u2502")
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if text else ""


def fenced(text: str) -> list[str]:
    """Lines of text in a fence that they cannot end."""
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return [f"{ticks}text", *text.splitlines(), ticks]


def session_markdown(transcript: Transcript, *, option: str = "", whole: bool = False) -> str:
    """The session in Markdown, cut if it is too long for a comment, unless `whole`; `option` is the option of its
    commands for the state directory."""
    head, end = "".join(_head(transcript, option, whole=whole)), "".join(_end(transcript))
    steps, parts = list[str](), list(_parts(transcript, whole=whole))
    room = MOST_BYTES - len(head.encode()) - len(end.encode())
    for number, part in enumerate(parts):
        room -= 0 if whole else len(part.encode())
        if room < _LINE_BYTES and not whole:
            steps.append(f"\n{count_noun(len(parts) - number, 'more step')} are not shown.\n")
            break
        steps.append(part)
    return "".join([head, *steps, end])


def _line(text: object) -> str:
    return code_span(one_line(str(text), _LINE_BYTES))


def _block(text: str, *, whole: bool = False) -> str:
    shown = escape(text).rstrip("\n")
    if len(shown) > _MOST_OF_ONE and not whole:
        half = _MOST_OF_ONE // 2
        shown = f"{shown[:half]}\n[… {len(shown) - 2 * half:,} more characters …]\n{shown[-half:]}"
    return "\n".join(["", *fenced(shown), "", ""])


def _head(transcript: Transcript, option: str, *, whole: bool) -> Iterator[str]:
    row, items = transcript.row, transcript.items
    yield f"### {_line(row.title or row.session_id)}\n\n"
    calls = [item for item in items if item["kind"] == "call"]
    counts = {name: sum(item["status"] == name for item in calls) for name in ("failed", "denied", "open")}
    by_status = "".join(f", {count} {name}" for name, count in counts.items() if count)
    yield f"**{row.verdict}** {_line(row.description)}: {count_noun(len(transcript.steps), 'step')}, "
    yield f"{count_noun(len(calls), 'call')}{by_status}"
    yield f"; {tokens_in_words(row.usage)}\n\n" if row.usage else "\n\n"
    last = next((one for one in reversed(items) if one["kind"] == "message" and one["role"] == "assistant"), None)
    if last is not None and last["text"].strip() and not whole:
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


def _parts(transcript: Transcript, *, whole: bool) -> Iterator[str]:
    """Each step in a fold, and the items between steps: further prompts of the user, and marks."""
    usage = {step["step"]: step for step in transcript.steps}
    for step, group in groupby(transcript.items, key=lambda item: item.get("step")):
        items = list(group)
        if step is None:
            yield from (_between(item, whole=whole) for item in items if item.get("text") != transcript.row.title)
            continue
        turn = usage.pop(step, {})  # a mark may be within a step, which is then split in two
        words = f", {tokens_in_words(turn)}" if "inputTokens" in turn else ""
        count = sum(item["kind"] == "call" for item in items)
        yield f"<details><summary>Step {step}: {count_noun(count, 'call')}{words}</summary>\n\n"
        yield f"{''.join(_item(item, whole=whole) for item in items)}\n</details>\n"


def _between(item: Item, *, whole: bool) -> str:
    if item["kind"] == "message":
        text = _block(item["text"], whole=whole)
        return f"\n**You**\n{text}" if whole else f"<details><summary>Prompt</summary>\n{text}</details>\n"
    is_end = item["kind"] == "mark" and item["mark"].endswith("_completed")  # part of the verdict
    return "" if is_end else f"\n{_item(item, whole=whole)}\n"


def _item(item: Item, *, whole: bool) -> str:
    if item["kind"] == "message":
        return _block(item["text"], whole=whole) if item["text"].strip() else ""
    if item["kind"] == "mark":
        words = MARK_WORDS.get(item["mark"], item["mark"].replace("_", " "))
        text = item.get("text") or item.get("message") or ""
        shown = _block(text) if whole and text else f" {_line(text)}\n"
        return f"- {_line(item['timestamp'])} {words}{shown}"
    given = item.get("editedArguments", item["arguments"])
    subject = next((given[name] for name in _NAMED if name in given), "") if isinstance(given, dict) else ""
    outcome = item.get("code") or (f"exit code {item['exitCode']}" if item.get("exitCode") else item["status"])
    rule = f", {_line(item['decision'] + ' by ' + item.get('rule', ''))}" if "decision" in item else ""
    arguments = _block(json.dumps(given, indent=2, ensure_ascii=False), whole=True) if whole else ""
    shows = whole or item["status"] != "succeeded" or item.get("exitCode")
    output = _block(item["output"], whole=whole) if shows and item.get("output") else ""
    return f"- {_line(item['toolName'])} {_line(subject)}: {_line(outcome)}{rule}\n{arguments}{output}"


def _end(transcript: Transcript) -> Iterator[str]:
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
