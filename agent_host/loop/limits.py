"""What is checked before a model call: room on record, policy, the token budget, then costs (AH 6.5, 8.7, decisions
0026 and 0054); and the step warning (AH 4.3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agent_host.errors import BudgetExceeded, CheckpointWriteFailed, PolicyDenied, PolicyExpired
from agent_host.events.kinds import EventType
from agent_host.loop.costs import affordable_output
from agent_host.thread.tokens import estimate
from policy.check_llm import check_llm

if TYPE_CHECKING:
    from agent_host.loop.context import LoopContext

_WARN_AT = 0.8
# Of the built-in estimate, for a model whose gateway has counted nothing yet: providers' newest encodings have a third
# more tokens than those that it was fitted to.
_UNKNOWN_SCALE = 1.25
# Counts beyond these are no counts of the text that was sent, such as those of a gateway that leaves out what it
# cached.
_LEAST_SCALE, _MOST_SCALE = 0.5, 2.5


def check_before_call(ctx: LoopContext, step_id: str) -> int:
    """Make the request fit and check that it may be sent; returns its estimated input tokens.

    Raises CheckpointWriteFailed, PolicyExpired, PolicyDenied, BudgetExceeded; UsageError where costs are limited and
    not known.
    """
    if not ctx.journal.has_room():
        raise CheckpointWriteFailed(
            "the session's checkpoint has no room for another step (host.max_snapshot_bytes); all so far is on record: "
            "set it higher in your configuration, then resume"
        )
    decision = check_llm(ctx.judge.bundle, model=ctx.conversation.model, now=ctx.judge.clock())
    if decision.expired:
        ctx.emit(EventType.POLICY_EXPIRED, step_id)
        raise PolicyExpired(decision.reason)
    if not decision.allowed:
        raise PolicyDenied(f"the policy does not allow the model call: {decision.reason} ({decision.rule})")
    limits, talk = ctx.judge.bundle.llm_policy, ctx.conversation
    most_output = talk.output_limit(ctx.judge)
    talk.thread.fit(room_for_conversation(ctx))
    needed = estimated_input(ctx)
    used = ctx.state.session_tokens_used
    if used + needed > limits.max_session_tokens:
        raise BudgetExceeded(
            f"the session's token budget does not cover the next call: {used} tokens used and about {needed} needed "
            f"of {limits.max_session_tokens} (llmPolicy.maxSessionTokens)"
        )
    talk.lower_output(affordable_output(ctx, talk.model, needed, most_output), ctx.judge)
    return needed


def room_for_conversation(ctx: LoopContext) -> int:
    """Estimated tokens that a request has room for behind its head, by the bundle and by what the model takes."""
    talk, most = ctx.conversation, ctx.judge.bundle.llm_policy.max_input_tokens
    context = talk.facts.limits.context_tokens
    room = most if context is None else min(most, context - talk.output_limit(ctx.judge))
    return int(room / _scale(ctx)) - talk.head_tokens


def estimated_input(ctx: LoopContext) -> int:
    """Input tokens of the next request: what the gateway counted last time, and by its scale what changed since."""
    known = _known(ctx)
    if known is None:
        return math.ceil(ctx.conversation.tokens * _scale(ctx))
    counted, estimated_then = known
    return max(0, counted + math.ceil(_scale(ctx) * (ctx.conversation.tokens - estimated_then)))


def _scale(ctx: LoopContext) -> float:
    """How many tokens of the gateway one estimated token is. The estimate is off by about the same share on texts of
    all kinds, so the share of the last request is that of what is added to it, within a tenth."""
    known = _known(ctx)
    if known is None:
        return _UNKNOWN_SCALE if ctx.conversation.count is estimate else 1.0
    counted, estimated_then = known
    scale = counted / max(1, estimated_then)
    return scale if _LEAST_SCALE <= scale <= _MOST_SCALE else 1.0


def _known(ctx: LoopContext) -> tuple[int, int] | None:
    """The tokens of the last request, as counted and as estimated, where the same model read it."""
    state = ctx.state
    return state.tokens_known if state.tokens_known_of in (None, ctx.conversation.model) else None


def warn_of_step_limit(ctx: LoopContext, step_id: str) -> None:
    """One notice at four fifths of the way."""
    task = ctx.task
    if task.step_count == int(task.max_steps * _WARN_AT):
        ctx.emit(EventType.STEP_LIMIT_APPROACHING, step_id, stepCount=task.step_count, maxSteps=task.max_steps)
