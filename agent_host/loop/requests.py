"""Requests to the model: shortened to fit, checked against every limit, sent and counted (AH 4.4, 5.4, 6.4, 6.5).

Limits apply to the bytes really sent (decisions 0026, 0054 and 0101). Costs are computed from the recorded usage and
the configured prices, so a resume includes earlier costs. The price of an answer that broke off is unknown and not
counted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from agent_host.errors import (
    BudgetExceeded,
    CheckpointWriteFailed,
    ContextTooLong,
    CostExceeded,
    GatewayError,
    GatewayUnavailable,
    GuardrailBlocked,
    ModelOverloaded,
    PolicyDenied,
    PolicyExpired,
    RequestTooLong,
    UsageError,
)
from agent_host.events import EventType
from agent_host.http import call_with_retries
from agent_host.llm.models import PICOS, format_picos
from agent_host.loop import MAX_COST, MAX_COST_OPTION
from agent_host.loop.conversation import cost_fields, refuse_uncounted, refuse_unpriced
from agent_host.thread import MAX_CHARS, count_saved, question, summary_message
from agent_host.thread.messages import decode, estimate, holds_arguments, message_tokens
from config.lean_typing import NamedTuple
from state.checkpoint import NO_TOKENS
from state.records import ContextCompacted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from agent_host.http import RetryPolicy
    from agent_host.llm import ModelTurn
    from agent_host.loop import LoopContext
    from agent_host.loop.conversation import Conversation
    from state.checkpoint import Checkpoint, ContextStrategy, Task, TokenUsage

# Of the built-in estimate, for a model whose gateway has counted nothing yet: providers' newest encodings have a third
# more tokens than those that it was fitted to.
_UNKNOWN_SCALE = 1.25
# Counts outside this range do not count the sent text: some gateways omit cached tokens, for example.
LEAST_SHARE: Final = 0.5
"""Limits count at least this share of the estimate, which errs high."""
_LEAST_SCALE, _MOST_SCALE = LEAST_SHARE, 2.5
MAX_REQUEST_BYTES: Final = 32 * 1024 * 1024
"""The most that a provider takes (Anthropic); pictures alone have a lower bound (`thread.pictures`)."""
# A call that may answer with less is not worth its input; OpenAI's Responses take no lower limit either. A model that
# thinks does so first, and within the same limit: 1,024 is the least that Anthropic lets one think.
_LEAST_OUTPUT_TOKENS = 16
_LEAST_WITH_THINKING = 1024


class ModelRequest(NamedTuple):
    """A request as it is sent, all but its head. `size_bytes` is that of its messages, `needed` are its input tokens,
    as the gateway is expected to count them, `estimated` as they are estimated here, and `least` the fewest that it
    has. `most_output` are the most tokens of its answer."""

    messages: list[bytes]
    size_bytes: int
    needed: int
    estimated: int
    least: int
    most_output: int


def check_before_call(ctx: LoopContext) -> None:
    """Check that the model may be asked at all. Raises CheckpointWriteFailed, PolicyExpired, PolicyDenied."""
    if not ctx.journal.has_room():
        raise CheckpointWriteFailed(
            "the session's checkpoint has no room for another step (host.max_snapshot_bytes); all so far is on record: "
            "set it higher in your configuration, then resume"
        )
    decision = ctx.judge.check_llm(ctx.conversation.model)
    if decision.expired:
        ctx.emit(EventType.POLICY_EXPIRED, ctx.step_id)
        raise PolicyExpired(decision.reason)
    if not decision.allowed:
        raise PolicyDenied(f"the policy does not allow the model call: {decision.reason} ({decision.rule})")


def next_request(ctx: LoopContext, most_output: int) -> ModelRequest:
    """The next request as it would be sent now."""
    thread, head_tokens = ctx.conversation.thread, ctx.conversation.head_tokens
    messages, tokens = thread.encode_window(head_tokens), head_tokens + thread.tokens
    needed, least = estimate_input(ctx, tokens), _least_input(ctx, tokens)
    return ModelRequest(messages, sum(map(len, messages)), needed, tokens, least, most_output)


def check_request(ctx: LoopContext, model: str, request: ModelRequest) -> int | None:
    """Check a request to `model` against every limit: tokens, bytes, the session's budget, costs. Returns the
    affordable output tokens, as `affordable_output` does. Raises RequestTooLong, BudgetExceeded, CostExceeded;
    UsageError if costs are limited but unknown."""
    limits = ctx.judge.llm_policy
    if request.least > limits.max_input_tokens:
        raise RequestTooLong(
            f"the next request has at least {request.least} tokens, and llmPolicy.maxInputTokens is "
            f"{limits.max_input_tokens}: the system prompt and the tools, which are always sent, have "
            f"{ctx.conversation.head_tokens}, the rest is the newest message; a higher limit lets it continue"
        )
    if request.size_bytes > MAX_REQUEST_BYTES:
        raise RequestTooLong(
            f"the next request has {request.size_bytes} bytes, and no gateway takes more than {MAX_REQUEST_BYTES}; "
            "with llm.images = false it goes without pictures"
        )
    used = ctx.state.usage.for_limits.total
    if used + request.needed > limits.max_session_tokens:
        beyond = used - ctx.state.usage.total
        counted = f" ({beyond} beyond the gateway's count: half of the estimate)" if beyond else ""
        raise BudgetExceeded(
            f"the session's token budget does not cover the next call: {used} tokens used{counted} and about "
            f"{request.needed} needed of {limits.max_session_tokens} (llmPolicy.maxSessionTokens)"
        )
    return affordable_output(ctx, model, request.needed, request.most_output)


def emit_compacted(ctx: LoopContext, strategy: ContextStrategy, before: int, usage: TokenUsage = NO_TOKENS) -> None:
    """Report that requests show less from now on; `before` is what `estimate_input` was."""
    summary = {} if strategy != "summarize" or ctx.state.summary is None else {"summary": ctx.state.summary}
    ctx.emit(
        EventType.CONTEXT_COMPACTED,
        ctx.step_id,
        strategy=strategy,
        droppedMessages=ctx.conversation.thread.dropped,
        clearedMessages=ctx.state.cleared_messages,
        estimatedBefore=before,
        estimatedAfter=estimate_input(ctx, ctx.conversation.tokens),
        **summary,
        **usage.to_wire(),
    )


def room_for_conversation(ctx: LoopContext, most_output: int) -> int:
    """Estimated tokens that fit into a request after its head, by the limits of bundle and model."""
    conversation, most = ctx.conversation, ctx.judge.llm_policy.max_input_tokens
    context = conversation.facts.limits.context_tokens
    room = most if context is None else min(most, context - most_output)
    return int(room / _last_request(ctx)[2]) - conversation.head_tokens


def estimate_input(ctx: LoopContext, tokens: int) -> int:
    """Input tokens of a request of estimated `tokens`: as counted last time, and by that scale what changed since."""
    counted, estimated_then, scale = _last_request(ctx)
    counted = max(counted, int(estimated_then * LEAST_SHARE))
    return max(0, counted + math.ceil(scale * (tokens - estimated_then)))


def _least_input(ctx: LoopContext, tokens: int) -> int:
    """A lower bound of the next request's tokens, so that no request fails only because counts differ: the gateway's
    count of the last request, if plausible, plus half of the estimate of the rest."""
    counted, estimated_then, _ = _last_request(ctx)
    if not _LEAST_SCALE <= counted / max(1, estimated_then) <= _MOST_SCALE:
        return int(tokens * LEAST_SHARE)
    if tokens < estimated_then:
        return int(tokens * counted / estimated_then)
    return counted + int((tokens - estimated_then) * LEAST_SHARE)


def _last_request(ctx: LoopContext) -> tuple[int, int, float]:
    """Counted and estimated tokens of the last request, 0 if another model read it, and the ratio of the gateway's
    tokens to estimated ones. The estimate is off by about the same ratio on all kinds of text, so the last ratio also
    fits added text, within a tenth."""
    state, conversation = ctx.state, ctx.conversation
    if state.tokens_known is None or state.tokens_known_of not in (None, conversation.model):
        return 0, 0, _UNKNOWN_SCALE if conversation.count is estimate else 1.0
    counted, estimated_then = state.tokens_known
    scale = counted / max(1, estimated_then)
    return counted, estimated_then, scale if _LEAST_SCALE <= scale <= _MOST_SCALE else 1.0


def warn_of_step_limit(ctx: LoopContext) -> None:
    """One notice at four fifths of the way."""
    task = ctx.task
    if task.step_count == int(task.max_steps * 0.8):
        ctx.emit(EventType.STEP_LIMIT_APPROACHING, ctx.step_id, stepCount=task.step_count, maxSteps=task.max_steps)


class _Limit(NamedTuple):
    """The cost limit of a session or task and its cost so far: picos of the currency."""

    whose: str
    option: str
    most: int
    spent: int
    error: type[BudgetExceeded]


def affordable_output(ctx: LoopContext, model: str, input_tokens: int, most: int) -> int | None:
    """Return the affordable output tokens of `model` after about `input_tokens` of input, at most `most`; None if costs
    are unlimited. The input is priced as if nothing of it were cached. Raises CostExceeded or BudgetExceeded if an
    answer of the mean length so far would pass a limit; UsageError if costs are unknown."""
    limits = list(_limits(ctx))
    if not limits:
        return None
    refuse_unpriced(ctx.conversation.models, model)
    facts = ctx.conversation.models.table.of(model)
    prices = facts.prices
    if prices is None:
        raise LookupError(model)
    at_least = _LEAST_WITH_THINKING if facts.limits.thinking else _LEAST_OUTPUT_TOKENS
    least = min(most, max(at_least, _mean_output(ctx.state)))
    for limit in limits:
        input_costs = prices.most_for_input(input_tokens)
        left = limit.most - limit.spent - input_costs
        if left < least * prices.output:
            needed = format_picos(input_costs + least * prices.output)
            raise limit.error(
                f"what the {limit.whose} may cost does not cover the next call: {format_picos(limit.spent)} "
                f"{prices.currency} spent and about {needed} needed of {format_picos(limit.most)} ({limit.option})"
                + ("; a higher limit lets it continue" if limit.error is CostExceeded else "")
            )
        if prices.output:
            most = min(most, left // prices.output)
    return most


def _limits(ctx: LoopContext) -> Iterator[_Limit]:
    conversation, state = ctx.conversation, ctx.state
    of_task = ctx.task.options.get(MAX_COST_OPTION)
    if conversation.max_cost:
        refuse_uncounted(conversation.models, state)
        yield _Limit("session", MAX_COST, round(conversation.max_cost * PICOS), _spent(ctx, state), CostExceeded)
    if of_task is not None:
        refuse_uncounted(conversation.models, ctx.task)
        yield _Limit("task", "taskOptions.maxCost", round(of_task * PICOS), _spent(ctx, ctx.task), BudgetExceeded)


def _spent(ctx: LoopContext, owner: Checkpoint | Task) -> int:
    by_model = {model: usage.for_limits for model, usage in owner.usage_by_model.items()}
    cost = ctx.conversation.models.table.cost(owner.usage.for_limits, by_model)
    return 0 if cost is None else cost.picos


def _mean_output(state: Checkpoint) -> int:
    steps = sum(task.step_count for task in state.earlier_tasks) + (0 if state.task is None else state.task.step_count)
    return -(-state.usage.for_limits.output_tokens // steps) if steps else 0


# Tokens of an answer that its gateway did not count, or counted too low.

_UNUSUAL_FACTOR: Final = 4
_UNUSUAL_MIN_TOKENS: Final = 500  # a short answer of a model that thinks is no news


def count_usage(ctx: LoopContext, turn: ModelTurn, *, needed: int, sent: int, shown: str) -> ModelTurn:
    """Return the turn with its token usage. If the gateway reports no usage, the estimate is used, so that the budget
    still ends. If it reports less than half of the estimate, limits count that half. `sent` is the estimate of the
    request, `needed` the same in the gateway's scale; `shown` is all received text and thinking. A count far above the
    estimate is accepted, because providers count hidden reasoning, and reported once."""
    usage, count = turn.usage, ctx.conversation.count
    calls = tuple(call.arguments_json.decode() for call in turn.tool_calls)
    blocks = tuple(block.raw for block in turn.blocks if not holds_arguments(block))
    # Only the provider can read an opaque block, so limits count only its reported tokens.
    tokens = {text: count(text) for text in {shown, turn.text, *calls, *blocks}}
    output_estimate = sum(tokens[text] for text in (shown, *calls))
    with_blocks = max(output_estimate, message_tokens(tokens.__getitem__, turn.text, calls + blocks))
    read, written = usage.input_tokens or needed, usage.output_tokens or with_blocks
    usage = usage._replace(
        input_tokens=read,
        output_tokens=written,
        uncounted_input=max(0, int(sent * LEAST_SHARE) - read),
        uncounted_output=max(0, int(output_estimate * LEAST_SHARE) - written),
    )
    _report_unusual_count(ctx, usage, sent, with_blocks)
    return turn._replace(usage=usage)


def _report_unusual_count(ctx: LoopContext, usage: TokenUsage, sent: int, output_estimate: int) -> None:
    conversation = ctx.conversation
    for counted, estimated, of_what in (
        (usage.input_tokens, sent, "of input"),
        (usage.output_tokens, output_estimate, "of output"),
    ):
        if counted > max(_UNUSUAL_FACTOR * estimated, _UNUSUAL_MIN_TOKENS) and not conversation.has_unusual_count:
            conversation.has_unusual_count = True
            message = (
                f"the gateway counts {counted} tokens {of_what} where about {estimated} are expected; its count "
                "stands, as for reasoning that is not shown"
            )
            ctx.emit(
                EventType.LLM_COUNT_ODD,
                ctx.step_id,
                model=conversation.model,
                countedTokens=counted,
                estimatedTokens=estimated,
                message=message,
            )


async def _call_model(ctx: LoopContext, request: ModelRequest, attempts: Attempts) -> ModelTurn:
    conversation, needed = ctx.conversation, request.needed
    started = ctx.outside.monotonic()
    shown: list[str] = []

    def send() -> Awaitable[ModelTurn]:
        attempts.number += 1
        shown.clear()
        return conversation.llm.stream(conversation.head, request.messages, on_text, on_thinking, ctx.emitter.flush)

    def on_text(text: str) -> None:
        shown.append(text)
        ctx.emit(EventType.TEXT_CHUNK, ctx.step_id, text=text, attempt=attempts.number)

    def on_thinking(text: str) -> None:
        shown.append(text)
        ctx.emit(EventType.THINKING_CHUNK, ctx.step_id, text=text, attempt=attempts.number)

    def on_retry(_: int, wait_s: float, error: GatewayUnavailable) -> None:
        payload = {"attempt": attempts.number, "waitMs": int(wait_s * 1000), "message": str(error)}
        ctx.emit(EventType.LLM_RETRY, ctx.step_id, **payload)

    if ctx.phase.may("call_model"):  # already waiting for the model if the first request failed
        ctx.phase.fire("call_model")
    limits = {"estimatedInputTokens": needed, "maxOutputTokens": request.most_output}
    ctx.emit(EventType.LLM_REQUEST_STARTED, ctx.step_id, model=conversation.model, **limits)
    retry = attempts.retry_policy(conversation)
    turn = await ctx.cancellation.interruptible(
        call_with_retries(GatewayUnavailable, send, retry, on_retry, ctx.outside)
    )
    ctx.phase.fire("answered")
    turn = count_usage(ctx, turn, needed=needed, sent=request.estimated, shown="".join(shown))
    _emit_answer(ctx, turn, ctx.outside.ms_since(started))
    return turn


def _emit_answer(ctx: LoopContext, turn: ModelTurn, latency_ms: int) -> None:
    models, model = ctx.conversation.models, ctx.conversation.model
    # The gateway's names for the answer and its model, and its words on the end, as far as it gives them. Scrubbed
    # here, since OpenTelemetry gets payloads as they are emitted.
    names = {"responseId": turn.response_id, "responseModel": turn.response_model, "stopDetail": turn.detail}
    ctx.emit(
        EventType.LLM_REQUEST_COMPLETED,
        ctx.step_id,
        model=model,
        **turn.usage.to_wire(),
        stopReason=turn.stop_reason,
        latencyMs=latency_ms,
        **{key: ctx.scrubber.text(name) for key, name in names.items() if name},
        **cost_fields(models, turn.usage, {model: turn.usage}),
    )
    if turn.replaced:
        message = f"the model's answer contained halves of characters: U+FFFD stands in {turn.replaced} place(s)"
        ctx.emit(EventType.LLM_ANSWER_REPAIRED, ctx.step_id, count=turn.replaced, message=message)


# Requests until an answer comes: one that is too long is cut and sent once more, and if the model is overloaded, the
# next fallback is asked (AH 6.4).


# Share of a conversation that is kept after it was too long. The estimate was wrong then, so the cut is large.
_SHARE = 0.5


class Attempts:
    """The tries of one step, from 1; `number` is the present one. Text of a try is taken back by its number.
    `overloaded` are the models that had no capacity; another one is asked before a server is waited for."""

    def __init__(self) -> None:
        self.number = 0
        self.overloaded: set[str] = set()

    def next_model(self, conversation: Conversation) -> str | None:
        """The model to ask once the present one is overloaded; None if there is no other."""
        tried = {*self.overloaded, conversation.model}
        return next((name for name in conversation.fallbacks if name not in tried), None)

    def retry_policy(self, conversation: Conversation) -> RetryPolicy:
        """The number of tries and the time that the present model gets."""
        retry = conversation.retry
        return retry if self.next_model(conversation) is None else retry._replace(max_wait_s=None)


async def ask(ctx: LoopContext) -> ModelTurn:
    """The answer to the next request. Raises what `fitting_request` and the client raise, TaskCancelled."""
    attempts, was_cut = Attempts(), False
    while True:
        request = fitting_request(ctx)
        try:
            return await _call_model(ctx, request, attempts)
        except ContextTooLong as error:
            if was_cut or not cut_window(ctx, error.limit):
                raise
            was_cut = True
            _take_back(ctx, attempts, error)
        except ModelOverloaded as error:
            fallback = attempts.next_model(ctx.conversation)
            attempts.overloaded.add(ctx.conversation.model)
            if fallback is None:
                raise
            was_cut = False  # another model has another window
            _take_back(ctx, attempts, error)
            before = ctx.conversation.model
            ctx.conversation.use_model(fallback, ctx.judge)  # it gets no blocks of the one before
            message = f"{before} is overloaded: {fallback} continues the task (llm.fallback_models)"
            ctx.emit(EventType.LLM_FALLBACK, ctx.step_id, model=before, fallbackModel=fallback, message=message)


def fitting_request(ctx: LoopContext) -> ModelRequest:
    """Make the next request fit, and check that it may be sent. If the newest turn alone would not fit, its results are
    shortened like all earlier ones. Raises what `check_before_call` and `check_request` raise."""
    check_before_call(ctx)
    conversation = ctx.conversation
    most_output = conversation.output_limit(ctx.judge)
    room = room_for_conversation(ctx, most_output)
    newest_tokens, newest_messages = conversation.thread.newest
    if newest_tokens > room:
        _clear_all_results(ctx, newest_messages)
    tokens, dropped = conversation.tokens, conversation.thread.dropped
    conversation.thread.fit(room)
    if conversation.thread.dropped != dropped:
        emit_compacted(ctx, "drop_oldest", estimate_input(ctx, tokens))
    conversation.settle_window()
    request = next_request(ctx, most_output)
    while request.size_bytes > MAX_REQUEST_BYTES and cut_window(ctx):
        conversation.settle_window()
        request = next_request(ctx, most_output)
    affordable = check_request(ctx, conversation.model, request)
    return request._replace(most_output=conversation.lower_output(affordable, most_output, ctx.judge))


def cut_window(ctx: LoopContext, limit: int | None = None) -> bool:
    """Omit the oldest half of the conversation from requests, or everything above half of the model's `limit`; returns
    True if anything was omitted. The next record of a turn or a step's end contains the start of the window."""
    conversation, before = ctx.conversation, estimate_input(ctx, ctx.conversation.tokens)
    budget = int(conversation.thread.tokens * _SHARE)
    if limit is not None:
        budget = min(budget, int(limit * _SHARE) - conversation.head_tokens)
    dropped = conversation.thread.cut(budget)
    if dropped:
        message = f"the conversation was too long for the model: its oldest {dropped} message(s) are left out"
        ctx.emit(EventType.LLM_WINDOW_CUT, ctx.step_id, droppedMessages=dropped, message=message)
        emit_compacted(ctx, "drop_oldest", before)
    return dropped > 0


