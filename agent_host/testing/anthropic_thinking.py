"""True if thinking comes back as it was sent, which the real endpoint asks for beside tool calls.

The gateway remembers nothing: the ids of the calls carry a mark, made of the model and of the thinking before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_host.testing.dialect import BadRequest
from agent_host.testing.tool_ids import has_mark_of, mark_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = ("thinking", "redacted_thinking")


def check_thinking(messages: Sequence[Any], model: str) -> None:
    """Each call whose id has a mark of `model` must stand behind the blocks that it stood behind. Another model reads
    none of them. Raises BadRequest."""
    for index, message in enumerate(messages):
        content = message["content"]
        if message["role"] != "assistant" or isinstance(content, str):
            continue
        for block in content:
            if block["type"] == "tool_use" and has_mark_of(block.get("id"), model):
                _check(index, content, block["id"], model)
                break


def _check(index: int, content: Sequence[dict[str, Any]], call_id: str, model: str) -> None:
    first = next(place for place, block in enumerate(content) if block["type"] == "tool_use")
    places = [place for place, block in enumerate(content[:first]) if block["type"] in _KINDS]
    if not places:
        raise BadRequest(
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{content[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block (preceding the lastmost set of `tool_use` and `tool_result` blocks)"
        )
    if not call_id.endswith(mark_of(model, [content[place] for place in places])):
        raise BadRequest(
            f"messages.{index}.content.{places[0]}: `thinking` or `redacted_thinking` blocks in the latest assistant "
            "message cannot be modified. These blocks must remain as they were in the original response"
        )
