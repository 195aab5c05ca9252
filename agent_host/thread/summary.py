"""A summary of the conversation in the place of its older part (AH 5.4, phase 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.thread.messages import Message, encodable
from agent_host.thread.tokens import message_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHARS: Final = 32_000
"""A longer summary is cut."""
QUESTION: Final = (
    "[The conversation is too long to go on with. Write down what is needed to finish the task without it: the user's "
    "request and every condition that was set; decisions, and why; files that were read or changed, with their paths; "
    "commands that were run, and their outcome; what is left to do. Call no tools. Answer with these notes only.]"
)


def question(count: Callable[[str], int]) -> Message:
    """The message that asks for a summary."""
    return Message("system", QUESTION, message_tokens(count, QUESTION))


def summary_message(text: str, count: Callable[[str], int]) -> Message:
    """The summary `text` as it stands in a request, behind the note that says how many messages were left out."""
    shown = encodable(f"[Your own notes on them:]\n{text}")
    return Message("system", shown, message_tokens(count, shown))
