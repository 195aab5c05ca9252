"""Making room in a request (AH 5.4): older results left out, or a summary in the place of the older part.

The conversation on record stays whole; what a request shows of it is a view, which goes on record when it changes. Each
way that does not help gives way to the next cheaper one, and the last, dropping the oldest messages, always helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import BudgetExceeded, GatewayError, GatewayUnavailable, GuardrailBlocked, UsageError
from agent_host.events import EventType
from agent_host.loop.costs import LEAST_SHARE, count_usage
from agent_host.loop.limits import ModelRequest, check_request, emit_compacted, estimate_input, room_for_conversation
from agent_host.retrying import call_with_retries
from agent_host.thread.messages import decode
from agent_host.thread.thread import MAX_CHARS, count_saved, question, summary_message
from state.records import ContextCompacted

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from agent_host.llm.stream import ModelTurn
    from agent_host.loop.context import LoopContext

_MIN_SAVED = 0.2
"""Share of the window that clearing has to save: each change of the view has the whole request written to the cache
again."""
_STEPS_WITHOUT = 10
"""Steps that need room without a further question, once there was no summary to be had."""
_MARGIN = 0.05
"""Share of the window that is kept free for the question, so that a summary is asked for before it is too late."""


async def make_room(ctx: LoopContext, step_id: str) -> None:
    """Change the view where the next request would be too long, or a client asked for it. What is still too long then
    is cut by `Thread.fit`. Raises TaskCancelled, CheckpointWriteFailed."""
    talk = ctx.conversation
    strategy, wanted = talk.compaction.strategy, talk.compaction_wanted
    if strategy == "drop_oldest" and not wanted:
        return
    window = room_for_conversation(ctx)
    if talk.thread.tokens <= window * (1 - _MARGIN) and not wanted:
        return
    talk.compaction_wanted = False
    before = estimate_input(ctx)
    by_summary = (strategy == "summarize" and talk.steps_without_summary == 0) or (wanted and strategy == "drop_oldest")
    talk.steps_without_summary = max(0, talk.steps_without_summary - 1)
    record = await _summarize(ctx, step_id, window) if by_summary else None
    if by_summary and record is None:
        talk.steps_without_summary = _STEPS_WITHOUT
    record = record or _clear_results(ctx, window)
    if record is None:
        return
    _show(ctx, step_id, record, before)


def clear_all_results(ctx: LoopContext, step_id: str, newest: int) -> None:
    """Leave the text of all large results out of requests, where that makes the `newest` messages shorter."""
    state, messages = ctx.state, len(ctx.state.thread) - 1
    first = 1 + max(state.cleared_messages, messages - newest)
    if any(count_saved(decode(data)) for data in state.thread[first:]):
        record = ContextCompacted("clear_tool_results", ctx.conversation.thread.dropped, messages, state.summary)
        _show(ctx, step_id, record, estimate_input(ctx))


def _show(ctx: LoopContext, step_id: str, record: ContextCompacted, before: int) -> None:
    """Have requests show what the record says."""
    ctx.journal.record(record)
    ctx.conversation.renew_thread()
    emit_compacted(ctx, step_id, record.strategy, before, record.usage)


def _clear_results(ctx: LoopContext, window: int) -> ContextCompacted | None:
    """Older results left out; None where that saves too little."""
    state, older = ctx.state, ctx.conversation.thread.older()
    first = max(state.cleared_messages, state.dropped_messages)
    saved = sum(count_saved(decode(data)) for data in state.thread[1 + first : 1 + older])
    if saved < min(window, ctx.conversation.thread.tokens) * _MIN_SAVED:
        return None
    return ContextCompacted("clear_tool_results", state.dropped_messages, older, state.summary)


async def _summarize(ctx: LoopContext, step_id: str, window: int) -> ContextCompacted | None:
    """A summary in the place of all but the newest messages; None where there is none to be had."""
    talk, state = ctx.conversation, ctx.state
    model = talk.compaction.summary_model or talk.model
    turn = await _answer(ctx, step_id, window, model)
    if turn is None:
        return None
    text = ctx.scrubber.text(turn.text.strip())[:MAX_CHARS]
    size = min(window, talk.thread.tokens)
    dropped = talk.thread.count_dropped(size, summary_message(text, talk.count).tokens)
    if not text or turn.tool_calls or turn.meaning != "complete" or dropped <= state.dropped_messages:
        dropped, text = state.dropped_messages, state.summary or ""
    if dropped == state.dropped_messages:
        # What was asked is paid for all the same.
        kept = ContextCompacted("summarize", dropped, state.cleared_messages, state.summary, turn.usage, model)
        ctx.journal.record(kept)
        return None
    return ContextCompacted("summarize", dropped, state.cleared_messages, text, turn.usage, model)


async def _answer(ctx: LoopContext, step_id: str, window: int, model: str) -> ModelTurn | None:
    """The answer of `model` to the question for a summary; None where policy, the budget or the gateway allow none. The
    request begins as the one before it, so that the provider reads it from its cache."""
    talk, asked = ctx.conversation, question(ctx.conversation.count)
    if not ctx.judge.check_llm(model).allowed:
        return None
    thread, make_head = talk.thread, talk.make_head
    if model != talk.model and talk.for_model is not None:
        thread, make_head = talk.for_model(model)
    messages, estimated = thread.asking(asked, window, talk.head_tokens)
    estimated += talk.head_tokens
    request = ModelRequest(messages, estimated, estimated, int(estimated * LEAST_SHARE))
    most_output = talk.output_limit(ctx.judge)
    try:
        affordable = check_request(ctx, model, request, most_output)
    except (BudgetExceeded, UsageError):
        return None
    head = talk.head
    if model != talk.model or affordable not in (None, most_output):
        head = make_head(ctx.judge, most_output if affordable is None else affordable)

    def ask() -> Awaitable[ModelTurn]:
        return talk.llm.stream(head, request.messages, _nothing_shown)

    def on_retry(_: int, wait_s: float, error: GatewayUnavailable) -> None:
        ctx.emit(EventType.CONTEXT_SUMMARY_RETRY, step_id, waitMs=int(wait_s * 1000), message=str(error))

    try:
        turn = await ctx.cancellation.interruptible(
            call_with_retries(GatewayUnavailable, ask, talk.retry, on_retry, ctx.outside)
        )
    except (GatewayError, GuardrailBlocked):
        return None
    return count_usage(ctx, step_id, turn, needed=request.needed, sent=request.estimated, shown=turn.text)


def _nothing_shown(_: str) -> None:
    """The text of a summary is no answer to the person."""
