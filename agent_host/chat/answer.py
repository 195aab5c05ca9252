"""The model's text as it comes, cut into blocks of Markdown that are final, so that each is printed once.

A block is final when the next one begins. What was printed cannot be taken back: a terminal's scrollback is not ours.
So where an answer begins again (the gateway failed, the process died), its new text is compared with what stands there
already, and only what is new is printed. If it says something else, a mark says that it does, and all of it follows.

Items of a transcript are printed in the form that events have, so that a conversation that is continued looks as it
was.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.chat.activity import CommandOutput, subject_of
from agent_host.chat.paper import end_in_words, result_line
from agent_host.terminal.markdown import MarkdownBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent_host.chat.conversation import Conversation

BEGINS_AGAIN: Final = None
"""In place of a block: the text above was taken back, and what follows is another answer."""


class AnswerText:
    """The text of one answer after the other."""

    def __init__(self) -> None:
        self._blocks = MarkdownBlocks()
        self._text = ""
        self._before = ""  # what an attempt has printed that was taken back
        self._held = ""  # text that is the same as that so far

    @property
    def growing(self) -> str:
        """The block that is not final yet."""
        return "" if self._before else self._blocks.open

    def add(self, text: str) -> Iterator[str | None]:
        """Yield the blocks that `text` makes final."""
        if self._before:
            self._held += text
            if self._before.startswith(self._held) and self._held != self._before:
                return
            yield from self._compare()
            return
        yield from self._cut(text)

    def end(self, *, is_whole: bool = True) -> Iterator[str | None]:
        """Yield what is left of the answer, which is whole or was broken off."""
        if self._before and (is_whole or not self._before.startswith(self._held)):
            yield from self._compare()
        rest = self._blocks.end()
        if rest.strip():
            yield rest
        self._text = self._before = self._held = ""

    def take_back(self) -> None:
        """Expect the answer to begin again."""
        self._before = self._before or self._text.removesuffix(self._blocks.end())
        self._text = self._held = ""

    def _compare(self) -> Iterator[str | None]:
        before, held = self._before, self._held
        self._before = self._held = ""
        if held.startswith(before):
            self._text, held = before, held[len(before) :]
        else:
            yield BEGINS_AGAIN
        yield from self._cut(held)

    def _cut(self, text: str) -> Iterator[str]:
        self._text += text
        yield from self._blocks.add(text)


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
