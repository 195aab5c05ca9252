"""Tokens of an answer that its gateway did not count, or counted too low."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.events.kinds import EventType
from agent_host.thread.blocks import holds_arguments
from agent_host.thread.tokens import message_tokens

if TYPE_CHECKING:
    from agent_host.llm.stream import ModelTurn
    from agent_host.loop.context import LoopContext
    from state.usage import TokenUsage

LEAST_SHARE: Final = 0.5
"""Limits count at least this share of the estimate, which errs high."""
_ODD_TIMES: Final = 4
_ODD_FROM_TOKENS: Final = 500  # a short answer of a model that thinks is no news


def with_counted_usage(
    ctx: LoopContext, step_id: str, turn: ModelTurn, *, needed: int, sent: int, shown: str
) -> ModelTurn:
    """The turn with the tokens that it used. A gateway that reports none must not make the budget endless: the estimate
    takes its place. One that reports fewer than half of the estimate has limits count that half.

    `sent` is the estimate of the request, `needed` the same by the gateway's scale; `shown` is all text and thinking
    that came. A count far above the estimate stands, since providers count reasoning that they do not show, and is
    reported once."""
    usage, count = turn.usage, ctx.conversation.count
    calls = tuple(call.arguments_json.decode() for call in turn.tool_calls)
    blocks = tuple(block.raw for block in turn.blocks if not holds_arguments(block))
    # Of an opaque block only its provider knows what it says, so that no limit counts it beyond what is reported.
    said = sum(map(count, (shown, *calls)))
    with_blocks = max(said, message_tokens(count, turn.text, calls + blocks))
    read, written = usage.input_tokens or needed, usage.output_tokens or with_blocks
    usage = usage._replace(
        input_tokens=read,
        output_tokens=written,
        uncounted_input=max(0, int(sent * LEAST_SHARE) - read),
        uncounted_output=max(0, int(said * LEAST_SHARE) - written),
    )
    _report_odd_count(ctx, step_id, usage, sent, with_blocks)
    return turn._replace(usage=usage)


def _report_odd_count(ctx: LoopContext, step_id: str, usage: TokenUsage, sent: int, said: int) -> None:
    """Report the first count of the session's process that is far above the estimate."""
    talk = ctx.conversation
    for counted, estimated, of_what in (
        (usage.input_tokens, sent, "of input"),
        (usage.output_tokens, said, "of output"),
    ):
        if counted > max(_ODD_TIMES * estimated, _ODD_FROM_TOKENS) and not talk.has_odd_count:
            talk.has_odd_count = True
            message = (
                f"the gateway counts {counted} tokens {of_what} where about {estimated} are expected; its count "
                "stands, as for reasoning that is not shown"
            )
            ctx.emit(
                EventType.LLM_COUNT_ODD,
                step_id,
                model=talk.model,
                countedTokens=counted,
                estimatedTokens=estimated,
                message=message,
            )
