"""What is checked before a model call: room on record, policy, then the token budget (AH 6.5, 8.7, decision 0026); and
the step warning (AH 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import BudgetExceeded, CheckpointWriteFailed, PolicyDenied, PolicyExpired
from agent_host.events.kinds import EventType
from policy.check_llm import check_llm

if TYPE_CHECKING:
    from agent_host.loop.context import LoopContext

_WARN_AT = 0.8


def check_before_call(ctx: LoopContext, step_id: str) -> int:
    """Make the request fit and check that it may be sent; returns its estimated input tokens.

    Raises CheckpointWriteFailed, PolicyExpired, PolicyDenied, BudgetExceeded.
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
    limits = ctx.judge.bundle.llm_policy
    ctx.conversation.thread.fit(limits.max_input_tokens - ctx.conversation.head_tokens)
    needed = estimated_input(ctx)
    used = ctx.state.session_tokens_used
    if used + needed > limits.max_session_tokens:
        raise BudgetExceeded(
            f"the session's token budget does not cover the next call: {used} tokens used and about {needed} needed "
            f"of {limits.max_session_tokens} (llmPolicy.maxSessionTokens)"
        )
    return needed


def estimated_input(ctx: LoopContext) -> int:
    """Input tokens of the next request: what the gateway counted last time, corrected by what changed since."""
    estimate = ctx.conversation.tokens
    if ctx.state.tokens_known is None:
        return estimate
    counted, estimated_then = ctx.state.tokens_known
    return max(0, counted + estimate - estimated_then)


def warn_of_step_limit(ctx: LoopContext, step_id: str) -> None:
    """One notice at four fifths of the way."""
    task = ctx.task
    if task.step_count == int(task.max_steps * _WARN_AT):
        ctx.emit(EventType.STEP_LIMIT_APPROACHING, step_id, stepCount=task.step_count, maxSteps=task.max_steps)