def _take_back(ctx: LoopContext, attempts: Attempts, error: GatewayError) -> None:
    ctx.emit(EventType.LLM_RETRY, ctx.step_id, attempt=attempts.number, waitMs=0, message=str(error))


# Compaction of a request (AH 5.4): older results are omitted, or a summary replaces the older part.
#
# The recorded conversation stays complete; a request contains a view of it, which is recorded when it changes. If a
# strategy saves too little, the next cheaper one follows; the last, dropping the oldest messages, always works.


_MIN_SAVED = 0.2
"""Share of the window that clearing has to save: each change of the view has the whole request written to the cache
again."""
_STEPS_WITHOUT = 10
"""Number of steps without another request for a summary, after one failed."""
_MARGIN = 0.05
"""Share of the window that is kept free for the question, so that a summary is asked for before it is too late."""


async def make_room(ctx: LoopContext) -> None:
    """Change the view if the next request would be too long, or a client asked for it. `Thread.fit` cuts what is still
    too long. Raises TaskCancelled, CheckpointWriteFailed."""
    conversation = ctx.conversation
    strategy, wanted = conversation.compaction.strategy, conversation.compaction_wanted
    if strategy == "drop_oldest" and not wanted:
        return
    window = room_for_conversation(ctx, conversation.output_limit(ctx.judge))
    if conversation.thread.tokens <= window * (1 - _MARGIN) and not wanted:
        return
    conversation.compaction_wanted = False
    before = estimate_input(ctx, conversation.tokens)
    is_due = strategy == "summarize" and conversation.steps_without_summary == 0
    by_summary = is_due or (wanted and strategy == "drop_oldest")
    conversation.steps_without_summary = max(0, conversation.steps_without_summary - 1)
    record = await _summarize(ctx, window) if by_summary else None
    if by_summary and record is None:
        conversation.steps_without_summary = _STEPS_WITHOUT
    record = record or _clear_results(ctx, window)
    if record is not None:
        _show(ctx, record, before)


