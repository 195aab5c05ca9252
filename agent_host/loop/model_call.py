"""The model is asked until it answers: a request that is too long is cut and sent once more, and where the model is
overloaded the next one is asked (AH 6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import ContextTooLong, ModelOverloaded
from agent_host.events.kinds import EventType
from agent_host.loop.compaction import clear_all_results
from agent_host.loop.limits import (
    MAX_REQUEST_BYTES,
    ModelRequest,
    check_before_call,
    check_request,
    emit_compacted,
    estimate_input,
    next_request,
    room_for_conversation,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent_host.errors import GatewayError
    from agent_host.llm.stream import ModelTurn
    from agent_host.loop.context import LoopContext
    from agent_host.loop.conversation import Conversation
    from agent_host.retrying import RetryPolicy

# What is left of a conversation that was too long. The estimate of its tokens was wrong then, so the cut is hard.
_SHARE = 0.5


class Attempts:
    """The tries of one step, from 1; `number` is the present one. Text of a try is taken back by its number.
    `overloaded` are the models that had no capacity; another one is asked before a server is waited for."""

    def __init__(self) -> None:
        self.number = 0
        self.overloaded: set[str] = set()

    def next_model(self, talk: Conversation) -> str | None:
        """The model to ask once the present one is overloaded; None if there is no other."""
        return next((name for name in talk.fallbacks if name not in {*self.overloaded, talk.model}), None)

    def retry_policy(self, talk: Conversation) -> RetryPolicy:
        """The number of tries and the time that the present model gets."""
        return talk.retry if self.next_model(talk) is None else talk.retry._replace(max_wait_s=None)


async def ask(
    ctx: LoopContext, step_id: str, call: Callable[[ModelRequest, Attempts], Awaitable[ModelTurn]]
) -> ModelTurn:
    """The answer to the next request, which `call` sends.

    Raises what `fitting_request` and the client raise, TaskCancelled.
    """
    attempts, was_cut = Attempts(), False
    while True:
        request = fitting_request(ctx, step_id)
        try:
            return await call(request, attempts)
        except ContextTooLong as error:
            if was_cut or not cut_window(ctx, step_id, error.limit):
                raise
            was_cut = True
            _take_back(ctx, step_id, attempts, error)
        except ModelOverloaded as error:
            fallback = attempts.next_model(ctx.conversation)
            attempts.overloaded.add(ctx.conversation.model)
            if fallback is None:
                raise
            was_cut = False  # another model has another window
            _take_back(ctx, step_id, attempts, error)
            _fall_back(ctx, step_id, fallback)


def fitting_request(ctx: LoopContext, step_id: str) -> ModelRequest:
    """Make the next request fit, and check that it may be sent. Where the newest turn alone would not fit, it shows its
    results in short, as all before it do.

    Raises what `check_before_call` and `check_request` raise.
    """
    check_before_call(ctx, step_id)
    talk = ctx.conversation
    newest_tokens, newest_messages = talk.thread.newest
    if newest_tokens > room_for_conversation(ctx):
        clear_all_results(ctx, step_id, newest_messages)
    before, dropped = estimate_input(ctx), talk.thread.dropped
    talk.thread.fit(room_for_conversation(ctx))
    if talk.thread.dropped != dropped:
        emit_compacted(ctx, step_id, "drop_oldest", before)
    talk.settle_window()
    request = next_request(ctx)
    while request.size_bytes > MAX_REQUEST_BYTES and cut_window(ctx, step_id):
        talk.settle_window()
        request = next_request(ctx)
    most_output = talk.output_limit(ctx.judge)
    talk.lower_output(check_request(ctx, talk.model, request, most_output), ctx.judge)
    return request


def cut_window(ctx: LoopContext, step_id: str, limit: int | None = None) -> bool:
    """Leave the oldest half of the conversation out of requests, or what is above half of the `limit` of the model;
    says whether anything was left out. The next turn's record, or that of a step's end, says where the window is."""
    talk, before = ctx.conversation, estimate_input(ctx)
    budget = int(talk.thread.tokens * _SHARE)
    if limit is not None:
        budget = min(budget, int(limit * _SHARE) - talk.head_tokens)
    dropped = talk.thread.cut(budget)
    if dropped:
        message = f"the conversation was too long for the model: its oldest {dropped} message(s) are left out"
        ctx.emit(EventType.LLM_WINDOW_CUT, step_id, droppedMessages=dropped, message=message)
        emit_compacted(ctx, step_id, "drop_oldest", before)
    return dropped > 0


def _take_back(ctx: LoopContext, step_id: str, attempts: Attempts, error: GatewayError) -> None:
    ctx.emit(EventType.LLM_RETRY, step_id, attempt=attempts.number, waitMs=0, message=str(error))


def _fall_back(ctx: LoopContext, step_id: str, name: str) -> None:
    """Have the model `name` go on with the task. It gets no blocks of the one before."""
    before = ctx.conversation.model
    ctx.conversation.use_model(name, ctx.judge)
    message = f"{before} is overloaded: {name} goes on with the task (llm.fallback_models)"
    ctx.emit(EventType.LLM_FALLBACK, step_id, model=before, fallbackModel=name, message=message)
