"""Items of a transcript on the terminal, in the form that events have there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.chat.activity import CommandOutput, subject_of
from agent_host.chat.paper import end_in_words, result_line
from agent_host.terminal.markdown import MarkdownBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.chat.conversation import Conversation

_STREAMS: Final = re.compile(r"^--- (stdout|stderr) ---\n", re.MULTILINE)
_COMMANDS: Final = frozenset({"RunCommand", "cp__exec", "run_script"})
_MARKS: Final = {
    "crashed": "the process of the session died here",
    "session_resumed": "the session was resumed",
    **dict.fromkeys(("session_paused", "task_failed", "task_cancelled", "session_failed"), ""),
}


def print_item(chat: Conversation, item: Mapping[str, Any]) -> None:
    """Print one item."""
    for text in _texts(chat, item):
        chat.face.print(text)


def _texts(chat: Conversation, item: Mapping[str, Any]) -> Iterator[str]:
    paper = chat.paper
    if item["kind"] == "message" and item["role"] == "user":
        yield paper.prompt(item["text"])
    elif item["kind"] == "message":
        chat.mark_printed(str(item.get("stepId", "")))
        blocks = MarkdownBlocks()
        for block in [*blocks.add(item["text"]), blocks.end()]:
            if block.strip():
                yield paper.answer(block)
    elif item["kind"] == "call":
        if item["status"] != "open":
            yield _call(chat, item)
    elif item["mark"] == "task_steered":
        yield paper.prompt(str(item.get("text", "")), steers=True)
    elif item["mark"] == "context_compacted":
        yield paper.notice("requests show less of the conversation from here on; the record keeps all of it")
    elif item["mark"] in _MARKS:
        yield paper.notice(_MARKS[item["mark"]] or end_in_words(item["mark"], item))


def _call(chat: Conversation, item: Mapping[str, Any]) -> str:
    chat.mark_printed(item["itemId"])
    arguments = item["arguments"] if isinstance(item["arguments"], dict) else {}
    subject = subject_of(arguments, "", chat.workspace)
    output = CommandOutput()
    if item["toolName"] in _COMMANDS:
        output = _printed_by(str(item.get("output", "")))
        chat.last_output = (f"{item['toolName']} {subject}", output, item)
    return chat.paper.call(
        item["toolName"],
        subject,
        status=item["status"],
        result=result_line(item),
        tail=output.tail,
        hidden=output.hidden,
        diff=chat.diff_of(item),
    )


def _printed_by(output: str) -> CommandOutput:
    """The lines of a command's streams in what the model read of it."""
    found = CommandOutput()
    parts = _STREAMS.split(output)
    for text in parts[2::2] if len(parts) > 1 else ():
        found.add("all", text.rstrip("\n") + "\n" if text.strip() else "")
    return found
