"""Tokens of an answer whose gateway did not count them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.thread.blocks import holds_arguments
from agent_host.thread.tokens import message_tokens

if TYPE_CHECKING:
    from agent_host.llm.stream import ModelTurn
    from agent_host.loop.context import LoopContext


def with_counted_usage(ctx: LoopContext, turn: ModelTurn, needed: int) -> ModelTurn:
    """A gateway that reports no usage must not make the budget endless: its place is taken by the estimate. `needed` is
    that of the request."""
    usage = turn.usage
    if usage.input_tokens and usage.output_tokens:
        return turn
    calls = tuple(call.arguments_json.decode() for call in turn.tool_calls)
    blocks = tuple(block.raw for block in turn.blocks if not holds_arguments(block))
    said = usage.output_tokens or message_tokens(ctx.conversation.count, turn.text, calls + blocks)
    return turn._replace(usage=usage._replace(input_tokens=usage.input_tokens or needed, output_tokens=said))
