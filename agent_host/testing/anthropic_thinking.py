"""Whether thinking comes back as it was sent, which the real endpoint asks for beside tool calls.

The gateway remembers nothing: the ids of the calls carry a mark, made of the model and of the thinking before them.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.testing.dialect import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK = re.compile(r"toolu_[0-9_]+_t([0-9a-f]{4})([0-9a-f]{12})")
_KINDS = ("thinking", "redacted_thinking")


def mark_of(model: str, thinking: Sequence[dict[str, Any]]) -> str:
    """What the ids of calls behind these blocks end with; empty where there are none."""
    return f"_t{_digest(model)[:4]}{_digest(thinking)[:12]}" if thinking else ""


def check_thinking(messages: Sequence[Any], model: str) -> None:
    """Each call whose id has a mark of `model` must stand behind the blocks that it stood behind. Another model reads
    none of them. Raises BadRequest."""
    for index, message in enumerate(messages):
        content = message["content"]
        if message["role"] != "assistant" or isinstance(content, str):
            continue
        for block in content:
            if block["type"] == "tool_use" and (mark := _MARK.fullmatch(str(block.get("id")))):
                if mark[1] == _digest(model)[:4]:
                    _check(index, content, mark[2])
                break


def _check(index: int, content: Sequence[dict[str, Any]], digest: str) -> None:
    first = next(place for place, block in enumerate(content) if block["type"] == "tool_use")
    places = [place for place, block in enumerate(content[:first]) if block["type"] in _KINDS]
    if not places:
        raise BadRequest(
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{content[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block (preceding the lastmost set of `tool_use` and `tool_result` blocks)"
        )
    if _digest([content[place] for place in places])[:12] != digest:
        raise BadRequest(
            f"messages.{index}.content.{places[0]}: `thinking` or `redacted_thinking` blocks in the latest assistant "
            "message cannot be modified. These blocks must remain as they were in the original response"
        )


def _digest(value: object) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
