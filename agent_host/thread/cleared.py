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


def cleared(result: Message) -> Message:
    """The result with a note in the place of its text and pictures, where that is shorter. The note names the reference
    that ReadOutput takes."""
    if result.role != "tool" or result.tokens < MIN_TOKENS:
        return result
    note = (
        f"[{len(result.content)} characters of output were left out to make room. ReadOutput with the ref "
        f"{RESULTS}{result.tool_call_id}, or ReadFile with it as the path, gives them again.]"
    )
    return result._replace(content=note, tokens=_LEFT_TOKENS, images=())


def saved_by_clearing(result: Message) -> int:
    """Tokens that `cleared` takes away."""
    return result.tokens - cleared(result).tokens