def _clear_all_results(ctx: LoopContext, newest: int) -> None:
    """Omit the text of all large results from requests, if that shortens the `newest` messages."""
    state, messages = ctx.state, len(ctx.state.thread) - 1
    first = 1 + max(state.cleared_messages, messages - newest)
    if any(count_saved(decode(data)) for data in state.thread[first:]):
        record = ContextCompacted("clear_tool_results", ctx.conversation.thread.dropped, messages, state.summary)
        _show(ctx, record, estimate_input(ctx, ctx.conversation.tokens))


def _show(ctx: LoopContext, record: ContextCompacted, before: int) -> None:
    ctx.journal.record(record)
    ctx.conversation.renew_thread()
    emit_compacted(ctx, record.strategy, before, record.usage)


def _clear_results(ctx: LoopContext, window: int) -> ContextCompacted | None:
    """Omit older results; None if that saves too little."""
    state, older = ctx.state, ctx.conversation.thread.older()
    first = max(state.cleared_messages, state.dropped_messages)
    saved = sum(count_saved(decode(data)) for data in state.thread[1 + first : 1 + older])
    if saved < min(window, ctx.conversation.thread.tokens) * _MIN_SAVED:
        return None
    return ContextCompacted("clear_tool_results", state.dropped_messages, older, state.summary)


