"""Limits of a model call, all in one place: room on record and policy before there is a request, then its tokens,
bytes, the session's budget and costs, measured by what is really sent (AH 6.5, 8.7, decisions 0026, 0054 and 0101);
and the step warning (AH 4.3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from agent_host.errors import BudgetExceeded, CheckpointWriteFailed, PolicyDenied, PolicyExpired, RequestTooLong
from agent_host.events import EventType
from agent_host.loop.costs import LEAST_SHARE, affordable_output
from agent_host.thread.tokens import estimate
from config.lean_typing import NamedTuple
from state.usage import NO_TOKENS

if TYPE_CHECKING:
    from agent_host.loop.context import LoopContext
    from state.checkpoint import ContextStrategy
    from state.usage import TokenUsage

_WARN_AT = 0.8
# Of the built-in estimate, for a model whose gateway has counted nothing yet: providers' newest encodings have a third
# more tokens than those that it was fitted to.
_UNKNOWN_SCALE = 1.25
# Counts beyond these are no counts of the text that was sent, such as those of a gateway that leaves out what it
# cached.
_LEAST_SCALE, _MOST_SCALE = LEAST_SHARE, 2.5
MAX_REQUEST_BYTES: Final = 32 * 1024 * 1024
"""The most that a provider takes (Anthropic); pictures alone have a lower bound (`thread.pictures`)."""


class ModelRequest(NamedTuple):
    """A request as it is sent, all but its head. `needed` are its input tokens, as the gateway is expected to count
    them, `estimated` as they are estimated here, and `least` the fewest that it has."""

    messages: list[bytes]
    needed: int
    estimated: int
    least: int

    @property
    def size_bytes(self) -> int:
        """The size of its messages."""
        return sum(map(len, self.messages))


def check_before_call(ctx: LoopContext, step_id: str) -> None:
    """Check that the model may be asked at all. Raises CheckpointWriteFailed, PolicyExpired, PolicyDenied."""
    if not ctx.journal.has_room():
        raise CheckpointWriteFailed(
            "the session's checkpoint has no room for another step (host.max_snapshot_bytes); all so far is on record: "
            "set it higher in your configuration, then resume"
        )
    decision = ctx.judge.check_llm(ctx.conversation.model)
    if decision.expired:
        ctx.emit(EventType.POLICY_EXPIRED, step_id)
        raise PolicyExpired(decision.reason)
    if not decision.allowed:
        raise PolicyDenied(f"the policy does not allow the model call: {decision.reason} ({decision.rule})")


def next_request(ctx: LoopContext) -> ModelRequest:
    """The next request as it would be sent now."""
    talk = ctx.conversation
    messages = talk.thread.encode_window(talk.head_tokens)
    return ModelRequest(messages, estimate_input(ctx), talk.tokens, _least_input(ctx))


def check_request(ctx: LoopContext, model: str, request: ModelRequest, most_output: int) -> int | None:
    """Check what is really sent to `model` against every limit of a request: tokens, bytes, the session's budget,
    costs. Returns how many tokens the model may answer with by its costs, as `affordable_output` does.

    Raises RequestTooLong, BudgetExceeded, CostExceeded; UsageError where costs are limited and not known."""
    limits = ctx.judge.llm_policy
    if request.least > limits.max_input_tokens:
        raise RequestTooLong(
            f"the next request has at least {request.least} tokens, and llmPolicy.maxInputTokens is "
            f"{limits.max_input_tokens}: the system prompt and the tools, which are always sent, have "
            f"{ctx.conversation.head_tokens}, the rest is the newest message; a higher limit lets it go on"
        )
    if request.size_bytes > MAX_REQUEST_BYTES:
        raise RequestTooLong(
            f"the next request has {request.size_bytes} bytes, and no gateway takes more than {MAX_REQUEST_BYTES}; "
            "with llm.images = false it goes without pictures"
        )
    used = ctx.state.usage.for_limits.total
    if used + request.needed > limits.max_session_tokens:
        beyond = used - ctx.state.session_tokens_used
        counted = f" ({beyond} beyond the gateway's count: half of the estimate)" if beyond else ""
        raise BudgetExceeded(
            f"the session's token budget does not cover the next call: {used} tokens used{counted} and about "
            f"{request.needed} needed of {limits.max_session_tokens} (llmPolicy.maxSessionTokens)"
        )
    return affordable_output(ctx, model, request.needed, most_output)


def emit_compacted(
    ctx: LoopContext, step_id: str, strategy: ContextStrategy, before: int, usage: TokenUsage = NO_TOKENS
) -> None:
    """Report that requests show less from now on; `before` is what `estimate_input` was."""
    summary = {} if strategy != "summarize" or ctx.state.summary is None else {"summary": ctx.state.summary}
    ctx.emit(
        EventType.CONTEXT_COMPACTED,
        step_id,
        strategy=strategy,
        droppedMessages=ctx.conversation.thread.dropped,
        clearedMessages=ctx.state.cleared_messages,
        estimatedBefore=before,
        estimatedAfter=estimate_input(ctx),
        **summary,
        **usage.to_wire(),
    )


def room_for_conversation(ctx: LoopContext) -> int:
    """Estimated tokens that a request has room for behind its head, by the bundle and by what the model takes."""
    talk, most = ctx.conversation, ctx.judge.llm_policy.max_input_tokens
    context = talk.facts.limits.context_tokens
    room = most if context is None else min(most, context - talk.output_limit(ctx.judge))
    return int(room / _scale(ctx)) - talk.head_tokens


def estimate_input(ctx: LoopContext) -> int:
    """Input tokens of the next request: what the gateway counted last time, and by its scale what changed since."""
    known = _last_request(ctx)
    if known is None:
        return math.ceil(ctx.conversation.tokens * _scale(ctx))
    counted, estimated_then = known
    counted = max(counted, int(estimated_then * LEAST_SHARE))
    return max(0, counted + math.ceil(_scale(ctx) * (ctx.conversation.tokens - estimated_then)))


def _least_input(ctx: LoopContext) -> int:
    """The fewest tokens that the next request has, so that none fails for a difference of counts alone: what the
    gateway counted of the last one, where that can be a count of the text, and half of the estimate of the rest."""
    tokens, known = ctx.conversation.tokens, _last_request(ctx)
    counted, estimated_then = known or (0, 1)
    if not _LEAST_SCALE <= counted / max(1, estimated_then) <= _MOST_SCALE:
        return int(tokens * LEAST_SHARE)
    if tokens < estimated_then:
        return int(tokens * counted / estimated_then)
    return counted + int((tokens - estimated_then) * LEAST_SHARE)


def _scale(ctx: LoopContext) -> float:
    """Return how many tokens of the gateway one estimated token is. The estimate is off by about the same share on
    texts of all kinds, so the share of the last request is that of what is added to it, within a tenth."""
    known = _last_request(ctx)
    if known is None:
        return _UNKNOWN_SCALE if ctx.conversation.count is estimate else 1.0
    counted, estimated_then = known
    scale = counted / max(1, estimated_then)
    return scale if _LEAST_SCALE <= scale <= _MOST_SCALE else 1.0


def _last_request(ctx: LoopContext) -> tuple[int, int] | None:
    """The tokens of the last request, as counted and as estimated, where the same model read it."""
    state = ctx.state
    return state.tokens_known if state.tokens_known_of in (None, ctx.conversation.model) else None


def warn_of_step_limit(ctx: LoopContext, step_id: str) -> None:
    """One notice at four fifths of the way."""
    task = ctx.task
    if task.step_count == int(task.max_steps * _WARN_AT):
        ctx.emit(EventType.STEP_LIMIT_APPROACHING, step_id, stepCount=task.step_count, maxSteps=task.max_steps)
