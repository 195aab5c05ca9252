"""Results whose text is left out of requests to make room: the record keeps it, and the model can read it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent_host.thread.messages import Message

RESULTS: Final = "results/"
"""The references of results in the thread begin so; the id of the call follows."""
MIN_TOKENS: Final = 200
"""A smaller result stays: what would stand in its place is not much shorter."""
_LEFT_TOKENS: Final = 60
_HEAD_CHARS: Final = 1_000
_HEAD_FROM_TOKENS: Final = 2_000
"""So large a result keeps its start, which says what it is and costs little of it."""


def cleared(result: Message) -> Message:
    """The result with a note in the place of its text and pictures, where that is shorter; a very large one keeps its
    start. The note names the reference that ReadOutput takes."""
    if result.role != "tool" or result.tokens < MIN_TOKENS:
        return result
    shown = result.content[:_HEAD_CHARS] if result.tokens >= _HEAD_FROM_TOKENS else ""
    note = (
        f"[{len(result.content) - len(shown)} characters of output were left out to make room. ReadOutput with the ref "
        f"{RESULTS}{result.tool_call_id}, or ReadFile with it as the path, gives them again.]"
    )
    tokens = _LEFT_TOKENS + -(-result.tokens * len(shown) // max(1, len(result.content)))
    if tokens >= result.tokens:  # its tokens are those of its pictures
        shown, tokens = "", _LEFT_TOKENS
    return result._replace(content=f"{shown}\n{note}" if shown else note, tokens=tokens, images=())


def saved_by_clearing(result: Message) -> int:
    """Tokens that `cleared` takes away."""
    return result.tokens - cleared(result).tokens
