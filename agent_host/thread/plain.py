"""A model's turn as plain text, for models that verify their thinking.

Such a model refuses the whole request where anything in front of its signed thinking was changed. When a request leaves
something out, the turns behind it can no longer go back as they came; as text of the user they can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.thread.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_text(assistant: Message, results: Sequence[Message]) -> Message:
    """What the model said and called, and what came of it; without pictures and what only its provider reads."""
    parts = ["[An earlier turn of yours, as text.]"]
    if assistant.content.strip():
        parts.append(assistant.content)
    for call, result in zip(assistant.tool_calls, results, strict=True):
        failed = " failed" if result.is_error else ""
        parts.append(f"[You called {call.name} with {call.arguments_json.decode()}. It{failed or ' gave'}:]")
        parts.append(result.content)
    return Message("system", "\n".join(parts), assistant.tokens + sum(result.tokens for result in results))