async def _summarize(ctx: LoopContext, window: int) -> ContextCompacted | None:
    """Replace all but the newest messages by a summary; None if the model gives none."""
    conversation, state = ctx.conversation, ctx.state
    model = conversation.compaction.summary_model or conversation.model
    turn = await _answer(ctx, window, model)
    if turn is None:
        return None
    text = ctx.scrubber.text(turn.text.strip())[:MAX_CHARS]
    size = min(window, conversation.thread.tokens)
    dropped = conversation.thread.count_dropped(size, summary_message(text, conversation.count).tokens)
    if not text or turn.tool_calls or turn.meaning != "complete" or dropped <= state.dropped_messages:
        dropped, text = state.dropped_messages, state.summary or ""
    if dropped == state.dropped_messages:
        # The request for a summary costs tokens in any case.
        kept = ContextCompacted("summarize", dropped, state.cleared_messages, state.summary, turn.usage, model)
        ctx.journal.record(kept)
        return None
    return ContextCompacted("summarize", dropped, state.cleared_messages, text, turn.usage, model)


async def _answer(ctx: LoopContext, window: int, model: str) -> ModelTurn | None:
    """The answer of `model` to the request for a summary; None if policy, the budget or the gateway prevents it. The
    request has the same beginning as the previous one, so that the provider's cache serves it."""
    conversation, asked = ctx.conversation, question(ctx.conversation.count)
    if not ctx.judge.check_llm(model).allowed:
        return None
    thread, make_head = conversation.thread, conversation.make_head
    if model != conversation.model:
        thread, make_head = conversation.for_model(model, None)
    messages, estimated = thread.asking(asked, window, conversation.head_tokens)
    estimated += conversation.head_tokens
    size_bytes, most_output = sum(map(len, messages)), conversation.output_limit(ctx.judge)
    request = ModelRequest(messages, size_bytes, estimated, estimated, int(estimated * LEAST_SHARE), most_output)
    try:
        affordable = check_request(ctx, model, request)
    except (BudgetExceeded, UsageError):
        return None
    head = conversation.head
    if model != conversation.model or affordable not in (None, most_output):
        head = make_head(ctx.judge, most_output if affordable is None else affordable)

    def ask() -> Awaitable[ModelTurn]:
        return conversation.llm.stream(head, request.messages, lambda _: None)  # it is no answer to the person

    def on_retry(_: int, wait_s: float, error: GatewayUnavailable) -> None:
        ctx.emit(EventType.CONTEXT_SUMMARY_RETRY, ctx.step_id, waitMs=int(wait_s * 1000), message=str(error))

    try:
        turn = await ctx.cancellation.interruptible(
            call_with_retries(GatewayUnavailable, ask, conversation.retry, on_retry, ctx.outside)
        )
    except (GatewayError, GuardrailBlocked):
        return None
    return count_usage(ctx, turn, needed=request.needed, sent=request.estimated, shown=turn.text)
