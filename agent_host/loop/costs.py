"""Costs of a session and its tasks, and their limits (`--max-cost`, `taskOptions.maxCost`).

Costs come from the usage on record and the prices of the configuration, so a resume counts what was spent before it.
What the gateway charges for an answer that broke off is not known, and not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.errors import BudgetExceeded, CostExceeded
from agent_host.events import EventType
from agent_host.llm.models import PICOS, format_picos
from agent_host.loop.context import MAX_COST_OPTION
from agent_host.loop.conversation import refuse_uncounted, refuse_unpriced
from agent_host.thread.messages import holds_arguments
from agent_host.thread.tokens import message_tokens
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.llm.deferred import KnownModels
    from agent_host.llm.models import Prices
    from agent_host.llm.stream import ModelTurn
    from agent_host.loop.context import LoopContext
    from state.checkpoint import Checkpoint, Task
    from state.usage import TokenUsage

# A call that may answer with less is not worth its input; OpenAI's Responses take no lower limit either. A model that
# thinks does so first, and within the same limit: 1,024 is the least that Anthropic lets one think.
_LEAST_OUTPUT_TOKENS = 16
_LEAST_WITH_THINKING = 1024


MAX_COST: Final = "--max-cost, llm.max_cost"
"""The session's limit, as the message of an end by it names it."""


class _Limit(NamedTuple):
    """The limit of a session or a task and what it has spent: picos of the currency."""

    whose: str
    option: str
    most: int
    spent: int
    error: type[BudgetExceeded]


def affordable_output(ctx: LoopContext, model: str, input_tokens: int, most: int) -> int | None:
    """Return how many tokens `model` may answer with after about `input_tokens` of input, `most` if the limits leave
    more than that; None if nothing limits what the session costs.

    The input is priced as though nothing of it came from the provider's cache. Raises CostExceeded, BudgetExceeded for
    a call that would pass a limit with an answer of the mean length so far; UsageError where costs are not known.
    """
    limits = list(_limits(ctx))
    if not limits:
        return None
    refuse_unpriced(ctx.conversation.models, model)
    facts = ctx.conversation.models.of(model)
    prices = facts.prices
    if prices is None:
        raise LookupError(model)
    at_least = _LEAST_WITH_THINKING if facts.limits.thinking else _LEAST_OUTPUT_TOKENS
    least = min(most, max(at_least, _mean_output(ctx.state)))
    for limit in limits:
        left = limit.most - limit.spent - prices.most_for_input(input_tokens)
        if left < least * prices.output:
            raise limit.error(_describe(limit, prices.most_for_input(input_tokens) + least * prices.output, prices))
        if prices.output:
            most = min(most, left // prices.output)
    return most


def cost_of(models: KnownModels, usage: TokenUsage, model: str) -> dict[str, Any]:
    """The cost of one call, {cost, costCurrency}; empty if its model has no price."""
    cost = models.cost(usage, {model: usage})
    return {} if cost is None else cost.to_wire()


def _limits(ctx: LoopContext) -> Iterator[_Limit]:
    talk, state = ctx.conversation, ctx.state
    of_task = ctx.task.options.get(MAX_COST_OPTION)
    if talk.max_cost:
        refuse_uncounted(talk.models, state)
        yield _Limit("session", MAX_COST, round(talk.max_cost * PICOS), _spent(ctx, state), CostExceeded)
    if of_task is not None:
        refuse_uncounted(talk.models, ctx.task)
        yield _Limit("task", "taskOptions.maxCost", round(of_task * PICOS), _spent(ctx, ctx.task), BudgetExceeded)


def _spent(ctx: LoopContext, owner: Checkpoint | Task) -> int:
    by_model = {model: usage.for_limits for model, usage in owner.usage_by_model.items()}
    cost = ctx.conversation.models.cost(owner.usage.for_limits, by_model)
    return 0 if cost is None else cost.picos


def _mean_output(state: Checkpoint) -> int:
    """Tokens of the model's answers so far, on average; 0 before the first one."""
    steps = sum(task.step_count for task in state.earlier_tasks) + (0 if state.task is None else state.task.step_count)
    return -(-state.usage.for_limits.output_tokens // steps) if steps else 0


def _describe(limit: _Limit, needed: int, prices: Prices) -> str:
    return (
        f"what the {limit.whose} may cost does not cover the next call: {format_picos(limit.spent)} {prices.currency} "
        f"spent and about {format_picos(needed)} needed of {format_picos(limit.most)} ({limit.option})"
        + ("; a higher limit lets it go on" if limit.error is CostExceeded else "")
    )


# Tokens of an answer that its gateway did not count, or counted too low.

LEAST_SHARE: Final = 0.5
"""Limits count at least this share of the estimate, which errs high."""
_ODD_TIMES: Final = 4
_ODD_FROM_TOKENS: Final = 500  # a short answer of a model that thinks is no news


def count_usage(ctx: LoopContext, step_id: str, turn: ModelTurn, *, needed: int, sent: int, shown: str) -> ModelTurn:
    """The turn with the tokens that it used. A gateway that reports none must not make the budget endless: the estimate
    takes its place. One that reports fewer than half of the estimate has limits count that half.

    `sent` is the estimate of the request, `needed` the same by the gateway's scale; `shown` is all text and thinking
    that came. A count far above the estimate stands, since providers count reasoning that they do not show, and is
    reported once."""
    usage, count = turn.usage, ctx.conversation.count
    calls = tuple(call.arguments_json.decode() for call in turn.tool_calls)
    blocks = tuple(block.raw for block in turn.blocks if not holds_arguments(block))
    # Of an opaque block only its provider knows what it says, so that no limit counts it beyond what is reported.
    tokens = {text: count(text) for text in {shown, turn.text, *calls, *blocks}}
    said = sum(tokens[text] for text in (shown, *calls))
    with_blocks = max(said, message_tokens(tokens.__getitem__, turn.text, calls + blocks))
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
